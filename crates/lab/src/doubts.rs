//! Reasons to doubt an experiment's figures, as sentences.
//!
//! [`beforehand`] judges the machine and the plan before the first run, [`Machine`] watches the machine during it,
//! [`thin`] finds percentiles with too few answers, and [`summed`] merges the warnings of single runs. Nothing here
//! ends an experiment: CPU time per request survives most of it, and both runs of a pair met the same machine. But
//! readers of a figure must know.

mod busy;
mod clock;
mod summed;
mod thin;
mod throttle;

use std::time::{Duration, Instant};

use oroshi_bench::Record;
use oroshi_bench::environment::{CpuShares, DescriptorLimit, Environment, StealMeter};
use oroshi_net::CpuList;
use oroshi_words::units;

use crate::plan::{Experiment, Load};
use crate::result::{CellResult, MachineUse};

use busy::{Busy, Processes};
pub(crate) use clock::megahertz;
pub(crate) use summed::shape;
pub use summed::summed;
pub use thin::thin;
use throttle::Throttled;

/// The consequence of servers and load on the same CPUs.
const SO: &str =
    "each takes time from the other, so rates and latencies show both together; CPU time per request still compares";
/// Share of a CPU taken by other machines that makes the experiment doubtful. A single run is disturbed by more
/// ([`STOLEN`](crate::disturbed::STOLEN)).
const STEAL: f64 = 0.02;
/// How long to watch other processes before anything starts.
const LOOK: Duration = Duration::from_millis(300);
/// Busy processes to name.
const NAMED: usize = 5;
/// Descriptors that a program opens besides its connections.
const SPARE_DESCRIPTORS: u64 = 64;

/// Returns warnings about the plan and the machine before the first run.
#[must_use]
pub fn beforehand(experiment: &Experiment, environment: &Environment) -> Vec<String> {
    let available = oroshi_net::available_cpus().ok();
    let cpus = Cpus { available: available.as_ref(), siblings: clock::siblings };
    let governor = environment.cpu.governor.as_deref();
    [
        shared_cpus(experiment, &cpus),
        descriptors(experiment, &environment.descriptors),
        environment.cgroup.cpus.map(|cpus| {
            format!(
                "this control group may use {} CPUs' worth of time (cpu.max): once it is used up everything in it \
                 stands still for \
                 a moment, servers and load alike",
                units::number(cpus)
            )
        }),
        governor.filter(|governor| *governor != "performance").map(|governor| {
            format!(
                "the CPU frequency governor is {governor}: clocks follow the load, so a lightly loaded server looks \
                 slower than it \
                 is (`cpupower frequency-set -g performance`)"
            )
        }),
        environment.cpu.turbo.filter(|turbo| *turbo).map(|_| {
            "turbo is on: clocks depend on heat and on how many CPUs are busy, so absolute figures differ from day to \
             day"
            .to_owned()
        }),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The machine's CPUs, as far as they are known.
struct Cpus<'a> {
    available: Option<&'a CpuList>,
    /// Returns the CPUs that share a core with this one, including itself.
    siblings: fn(usize) -> Vec<usize>,
}

fn shared_cpus(experiment: &Experiment, cpus: &Cpus<'_>) -> Option<String> {
    // The CPUs of external servers are unknown before we find their processes.
    if experiment.cells.iter().all(|cell| cell.servers.is_empty()) {
        return None;
    }
    // Nor are those of agents known.
    if experiment.cells.iter().flat_map(|cell| &cell.variants).all(|variant| variant.agents.is_some()) {
        return None;
    }
    if cpus.available.is_some_and(|available| available.len() == 1) {
        return Some(format!("servers and load share the only CPU: {SO}"));
    }
    let (servers, load) = match (&experiment.server_cpus, &experiment.load_cpus) {
        (Some(servers), Some(load)) => (servers, load),
        (None, None) => {
            return Some(format!("servers and load share CPUs (neither is pinned): {SO}; pin each to CPUs of its own"));
        }
        (None, Some(load)) => {
            return Some(format!("the servers may run on the load's CPUs ({load}), as they are not pinned: {SO}"));
        }
        (Some(servers), None) => {
            return Some(format!("the load may run on the servers' CPUs ({servers}), as it is not pinned: {SO}"));
        }
    };
    let both: Vec<String> = servers.iter().filter(|&cpu| load.contains(cpu)).map(|cpu| cpu.to_string()).collect();
    if !both.is_empty() {
        let (cpu, both) = (if both.len() == 1 { "CPU" } else { "CPUs" }, both.join(","));
        return Some(format!("servers ({servers}) and load ({load}) share {cpu} {both}: {SO}"));
    }
    let beside = |cpu: &usize| (cpus.siblings)(*cpu).into_iter().find(|&other| load.contains(other));
    let (cpu, other) = servers.iter().find_map(|cpu| Some((cpu, beside(&cpu)?)))?;
    Some(format!(
        "CPU {cpu} of the servers and CPU {other} of the load are two threads of one core: they slow each other down"
    ))
}

/// Returns the most connections that a run of our own load, a program's burst or the warm-up before it holds.
fn most_connections(experiment: &Experiment) -> u64 {
    let variants = experiment.cells.iter().flat_map(|cell| &cell.variants);
    let connections = variants.map(|variant| match &variant.load {
        Load::Bench(draft) | Load::Script(draft, _) => draft.connections + draft.hold,
        Load::Subscribe(subscribe) => subscribe.draft.base.connections,
        Load::Command(command) => {
            let warmup = command.warmup.as_ref().map_or(0, |draft| draft.connections + draft.hold);
            warmup.max(command.burst.unwrap_or(0) as usize)
        }
    });
    connections.max().unwrap_or(0) as u64
}

fn descriptors(experiment: &Experiment, limit: &DescriptorLimit) -> Option<String> {
    let connections = most_connections(experiment);
    let needed = connections + SPARE_DESCRIPTORS;
    let many = units::count(connections);
    if let Some(hard) = limit.hard.filter(|&hard| hard < needed) {
        return Some(format!(
            "{many} connections need as many file descriptors on either side, and processes here may have {hard}: \
             raise the hard limit \
             to {needed} or more (`ulimit -Hn {needed}` as root, LimitNOFILE={needed} in a systemd unit, --ulimit \
             nofile={needed} \
             for a container)"
        ));
    }
    let ours = experiment.cells.iter().any(|cell| !cell.servers.is_empty());
    limit.soft.filter(|&soft| ours && soft < needed).map(|soft| {
        format!(
            "servers start with a limit of {soft} file descriptors, and {many} connections need more: a server that \
             does not raise it \
             by itself will refuse some (`ulimit -n {needed}` before this command)"
        )
    })
}

/// Warns of external servers found on this machine: they share its CPUs with the load.
#[must_use]
pub fn here(experiment: &Experiment, cells: &[CellResult]) -> Option<String> {
    if experiment.cells.iter().any(|cell| !cell.servers.is_empty()) {
        return None;
    }
    let mut runs = cells.iter().flat_map(|cell| &cell.runs);
    let is_here = |record: &Record| record.server.is_some() && record.agents.is_empty();
    let seen = runs.any(|run| run.record.as_deref().is_some_and(is_here));
    seen.then(|| {
        format!("the servers run on this machine: unless they are kept off the load's CPUs, they share them, and {SO}")
    })
}

/// Watches the machine during an experiment.
#[derive(Debug)]
pub struct Machine {
    steal: Option<StealMeter>,
    throttled: Throttled,
    /// Highest clock of any CPU at each run, MHz.
    clocks: Vec<f64>,
    before: Vec<Busy>,
    /// Other processes that were busy in a run.
    during: Vec<Busy>,
    disturbed: usize,
    runs: usize,
}

/// Watches the other processes during one run.
#[derive(Debug)]
pub struct ProcessWatch {
    processes: Processes,
    cpus: busy::Cpus,
    begun: Instant,
}

impl Machine {
    /// Begins to watch, and looks for some 300 ms which processes are busy. Call it before anything starts.
    #[must_use]
    pub fn begin() -> Self {
        let look = ProcessWatch::begin();
        std::thread::sleep(LOOK);
        Self {
            steal: StealMeter::begin(),
            throttled: Throttled::now(),
            clocks: Vec::new(),
            before: look.finish(&[]),
            during: Vec::new(),
            disturbed: 0,
            runs: 0,
        }
    }

    /// Returns the warning before the first run.
    #[must_use]
    pub fn beforehand(&self) -> Option<String> {
        let busy = busy::listed(&self.before, NAMED)?;
        Some(format!(
            "other processes were busy before anything was started: {busy}; stop them, or expect wider intervals"
        ))
    }

    /// Ends a run: notes busy processes, except those of these names, which are its server's, and the CPUs' clock just
    /// before the measured part, MHz. Returns what the run's CPUs (`None`: all) did for others.
    pub fn ran(
        &mut self,
        look: ProcessWatch,
        cpus: Option<&CpuList>,
        servers: Option<&[String]>,
        clock: Option<f64>,
    ) -> Option<MachineUse> {
        self.runs += 1;
        self.clocks.extend(clock);
        let (processes, now) = (Processes::look(), busy::Cpus::look());
        let own = std::process::id();
        let used = busy::machine_use((&look.processes, &look.cpus), (&processes, &now), cpus, own, servers);
        // An unknown server would be mistaken for another process.
        let Some(servers) = servers else { return used };
        let busy = busy::others(&look.processes, &processes, look.begun.elapsed(), own, servers);
        self.disturbed += usize::from(!busy.is_empty());
        busy::gather(&mut self.during, busy);
        used
    }

    /// Returns the warnings at the end, besides [`beforehand`](Self::beforehand).
    #[must_use]
    pub fn finish(self) -> Vec<String> {
        let disturbed = busy::listed(&self.during, NAMED).map(|busy| {
            let (disturbed, runs) = (self.disturbed, self.runs);
            format!(
                "in {disturbed} of {runs} runs other processes were busy: {busy}; what does not belong to the servers \
                 took time from \
                 them"
            )
        });
        let steal = self.steal.and_then(StealMeter::finish).and_then(|shares| stolen(&shares));
        let throttled = Throttled::now().since(self.throttled);
        [steal, throttled, clock::moved(&self.clocks), disturbed].into_iter().flatten().collect()
    }
}

impl ProcessWatch {
    /// Begins to watch.
    #[must_use]
    pub fn begin() -> Self {
        Self { processes: Processes::look(), cpus: busy::Cpus::look(), begun: Instant::now() }
    }

    fn finish(self, servers: &[String]) -> Vec<Busy> {
        busy::others(&self.processes, &Processes::look(), self.begun.elapsed(), std::process::id(), servers)
    }
}

fn stolen(shares: &CpuShares) -> Option<String> {
    let worst = shares.worst_share();
    (worst > STEAL).then(|| {
        format!(
            "other machines on this host took {} of a CPU's time over the whole experiment (steal): absolute figures \
             are too low by \
             about as much, ratios hold",
            units::percent(worst)
        )
    })
}

#[cfg(test)]
mod tests {
    use oroshi_bench::environment::{Cgroup, Cpu, CpuShare};

    use super::*;
    use crate::plan;
    use crate::sample::{cell, experiment, run};

    fn list(text: &str) -> Option<CpuList> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn sharing_cpus_is_said_however_it_comes_about() {
        let four = list("0-3");
        let apart = Cpus { available: four.as_ref(), siblings: |cpu| vec![cpu] };
        let said = |servers: Option<CpuList>, load: Option<CpuList>, cpus: &Cpus<'_>| {
            let experiment = Experiment { server_cpus: servers, load_cpus: load, ..experiment() };
            shared_cpus(&experiment, cpus).unwrap_or_default()
        };
        assert!(said(None, None, &apart).contains("neither is pinned"));
        assert!(said(list("0"), None, &apart).contains("the load may run on the servers' CPUs (0)"));
        assert!(said(None, list("1"), &apart).contains("the servers may run on the load's CPUs (1)"));
        assert!(said(list("0-2"), list("1-3"), &apart).contains("servers (0-2) and load (1-3) share CPUs 1,2:"));
        assert_eq!(said(list("0,1"), list("2,3"), &apart), "");
        let threads = Cpus { available: four.as_ref(), siblings: |cpu| vec![cpu % 2, cpu % 2 + 2] };
        assert!(
            said(list("0"), list("2,3"), &threads)
                .contains("CPU 0 of the servers and CPU 2 of the load are two threads")
        );
        assert_eq!(said(list("0,2"), list("1,3"), &threads), "");
        let one = list("0");
        assert!(said(list("0"), list("0"), &Cpus { available: one.as_ref(), ..apart }).contains("the only CPU"));
    }

    #[test]
    fn servers_that_are_not_ours_may_be_anywhere() {
        let mut experiment = experiment();
        experiment.cells[0].servers.clear();
        assert_eq!(shared_cpus(&experiment, &Cpus { available: None, siblings: |_| Vec::new() }), None);
        assert_eq!(here(&experiment, &[cell(&["A"], vec![run(0, 0, &[])])]), None, "nobody saw them");
    }

    #[test]
    fn the_machine_s_settings_are_judged() {
        let mut experiment = experiment();
        (experiment.server_cpus, experiment.load_cpus) = (list("0"), list("9"));
        let calm = Environment {
            cpu: Cpu { governor: Some("performance".into()), ..Cpu::default() },
            ..Environment::default()
        };
        let of = |environment: &Environment| {
            let said = beforehand(&experiment, environment);
            said.into_iter().filter(|text| !text.contains("the only CPU")).collect::<Vec<_>>()
        };
        assert_eq!(of(&calm), Vec::<String>::new());
        let doubtful = Environment {
            cpu: Cpu { governor: Some("powersave".into()), turbo: Some(true), ..Cpu::default() },
            cgroup: Cgroup { cpus: Some(1.5), memory_bytes: None },
            descriptors: DescriptorLimit { soft: Some(20), hard: Some(70) },
            ..Environment::default()
        };
        let said = of(&doubtful);
        for (place, word) in
            ["`ulimit -Hn 74`", "1.50 CPUs' worth", "governor is powersave", "turbo is on"].iter().enumerate()
        {
            assert!(said[place].contains(word), "{said:?}");
        }
        let limits = |soft, hard| descriptors(&experiment, &DescriptorLimit { soft, hard });
        assert!(limits(Some(73), Some(74)).unwrap().contains("`ulimit -n 74`"));
        assert_eq!(limits(Some(74), Some(74)), None);
        assert_eq!(limits(None, None), None);
        let burst = plan::Command {
            words: Vec::new(),
            env: Vec::new(),
            figures: Vec::new(),
            requests: None,
            burst: Some(100),
            warmup: None,
            timeout: Duration::ZERO,
        };
        experiment.cells[0].variants[1].load = Load::Command(burst);
        let said = descriptors(&experiment, &DescriptorLimit { soft: None, hard: Some(128) }).unwrap();
        assert!(said.starts_with("100 connections") && said.contains("`ulimit -Hn 164`"), "{said}");
    }

    #[test]
    fn steal_counts_from_two_percent() {
        let of = |steal| stolen(&CpuShares { cpus: vec![CpuShare { cpu: 0, busy: 0.5, steal }] });
        assert_eq!(of(0.01), None);
        assert!(of(0.05).unwrap().contains("took 5.0 % of a CPU"));
    }

    #[test]
    fn a_quiet_experiment_leaves_nothing_to_say_of_its_runs() {
        let mut machine = Machine {
            steal: None,
            throttled: Throttled::now(),
            clocks: Vec::new(),
            before: Vec::new(),
            during: Vec::new(),
            disturbed: 0,
            runs: 0,
        };
        machine.ran(ProcessWatch::begin(), None, None, Some(2600.0));
        machine.ran(ProcessWatch::begin(), None, None, Some(2600.0));
        assert_eq!(machine.beforehand(), None);
        assert_eq!(machine.finish(), Vec::<String>::new());
    }
}
