//! The figures of runs: name, unit, and which way is better.

use std::fmt;
use std::str::FromStr;

use oroshi_bench::Record;
use oroshi_stats::Percentile;
use serde::{Deserialize, Serialize};

/// The middle of a range stands for a percentile if its upper end is at most this many times its lower end.
const NARROW: f64 = 1.25;

/// A figure of a run. Latencies are response times, from the moment a request was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Metric {
    /// The score of a script with scenarios, or of a load program; unknown if it is void, or not above 0.
    #[serde(rename = "score")]
    Score,
    /// Answers per second.
    #[serde(rename = "rps")]
    Rps,
    /// Median latency, nanoseconds.
    #[serde(rename = "p50")]
    P50,
    /// 90th percentile, nanoseconds.
    #[serde(rename = "p90")]
    P90,
    /// 99th percentile, nanoseconds.
    #[serde(rename = "p99")]
    P99,
    /// 99.9th percentile, nanoseconds.
    #[serde(rename = "p99.9")]
    P99_9,
    /// Mean latency of the answers, nanoseconds; unknown if a request failed or was never sent.
    #[serde(rename = "mean")]
    Mean,
    /// The server's CPU time per answer, nanoseconds.
    #[serde(rename = "cpu")]
    Cpu,
    /// The load's own CPU time per answer, nanoseconds.
    #[serde(rename = "load-cpu")]
    LoadCpu,
    /// Peak memory of the server's processes, bytes; shared pages count for each process.
    #[serde(rename = "memory")]
    Memory,
}

/// The better direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    /// More.
    Higher,
    /// Less.
    Lower,
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Requests per second.
    PerSecond,
    /// Nanoseconds.
    Nanoseconds,
    /// Bytes.
    Bytes,
    /// Points of a score.
    Points,
}

impl Metric {
    /// All metrics.
    pub const ALL: [Self; 10] = [
        Self::Score,
        Self::Rps,
        Self::P50,
        Self::P90,
        Self::P99,
        Self::P99_9,
        Self::Mean,
        Self::Cpu,
        Self::LoadCpu,
        Self::Memory,
    ];

    /// Returns the name in flags, files and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Score => "score",
            Self::Rps => "rps",
            Self::P50 => "p50",
            Self::P90 => "p90",
            Self::P99 => "p99",
            Self::P99_9 => "p99.9",
            Self::Mean => "mean",
            Self::Cpu => "cpu",
            Self::LoadCpu => "load-cpu",
            Self::Memory => "memory",
        }
    }

    /// Returns the label for a table or an axis.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Score => "score",
            Self::Rps => "requests/s",
            Self::P50 => "p50",
            Self::P90 => "p90",
            Self::P99 => "p99",
            Self::P99_9 => "p99.9",
            Self::Mean => "mean latency",
            Self::Cpu => "server CPU/request",
            Self::LoadCpu => "generator CPU/request",
            Self::Memory => "server memory",
        }
    }

    /// Returns the better direction.
    #[must_use]
    pub fn better(self) -> Better {
        if self.is_throughput() { Better::Higher } else { Better::Lower }
    }

    /// Whether this counts work done within a time: requests, or points.
    #[must_use]
    pub fn is_throughput(self) -> bool {
        matches!(self, Self::Score | Self::Rps)
    }

    /// Returns the unit.
    #[must_use]
    pub fn unit(self) -> Unit {
        match self {
            Self::Score => Unit::Points,
            Self::Rps => Unit::PerSecond,
            Self::Memory => Unit::Bytes,
            _ => Unit::Nanoseconds,
        }
    }

    /// Whether this is a response time. It depends on the rate, so two set-ups are compared at the same rate.
    #[must_use]
    pub fn is_latency(self) -> bool {
        matches!(self, Self::P50 | Self::P90 | Self::P99 | Self::P99_9 | Self::Mean)
    }

    /// Returns the share of answers below the percentile.
    pub(crate) fn quantile(self) -> Option<f64> {
        match self {
            Self::P50 => Some(0.5),
            Self::P90 => Some(0.9),
            Self::P99 => Some(0.99),
            Self::P99_9 => Some(0.999),
            Self::Score | Self::Rps | Self::Mean | Self::Cpu | Self::LoadCpu | Self::Memory => None,
        }
    }

    /// Returns the figure of a run. `None` if nothing was answered, the server's processes are unknown, the percentile
    /// falls among requests that were never answered, or the score is void.
    #[must_use]
    pub fn of(self, record: &Record) -> Option<f64> {
        let response = &record.latency.response.summary;
        let known = |percentile: Option<Percentile>| percentile.and_then(middle);
        let value = match self {
            Self::Score => {
                let scenario = record.scenario.as_ref().filter(|scenario| scenario.aborted.is_none());
                let score = scenario.and_then(|scenario| scenario.score.as_ref());
                score.filter(|score| score.void.is_none()).map(|score| score.value)
            }
            Self::Rps => (record.requests_done() > 0.0).then_some(record.rates.requests_per_s),
            Self::P50 => known(response.p50),
            Self::P90 => known(response.p90),
            Self::P99 => known(response.p99),
            Self::P99_9 => known(response.p99_9),
            // Every run ends with one request per connection under way; leaving these out changes the mean little.
            Self::Mean => {
                let all = record.requests.failed == 0 && record.requests.unsent == 0;
                (response.count > 0 && all).then_some(response.mean_ns)
            }
            Self::Cpu => record.server_cpu_us_per_request().map(|us| us * 1e3),
            Self::LoadCpu => record.generator.cpu_us_per_request.map(|us| us * 1e3),
            Self::Memory => record.server.as_ref().map(|server| server.rss_peak_bytes as f64),
        };
        // A ratio needs a divisor.
        value.filter(|value| value.is_finite() && *value > 0.0)
    }
}

/// Returns a run's percentile; if requests without an answer leave a range, its middle, as long as the range is narrow.
fn middle(percentile: Percentile) -> Option<f64> {
    let (least, most) = (percentile.value_ns as f64, percentile.at_most_ns.map(|ns| ns as f64));
    match most.filter(|_| percentile.at_least) {
        None => (!percentile.at_least).then_some(least),
        Some(most) => (most <= least * NARROW).then(|| (least * most).sqrt()),
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Metric {
    type Err = UnknownMetric;

    fn from_str(text: &str) -> Result<Self, UnknownMetric> {
        Self::ALL
            .into_iter()
            .find(|metric| metric.name() == text)
            .ok_or_else(|| UnknownMetric { text: text.to_owned() })
    }
}

/// No metric has that name: use one of those in the message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no metric{}: expected one of {}", did_you_mean(text), names())]
pub struct UnknownMetric {
    /// The text.
    pub text: String,
}

fn names() -> String {
    Metric::ALL.map(Metric::name).join(", ")
}

fn did_you_mean(text: &str) -> String {
    let near = oroshi_words::nearest(text, Metric::ALL.iter().map(|metric| metric.name()));
    near.map(|name| format!(" (did you mean {name}?)")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_stands_for_a_percentile_only_where_it_is_narrow() {
        let percentile = |at_least, at_most_ns| Percentile { value_ns: 100, at_least, at_most_ns };
        assert_eq!(middle(percentile(false, Some(100))), Some(100.0));
        assert_eq!(middle(percentile(false, None)), Some(100.0), "records of before");
        assert_eq!(middle(percentile(true, Some(121))), Some(110.0));
        assert_eq!(middle(percentile(true, Some(126))), None);
        assert_eq!(middle(percentile(true, None)), None);
    }

    #[test]
    fn a_score_is_known_unless_it_is_void_or_not_above_nothing() {
        let of = |scenario: serde_json::Value| {
            let mut run = crate::sample::record(&oroshi_bench::Load::Closed, 10, "server-bound");
            run.scenario = serde_json::from_value(scenario).unwrap();
            Metric::Score.of(&run)
        };
        let scenario = |score: serde_json::Value, aborted: Option<&str>| {
            serde_json::json!({
                "users": { "model": "closed", "most": 1, "due": 0, "late": 0, "unbegun": 0, "lateness": null },
                "score": score, "journeys": [], "steps": [], "timers": [], "checks": [], "fails": [], "flows": [],
                "aborted": aborted, "phases": [], "seed": 0,
            })
        };
        let score = |value: f64, void: Option<&str>| {
            let breakdown = serde_json::json!([]);
            serde_json::json!({
                "value": value, "void": void, "formula": true, "points": value, "breakdown": breakdown
            })
        };
        assert_eq!(of(scenario(score(41_789.0, None), None)), Some(41_789.0));
        for none in [score(0.0, None), score(-5.0, None), score(7.0, Some("cheated")), serde_json::Value::Null] {
            assert_eq!(of(scenario(none, None)), None);
        }
        assert_eq!(of(scenario(score(7.0, None), Some("no accounts"))), None);
        assert_eq!(of(serde_json::Value::Null), None);
        assert!(Metric::Score.is_throughput() && Metric::Score.better() == Better::Higher);
    }

    #[test]
    fn every_name_reads_as_its_metric_and_is_the_one_in_json() {
        for metric in Metric::ALL {
            assert_eq!(metric.name().parse(), Ok(metric));
            assert_eq!(serde_json::to_string(&metric).unwrap(), format!("\"{metric}\""));
        }
        let error = "p95".parse::<Metric>().unwrap_err().to_string();
        assert!(error.contains("did you mean p9") && error.contains("load-cpu"), "{error}");
    }
}
