//! A run from beginning to end: subscribe, publish, wait for the last message, put the record together.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use oroshi_net::limits::ensure_descriptors;
use oroshi_net::{Cores, CoresOptions, Peer, monotonic_ns};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, watch};

use super::core::{self, Live, Outcome, Phase, Shared, Tally};
use super::plan::{Plan, Publication};
use super::publish::{self, Published};
use super::record::{
    Deliveries, DeliveriesToOne, Generator, Idle, Parts, PlanRecord, PostedRecord, Record, SCHEMA, Subscriptions, grade,
};
use crate::environment::Environment;
use crate::follow::{Observer, Progress, Stage};
use crate::grade::{Bottleneck, Grade};
use crate::machine::{GENERATOR_BOUND, Machine};
use crate::plan::Watching;
use crate::ports;
use crate::record::MachineRecord;
use crate::run::{Found, RunError, find};
use crate::watch::{Clocks, ServerUsage, Watch};

/// How often it is looked at what the cores have counted.
const LOOK: Duration = Duration::from_millis(5);
/// How often the observer is told, and the server's processes are looked at.
const TELL: Duration = Duration::from_millis(100);
const SAMPLE: Duration = Duration::from_millis(250);
/// A thread's runtime and its timers.
const DESCRIPTORS_PER_THREAD: usize = 8;

/// Carries out a plan.
///
/// # Errors
/// When it cannot begin: a name, a port, a socket, a limit. Whatever happens to subscriptions and messages is in the record.
pub fn run(plan: Plan, observer: &mut dyn Observer) -> Result<Record, RunError> {
    let publications = [&plan.publish, &plan.publish_to];
    let publishers: usize = publications.iter().filter_map(|p| p.as_ref()).map(|p| p.plan.connections).sum();
    let threads = plan.connect.threads + 1;
    let wanted = plan.connect.connections + publishers + DESCRIPTORS_PER_THREAD * threads;
    ensure_descriptors(wanted as u64)?;
    let warnings: Vec<String> = ports::forecast(&plan.connect).into_iter().collect();
    warnings.iter().for_each(|warning| observer.warning(warning));
    let environment = Environment::capture();
    let started = SystemTime::now();

    let Found { mut peers, watch } = find(&plan.connect, observer)?;
    let publish_peers = peers_of(plan.publish.as_ref(), observer)?;
    let publish_to_peers = peers_of(plan.publish_to.as_ref(), observer)?;
    let (mut watch, server_unknown) = match watch {
        Ok(watch) => (Some(watch), None),
        Err(why) => (None, Some(why)),
    };
    let shared = Arc::new(Shared {
        peers: peers.swap_remove(0),
        publish_peers,
        publish_to_peers,
        run: fastrand::u32(..),
        others: AtomicU32::new(0),
        heard_others: AtomicBool::new(false),
        phase: watch::Sender::new(Phase::Connecting),
        stop: AtomicBool::new(false),
        live: (0..plan.connect.threads).map(|_| Live::default()).collect(),
        opening: Mutex::default(),
        opened: OnceLock::new(),
        published: OnceLock::new(),
        plan,
    });
    if let Some(watch) = &mut watch {
        watch.begin();
    }
    let (sender, done) = mpsc::unbounded_channel();
    let cores = {
        let shared = Arc::clone(&shared);
        let cpus = shared.plan.connect.cpus.clone();
        let options = CoresOptions { cpus, event_interval: Some(1024), ..CoresOptions::new("load", threads) };
        Cores::start(&options, move |core| {
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
    let mut stage = Conductor {
        shared: &shared,
        done,
        observer,
        begun: Instant::now(),
        gave_up: false,
        told: None,
        sampled: Instant::now(),
    };
    let result = stage.conduct(&mut watch);
    // Whatever came of it, the threads end.
    shared.phase.send_replace(Phase::Over);
    let outcomes: Vec<Outcome> = cores.join()?.into_iter().flatten().collect();
    let conducted = result?;
    Ok(assemble(&shared, outcomes, conducted, started, environment, warnings, server_unknown))
}

/// Where a publication goes: a place that is not there is better known before the run.
fn peers_of(publication: Option<&Publication>, observer: &mut dyn Observer) -> Result<Vec<Peer>, RunError> {
    let Some(publication) = publication else { return Ok(Vec::new()) };
    let plan = crate::Plan { watch: Watching::None, ..publication.plan.clone() };
    Ok(find(&plan, observer)?.peers.swap_remove(0))
}

/// Leads the cores through a run.
struct Conductor<'a> {
    shared: &'a Shared,
    done: UnboundedReceiver<Published>,
    observer: &'a mut dyn Observer,
    /// The stage that is under way.
    begun: Instant,
    /// It was ended, as nobody was there any more to whom a message could come.
    gave_up: bool,
    /// When the observer was told last, and how many deliveries there were.
    told: Option<(Instant, u64)>,
    sampled: Instant,
}

/// What was seen of a run from outside the cores.
struct Conducted {
    opening_s: f64,
    idle: Option<Idle>,
    /// On the monotonic clock.
    begun: u64,
    published_until: u64,
    publisher_cpu: u64,
    server: Option<ServerUsage>,
    machine: MachineRecord,
    warnings: Vec<String>,
    cut_short: bool,
}

impl Conductor<'_> {
    fn conduct(&mut self, watch: &mut Option<Watch>) -> Result<Conducted, RunError> {
        let shared = self.shared;
        let plan = &shared.plan;
        let wanted = plan.connect.connections as u64;
        self.wait(None, |shared| sum(shared, |live| &live.tried) >= wanted);
        if self.stopped() {
            return Err(RunError::Cancelled);
        }
        let opening = self.begun.elapsed();
        let mut opened = shared.opening.lock().unwrap_or_else(PoisonError::into_inner).clone();
        opened.sort_unstable();
        let count = opened.len() as u64;
        shared.opened.get_or_init(|| opened);
        let usage = watch.as_mut().and_then(|watch| watch.finish(opening, &Clocks::default()));
        let idle = usage.filter(|_| count > 0).map(|usage| Idle::of(&usage, count));

        if !plan.connect.warmup.is_zero() && (plan.publish.is_some() || plan.publish_to.is_some()) {
            let published = self.publish(Phase::WarmUp, watch);
            let most = published.most(self.alive());
            self.settle(|shared| sum(shared, |live| &live.warm), most, watch);
            if self.stopped() && !self.gave_up {
                return Err(RunError::EndedInWarmUp);
            }
        }
        shared.phase.send_replace(Phase::Counting);
        self.wait(watch.as_mut(), |shared| shared.live.iter().all(|live| live.counting.load(Ordering::Relaxed)));
        let machine = Machine::begin(std::slice::from_ref(&shared.peers), watch.as_mut());
        let begun = monotonic_ns();
        let published = self.publish(Phase::Measuring, watch);
        if plan.publish.is_some() || plan.publish_to.is_some() {
            let came = |shared: &Shared| {
                let of = |number: fn(&Live) -> &AtomicU64| sum(shared, number);
                of(|live| &live.delivered) - of(|live| &live.delivered_on_ended) + of(|live| &live.delivered_to_one)
            };
            let most = published.most(self.alive());
            self.settle(came, most, watch);
        }
        let used = machine.finish(watch.as_mut(), &Clocks::default());
        let (published_until, publisher_cpu) = (published.ended, published.cpu);
        let _ = shared.published.set(published);
        let mut warnings = used.warnings;
        if self.gave_up {
            warnings.push("ended early: there was no subscription left to which a message could come".into());
        }
        Ok(Conducted {
            opening_s: opening.as_secs_f64(),
            idle,
            begun,
            published_until,
            publisher_cpu,
            server: used.server,
            machine: used.state,
            warnings,
            cut_short: self.stopped(),
        })
    }

    /// Has the publishers begin, and waits until they are done.
    fn publish(&mut self, phase: Phase, watch: &mut Option<Watch>) -> Published {
        self.begun = Instant::now();
        self.shared.phase.send_replace(phase);
        loop {
            if self.alive() == 0 && !self.stopped() {
                self.shared.stop.store(true, Ordering::Relaxed);
                self.gave_up = true;
            }
            match self.done.try_recv() {
                Ok(published) => return published,
                // Without a word they have gone only in a panic, which the join tells.
                Err(TryRecvError::Disconnected) => return Published::default(),
                Err(TryRecvError::Empty) => self.look(watch.as_mut()),
            }
        }
    }

    /// Waits until so much has come, or nothing more comes for as long as a timeout, or the user wants no more.
    fn settle(&mut self, came: impl Fn(&Shared) -> u64, most: u64, watch: &mut Option<Watch>) {
        let (mut last, mut since) = (0, Instant::now());
        loop {
            let now = came(self.shared);
            if now != last {
                (last, since) = (now, Instant::now());
            }
            if now >= most || since.elapsed() >= self.shared.plan.connect.timeout || self.stopped() {
                return;
            }
            self.look(watch.as_mut());
        }
    }

    fn wait(&mut self, mut watch: Option<&mut Watch>, reached: impl Fn(&Shared) -> bool) {
        while !reached(self.shared) && !self.stopped() {
            self.look(watch.as_deref_mut());
        }
    }

    fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    /// Subscriptions that are up.
    fn alive(&self) -> u64 {
        sum(self.shared, |live| &live.opened) - sum(self.shared, |live| &live.ended)
    }

    /// Sleeps for a moment, and does what is to be done from time to time.
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
        let delivered = sum(shared, |live| &live.delivered);
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
            p50_ns: None,
            p99_ns: None,
            errors: sum(shared, |live| &live.tried) - sum(shared, |live| &live.opened),
            alive: self.alive() as usize,
        });
        if self.observer.cancelled() {
            shared.stop.store(true, Ordering::Relaxed);
        }
    }
}

/// All cores' numbers together.
fn sum(shared: &Shared, number: impl Fn(&Live) -> &AtomicU64) -> u64 {
    shared.live.iter().map(|live| number(live).load(Ordering::Relaxed)).sum()
}

impl Idle {
    fn of(usage: &ServerUsage, opened: u64) -> Self {
        let each = |total: f64| total / opened as f64;
        Self {
            rss_before_bytes: usage.rss_begin_bytes,
            rss_after_bytes: usage.rss_end_bytes,
            rss_bytes_per_subscription: each(usage.rss_end_bytes as f64 - usage.rss_begin_bytes as f64),
            cpu_us_per_subscription: each(usage.cpu_seconds * 1e6),
        }
    }
}

fn assemble(
    shared: &Shared,
    outcomes: Vec<Outcome>,
    conducted: Conducted,
    started: SystemTime,
    environment: Environment,
    mut warnings: Vec<String>,
    server_unknown: Option<String>,
) -> Record {
    let Conducted {
        opening_s,
        idle,
        begun,
        published_until,
        publisher_cpu,
        server,
        machine,
        warnings: more,
        cut_short,
    } = conducted;
    warnings.extend(more);
    let mut tally = Tally::default();
    outcomes.iter().for_each(|outcome| tally.merge(&outcome.tally));
    let elapsed = published_until.max(tally.flow.last).saturating_sub(begun);
    let elapsed_s = elapsed as f64 / 1e9;
    let thread_cpu = outcomes.iter().map(|outcome| outcome.cpu as f64 / elapsed.max(1) as f64).collect();
    let opened = shared.opened.get().map_or(0, Vec::len) as u64;
    let parts = Parts { tally, opened, opening_s, elapsed_s, thread_cpu };
    let nothing = Published::default();
    let published = shared.published.get().unwrap_or(&nothing);
    let to_all = shared.plan.publish.is_some().then_some(&published.to_all);
    let to_one = shared.plan.publish_to.is_some().then_some(&published.to_one);
    let server_unknown = match &server {
        None => Some(server_unknown.unwrap_or_else(|| "its processes ended during the run".into())),
        Some(_) => None,
    };
    let mut record = Record {
        schema: SCHEMA.to_owned(),
        started_unix_s: started.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()),
        plan: PlanRecord::of(&shared.plan),
        elapsed_s,
        cut_short,
        published: to_all.map(|posted| PostedRecord::of(posted, elapsed_s)),
        deliveries: Deliveries::of(&parts, to_all),
        published_to_one: to_one.map(|posted| PostedRecord::of(posted, elapsed_s)),
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
