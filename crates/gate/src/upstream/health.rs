//! Passive health: whether a target is left out for a while because requests to it kept failing. Time is an argument.

use std::time::Duration;

/// When a target is left out, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// After so many failures in a row; 0 for never.
    pub failures: u32,
    /// For how long the first time. It doubles each time that the target fails again on its return.
    pub back_off: Duration,
    /// The longest that it comes to.
    pub longest: Duration,
    /// Whether an answer of 500 to 599 is a failure too.
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

/// What is known of a target's health.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Health {
    /// Failures in a row.
    failures: u32,
    /// How often it was left out since it last answered.
    times: u32,
    until: u64,
}

impl Health {
    pub(crate) fn is_out(&self, now: u64) -> bool {
        now < self.until
    }

    pub(crate) fn succeeded(&mut self, now: u64) {
        // What was under way when it was left out says nothing of how it is now.
        if !self.is_out(now) {
            (self.failures, self.times) = (0, 0);
        }
    }

    /// Whether this is what it is left out for. On its return the first failure is enough.
    pub(crate) fn failed(&mut self, rule: &Ejection, now: u64) -> bool {
        if rule.failures == 0 || self.is_out(now) {
            return false;
        }
        self.failures += 1;
        if self.failures < rule.failures && self.times == 0 {
            return false;
        }
        let length = rule.back_off.saturating_mul(1 << self.times.min(20)).min(rule.longest);
        self.until = now.saturating_add(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX));
        self.times += 1;
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
        assert!(health.is_out(9) && !health.is_out(10));
    }

    #[test]
    fn each_return_that_fails_doubles_the_time() {
        let mut health = Health::default();
        health.failed(&RULE, 0);
        assert!(health.failed(&RULE, 0));
        // What was under way neither counts against it nor for it.
        assert!(!health.failed(&RULE, 5));
        health.succeeded(5);
        let mut now = 10;
        for length in [20, 35, 35] {
            assert!(health.failed(&RULE, now), "one failure is enough");
            assert!(health.is_out(now + length - 1) && !health.is_out(now + length));
            now += length;
        }
        health.succeeded(now);
        assert!(!health.failed(&RULE, now), "it begins anew");
    }

    #[test]
    fn zero_is_never() {
        let mut health = Health::default();
        let never = Ejection { failures: 0, ..RULE };
        assert!((0..100).all(|_| !health.failed(&never, 0)) && !health.is_out(0));
    }
}
