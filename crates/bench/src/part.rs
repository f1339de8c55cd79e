//! A run that several processes share, on one machine or many.
//!
//! Each process carries out its [`Part`] with [`run_part`](crate::run_part), and hands over what it counted as
//! [`Delta`]s, about once a second. The coordinator adds them up in a [`Whole`], which makes the record. Histograms are
//! merged without loss. The shares of connections, requests and arrivals follow from the part alone, so processes need
//! no messages while requests flow.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use oroshi_stats::{Point as _, Sketch};
use serde::{Deserialize, Serialize};

use crate::assemble::{Finished, assemble};
use crate::environment::Environment;
use crate::first::FirstResponse;
use crate::follow::{Observer, PointData, PointSeries, Progress, Stage, fewest};
use crate::machine::{MachineRecord, OTHER_PROCESSES};
use crate::plan::{Plan, Watching};
use crate::record::{AgentRecord, AgentState, Record, TlsRecord};
use crate::run::conclude;
use crate::script::ScriptError;
use crate::shared::{Outcome, Shared, TICK};
use crate::tally::Tally;
use crate::watch::ServerUsage;

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
    /// Called when all connections are open. Returns the moment to start, nanoseconds of this machine's monotonic clock,
    /// or 0 for now. `None` gives the run up. The call may block.
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

/// What a part counted since its last delta, and its state. Times are relative to the start of the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Delta {
    points: Vec<SentPoint>,
    tally: Tally,
    /// By thread; `None` before it has handed anything over.
    workers: Vec<Option<Outcome>>,
    first: FirstFacts,
    start_late_ns: u64,
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
            start_late_ns: self.shared.late.load(std::sync::atomic::Ordering::Relaxed),
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

/// A part of a run failed to follow the protocol: its delta is not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the counts of a part of the run contradict themselves")]
pub struct Implausible;

/// Adds up the parts of a run.
pub struct Whole {
    plan: Plan,
    parts: Vec<PartState>,
    tally: Tally,
    series: PointSeries,
    fewest_alive: Option<usize>,
    first: FirstResponse,
    started: SystemTime,
    recent: Vec<(u64, PointData)>,
    /// A script of journeys wants the run to end.
    is_halted: bool,
    /// The server, as the coordinator saw it.
    watched: Result<ServerUsage, String>,
}

impl std::fmt::Debug for Whole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Whole").field("parts", &self.parts.len()).finish_non_exhaustive()
    }
}

/// What is known of one part.
#[derive(Default)]
struct PartState {
    workers: Vec<Outcome>,
    started: u64,
    completed: u64,
    failed: u64,
    unsent: u64,
    cut_off: u64,
    errors: u64,
    service: Sketch,
    lateness: Sketch,
    alive: Option<usize>,
    until: u64,
    start_late_ns: Option<u64>,
    end: Option<Box<PartEnd>>,
}

/// How the coordinator saw a part.
#[derive(Clone, Debug)]
pub struct PartFate {
    /// Its name.
    pub name: String,
    /// How it ended, as far as messages tell.
    pub state: AgentState,
    /// See [`AgentRecord::clock_bound_ns`].
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

impl Whole {
    /// Begins with nothing. `plan`: that of the whole; its [`part`](Plan::part) says how many parts there are.
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        let parts = plan.part.map_or(1, |part| part.of);
        Self {
            parts: (0..parts).map(|_| PartState::default()).collect(),
            plan,
            tally: Tally::default(),
            series: PointSeries::new(),
            fewest_alive: None,
            first: FirstResponse::default(),
            started: SystemTime::now(),
            recent: Vec::new(),
            is_halted: false,
            watched: Err(String::new()),
        }
    }

    /// The run begins now.
    pub fn begin(&mut self) {
        self.started = SystemTime::now();
    }

    /// Adds a delta of part `index`. Each must be added once.
    ///
    /// # Errors
    /// When the delta cannot be that of a run; nothing is added then.
    pub fn add(&mut self, index: usize, delta: Delta) -> Result<(), Implausible> {
        if index >= self.parts.len() || !delta.is_plausible(self.plan.threads) {
            return Err(Implausible);
        }
        let Delta { points, tally, workers, first, start_late_ns, journeys: counts, end } = delta;
        match (&self.plan.journeys, counts) {
            (Some(journeys), Some(counts)) => self.is_halted |= journeys.absorb(&counts)?,
            (None, None) => {}
            _ => return Err(Implausible),
        }
        self.tally.merge(&tally);
        self.note_first(first);
        let part = &mut self.parts[index];
        part.started += tally.started;
        part.completed += tally.completed;
        part.failed += tally.failed;
        part.unsent += tally.unsent;
        part.cut_off += tally.cut_off;
        part.errors += tally.failures.errors();
        part.lateness.record_all(&tally.clocks.lateness);
        part.workers = workers.into_iter().flatten().collect();
        part.start_late_ns = Some(start_late_ns);
        part.end = end.or(part.end.take());
        for SentPoint { until, length, mut point } in points {
            let part = &mut self.parts[index];
            part.until = part.until.max(until);
            part.service.merge(&point.service);
            part.alive = point.alive.or(part.alive);
            // The sum means nothing until each part was heard of.
            point.alive = self.parts.iter().map(|part| part.alive).sum();
            self.fewest_alive = fewest(self.fewest_alive, point.alive);
            self.series.spread(until, length, &point);
            self.recent.push((until, point));
        }
        let newest = self.recent.iter().map(|(until, _)| *until).max().unwrap_or(0);
        self.recent.retain(|(until, _)| until + 1_500_000_000 > newest);
        Ok(())
    }

    /// Takes what the coordinator saw of the server, which counts before what the parts saw.
    pub fn watched(&mut self, server: Result<ServerUsage, String>) {
        self.watched = server;
    }

    fn note_first(&self, facts: FirstFacts) {
        let FirstFacts { server, body_bytes, tls, location, complaint } = facts;
        // The first to know a value sets it.
        let _ = server.map(|server| self.first.server.set(server));
        let _ = body_bytes.map(|bytes| self.first.body_bytes.set(bytes));
        let _ = tls.map(|tls| self.first.tls.set(tls));
        let _ = location.map(|location| self.first.location.set(location));
        let _ = complaint.map(|complaint| self.first.complaint.set(complaint));
    }

    /// Whether part `index` has handed over its last delta.
    #[must_use]
    pub fn has_ended(&self, index: usize) -> bool {
        self.parts.get(index).is_some_and(|part| part.end.is_some())
    }

    /// Whether a script of journeys wants the whole run to end.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        self.is_halted
    }

    /// Returns the plan, how long after the start the measured part begins, and its length.
    #[must_use]
    pub fn measured(&self) -> (&Plan, Duration, Option<Duration>) {
        (&self.plan, self.plan.warmup, self.plan.duration)
    }

    /// How far part `index` was heard of: nanoseconds since the measured part began.
    #[must_use]
    pub fn heard_until(&self, index: usize) -> u64 {
        self.parts.get(index).map_or(0, |part| part.until)
    }

    /// Returns the progress of each part.
    #[must_use]
    pub fn parts(&self) -> Vec<PartProgress> {
        let progress = |part: &PartState| PartProgress {
            done: part.completed,
            errors: part.errors,
            alive: part.alive.unwrap_or(0),
        };
        self.parts.iter().map(progress).collect()
    }

    /// Returns the progress of the whole, as far as deltas tell.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let mut last = PointData::default();
        self.recent.iter().for_each(|(_, point)| last.absorb(point));
        let elapsed = Duration::from_nanos(self.parts.iter().map(|part| part.until).max().unwrap_or(0));
        Progress {
            stage: Stage::Measuring,
            elapsed,
            left: self.plan.duration.map(|duration| duration.saturating_sub(elapsed)),
            done: self.tally.answered,
            rate: last.requests as f64 / elapsed.as_secs_f64().clamp(0.1, 1.5),
            p50_ns: last.service.quantile(0.5),
            p99_ns: last.service.quantile(0.99),
            errors: self.tally.failures.errors(),
            alive: self.parts.iter().filter_map(|part| part.alive).sum(),
        }
    }

    /// Puts the record together. `fates` are in the order of the parts; `warnings` come first in the record.
    ///
    /// `None` if no part was heard of.
    ///
    /// # Errors
    /// A script of journeys failed after the load, in a way that leaves no result.
    pub fn finish(mut self, fates: &[PartFate], mut warnings: Vec<String>) -> Result<Option<Record>, ScriptError> {
        let outcomes: Vec<Outcome> = self.parts.iter_mut().flat_map(PartState::outcomes).collect();
        if outcomes.is_empty() {
            return Ok(None);
        }
        for part in &mut self.parts {
            if part.end.is_none() {
                let in_flight = part.started.saturating_sub(part.completed + part.failed + part.cut_off + part.unsent);
                self.tally.cut_off += in_flight;
            }
        }
        let ended_by_time = self.ended_by_time();
        warnings.extend(ended_by_time.clone());
        let ends: Vec<&PartEnd> = self.parts.iter().filter_map(|part| part.end.as_deref()).collect();
        let machine = machine_of(&ends, &mut warnings);
        let (server, watched_by) = self.server(fates);
        let finished = Finished {
            server,
            machine,
            environment: ends.first().map(|end| end.environment.clone()).unwrap_or_default(),
            outcomes,
            tally: self.tally,
            series: self.series.record(),
            fewest_alive: self.fewest_alive,
            started: self.started,
            warnings,
        };
        let mut record = assemble(&self.plan, &self.first, finished);
        record.cut_short |= ended_by_time.is_some() || self.parts.iter().any(|part| part.end.is_none());
        record.server_watched_by = record.server.is_some().then_some(watched_by).flatten();
        record.agents = self.parts.iter().zip(fates).map(|(part, fate)| part.record(fate)).collect();
        conclude(&self.plan, &mut record)?;
        Ok(Some(record))
    }

    /// Says that parts ended before all requests were sent, though their plan has no end by time.
    fn ended_by_time(&self) -> Option<String> {
        let wanted = self.plan.requests.filter(|_| self.plan.duration.is_none())?;
        let stopped = |part: &PartState| part.end.is_none() || part.workers.iter().any(|worker| worker.stopped_early);
        let (started, unknown) = (self.tally.started, self.parts.iter().any(stopped));
        (started < wanted && !unknown).then(|| {
            format!("only {started} of {wanted} requests were sent: an agent ended its part at its --max-duration")
        })
    }

    /// The server's usage, and who saw it: the coordinator, or else the first agent on the server's machine.
    fn server(&self, fates: &[PartFate]) -> (Result<ServerUsage, String>, Option<String>) {
        if self.parts.iter().any(|part| part.end.is_none()) {
            return (Err("an agent was lost, and nobody knows its last requests".to_owned()), None);
        }
        if self.plan.watch == Watching::None {
            return (Err("not watched (--watch none)".to_owned()), None);
        }
        if let Ok(usage) = &self.watched {
            return (Ok(usage.clone()), Some("coordinator".to_owned()));
        }
        let end = |(part, fate): (&PartState, &PartFate)| Some((part.end.as_ref()?.server.clone(), fate.name.clone()));
        let seen: Vec<_> = self.parts.iter().zip(fates).filter_map(end).collect();
        match seen.iter().find(|(server, _)| server.is_ok()) {
            Some((server, name)) => (server.clone(), Some(format!("agent {name}"))),
            None => (seen.first().map_or_else(|| Err("nothing to watch".to_owned()), |first| first.0.clone()), None),
        }
    }
}

/// The machines' state as one. Agents on the same machine are no disturbance to each other.
pub(crate) fn machine_of(ends: &[&PartEnd], warnings: &mut Vec<String>) -> MachineRecord {
    if let [only] = ends {
        warnings.extend(only.warnings.iter().cloned());
        return only.machine.clone();
    }
    let mut all = MachineRecord::default();
    let most = |one: Option<f64>, other: Option<f64>| one.into_iter().chain(other).reduce(f64::max);
    for end in ends {
        let neighbours = ends.iter().filter(|other| other.is_on_the_machine_of(end)).map(|other| other.cpu_cpus);
        let others = end.machine.others_cpus.map(|cpus| (cpus - neighbours.sum::<f64>() + end.cpu_cpus).max(0.0));
        all.cpus = all.cpus.max(end.machine.cpus);
        all.busy_share = most(all.busy_share, end.machine.busy_share);
        all.steal_share = most(all.steal_share, end.machine.steal_share);
        all.others_cpus = most(all.others_cpus, others);
        for why in &end.machine.why {
            let is_neighbour =
                why == OTHER_PROCESSES && others.is_some_and(|cpus| cpus < crate::machine::OTHERS_WORTH_A_WARNING);
            if !is_neighbour && !all.why.contains(why) {
                all.disturb(why);
            }
        }
        let told = end.warnings.iter().filter(|text| {
            all.why.iter().any(|why| why == OTHER_PROCESSES) || !text.starts_with("other processes used")
        });
        for text in told {
            if !warnings.contains(text) {
                warnings.push(text.clone());
            }
        }
    }
    all
}

impl PartEnd {
    fn is_on_the_machine_of(&self, other: &Self) -> bool {
        let key = |end: &Self| (end.environment.boot_id.clone(), end.environment.kernel.clone());
        key(self) == key(other)
    }
}

impl PartState {
    /// The outcomes of its threads. Those of a part that has not ended are cut off where it was last heard of.
    fn outcomes(&mut self) -> Vec<Outcome> {
        let mut outcomes = self.workers.clone();
        if self.end.is_none() {
            for outcome in &mut outcomes {
                outcome.window = outcome.window.closed_after(outcome.elapsed);
                // Nobody knows how its servers were when it was lost.
                outcome.servers.clear();
            }
        }
        outcomes
    }

    fn record(&self, fate: &PartFate) -> AgentRecord {
        let elapsed = self.workers.iter().map(|outcome| outcome.elapsed).max().unwrap_or(0);
        let share = |outcome: &Outcome| match outcome.elapsed {
            0 => 0.0,
            elapsed => outcome.cpu as f64 / elapsed as f64,
        };
        let stopped = self.end.is_some() && self.workers.iter().any(|outcome| outcome.stopped_early);
        AgentRecord {
            name: fate.name.clone(),
            state: match (&self.end, fate.state) {
                (Some(_), _) if stopped => AgentState::Stopped,
                (Some(_), _) => AgentState::Done,
                (None, _) => AgentState::Lost,
            },
            elapsed_s: elapsed as f64 / 1e9,
            started: self.started,
            completed: self.completed,
            failed: self.failed,
            unsent: self.unsent,
            errors: self.errors,
            thread_cpu: self.workers.iter().map(share).collect(),
            p99_ns: self.service.quantile(0.99),
            lateness_p99_ns: self.lateness.quantile(0.99),
            clock_bound_ns: fate.clock_bound_ns,
            start_late_ns: self.start_late_ns,
        }
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
