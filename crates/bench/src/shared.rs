//! State that the workers of a run share, and the messages that they send to the thread that leads it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Barrier, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use oroshi_net::clock::QueueClock;
use oroshi_net::{Peer, monotonic_ns};
use oroshi_stats::WindowCount;
use serde::{Deserialize, Serialize};

use crate::ending::ServerState;
use crate::error::RunError;
use crate::failure::FailureCounts;
use crate::first::FirstResponse;
use crate::plan::Plan;
use crate::script::ScriptError;
use crate::tally::{Interval, Tally};

/// How often a worker reports, and the width of the finest time series.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// State that all workers of a run share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) plan: Plan,
    /// Addresses of each origin.
    pub(crate) peers: Vec<Vec<Peer>>,
    /// All workers meet here once their connections are open.
    ready: Barrier,
    /// When the first request may be sent, on the monotonic clock.
    start: OnceLock<u64>,
    /// The moment to start that was agreed with other processes; 0: none.
    agreed: AtomicU64,
    /// How the last worker began.
    began: Mutex<Began>,
    /// Workers that wait to meet the others.
    pub(crate) prepared: AtomicUsize,
    /// The user, or a failed script, ends the run.
    stop: AtomicBool,
    /// The server's processes, as far as they are known.
    pub(crate) server: Vec<u32>,
    /// Set by the first worker that knows each value.
    pub(crate) first: Arc<FirstResponse>,
}

impl Shared {
    pub(crate) fn new(plan: Plan, peers: Vec<Vec<Peer>>, server: Vec<u32>) -> Self {
        Self {
            peers,
            ready: Barrier::new(plan.threads + 1),
            start: OnceLock::new(),
            agreed: AtomicU64::new(0),
            began: Mutex::default(),
            stop: AtomicBool::new(false),
            prepared: AtomicUsize::new(0),
            server,
            first: Arc::default(),
            plan,
        }
    }

    /// Waits for all workers; they agree on the moment to start.
    ///
    /// That is now, or `moment` if one thread knows a later one (nanoseconds of the monotonic clock).
    pub(crate) fn meet(&self, moment: u64) -> u64 {
        self.agreed.fetch_max(moment, Ordering::Relaxed);
        if self.ready.wait().is_leader() {
            self.start.set(monotonic_ns().max(self.agreed.load(Ordering::Relaxed))).expect("one leader");
        }
        self.ready.wait();
        *self.start.get().expect("set by the leader")
    }

    /// Whether the moment to start was agreed with other processes.
    pub(crate) fn is_agreed(&self) -> bool {
        self.agreed.load(Ordering::Relaxed) != 0
    }

    /// Notes how a worker began. The last one counts.
    pub(crate) fn note_began(&self, began: Began) {
        let mut last = self.began.lock().unwrap_or_else(PoisonError::into_inner);
        *last = last.later(began);
    }

    /// How the last worker began so far.
    pub(crate) fn began(&self) -> Began {
        *self.began.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the run as soon as the workers notice.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Ends calls into the script, if there is one.
    pub(crate) fn interrupt_script(&self) {
        if let Some(script) = &self.plan.script {
            script.interrupt();
        }
        if let Some(journeys) = &self.plan.journeys {
            journeys.interrupt();
        }
    }

    /// Returns the error of a call into the script that cannot be ended.
    pub(crate) fn stuck(&self) -> Option<ScriptError> {
        let stuck = self.plan.script.as_ref().and_then(|script| script.stuck());
        stuck.or_else(|| self.plan.journeys.as_ref().and_then(|journeys| journeys.stuck()))
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// How a thread began after the agreed moment; nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Began {
    /// How late it was.
    pub(crate) late: u64,
    /// How much of that it waited for a CPU. `None`: not known.
    pub(crate) queued: Option<u64>,
}

impl Began {
    /// The later one of two.
    pub(crate) fn later(self, other: Self) -> Self {
        if other.late > self.late { other } else { self }
    }
}

/// Tells how late a thread is that waits for a moment.
#[derive(Debug)]
pub(crate) struct Punctuality(Option<(QueueClock, u64)>);

impl Punctuality {
    /// Of the calling thread, from now on.
    pub(crate) fn watch() -> Self {
        Self(QueueClock::of_this_thread().and_then(|clock| clock.ns().map(|before| (clock, before))))
    }

    /// How late it is: `moment` was agreed.
    pub(crate) fn began(&self, moment: u64) -> Began {
        let late = monotonic_ns().saturating_sub(moment);
        let queued = self.0.as_ref().and_then(|(clock, before)| Some(clock.ns()?.saturating_sub(*before).min(late)));
        Began { late, queued }
    }
}

/// A worker's report while it runs.
#[derive(Debug)]
pub(crate) struct Report {
    /// When the interval ended, nanoseconds of the monotonic clock, and its length.
    pub(crate) until: u64,
    pub(crate) length: u64,
    pub(crate) worker: usize,
    pub(crate) interval: Interval,
    /// Failures that are in the worker's tally.
    pub(crate) failures: FailureCounts,
    pub(crate) alive: usize,
    /// Whether the interval lies in the measured part.
    pub(crate) measured: bool,
    /// Whether the worker's measured part is over.
    pub(crate) last: bool,
    /// The interval comes after the last one: responses to requests that were on their way then.
    pub(crate) late: bool,
    /// In a part of a run, once a second: the worker's state, and what it counted since it last handed counts over.
    pub(crate) counted: Option<Box<(Outcome, Tally)>>,
    /// In the last report: the CPU clocks of the server's processes when the worker's measured part began, and at its
    /// end. Only the worker knows both moments to the microsecond; reading a process's clock takes a fifth of one.
    pub(crate) server: Vec<(u32, u64, u64)>,
}

/// A worker's results, or its state while it runs, without what it counted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Requests of the measured part, for throughput. Open while it runs.
    pub(crate) window: WindowCount,
    /// Length of the measured part on this core, nanoseconds.
    pub(crate) elapsed: u64,
    /// CPU time of this thread over the measured part, nanoseconds.
    pub(crate) cpu: u64,
    /// When the measured part ended, nanoseconds of the monotonic clock.
    pub(crate) until: u64,
    /// Held connections that were up when the measured part ended.
    pub(crate) held: usize,
    /// The state of each server, in the order of the plan's origins.
    pub(crate) servers: Vec<ServerState>,
    pub(crate) stopped_early: bool,
    /// The run ended early because no server responded for too long.
    pub(crate) gave_up: bool,
    /// A script's first request: its first line, and its length in bytes.
    pub(crate) first_request: Option<(String, usize)>,
}

/// A worker's index, and its outcome.
pub(crate) type WorkerOutcome = (usize, Result<(Outcome, Tally), RunError>);
/// Where each worker sends its outcome, before it waits for questions to its part of a script.
pub(crate) type Outcomes = Sender<WorkerOutcome>;

/// A duration in nanoseconds; far beyond any run where it does not fit.
pub(crate) fn nanos(duration: Duration) -> u64 {
    duration.as_nanos().try_into().unwrap_or(u64::MAX / 4)
}
