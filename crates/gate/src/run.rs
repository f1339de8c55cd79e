//! A gateway at work: cores, listeners, reloads, the end.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use oroshi_lookup::{Lookup, Stores};
use oroshi_net::cores::CoresError;
use oroshi_net::listen::ListenError;
use oroshi_net::{BoundListener, Cores, CoresOptions, ListenOptions, Shutdown};
use oroshi_server::{Exchange, Server, Settings};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::access;
use crate::admin;
use crate::plan::{Door, Plan, Serves};
use crate::site::{Hosts, Site};
use crate::upstream::{Pools, Settings as PoolsSettings};
use crate::works::{Ledger, Works};

/// How long the end waits for the log to be written.
const LAST_LINES: Duration = Duration::from_secs(2);

/// How often the log is handed over.
const FLUSH: Duration = Duration::from_millis(500);

/// A place that is listened on, with a socket for each core.
#[derive(Debug)]
pub struct Bound {
    /// The door, as the plan has it; for a socket that was handed down, what it is called.
    pub door: Door,
    /// As many as the plan has threads.
    pub listeners: Vec<BoundListener>,
}

/// Why a gateway did not start, or did not take another plan.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// An address cannot be listened on; the cause says why.
    #[error("cannot listen on `{address}`")]
    Listen {
        /// As the plan has it.
        address: String,
        /// What is wrong.
        source: ListenError,
    },
    /// The stores cannot be started, or a look-up in them.
    #[error("cannot start the stores")]
    Stores(#[from] oroshi_lookup::StartError),
    /// The log cannot be opened.
    #[error("cannot open the access log `{file}`")]
    Log {
        /// Which file.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// The threads could not be started, or one of them panicked.
    #[error("cannot run the threads that serve")]
    Cores(#[source] CoresError),
    /// It takes a restart: the sockets are bound once for each thread.
    #[error(
        "the number of threads changes from {was} to {wanted}, which a reload cannot do: restart it (`oroshi start` does so without a lost connection)"
    )]
    Threads {
        /// Those that run.
        was: usize,
        /// Those of the new plan.
        wanted: usize,
    },
}

impl Bound {
    /// Binds the doors of a plan that are not among those that are `open` already.
    ///
    /// # Errors
    /// When one of the addresses cannot be listened on.
    pub fn bind(plan: &Plan, open: &[Door]) -> Result<Vec<Bound>, RunError> {
        let bind = |door: &Door| {
            // An admin's socket is nobody else's.
            let unix_mode = (door.serves == Serves::Admin).then_some(0o600);
            let options = ListenOptions {
                backlog: u32::from(u16::MAX),
                reuse_port: plan.threads > 1,
                unix_mode,
                ..ListenOptions::default()
            };
            BoundListener::bind_for_cores(&door.address, &options, plan.threads)
                .map(|listeners| Bound { door: door.clone(), listeners })
                .map_err(|source| RunError::Listen { address: door.address.clone(), source })
        };
        plan.doors.iter().filter(|door| !open.contains(door)).map(bind).collect()
    }
}

/// A gateway at work.
#[derive(Debug)]
pub struct Gate {
    /// Until somebody waits for them.
    cores: Mutex<Option<Cores<()>>>,
    mail: Vec<UnboundedSender<Job>>,
    threads: usize,
    state: Mutex<State>,
}

/// What a reload changes.
#[derive(Debug)]
struct State {
    works: Arc<Works>,
    doors: Vec<Door>,
    /// Sockets that were handed down and are at no door of a plan: no reload closes them.
    stay: Vec<Door>,
}

/// What a core is told.
enum Job {
    /// This plan is in force; these sockets are new, and those at these addresses are no longer listened on.
    Change { works: Arc<Works>, open: Vec<(Door, BoundListener)>, close: Vec<Door> },
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Job::Change { open, close, .. } = self;
        f.debug_struct("Change").field("open", &open.len()).field("close", close).finish_non_exhaustive()
    }
}

impl Gate {
    /// Starts a gateway, which serves until `shutdown`: its first request has it end in good form, a second one at once. All cores listen
    /// when this returns.
    ///
    /// # Errors
    /// When its stores, its log or its threads cannot be started.
    pub fn start(plan: Plan, doors: Vec<Bound>, shutdown: &Shutdown) -> Result<Self, RunError> {
        let stores = Stores::start(plan.stores.clone())?;
        let works = Arc::new(Works {
            lookups: plan
                .lookups
                .iter()
                .map(|lookup| Lookup::start(lookup.settings.clone(), &stores))
                .collect::<Result<_, _>>()?,
            stores,
            log: open_log(plan.access_log.as_ref())?,
            ledger: Arc::new(Ledger::default()),
            generation: 1,
            since: SystemTime::now(),
            plan,
        });
        let plan = &works.plan;
        let threads = plan.threads;
        let mut options = CoresOptions::new("gate", threads);
        options.cpus.clone_from(&plan.cpus);
        options.stop = Some(shutdown.clone());
        let open: Vec<Door> = doors.iter().map(|bound| bound.door.clone()).collect();
        let (mail, boxes): (Vec<_>, Vec<_>) = (0..threads).map(|_| unbounded_channel()).unzip();
        deliver(&mail, &works, doors, &[]);
        let stay = open.iter().filter(|door| !plan.doors.contains(door)).cloned().collect();
        let state = Mutex::new(State { doors: open, stay, works: Arc::clone(&works) });
        let boxes = Mutex::new(boxes.into_iter().map(Some).collect::<Vec<_>>());
        let shutdown = shutdown.clone();
        let cores = Cores::start(&options, move |core| {
            let mail = boxes.lock().unwrap_or_else(PoisonError::into_inner)[core.index].take();
            let (shutdown, works, index) = (shutdown.clone(), Arc::clone(&works), core.index);
            async move {
                if let Some(mail) = mail {
                    work(index, works, mail, shutdown).await;
                }
            }
        });
        let cores = Mutex::new(Some(cores.map_err(RunError::Cores)?));
        Ok(Gate { cores, mail, threads, state })
    }

    /// The doors that are open, by which [`Bound::bind`] knows what a new plan adds.
    #[must_use]
    pub fn doors(&self) -> Vec<Door> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).doors.clone()
    }

    /// Puts another plan in force. Requests under way end as they began; connections, those to servers behind as well, stay. A look-up
    /// whose settings are the same keeps what it has in memory, a store its connections. The log is opened anew.
    ///
    /// Limits on clients hold for connections that are made from now on; those that there are keep theirs.
    ///
    /// # Errors
    /// When the plan cannot be put in force. All stays as it was.
    pub fn reload(&self, plan: Plan, opened: Vec<Bound>) -> Result<u64, RunError> {
        if plan.threads != self.threads {
            return Err(RunError::Threads { was: self.threads, wanted: plan.threads });
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let was = Arc::clone(&state.works);
        let log =
            if was.plan.access_log == plan.access_log { was.log.clone() } else { open_log(plan.access_log.as_ref())? };
        if let Some(log) = &log {
            log.reopen();
        }
        was.stores.update(plan.stores.clone())?;
        let mut lookups = Vec::new();
        for lookup in &plan.lookups {
            let kept = was.lookups.iter().find(|known| *known.settings() == lookup.settings).cloned();
            lookups.push(match kept {
                Some(lookup) => lookup,
                None => Lookup::start(lookup.settings.clone(), &was.stores)?,
            });
        }
        let doors: Vec<Door> = plan.doors.iter().chain(&state.stay).cloned().collect();
        let close: Vec<Door> = state.doors.iter().filter(|door| !doors.contains(door)).cloned().collect();
        let generation = was.generation + 1;
        state.works = Arc::new(Works {
            lookups,
            log,
            stores: was.stores.clone(),
            ledger: Arc::clone(&was.ledger),
            generation,
            since: was.since,
            plan,
        });
        state.doors = doors;
        deliver(&self.mail, &state.works, opened, &close);
        Ok(generation)
    }

    /// Waits for the end, which `shutdown` brings. To be called once.
    ///
    /// # Errors
    /// When a thread panicked.
    pub fn join(&self) -> Result<(), RunError> {
        let cores = self.cores.lock().unwrap_or_else(PoisonError::into_inner).take();
        let joined = cores.map_or(Ok(()), |cores| cores.join().map(drop));
        let works = Arc::clone(&self.state.lock().unwrap_or_else(PoisonError::into_inner).works);
        if let Some(log) = &works.log
            && !log.finish(LAST_LINES)
        {
            tracing::warn!("the access log takes nothing: what was told last is lost");
        }
        joined.map_err(RunError::Cores)
    }
}

fn open_log(settings: Option<&access::Settings>) -> Result<Option<Arc<access::Log>>, RunError> {
    let Some(settings) = settings else { return Ok(None) };
    access::Log::open(settings.clone()).map(|log| Some(Arc::new(log))).map_err(|source| {
        let file = settings.file.as_ref().map_or("standard output".to_owned(), |file| file.display().to_string());
        RunError::Log { file, source }
    })
}

/// Tells every core. One that has ended already needs to know nothing.
fn deliver(mail: &[UnboundedSender<Job>], works: &Arc<Works>, opened: Vec<Bound>, close: &[Door]) {
    let mut by_core: Vec<Vec<(Door, BoundListener)>> = mail.iter().map(|_| Vec::new()).collect();
    for bound in opened {
        for (place, listener) in by_core.iter_mut().zip(bound.listeners) {
            place.push((bound.door.clone(), listener));
        }
    }
    for (sender, open) in mail.iter().zip(by_core) {
        let _ = sender.send(Job::Change { works: Arc::clone(works), open, close: close.to_vec() });
    }
}

/// The life of a core.
async fn work(core: usize, works: Arc<Works>, mut mail: UnboundedReceiver<Job>, shutdown: Shutdown) {
    let pools = Pools::new(PoolsSettings::default(), Arc::clone(&works.ledger.targets));
    let hosts = Rc::new(Hosts::default());
    // One for as long as the log is the same, so that a request which began before a reload is told no later than others.
    let mut sink = works.log.as_ref().map(|log| (Arc::clone(log), Rc::new(log.sink())));
    let of = |sink: &Option<(Arc<access::Log>, Rc<access::Sink>)>| sink.as_ref().map(|(_, sink)| Rc::clone(sink));
    let first = Site::new(works, core, pools.clone(), Rc::clone(&hosts), of(&sink));
    let site = Rc::new(RefCell::new(Rc::new(first)));
    let mut serving = JoinSet::new();
    let mut open: HashMap<String, Shutdown> = HashMap::new();
    let mut flushing = JoinSet::new();
    {
        let site = Rc::clone(&site);
        flushing.spawn_local(async move {
            loop {
                tokio::time::sleep(FLUSH).await;
                site.borrow().flush();
            }
        });
    }
    loop {
        let job = tokio::select! {
            job = mail.recv() => job,
            () = shutdown.reached(1) => None,
        };
        let Some(Job::Change { works, open: opened, close }) = job else { break };
        for door in close {
            if let Some(ended) = open.remove(&door.address) {
                ended.request();
            }
        }
        let settings = settings(&works);
        site.borrow().flush();
        let same = matches!((&sink, &works.log), (Some((known, _)), Some(log)) if Arc::ptr_eq(known, log));
        if !same {
            sink = works.log.as_ref().map(|log| (Arc::clone(log), Rc::new(log.sink())));
        }
        let changed = Rc::new(Site::new(Arc::clone(&works), core, pools.clone(), Rc::clone(&hosts), of(&sink)));
        site.replace(changed);
        for (door, listener) in opened {
            let Ok(listener) = listener.into_listener() else { continue };
            let ended = Shutdown::new();
            open.insert(door.address.clone(), ended.clone());
            let (site, shutdown, settings) = (Rc::clone(&site), shutdown.clone(), settings.clone());
            let ledger = Arc::clone(&works.ledger);
            serving.spawn_local(async move {
                let until = async move {
                    tokio::select! {
                        () = shutdown.reached(1) => {}
                        () = ended.reached(1) => {}
                    }
                };
                if door.serves == Serves::Admin {
                    let handler = async move |exchange: &mut Exchange<'_>| {
                        let site = Rc::clone(&site.borrow());
                        admin::answer(&site, exchange).await
                    };
                    Server::new(handler, settings).serve([listener.into()], until).await;
                } else {
                    let handler = async move |exchange: &mut Exchange<'_>| {
                        let site = Rc::clone(&site.borrow());
                        site.answer(exchange).await
                    };
                    let server = Server::new(handler, settings);
                    ledger.enter(server.counters());
                    server.serve([listener.into()], until).await;
                }
            });
        }
    }
    let mut at_once = std::pin::pin!(shutdown.reached(2));
    while !serving.is_empty() {
        tokio::select! {
            _ = serving.join_next() => {}
            () = &mut at_once => break,
        }
    }
    site.borrow().flush();
}

/// What a server of clients allows.
fn settings(works: &Works) -> Settings {
    let (plan, limits) = (&works.plan, &works.plan.limits);
    let mut settings = Settings {
        idle_timeout: limits.idle,
        head_timeout: limits.head,
        body_timeout: limits.body,
        request_timeout: Duration::MAX,
        write_timeout: limits.write,
        drain_timeout: plan.drain,
        // Whoever was told by an earlier answer that the connection stays open may have sent a request already.
        last_request_timeout: Duration::from_millis(100).min(plan.drain / 4),
        connections: limits.connections.div_ceil(plan.threads),
        ..Settings::default()
    };
    settings.limits.head_bytes = limits.head_bytes;
    settings.limits.headers = limits.headers;
    settings.limits.target_bytes = limits.target_bytes;
    settings.limits.body_bytes = limits.body_bytes;
    settings
}
