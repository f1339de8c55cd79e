//! A run over time, for other programs: CSV, the text format of OpenMetrics, series for Prometheus.

use std::fmt::Write as _;

use oroshi_bench::Record;
use oroshi_bench::record::PointRecord;

/// A metric over time.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeSeries {
    /// Its name: `oroshi_bench_latency_seconds`.
    pub name: &'static str,
    /// Its meaning, a sentence without the full stop.
    pub help: &'static str,
    /// Labels beside those of the run: `quantile="0.99"`.
    pub label: Option<(&'static str, &'static str)>,
    /// Points in order: milliseconds since 1970, and the value.
    pub points: Vec<(i64, f64)>,
}

/// Writes the points of a run as CSV, the first line with the names of the columns. Times are in seconds. The fields of
/// a point without responses are empty, and the rate of a sliver at the end.
#[must_use]
pub fn csv(record: &Record) -> String {
    let mut text =
        String::from("at_s,unix_s,seconds,requests,requests_per_s,errors,read_bytes,p50_s,p99_s,max_s,connections\n");
    let begin = begin_unix_s(record);
    for (point, length) in points(record) {
        let rate = length.rate(point.requests).map(decimal).unwrap_or_default();
        let time = |ns: Option<u64>| ns.map(|ns| decimal(ns as f64 / 1e9)).unwrap_or_default();
        let alive = point.alive.map(|alive| alive.to_string()).unwrap_or_default();
        let _ = writeln!(
            text,
            "{},{:.3},{},{},{rate},{},{},{},{},{},{alive}",
            decimal(point.at_s),
            begin + point.at_s,
            decimal(length.seconds),
            point.requests,
            point.errors,
            point.bytes,
            time(point.p50_ns),
            time(point.p99_ns),
            time(point.max_ns),
        );
    }
    text
}

/// Returns the metrics of a run over time. Each point stands at the end of its interval. A sliver at the end of a run
/// has no rates.
#[must_use]
pub fn series(record: &Record) -> Vec<TimeSeries> {
    let begin = begin_unix_s(record);
    let of = |name, help, label, value: &dyn Fn(&PointRecord, Length) -> Option<f64>| {
        let at = |(point, length): (&PointRecord, Length)| {
            let end_ms = ((begin + point.at_s + length.seconds) * 1e3).round() as i64;
            Some((end_ms, value(point, length)?))
        };
        TimeSeries { name, help, label, points: points(record).filter_map(at).collect() }
    };
    let latency = |quantile, value: &dyn Fn(&PointRecord) -> Option<u64>| {
        let seconds = |point: &PointRecord, _: Length| Some(value(point)? as f64 / 1e9);
        let help = "Service time of the requests of an interval";
        of("oroshi_bench_latency_seconds", help, Some(("quantile", quantile)), &seconds)
    };
    let all = [
        of("oroshi_bench_requests_per_second", "Answered requests per second", None, &|point, length| {
            length.rate(point.requests)
        }),
        of("oroshi_bench_errors_per_second", "Errors per second", None, &|point, length| length.rate(point.errors)),
        of("oroshi_bench_read_bytes_per_second", "Bytes read per second", None, &|point, length| {
            length.rate(point.bytes)
        }),
        latency("0.5", &|point| point.p50_ns),
        latency("0.99", &|point| point.p99_ns),
        latency("1", &|point| point.max_ns),
        of("oroshi_bench_connections", "Connections that are up", None, &|point, _| {
            point.alive.map(|alive| alive as f64)
        }),
    ];
    all.into_iter().filter(|series| !series.points.is_empty()).collect()
}

/// Returns the labels that tell a run from others: its target; when it began, Unix time to the millisecond; and the
/// machine's identity since it started, if the system tells it.
#[must_use]
pub fn labels(record: &Record, target: &str) -> Vec<(String, String)> {
    let instance = record.environment.boot_id.as_ref().map(|id| ("instance".to_owned(), id.chars().take(36).collect()));
    let run = format!("{:.3}", record.started_unix_s);
    instance.into_iter().chain([("run".to_owned(), run), ("target".to_owned(), target.to_owned())]).collect()
}

/// Writes the metrics of a run in the text format of OpenMetrics 1.0, with timestamps: `promtool tsdb
/// create-blocks-from openmetrics` reads it.
#[must_use]
pub fn openmetrics(record: &Record, target: &str) -> String {
    let mut text = String::new();
    let labels = labels(record, target);
    let mut last = "";
    for series in series(record) {
        if series.name != last {
            // Written to a `String`, which does not fail.
            let _ = writeln!(text, "# TYPE {0} gauge\n# HELP {0} {1}.", series.name, series.help);
            last = series.name;
        }
        let own = series.label.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let all: Vec<String> =
            own.iter().chain(&labels).map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let all = all.join(",");
        for (at_ms, value) in series.points {
            let _ = writeln!(text, "{}{{{all}}} {value} {:.3}", series.name, at_ms as f64 / 1e3);
        }
    }
    text + "# EOF\n"
}

/// When the measured part began.
fn begin_unix_s(record: &Record) -> f64 {
    record.started_unix_s + record.plan.warmup_s
}

/// The length of a point's interval.
#[derive(Clone, Copy, Debug)]
struct Length {
    seconds: f64,
    /// A sliver at the end of a run: a few responses in a moment make no rate.
    is_sliver: bool,
}

impl Length {
    fn rate(self, count: u64) -> Option<f64> {
        (!self.is_sliver).then(|| count as f64 / self.seconds)
    }
}

/// The points, each with its length: the last one may be narrower, or even lie behind the end of the run by a rounding
/// error.
fn points(record: &Record) -> impl Iterator<Item = (&PointRecord, Length)> {
    let width = record.series.width_s;
    let length = move |at_s: f64| {
        let seconds = width.min(record.elapsed_s - at_s).max(1e-3);
        // A run that is shorter than a point is no sliver of anything.
        Length { seconds, is_sliver: at_s > 0.0 && record.elapsed_s - at_s < width / 2.0 }
    };
    record.series.points.iter().map(move |point| (point, length(point.at_s)))
}

/// A number without needless digits.
fn decimal(value: f64) -> String {
    let text = format!("{value:.9}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A label's value.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::bench as sample;

    #[test]
    fn csv_has_a_line_for_each_point() {
        let record = sample::closed();
        let text = csv(&record);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), record.series.points.len() + 1);
        assert!(lines.len() > 2 && lines[0].starts_with("at_s,unix_s,seconds,requests,"), "{text}");
        let columns = lines[0].split(',').count();
        assert!(lines.iter().all(|line| line.split(',').count() == columns), "{text}");
        let requests: u64 = lines[1..].iter().map(|line| line.split(',').nth(3).unwrap().parse::<u64>().unwrap()).sum();
        assert_eq!(requests, record.series.points.iter().map(|point| point.requests).sum::<u64>());
        assert_eq!(csv(&sample::nothing()).lines().next(), Some(lines[0]));
    }

    #[test]
    fn openmetrics_ends_as_it_should_and_escapes_labels() {
        let text = openmetrics(&sample::closed(), "http://h/\"\\\n");
        assert!(text.ends_with("# EOF\n"), "{text}");
        assert!(text.contains("target=\"http://h/\\\"\\\\\\n\"} "), "{text}");
        assert_eq!(text.matches("# TYPE oroshi_bench_latency_seconds gauge").count(), 1, "{text}");
        assert!(text.contains("oroshi_bench_latency_seconds{quantile=\"0.99\",run=\"1700000000.000\""), "{text}");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let numbers: Vec<&str> = line.rsplit(' ').take(2).collect();
            assert!(numbers.iter().all(|number| number.parse::<f64>().is_ok_and(f64::is_finite)), "{line}");
        }
    }

    #[test]
    fn a_sliver_at_the_end_has_counts_and_no_rate() {
        let mut record = sample::closed();
        let last = record.series.points.last().unwrap().at_s;
        let (width, count) = (record.series.width_s, record.series.points.len());
        let ends = |record: &Record| {
            let rates = series(record).remove(0);
            let lines = csv(record);
            let last: Vec<String> = lines.lines().last().unwrap().split(',').map(str::to_owned).collect();
            (rates.name, rates.points.len(), last[3].clone(), last[4].clone())
        };
        let requests = record.series.points.last().unwrap().requests.to_string();
        record.elapsed_s = last + width / 1000.0;
        assert_eq!(ends(&record), ("oroshi_bench_requests_per_second", count - 1, requests.clone(), String::new()));
        record.elapsed_s = last - 1e-9;
        assert_eq!(ends(&record).1, count - 1);
        record.elapsed_s = last + width * 0.75;
        let (_, points, counted, rate) = ends(&record);
        assert_eq!((points, counted), (count, requests));
        assert!(rate.parse::<f64>().unwrap() > 0.0, "{rate}");
    }

    #[test]
    fn labels_tell_runs_of_one_second_and_of_two_machines_apart() {
        let mut record = sample::closed();
        record.environment.boot_id = Some("6fd5".into());
        record.started_unix_s = 1.7e9 + 0.25;
        let labels = labels(&record, "http://h/");
        let labels: Vec<(&str, &str)> = labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(labels, [("instance", "6fd5"), ("run", "1700000000.250"), ("target", "http://h/")]);
    }

    #[test]
    fn points_are_in_order_and_stand_at_their_ends() {
        let record = sample::closed();
        let all = series(&record);
        assert!(all.len() >= 6, "{all:?}");
        let begin_ms = begin_unix_s(&record) * 1e3;
        for series in all {
            assert!(series.points.is_sorted_by(|one, other| one.0 < other.0), "{series:?}");
            assert!(series.points.iter().all(|point| point.0 as f64 > begin_ms), "{series:?}");
        }
    }
}
