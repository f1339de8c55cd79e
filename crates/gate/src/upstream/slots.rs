//! The slots of connections to a target: which are idle, who may open one, who waits. A state machine without sockets
//! or clock.
//!
//! - A connection counts from the grant to open it until it is closed, idle or not.
//! - Idle connections are reused last in, first out: few stay warm, and the others expire.
//! - Waiters queue first in, first out. Each gets a connection or the right to open one, so no later request overtakes.
//!
//! Invariant after every call: a waiter without a grant exists only if the limit is reached and no connection is idle.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

/// The result of asking for a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Take<C> {
    /// An idle connection.
    Idle(C),
    /// The right to open a connection. The holder must open it or call [`Slots::forget`].
    Connect,
    /// A turn in the queue.
    Wait(u64),
    /// The queue is full.
    Full,
}

/// A grant to a waiter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Grant<C> {
    Idle(C),
    Connect,
}

/// The connections `C` to one target.
#[derive(Debug)]
pub(crate) struct Slots<C> {
    /// The limits on connections and on the queue.
    caps: Caps,
    open: usize,
    /// The most recently used last.
    idle: Vec<Idle<C>>,
    /// Waiters in order of arrival. Those with a grant that they have not collected stand in front.
    line: VecDeque<Waiter<C>>,
    granted: usize,
    turn: u64,
}

/// Limits on open, idle and waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caps {
    pub(crate) open: usize,
    pub(crate) idle: usize,
    pub(crate) waiting: usize,
}

#[derive(Debug)]
struct Idle<C> {
    until: u64,
    connection: C,
}

#[derive(Debug)]
struct Waiter<C> {
    turn: u64,
    waker: Option<Waker>,
    grant: Option<Grant<C>>,
}

impl<C> Slots<C> {
    pub(crate) fn new(caps: Caps) -> Self {
        Slots { caps, open: 0, idle: Vec::new(), line: VecDeque::new(), granted: 0, turn: 0 }
    }

    /// Applies new limits. Waiters keep their turns; connections in use stay open until they are given back.
    pub(crate) fn set_caps(&mut self, caps: Caps) {
        self.caps = caps;
        while !self.idle.is_empty() && (self.open > caps.open || self.idle.len() > caps.idle) {
            self.close_oldest();
        }
        self.grant_room();
    }

    /// Returns the number of connections that are open or being opened, including idle ones.
    pub(crate) fn open(&self) -> usize {
        self.open
    }

    pub(crate) fn idle(&self) -> usize {
        self.idle.len()
    }

    /// Returns the number of waiters without a grant.
    pub(crate) fn waiting(&self) -> usize {
        self.line.len() - self.granted
    }

    /// Returns whether no connection is open and the queue is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.open == 0 && self.line.is_empty()
    }

    /// Returns whether all connections are idle and the queue is empty.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.open == self.idle.len() && self.line.is_empty()
    }

    /// Takes the most recently used idle connection that has not expired.
    pub(crate) fn take_idle(&mut self, now: u64) -> Option<C> {
        while let Some(idle) = self.idle.pop() {
            if now < idle.until {
                return Some(idle.connection);
            }
            self.open -= 1;
        }
        None
    }

    /// Takes the most recently used idle connection that fits and has not expired.
    pub(crate) fn take_idle_where(&mut self, now: u64, fits: impl Fn(&C) -> bool) -> Option<C> {
        while let Some(place) = self.idle.iter().rposition(|idle| fits(&idle.connection)) {
            let idle = self.idle.remove(place);
            if now < idle.until {
                return Some(idle.connection);
            }
            self.open -= 1;
        }
        None
    }

    /// Asks for a connection; with `fresh`, only for a new one.
    pub(crate) fn take(&mut self, fresh: bool, now: u64) -> Take<C> {
        if !fresh && let Some(connection) = self.take_idle(now) {
            return Take::Idle(connection);
        }
        if self.open >= self.caps.open && !self.idle.is_empty() {
            // Happens only with `fresh`.
            self.close_oldest();
        }
        if self.open < self.caps.open {
            self.open += 1;
            return Take::Connect;
        }
        if self.waiting() >= self.caps.waiting {
            return Take::Full;
        }
        self.turn += 1;
        self.line.push_back(Waiter { turn: self.turn, waker: None, grant: None });
        Take::Wait(self.turn)
    }

    /// Returns the waiter's grant; until then stores the waker.
    pub(crate) fn poll_wait(&mut self, turn: u64, context: &Context<'_>) -> Poll<Grant<C>> {
        let Ok(place) = self.line.binary_search_by_key(&turn, |waiter| waiter.turn) else { return Poll::Pending };
        let waiter = &mut self.line[place];
        if waiter.grant.is_none() {
            match &mut waiter.waker {
                Some(waker) => waker.clone_from(context.waker()),
                None => waiter.waker = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        self.granted -= 1;
        match self.line.remove(place).and_then(|waiter| waiter.grant) {
            Some(grant) => Poll::Ready(grant),
            None => Poll::Pending,
        }
    }

    /// Leaves the queue. An uncollected grant goes to the next waiter, or its connection becomes idle until `until`.
    pub(crate) fn leave(&mut self, turn: u64, until: u64) {
        let Ok(place) = self.line.binary_search_by_key(&turn, |waiter| waiter.turn) else { return };
        match self.line.remove(place).and_then(|waiter| waiter.grant) {
            None => {}
            Some(Grant::Idle(connection)) => {
                self.granted -= 1;
                self.give_back(connection, until);
            }
            Some(Grant::Connect) => {
                self.granted -= 1;
                self.forget();
            }
        }
    }

    /// Takes back a reusable connection. If nobody takes it, it expires at `until`.
    pub(crate) fn give_back(&mut self, connection: C, until: u64) {
        if self.open > self.caps.open {
            drop(connection);
            return self.forget();
        }
        if self.waiting() > 0 {
            return self.grant(Grant::Idle(connection));
        }
        self.idle.push(Idle { until, connection });
        if self.idle.len() > self.caps.idle {
            self.idle.remove(0);
            self.forget();
        }
    }

    /// Takes in a connection that was opened without a slot.
    pub(crate) fn adopt(&mut self, connection: C, until: u64) {
        self.open += 1;
        self.give_back(connection, until);
    }

    /// Frees the slot of a connection that was closed or never opened.
    pub(crate) fn forget(&mut self) {
        self.open -= 1;
        self.grant_room();
    }

    /// Closes expired idle connections and those that are no longer `alive`.
    pub(crate) fn sweep(&mut self, now: u64, mut alive: impl FnMut(&mut C) -> bool) {
        let before = self.idle.len();
        self.idle.retain_mut(|idle| now < idle.until && alive(&mut idle.connection));
        self.open -= before - self.idle.len();
        self.grant_room();
    }

    /// Requires an idle connection.
    fn close_oldest(&mut self) {
        self.idle.remove(0);
        self.open -= 1;
    }

    fn grant_room(&mut self) {
        while self.open < self.caps.open && self.waiting() > 0 {
            self.open += 1;
            self.grant(Grant::Connect);
        }
    }

    /// Requires a waiter without a grant.
    fn grant(&mut self, grant: Grant<C>) {
        let waiter = &mut self.line[self.granted];
        waiter.grant = Some(grant);
        self.granted += 1;
        if let Some(waker) = waiter.waker.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Take { fresh: bool },
        Collect,
        Leave(usize),
        GiveBack(usize),
        Forget(usize),
        Sweep { dead: usize },
        Pass(u64),
        Caps(usize, usize, usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => any::<bool>().prop_map(|fresh| Step::Take { fresh }),
            2 => Just(Step::Collect),
            1 => (0..8_usize).prop_map(Step::Leave),
            3 => (0..8_usize).prop_map(Step::GiveBack),
            2 => (0..8_usize).prop_map(Step::Forget),
            1 => (0..4_usize).prop_map(|dead| Step::Sweep { dead }),
            1 => (0..20_u64).prop_map(Step::Pass),
            1 => (1..4_usize, 0..3_usize, 0..4_usize).prop_map(|(open, idle, waiting)| Step::Caps(open, idle, waiting)),
        ];
        proptest::collection::vec(step, 0..200)
    }

    proptest! {
        /// The limits hold, nobody waits while there is room, the queue is first in, first out, and every connection is
        /// in exactly one place.
        #[test]
        fn nobody_waits_for_what_is_there(steps in steps()) {
            let mut caps = Caps { open: 3, idle: 2, waiting: 4 };
            let mut slots: Slots<usize> = Slots::new(caps);
            let context = &Context::from_waker(Waker::noop());
            let (mut held, mut line): (Vec<usize>, Vec<u64>) = (Vec::new(), Vec::new());
            let (mut made, mut now) = (0, 0_u64);
            for step in steps {
                match step {
                    Step::Take { fresh } => {
                        let had_room = slots.open() < caps.open;
                        match slots.take(fresh, now) {
                            Take::Idle(connection) => { prop_assert!(!fresh); held.push(connection) }
                            Take::Connect => { made += 1; held.push(made) }
                            Take::Wait(turn) => { prop_assert!(!had_room); line.push(turn) }
                            Take::Full => prop_assert!(!had_room && slots.waiting() >= caps.waiting),
                        }
                    }
                    Step::Collect => {
                        let mut given = true;
                        // A waiter in front has a grant if any waiter behind has one.
                        line.retain(|&turn| match slots.poll_wait(turn, context) {
                            Poll::Ready(Grant::Idle(connection)) => { assert!(given); held.push(connection); false }
                            Poll::Ready(Grant::Connect) => { assert!(given); made += 1; held.push(made); false }
                            Poll::Pending => { given = false; true }
                        });
                    },
                    Step::Leave(n) => if !line.is_empty() {
                        let turn = line.remove(n % line.len());
                        slots.leave(turn, now + 10);
                    },
                    Step::GiveBack(n) => if !held.is_empty() {
                        let connection = held.remove(n % held.len());
                        slots.give_back(connection, now + 10);
                    },
                    Step::Forget(n) => if !held.is_empty() {
                        held.remove(n % held.len());
                        slots.forget();
                    },
                    Step::Sweep { dead } => slots.sweep(now, |connection| *connection % 4 != dead),
                    Step::Pass(time) => now += time,
                    Step::Caps(open, idle, waiting) => {
                        caps = Caps { open, idle, waiting };
                        slots.set_caps(caps);
                    }
                }
                let granted = slots.line.iter().filter(|waiter| waiter.grant.is_some()).count();
                prop_assert_eq!(granted, slots.granted);
                prop_assert!(slots.line.iter().take(granted).all(|waiter| waiter.grant.is_some()));
                prop_assert_eq!(slots.open(), held.len() + slots.idle() + granted);
                prop_assert!(slots.waiting() == 0 || (slots.open() >= caps.open && slots.idle() == 0), "{:?}", slots);
                let idle = slots.idle.iter().map(|idle| idle.connection);
                let mut all: Vec<usize> = idle.chain(held.iter().copied()).collect();
                all.extend(slots.line.iter().filter_map(|waiter| match waiter.grant {
                    Some(Grant::Idle(connection)) => Some(connection),
                    _ => None,
                }));
                prop_assert_eq!(all.len(), all.iter().collect::<BTreeSet<_>>().len(), "a connection is in two places");
            }
        }
    }

    #[test]
    fn the_youngest_is_used_first_and_the_oldest_closed_first() {
        let mut slots = Slots::new(Caps { open: 3, idle: 2, waiting: 1 });
        for _ in 0..3 {
            assert_eq!(slots.take(false, 0), Take::Connect);
        }
        for name in ["a", "b", "c"] {
            slots.give_back(name, 10);
        }
        assert_eq!((slots.open(), slots.idle()), (2, 2));
        assert_eq!(slots.take(false, 9), Take::Idle("c"));
        // An expired connection is closed when it is found.
        assert_eq!(slots.take(false, 10), Take::Connect);
        assert_eq!((slots.open(), slots.idle()), (2, 0));
    }

    #[test]
    fn a_fresh_one_takes_the_place_of_the_oldest_idle_one() {
        let mut slots = Slots::new(Caps { open: 1, idle: 1, waiting: 0 });
        assert_eq!(slots.take(false, 0), Take::Connect);
        slots.give_back("old", 10);
        assert_eq!(slots.take(true, 0), Take::Connect);
        assert_eq!((slots.open(), slots.idle()), (1, 0));
        assert_eq!(slots.take(true, 0), Take::Full);
    }
}
