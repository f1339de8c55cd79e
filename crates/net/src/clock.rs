//! The clocks for all measurements.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use rustix::time::{ClockId, clock_gettime};

use crate::sys;

/// Returns nanoseconds on CLOCK_MONOTONIC.
///
/// Comparable between threads and processes of one machine; independent of changes to the wall clock; stopped while
/// the machine sleeps. Read through the vDSO, without a system call.
#[inline]
pub fn monotonic_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Returns a name of the clock that [`monotonic_ns`] reads: of the boot, and of the time namespace.
///
/// Processes whose names differ read different clocks. Copies of a running virtual machine have the same name, and
/// clocks that may differ. `None` without `/proc`.
#[must_use]
pub fn name() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    // Kernels before 5.6 have no time namespaces.
    let space = fs::read_link("/proc/self/ns/time").map(|link| link.display().to_string()).unwrap_or_default();
    Some(format!("{} {space}", boot.trim_end()))
}

/// Returns the CPU time of the calling thread so far, nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    nanoseconds(ClockId::ThreadCPUTime)
}

/// Returns the CPU time of this process so far, nanoseconds, including threads that have ended.
pub fn process_cpu_ns() -> u64 {
    nanoseconds(ClockId::ProcessCPUTime)
}

/// Returns the CPU time of another process so far, nanoseconds, including threads that have ended, without its
/// children.
///
/// For a thread that is running now, up to one scheduler tick (1 to 10 ms) may be missing; the time of a waiting
/// thread is complete. Needs no rights; takes 0.2 microseconds.
///
/// `None` when there is no such process in this pid namespace, or on a machine that is not 64-bit.
pub fn cpu_ns_of(pid: u32) -> Option<u64> {
    // clock_getcpuclockid(3) makes the clock's id like this. No pid exceeds PID_MAX_LIMIT; 0 would be this process.
    const SCHEDULED: i32 = 2;
    (1..=1 << 22).contains(&pid).then(|| sys::clock_ns((!pid << 3).cast_signed() | SCHEDULED))?
}

/// How long a thread was ready to run and had no CPU, by the kernel's account.
#[derive(Debug)]
pub struct QueueClock(File);

impl QueueClock {
    /// The clock of the calling thread. `None` where the kernel does not count that (CONFIG_SCHED_INFO).
    #[must_use]
    pub fn of_this_thread() -> Option<Self> {
        File::open("/proc/thread-self/schedstat").ok().map(Self)
    }

    /// Returns the time so far, nanoseconds. Costs one system call.
    #[must_use]
    pub fn ns(&self) -> Option<u64> {
        // CPU time, time in the queue, and how often the thread got a CPU.
        let mut text = [0; 64];
        let length = self.0.read_at(&mut text, 0).ok()?;
        str::from_utf8(text.get(..length)?).ok()?.split_whitespace().nth(1)?.parse().ok()
    }
}

#[inline]
fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    // Neither field is negative: these clocks count from the start of the machine, the process or the thread.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_goes_back() {
        let mut last = monotonic_ns();
        for _ in 0..10_000 {
            let now = monotonic_ns();
            assert!(now >= last, "{now} after {last}");
            last = now;
        }
    }

    #[test]
    fn processes_of_a_machine_name_one_clock() {
        let Some(own) = name() else { return };
        let script = "cat /proc/sys/kernel/random/boot_id; readlink /proc/self/ns/time";
        let other = std::process::Command::new("sh").args(["-c", script]).output().unwrap();
        let other = String::from_utf8(other.stdout).unwrap();
        assert_eq!(own, other.trim_end().replace('\n', " "));
    }

    /// Uses CPU until the thread's own clock has advanced by `ns`.
    fn burn(ns: u64) {
        let end = thread_cpu_ns() + ns;
        while thread_cpu_ns() < end {}
    }

    #[test]
    fn time_in_the_queue_only_grows() {
        // A kernel may have no such account.
        let Some(clock) = QueueClock::of_this_thread() else { return };
        let before = clock.ns().unwrap();
        burn(2_000_000);
        assert!(clock.ns().unwrap() >= before);
    }

    #[test]
    fn a_process_s_time_is_that_of_all_its_threads() {
        let before = (thread_cpu_ns(), process_cpu_ns());
        std::thread::spawn(|| burn(20_000_000)).join().unwrap();
        assert!(process_cpu_ns() - before.1 >= 20_000_000);
        assert!(thread_cpu_ns() >= before.0);
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn a_process_is_seen_from_outside_as_from_within() {
        let pid = std::process::id();
        let before = process_cpu_ns();
        let seen = cpu_ns_of(pid).unwrap();
        assert!((before..=process_cpu_ns()).contains(&seen));
        // A process that ended and was not reaped still has its CPU time.
        let mut child = std::process::Command::new("true").spawn().unwrap();
        assert!(cpu_ns_of(child.id()).is_some());
        child.wait().unwrap();
        assert_eq!(cpu_ns_of(child.id()), None);
        for nobody in [0, 1 << 22 | 1, u32::MAX] {
            assert_eq!(cpu_ns_of(nobody), None);
        }
    }
}
