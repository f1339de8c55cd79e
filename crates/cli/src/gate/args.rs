//! The flags of `oroshi gate`, as they are typed.

use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  oroshi gate --config gate.toml
      docs/gate.md has a file to begin with, and every key
  oroshi gate --config gate.toml --check
      says every mistake, or what is in force with every default
  oroshi gate --config gate.toml explain shop.example.org
      which way a host goes, which tier says so, and how its targets are
  oroshi gate --config gate.toml purge --key shop.example.org
      has it forget what is known of a host
  oroshi start --port 8080 --ready notify -- oroshi gate --config gate.toml
      restarts without a refused connection: each address of [listen] is handed down

Signals: HUP reads the file again and puts it in force without closing a connection. TERM and INT end it
in good form: no new connections, requests under way are answered. A second one ends it at once.

Exit codes: 0 done; 1 it could not listen, serve or be asked; 2 wrong usage or configuration.";

/// Carry requests to the servers behind, found by host in memory, memcached and SQL
///
/// A gateway that keeps every connection: to clients, to servers, to stores.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = false)]
pub(crate) struct Args {
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = "gate.toml", global = true)]
    pub(super) config: PathBuf,
    /// What is told on standard error: debug, info, warn or error
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(super) log_level: String,
    /// Check the configuration, and print what is in force
    #[arg(long)]
    pub(super) check: bool,
    /// Where to ask: an admin address of the gateway [default: the first of listen.admin in the configuration]
    #[arg(long, value_name = "ADDRESS", global = true)]
    pub(super) admin: Option<String>,
    #[command(subcommand)]
    pub(super) command: Option<Command>,
}

/// What can be asked of a gateway that runs.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Say which way a request would go, and why
    Explain {
        /// The host that it is for
        host: String,
        /// Its path
        #[arg(long, value_name = "PATH", default_value = "/")]
        path: String,
        /// Its method
        #[arg(long, value_name = "METHOD", default_value = "GET")]
        method: String,
        /// What is looked up, where that is neither the host nor a part of the path
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
    },
    /// Have it forget what is known of a key, of all that begin so, or of all
    #[command(group = clap::ArgGroup::new("what").required(true).args(["key", "prefix", "all"]))]
    Purge {
        /// This key
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
        /// All keys that begin so
        #[arg(long, value_name = "PREFIX")]
        prefix: Option<String>,
        /// All keys
        #[arg(long)]
        all: bool,
        /// In this look-up only
        #[arg(long, value_name = "NAME")]
        lookup: Option<String>,
        /// Delete the key in memcached as well
        #[arg(long, requires = "key")]
        everywhere: bool,
    },
    /// Print its state as JSON
    Status,
}
