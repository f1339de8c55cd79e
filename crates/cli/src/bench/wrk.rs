//! The report as wrk prints it, to the byte, for scripts that read wrk.
//!
//! The latencies are as measured (service time in a closed loop, response time in an open one). wrk itself adds
//! invented values for requests that it believes to have been delayed. `--wrk-backfill` does the same, to compare
//! with old figures.
//!
//! wrk's `Req/Sec` has samples per thread, every 100 ms. Here it is the time series of all threads divided by their
//! number: with several threads the spread is the spread of their average. A run of more than a minute has wider
//! samples.

use oroshi_bench::{Failure, Load, Record};
use oroshi_stats::{Latency, Quantile};

/// Writes the report of a run against `url`.
pub(crate) fn report(record: &Record, url: &str, spectrum: bool, backfill: bool) -> String {
    let plan = &record.plan;
    let measured = match plan.load {
        Load::Closed => &record.latency.service.histogram,
        Load::Open { .. } => &record.latency.response.histogram,
    };
    let latency = match interval_ns(record).filter(|_| backfill) {
        Some(interval) => &measured.backfilled(interval),
        None => measured,
    };
    let elapsed_us = record.elapsed_s * 1e6;
    let mut text = format!("Running {} test @ {url}\n", seconds(plan.duration_s.unwrap_or(record.elapsed_s)));
    text += &format!("  {} threads and {} connections\n", plan.threads, plan.connections);
    text += &format!("  Thread Stats{:>6}{:>11}{:>8}{:>12}\n", "Avg", "Stdev", "Max", "+/- Stdev");
    text += &row("Latency", &Stats::of_latency(latency), micros);
    text += &row("Req/Sec", &Stats::of_samples(&record.rates_per_thread()), metric);
    if spectrum {
        text += "  Latency Distribution\n";
        for percent in [50.0, 75.0, 90.0, 99.0] {
            let us = latency.quantile(percent / 100.0).map_or(0.0, |q: Quantile| q.value() as f64 / 1e3);
            text += &format!("{percent:>7.0}%{}\n", padded(&micros(us), 10));
        }
    }
    let (requests, read) = (record.requests.answered, record.rates.read_bytes as f64);
    text += &format!("  {requests} requests in {}, {}B read\n", micros(elapsed_us), binary(read));
    let [connect, read, write, timeout] = socket_errors(record);
    if connect + read + write + timeout > 0 {
        text += &format!("  Socket errors: connect {connect}, read {read}, write {write}, timeout {timeout}\n");
    }
    // wrk says "2xx or 3xx" and counts what is above 399.
    let status: u64 = record.statuses.iter().filter(|(status, _)| **status > 399).map(|(_, n)| n).sum();
    if status > 0 {
        text += &format!("  Non-2xx or 3xx responses: {status}\n");
    }
    text += &format!("Requests/sec: {:>9.2}\n", record.rates.requests_per_s);
    text += &format!("Transfer/sec: {:>10}B\n", binary(record.rates.read_bytes_per_s));
    text
}

/// Whether a latency of the distribution is a lower bound.
pub(crate) fn has_bounds(record: &Record) -> bool {
    let clock = if record.plan.load == Load::Closed { &record.latency.service } else { &record.latency.response };
    [0.5, 0.75, 0.9, 0.99].into_iter().any(|q| clock.histogram.quantile(q).is_some_and(Quantile::is_bound))
}

/// Returns the counts of wrk's four kinds of errors, in its order: connect, read, write, timeout.
fn socket_errors(record: &Record) -> [u64; 4] {
    let sum = |kind: fn(Failure) -> bool| record.failures.iter().filter(|(f, _)| kind(**f)).map(|(_, n)| n).sum();
    [sum(Failure::is_connect), sum(Failure::is_read), sum(|f| f == Failure::Write), sum(Failure::is_timeout)]
}

/// Returns the interval between a connection's requests that wrk assumes: run time / (requests / connections).
///
/// As in wrk, both divisions are of integers: whole microseconds, whole requests.
fn interval_ns(record: &Record) -> Option<u64> {
    let per_connection = record.requests.answered / record.plan.connections.max(1) as u64;
    let elapsed_us = (record.elapsed_s * 1e6) as u64;
    Some(elapsed_us.checked_div(per_connection)? * 1000)
}

/// The columns of `Thread Stats`.
struct Stats {
    mean: f64,
    stdev: f64,
    max: f64,
    /// Percentage within one standard deviation of the mean; NaN without values.
    within: f64,
}

impl Stats {
    fn of_latency(latency: &Latency) -> Self {
        let within = if latency.histogram().is_empty() { f64::NAN } else { latency.fraction_within_stdev(1.0) * 100.0 };
        Self { mean: latency.mean() / 1e3, stdev: latency.stdev() / 1e3, max: (latency.max() / 1000) as f64, within }
    }

    fn of_samples(samples: &[f64]) -> Self {
        let n = samples.len() as f64;
        let mean = if samples.is_empty() { 0.0 } else { samples.iter().sum::<f64>() / n };
        let squares: f64 = samples.iter().map(|x| (x - mean).powi(2)).sum();
        let stdev = if samples.len() < 2 { 0.0 } else { (squares / (n - 1.0)).sqrt() };
        let within = samples.iter().filter(|x| (*x - mean).abs() <= stdev).count() as f64 / n * 100.0;
        let max = samples.iter().copied().fold(0.0, f64::max);
        Self { mean, stdev, max, within }
    }
}

fn row(name: &str, stats: &Stats, format: fn(f64) -> String) -> String {
    let [mean, stdev, max] = [(stats.mean, 8), (stats.stdev, 10), (stats.max, 9)].map(|(v, w)| padded(&format(v), w));
    // As C prints 0/0.
    let within = if stats.within.is_nan() { "-nan".to_owned() } else { format!("{:.2}", stats.within) };
    format!("    {name:<10}{mean}{stdev}{max}{within:>8}%\n")
}

/// Right-aligns a number, so that digits align whether the unit has no, one or two letters.
fn padded(text: &str, width: usize) -> String {
    let letter = |from_end: usize| text.chars().rev().nth(from_end).is_some_and(|c| c.is_ascii_alphabetic());
    let pad = 2 - usize::from(letter(0)) - usize::from(letter(1));
    let width = width - pad;
    format!("{text:>width$.width$}{:pad$}", "")
}

/// Writes a number in the largest unit with a value of at least 0.85; wrk never uses the last unit of a list.
fn scaled(mut value: f64, step: f64, units: &[&str], digits: usize) -> String {
    let mut unit = 0;
    while unit + 2 < units.len() && value >= step * 0.85 {
        value /= step;
        unit += 1;
    }
    format!("{value:.digits$}{}", units[unit])
}

fn micros(us: f64) -> String {
    if us >= 1e6 { scaled(us / 1e6, 60.0, &["s", "m", "h"], 2) } else { scaled(us, 1000.0, &["us", "ms", "s"], 2) }
}

fn seconds(s: f64) -> String {
    scaled(s, 60.0, &["s", "m", "h"], 0)
}

fn metric(n: f64) -> String {
    scaled(n, 1000.0, &["", "k", "M", "G", "T", "P"], 2)
}

fn binary(n: f64) -> String {
    scaled(n, 1024.0, &["", "K", "M", "G", "T", "P"], 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oroshi_report::sample::bench as sample;

    #[test]
    fn units_switch_at_85_percent_and_stop_before_the_last() {
        let cases = [
            (0.0, "0.00us"),
            (849.0, "849.00us"),
            (850.0, "0.85ms"),
            (999_999.0, "1000.00ms"),
            (1e6, "1.00s"),
            (50.9e6, "50.90s"),
            (51e6, "0.85m"),
            (7.2e9, "120.00m"),
        ];
        for (us, text) in cases {
            assert_eq!(micros(us), text);
        }
        assert_eq!(
            [seconds(10.0), seconds(50.0), seconds(51.0), seconds(90.0), seconds(100.0)],
            ["10s", "50s", "1m", "2m", "2m"]
        );
        assert_eq!([metric(849.0), metric(870.4e3), metric(63_240.0)], ["849.00", "0.87M", "63.24k"]);
        assert_eq!([binary(0.0), binary(871.0), binary(20.15 * 1024.0 * 1024.0)], ["0.00", "0.85K", "20.15M"]);
    }

    #[test]
    fn columns_are_padded_by_the_length_of_the_unit() {
        assert_eq!(
            [padded("94.00us", 10), padded("63.24k", 8), padded("0.00", 8)],
            ["   94.00us", " 63.24k ", "  0.00  "]
        );
        assert_eq!(padded("123456789.00us", 8), "12345678");
    }

    #[test]
    fn the_layout_is_wrks() {
        // The output of wrk 4.1.0, with the numbers of the sample in place of its own.
        let expected = "\
Running 10s test @ http://127.0.0.1:8080/
  2 threads and 100 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   550.00us  288.68us   1.05ms   57.79%
    Req/Sec     5.00k     0.00     5.00k   100.00%
  Latency Distribution
     50%  550.40us
     75%  800.25us
     90%    0.95ms
     99%    1.04ms
  100000 requests in 10.00s, 15.26MB read
  Socket errors: connect 0, read 3, write 0, timeout 12
Requests/sec:  10000.00
Transfer/sec:      1.53MB
";
        let text = report(&sample::closed(), "http://127.0.0.1:8080/", true, false);
        let shape = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(shape(&text), shape(expected));
    }

    #[test]
    fn nothing_answered_looks_as_in_wrk() {
        // To the byte what wrk 4.1.0 prints for a server that never answers, but for the errors that it does not see.
        let expected = "\
Running 1s test @ http://127.0.0.1:1/
  1 threads and 2 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     0.00us    0.00us   0.00us    -nan%
    Req/Sec     0.00      0.00     0.00      -nan%
  Latency Distribution
     50%    0.00us
     75%    0.00us
     90%    0.00us
     99%    0.00us
  0 requests in 1.00s, 0.00B read
  Socket errors: connect 40, read 0, write 0, timeout 0
Requests/sec:      0.00
Transfer/sec:       0.00B
";
        assert_eq!(report(&sample::nothing(), "http://127.0.0.1:1/", true, true), expected);
    }

    #[test]
    fn statuses_above_399_have_a_line() {
        let mut record = sample::closed();
        record.statuses = [(200, 10), (302, 5), (404, 7), (500, 2)].into();
        assert!(report(&record, "u", false, false).contains("\n  Non-2xx or 3xx responses: 9\nRequests/sec:"));
    }

    #[test]
    fn backfilling_is_wrks_correction() {
        let mut record = sample::closed();
        record.latency.service.histogram.record(100_000_000);
        assert_eq!(interval_ns(&record), Some(10_000_000));
        let (plain, filled) = (report(&record, "u", true, false), report(&record, "u", true, true));
        assert_ne!(plain, filled);
        assert_eq!(plain.lines().count(), filled.lines().count());
    }
}
