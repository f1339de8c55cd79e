//! A run that several processes share, on one machine or many.
//!
//! Each process carries out its [`Part`] with [`run_part`](crate::run_part), and hands over what it counted as
//! [`Delta`]s, about once a second. The coordinator adds them up in a [`Whole`], which makes the record. Histograms are
//! merged without loss. The shares of connections, requests and arrivals follow from the part alone, so processes need
//! no messages while requests flow.

mod whole;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use oroshi_stats::Point as _;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::course::{Course, PointData};
use crate::environment::Environment;
use crate::follow::{Observer, Progress};
use crate::machine::MachineRecord;
use crate::plan::Plan;
use crate::record::{AgentState, TlsRecord};
use crate::script::ScriptError;
use crate::shared::{Began, Outcome, Shared, TICK};
use crate::tally::Tally;
use crate::watch::ServerUsage;
pub use whole::Whole;
pub(crate) use whole::machine_of;

/// The part of a run that one of several processes has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Its number, from 0.
    pub index: usize,
    /// The number of parts.
    pub of: usize,
}

/// Leads one part of a run.
pub trait PartObserver: Observer {
    /// Called when all connections are open. Returns the moment to start, nanoseconds of this machine's monotonic
    /// clock, or 0 for now. `None` gives the run up. The call may block.
    fn ready(&mut self) -> Option<u64>;

    /// Takes what was counted since the last call.
    fn delta(&mut self, delta: Delta);
}

/// The observer of a run without other parts.
pub(crate) struct Alone<'o>(pub(crate) &'o mut dyn Observer);

impl PartObserver for Alone<'_> {
    fn ready(&mut self) -> Option<u64> {
        Some(0)
    }

    fn delta(&mut self, _: Delta) {}
}

impl Observer for Alone<'_> {
    fn progress(&mut self, progress: &Progress) {
        self.0.progress(progress);
    }
    fn course(&mut self, course: &Course<'_>) {
        self.0.course(course);
    }
    fn second(&mut self, histograms: &crate::SecondHistograms) {
        self.0.second(histograms);
    }
    fn requests(&mut self, times: &[crate::RequestTimes]) {
        self.0.requests(times);
    }
    fn cancelled(&mut self) -> bool {
        self.0.cancelled()
    }
    fn warning(&mut self, text: &str) {
        self.0.warning(text);
    }
}

/// The measured part of a run, as its plan says.
#[derive(Debug)]
pub struct Measured<'p> {
    /// The plan of the requests, or of the subscriptions.
    pub plan: &'p Plan,
    /// How long after the start it begins.
    pub after: Duration,
    /// Its length.
    pub length: Option<Duration>,
}

/// Adds up what the parts of a run hand over: [`Whole`], and [`push::Whole`](crate::push::Whole) for subscriptions.
pub trait Parts {
    /// What a part hands over.
    type Delta: DeserializeOwned;
    /// The result.
    type Record;

    /// The run begins now.
    fn begin(&mut self);

    /// Adds the next delta of part `index`; each must be added once. Returns whether it is the part's last.
    ///
    /// # Errors
    /// It cannot be a delta of this run; nothing is added then.
    fn add(&mut self, index: usize, delta: Self::Delta) -> Result<bool, Implausible>;

    /// Returns what is known of the measured part.
    fn measured(&self) -> Measured<'_>;

    /// Takes the server's usage as the coordinator saw it, which counts before what the parts saw.
    fn watched(&mut self, usage: Result<ServerUsage, String>);

    /// Whether a script of journeys wants the whole run to end.
    fn is_halted(&self) -> bool {
        false
    }

    /// Whether part `index` has handed over its last delta.
    fn has_ended(&self, index: usize) -> bool;

    /// How far part `index` was heard of: nanoseconds since the measured part began.
    fn heard_until(&self, index: usize) -> u64;

    /// Returns the progress of each part.
    fn parts(&self) -> Vec<PartProgress>;

    /// Returns the progress of the whole, as far as deltas tell.
    fn progress(&self) -> Progress;

    /// Returns the measured part so far, over time. `None` for subscriptions.
    fn course(&self) -> Option<Course<'_>> {
        None
    }

    /// Puts the record together. `fates` are in the order of the parts; `warnings` come first in the record.
    ///
    /// `None` if no part was heard of.
    ///
    /// # Errors
    /// A script of journeys failed after the load, in a way that leaves no result.
    fn finish(self, fates: &[PartFate], warnings: Vec<String>) -> Result<Option<Self::Record>, ScriptError>;
}

/// How the coordinator saw a part.
#[derive(Clone, Debug)]
pub struct PartFate {
    /// Its name.
    pub name: String,
    /// How it ended, as far as messages tell.
    pub state: AgentState,
    /// See [`AgentRecord::clock_bound_ns`](crate::record::AgentRecord::clock_bound_ns).
    pub clock_bound_ns: Option<u64>,
}

/// The progress of one part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartProgress {
    /// Responses, and errors.
    pub done: u64,
    /// See `done`.
    pub errors: u64,
    /// Connections that are up.
    pub alive: usize,
}

/// A part of a run failed to follow the protocol: its delta is not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the counts of a part of the run contradict themselves")]
pub struct Implausible;

/// What a part counted since its last delta, and its state. Times are relative to the start of the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Delta {
    points: Vec<SentPoint>,
    tally: Tally,
    /// By thread; `None` before it has handed anything over.
    workers: Vec<Option<Outcome>>,
    first: FirstFacts,
    began: Began,
    /// The counts of journeys, as they encode them.
    journeys: Option<Vec<u8>>,
    end: Option<Box<PartEnd>>,
}

/// A stretch of the time series.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SentPoint {
    /// When it ended, since the measured part began, and its length; nanoseconds.
    until: u64,
    length: u64,
    point: PointData,
}

impl SentPoint {
    /// Adds a point of one thread. It may be longer than the measured part so far, if the thread began before that.
    fn add(&mut self, until: u64, length: u64, point: &PointData) {
        let from = (self.until - self.length).min(until.saturating_sub(length));
        self.until = self.until.max(until);
        self.length = self.until - from;
        self.point.absorb(point);
    }
}

/// The first response that a part saw.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct FirstFacts {
    server: Option<Option<String>>,
    body_bytes: Option<u64>,
    tls: Option<TlsRecord>,
    location: Option<String>,
    complaint: Option<Vec<u8>>,
}

/// What a part knows when it has ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PartEnd {
    pub(crate) server: Result<ServerUsage, String>,
    pub(crate) machine: MachineRecord,
    /// CPUs' worth of time that the process used.
    pub(crate) cpu_cpus: f64,
    pub(crate) environment: Environment,
    pub(crate) warnings: Vec<String>,
}

impl Delta {
    /// Whether it is the part's last one.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.end.is_some()
    }

    /// Whether counts and times can be those of a run with so many threads per part.
    fn is_plausible(&self, threads: usize) -> bool {
        /// A year, nanoseconds.
        const LONGEST: u64 = 31_536_000_000_000_000;
        let outcomes = || self.workers.iter().flatten();
        self.tally.is_plausible()
            && self.workers.len() == threads
            && outcomes().all(|o| o.elapsed <= LONGEST && o.until <= LONGEST && o.cpu <= LONGEST)
            && outcomes().flat_map(|o| &o.servers).all(|s| s.unanswered.max(s.answered).max(s.refused_last) <= 1 << 48)
            && self.points.iter().all(|p| {
                p.until <= LONGEST
                    && p.length <= p.until
                    && p.point.requests.max(p.point.errors).max(p.point.bytes) <= 1 << 48
            })
    }
}

/// Collects what a part hands over.
pub(crate) struct Recorder {
    shared: Arc<Shared>,
    start: u64,
    points: BTreeMap<u64, SentPoint>,
    tally: Tally,
    workers: Vec<Option<Outcome>>,
    /// Workers that have handed counts over since the last delta.
    counted: usize,
    /// All that was handed over before.
    total: Tally,
}

impl Recorder {
    pub(crate) fn new(shared: &Arc<Shared>, start: u64) -> Self {
        Self {
            shared: Arc::clone(shared),
            start,
            points: BTreeMap::new(),
            tally: Tally::default(),
            workers: vec![None; shared.plan.threads],
            counted: 0,
            total: Tally::default(),
        }
    }

    /// Takes a point of one thread. Points of all threads in the same tick become one.
    pub(crate) fn point(&mut self, until: u64, length: u64, point: &PointData) {
        let tick = until.saturating_sub(1) / TICK.as_nanos() as u64;
        let new = SentPoint { until, length: 0, point: PointData::default() };
        self.points.entry(tick).or_insert(new).add(until, length, point);
    }

    /// Takes what a thread counted.
    pub(crate) fn count(&mut self, worker: usize, (outcome, tally): (Outcome, Tally)) {
        self.counted += 1;
        self.tally.merge(&tally);
        self.workers[worker] = Some(self.relative(outcome));
    }

    /// Returns a delta once all threads have handed counts over.
    pub(crate) fn take_when_due(&mut self) -> Option<Delta> {
        (self.counted >= self.workers.len()).then(|| self.take(None))
    }

    /// Returns the last delta, and the counts of the whole part.
    pub(crate) fn finish(mut self, outcomes: Vec<Outcome>, tally: Tally, end: PartEnd) -> (Delta, Tally) {
        self.tally.merge(&tally);
        self.workers = outcomes.into_iter().map(|outcome| Some(self.relative(outcome))).collect();
        let last = self.take(Some(Box::new(end)));
        (last, self.total)
    }

    fn take(&mut self, end: Option<Box<PartEnd>>) -> Delta {
        self.counted = 0;
        let tally = std::mem::take(&mut self.tally);
        self.total.merge(&tally);
        let journeys = self.shared.plan.journeys.as_ref().map(|journeys| journeys.take_counts());
        let first = &self.shared.first;
        Delta {
            points: std::mem::take(&mut self.points).into_values().collect(),
            tally,
            workers: self.workers.clone(),
            first: FirstFacts {
                server: first.server.get().cloned(),
                body_bytes: first.body_bytes.get().copied(),
                tls: first.tls.get().cloned(),
                location: first.location.get().cloned(),
                complaint: first.complaint.get().cloned(),
            },
            began: self.shared.began(),
            journeys,
            end,
        }
    }

    /// An outcome with times since the start.
    fn relative(&self, mut outcome: Outcome) -> Outcome {
        outcome.until = outcome.until.saturating_sub(self.start);
        for server in &mut outcome.servers {
            // 0 means that there was none.
            if server.last_response > 0 {
                server.last_response = server.last_response.saturating_sub(self.start).max(1);
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was longer than the measured part, and the process ended.
    #[test]
    fn points_of_threads_that_began_early_are_as_long_as_the_measured_part() {
        let mut sent = SentPoint { until: 90, length: 0, point: PointData::default() };
        for (until, length) in [(90, 100), (95, 20), (80, 10)] {
            sent.add(until, length, &PointData::default());
        }
        assert_eq!((sent.until, sent.length), (95, 95));
    }
}
