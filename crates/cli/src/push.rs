//! `oroshi push`: the push hub. `args` is what was typed, `read` makes a plan of it and of the file that it names; `sockets` is what the
//! hub listens on, `text` what `--check` prints.
//!
//! A configuration is a tree ([`crate::config`]), read from TOML or from YAML with templates (`yaml`, `template`); what its keys
//! mean is in `native` and `kuiperbelt`. What the hub does is `oroshi-push`'s matter.

mod args;
mod kuiperbelt;
mod native;
mod read;
mod sockets;
mod template;
mod text;
mod yaml;

use std::io::{self, Write};
use std::process::ExitCode;

use oroshi_net::inherit::{InheritError, inherited};
use oroshi_net::listen::ListenError;
use oroshi_net::notify::Manager;
use oroshi_net::{Shutdown, ensure_descriptors};
use oroshi_push::{Limits, Plan, RunError};

use crate::config::ConfigError;
use crate::log::{Level, Log};
pub(crate) use args::{Args, two_dashes};

/// Why there was no hub, or it did not end well.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The options do not make sense: each line names one, its value, and what was expected. Correct them.
    #[error("{}", .0.join("\n"))]
    Usage(Vec<String>),
    /// The configuration cannot be read, or does not make sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The sockets that the environment names cannot be used; the cause says which and why.
    #[error("cannot use the inherited sockets")]
    Inherit(#[source] InheritError),
    /// A socket was handed down that the configuration does not know. Name it there, or name it `public` or `admin`.
    #[error(
        "{variable} hands down a socket called `{name}`, and nothing says what to serve there: expected one at an address in \
         [listen], or called public, admin or everything"
    )]
    Stranger {
        /// What the supervisor calls it.
        name: String,
        /// The variable that names it.
        variable: &'static str,
    },
    /// An inherited socket cannot be shared among the threads: too many descriptors are open.
    #[error("cannot share an inherited socket among the threads")]
    Share(#[source] io::Error),
    /// The hub could not run; the cause says why.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The system refused what every server needs.
    #[error("{what}")]
    System {
        /// What could not be done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    /// 2 when the command line or the configuration was wrong, 1 when the work failed.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) | Error::Config(_) | Error::Stranger { .. } => 2,
            Error::Run(RunError::Listen { source: ListenError::Address { .. } | ListenError::Unix { .. }, .. }) => 2,
            _ => 1,
        }
    }

    /// What to do next, where the message does not say it.
    pub(crate) fn next_step(&self) -> Option<&'static str> {
        match self {
            Error::Run(RunError::Listen { source: ListenError::InUse { .. }, .. }) => {
                Some("see who it is (ss -ltnp, ss -lxp), and end it or listen elsewhere")
            }
            Error::Config(ConfigError::File { .. }) => {
                Some("name the file with --config FILE, or give --port 9180 without one")
            }
            Error::Config(ConfigError::Mistakes { .. }) => {
                Some("correct the file; docs/push.md has every key, and --check tries it")
            }
            _ => None,
        }
    }
}

/// Runs the hub until it is told to end.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    // First thing, as other descriptors could take the places of those that are inherited.
    let inherited = inherited().map_err(Error::Inherit)?;
    let read::Reading { plan, level, file, listens, overlooked } = read::read(args, !inherited.is_empty())?;
    let log = Log { level, part: "push", own: "oroshi_push" };
    for text in &overlooked {
        log.tell(Level::Warn, &format!("overlooked, as kuiperbelt does: {text}"));
    }
    if args.check {
        let mut out = io::stdout().lock();
        let printed = out.write_all(text::config(&plan).as_bytes()).and_then(|()| out.flush());
        printed.map_err(|source| Error::System { what: "cannot write to standard output", source })?;
        return Ok(ExitCode::SUCCESS);
    }
    log.listen();
    if let Some(file) = file {
        log.tell(Level::Info, &format!("configuration: {}", file.display()));
    }
    for line in text::config(&plan).lines().filter(|line| !line.is_empty()) {
        log.tell(Level::Debug, line);
    }
    make_room(&plan, log);
    let shutdown = Shutdown::on_signals().map_err(|source| Error::System { what: "cannot take signals", source })?;
    let doors = sockets::bind(&plan, inherited, listens)?;
    sockets::open_to_others(&plan, &doors).iter().for_each(|text| log.tell(Level::Warn, text));
    let listening: Vec<String> = doors.iter().map(sockets::shown).collect();
    oroshi_push::run(plan, doors, &shutdown, move || {
        listening.iter().for_each(|line| log.tell(Level::Info, line));
        Manager::find().tell("READY=1\n");
    })?;
    log.tell(Level::Info, "ended");
    Ok(ExitCode::SUCCESS)
}

/// Asks for descriptors, and tells if there are too few.
fn make_room(plan: &Plan, log: Log) {
    // Beside the sessions: listeners, callbacks, what libraries open.
    let wanted = plan.limits.sessions as u64 + plan.threads as u64 * (plan.callbacks.connections as u64 + 16);
    if let Err(error) = ensure_descriptors(wanted) {
        let room =
            [500_000, 200_000, 100_000, 50_000, 20_000].into_iter().find(|&count| ensure_descriptors(count).is_ok());
        let room = room.map_or_else(String::new, |room| format!("; there is room for about {room} sessions"));
        // Nobody has asked for the usual limit.
        let level = if plan.limits.sessions == Limits::default().sessions { Level::Debug } else { Level::Warn };
        log.tell(level, &format!("limits.sessions: {error}{room}"));
    }
}
