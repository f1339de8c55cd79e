//! `--fail-if` for loads of subscriptions: `lost>0`, `p99>50ms`, `deliveries<10k`.

use std::str::FromStr;

use oroshi_bench::push::Record;
use oroshi_bench::record::Condition;
use oroshi_words::nearest;
use oroshi_words::units;

use crate::bench::fail_if::{
    FIGURES, Figure, Measured, Op, Rounding, figure_of, has_unit, judged, latency, precise_time, split,
};

/// One condition.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Threshold {
    text: String,
    metric: Metric,
    op: Op,
    limit: Limit,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Metric {
    /// Deliveries per second.
    Deliveries,
    Count(Count),
    Time(Clock, Figure),
    ServerCpu,
    ServerMemory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    Lost,
    Duplicated,
    Reordered,
    Ended,
    Errors,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clock {
    Delay,
    ToOne,
    Publish,
    Subscribe,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    /// In the metric's own unit: a count, a rate, nanoseconds, bytes.
    Value(f64),
    /// A share of the expected deliveries; for `ended` of the subscriptions; for `errors` of both and the posts.
    Share(f64),
}

const COUNTS: [(&str, Count); 5] = [
    ("lost", Count::Lost),
    ("duplicated", Count::Duplicated),
    ("reordered", Count::Reordered),
    ("ended", Count::Ended),
    ("errors", Count::Errors),
];
const CLOCKS: [(&str, Clock); 3] =
    [("to-one", Clock::ToOne), ("publish", Clock::Publish), ("subscribe", Clock::Subscribe)];

impl FromStr for Threshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, op, value) = split(text)?;
        let metric = metric_of(name)?;
        let limit = metric.limit(value).map_err(|why| format!("`{text}`: {why}"))?;
        Ok(Self { text: text.trim().to_owned(), metric, op, limit })
    }
}

impl Threshold {
    /// Judges a run by the condition.
    pub(super) fn judge(&self, record: &Record) -> Condition {
        let (all, what) = self.metric.all(record);
        let limit = match self.limit {
            Limit::Value(value) => Ok(value),
            Limit::Share(_) if all == 0 => Err(format!("there were no {what}")),
            Limit::Share(share) => Ok(share * all as f64),
        };
        let measured = limit.and_then(|limit| Ok((limit, self.metric.measure(record)?)));
        judged(&self.text, self.op, measured, |value, way| self.metric.show(value, way, all, what))
    }

    /// Whether the condition limits the number of ended subscriptions.
    pub(super) fn is_of_ended(&self) -> bool {
        self.metric == Metric::Count(Count::Ended)
    }
}

impl Metric {
    fn limit(self, text: &str) -> Result<Limit, String> {
        match self {
            Self::Count(_) if text.ends_with('%') => {
                let number = units::parse_number(text.trim_end_matches('%').trim())?;
                Ok(Limit::Share(number / 100.0))
            }
            Self::Deliveries | Self::Count(_) | Self::ServerMemory => units::parse_number(text).map(Limit::Value),
            Self::ServerCpu if !has_unit(text) => units::parse_number(text).map(|us| Limit::Value(us * 1e3)),
            Self::Time(..) if !has_unit(text) && text != "0" => {
                Err(format!("`{text}` has no unit: expected one such as {text}ms"))
            }
            Self::Time(..) | Self::ServerCpu => {
                units::parse_time(text).map(|time| Limit::Value(time.as_nanos() as f64))
            }
        }
    }

    /// Returns the whole that a share refers to, and its name.
    fn all(self, record: &Record) -> (u64, &'static str) {
        let subscriptions = record.plan.connections as u64;
        match self {
            Self::Count(Count::Ended) => (record.subscriptions.opened, "subscriptions"),
            Self::Count(Count::Errors) => {
                let published = [&record.published, &record.published_to_one];
                let due: u64 = published.into_iter().flatten().map(|posted| posted.due).sum();
                (subscriptions + due, "subscriptions and messages")
            }
            _ => (
                record.deliveries.expected.unwrap_or(record.deliveries.delivered + record.deliveries.lost),
                "deliveries",
            ),
        }
    }

    fn measure(self, record: &Record) -> Result<Measured, String> {
        let exact = |value| Ok(Measured::exactly(value));
        let deliveries = &record.deliveries;
        let unseen = || record.server_unknown.clone().unwrap_or_else(|| "the server was not found".into());
        let not_published = || "there were no such messages".to_owned();
        match self {
            Self::Deliveries => exact(deliveries.per_s),
            Self::Count(Count::Lost) => {
                exact((deliveries.lost + record.deliveries_to_one.as_ref().map_or(0, |to_one| to_one.lost)) as f64)
            }
            Self::Count(Count::Duplicated) => {
                let to_one = record.deliveries_to_one.as_ref().map_or(0, |to_one| to_one.duplicated);
                exact((deliveries.duplicated + to_one) as f64)
            }
            Self::Count(Count::Reordered) => exact(deliveries.reordered as f64),
            Self::Count(Count::Ended) => exact(record.subscriptions.lost() as f64),
            Self::Count(Count::Errors) => {
                let published = [&record.published, &record.published_to_one];
                let failed: u64 = published.into_iter().flatten().map(|posted| posted.failed + posted.unsent).sum();
                exact((failed + record.subscriptions.failed()) as f64)
            }
            Self::Time(Clock::Delay, figure) => latency(&deliveries.delay, figure),
            Self::Time(Clock::ToOne, figure) => {
                latency(&record.deliveries_to_one.as_ref().ok_or_else(not_published)?.delay, figure)
            }
            Self::Time(Clock::Publish, figure) => {
                latency(&record.published.as_ref().ok_or_else(not_published)?.response, figure)
            }
            Self::Time(Clock::Subscribe, figure) => latency(&record.subscriptions.opening, figure),
            Self::ServerCpu if record.server.is_none() => Err(unseen()),
            Self::ServerCpu => match record.server_cpu_us_per_delivery() {
                Some(us) => exact(us * 1e3),
                None => Err("no message came".into()),
            },
            Self::ServerMemory => exact(record.idle.as_ref().ok_or_else(unseen)?.rss_bytes_per_subscription),
        }
    }

    fn show(self, value: f64, way: Rounding, all: u64, what: &str) -> String {
        match self {
            Self::Time(..) | Self::ServerCpu => precise_time(value, way),
            Self::Deliveries => format!("{value:.1}"),
            Self::ServerMemory => format!("{value:.0} bytes per subscription"),
            Self::Count(_) => format!("{value:.0} of {} {what}", units::count(all)),
        }
    }
}

fn metric_of(name: &str) -> Result<Metric, String> {
    match name {
        "deliveries" => return Ok(Metric::Deliveries),
        "server.cpu" => return Ok(Metric::ServerCpu),
        "server.memory" => return Ok(Metric::ServerMemory),
        _ => {}
    }
    if let Some((_, count)) = COUNTS.iter().find(|(known, _)| *known == name) {
        return Ok(Metric::Count(*count));
    }
    if let Some(figure) = figure_of(name) {
        return Ok(Metric::Time(Clock::Delay, figure));
    }
    let dotted = name.split_once('.').and_then(|(clock, figure)| {
        let clock = CLOCKS.iter().find(|(known, _)| *known == clock)?.1;
        Some(Metric::Time(clock, figure_of(figure)?))
    });
    dotted.ok_or_else(|| unknown(name))
}

fn unknown(name: &str) -> String {
    let counts = COUNTS.iter().map(|(name, _)| *name);
    let others = ["deliveries", "server.cpu", "server.memory"];
    match nearest(name, counts.chain(others).chain(FIGURES)) {
        Some(near) => format!("unknown metric `{name}`: did you mean `{near}`?"),
        None => format!(
            "unknown metric `{name}`: expected lost, duplicated, reordered, ended, errors, deliveries (per second), a \
             delay such as p99, mean or max (also to-one.p99, publish.p99, subscribe.p99), server.cpu or server.memory"
        ),
    }
}
