//! Adds up the parts of a run of requests.

use std::time::{Duration, SystemTime};

use oroshi_stats::{Point as _, Sketch};

use super::{Delta, FirstFacts, Implausible, Measured, PartEnd, PartFate, PartProgress, Parts, SentPoint};
use crate::assemble::{Finished, assemble};
use crate::course::{Course, PointData, PointSeries, fewest};
use crate::first::FirstResponse;
use crate::follow::{Progress, Stage};
use crate::machine::{MachineRecord, OTHER_PROCESSES};
use crate::plan::{Plan, Watching};
use crate::record::{AgentRecord, AgentState, Record};
use crate::run::conclude;
use crate::script::ScriptError;
use crate::shared::{Began, Outcome};
use crate::tally::Tally;
use crate::watch::ServerUsage;

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
    began: Option<Began>,
    end: Option<Box<PartEnd>>,
}

/// The course does not wait for a part that is so far behind the others, nanoseconds.
const SILENT: u64 = 3_000_000_000;

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

    fn note_first(&self, facts: FirstFacts) {
        let FirstFacts { server, body_bytes, tls, location, complaint } = facts;
        // The first to know a value sets it.
        let _ = server.map(|server| self.first.server.set(server));
        let _ = body_bytes.map(|bytes| self.first.body_bytes.set(bytes));
        let _ = tls.map(|tls| self.first.tls.set(tls));
        let _ = location.map(|location| self.first.location.set(location));
        let _ = complaint.map(|complaint| self.first.complaint.set(complaint));
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

impl Parts for Whole {
    type Delta = Delta;
    type Record = Record;

    fn begin(&mut self) {
        self.started = SystemTime::now();
    }

    fn add(&mut self, index: usize, delta: Delta) -> Result<bool, Implausible> {
        if index >= self.parts.len() || !delta.is_plausible(self.plan.threads) {
            return Err(Implausible);
        }
        let is_last = delta.is_last();
        let Delta { points, tally, workers, first, began, journeys: counts, end } = delta;
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
        part.began = Some(began);
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
        Ok(is_last)
    }

    fn measured(&self) -> Measured<'_> {
        Measured { plan: &self.plan, after: self.plan.warmup, length: self.plan.duration }
    }

    fn watched(&mut self, server: Result<ServerUsage, String>) {
        self.watched = server;
    }

    fn is_halted(&self) -> bool {
        self.is_halted
    }

    fn has_ended(&self, index: usize) -> bool {
        self.parts.get(index).is_some_and(|part| part.end.is_some())
    }

    fn heard_until(&self, index: usize) -> u64 {
        self.parts.get(index).map_or(0, |part| part.until)
    }

    fn parts(&self) -> Vec<PartProgress> {
        let progress = |part: &PartState| PartProgress {
            done: part.completed,
            errors: part.errors,
            alive: part.alive.unwrap_or(0),
        };
        self.parts.iter().map(progress).collect()
    }

    fn progress(&self) -> Progress {
        let mut last = PointData::default();
        self.recent.iter().for_each(|(_, point)| last.absorb(point));
        let elapsed = Duration::from_nanos(self.parts.iter().map(|part| part.until).max().unwrap_or(0));
        // Parts report the measured part alone.
        let warms_up = elapsed.is_zero() && !self.plan.warmup.is_zero();
        let left = self.plan.duration.map(|duration| duration.saturating_sub(elapsed));
        Progress {
            stage: if warms_up { Stage::WarmUp } else { Stage::Measuring },
            elapsed,
            left: left.filter(|_| !warms_up),
            done: self.tally.answered,
            rate: last.requests as f64 / elapsed.as_secs_f64().clamp(0.1, 1.5),
            service: last.service,
            errors: self.tally.failures.errors(),
            failures: self.tally.failures,
            server_cpu: None,
            alive: self.parts.iter().filter_map(|part| part.alive).sum(),
        }
    }

    fn course(&self) -> Option<Course<'_>> {
        let newest = self.parts.iter().map(|part| part.until).max().unwrap_or(0);
        // A part that has ended has handed over everything. The course does not wait for a part that was lost.
        let awaited = self.parts.iter().filter(|part| part.end.is_none() && part.until + SILENT >= newest);
        Some(self.series.course(awaited.map(|part| part.until).min().unwrap_or(newest)))
    }

    fn finish(mut self, fates: &[PartFate], mut warnings: Vec<String>) -> Result<Option<Record>, ScriptError> {
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
            start_late_ns: self.began.map(|began| began.late),
            start_queued_ns: self.began.and_then(|began| began.queued),
        }
    }
}
