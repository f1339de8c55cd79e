//! A load on a hub that several processes share.
//!
//! Each process holds its share of the subscriptions with [`run_part`](super::run_part); the first one publishes, and
//! tells the others what it has published. Each hands over what it counted as [`Delta`]s. The coordinator adds them up
//! in a [`Whole`]. Stamps count the time from the agreed start of the run: machines share no clock, so a delay between
//! two of them is as exact as the agreement on that moment.

use std::time::{Duration, SystemTime};

use oroshi_stats::Sketch;
use serde::{Deserialize, Serialize};

use super::plan::Plan;
use super::published::Published;
use super::record::{Idle, Record};
use super::run::{Counted, Seen, Surroundings, assemble};
use super::shared::Shared;
use super::tally::Tally;
use crate::failure::FailureCounts;
use crate::follow::{Observer, Progress, Stage};
use crate::part::{Alone, Implausible, Measured, PartEnd, PartFate, PartProgress, Parts, machine_of};
use crate::record::{AgentRecord, AgentState};
use crate::script::ScriptError;
use crate::shared::Began;
use crate::watch::ServerUsage;

/// How often the cores of a part hand over their counts, and the part hands over a delta.
pub(super) const HAND_OVER: Duration = Duration::from_secs(1);

/// Leads one part of a run.
pub trait PartObserver: Observer {
    /// Called when all subscriptions were tried. Returns the moment to start, nanoseconds of this machine's monotonic
    /// clock, or 0 for now. `None` gives the run up. The call may block.
    fn ready(&mut self) -> Option<u64>;

    /// Tells the other parts what this one has published.
    fn publish(&mut self, published: &Sent);

    /// Returns what another part has published, once that is known.
    fn published(&mut self) -> Option<Sent>;

    /// Takes what was counted since the last call.
    fn delta(&mut self, delta: Delta);
}

/// The messages of the publishing part, for the others. Times are relative to the start of the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sent(pub(super) Published);

impl PartObserver for Alone<'_> {
    fn ready(&mut self) -> Option<u64> {
        Some(0)
    }

    fn publish(&mut self, _: &Sent) {}

    fn published(&mut self) -> Option<Sent> {
        None
    }

    fn delta(&mut self, _: Delta) {}
}

/// The counts of a part since its last delta, and its state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Delta {
    tally: Tally,
    /// Since the measured part began, nanoseconds.
    until: u64,
    /// Subscriptions that were opened, and that are up.
    opened: u64,
    alive: u64,
    /// Deliveries so far, of messages for all and for one.
    delivered: u64,
    end: Option<Box<End>>,
}

/// The facts that a part knows when it has ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct End {
    part: PartEnd,
    opening_s: f64,
    /// Length of its measured part, nanoseconds.
    elapsed: u64,
    cpu: Vec<u64>,
    publisher_cpu: u64,
    cut_short: bool,
    began: Began,
    /// The server's usage while subscriptions were opened, if the part has watched it.
    idle: Option<ServerUsage>,
    /// The published messages; only the publishing part has them.
    published: Option<Published>,
}

impl Delta {
    pub(super) fn so_far(tally: Tally, shared: &Shared, since: Duration) -> Self {
        let delivered = shared.sum(|live| &live.delivered) + shared.sum(|live| &live.delivered_to_one);
        Self {
            tally,
            until: since.as_nanos() as u64,
            opened: shared.sum(|live| &live.opened),
            alive: shared.alive(),
            delivered,
            end: None,
        }
    }

    pub(super) fn last(shared: &Shared, counted: &Counted, seen: &Seen, around: &Surroundings) -> Self {
        let mut last = Self::so_far(counted.tally.clone(), shared, Duration::from_nanos(counted.elapsed));
        last.opened = counted.opened;
        let published = shared.published.get().filter(|_| shared.publishes_here()).cloned();
        last.end = Some(Box::new(End {
            part: PartEnd {
                server: around.server.clone(),
                machine: seen.machine.clone(),
                cpu_cpus: seen.cpu_cpus,
                environment: around.environment.clone(),
                warnings: around.warnings.clone(),
            },
            opening_s: counted.opening_s,
            elapsed: counted.elapsed,
            cpu: counted.cpu.clone(),
            publisher_cpu: counted.publisher_cpu,
            cut_short: counted.cut_short,
            began: seen.began,
            idle: seen.idle_usage.clone(),
            published,
        }));
        last
    }

    /// Whether it is the part's last one.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.end.is_some()
    }

    fn is_plausible(&self, plan: &Plan) -> bool {
        /// A year, nanoseconds.
        const LONGEST: u64 = 31_536_000_000_000_000;
        let connections = plan.connect.connections as u64;
        self.tally.is_plausible()
            && self.opened <= connections
            && self.alive <= connections
            && self.until <= LONGEST
            && self.delivered <= 1 << 48
            && self.end.as_ref().is_none_or(|end| {
                end.elapsed <= LONGEST
                    && end.cpu.len() == plan.connect.threads
                    && end.cpu.iter().all(|cpu| *cpu <= LONGEST)
                    && end.published.as_ref().is_none_or(Published::is_plausible)
            })
    }
}

/// Adds up the parts of a run.
#[derive(Debug)]
pub struct Whole {
    plan: Plan,
    parts: Vec<PartState>,
    started: SystemTime,
    /// The deliveries at the last two looks, for the rate, by when, nanoseconds since the measured part began.
    rate: [(u64, u64); 2],
    /// The server, as the coordinator saw it.
    watched: Result<ServerUsage, String>,
}

/// The state of one part, as far as deltas tell.
#[derive(Debug, Default)]
struct PartState {
    tally: Tally,
    until: u64,
    opened: u64,
    alive: u64,
    delivered: u64,
    delay: Sketch,
    end: Option<Box<End>>,
}

impl Whole {
    /// Begins with nothing. `plan`: that of the whole; the part in its `connect` says how many parts there are.
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        let parts = plan.connect.part.map_or(1, |part| part.of);
        Self {
            parts: (0..parts).map(|_| PartState::default()).collect(),
            plan,
            started: SystemTime::now(),
            rate: [(0, 0); 2],
            watched: Err(String::new()),
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
        if index >= self.parts.len() || !delta.is_plausible(&self.plan) {
            return Err(Implausible);
        }
        let is_last = delta.is_last();
        let Delta { tally, until, opened, alive, delivered, end } = delta;
        let part = &mut self.parts[index];
        part.delay.record_all(&tally.flow.delay);
        part.tally.merge(&tally);
        (part.until, part.opened, part.alive, part.delivered) = (until, opened, alive, delivered);
        part.end = end.or(part.end.take());
        let newest = self.parts.iter().map(|part| part.until).max().unwrap_or(0);
        if newest > self.rate[1].0 + 900_000_000 {
            let delivered = self.parts.iter().map(|part| part.delivered).sum();
            self.rate = [self.rate[1], (newest, delivered)];
        }
        Ok(is_last)
    }

    fn measured(&self) -> Measured<'_> {
        Measured { plan: &self.plan.connect, after: self.plan.before_measuring(), length: self.plan.duration() }
    }

    fn watched(&mut self, server: Result<ServerUsage, String>) {
        self.watched = server;
    }

    fn has_ended(&self, index: usize) -> bool {
        self.parts.get(index).is_some_and(|part| part.end.is_some())
    }

    fn heard_until(&self, index: usize) -> u64 {
        self.parts.get(index).map_or(0, |part| part.until)
    }

    fn parts(&self) -> Vec<PartProgress> {
        let progress = |part: &PartState| PartProgress {
            done: part.delivered,
            errors: part.tally.failures.errors(),
            alive: part.alive as usize,
        };
        self.parts.iter().map(progress).collect()
    }

    fn progress(&self) -> Progress {
        let sum = |count: fn(&PartState) -> u64| self.parts.iter().map(count).sum::<u64>();
        let elapsed = Duration::from_nanos(self.parts.iter().map(|part| part.until).max().unwrap_or(0));
        let [(from, before), (to, after)] = self.rate;
        Progress {
            stage: Stage::Measuring,
            elapsed,
            left: self.plan.duration().map(|duration| duration.saturating_sub(elapsed)),
            done: sum(|part| part.delivered),
            rate: if to > from { after.saturating_sub(before) as f64 * 1e9 / (to - from) as f64 } else { 0.0 },
            service: Sketch::new(),
            errors: sum(|part| part.tally.failures.errors()),
            failures: self.parts.iter().fold(FailureCounts::default(), |mut all, part| {
                all.merge(&part.tally.failures);
                all
            }),
            server_cpu: None,
            alive: sum(|part| part.alive) as usize,
        }
    }

    fn finish(self, fates: &[PartFate], mut warnings: Vec<String>) -> Result<Option<Record>, ScriptError> {
        if self.parts.iter().all(|part| part.end.is_none() && part.until == 0) {
            return Ok(None);
        }
        let agents = self.parts.iter().zip(fates).map(|(part, fate)| part.record(fate)).collect();
        let ends = || self.parts.iter().filter_map(|part| part.end.as_deref());
        let commons: Vec<&PartEnd> = ends().map(|end| &end.part).collect();
        let machine = machine_of(&commons, &mut warnings);
        let server = self.watched.clone().ok().or_else(|| commons.iter().find_map(|end| end.server.clone().ok()));
        let unknown = commons.first().and_then(|end| end.server.clone().err());
        let server = server.ok_or(unknown.unwrap_or_else(|| "no agent that watched it came to its end".into()));
        let environment = commons.first().map(|end| end.environment.clone()).unwrap_or_default();
        let opened = self.parts.iter().map(|part| part.opened).sum();
        let idle = ends().find_map(|end| end.idle.as_ref()).filter(|_| opened > 0).map(|idle| Idle::of(idle, opened));
        let published = ends().find_map(|end| end.published.as_ref());
        if published.is_none() && self.plan.publishes() {
            warnings.push("the part that publishes was lost: nobody knows which messages did not come".to_owned());
        }
        let mut tally = Tally::default();
        for part in &self.parts {
            tally.merge(&part.tally);
            if part.end.is_none() {
                // It has compared nothing with what was published.
                tally.delivered += part.tally.flow.delay.len();
            }
        }
        let elapsed = self.parts.iter().map(PartState::elapsed).max().unwrap_or(0);
        let counted = Counted {
            tally,
            opened,
            opening_s: ends().map(|end| end.opening_s).fold(0.0, f64::max),
            elapsed,
            cpu: ends().flat_map(|end| end.cpu.iter().copied()).collect(),
            publisher_cpu: ends().map(|end| end.publisher_cpu).max().unwrap_or(0),
            cut_short: self.parts.iter().any(|part| part.end.as_ref().is_none_or(|end| end.cut_short)),
        };
        let surroundings = Surroundings { server, started: self.started, environment, warnings };
        let mut record = assemble(&self.plan, published, counted, machine, idle, surroundings);
        record.agents = agents;
        Ok(Some(record))
    }
}

impl PartState {
    fn elapsed(&self) -> u64 {
        self.end.as_ref().map_or(self.until, |end| end.elapsed)
    }

    fn record(&self, fate: &PartFate) -> AgentRecord {
        let elapsed = self.elapsed();
        let end = self.end.as_deref();
        AgentRecord {
            name: fate.name.clone(),
            state: match end {
                None => AgentState::Lost,
                Some(end) if end.cut_short => AgentState::Stopped,
                Some(_) => AgentState::Done,
            },
            elapsed_s: elapsed as f64 / 1e9,
            started: self.delivered + self.tally.lost,
            completed: self.delivered,
            failed: self.tally.lost,
            unsent: 0,
            errors: self.tally.failures.errors(),
            thread_cpu: end
                .map_or_else(Vec::new, |end| end.cpu.iter().map(|cpu| *cpu as f64 / elapsed.max(1) as f64).collect()),
            p99_ns: self.delay.quantile(0.99),
            lateness_p99_ns: None,
            clock_bound_ns: fate.clock_bound_ns,
            start_late_ns: end.map(|end| end.began.late),
            start_queued_ns: end.and_then(|end| end.began.queued),
        }
    }
}
