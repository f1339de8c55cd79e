//! Backpressure: publishers that are faster than readers, and too many bytes in all queues.
//!
//! A publish is answered only once its sessions are not far behind, so that a publisher goes no faster than readers
//! that keep reading. If all queues together hold too much, the sessions with the longest queues give way.

use std::rc::Rc;

use tokio::time::{Instant, timeout_at};

use crate::backlog::relief_goal;
use crate::hub::Hub;
use crate::session::{Reason, Session};

impl Hub {
    /// Waits until none of these sessions is behind, or the publisher's turn or time is over.
    pub(super) async fn hold_back(&self, mut behind: Vec<Rc<Session>>, length: usize, until: Instant) {
        if behind.is_empty() {
            return;
        }
        let turn = self.backlog.take_turn(length);
        let waiting = self.backlog.wait_for_room();
        loop {
            let room = waiting.notified();
            while behind.pop_if(|session| !self.backlog.is_behind(session)).is_some() {}
            if behind.is_empty() {
                return self.backlog.return_turn(turn);
            }
            if timeout_at(turn.until.min(until), room).await.is_err() {
                return;
            }
        }
    }

    /// Frees memory on this thread if all queues together hold more than they may, and tells the other threads.
    pub(super) fn relieve(&self) {
        let most = self.plan().limits.total_queue_bytes;
        let queued = self.node.queued_bytes();
        if queued <= most {
            return self.backlog.relieved.set(0);
        }
        // Try again only once clearly more waits: the rest belongs to other threads, or cannot be taken back.
        if queued < self.backlog.relieved.get().saturating_add(most / 16) {
            return;
        }
        self.relieve_here();
        self.backlog.relieved.set(self.node.queued_bytes());
        if self.node.queued_bytes() > most {
            for thread in (0..self.node.threads()).filter(|&thread| thread != self.thread) {
                self.mailboxes.tell(thread, Box::new(|hub| hub.relieve_here()));
            }
        }
    }

    /// As [`relieve`](Self::relieve), and waits until the other threads have done the same.
    pub(super) async fn relieve_all(&self) {
        self.relieve_here();
        if self.node.queued_bytes() > self.plan().limits.total_queue_bytes {
            let others = (0..self.node.threads()).filter(|&thread| thread != self.thread);
            let asked: Vec<_> =
                others.map(|thread| self.mailboxes.ask(thread, |hub| async move { hub.relieve_here() })).collect();
            for relieved in asked {
                // A thread that has ended has nothing waiting.
                let _ = relieved.await;
            }
        }
    }

    /// Frees memory on this thread, in the longest queues first. By their rule, sessions lose old messages or end.
    ///
    /// If that is not enough, because the rest is half written, sessions that may lose messages end too.
    fn relieve_here(&self) {
        let limits = &self.plan().limits;
        let goal = relief_goal(limits);
        let share = self.node.share_of(goal);
        if self.node.queued_bytes() <= limits.total_queue_bytes {
            return;
        }
        let mut large = Vec::new();
        self.each(|session| {
            if self.bytes(session) > share {
                large.push(Rc::clone(session));
            }
        });
        give_way(self, large, Bounds { share, goal, most: limits.total_queue_bytes });
    }
}

/// Queues that hold more than their share and can be shortened.
trait Queues {
    type Session;

    /// Returns what waits for all sessions on all threads, bytes. Other threads change it at any time.
    fn queued(&self) -> usize;

    /// Returns what waits for a session, bytes.
    fn bytes(&self, session: &Self::Session) -> usize;

    /// Drops a session's oldest messages down to `most` bytes, as far as possible. False if its rule forbids that.
    fn shed(&self, session: &Self::Session, most: usize) -> bool;

    /// Ends a session, which frees its queue at once.
    fn give_up(&self, session: &Self::Session);
}

/// How many bytes may wait.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// For one session, while memory is short.
    share: usize,
    /// For all sessions, after memory was freed.
    goal: usize,
    /// For all sessions, at any time.
    most: usize,
}

/// Shortens the queues of sessions above their share, the longest first, until `goal` is reached.
fn give_way<Q: Queues>(queues: &Q, mut large: Vec<Q::Session>, Bounds { share, goal, most }: Bounds) {
    large.sort_by_cached_key(|session| std::cmp::Reverse(queues.bytes(session)));
    let sizes: Vec<usize> = large.iter().map(|session| queues.bytes(session)).collect();
    let level = level(&sizes, share, queues.queued().saturating_sub(goal));
    for session in &large {
        if queues.queued() > goal && !queues.shed(session, level) {
            queues.give_up(session);
        }
    }
    // Other threads may have published meanwhile. A session that can lose enough loses it before any such session ends.
    for session in &large {
        let is_too_much = || queues.queued() > most && queues.bytes(session) > share;
        if is_too_much() && (!queues.shed(session, share) || is_too_much()) {
            queues.give_up(session);
        }
    }
}

impl Queues for Hub {
    type Session = Rc<Session>;

    fn queued(&self) -> usize {
        self.node.queued_bytes()
    }

    fn bytes(&self, session: &Rc<Session>) -> usize {
        session.outbox.borrow().bytes()
    }

    fn shed(&self, session: &Rc<Session>, most: usize) -> bool {
        let mut outbox = session.outbox.borrow_mut();
        let before = outbox.bytes();
        let may_drop = outbox.shed(session.framing, most);
        let after = outbox.bytes();
        drop(outbox);
        self.backlog.shrunk(before, after);
        may_drop
    }

    fn give_up(&self, session: &Rc<Session>) {
        session.cut_off(Reason::Slow);
        let mut outbox = session.outbox.borrow_mut();
        let before = outbox.bytes();
        outbox.abandon();
        drop(outbox);
        self.backlog.shrunk(before, 0);
    }
}

/// Returns the length to which the longest queues must shrink to free `excess` bytes, at least `least`.
///
/// `sizes` begins with the largest.
fn level(sizes: &[usize], least: usize, excess: usize) -> usize {
    let mut sum = 0;
    for (count, size) in (1..).zip(sizes) {
        sum += size;
        let level = sum.saturating_sub(excess) / count;
        if sizes.get(count).is_none_or(|next| *next <= level) {
            return level.max(least);
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Sessions of one thread: the bytes that wait for each, and whether it may lose some. What waits on other threads
    /// grows with every call of `queued`.
    struct Scene {
        sessions: Vec<(Cell<usize>, bool)>,
        ended: Cell<Vec<usize>>,
        elsewhere: Cell<usize>,
        growth: usize,
    }

    impl Queues for Scene {
        type Session = usize;

        fn queued(&self) -> usize {
            self.elsewhere.set(self.elsewhere.get() + self.growth);
            self.elsewhere.get() + self.sessions.iter().map(|(bytes, _)| bytes.get()).sum::<usize>()
        }

        fn bytes(&self, session: &usize) -> usize {
            self.sessions[*session].0.get()
        }

        fn shed(&self, session: &usize, most: usize) -> bool {
            let (bytes, may_drop) = &self.sessions[*session];
            if *may_drop {
                bytes.set(bytes.get().min(most));
            }
            *may_drop
        }

        fn give_up(&self, session: &usize) {
            self.sessions[*session].0.set(0);
            let mut ended = self.ended.take();
            ended.push(*session);
            self.ended.set(ended);
        }
    }

    #[test]
    fn no_session_ends_that_can_lose_enough_however_much_other_cores_publish_meanwhile() {
        let sessions = [(500, true), (400, true), (300, false), (450, true)];
        for growth in [0, 50, 200, 1000] {
            let sessions = sessions.map(|(bytes, may_drop)| (Cell::new(bytes), may_drop)).into();
            let scene = Scene { sessions, ended: Cell::default(), elsewhere: Cell::new(0), growth };
            // The first one that loses some makes room enough, until others publish.
            give_way(&scene, vec![0, 1, 2, 3], Bounds { share: 100, goal: 1500, most: 1600 });
            let ended = scene.ended.take();
            assert!(ended.is_empty() || ended == [2], "growth {growth}: {ended:?} ended");
            assert!(growth > 0 || ended.is_empty(), "{ended:?}");
        }
    }

    #[test]
    fn the_largest_come_down_to_one_level_and_no_further_than_needed() {
        for (sizes, least, excess, expected) in [
            (&[100, 50, 10][..], 0, 20, 80),
            (&[100, 50, 10], 0, 60, 45),
            (&[100, 100, 100], 0, 30, 90),
            (&[100, 90], 50, 1000, 50),
            (&[100], 0, 0, 100),
            (&[], 7, 10, 7),
        ] {
            let level = level(sizes, least, excess);
            assert_eq!(level, expected, "{sizes:?} {excess}");
            let freed: usize = sizes.iter().map(|size| size.saturating_sub(level)).sum();
            assert!(freed >= excess.min(freed) && level >= least);
        }
    }
}
