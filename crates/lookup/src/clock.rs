//! The clock of TTLs and breakers.

use rustix::time::{ClockId, clock_gettime};

/// Returns milliseconds of CLOCK_MONOTONIC_COARSE, which advances with the kernel's ticks, every 1 to 10 ms. It costs a
/// quarter of the exact clock and suffices for TTLs.
#[inline]
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    // Neither is ever negative: the clock counts from the start of the machine.
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}
