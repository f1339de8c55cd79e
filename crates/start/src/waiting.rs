//! Those who have asked for a restart and wait for what comes of it.

use tokio::sync::oneshot;

use crate::control::Outcome;
use crate::machine::{Machine, Verdict, Who};

/// Whoever waits, and for what.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Vec<Waiter>);

#[derive(Debug)]
struct Waiter {
    /// The first generation that counts: those before it were under way when this was asked.
    from: u64,
    /// Whether the first attempt counts, even if another follows.
    first: bool,
    /// The generation that serves, while the older ones have not ended.
    serves: Option<Who>,
    reply: oneshot::Sender<Outcome>,
}

impl Waiting {
    /// One more, who has just asked and not been heard.
    pub(crate) fn add(&mut self, machine: &Machine, first: bool, reply: oneshot::Sender<Outcome>) {
        self.0.push(Waiter { from: machine.next_number(), first, serves: None, reply });
    }

    /// An attempt has come out.
    pub(crate) fn come_out(&mut self, verdict: &Verdict) {
        let waiting = std::mem::take(&mut self.0);
        for mut waiter in waiting {
            match verdict {
                Verdict::Ready(who) => {
                    if who.number >= waiter.from {
                        waiter.serves = Some(who.clone());
                    }
                    self.0.push(waiter);
                }
                Verdict::Failed { number, why, stays, again } if *number >= waiter.from && (waiter.first || !again) => {
                    let stays = stays.as_ref().map(|who| who.number);
                    let failed = Outcome::Failed { generation: *number, why: why.clone(), stays, again: *again };
                    // Whoever has gone away need not know.
                    let _ = waiter.reply.send(failed);
                }
                Verdict::Failed { .. } => self.0.push(waiter),
            }
        }
    }

    /// Something may have ended.
    pub(crate) fn look(&mut self, machine: &Machine) {
        let waiting = std::mem::take(&mut self.0);
        for waiter in waiting {
            let older = |who: &Who| machine.generations().iter().any(|one| one.number < who.number);
            match &waiter.serves {
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
    use std::time::Duration;

    use rustix::process::Signal;
    use tokio::sync::oneshot::Receiver;

    use super::*;
    use crate::machine::{Policy, Readiness, Tunables};

    fn ask(waiting: &mut Waiting, machine: &Machine, first: bool) -> Receiver<Outcome> {
        let (reply, outcome) = oneshot::channel();
        waiting.add(machine, first, reply);
        outcome
    }

    #[test]
    fn a_first_failure_is_enough_for_those_who_said_so() {
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
        let (mut patient, mut hasty) = (ask(&mut waiting, &machine, false), ask(&mut waiting, &machine, true));
        let failed = |number| Verdict::Failed { number, why: "x".into(), stays: None, again: true };
        waiting.come_out(&failed(0));
        assert!(hasty.try_recv().is_err(), "of one before that was asked");
        waiting.come_out(&failed(1));
        let outcome = Outcome::Failed { generation: 1, why: "x".into(), stays: None, again: true };
        assert_eq!(hasty.try_recv(), Ok(outcome));
        assert!(patient.try_recv().is_err());
        waiting.come_out(&Verdict::Ready(Who { number: 2, pid: Some(7) }));
        waiting.look(&machine);
        assert_eq!(patient.try_recv(), Ok(Outcome::Replaced { generation: 2, pid: 7 }));
    }
}
