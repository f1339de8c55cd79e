//! Runs a hub: threads, listeners, the end.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use oroshi_net::cores::CoresError;
use oroshi_net::listen::ListenError;
use oroshi_net::{BoundListener, Cores, CoresOptions, ListenOptions, Shutdown};
use oroshi_server::{Crowding, Exchange, Room, Server, Settings};
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

/// The sockets of a listener, one for each thread.
#[derive(Debug)]
pub struct Bound {
    /// What is served there.
    pub serves: Serves,
    /// As many as the plan has threads.
    pub listeners: Vec<BoundListener>,
}

/// Why a hub did not run.
#[derive(Debug, Error)]
pub enum RunError {
    /// An address cannot be bound; the cause says why.
    #[error("cannot listen on `{address}`")]
    Listen {
        /// The address in the plan.
        address: String,
        /// Why it cannot be bound.
        source: ListenError,
    },
    /// The threads could not be started, or one of them panicked.
    #[error("cannot run the threads that serve")]
    Cores(#[source] CoresError),
    /// The thread for the connection to NATS could not be started.
    #[error("cannot run the thread that speaks to NATS")]
    Nats(#[source] io::Error),
}

/// The kernel's send buffer of a connection, bytes; by default it grows up to 4 MiB.
///
/// Messages beyond it wait in the hub's queues, which are bounded and can drop them.
const SEND_BUFFER: usize = 128 * 1024;

impl Bound {
    /// Binds the listeners of a plan.
    ///
    /// # Errors
    /// When an address cannot be bound.
    pub fn bind(plan: &Plan) -> Result<Vec<Bound>, RunError> {
        let bind = |door: &crate::plan::Door| {
            // Only the user of this process may use an admin socket.
            let unix_mode = (door.serves == Serves::Admin).then_some(0o600);
            let options = ListenOptions {
                backlog: u32::from(u16::MAX),
                reuse_port: plan.threads > 1,
                unix_mode,
                ..ListenOptions::default()
            };
            BoundListener::bind_for_cores(&door.address, &options, plan.threads)
                .map(|listeners| Bound { serves: door.serves, listeners })
                .map_err(|source| RunError::Listen { address: door.address.clone(), source })
        };
        plan.doors.iter().map(bind).collect()
    }
}

/// Runs a hub until `shutdown`. Its first request drains the hub, a second one ends it at once.
///
/// It calls `ready` once all threads listen.
///
/// # Errors
/// When the threads cannot be started, or one of them panicked.
pub fn run(
    plan: Plan,
    doors: Vec<Bound>,
    shutdown: &Shutdown,
    ready: impl FnOnce() + Send + 'static,
) -> Result<(), RunError> {
    let mut options = CoresOptions::new("push", plan.threads);
    options.cpus.clone_from(&plan.cpus);
    options.stop = Some(shutdown.clone());
    let (link, nats) = plan.cluster.as_ref().map(NatsThread::new).unzip();
    let (mailboxes, receivers) = Mailboxes::new(plan.threads);
    let (node, mailboxes) = (Arc::new(Node::new(plan, link)), Arc::new(mailboxes));
    let start = |nats: NatsThread| nats.start(Arc::clone(&node), Arc::clone(&mailboxes));
    let nats = nats.map(start).transpose().map_err(RunError::Nats)?;
    // The threads take these: a listener that stayed here would keep its socket open during the shutdown.
    let mut starts: Vec<ThreadStart> =
        receivers.into_iter().map(|jobs| ThreadStart { jobs, servers: Vec::new() }).collect();
    let admins = doors.iter().filter(|door| door.serves == Serves::Admin).count();
    for (number, door) in doors.into_iter().enumerate() {
        let room = match door.serves {
            Serves::Admin => node.plan.admin_connections.map(|all| admin_room(&node.plan, &door, all / admins)),
            // The rest of the descriptors is for operators.
            Serves::Sessions | Serves::Everything => node.room.clone(),
        };
        // Listeners with the same purpose and room share a server.
        let admin = (door.serves == Serves::Admin).then_some(number);
        for (start, listener) in starts.iter_mut().zip(door.listeners) {
            let _ = sockopt::set_socket_send_buffer_size(&listener, SEND_BUFFER);
            let same = |server: &&mut ServerStart| server.serves == door.serves && server.admin == admin;
            match start.servers.iter_mut().find(same) {
                Some(server) => server.listeners.push(listener),
                None => {
                    let (serves, room) = (door.serves, room.clone());
                    start.servers.push(ServerStart { serves, admin, room, listeners: vec![listener] });
                }
            }
        }
    }
    let starts = Mutex::new(starts.into_iter().map(Some).collect::<Vec<_>>());
    let ready = Mutex::new((node.threads(), Some(ready)));
    let shutdown = shutdown.clone();
    let cores = Cores::run(&options, move |core| {
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
    cores.map(drop).map_err(RunError::Cores)
}

/// What a thread starts with.
struct ThreadStart {
    jobs: UnboundedReceiver<Job<Hub>>,
    servers: Vec<ServerStart>,
}

/// What one server of a thread starts with.
struct ServerStart {
    serves: Serves,
    /// The number of an admin listener, which has a server of its own.
    admin: Option<usize>,
    /// Limits its connections, on all threads together.
    room: Option<Arc<Room>>,
    listeners: Vec<BoundListener>,
}

/// The least connections of an admin listener: one can come while another goes.
const LEAST_ADMINS: usize = 2;

/// Creates the room of an admin listener, which logs when it is full.
fn admin_room(plan: &Plan, door: &Bound, share: usize) -> Arc<Room> {
    let address = door.listeners.first().map(|listener| listener.local_address().shown("http")).unwrap_or_default();
    let proof = if plan.token.is_some() { "token" } else { "request" };
    Room::telling(share.max(LEAST_ADMINS), move |Crowding { held, most, ended }| {
        tracing::warn!(
            "no room at the admin listener {address}: {held} of {most} connections, and others wait. {ended} were \
             closed to make room, first those without a valid {proof}: see who connects there, or raise the limit on \
             descriptors (LimitNOFILE=, ulimit -Hn)"
        );
    })
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

    let mut serving = tokio::task::JoinSet::new();
    for ServerStart { serves, room, listeners, .. } in servers {
        let (mine, shutdown) = (Rc::clone(&hub), shutdown.clone());
        serving.spawn_local(async move {
            let settings = settings(&mine.node, serves, room);
            let handler = async move |exchange: &mut Exchange<'_>| http::answer(&mine, serves, exchange).await;
            let listeners = listeners.into_iter().filter_map(|bound| bound.into_listener().ok()).map(Into::into);
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
    let (mut ending, mut at_once) = (pin!(ending), pin!(shutdown.reached(2)));
    poll_fn(|context| match ending.as_mut().poll(context) {
        Poll::Pending => at_once.as_mut().poll(context),
        ended => ended,
    })
    .await;
}

/// Returns the settings of a server.
fn settings(node: &Node, serves: Serves, room: Option<Arc<Room>>) -> Settings {
    let plan = &node.plan;
    let mut settings = Settings { drain_timeout: plan.drain.timeout, ..Settings::default() };
    // The API limits bodies itself, to answer a large one in its own form.
    settings.limits.body_bytes = u64::MAX;
    settings.room = room;
    // A client with the token keeps its connection when others need room.
    settings.vouching = serves == Serves::Admin;
    if serves != Serves::Sessions {
        // kuiperbelt's API names each session in a field of its own, up to a megabyte of fields.
        settings.limits.head_bytes = 1 << 20;
        settings.limits.headers = usize::MAX;
    }
    // A poll waits within its request.
    settings.request_timeout = settings.request_timeout.max(plan.limits.poll_wait * 2);
    settings.last_request_timeout = Duration::from_millis(100).min(plan.drain.timeout / 4);
    settings
}
