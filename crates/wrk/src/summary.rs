//! wrk's figures from a record: for `done` and for the report in wrk's layout, which agree.
//!
//! Latencies are measured: service time in a closed loop, response time in an open one. wrk's rates are samples of
//! each thread every 100 ms. Here they come from the time series of all threads, divided by the number of threads.
//! With several threads their spread is therefore the average's, and runs of more than a minute have wider samples.

use std::borrow::Cow;

use oroshi_bench::{Failure, Load, Record};
use oroshi_stats::{Latency, Quantile};

/// A run in wrk's terms.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Length of the run, microseconds.
    pub duration_us: f64,
    /// Responses.
    pub requests: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Failures.
    pub errors: Errors,
    /// Latencies.
    pub latency: Latency,
    /// Requests per second and thread, one sample per point of the time series with responses.
    pub rates: Vec<f64>,
}

/// wrk's kinds of errors, in its order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    /// Connections that could not be made.
    pub connect: u64,
    /// Responses that broke off or were invalid.
    pub read: u64,
    /// Requests that could not be written.
    pub write: u64,
    /// Responses with a status above 399.
    pub status: u64,
    /// Requests without a response in time.
    pub timeout: u64,
}

/// wrk's figures of a set of values. All but `within` are 0 for an empty set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// Their average.
    pub mean: f64,
    /// Their sample standard deviation (n - 1).
    pub stdev: f64,
    /// Percentage within one standard deviation of the mean; NaN for an empty set.
    pub within: f64,
}

impl Summary {
    /// Computes the figures. With `backfill`, latencies include wrk's made-up ones.
    #[must_use]
    pub fn of(record: &Record, backfill: bool) -> Self {
        Self {
            duration_us: (record.elapsed_s * 1e6).round(),
            requests: record.requests.answered,
            bytes: record.rates.read_bytes,
            errors: Errors::of(record),
            latency: latency(record, backfill).into_owned(),
            rates: record.rates_per_thread(),
        }
    }
}

impl Errors {
    /// Counts them.
    #[must_use]
    pub fn of(record: &Record) -> Self {
        let sum = |kind: fn(Failure) -> bool| record.failures.iter().filter(|(f, _)| kind(**f)).map(|(_, n)| n).sum();
        Self {
            connect: sum(Failure::is_connect),
            read: sum(Failure::is_read),
            write: sum(|f| f == Failure::Write),
            // wrk says "2xx or 3xx" and counts statuses above 399.
            status: record.statuses.iter().filter(|(status, _)| **status > 399).map(|(_, n)| n).sum(),
            timeout: sum(Failure::is_timeout),
        }
    }
}

impl Figures {
    /// Computes the figures of latencies, in microseconds.
    #[must_use]
    pub fn of_latency(latency: &Latency) -> Self {
        let us = |ns: u64| ns as f64 / 1e3;
        let within = if latency.histogram().is_empty() { f64::NAN } else { latency.fraction_within_stdev(1.0) * 100.0 };
        let (mean, stdev) = (latency.mean() / 1e3, latency.stdev() / 1e3);
        Self { min: us(latency.min()), max: us(latency.max()), mean, stdev, within }
    }

    /// Computes the figures of samples, in their own unit.
    #[must_use]
    pub fn of_samples(samples: &[f64]) -> Self {
        let n = samples.len() as f64;
        let mean = if samples.is_empty() { 0.0 } else { samples.iter().sum::<f64>() / n };
        let squares: f64 = samples.iter().map(|x| (x - mean).powi(2)).sum();
        let stdev = if samples.len() < 2 { 0.0 } else { (squares / (n - 1.0)).sqrt() };
        let within = samples.iter().filter(|x| (*x - mean).abs() <= stdev).count() as f64 / n * 100.0;
        let (min, max) = (samples.iter().copied().reduce(f64::min), samples.iter().copied().reduce(f64::max));
        Self { min: min.unwrap_or(0.0), max: max.unwrap_or(0.0), mean, stdev, within }
    }
}

/// Returns the latencies that wrk would report; with `backfill`, after its correction, which wrk always applies.
#[must_use]
pub fn latency(record: &Record, backfill: bool) -> Cow<'_, Latency> {
    let measured = match record.plan.load {
        Load::Closed => &record.latency.service.histogram,
        Load::Open { .. } => &record.latency.response.histogram,
    };
    match interval_ns(record).filter(|_| backfill) {
        Some(interval) => Cow::Owned(measured.backfilled(interval)),
        None => Cow::Borrowed(measured),
    }
}

/// Returns a percentile in microseconds, or its lower bound; 0 for an empty set.
#[must_use]
pub fn percentile_us(latency: &Latency, percent: f64) -> f64 {
    latency.quantile(percent / 100.0).map_or(0.0, |found: Quantile| found.value() as f64 / 1e3)
}

/// Returns wrk's expected interval between requests of a connection: run time / (requests / connections), in whole
/// microseconds and whole requests, as it calculates.
fn interval_ns(record: &Record) -> Option<u64> {
    let per_connection = record.requests.answered / record.plan.connections.max(1) as u64;
    let elapsed_us = (record.elapsed_s * 1e6) as u64;
    Some(elapsed_us.checked_div(per_connection)? * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_samples() {
        let figures = Figures::of_samples(&[4.0, 2.0, 9.0]);
        assert_eq!((figures.min, figures.max, figures.mean), (2.0, 9.0, 5.0));
        assert!((figures.stdev - 13f64.sqrt()).abs() < 1e-12 && (figures.within - 200.0 / 3.0).abs() < 1e-9);
        let one = Figures::of_samples(&[7.0]);
        assert_eq!((one.min, one.max, one.mean, one.stdev, one.within), (7.0, 7.0, 7.0, 0.0, 100.0));
        let none = Figures::of_samples(&[]);
        assert_eq!((none.min, none.max, none.mean, none.stdev), (0.0, 0.0, 0.0, 0.0));
        assert!(none.within.is_nan());
    }

    #[test]
    fn figures_of_latencies_are_in_microseconds_and_exact() {
        let mut latency = Latency::new();
        assert!(Figures::of_latency(&latency).within.is_nan() && percentile_us(&latency, 50.0) == 0.0);
        latency.record(1_234_567);
        latency.record(2_000_001);
        let figures = Figures::of_latency(&latency);
        assert_eq!((figures.min, figures.max, figures.mean), (1234.567, 2000.001, 1617.284));
        assert_eq!(percentile_us(&latency, 100.0), figures.max);
        // An unanswered request waited longer than every answered one.
        latency.record_censored(5_000_000);
        assert_eq!(percentile_us(&latency, 100.0), 5000.0);
    }
}
