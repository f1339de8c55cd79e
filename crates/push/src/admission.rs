//! How many clients may connect per second: a token bucket.

use tokio::time::Instant;

/// Lets so many in per second, and one second's worth at once.
#[derive(Debug)]
pub(crate) struct Admission {
    rate: f64,
    tokens: f64,
    filled: Instant,
}

impl Admission {
    /// `rate` per second.
    pub(crate) fn new(rate: f64) -> Self {
        Admission { rate, tokens: rate.max(1.0), filled: Instant::now() }
    }

    /// Whether one more may come in now; it is counted if so.
    pub(crate) fn admit(&mut self) -> bool {
        self.admit_at(Instant::now())
    }

    fn admit_at(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.filled = now;
        self.tokens = (self.tokens + passed * self.rate).min(self.rate.max(1.0));
        let may = self.tokens >= 1.0;
        if may {
            self.tokens -= 1.0;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_second_holds_so_many() {
        let mut admission = Admission::new(10.0);
        let start = admission.filled;
        assert_eq!((0..20).filter(|_| admission.admit_at(start)).count(), 10);
        assert!(!admission.admit_at(start + Duration::from_millis(50)));
        assert!(admission.admit_at(start + Duration::from_millis(101)));
        let later = start + Duration::from_secs(60);
        assert_eq!((0..20).filter(|_| admission.admit_at(later)).count(), 10, "what was not used is not saved up");
    }

    #[test]
    fn less_than_one_per_second_still_lets_one_in() {
        let mut admission = Admission::new(0.5);
        let start = admission.filled;
        assert!(admission.admit_at(start) && !admission.admit_at(start + Duration::from_secs(1)));
        assert!(admission.admit_at(start + Duration::from_secs(2)));
    }
}
