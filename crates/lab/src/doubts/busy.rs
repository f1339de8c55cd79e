//! Other processes that use the CPUs during a run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use oroshi_net::CpuList;
use oroshi_words::units;

use crate::result::MachineUse;

/// A process counts as busy from this share of a CPU.
const BUSY: f64 = 0.1;
/// The parent of kernel threads. They work for others, mostly on the servers' packets.
const KTHREADD: u32 = 2;

/// All processes at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Processes(BTreeMap<u32, Process>);

#[derive(Clone, Debug)]
struct Process {
    parent: u32,
    name: String,
    /// Start time in ticks: tells a process from a later one with the same pid.
    started: u64,
    /// CPU time in ticks, without its children's.
    used: u64,
    /// The same including ended children that were waited for.
    with_ended: u64,
}

/// The work of each CPU up to one moment, in ticks.
#[derive(Clone, Debug, Default)]
pub(super) struct Cpus(BTreeMap<usize, Ticks>);

#[derive(Clone, Copy, Debug, Default)]
struct Ticks {
    /// Ticks of processes.
    processes: u64,
    /// Ticks of interrupts. Some kernels also count these for the interrupted process.
    interrupts: u64,
    stolen: u64,
    idle: u64,
}

/// A process that was busy.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Busy {
    pub(super) pid: u32,
    pub(super) name: String,
    /// Share of one CPU.
    pub(super) share: f64,
}

impl Processes {
    /// Reads all processes; skips unreadable ones.
    pub(super) fn look() -> Self {
        let all = procfs::process::all_processes().into_iter().flatten();
        let stats = all.filter_map(|process| process.ok()?.stat().ok());
        let entry = |stat: procfs::process::Stat| {
            let (pid, parent) = (u32::try_from(stat.pid).ok()?, u32::try_from(stat.ppid).ok()?);
            let used = stat.utime + stat.stime;
            let with_ended = used + u64::try_from(stat.cutime + stat.cstime).unwrap_or(0);
            Some((pid, Process { parent, name: stat.comm, started: stat.starttime, used, with_ended }))
        };
        Self(stats.filter_map(entry).collect())
    }

    /// Returns a process and all its descendants.
    fn family(&self, head: u32) -> BTreeSet<u32> {
        let mut family = BTreeSet::from([head]);
        // Once pids have wrapped, children may have lower ones than their parents.
        loop {
            let children = self.0.iter().filter(|(pid, p)| family.contains(&p.parent) && !family.contains(pid));
            let children: Vec<u32> = children.map(|(pid, _)| *pid).collect();
            if children.is_empty() {
                return family;
            }
            family.extend(children);
        }
    }
}

impl Cpus {
    /// Reads the CPUs' counters.
    pub(super) fn look() -> Self {
        Self::read(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// Reads the lines `cpuN` of `/proc/stat` (proc_stat(5)).
    fn read(text: &str) -> Self {
        let line = |line: &str| {
            let mut fields = line.strip_prefix("cpu")?.split(' ');
            let cpu: usize = fields.next()?.parse().ok()?;
            let ticks: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
            let &[user, nice, system, idle, waiting, irq, softirq, ref rest @ ..] = ticks.as_slice() else {
                return None;
            };
            let stolen = rest.first().copied().unwrap_or(0);
            let processes = user + nice + system;
            Some((cpu, Ticks { processes, interrupts: irq + softirq, stolen, idle: idle + waiting }))
        };
        Self(text.lines().filter_map(line).collect())
    }
}

/// Returns what the CPUs did for others between two looks. `wanted`: the run's CPUs; `None`: all. `own` and `known` as
/// in [`others`]; `known` is `None` if the server's processes were not found: then strangers cannot be told apart.
pub(super) fn machine_use(
    before: (&Processes, &Cpus),
    after: (&Processes, &Cpus),
    wanted: Option<&CpuList>,
    own: u32,
    known: Option<&[String]>,
) -> Option<MachineUse> {
    let passed = |earlier: u64, later: u64| later.saturating_sub(earlier) as f64;
    let mut cpus = Vec::new();
    for (cpu, later) in after.1.0.iter().filter(|(cpu, _)| wanted.is_none_or(|wanted| wanted.contains(**cpu))) {
        let Some(earlier) = before.1.0.get(cpu) else { continue };
        let processes = passed(earlier.processes, later.processes);
        let interrupts = passed(earlier.interrupts, later.interrupts);
        let stolen = passed(earlier.stolen, later.stolen);
        let all = processes + interrupts + stolen + passed(earlier.idle, later.idle);
        if all > 0.0 {
            cpus.push((processes / all, interrupts / all, stolen / all, all));
        }
    }
    let ticks = cpus.iter().map(|cpu| cpu.3).fold(0.0, f64::max);
    if ticks <= 0.0 {
        return None;
    }
    let others = known.map(|known| {
        let (ours, strangers) = shared_out(before.0, after.0, own, known);
        let busy: f64 = cpus.iter().map(|(processes, interrupts, ..)| processes + interrupts).sum();
        let processes: f64 = cpus.iter().map(|cpu| cpu.0).sum();
        if after.0.0.get(&KTHREADD).is_some_and(|process| process.name == "kthreadd") {
            // Strangers on other CPUs take nothing from these.
            (strangers / ticks).min((busy - ours / ticks).max(0.0))
        } else {
            // A container hides others' processes; only the CPU counters show them.
            (processes - ours / ticks).max(0.0)
        }
    });
    let stolen = cpus.iter().map(|cpu| cpu.2).fold(0.0, f64::max);
    Some(MachineUse { cpus: cpus.len(), others, stolen: Some(stolen) })
}

/// Returns the ticks of our own processes between two looks, and those of strangers. A process that came and went is in
/// its parent's account, from which earlier ticks of its children are subtracted.
fn shared_out(before: &Processes, after: &Processes, own: u32, known: &[String]) -> (f64, f64) {
    let family: BTreeSet<u32> = before.family(own).union(&after.family(own)).copied().collect();
    let sums = |processes: &Processes| {
        let mut sums = (0.0, 0.0);
        for (pid, process) in &processes.0 {
            let kernel = *pid == KTHREADD || process.parent == KTHREADD;
            if family.contains(pid) || known.contains(&process.name) {
                sums.0 += process.with_ended as f64;
            } else if !kernel {
                sums.1 += process.with_ended as f64;
            }
        }
        sums
    };
    let ((ours, strangers), (ours_later, strangers_later)) = (sums(before), sums(after));
    ((ours_later - ours).max(0.0), (strangers_later - strangers).max(0.0))
}

/// Returns the processes that were busy between two looks, the busiest first, without the kernel, the family of `own`,
/// and processes of these names.
pub(super) fn others(
    before: &Processes,
    after: &Processes,
    elapsed: Duration,
    own: u32,
    known: &[String],
) -> Vec<Busy> {
    let family = after.family(own);
    let second = procfs::ticks_per_second() as f64 * elapsed.as_secs_f64();
    let strangers = after.0.iter().filter(|(pid, process)| {
        let kernel = **pid == KTHREADD || process.parent == KTHREADD;
        !kernel && !family.contains(pid) && !known.contains(&process.name)
    });
    let busy = strangers.map(|(&pid, process)| {
        let same = before.0.get(&pid).filter(|earlier| earlier.started == process.started);
        let used = process.used.saturating_sub(same.map_or(0, |earlier| earlier.used));
        Busy { pid, name: process.name.clone(), share: used as f64 / second }
    });
    let mut busy: Vec<Busy> = busy.filter(|busy| busy.share > BUSY && busy.share.is_finite()).collect();
    busy.sort_by(|one, other| other.share.total_cmp(&one.share));
    busy
}

/// Merges one run's busy processes into all: each with its highest share.
pub(super) fn gather(all: &mut Vec<Busy>, run: Vec<Busy>) {
    for busy in run {
        match all.iter_mut().find(|known| known.pid == busy.pid && known.name == busy.name) {
            Some(known) => known.share = known.share.max(busy.share),
            None => all.push(busy),
        }
    }
    all.sort_by(|one, other| other.share.total_cmp(&one.share));
}

/// `mysqld (pid 12) 45 % of a CPU, ...`; `None` when there are none.
pub(super) fn listed(busy: &[Busy], most: usize) -> Option<String> {
    let one = |busy: &Busy| format!("{} (pid {}) with {} of a CPU", busy.name, busy.pid, units::percent(busy.share));
    let named: Vec<String> = busy.iter().take(most).map(one).collect();
    let more = busy.len().saturating_sub(most);
    let rest = if more > 0 { format!(", and {more} more") } else { String::new() };
    (!named.is_empty()).then(|| format!("{}{rest}", named.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processes(all: &[(u32, u32, &str, u64, u64)]) -> Processes {
        let one = |&(pid, parent, name, started, used): &(u32, u32, &str, u64, u64)| {
            (pid, Process { parent, name: name.to_owned(), started, used, with_ended: used })
        };
        Processes(all.iter().map(one).collect())
    }

    #[test]
    fn strangers_are_named_and_our_own_are_not() {
        let second = procfs::ticks_per_second();
        let before = processes(&[(10, 1, "oroshi", 5, 0), (20, 1, "mysqld", 5, 7), (21, 1, "cron", 5, 0)]);
        let after = processes(&[
            (2, 0, "kthreadd", 0, second),
            (3, 2, "ksoftirqd/0", 0, second),
            (9, 12, "grandchild", 6, second),
            (10, 1, "oroshi", 5, second),
            (12, 10, "keeper", 6, second),
            (20, 1, "mysqld", 5, 7 + second / 2),
            (21, 1, "cron", 5, 1),
            (22, 1, "nginx", 5, second),
            // Another process has this pid now, and used its ticks since then.
            (23, 1, "cc1", 9, second / 4),
        ]);
        let found = others(&before, &after, Duration::from_secs(1), 10, &["nginx".to_owned()]);
        let named: Vec<_> = found.iter().map(|busy| (busy.name.as_str(), busy.share)).collect();
        assert_eq!(named, [("mysqld", 0.5), ("cc1", 0.25)]);
        assert_eq!(listed(&found, 1).unwrap(), "mysqld (pid 20) with 50 % of a CPU, and 1 more");
        assert_eq!(listed(&[], 1), None);
        assert_eq!(others(&before, &after, Duration::ZERO, 10, &[]), [], "no time, no share");
    }

    #[test]
    fn what_others_took_is_what_strangers_used_of_the_cpus_that_matter() {
        let cpus = |busy: [u64; 2], stolen: u64| {
            let line =
                |cpu: usize, busy: u64| format!("cpu{cpu} {busy} 0 0 {} 0 0 0 {stolen} 0 0", 100 - busy - stolen);
            Cpus::read(&format!("cpu  1 2 3 4 5 6 7 8\n{}\n{}\nintr 5\n", line(0, busy[0]), line(1, busy[1])))
        };
        let zero = Cpus::read("cpu0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0\n");
        let before = processes(&[(2, 0, "kthreadd", 0, 0), (10, 1, "oroshi", 5, 0), (20, 1, "yes", 5, 1000)]);
        let after = processes(&[
            (2, 0, "kthreadd", 0, 99),
            (10, 1, "oroshi", 5, 60),
            (12, 10, "nginx", 5, 40),
            (20, 1, "yes", 5, 1050),
        ]);
        let of = |cpus: &Cpus, wanted: Option<&str>, known: &[&str]| {
            let known: Vec<String> = known.iter().map(|&name| name.to_owned()).collect();
            let wanted = wanted.map(|text| text.parse::<CpuList>().unwrap());
            machine_use((&before, &zero), (&after, cpus), wanted.as_ref(), 10, Some(&known)).unwrap()
        };
        let all = of(&cpus([80, 70], 0), None, &[]);
        assert_eq!((all.cpus, all.others, all.stolen), (2, Some(0.5), Some(0.0)));
        assert_eq!(of(&cpus([80, 70], 0), None, &["yes"]).others, Some(0.0), "it belongs to the servers");
        // The strangers were on the other CPU.
        assert_eq!(of(&cpus([100, 50], 0), Some("0"), &[]).others, Some(0.0));
        let stolen = of(&cpus([50, 50], 20), Some("1"), &[]);
        assert_eq!((stolen.cpus, stolen.stolen), (1, Some(0.2)));
        assert_eq!(machine_use((&before, &zero), (&after, &zero), None, 10, None), None, "no time has passed");
        let unknown = machine_use((&before, &zero), (&after, &cpus([80, 70], 0)), None, 10, None).unwrap();
        assert_eq!(unknown.others, None, "who is a stranger is not known");
        // A container shows neither kthreadd nor strangers.
        let alone = processes(&[(10, 1, "oroshi", 5, 60)]);
        let none = processes(&[]);
        let inside = machine_use((&none, &zero), (&alone, &cpus([80, 70], 0)), None, 10, Some(&[])).unwrap();
        assert!((inside.others.unwrap() - 0.9).abs() < 1e-9, "{inside:?}");
    }

    #[test]
    fn what_came_and_went_between_two_looks_is_counted_once() {
        let used = |all: &[(u32, u32, u64)]| {
            let one = |&(pid, parent, with_ended): &(u32, u32, u64)| {
                (pid, Process { parent, name: "cc1".into(), started: 5, used: 0, with_ended })
            };
            Processes(all.iter().map(one).collect())
        };
        // 31 had used 500 before and 530 when it ended; 32 came and went. 30 has waited for both.
        let (before, after) = (used(&[(30, 1, 7), (31, 30, 500)]), used(&[(30, 1, 7 + 530 + 20)]));
        assert_eq!(shared_out(&before, &after, 10, &[]), (0.0, 50.0));
        assert_eq!(shared_out(&before, &after, 30, &[]), (50.0, 0.0));
    }

    #[test]
    fn runs_are_gathered_by_the_most_that_each_used() {
        let busy = |pid, share| Busy { pid, name: "cc1".into(), share };
        let mut all = Vec::new();
        gather(&mut all, vec![busy(1, 0.2)]);
        gather(&mut all, vec![busy(1, 0.1), busy(2, 0.5)]);
        assert_eq!(all, [busy(2, 0.5), busy(1, 0.2)]);
    }

    #[test]
    fn this_process_is_seen_and_is_of_its_own_family() {
        let now = Processes::look();
        let own = std::process::id();
        assert!(now.0.contains_key(&own) && now.family(own).contains(&own));
    }
}
