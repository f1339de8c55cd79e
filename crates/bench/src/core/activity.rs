//! The activity of a core's slots, and the signal that wakes the core when it changes.

use std::cell::Cell;

use tokio::sync::Notify;

/// Counts of slots and requests by what they are doing now.
#[derive(Debug)]
pub(crate) struct Activity {
    /// Slots that have made their first attempt to connect, or will make it when there is something to send.
    attempted: Cell<usize>,
    /// Slots that have ended for good.
    ended: Cell<usize>,
    /// Requests that were handed out and have not ended yet.
    under_way: Cell<usize>,
    /// Held connections that are up.
    pub(crate) held: Cell<usize>,
    /// When a server was last heard of other than by a response; nanoseconds of the monotonic clock.
    pub(crate) last_contact: Cell<u64>,
    /// The script wants no more requests, or failed.
    halted: Cell<bool>,
    /// Signals first attempts, ended slots, new deadlines, the last response in a drain and a halt.
    pub(crate) changed: Notify,
}

impl Activity {
    pub(super) fn new(halted: bool) -> Self {
        Self {
            attempted: Cell::new(0),
            ended: Cell::new(0),
            under_way: Cell::new(0),
            held: Cell::new(0),
            last_contact: Cell::new(0),
            halted: Cell::new(halted),
            changed: Notify::new(),
        }
    }

    /// Counts a slot's first attempt to connect.
    pub(crate) fn attempted(&self) {
        self.attempted.set(self.attempted.get() + 1);
        self.changed.notify_one();
    }

    /// Counts a slot that has ended.
    pub(crate) fn slot_ended(&self) {
        self.ended.set(self.ended.get() + 1);
        self.changed.notify_one();
    }

    pub(crate) fn attempts(&self) -> usize {
        self.attempted.get()
    }

    pub(crate) fn ended_slots(&self) -> usize {
        self.ended.get()
    }

    pub(crate) fn under_way(&self) -> usize {
        self.under_way.get()
    }

    #[inline]
    pub(super) fn request_began(&self) {
        self.under_way.set(self.under_way.get() + 1);
    }

    /// Counts the end of a request, and returns how many are left.
    #[inline]
    pub(super) fn request_ended(&self) -> usize {
        let left = self.under_way.get().saturating_sub(1);
        self.under_way.set(left);
        left
    }

    /// Takes back a request that was handed out and never sent.
    pub(super) fn request_unsent(&self) {
        self.request_ended();
    }

    pub(crate) fn halt(&self) {
        self.halted.set(true);
        self.changed.notify_one();
    }

    pub(crate) fn is_halted(&self) -> bool {
        self.halted.get()
    }
}
