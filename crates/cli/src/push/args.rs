//! The flags of `oroshi push`, as they are typed: with two dashes, or with one as in Go programs.

use std::ffi::OsString;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  oroshi push --port 9180
      clients connect to ws://localhost:9180/connect; POST /publish reaches them
  oroshi push --config push.toml
      with callbacks, groups, limits; docs/push.md explains every key
  oroshi push -config config.yml
      kuiperbelt's configuration and command line, unchanged
  oroshi push --config push.toml --check
      reports every mistake, or prints what is in force with every default
  oroshi push top --admin 127.0.0.1:9181 --token-file token
      shows what a running hub does, live
  oroshi start --port 9180 --port 127.0.0.1:9181 --ready notify -- oroshi push --config push.toml
      restarts without a refused connection: `oroshi start` owns each address of [listen]

Signals: TERM and INT drain: the hub opens no new sessions, delivers waiting messages, tells clients
when to reconnect, and exits. A second one ends it at once.

Exit codes: 0 done; 1 the hub could not listen or serve; 2 wrong usage or configuration.";

/// Hold many client connections, and deliver published messages to them
///
/// A push hub with a receipt for each publish. Clients connect by WebSocket, server-sent events, streams or polling;
/// kuiperbelt's API works beside the hub's own.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Read this configuration: TOML (.toml), or kuiperbelt's YAML (.yml, .yaml) [default: config.yml, if it exists]
    #[arg(long, value_name = "FILE", global = true)]
    pub(super) config: Option<PathBuf>,
    /// Serve everything on this TCP port, and ignore the configured listeners [default: as configured]
    #[arg(long, value_name = "N")]
    pub(super) port: Option<String>,
    /// Serve everything on this unix socket, and ignore the configured listeners [default: as configured]
    #[arg(long, value_name = "PATH")]
    pub(super) sock: Option<String>,
    /// Log this level and more severe ones on standard error: debug, info, warn or error
    ///
    /// debug adds the configuration in force.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(super) log_level: String,
    /// Check the configuration and print what is in force, with every default and without secrets; do not serve
    ///
    /// Reports every mistake with its line, and then exits with code 2.
    #[arg(long)]
    pub(super) check: bool,
    /// Accept kuiperbelt's flag: ignored with `compat: ekbo`, an error without it
    #[arg(long, value_name = "ADDRESS", hide = true)]
    pub(super) gops_addr: Option<String>,
    #[command(subcommand)]
    pub(super) command: Option<Command>,
}

/// The commands for a running hub.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Show what a running hub does, live: sessions, rates, slow sessions, channels, nodes
    ///
    /// Draws the terminal anew every few seconds. Without a terminal it prints a line each time.
    Top {
        /// Ask the hub at this address [default: the first of listen.admin or listen.everything in the configuration]
        #[arg(long, value_name = "ADDRESS")]
        admin: Option<String>,
        /// Read the hub's token from this file [default: the configured one, unless --admin is given]
        #[arg(long, value_name = "FILE")]
        token_file: Option<PathBuf>,
        /// Ask every so often
        #[arg(long, value_name = "TIME", default_value = "2s")]
        interval: String,
        /// End after showing this many samples [default: a signal ends it]
        #[arg(long, value_name = "N")]
        samples: Option<String>,
    },
}

/// Adds the second dash to the flags of `push` that were typed with one, as in Go programs.
pub(crate) fn two_dashes(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    const FLAGS: [&str; 8] = ["config", "port", "sock", "log-level", "check", "gops-addr", "version", "help"];
    let mut is_push = false;
    let mut words: Vec<OsString> = words.into_iter().collect();
    for (at, word) in words.iter_mut().enumerate() {
        if at == 1 {
            is_push = word == "push";
        }
        let flag =
            word.to_str().and_then(|word| word.strip_prefix('-')).map(|flag| flag.split('=').next().unwrap_or(flag));
        if is_push && flag.is_some_and(|flag| FLAGS.contains(&flag)) {
            let mut longer = OsString::from("-");
            longer.push(&*word);
            *word = longer;
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_dash_is_as_good_as_two() {
        let read = |line: &str| {
            let words = two_dashes(line.split(' ').map(OsString::from));
            words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
        };
        for (typed, read_as) in [
            (
                "oroshi push -config a.yml -port=9180 -log-level warn",
                "oroshi push --config a.yml --port=9180 --log-level warn",
            ),
            ("oroshi push --config a.yml -sock /x -check", "oroshi push --config a.yml --sock /x --check"),
            ("oroshi push -v -h -unknown - -c", "oroshi push -v -h -unknown - -c"),
            ("oroshi bench -config push -port", "oroshi bench -config push -port"),
        ] {
            assert_eq!(read(typed), read_as);
        }
    }
}
