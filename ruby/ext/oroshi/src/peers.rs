//! Finds other workers with fewer connections, and wakes them.
//!
//! The kernel gives a new connection to any worker. If that worker keeps other connections, and calls the application
//! on its only thread, they make each other wait. So such a worker leaves the new connection to an idle worker that
//! keeps fewer.

use std::time::Duration;

use crate::scoreboard::{Scoreboard, State};
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

    /// Returns the idle worker that keeps the fewest connections, if fewer than `connections`. Only workers with a
    /// waker count.
    pub(crate) fn freer_than(&self, connections: usize) -> Option<usize> {
        let slots = &self.board.all()[..self.board.wakers().len()];
        // Begins at the next slot, so that workers do not all choose the same one.
        let others = (1..=slots.len()).map(|step| (self.own + step) % slots.len()).filter(|&other| other != self.own);
        let idle = others.filter(|&other| slots[other].state() == State::Idle);
        idle.min_by_key(|&other| slots[other].kept()).filter(|&other| slots[other].kept() < connections)
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
    use crate::scoreboard::tests::board;

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
