//! When to leave a store alone that does not answer: state machines without a clock.
//!
//! While a [`Breaker`] is open, requests are refused at once and never find out: the store is asked in the background, at the times that [`Looks`]
//! gives, and the first answer closes it.

use std::time::Duration;

use crate::news::News;

/// When a breaker opens, and how often the store is asked then whether it is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaking {
    /// It opens after so many failures in a row. 5 by default.
    pub failures: u32,
    /// After so long the store is asked in the background whether it is back; up to a quarter earlier, by chance. 500 ms by default.
    pub pause: Duration,
    /// Each time that it is not, the pause is doubled, up to this. 500 ms by default: a store that is back is found within that time.
    pub pause_max: Duration,
}

impl Default for Breaking {
    fn default() -> Self {
        Breaking { failures: 5, pause: Duration::from_millis(500), pause_max: Duration::from_millis(500) }
    }
}

/// What a breaker does with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// They go through.
    Closed,
    /// They are refused at once.
    Open,
    /// They are refused at once; the store is being asked whether it is back.
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

/// Counts failures, and says whether requests may go out. Times are milliseconds of any one clock.
#[derive(Debug)]
pub(crate) struct Breaker {
    settings: Breaking,
    failures: u32,
    is_open: bool,
    /// When it was last told that it fails, which is told no more often than [`TELL_MS`].
    told: Option<u64>,
}

const TELL_MS: u64 = 1000;

impl Breaker {
    pub(crate) fn new(settings: Breaking) -> Self {
        Breaker { settings, failures: 0, is_open: false, told: None }
    }

    /// Whether requests are refused.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// A request was answered, or the store was found to be back.
    pub(crate) fn succeeded(&mut self) -> Option<News> {
        self.failures = 0;
        std::mem::take(&mut self.is_open).then_some(News::IsBack)
    }

    /// A request has failed, in a way that says something about the store.
    pub(crate) fn failed(&mut self, now: u64) -> Option<News> {
        // Those that were under way when it opened say nothing new.
        if self.is_open {
            return None;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures >= self.settings.failures {
            self.is_open = true;
            return Some(News::IsLeftAlone(self.settings.pause));
        }
        let is_news = self.failures == 1 && self.told.is_none_or(|told| now >= told + TELL_MS);
        if is_news {
            self.told = Some(now);
        }
        is_news.then_some(News::Fails)
    }
}

/// When a store that is left alone is asked whether it is back.
#[derive(Debug)]
pub(crate) struct Looks {
    settings: Breaking,
    /// How often it was not.
    in_vain: u32,
}

impl Looks {
    pub(crate) fn new(settings: Breaking) -> Self {
        Looks { settings, in_vain: 0 }
    }

    /// How long to wait for the next look. `chance` is between 0 and 1: many gateways before one store do not all ask at once.
    pub(crate) fn next(&mut self, chance: f64) -> Duration {
        let Breaking { pause, pause_max, .. } = self.settings;
        let pause = pause.saturating_mul(1 << self.in_vain.min(16)).min(pause_max);
        self.in_vain = self.in_vain.saturating_add(1);
        pause.mul_f64(1.0 - chance / 4.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Breaking {
        Breaking { failures: 3, pause: Duration::from_millis(100), pause_max: Duration::from_millis(350) }
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
        // However long it takes, no request finds out.
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
        assert_eq!(breaker.failed(0), Some(News::Fails));
        assert_eq!(breaker.succeeded(), None);
        // Not each time that it fails once.
        assert_eq!((breaker.failed(TELL_MS - 1), breaker.succeeded()), (None, None));
        assert_eq!(breaker.failed(TELL_MS), Some(News::Fails));
        assert_eq!(breaker.failed(TELL_MS), None);
        assert_eq!(breaker.failed(TELL_MS), Some(News::IsLeftAlone(Duration::from_millis(100))));
        assert_eq!(breaker.failed(TELL_MS), None);
        assert_eq!((breaker.succeeded(), breaker.succeeded()), (Some(News::IsBack), None));
    }

    #[test]
    fn pauses_grow_to_their_longest_and_are_never_longer() {
        let mut looks = Looks::new(settings());
        assert_eq!([0; 4].map(|_| looks.next(0.0).as_millis()), [100, 200, 350, 350]);
        assert_eq!(looks.next(1.0), Duration::from_micros(262_500));
        // By default a store is found again within half a second, however long it was away.
        let mut looks = Looks::new(Breaking::default());
        assert!((0..100_000).all(|look| looks.next(f64::from(look % 2)) <= Duration::from_millis(500)));
    }
}
