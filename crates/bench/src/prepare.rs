//! Before the first request: enough descriptors, addresses that accept connections, the server's processes, the
//! machine.

use std::time::{Duration, Instant};

use oroshi_net::limits::ensure_descriptors;
use oroshi_net::{ConnectError, Connector, Peer, Stream, ThreadsOptions};

use crate::environment::Environment;
use crate::error::RunError;
use crate::follow::Observer;
use crate::plan::{ALPN, Origin, Plan, Protocol, Watching};
use crate::ports;
use crate::watch::{ServerUsage, Watch};

/// How often the observer may end a run that has not begun.
pub(crate) const LOOK: Duration = Duration::from_millis(2);
/// A thread's runtime and its two timers.
const DESCRIPTORS_PER_THREAD: usize = 8;

/// Facts known before a run.
pub(crate) struct Prepared {
    pub(crate) environment: Environment,
    pub(crate) warnings: Vec<String>,
    /// For each origin, the addresses that accepted a connection: at least one.
    pub(crate) peers: Vec<Vec<Peer>>,
    /// The server's processes, or why they are not watched.
    pub(crate) server: Result<Watch, String>,
}

/// Prepares a run of `plan` with so many connections and threads, and warns the observer.
///
/// # Errors
/// When descriptors are too few, a name does not resolve, or no address of an origin accepts a connection.
pub(crate) fn prepare(
    plan: &Plan,
    connections: usize,
    threads: usize,
    observer: &mut dyn Observer,
) -> Result<Prepared, RunError> {
    ensure_descriptors((connections + DESCRIPTORS_PER_THREAD * threads) as u64)?;
    let warnings: Vec<String> = ports::forecast(plan).into_iter().collect();
    warnings.iter().for_each(|warning| observer.warning(warning));
    let environment = Environment::capture();
    let (peers, server) = find(plan, observer)?;
    Ok(Prepared { environment, warnings, peers, server })
}

/// Options of the threads that carry out `plan`.
pub(crate) fn thread_options(plan: &Plan, threads: usize) -> ThreadsOptions {
    ThreadsOptions { cpus: plan.cpus.clone(), event_interval: Some(1024), ..ThreadsOptions::new("load", threads) }
}

/// The server's side of a record: its usage, or why there is none.
pub(crate) fn usage_of(server: Result<Watch, String>, usage: Option<ServerUsage>) -> Result<ServerUsage, String> {
    server.and_then(|_| usage.ok_or_else(|| "its processes ended during the run".into()))
}

type Found = (Vec<Vec<Peer>>, Result<Watch, String>);

/// Finds the addresses of every origin, and the server's processes.
pub(crate) fn find(plan: &Plan, observer: &mut dyn Observer) -> Result<Found, RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(RunError::Timer)?;
    let found = runtime.block_on(async {
        tokio::select! {
            found = find_each(plan) => found,
            () = cancelled(observer) => Err(RunError::Cancelled),
        }
    });
    // A look-up that hangs must not keep the run from ending.
    runtime.shutdown_background();
    found
}

async fn find_each(plan: &Plan) -> Result<Found, RunError> {
    let mut peers = Vec::new();
    let mut watch = None;
    for origin in &plan.origins {
        let mut found = origin.peers().await.map_err(RunError::Dns)?;
        let pid = probe(plan, origin, &mut found).await?;
        if watch.is_none() {
            watch = Some(match plan.watch {
                Watching::Auto => watch_listener(&found[0], pid),
                Watching::Pid(pid) => Ok(Watch::for_pid(pid).map_err(|e| RunError::Watch { pid, why: e.to_string() })?),
                Watching::None => Err("not watched (--watch none)".to_owned()),
            });
        }
        peers.push(found);
    }
    Ok((peers, watch.unwrap_or_else(|| Err("nothing to watch".into()))))
}

async fn cancelled(observer: &mut dyn Observer) {
    while !observer.cancelled() {
        tokio::time::sleep(LOOK).await;
    }
}

/// Connects to each address once, keeps those that accept, and returns the listener's process where the kernel knows
/// it.
///
/// A closed port, a path that is no socket or a bad certificate ends the run here. A name may have addresses that do
/// not accept, such as `::1` of a server on IPv4.
async fn probe(plan: &Plan, origin: &Origin, peers: &mut Vec<Peer>) -> Result<Option<u32>, RunError> {
    let connector = Connector::new(plan.connector_options(origin));
    let mut pid = None;
    let mut accepted = Vec::new();
    let mut first_error = None;
    for peer in peers.iter() {
        match connector.connect(peer, Some(Instant::now() + plan.timeout)).await {
            Ok(connected) => {
                check_protocol(plan, origin, &connected.stream)?;
                pid = pid.or(connected.stream.peer_pid());
                accepted.push(peer.clone());
            }
            Err(ConnectError::Tls(error)) if plan.protocol == Protocol::Http2 && error.is_no_protocol() => {
                return Err(RunError::NoHttp2 { origin: origin.name(), chose: "no protocol".into() });
            }
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    match first_error {
        Some(source) if accepted.is_empty() => Err(RunError::Connect { origin: origin.name(), source }),
        _ => {
            *peers = accepted;
            Ok(pid)
        }
    }
}

/// Checks that TLS has agreed on HTTP/2, where the load speaks that.
fn check_protocol(plan: &Plan, origin: &Origin, stream: &Stream) -> Result<(), RunError> {
    let chosen = stream.alpn();
    if plan.protocol == Protocol::Http1 || origin.tls.is_none() || chosen == Some(ALPN) {
        return Ok(());
    }
    let chose = chosen.map_or_else(|| "no protocol".to_owned(), |name| String::from_utf8_lossy(name).into_owned());
    Err(RunError::NoHttp2 { origin: origin.name(), chose })
}

fn watch_listener(peer: &Peer, pid: Option<u32>) -> Result<Watch, String> {
    match (peer, pid) {
        (Peer::Tcp(address), _) => Watch::for_tcp(*address).map_err(|e| e.to_string()),
        (Peer::Unix(address), pid) => Watch::for_unix(address, pid).map_err(|e| e.to_string()),
    }
}
