//! Other processes that use the CPUs meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use oroshi_words::units;

/// Share of a CPU from which a process counts as busy.
const BUSY: f64 = 0.1;
/// The parent of the kernel's own threads: their work is done for others, and for the servers' packets first of all.
const KTHREADD: u32 = 2;

/// All processes at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Processes(BTreeMap<u32, Process>);

#[derive(Clone, Debug)]
struct Process {
    parent: u32,
    name: String,
    /// Ticks since the machine began: with the pid it tells a process from a later one.
    started: u64,
    /// CPU time in ticks, without that of its children.
    used: u64,
}

/// A process that was busy.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Busy {
    pub(super) pid: u32,
    pub(super) name: String,
    /// Of one CPU.
    pub(super) share: f64,
}

impl Processes {
    /// Those that are there now; what cannot be read is left out.
    pub(super) fn look() -> Self {
        let all = procfs::process::all_processes().into_iter().flatten();
        let stats = all.filter_map(|process| process.ok()?.stat().ok());
        let entry = |stat: procfs::process::Stat| {
            let (pid, parent) = (u32::try_from(stat.pid).ok()?, u32::try_from(stat.ppid).ok()?);
            Some((pid, Process { parent, name: stat.comm, started: stat.starttime, used: stat.utime + stat.stime }))
        };
        Self(stats.filter_map(entry).collect())
    }

    /// A process and all that descend from it.
    fn family(&self, head: u32) -> BTreeSet<u32> {
        let mut family = BTreeSet::from([head]);
        // Children may have lower numbers than their parents, once numbers have come round.
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

/// Who was busy between two looks, the busiest first, but for the kernel, the family of `own`, and processes of these names.
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

/// Adds those of one run to those of all: each with the most it ever used.
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
            (pid, Process { parent, name: name.to_owned(), started, used })
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
            // Another process has this number by now, and what it used it used since.
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
