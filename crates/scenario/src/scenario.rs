//! A script for runs: what comes before the load, its threads, what comes after it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use oroshi_bench::part::Implausible;
use oroshi_bench::record::Record;
use oroshi_bench::record::scenario::{PhaseRecord, ScenarioRecord, ScoreRecord, UserModel, UsersRecord};
use oroshi_bench::{CoreJourneys, Journeys, Meter, Part, ScriptError};
use oroshi_net::{ClientTlsOptions, Endpoint, Permitted, Timer, UnixAddress};
use tokio::task::{LocalSet, spawn_local};

use crate::api::{Declared, Phase};
use crate::data::{self, Sets};
use crate::files::Files;
use crate::fulfil::fulfil;
use crate::journeys::Users;
use crate::part::{self, Start};
use crate::run::{Network, Run};
use crate::settings::{Model, Settings};
use crate::state::{Source, State, Step, script_error};
use crate::tally::Tally;
use crate::thread::{Tell, Thread};
use crate::user::User;

/// The longest uninterrupted run of a call, unless said otherwise.
const LIMIT: Duration = Duration::from_secs(10);
/// How long a call of a phase may last after somebody wants the run to end.
const PATIENCE: Duration = Duration::from_millis(300);
/// How often a phase looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);
/// The largest script, bytes.
const SCRIPT_BYTES: usize = 16 << 20;

/// Says whether the run is to end.
type Cancelled = dyn Fn() -> bool + Send + Sync;

/// A script, and what the command line says about its run.
pub struct Options {
    /// The script.
    pub file: PathBuf,
    /// What the command line says; it has priority over the script's `options`.
    pub flags: Settings,
    /// Connect to this unix socket; the URL then gives Host and path only.
    pub unix: Option<UnixAddress>,
    /// TLS settings for https URLs.
    pub tls: ClientTlsOptions,
    /// The longest uninterrupted run of a call; `None`: 10 s.
    pub limit: Option<Duration>,
    /// Where the script's prints go, and every request and check if `verbose`.
    pub tell: Arc<Tell>,
    /// Tell every request and check.
    pub verbose: bool,
    /// Which part of a run of several machines this process has, and what it was sent.
    pub part: PartOptions,
}

/// A part of a run that several machines share. The default: this process has all of it.
#[derive(Clone, Debug, Default)]
pub struct PartOptions {
    /// The part.
    pub part: Option<Part>,
    /// The result of [`Journeys::lead`] for the run, whose `initialize` was called. `None`: it is to be called here.
    pub start: Option<Vec<u8>>,
    /// The files that came with the script, by the path that it has: it may read no others. `None`: all.
    pub files: Option<BTreeMap<String, PathBuf>>,
    /// The only servers that users may reach; `None`: all.
    pub permitted: Option<Arc<Permitted>>,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("file", &self.file).field("flags", &self.flags).finish_non_exhaustive()
    }
}

/// A loaded script.
pub struct Scenario {
    source: Source,
    settings: Arc<Settings>,
    base: Endpoint,
    network: Network,
    /// The state that `initialize` left for this run in another process.
    start: Option<Vec<u8>>,
    tell: Arc<Tell>,
    verbose: bool,
    declared: Declared,
    scenarios: Vec<(String, f64)>,
    sets: Arc<Sets>,
    /// Whether somebody wants the run to end.
    cancelled: Arc<OnceLock<Box<Cancelled>>>,
    /// The run under way, and how its phases went.
    current: Mutex<Option<Current>>,
}

#[derive(Clone)]
struct Current {
    run: Arc<Run>,
    phases: Vec<PhaseRecord>,
}

impl std::fmt::Debug for Scenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scenario")
            .field("file", &self.source.file)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Scenario {
    /// Reads the script and runs its top level, to find mistakes and its options.
    ///
    /// # Errors
    /// The script cannot be read, is wrong, or declares no scenario; the URL is wrong or missing.
    pub fn load(options: Options) -> Result<Arc<Self>, ScriptError> {
        let Options { file, flags, unix, tls, limit, tell, verbose, part } = options;
        let PartOptions { part, start, files, permitted } = part;
        let named = file.display().to_string();
        let wrong = |what: String| ScriptError { place: named.clone(), what };
        let text = std::fs::read(&file).map_err(|error| wrong(format!("the script cannot be read: {error}")))?;
        if text.len() > SCRIPT_BYTES {
            return Err(wrong(format!("the script has {} bytes: expected at most {SCRIPT_BYTES}", text.len())));
        }
        let files = Files::new(&file, files);
        let rows = part.map_or(data::Part::WHOLE, |part| data::Part::new(part.index, part.of));
        let sets = Arc::new(Sets::new(&files, rows));
        let source = Source::new(&file, text, files, limit.unwrap_or(LIMIT));
        let network = Network { tls, permitted, part };
        // Nothing is requested here: any URL will do.
        let nowhere: Endpoint = "http://localhost/".parse().map_err(|_| wrong("a defect".to_owned()))?;
        let seed = flags.seed.unwrap_or(0);
        let run = Arc::new(Run::new(&Arc::new(flags.clone()), 1, &sets, seed, network.clone()));
        let thread = Thread::new(run, nowhere, None, Arc::clone(&tell), false);
        let memory = Settings::default().state_memory();
        let state = State::load(&source, &thread, memory)?;
        let declared = state.declared.clone();
        drop(state);
        let scenarios = thread.scenarios.take();
        if scenarios.is_empty() {
            return Err(wrong(
                "the script declares no scenario: expected scenario(\"name\", function(user) ... end)".into(),
            ));
        }
        let settings = declared.settings.clone().with(flags);
        settings.check().map_err(wrong)?;
        let Some(url) = &settings.url else {
            return Err(wrong(
                "no URL: give one to the command, or in the script as options { url = \"http://...\" }".into(),
            ));
        };
        let base: Endpoint = url.parse().map_err(|error| wrong(format!("the URL `{url}`: {error}")))?;
        let base = match unix {
            Some(unix) => base.with_unix(unix),
            None => base,
        };
        let settings = Arc::new(settings);
        let current = Mutex::default();
        Ok(Arc::new(Self {
            source,
            settings,
            base,
            network,
            start,
            tell,
            verbose,
            declared,
            scenarios,
            sets,
            cancelled: Arc::default(),
            current,
        }))
    }

    /// Returns the script for one run against `base`, where `flags` have priority over the script's `options`. Its
    /// text and data are shared; what ends one run ends no other.
    #[must_use]
    pub fn at(&self, base: Endpoint, tls: ClientTlsOptions, flags: Settings) -> Arc<Self> {
        Arc::new(Self {
            source: self.source.anew(),
            settings: Arc::new(self.declared.settings.clone().with(flags)),
            base,
            network: Network { tls, ..self.network.clone() },
            start: self.start.clone(),
            tell: Arc::clone(&self.tell),
            verbose: self.verbose,
            declared: self.declared.clone(),
            scenarios: self.scenarios.clone(),
            sets: Arc::clone(&self.sets),
            cancelled: Arc::clone(&self.cancelled),
            current: Mutex::default(),
        })
    }

    /// Returns the settings of script and command line together.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the URL to which paths are relative.
    #[must_use]
    pub fn base(&self) -> &Endpoint {
        &self.base
    }

    /// Lets `cancelled` end `initialize` and `final` early. The first call counts.
    pub fn cancelled_by(&self, cancelled: impl Fn() -> bool + Send + Sync + 'static) {
        let _ = self.cancelled.set(Box::new(cancelled));
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.get().is_some_and(|cancelled| cancelled())
    }

    /// Waits until somebody wants the run to end.
    async fn cancellation(&self) {
        while !self.is_cancelled() {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Does work that calls the script on this thread. A call that is still under way a while after somebody wants the
    /// run to end is interrupted.
    fn interruptible<T>(&self, work: impl FnOnce() -> T) -> T {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut since = None;
                while !is_over.load(Ordering::Relaxed) {
                    if self.is_cancelled() && since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                        self.source.interrupt();
                    }
                    std::thread::park_timeout(LOOK);
                }
            });
            let done = work();
            is_over.store(true, Ordering::Relaxed);
            watcher.thread().unpark();
            done
        })
    }

    fn current(&self) -> Result<Current, ScriptError> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.clone().ok_or_else(|| self.error("no run has begun: a defect".into()))
    }

    fn error(&self, what: String) -> ScriptError {
        ScriptError { place: self.source.file.display().to_string(), what }
    }

    fn thread(&self, run: &Arc<Run>, meter: Option<Meter>) -> Rc<Thread> {
        Thread::new(Arc::clone(run), self.base.clone(), meter, Arc::clone(&self.tell), self.verbose)
    }

    /// Runs a phase beside the load, in a state of its own. `Ok(Some(what))`: the phase says that something is wrong.
    fn phase(
        &self,
        run: &Arc<Run>,
        name: &'static str,
        phase: &Phase,
    ) -> Result<(Option<ScriptError>, Tally), ScriptError> {
        let thread = self.thread(run, None);
        let state = State::load(&self.source, &thread, self.settings.state_memory())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| self.error(format!("a runtime could not be made: {error}")))?;
        let user = User::new(0, run.seed);
        let local = LocalSet::new();
        let ended = self.interruptible(|| {
            local.block_on(&runtime, async {
                thread.build_client().map_err(|what| self.error(what))?;
                let timer = Timer::new().map_err(|error| self.error(format!("a timer could not be made: {error}")))?;
                let driven = Rc::clone(&thread);
                let driver = spawn_local(async move { driven.sleeper.drive(timer).await });
                let ended = tokio::select! {
                    ended = tokio::time::timeout(phase.timeout, journey(&state, &user, name)) => ended,
                    () = self.cancellation() => Ok(Err(self.error(format!("{name}() was interrupted")))),
                };
                driver.abort();
                Ok(ended)
            })
        })?;
        let failed = match ended {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(_) => Some(self.error(format!("{name}() had not ended after {:?}", phase.timeout))),
        };
        let tally = thread.tally.take();
        Ok((failed, tally))
    }
}

/// Makes the journey of a phase.
async fn journey(state: &State, user: &Rc<User>, name: &'static str) -> Result<(), ScriptError> {
    let mut step = state.begin_phase(user, name);
    loop {
        match step {
            Err(error) => {
                let error = script_error(error);
                return Err(match user.failed.take() {
                    Some(reason) => ScriptError { what: reason, ..error },
                    None => error,
                });
            }
            Ok((_, Step::Ended)) => {
                // The script may have caught the error of its `fail`.
                let place = || state.file();
                return user.failed.take().map_or(Ok(()), |what| Err(ScriptError { place: place(), what }));
            }
            Ok((call, Step::Waits(wish))) => {
                let got = fulfil(&state.thread, user, wish).await;
                step = state.resume(call, user, got);
            }
        }
    }
}

impl Journeys for Scenario {
    fn name(&self) -> String {
        let file = &self.source.file;
        file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned()
    }

    fn initialize(&self, cores: usize) -> Result<(), ScriptError> {
        let start = self.start.as_deref().map(|start| {
            Start::decode(start).ok_or_else(|| self.error("the start of the run cannot be read: a defect".into()))
        });
        let start = start.transpose()?;
        let seed = start.as_ref().map(|start| start.seed).or(self.settings.seed);
        let seed = seed.unwrap_or_else(|| fastrand::u64(0..1 << 53));
        let run = Arc::new(Run::new(&self.settings, cores, &self.sets, seed, self.network.clone()));
        let mut phases = Vec::new();
        if let Some(start) = start {
            run.shared.apply(start.shared);
            run.shared.take_changes();
        } else if let Some(phase) = &self.declared.initialize {
            let began = Instant::now();
            let (failed, tally) = self.phase(&run, "initialize", phase)?;
            let failed = failed.or_else(|| failed_check(&tally).map(|what| self.error(format!("initialize: {what}"))));
            if let Some(error) = failed {
                return Err(error);
            }
            let elapsed_s = began.elapsed().as_secs_f64();
            phases.push(PhaseRecord { name: "initialize".into(), elapsed_s, error: None });
        }
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(Current { run, phases });
        Ok(())
    }

    fn enter(&self, core: usize, meter: Meter) -> Result<Rc<dyn CoreJourneys>, ScriptError> {
        let Current { run, .. } = self.current()?;
        let thread = self.thread(&run, Some(meter));
        let state = State::load(&self.source, &thread, self.settings.state_memory())?;
        Ok(Rc::new(Users::new(state, run.position(core))?))
    }

    fn interrupt(&self) {
        self.source.interrupt();
    }

    fn stuck(&self) -> Option<ScriptError> {
        self.source.stuck()
    }

    fn lead(&self) -> Result<Vec<u8>, ScriptError> {
        self.initialize(1)?;
        let Current { run, .. } = self.current()?;
        let start = Start { seed: run.seed, shared: run.shared.all() };
        start.encode().map_err(|what| self.error(what))
    }

    fn files(&self) -> Vec<(String, PathBuf)> {
        self.source.files.read()
    }

    fn take_counts(&self) -> Vec<u8> {
        self.current().map(|Current { run, .. }| part::take_counts(&run)).unwrap_or_default()
    }

    fn absorb(&self, counts: &[u8]) -> Result<bool, Implausible> {
        let Current { run, .. } = self.current().map_err(|_| Implausible)?;
        part::absorb(&run, counts, self.scenarios.len())
    }

    fn conclude(&self, record: &Record) -> Result<ScenarioRecord, ScriptError> {
        let Current { run, mut phases } = self.current()?;
        let mut tally = run.take_tally();
        if let Some(phase) = self.declared.last.as_ref().filter(|_| !run.is_aborted()) {
            let began = Instant::now();
            let (failed, checked) = if self.is_cancelled() {
                (Some(self.error("the run was interrupted, and final() did not check it".into())), Tally::default())
            } else {
                self.phase(&run, "final", phase)?
            };
            let failed = failed.map(|error| error.to_string()).or_else(|| failed_check(&checked));
            if let Some(what) = &failed {
                run.void(what);
            }
            let Tally { checks, check_samples, points, users, .. } = checked;
            tally.merge(Tally { checks, check_samples, points, users, ..Tally::default() });
            phases.push(PhaseRecord { name: "final".into(), elapsed_s: began.elapsed().as_secs_f64(), error: failed });
        }
        let aborted = run.verdict().aborted.clone();
        if let Some(reason) = &aborted {
            run.void(&format!("the script ended the run: {reason}"));
        }
        let score = self.score(&run, &tally, record)?;
        let model = match self.settings.model() {
            Model::Closed(_) => UserModel::Closed,
            Model::Open { .. } => UserModel::Open,
        };
        let lateness = (model == UserModel::Open).then(|| tally.lateness.clone().into());
        Ok(ScenarioRecord {
            users: UsersRecord {
                model,
                most: self.settings.most_users().max(run.progress.most.load(Ordering::Relaxed)),
                due: tally.due,
                late: tally.late,
                unbegun: tally.unbegun,
                lateness,
            },
            score,
            journeys: tally.journey_records(&self.scenarios),
            steps: tally.step_records(record.elapsed_s),
            timers: tally.timer_records(),
            checks: tally.check_records(),
            fails: tally.fail_records(),
            flows: tally.flow_records(&self.scenarios),
            aborted,
            phases,
            seed: run.seed,
            retries: tally.retries,
        })
    }
}

impl Scenario {
    /// Computes the score. `None` where the script knows neither points nor a formula.
    ///
    /// A formula that fails makes it void: what was measured is reported all the same.
    ///
    /// # Errors
    /// A call that cannot be ended.
    fn score(&self, run: &Arc<Run>, tally: &Tally, record: &Record) -> Result<Option<ScoreRecord>, ScriptError> {
        let breakdown = tally.point_records();
        let has_formula = self.declared.has_score;
        let is_void = || run.verdict().void.is_some();
        if breakdown.is_empty() && !has_formula && !is_void() {
            return Ok(None);
        }
        let points = tally.sum();
        let mut value = points;
        if has_formula && !is_void() {
            match self.formula(run, tally, record) {
                Ok(score) => value = score,
                Err(error) => run.void(&error.to_string()),
            }
            if let Some(error) = self.source.stuck() {
                return Err(error);
            }
        }
        // The formula may have said so itself.
        let void = run.verdict().void.clone();
        if void.is_some() {
            value = 0.0;
        }
        Ok(Some(ScoreRecord { value, void, formula: has_formula, points, breakdown }))
    }

    /// Calls the script's formula.
    fn formula(&self, run: &Arc<Run>, tally: &Tally, record: &Record) -> Result<f64, ScriptError> {
        let thread = self.thread(run, None);
        let state = State::load(&self.source, &thread, self.settings.state_memory())?;
        let result = state.engine.with_room(|lua| result_table(lua, tally, record));
        let result = result.map_err(|error| self.error(format!("score: {error}")))?;
        let value = self.interruptible(|| state.score(result))?;
        if !value.is_finite() {
            return Err(self.error(format!("score() returned {value}: expected a finite number")));
        }
        Ok(value)
    }
}

/// The table that `score` gets.
fn result_table(lua: &mlua::Lua, tally: &Tally, record: &Record) -> mlua::Result<mlua::Table> {
    let result = lua.create_table()?;
    result.raw_set("elapsed", record.elapsed_s)?;
    result.raw_set("points", tally.sum())?;
    result.raw_set("requests", record.requests.completed as f64)?;
    result.raw_set("errors", record.errors as f64)?;
    result.raw_set("fails", tally.fails.iter().map(|(_, count)| *count).sum::<u64>() as f64)?;
    let (passed, failed) = tally.checked();
    result.raw_set("checks_passed", passed as f64)?;
    result.raw_set("checks_failed", failed as f64)?;
    let users = lua.create_table_with_capacity(tally.users.len(), 0)?;
    for (index, points) in tally.users.values().enumerate() {
        users.raw_set(index + 1, *points)?;
    }
    result.raw_set("users", users)?;
    let labels = lua.create_table()?;
    for record in tally.point_records() {
        let label = lua.create_table()?;
        label.raw_set("count", record.count as f64)?;
        label.raw_set("points", record.points)?;
        labels.raw_set(record.label, label)?;
    }
    result.raw_set("labels", labels)?;
    let of = |count: u64| count as f64;
    let steps = lua.create_table()?;
    for step in tally.step_records(record.elapsed_s) {
        let table = lua.create_table()?;
        table.raw_set("count", of(step.count))?;
        table.raw_set("errors", of(step.errors))?;
        steps.raw_set(step.name, table)?;
    }
    result.raw_set("steps", steps)?;
    let failures: BTreeMap<&str, u64> = record.failures.iter().map(|(failure, n)| (failure.name(), *n)).collect();
    let table = lua.create_table()?;
    for (name, count) in failures {
        table.raw_set(name, of(count))?;
    }
    result.raw_set("failures", table)?;
    Ok(result)
}

/// Names the first check of a phase that did not hold.
fn failed_check(tally: &Tally) -> Option<String> {
    let mut failed = tally.checks.iter().filter(|(_, check)| check.failed > 0);
    failed.next().map(|(name, _)| format!("the check \"{name}\" failed"))
}
