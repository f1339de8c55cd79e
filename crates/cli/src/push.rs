//! `oroshi push`: the push hub. `args` has the flags, `read` turns them and the configuration into a plan,
//! `sockets` opens the listeners, and `text` writes the output of `--check`.
//!
//! A configuration is a tree (`oroshi-config`), read from TOML or from YAML with templates (`template`).
//! `native` and `kuiperbelt` read its keys. The crate `oroshi-push` is the hub itself.

mod args;
mod kuiperbelt;
mod native;
mod read;
mod sockets;
mod template;
mod text;

use std::io::{self, Write};
use std::process::ExitCode;

use oroshi_config::ConfigError;
use oroshi_net::Shutdown;
use oroshi_net::inherit::{InheritError, inherited};
use oroshi_net::limits::{ConnectionLimit, DescriptorError, connection_limit, open_descriptors};
use oroshi_net::listen::ListenError;
use oroshi_net::notify::Manager;
use oroshi_push::{Limits, Plan, RunError, Serves};
use rustix::process::{Resource, getrlimit};

use crate::log::{Level, Log};
pub(crate) use args::{Args, two_dashes};

/// The reasons why the hub did not run, or failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Some options are wrong: each line names one, its value, and what was expected. Correct them.
    #[error("{}", .0.join("\n"))]
    Usage(Vec<String>),
    /// The configuration cannot be read, or is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The sockets that the environment names cannot be used; the cause says which and why.
    #[error("cannot use the inherited sockets")]
    Inherit(#[source] InheritError),
    /// The configuration does not name an inherited socket. Name it there, or name it `public` or `admin`.
    #[error(
        "{variable} hands down a socket called `{name}`, and nothing says what to serve there: expected one at an address in \
         [listen], or called public, admin or everything"
    )]
    Stranger {
        /// The supervisor's name of the socket.
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

    /// Returns the next step, if the message does not name it.
    pub(crate) fn next_step(&self) -> Option<&'static str> {
        match self {
            Error::Run(RunError::Listen { source: ListenError::InUse { .. }, .. }) => {
                Some("find the process (ss -ltnp, ss -lxp), and end it or listen elsewhere")
            }
            Error::Config(ConfigError::File { .. }) => {
                Some("name the file with --config FILE, or give --port 9180 without one")
            }
            Error::Config(ConfigError::Mistakes { .. }) => {
                Some("correct the file; docs/push.md explains every key, and --check tries the file")
            }
            _ => None,
        }
    }
}

/// The beginning of the comment in which `--check` reports lowered limits.
const LESS: &str = "the limit on descriptors here allows less: ";

/// Runs the hub until a signal ends it.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    // First, because a descriptor opened earlier could take the number of an inherited one.
    let inherited = inherited().map_err(Error::Inherit)?;
    let read::Reading { mut plan, level, file, listens, overlooked } = read::read(args, !inherited.is_empty())?;
    let log = Log { level, part: "push", own: "oroshi_push" };
    for text in &overlooked {
        log.tell(Level::Warn, &format!("ignored, as in kuiperbelt: {text}"));
    }
    let wanted = Wanted { sessions: plan.limits.sessions, connections: plan.callbacks.connections };
    let config = text::config(&plan);
    let lacking = make_room(&mut plan, !inherited.is_empty());
    if args.check {
        let short = lacking.as_ref().map(|_| format!("# {LESS}{}\n", in_force(&plan)));
        let mut out = io::stdout().lock();
        let printed = out.write_all((config + &short.unwrap_or_default()).as_bytes()).and_then(|()| out.flush());
        printed.map_err(|source| Error::System { what: "cannot write to standard output", source })?;
        return Ok(ExitCode::SUCCESS);
    }
    log.listen();
    if let Some(file) = file {
        log.tell(Level::Info, &format!("configuration: {}", file.display()));
    }
    for line in config.lines().filter(|line| !line.is_empty()) {
        log.tell(Level::Debug, line);
    }
    if let Some(error) = lacking {
        tell_lack(&plan, &wanted, &error, log);
    }
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

/// The configured limits that take descriptors.
struct Wanted {
    sessions: usize,
    connections: usize,
}

/// Raises the descriptor limit for the planned sessions, operators, callbacks and other nodes.
///
/// If the limit is too low, lowers `limits.sessions`, so that clients leave descriptors for the others, and returns
/// the reason. `inherits`: there are inherited sockets, which may be for operators.
fn make_room(plan: &mut Plan, inherits: bool) -> Option<DescriptorError> {
    // Clients without a session: connecting, polling, or about to be refused.
    const BEYOND: u64 = 4096;
    let threads = plan.threads as u64;
    let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let callbacks = &mut plan.callbacks;
    let has_callbacks = [&callbacks.connect, &callbacks.establish, &callbacks.receive, &callbacks.close]
        .iter()
        .any(|url| url.is_some());
    if has_callbacks {
        callbacks.connections = callbacks.connections.min((hard / 4 / threads).max(1) as usize);
    }
    let callbacks = if has_callbacks { callbacks.connections as u64 * threads } else { 0 };
    // Publishing backends count as operators, and keep their connections.
    let has_operators = inherits || plan.doors.iter().any(|door| door.serves == Serves::Admin);
    let operators = if has_operators { (hard / 8).clamp(8, 4096) } else { 0 };
    // Listeners, each with a connection that waits for room; runtimes; NATS, look-ups of names, descriptors of
    // libraries.
    let own = 2 * plan.doors.len() as u64 * threads + 4 * (threads + 1) + 16;
    let others = open_descriptors() + own + operators + callbacks;
    let sessions = plan.limits.sessions as u64;
    let ConnectionLimit { connections, lacking } = connection_limit(sessions.saturating_add(BEYOND), 1, others);
    let beyond = (connections / 8).clamp(8, 1024);
    plan.connections = Some(connections as usize);
    plan.admin_connections = has_operators.then_some(operators as usize);
    plan.limits.sessions = sessions.min(connections.saturating_sub(beyond).max(1)) as usize;
    lacking.filter(|_| (plan.limits.sessions as u64) < sessions)
}

/// Describes the limits that the descriptor limit leaves of a plan.
fn in_force(plan: &Plan) -> String {
    let (sessions, clients) = (plan.limits.sessions, plan.connections.unwrap_or(0));
    let operators = plan.admin_connections.map(|most| format!(", beside {most} of operators")).unwrap_or_default();
    format!("limits.sessions is lowered to {sessions}, of {clients} connections of clients{operators}")
}

/// Logs that there is room for fewer sessions.
///
/// For the default limit this is a warning only if few sessions remain, because nobody asked for that number.
fn tell_lack(plan: &Plan, wanted: &Wanted, error: &DescriptorError, log: Log) {
    const FEW: usize = 10_000;
    let is_asked = wanted.sessions != Limits::default().sessions;
    let level = if is_asked || plan.limits.sessions < FEW { Level::Warn } else { Level::Info };
    log.tell(level, &format!("{}: {error}", in_force(plan)));
    if plan.callbacks.connections < wanted.connections {
        let (taken, asked) = (plan.callbacks.connections, wanted.connections);
        log.tell(
            Level::Warn,
            &format!("callbacks.connections is lowered from {asked} to {taken}, for the same reason"),
        );
    }
}
