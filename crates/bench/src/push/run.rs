//! A run from beginning to end: subscribe, publish, wait for the last message, put the record together.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use oroshi_net::{Peer, Threads, monotonic_ns};
use oroshi_stats::Sketch;
use tokio::sync::mpsc;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::error::TryRecvError;

use super::core::{self, Outcome};
use super::grade::grade;
use super::part::{Delta, HAND_OVER, PartObserver, Sent};
use super::phase::Phase;
use super::plan::{Plan, Publication};
use super::publish;
use super::published::Published;
use super::record::{
    Deliveries, DeliveriesToOne, Generator, Idle, PlanRecord, PublishCounts, Record, RecordParts, SCHEMA, Subscriptions,
};
use super::shared::Shared;
use super::tally::Tally;
use crate::environment::Environment;
use crate::error::RunError;
use crate::failure::FailureCounts;
use crate::follow::{Observer, Progress, Stage};
use crate::grade::{Bottleneck, Grade};
use crate::machine::{GENERATOR_BOUND, Machine};
use crate::part::Alone;
use crate::plan::Watching;
use crate::prepare::{Prepared, find, prepare, thread_options, usage_of};
use crate::record::{MachineRecord, unix_seconds};
use crate::shared::{Began, Punctuality};
use crate::watch::{Clocks, ServerUsage, Watch};

/// How often the counters of the cores are read.
const LOOK: Duration = Duration::from_millis(5);
/// How often the observer is called, and the server's processes are sampled.
const TELL: Duration = Duration::from_millis(100);
const SAMPLE: Duration = Duration::from_millis(250);

/// Carries out a plan.
///
/// # Errors
/// When the run cannot begin: a name, a port, a socket, a limit. Once it has begun, the record has whatever happens.
pub fn run(plan: Plan, observer: &mut dyn Observer) -> Result<Record, RunError> {
    carry_out(plan, &mut Alone(observer))
}

/// Carries out a part of a plan ([`Plan::connect`] has it), as one of several processes. The first part publishes.
///
/// # Errors
/// As [`run`].
pub fn run_part(plan: Plan, observer: &mut dyn PartObserver) -> Result<Record, RunError> {
    carry_out(plan, observer)
}

fn carry_out(plan: Plan, observer: &mut dyn PartObserver) -> Result<Record, RunError> {
    let publications = [&plan.publish, &plan.publish_to];
    let publishers: usize = publications.iter().filter_map(|p| p.as_ref()).map(|p| p.plan.connections).sum();
    let threads = plan.connect.threads + 1;
    let started = SystemTime::now();
    let prepared = prepare(&plan.connect, plan.connect.connections + publishers, threads, observer)?;
    let Prepared { environment, mut warnings, mut peers, server: mut watch } = prepared;
    let publish_peers = peers_of(plan.publish.as_ref(), observer)?;
    let publish_to_peers = peers_of(plan.publish_to.as_ref(), observer)?;
    let shared = Arc::new(Shared::new(plan, peers.swap_remove(0), publish_peers, publish_to_peers));
    if let Ok(watch) = &mut watch {
        watch.begin();
    }
    let (sender, published) = mpsc::unbounded_channel();
    let running = {
        let shared = Arc::clone(&shared);
        Threads::start(&thread_options(&shared.plan.connect, threads), move |core| {
            let (shared, sender) = (Arc::clone(&shared), sender.clone());
            async move {
                if core.index + 1 < core.count {
                    return Some(core::work(shared, core.index).await);
                }
                publish::work(shared, sender).await;
                None
            }
        })?
    };
    let result = Coordinator::new(&shared, published, observer).coordinate(watch.as_mut().ok());
    // The threads end, whether that succeeded or not.
    shared.phase.send_replace(Phase::Over);
    let outcomes: Vec<Outcome> = running.join()?.into_iter().flatten().collect();
    let mut seen = result?;
    warnings.append(&mut seen.warnings);
    let server = usage_of(watch, seen.server.take());
    let surroundings = Surroundings { server, started, environment, warnings };
    let mut counted = Counted::of(&shared, &outcomes, &seen);
    if shared.plan.connect.part.is_some() {
        observer.delta(Delta::last(&shared, &counted, &seen, &surroundings));
        counted.tally.merge(&seen.handed);
    }
    let published = shared.published.get();
    Ok(assemble(&shared.plan, published, counted, seen.machine, seen.idle, surroundings))
}

/// The addresses of a publication, each connected to once: a hub that is not there is better known before the run.
fn peers_of(publication: Option<&Publication>, observer: &mut dyn PartObserver) -> Result<Vec<Peer>, RunError> {
    let Some(publication) = publication else { return Ok(Vec::new()) };
    let plan = crate::Plan { watch: Watching::None, ..publication.plan.clone() };
    Ok(find(&plan, observer)?.0.swap_remove(0))
}

/// Leads the threads through a run.
struct Coordinator<'a> {
    shared: &'a Shared,
    /// Messages published in each part of the run.
    published: UnboundedReceiver<Published>,
    observer: &'a mut dyn PartObserver,
    /// When the current part began.
    begun: Instant,
    /// The run ended because no subscription was left.
    gave_up: bool,
    /// When the observer was called last, and the deliveries until then.
    told: Option<(Instant, u64)>,
    sampled: Instant,
    /// In a part of a run: when it handed over what it has counted, and all that it has handed over.
    handed: (Instant, Tally),
}

/// The coordinator's observations of a run.
pub(super) struct Seen {
    /// Subscriptions that were opened, and how long that took, seconds.
    pub(super) opened: u64,
    pub(super) opening_s: f64,
    /// The server's usage while they were opened.
    pub(super) idle_usage: Option<ServerUsage>,
    pub(super) idle: Option<Idle>,
    /// When the measured part began, and its publishing ended, on the monotonic clock.
    pub(super) begun: u64,
    pub(super) published_until: u64,
    pub(super) publisher_cpu: u64,
    server: Option<ServerUsage>,
    pub(super) machine: MachineRecord,
    /// CPUs' worth of time that the process used.
    pub(super) cpu_cpus: f64,
    warnings: Vec<String>,
    pub(super) cut_short: bool,
    /// How it began, and what it has handed over: in a part of a run.
    pub(super) began: Began,
    pub(super) handed: Tally,
}

impl<'a> Coordinator<'a> {
    fn new(shared: &'a Shared, published: UnboundedReceiver<Published>, observer: &'a mut dyn PartObserver) -> Self {
        let (now, handed) = (Instant::now(), (Instant::now(), Tally::default()));
        Self { shared, published, observer, begun: now, gave_up: false, told: None, sampled: now, handed }
    }

    fn coordinate(&mut self, mut watch: Option<&mut Watch>) -> Result<Seen, RunError> {
        let shared = self.shared;
        let plan = &shared.plan;
        let wanted = plan.own_connections();
        self.wait(None, |shared| shared.sum(|live| &live.tried) >= wanted);
        if shared.is_stopped() {
            return Err(RunError::Cancelled);
        }
        let opening = self.begun.elapsed();
        let opened = shared.close_opening();
        let idle_usage = watch.as_mut().and_then(|watch| watch.finish(opening, &Clocks::default()));
        let idle = idle_usage.as_ref().filter(|_| opened > 0).map(|usage| Idle::of(usage, opened));
        let mut timetable = self.agree()?;

        if !plan.connect.warmup.is_zero() && plan.publishes() {
            let published = self.publish(Phase::WarmUp, watch.as_deref_mut());
            let most = published.most(shared.alive());
            self.await_messages(|shared| shared.sum(|live| &live.warm), most, watch.as_deref_mut());
            if shared.is_stopped() && !self.gave_up {
                return Err(RunError::EndedInWarmUp);
            }
        }
        if let Some(timetable) = &timetable {
            self.sleep_until(timetable.counting);
        }
        shared.phase.send_replace(Phase::Counting);
        self.wait(watch.as_deref_mut(), |shared| shared.live.iter().all(|live| live.counting.load(Ordering::Relaxed)));
        if let Some(timetable) = &mut timetable {
            let punctuality = Punctuality::watch();
            self.sleep_until(timetable.measuring);
            timetable.began = timetable.began.later(punctuality.began(timetable.measuring));
        }
        let machine = Machine::begin(std::slice::from_ref(&shared.peers), watch.as_deref_mut());
        let begun = monotonic_ns();
        let published = self.publish(Phase::Measuring, watch.as_deref_mut());
        if plan.connect.part.is_some() && shared.publishes_here() && !shared.is_stopped() {
            let ended = shared.since_epoch(published.ended);
            self.observer.publish(&Sent(Published { ended, ..published.clone() }));
        }
        if plan.publishes() {
            let came = |shared: &Shared| {
                shared.sum(|live| &live.delivered) - shared.sum(|live| &live.delivered_on_ended)
                    + shared.sum(|live| &live.delivered_to_one)
            };
            let most = self.most(&published);
            self.await_messages(came, most, watch.as_deref_mut());
        }
        let used = machine.finish(watch, &Clocks::default());
        let (published_until, publisher_cpu) = (published.ended, published.cpu);
        // A part that was not told what was published knows only the gaps in what came.
        if shared.publishes_here() || !shared.is_stopped() {
            let _ = shared.published.set(published);
        }
        let mut warnings = used.warnings;
        if self.gave_up {
            warnings.push("ended early: there was no subscription left to which a message could come".into());
        }
        Ok(Seen {
            opened,
            opening_s: opening.as_secs_f64(),
            idle_usage,
            idle,
            begun,
            published_until,
            publisher_cpu,
            server: used.server,
            cpu_cpus: used.cpu_cpus,
            machine: used.state,
            warnings,
            cut_short: shared.is_stopped(),
            began: timetable.map(|timetable| timetable.began).unwrap_or_default(),
            handed: std::mem::take(&mut self.handed.1),
        })
    }

    /// In a part of a run, agrees with the others on the moments of the run.
    fn agree(&mut self) -> Result<Option<Timetable>, RunError> {
        let plan = &self.shared.plan;
        if plan.connect.part.is_none() {
            return Ok(None);
        }
        let Some(start) = self.observer.ready() else {
            self.shared.stop();
            return Err(RunError::Cancelled);
        };
        let start = if start == 0 { monotonic_ns() } else { start };
        self.shared.begin_epoch(start);
        let punctuality = Punctuality::watch();
        self.sleep_until(start);
        let began = punctuality.began(start);
        let after = |length: Duration| start + length.as_nanos() as u64;
        let (counting, measuring) = (after(plan.before_counting()), after(plan.before_measuring()));
        Ok(Some(Timetable { counting, measuring, began }))
    }

    /// Sleeps until this moment of the monotonic clock.
    fn sleep_until(&mut self, moment: u64) {
        while let Some(left) = moment.checked_sub(monotonic_ns()).filter(|left| *left > 0) {
            if self.shared.is_stopped() {
                return;
            }
            if left > 2 * LOOK.as_nanos() as u64 {
                self.look(None);
            } else {
                std::thread::sleep(Duration::from_nanos(left));
            }
        }
    }

    /// The most messages that can come to this process.
    fn most(&self, published: &Published) -> u64 {
        let (shared, alive) = (self.shared, self.shared.alive());
        let Some(part) = shared.plan.connect.part else { return published.most(alive) };
        let (_, threads) = shared.plan.connect.position(0);
        published.most_of(alive, shared.opened(), |number| number as usize % threads % part.of == part.index)
    }

    /// Starts the publishers, and waits until they are done.
    fn publish(&mut self, phase: Phase, mut watch: Option<&mut Watch>) -> Published {
        self.begun = Instant::now();
        self.shared.phase.send_replace(phase);
        loop {
            if self.shared.alive() == 0 && !self.shared.is_stopped() {
                self.shared.stop();
                self.gave_up = true;
            }
            if !self.shared.publishes_here() {
                // Of the warm-up no part is told.
                if phase == Phase::WarmUp || self.shared.is_stopped() {
                    return Published::default();
                }
                if let Some(Sent(published)) = self.observer.published().filter(|sent| sent.0.is_plausible()) {
                    let ended = self.shared.at_epoch(published.ended);
                    return Published { cpu: 0, ended, ..published };
                }
                self.look(watch.as_deref_mut());
                continue;
            }
            match self.published.try_recv() {
                Ok(published) => return published,
                // The publishers' thread has panicked, which the join reports.
                Err(TryRecvError::Disconnected) => return Published::default(),
                Err(TryRecvError::Empty) => self.look(watch.as_deref_mut()),
            }
        }
    }

    /// Waits until `most` messages came, none came for as long as the timeout, or the user ends the run.
    fn await_messages(&mut self, came: impl Fn(&Shared) -> u64, most: u64, mut watch: Option<&mut Watch>) {
        let (mut last, mut since) = (0, Instant::now());
        loop {
            let now = came(self.shared);
            if now != last {
                (last, since) = (now, Instant::now());
            }
            if now >= most || since.elapsed() >= self.shared.plan.connect.timeout || self.shared.is_stopped() {
                return;
            }
            self.look(watch.as_deref_mut());
        }
    }

    fn wait(&mut self, mut watch: Option<&mut Watch>, reached: impl Fn(&Shared) -> bool) {
        while !reached(self.shared) && !self.shared.is_stopped() {
            self.look(watch.as_deref_mut());
        }
    }

    /// Sleeps for a moment; samples the server's processes and calls the observer when that is due.
    fn look(&mut self, watch: Option<&mut Watch>) {
        std::thread::sleep(LOOK);
        let now = Instant::now();
        if let Some(watch) = watch
            && now - self.sampled >= SAMPLE
        {
            self.sampled = now;
            watch.sample(self.begun.elapsed());
        }
        let last = self.told.map(|told| told.0);
        if last.is_some_and(|last| now - last < TELL) {
            return;
        }
        let shared = self.shared;
        let delivered = shared.sum(|live| &live.delivered);
        let rate =
            self.told.map_or(0.0, |(at, before)| delivered.saturating_sub(before) as f64 / (now - at).as_secs_f64());
        self.told = Some((now, delivered));
        let measuring = *shared.phase.borrow() == Phase::Measuring;
        let length = shared.plan.duration().filter(|_| measuring);
        self.observer.progress(&Progress {
            stage: if measuring { Stage::Measuring } else { Stage::WarmUp },
            elapsed: self.begun.elapsed(),
            left: length.map(|length| length.saturating_sub(self.begun.elapsed())),
            done: delivered,
            rate,
            service: Sketch::new(),
            errors: shared.sum(|live| &live.tried) - shared.sum(|live| &live.opened),
            failures: FailureCounts::default(),
            server_cpu: None,
            alive: shared.alive() as usize,
        });
        if self.observer.cancelled() {
            shared.stop();
        }
        if measuring && shared.plan.connect.part.is_some() && now - self.handed.0 >= HAND_OVER {
            self.handed.0 = now;
            let counted = shared.take_handed();
            self.handed.1.merge(&counted);
            self.observer.delta(Delta::so_far(counted, shared, self.begun.elapsed()));
        }
    }
}

/// The moments of a part of a run, nanoseconds of the monotonic clock.
struct Timetable {
    /// When counting begins, and publishing a moment later.
    counting: u64,
    measuring: u64,
    /// How late the part was.
    began: Began,
}

impl Idle {
    pub(super) fn of(usage: &ServerUsage, opened: u64) -> Self {
        let each = |total: f64| total / opened as f64;
        Self {
            rss_before_bytes: usage.rss_begin_bytes,
            rss_after_bytes: usage.rss_end_bytes,
            rss_bytes_per_subscription: each(usage.rss_end_bytes as f64 - usage.rss_begin_bytes as f64),
            cpu_us_per_subscription: each(usage.cpu_seconds * 1e6),
        }
    }
}

/// The run seen from outside its threads.
pub(super) struct Surroundings {
    /// The server's usage, or why it is not known.
    pub(super) server: Result<ServerUsage, String>,
    pub(super) started: SystemTime,
    pub(super) environment: Environment,
    pub(super) warnings: Vec<String>,
}

/// The counts of the threads of a run.
pub(super) struct Counted {
    pub(super) tally: Tally,
    pub(super) opened: u64,
    pub(super) opening_s: f64,
    /// Length of the measured part, nanoseconds.
    pub(super) elapsed: u64,
    /// CPU time of each thread that holds subscriptions, and of the publishers' thread, nanoseconds.
    pub(super) cpu: Vec<u64>,
    pub(super) publisher_cpu: u64,
    pub(super) cut_short: bool,
}

impl Counted {
    fn of(shared: &Shared, outcomes: &[Outcome], seen: &Seen) -> Self {
        let mut tally = shared.take_handed();
        outcomes.iter().for_each(|outcome| tally.merge(&outcome.tally));
        let last = tally.flow.last.max(seen.handed.flow.last);
        Self {
            tally,
            opened: seen.opened,
            opening_s: seen.opening_s,
            elapsed: seen.published_until.max(last).saturating_sub(seen.begun),
            cpu: outcomes.iter().map(|outcome| outcome.cpu).collect(),
            publisher_cpu: seen.publisher_cpu,
            cut_short: seen.cut_short,
        }
    }
}

pub(super) fn assemble(
    plan: &Plan,
    published: Option<&Published>,
    counted: Counted,
    machine: MachineRecord,
    idle: Option<Idle>,
    surroundings: Surroundings,
) -> Record {
    let Counted { tally, opened, opening_s, elapsed, cpu, publisher_cpu, cut_short } = counted;
    let Surroundings { server, started, environment, warnings } = surroundings;
    let elapsed_s = elapsed as f64 / 1e9;
    let thread_cpu = cpu.iter().map(|cpu| *cpu as f64 / elapsed.max(1) as f64).collect();
    let parts = RecordParts { tally, opened, opening_s, elapsed_s, thread_cpu };
    let nothing = Published::default();
    let published = published.unwrap_or(&nothing);
    let to_all = plan.publish.is_some().then_some(&published.to_all);
    let to_one = plan.publish_to.is_some().then_some(&published.to_one);
    let (server, server_unknown) = match server {
        Ok(usage) => (Some(usage), None),
        Err(why) => (None, Some(why)),
    };
    let mut record = Record {
        schema: SCHEMA.to_owned(),
        started_unix_s: unix_seconds(started),
        plan: PlanRecord::of(plan),
        elapsed_s,
        cut_short,
        published: to_all.map(|posted| PublishCounts::of(posted, elapsed_s)),
        deliveries: Deliveries::of(&parts, to_all),
        published_to_one: to_one.map(|posted| PublishCounts::of(posted, elapsed_s)),
        deliveries_to_one: to_one.map(|posted| DeliveriesToOne::of(&parts, posted)),
        generator: Generator::of(&parts, publisher_cpu),
        subscriptions: Subscriptions::of(parts),
        server,
        server_unknown,
        idle,
        grade: Grade { bottleneck: Bottleneck::LatencyBound, because: String::new(), advice: None },
        warnings,
        machine: Some(machine),
        fail_if: Vec::new(),
        agents: Vec::new(),
        environment,
    };
    record.grade = grade(&record);
    if record.grade.bottleneck == Bottleneck::GeneratorBound
        && let Some(machine) = &mut record.machine
    {
        machine.disturb(GENERATOR_BOUND);
    }
    record
}
