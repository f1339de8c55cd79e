//! The figures of a latency histogram that reports have.

use serde::{Deserialize, Serialize};

use crate::latency::Latency;
use crate::quantile::Quantile;

/// The figures of a latency histogram in a report, in nanoseconds.
///
/// Minimum, mean, standard deviation and maximum cover recorded values only; percentiles take censored ones into
/// account (see [`Latency::quantile`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// Recorded values: answered requests.
    pub count: u64,
    /// Censored values: requests with only a lower bound of their latency.
    pub censored: u64,
    /// The least recorded value, exactly; 0 when there is none.
    pub min_ns: u64,
    /// The mean of the recorded values; 0 when there is none.
    pub mean_ns: f64,
    /// Their sample standard deviation; 0 when there are fewer than two.
    pub stdev_ns: f64,
    /// The greatest recorded value, exactly; 0 when there is none.
    pub max_ns: u64,
    /// The median. This and the other percentiles are `None` when the histogram is empty.
    pub p50: Option<Percentile>,
    /// The 75th percentile.
    pub p75: Option<Percentile>,
    /// The 90th percentile.
    pub p90: Option<Percentile>,
    /// The 95th percentile.
    pub p95: Option<Percentile>,
    /// The 99th percentile.
    pub p99: Option<Percentile>,
    /// The 99.9th percentile.
    #[serde(rename = "p99.9")]
    pub p99_9: Option<Percentile>,
    /// The 99.99th percentile.
    #[serde(rename = "p99.99")]
    pub p99_99: Option<Percentile>,
}

/// A [`Quantile`] as it is serialised, with its upper bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Percentile {
    /// The value, or the bound.
    pub value_ns: u64,
    /// Whether the true percentile may be greater, because it depends on unanswered requests.
    pub at_least: bool,
    /// Upper bound of the true percentile, whatever the latency of unanswered requests; the value itself if exact.
    /// `None` where the percentile falls among requests that may never have ended, and for bounds in records that
    /// lack it.
    #[serde(default)]
    pub at_most_ns: Option<u64>,
}

impl LatencySummary {
    /// Computes the figures of `latency`.
    pub fn of(latency: &Latency) -> Self {
        let percentile = |q| {
            let known = Percentile::from(latency.quantile(q)?);
            let at_most_ns = known.at_most_ns.or(latency.quantile_range(q)?.1);
            Some(Percentile { at_most_ns, ..known })
        };
        Self {
            count: latency.len(),
            censored: latency.censored(),
            min_ns: latency.min(),
            mean_ns: latency.mean(),
            stdev_ns: latency.stdev(),
            max_ns: latency.max(),
            p50: percentile(0.50),
            p75: percentile(0.75),
            p90: percentile(0.90),
            p95: percentile(0.95),
            p99: percentile(0.99),
            p99_9: percentile(0.999),
            p99_99: percentile(0.9999),
        }
    }

    /// Returns the percentiles in order, with their names in reports: `p50` to `p99.99`.
    pub fn percentiles(&self) -> [(&'static str, Option<Percentile>); 7] {
        [
            ("p50", self.p50),
            ("p75", self.p75),
            ("p90", self.p90),
            ("p95", self.p95),
            ("p99", self.p99),
            ("p99.9", self.p99_9),
            ("p99.99", self.p99_99),
        ]
    }
}

impl From<Quantile> for Percentile {
    fn from(quantile: Quantile) -> Self {
        let (value_ns, at_least) = (quantile.value(), quantile.is_bound());
        Self { value_ns, at_least, at_most_ns: (!at_least).then_some(value_ns) }
    }
}

impl From<Percentile> for Quantile {
    fn from(percentile: Percentile) -> Self {
        if percentile.at_least { Self::AtLeast(percentile.value_ns) } else { Self::Exact(percentile.value_ns) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_bound_cannot_exceed_is_said_where_it_is_known() {
        let mut latency = Latency::new();
        (1..=100).for_each(|ms| latency.record(ms * 1_000_000));
        (0..10).for_each(|_| latency.record_censored(0));
        let [p50, .., p99, _, _] = latency.summary().percentiles().map(|(_, percentile)| percentile.unwrap());
        // Rank 55 of 110: the 45th answered value at best, the 55th at worst.
        assert!(p50.at_least && p50.value_ns.abs_diff(45_000_000) < 50_000, "{p50:?}");
        assert!(p50.at_most_ns.unwrap().abs_diff(55_000_000) < 60_000, "{p50:?}");
        assert_eq!((p99.at_least, p99.at_most_ns), (true, None));
        let read: Percentile = serde_json::from_str(r#"{"value_ns":5,"at_least":true}"#).unwrap();
        assert_eq!(read, Percentile { value_ns: 5, at_least: true, at_most_ns: None });
    }

    #[test]
    fn an_empty_histogram_has_no_percentiles() {
        let summary = Latency::new().summary();
        assert!(summary.percentiles().iter().all(|(_, percentile)| percentile.is_none()));
        assert_eq!((summary.count, summary.min_ns, summary.max_ns), (0, 0, 0));
    }

    #[test]
    fn unanswered_requests_turn_the_upper_percentiles_into_bounds() {
        let mut latency = Latency::new();
        (1..=98).for_each(|ms| latency.record(ms * 1_000_000));
        latency.record_censored(2_000_000_000);
        latency.record_censored(2_000_000_000);
        let summary = latency.summary();
        assert_eq!((summary.count, summary.censored), (98, 2));
        assert!(!summary.p95.unwrap().at_least);
        assert_eq!(summary.p99, Some(Percentile { value_ns: 2_000_000_000, at_least: true, at_most_ns: None }));
        assert_eq!(Quantile::from(summary.p99_99.unwrap()), Quantile::AtLeast(2_000_000_000));
    }
}
