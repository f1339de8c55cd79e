//! One core's subscriptions: opens them, notes what comes, and at the end counts what is missing.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use oroshi_net::clock::thread_cpu_ns;
use oroshi_net::monotonic_ns;
use tokio::sync::Notify;

use super::part::HAND_OVER;
use super::phase::{Phase, follow_phases};
use super::sequences::{Arrival, Sequences};
use super::shared::{Live, Shared, add};
use super::stamp::{Stamp, TO_ONE, target};
use super::subscription::{SubscribeError, open, serve};
use super::tally::{DeliveryTally, Tally};
use super::wire::{End, MessageSink};
use crate::dialer::Dialer;

/// How often the user may end the run while connections are opened.
const LOOK: Duration = Duration::from_millis(100);
/// The most publishers of somebody else. A greater number in a stamp is not valid.
const MOST_PUBLISHERS: usize = 1 << 16;

/// The results of a core.
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
    pub(crate) dialer: Dialer,
    pub(crate) tally: RefCell<Tally>,
    subscriptions: RefCell<Vec<Received>>,
    next_number: Cell<usize>,
    /// When the next connection may begin, where the plan has a rate.
    next_opening: Cell<u64>,
    openers: Cell<usize>,
    opener_ended: Notify,
}

/// The record of one subscription.
#[derive(Debug, Default)]
struct Received {
    /// By publisher.
    sequences: Vec<Option<Sequences>>,
    delivered: u64,
    /// The last message for this subscription alone.
    to_one: Option<u64>,
    ended: bool,
}

/// Carries out one core's part.
pub(crate) async fn work(shared: Arc<Shared>, index: usize) -> Outcome {
    let core = Rc::new(Core::new(shared, index));
    let mut phase = follow_phases(&core.shared.phase);
    core.open_all().await;
    let mut cpu = thread_cpu_ns();
    let mut hand_over = tokio::time::interval(HAND_OVER);
    let is_part = core.shared.plan.connect.part.is_some();
    loop {
        tokio::select! {
            changed = phase.changed() => if changed.is_err() { break },
            _ = hand_over.tick(), if is_part => {
                core.hand_over();
                continue;
            }
        }
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
            dialer: Dialer::new(plan, &plan.origins[0], shared.peers.clone(), plan.position(index).0),
            tally: RefCell::default(),
            subscriptions: RefCell::default(),
            next_number: Cell::new(plan.position(index).0),
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

    /// Opens this core's share of the subscriptions, some at a time. Failed ones are not retried.
    async fn open_all(self: &Rc<Self>) {
        let plan = &self.shared.plan;
        let openers = plan.connecting.div_ceil(plan.connect.position(self.index).1);
        self.openers.set(openers);
        for _ in 0..openers {
            let core = Rc::clone(self);
            tokio::task::spawn_local(async move {
                core.open_some().await;
                core.openers.set(core.openers.get() - 1);
                core.opener_ended.notify_one();
            });
        }
        while self.openers.get() > 0 && !self.shared.is_stopped() {
            let _ = tokio::time::timeout(LOOK, self.opener_ended.notified()).await;
        }
    }

    /// Opens one subscription after the other until none is left.
    async fn open_some(self: &Rc<Self>) {
        let plan = &self.shared.plan;
        while !self.shared.is_stopped() {
            // Cores take the numbers in turn.
            let number = self.next_number.get();
            if number >= plan.connect.connections {
                return;
            }
            let (_, threads) = plan.connect.position(self.index);
            self.next_number.set(number + threads);
            if let Some(rate) = plan.connect_rate {
                self.await_turn(rate / threads as f64).await;
            }
            // Boxed, so that the memory for opening is free once the subscription is open.
            match Box::pin(open(self, number as u32)).await {
                Ok((opened, took)) => {
                    self.tally.borrow_mut().opening.record(took);
                    let id = self.subscriptions.borrow().len();
                    self.subscriptions.borrow_mut().push(Received::default());
                    tokio::task::spawn_local(serve(Rc::clone(self), id, opened));
                    self.shared.note_opened(number as u32);
                    add(&self.live().opened, 1);
                }
                Err(SubscribeError { failure, status, came }) => {
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

    /// Resets the counters.
    fn begin_to_count(&self) {
        self.tally.borrow_mut().flow = DeliveryTally::default();
        for subscription in self.subscriptions.borrow_mut().iter_mut() {
            subscription.sequences.clear();
            subscription.delivered = 0;
        }
        let live = self.live();
        live.delivered.store(0, Ordering::Relaxed);
        live.delivered_on_ended.store(0, Ordering::Relaxed);
        live.counting.store(true, Ordering::Relaxed);
    }

    /// Hands over what was counted, while it is counted.
    fn hand_over(&self) {
        if self.live().counting.load(Ordering::Relaxed) {
            self.shared.hand_over(&self.tally.take());
        }
    }

    async fn await_turn(&self, rate: f64) {
        let now = monotonic_ns();
        let turn = self.next_opening.get().max(now);
        self.next_opening.set(turn + (1e9 / rate) as u64);
        tokio::time::sleep(Duration::from_nanos(turn - now)).await;
    }

    /// Counts a stamp that came at `now` on subscription `id`, which is connection `number`.
    pub(crate) fn stamp(&self, id: usize, number: u32, stamp: Stamp, now: u64) {
        let shared = &self.shared;
        let mut tally = self.tally.borrow_mut();
        let flow = &mut tally.flow;
        if stamp.run == shared.warmup_run() {
            return add(&self.live().warm, 1);
        }
        let delay = shared.since_epoch(now).saturating_sub(stamp.sent);
        if stamp.run != shared.run && !shared.is_of_others(stamp.run) {
            flow.foreign += 1;
            return;
        }
        let mut subscriptions = self.subscriptions.borrow_mut();
        let subscription = &mut subscriptions[id];
        if stamp.publisher == TO_ONE {
            if target(shared.opened(), stamp.sequence) != Some(number) {
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

    /// Counts a subscription that ended before the run did.
    pub(crate) fn ended(&self, id: usize, end: End) {
        let subscription = &mut self.subscriptions.borrow_mut()[id];
        subscription.ended = true;
        *self.tally.borrow_mut().ended.entry(end.name()).or_default() += 1;
        add(&self.live().delivered_on_ended, subscription.delivered);
        add(&self.live().ended, 1);
    }

    /// Compares what came with what was published.
    fn settle(&self) {
        let mut tally = self.tally.borrow_mut();
        let published = self.shared.published.get();
        for subscription in self.subscriptions.borrow().iter() {
            let lost = match published {
                Some(published) => published.missing(&subscription.sequences),
                None => subscription.sequences.iter().flatten().map(Sequences::gaps).sum(),
            };
            tally.lost += lost;
            tally.lost_on_ended += if subscription.ended { lost } else { 0 };
            tally.delivered += subscription.delivered;
        }
    }
}

impl Received {
    /// Notes a message for all; `None` if there is no such publisher.
    fn note(&mut self, stamp: &Stamp, ours: bool) -> Option<Arrival> {
        let publisher = stamp.publisher as usize;
        if publisher >= MOST_PUBLISHERS {
            return None;
        }
        if publisher >= self.sequences.len() {
            self.sequences.reserve_exact(publisher + 1 - self.sequences.len());
            self.sequences.resize(publisher + 1, None);
        }
        // Messages that somebody else sent before we subscribed are not lost.
        let first = if ours { 0 } else { stamp.sequence };
        let arrival = self.sequences[publisher].get_or_insert_with(|| Sequences::from(first)).note(stamp.sequence);
        self.delivered += u64::from(arrival != Arrival::Again);
        Some(arrival)
    }
}

/// Counts the messages of one subscription.
pub(crate) struct Receiver<'c> {
    pub(crate) core: &'c Core,
    pub(crate) id: usize,
    pub(crate) number: u32,
    pub(crate) now: u64,
}

impl MessageSink for Receiver<'_> {
    fn message(&mut self, stamps: usize) {
        let flow = &mut self.core.tally.borrow_mut().flow;
        flow.messages += 1;
        flow.unstamped += u64::from(stamps == 0);
    }

    fn stamp(&mut self, stamp: Stamp) {
        self.core.stamp(self.id, self.number, stamp, self.now);
    }
}
