//! A running gateway: its start, reloads, the end. `core` is what runs on each thread.
//!
//! A plan comes into force in two steps. First every thread prepares its part while it serves by the plan before: it
//! loads scripts, runs their `init`, and registers sockets. When all threads are ready, all switch. If one thread
//! fails, all keep the plan before.

mod core;

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use oroshi_lookup::{Lookup, Stores};
use oroshi_net::threads::ThreadsError;
use oroshi_net::{BoundListener, CpuList, Shutdown, Threads};
use oroshi_service::{admin_capacity, thread_options};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::access;
use crate::generation::{GateCounters, Generation};
use crate::limit::{self, Limiter};
use crate::plan::{Listener, Plan, Serves};
use crate::script::{Cache, Hook, ScriptError};
use crate::tls::{AcmeParts, TlsState};
use crate::upstream::{OwnSocket, OwnSockets};

use self::core::{CoreListener, Job, work};

/// The time to write the last lines of the access log, after the threads ended.
const LAST_LINES: Duration = Duration::from_secs(2);

/// The time in which threads prepare a plan, without its scripts.
const READY: Duration = Duration::from_secs(30);

/// An open listener of a gateway.
pub type OpenListener = oroshi_service::OpenListener<Serves>;

/// The reason why a gateway did not start, or refused a plan.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The stores, or a look-up in them, cannot be started.
    #[error("cannot start the stores")]
    Stores(#[from] oroshi_lookup::StartError),
    /// ACME cannot be started.
    #[error("cannot start ACME")]
    Acme(#[from] oroshi_acme::StartError),
    /// The access log cannot be opened.
    #[error("cannot open the access log `{file}`")]
    Log {
        /// The log's file, or `standard output`.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// The threads could not be started, or one of them panicked.
    #[error("cannot run the threads that serve")]
    Serving(#[source] ThreadsError),
    /// Restart the gateway: it binds its sockets once for each thread.
    #[error(
        "the number of threads changes from {was} to {wanted}, which a reload cannot do: restart it (`oroshi start` \
         does so without a lost connection)"
    )]
    Threads {
        /// The number of running threads.
        was: usize,
        /// The number in the new plan.
        wanted: usize,
    },
    /// Restart the gateway: it pins threads when they start.
    #[error(
        "the CPUs that threads are pinned to change from {} to {}, which a reload cannot do: restart it (`oroshi \
         start` does so without a lost connection)",
        shown(.was), shown(.wanted)
    )]
    Cpus {
        /// The CPUs of the running threads.
        was: Option<CpuList>,
        /// The CPUs of the new plan.
        wanted: Option<CpuList>,
    },
    /// A script failed while it was loaded. Correct the line.
    #[error("script `{script}`: {}: {error}", .hook.map_or("its top level", Hook::name))]
    Script {
        /// The script's name.
        script: String,
        /// The hook that failed; `None`: the top level of the file.
        hook: Option<Hook>,
        /// The line and the reason.
        error: ScriptError,
    },
    /// The thread of the health checks cannot be started.
    #[error("cannot start the thread of the health checks")]
    Checks(#[source] io::Error),
    /// The system has no random numbers, which tickets of TLS need.
    #[error("the system has no random numbers (getrandom)")]
    Random,
    /// A thread cannot serve a bound socket.
    #[error("cannot serve `{address}`")]
    Register {
        /// The address in the plan.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// The threads took too long. Check the `init` of scripts: a call of a C function cannot be interrupted.
    #[error("the threads were not ready for the plan within {} s", .0.as_secs())]
    Unready(Duration),
}

fn shown(cpus: &Option<CpuList>) -> String {
    cpus.as_ref().map_or_else(|| "none".to_owned(), CpuList::to_string)
}

/// Returns listeners with their sockets.
fn sockets(bound: &[OpenListener]) -> Vec<(Listener, OwnSocket)> {
    let socket = |bound: &OpenListener| Some((bound.listener.clone(), bound.sockets.first()?.into()));
    bound.iter().filter_map(socket).collect()
}

/// A running gateway.
#[derive(Debug)]
pub struct Gate {
    /// The threads; `join` takes them.
    running: Mutex<Option<Threads<()>>>,
    mail: Vec<UnboundedSender<Job>>,
    threads: usize,
    shutdown: Shutdown,
    state: Mutex<State>,
}

/// The state that a reload changes.
#[derive(Debug)]
struct State {
    generation: Arc<Generation>,
    listeners: Vec<Listener>,
    /// The socket of each listener.
    sockets: Vec<(Listener, OwnSocket)>,
    /// Inherited listeners outside the plan, which no reload closes.
    stay: Vec<Listener>,
}

impl Gate {
    /// Starts a gateway that serves until `shutdown`. All threads listen when this returns.
    ///
    /// The first request of `shutdown` drains the gateway, the second one ends it at once.
    ///
    /// # Errors
    /// When the stores, the access log or the threads cannot be started.
    pub fn start(plan: Plan, bound: Vec<OpenListener>, shutdown: &Shutdown) -> Result<Self, RunError> {
        let stores = Stores::start(plan.stores.clone())?;
        let tls = Arc::new(TlsState::new().ok_or(RunError::Random)?);
        let certificates = plan.tls.as_ref().map(|plan| plan.start(&stores, &tls, None)).transpose()?;
        tls.current.set(certificates.clone());
        let lookups = plan.lookups.iter().map(|lookup| Lookup::start(lookup.settings.clone(), &stores));
        let lookups: Vec<Lookup> = lookups.collect::<Result<_, _>>()?;
        let parts = AcmeParts { plan: &plan, lookups: &lookups, stores: &stores, state: &tls, shutdown };
        let acme = parts.start(None)?;
        let counters = Arc::new(GateCounters::default());
        counters.encoders.set_most(plan.limits.compression_bytes);
        let generation = Arc::new(Generation {
            checked: counters.check(&plan).map_err(RunError::Checks)?,
            lookups,
            stores,
            certificates,
            tls,
            acme,
            limiters: plan.limits_by_key.iter().map(|limit| Arc::new(Limiter::new(limit.clone()))).collect(),
            cache: Arc::new(Cache::new(plan.script_cache)),
            log: open_log(plan.access_log.as_ref())?,
            counters,
            own: OwnSockets::default(),
            number: 1,
            since: SystemTime::now(),
            plan,
        });
        let plan = &generation.plan;
        let threads = plan.threads;
        let mut options = thread_options("gate", threads, plan.cpus.as_ref(), shutdown);
        // Also without scripts, because a reload may add one.
        options.stack_bytes = Some(oroshi_script::STACK_BYTES);
        let open: Vec<Listener> = bound.iter().map(|bound| bound.listener.clone()).collect();
        let (mail, boxes): (Vec<_>, Vec<_>) = (0..threads).map(|_| unbounded_channel()).unzip();
        let stay = open.iter().filter(|listener| !plan.listeners.contains(listener)).cloned().collect();
        let sockets = sockets(&bound);
        generation.own.set(sockets.iter().map(|(_, socket)| socket.clone()).collect());
        let state = Mutex::new(State { listeners: open, sockets, stay, generation: Arc::clone(&generation) });
        let boxes = Mutex::new(boxes.into_iter().map(Some).collect::<Vec<_>>());
        let ready = prepare(&mail, &generation, bound);
        let shutdown = shutdown.clone();
        let (first, stop) = (Arc::clone(&generation), shutdown.clone());
        let running = Threads::start(&options, move |core| {
            let mail = boxes.lock().unwrap_or_else(PoisonError::into_inner)[core.index].take();
            let (shutdown, generation, index) = (stop.clone(), Arc::clone(&first), core.index);
            async move {
                if let Some(mail) = mail {
                    work(index, generation, mail, shutdown).await;
                }
            }
        });
        let running = running.map_err(RunError::Serving)?;
        if let Err(error) = all_ready(&ready, plan) {
            // A thread ends when its sender is dropped. A thread that is stuck would not.
            drop(mail);
            if !matches!(error, RunError::Unready(_)) {
                running.join().map_err(RunError::Serving)?;
            }
            return Err(error);
        }
        tell(&mail, || Job::Switch { close: Vec::new() });
        acme_parts(&generation, &shutdown).put_in_force(generation.acme.as_ref(), None);
        tell_trials(&generation);
        Ok(Gate { running: Mutex::new(Some(running)), mail, threads, shutdown, state })
    }

    /// Returns the open listeners. A reload binds only the others.
    #[must_use]
    pub fn listeners(&self) -> Vec<Listener> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).listeners.clone()
    }

    /// Puts another plan in force; returns its generation. `opened` are the listeners that it adds.
    ///
    /// Requests in progress finish under the plan before. Connections to clients and upstreams stay. A look-up with
    /// unchanged settings keeps its memory, and an unchanged store its connections. The access log is reopened.
    /// New limits on clients apply to new connections only.
    ///
    /// # Errors
    /// When the plan cannot be put in force. The gateway then keeps the plan before.
    pub fn reload(&self, mut plan: Plan, opened: Vec<OpenListener>) -> Result<u64, RunError> {
        if plan.threads != self.threads {
            return Err(RunError::Threads { was: self.threads, wanted: plan.threads });
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let was = Arc::clone(&state.generation);
        if plan.cpus != was.plan.cpus {
            return Err(RunError::Cpus { was: was.plan.cpus.clone(), wanted: plan.cpus });
        }
        plan.keep_tls(&was.plan);
        let log =
            if was.plan.access_log == plan.access_log { was.log.clone() } else { open_log(plan.access_log.as_ref())? };
        // The plan in force keeps its stores, because this reload may still fail.
        let stores = was.stores.beside(plan.stores.clone())?;
        let (mut lookups, mut kept) = (Vec::new(), Vec::new());
        for lookup in &plan.lookups {
            lookups.push(match was.lookups.iter().find(|known| *known.settings() == lookup.settings) {
                Some(lookup) => {
                    kept.push(lookup.clone());
                    lookup.clone()
                }
                None => Lookup::start(lookup.settings.clone(), &stores)?,
            });
        }
        let before = was.plan.tls.as_ref().zip(was.certificates.as_deref());
        let certificates = plan.tls.as_ref().map(|plan| plan.start(&stores, &was.tls, before)).transpose()?;
        let parts =
            AcmeParts { plan: &plan, lookups: &lookups, stores: &stores, state: &was.tls, shutdown: &self.shutdown };
        let acme = parts.start(was.acme.as_ref().map(|acme| (&was.plan, acme, &was.lookups[..])))?;
        // An unchanged limit keeps its counts.
        let limiter = |limit: &limit::Settings| match was.limiters.iter().find(|known| known.settings == *limit) {
            Some(known) => Arc::clone(known),
            None => Arc::new(Limiter::new(limit.clone())),
        };
        let generation = Arc::new(Generation {
            checked: was.counters.check(&plan).map_err(RunError::Checks)?,
            lookups,
            limiters: plan.limits_by_key.iter().map(limiter).collect(),
            certificates,
            tls: Arc::clone(&was.tls),
            acme,
            cache: Arc::clone(&was.cache),
            log,
            stores,
            counters: Arc::clone(&was.counters),
            own: was.own.clone(),
            number: was.number + 1,
            since: was.since,
            plan,
        });
        let mut sockets: Vec<_> = state.sockets.iter().cloned().chain(sockets(&opened)).collect();
        if let Err(error) = all_ready(&prepare(&self.mail, &generation, opened), &generation.plan) {
            // The next reload may want the same addresses.
            let (gone, all_gone) = mpsc::channel();
            tell(&self.mail, || Job::Abandon(gone.clone()));
            drop(gone);
            let _ = all_gone.recv_timeout(READY);
            return Err(error);
        }
        let listeners: Vec<Listener> = generation.plan.listeners.iter().chain(&state.stay).cloned().collect();
        let close: Vec<Listener> =
            state.listeners.iter().filter(|listener| !listeners.contains(listener)).cloned().collect();
        sockets.retain(|(listener, _)| listeners.contains(listener));
        generation.own.set(sockets.iter().map(|(_, socket)| socket.clone()).collect());
        tell(&self.mail, || Job::Switch { close: close.clone() });
        generation.cache.set_bytes(generation.plan.script_cache);
        generation.counters.encoders.set_most(generation.plan.limits.compression_bytes);
        // Both plans share these look-ups. They asked the stores of the plan before, and keep those answers.
        kept.iter().for_each(|lookup| lookup.set_stores(&generation.stores));
        if let Some(certificates) = &generation.certificates {
            certificates.set_stores(&generation.stores);
        }
        generation.tls.current.set(generation.certificates.clone());
        acme_parts(&generation, &self.shutdown).put_in_force(generation.acme.as_ref(), was.acme.as_ref());
        if let Some(log) = &generation.log {
            log.reopen();
        }
        tell_trials(&generation);
        let number = generation.number;
        *state = State { generation, listeners, sockets, stay: std::mem::take(&mut state.stay) };
        Ok(number)
    }

    /// Waits until `shutdown` has ended the threads, and writes the rest of the access log. Call it once.
    ///
    /// # Errors
    /// When a thread panicked.
    pub fn join(&self) -> Result<(), RunError> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        let joined = running.map_or(Ok(()), |running| running.join().map(drop));
        let generation = Arc::clone(&self.state.lock().unwrap_or_else(PoisonError::into_inner).generation);
        // Before the stores, in which it releases its locks.
        generation.tls.challenges.set_issuer(None);
        if let Some(acme) = &generation.acme {
            acme.end();
        }
        if let Some(log) = &generation.log
            && !log.finish(LAST_LINES)
        {
            tracing::warn!("the access log takes nothing: what was told last is lost");
        }
        joined.map_err(RunError::Serving)
    }
}

fn acme_parts<'g>(generation: &'g Generation, shutdown: &'g Shutdown) -> AcmeParts<'g> {
    let Generation { plan, lookups, stores, tls, .. } = generation;
    AcmeParts { plan, lookups, stores, state: tls, shutdown }
}

/// Tries the queries of look-ups in the background.
fn tell_trials(generation: &Generation) {
    generation.lookups.iter().for_each(Lookup::tell_trial);
    let is_new = generation.plan.tls.as_ref().is_some_and(|tls| tls.looks_in_acme);
    let certificates = generation.certificates.as_ref().filter(|_| !is_new);
    if let Some(lookup) = certificates.and_then(|certificates| certificates.lookup()) {
        lookup.tell_trial();
    }
}

fn open_log(settings: Option<&access::Settings>) -> Result<Option<Arc<access::Log>>, RunError> {
    let Some(settings) = settings else { return Ok(None) };
    access::Log::open(settings.clone()).map(|log| Some(Arc::new(log))).map_err(|source| {
        let file = settings.file.as_ref().map_or("standard output".to_owned(), |file| file.display().to_string());
        RunError::Log { file, source }
    })
}

/// Asks every thread to prepare a plan. Each reports success or its error; a thread that has ended reports nothing.
fn prepare(
    mail: &[UnboundedSender<Job>],
    generation: &Arc<Generation>,
    opened: Vec<OpenListener>,
) -> mpsc::Receiver<Result<(), RunError>> {
    let mut by_core: Vec<Vec<CoreListener<BoundListener>>> = mail.iter().map(|_| Vec::new()).collect();
    let is_admin = |listener: &&Listener| listener.serves == Serves::Admin;
    let inherited =
        opened.iter().map(|bound| &bound.listener).filter(|listener| !generation.plan.listeners.contains(listener));
    let admins = generation.plan.listeners.iter().chain(inherited).filter(is_admin).count();
    for bound in opened {
        let most = generation.plan.admin_connections.filter(|_| bound.listener.serves == Serves::Admin);
        let capacity = most.map(|all| admin_capacity(&bound, all / admins.max(1), "request"));
        for (open, socket) in by_core.iter_mut().zip(bound.sockets) {
            open.push(CoreListener { listener: bound.listener.clone(), socket, capacity: capacity.clone() });
        }
    }
    let (ready, is_ready) = mpsc::channel();
    for (sender, open) in mail.iter().zip(by_core) {
        let _ = sender.send(Job::Prepare { generation: Arc::clone(generation), open, ready: ready.clone() });
    }
    is_ready
}

/// Waits until every running thread is ready.
fn all_ready(ready: &mpsc::Receiver<Result<(), RunError>>, plan: &Plan) -> Result<(), RunError> {
    // Scripts load one after the other, and each has two calls: its top level and `init`.
    let scripts: Duration = plan.scripts.iter().map(|script| script.settings.wall.saturating_mul(2)).sum();
    let patience = READY.saturating_add(scripts);
    let until = Instant::now() + patience;
    loop {
        match ready.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(error),
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => return Err(RunError::Unready(patience)),
        }
    }
}

/// Sends a job to every thread that still runs.
fn tell(mail: &[UnboundedSender<Job>], job: impl Fn() -> Job) {
    for sender in mail {
        let _ = sender.send(job());
    }
}
