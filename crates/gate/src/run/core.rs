//! One core's loop: prepares plans, switches between them and serves listeners.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use oroshi_net::{BoundListener, ServerTls, Shutdown};
use oroshi_server::{Capacity, Error, Exchange, Handler, HttpListener, Proxied, RefusedRequest, Server, Settings};
use oroshi_service::handshakes_per_thread;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;

use super::{LAST_LINES, RunError};
use crate::access::{Log, Sink};
use crate::admin;
use crate::generation::Generation;
use crate::plan::{KeyFrom, Listener, Serves};
use crate::script::hooks::{LogCalls, ScriptInstance};
use crate::script::{ApiResources, DeclaredLookup, Hook, Script, ScriptError, http_client};
use crate::site::{Hosts, Site};
use crate::upstream::{Pools, Settings as PoolsSettings};

/// How often a core flushes its log lines.
const FLUSH: Duration = Duration::from_millis(500);

/// A message to a core.
pub(super) enum Job {
    /// Prepare this plan, with its new sockets, and report the outcome.
    Prepare {
        generation: Arc<Generation>,
        open: Vec<CoreListener<BoundListener>>,
        ready: mpsc::Sender<Result<(), RunError>>,
    },
    /// The prepared site is in force; these addresses are no longer listened on.
    Switch { close: Vec<Listener> },
    /// The prepared site will not be used. The sender is dropped after the site and its sockets.
    Abandon(mpsc::Sender<()>),
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Job::Prepare { open, .. } => f.debug_struct("Prepare").field("open", &open.len()).finish_non_exhaustive(),
            Job::Switch { close } => f.debug_struct("Switch").field("close", close).finish(),
            Job::Abandon(_) => f.write_str("Abandon"),
        }
    }
}

/// The socket of a listener on one thread.
pub(super) struct CoreListener<S> {
    pub(super) listener: Listener,
    pub(super) socket: S,
    /// Limits the connections of an admin listener, on all threads together.
    pub(super) capacity: Option<Arc<Capacity>>,
}

/// A prepared plan.
struct Ready {
    generation: Arc<Generation>,
    instances: Vec<Rc<ScriptInstance>>,
    listeners: Vec<CoreListener<oroshi_net::Listener>>,
}

/// The parts of a core that survive reloads.
struct Core {
    index: usize,
    pools: Pools,
    hosts: Rc<Hosts>,
    logs: Rc<LogCalls>,
    /// The HTTP client of all scripts on this core.
    http: oroshi_client::local::Client,
    /// Replaced only with the log, so that requests from before a reload reach the log without delay.
    sink: Option<(Arc<Log>, Rc<Sink>)>,
}

/// The site in force on a core.
type CurrentSite = Rc<RefCell<Rc<Site>>>;

pub(super) async fn work(
    index: usize,
    generation: Arc<Generation>,
    mut mail: UnboundedReceiver<Job>,
    shutdown: Shutdown,
) {
    let mut core = Core {
        index,
        pools: Pools::new(PoolsSettings::default(), Arc::clone(&generation.counters.targets)),
        hosts: Rc::default(),
        logs: Rc::default(),
        http: http_client(),
        sink: None,
    };
    let mut ready = None;
    let mut serving = JoinSet::new();
    let mut open: HashMap<String, Shutdown> = HashMap::new();
    let mut current: Option<CurrentSite> = None;
    let mut flushing = JoinSet::new();
    // The listeners' shutdown. It comes after every switch that was sent before `shutdown`, so that the drain time is
    // that of the plan in force.
    let stop = Shutdown::new();
    loop {
        let job = tokio::select! {
            biased;
            job = mail.recv() => job,
            () = shutdown.reached(1) => None,
        };
        match job {
            None => break,
            Some(Job::Prepare { generation, open, ready: told }) => {
                // The current plan serves meanwhile.
                let made = tokio::select! {
                    made = core.prepare(generation, open) => made,
                    () = shutdown.reached(1) => break,
                };
                let _ = told.send(made.map(|made| ready = Some(made)));
            }
            Some(Job::Abandon(gone)) => {
                ready = None;
                drop(gone);
            }
            Some(Job::Switch { close }) => {
                let Some(Ready { generation, instances, listeners }) = ready.take() else { continue };
                for listener in close {
                    if let Some(ended) = open.remove(&listener.address) {
                        ended.request();
                    }
                }
                let site = core.site(&generation, instances);
                let current = match &current {
                    Some(current) => {
                        current.replace(site).flush();
                        current
                    }
                    None => {
                        let first = current.insert(Rc::new(RefCell::new(site)));
                        flushing.spawn_local(flush(Rc::clone(first)));
                        first
                    }
                };
                for opened in listeners {
                    let ended = Shutdown::new();
                    open.insert(opened.listener.address.clone(), ended.clone());
                    serving.spawn_local(serve(Rc::clone(current), opened, stop.clone(), ended));
                }
            }
        }
    }
    stop.request();
    let mut at_once = std::pin::pin!(shutdown.reached(2));
    let mut is_cut = false;
    while !serving.is_empty() && !is_cut {
        tokio::select! {
            _ = serving.join_next() => {}
            () = &mut at_once => is_cut = true,
        }
    }
    // Aborts the remaining requests, which go to the log but to no script; connections end one turn after their
    // servers.
    serving.shutdown().await;
    tokio::task::yield_now().await;
    if !is_cut {
        tokio::select! {
            () = core.logs.finish(LAST_LINES) => {}
            () = at_once => {}
        }
    }
    if let Some(current) = current {
        current.borrow().flush();
    }
}

impl Core {
    /// Makes this core's part of a plan.
    async fn prepare(
        &self,
        generation: Arc<Generation>,
        open: Vec<CoreListener<BoundListener>>,
    ) -> Result<Ready, RunError> {
        let register =
            |CoreListener { listener, socket, capacity }: CoreListener<BoundListener>| match socket.into_listener() {
                Ok(socket) => Ok(CoreListener { listener, socket, capacity }),
                Err(source) => Err(RunError::Register { address: listener.address, source }),
            };
        let listeners = open.into_iter().map(register).collect::<Result<_, _>>()?;
        let lookups = generation.plan.lookups.iter().zip(&generation.lookups).map(|(plan, lookup)| {
            let by_host = plan.key == KeyFrom::Host;
            (plan.settings.name.clone(), DeclaredLookup { lookup: lookup.clone(), by_host })
        });
        let lookups = Rc::new(lookups.collect());
        let mut instances = Vec::with_capacity(generation.plan.scripts.len());
        for script in &generation.plan.scripts {
            let settings = script.settings.clone();
            let counters = generation.counters.script(&settings.name, self.index);
            let tools = ApiResources {
                stores: generation.stores.clone(),
                lookups: Rc::clone(&lookups),
                cache: Arc::clone(&generation.cache),
                http: self.http.clone(),
                core: self.index,
                counters: Arc::clone(&counters.hooks),
            };
            let failed = |hook, error: ScriptError| RunError::Script { script: settings.name.clone(), hook, error };
            let script = Script::load(&settings, tools).map_err(|error| failed(None, error))?;
            if script.has(Hook::Init) {
                script.call::<_, ()>(Hook::Init, ()).await.map_err(|error| failed(Some(Hook::Init), error))?;
            }
            let instance = ScriptInstance::new(script, settings.clone(), counters, Rc::clone(&self.logs));
            instances.push(Rc::new(instance.map_err(|error| failed(None, error))?));
        }
        Ok(Ready { generation, instances, listeners })
    }

    /// Makes the site of a prepared plan.
    fn site(&mut self, generation: &Arc<Generation>, instances: Vec<Rc<ScriptInstance>>) -> Rc<Site> {
        let same = matches!((&self.sink, &generation.log), (Some((known, _)), Some(log)) if Arc::ptr_eq(known, log));
        if !same {
            self.sink = generation.log.as_ref().map(|log| (Arc::clone(log), Rc::new(log.sink())));
        }
        let sink = self.sink.as_ref().map(|(_, sink)| Rc::clone(sink));
        let (pools, hosts) = (self.pools.clone(), Rc::clone(&self.hosts));
        Rc::new(Site::new(Arc::clone(generation), self.index, pools, hosts, sink, instances))
    }
}

async fn flush(current: CurrentSite) {
    loop {
        tokio::time::sleep(FLUSH).await;
        current.borrow().flush();
    }
}

/// Serves an address until it is closed, or all is.
async fn serve(current: CurrentSite, open: CoreListener<oroshi_net::Listener>, stop: Shutdown, ended: Shutdown) {
    let CoreListener { listener, socket, capacity } = open;
    let generation = Arc::clone(&current.borrow().generation);
    let (vouching, extended_connect) = (listener.serves == Serves::Admin, listener.serves != Serves::Admin);
    let settings = Settings { capacity, vouching, extended_connect, ..settings(&generation) };
    let until = || {
        let (stop, ended) = (stop.clone(), ended.clone());
        async move {
            tokio::select! {
                () = stop.reached(1) => {}
                () = ended.reached(1) => {}
            }
        }
    };
    let drained = {
        let (current, until) = (Rc::clone(&current), until());
        async move {
            until.await;
            // The drain time of the plan in force at that moment.
            let drain = current.borrow().generation.plan.drain;
            tokio::time::sleep(drain).await;
        }
    };
    let serving: std::pin::Pin<Box<dyn Future<Output = ()>>> = if listener.serves == Serves::Admin {
        let handler = async move |exchange: &mut Exchange<'_>| {
            let site = Rc::clone(&current.borrow());
            admin::answer(&site, exchange).await
        };
        let server = Server::new(handler, settings);
        let until = until();
        Box::pin(async move { server.serve([socket.into()], until).await })
    } else {
        let plans = Rc::clone(&current);
        // Of the plan in force, because a reload may change the proxies.
        let proxied = Proxied::new(move |stream| plans.borrow().generation.plan.proxies.contain(stream));
        let server = Server::new(Public(current), settings);
        generation.counters.enter(server.counters());
        let until = until();
        let tls = (listener.serves == Serves::Tls).then(|| ServerTls::chosen(Arc::clone(&generation.tls.current) as _));
        let socket = HttpListener { tls, proxied: Some(proxied), ..socket.into() };
        Box::pin(async move { server.serve([socket], until).await })
    };
    tokio::select! {
        () = serving => {}
        // The drain time is over: remaining requests are cut off.
        () = drained => {}
    }
}

/// The handler of client requests.
struct Public(CurrentSite);

impl Handler for Public {
    async fn handle(&self, exchange: &mut Exchange<'_>) -> Result<(), Error> {
        let site = Rc::clone(&self.0.borrow());
        site.answer(exchange).await
    }

    fn refused(&self, refused: &RefusedRequest<'_>) {
        self.0.borrow().tell_refused(refused);
    }
}

/// Returns the server's settings for clients.
fn settings(generation: &Generation) -> Settings {
    let (plan, limits) = (&generation.plan, &generation.plan.limits);
    let mut settings = Settings {
        idle_timeout: limits.idle,
        head_timeout: limits.head,
        body_timeout: limits.body_pause,
        request_timeout: limits.body,
        body_rate: limits.body_rate,
        body_rate_window: limits.body_rate_window,
        write_timeout: limits.write,
        // `serve` does this, because a reload may change the drain time.
        drain_timeout: Duration::MAX,
        // A client that was promised keep-alive may have sent a request already.
        last_request_timeout: Duration::from_millis(100).min(plan.drain / 4),
        connections: limits.connections.div_ceil(plan.threads),
        handshakes: handshakes_per_thread(limits.handshakes, limits.connections, plan.threads),
        ..Settings::default()
    };
    settings.limits.head_bytes = limits.head_bytes;
    settings.limits.headers = limits.headers;
    settings.limits.target_bytes = limits.target_bytes;
    settings.limits.body_bytes = limits.body_bytes;
    settings
}
