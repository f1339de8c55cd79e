//! When to leave a store alone that does not answer: a state machine without a clock.

use std::time::Duration;

use crate::news::News;

/// When a breaker opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaking {
    /// It opens after so many failures in a row.
    pub failures: u32,
    /// For how long at first. Each probe that fails doubles it; each pause is up to a quarter shorter or longer than
    /// that, by chance.
    pub pause: Duration,
    /// For how long at most.
    pub pause_max: Duration,
}

impl Default for Breaking {
    fn default() -> Self {
        Breaking { failures: 5, pause: Duration::from_millis(500), pause_max: Duration::from_secs(30) }
    }
}

/// What a breaker does with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// They go through.
    Closed,
    /// They are refused at once.
    Open,
    /// One of them is under way to find out; the others are refused.
    Probing,
}

impl State {
    /// `closed`, `open` or `probing`.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Closed => "closed",
            State::Open => "open",
            State::Probing => "probing",
        }
    }
}

/// Counts failures, and says who may ask. Times are milliseconds of any one clock.
#[derive(Debug)]
pub(crate) struct Breaker {
    settings: Breaking,
    failures: u32,
    /// How often it has opened since the last success.
    opened: u32,
    /// When the next probe may go, if it is open; and until when the one under way is waited for, if there is one.
    open_until: Option<u64>,
    probe_until: Option<u64>,
    /// When it was last told that it fails, which is told no more often than [`TELL_MS`].
    told: Option<u64>,
}

/// A probe of which nothing is heard for so long is given up: whoever had it may have been dropped.
const PROBE_MS: u64 = 60_000;

const TELL_MS: u64 = 1000;

impl Breaker {
    pub(crate) fn new(settings: Breaking) -> Self {
        Breaker { settings, failures: 0, opened: 0, open_until: None, probe_until: None, told: None }
    }

    pub(crate) fn state(&self, now: u64) -> State {
        match (self.open_until, self.probe_until) {
            (None, _) => State::Closed,
            (_, Some(until)) if now < until => State::Probing,
            _ => State::Open,
        }
    }

    /// Whether a request could go out now.
    pub(crate) fn would_pass(&self, now: u64) -> bool {
        self.open_until.is_none_or(|until| now >= until && self.state(now) != State::Probing)
    }

    /// Whether a request may go out. While it is open, the first one after the pause may, and is the probe.
    pub(crate) fn may_pass(&mut self, now: u64) -> bool {
        let passes = self.would_pass(now);
        if passes && self.open_until.is_some() {
            self.probe_until = Some(now + PROBE_MS);
        }
        passes
    }

    /// A request was answered.
    pub(crate) fn succeeded(&mut self) -> Option<News> {
        let was_left_alone = self.opened > 0;
        *self = Breaker { told: self.told, ..Breaker::new(self.settings) };
        was_left_alone.then_some(News::IsBack)
    }

    /// A request has failed, in a way that says something about the store. `chance` is between 0 and 1.
    pub(crate) fn failed(&mut self, now: u64, chance: f64) -> Option<News> {
        self.failures = self.failures.saturating_add(1);
        let probing = self.probe_until.take().is_some();
        // Those that were under way when it opened say nothing new.
        let closed = self.open_until.is_none();
        if probing || closed && self.failures >= self.settings.failures {
            let pause = self.settings.pause.saturating_mul(1 << self.opened.min(16)).min(self.settings.pause_max);
            self.opened += 1;
            self.open_until = Some(now + pause.mul_f64(0.75 + chance / 2.0).as_millis() as u64);
            return (self.opened == 1).then_some(News::IsLeftAlone(pause));
        }
        let is_news = self.failures == 1 && self.told.is_none_or(|told| now >= told + TELL_MS);
        if is_news {
            self.told = Some(now);
        }
        is_news.then_some(News::Fails)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker() -> Breaker {
        Breaker::new(Breaking { failures: 3, pause: Duration::from_millis(100), pause_max: Duration::from_millis(350) })
    }

    #[test]
    fn it_opens_after_failures_in_a_row() {
        let mut breaker = breaker();
        for _ in 0..2 {
            assert!(breaker.may_pass(0));
            let _ = breaker.failed(0, 0.5);
        }
        let _ = breaker.succeeded();
        for now in 0..3 {
            assert!(breaker.may_pass(now) && breaker.state(now) == State::Closed);
            let _ = breaker.failed(now, 0.5);
        }
        assert!(!breaker.may_pass(3) && breaker.state(3) == State::Open);
        // Others that were under way change nothing.
        let _ = breaker.failed(50, 0.5);
        assert!(!breaker.may_pass(101));
        assert!(breaker.may_pass(102));
    }

    #[test]
    fn what_changes_is_news_once() {
        let mut breaker = breaker();
        assert_eq!(breaker.failed(0, 0.5), Some(News::Fails));
        assert_eq!(breaker.succeeded(), None);
        // Not each time that it fails once.
        assert_eq!((breaker.failed(TELL_MS - 1, 0.5), breaker.succeeded()), (None, None));
        assert_eq!(breaker.failed(TELL_MS, 0.5), Some(News::Fails));
        assert_eq!(breaker.failed(TELL_MS, 0.5), None);
        assert_eq!(breaker.failed(TELL_MS, 0.5), Some(News::IsLeftAlone(Duration::from_millis(100))));
        assert_eq!(breaker.failed(TELL_MS, 0.5), None);
        // Nor each probe.
        assert!(breaker.may_pass(2 * TELL_MS));
        assert_eq!(breaker.failed(2 * TELL_MS, 0.5), None);
        assert!(breaker.may_pass(3 * TELL_MS));
        assert_eq!((breaker.succeeded(), breaker.succeeded()), (Some(News::IsBack), None));
    }

    #[test]
    fn one_probe_decides_and_pauses_grow() {
        let mut breaker = breaker();
        (0..3).for_each(|_| _ = breaker.failed(0, 0.5));
        let mut now = 0;
        for pause in [100, 200, 350, 350] {
            assert!(!breaker.may_pass(now + pause - 1));
            now += pause;
            assert!(breaker.may_pass(now), "after {pause}");
            assert!(!breaker.may_pass(now) && breaker.state(now) == State::Probing, "one alone");
            let _ = breaker.failed(now, 0.5);
            assert_eq!(breaker.state(now), State::Open);
        }
        assert!(breaker.may_pass(now + 350));
        let _ = breaker.succeeded();
        assert!(breaker.may_pass(now + 350) && breaker.state(now) == State::Closed);
    }

    #[test]
    fn pauses_differ_by_chance() {
        for (chance, pause) in [(0.0, 75), (1.0, 125)] {
            let mut breaker = breaker();
            (0..3).for_each(|_| _ = breaker.failed(0, chance));
            assert!(!breaker.may_pass(pause - 1) && breaker.may_pass(pause));
        }
    }

    #[test]
    fn a_probe_that_got_lost_is_replaced() {
        let mut breaker = breaker();
        (0..3).for_each(|_| _ = breaker.failed(0, 0.5));
        assert!(breaker.may_pass(100) && !breaker.may_pass(100 + PROBE_MS - 1) && breaker.may_pass(100 + PROBE_MS));
    }
}
