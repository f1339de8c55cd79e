//! The watched processes and their descendants, with accounts that stay right while they come and go.
//!
//! When a process ends, its parent collects all its CPU time, including that before the run. So the parent keeps two
//! figures for each ended child: CPU time before the run, to be subtracted; and CPU time seen during the run, in case
//! the parent collects nothing.

use std::collections::{HashMap, HashSet};
use std::ops::Add;

use super::process::{self, Look, Snapshot, Thread, Ticks};
use super::{Clocks, Precision};

/// Watched processes. Parents stand before their children.
#[derive(Debug)]
pub(super) struct Family {
    members: Vec<Member>,
    /// Processes known to be unrelated, so that they need not be read each time.
    unrelated: HashSet<u32>,
    own_pid: u32,
    /// When the run began, in ticks since the machine booted.
    begun: u64,
    /// Usage in the run of ended processes whose parent is not watched.
    orphans: Ticks,
    exited: u64,
}

/// One watched process.
#[derive(Debug)]
pub(super) struct Member {
    now: Snapshot,
    /// At the beginning of the run; all zero for a process that was born in it.
    own_before: Ticks,
    own_ns_before: Option<u64>,
    collected_before: Ticks,
    threads_before: Vec<Thread>,
    /// CPU time of ended children: before the run, and as seen during the run.
    children_before: Ticks,
    children_seen: Ticks,
}

impl Family {
    /// The family of those of these processes that exist. Its accounts start with [`begin`](Self::begin).
    pub(super) fn of(pids: Vec<u32>) -> Self {
        let mut found: Vec<Snapshot> = pids.into_iter().filter_map(here).collect();
        found.sort_by_key(|snapshot| (snapshot.started, snapshot.pid));
        Self {
            members: found.into_iter().map(Member::born_in_the_run).collect(),
            unrelated: HashSet::new(),
            own_pid: std::process::id(),
            begun: u64::MAX,
            orphans: Ticks::default(),
            exited: 0,
        }
    }

    /// Begins the run.
    pub(super) fn begin(&mut self) {
        self.refresh();
        for member in &mut self.members {
            *member = Member::older_than_the_run(member.now.clone());
        }
        self.begun = ticks_since_boot();
        (self.orphans, self.exited) = (Ticks::default(), 0);
    }

    /// Reads every member again, books those that ended, and adds new descendants.
    pub(super) fn refresh(&mut self) {
        let mut gone = Vec::new();
        for (index, member) in self.members.iter_mut().enumerate() {
            match process::look(member.now.pid) {
                Look::Here(now) if now.started == member.now.started => member.now = now,
                // Another process has its pid by now.
                Look::Here(_) | Look::Gone => gone.push(index),
                Look::Unknown => {}
            }
        }
        // Children come after their parents: a child that ended together with its parent is booked first.
        for index in gone.into_iter().rev() {
            let member = self.members.remove(index);
            self.book(&member);
        }
        self.take_in_descendants();
    }

    /// Takes the run's two ends from these clocks, for members that existed at both.
    pub(super) fn set_clocks(&mut self, clocks: &Clocks) {
        for member in &mut self.members {
            // A process born in the run may have the pid of an older one.
            let older = member.own_ns_before.is_some_and(|ns| ns > 0);
            if let Some((begin, end)) = clocks.ends.get(&member.now.pid).filter(|_| older) {
                (member.own_ns_before, member.now.own_ns) = (Some(*begin), Some(*end));
            }
        }
    }

    /// Returns the members, parents before their children.
    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    /// How many ended in the run.
    pub(super) fn exited(&self) -> u64 {
        self.exited
    }

    /// Returns what ended processes used in the run.
    pub(super) fn ended(&self) -> Ticks {
        self.members.iter().map(Member::children).fold(self.orphans, Ticks::add)
    }

    /// Returns what all processes used in the run, in ticks.
    pub(super) fn ticks(&self) -> Ticks {
        self.members.iter().map(|member| member.now.own - member.own_before).fold(self.ended(), Ticks::add)
    }

    /// Returns what all processes used in the run, in seconds, as precisely as known.
    pub(super) fn cpu_seconds(&self) -> f64 {
        self.members.iter().map(|member| member.cpu_seconds().0).sum::<f64>() + self.ended().seconds()
    }

    /// Resident memory of all members together.
    pub(super) fn rss_bytes(&self) -> u64 {
        self.members.iter().filter_map(|member| process::rss_bytes(member.now.pid)).sum()
    }

    /// Books a member that ended with its parent.
    fn book(&mut self, gone: &Member) {
        self.exited += 1;
        let seen = gone.now.own - gone.own_before + gone.children();
        match self.members.iter_mut().find(|member| member.now.pid == gone.now.parent) {
            Some(parent) => {
                parent.children_seen = parent.children_seen + seen;
                parent.children_before =
                    parent.children_before + gone.own_before + gone.collected_before + gone.children_before;
            }
            None => self.orphans = self.orphans + seen,
        }
    }

    /// Finds processes whose parent is a member, to any depth.
    fn take_in_descendants(&mut self) {
        let Ok(pids) = process::all_pids() else { return };
        let listed: HashSet<u32> = pids.iter().copied().collect();
        self.unrelated.retain(|pid| listed.contains(pid));
        let mut family: HashSet<u32> = self.members.iter().map(|member| member.now.pid).collect();
        let unknown = |pid: &u32| !family.contains(pid) && !self.unrelated.contains(pid) && *pid != self.own_pid;
        let mut new: HashMap<u32, Snapshot> =
            pids.into_iter().filter(unknown).filter_map(|pid| Some((pid, here(pid)?))).collect();
        loop {
            let mut children: Vec<u32> =
                new.iter().filter(|(_, snapshot)| family.contains(&snapshot.parent)).map(|(pid, _)| *pid).collect();
            if children.is_empty() {
                break;
            }
            children.sort_unstable();
            for pid in children {
                family.insert(pid);
                let snapshot = new.remove(&pid).expect("it was just found there");
                let born_in_run = snapshot.started >= self.begun;
                self.members.push(if born_in_run {
                    Member::born_in_the_run(snapshot)
                } else {
                    Member::older_than_the_run(snapshot)
                });
            }
        }
        // A process whose parent is not listed may be new: it is read again next time.
        let parent_is_known = |parent: u32| parent == 0 || listed.contains(&parent);
        self.unrelated.extend(new.values().filter(|one| parent_is_known(one.parent)).map(|one| one.pid));
    }
}

impl Member {
    pub(super) fn pid(&self) -> u32 {
        self.now.pid
    }

    pub(super) fn parent(&self) -> u32 {
        self.now.parent
    }

    pub(super) fn name(&self) -> &str {
        &self.now.name
    }

    pub(super) fn thread_at_begin(&self, tid: u32) -> Option<&Thread> {
        self.threads_before.iter().find(|thread| thread.tid == tid)
    }

    /// The CPU time it used in the run, without its children's.
    pub(super) fn cpu_seconds(&self) -> (f64, Precision) {
        match (self.own_ns_before, self.now.own_ns) {
            (Some(before), Some(now)) => (now.saturating_sub(before) as f64 / 1e9, Precision::Nanoseconds),
            _ => ((self.now.own - self.own_before).seconds(), Precision::Ticks),
        }
    }

    /// Returns what its ended children used in the run, including children that were never seen.
    fn children(&self) -> Ticks {
        let collected = self.now.collected - self.collected_before - self.children_before;
        if collected.total() >= self.children_seen.total() { collected } else { self.children_seen }
    }

    /// A member whose earlier usage does not count.
    fn older_than_the_run(now: Snapshot) -> Self {
        Self {
            own_before: now.own,
            own_ns_before: now.own_ns,
            collected_before: now.collected,
            threads_before: process::threads(now.pid),
            ..Self::born_in_the_run(now)
        }
    }

    fn born_in_the_run(now: Snapshot) -> Self {
        Self {
            own_before: Ticks::default(),
            own_ns_before: Some(0),
            collected_before: Ticks::default(),
            threads_before: Vec::new(),
            children_before: Ticks::default(),
            children_seen: Ticks::default(),
            now,
        }
    }
}

fn here(pid: u32) -> Option<Snapshot> {
    match process::look(pid) {
        Look::Here(snapshot) => Some(snapshot),
        Look::Gone | Look::Unknown => None,
    }
}

fn ticks_since_boot() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, ns) = (now.tv_sec.max(0) as u64, now.tv_nsec.max(0) as u64);
    seconds * procfs::ticks_per_second() + ns / process::tick_ns()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(user: u64, system: u64) -> Ticks {
        Ticks { user, system }
    }

    fn snapshot(pid: u32, parent: u32, own: Ticks, collected: Ticks) -> Snapshot {
        Snapshot { pid, parent, started: 1, name: String::new(), own, own_ns: None, collected }
    }

    /// A process that had used `before` when the run began.
    fn member(pid: u32, parent: u32, before: Ticks) -> Member {
        Member { own_before: before, ..Member::born_in_the_run(snapshot(pid, parent, before, Ticks::default())) }
    }

    fn family(members: Vec<Member>) -> Family {
        Family { members, unrelated: HashSet::new(), own_pid: 0, begun: 0, orphans: Ticks::default(), exited: 0 }
    }

    fn book(family: &mut Family, pid: u32) {
        let index = family.members.iter().position(|member| member.now.pid == pid).unwrap();
        let gone = family.members.remove(index);
        family.book(&gone);
    }

    #[test]
    fn a_child_that_ended_counts_without_what_it_used_before() {
        let mut family = family(vec![member(1, 0, ticks(50, 50)), member(2, 1, ticks(300, 40))]);
        family.members[1].now.own = ticks(310, 41);
        book(&mut family, 2);
        // Until the parent has collected it, what was seen counts.
        assert_eq!(family.ended(), ticks(10, 1));
        family.members[0].now.collected = ticks(317, 43);
        assert_eq!(family.ended(), ticks(17, 3));
        assert_eq!((family.ticks(), family.exited()), (ticks(17, 3), 1));
    }

    /// With SIGCHLD ignored, the kernel adds an ended child to nobody's account.
    #[test]
    fn a_parent_that_collects_nothing_leaves_what_was_seen() {
        let mut family = family(vec![member(1, 0, ticks(0, 0)), member(2, 1, ticks(300, 0))]);
        family.members[1].now.own = ticks(390, 7);
        book(&mut family, 2);
        assert_eq!(family.ended(), ticks(90, 7));
    }

    #[test]
    fn children_that_nobody_saw_count() {
        let mut family = family(vec![member(1, 0, ticks(0, 0))]);
        family.members[0].now.collected = ticks(4, 4);
        assert_eq!(family.ended(), ticks(4, 4));
    }

    /// 1 forked 2 forked 3; 3 ends, then 2. In the end 1 has collected all that 2 and 3 ever used.
    #[test]
    fn grandchildren_are_taken_off_too() {
        let mut family =
            family(vec![member(1, 0, ticks(0, 0)), member(2, 1, ticks(100, 0)), member(3, 2, ticks(1000, 0))]);
        family.members[2].now.own = ticks(1005, 0);
        book(&mut family, 3);
        family.members[1].now.own = ticks(107, 0);
        family.members[1].now.collected = ticks(1006, 0);
        assert_eq!(family.ticks(), ticks(7 + 6, 0));
        book(&mut family, 2);
        family.members[0].now.collected = ticks(108 + 1006, 0);
        assert_eq!(family.ended(), ticks(8 + 6, 0));
    }

    #[test]
    fn an_orphan_counts_as_it_was_last_seen() {
        let mut family = family(vec![member(2, 1, ticks(100, 0)), member(3, 2, ticks(10, 0))]);
        family.members[1].now.parent = 1;
        family.members[1].now.own = ticks(14, 0);
        book(&mut family, 3);
        assert_eq!(family.ended(), ticks(4, 0));
    }

    #[test]
    fn a_process_s_own_clock_goes_before_its_ticks() {
        let near = |(found, precision): (f64, Precision), expected: (f64, Precision)| {
            assert!(
                (found - expected.0).abs() < 1e-12 && precision == expected.1,
                "{found} {precision:?} {expected:?}"
            );
        };
        let mut one = member(1, 0, ticks(100, 0));
        one.own_ns_before = Some(1_009_999_999);
        one.now.own = ticks(103, 0);
        one.now.own_ns = Some(1_031_234_567);
        near(one.cpu_seconds(), (0.021_234_568, Precision::Nanoseconds));
        let family = family(vec![one, Member { children_seen: ticks(2, 1), ..member(2, 1, ticks(5, 5)) }]);
        near((family.cpu_seconds(), Precision::Ticks), (0.051_234_568, Precision::Ticks));
        // Where one of the two is missing, they have nothing in common but the ticks.
        for (before, now) in [(None, Some(9)), (Some(9), None), (None, None)] {
            let mut one = member(1, 0, ticks(100, 0));
            (one.own_ns_before, one.now.own, one.now.own_ns) = (before, ticks(103, 1), now);
            near(one.cpu_seconds(), (0.04, Precision::Ticks));
        }
    }

    #[test]
    fn the_ends_of_a_run_are_those_that_were_told() {
        let old = |pid| {
            let mut one = member(pid, 0, ticks(1, 0));
            (one.own_ns_before, one.now.own_ns) = (Some(10_000_000), Some(90_000_000));
            one
        };
        let mut born = member(3, 0, Ticks::default());
        born.now.own_ns = Some(5_000_000);
        let mut family = family(vec![old(1), old(2), born]);
        let ends = HashMap::from([(1, (20_000_000, 80_000_000)), (3, (1, 2)), (4, (1, 2))]);
        family.set_clocks(&Clocks { ends, ..Clocks::default() });
        let used: Vec<f64> = family.members().iter().map(|member| member.cpu_seconds().0).collect();
        assert_eq!(used, [0.06, 0.08, 0.005]);
    }

    /// Its clock began with it, and nothing of it is to be taken off.
    #[test]
    fn a_process_born_in_the_run_counts_whole() {
        let mut one = member(1, 0, Ticks::default());
        (one.now.own, one.now.own_ns) = (ticks(3, 1), Some(45_000_000));
        assert_eq!(one.cpu_seconds(), (0.045, Precision::Nanoseconds));
    }
}
