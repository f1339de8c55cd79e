//! Slots: each holds one connection, or stream of HTTP/2, at a time and outlives it, so that no place in the load is
//! ever lost.

use std::cell::Cell;
use std::task::Context;

use oroshi_core::Deadline;

use super::stagger::StaggerState;
use super::tickets::Ticket;

/// The place of one connection, or of one stream.
#[derive(Debug)]
pub(crate) struct Slot {
    /// When the slot has waited too long. The core also wakes the slot's task for other reasons.
    pub(crate) deadline: Deadline,
    /// Since when the slot is free for an arrival.
    pub(super) free: Cell<Option<u64>>,
    /// Whether the slot is in the queue of free slots. It may be there and no longer be free.
    pub(super) queued: Cell<bool>,
    pub(super) assigned: Cell<Option<Ticket>>,
    pub(super) stagger: Cell<StaggerState>,
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            deadline: Deadline::default(),
            free: Cell::new(None),
            queued: Cell::new(false),
            assigned: Cell::new(None),
            stagger: Cell::new(StaggerState::Begins),
        }
    }
}

impl Slot {
    /// Remembers the task to wake. Every poll that waits must call this: a sweep that ends a wait takes the waker.
    #[inline]
    pub(crate) fn enrol(&self, cx: &Context<'_>) {
        self.deadline.enrol(cx);
    }

    pub(crate) fn wake(&self) {
        self.deadline.wake();
    }

    pub(super) fn take_assigned(&self) -> Option<Ticket> {
        self.assigned.take()
    }

    /// Whether the slot is known to be free, and waits for a ticket.
    #[inline]
    pub(crate) fn is_queued(&self) -> bool {
        self.queued.get() && self.free.get().is_some()
    }

    /// Whether a ticket was given to the slot.
    #[inline]
    pub(crate) fn is_assigned(&self) -> bool {
        self.assigned.get().is_some()
    }

    /// Withdraws a slot without a connection from the free ones. A ticket that it was given meanwhile stays its own.
    pub(crate) fn withdraw(&self) {
        self.free.set(None);
    }
}
