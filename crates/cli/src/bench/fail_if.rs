//! `--fail-if`: conditions that make a run a failure, such as `p99>10ms`, `errors>0.1%` or `rps<50k`.
//!
//! A condition compares a measured value with a limit. It passes only if it passes however long the unfinished
//! requests would have taken. If they decide the outcome, or if nothing was measured, the condition is undecided
//! and the run has failed: CI must not pass on ignorance.

mod scenario;

use std::str::FromStr;

use oroshi_bench::record::{ClockRecord, Condition, ConditionOutcome};
use oroshi_bench::{Failure, Load, Record};
use oroshi_stats::Quantile;

use oroshi_words::{nearest, printable, units};

use scenario::ScenarioMetric;

/// One condition on a metric.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Threshold<M = RequestMetric> {
    text: String,
    pub(super) metric: M,
    op: Op,
    limit: Limit,
}

/// A metric that a condition limits, as found in the record of one kind of load.
pub(crate) trait Metric: Clone {
    type Record;

    /// Finds a metric by its name.
    fn named(name: &str) -> Result<Self, String>;

    fn unit(&self) -> Unit;

    /// Returns the whole that a share refers to, or why there is none.
    fn whole(&self, record: &Self::Record) -> Result<u64, String>;

    fn measure(&self, record: &Self::Record) -> Result<Measured, String>;

    /// Returns why the metric counts as less than any limit.
    fn void<'r>(&self, _: &'r Self::Record) -> Option<&'r str> {
        None
    }

    fn show(&self, value: f64, way: Rounding, record: &Self::Record) -> String;
}

/// The unit of a metric's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A number.
    Number,
    /// A number that may be negative.
    Points,
    /// A number, or a share of the whole.
    Count,
    /// A share of 1, in per cent.
    Share,
    /// A time.
    Time,
    /// A time; a plain number is microseconds.
    CpuTime,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RequestMetric {
    Rate,
    Errors,
    Failure(Failure),
    /// An index into `CLOCKS`; `None`: the clock that matters in this kind of loop.
    Latency(Option<usize>, Figure),
    ServerCpu,
    Scenario(ScenarioMetric),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Figure {
    Quantile(f64),
    Mean,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    More,
    AtLeast,
    Less,
    AtMost,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    /// In the metric's own unit: a count, a rate, nanoseconds, bytes.
    Value(f64),
    /// Of the metric's whole.
    Share(f64),
}

/// The clocks of a record, in its order.
const CLOCKS: [&str; 6] = ["service", "response", "lateness", "connect", "tls", "first_byte"];
pub(super) const FIGURES: [&str; 10] = ["p50", "p75", "p90", "p95", "p99", "p99.9", "p99.99", "min", "mean", "max"];
const OTHERS: [&str; 3] = ["rps", "errors", "server.cpu"];

impl<M: Metric> FromStr for Threshold<M> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, op, value) = split(text)?;
        let metric = M::named(name)?;
        let limit = metric.unit().limit(value).map_err(|why| format!("`{text}`: {why}"))?;
        Ok(Self { text: text.trim().to_owned(), metric, op, limit })
    }
}

/// A condition's three parts.
///
/// # Errors
/// If one is missing, in words.
fn split(text: &str) -> Result<(&str, Op, &str), String> {
    let expected = || format!("`{text}`: expected METRIC OP VALUE with >, >=, < or <=, as in 'p99>10ms'");
    let at = scenario::operator(text).ok_or_else(expected)?;
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

impl<M: Metric> Threshold<M> {
    /// Judges a run by the condition.
    pub(crate) fn judge(&self, record: &M::Record) -> Condition {
        let limit = match self.limit {
            Limit::Value(value) => Ok(value),
            Limit::Share(share) => self.metric.whole(record).map(|whole| share * whole as f64),
        };
        let measured = limit.and_then(|limit| Ok((limit, self.metric.measure(record)?)));
        let show = |value, way| self.metric.show(value, way, record);
        let (condition, op) = (self.text.clone(), self.op);
        let metric = condition[..scenario::operator(&condition).unwrap_or(condition.len())].trim().to_owned();
        if let Some(why) = self.metric.void(record) {
            let outcome = if op.upwards() { ConditionOutcome::Undecided } else { ConditionOutcome::Failed };
            let measured = format!("the score is void: {}", printable(why));
            return Condition { condition, metric, outcome, value: None, at_least: false, measured };
        }
        let (limit, Measured { least, most }) = match measured {
            Ok(measured) => measured,
            Err(why) => {
                let (outcome, measured) = (ConditionOutcome::Undecided, format!("not measured: {why}"));
                return Condition { condition, metric, outcome, value: None, at_least: false, measured };
            }
        };
        // If both bounds have the same outcome, every value between them has it too.
        let [easier, harder] = if op.upwards() { [Some(least), most] } else { [most, Some(least)] };
        let outcome = match (easier, harder) {
            (Some(value), _) if op.holds(value, limit) => ConditionOutcome::Failed,
            (_, Some(value)) if !op.holds(value, limit) => ConditionOutcome::Passed,
            _ => ConditionOutcome::Undecided,
        };
        let exact = most == Some(least);
        let value = if exact {
            show(least, Rounding::Nearest)
        } else {
            let most = most.map(|most| format!(", at most {}", show(most, Rounding::Up))).unwrap_or_default();
            format!(">= {}{most}", show(least, Rounding::Down))
        };
        let measured = if outcome == ConditionOutcome::Undecided {
            format!("cannot be decided: measured {value}, as requests were left unanswered")
        } else {
            format!("measured {value}")
        };
        Condition { condition, metric, outcome, value: Some(least), at_least: !exact, measured }
    }
}

/// The bounds of a measured value.
#[derive(Clone, Copy)]
pub(crate) struct Measured {
    /// The lower bound.
    pub(super) least: f64,
    /// The upper bound: equal to `least` for a known value; `None`: unbounded.
    pub(super) most: Option<f64>,
}

impl Measured {
    /// A value that is known.
    pub(super) fn exactly(value: f64) -> Self {
        Self { least: value, most: Some(value) }
    }
}

/// The direction of rounding: a rounded bound must still be a bound.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounding {
    Down,
    Nearest,
    Up,
}

impl Unit {
    /// Reads a limit in this unit.
    fn limit(self, text: &str) -> Result<Limit, String> {
        let has_unit = text.ends_with(|c: char| c.is_ascii_alphabetic());
        match self {
            Self::Count if text.ends_with('%') => {
                let number = units::parse_number(text.trim_end_matches('%').trim())?;
                Ok(Limit::Share(number / 100.0))
            }
            Self::Share if !text.ends_with('%') => {
                Err(format!("`{text}` has no unit: expected the share that passes, such as 99%"))
            }
            Self::Share => units::parse_percent(text).map(Limit::Value),
            Self::Points if text.starts_with('-') => units::parse_number(&text[1..]).map(|value| Limit::Value(-value)),
            Self::Number | Self::Points | Self::Count => units::parse_number(text).map(Limit::Value),
            Self::CpuTime if !has_unit => units::parse_number(text).map(|us| Limit::Value(us * 1e3)),
            Self::Time if !has_unit && text != "0" => {
                Err(format!("`{text}` has no unit: expected one such as {text}ms"))
            }
            Self::Time | Self::CpuTime => units::parse_time(text).map(|time| Limit::Value(time.as_nanos() as f64)),
        }
    }
}

impl Metric for RequestMetric {
    type Record = Record;

    fn named(name: &str) -> Result<Self, String> {
        match name {
            "rps" => return Ok(Self::Rate),
            "errors" => return Ok(Self::Errors),
            "server.cpu" => return Ok(Self::ServerCpu),
            _ => {}
        }
        if let Some(failure) = Failure::ALL.into_iter().find(|f| f.name() == name) {
            return Ok(Self::Failure(failure));
        }
        if let Some(figure) = figure_of(name) {
            return Ok(Self::Latency(None, figure));
        }
        let clock = clock_and_figure(name, &CLOCKS).map(|(clock, figure)| Self::Latency(Some(clock), figure));
        if let Some(metric) = clock {
            return Ok(metric);
        }
        let metric = scenario::metric_of(name).ok_or_else(|| unknown_request_metric(name))?;
        metric.map(Self::Scenario)
    }

    fn unit(&self) -> Unit {
        match self {
            Self::Scenario(metric) => metric.unit(),
            Self::Rate => Unit::Number,
            Self::Errors | Self::Failure(_) => Unit::Count,
            Self::Latency(..) => Unit::Time,
            Self::ServerCpu => Unit::CpuTime,
        }
    }

    /// All requests that were started, or a scenario's own whole.
    fn whole(&self, record: &Record) -> Result<u64, String> {
        match (self, record.requests.started) {
            (Self::Scenario(metric), _) => metric.whole(record),
            (_, 0) => Err("no request was started".to_owned()),
            (_, started) => Ok(started),
        }
    }

    fn void<'r>(&self, record: &'r Record) -> Option<&'r str> {
        if let Self::Scenario(metric) = self { metric.void(record) } else { None }
    }

    fn measure(&self, record: &Record) -> Result<Measured, String> {
        let exact = |value| Ok(Measured::exactly(value));
        match self {
            Self::Scenario(metric) => metric.measure(record),
            Self::Rate => exact(record.rates.requests_per_s),
            Self::Errors => exact(record.errors as f64),
            Self::Failure(failure) => exact(record.failures.get(failure).copied().unwrap_or(0) as f64),
            Self::Latency(clock, figure) => {
                // Service time or response time.
                let default = usize::from(record.plan.load != Load::Closed);
                latency(record.latency.each()[clock.unwrap_or(default)].1, *figure)
            }
            Self::ServerCpu => match &record.server {
                Some(_) => match record.server_cpu_us_per_request() {
                    Some(us) => exact(us * 1e3),
                    None if record.plan.origins.len() > 1 => {
                        Err("of several servers one is watched; --watch PID names the processes of all".into())
                    }
                    None => Err("no request was answered".into()),
                },
                None => Err(record.server_unknown.clone().unwrap_or_else(|| "the server was not found".into())),
            },
        }
    }

    fn show(&self, value: f64, way: Rounding, record: &Record) -> String {
        match self {
            Self::Scenario(metric) => metric.show(value, way, record),
            Self::Latency(..) | Self::ServerCpu => precise_time(value, way),
            Self::Rate => format!("{value:.1}"),
            Self::Errors | Self::Failure(_) => {
                let share = value / record.requests.started.max(1) as f64;
                format!("{value:.0} ({:.3} % of {} requests)", share * 100.0, units::count(record.requests.started))
            }
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

    /// Whether the condition holds for greater values.
    fn upwards(self) -> bool {
        matches!(self, Self::More | Self::AtLeast)
    }
}

pub(super) fn latency(clock: &ClockRecord, figure: Figure) -> Result<Measured, String> {
    let none = || "there are no such times".to_owned();
    let times = &clock.histogram;
    match figure {
        _ if times.is_empty() => Err(none()),
        Figure::Mean if times.censored() == 0 => Ok(Measured::exactly(times.mean())),
        // One request that never ends can move the mean anywhere.
        Figure::Mean => Ok(Measured { least: times.least_mean(), most: None }),
        Figure::Quantile(q) => match times.quantile(q).ok_or_else(none)? {
            Quantile::Exact(ns) => Ok(Measured::exactly(ns as f64)),
            Quantile::AtLeast(ns) => {
                let most = times.quantile_range(q).and_then(|(_, most)| most);
                Ok(Measured { least: ns as f64, most: most.map(|ns| ns as f64) })
            }
        },
    }
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

/// Splits `service.p99` into an index into `clocks`, and the figure.
pub(super) fn clock_and_figure(name: &str, clocks: &[&str]) -> Option<(usize, Figure)> {
    let (clock, figure) = name.split_once('.')?;
    Some((clocks.iter().position(|known| *known == clock)?, figure_of(figure)?))
}

fn unknown_request_metric(name: &str) -> String {
    // Some tools write p99.9 as p999.
    let spelled =
        name.strip_prefix("p99").filter(|d| !d.is_empty() && d.chars().all(|c| c == '9')).map(|d| format!("p99.{d}"));
    let dotted: Vec<String> = CLOCKS.iter().flat_map(|c| FIGURES.map(|f| format!("{c}.{f}"))).collect();
    let known = OTHERS.into_iter().chain(scenario::OTHERS).chain(FIGURES).chain(Failure::ALL.map(Failure::name));
    let known = known.chain(dotted.iter().map(String::as_str));
    let expected = "rps, errors, a failure's name such as timeout, a latency such as p99, mean or max \
                    (also service.p99, response.p99, lateness.p99, connect.p99, tls.p99, first_byte.p99), server.cpu, \
                    or of a scenario score, checks, check.NAME, step.NAME.p99, journeys.failed, journey.NAME.p99, \
                    timer.NAME.p99";
    let meant = scenario::meant(name).filter(|meant| RequestMetric::named(meant).is_ok());
    unknown(name, spelled.as_deref().or(meant.as_deref()).or_else(|| nearest(name, known)), expected)
}

/// Says that there is no such metric.
pub(super) fn unknown(name: &str, near: Option<&str>, expected: &str) -> String {
    match near {
        Some(near) => format!("unknown metric `{name}`: did you mean `{near}`?"),
        None => format!("unknown metric `{name}`: expected {expected}"),
    }
}

/// Writes a time with enough digits to see on which side of the limit it lies.
pub(super) fn precise_time(ns: f64, way: Rounding) -> String {
    let (scale, unit) =
        [(1e9, "s"), (1e6, "ms"), (1e3, "us")].into_iter().find(|(s, _)| ns >= *s).unwrap_or((1.0, "ns"));
    // To the thousandth of a unit, and whole below a microsecond.
    let step = if scale == 1.0 { 1.0 } else { scale / 1e3 };
    let ns = match way {
        Rounding::Down => (ns / step).floor() * step,
        Rounding::Nearest => ns,
        Rounding::Up => (ns / step).ceil() * step,
    };
    if scale == 1.0 { format!("{ns:.0}ns") } else { format!("{:.3}{unit}", ns / scale) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use oroshi_report::sample::bench as sample;

    fn judge(condition: &str, record: &Record) -> (bool, String) {
        let judged = condition.parse::<Threshold>().unwrap().judge(record);
        assert_eq!(judged.condition, condition);
        (judged.outcome != ConditionOutcome::Passed, format!("{condition}: {}", judged.measured))
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
            ("mean>1ms", true, false),
            ("mean>1s", true, true),
            ("p99>12ms", true, true),
            ("p99>50ms", true, true),
            ("p99<10ms", false, false),
            ("p99<12ms", false, false),
            ("p99<=12ms", true, true),
            ("p99<50ms", true, true),
        ] {
            let (held, text) = judge(condition, &record);
            assert_eq!((held, text.contains("cannot be decided")), (failed, undecided), "{text}");
            assert!(text.contains(if condition.starts_with('p') { ">= 12.000ms" } else { ">= 4." }), "{text}");
        }
    }

    /// Few requests without an answer leave a narrow range, which decides most conditions.
    #[test]
    fn what_lies_beyond_the_range_is_decided() {
        let mut record = sample::closed();
        (0..1000).for_each(|_| record.latency.service.histogram.record_censored(0));
        for (condition, outcome) in [
            ("p50>600us", ConditionOutcome::Passed),
            ("p50>550us", ConditionOutcome::Undecided),
            ("p50>500us", ConditionOutcome::Failed),
            ("p50<500us", ConditionOutcome::Passed),
            ("p50<600us", ConditionOutcome::Failed),
            ("p99.9>1h", ConditionOutcome::Undecided),
        ] {
            let judged = condition.parse::<Threshold>().unwrap().judge(&record);
            assert_eq!(judged.outcome, outcome, "{judged:?}");
            assert!(judged.at_least && judged.value.is_some(), "{judged:?}");
            assert_eq!(judged.measured.contains(", at most "), condition.starts_with("p50"), "{judged:?}");
        }
    }

    #[test]
    fn a_bound_is_not_rounded_away() {
        assert_eq!(precise_time(12_345_678.0, Rounding::Down), "12.345ms");
        assert_eq!(precise_time(12_345_678.0, Rounding::Up), "12.346ms");
        assert_eq!(precise_time(12_345_678.0, Rounding::Nearest), "12.346ms");
        assert_eq!([Rounding::Down, Rounding::Up].map(|way| precise_time(999.0, way)), ["999ns", "999ns"]);
    }

    fn ns() -> impl Strategy<Value = u64> {
        prop_oneof![0_u64..3000, 0_u64..50_000_000, 0_u64..10_000_000_000]
    }

    /// A time as reports write it, read again: nanoseconds.
    fn read(text: &str) -> f64 {
        units::parse_time(text).unwrap().as_secs_f64() * 1e9
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Whatever the requests without an answer would have taken, those that were never sent among them: what is
        /// printed, what is in the JSON and what was decided are true.
        #[test]
        fn nothing_that_is_said_turns_out_to_be_false(
            answered in prop::collection::vec(ns(), 0..40),
            unanswered in prop::collection::vec((ns(), prop_oneof![Just(0), ns()]), 0..40),
            q in prop::sample::select(vec!["p50", "p75", "p90", "p99", "max", "min"]),
            op in prop::sample::select(vec![">", ">=", "<", "<="]),
            limit in ns(),
        ) {
            prop_assume!(!answered.is_empty() || !unanswered.is_empty());
            let mut record = sample::open();
            let mut times = oroshi_stats::Latency::new();
            answered.iter().for_each(|ns| times.record(*ns));
            unanswered.iter().for_each(|(waited, _)| times.record_censored(*waited));
            record.latency.response = times.clone().into();
            let mut truth: Vec<u64> = answered.clone();
            truth.extend(unanswered.iter().map(|(waited, more)| waited + more));
            truth.sort_unstable();
            let Some(Figure::Quantile(share)) = figure_of(q) else { panic!("{q}") };
            let truth = truth[((share * truth.len() as f64 - 1e-9).ceil().max(1.0) as usize) - 1];
            let same = |value: u64| times.histogram().equivalent(value, truth);

            let shown = oroshi_report::words::quantile(&record.latency.response, share);
            match shown.strip_prefix(">= ") {
                Some(bound) => prop_assert!(read(bound) <= truth as f64 * (1.0 + 1e-9), "{shown} for {truth}"),
                // Three digits of a bucket.
                None => {
                    let error = (read(&shown) - truth as f64).abs();
                    prop_assert!(error <= truth as f64 * 0.0062 + 0.51, "{shown} for {truth}");
                }
            }
            let json = serde_json::to_string(&record.latency.response).unwrap();
            let back: ClockRecord = serde_json::from_str(&json).unwrap();
            if let Some((_, Some(told))) = back.summary.percentiles().into_iter().find(|(name, _)| *name == q) {
                let holds = if told.at_least { told.value_ns <= truth } else { same(told.value_ns) };
                prop_assert!(holds, "{told:?} for {truth}");
                let most = told.at_most_ns;
                prop_assert!(most.is_none_or(|most| truth <= most || same(most)), "{told:?} for {truth}");
            }
            record.latency.response = back;

            let threshold: Threshold = format!("{q}{op}{limit}ns").parse().unwrap();
            let judged = threshold.judge(&record);
            let holds = threshold.op.holds(truth as f64, limit as f64);
            // Within a bucket no two values are told apart.
            if !same(limit) {
                match judged.outcome {
                    ConditionOutcome::Passed => prop_assert!(!holds, "{judged:?} for {truth}"),
                    ConditionOutcome::Failed => prop_assert!(holds, "{judged:?} for {truth}"),
                    ConditionOutcome::Undecided => prop_assert!(!unanswered.is_empty(), "{judged:?}"),
                }
            }
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
