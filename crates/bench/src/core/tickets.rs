//! Tickets: the right and the duty to send one request. In a closed loop every free connection has one; in an open loop
//! the timetable issues them to free connections when they are due.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::task::Context;

use tokio::sync::Notify;

use super::{Core, Phase};
use crate::arrivals::Arrivals;
use crate::batch::BatchedRequest;

/// The right, and the duty, to send one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    /// When the request should be sent.
    pub(crate) due: u64,
    /// Since when the connection that carries it has been free to do so.
    pub(crate) free: u64,
}

/// A request to send: one of the plan's, or one that a script made.
#[derive(Clone, Debug)]
pub(crate) enum Outgoing {
    Planned(usize),
    /// Its position in the bytes, and the bytes.
    Made(BatchedRequest, Box<[u8]>),
}

/// The result of a request for a ticket.
pub(crate) enum Take {
    Now(Ticket),
    /// There is none yet; the core wakes the slot when there is one.
    Wait,
    /// There will be none any more.
    Over,
}

/// The source of the tickets.
#[derive(Debug)]
pub(crate) enum Source {
    /// Each free connection may send at once.
    Closed,
    /// The timetable.
    Open(Arrivals),
}

/// Where tickets come from, and the slots that wait for one.
#[derive(Debug)]
pub(crate) struct Tickets {
    source: RefCell<Source>,
    /// Requests that may still be started in the measured part.
    budget: Cell<u64>,
    /// Free slots, in the order in which they became free.
    free: RefCell<VecDeque<usize>>,
    /// Tells the dispatcher that a slot became free.
    pub(crate) freed: Notify,
}

impl Tickets {
    pub(super) fn new(source: Source) -> Self {
        let (source, budget) = (RefCell::new(source), Cell::new(u64::MAX));
        Self { source, budget, free: RefCell::default(), freed: Notify::new() }
    }

    pub(super) fn is_closed_loop(&self) -> bool {
        matches!(*self.source.borrow(), Source::Closed)
    }

    /// Counts the timetable from `start`.
    pub(super) fn start_at(&self, start: u64) {
        if let Source::Open(arrivals) = &mut *self.source.borrow_mut() {
            arrivals.start_at(start);
        }
    }

    /// Ends the timetable at `end`.
    pub(super) fn end_at(&self, end: u64) {
        if let Source::Open(arrivals) = &mut *self.source.borrow_mut() {
            arrivals.end_at(end);
        }
    }

    pub(super) fn set_budget(&self, requests: u64) {
        self.budget.set(requests);
    }

    /// Whether the timetable has a request due at `now`; `None` in a closed loop.
    pub(super) fn is_due(&self, now: u64) -> Option<bool> {
        match &*self.source.borrow() {
            Source::Closed => None,
            Source::Open(arrivals) => Some(arrivals.next_due() <= now),
        }
    }

    /// Takes the arrivals due before `now` that the budget allows. `count` says how many requests each counts as.
    pub(super) fn drain_due(&self, now: u64, mut count: impl FnMut(u64) -> u64) -> u64 {
        let mut counted = 0;
        if let Source::Open(arrivals) = &mut *self.source.borrow_mut() {
            while counted < self.budget.get() && arrivals.next_due() < now {
                counted += count(arrivals.take());
            }
        }
        counted
    }
}

impl Core {
    /// Takes the next ticket for slot `id`. Calls `now` only where the time is needed.
    #[inline]
    pub(crate) fn take_ticket(&self, id: usize, cx: &Context<'_>, now: impl FnOnce() -> u64) -> Take {
        match self.timeline.phase() {
            Phase::Running => {}
            Phase::Connecting => {
                // The slot is free from now on, even if nothing is due yet.
                let slot = &self.slots[id];
                slot.enrol(cx);
                slot.free.set(Some(slot.free.get().unwrap_or_else(now)));
                return Take::Wait;
            }
            Phase::Draining | Phase::Over => return Take::Over,
        }
        match &mut *self.tickets.source.borrow_mut() {
            Source::Closed => {
                if self.tickets.budget.get() == 0 {
                    return Take::Over;
                }
                let due = now();
                if let Some(stagger) = self.stagger.get()
                    && self.pauses(stagger, id, cx, due)
                {
                    return Take::Wait;
                }
                self.spend();
                self.activity.request_began();
                Take::Now(Ticket { due, free: due })
            }
            Source::Open(arrivals) => self.take_arrival(arrivals, id, cx, now()),
        }
    }

    fn take_arrival(&self, arrivals: &mut Arrivals, id: usize, cx: &Context<'_>, now: u64) -> Take {
        let slot = &self.slots[id];
        if let Some(ticket) = slot.assigned.take() {
            // It was counted when it was assigned.
            return Take::Now(ticket);
        }
        if self.tickets.budget.get() == 0 {
            return Take::Over;
        }
        let free = slot.free.get().unwrap_or(now);
        if arrivals.next_due() <= now {
            slot.free.set(None);
            // Another slot may have been free all the while, and the dispatcher is late.
            let longest_free = self.first_free(&mut self.tickets.free.borrow_mut());
            let longest_free = longest_free.and_then(|id| self.slots[id].free.get());
            let free = longest_free.map_or(free, |longest| longest.min(free));
            let due = arrivals.take();
            self.spend_arrival(due);
            if due < free {
                self.counters.tally.borrow_mut().waited += u64::from(self.timeline.measures(due));
            }
            self.activity.request_began();
            return Take::Now(Ticket { due, free });
        }
        slot.enrol(cx);
        slot.free.set(Some(free));
        if !slot.queued.replace(true) {
            self.tickets.free.borrow_mut().push_back(id);
            self.tickets.freed.notify_one();
        }
        Take::Wait
    }

    /// Gives due arrivals to free slots, and returns when the next one is due, or `None` while no slot is free.
    pub(crate) fn dispatch(&self, now: u64) -> Option<u64> {
        let mut source = self.tickets.source.borrow_mut();
        let Source::Open(arrivals) = &mut *source else { return None };
        let mut free = self.tickets.free.borrow_mut();
        loop {
            let id = self.first_free(&mut free)?;
            if self.tickets.budget.get() == 0 {
                return None;
            }
            if arrivals.next_due() > now {
                return Some(arrivals.next_due());
            }
            free.pop_front();
            let slot = &self.slots[id];
            slot.queued.set(false);
            let due = arrivals.take();
            self.spend_arrival(due);
            self.activity.request_began();
            slot.assigned.set(slot.free.take().map(|free| Ticket { due, free }));
            slot.wake();
        }
    }

    /// The slot that has been free for longest. Drops slots from the queue that are free no longer.
    fn first_free(&self, free: &mut VecDeque<usize>) -> Option<usize> {
        while let Some(&id) = free.front() {
            if self.slots[id].free.get().is_some() {
                return Some(id);
            }
            self.slots[id].queued.set(false);
            free.pop_front();
        }
        None
    }

    /// Whether all requests have been handed out.
    pub(crate) fn exhausted(&self) -> bool {
        match self.timeline.phase() {
            Phase::Connecting => false,
            Phase::Running => self.tickets.budget.get() == 0,
            Phase::Draining | Phase::Over => true,
        }
    }

    /// In a closed loop, spends a request on a failed connect, so that a number of requests against a dead server ends.
    pub(super) fn spend_on_failure(&self) -> bool {
        let spend = !self.rules.open && self.timeline.is_running() && self.tickets.budget.get() > 0;
        if spend {
            self.spend();
        }
        spend
    }

    #[inline]
    fn spend(&self) {
        self.counters.tally.borrow_mut().started += 1;
        let left = self.tickets.budget.get();
        if left != u64::MAX {
            self.tickets.budget.set(left - 1);
            if left == 1 {
                self.wake_all();
            }
        }
    }

    /// Counts a request of a user, who needs no ticket.
    #[inline]
    pub(crate) fn begin_request(&self, due: u64) {
        self.activity.request_began();
        self.counters.tally.borrow_mut().started += u64::from(self.timeline.measures(due));
    }

    /// Spends a request on an arrival of the measured part. Those of the warm-up that are taken later spend none.
    fn spend_arrival(&self, due: u64) {
        if self.timeline.measures(due) {
            self.spend();
        }
    }
}
