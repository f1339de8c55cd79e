//! Disturbed runs: the machine had other work. Decides when they forbid a verdict.
//!
//! A run is *disturbed* when processes of others took more than [`OTHERS`] of the CPUs that it could use, or other
//! machines on this host took more than [`STOLEN`] of one of them (steal). If the share of such runs on either side
//! exceeds the rule's limit ([`Rules::disturbed`](crate::plan::Rules::disturbed)), rates and latencies get no verdict.
//! CPU time per request and memory still may. All of this looks at the machine, never at the figures, so repeating a
//! disturbed block does not choose among results.

use oroshi_bench::Record;
use oroshi_words::units;

use crate::metric::Metric;
use crate::result::{MachineUse, Run};

/// Other processes disturb a run from this share of its CPUs.
pub const OTHERS: f64 = 0.1;
/// Other machines disturb a run from this share of one of its CPUs.
pub const STOLEN: f64 = 0.05;

/// Whether other work on the machine distorts a metric: scores, rates and response times.
#[must_use]
pub fn is_sensitive(metric: Metric) -> bool {
    metric.is_throughput() || metric.is_latency()
}

/// Whether a run was disturbed, as far as is known.
#[must_use]
pub fn is_disturbed(run: &Run) -> bool {
    run.machine.as_ref().is_some_and(|machine| took(machine) || stole(machine))
}

fn took(machine: &MachineUse) -> bool {
    machine.others.is_some_and(|others| others > OTHERS * machine.cpus as f64)
}

fn stole(machine: &MachineUse) -> bool {
    machine.stolen.is_some_and(|stolen| stolen > STOLEN)
}

/// Returns the other work on this machine (`here`) or on the agents' machines, where it took more. A record without
/// agents changes nothing.
pub(crate) fn worst(here: Option<MachineUse>, record: Option<&Record>) -> Option<MachineUse> {
    let Some(machine) = record.filter(|record| !record.agents.is_empty()).and_then(|record| record.machine.as_ref())
    else {
        return here;
    };
    let there = MachineUse { cpus: machine.cpus.max(1), others: machine.others_cpus, stolen: machine.steal_share };
    let Some(here) = here else { return Some(there) };
    let share = |machine: &MachineUse| machine.others.unwrap_or(0.0) / machine.cpus.max(1) as f64;
    let more = if share(&there) > share(&here) { there } else { here };
    Some(MachineUse { stolen: here.stolen.into_iter().chain(there.stolen).reduce(f64::max), ..more })
}

/// Says what disturbed a run, if anything did.
#[must_use]
pub fn words(machine: &MachineUse) -> Option<String> {
    let others = machine.others.filter(|_| took(machine)).map(|others| {
        let cpus = match machine.cpus {
            1 => "the only CPU".to_owned(),
            cpus => format!("the {cpus} CPUs"),
        };
        format!("other processes took {} of {cpus} that it could use", units::number(others))
    });
    let stolen = machine.stolen.filter(|_| stole(machine));
    let stolen =
        stolen.map(|share| format!("other machines on this host took {} of a CPU (steal)", units::percent(share)));
    let both: Vec<String> = others.into_iter().chain(stolen).collect();
    (!both.is_empty()).then(|| {
        format!("disturbed: {}; CPU time per request still compares, rates and latencies do not", both.join(", and "))
    })
}

/// Counts disturbed runs, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Disturbed {
    pub(crate) runs: usize,
    pub(crate) disturbed: usize,
    others: usize,
    stolen: usize,
}

impl Disturbed {
    pub(crate) fn of<'a>(runs: impl Iterator<Item = &'a Run>) -> Self {
        let mut all = Self::default();
        for run in runs {
            let by = |what: fn(&MachineUse) -> bool| usize::from(run.machine.as_ref().is_some_and(what));
            all.runs += 1;
            all.disturbed += usize::from(is_disturbed(run));
            all.others += by(took);
            all.stolen += by(stole);
        }
        all
    }

    /// Whether more than this share of the runs were disturbed.
    pub(crate) fn is_above(self, limit: f64) -> bool {
        self.disturbed as f64 > limit * self.runs as f64
    }

    /// `in 7 of 10 runs of b other processes took more than 10 % of the CPUs`.
    pub(crate) fn say(self, name: &str) -> String {
        let who = match (self.others, self.stolen) {
            (_, 0) => format!("other processes took more than {} of the CPUs", units::percent(OTHERS)),
            (0, _) => format!("other machines on this host took more than {} of a CPU (steal)", units::percent(STOLEN)),
            _ => "other processes and other machines on this host took the CPUs".to_owned(),
        };
        format!("in {} of {} of {name} {who}", self.disturbed, units::plural(self.runs as u64, "run"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::run;

    fn with(cpus: usize, others: Option<f64>, stolen: Option<f64>) -> Run {
        Run { machine: Some(MachineUse { cpus, others, stolen }), ..run(0, 0, &[]) }
    }

    #[test]
    fn a_run_is_disturbed_by_what_others_took_of_the_cpus_that_it_could_use() {
        assert!(!is_disturbed(&run(0, 0, &[])), "of earlier results it is not known");
        for (cpus, others, stolen, disturbed) in [
            (2, Some(0.2), Some(0.05), false),
            (2, Some(0.21), None, true),
            (16, Some(1.0), None, false),
            (1, Some(0.11), None, true),
            (2, None, Some(0.06), true),
            (2, None, None, false),
        ] {
            let run = with(cpus, others, stolen);
            assert_eq!(is_disturbed(&run), disturbed, "{run:?}");
            assert_eq!(run.machine.as_ref().and_then(words).is_some(), disturbed, "{run:?}");
        }
    }

    #[test]
    fn other_work_on_an_agent_s_machine_counts_as_well() {
        let mut record = crate::sample::record(&oroshi_bench::Load::Closed, 10, "server-bound");
        let machine = |cpus, others, stolen| Some(MachineUse { cpus, others, stolen });
        let here = machine(4, Some(0.2), Some(0.01));
        record.machine = serde_json::from_value(serde_json::json!({
            "cpus": 2, "busy_share": null, "steal_share": 0.2, "others_cpus": 0.9, "disturbed": false, "why": []
        }))
        .unwrap();
        assert_eq!(worst(here, Some(&record)), here, "a run of this process alone");
        record.agents = serde_json::from_value(serde_json::json!([{
            "name": "a", "state": "done", "elapsed_s": 1.0, "started": 1, "completed": 1, "failed": 0, "unsent": 0,
            "errors": 0, "thread_cpu": [], "p99_ns": null, "lateness_p99_ns": null, "clock_bound_ns": null,
            "start_late_ns": null
        }]))
        .unwrap();
        assert_eq!(worst(here, Some(&record)), machine(2, Some(0.9), Some(0.2)));
        assert_eq!(worst(machine(4, Some(3.0), None), Some(&record)), machine(4, Some(3.0), Some(0.2)));
        assert_eq!(worst(None, Some(&record)), machine(2, Some(0.9), Some(0.2)));
    }

    #[test]
    fn what_disturbed_is_said() {
        let said = words(&MachineUse { cpus: 2, others: Some(0.9), stolen: Some(0.12) }).unwrap();
        for part in ["took 0.9", "of the 2 CPUs", "12 % of a CPU (steal)"] {
            assert!(said.contains(part), "`{part}`: {said}");
        }
        let runs = [with(2, Some(0.9), None), with(2, None, Some(0.9)), with(2, None, None)];
        let all = Disturbed::of(runs.iter());
        assert_eq!((all.runs, all.disturbed), (3, 2));
        assert!(all.is_above(0.66) && !all.is_above(0.67) && !all.is_above(1.0));
        assert!(all.say("b").starts_with("in 2 of 3 runs of b other processes and other machines"), "{}", all.say("b"));
    }
}
