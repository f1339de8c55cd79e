//! `oroshi push`: the push hub. `args` has the flags, `read` turns them and the configuration into a plan,
//! `text` writes the output of `--check`, and `top` shows a running hub.
//!
//! A configuration is a tree (`oroshi-config`), read from TOML or from YAML with templates (`template`).
//! `native` and `kuiperbelt` read its keys. The crate `oroshi-push` is the hub itself.

mod args;
mod kuiperbelt;
mod native;
mod read;
mod template;
mod text;
mod top;

use std::process::ExitCode;
use std::time::Duration;

use oroshi_config::ConfigError;
use oroshi_net::Peer;
use oroshi_net::inherit::InheritedSocket;
use oroshi_net::limits::{ConnectionLimit, DescriptorError, connection_limit, open_descriptors};
use oroshi_push::{Limits, OpenListener, Plan, RunError, Serves, Tls};
use oroshi_service::{SocketError, admin_connections, descriptor_limit, engine_descriptors, notify_ready};
use oroshi_words::Secret;
use oroshi_words::units::{parse_count, parse_time};

use crate::log::{Level, Log};
use crate::service::{self, RoleError, ServiceError};
pub(crate) use args::{Args, two_dashes};

/// The reasons why the hub did not run, or failed.
pub(crate) type Error = ServiceError<PushError>;

/// An error of the hub alone.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PushError {
    /// The hub could not run; the cause says why.
    #[error(transparent)]
    Run(RunError),
    /// A running hub could not be shown.
    #[error(transparent)]
    Top(top::TopError),
}

impl RoleError for PushError {
    fn is_usage(&self) -> bool {
        matches!(self, PushError::Top(error) if error.is_usage())
    }

    fn config_step(error: &ConfigError) -> Option<&'static str> {
        Some(match error {
            ConfigError::File { .. } => "name the file with --config FILE, or give --port 9180 without one",
            ConfigError::Mistakes { .. } => {
                "correct the file; docs/push.md explains every key, and --check tries the file"
            }
        })
    }
}

/// The beginning of the comment in which `--check` reports lowered limits.
const LESS: &str = "the limit on descriptors here allows less: ";

/// Warns of histories in JetStream that no channel has.
const UNUSED_HISTORY: &str = "cluster.history = \"jetstream\" keeps nothing, because no [[group]] has a history: set \
                              history-messages, history-bytes, history-time, latest or delta in one, or leave the key out";

/// Runs the hub until a signal ends it, or shows a running hub.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    if let Some(command) = &args.command {
        return show(args, command);
    }
    let inherited = service::take_inherited()?;
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
        service::print(&(config + &short.unwrap_or_default()))?;
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
    let shutdown = service::shutdown_on_signals()?;
    let listeners = open(&plan, inherited, listens)?;
    open_to_others(&plan, &listeners).iter().for_each(|text| log.tell(Level::Warn, text));
    if plan.cluster.as_ref().is_some_and(|cluster| cluster.history.is_some())
        && plan.groups.iter().all(|rule| rule.keeps.is_none())
    {
        log.tell(Level::Warn, UNUSED_HISTORY);
    }
    if plan.tls.is_none() && listeners.iter().any(|bound| bound.listener.serves == Serves::Tls) {
        let text = "listen.tls: there is no certificate for an inherited socket of this name: expected [tls] with \
                    certificates = [...]";
        return Err(Error::Usage(vec![text.to_owned()]));
    }
    plan.tls.iter().flat_map(|tls| tls.warnings()).for_each(|text| log.tell(Level::Warn, text));
    // Before READY=1, because a supervisor may send HUP from then on.
    let tls = plan.tls.clone();
    service::on_hangup(move || read_again(tls.as_deref(), log))
        .map_err(|source| Error::System { what: "cannot take HUP", source })?;
    let listening: Vec<String> = listeners.iter().map(OpenListener::to_string).collect();
    let ready = move || {
        listening.iter().for_each(|line| log.tell(Level::Info, line));
        notify_ready();
    };
    oroshi_push::run(plan, listeners, &shutdown, ready).map_err(|error| Error::Role(PushError::Run(error)))?;
    log.tell(Level::Info, "ended");
    Ok(ExitCode::SUCCESS)
}

/// Reads the certificates again; if a file has a mistake, logs it and changes nothing.
fn read_again(tls: Option<&Tls>, log: Log) -> bool {
    let Some(tls) = tls else {
        log.tell(Level::Info, "HUP: there are no certificates to read again; other changes need a restart");
        return true;
    };
    match tls.read_again() {
        Ok((count, warnings)) => {
            log.tell(Level::Info, &format!("certificates were read again: {count} in force for new handshakes"));
            warnings.iter().for_each(|text| log.tell(Level::Warn, text));
        }
        Err(mistakes) => {
            for text in mistakes {
                log.tell(Level::Error, &format!("the certificates before stay in force: {text}"));
            }
        }
    }
    true
}

/// Shows a running hub, at the address that the command line or the configuration names.
fn show(args: &Args, command: &args::Command) -> Result<ExitCode, Error> {
    let args::Command::Top { admin, token_file, interval, samples } = command;
    let mut usage = Vec::new();
    let interval = parse_time(interval).and_then(|time| match time {
        time if time < Duration::from_millis(100) => Err(format!("`{interval}`: expected at least 100ms")),
        time => Ok(time),
    });
    let interval = interval.unwrap_or_else(|why| {
        usage.push(format!("--interval: {why}"));
        Duration::ZERO
    });
    let samples = samples.as_deref().map(parse_count).transpose().unwrap_or_else(|why| {
        usage.push(format!("--samples: {why}"));
        None
    });
    let token = token_file.as_ref().map(std::fs::read_to_string).transpose().unwrap_or_else(|error| {
        usage.push(format!("--token-file: cannot be read: {error}"));
        None
    });
    if !usage.is_empty() {
        return Err(Error::Usage(usage));
    }
    let mut token = token.map(|token| Secret::new(token.trim_end()));
    let address = match admin {
        Some(address) => address.clone(),
        None => {
            let plan = read::read(args, false)?.plan;
            token = token.or(plan.token);
            let serving = |serves| plan.listeners.iter().find(move |listener| listener.serves == serves);
            let found = serving(Serves::Admin).or_else(|| serving(Serves::Everything));
            found.map(|listener| listener.address.clone()).ok_or(Error::Role(PushError::Top(top::TopError::Nowhere)))?
        }
    };
    let shutdown = service::shutdown_on_signals()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| Error::System { what: "cannot start", source })?;
    let token = token.as_ref().map(Secret::reveal);
    let top = top::Top { address: &address, token, interval, samples };
    runtime.block_on(top::run(&top, &shutdown)).map_err(|error| Error::Role(PushError::Top(error)))?;
    Ok(ExitCode::SUCCESS)
}

/// Opens the listeners of a plan; inherited sockets replace listeners.
///
/// Without a configured listener (`listens`), an inherited socket with an unknown name serves everything.
fn open(plan: &Plan, inherited: Vec<InheritedSocket>, listens: bool) -> Result<Vec<OpenListener>, SocketError> {
    let unnamed = (!listens).then_some(Serves::Everything);
    let mut left = plan.listeners.clone();
    let mut all = Vec::new();
    for socket in inherited {
        let bound = OpenListener::adopt(socket, &left, unnamed, plan.threads)?;
        if let Some(at) = left.iter().position(|listener| *listener == bound.listener) {
            left.remove(at);
        }
        all.push(bound);
    }
    all.extend(OpenListener::bind(&left, plan.threads)?);
    Ok(all)
}

/// Returns warnings about sockets at which any program can publish: by TCP, without a token.
fn open_to_others(plan: &Plan, all: &[OpenListener]) -> Vec<String> {
    let is_tcp =
        |bound: &&OpenListener| bound.sockets.first().is_some_and(|socket| matches!(socket.address(), Peer::Tcp(_)));
    let warning = |bound: &OpenListener| {
        let address = bound.address();
        match bound.listener.serves {
            Serves::Sessions | Serves::Tls => None,
            Serves::Everything => Some(format!(
                "every client that reaches {address} may publish: keep it behind a proxy or a firewall, set \
                 auth.token-file, or give publishers a listener of their own (listen.admin)"
            )),
            Serves::Admin => Some(format!(
                "every program on this machine may publish at {address}: set auth.token-file, or listen on a unix \
                 socket"
            )),
        }
    };
    let open = all.iter().filter(|_| plan.token.is_none()).filter(is_tcp);
    open.filter_map(warning).collect()
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
    let callbacks = &mut plan.callbacks;
    let has_callbacks = [&callbacks.connect, &callbacks.establish, &callbacks.receive, &callbacks.close]
        .iter()
        .any(|url| url.is_some());
    if has_callbacks {
        callbacks.connections = callbacks.connections.min((descriptor_limit() / 4 / threads).max(1) as usize);
    }
    let callbacks = if has_callbacks { callbacks.connections as u64 * threads } else { 0 };
    // Publishing backends count as operators, and keep their connections.
    let has_operators = inherits || plan.listeners.iter().any(|listener| listener.serves == Serves::Admin);
    let operators = if has_operators { admin_connections(4096) } else { 0 };
    // The last are for NATS, look-ups of names, and libraries.
    let own = engine_descriptors(plan.listeners.len(), plan.threads) + 16;
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
