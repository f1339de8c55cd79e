//! Runs a hub: threads, listeners, the end.

use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oroshi_net::threads::ThreadsError;
use oroshi_net::{BoundListener, ServerTls, Shutdown, Threads};
use oroshi_server::{Capacity, Exchange, HttpListener, Server, Settings};
use oroshi_service::{admin_capacity, handshakes_per_thread, thread_options, until_second_request};
use rustix::net::sockopt;
use thiserror::Error;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, timeout_at};

use crate::cluster::nats::NatsThread;
use crate::http;
use crate::hub::Hub;
use crate::mailboxes::{Job, Mailboxes};
use crate::node::Node;
use crate::plan::{Plan, Serves};

/// An open listener of a hub.
pub type OpenListener = oroshi_service::OpenListener<Serves>;

/// Why a hub did not run.
#[derive(Debug, Error)]
pub enum RunError {
    /// The threads could not be started, or one of them panicked.
    #[error("cannot run the threads that serve")]
    Threads(#[source] ThreadsError),
    /// The thread for the connection to NATS could not be started.
    #[error("cannot run the thread that speaks to NATS")]
    Nats(#[source] io::Error),
}

/// The kernel's send buffer of a connection, bytes; by default it grows up to 4 MiB.
///
/// Messages beyond it wait in the hub's queues, which are bounded and can drop them.
const SEND_BUFFER: usize = 128 * 1024;

/// Runs a hub until `shutdown`. Its first request drains the hub, a second one ends it at once.
///
/// It calls `ready` once all threads listen.
///
/// # Errors
/// When the threads cannot be started, or one of them panicked.
pub fn run(
    plan: Plan,
    listeners: Vec<OpenListener>,
    shutdown: &Shutdown,
    ready: impl FnOnce() + Send + 'static,
) -> Result<(), RunError> {
    run_hub(plan, listeners, shutdown, Box::new(ready))
}

/// [`run`] with one type of `ready`, so that the compiler makes the hub once, here.
fn run_hub(
    plan: Plan,
    listeners: Vec<OpenListener>,
    shutdown: &Shutdown,
    ready: Box<dyn FnOnce() + Send>,
) -> Result<(), RunError> {
    let options = thread_options("push", plan.threads, plan.cpus.as_ref(), shutdown);
    let (link, nats) = plan.cluster.as_ref().map(NatsThread::new).unzip();
    let (mailboxes, receivers) = Mailboxes::new(plan.threads);
    let (node, mailboxes) = (Arc::new(Node::new(plan, link)), Arc::new(mailboxes));
    let start = |nats: NatsThread| nats.start(Arc::clone(&node), Arc::clone(&mailboxes));
    let nats = nats.map(start).transpose().map_err(RunError::Nats)?;
    // The threads take these: a listener that stayed here would keep its socket open during the shutdown.
    let mut starts: Vec<ThreadStart> =
        receivers.into_iter().map(|jobs| ThreadStart { jobs, servers: Vec::new() }).collect();
    let admins = listeners.iter().filter(|bound| bound.listener.serves == Serves::Admin).count();
    let proof = if node.plan.token.is_some() { "token" } else { "request" };
    for (number, bound) in listeners.into_iter().enumerate() {
        let serves = bound.listener.serves;
        let capacity = match serves {
            Serves::Admin => node.plan.admin_connections.map(|all| admin_capacity(&bound, all / admins, proof)),
            // The rest of the descriptors is for operators.
            Serves::Sessions | Serves::Tls | Serves::Everything => node.capacity.clone(),
        };
        let tls = node.plan.tls.as_ref().filter(|_| serves == Serves::Tls).map(|tls| tls.server());
        // Listeners with the same purpose and room share a server.
        let admin = (serves == Serves::Admin).then_some(number);
        for (start, socket) in starts.iter_mut().zip(bound.sockets) {
            let _ = sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER);
            let same = |server: &&mut ServerStart| server.serves == serves && server.admin == admin;
            match start.servers.iter_mut().find(same) {
                Some(server) => server.sockets.push((socket, tls.clone())),
                None => {
                    start.servers.push(ServerStart {
                        serves,
                        admin,
                        capacity: capacity.clone(),
                        sockets: vec![(socket, tls.clone())],
                    });
                }
            }
        }
    }
    let starts = Mutex::new(starts.into_iter().map(Some).collect::<Vec<_>>());
    let ready = Mutex::new((node.threads(), Some(ready)));
    let shutdown = shutdown.clone();
    let running = Threads::run(&options, move |core| {
        let start = starts.lock().unwrap_or_else(PoisonError::into_inner)[core.index].take();
        let (node, mailboxes, shutdown) = (Arc::clone(&node), Arc::clone(&mailboxes), shutdown.clone());
        {
            let mut ready = ready.lock().unwrap_or_else(PoisonError::into_inner);
            ready.0 -= 1;
            if ready.0 == 0
                && let Some(ready) = ready.1.take()
            {
                ready();
            }
        }
        async move {
            if let Some(start) = start {
                serve(Rc::new(Hub::new(node, mailboxes, core.index as u16)), start, shutdown).await;
            }
        }
    });
    // Last, as this node answers the others until then.
    if let Some(nats) = nats {
        nats.stop();
    }
    running.map(drop).map_err(RunError::Threads)
}

/// The parts that a thread starts with.
struct ThreadStart {
    jobs: UnboundedReceiver<Job<Hub>>,
    servers: Vec<ServerStart>,
}

/// The parts that one server of a thread starts with.
struct ServerStart {
    serves: Serves,
    /// The number of an admin listener, which has a server of its own.
    admin: Option<usize>,
    /// Limits its connections, on all threads together.
    capacity: Option<Arc<Capacity>>,
    /// With the TLS of its connections, if any.
    sockets: Vec<(BoundListener, Option<ServerTls>)>,
}

/// Runs the hub of a thread from its start to its end.
async fn serve(hub: Rc<Hub>, start: ThreadStart, shutdown: Shutdown) {
    let ThreadStart { mut jobs, servers } = start;
    let mut tasks = tokio::task::JoinSet::new();
    let mine = Rc::clone(&hub);
    tasks.spawn_local(async move {
        while let Some(job) = jobs.recv().await {
            job(&mine);
        }
    });
    let mine = Rc::clone(&hub);
    tasks.spawn_local(async move { mine.writer.run().await });
    let mine = Rc::clone(&hub);
    tasks.spawn_local(async move { mine.sweep().await });
    if hub.thread == 0 {
        let node = Arc::clone(&hub.node);
        tasks.spawn_local(async move {
            if let Some(verifier) = &node.verifier {
                verifier.keep_reading().await;
            }
        });
    }
    if hub.thread == 0 && hub.plan().has_presence_events() {
        let mine = Rc::clone(&hub);
        tasks.spawn_local(async move { mine.keep_presences().await });
    }

    let mut serving = tokio::task::JoinSet::new();
    for ServerStart { serves, capacity, sockets, .. } in servers {
        let (mine, shutdown) = (Rc::clone(&hub), shutdown.clone());
        serving.spawn_local(async move {
            let settings = settings(&mine.node, serves, capacity);
            let proxies = (serves != Serves::Admin).then(|| mine.plan().proxies.proxied()).flatten();
            let handler = async move |exchange: &mut Exchange<'_>| http::answer(&mine, serves, exchange).await;
            let listeners = sockets.into_iter().filter_map(|(socket, tls)| {
                Some(HttpListener { listener: socket.into_listener().ok()?, tls, proxied: proxies.clone() })
            });
            Server::new(handler, settings).serve(listeners, shutdown.reached(1)).await;
        });
    }
    let ending = async {
        shutdown.reached(1).await;
        // The listeners close first, so that clients that reconnect reach the next hub.
        tokio::task::yield_now().await;
        let until = Instant::now() + hub.plan().drain.timeout;
        hub.drain().await;
        while serving.join_next().await.is_some() {}
        // Other threads may still wait for this thread's part of a receipt.
        let _ = timeout_at(until, hub.node.all_answered.wait()).await;
    };
    until_second_request(&shutdown, ending).await;
}

/// Returns the settings of a server.
fn settings(node: &Node, serves: Serves, capacity: Option<Arc<Capacity>>) -> Settings {
    let plan = &node.plan;
    let mut settings = Settings { drain_timeout: plan.drain.timeout, ..Settings::default() };
    // The API limits bodies itself, to answer a large one in its own form.
    settings.limits.body_bytes = u64::MAX;
    let connections = plan.connections.unwrap_or(usize::MAX);
    settings.handshakes = handshakes_per_thread(settings.handshakes, connections, plan.threads);
    settings.capacity = capacity;
    settings.extended_connect = serves != Serves::Admin && plan.transports.websocket;
    // A client with the token keeps its connection when others need room.
    settings.vouching = serves == Serves::Admin;
    if !serves.is_public() {
        // kuiperbelt's API names each session in a field of its own, up to a megabyte of fields.
        settings.limits.head_bytes = 1 << 20;
        settings.limits.headers = usize::MAX;
    }
    // A poll waits within its request.
    settings.request_timeout = settings.request_timeout.max(plan.limits.poll_wait * 2);
    settings.last_request_timeout = Duration::from_millis(100).min(plan.drain.timeout / 4);
    settings
}
