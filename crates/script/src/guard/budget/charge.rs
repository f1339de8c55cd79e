//! Charges the work of our functions to a call's instructions.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Budget, MOST_OUTSIDE, STEP};
use crate::guard::{Handle, NONE, Reason};

impl Handle {
    /// Returns the instructions left to the call in progress; `None` if they are not counted. Call it on the state's
    /// thread, from within a function called by the state.
    pub(crate) fn left(&self) -> Option<u64> {
        let budget = self.watched.budget.as_ref()?;
        if self.watched.running.load(Ordering::Relaxed) == NONE {
            // A metamethod that runs when Rust reads a value between two calls.
            return Some(u64::from(STEP * MOST_OUTSIDE));
        }
        Some(budget.end())
    }

    /// Charges work as this many instructions. If fewer are left, the call ends at the script's next instruction.
    /// Callers: as for [`left`](Self::left).
    pub(crate) fn charge(&self, instructions: u64) {
        let Some(budget) = &self.watched.budget else { return };
        if self.watched.running.load(Ordering::Relaxed) != NONE && !budget.charge(instructions) {
            self.exhaust();
        }
    }

    /// Ends any call in progress at the script's next instruction, as over its limit. Callers: as for
    /// [`left`](Self::left).
    pub(crate) fn exhaust(&self) {
        let running = self.watched.running.load(Ordering::Relaxed);
        if running == NONE {
            return;
        }
        let mut seen = self.watched.seen();
        // Pretends a check now: the next check sees the same call.
        (seen.call, seen.held) = (running, Duration::ZERO);
        seen.order = Some((Instant::now(), Reason::Instructions));
        self.watched.ordered.store(running, Ordering::Relaxed);
        seen.hook();
    }
}

impl Budget {
    /// Takes this many instructions, and returns whether they were left. The countdown to the next step stays
    /// unchanged.
    fn charge(&self, instructions: u64) -> bool {
        if instructions >= self.end() {
            return false;
        }
        // This number still includes the steps that the countdown has taken.
        let left = self.left.load(Ordering::Relaxed) - instructions;
        self.left.store(left, Ordering::Relaxed);
        true
    }
}
