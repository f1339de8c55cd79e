//! Rate-limited logging of frequent events, with their count.

use std::time::{Duration, Instant};

/// A counter of events not reported yet. It allows one report per second, or per the time given to
/// [`every`](LogThrottle::every).
#[derive(Clone, Copy, Debug)]
pub struct LogThrottle {
    every: Duration,
    count: u64,
    reported: Option<Instant>,
}

impl Default for LogThrottle {
    fn default() -> Self {
        LogThrottle::every(Duration::from_secs(1))
    }
}

impl LogThrottle {
    /// Creates a counter that allows one report in this time.
    #[must_use]
    pub const fn every(every: Duration) -> Self {
        LogThrottle { every, count: 0, reported: None }
    }

    /// Counts one event. Returns the number of events since the last report if a report is due.
    pub fn next(&mut self, now: Instant) -> Option<u64> {
        self.add(1, now)
    }

    /// Counts several events. Returns the number of events since the last report if a report is due.
    pub fn add(&mut self, count: u64, now: Instant) -> Option<u64> {
        self.count += count;
        if self.reported.is_some_and(|reported| now.saturating_duration_since(reported) < self.every) {
            return None;
        }
        self.reported = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reports_once_a_second_with_the_count() {
        let (mut throttle, begun) = (LogThrottle::default(), Instant::now());
        let reports: Vec<_> = (0..2_500).filter_map(|ms| throttle.next(begun + Duration::from_millis(ms))).collect();
        assert_eq!(reports, [1, 1000, 1000]);
    }

    #[test]
    fn it_reports_once_per_given_time_with_the_sum() {
        let (mut throttle, begun) = (LogThrottle::every(Duration::from_secs(10)), Instant::now());
        let reports: Vec<_> =
            (0..25).filter_map(|second| throttle.add(3, begun + Duration::from_secs(second))).collect();
        assert_eq!(reports, [3, 30, 30]);
    }
}
