//! Clients that wait for the outcome of a restart.

use tokio::sync::oneshot;

use crate::control::Outcome;
use crate::machine::{GenerationId, Machine, Verdict};

/// The waiting clients.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Vec<Waiter>);

#[derive(Debug)]
struct Waiter {
    /// The first generation that counts: earlier ones had started before the request.
    from: u64,
    /// Whether the first attempt counts, even if another follows.
    first: bool,
    /// The ready generation, until the older ones have ended.
    ready: Option<GenerationId>,
    reply: oneshot::Sender<Outcome>,
}

impl Waiting {
    /// Adds a client before the machine handles its request.
    pub(crate) fn add(&mut self, machine: &Machine, first: bool, reply: oneshot::Sender<Outcome>) {
        self.0.push(Waiter { from: machine.next_number(), first, ready: None, reply });
    }

    /// Handles the result of an attempt.
    pub(crate) fn attempt_ended(&mut self, verdict: &Verdict) {
        let waiting = std::mem::take(&mut self.0);
        for mut waiter in waiting {
            match verdict {
                Verdict::Ready(who) => {
                    if who.number >= waiter.from {
                        waiter.ready = Some(who.clone());
                    }
                    self.0.push(waiter);
                }
                Verdict::Failed { number, why, stays, again } if *number >= waiter.from && (waiter.first || !again) => {
                    let stays = stays.as_ref().map(|who| who.number);
                    let failed = Outcome::Failed { generation: *number, why: why.clone(), stays, again: *again };
                    // The client may have gone.
                    let _ = waiter.reply.send(failed);
                }
                Verdict::Failed { .. } => self.0.push(waiter),
            }
        }
    }

    /// Checks for ended generations and clients.
    pub(crate) fn look(&mut self, machine: &Machine) {
        self.0.retain(|waiter| !waiter.reply.is_closed());
        let waiting = std::mem::take(&mut self.0);
        for mut waiter in waiting {
            let older = |who: &GenerationId| machine.generations().iter().any(|one| one.number < who.number);
            let ended = |who: &GenerationId| machine.generations().iter().all(|one| one.number != who.number);
            match &waiter.ready {
                // It was ready, and has ended: nothing was replaced.
                Some(who) if ended(who) && !machine.is_stopping() => {
                    if !waiter.first {
                        waiter.ready = None;
                        self.0.push(waiter);
                        continue;
                    }
                    let stays = machine.current().map(|one| one.number);
                    let why = "it ended soon after it had become ready".to_owned();
                    let failed = Outcome::Failed { generation: who.number, why, stays, again: machine.will_start() };
                    let _ = waiter.reply.send(failed);
                }
                Some(who) if !older(who) => {
                    let replaced = Outcome::Replaced { generation: who.number, pid: who.pid.unwrap_or_default() };
                    let _ = waiter.reply.send(replaced);
                }
                _ if machine.is_stopping() => _ = waiter.reply.send(Outcome::Ending),
                _ => self.0.push(waiter),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rustix::process::Signal;
    use tokio::sync::oneshot::Receiver;

    use super::*;
    use crate::machine::{Event, Policy, Readiness, Tunables};

    fn ask(waiting: &mut Waiting, machine: &Machine, first: bool) -> Receiver<Outcome> {
        let (reply, outcome) = oneshot::channel();
        waiting.add(machine, first, reply);
        outcome
    }

    /// Makes a machine whose generations are ready at once, with two clients: one waits for a success, one for the
    /// first attempt.
    fn asked() -> (Machine, Waiting, Receiver<Outcome>, Receiver<Outcome>) {
        let policy = Policy {
            interval: Duration::ZERO,
            readiness: Readiness::Alive,
            keep_trying: true,
            signal_on_hup: Signal::TERM,
            signal_on_term: Signal::TERM,
            stop_timeout: None,
        };
        let machine = Machine::new(policy, Tunables::default());
        let mut waiting = Waiting::default();
        let (patient, hasty) = (ask(&mut waiting, &machine, false), ask(&mut waiting, &machine, true));
        (machine, waiting, patient, hasty)
    }

    /// Starts generation `number` as process 7, and makes it ready.
    fn starts(machine: &mut Machine, waiting: &mut Waiting, number: u64) {
        machine.handle(Instant::now(), Event::Begin);
        machine.handle(Instant::now(), Event::Started { number, pid: 7 });
        waiting.attempt_ended(&Verdict::Ready(GenerationId { number, pid: Some(7) }));
    }

    #[test]
    fn a_first_failure_is_enough_for_those_who_said_so() {
        let (mut machine, mut waiting, mut patient, mut hasty) = asked();
        let failed = |number| Verdict::Failed { number, why: "x".into(), stays: None, again: true };
        waiting.attempt_ended(&failed(0));
        assert!(hasty.try_recv().is_err(), "of one before that was asked");
        waiting.attempt_ended(&failed(1));
        let outcome = Outcome::Failed { generation: 1, why: "x".into(), stays: None, again: true };
        assert_eq!(hasty.try_recv(), Ok(outcome));
        assert!(patient.try_recv().is_err());
        starts(&mut machine, &mut waiting, 2);
        waiting.look(&machine);
        assert_eq!(patient.try_recv(), Ok(Outcome::Replaced { generation: 2, pid: 7 }));
    }

    #[test]
    fn one_that_was_ready_and_has_ended_replaces_nothing() {
        let (mut machine, mut waiting, mut patient, mut hasty) = asked();
        starts(&mut machine, &mut waiting, 1);
        machine.handle(Instant::now(), Event::Exited { pid: 7, how: "exit code 1".into(), code: Some(1) });
        waiting.look(&machine);
        assert!(matches!(hasty.try_recv(), Ok(Outcome::Failed { generation: 1, again: true, stays: None, .. })));
        assert!(patient.try_recv().is_err(), "another attempt follows");
        starts(&mut machine, &mut waiting, 2);
        waiting.look(&machine);
        assert_eq!(patient.try_recv(), Ok(Outcome::Replaced { generation: 2, pid: 7 }));
    }

    #[test]
    fn who_has_gone_away_is_forgotten() {
        let (machine, mut waiting, patient, _hasty) = asked();
        drop(patient);
        waiting.look(&machine);
        assert_eq!(waiting.0.len(), 1);
    }
}
