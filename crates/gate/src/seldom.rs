//! Telling operators of what may happen with every request: now and then, with its count.

use std::time::{Duration, Instant};

/// How often it is told.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// What has happened and is not told yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seldom {
    count: u64,
    told: Option<Instant>,
}

impl Seldom {
    /// Once more. How many there are to be told of now, if any.
    pub(crate) fn next(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        if self.told.is_some_and(|told| now.saturating_duration_since(told) < TELL_EVERY) {
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
}
