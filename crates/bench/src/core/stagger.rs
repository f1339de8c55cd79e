//! Staggers connections in a warm-up: each pauses once.
//!
//! Connections that begin together before a server of constant delay stay together: the server gets all requests at
//! once, and none in between. The server's own clock, and CPU time at the edges of the measured part, would see that
//! too.

use std::task::Context;

use super::Core;

/// The most moments of the warm-up at which pauses end. Each moment costs a look at all slots.
const PAUSES: u64 = 512;

/// How a core staggers its slots in a warm-up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stagger {
    /// Position of this core's slots between those of other cores: 0 up to 1.
    phase: f64,
    /// Added to every slot's part: 0 up to 1.
    shift: f64,
    /// Pauses end at multiples of this, nanoseconds.
    step: u64,
}

/// How far a slot has come; times on the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(super) enum StaggerState {
    /// It has sent nothing yet.
    Begins,
    /// It has sent its first request, at this time.
    First(u64),
    /// It waits until this time.
    Pauses(u64),
    /// Its pause is over.
    Done,
}

impl Core {
    /// Staggers slots in a warm-up of `length` nanoseconds: after its first response, each pauses once, for its own
    /// part of the time that this response took.
    ///
    /// Works for a closed loop of one request at a time; elsewhere it does nothing. `phase` (0 up to 1): position of
    /// this core's slots between those of other cores. To be called before [`start`](Self::start).
    pub(crate) fn stagger(&self, length: u64, phase: f64) {
        if self.tickets.is_closed_loop() && self.script.is_none() && self.rules.pipeline == 1 {
            let step = if self.places() as u64 > PAUSES { (length / PAUSES).max(1) } else { 1 };
            // The shift differs in each run, so that an edge of the measured part does not always hit the same slots.
            self.stagger.set(Some(Stagger { phase, shift: fastrand::f64(), step }));
        }
    }

    /// Slots that take tickets.
    fn places(&self) -> usize {
        if self.rules.streams > 0 { self.slots.len() - self.tasks } else { self.slots.len() }
    }

    /// Whether slot `id`, which asks for a request, is to pause first. The core wakes it when the pause is over.
    #[cold]
    pub(super) fn pauses(&self, stagger: Stagger, id: usize, cx: &Context<'_>, now: u64) -> bool {
        let slot = &self.slots[id];
        let until = match slot.stagger.get() {
            StaggerState::Begins => {
                slot.stagger.set(StaggerState::First(now));
                return false;
            }
            StaggerState::First(began) => {
                let number = if self.rules.streams > 0 { id - self.tasks } else { id };
                let position = (number as f64 + stagger.phase) / self.places() as f64 + stagger.shift;
                let pause = (position.fract() * now.saturating_sub(began) as f64) as u64;
                (now + pause).next_multiple_of(stagger.step)
            }
            StaggerState::Pauses(until) => until,
            StaggerState::Done => return false,
        };
        if now >= until {
            slot.stagger.set(StaggerState::Done);
            return false;
        }
        slot.stagger.set(StaggerState::Pauses(until));
        slot.enrol(cx);
        self.wake_at(id, until);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Waker;

    use super::super::{Source, Take};
    use super::*;
    use crate::first::FirstResponse;
    use crate::plan::Draft;
    use crate::rules::Rules;

    const MS: u64 = 1_000_000;

    fn core(slots: usize) -> std::rc::Rc<Core> {
        let plan = Draft { urls: vec!["http://h/".parse().unwrap()], ..Draft::default() }.plan().unwrap();
        let rules = Rules::new(&plan, false, None);
        Core::new(rules, Vec::new(), (slots, 0), Source::Closed, None, Arc::new(FirstResponse::default()))
    }

    /// On a virtual clock: every slot sends as soon as it may, and each response takes `delay`. Returns when each sends
    /// its last request before `end`.
    fn sent(core: &Core, slots: usize, delay: u64, end: u64) -> Vec<u64> {
        let cx = Context::from_waker(Waker::noop());
        let last = |id: usize| {
            let (mut now, mut last) = (0, 0);
            while now < end {
                match core.take_ticket(id, &cx, || now) {
                    Take::Now(ticket) => {
                        last = ticket.due;
                        now += delay;
                    }
                    Take::Wait => now = core.slots[id].deadline.due(),
                    Take::Over => panic!("nothing ends it"),
                }
            }
            last
        };
        (0..slots).map(last).collect()
    }

    #[test]
    fn after_a_warm_up_constant_servers_see_connections_evenly() {
        for (slots, delay) in [(10, 20 * MS), (100, 5 * MS), (2000, 50 * MS)] {
            let core = core(slots);
            core.stagger(250 * MS, 0.0);
            core.start(0);
            let mut phases: Vec<u64> = sent(&core, slots, delay, 240 * MS).iter().map(|at| at % delay).collect();
            phases.sort_unstable();
            // With very many slots pauses end together, at some moments of the warm-up.
            let step = (delay / slots as u64).max(250 * MS / PAUSES);
            let widest = phases.windows(2).map(|two| two[1] - two[0]).max().unwrap();
            assert!(widest <= 2 * step, "{slots} slots: {widest} ns between two, of {delay}");
            let around = phases[0] + delay - phases[slots - 1];
            assert!(around <= 2 * step, "{slots} slots: {around} ns around the edge");
        }
    }

    #[test]
    fn nothing_pauses_in_the_measured_part_or_without_a_warm_up() {
        let slow = core(4);
        slow.stagger(250 * MS, 0.5);
        slow.start(0);
        let cx = Context::from_waker(Waker::noop());
        for id in 0..4 {
            assert!(matches!(slow.take_ticket(id, &cx, || 0), Take::Now(_)));
        }
        // The answers come after the warm-up.
        slow.measure(250 * MS, u64::MAX, None);
        for id in 0..4 {
            assert!(matches!(slow.take_ticket(id, &cx, || 500 * MS), Take::Now(ticket) if ticket.due == 500 * MS));
        }
        let cold = core(4);
        cold.start(0);
        assert_eq!(sent(&cold, 4, 100 * MS, 1000 * MS), [900 * MS; 4], "in step, as they began");
    }
}
