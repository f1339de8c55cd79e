//! The clock that TTLs and breakers go by.

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds on CLOCK_MONOTONIC_COARSE, which goes on with the kernel's ticks, every 1 to 10 ms: a quarter of the
/// cost of the exact one, and more than TTLs need.
#[inline]
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    // Neither is ever negative: the clock counts from the start of the machine.
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}
