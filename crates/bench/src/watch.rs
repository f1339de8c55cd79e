//! The server's side of a run: CPU time, memory and context switches of its processes.
//!
//! It knows `/proc`, and neither HTTP nor the run: the caller decides when the measured part begins and ends. All calls
//! are synchronous. A `sample` takes a tenth of a millisecond where a hundred processes run, and some ten microseconds
//! for each watched one, so it belongs on a thread that sends no requests.
//!
//! Read in this order: this file, the interface; `find`, from an address to processes; `family`, the accounts of
//! processes that come and go; `process`, the state of one of them; `samples`, the usage over time.
//!
//! # What the figures are
//!
//! - CPU time of a process comes from its CPU clock (clock_getcpuclockid(3)), in nanoseconds, including threads that
//!   ended. For a running thread it is up to one scheduler tick (1 to 10 ms) old: CPU time can be off by one tick per
//!   busy thread and end of the run. Without such a clock it comes from `/proc/PID/stat`, in clock ticks (10 ms), cut
//!   off and not rounded. [`Precision`] says which.
//! - User and system time always come from `/proc/PID/stat`. Most kernels sample them once per tick, so they are good
//!   over seconds and not over milliseconds.
//! - Processes that end count by the CPU time that their parent collects (`cutime`, `cstime`), in ticks, less their CPU
//!   time before the run. A parent that ignores SIGCHLD, or ended first, collects nothing; then the CPU time last seen
//!   counts, which is less than the child used.
//! - Context switches are those of the threads that exist at the end: the kernel keeps none of ended threads.
//! - Resident memory (RSS) counts a shared page once per process. PSS does not, but needs the right to trace the
//!   processes.
//!
//! # Races
//!
//! Processes fork and exit while they are being read. Ended ones are skipped. Parents are read before their children: a
//! child that its parent collects in between is missing from a sum, never in it twice. Of a process that is born and
//! ends between two samples, only its parent's account is known.

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

/// Watches the processes of a server on this machine, with their descendants.
///
/// Our own process is never among them, nor are its descendants, unless they hold the server's socket.
#[derive(Debug)]
pub struct Watch {
    found_by: FoundBy,
    family: Family,
    rss: Rss,
    samples: Samples,
}

/// The CPU clocks of processes, read at the two ends of the measured part.
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

/// The source of the CPU times of a [`ServerUsage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// Each process's own nanoseconds.
    Nanoseconds,
    /// Clock ticks, of 10 ms as a rule: each process that ended, or all of them, may be off by one or two.
    Ticks,
}

/// Resources that the server's processes used in the measured part. Seconds are CPU time; shares are of one CPU unless
/// noted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerUsage {
    /// How they were found.
    pub found_by: FoundBy,
    /// Processes that existed at the end, the busiest first; at most 32.
    pub processes: Vec<ProcessUsage>,
    /// Number of processes at the end.
    pub process_count: usize,
    /// Number of processes that were seen and ended before.
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
    /// The source of `cpu_seconds`; the coarsest of all processes.
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
    /// The most resident memory of any sample, bytes.
    pub rss_peak_bytes: u64,
    /// Resident memory at the end, bytes.
    pub rss_end_bytes: u64,
    /// The same with shared pages divided among the processes; `None` without the right to read it.
    pub pss_end_bytes: Option<u64>,
    /// Times that a thread gave up its CPU to wait for something.
    pub voluntary_switches: u64,
    /// Times that a thread had its CPU taken away.
    pub involuntary_switches: u64,
    /// Usage over time, at most 120 samples; empty in records before 1.1.
    #[serde(default)]
    pub samples: Vec<ServerSample>,
}

/// A server's processes over an interval: from the last sample, or the start of the measured part, to this one.
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
    /// The first 15 bytes of its program's name, unless it chose another.
    pub name: String,
    /// Threads at the end.
    pub threads: usize,
    /// CPU time, without that of its children.
    #[serde(rename = "cpu_s")]
    pub cpu_seconds: f64,
    /// The source of `cpu_seconds`.
    pub precision: Precision,
    /// Resident memory at the end, bytes.
    pub rss_bytes: u64,
}

impl ServerUsage {
    /// Returns CPU microseconds per request; `None` without requests.
    pub fn cpu_us_per_request(&self, requests: u64) -> Option<f64> {
        self.cpu_us_each(requests as f64)
    }

    /// The same for a number of requests with fractions: those across an edge of the measured part count in part.
    pub fn cpu_us_each(&self, requests: f64) -> Option<f64> {
        (requests > 0.0).then(|| self.cpu_seconds * 1e6 / requests)
    }
}

impl Watch {
    /// Watches the processes that hold the socket which accepts connections to this address.
    ///
    /// # Errors
    ///
    /// [`NotFound`], with the reason.
    pub fn for_tcp(address: SocketAddr) -> Result<Self, NotFound> {
        Ok(Self::of(FoundBy::TcpListener, find::tcp(address)?))
    }

    /// Watches the processes that hold the listening socket of this name.
    ///
    /// If they are unknown, watches `peer`: the process that opened the socket, from SO_PEERCRED of a connection.
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

    /// Watches this process.
    ///
    /// # Errors
    ///
    /// [`NotFound`], with the reason.
    pub fn for_pid(pid: u32) -> Result<Self, NotFound> {
        Ok(Self::of(FoundBy::Pid, find::pid(pid)?))
    }

    /// Begins the measured part: earlier usage does not count. A second call begins again, as after a warm-up.
    pub fn begin(&mut self) {
        self.family.begin();
        let now = self.family.rss_bytes();
        self.rss = Rss { begin: now, peak: now };
        self.samples = Samples::default();
    }

    /// Takes a sample `elapsed` after [`begin`](Self::begin): new and ended processes, CPU time, memory. To be called
    /// about once a second, or a little more often.
    pub fn sample(&mut self, elapsed: Duration) {
        self.family.refresh();
        let rss = self.family.rss_bytes();
        self.rss.peak = self.rss.peak.max(rss);
        self.samples.add(elapsed, self.family.cpu_seconds(), rss);
    }

    /// Returns the CPUs in use as of the last sample.
    pub fn cpus_now(&self) -> Option<f64> {
        self.samples.records().last().map(|sample| sample.cpu)
    }

    /// Returns the watched processes.
    pub fn pids(&self) -> Vec<u32> {
        self.family.members().iter().map(Member::pid).collect()
    }

    /// Returns the usage since [`begin`](Self::begin), which was `elapsed` ago. `None` if no watched process is left:
    /// the usage of the last one is not known then.
    ///
    /// With `clocks`, CPU time is between their two readings: the calling thread may be late at both ends.
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
