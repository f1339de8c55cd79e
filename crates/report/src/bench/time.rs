//! A run over time: latency, throughput, connections and errors per second; stacked, on one time axis.

use maud::{Markup, html};
use oroshi_bench::Record;
use oroshi_bench::record::PointRecord;
use oroshi_bench::watch::{ServerSample, ServerUsage};
use oroshi_words::units;

use crate::Named;
use crate::chart::heat::{HeatMap, common_scale};
use crate::chart::scale::Scale;
use crate::chart::{Axis, Figure, Plot, Swatch};
use crate::figure::{self, NBSP, Unit};
use crate::page::{Cell, cell, table};

/// Extracts a figure of a point, nanoseconds.
type OfPoint = fn(&PointRecord) -> Option<u64>;

/// Height of a chart with other charts below.
const LOW: u32 = 130;

/// Renders all figures over time, of one run or several.
pub(super) fn charts(runs: &[Named<'_>]) -> Markup {
    let runs: Vec<&Named<'_>> = runs.iter().filter(|run| !run.record.series.points.is_empty()).collect();
    if runs.is_empty() {
        return html! { p { "Nothing was measured over time." } };
    }
    html! {
        (heat_maps(&runs))
        @if let [only] = runs[..] {
            @if only.record.series.heat.is_none() { (latency(only.record)) }
        } @else {
            (tails(&runs))
        }
        (throughput(&runs))
        div.pairs {
            (errors(&runs))
            (alive(&runs))
            (server(&runs))
        }
    }
}

/// Returns the length of the longest run, seconds.
fn longest(runs: &[&Named<'_>]) -> f64 {
    runs.iter().map(|run| run.record.elapsed_s).fold(0.0, f64::max)
}

/// Returns the points with their times: the last one ends with the run.
fn spans(record: &Record) -> impl Iterator<Item = (f64, f64, &PointRecord)> {
    let series = &record.series;
    let end = record.elapsed_s;
    series.points.iter().map(move |point| {
        let until = (point.at_s + series.width_s).min(end.max(point.at_s + series.width_s * 0.01));
        (point.at_s, until, point)
    })
}

/// Returns responses per second. The rest at the very end is too short to count.
fn rates(record: &Record) -> Vec<(f64, Option<f64>)> {
    let enough = record.series.width_s * 0.2;
    let whole = spans(record).filter(|(from, to, _)| to - from >= enough || record.series.points.len() == 1);
    whole.map(|(from, to, point)| ((from + to) / 2.0, Some(point.requests as f64 / (to - from)))).collect()
}

/// Returns the colours of the runs; empty for a single run.
fn legend(runs: &[&Named<'_>]) -> Vec<(Swatch, String)> {
    if runs.len() < 2 {
        return Vec::new();
    }
    runs.iter().enumerate().map(|(i, run)| (Swatch::Line(i), run.name.clone())).collect()
}

fn heat_maps(runs: &[&Named<'_>]) -> Markup {
    let maps: Vec<(&Named<'_>, HeatMap<'_>)> =
        runs.iter().filter_map(|run| Some((*run, HeatMap::new(run.record.series.heat.as_ref()?)?))).collect();
    let scale = common_scale(maps.iter().map(|(_, heat)| heat));
    html! {
        @for (run, heat) in &maps {
            @let of_run = if runs.len() > 1 { format!(": {}", run.name) } else { String::new() };
            @let title = format!("Latency over time{of_run}");
            (heat_map(&title, run.record, heat, scale, longest(runs), if runs.len() > 1 { 190 } else { 280 }))
        }
    }
}

fn heat_map(title: &str, record: &Record, heat: &HeatMap<'_>, scale: Scale, longest_s: f64, height: u32) -> Markup {
    let mut plot = Plot::new(Axis::time(longest_s), Axis::new("service time", scale, Unit::Nanoseconds), height);
    heat.draw(&mut plot);
    let line =
        |of: OfPoint| spans(record).map(move |(from, to, point)| ((from + to) / 2.0, of(point).map(|ns| ns as f64)));
    plot.line(0, "ink thin", line(|point| point.p50_ns));
    plot.line(1, "thin", line(|point| point.p99_ns));
    for (from, to, point) in spans(record) {
        plot.hit((from, to), &point_words(from, point));
    }
    let summary = &record.latency.service.summary;
    let label = format!(
        "Service time over {}: median {}, p99 {}, longest {}",
        units::length(record.elapsed_s),
        figure::percentile_value(summary.p50),
        figure::percentile_value(summary.p99),
        figure::time(summary.max_ns as f64)
    );
    let chart = html! { (plot.draw(&label)) (heat.key()) };
    let key = vec![(Swatch::Ink, "p50".into()), (Swatch::Line(1), "p99".into())];
    let note = html! {
        "Each cell is an interval of time and a range of service times; the stronger its colour, the more answers. \
         The lines are of the answers that came in each interval: requests without one are in none."
    };
    Figure { title, note, key, chart, numbers: Some(points_table(record)) }.draw()
}

/// Renders latency for records without a heat map.
fn latency(record: &Record) -> Markup {
    let percentiles: [(&str, OfPoint); 3] =
        [("p50", |point| point.p50_ns), ("p99", |point| point.p99_ns), ("max", |point| point.max_ns)];
    let all = record.series.points.iter().flat_map(|point| [point.p50_ns, point.max_ns]).flatten();
    let scale = Scale::log(all.map(|ns| ns as f64));
    let mut plot = Plot::new(Axis::time(record.elapsed_s), Axis::new("service time", scale, Unit::Nanoseconds), 240);
    for (series, (_, of)) in percentiles.iter().enumerate() {
        plot.line(series, "thin", spans(record).map(|(from, to, p)| ((from + to) / 2.0, of(p).map(|ns| ns as f64))));
    }
    for (from, to, point) in spans(record) {
        plot.hit((from, to), &point_words(from, point));
    }
    let key = percentiles.iter().enumerate().map(|(i, (name, _))| (Swatch::Line(i), (*name).to_owned())).collect();
    let chart = plot.draw("Median, 99th percentile and longest service time over time");
    let numbers = Some(points_table(record));
    Figure { title: "Latency over time", note: html! {}, key, chart, numbers }.draw()
}

/// Renders the 99th percentiles of several runs.
fn tails(runs: &[&Named<'_>]) -> Markup {
    let all = runs.iter().flat_map(|run| run.record.series.points.iter().filter_map(|point| point.p99_ns));
    let scale = Scale::log(all.map(|ns| ns as f64).collect::<Vec<_>>());
    let mut plot = Plot::new(Axis::time(longest(runs)), Axis::new("p99", scale, Unit::Nanoseconds), 220);
    for (series, run) in runs.iter().enumerate() {
        let p99 = spans(run.record).map(|(from, to, point)| ((from + to) / 2.0, point.p99_ns.map(|ns| ns as f64)));
        plot.line(series, "thin", p99);
    }
    let chart = plot.draw("99th percentile of the service time over time, of each run");
    let note = html! {
        "Of the service times of the answers that came in each interval. The numbers stand below the throughput."
    };
    Figure { title: "p99 over time", note, key: legend(runs), chart, numbers: None }.draw()
}

fn throughput(runs: &[&Named<'_>]) -> Markup {
    let rates: Vec<_> = runs.iter().map(|run| rates(run.record)).collect();
    let scale = Scale::from_zero(rates.iter().flatten().filter_map(|(_, rate)| *rate));
    let height = if runs.len() > 1 { 220 } else { LOW };
    let mut plot = Plot::new(Axis::time(longest(runs)), Axis::new("requests/s", scale, Unit::PerSecond), height);
    for (series, rates) in rates.iter().enumerate() {
        if runs.len() == 1 {
            let ground = rates.iter().filter_map(|(at, rate)| Some((*at, 0.0, (*rate)?)));
            plot.band(series, &ground.collect::<Vec<_>>());
        }
        plot.line(series, "thin", rates.iter().copied());
    }
    if let [only] = runs {
        let width = only.record.series.width_s;
        for (at, rate) in &rates[0] {
            let title = format!("at {}: {} requests/s", Unit::Seconds.text(*at), units::number(rate.unwrap_or(0.0)));
            plot.hit((at - width / 2.0, at + width / 2.0), &title);
        }
    }
    let each = runs.iter().map(|run| {
        let name = if runs.len() > 1 { format!("{} ", run.name) } else { String::new() };
        name + &units::number(run.record.rates.requests_per_s)
    });
    let label = format!("Answers per second over time; on average: {}", each.collect::<Vec<_>>().join(", "));
    let numbers = html! {
        @for run in runs { @if runs.len() > 1 { h4 { (run.name) } } (points_table(run.record)) }
    };
    let numbers = Some(numbers);
    Figure { title: "Throughput", note: html! {}, key: legend(runs), chart: plot.draw(&label), numbers }.draw()
}

fn errors(runs: &[&Named<'_>]) -> Markup {
    let most = runs.iter().flat_map(|run| run.record.series.points.iter().map(|point| point.errors)).max().unwrap_or(0);
    if most == 0 {
        return html! { p.none { "Errors: none in any interval." } };
    }
    let scale = Scale::from_zero([most as f64]);
    let mut plot = Plot::new(Axis::time(longest(runs)), Axis::new("errors", scale, Unit::Count), LOW);
    for (series, run) in runs.iter().enumerate() {
        for (from, to, point) in spans(run.record).filter(|(.., point)| point.errors > 0) {
            // Several runs share their interval, side by side.
            let width = (to - from) / runs.len() as f64;
            let left = from + width * series as f64;
            let kind =
                if runs.len() > 1 { format!("column {}", crate::chart::colour(series)) } else { "column bad".into() };
            plot.column(&kind, (left, left + width), point.errors as f64);
            if runs.len() == 1 {
                plot.hit(
                    (from, to),
                    &format!("at {}: {}", Unit::Seconds.text(from), units::plural(point.errors, "error")),
                );
            }
        }
    }
    let label = format!("Errors over time, at most {} in an interval", units::count(most));
    let rows = runs.iter().flat_map(|run| run.record.series.points.iter().map(move |point| (run, point)));
    let rows = rows
        .filter(|(_, point)| point.errors > 0)
        .map(|(run, point)| (*run, [cell(Unit::Seconds.text(point.at_s)), cell(units::count(point.errors))]));
    let numbers = by_run(runs, "Errors over time", ["at", "errors"], rows);
    let width = figure::time(runs[0].record.series.width_s * 1e9);
    let note = html! { "In each interval of " (width) "." };
    Figure { title: "Errors", note, key: legend(runs), chart: plot.draw(&label), numbers: Some(numbers) }.draw()
}

/// Renders open connections; omitted with one connection per request, where they mean little.
fn alive(runs: &[&Named<'_>]) -> Markup {
    let kept: Vec<(usize, &&Named<'_>)> = runs
        .iter()
        .enumerate()
        .filter(|(_, run)| run.record.plan.requests_per_connection != Some(1))
        .filter(|(_, run)| run.record.series.points.iter().any(|point| point.alive.is_some()))
        .collect();
    if kept.is_empty() {
        return html! {};
    }
    let asked = kept.iter().map(|(_, run)| run.record.plan.connections as f64);
    let mut plot =
        Plot::new(Axis::time(longest(runs)), Axis::new("connections", Scale::from_zero(asked), Unit::Count), LOW);
    for (series, run) in &kept {
        // Steps from one interval to the next, without values in between.
        let steps = spans(run.record).flat_map(|(from, to, point)| {
            let alive = point.alive.map(|n| n as f64);
            [(from, alive), (to, alive)]
        });
        plot.line(*series, "thin", steps.collect::<Vec<_>>());
        if let [only] = runs {
            for (from, to, point) in spans(only.record) {
                let alive = point.alive.map_or_else(|| "not known".into(), |n| units::count(n as u64));
                plot.hit((from, to), &format!("at {}: {alive} alive", Unit::Seconds.text(from)));
            }
        }
    }
    let each = kept.iter().map(|(_, run)| {
        let (plan, connections) = (&run.record.plan, &run.record.connections);
        let name = if runs.len() > 1 { format!("{}: ", run.name) } else { String::new() };
        format!(
            "{name}never fewer than {} of {}",
            units::count(connections.fewest_alive as u64),
            units::count(plan.connections as u64)
        )
    });
    let words = each.collect::<Vec<_>>().join("; ");
    let note = html! { (words) "." };
    let rows = kept.iter().flat_map(|(_, run)| run.record.series.points.iter().map(move |point| (run, point))).map(
        |(run, point)| {
            let alive = point.alive.map_or_else(|| "–".into(), |n| units::count(n as u64));
            (**run, [cell(Unit::Seconds.text(point.at_s)), cell(alive)])
        },
    );
    let numbers = Some(by_run(runs, "Connections alive", ["at", "alive"], rows));
    let chart = plot.draw(&format!("Connections alive over time: {words}"));
    Figure { title: "Connections alive", note, key: legend(runs), chart, numbers }.draw()
}

/// Renders the server's CPU and memory.
fn server(runs: &[&Named<'_>]) -> Markup {
    let watched: Vec<(usize, &Named<'_>, &ServerUsage)> = runs
        .iter()
        .enumerate()
        .filter_map(|(series, run)| Some((series, *run, run.record.server.as_ref()?)))
        .filter(|(.., server)| !server.samples.is_empty())
        .collect();
    if watched.is_empty() {
        return html! {};
    }
    let samples = || watched.iter().flat_map(|(.., server)| &server.samples);
    let cpu = Scale::from_zero(samples().map(|sample| sample.cpu));
    let memory = Scale::bytes_from_zero(samples().map(|sample| sample.rss_bytes as f64));
    let height = if runs.len() > 1 { 180 } else { LOW };
    let mut plots = [
        Plot::new(Axis::time(longest(runs)), Axis::new("CPUs", cpu, Unit::Cores), height),
        Plot::new(Axis::time(longest(runs)), Axis::new("memory", memory, Unit::Bytes), height),
    ];
    for (series, _, server) in &watched {
        let before = std::iter::once(0.0).chain(server.samples.iter().map(|sample| sample.at_s));
        for (from, sample) in before.zip(&server.samples) {
            plots[1].hit(
                (from, sample.at_s),
                &format!("until {}: {}", Unit::Seconds.text(sample.at_s), Unit::Bytes.text(sample.rss_bytes as f64)),
            );
            plots[0].hit(
                (from, sample.at_s),
                &format!("until {}: {} CPUs", Unit::Seconds.text(sample.at_s), units::number(sample.cpu)),
            );
        }
        let middles = std::iter::once(0.0).chain(server.samples.iter().map(|sample| sample.at_s)).zip(&server.samples);
        plots[0].line(*series, "thin", middles.map(|(from, sample)| ((from + sample.at_s) / 2.0, Some(sample.cpu))));
        plots[1].line(
            *series,
            "thin",
            server.samples.iter().map(|sample| (sample.at_s, Some(sample.rss_bytes as f64))),
        );
    }
    let table_of = |label: &str, name: &str, value: fn(&ServerSample) -> String| {
        let rows = watched.iter().flat_map(|(_, run, server)| server.samples.iter().map(move |sample| (run, sample)));
        let rows = rows.map(|(run, sample)| (*run, [cell(Unit::Seconds.text(sample.at_s)), cell(value(sample))]));
        Some(by_run(runs, label, ["until", name], rows))
    };
    let [cpu, memory] = &plots;
    let cpu = Figure {
        title: "The server’s CPU",
        note: html! { "CPU time per time of all its processes." },
        key: legend(runs),
        chart: cpu.draw("CPUs' worth of time that the server used, over time"),
        numbers: table_of("The server's CPU over time", "CPUs", |sample| units::number(sample.cpu)),
    };
    let memory = Figure {
        title: "The server’s memory",
        note: html! { "Resident in all its processes; shared pages count for each." },
        key: legend(runs),
        chart: memory.draw("Resident memory of the server over time"),
        numbers: table_of("The server's memory over time", "memory", |sample| {
            Unit::Bytes.text(sample.rss_bytes as f64)
        }),
    };
    html! { (cpu.draw()) (memory.draw()) }
}

/// Describes an interval.
fn point_words(from: f64, point: &PointRecord) -> String {
    let time = |ns: Option<u64>| ns.map_or_else(|| "–".into(), |ns| figure::time(ns as f64));
    let errors = if point.errors > 0 { format!(", {}", units::plural(point.errors, "error")) } else { String::new() };
    format!(
        "at {}: {}{errors}, p50{NBSP}{}, p99{NBSP}{}, max{NBSP}{}",
        Unit::Seconds.text(from),
        units::plural(point.requests, "answer"),
        time(point.p50_ns),
        time(point.p99_ns),
        time(point.max_ns)
    )
}

/// Renders a table; with several runs, each row names its run.
fn by_run<'a>(
    runs: &[&Named<'_>],
    label: &str,
    head: [&str; 2],
    rows: impl Iterator<Item = (&'a Named<'a>, [Cell; 2])>,
) -> Markup {
    if let [_] = runs {
        return table(label, &head, rows.map(|(_, row)| row).collect::<Vec<_>>());
    }
    let rows = rows.map(|(run, [one, other])| [cell(&run.name), one, other]);
    table(label, &["", head[0], head[1]], rows.collect::<Vec<_>>())
}

fn points_table(record: &Record) -> Markup {
    let time = |ns: Option<u64>| cell(ns.map_or_else(|| "–".into(), |ns| figure::time(ns as f64)));
    let rows = record.series.points.iter().map(|point| {
        let mut row = vec![
            cell(Unit::Seconds.text(point.at_s)),
            cell(units::count(point.requests)),
            cell(units::count(point.errors)),
        ];
        row.extend([point.p50_ns, point.p99_ns, point.max_ns].map(time));
        row.push(cell(point.alive.map_or_else(|| "–".into(), |n| units::count(n as u64))));
        row
    });
    let head = ["at", "answers", "errors", "p50", "p99", "max", "alive"];
    table("The run over time", &head, rows.collect::<Vec<_>>())
}
