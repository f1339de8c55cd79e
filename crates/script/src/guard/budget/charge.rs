//! Work that functions of ours do for a call: it counts against the call's instructions.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Budget, MOST_OUTSIDE, STEP};
use crate::guard::{Handle, NONE, Why};

impl Handle {
    /// How many instructions are left to the call that is under way; `None` where they are not counted. To be asked on the state's thread, from
    /// within a function that the state has called.
    pub(crate) fn left(&self) -> Option<u64> {
        let budget = self.watched.budget.as_ref()?;
        if self.watched.running.load(Ordering::Relaxed) == NONE {
            // A metamethod, when somebody looks at a value between two calls.
            return Some(u64::from(STEP * MOST_OUTSIDE));
        }
        Some(budget.end())
    }

    /// Counts work as so many instructions. With more than are left the call ends at the script's next instruction. As [`left`](Self::left).
    pub(crate) fn charge(&self, instructions: u64) {
        let Some(budget) = &self.watched.budget else { return };
        if self.watched.running.load(Ordering::Relaxed) != NONE && !budget.charge(instructions) {
            self.exhaust();
        }
    }

    /// Ends the call that is under way, if there is one, at the script's next instruction, as one that took more than it may. As
    /// [`left`](Self::left).
    pub(crate) fn exhaust(&self) {
        let running = self.watched.running.load(Ordering::Relaxed);
        if running == NONE {
            return;
        }
        let mut seen = self.watched.seen();
        // As if it had been looked at: the next look is at the same call.
        (seen.call, seen.held) = (running, Duration::ZERO);
        seen.order = Some((Instant::now(), Why::Instructions));
        self.watched.ordered.store(running, Ordering::Relaxed);
        seen.hook();
    }
}

impl Budget {
    /// Whether so many instructions are left; they are taken then. The countdown to the next step stays as it is.
    fn charge(&self, instructions: u64) -> bool {
        if instructions >= self.end() {
            return false;
        }
        // What the countdown has taken so far is in this number still.
        let left = self.left.load(Ordering::Relaxed) - instructions;
        self.left.store(left, Ordering::Relaxed);
        true
    }
}
