//! Latency: the whole distribution, and the phases of a request.

use maud::{Markup, html};
use oroshi_bench::Record;
use oroshi_bench::record::ClockRecord;
use oroshi_stats::Quantile;
use oroshi_stats::compare::Interval;
use oroshi_words::units;

use crate::Named;
use crate::chart::scale::Scale;
use crate::chart::strip::Rows;
use crate::chart::{Axis, Figure, Plot, Swatch};
use crate::figure::{self, Unit};
use crate::page::{Cell, cell, table};
use crate::words;

/// Points of a curve per nine.
const POINTS_PER_NINE: usize = 40;
/// Percentiles with a mark on a curve and a row in its table.
const MARKED: [f64; 9] = [0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999, 0.99999, 0.999999];

/// Renders one run: service, response, lateness.
pub(super) fn one(record: &Record) -> Markup {
    let clocks = record.latency.each().into_iter().take(3);
    let shown = words::measured_clocks(record);
    let curves: Vec<(String, &ClockRecord)> = clocks
        .filter(|(name, _)| shown.iter().any(|(shown, _)| shown == name))
        .map(|(name, clock)| (name.to_owned(), clock))
        .collect();
    let note = html! {
        "Of a hundred requests 99 took at most as long as the curve shows at 99. "
        "Service time begins when a request is sent"
        @if curves.iter().any(|(name, _)| name == "response") { ", response time when it was due" }
        @if curves.iter().any(|(name, _)| name == "lateness") { "; lateness is the generator’s own delay" }
        "."
    };
    html! {
        (percentiles("Percentiles", &note, &curves))
        (clocks_table(&shown))
    }
}

/// Renders several runs: response times, and service times where they differ.
pub(super) fn several(runs: &[Named<'_>]) -> Markup {
    let curves = |clock: fn(&Record) -> &ClockRecord| -> Vec<(String, &ClockRecord)> {
        runs.iter().map(|run| (run.name.clone(), clock(run.record))).collect()
    };
    let response = html! { "From when a request was due until its answer was read." };
    let service = html! { "From when a request was sent until its answer was read." };
    html! {
        (percentiles("Response time", &response, &curves(|record| &record.latency.response)))
        @if runs.iter().any(|run| words::is_open(run.record) || run.record.plan.requests_per_connection == Some(1)) {
            (percentiles("Service time", &service, &curves(|record| &record.latency.service)))
        }
    }
}

/// Renders the clocks of one run, with an explanation of each phase.
pub(super) fn phases(record: &Record) -> Markup {
    let clocks: Vec<(&str, &ClockRecord)> = record
        .latency
        .each()
        .into_iter()
        .filter(|(name, clock)| ["connect", "tls", "first_byte"].contains(name) && clock.summary.count > 0)
        .collect();
    if clocks.is_empty() {
        return html! { p { "No request came so far." } };
    }
    let spread = |clock: &ClockRecord| {
        let at = |q| clock.histogram.quantile(q).map_or(0.0, |quantile| quantile.value() as f64);
        Interval { estimate: at(0.5), low: at(0.01), high: at(0.99) }
    };
    // Responses with a first byte also have a last one, except for failures in between.
    let (service, first) = (&record.latency.service.summary, &record.latency.first_byte.summary);
    let transfer = (service.count > 0 && first.count > 0).then(|| (service.mean_ns - first.mean_ns).max(0.0));
    let values = clocks.iter().map(|(_, clock)| spread(clock)).flat_map(|s| [s.low, s.high]).chain(transfer);
    let rows = Rows::of_times(values.collect::<Vec<_>>());
    let name = |clock: &str| match clock {
        "connect" => "Connect",
        "tls" => "TLS handshake",
        _ => "First byte",
    };
    let what = |clock: &str| match clock {
        "connect" => "per connection",
        "tls" => "per connection",
        _ => "sent, until the first byte came",
    };
    let chart = html! {
        div.rows.phases {
            @for (i, (clock, record)) in clocks.iter().enumerate() {
                @let spread = spread(record);
                @let (median, p99) = (figure::time(spread.estimate), figure::time(spread.high));
                @let label = format!("{}: median {median}, 99 % within {p99}", name(clock));
                div.row {
                    div.name { (name(clock)) " " span.small { (what(clock)) } }
                    (rows.row(i, &spread, &label))
                    div.value { strong { (median) } " " span.small { "p99 " (p99) } }
                }
            }
            @if let Some(mean) = transfer {
                @let label = format!("Transfer: {} on average", figure::time(mean));
                div.row {
                    div.name { "Transfer" " " span.small { "first byte until last" } }
                    (rows.row(clocks.len(), &Interval { estimate: mean, low: mean, high: mean }, &label))
                    div.value { strong { (figure::time(mean)) } " " span.small { "mean" } }
                }
            }
            div.row.foot { div.name {} (rows.axis()) div.value {} }
        }
    };
    let note = html! {
        "Median, with the line from the 1st to the 99th percentile."
        @if let Some(transfer) = transfer {
            " Of a mean service time of " (figure::time(service.mean_ns)) ", "
            (figure::percent(transfer / service.mean_ns.max(1.0))) " passed after the first byte."
        }
    };
    let numbers =
        clocks_table(&clocks.iter().map(|(clock, record)| (name(clock).to_owned(), *record)).collect::<Vec<_>>());
    Figure { title: "Where the time went", note, key: Vec::new(), chart, numbers: Some(numbers) }.draw()
}

/// Renders curves over a scale of nines.
pub(crate) fn percentiles(title: &str, note: &Markup, curves: &[(String, &ClockRecord)]) -> Markup {
    let curves: Vec<(String, Curve)> = curves
        .iter()
        .map(|(name, clock)| (name.clone(), Curve::of(clock)))
        .filter(|(_, curve)| !curve.0.is_empty())
        .collect();
    if curves.is_empty() {
        return html! { p { "No request was answered, so there are no latencies." } };
    }
    let nines = curves.iter().map(|(_, curve)| curve.nines()).fold(1.0, f64::max);
    let values = curves.iter().flat_map(|(_, curve)| curve.0.iter().map(|(_, quantile)| quantile.value() as f64));
    let mut plot = Plot::new(
        Axis::new("percentile", Scale::Nines { nines }, Unit::Percentile),
        Axis::new("latency", Scale::log(values.collect::<Vec<_>>()), Unit::Nanoseconds),
        320,
    );
    let mut bounded = false;
    for (series, (name, curve)) in curves.iter().enumerate() {
        bounded |= curve.draw(&mut plot, series, name);
    }
    let mut key: Vec<_> = curves.iter().enumerate().map(|(i, (name, _))| (Swatch::Mark(i), name.clone())).collect();
    if bounded {
        key.push((Swatch::AtLeast, "at least: it depends on requests that were never answered".into()));
    }
    let names: Vec<String> = curves.iter().map(|(name, _)| name.clone()).collect();
    let label = format!(
        "{title} of {}: {}",
        names.join(", "),
        curves.iter().map(|(n, c)| c.words(n)).collect::<Vec<_>>().join("; ")
    );
    let head: Vec<&str> = std::iter::once("percentile").chain(names.iter().map(String::as_str)).collect();
    let marked = MARKED.into_iter().filter(|q| curves.iter().any(|(_, curve)| curve.has(*q)));
    let rows = marked.map(|q| {
        let values = curves.iter().map(|(_, curve)| cell(figure::quantile_value(curve.at(q))));
        std::iter::once(cell(figure::percentile(q))).chain(values).collect::<Vec<Cell>>()
    });
    let numbers = table(title, &head, rows);
    Figure { title, note: note.clone(), key, chart: plot.draw(&label), numbers: Some(numbers) }.draw()
}

/// Quantiles in order.
struct Curve(Vec<(f64, Quantile)>);

impl Curve {
    /// Takes as many quantiles as the number of requests supports: of a thousand, the last is beyond 99.9.
    fn of(clock: &ClockRecord) -> Self {
        let total = clock.histogram.len() + clock.histogram.censored();
        if total == 0 {
            return Self(Vec::new());
        }
        let nines = (total as f64).log10();
        let steps = (nines * POINTS_PER_NINE as f64).floor() as usize;
        let regular = (0..=steps).map(|step| 1.0 - 10_f64.powf(-(step as f64) / POINTS_PER_NINE as f64));
        let mut quantiles: Vec<f64> = regular.chain(MARKED).chain([1.0 - 1.0 / total as f64]).collect();
        quantiles.retain(|q| -(1.0 - q).log10() <= nines + 1e-9);
        quantiles.sort_by(f64::total_cmp);
        quantiles.dedup();
        Self(quantiles.into_iter().filter_map(|q| Some((q, clock.histogram.quantile(q)?))).collect())
    }

    fn nines(&self) -> f64 {
        self.0.last().map_or(0.0, |(q, _)| -(1.0 - q).log10())
    }

    fn has(&self, q: f64) -> bool {
        self.at(q).is_some()
    }

    fn at(&self, q: f64) -> Option<Quantile> {
        self.0.iter().find(|(at, _)| *at == q).map(|(_, quantile)| *quantile)
    }

    /// Draws the exact part, and the part with only a lower bound; returns whether there is such a part.
    fn draw(&self, plot: &mut Plot, series: usize, name: &str) -> bool {
        let known = self.0.iter().position(|(_, quantile)| quantile.is_bound()).unwrap_or(self.0.len());
        let points = |part: &[(f64, Quantile)]| -> Vec<(f64, Option<f64>)> {
            part.iter().map(|(q, quantile)| (*q, Some(quantile.value() as f64))).collect()
        };
        let (exact, bound) = (&self.0[..known], &self.0[known.saturating_sub(1)..]);
        plot.line(series, "", points(exact));
        let bounded = known < self.0.len();
        if bounded {
            // Its position above is unknown.
            let high = match plot.y.scale {
                Scale::Log { high, .. } | Scale::Linear { high, .. } => high,
                Scale::Nines { .. } | Scale::Categories { .. } => 1.0,
            };
            plot.band(
                series,
                &bound.iter().map(|(q, quantile)| (*q, quantile.value() as f64, high)).collect::<Vec<_>>(),
            );
            plot.line(series, "atleast", points(bound));
        }
        for (q, quantile) in self.0.iter().filter(|(q, _)| MARKED.contains(q)) {
            let title = format!("{name} p{}: {}", figure::percentile(*q), figure::quantile_value(Some(*quantile)));
            let kind = if quantile.is_bound() { "open" } else { "" };
            plot.mark(series, kind, (*q, quantile.value() as f64), &title);
        }
        bounded
    }

    fn words(&self, name: &str) -> String {
        let each = [0.5, 0.99, 0.999].into_iter().filter_map(|q| Some((q, self.at(q)?)));
        let each =
            each.map(|(q, quantile)| format!("p{} {}", figure::percentile(q), figure::quantile_value(Some(quantile))));
        format!("{name} {}", each.collect::<Vec<_>>().join(", "))
    }
}

/// Renders the figures of several clocks.
pub(crate) fn clocks_table<N: AsRef<str>>(clocks: &[(N, &ClockRecord)]) -> Markup {
    let head = ["", "p50", "p90", "p99", "p99.9", "max", "mean", "stdev", "values"];
    let rows = clocks.iter().map(|(name, clock)| {
        let summary = &clock.summary;
        let percentiles =
            [summary.p50, summary.p90, summary.p99, summary.p99_9].map(|p| cell(figure::percentile_value(p)));
        let mut row = vec![cell(name)];
        row.extend(percentiles);
        row.push(cell(figure::quantile_value(clock.histogram.quantile(1.0))));
        row.push(cell(figure::time(summary.mean_ns)));
        row.push(cell(figure::time(summary.stdev_ns)));
        let values = units::count(summary.count);
        let censored = (summary.censored > 0).then(|| format!(" + {} unanswered", units::count(summary.censored)));
        row.push(cell(values + &censored.unwrap_or_default()));
        row
    });
    table("Latencies", &head, rows.collect::<Vec<_>>())
}
