//! A gateway at work: its start, reloads, the end. `core`: the life of one of its cores.
//!
//! A plan comes into force in two steps. First every core makes its part ready, while it goes on with the one before: scripts are loaded, and
//! their `init` runs; sockets are taken up. Only when all are ready do they change over. If one is not, all go on as they were.

mod core;

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use oroshi_lookup::{Lookup, Stores};
use oroshi_net::cores::CoresError;
use oroshi_net::listen::ListenError;
use oroshi_net::{BoundListener, Cores, CoresOptions, CpuList, ListenOptions, Shutdown};
use oroshi_server::{Crowding, Room};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::access;
use crate::generation::{GateCounters, Generation};
use crate::plan::{Door, Plan, Serves};
use crate::script::{Cache, Hook, ScriptError};
use crate::upstream::{OwnSocket, OwnSockets};

use self::core::{CoreListener, Job, work};

/// How long the end waits for the log to be written.
const LAST_LINES: Duration = Duration::from_secs(2);

/// How long cores may take to make a plan ready, beside what its scripts may take.
const READY: Duration = Duration::from_secs(30);

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
    /// It takes a restart: threads are pinned when they start.
    #[error(
        "the CPUs that threads are pinned to change from {} to {}, which a reload cannot do: restart it (`oroshi start` does so without a lost connection)",
        shown(.was), shown(.wanted)
    )]
    Cpus {
        /// Those that threads are pinned to.
        was: Option<CpuList>,
        /// Those of the new plan.
        wanted: Option<CpuList>,
    },
    /// Correct the line.
    #[error("script `{script}`: {}: {error}", .hook.map_or("its top level", Hook::name))]
    Script {
        /// Its name.
        script: String,
        /// What was called; `None`: the file itself.
        hook: Option<Hook>,
        /// Where and why.
        error: ScriptError,
    },
    /// A socket was bound, and cannot be served by one of the threads.
    #[error("cannot serve `{address}`")]
    Register {
        /// As the plan has it.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// See what scripts do in `init`: one that is stuck in a function of C cannot be ended.
    #[error("the threads were not ready for the plan within {} s", .0.as_secs())]
    Unready(Duration),
}

fn shown(cpus: &Option<CpuList>) -> String {
    cpus.as_ref().map_or_else(|| "none".to_owned(), CpuList::to_string)
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

/// Where doors listen.
fn sockets(doors: &[Bound]) -> Vec<(Door, OwnSocket)> {
    let socket = |bound: &Bound| Some((bound.door.clone(), bound.listeners.first()?.into()));
    doors.iter().filter_map(socket).collect()
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
    generation: Arc<Generation>,
    doors: Vec<Door>,
    /// Each door's socket.
    sockets: Vec<(Door, OwnSocket)>,
    /// Sockets that were handed down and are at no door of a plan: no reload closes them.
    stay: Vec<Door>,
}

impl Gate {
    /// Starts a gateway, which serves until `shutdown`: its first request has it end in good form, a second one at once. All cores listen
    /// when this returns.
    ///
    /// # Errors
    /// When its stores, its log or its threads cannot be started.
    pub fn start(plan: Plan, doors: Vec<Bound>, shutdown: &Shutdown) -> Result<Self, RunError> {
        let stores = Stores::start(plan.stores.clone())?;
        let generation = Arc::new(Generation {
            lookups: plan
                .lookups
                .iter()
                .map(|lookup| Lookup::start(lookup.settings.clone(), &stores))
                .collect::<Result<_, _>>()?,
            stores,
            cache: Arc::new(Cache::new(plan.script_cache)),
            log: open_log(plan.access_log.as_ref())?,
            counters: Arc::new(GateCounters::default()),
            own: OwnSockets::default(),
            number: 1,
            since: SystemTime::now(),
            plan,
        });
        let plan = &generation.plan;
        let threads = plan.threads;
        let mut options = CoresOptions::new("gate", threads);
        options.cpus.clone_from(&plan.cpus);
        options.stop = Some(shutdown.clone());
        // Scripts may need it, and a reload may bring some.
        options.stack_bytes = Some(oroshi_script::STACK_BYTES);
        let open: Vec<Door> = doors.iter().map(|bound| bound.door.clone()).collect();
        let (mail, boxes): (Vec<_>, Vec<_>) = (0..threads).map(|_| unbounded_channel()).unzip();
        let stay = open.iter().filter(|door| !plan.doors.contains(door)).cloned().collect();
        let sockets = sockets(&doors);
        generation.own.set(sockets.iter().map(|(_, socket)| socket.clone()).collect());
        let state = Mutex::new(State { doors: open, sockets, stay, generation: Arc::clone(&generation) });
        let boxes = Mutex::new(boxes.into_iter().map(Some).collect::<Vec<_>>());
        let ready = prepare(&mail, &generation, doors);
        let shutdown = shutdown.clone();
        let first = Arc::clone(&generation);
        let cores = Cores::start(&options, move |core| {
            let mail = boxes.lock().unwrap_or_else(PoisonError::into_inner)[core.index].take();
            let (shutdown, generation, index) = (shutdown.clone(), Arc::clone(&first), core.index);
            async move {
                if let Some(mail) = mail {
                    work(index, generation, mail, shutdown).await;
                }
            }
        });
        let cores = cores.map_err(RunError::Cores)?;
        if let Err(error) = all_ready(&ready, plan) {
            // Whoever has no mail ends. One that is stuck cannot be waited for.
            drop(mail);
            if !matches!(error, RunError::Unready(_)) {
                cores.join().map_err(RunError::Cores)?;
            }
            return Err(error);
        }
        tell(&mail, || Job::Switch { close: Vec::new() });
        generation.lookups.iter().for_each(Lookup::tell_trial);
        Ok(Gate { cores: Mutex::new(Some(cores)), mail, threads, state })
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
        let was = Arc::clone(&state.generation);
        if plan.cpus != was.plan.cpus {
            return Err(RunError::Cpus { was: was.plan.cpus.clone(), wanted: plan.cpus });
        }
        let log =
            if was.plan.access_log == plan.access_log { was.log.clone() } else { open_log(plan.access_log.as_ref())? };
        // The plan in force goes on with its own, whatever becomes of this one.
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
        let generation = Arc::new(Generation {
            lookups,
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
        let doors: Vec<Door> = generation.plan.doors.iter().chain(&state.stay).cloned().collect();
        let close: Vec<Door> = state.doors.iter().filter(|door| !doors.contains(door)).cloned().collect();
        sockets.retain(|(door, _)| doors.contains(door));
        generation.own.set(sockets.iter().map(|(_, socket)| socket.clone()).collect());
        tell(&self.mail, || Job::Switch { close: close.clone() });
        generation.cache.set_bytes(generation.plan.script_cache);
        // They are the same for both plans: until now they asked the stores that were in force, and keep what those said.
        kept.iter().for_each(|lookup| lookup.set_stores(&generation.stores));
        if let Some(log) = &generation.log {
            log.reopen();
        }
        generation.lookups.iter().for_each(Lookup::tell_trial);
        let number = generation.number;
        *state = State { generation, doors, sockets, stay: std::mem::take(&mut state.stay) };
        Ok(number)
    }

    /// Waits for the end, which `shutdown` brings. To be called once.
    ///
    /// # Errors
    /// When a thread panicked.
    pub fn join(&self) -> Result<(), RunError> {
        let cores = self.cores.lock().unwrap_or_else(PoisonError::into_inner).take();
        let joined = cores.map_or(Ok(()), |cores| cores.join().map(drop));
        let generation = Arc::clone(&self.state.lock().unwrap_or_else(PoisonError::into_inner).generation);
        if let Some(log) = &generation.log
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

/// A door for operators holds two connections at least, so that one can come while another goes.
const LEAST_ADMINS: usize = 2;

/// Room for a door for operators, which tells the log when there is none.
fn admin_room(bound: &Bound, share: usize) -> Arc<Room> {
    let address = bound.listeners.first().map(|listener| listener.local_address().shown("http")).unwrap_or_default();
    Room::telling(share.max(LEAST_ADMINS), move |Crowding { held, most, ended }| {
        tracing::warn!(
            "no room at the admin listener {address}: {held} of {most} connections, and others wait. {ended} were closed to make room, first \
             those without a valid request: see who connects there, or raise the limit on descriptors (LimitNOFILE=, ulimit -Hn)"
        );
    })
}

/// Has every core make a plan ready. Each says so, or why it cannot; one that has ended says nothing.
fn prepare(
    mail: &[UnboundedSender<Job>],
    generation: &Arc<Generation>,
    opened: Vec<Bound>,
) -> mpsc::Receiver<Result<(), RunError>> {
    let mut by_core: Vec<Vec<CoreListener<BoundListener>>> = mail.iter().map(|_| Vec::new()).collect();
    let is_admin = |door: &&Door| door.serves == Serves::Admin;
    let handed_down = opened.iter().map(|bound| &bound.door).filter(|door| !generation.plan.doors.contains(door));
    let admins = generation.plan.doors.iter().chain(handed_down).filter(is_admin).count();
    for bound in opened {
        let most = generation.plan.admin_connections.filter(|_| bound.door.serves == Serves::Admin);
        let room = most.map(|all| admin_room(&bound, all / admins.max(1)));
        for (place, listener) in by_core.iter_mut().zip(bound.listeners) {
            place.push(CoreListener { door: bound.door.clone(), listener, room: room.clone() });
        }
    }
    let (ready, is_ready) = mpsc::channel();
    for (sender, open) in mail.iter().zip(by_core) {
        let _ = sender.send(Job::Prepare { generation: Arc::clone(generation), open, ready: ready.clone() });
    }
    is_ready
}

/// Waits until every core that is there is ready.
fn all_ready(ready: &mpsc::Receiver<Result<(), RunError>>, plan: &Plan) -> Result<(), RunError> {
    // One after the other, each has its top level and its `init`.
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

/// Tells every core. One that has ended already needs to know nothing.
fn tell(mail: &[UnboundedSender<Job>], job: impl Fn() -> Job) {
    for sender in mail {
        let _ = sender.send(job());
    }
}
