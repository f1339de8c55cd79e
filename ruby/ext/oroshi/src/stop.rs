//! How a worker was told to stop. `stopping` carries it out.

use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

/// How a worker was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Stop {
    No,
    /// Kept connections get some time for a last request.
    Gently,
    /// The current request is the last.
    Now,
}

/// A [`Stop`] that traps and other threads leave, while the loop may be without Ruby's lock.
#[derive(Debug, Default)]
pub(crate) struct StopNote(AtomicU8);

impl StopNote {
    pub(crate) fn get(&self) -> Stop {
        match self.0.load(Relaxed) {
            0 => Stop::No,
            1 => Stop::Gently,
            _ => Stop::Now,
        }
    }

    /// Notes a stop, unless a quicker one is noted.
    pub(crate) fn raise(&self, stop: Stop) {
        self.0.fetch_max(stop as u8, Relaxed);
    }
}

/// Why the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// A signal or method told it to.
    Stopped,
    /// The lifeline broke.
    ManagerGone,
}
