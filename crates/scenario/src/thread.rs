//! What the users of one thread share: the client, counters, the running user. Single-threaded: plain cells.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oroshi_bench::Meter;
use oroshi_bench::record::scenario::SampleRecord;
use oroshi_client::Deadlines;
use oroshi_client::local::Client;
use oroshi_net::{Endpoint, monotonic_ns};

use crate::cache::Bodies;
use crate::data::Declarations;
use crate::html::Learned;
use crate::random::{Choices, Think};
use crate::request::Spec;
use crate::run::Run;
use crate::sleeper::Sleeper;
use crate::tally::Tally;
use crate::user::User;

/// Connections that a user may have at a time: those of its assets.
const CONNECTIONS_PER_USER: usize = 8;

/// Connections of a thread in any case: a script may ask for more users than it begins with.
const LEAST_CONNECTIONS: usize = 4_096;
/// The most bytes of bodies that the caches of a thread's users keep.
const CACHE_BYTES: usize = 256 << 20;

/// Where lines for people go: what a script prints, and what it did.
pub type Tell = dyn Fn(&str) + Send + Sync;

/// What the users of a thread share.
pub(crate) struct Thread {
    pub(crate) run: Arc<Run>,
    /// The URL to which paths are relative.
    pub(crate) base: Endpoint,
    /// Built on the thread's own runtime.
    pub(crate) client: OnceCell<Client>,
    /// Where requests are counted. `None` before and after the load.
    pub(crate) meter: Option<Meter>,
    pub(crate) tally: RefCell<Tally>,
    /// Names and weights of the scenarios, in order.
    pub(crate) scenarios: RefCell<Vec<(String, f64)>>,
    /// Seconds between two calls of each function of `every`.
    pub(crate) watchers: RefCell<Vec<f64>>,
    /// The sets of rows that the top level has declared so far.
    pub(crate) declarations: Rc<RefCell<Option<Declarations>>>,
    /// The user whose journey runs.
    pub(crate) current: RefCell<Option<Rc<User>>>,
    /// What the running journey waits for.
    pub(crate) wish: RefCell<Option<Wish>>,
    pub(crate) sleeper: Sleeper,
    pub(crate) stage: Cell<Stage>,
    /// When the load began.
    pub(crate) start: Cell<u64>,
    /// A buffer for the name of a step.
    pub(crate) text: Cell<String>,
    /// Bytes of bodies that scripts hold.
    pub(crate) held: Rc<Cell<usize>>,
    /// What users' caches have.
    pub(crate) bodies: RefCell<Bodies>,
    /// Steps' selectors.
    pub(crate) learned: RefCell<HashMap<u32, Rc<RefCell<Learned>>>>,
    /// Chooses for code that no user runs: the top level, functions of `every`, the score's formula.
    pub(crate) choices: RefCell<Choices>,
    /// Chooses samples.
    random: RefCell<fastrand::Rng>,
    /// Bytes that the client had read and written at the last look.
    pub(crate) seen: Cell<(u64, u64)>,
    pub(crate) tell: Arc<Tell>,
    /// Whether every request and check is told.
    pub(crate) verbose: bool,
}

/// What a journey waits for.
#[derive(Debug)]
pub(crate) enum Wish {
    /// A response.
    Request(Box<Spec>),
    /// What a page needs.
    Assets(Box<crate::assets::Wanted>),
    /// A pause.
    Think(Think),
}

/// Where a thread is in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The script's file runs.
    Loading,
    /// Journeys go on.
    Running,
    /// No journey goes on; responses on their way are awaited.
    Closed,
}

impl fmt::Debug for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Thread").field("base", &self.base).field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl Thread {
    pub(crate) fn new(run: Arc<Run>, base: Endpoint, meter: Option<Meter>, tell: Arc<Tell>, verbose: bool) -> Rc<Self> {
        let seed = run.seed;
        Rc::new(Self {
            run,
            base,
            client: OnceCell::new(),
            meter,
            tally: RefCell::default(),
            scenarios: RefCell::default(),
            watchers: RefCell::default(),
            declarations: Rc::default(),
            current: RefCell::default(),
            wish: RefCell::default(),
            sleeper: Sleeper::default(),
            stage: Cell::new(Stage::Loading),
            start: Cell::new(0),
            text: Cell::default(),
            held: Rc::default(),
            bodies: RefCell::new(Bodies::new(CACHE_BYTES, unix_at_zero())),
            learned: RefCell::default(),
            // Each state of a run makes the same choices at its top level. Users' own begin with user 0, journey 0.
            choices: RefCell::new(Choices::new(seed, 0, u64::MAX)),
            random: RefCell::new(fastrand::Rng::with_seed(seed)),
            seen: Cell::new((0, 0)),
            tell,
            verbose,
        })
    }

    /// The running user.
    ///
    /// # Errors
    /// Outside journeys: at the top level, and in functions of `every` and `score`.
    pub(crate) fn user(&self, called: &str) -> mlua::Result<Rc<User>> {
        self.current.borrow().clone().ok_or_else(|| {
            mlua::Error::runtime(format!(
                "{called}: there is no user here: expected it within a scenario, `initialize` or `final`"
            ))
        })
    }

    /// Builds the client, on the thread's own runtime.
    ///
    /// # Errors
    /// Settings that cannot be used, in words.
    pub(crate) fn build_client(&self) -> Result<(), String> {
        let settings = &self.run.settings;
        let phases = Deadlines {
            queue: Duration::MAX,
            dns: Duration::MAX,
            connect: Duration::MAX,
            tls: Duration::MAX,
            write: Duration::MAX,
            first_byte: Duration::MAX,
            between_bytes: Duration::MAX,
            // Each request has its own.
            total: Duration::MAX,
        };
        let connections =
            (settings.most_users() * CONNECTIONS_PER_USER).div_ceil(self.run.threads).max(LEAST_CONNECTIONS);
        let client = oroshi_client::Client::builder()
            .connections(connections)
            .connections_per_host(connections)
            .idle_per_host(connections)
            .deadlines(phases)
            .redirects(0)
            .collect_bytes(settings.largest_body())
            .stream_bytes(settings.largest_body())
            .tls(self.run.network.tls.clone())
            .permitted(self.run.network.permitted.clone())
            .build_local();
        let client = client.map_err(|error| oroshi_words::with_causes(&error))?;
        self.client.set(client).map_err(|_| "the thread has a client already".to_owned())
    }

    /// Seconds since the load began.
    pub(crate) fn elapsed_s(&self) -> f64 {
        let start = self.start.get();
        if start == 0 { 0.0 } else { monotonic_ns().saturating_sub(start) as f64 / 1e9 }
    }

    /// Counts a check. `sample` is called where it failed.
    pub(crate) fn check(&self, user: &User, name: &str, holds: bool, sample: impl FnOnce() -> SampleRecord) {
        let mut tally = self.tally.borrow_mut();
        if holds {
            tally.checks.get(name).passed += 1;
        } else {
            tally.checks.get(name).failed += 1;
            tally.check_samples.offer(name, &mut self.random.borrow_mut(), sample);
            self.run.progress.checks_failed.fetch_add(1, Ordering::Relaxed);
        }
        if self.verbose {
            let word = if holds { "passed" } else { "FAILED" };
            (self.tell)(&format!("{user}   check {word}: {name}"));
        }
    }

    /// Counts a failure of a journey.
    pub(crate) fn fail(&self, user: &User, reason: &str, sample: impl FnOnce() -> SampleRecord) {
        let mut tally = self.tally.borrow_mut();
        *tally.fails.get(reason) += 1;
        tally.fail_samples.offer(reason, &mut self.random.borrow_mut(), sample);
        if self.verbose {
            (self.tell)(&format!("{user}   failed: {reason}"));
        }
    }

    /// Ends the blocks that a user times, but the outermost `but`: of each it is known how long it took at least.
    pub(crate) fn end_blocks(&self, user: &User, but: usize) {
        let mut timers = user.timers.borrow_mut();
        let from = but.min(timers.len());
        for (began, name) in timers.drain(from..).filter(|(began, _)| self.measures(*began)) {
            let took = monotonic_ns().saturating_sub(began);
            self.tally.borrow_mut().timers.get(&name).record_censored(took);
        }
    }

    /// Awards points, or deducts them.
    pub(crate) fn award(&self, user: &User, points: f64, label: &str) {
        let mut tally = self.tally.borrow_mut();
        let to = tally.points.get(label);
        to.count += 1;
        to.sum += points;
        *tally.users.entry(user.id).or_default() += points;
        self.run.progress.points.fetch_add((points * 1e3) as i64, Ordering::Relaxed);
        if self.verbose {
            (self.tell)(&format!("{user}   {points:+} points: {label}"));
        }
    }
}

/// Unix time when the monotonic clock was 0, nanoseconds.
fn unix_at_zero() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    now.saturating_sub(monotonic_ns())
}
