//! Deadlines that progress extends: for a client that sends a body, or reads an answer.
//!
//! A client has `Timeout` from the start. Each byte extends the deadline at the configured rate (`LeastRate`), but
//! never beyond `Timeout` from now. So a fast client may pause that long, a slow drip has no more than that in all, and
//! a fast start is no reserve for days.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::clock;

/// One client's deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProgressDeadline {
    /// The deadline, in microseconds of the coarse clock.
    over_us: u64,
}

/// A process has one worker, so these are statics.
static WHOLE_US: AtomicU64 = AtomicU64::new(300_000_000);
static LEAST_RATE: AtomicU64 = AtomicU64::new(0);

/// Sets the limits of all clients: milliseconds, and bytes per second; 0: any progress counts.
pub(crate) fn limit(timeout_ms: u64, least_rate: u64) {
    WHOLE_US.store(timeout_ms.saturating_mul(1000), Relaxed);
    LEAST_RATE.store(least_rate, Relaxed);
}

impl ProgressDeadline {
    /// Returns the deadline of a client that begins now.
    pub(crate) fn begin() -> Self {
        Self::begin_at(clock::coarse_ms())
    }

    fn begin_at(now_ms: u64) -> Self {
        ProgressDeadline { over_us: (now_ms * 1000).saturating_add(WHOLE_US.load(Relaxed)) }
    }

    /// Returns a deadline this many microseconds away, as another worker has reported.
    pub(crate) fn with_left(left_us: u64) -> Self {
        ProgressDeadline { over_us: (clock::coarse_ms() * 1000).saturating_add(left_us) }
    }

    /// Returns the time left, in microseconds.
    pub(crate) fn left_us(self) -> u64 {
        self.over_us.saturating_sub(clock::coarse_ms() * 1000)
    }

    /// Extends the deadline by the progress of this many bytes.
    pub(crate) fn credit(&mut self, bytes: u64) {
        self.credit_at(bytes, clock::coarse_ms(), LEAST_RATE.load(Relaxed));
    }

    fn credit_at(&mut self, bytes: u64, now_ms: u64, least_rate: u64) {
        let whole = Self::begin_at(now_ms);
        if bytes == 0 {
            return;
        }
        // Without a rate, any progress restarts the timeout.
        let Some(bought_us) = bytes.saturating_mul(1_000_000).checked_div(least_rate) else {
            *self = whole;
            return;
        };
        self.over_us = self.over_us.saturating_add(bought_us).min(whole.over_us);
    }

    /// Returns the deadline, in milliseconds of the coarse clock.
    pub(crate) fn over_ms(self) -> u64 {
        self.over_us / 1000
    }

    /// Returns the time left, in milliseconds.
    pub(crate) fn left_ms(self) -> u64 {
        self.over_ms().saturating_sub(clock::coarse_ms())
    }

    pub(crate) fn is_over(self) -> bool {
        self.left_ms() == 0
    }

    /// Whether the client is at least a second behind a new client or one at full speed.
    pub(crate) fn is_behind(self) -> bool {
        let whole_ms = WHOLE_US.load(Relaxed) / 1000;
        self.left_ms() + (whole_ms / 4).min(1000) < whole_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_drips_has_no_more_than_the_time_limit_and_who_is_fast_may_go_on() {
        let (start_ms, whole_ms) = (1_000_000, WHOLE_US.load(Relaxed) / 1000);
        let mut drips = ProgressDeadline::begin_at(start_ms);
        let mut is_fast = drips;
        let mut has_no_rate = drips;
        for second in 1..=3600 {
            let now_ms = start_ms + second * 1000;
            drips.credit_at(1, now_ms, 1024);
            is_fast.credit_at(1024, now_ms, 1024);
            has_no_rate.credit_at(1, now_ms, 0);
        }
        let end_ms = start_ms + 3_600_000;
        assert!(drips.over_ms() < start_ms + whole_ms + 4000);
        assert_eq!(is_fast.over_ms(), end_ms + whole_ms);
        assert_eq!(has_no_rate.over_ms(), end_ms + whole_ms);
        // A fast start is no reserve.
        is_fast.credit_at(1 << 40, end_ms, 1024);
        assert_eq!(is_fast.over_ms(), end_ms + whole_ms);
    }
}
