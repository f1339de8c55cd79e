//! Slots: each holds one connection at a time and outlives it, so that no place in the load is ever lost.

use std::cell::{Cell, RefCell};
use std::task::{Context, Waker};

use super::stagger::StaggerState;
use super::tickets::Ticket;

/// The place of one connection.
#[derive(Debug)]
pub(crate) struct Slot {
    /// When the slot has waited too long; `u64::MAX`: it waits for nothing.
    pub(crate) deadline: Cell<u64>,
    /// The deadline has passed.
    pub(crate) expired: Cell<bool>,
    waker: RefCell<Option<Waker>>,
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
            deadline: Cell::new(u64::MAX),
            expired: Cell::new(false),
            waker: RefCell::new(None),
            free: Cell::new(None),
            queued: Cell::new(false),
            assigned: Cell::new(None),
            stagger: Cell::new(StaggerState::Begins),
        }
    }
}

impl Slot {
    /// Remembers the task to wake. A slot is one task for its whole life, so once is enough.
    #[inline]
    pub(crate) fn set_waker(&self, cx: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if waker.is_none() {
            *waker = Some(cx.waker().clone());
        }
    }

    pub(crate) fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    pub(super) fn take_assigned(&self) -> Option<Ticket> {
        self.assigned.take()
    }

    /// Withdraws a slot without a connection from the free ones. A ticket that it was given meanwhile stays its own.
    pub(crate) fn withdraw(&self) {
        self.free.set(None);
    }
}
