//! One core's subscriptions: it opens them, notes what comes, and at the end says what is missing.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use oroshi_net::clock::thread_cpu_ns;
use oroshi_net::{Connector, Peer, monotonic_ns};
use oroshi_stats::Latency;
use tokio::sync::{Notify, watch};

use super::connection::{Unopened, open, serve};
use super::ledger::{Arrival, Ledger};
use super::plan::Plan;
use super::publish::Published;
use super::stamp::Stamp;
use super::wire::{End, Listener};
use crate::failure::{Failure, FailureCounts};

/// How often somebody who wants to end the run is listened to while connections are opened.
const LOOK: Duration = Duration::from_millis(100);
/// The publisher of messages for one connection each.
pub(crate) const TO_ONE: u32 = u32::MAX;
/// Of somebody else's messages, publishers with greater numbers than this are not ours.
const MOST_PUBLISHERS: usize = 1 << 16;

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Subscriptions are being opened.
    Connecting,
    /// What is published is not counted.
    WarmUp,
    /// All begin to count from zero, and say so.
    Counting,
    /// What is published is counted.
    Measuring,
    Over,
}

/// What all cores share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) plan: Plan,
    /// Where the subscriptions' name led, and the publications'.
    pub(crate) peers: Vec<Peer>,
    pub(crate) publish_peers: Vec<Peer>,
    pub(crate) publish_to_peers: Vec<Peer>,
    /// Stands in the stamps of this run; those of its warm-up have the next number.
    pub(crate) run: u32,
    /// Where nothing is published by us: the run whose stamps came first, and whether there was one.
    pub(crate) others: AtomicU32,
    pub(crate) heard_others: AtomicBool,
    pub(crate) phase: watch::Sender<Phase>,
    /// Set when the user wants the run to end.
    pub(crate) stop: AtomicBool,
    /// By core, for whoever looks on.
    pub(crate) live: Vec<Live>,
    /// Numbers of the connections that were opened, as they were.
    pub(crate) opening: Mutex<Vec<u32>>,
    /// The same, in order: known when all have been tried.
    pub(crate) opened: OnceLock<Vec<u32>>,
    /// What was published, in the end.
    pub(crate) published: OnceLock<Published>,
}

/// What a core counts for whoever looks on. Each number has one writer.
#[derive(Debug, Default)]
pub(crate) struct Live {
    /// Attempts to open a subscription that have come to something.
    pub(crate) tried: AtomicU64,
    pub(crate) opened: AtomicU64,
    /// Subscriptions that have ended.
    pub(crate) ended: AtomicU64,
    /// Messages for all that came for the first time, and those of them that came on subscriptions that have ended.
    pub(crate) delivered: AtomicU64,
    pub(crate) delivered_on_ended: AtomicU64,
    /// The same of messages for one.
    pub(crate) delivered_to_one: AtomicU64,
    /// Messages of the warm-up.
    pub(crate) warm: AtomicU64,
    /// It has begun to count.
    pub(crate) counting: AtomicBool,
}

/// Adds to a number that only this thread changes.
pub(crate) fn add(number: &AtomicU64, more: u64) {
    number.store(number.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

/// What one core has counted.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Failed attempts by name; the statuses of those that were refused with one.
    pub(crate) failures: FailureCounts,
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// By failure, what came back on the first attempt that ended so.
    pub(crate) came: BTreeMap<Failure, String>,
    /// From the beginning of an attempt to the answer that agrees.
    pub(crate) opening: Latency,
    pub(crate) ended: BTreeMap<String, u64>,
    pub(crate) flow: Flow,
    /// Of messages for all: those that did not come, and of them those whose subscription had ended.
    pub(crate) lost: u64,
    pub(crate) lost_on_ended: u64,
    pub(crate) delivered: u64,
}

impl Tally {
    /// Adds another core's.
    pub(crate) fn merge(&mut self, other: &Self) {
        let Self { failures, statuses, came, opening, ended, flow, lost, lost_on_ended, delivered } = self;
        failures.merge(&other.failures);
        other.statuses.iter().for_each(|(status, n)| *statuses.entry(*status).or_default() += n);
        for (failure, text) in &other.came {
            came.entry(*failure).or_insert_with(|| text.clone());
        }
        opening.merge(&other.opening);
        other.ended.iter().for_each(|(end, n)| *ended.entry(end.clone()).or_default() += n);
        flow.merge(&other.flow);
        *lost += other.lost;
        *lost_on_ended += other.lost_on_ended;
        *delivered += other.delivered;
    }
}

/// What came in the measured part.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// Messages and bytes, stamped or not.
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) unstamped: u64,
    /// Stamps of other runs.
    pub(crate) foreign: u64,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
    pub(crate) delay: Latency,
    /// When the last one came.
    pub(crate) last: u64,
    pub(crate) to_one: ToOne,
}

impl Flow {
    fn merge(&mut self, other: &Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.unstamped += other.unstamped;
        self.foreign += other.foreign;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.delay.merge(&other.delay);
        self.last = self.last.max(other.last);
        self.to_one.delivered += other.to_one.delivered;
        self.to_one.duplicated += other.to_one.duplicated;
        self.to_one.misdirected += other.to_one.misdirected;
        self.to_one.delay.merge(&other.to_one.delay);
    }
}

/// What came of messages for one.
#[derive(Debug, Default)]
pub(crate) struct ToOne {
    pub(crate) delivered: u64,
    pub(crate) duplicated: u64,
    /// Those that came to another than they were for.
    pub(crate) misdirected: u64,
    pub(crate) delay: Latency,
}

/// What a core has at the end.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) tally: Tally,
    /// CPU time of the measured part, nanoseconds.
    pub(crate) cpu: u64,
}

/// One core's part.
pub(crate) struct Core {
    pub(crate) shared: Arc<Shared>,
    pub(crate) index: usize,
    pub(crate) connector: Connector,
    pub(crate) tally: RefCell<Tally>,
    subscriptions: RefCell<Vec<Subscription>>,
    next_peer: Cell<usize>,
    next_number: Cell<usize>,
    /// When the next connection may be begun, where they have a rate.
    next_opening: Cell<u64>,
    openers: Cell<usize>,
    opener_ended: Notify,
}

/// What is kept of one subscription.
#[derive(Debug, Default)]
struct Subscription {
    /// By publisher.
    ledgers: Vec<Option<Ledger>>,
    delivered: u64,
    /// The last message that was for this one alone.
    to_one: Option<u64>,
    ended: bool,
}

/// Follows the run's phases, from the one that it is in now: a thread that starts late must not wait for what has begun already.
pub(crate) fn phases(run: &watch::Sender<Phase>) -> watch::Receiver<Phase> {
    let mut phases = run.subscribe();
    phases.mark_changed();
    phases
}

/// Carries out one core's part.
pub(crate) async fn work(shared: Arc<Shared>, index: usize) -> Outcome {
    let core = Rc::new(Core::new(shared, index));
    let mut phase = phases(&core.shared.phase);
    core.open_all().await;
    let mut cpu = thread_cpu_ns();
    while phase.changed().await.is_ok() {
        match *phase.borrow_and_update() {
            Phase::Counting => {
                cpu = thread_cpu_ns();
                core.begin_to_count();
            }
            Phase::Over => break,
            Phase::Connecting | Phase::WarmUp | Phase::Measuring => {}
        }
    }
    let cpu = thread_cpu_ns() - cpu;
    core.settle();
    Outcome { tally: core.tally.take(), cpu }
}

impl Core {
    fn new(shared: Arc<Shared>, index: usize) -> Self {
        let plan = &shared.plan.connect;
        Self {
            connector: Connector::new(plan.connector_options(&plan.origins[0])),
            tally: RefCell::default(),
            subscriptions: RefCell::default(),
            next_peer: Cell::new(index),
            next_number: Cell::new(index),
            next_opening: Cell::new(0),
            openers: Cell::new(0),
            opener_ended: Notify::new(),
            shared,
            index,
        }
    }

    pub(crate) fn live(&self) -> &Live {
        &self.shared.live[self.index]
    }

    pub(crate) fn next_peer(&self) -> &Peer {
        let turn = self.next_peer.get();
        self.next_peer.set(turn + 1);
        &self.shared.peers[turn % self.shared.peers.len()]
    }

    /// Opens this core's share of the subscriptions, some at a time. Those that fail are not tried again.
    async fn open_all(self: &Rc<Self>) {
        let plan = &self.shared.plan;
        let openers = plan.connecting.div_ceil(plan.connect.threads);
        self.openers.set(openers);
        for _ in 0..openers {
            let core = Rc::clone(self);
            tokio::task::spawn_local(async move {
                core.open_some().await;
                core.openers.set(core.openers.get() - 1);
                core.opener_ended.notify_one();
            });
        }
        while self.openers.get() > 0 && !self.shared.stop.load(Ordering::Relaxed) {
            let _ = tokio::time::timeout(LOOK, self.opener_ended.notified()).await;
        }
    }

    /// Opens one after the other until there is none left.
    async fn open_some(self: &Rc<Self>) {
        let plan = &self.shared.plan;
        while !self.shared.stop.load(Ordering::Relaxed) {
            // Dealt out like cards.
            let number = self.next_number.get();
            if number >= plan.connect.connections {
                return;
            }
            self.next_number.set(number + plan.connect.threads);
            if let Some(rate) = plan.connect_rate {
                self.await_turn(rate / plan.connect.threads as f64).await;
            }
            // Boxed, so that what it takes to open one is given back when it is open.
            match Box::pin(open(self, number as u32)).await {
                Ok((opened, took)) => {
                    self.tally.borrow_mut().opening.record(took);
                    let id = self.subscriptions.borrow().len();
                    self.subscriptions.borrow_mut().push(Subscription::default());
                    tokio::task::spawn_local(serve(Rc::clone(self), id, opened));
                    self.shared.opening.lock().unwrap_or_else(PoisonError::into_inner).push(number as u32);
                    add(&self.live().opened, 1);
                }
                Err(Unopened { failure, status, came }) => {
                    let mut tally = self.tally.borrow_mut();
                    tally.failures.add(failure);
                    if let Some(came) = came {
                        tally.came.entry(failure).or_insert(came);
                    }
                    if let Some(status) = status {
                        *tally.statuses.entry(status).or_default() += 1;
                    }
                }
            }
            add(&self.live().tried, 1);
        }
    }

    /// Forgets what came before: of a warm-up, or of somebody else.
    fn begin_to_count(&self) {
        self.tally.borrow_mut().flow = Flow::default();
        for subscription in self.subscriptions.borrow_mut().iter_mut() {
            subscription.ledgers.clear();
            subscription.delivered = 0;
        }
        let live = self.live();
        live.delivered.store(0, Ordering::Relaxed);
        live.delivered_on_ended.store(0, Ordering::Relaxed);
        live.counting.store(true, Ordering::Relaxed);
    }

    async fn await_turn(&self, rate: f64) {
        let now = monotonic_ns();
        let turn = self.next_opening.get().max(now);
        self.next_opening.set(turn + (1e9 / rate) as u64);
        tokio::time::sleep(Duration::from_nanos(turn - now)).await;
    }

    /// A stamp came at `now` on subscription `id`, which is connection `number`.
    pub(crate) fn stamp(&self, id: usize, number: u32, stamp: Stamp, now: u64) {
        let shared = &self.shared;
        let mut tally = self.tally.borrow_mut();
        let flow = &mut tally.flow;
        if stamp.run == shared.run.wrapping_add(1) {
            return add(&self.live().warm, 1);
        }
        let delay = now.saturating_sub(stamp.sent);
        if stamp.run != shared.run && !self.is_of_others(stamp.run) {
            flow.foreign += 1;
            return;
        }
        let mut subscriptions = self.subscriptions.borrow_mut();
        let subscription = &mut subscriptions[id];
        if stamp.publisher == TO_ONE {
            if shared.opened.get().is_none_or(|opened| target(opened, stamp.sequence) != number) {
                flow.to_one.misdirected += 1;
            } else if subscription.to_one.replace(stamp.sequence) == Some(stamp.sequence) {
                flow.to_one.duplicated += 1;
            } else {
                flow.to_one.delivered += 1;
                flow.to_one.delay.record(delay);
                add(&self.live().delivered_to_one, 1);
            }
            return;
        }
        match subscription.note(&stamp, shared.plan.publish.is_some()) {
            None => flow.foreign += 1,
            Some(Arrival::Again) => flow.duplicated += 1,
            Some(arrival) => {
                flow.reordered += u64::from(arrival == Arrival::Late);
                flow.delay.record(delay);
                flow.last = now;
                add(&self.live().delivered, 1);
            }
        }
    }

    /// Whether we do not publish, and this is the run of those who do.
    fn is_of_others(&self, run: u32) -> bool {
        if self.shared.plan.publish.is_some() {
            return false;
        }
        if !self.shared.heard_others.swap(true, Ordering::Relaxed) {
            self.shared.others.store(run, Ordering::Relaxed);
        }
        self.shared.others.load(Ordering::Relaxed) == run
    }

    /// A subscription has ended before the run did.
    pub(crate) fn ended(&self, id: usize, end: End) {
        let subscription = &mut self.subscriptions.borrow_mut()[id];
        subscription.ended = true;
        *self.tally.borrow_mut().ended.entry(end.name()).or_default() += 1;
        add(&self.live().delivered_on_ended, subscription.delivered);
        add(&self.live().ended, 1);
    }

    /// Holds what came against what was published.
    fn settle(&self) {
        let mut tally = self.tally.borrow_mut();
        let published = self.shared.published.get();
        for subscription in self.subscriptions.borrow().iter() {
            let lost = match published {
                Some(published) => published.missing(&subscription.ledgers),
                None => subscription.ledgers.iter().flatten().map(|ledger| ledger.missing(ledger.next(), &[])).sum(),
            };
            tally.lost += lost;
            tally.lost_on_ended += if subscription.ended { lost } else { 0 };
            tally.delivered += subscription.delivered;
        }
    }
}

impl Subscription {
    /// Notes a message for all; `None` if there is no such publisher.
    fn note(&mut self, stamp: &Stamp, ours: bool) -> Option<Arrival> {
        let publisher = stamp.publisher as usize;
        if publisher >= MOST_PUBLISHERS {
            return None;
        }
        if publisher >= self.ledgers.len() {
            self.ledgers.reserve_exact(publisher + 1 - self.ledgers.len());
            self.ledgers.resize(publisher + 1, None);
        }
        // What somebody else sent before we listened, we cannot have missed.
        let first = if ours { 0 } else { stamp.sequence };
        let arrival = self.ledgers[publisher].get_or_insert_with(|| Ledger::from(first)).note(stamp.sequence);
        self.delivered += u64::from(arrival != Arrival::Again);
        Some(arrival)
    }
}

/// The connection that message `sequence` for one is for: each in turn, but not one beside the other.
pub(crate) fn target(opened: &[u32], sequence: u64) -> u32 {
    // A number prime to all counts of connections that there can be leads through all of them.
    const STRIDE: u64 = 1_000_000_007;
    opened[(u128::from(sequence) * u128::from(STRIDE) % opened.len().max(1) as u128) as usize]
}

/// One subscription's ear.
pub(crate) struct Ear<'c> {
    pub(crate) core: &'c Core,
    pub(crate) id: usize,
    pub(crate) number: u32,
    pub(crate) now: u64,
}

impl Listener for Ear<'_> {
    fn message(&mut self, stamps: usize) {
        let flow = &mut self.core.tally.borrow_mut().flow;
        flow.messages += 1;
        flow.unstamped += u64::from(stamps == 0);
    }

    fn stamp(&mut self, stamp: Stamp) {
        self.core.stamp(self.id, self.number, stamp, self.now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A publisher whose thread started after a short warm-up had begun once waited for it for ever, and the run with it.
    #[test]
    fn a_thread_that_starts_late_learns_of_the_phase_that_has_begun() {
        let run = watch::Sender::new(Phase::Connecting);
        run.send_replace(Phase::WarmUp);
        let mut late = phases(&run);
        assert!(late.has_changed().unwrap());
        assert_eq!(*late.borrow_and_update(), Phase::WarmUp);
        assert!(!late.has_changed().unwrap());
    }
}
