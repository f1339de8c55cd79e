//! Finds other workers with fewer connections, and wakes them. A worker's threads count as workers here.
//!
//! The kernel gives a new connection to any worker. If that worker keeps other connections, and calls the application
//! on its only thread, they make each other wait. So such a worker leaves the new connection to an idle worker that
//! keeps fewer.

use std::time::Duration;

use crate::scoreboard::Scoreboard;
use crate::slot::State;
use crate::waker::Waker;

/// How long a connection is left to others. Then this worker accepts it in any case.
pub(crate) const LEFT_FOR: Duration = Duration::from_millis(1);

/// All workers, and this one's slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peers {
    board: Scoreboard,
    own: usize,
}

impl Peers {
    pub(crate) fn new(board: Scoreboard, own: usize) -> Self {
        Peers { board, own }
    }

    /// Returns the idle thread of any worker whose worker has the fewest busy threads, and of these the one that keeps
    /// the fewest connections; if it is freer than this thread with so many connections. Only threads with a waker
    /// count.
    pub(crate) fn freer_than(&self, connections: usize) -> Option<usize> {
        let slots = &self.board.all()[..self.board.wakers().len()];
        // Starts after the own slot, so that workers with equal numbers do not all choose the same one.
        let others = (1..=slots.len()).map(|step| (self.own + step) % slots.len()).filter(|&other| other != self.own);
        let idle = others.filter(|&other| slots[other].state() == State::Idle);
        let rank = |index: usize| (self.busy_threads(index), slots[index].kept());
        let own_rank = if connections == usize::MAX {
            (usize::MAX, connections)
        } else {
            (self.busy_threads(self.own), connections)
        };
        idle.min_by_key(|&other| rank(other)).filter(|&other| rank(other) < own_rank)
    }

    /// Returns how many threads of a worker are busy, without the own one; 0 where workers have one thread. They share
    /// Ruby's lock.
    fn busy_threads(&self, index: usize) -> usize {
        if self.board.threads().most == 1 {
            return 0;
        }
        let own = self.board.all()[self.own].address();
        self.board.siblings(index).iter().filter(|slot| slot.state().is_busy() && slot.address() != own).count()
    }

    /// Returns an idle thread of a worker with fewer busy threads than this one's.
    pub(crate) fn of_freer_worker(&self) -> Option<usize> {
        if self.busy_threads(self.own) == 0 { None } else { self.freer_than(0) }
    }

    /// Wakes a worker, so that it looks at the listeners.
    pub(crate) fn wake(&self, other: usize) {
        self.board.wakers()[other].wake();
    }

    /// Returns the waker that this worker watches.
    pub(crate) fn own_waker(&self) -> Option<&'static Waker> {
        self.board.wakers().get(self.own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scoreboard::tests::{board, board_of_threads};

    #[test]
    fn the_idle_worker_that_keeps_the_fewest_is_found() {
        let board = board(5);
        let peers = Peers::new(board, 1);
        assert_eq!(peers.freer_than(9), None, "nobody is there");
        for (slot, (state, kept)) in
            [(State::Idle, 3), (State::Idle, 0), (State::App, 0), (State::Idle, 2), (State::Stopping, 0)]
                .into_iter()
                .enumerate()
        {
            board.all()[slot].set_state(state);
            board.all()[slot].keep(kept);
        }
        assert_eq!(peers.freer_than(9), Some(3));
        assert_eq!(peers.freer_than(3), Some(3));
        assert_eq!(peers.freer_than(2), None, "they keep as many");
        board.all()[0].keep(2);
        assert_eq!(Peers::new(board, 2).freer_than(3), Some(1));
        assert_eq!(Peers::new(board, 1).freer_than(3), Some(3), "of equals, the next");
    }

    #[test]
    fn an_idle_thread_of_a_worker_without_busy_threads_comes_first() {
        let board = board_of_threads(3, 2);
        let set = |states: [State; 6]| board.all().iter().zip(states).for_each(|(slot, state)| slot.set_state(state));
        // Slots 0 and 1 are the first worker's.
        set([State::Idle, State::App, State::Idle, State::App, State::Idle, State::Idle]);
        board.all()[4].keep(3);
        board.all()[5].keep(2);
        let peers = Peers::new(board, 0);
        assert_eq!(peers.freer_than(usize::MAX), Some(5));
        assert_eq!(peers.freer_than(0), Some(5), "its worker's lock is free");
        assert_eq!(peers.of_freer_worker(), Some(5));
        set([State::Idle, State::Idle, State::Idle, State::App, State::App, State::Idle]);
        assert_eq!((peers.of_freer_worker(), peers.freer_than(0)), (None, None));
        assert_eq!(peers.freer_than(1), Some(1), "it keeps fewer");
        set([State::Idle, State::App, State::Resting, State::Resting, State::Stopping, State::Starting]);
        assert_eq!((peers.of_freer_worker(), peers.freer_than(usize::MAX)), (None, None), "nobody takes connections");
    }

    #[test]
    fn a_worker_stays_woken_until_its_waker_is_cleared() {
        let board = board(2);
        let is_woken = |slot: usize| {
            let mut poll = libc::pollfd { fd: board.wakers()[slot].number(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one pollfd.
            unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
        };
        Peers::new(board, 0).wake(1);
        Peers::new(board, 0).wake(1);
        assert_eq!((is_woken(0), is_woken(1)), (false, true));
        Peers::new(board, 1).own_waker().unwrap().clear();
        assert!(!is_woken(1));
    }
}
