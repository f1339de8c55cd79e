//! How connections come to be out of step in a warm-up: each pauses once.
//!
//! Connections that begin together before a server of constant delay stay together: it gets all requests at once, and nothing in
//! between. A server's own clock, and CPU time at the edges of the measured part, would see them so too.

use std::task::Context;

use super::{Core, Source};

/// With more slots than this, pauses that put them out of step end at so many moments of the warm-up: each costs a look at all slots.
const PAUSES: u64 = 512;

/// How slots come to be out of step in a warm-up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    /// Where this core's slots stand between those of others: 0 up to 1.
    phase: f64,
    /// What is added to every slot's part: 0 up to 1.
    shift: f64,
    /// Pauses end at multiples of this, nanoseconds.
    step: u64,
}

/// A slot's way to its own place; times on the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// It has sent nothing yet.
    Begins,
    /// It has sent its first request, at this time.
    First(u64),
    /// It waits until this time.
    Pauses(u64),
    /// It has its place.
    Goes,
}

impl Core {
    /// Puts slots out of step in a warm-up of `length` nanoseconds: after its first answer, each pauses once for its own part of the time
    /// that this answer took. For a closed loop of one request at a time; elsewhere it does nothing. `phase` (0 up to 1): where this
    /// core's slots stand between those of others. Before [`start`](Self::start).
    pub(crate) fn put_out_of_step(&self, length: u64, phase: f64) {
        let closed = matches!(*self.source.borrow(), Source::Closed);
        if closed && self.script.is_none() && self.rules.pipeline == 1 {
            let step = if self.slots.len() as u64 > PAUSES { (length / PAUSES).max(1) } else { 1 };
            // Another place in each run: nothing that happens at an edge of the measured part always hits the same slots.
            self.spread.set(Some(Spread { phase, shift: fastrand::f64(), step }));
        }
    }

    /// Whether slot `id`, which asks for a request, is to pause first. It is woken when the pause is over.
    #[cold]
    pub(super) fn pauses(&self, spread: Spread, id: usize, cx: &Context<'_>, now: u64) -> bool {
        let slot = &self.slots[id];
        let until = match slot.step.get() {
            Step::Begins => {
                slot.step.set(Step::First(now));
                return false;
            }
            Step::First(began) => {
                let place = (id as f64 + spread.phase) / self.slots.len() as f64 + spread.shift;
                let pause = (place.fract() * now.saturating_sub(began) as f64) as u64;
                (now + pause).next_multiple_of(spread.step)
            }
            Step::Pauses(until) => until,
            Step::Goes => return false,
        };
        if now >= until {
            slot.step.set(Step::Goes);
            return false;
        }
        slot.step.set(Step::Pauses(until));
        slot.enrol(cx);
        self.rest_until(id, until);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Waker;

    use oroshi_http1::Limits;

    use super::super::{Rules, Take};
    use super::*;
    use crate::answer::First;

    const MS: u64 = 1_000_000;

    fn core(slots: usize) -> std::rc::Rc<Core> {
        let rules = Rules {
            timeout: 2000 * MS,
            pipeline: 1,
            per_connection: u64::MAX,
            connect_per_request: false,
            checks: Arc::new([]),
            status_checked: false,
            limits: Limits::default(),
            interval_histograms: false,
            connection_times: false,
            each_request: false,
            open: false,
        };
        Core::new(rules, Vec::new(), slots, Source::Closed, None, Arc::new(First::default()))
    }

    /// On a virtual clock: every slot sends as soon as it may, and each answer takes `delay`. When each sends its last request before `end`.
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
            core.put_out_of_step(250 * MS, 0.0);
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
        slow.put_out_of_step(250 * MS, 0.5);
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
