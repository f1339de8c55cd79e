//! When the sweep must look at each session of one thread.

use std::cell::RefCell;
use std::ops::Range;

/// The tick of each session's next check, by slot.
///
/// Most sessions are idle. The sweep reads four bytes of each here, one after another, and a session only once its tick
/// has come. Whoever changes a session so that a limit may end earlier must call [`soon`](Self::soon). (The entries of
/// [`oroshi_core::Deadlines`] wake a task each; no task waits for a session's limits.)
#[derive(Debug, Default)]
pub(crate) struct Checks {
    ticks: RefCell<Vec<u32>>,
}

impl Checks {
    /// Has a session checked at the next sweep: it is new, or a limit of it may end earlier than before.
    pub(crate) fn soon(&self, slot: u32) {
        self.set(slot, 0);
    }

    /// Sets the tick of a session's next check; 0 is the next sweep's.
    pub(crate) fn set(&self, slot: u32, tick: u32) {
        let (mut ticks, slot) = (self.ticks.borrow_mut(), slot as usize);
        if ticks.len() <= slot {
            ticks.resize(slot + 1, u32::MAX);
        }
        ticks[slot] = tick;
    }

    /// Returns those of some slots whose tick has come, and whether there are slots behind them.
    pub(crate) fn due(&self, slots: Range<usize>, now: u32) -> (Vec<u32>, bool) {
        let ticks = self.ticks.borrow();
        let end = slots.end.min(ticks.len());
        let due = (slots.start..end).filter(|&slot| ticks[slot] <= now).map(|slot| slot as u32).collect();
        (due, end < ticks.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_due_from_their_tick_on() {
        let checks = Checks::default();
        assert_eq!(checks.due(0..10, 5), (vec![], false));
        checks.soon(1);
        checks.set(3, 6);
        checks.soon(12);
        assert_eq!(checks.due(0..10, 5), (vec![1], true));
        assert_eq!(checks.due(0..10, 6), (vec![1, 3], true));
        assert_eq!(checks.due(10..20, 6), (vec![12], false));
        checks.set(1, 7);
        assert_eq!(checks.due(0..10, 6), (vec![3], true));
    }
}
