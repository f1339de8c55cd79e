//! Circuit breakers of stores: state machines without a clock.
//!
//! An open [`Breaker`] refuses requests at once. No request has to probe: a background task asks the store at the times
//! that [`ProbeSchedule`] gives, and the first answer closes the breaker.

use std::time::Duration;

use crate::health::HealthChange;

/// Settings of a breaker: when it opens, and how often the store is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerSettings {
    /// Consecutive failures that open the breaker. 5 by default.
    pub failures: u32,
    /// Pause before the first probe, at random up to a quarter shorter. 500 ms by default.
    pub pause: Duration,
    /// The longest pause; it doubles after each failed probe. 500 ms by default: a recovered store is found within that
    /// time.
    pub pause_max: Duration,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        BreakerSettings { failures: 5, pause: Duration::from_millis(500), pause_max: Duration::from_millis(500) }
    }
}

/// The state of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Requests go through.
    Closed,
    /// The breaker refuses requests at once.
    Open,
    /// The breaker refuses requests at once; a probe is under way.
    Probing,
}

impl State {
    /// Returns `closed`, `open` or `probing`.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Closed => "closed",
            State::Open => "open",
            State::Probing => "probing",
        }
    }
}

/// Counts failures, and decides whether requests may go out. Times are milliseconds of any one clock.
#[derive(Debug)]
pub(crate) struct Breaker {
    settings: BreakerSettings,
    failures: u32,
    is_open: bool,
    /// Time of the last report of a failure. Reports are at least [`TELL_MS`] apart.
    told: Option<u64>,
}

const TELL_MS: u64 = 1000;

impl Breaker {
    pub(crate) fn new(settings: BreakerSettings) -> Self {
        Breaker { settings, failures: 0, is_open: false, told: None }
    }

    /// Whether the breaker refuses requests.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Records an answer of the store, to a request or a probe.
    pub(crate) fn succeeded(&mut self) -> Option<HealthChange> {
        self.failures = 0;
        std::mem::take(&mut self.is_open).then_some(HealthChange::Recovered)
    }

    /// Records a failure that concerns the store.
    pub(crate) fn failed(&mut self, now: u64) -> Option<HealthChange> {
        // Requests that were under way when the breaker opened say nothing new.
        if self.is_open {
            return None;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures >= self.settings.failures {
            self.is_open = true;
            return Some(HealthChange::BreakerOpened(self.settings.pause));
        }
        let is_news = self.failures == 1 && self.told.is_none_or(|told| now >= told + TELL_MS);
        if is_news {
            self.told = Some(now);
        }
        is_news.then_some(HealthChange::Failing)
    }
}

/// The schedule of probes of a failing store.
#[derive(Debug)]
pub(crate) struct ProbeSchedule {
    settings: BreakerSettings,
    /// Failed probes so far.
    failed: u32,
}

impl ProbeSchedule {
    pub(crate) fn new(settings: BreakerSettings) -> Self {
        ProbeSchedule { settings, failed: 0 }
    }

    /// Returns the pause before the next probe. `chance`, between 0 and 1, keeps many gateways from probing one store
    /// at the same time.
    pub(crate) fn next(&mut self, chance: f64) -> Duration {
        let BreakerSettings { pause, pause_max, .. } = self.settings;
        let pause = pause.saturating_mul(1 << self.failed.min(16)).min(pause_max);
        self.failed = self.failed.saturating_add(1);
        pause.mul_f64(1.0 - chance / 4.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> BreakerSettings {
        BreakerSettings { failures: 3, pause: Duration::from_millis(100), pause_max: Duration::from_millis(350) }
    }

    #[test]
    fn it_opens_after_failures_in_a_row() {
        let mut breaker = Breaker::new(settings());
        for _ in 0..2 {
            assert!(!breaker.is_open());
            let _ = breaker.failed(0);
        }
        let _ = breaker.succeeded();
        for now in 0..3 {
            assert!(!breaker.is_open());
            let _ = breaker.failed(now);
        }
        // No request finds out, however long the store is down.
        assert!(breaker.is_open());
        let _ = breaker.failed(1_000_000);
        assert!(breaker.is_open());
        let _ = breaker.succeeded();
        assert!(!breaker.is_open());
        let _ = breaker.failed(1_000_000);
        assert!(!breaker.is_open(), "it counts from the beginning");
    }

    #[test]
    fn what_changes_is_news_once() {
        let mut breaker = Breaker::new(settings());
        assert_eq!(breaker.failed(0), Some(HealthChange::Failing));
        assert_eq!(breaker.succeeded(), None);
        // A store that fails now and then is not reported each time.
        assert_eq!((breaker.failed(TELL_MS - 1), breaker.succeeded()), (None, None));
        assert_eq!(breaker.failed(TELL_MS), Some(HealthChange::Failing));
        assert_eq!(breaker.failed(TELL_MS), None);
        assert_eq!(breaker.failed(TELL_MS), Some(HealthChange::BreakerOpened(Duration::from_millis(100))));
        assert_eq!(breaker.failed(TELL_MS), None);
        assert_eq!((breaker.succeeded(), breaker.succeeded()), (Some(HealthChange::Recovered), None));
    }

    #[test]
    fn pauses_grow_to_their_longest_and_are_never_longer() {
        let mut probes = ProbeSchedule::new(settings());
        assert_eq!([0; 4].map(|_| probes.next(0.0).as_millis()), [100, 200, 350, 350]);
        assert_eq!(probes.next(1.0), Duration::from_micros(262_500));
        // By default a recovered store is found within half a second, however long it was down.
        let mut probes = ProbeSchedule::new(BreakerSettings::default());
        assert!((0..100_000).all(|n| probes.next(f64::from(n % 2)) <= Duration::from_millis(500)));
    }
}
