//! The flags of `oroshi gate`, as they are typed.

use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  oroshi gate --config gate.toml
      docs/gate.md explains every key, and has a file to begin with
  oroshi gate --config gate.toml --check
      reports every mistake, or prints what is in force with every default
  oroshi gate --config gate.toml explain shop.example.org
      where requests for a host go, which tier decides that, and the state of its targets
  oroshi gate --config gate.toml purge --key shop.example.org
      makes the gateway forget the cached values of a host
  oroshi start --port 8080 --ready notify -- oroshi gate --config gate.toml
      restarts without a refused connection: `oroshi start` owns each address of [listen]

Signals: HUP reloads the configuration without closing a connection. TERM and INT drain: the gateway
accepts no new connections, finishes the requests in progress, and exits. A second one ends it at once.

Exit codes: 0 done; 1 the gateway could not listen, serve or be asked; 2 wrong usage or configuration.";

/// Forward requests to upstreams found by host in memory, memcached and SQL
///
/// The gateway keeps connections open: to clients, to upstreams, to stores.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = false)]
pub(crate) struct Args {
    /// Read this configuration (TOML)
    #[arg(long, value_name = "FILE", default_value = "gate.toml", global = true)]
    pub(super) config: PathBuf,
    /// Log this level and more severe ones on standard error: debug, info, warn or error
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(super) log_level: String,
    /// Check the configuration and print what is in force, with every default and without secrets; do not serve
    ///
    /// Reports every mistake with its line, and then exits with code 2.
    #[arg(long)]
    pub(super) check: bool,
    /// Ask the gateway at this admin address [default: the first of listen.admin in the configuration]
    #[arg(long, value_name = "ADDRESS", global = true)]
    pub(super) admin: Option<String>,
    #[command(subcommand)]
    pub(super) command: Option<Command>,
}

/// The commands for a running gateway.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Show where a request would go, and which tier decides that
    Explain {
        /// Explain a request for this host
        host: String,
        /// Explain a request for this path
        #[arg(long, value_name = "PATH", default_value = "/")]
        path: String,
        /// Explain a request with this method
        #[arg(long, value_name = "METHOD", default_value = "GET")]
        method: String,
        /// Look up this key, where it is neither the host nor a part of the path
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
    },
    /// Forget the cached values of a key, of all keys with a prefix, or of all keys, or a cached certificate
    #[command(group = clap::ArgGroup::new("what").required(true).args(["key", "prefix", "all", "certificate"]))]
    Purge {
        /// Forget this key
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
        /// Forget all keys that begin with this
        #[arg(long, value_name = "PREFIX")]
        prefix: Option<String>,
        /// Forget all keys
        #[arg(long)]
        all: bool,
        /// Forget the certificate that was looked up for this server name, or that there is none
        #[arg(long, value_name = "NAME", conflicts_with = "lookup")]
        certificate: Option<String>,
        /// Forget in this look-up only [default: in all of them]
        #[arg(long, value_name = "NAME")]
        lookup: Option<String>,
        /// Also delete the key in memcached
        #[arg(long, requires = "key")]
        everywhere: bool,
    },
    /// Print the state of the gateway as JSON
    Status,
    /// Seal a chain and its key: prints the row for the look-up of certificates
    ///
    /// The secret is that of `tls.seal` in the configuration. The chain and its key are PEM, the server's own
    /// certificate first.
    Seal {
        /// Read the chain and its key from this file [default: standard input]
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
}
