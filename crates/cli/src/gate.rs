//! `oroshi gate`: the gateway. `args` has the flags, `keys` reads a file into a draft (`tls` and `acme` their tables),
//! `text` writes the output of `--check`, `ask` asks a running gateway, and `trial` tries the queries of look-ups. The
//! crate `oroshi-gate` is the gateway itself.

mod acme;
mod args;
mod ask;
mod keys;
mod text;
mod tls;
mod trial;

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use oroshi_config::{ConfigError, Mistakes, Node, Table, text_of, toml};
use oroshi_gate::{Draft, Gate, Listener, OpenListener, Plan, RunError, Serves};
use oroshi_lookup::{StoreKind, StoreSettings};
use oroshi_net::inherit::InheritedSocket;
use oroshi_net::limits::{connection_limit, open_descriptors};
use oroshi_net::{Peer, UnixAddress};
use oroshi_service::{admin_connections, descriptor_limit, engine_descriptors, notify_ready};
use oroshi_words::Mistake;
use oroshi_words::mistake::add_checked;

pub(crate) use args::Args;

use crate::log::{Level, Log};
use crate::service::{self, RoleError, ServiceError};

/// The reasons why the gateway did not run, or failed.
pub(crate) type Error = ServiceError<GateError>;

/// An error of the gateway alone.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GateError {
    /// The gateway could not run; the cause says why.
    #[error(transparent)]
    Run(RunError),
    /// The question could not be sent, or was refused.
    #[error(transparent)]
    Ask(ask::AskError),
    /// A row could not be sealed.
    #[error(transparent)]
    Seal(tls::SealingError),
}

impl RoleError for GateError {
    fn is_usage(&self) -> bool {
        match self {
            GateError::Run(error) => matches!(error, RunError::Stores(_)),
            GateError::Ask(error) => error.is_usage(),
            GateError::Seal(error) => !matches!(error, tls::SealingError::Random | tls::SealingError::Output(_)),
        }
    }

    fn config_step(error: &ConfigError) -> Option<&'static str> {
        Some(match error {
            ConfigError::File { .. } => "name the file with --config FILE; docs/gate.md has one to begin with",
            ConfigError::Mistakes { .. } => {
                "correct the file; docs/gate.md explains every key, and --check tries the file"
            }
        })
    }
}

impl From<RunError> for Error {
    fn from(error: RunError) -> Self {
        ServiceError::Role(GateError::Run(error))
    }
}

impl From<ask::AskError> for Error {
    fn from(error: ask::AskError) -> Self {
        ServiceError::Role(GateError::Ask(error))
    }
}

/// Runs the gateway until a signal ends it, or asks a running gateway.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    if let Some(args::Command::Seal { file }) = &args.command {
        let (draft, _, mistakes) = draft(&args.config)?;
        // Other mistakes do not matter here.
        let of_the_seal: Vec<Mistake> =
            mistakes.into_iter().filter(|mistake| mistake.key.starts_with("tls.seal")).collect();
        if !of_the_seal.is_empty() {
            return Err(Error::Config(ConfigError::mistakes(&args.config, of_the_seal)));
        }
        tls::seal(file.as_ref(), draft.tls).map_err(|error| ServiceError::Role(GateError::Seal(error)))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(command) = &args.command {
        let admin = || -> Result<Option<String>, Error> {
            // Other mistakes do not matter here: the file may be in the middle of an edit, or a secret may be absent.
            let (draft, ..) = draft(&args.config)?;
            Ok(draft
                .listeners
                .into_iter()
                .find(|listener| listener.serves == Serves::Admin)
                .map(|listener| listener.address))
        };
        return ask::ask(command, args.admin.as_deref(), admin);
    }
    let inherited = service::take_inherited()?;
    let open = open_descriptors();
    let level = Level::parse(&args.log_level).map_err(|why| Error::Usage(vec![format!("--log-level: {why}")]))?;
    let (mut plan, warnings) = plan(&args.config, !inherited.is_empty())?;
    if args.check {
        return check(plan, warnings, &args.config);
    }
    let log = Log { level, part: "gate", own: "oroshi_" };
    log.listen();
    log.tell(Level::Info, &format!("configuration: {}", args.config.display()));
    tell_odd(&warnings, log);
    let shutdown = service::shutdown_on_signals()?;
    let mut bound = adopt(&plan, inherited)?;
    let before = Before { open, listeners: bound.iter().map(|bound| bound.listener.clone()).collect() };
    tell_room(make_room(&mut plan, &before), log);
    bound.extend(bind_others(&plan, &before.listeners)?);
    for bound in &bound {
        log.tell(Level::Info, &bound.to_string());
    }
    let gate = Arc::new(Gate::start(plan, bound, &shutdown)?);
    // Before READY=1, because a supervisor may send HUP from then on.
    on_hangup(Arc::downgrade(&gate), args.config.clone(), before, log)
        .map_err(|source| Error::System { what: "cannot take HUP", source })?;
    notify_ready();
    log.tell(Level::Info, "serving");
    gate.join()?;
    log.tell(Level::Info, "ended");
    Ok(ExitCode::SUCCESS)
}

/// Prints the configuration in force, with warnings; tries the queries of look-ups.
fn check(mut plan: Plan, mut warnings: Vec<Mistake>, file: &Path) -> Result<ExitCode, Error> {
    let node = toml::parse(&text_of(file)?).unwrap_or_default();
    let (refused, untried) = trial::queries(&plan);
    let about = |(key, text): (String, String)| node.place(Mistake::new(key, text));
    let refused: Vec<Mistake> = refused.into_iter().map(about).collect();
    if !refused.is_empty() {
        return Err(Error::Config(ConfigError::mistakes(file, refused)));
    }
    warnings.extend(untried.into_iter().map(about));
    if let Some(short) = make_room(&mut plan, &Before { open: open_descriptors(), listeners: Vec::new() }) {
        warnings.push(node.place(Mistake::new("limits.connections", short)));
    }
    for warning in &warnings {
        // The reader of the output may have gone.
        let _ = writeln!(io::stderr().lock(), "warning: {}: {warning}", file.display());
    }
    service::print(&text::config(&plan))?;
    Ok(ExitCode::SUCCESS)
}

/// Logs warnings about settings that are probably mistakes.
fn tell_odd(warnings: &[Mistake], log: Log) {
    for warning in warnings {
        log.tell(Level::Warn, &warning.to_string());
    }
}

/// Reads the file into a plan and warnings, or returns every mistake. `inherits`: there are inherited sockets.
fn plan(file: &Path, inherits: bool) -> Result<(Plan, Vec<Mistake>), Error> {
    let (draft, node, mut mistakes) = draft(file)?;
    let planned = Draft { inherits, ..draft }.plan();
    let place = |problem| node.place(problem);
    let plan = planned.map_err(|problems| add_checked(&mut mistakes, problems.into_iter().map(place)));
    mistakes.sort();
    match plan {
        Ok(mut plan) if mistakes.is_empty() => {
            let odd = std::mem::take(&mut plan.warnings);
            Ok((plan, odd.into_iter().map(place).collect()))
        }
        _ => Err(Error::Config(ConfigError::mistakes(file, mistakes))),
    }
}

/// Reads a file into a draft, with the mistakes so far.
fn draft(file: &Path) -> Result<(Draft, Node, Vec<Mistake>), Error> {
    let wrong = |mistakes| Error::Config(ConfigError::mistakes(file, mistakes));
    let node = toml::parse(&text_of(file)?).map_err(wrong)?;
    let mistakes = Mistakes::default();
    let folder = file.parent().unwrap_or(Path::new(""));
    let draft = keys::read(Table::root(&node, &mistakes), folder);
    Ok((draft, node, mistakes.into_vec()))
}

/// Takes over the inherited sockets. Other users may not connect to those of operators.
fn adopt(plan: &Plan, inherited: Vec<InheritedSocket>) -> Result<Vec<OpenListener>, Error> {
    let listens = plan.listeners.iter().any(|listener| listener.serves != Serves::Admin);
    let unnamed = (!listens).then_some(Serves::Public);
    let adopt = |socket: InheritedSocket| {
        let (variable, peer) = (socket.variable, socket.listener.local_address().peer());
        let bound = OpenListener::adopt(socket, &plan.listeners, unnamed, plan.threads)?;
        match peer {
            _ if bound.listener.serves != Serves::Admin => {}
            Peer::Tcp(address) if address.ip().is_loopback() => {}
            Peer::Tcp(address) => {
                return Err(Error::Usage(vec![format!(
                    "{variable} hands down an admin socket at {address}, which would let others purge and look: \
                     expected one of this machine alone"
                )]));
            }
            Peer::Unix(address) => {
                if let Some(mode) = open_to_others(&address) {
                    return Err(Error::Usage(vec![format!(
                        "{variable} hands down the admin socket {address} with mode {mode:04o}, which would let \
                         others purge and look: expected 0600 (with oroshi start: --path-mode 0600)"
                    )]));
                }
            }
        }
        Ok(bound)
    };
    inherited.into_iter().map(adopt).collect()
}

/// Binds the listeners of a plan that are not open yet.
fn bind_others(plan: &Plan, open: &[Listener]) -> Result<Vec<OpenListener>, Error> {
    Ok(OpenListener::bind(plan.listeners.iter().filter(|listener| !open.contains(listener)), plan.threads)?)
}

/// Returns the mode of a socket's file if all users may connect. An abstract socket has no mode, and is open to all.
fn open_to_others(address: &UnixAddress) -> Option<u32> {
    let mode = match address.as_path() {
        Some(path) => std::fs::metadata(path).ok()?.mode() & 0o777,
        None => 0o777,
    };
    (mode & 0o002 != 0).then_some(mode)
}

/// The state of the process before it began to serve.
struct Before {
    /// The number of open descriptors.
    open: u64,
    /// The listeners of the inherited sockets.
    listeners: Vec<Listener>,
}

/// Raises the descriptor limit for the planned clients, each with an upstream connection, the operators and the
/// gateway.
///
/// If the limit is too low, lowers `limits.connections`, so that idle clients leave descriptors for upstreams, and
/// returns a text about that.
fn make_room(plan: &mut Plan, before: &Before) -> Option<String> {
    let handed_down = before.listeners.iter().filter(|listener| !plan.listeners.contains(listener));
    let listeners: Vec<&Listener> = plan.listeners.iter().chain(handed_down).collect();
    let admins = listeners.iter().filter(|listener| listener.serves == Serves::Admin).count() as u64;
    let publics = (listeners.len() as u64 - admins).max(1);
    let operators = if admins > 0 { admin_connections(64) } else { 0 };
    // Stores twice, because a reload opens those of the next plan beside them.
    let engine = engine_descriptors(listeners.len(), plan.threads) + 2 * stores(plan);
    // Logs, look-ups of names, requests of scripts, libraries.
    let own = engine + (descriptor_limit() / 8).clamp(16, 256);
    let wanted = (plan.limits.connections as u64).saturating_mul(publics);
    let room = connection_limit(wanted, 2, before.open + own + operators);
    plan.admin_connections = (admins > 0).then_some(operators as usize);
    room.lacking.map(|error| {
        plan.limits.connections = (room.connections / publics).max(1) as usize;
        let connections = plan.limits.connections;
        let each = if publics > 1 { format!(" at each of {publics} addresses") } else { String::new() };
        let operators = if admins > 0 { format!(", beside {operators} of operators") } else { String::new() };
        format!("limits.connections is lowered to {connections}{each}{operators}: {error}")
    })
}

/// Returns the descriptors that the stores of a plan take. A connection to SQLite has three files.
fn stores(plan: &Plan) -> u64 {
    let of = |store: &StoreSettings| match &store.kind {
        StoreKind::Memcached(memcached) => memcached.servers.len(),
        StoreKind::Sql(sql) => 3 * (sql.connections + 1),
    };
    plan.stores.iter().map(of).sum::<usize>() as u64
}

fn tell_room(short: Option<String>, log: Log) {
    if let Some(short) = short {
        log.tell(Level::Warn, &short);
    }
}

/// Reloads the file at each HUP; if the file has mistakes, logs them and changes nothing.
fn on_hangup(gate: std::sync::Weak<Gate>, file: PathBuf, before: Before, log: Log) -> io::Result<()> {
    service::on_hangup(move || {
        let Some(gate) = gate.upgrade() else { return false };
        match reload(&gate, &file, &before, log) {
            Ok(generation) => {
                log.tell(Level::Info, &format!("reloaded {}: plan {generation} is in force", file.display()));
            }
            Err(error) => {
                let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
                for line in format!("{error}{cause}").lines() {
                    log.tell(Level::Error, &format!("not reloaded: {line}"));
                }
            }
        }
        true
    })
}

fn reload(gate: &Gate, file: &Path, before: &Before, log: Log) -> Result<u64, Error> {
    let open = gate.listeners();
    let (mut plan, warnings) = plan(file, !before.listeners.is_empty())?;
    tell_odd(&warnings, log);
    tell_room(make_room(&mut plan, before), log);
    let opened = bind_others(&plan, &open)?;
    Ok(gate.reload(plan, opened)?)
}
