//! The other workers at the same listeners: whether one of them has less to look after, and how it is woken.
//!
//! The kernel gives a new connection to whichever worker it likes. That is fine as long as a worker that takes it has nothing
//! else; but whoever keeps connections and calls an application on its only thread makes them wait for each other. So a
//! worker that keeps some leaves a new one to an idle worker that keeps fewer.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::scoreboard::{Scoreboard, State};
use crate::socket::checked;

/// For so long a connection is left to others. Then, whatever has become of them, it is taken.
pub(crate) const LEFT_FOR: Duration = Duration::from_millis(1);

/// All workers, and which of them this is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peers {
    board: Scoreboard,
    own: usize,
}

impl Peers {
    pub(crate) fn new(board: Scoreboard, own: usize) -> Self {
        Peers { board, own }
    }

    /// The idle worker that keeps the fewest connections, if those are fewer than `connections`. Only workers with a bell count.
    pub(crate) fn freer_than(&self, connections: usize) -> Option<usize> {
        let slots = &self.board.all()[..self.board.bells().len()];
        // From the next one on, so that not everybody thinks of the same.
        let others = (1..=slots.len()).map(|step| (self.own + step) % slots.len()).filter(|&other| other != self.own);
        let idle = others.filter(|&other| slots[other].state() == State::Idle);
        idle.min_by_key(|&other| slots[other].kept()).filter(|&other| slots[other].kept() < connections)
    }

    /// Wakes a worker, so that it looks at the listeners.
    pub(crate) fn wake(&self, other: usize) {
        self.board.bells()[other].ring();
    }

    /// What a worker watches to be woken by the others.
    pub(crate) fn own_bell(&self) -> Option<&'static Bell> {
        self.board.bells().get(self.own)
    }
}

/// An eventfd: one worker's, rung by the others.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: plain numbers.
        let number = checked(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) } as isize)?;
        // SAFETY: a descriptor that was just made.
        Ok(Bell(unsafe { OwnedFd::from_raw_fd(number as RawFd) }))
    }

    pub(crate) fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    fn ring(&self) {
        // SAFETY: eight bytes of a local. It fails only at 2^64 - 1, and has rung then.
        unsafe { libc::write(self.number(), (&raw const ONE).cast(), size_of::<u64>()) };
    }

    /// Forgets that it has rung.
    pub(crate) fn quiet(&self) {
        let mut count = 0_u64;
        // SAFETY: room for eight bytes. It fails only if it has not rung.
        unsafe { libc::read(self.number(), (&raw mut count).cast(), size_of::<u64>()) };
    }
}

static ONE: u64 = 1;

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
    fn a_bell_rings_until_it_is_quieted() {
        let board = board(2);
        let rings = |slot: usize| {
            let mut poll = libc::pollfd { fd: board.bells()[slot].number(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one pollfd.
            unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
        };
        Peers::new(board, 0).wake(1);
        Peers::new(board, 0).wake(1);
        assert_eq!((rings(0), rings(1)), (false, true));
        Peers::new(board, 1).own_bell().unwrap().quiet();
        assert!(!rings(1));
    }
}
