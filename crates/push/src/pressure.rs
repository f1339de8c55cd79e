//! Publishers that are faster than readers.
//!
//! Two bounds: a publish is answered only when the sessions that it was for are not far behind, so that a publisher goes no faster than
//! readers that keep reading; and where all queues together hold too much, the sessions that queue most give way.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::hub::Hub;
use crate::plan::Limits;
use crate::publish::WaitingForRoom;
use crate::session::{Reason, Session};

/// However slow its readers are, a core lets publishers fill half of a session's queue in this time.
const HALF_A_QUEUE: Duration = Duration::from_secs(1);

/// A core that was late to let publishers go on makes up for so much.
const MADE_UP: Duration = Duration::from_millis(10);

/// What a core knows of publishers that are too fast.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    /// When the last publish that was held back may be answered, whatever its readers do.
    pace: Cell<Option<Instant>>,
    /// What waited on all cores after memory was last made free here, bytes; 0 while it is not short.
    relieved: Cell<usize>,
}

impl Hub {
    /// Whether a session is so far behind that whoever publishes to it is held back: more than half of its queue is full, and it has
    /// not lost anything since it last took something. One that loses messages has its rule, and nobody waits for it.
    pub(crate) fn is_behind(&self, session: &Session) -> bool {
        let Limits { session_queue_bytes: bytes, session_queue_messages: messages, .. } = self.plan().limits;
        let outbox = session.outbox.borrow();
        (outbox.bytes() > bytes / 2 || outbox.len() > messages.div_ceil(2)) && session.is_open() && !outbox.has_lost()
    }

    /// Waits until none of these sessions is behind, for as long as a message of this length takes if publishers fill half a queue in
    /// [`HALF_A_QUEUE`], all publishers of this core together.
    pub(crate) async fn hold_back(&self, mut behind: Vec<Rc<Session>>, length: usize, until: Instant) {
        if behind.is_empty() {
            return;
        }
        let Limits { session_queue_bytes: bytes, session_queue_messages: messages, .. } = self.plan().limits;
        let part = (length as f64 * 2.0 / bytes as f64).max(2.0 / messages as f64);
        let cost = HALF_A_QUEUE.mul_f64(part.min(1.0));
        let now = Instant::now();
        let from = self.pressure.pace.get().map_or(now, |pace| pace.max(now.checked_sub(MADE_UP).unwrap_or(now)));
        self.pressure.pace.set(Some(from + cost));
        let _waiting = WaitingForRoom::new(self);
        loop {
            let room = self.room.notified();
            while behind.pop_if(|session| !self.is_behind(session)).is_some() {}
            if behind.is_empty() {
                // Its turn is another's.
                let pace = self.pressure.pace.get().and_then(|pace| pace.checked_sub(cost));
                return self.pressure.pace.set(pace);
            }
            if timeout_at((from + cost).min(until), room).await.is_err() {
                return;
            }
        }
    }

    /// How many bytes may wait for a session that has `before` waiting and is to get `more`. Where memory is short that is its share.
    pub(crate) fn bound_of(&self, before: usize, more: usize) -> usize {
        let limits = &self.plan().limits;
        if before == 0 || self.node.queued_bytes() + more <= limits.total_queue_bytes {
            return limits.session_queue_bytes;
        }
        limits.session_queue_bytes.min(self.node.share_of(goal(limits)))
    }

    /// Where all queues together hold more than they may, has this core's sessions give way that queue most, and tells the other cores.
    pub(crate) fn relieve(&self) {
        let most = self.plan().limits.total_queue_bytes;
        let queued = self.node.queued_bytes();
        if queued <= most {
            return self.pressure.relieved.set(0);
        }
        // One look is enough until there is clearly more: what is left is that of other cores, or nothing that can be taken back.
        if queued < self.pressure.relieved.get().saturating_add(most / 16) {
            return;
        }
        self.relieve_here();
        self.pressure.relieved.set(self.node.queued_bytes());
        if self.node.queued_bytes() > most {
            for core in (0..self.node.cores()).filter(|&core| core != self.core) {
                self.node.tell(core, Box::new(|hub| hub.relieve_here()));
            }
        }
    }

    /// As [`relieve`](Self::relieve), and waits until the other cores have done the same.
    pub(crate) async fn relieve_all(&self) {
        self.relieve_here();
        if self.node.queued_bytes() > self.plan().limits.total_queue_bytes {
            let others = (0..self.node.cores()).filter(|&core| core != self.core);
            let asked: Vec<_> =
                others.map(|core| self.node.ask(core, |hub| async move { hub.relieve_here() })).collect();
            for relieved in asked {
                // A core that has ended has nothing waiting.
                let _ = relieved.await;
            }
        }
    }

    /// Takes back what is too much from this core's sessions that have more than their share, the largest first: by their rule they lose
    /// their oldest messages, or end. Where that is not enough, as what is left is half-way out, they end too.
    fn relieve_here(&self) {
        let limits = &self.plan().limits;
        let (goal, share) = (goal(limits), self.node.share_of(goal(limits)));
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

/// Queues that hold more than their share, and can hold less.
trait Queues {
    type Session;

    /// What waits for all sessions on all cores, bytes. Other cores change it at any time.
    fn queued(&self) -> usize;

    /// What waits for a session, bytes.
    fn bytes(&self, session: &Self::Session) -> usize;

    /// Drops a session's oldest messages down to `most` bytes, as far as they can be taken back. False if its rule is another.
    fn shed(&self, session: &Self::Session, most: usize) -> bool;

    /// Ends a session for what waits for it, which is free at once.
    fn give_up(&self, session: &Self::Session);
}

/// How much may wait, bytes.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// For a session, where memory is short.
    share: usize,
    /// For all sessions once memory was made free, and before.
    goal: usize,
    most: usize,
}

/// Takes back what is too much from sessions that have more than their share, the largest first.
fn give_way<Q: Queues>(queues: &Q, mut large: Vec<Q::Session>, Bounds { share, goal, most }: Bounds) {
    large.sort_by_cached_key(|session| std::cmp::Reverse(queues.bytes(session)));
    let sizes: Vec<usize> = large.iter().map(|session| queues.bytes(session)).collect();
    let level = level(&sizes, share, queues.queued().saturating_sub(goal));
    for session in &large {
        if queues.queued() > goal && !queues.shed(session, level) {
            queues.give_up(session);
        }
    }
    // Other cores may have published meanwhile, so some of these sessions have not lost anything yet: no session ends that can lose enough.
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
        self.unqueue(before, after);
        may_drop
    }

    fn give_up(&self, session: &Rc<Session>) {
        session.cut_off(Reason::Slow);
        let mut outbox = session.outbox.borrow_mut();
        let before = outbox.bytes();
        outbox.abandon();
        drop(outbox);
        self.unqueue(before, 0);
    }
}

/// How far memory is freed once it is short: there is room for some publishes before it is again.
fn goal(limits: &Limits) -> usize {
    limits.total_queue_bytes - limits.total_queue_bytes / 16
}

/// To how many bytes each of the largest is to come down for `excess` bytes less in all, but not below `least`. `sizes` from the
/// largest on.
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
    use super::*;

    /// Sessions of one core, each with the bytes that wait for it and whether it may lose some; and what waits on other cores, which grows
    /// each time that somebody looks.
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
