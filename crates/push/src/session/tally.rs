//! What became of a message on a core: counted as it happens, for whoever published it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use crate::message::Message;

/// A message under way to the sessions of a core.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) message: Arc<Message>,
    counts: Cell<Tally>,
    /// Sessions where no write was tried yet.
    untried: Cell<u32>,
    waiter: RefCell<Option<(Wait, Waker)>>,
    /// Where it is counted beside others; `None` for what the hub itself says.
    totals: Option<Rc<Totals>>,
}

/// What became of all messages of a core, in sessions, however long ago their publishers were answered.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) matched: Cell<u64>,
    pub(crate) written: Cell<u64>,
    pub(crate) dropped: Cell<u64>,
    pub(crate) closed: Cell<u64>,
}

/// What became of it, in sessions. Those of `matched` that are in none of the others still have it in their queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// It was meant for so many.
    pub(crate) matched: u32,
    /// The kernel has taken all of it; for a session that polls, the client said that it got it.
    pub(crate) written: u32,
    /// A newer one took its place, or the queue was full.
    pub(crate) dropped: u32,
    /// The session ended first.
    pub(crate) closed: u32,
}

impl Tally {
    /// Sessions that have it in their queue.
    pub(crate) fn queued(self) -> u32 {
        self.matched.saturating_sub(self.written + self.dropped + self.closed)
    }
}

/// How long a publisher waits for its receipt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Until the message stands in every queue.
    Queued,
    /// Until every session was tried once: who reads, has it written.
    #[default]
    Attempted,
    /// Until it is written, dropped or closed for every session, or a deadline has passed.
    Written,
}

/// How a message ended for one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Written,
    Dropped,
    Closed,
}

impl Delivery {
    /// A publisher's message.
    pub(crate) fn counted(message: Arc<Message>, totals: &Rc<Totals>) -> Self {
        Delivery { totals: Some(Rc::clone(totals)), ..Self::new(message) }
    }

    /// Something of the hub's own.
    pub(crate) fn new(message: Arc<Message>) -> Self {
        Delivery { message, counts: Cell::default(), untried: Cell::new(0), waiter: RefCell::new(None), totals: None }
    }

    /// It is meant for one more session.
    pub(crate) fn matched(&self) {
        self.change(|counts| counts.matched += 1);
        self.total(|totals| &totals.matched);
    }

    /// It stands in the queue of one more session, which will be tried.
    pub(crate) fn queued(&self) {
        self.untried.set(self.untried.get() + 1);
    }

    /// A session was tried for the first time since it was queued there.
    pub(crate) fn tried(&self) {
        self.untried.set(self.untried.get().saturating_sub(1));
        self.wake();
    }

    /// It has ended for one session.
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

    pub(crate) fn tally(&self) -> Tally {
        self.counts.get()
    }

    /// Waits, for as long as it takes.
    pub(crate) async fn wait(&self, wait: Wait) {
        poll_fn(|context| {
            if self.is_over(wait) {
                return Poll::Ready(());
            }
            *self.waiter.borrow_mut() = Some((wait, context.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    fn is_over(&self, wait: Wait) -> bool {
        match wait {
            Wait::Queued => true,
            Wait::Attempted => self.untried.get() == 0,
            Wait::Written => self.counts.get().queued() == 0,
        }
    }

    fn wake(&self) {
        // Nearly always nobody waits yet, or not for this.
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
