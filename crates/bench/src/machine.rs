//! Other activity of the machine during the measured part: steal, other processes, full listen queues.

use std::time::{Duration, Instant};

use oroshi_net::Peer;
use oroshi_net::clock::process_cpu_ns;
use serde::{Deserialize, Serialize};

use crate::backlog::Backlogs;
use crate::environment::StealMeter;
use crate::watch::{Clocks, ServerUsage, Watch};

/// From this share of a CPU that other virtual machines took, or these CPUs that other processes used, a run is
/// doubtful.
const STEAL_WORTH_A_WARNING: f64 = 0.02;
pub(crate) const OTHERS_WORTH_A_WARNING: f64 = 0.25;
/// The kernel counts both in ticks of 10 ms: one or two of them are no evidence. Seconds, per CPU.
const NO_EVIDENCE: f64 = 0.02;

/// Meters of the machine over the measured part.
pub(crate) struct Machine {
    began: Instant,
    /// CPU time of this process so far, nanoseconds.
    cpu_ns: u64,
    steal: Option<StealMeter>,
    backlogs: Backlogs,
}

pub(crate) struct MachineUse {
    /// Time between the readings of the meters: this thread may have had to wait for a CPU.
    pub(crate) elapsed: Duration,
    pub(crate) server: Option<ServerUsage>,
    pub(crate) state: MachineRecord,
    pub(crate) warnings: Vec<String>,
    /// CPUs' worth of time that this process used.
    pub(crate) cpu_cpus: f64,
}

/// Names of disturbances, as in [`MachineRecord::why`].
pub(crate) const STEAL: &str = "steal";
pub(crate) const OTHER_PROCESSES: &str = "other-processes";
pub(crate) const GENERATOR_BOUND: &str = "generator-bound";

/// Other activity of the machine during a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineRecord {
    /// CPUs that are online.
    pub cpus: usize,
    /// The share of their time that any process or other virtual machine used. `None`: not known.
    pub busy_share: Option<f64>,
    /// The share of time that other virtual machines took from the CPU that lost most. `None`: not known.
    pub steal_share: Option<f64>,
    /// CPUs' worth of time that neither the server nor oroshi used. `None`: the server's share is not known.
    pub others_cpus: Option<f64>,
    /// Whether something took CPU time that the two sides needed: rates and latencies are not those of an idle machine.
    pub disturbed: bool,
    /// The causes: `steal`, `other-processes`, `generator-bound`.
    pub why: Vec<String>,
}

impl MachineRecord {
    pub(crate) fn disturb(&mut self, why: &str) {
        self.disturbed = true;
        self.why.push(why.to_owned());
    }
}

impl Machine {
    /// Begins to measure. `peers`: the addresses of each measured server.
    pub(crate) fn begin(peers: &[Vec<Peer>], watch: Option<&mut Watch>) -> Self {
        let backlogs = Backlogs::begin(peers);
        let steal = StealMeter::begin();
        if let Some(watch) = watch {
            watch.begin();
        }
        Self { began: Instant::now(), cpu_ns: process_cpu_ns(), steal, backlogs }
    }

    pub(crate) fn finish(self, watch: Option<&mut Watch>, clocks: &Clocks) -> MachineUse {
        let looked = self.began.elapsed();
        let server = watch.and_then(|watch| watch.finish(looked, clocks));
        let mut warnings = Vec::new();
        let mut state = MachineRecord::default();
        let elapsed = self.began.elapsed().as_secs_f64();
        let ours = (process_cpu_ns() - self.cpu_ns) as f64 / 1e9;
        if let Some(shares) = self.steal.and_then(StealMeter::finish) {
            let worst = shares.worst_share();
            state.cpus = shares.cpus.len();
            state.steal_share = Some(worst);
            let stolen = shares.cpus.iter().map(|cpu| cpu.steal).sum::<f64>() / shares.cpus.len().max(1) as f64;
            state.busy_share = Some(shares.busy() + stolen);
            if worst > STEAL_WORTH_A_WARNING && worst * elapsed > NO_EVIDENCE {
                warnings.push(format!(
                    "another machine on this host took {:.0} % of a CPU's time (steal): absolute figures are too low \
                     by about as much",
                    worst * 100.0
                ));
                state.disturb(STEAL);
            }
            // If the server is not known, its CPU time would count as that of other processes.
            let others = server
                .as_ref()
                .filter(|_| elapsed > 0.0)
                .map_or(0.0, |server| shares.busy() * shares.cpus.len() as f64 - (server.cpu_seconds + ours) / elapsed);
            state.others_cpus = server.is_some().then_some(others.max(0.0));
            if others > OTHERS_WORTH_A_WARNING && others * elapsed > NO_EVIDENCE * shares.cpus.len() as f64 {
                warnings.push(format!(
                    "other processes used {others:.1} of {} CPUs: both sides waited for them; CPU per request still \
                     compares, rates and latencies do not",
                    shares.cpus.len()
                ));
                state.disturb(OTHER_PROCESSES);
            }
        }
        warnings.extend(self.backlogs.finish());
        let cpu_cpus = if elapsed > 0.0 { ours / elapsed } else { 0.0 };
        MachineUse { elapsed: looked, server, state, warnings, cpu_cpus }
    }
}
