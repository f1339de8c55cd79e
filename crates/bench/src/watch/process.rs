//! Reads the state of one process from `/proc`.

use std::io;
use std::ops::{Add, Sub};

use oroshi_net::clock::cpu_ns_of;
use procfs::process::{Process, Task};
use procfs::{ProcError, ProcResult};
use rustix::process::Pid;

/// CPU time in clock ticks, as `/proc/PID/stat` has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ticks {
    pub(super) user: u64,
    pub(super) system: u64,
}

impl Ticks {
    pub(super) fn total(self) -> u64 {
        self.user + self.system
    }

    pub(super) fn seconds(self) -> f64 {
        self.user_seconds() + self.system_seconds()
    }

    pub(super) fn user_seconds(self) -> f64 {
        self.user as f64 / procfs::ticks_per_second() as f64
    }

    pub(super) fn system_seconds(self) -> f64 {
        self.system as f64 / procfs::ticks_per_second() as f64
    }
}

impl Add for Ticks {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { user: self.user + other.user, system: self.system + other.system }
    }
}

/// Never below zero: the sums on either side were read at different moments.
impl Sub for Ticks {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { user: self.user.saturating_sub(other.user), system: self.system.saturating_sub(other.system) }
    }
}

/// A process as `/proc/PID/stat` shows it.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) pid: u32,
    pub(super) parent: u32,
    /// When it began, in ticks since the machine booted: with the pid, the identity of a process.
    pub(super) started: u64,
    pub(super) name: String,
    /// Its own CPU time, of all its threads, ended ones included.
    pub(super) own: Ticks,
    /// The same in nanoseconds, by its CPU clock.
    pub(super) own_ns: Option<u64>,
    /// CPU time collected from children that ended, and by them from theirs.
    pub(super) collected: Ticks,
}

/// The result of reading a process.
#[derive(Debug)]
pub(super) enum Look {
    Here(Snapshot),
    Gone,
    /// The process may exist: we ran out of descriptors, or may not read it.
    Unknown,
}

pub(super) fn look(pid: u32) -> Look {
    match Process::new(pid as i32).and_then(|process| process.stat()) {
        Ok(stat) => Look::Here(Snapshot {
            pid,
            parent: stat.ppid.max(0) as u32,
            started: stat.starttime,
            name: stat.comm,
            own: Ticks { user: stat.utime, system: stat.stime },
            own_ns: cpu_ns_of(pid),
            collected: Ticks { user: stat.cutime.max(0) as u64, system: stat.cstime.max(0) as u64 },
        }),
        Err(error) if is_gone(&error) => Look::Gone,
        Err(_) => Look::Unknown,
    }
}

/// A thread's account.
#[derive(Clone, Debug)]
pub(super) struct Thread {
    pub(super) tid: u32,
    /// CPU time: the scheduler's own figure, or made of ticks where a kernel has none (without SCHED_INFO).
    pub(super) ns: u64,
    pub(super) voluntary: u64,
    pub(super) involuntary: u64,
}

impl Thread {
    /// A thread before it existed: all zero.
    pub(super) fn unborn(tid: u32) -> Self {
        Self { tid, ns: 0, voluntary: 0, involuntary: 0 }
    }

    pub(super) fn seconds_since(&self, earlier: &Self) -> f64 {
        self.ns.saturating_sub(earlier.ns) as f64 / 1e9
    }
}

/// Returns the threads of a process in the order of their ids, without those that end meanwhile.
pub(super) fn threads(pid: u32) -> Vec<Thread> {
    let tasks = Process::new(pid as i32).and_then(|process| process.tasks());
    let mut threads: Vec<Thread> = tasks.into_iter().flatten().flatten().filter_map(|task| thread(&task)).collect();
    threads.sort_by_key(|thread| thread.tid);
    threads
}

fn thread(task: &Task) -> Option<Thread> {
    let ns = match task.schedstat() {
        Ok(schedstat) => schedstat.sum_exec_runtime,
        Err(_) => task.stat().map(|stat| (stat.utime + stat.stime) * tick_ns()).ok()?,
    };
    let status = task.status().ok();
    let switches = |of: fn(&procfs::process::Status) -> Option<u64>| status.as_ref().and_then(of).unwrap_or(0);
    Some(Thread {
        tid: task.tid as u32,
        ns,
        voluntary: switches(|status| status.voluntary_ctxt_switches),
        involuntary: switches(|status| status.nonvoluntary_ctxt_switches),
    })
}

/// Returns resident memory; shared pages count in full.
pub(super) fn rss_bytes(pid: u32) -> Option<u64> {
    let statm = Process::new(pid as i32).and_then(|process| process.statm()).ok()?;
    Some(statm.resident * procfs::page_size())
}

/// Returns resident memory with shared pages divided among the processes. `None` without the right to trace the
/// process.
pub(super) fn pss_bytes(pid: u32) -> Option<u64> {
    if rss_bytes(pid).unwrap_or(0) == 0 {
        // The process ended, or is a zombie: it has no memory, and no file that says so.
        return Some(0);
    }
    let rollup = Process::new(pid as i32).and_then(|process| process.smaps_rollup()).ok()?;
    Some(rollup.memory_map_rollup.into_iter().filter_map(|map| map.extension.map.get("Pss").copied()).sum())
}

/// Returns the CPUs that a thread may run on; empty if unknown.
pub(super) fn cpus_allowed(tid: u32) -> Vec<usize> {
    let set = Pid::from_raw(tid as i32).and_then(|tid| rustix::thread::sched_getaffinity(Some(tid)).ok());
    set.map_or_else(Vec::new, |set| (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Returns the ids of all visible processes.
pub(super) fn all_pids() -> ProcResult<Vec<u32>> {
    let entries = std::fs::read_dir("/proc").map_err(|error| ProcError::Io(error, Some("/proc".into())))?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// The length of a clock tick.
pub(super) fn tick_ns() -> u64 {
    1_000_000_000 / procfs::ticks_per_second().max(1)
}

fn is_gone(error: &ProcError) -> bool {
    match error {
        ProcError::NotFound(_) => true,
        // Reading a file of a process that ended after the file was opened.
        ProcError::Io(error, _) => {
            error.kind() == io::ErrorKind::NotFound
                || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
        }
        _ => false,
    }
}
