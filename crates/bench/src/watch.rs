//! The server's side of a benchmark: the CPU time, memory and context switches of its processes over a run.
//!
//! It knows `/proc`. It does not know HTTP or the run: who calls it decides when the measured part begins and ends. All
//! of it is synchronous and reads files that the kernel makes up on the spot: a `sample` takes a tenth of a millisecond
//! where a hundred processes run, and some ten microseconds more for each watched one, so it belongs on a thread that
//! sends no requests.
//!
//! Read in this order: this file, what is offered; `find`, from an address to processes; `family`, the book-keeping
//! over processes that come and go; `process`, what is read of one of them; `samples`, how it went over time.
//!
//! # What the figures are
//!
//! - CPU time of a process is that of its own CPU clock (clock_getcpuclockid(3)): nanoseconds, threads that ended
//!   included. Of a thread that is running at that very moment it is up to one scheduler tick (1 to 10 ms) old: over a
//!   short run of a server that never waits, this is what its CPU time can be off by, per thread and end of the run.
//!   Where there is no such clock it is `/proc/PID/stat`, in clock ticks (10 ms), cut off and not rounded.
//!   [`Precision`] says which.
//! - The division into user and system time is always the one of `/proc/PID/stat`. On most kernels it is sampled (once
//!   per tick it is noted which of the two was going on), so it is good over seconds and not over milliseconds.
//! - Processes that end are counted by what their parent collects from them (`cutime`, `cstime`), in ticks: their whole
//!   life, of which what they used before the run is taken off. A parent that ignores SIGCHLD, or ended first, collects nothing;
//!   then what was last seen of the child is counted, which is less than it used.
//! - Context switches are those of the threads that are there at the end: the kernel tells nobody those of threads that
//!   ended.
//! - Resident memory (RSS) counts a page that processes share once for each of them; PSS does not, but needs the right
//!   to trace the processes.
//!
//! # Races
//!
//! Processes fork and exit while they are being read, and nothing stops them. What is gone is skipped. Parents are read
//! before their children: a child that its parent collects in between is then missing from a sum, never in it twice.
//! A process that is born and ends between two samples is known by its parent's account only.

mod family;
mod find;
mod process;
mod samples;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use oroshi_net::UnixAddress;
use serde::{Deserialize, Serialize};

use crate::environment;
use family::{Family, Member};
use process::Thread;
use samples::Samples;

pub use find::NotFound;

/// How many processes [`ServerUsage::processes`] lists at most.
const LISTED: usize = 32;

/// Watches the processes of a server, with their descendants, on this machine. Our own process is never among them, nor
/// are its descendants, unless they hold the server's socket.
#[derive(Debug)]
pub struct Watch {
    found_by: FoundBy,
    family: Family,
    rss: Rss,
    samples: Samples,
}

/// The CPU clocks of processes at the two ends of the measured part, read there and then.
#[derive(Clone, Debug, Default)]
pub struct Clocks {
    /// How far apart the ends are.
    pub length: Duration,
    /// By process: nanoseconds, as [`cpu_ns_of`](oroshi_net::clock::cpu_ns_of) gives them.
    pub ends: HashMap<u32, (u64, u64)>,
}

/// How the server's processes were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FoundBy {
    /// They hold the listening TCP socket.
    TcpListener,
    /// They hold the listening unix socket.
    UnixListener,
    /// One of them opened the unix socket for connections (SO_PEERCRED, unix(7)).
    PeerCredentials,
    /// The user named it.
    Pid,
}

/// What the CPU times of a [`ServerUsage`] are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// Each process's own nanoseconds.
    Nanoseconds,
    /// Clock ticks, of 10 ms as a rule: each process that ended, or all of them, may be off by one or two.
    Ticks,
}

/// What the server's processes used in the measured part. Seconds are of CPU time, shares are of one CPU unless said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerUsage {
    /// How they were found.
    pub found_by: FoundBy,
    /// Those that were there at the end, the busiest first; at most 32 of them.
    pub processes: Vec<ProcessUsage>,
    /// How many were there at the end.
    pub process_count: usize,
    /// How many were seen that ended before.
    pub exited: u64,
    /// CPU time of all of them together.
    #[serde(rename = "cpu_s")]
    pub cpu_seconds: f64,
    /// Time in user mode, by the kernel's sampling; with `system_seconds` it need not add up to `cpu_seconds`.
    #[serde(rename = "user_s")]
    pub user_seconds: f64,
    /// Time in the kernel, by its sampling.
    #[serde(rename = "system_s")]
    pub system_seconds: f64,
    /// What `cpu_seconds` is made of; the worst of all processes.
    pub precision: Precision,
    /// The busiest process's share of one CPU; with several threads it can exceed 1.
    pub busiest_process: f64,
    /// The busiest thread's share of one CPU: near 1, a server that works in one thread is saturated.
    pub busiest_thread: f64,
    /// How many CPUs the threads may run on, all together.
    pub cpus_allowed: usize,
    /// How many CPUs' worth of time their control group may use (`cpu.max`), if limited.
    pub cpu_limit: Option<f64>,
    /// All processes' share of all the CPU time they may have: near 1, the server is saturated.
    pub of_allowed_cpus: f64,
    /// Resident memory of all processes when the measured part began, bytes; shared pages count for each.
    pub rss_begin_bytes: u64,
    /// The most that was seen in a sample.
    pub rss_peak_bytes: u64,
    /// At the end.
    pub rss_end_bytes: u64,
    /// At the end, with shared pages divided among those who share them; `None` without the right to know.
    pub pss_end_bytes: Option<u64>,
    /// Times that a thread gave up its CPU to wait for something.
    pub voluntary_switches: u64,
    /// Times that a thread had its CPU taken away.
    pub involuntary_switches: u64,
    /// How it went over time; at most 120. None in records before 1.1.
    #[serde(default)]
    pub samples: Vec<ServerSample>,
}

/// All of a server's processes over an interval: from the sample before, or the start of the measured part, until this one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerSample {
    /// When the interval ended, seconds since the measured part began.
    pub at_s: f64,
    /// CPU time per time: 1.5 is the work of one and a half CPUs.
    pub cpu: f64,
    /// The most resident memory that was seen, bytes; shared pages count for each process.
    pub rss_bytes: u64,
}

/// One process of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessUsage {
    /// Process id.
    pub pid: u32,
    /// Its parent.
    pub parent: u32,
    /// Its name: the first 15 bytes of its program's, unless it chose another.
    pub name: String,
    /// Threads at the end.
    pub threads: usize,
    /// CPU time, without that of its children.
    #[serde(rename = "cpu_s")]
    pub cpu_seconds: f64,
    /// What that is made of.
    pub precision: Precision,
    /// Resident memory at the end, bytes.
    pub rss_bytes: u64,
}

impl ServerUsage {
    /// CPU microseconds per request; `None` without requests.
    pub fn cpu_us_per_request(&self, requests: u64) -> Option<f64> {
        self.cpu_us_each(requests as f64)
    }

    /// The same, where those that lie across an edge of the measured part count in part.
    pub fn cpu_us_each(&self, requests: f64) -> Option<f64> {
        (requests > 0.0).then(|| self.cpu_seconds * 1e6 / requests)
    }
}

impl Watch {
    /// The processes that hold the socket which accepts connections to this address.
    ///
    /// # Errors
    ///
    /// [`NotFound`], with the reason.
    pub fn for_tcp(address: SocketAddr) -> Result<Self, NotFound> {
        Ok(Self::of(FoundBy::TcpListener, find::tcp(address)?))
    }

    /// The processes that hold the listening socket of this name. Where they cannot be told, the process that opened
    /// it: `peer`, which a connected socket knows (SO_PEERCRED).
    ///
    /// # Errors
    ///
    /// [`NotFound`], with the reason.
    pub fn for_unix(address: &UnixAddress, peer: Option<u32>) -> Result<Self, NotFound> {
        match (find::unix(address), peer) {
            (Ok(pids), _) => Ok(Self::of(FoundBy::UnixListener, pids)),
            (Err(NotFound::OwnProcess), _) => Err(NotFound::OwnProcess),
            (Err(_), Some(peer)) => Ok(Self::of(FoundBy::PeerCredentials, find::pid(peer)?)),
            (Err(why), None) => Err(why),
        }
    }

    /// This process.
    ///
    /// # Errors
    ///
    /// [`NotFound`], with the reason.
    pub fn for_pid(pid: u32) -> Result<Self, NotFound> {
        Ok(Self::of(FoundBy::Pid, find::pid(pid)?))
    }

    /// The measured part begins now: what was used until now does not count. A second call begins again, as after a
    /// warm-up.
    pub fn begin(&mut self) {
        self.family.begin();
        let now = self.family.rss_bytes();
        self.rss = Rss { begin: now, peak: now };
        self.samples = Samples::default();
    }

    /// Looks for new processes, keeps account of those that ended, and notes the CPU time used and the memory in use by now,
    /// `elapsed` after [`begin`](Self::begin). To be called about once a second, or some times more.
    pub fn sample(&mut self, elapsed: Duration) {
        self.family.refresh();
        let rss = self.family.rss_bytes();
        self.rss.peak = self.rss.peak.max(rss);
        self.samples.add(elapsed, self.family.cpu_seconds(), rss);
    }

    /// The processes that are watched now.
    pub fn pids(&self) -> Vec<u32> {
        self.family.members().iter().map(Member::pid).collect()
    }

    /// What was used since [`begin`](Self::begin), which was `elapsed` ago. `None` when no watched process is left:
    /// what the last of them used is then not known.
    ///
    /// Who has `clocks` of the measured part's own moments gets the CPU time between those: a thread that is only to look on
    /// may be kept waiting by others, at both ends.
    pub fn finish(&mut self, elapsed: Duration, clocks: &Clocks) -> Option<ServerUsage> {
        self.family.refresh();
        let cpu_until_now = self.family.cpu_seconds();
        self.family.set_clocks(clocks);
        let length = if clocks.ends.is_empty() { elapsed } else { clocks.length };
        let mut sum = Sum::default();
        let mut processes: Vec<ProcessUsage> = self.family.members().iter().map(|member| sum.add(member)).collect();
        if processes.is_empty() {
            return None;
        }
        let part = |seconds: f64, of: Duration| if of.is_zero() { 0.0 } else { seconds / of.as_secs_f64() };
        let ended = self.family.ended();
        let ticks = self.family.ticks();
        let cpu_seconds = sum.cpu_seconds + ended.seconds();
        processes.sort_by(|a, b| b.cpu_seconds.total_cmp(&a.cpu_seconds));
        let cpu_limit = self.family.members().iter().find_map(|member| environment::cpu_limit_of(member.pid()));
        let allowed = cpu_limit.unwrap_or(f64::INFINITY).min(sum.cpus.len().max(1) as f64);
        let rss_end_bytes = processes.iter().map(|process| process.rss_bytes).sum();
        self.samples.add(elapsed, cpu_until_now, rss_end_bytes);
        Some(ServerUsage {
            found_by: self.found_by,
            process_count: processes.len(),
            exited: self.family.exited(),
            cpu_seconds,
            user_seconds: ticks.user_seconds(),
            system_seconds: ticks.system_seconds(),
            precision: if sum.coarse || ended.total() > 0 { Precision::Ticks } else { Precision::Nanoseconds },
            busiest_process: part(processes[0].cpu_seconds, length),
            busiest_thread: part(sum.busiest_thread, elapsed),
            cpus_allowed: sum.cpus.len(),
            cpu_limit,
            of_allowed_cpus: part(cpu_seconds, length) / allowed,
            rss_begin_bytes: self.rss.begin,
            rss_peak_bytes: self.rss.peak.max(rss_end_bytes),
            rss_end_bytes,
            pss_end_bytes: processes.iter().map(|process| process::pss_bytes(process.pid)).sum(),
            voluntary_switches: sum.voluntary,
            involuntary_switches: sum.involuntary,
            samples: self.samples.records(),
            processes: {
                processes.truncate(LISTED);
                processes
            },
        })
    }

    fn of(found_by: FoundBy, pids: Vec<u32>) -> Self {
        let mut watch = Self { found_by, family: Family::of(pids), rss: Rss::default(), samples: Samples::default() };
        watch.begin();
        watch
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Rss {
    begin: u64,
    peak: u64,
}

/// Figures of the processes that are still there, added up.
#[derive(Default)]
struct Sum {
    cpu_seconds: f64,
    coarse: bool,
    busiest_thread: f64,
    voluntary: u64,
    involuntary: u64,
    cpus: HashSet<usize>,
}

impl Sum {
    fn add(&mut self, member: &Member) -> ProcessUsage {
        let pid = member.pid();
        let threads = process::threads(pid);
        let (cpu_seconds, precision) = member.cpu_seconds();
        self.cpu_seconds += cpu_seconds;
        self.coarse |= precision == Precision::Ticks;
        for thread in &threads {
            let before = member.thread_at_begin(thread.tid).cloned().unwrap_or_else(|| Thread::unborn(thread.tid));
            self.busiest_thread = self.busiest_thread.max(thread.seconds_since(&before));
            self.voluntary += thread.voluntary.saturating_sub(before.voluntary);
            self.involuntary += thread.involuntary.saturating_sub(before.involuntary);
            self.cpus.extend(process::cpus_allowed(thread.tid));
        }
        ProcessUsage {
            pid,
            parent: member.parent(),
            name: member.name().to_owned(),
            threads: threads.len(),
            cpu_seconds,
            precision,
            rss_bytes: process::rss_bytes(pid).unwrap_or(0),
        }
    }
}
