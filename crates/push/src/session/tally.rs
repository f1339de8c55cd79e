//! The outcome of a message on one thread, counted as it happens, for its publisher.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use crate::message::Message;
use crate::publish::ReceiptWait;

/// A message on its way to sessions of one thread.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) message: Arc<Message>,
    counts: Cell<Tally>,
    /// Sessions that it was queued for and no write was tried to.
    untried: Cell<u32>,
    waiter: RefCell<Option<(ReceiptWait, Waker)>>,
    /// Also counts its outcomes; `None` for messages of the hub's own.
    totals: Option<Rc<Totals>>,
}

/// The outcomes of all messages of a thread, in sessions, including those after the receipt.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) matched: Cell<u64>,
    pub(crate) written: Cell<u64>,
    pub(crate) dropped: Cell<u64>,
    pub(crate) closed: Cell<u64>,
}

/// The outcomes of a message, in sessions. The rest of `matched` still have it in their queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Sessions that it was for.
    pub(crate) matched: u32,
    /// Sessions whose kernel has taken all of it; polling sessions that have acknowledged it.
    pub(crate) written: u32,
    /// Sessions where a newer message replaced it, or the queue was full.
    pub(crate) dropped: u32,
    /// Sessions that ended first.
    pub(crate) closed: u32,
}

/// The outcome of a publish on one thread.
#[derive(Debug, Default)]
pub(crate) struct Part {
    pub(crate) tally: Tally,
    /// Keys of sessions whose queue was full until the deadline.
    pub(crate) refused: Vec<Box<str>>,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.matched += other.matched;
        self.written += other.written;
        self.dropped += other.dropped;
        self.closed += other.closed;
    }
}

impl Tally {
    /// Returns how many sessions have it in their queue.
    pub(crate) fn queued(self) -> u32 {
        self.matched.saturating_sub(self.written + self.dropped + self.closed)
    }
}

/// The end of a message for one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Written,
    Dropped,
    Closed,
}

impl Delivery {
    /// Creates the delivery of a publisher's message.
    pub(crate) fn counted(message: Arc<Message>, totals: &Rc<Totals>) -> Self {
        Delivery { totals: Some(Rc::clone(totals)), ..Self::new(message) }
    }

    /// Creates the delivery of a message of the hub's own.
    pub(crate) fn new(message: Arc<Message>) -> Self {
        Delivery { message, counts: Cell::default(), untried: Cell::new(0), waiter: RefCell::new(None), totals: None }
    }

    /// Counts one more session that it is for.
    pub(crate) fn matched(&self) {
        self.change(|counts| counts.matched += 1);
        self.total(|totals| &totals.matched);
    }

    /// Counts one more session that has it in its queue.
    pub(crate) fn queued(&self) {
        self.untried.set(self.untried.get() + 1);
    }

    /// Counts the first try of a write to a session that has it queued.
    pub(crate) fn tried(&self) {
        self.untried.set(self.untried.get().saturating_sub(1));
        self.wake();
    }

    /// Counts its end for one session.
    pub(crate) fn settle(&self, outcome: Outcome) {
        self.change(|counts| match outcome {
            Outcome::Written => counts.written += 1,
            Outcome::Dropped => counts.dropped += 1,
            Outcome::Closed => counts.closed += 1,
        });
        self.total(|totals| match outcome {
            Outcome::Written => &totals.written,
            Outcome::Dropped => &totals.dropped,
            Outcome::Closed => &totals.closed,
        });
        self.wake();
    }

    /// Returns the outcomes so far.
    pub(crate) fn tally(&self) -> Tally {
        self.counts.get()
    }

    /// Waits until `wait` is fulfilled, without a time limit.
    pub(crate) async fn wait(&self, wait: ReceiptWait) {
        poll_fn(|context| {
            if self.is_over(wait) {
                return Poll::Ready(());
            }
            *self.waiter.borrow_mut() = Some((wait, context.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    fn is_over(&self, wait: ReceiptWait) -> bool {
        match wait {
            ReceiptWait::Queued => true,
            ReceiptWait::Attempted => self.untried.get() == 0,
            ReceiptWait::Written => self.counts.get().queued() == 0,
        }
    }

    fn wake(&self) {
        // Nearly always no publisher waits yet, or not for this.
        if self.untried.get() != 0 && self.counts.get().queued() != 0 {
            return;
        }
        let mut waiter = self.waiter.borrow_mut();
        if waiter.as_ref().is_some_and(|(wait, _)| self.is_over(*wait))
            && let Some((_, waker)) = waiter.take()
        {
            waker.wake();
        }
    }

    fn total(&self, which: impl FnOnce(&Totals) -> &Cell<u64>) {
        if let Some(totals) = &self.totals {
            let total = which(totals);
            total.set(total.get() + 1);
        }
    }

    fn change(&self, change: impl FnOnce(&mut Tally)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }
}
