//! The clocks that everything here measures with.

use rustix::time::{ClockId, clock_gettime};

use crate::sys;

/// Nanoseconds on CLOCK_MONOTONIC: comparable between threads and processes of one machine, unaffected by changes of
/// the wall clock, stopped while the machine sleeps. Read through the vDSO, without a system call.
#[inline]
pub fn monotonic_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// CPU time of the calling thread so far, nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    nanoseconds(ClockId::ThreadCPUTime)
}

/// CPU time of this process so far, nanoseconds: of all its threads, those that ended included.
pub fn process_cpu_ns() -> u64 {
    nanoseconds(ClockId::ProcessCPUTime)
}

/// CPU time of another process so far, nanoseconds: of all its threads, those that ended included, its children not. What a
/// thread has used that is running at this very moment may be missing from it, up to one scheduler tick (1 to 10 ms); one
/// that waits is counted in full. Needs no rights, and a fifth of a microsecond.
///
/// `None` when there is no such process in this pid namespace, or the machine is not a 64-bit one.
pub fn cpu_ns_of(pid: u32) -> Option<u64> {
    // clock_getcpuclockid(3) makes the clock's id like this. No pid is greater (PID_MAX_LIMIT); 0 would be ourselves.
    const SCHEDULED: i32 = 2;
    (1..=1 << 22).contains(&pid).then(|| sys::clock_ns((!pid << 3).cast_signed() | SCHEDULED))?
}

#[inline]
fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    // Both fields are never negative: these clocks count from the start of the machine, the process or the thread.
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

    /// By the thread's own clock, however long that takes.
    fn burn(ns: u64) {
        let end = thread_cpu_ns() + ns;
        while thread_cpu_ns() < end {}
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
        // A process that ended and is not collected yet still has its account.
        let mut child = std::process::Command::new("true").spawn().unwrap();
        assert!(cpu_ns_of(child.id()).is_some());
        child.wait().unwrap();
        assert_eq!(cpu_ns_of(child.id()), None);
        for nobody in [0, 1 << 22 | 1, u32::MAX] {
            assert_eq!(cpu_ns_of(nobody), None);
        }
    }
}
