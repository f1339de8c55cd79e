//! What waits for the sessions of one thread, and the publishers that wait for room.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use crate::node::Node;
use crate::plan::Limits;
use crate::session::Session;

/// However slow its readers are, a thread lets publishers fill half of a session's queue in this time.
const HALF_A_QUEUE: Duration = Duration::from_secs(1);

/// A thread that was late to release publishers catches up by at most this time.
const CATCH_UP: Duration = Duration::from_millis(10);

/// The bytes in the queues of one thread. Other threads see the sum at once, as all share one limit.
#[derive(Debug)]
pub(crate) struct Backlog {
    node: Arc<Node>,
    thread: u16,
    queued_bytes: Cell<usize>,
    /// Sessions with something in their queue.
    waiting: Cell<usize>,
    /// Notified when a full queue has room again.
    room: Notify,
    /// How many publishes wait for `room`.
    publishers: Cell<usize>,
    /// When the last publish that was held back may be answered, whatever its readers do.
    pace: Cell<Option<Instant>>,
    /// The bytes on all threads after this thread last freed memory; 0 while memory is not short.
    pub(crate) relieved: Cell<usize>,
}

impl Backlog {
    /// Creates an empty backlog for a thread.
    pub(crate) fn new(node: Arc<Node>, thread: u16) -> Self {
        Backlog {
            node,
            thread,
            queued_bytes: Cell::new(0),
            waiting: Cell::new(0),
            room: Notify::new(),
            publishers: Cell::new(0),
            pace: Cell::new(None),
            relieved: Cell::new(0),
        }
    }

    /// Returns the bytes that wait on this thread.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes.get()
    }

    /// Records that a session's queue went from `before` to `after` bytes, and tells the other threads.
    pub(crate) fn resized(&self, before: usize, after: usize) {
        let queued = (self.queued_bytes.get() + after).saturating_sub(before);
        self.queued_bytes.set(queued);
        self.node.set_queued_bytes(self.thread, queued);
        if (before == 0) != (after == 0) {
            let waiting = self.waiting.get();
            self.waiting.set(if after > 0 { waiting + 1 } else { waiting.saturating_sub(1) });
            self.node.set_waiting(self.thread, self.waiting.get());
        }
    }

    /// As [`resized`](Self::resized), after something was taken from the queue: wakes publishers that wait for room.
    pub(crate) fn shrunk(&self, before: usize, after: usize) {
        self.resized(before, after);
        if after < before {
            self.made_room();
        }
    }

    /// Wakes publishers that wait for room.
    pub(crate) fn made_room(&self) {
        if self.publishers.get() > 0 {
            self.room.notify_waiters();
        }
    }

    /// Registers a publish that waits for room, until the guard is dropped.
    pub(crate) fn wait_for_room(&self) -> WaitingForRoom<'_> {
        self.publishers.set(self.publishers.get() + 1);
        WaitingForRoom(self)
    }

    /// Returns how many bytes may wait for a session that has `before` and gets `more`.
    ///
    /// It is the session's share while memory is short.
    pub(crate) fn limit_for(&self, before: usize, more: usize) -> usize {
        let limits = &self.node.plan.limits;
        if before == 0 || self.node.queued_bytes() + more <= limits.total_queue_bytes {
            return limits.session_queue_bytes;
        }
        limits.session_queue_bytes.min(self.node.share_of(relief_goal(limits)))
    }

    /// Returns whether a session is so far behind that its publishers wait for it.
    ///
    /// That is if more than half of its queue is full and it has lost nothing since it last took something. Nobody
    /// waits for a session whose rule is to lose messages.
    pub(crate) fn is_behind(&self, session: &Session) -> bool {
        let Limits { session_queue_bytes: bytes, session_queue_messages: messages, .. } = self.node.plan.limits;
        let outbox = session.outbox.borrow();
        (outbox.bytes() > bytes / 2 || outbox.len() > messages.div_ceil(2)) && session.is_open() && !outbox.has_lost()
    }

    /// Takes a turn to publish a message of `length` bytes to sessions that are behind.
    ///
    /// All publishers of the thread together fill half of a queue in [`HALF_A_QUEUE`].
    pub(crate) fn take_turn(&self, length: usize) -> PublishTurn {
        let Limits { session_queue_bytes: bytes, session_queue_messages: messages, .. } = self.node.plan.limits;
        let part = (length as f64 * 2.0 / bytes as f64).max(2.0 / messages as f64);
        let cost = HALF_A_QUEUE.mul_f64(part.min(1.0));
        let now = Instant::now();
        let from = self.pace.get().map_or(now, |pace| pace.max(now.checked_sub(CATCH_UP).unwrap_or(now)));
        self.pace.set(Some(from + cost));
        PublishTurn { until: from + cost, cost }
    }

    /// Gives a turn back that was not needed.
    pub(crate) fn return_turn(&self, turn: PublishTurn) {
        self.pace.set(self.pace.get().and_then(|pace| pace.checked_sub(turn.cost)));
    }
}

/// The time of a publisher that is held back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PublishTurn {
    /// When the publish may be answered, whatever its readers do.
    pub(crate) until: Instant,
    cost: Duration,
}

/// A publish that waits for room, until this is dropped.
pub(crate) struct WaitingForRoom<'b>(&'b Backlog);

impl WaitingForRoom<'_> {
    /// Returns a future that is ready once a queue has room; it counts from this call on.
    pub(crate) fn notified(&self) -> Notified<'_> {
        self.0.room.notified()
    }
}

impl Drop for WaitingForRoom<'_> {
    fn drop(&mut self) {
        self.0.publishers.set(self.0.publishers.get().saturating_sub(1));
    }
}

/// Returns down to how many bytes the hub frees memory once it is short. That leaves room for some publishes.
pub(crate) fn relief_goal(limits: &Limits) -> usize {
    limits.total_queue_bytes - limits.total_queue_bytes / 16
}
