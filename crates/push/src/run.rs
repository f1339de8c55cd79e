//! A hub at work: cores, listeners, the end.

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

use crate::cluster::Link;
use crate::http;
use crate::hub::Hub;
use crate::node::{Job, Node};
use crate::plan::{Plan, Serves};

/// Sockets that listen, one for each core.
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
    /// An address cannot be listened on; the cause says why.
    #[error("cannot listen on `{address}`")]
    Listen {
        /// As the plan has it.
        address: String,
        /// What is wrong.
        source: ListenError,
    },
    /// The threads could not be started, or one of them panicked.
    #[error("cannot run the threads that serve")]
    Cores(#[source] CoresError),
    /// The thread that speaks to the other nodes could not be started.
    #[error("cannot run the thread that speaks to NATS")]
    Nats(#[source] io::Error),
}

/// What the kernel holds for a connection that does not read, bytes: what is beyond that waits here, where it is bounded and can be dropped.
/// It would be up to 4 MiB otherwise.
const SEND_BUFFER: usize = 128 * 1024;

impl Bound {
    /// Binds the doors of a plan.
    ///
    /// # Errors
    /// When one of the addresses cannot be listened on.
    pub fn bind(plan: &Plan) -> Result<Vec<Bound>, RunError> {
        let bind = |door: &crate::plan::Door| {
            // An admin's socket is nobody else's.
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

/// Runs a hub until `shutdown`: its first request has it end in good form, a second one at once. `ready` is called once all cores
/// listen.
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
    let (link, carrier) = plan.cluster.as_ref().map(Link::new).unzip();
    let (node, mail) = Node::new(plan, link);
    let node = Arc::new(node);
    let carrier = carrier.map(|carrier| carrier.start(Arc::clone(&node))).transpose().map_err(RunError::Nats)?;
    // Taken out by the threads: a listener that stayed here would keep its socket open during the shutdown.
    let mut places: Vec<Place> = mail.into_iter().map(|mail| Place { mail, servers: Vec::new() }).collect();
    let admins = doors.iter().filter(|door| door.serves == Serves::Admin).count();
    for (number, door) in doors.into_iter().enumerate() {
        let room = match door.serves {
            Serves::Admin => node.plan.admin_connections.map(|all| admin_room(&node.plan, &door, all / admins)),
            // What clients leave is the operators'.
            Serves::Sessions | Serves::Everything => node.room.clone(),
        };
        // Those that share a room and are for the same have one server.
        let door_of_its_own = (door.serves == Serves::Admin).then_some(number);
        for (place, listener) in places.iter_mut().zip(door.listeners) {
            let _ = sockopt::set_socket_send_buffer_size(&listener, SEND_BUFFER);
            let same = |open: &&mut Open| open.serves == door.serves && open.door == door_of_its_own;
            match place.servers.iter_mut().find(same) {
                Some(open) => open.listeners.push(listener),
                None => {
                    let (serves, door, room) = (door.serves, door_of_its_own, room.clone());
                    place.servers.push(Open { serves, door, room, listeners: vec![listener] });
                }
            }
        }
    }
    let places = Mutex::new(places.into_iter().map(Some).collect::<Vec<_>>());
    let ready = Mutex::new((node.cores(), Some(ready)));
    let shutdown = shutdown.clone();
    let cores = Cores::run(&options, move |core| {
        let place = places.lock().unwrap_or_else(PoisonError::into_inner)[core.index].take();
        let (node, shutdown) = (Arc::clone(&node), shutdown.clone());
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
            if let Some(place) = place {
                serve(Rc::new(Hub::new(node, core.index as u16)), place, shutdown).await;
            }
        }
    });
    // The other nodes hear last that this one has gone: until then it answers them.
    if let Some(carrier) = carrier {
        carrier.stop();
    }
    cores.map(drop).map_err(RunError::Cores)
}

/// What a core starts with.
struct Place {
    mail: UnboundedReceiver<Job>,
    servers: Vec<Open>,
}

/// Listeners that one server of a core has.
struct Open {
    serves: Serves,
    /// Which of the doors it is, if it has a server of its own.
    door: Option<usize>,
    /// What bounds its connections, on all cores.
    room: Option<Arc<Room>>,
    listeners: Vec<BoundListener>,
}

/// A door for operators holds two connections at least, so that one can come while another goes.
const LEAST_ADMINS: usize = 2;

/// Room for a door for operators, which tells the log when there is none.
fn admin_room(plan: &Plan, door: &Bound, share: usize) -> Arc<Room> {
    let address = door.listeners.first().map(|listener| listener.local_address().shown("http")).unwrap_or_default();
    let proof = if plan.token.is_some() { "token" } else { "request" };
    Room::telling(share.max(LEAST_ADMINS), move |Crowding { held, most, ended }| {
        tracing::warn!(
            "no room at the admin listener {address}: {held} of {most} connections, and others wait. {ended} were closed to make room, first \
             those without a valid {proof}: see who connects there, or raise the limit on descriptors (LimitNOFILE=, ulimit -Hn)"
        );
    })
}

/// The life of a core.
async fn serve(hub: Rc<Hub>, place: Place, shutdown: Shutdown) {
    let Place { mut mail, servers } = place;
    let mut tasks = tokio::task::JoinSet::new();
    let mine = Rc::clone(&hub);
    tasks.spawn_local(async move {
        while let Some(job) = mail.recv().await {
            job(&mine);
        }
    });
    let mine = Rc::clone(&hub);
    tasks.spawn_local(async move { mine.write_out().await });
    let mine = Rc::clone(&hub);
    tasks.spawn_local(async move { mine.sweep().await });

    let mut serving = tokio::task::JoinSet::new();
    for Open { serves, room, listeners, .. } in servers {
        let (mine, shutdown) = (Rc::clone(&hub), shutdown.clone());
        serving.spawn_local(async move {
            let settings = settings(&mine.node, serves, room);
            let handler = async move |exchange: &mut Exchange<'_>| http::answer(&mine, serves, exchange).await;
            let doors = listeners.into_iter().filter_map(|bound| bound.into_listener().ok()).map(Into::into);
            Server::new(handler, settings).serve(doors, shutdown.reached(1)).await;
        });
    }
    let ending = async {
        shutdown.reached(1).await;
        // New connections are refused first, so that whoever is sent away reaches the next hub.
        tokio::task::yield_now().await;
        let until = Instant::now() + hub.plan().drain.timeout;
        hub.drain().await;
        while serving.join_next().await.is_some() {}
        // Other cores may still wait for this one's part of a receipt.
        let _ = timeout_at(until, hub.node.all_answered.wait()).await;
    };
    let (mut ending, mut at_once) = (pin!(ending), pin!(shutdown.reached(2)));
    poll_fn(|context| match ending.as_mut().poll(context) {
        Poll::Pending => at_once.as_mut().poll(context),
        ended => ended,
    })
    .await;
}

fn settings(node: &Node, serves: Serves, room: Option<Arc<Room>>) -> Settings {
    let plan = &node.plan;
    let mut settings = Settings { drain_timeout: plan.drain.timeout, ..Settings::default() };
    // Whoever reads a body bounds it, and answers what is too large in the API's form.
    settings.limits.body_bytes = u64::MAX;
    settings.room = room;
    // Who has shown that it is an operator stays, whoever else comes.
    settings.vouching = serves == Serves::Admin;
    if serves != Serves::Sessions {
        // Each session that a message is for is a header of its own in kuiperbelt's API, which takes a megabyte of them.
        settings.limits.head_bytes = 1 << 20;
        settings.limits.headers = usize::MAX;
    }
    // Polls wait within a request.
    settings.request_timeout = settings.request_timeout.max(plan.limits.poll_wait * 2);
    settings.last_request_timeout = Duration::from_millis(100).min(plan.drain.timeout / 4);
    settings
}
