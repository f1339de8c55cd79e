//! State that the threads of a run share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use oroshi_net::Peer;
use tokio::sync::watch;

use super::phase::Phase;
use super::plan::Plan;
use super::published::Published;
use super::tally::Tally;

/// State that all threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) plan: Plan,
    /// Addresses of the hub for subscriptions, and for each kind of publications.
    pub(crate) peers: Vec<Peer>,
    pub(crate) publish_peers: Vec<Peer>,
    pub(crate) publish_to_peers: Vec<Peer>,
    /// The number in the stamps of this run; stamps of its warm-up have the next number.
    pub(crate) run: u32,
    /// If somebody else publishes: the run whose stamps came first, and whether any came.
    others: OnceLock<u32>,
    pub(crate) phase: watch::Sender<Phase>,
    /// The user ends the run.
    stop: AtomicBool,
    /// Counts by core, for the thread that follows the run.
    pub(crate) live: Vec<Live>,
    /// Numbers of the open connections, in the order in which they opened.
    opening: Mutex<Vec<u32>>,
    /// The same numbers in ascending order, once all connections were tried.
    opened: OnceLock<Vec<u32>>,
    /// Messages published in the measured part, once it has ended.
    pub(crate) published: OnceLock<Published>,
    /// The moment at which the stamps of this run count from: 0, or in a part of a run its start. Machines share no
    /// clock.
    epoch: AtomicU64,
    /// In a part of a run: what the cores have counted since it was last taken.
    handed: Mutex<Tally>,
}

impl Shared {
    pub(crate) fn new(plan: Plan, peers: Vec<Peer>, publish_peers: Vec<Peer>, publish_to_peers: Vec<Peer>) -> Self {
        Self {
            peers,
            publish_peers,
            publish_to_peers,
            run: plan.run.unwrap_or_else(|| fastrand::u32(..)),
            others: OnceLock::new(),
            phase: watch::Sender::new(Phase::Connecting),
            stop: AtomicBool::new(false),
            live: (0..plan.connect.threads).map(|_| Live::default()).collect(),
            opening: Mutex::default(),
            opened: OnceLock::new(),
            published: OnceLock::new(),
            epoch: AtomicU64::new(0),
            handed: Mutex::default(),
            plan,
        }
    }

    /// Ends the run as soon as the threads notice.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The warm-up's number in stamps.
    pub(crate) fn warmup_run(&self) -> u32 {
        self.run.wrapping_add(1)
    }

    /// Whether somebody else publishes, and this is their run: the one whose stamps came first.
    pub(crate) fn is_of_others(&self, run: u32) -> bool {
        self.plan.publish.is_none() && *self.others.get_or_init(|| run) == run
    }

    /// Notes that connection `number` is open.
    pub(crate) fn note_opened(&self, number: u32) {
        self.opening.lock().unwrap_or_else(PoisonError::into_inner).push(number);
    }

    /// Fixes the list of open connections, and returns how many this process has.
    ///
    /// A part of a run does not know which connections of other parts are open: it takes all for open.
    pub(crate) fn close_opening(&self) -> u64 {
        let mut opened = self.opening.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let count = opened.len() as u64;
        opened.sort_unstable();
        if self.plan.connect.part.is_some() {
            opened = (0..self.plan.connect.connections as u32).collect();
        }
        self.opened.get_or_init(|| opened);
        count
    }

    /// Begins to count the time of stamps at this moment of the monotonic clock.
    pub(crate) fn begin_epoch(&self, moment: u64) {
        self.epoch.store(moment, Ordering::Relaxed);
    }

    /// Returns the time in stamps of a moment of the monotonic clock.
    pub(crate) fn since_epoch(&self, moment: u64) -> u64 {
        moment.saturating_sub(self.epoch.load(Ordering::Relaxed))
    }

    /// Returns the moment of the monotonic clock of a time in stamps.
    pub(crate) fn at_epoch(&self, time: u64) -> u64 {
        time.saturating_add(self.epoch.load(Ordering::Relaxed))
    }

    /// Whether this process publishes: of several parts the first does.
    pub(crate) fn publishes_here(&self) -> bool {
        self.plan.connect.part.is_none_or(|part| part.index == 0)
    }

    /// Takes in what a core has counted.
    pub(crate) fn hand_over(&self, counted: &Tally) {
        self.handed.lock().unwrap_or_else(PoisonError::into_inner).merge(counted);
    }

    /// Takes what the cores have handed over.
    pub(crate) fn take_handed(&self) -> Tally {
        std::mem::take(&mut *self.handed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The numbers of the connections that messages for one go to, ascending; none until all were tried.
    pub(crate) fn opened(&self) -> &[u32] {
        self.opened.get().map_or(&[], Vec::as_slice)
    }

    /// The sum of a number over all cores.
    pub(crate) fn sum(&self, number: impl Fn(&Live) -> &AtomicU64) -> u64 {
        self.live.iter().map(|live| number(live).load(Ordering::Relaxed)).sum()
    }

    /// Subscriptions that are up.
    pub(crate) fn alive(&self) -> u64 {
        self.sum(|live| &live.opened) - self.sum(|live| &live.ended)
    }
}

/// Counters of a core for the thread that follows the run. Each number has one writer.
#[derive(Debug, Default)]
pub(crate) struct Live {
    /// Attempts to open a subscription that have ended, with or without success.
    pub(crate) tried: AtomicU64,
    pub(crate) opened: AtomicU64,
    /// Subscriptions that have ended.
    pub(crate) ended: AtomicU64,
    /// Messages for all that came for the first time, and those of them that came on subscriptions that have ended.
    pub(crate) delivered: AtomicU64,
    pub(crate) delivered_on_ended: AtomicU64,
    /// Messages for one that came for the first time.
    pub(crate) delivered_to_one: AtomicU64,
    /// Messages of the warm-up.
    pub(crate) warm: AtomicU64,
    /// The core has begun to count.
    pub(crate) counting: AtomicBool,
}

/// Adds to a number that only this thread changes.
pub(crate) fn add(number: &AtomicU64, more: u64) {
    number.store(number.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}
