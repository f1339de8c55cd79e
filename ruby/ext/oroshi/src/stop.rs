//! How a worker was told to stop. `stopping` carries it out.

/// How a worker was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stop {
    No,
    /// Kept connections get some time for a last request.
    Gently,
    /// The current request is the last.
    Now,
}

/// Why the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// A signal or method told it to.
    Stopped,
    /// The lifeline broke.
    ManagerGone,
}
