//! When requests are due: the open loop's timetable, as a pure function of time and a seed.

use std::time::Duration;

/// How the gaps between arrivals are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spacing {
    /// Every gap is `1 / rate`: a metronome.
    Constant,
    /// Gaps are exponential: independent arrivals, as from many users who do not know of each other.
    Poisson,
}

/// A stretch of time over which the rate changes in a straight line to `rate`.
///
/// The first stage starts at its own rate; each later one starts where the one before it ended.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Stage {
    /// Its length; in JSON in seconds.
    #[serde(rename = "duration_s", with = "seconds")]
    pub duration: Duration,
    /// Requests per second at its end.
    pub rate: f64,
}

/// A duration as a number of seconds.
mod seconds {
    use std::time::Duration;

    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(duration.as_secs_f64())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// The times at which requests are due, in nanoseconds since the start of the run. After the last stage its rate goes
/// on.
///
/// A core that carries a share of the load takes every arrival of a timetable whose rates are scaled by that share.
#[derive(Clone, Debug)]
pub struct Arrivals {
    segments: Vec<Segment>,
    current: usize,
    /// The expected number of arrivals up to the next one.
    position: f64,
    random: Option<fastrand::Rng>,
    /// Nanoseconds added to every time: when the run started.
    start: u64,
    next: u64,
    /// From here on nothing is due.
    end: u64,
}

/// A straight piece of the rate, with the number of arrivals before it.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// Seconds since the start.
    from: f64,
    duration: f64,
    rate: f64,
    slope: f64,
    /// Expected arrivals before `from`.
    before: f64,
}

impl Arrivals {
    /// A steady rate, in requests per second.
    #[must_use]
    pub fn steady(rate: f64, spacing: Spacing, seed: u64) -> Self {
        Self::staged(&[], rate, rate, spacing, seed)
    }

    /// Starts `phase` (0 up to 1) of a gap later, so that several cores do not send at the same moments. No effect on
    /// Poisson arrivals.
    #[must_use]
    pub fn phase(mut self, phase: f64) -> Self {
        if self.random.is_none() {
            self.position = phase;
            self.next = self.time_of(phase);
        }
        self
    }

    /// Rates that change by `stages`, each multiplied by `share` (1.0: all of the load).
    #[must_use]
    pub fn stages(stages: &[Stage], share: f64, spacing: Spacing, seed: u64) -> Self {
        let scaled: Vec<Stage> = stages.iter().map(|s| Stage { duration: s.duration, rate: s.rate * share }).collect();
        let first = scaled.first().map_or(0.0, |s| s.rate);
        let last = scaled.last().map_or(0.0, |s| s.rate);
        Self::staged(&scaled, first, last, spacing, seed)
    }

    fn staged(stages: &[Stage], mut rate: f64, last: f64, spacing: Spacing, seed: u64) -> Self {
        let (mut from, mut before) = (0.0, 0.0);
        let mut segments = Vec::with_capacity(stages.len() + 1);
        for stage in stages {
            let duration = stage.duration.as_secs_f64();
            if duration > 0.0 {
                segments.push(Segment { from, duration, rate, slope: (stage.rate - rate) / duration, before });
                before += duration * f64::midpoint(rate, stage.rate);
                from += duration;
            }
            rate = stage.rate;
        }
        segments.push(Segment { from, duration: f64::INFINITY, rate: last, slope: 0.0, before });
        let random = (spacing == Spacing::Poisson).then(|| fastrand::Rng::with_seed(seed));
        let mut arrivals = Self { segments, current: 0, position: 0.0, random, start: 0, next: 0, end: u64::MAX };
        // A metronome ticks at 0, 1/rate, ...; the first Poisson gap is drawn like any other.
        if arrivals.random.is_some() {
            arrivals.advance();
        } else {
            arrivals.next = arrivals.time_of(0.0);
        }
        arrivals
    }

    /// Counts from `start` nanoseconds instead of from 0.
    pub fn start_at(&mut self, start: u64) {
        let shift = start - self.start;
        self.start = start;
        self.next = self.next.saturating_add(shift);
    }

    /// Ends the timetable: nothing is due at `end` or later.
    pub fn end_at(&mut self, end: u64) {
        self.end = end;
    }

    /// Returns when the next request is due; `u64::MAX` if none will be (the last rate is zero, or the end has come).
    #[must_use]
    pub fn next_due(&self) -> u64 {
        if self.next < self.end { self.next } else { u64::MAX }
    }

    /// Moves past the next arrival and returns its time.
    pub fn take(&mut self) -> u64 {
        let due = self.next;
        self.advance();
        due
    }

    fn advance(&mut self) {
        self.position += match &mut self.random {
            None => 1.0,
            Some(random) => -(1.0 - random.f64()).ln(),
        };
        self.next = self.time_of(self.position);
    }

    /// Returns the moment at which the expected number of arrivals reaches `position`: the inverse of the rate's
    /// integral.
    fn time_of(&mut self, position: f64) -> u64 {
        while self.segments.get(self.current + 1).is_some_and(|next| position >= next.before) {
            self.current += 1;
        }
        let s = self.segments[self.current];
        let want = position - s.before;
        // rate * t + slope * t^2 / 2 = want, solved in the form that does not cancel when the slope is small.
        let root = (s.rate * s.rate + 2.0 * s.slope * want).max(0.0).sqrt();
        let t = if want <= 0.0 && (s.rate > 0.0 || s.slope > 0.0) { 0.0 } else { 2.0 * want / (s.rate + root) };
        let t = if t.is_finite() { t.min(s.duration) } else { f64::INFINITY };
        let ns = (s.from + t) * 1e9;
        if ns < 9e18 { self.start + ns.round() as u64 } else { u64::MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn count_between(arrivals: &mut Arrivals, from: u64, to: u64) -> u64 {
        while arrivals.next_due() < from {
            arrivals.take();
        }
        let mut n = 0;
        while arrivals.next_due() < to {
            arrivals.take();
            n += 1;
        }
        n
    }

    #[test]
    fn a_metronome_ticks_exactly_and_does_not_drift() {
        let mut a = Arrivals::steady(3.0, Spacing::Constant, 0);
        let times: Vec<u64> = (0..7).map(|_| a.take()).collect();
        assert_eq!(times, [0, 333_333_333, 666_666_667, SECOND, 1_333_333_333, 1_666_666_667, 2 * SECOND]);
        let mut fast = Arrivals::steady(20_000.0, Spacing::Constant, 0);
        for i in 0..20_000 * 100u64 {
            assert_eq!(fast.take(), i * 50_000);
        }
    }

    #[test]
    fn a_stage_is_written_in_seconds() {
        let stage = Stage { duration: Duration::from_millis(2500), rate: 10.0 };
        let text = serde_json::to_string(&stage).unwrap();
        assert_eq!(text, r#"{"duration_s":2.5,"rate":10.0}"#);
        assert_eq!(serde_json::from_str::<Stage>(&text).unwrap(), stage);
        for bad in ["-1.0", "1e300", "null"] {
            serde_json::from_str::<Stage>(&format!(r#"{{"duration_s":{bad},"rate":1.0}}"#)).unwrap_err();
        }
    }

    #[test]
    fn cores_take_turns() {
        let mut even = Arrivals::steady(1.0, Spacing::Constant, 0);
        let mut odd = Arrivals::steady(1.0, Spacing::Constant, 0).phase(0.5);
        assert_eq!([even.take(), odd.take(), even.take(), odd.take()], [0, SECOND / 2, SECOND, SECOND * 3 / 2]);
    }

    #[test]
    fn poisson_has_the_mean_and_the_spread_of_an_exponential() {
        let mut a = Arrivals::steady(1000.0, Spacing::Poisson, 7);
        let mut last = 0;
        let gaps: Vec<f64> = (0..100_000)
            .map(|_| {
                let t = a.take();
                let gap = (t - last) as f64 / 1e6;
                last = t;
                gap
            })
            .collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean - 1.0).abs() < 0.02, "mean gap {mean} ms");
        assert!((variance.sqrt() - 1.0).abs() < 0.03, "standard deviation {} ms", variance.sqrt());
        let beyond = gaps.iter().filter(|&&g| g > 3.0).count() as f64 / gaps.len() as f64;
        assert!((beyond - (-3.0f64).exp()).abs() < 0.005, "share of gaps over 3 means: {beyond}");
    }

    #[test]
    fn the_same_seed_gives_the_same_timetable_and_another_seed_another() {
        let times = |seed| {
            let mut a = Arrivals::steady(100.0, Spacing::Poisson, seed);
            (0..50).map(|_| a.take()).collect::<Vec<_>>()
        };
        assert_eq!(times(1), times(1));
        assert_ne!(times(1), times(2));
    }

    #[test]
    fn stages_ramp_in_straight_lines_and_the_last_rate_goes_on() {
        let stages = [
            Stage { duration: Duration::from_secs(10), rate: 1000.0 },
            Stage { duration: Duration::from_secs(30), rate: 5000.0 },
        ];
        let mut a = Arrivals::stages(&stages, 1.0, Spacing::Constant, 0);
        assert_eq!(count_between(&mut a, 0, 10 * SECOND), 10_000);
        // 30 s from 1,000 to 5,000 per second are 90,000 requests; half of the time is over at 3,000 per second.
        assert!(count_between(&mut a, 10 * SECOND, 25 * SECOND).abs_diff(30_000) <= 1);
        assert!(count_between(&mut a, 25 * SECOND, 40 * SECOND).abs_diff(60_000) <= 1);
        assert!(count_between(&mut a, 40 * SECOND, 41 * SECOND).abs_diff(5000) <= 1);
    }

    #[test]
    fn shares_of_the_load_add_up() {
        let stages = [
            Stage { duration: Duration::from_secs(4), rate: 100.0 },
            Stage { duration: Duration::from_secs(4), rate: 0.0 },
        ];
        let total: u64 = [0.25, 0.75]
            .iter()
            .map(|&share| count_between(&mut Arrivals::stages(&stages, share, Spacing::Constant, 0), 0, 100 * SECOND))
            .sum();
        assert!(total.abs_diff(600) <= 2, "{total}");
    }

    #[test]
    fn a_rate_that_falls_to_zero_ends_the_timetable() {
        let stages =
            [Stage { duration: Duration::from_secs(1), rate: 10.0 }, Stage { duration: Duration::ZERO, rate: 0.0 }];
        let mut a = Arrivals::stages(&stages, 1.0, Spacing::Constant, 0);
        for _ in 0..10 {
            assert!(a.take() < SECOND);
        }
        assert_eq!(a.next_due(), u64::MAX);
    }

    #[test]
    fn nothing_is_due_at_the_end_or_later() {
        let mut a = Arrivals::steady(10.0, Spacing::Constant, 0);
        a.start_at(SECOND);
        a.end_at(2 * SECOND);
        for i in 0..10 {
            assert_eq!(a.next_due(), SECOND + i * SECOND / 10);
            a.take();
        }
        assert_eq!(a.next_due(), u64::MAX);
    }

    #[test]
    fn a_ramp_from_zero_starts() {
        let stages =
            [Stage { duration: Duration::ZERO, rate: 0.0 }, Stage { duration: Duration::from_secs(10), rate: 100.0 }];
        let mut a = Arrivals::stages(&stages, 1.0, Spacing::Constant, 0);
        assert!(count_between(&mut a, 0, 10 * SECOND).abs_diff(500) <= 1);
    }
}
