//! How the machine's CPUs were used during a run.

use std::fs;

use serde::{Deserialize, Serialize};

/// Measures how busy each CPU is, and how much of its time other virtual machines took.
#[derive(Clone, Debug)]
pub struct StealMeter {
    before: Vec<CpuTimes>,
}

/// How CPUs were used between the two ends of a [`StealMeter`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuShares {
    /// Each CPU that was online at both ends.
    pub cpus: Vec<CpuShare>,
}

/// How one CPU was used, as shares (0 to 1) of the elapsed time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuShare {
    /// Its number.
    pub cpu: usize,
    /// Time at work, for any process.
    pub busy: f64,
    /// Time in which it had work, and the host ran another virtual machine.
    pub steal: f64,
}

impl StealMeter {
    /// Begins to measure. `None` where `/proc/stat` cannot be read.
    pub fn begin() -> Option<Self> {
        Some(Self { before: cpu_times(&fs::read_to_string("/proc/stat").ok()?) })
    }

    /// Ends the measurement. `None` where `/proc/stat` cannot be read, or its counters did not move.
    pub fn finish(self) -> Option<CpuShares> {
        shares(&self.before, &cpu_times(&fs::read_to_string("/proc/stat").ok()?))
    }
}

impl CpuShares {
    /// Returns the greatest share that other virtual machines took of any CPU.
    pub fn worst_share(&self) -> f64 {
        self.cpus.iter().map(|cpu| cpu.steal).fold(0.0, f64::max)
    }

    /// Returns the share of work in the time of all CPUs.
    pub fn busy(&self) -> f64 {
        self.cpus.iter().map(|cpu| cpu.busy).sum::<f64>() / self.cpus.len().max(1) as f64
    }
}

/// Ticks of one CPU since the machine began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CpuTimes {
    cpu: usize,
    busy: u64,
    idle: u64,
    steal: u64,
}

/// Reads the lines `cpuN` of `/proc/stat` (proc_stat(5)). CPUs that are offline have none, so the numbers matter; the
/// reader in `procfs` drops them.
fn cpu_times(text: &str) -> Vec<CpuTimes> {
    let line = |line: &str| {
        let mut fields = line.strip_prefix("cpu")?.split(' ');
        let cpu = fields.next()?.parse().ok()?;
        let ticks: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
        let &[user, nice, system, idle, iowait, irq, softirq, ref rest @ ..] = ticks.as_slice() else { return None };
        // Time of guests, further on, is within the user's.
        let steal = rest.first().copied().unwrap_or(0);
        Some(CpuTimes { cpu, busy: user + nice + system + irq + softirq, idle: idle + iowait, steal })
    };
    text.lines().filter_map(line).collect()
}

fn shares(before: &[CpuTimes], after: &[CpuTimes]) -> Option<CpuShares> {
    let share = |after: &CpuTimes| {
        let before = before.iter().find(|before| before.cpu == after.cpu)?;
        // Idle and steal counters are known to step back a little at times.
        let passed = |of: fn(&CpuTimes) -> u64| of(after).saturating_sub(of(before)) as f64;
        let (busy, idle, steal) = (passed(|cpu| cpu.busy), passed(|cpu| cpu.idle), passed(|cpu| cpu.steal));
        let all = busy + idle + steal;
        (all > 0.0).then(|| CpuShare { cpu: after.cpu, busy: busy / all, steal: steal / all })
    };
    let cpus: Vec<CpuShare> = after.iter().filter_map(share).collect();
    (!cpus.is_empty()).then_some(CpuShares { cpus })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_told_by_their_numbers() {
        let before = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 10 0 10 100 0 0 0 0 0 0\ncpu2 0 0 0 0 0 0 0 0 0 0\nintr 5\n";
        let after = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu1 7 0 0 0 0 0 0 0 0 0\ncpu2 1 1 1 3 1 1 1 1 9 9\nintr 5\n";
        let found = shares(&cpu_times(before), &cpu_times(after)).unwrap();
        assert_eq!(found.cpus, [CpuShare { cpu: 2, busy: 0.5, steal: 0.1 }]);
        assert_eq!((found.worst_share(), found.busy()), (0.1, 0.5));
    }

    /// Kernels before 2.6.11 have no steal; a line may be too short.
    #[test]
    fn short_lines_are_read_as_far_as_they_go() {
        assert_eq!(cpu_times("cpu0 1 2 3 4 5 6 7"), [CpuTimes { cpu: 0, busy: 19, idle: 9, steal: 0 }]);
        assert_eq!(cpu_times("cpu0 1 2 3\ncpux 1 2 3 4 5 6 7\n\ncpu"), []);
    }

    #[test]
    fn counters_that_do_not_move_say_nothing() {
        let now = cpu_times("cpu0 1 2 3 4 5 6 7 8");
        assert_eq!(shares(&now, &now), None);
        assert_eq!(shares(&[], &now), None);
    }

    #[test]
    fn this_machine_s_cpus_add_up() {
        let meter = StealMeter { before: cpu_times("cpu0 0 0 0 0 0 0 0 0") };
        let shares = meter.finish().unwrap();
        assert!(shares.cpus.iter().all(|cpu| (0.0..=1.0).contains(&(cpu.busy + cpu.steal))));
        assert!(StealMeter::begin().is_some_and(|meter| !meter.before.is_empty()));
    }
}
