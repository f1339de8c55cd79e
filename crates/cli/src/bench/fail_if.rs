//! `--fail-if`: conditions that make a run a failure, such as `p99>10ms`, `errors>0.1%` or `rps<50k`.
//!
//! A condition is about what was measured. What was not measured, or is only known to be at least something that leaves
//! the question open, counts as failed and says so: a gate that lets the unknown pass is no gate.

use std::str::FromStr;

use oroshi_bench::record::ClockRecord;
use oroshi_bench::{Failure, Load, Record};
use oroshi_stats::Quantile;

use oroshi_words::nearest;
use oroshi_words::units;

/// One condition.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Threshold {
    text: String,
    metric: Metric,
    op: Op,
    limit: Limit,
}

/// What became of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// It held, or could not be decided.
    pub(crate) failed: bool,
    /// The condition and the measured value.
    pub(crate) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Metric {
    Rate,
    Errors,
    Failure(Failure),
    /// `None`: the clock that matters in this kind of loop.
    Latency(Option<Clock>, Figure),
    ServerCpu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clock {
    Service,
    Response,
    Lateness,
    Connect,
    Tls,
    FirstByte,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Figure {
    Quantile(f64),
    Mean,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    More,
    AtLeast,
    Less,
    AtMost,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    /// In the metric's own unit: a count, a rate, nanoseconds.
    Value(f64),
    /// Of all requests that were started.
    Share(f64),
}

const CLOCKS: [(&str, Clock); 6] = [
    ("service", Clock::Service),
    ("response", Clock::Response),
    ("lateness", Clock::Lateness),
    ("connect", Clock::Connect),
    ("tls", Clock::Tls),
    ("first_byte", Clock::FirstByte),
];
pub(super) const FIGURES: [&str; 10] = ["p50", "p75", "p90", "p95", "p99", "p99.9", "p99.99", "min", "mean", "max"];
const OTHERS: [&str; 3] = ["rps", "errors", "server.cpu"];

impl FromStr for Threshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, op, value) = split(text)?;
        let metric = metric_of(name)?;
        let limit = metric.limit(value).map_err(|why| format!("`{text}`: {why}"))?;
        Ok(Self { text: text.trim().to_owned(), metric, op, limit })
    }
}

/// A condition's three parts.
///
/// # Errors
/// When they are not there, in words.
pub(super) fn split(text: &str) -> Result<(&str, Op, &str), String> {
    let expected = || format!("`{text}`: expected METRIC OP VALUE with >, >=, < or <=, as in 'p99>10ms'");
    let at = text.find(['<', '>']).ok_or_else(expected)?;
    let (name, rest) = text.split_at(at);
    let (op, value) = match rest.as_bytes() {
        [b'>', b'=', ..] => (Op::AtLeast, &rest[2..]),
        [b'<', b'=', ..] => (Op::AtMost, &rest[2..]),
        [b'>', ..] => (Op::More, &rest[1..]),
        _ => (Op::Less, &rest[1..]),
    };
    let (name, value) = (name.trim(), value.trim());
    if name.is_empty() || value.is_empty() { Err(expected()) } else { Ok((name, op, value)) }
}

impl Threshold {
    /// Holds the condition against a run.
    pub(crate) fn judge(&self, record: &Record) -> Verdict {
        let limit = match self.limit {
            Limit::Value(value) => Ok(value),
            Limit::Share(_) if record.requests.started == 0 => Err("no request was started".to_owned()),
            Limit::Share(share) => Ok(share * record.requests.started as f64),
        };
        let (limit, measured) = match limit.and_then(|limit| Ok((limit, self.metric.measure(record)?))) {
            Ok(both) => both,
            Err(why) => return Verdict::unknown(&self.text, &why),
        };
        Verdict::of(&self.text, self.op, limit, measured, &self.metric.show(measured.value, record))
    }
}

impl Verdict {
    /// What could not be measured.
    pub(super) fn unknown(condition: &str, why: &str) -> Self {
        Self { failed: true, text: format!("{condition}: not measured: {why}") }
    }

    /// Holds what was measured, and is shown so, against a limit.
    pub(super) fn of(condition: &str, op: Op, limit: f64, measured: Measured, shown: &str) -> Self {
        match (measured.bound, op.holds(measured.value, limit)) {
            (false, held) => Self { failed: held, text: format!("{condition}: measured {shown}") },
            // The true value is this or more.
            (true, held) if held == op.upwards() => {
                Self { failed: held, text: format!("{condition}: measured >= {shown}") }
            }
            (true, _) => Self {
                failed: true,
                text: format!("{condition}: cannot be decided: measured >= {shown}, as requests were left unanswered"),
            },
        }
    }
}

/// A measured value, or a bound of it.
#[derive(Clone, Copy)]
pub(super) struct Measured {
    pub(super) value: f64,
    /// The true value may be greater.
    pub(super) bound: bool,
}

impl Metric {
    /// Reads a limit in the metric's unit.
    fn limit(self, text: &str) -> Result<Limit, String> {
        match self {
            Self::Errors | Self::Failure(_) if text.ends_with('%') => {
                let number = units::parse_number(text.trim_end_matches('%').trim())?;
                Ok(Limit::Share(number / 100.0))
            }
            Self::Rate | Self::Errors | Self::Failure(_) => units::parse_number(text).map(Limit::Value),
            Self::ServerCpu if !has_unit(text) => units::parse_number(text).map(|us| Limit::Value(us * 1e3)),
            Self::Latency(..) if !has_unit(text) && text != "0" => {
                Err(format!("`{text}` has no unit: expected one such as {text}ms"))
            }
            Self::Latency(..) | Self::ServerCpu => {
                units::parse_time(text).map(|time| Limit::Value(time.as_nanos() as f64))
            }
        }
    }

    /// The value, or why there is none.
    fn measure(self, record: &Record) -> Result<Measured, String> {
        let exact = |value| Ok(Measured { value, bound: false });
        match self {
            Self::Rate => exact(record.rates.requests_per_s),
            Self::Errors => exact(record.errors as f64),
            Self::Failure(failure) => exact(record.failures.get(&failure).copied().unwrap_or(0) as f64),
            Self::Latency(clock, figure) => {
                let default = if record.plan.load == Load::Closed { Clock::Service } else { Clock::Response };
                latency(clock.unwrap_or(default).of(record), figure)
            }
            Self::ServerCpu => match &record.server {
                Some(server) => match server.cpu_us_each(record.requests_done()) {
                    Some(us) => exact(us * 1e3),
                    None => Err("no request was answered".into()),
                },
                None => Err(record.server_unknown.clone().unwrap_or_else(|| "the server was not found".into())),
            },
        }
    }

    fn show(self, value: f64, record: &Record) -> String {
        match self {
            Self::Latency(..) | Self::ServerCpu => precise_time(value),
            Self::Rate => format!("{value:.1}"),
            Self::Errors | Self::Failure(_) => {
                let share = value / record.requests.started.max(1) as f64;
                format!("{value:.0} ({:.3} % of {} requests)", share * 100.0, units::count(record.requests.started))
            }
        }
    }
}

impl Clock {
    fn of(self, record: &Record) -> &ClockRecord {
        let clocks = &record.latency;
        match self {
            Self::Service => &clocks.service,
            Self::Response => &clocks.response,
            Self::Lateness => &clocks.lateness,
            Self::Connect => &clocks.connect,
            Self::Tls => &clocks.tls,
            Self::FirstByte => &clocks.first_byte,
        }
    }
}

impl Op {
    fn holds(self, value: f64, limit: f64) -> bool {
        match self {
            Self::More => value > limit,
            Self::AtLeast => value >= limit,
            Self::Less => value < limit,
            Self::AtMost => value <= limit,
        }
    }

    /// Whether greater values make it hold.
    fn upwards(self) -> bool {
        matches!(self, Self::More | Self::AtLeast)
    }
}

pub(super) fn latency(clock: &ClockRecord, figure: Figure) -> Result<Measured, String> {
    let none = || "there are no such times".to_owned();
    match figure {
        Figure::Mean if clock.summary.count == 0 => Err(none()),
        Figure::Mean => Ok(Measured { value: clock.summary.mean_ns, bound: false }),
        Figure::Quantile(q) => match clock.histogram.quantile(q).ok_or_else(none)? {
            Quantile::Exact(ns) => Ok(Measured { value: ns as f64, bound: false }),
            Quantile::AtLeast(ns) => Ok(Measured { value: ns as f64, bound: true }),
        },
    }
}

fn metric_of(name: &str) -> Result<Metric, String> {
    match name {
        "rps" => return Ok(Metric::Rate),
        "errors" => return Ok(Metric::Errors),
        "server.cpu" => return Ok(Metric::ServerCpu),
        _ => {}
    }
    if let Some(failure) = Failure::ALL.into_iter().find(|f| f.name() == name) {
        return Ok(Metric::Failure(failure));
    }
    if let Some(figure) = figure_of(name) {
        return Ok(Metric::Latency(None, figure));
    }
    let dotted = name.split_once('.').and_then(|(clock, figure)| {
        let clock = CLOCKS.iter().find(|(known, _)| *known == clock)?.1;
        Some(Metric::Latency(Some(clock), figure_of(figure)?))
    });
    dotted.ok_or_else(|| unknown(name))
}

pub(super) fn figure_of(name: &str) -> Option<Figure> {
    match name {
        "mean" => Some(Figure::Mean),
        "max" => Some(Figure::Quantile(1.0)),
        "min" => Some(Figure::Quantile(0.0)),
        _ => {
            let digits = name.strip_prefix('p').filter(|d| d.starts_with(|c: char| c.is_ascii_digit()))?;
            let percent: f64 = digits.parse().ok()?;
            (percent > 0.0 && percent <= 100.0).then_some(Figure::Quantile(percent / 100.0))
        }
    }
}

fn unknown(name: &str) -> String {
    // p999 is how some tools write p99.9.
    let spelled =
        name.strip_prefix("p99").filter(|d| !d.is_empty() && d.chars().all(|c| c == '9')).map(|d| format!("p99.{d}"));
    let dotted: Vec<String> = CLOCKS.iter().flat_map(|(c, _)| FIGURES.map(|f| format!("{c}.{f}"))).collect();
    let known = OTHERS
        .into_iter()
        .chain(FIGURES)
        .chain(Failure::ALL.map(Failure::name))
        .chain(dotted.iter().map(String::as_str));
    match spelled.as_deref().or_else(|| nearest(name, known)) {
        Some(near) => format!("unknown metric `{name}`: did you mean `{near}`?"),
        None => format!(
            "unknown metric `{name}`: expected rps, errors, a failure's name such as timeout, a latency such as p99, mean or max \
             (also service.p99, response.p99, lateness.p99, connect.p99, tls.p99, first_byte.p99), or server.cpu"
        ),
    }
}

pub(super) fn has_unit(text: &str) -> bool {
    text.ends_with(|c: char| c.is_ascii_alphabetic())
}

/// Enough digits to see on which side of the limit it lies.
pub(super) fn precise_time(ns: f64) -> String {
    let (scale, unit) =
        [(1e9, "s"), (1e6, "ms"), (1e3, "us")].into_iter().find(|(s, _)| ns >= *s).unwrap_or((1.0, "ns"));
    if scale == 1.0 { format!("{ns:.0}ns") } else { format!("{:.3}{unit}", ns / scale) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::sample;

    fn judge(condition: &str, record: &Record) -> (bool, String) {
        let verdict = condition.parse::<Threshold>().unwrap().judge(record);
        assert!(verdict.text.starts_with(condition), "{}", verdict.text);
        (verdict.failed, verdict.text)
    }

    #[test]
    fn each_metric_is_found_in_the_record() {
        let record = sample::closed();
        for (condition, held) in [
            ("rps<=10k", true),
            ("rps>9999", true),
            ("rps<9k", false),
            ("errors>0", true),
            ("errors>15", false),
            ("errors>0.01%", true),
            ("errors>0.1%", false),
            ("timeout>1", true),
            ("status>0", false),
            ("p50>500us", true),
            ("p50>600us", false),
            ("service.p50>500us", true),
            ("mean>1s", false),
            ("max>=1ms", true),
            ("min<1us", false),
            ("connect.p99>1us", true),
            ("server.cpu>40", true),
            ("server.cpu>60us", false),
            ("server.cpu<=0.05ms", true),
        ] {
            assert_eq!(judge(condition, &record).0, held, "{}", judge(condition, &record).1);
        }
        assert_eq!(judge("p50>500us", &record).1, "p50>500us: measured 550.399us");
    }

    #[test]
    fn latency_is_the_response_time_in_an_open_loop() {
        let record = sample::open();
        assert!(judge("p50>2ms", &record).0 && !judge("service.p50>2ms", &record).0);
        assert!(judge("lateness.p50<1ms", &record).0);
    }

    #[test]
    fn what_was_not_measured_has_failed() {
        for condition in ["p99>1h", "tls.p99>1h", "errors>50%", "server.cpu>1000000", "mean<1ns"] {
            let (failed, text) = judge(condition, &sample::nothing());
            assert!(failed && text.contains("not measured"), "{text}");
        }
        assert!(judge("tls.p99>1h", &sample::closed()).0);
    }

    #[test]
    fn a_bound_decides_what_it_can_and_says_where_it_cannot() {
        let mut record = sample::closed();
        let slow = &mut record.latency.service;
        (0..60_000).for_each(|_| slow.histogram.record_censored(12_000_000));
        for (condition, failed, undecided) in [
            ("p99>10ms", true, false),
            ("p99>=12ms", true, false),
            ("p99>12ms", true, true),
            ("p99>50ms", true, true),
            ("p99<10ms", false, false),
            ("p99<12ms", false, false),
            ("p99<=12ms", true, true),
            ("p99<50ms", true, true),
        ] {
            let (held, text) = judge(condition, &record);
            assert_eq!((held, text.contains("cannot be decided")), (failed, undecided), "{text}");
            assert!(text.contains(">= 12.000ms"), "{text}");
        }
    }

    #[test]
    fn mistakes_are_named_with_what_was_probably_meant() {
        let error = |text: &str| text.parse::<Threshold>().unwrap_err();
        assert!(error("p999>1ms").contains("`p99.9`"));
        assert!(error("timeouts>0").contains("`timeout`"));
        assert!(error("service.p9x>1ms").contains("`service.p9"), "{}", error("service.p9x>1ms"));
        assert!(error("xyzzyqwert>0").contains("server.cpu"));
        assert!(error("p99>10").contains("10ms"));
        assert!(error("p99>fast").contains("`fast`"));
        assert!(error("rps<many").contains("`many`"));
        for bad in ["", "p99", "p99=1ms", ">1", "p99>", "p0>1ms", "p101>1ms", "p-1>1ms", "pinf>1ms"] {
            assert!(bad.parse::<Threshold>().is_err(), "{bad}");
        }
        assert!(" p99.99 >= 1.5ms ".parse::<Threshold>().is_ok() && "p99>0".parse::<Threshold>().is_ok());
    }
}
