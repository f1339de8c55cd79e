//! `--fail-if` for loads of subscriptions: `lost>0`, `p99>50ms`, `deliveries<10k`.

use oroshi_bench::push::Record;
use oroshi_words::nearest;
use oroshi_words::units;

use crate::bench::fail_if::{
    self, FIGURES, Figure, Measured, Metric, Rounding, Unit, clock_and_figure, figure_of, latency, precise_time,
    unknown,
};

/// One condition.
pub(super) type Threshold = fail_if::Threshold<SubscriptionMetric>;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum SubscriptionMetric {
    /// Deliveries per second.
    Deliveries,
    Count(Count),
    Time(Clock, Figure),
    ServerCpu,
    ServerMemory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    Lost,
    Duplicated,
    Reordered,
    Ended,
    Errors,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    ToOne,
    Publish,
    Subscribe,
    Delay,
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

impl Threshold {
    /// Whether the condition limits the number of ended subscriptions.
    pub(super) fn is_of_ended(&self) -> bool {
        self.metric == SubscriptionMetric::Count(Count::Ended)
    }
}

impl SubscriptionMetric {
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
}

impl Metric for SubscriptionMetric {
    type Record = Record;

    fn named(name: &str) -> Result<Self, String> {
        match name {
            "deliveries" => return Ok(Self::Deliveries),
            "server.cpu" => return Ok(Self::ServerCpu),
            "server.memory" => return Ok(Self::ServerMemory),
            _ => {}
        }
        if let Some((_, count)) = COUNTS.iter().find(|(known, _)| *known == name) {
            return Ok(Self::Count(*count));
        }
        if let Some(figure) = figure_of(name) {
            return Ok(Self::Time(Clock::Delay, figure));
        }
        let time = clock_and_figure(name, &CLOCKS.map(|(clock, _)| clock));
        time.map(|(clock, figure)| Self::Time(CLOCKS[clock].1, figure)).ok_or_else(|| {
            let known = COUNTS.into_iter().map(|(name, _)| name);
            let known = known.chain(["deliveries", "server.cpu", "server.memory"]).chain(FIGURES);
            let expected = "lost, duplicated, reordered, ended, errors, deliveries (per second), a delay such as p99, \
                            mean or max (also to-one.p99, publish.p99, subscribe.p99), server.cpu or server.memory";
            unknown(name, nearest(name, known), expected)
        })
    }

    fn unit(&self) -> Unit {
        match self {
            Self::Deliveries | Self::ServerMemory => Unit::Number,
            Self::Count(_) => Unit::Count,
            Self::Time(..) => Unit::Time,
            Self::ServerCpu => Unit::CpuTime,
        }
    }

    fn whole(&self, record: &Record) -> Result<u64, String> {
        match self.all(record) {
            (0, what) => Err(format!("there were no {what}")),
            (all, _) => Ok(all),
        }
    }

    fn measure(&self, record: &Record) -> Result<Measured, String> {
        let exact = |value| Ok(Measured::exactly(value));
        let deliveries = &record.deliveries;
        let unseen = || record.server_unknown.clone().unwrap_or_else(|| "the server was not found".into());
        let not_published = || "there were no such messages".to_owned();
        match *self {
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

    fn show(&self, value: f64, way: Rounding, record: &Record) -> String {
        match self {
            Self::Time(..) | Self::ServerCpu => precise_time(value, way),
            Self::Deliveries => format!("{value:.1}"),
            Self::ServerMemory => format!("{value:.0} bytes per subscription"),
            Self::Count(_) => {
                let (all, what) = self.all(record);
                format!("{value:.0} of {} {what}", units::count(all))
            }
        }
    }
}
