//! Where a core is in the run, and the moments that divide it.

use std::cell::Cell;

/// Where a core is in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Connections are being made; no request goes out yet.
    Connecting,
    /// Requests go out: the warm-up, then the measured part.
    Running,
    /// The measured part is over. No request goes out; the core awaits responses, because their times count.
    Draining,
    /// Requests that are still on the wire are cut off.
    Over,
}

/// The phase of a run, and the edges of its measured part; nanoseconds of the monotonic clock.
#[derive(Debug)]
pub(crate) struct Timeline {
    phase: Cell<Phase>,
    measure_from: Cell<u64>,
    over_since: Cell<u64>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { phase: Cell::new(Phase::Connecting), measure_from: Cell::new(0), over_since: Cell::new(0) }
    }
}

impl Timeline {
    #[inline]
    pub(crate) fn phase(&self) -> Phase {
        self.phase.get()
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.phase.set(phase);
    }

    pub(super) fn finish(&self, now: u64) {
        self.phase.set(Phase::Over);
        self.over_since.set(now);
    }

    pub(super) fn measure_from(&self, from: u64) {
        self.measure_from.set(from);
    }

    /// Whether the warm-up or the measured part lasts.
    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        self.phase.get() == Phase::Running
    }

    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.phase.get() == Phase::Over
    }

    /// Whether a request that is due then belongs to the measured part, and not to the warm-up.
    #[inline]
    pub(crate) fn measures(&self, due: u64) -> bool {
        due >= self.measure_from.get()
    }

    /// When the run ended: requests on their way took at least until then, however late their slots notice.
    pub(crate) fn over_since(&self) -> u64 {
        self.over_since.get()
    }
}
