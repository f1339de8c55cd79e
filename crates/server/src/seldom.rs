//! Rate-limited logging of frequent events, with their count.

use std::time::{Duration, Instant};

/// A counter of events not reported yet. It allows one report per second, or per the time given to
/// [`every`](Seldom::every).
#[derive(Clone, Copy, Debug)]
pub struct Seldom {
    every: Duration,
    count: u64,
    told: Option<Instant>,
}

impl Default for Seldom {
    fn default() -> Self {
        Seldom::every(Duration::from_secs(1))
    }
}

impl Seldom {
    /// Creates a counter that allows one report in this time.
    #[must_use]
    pub const fn every(every: Duration) -> Self {
        Seldom { every, count: 0, told: None }
    }

    /// Counts one event. Returns the number of events since the last report if a report is due.
    pub fn next(&mut self, now: Instant) -> Option<u64> {
        self.add(1, now)
    }

    /// Counts several events. Returns the number of events since the last report if a report is due.
    pub fn add(&mut self, count: u64, now: Instant) -> Option<u64> {
        self.count += count;
        if self.told.is_some_and(|told| now.saturating_duration_since(told) < self.every) {
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_once_a_second_with_its_count() {
        let (mut seldom, begun) = (Seldom::default(), Instant::now());
        let told: Vec<_> = (0..2_500).filter_map(|ms| seldom.next(begun + Duration::from_millis(ms))).collect();
        assert_eq!(told, [1, 1000, 1000]);
    }

    #[test]
    fn it_is_told_as_seldom_as_it_should_be_with_all_that_was_added() {
        let (mut seldom, begun) = (Seldom::every(Duration::from_secs(10)), Instant::now());
        let told: Vec<_> = (0..25).filter_map(|second| seldom.add(3, begun + Duration::from_secs(second))).collect();
        assert_eq!(told, [3, 30, 30]);
    }
}
