//! Passive health checks: ejects a target whose requests keep failing. Time is an argument.

use std::time::Duration;

/// When to eject a target, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// Consecutive failures before ejection; 0: never.
    pub failures: u32,
    /// The first ejection's length. It doubles each time that the target fails again on return.
    pub back_off: Duration,
    /// The longest ejection.
    pub longest: Duration,
    /// Whether a status of 500 to 599 counts as a failure.
    pub server_errors: bool,
}

impl Default for Ejection {
    fn default() -> Self {
        Ejection {
            failures: 5,
            back_off: Duration::from_secs(5),
            longest: Duration::from_secs(300),
            server_errors: false,
        }
    }
}

/// The health of a target.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Health {
    /// Consecutive failures.
    failures: u32,
    /// Ejections since the last success.
    ejections: u32,
    /// The end of the last ejection, in nanoseconds of the pool's clock; 0 before the first.
    until: u64,
}

impl Health {
    pub(crate) fn is_ejected(&self, now: u64) -> bool {
        now < self.until
    }

    pub(crate) fn succeeded(&mut self, now: u64) {
        // Requests from before the ejection say nothing about the target now.
        if !self.is_ejected(now) {
            (self.failures, self.ejections) = (0, 0);
        }
    }

    /// Counts a failure; returns whether it ejects the target. After an ejection, one failure is enough.
    pub(crate) fn failed(&mut self, rule: &Ejection, now: u64) -> bool {
        if rule.failures == 0 || self.is_ejected(now) {
            return false;
        }
        self.failures += 1;
        if self.failures < rule.failures && self.ejections == 0 {
            return false;
        }
        let length = rule.back_off.saturating_mul(1 << self.ejections.min(20)).min(rule.longest);
        self.until = now.saturating_add(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX));
        self.ejections += 1;
        self.failures = 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Ejection = Ejection {
        failures: 2,
        back_off: Duration::from_nanos(10),
        longest: Duration::from_nanos(35),
        server_errors: false,
    };

    #[test]
    fn failures_in_a_row_eject_and_an_answer_forgives() {
        let mut health = Health::default();
        assert!(!health.failed(&RULE, 0));
        health.succeeded(0);
        assert!(!health.failed(&RULE, 0));
        assert!(health.failed(&RULE, 0));
        assert!(health.is_ejected(9) && !health.is_ejected(10));
    }

    #[test]
    fn each_return_that_fails_doubles_the_time() {
        let mut health = Health::default();
        health.failed(&RULE, 0);
        assert!(health.failed(&RULE, 0));
        // Requests from before the ejection count neither way.
        assert!(!health.failed(&RULE, 5));
        health.succeeded(5);
        let mut now = 10;
        for length in [20, 35, 35] {
            assert!(health.failed(&RULE, now), "one failure is enough");
            assert!(health.is_ejected(now + length - 1) && !health.is_ejected(now + length));
            now += length;
        }
        health.succeeded(now);
        assert!(!health.failed(&RULE, now), "it begins anew");
    }

    #[test]
    fn zero_is_never() {
        let mut health = Health::default();
        let never = Ejection { failures: 0, ..RULE };
        assert!((0..100).all(|_| !health.failed(&never, 0)) && !health.is_ejected(0));
    }
}
