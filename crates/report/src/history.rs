//! The page of a history: its steps first, then a chart of each figure by commit, then the machines.

use std::collections::BTreeSet;

use maud::{Markup, html};
use oroshi_history::entry::Unit as HistoryUnit;
use oroshi_history::series::{Series, Step, as_change, short};

use crate::chart::scale::Scale;
use crate::chart::{Axis, Figure, Plot, Swatch};
use crate::figure::{self, Unit};
use crate::page::{Cell, Page, Section, cell, facts, folded, table};

/// Charts of series without a step are folded from so many series on.
const MOST_OPEN: usize = 12;

/// Renders the page.
pub(crate) fn page(title: &str, series: &[Series<'_>]) -> String {
    let steps: usize = series.iter().map(|series| series.steps.len()).sum();
    let commits = crate::table::distinct(points(series).map(|point| short(&point.entry.commit))).len();
    let header = html! {
        h1 { (title) }
        p.lede {
            (plural(series.len(), "series", "series")) ", " (plural(commits, "commit", "commits")) ", "
            (plural(steps, "step", "steps"))
        }
    };
    let sections = vec![
        Section { id: "steps", title: "Steps", body: steps_table(series) },
        Section { id: "charts", title: "By commit", body: charts(series) },
        Section { id: "machines", title: "Machines", body: machines(series) },
    ];
    let latest = points(series).map(|point| point.entry.measured_unix_s).fold(0.0, f64::max);
    Page {
        title: format!("{title} – oroshi history"),
        kind: format!("oroshi history · last measured {}", figure::date(latest)),
        header,
        sections,
        footer: html! {
            p { "Drawn by oroshi " (env!("CARGO_PKG_VERSION")) ". It loads nothing and runs no script." }
        },
    }
    .render()
}

fn points<'s, 'h>(series: &'s [Series<'h>]) -> impl Iterator<Item = &'s oroshi_history::series::Point<'h>> {
    series.iter().flat_map(|series| &series.points)
}

fn plural(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

/// Every step, the latest commit first.
fn steps_table(series: &[Series<'_>]) -> Markup {
    let mut found: Vec<(&Series<'_>, &Step)> =
        series.iter().flat_map(|series| series.steps.iter().map(move |step| (series, step))).collect();
    let date = |(series, step): &(&Series<'_>, &Step)| series.points[step.at].entry.commit.unix_s;
    found.sort_by(|one, other| date(other).total_cmp(&date(one)));
    if found.is_empty() {
        return html! { p { "No series has a step." } };
    }
    let rows = found.iter().map(|(series, step)| -> Vec<Cell> {
        let commit = &series.points[step.at].entry.commit;
        let worse = if step.is_better { "better" } else { "worse" };
        vec![
            html! { code { (short(commit)) } " " span.small { (commit.subject) } },
            cell(figure::date(commit.unix_s)),
            cell(series.subject),
            cell(series.metric),
            html! { strong { (figure::ratio(step.ratio.estimate)) } " " span.small { (worse) } },
            cell(figure::ratios(step.ratio.low, step.ratio.high, step.ratio.estimate)),
            cell(step.changed.join("; ")),
        ]
    });
    let head = ["commit", "date", "subject", "figure", "change", "95 % interval", "changed at the same place"];
    // The last column is empty on most machines.
    let columns = head.len() - usize::from(found.iter().all(|(_, step)| step.changed.is_empty()));
    table("Steps", &head[..columns], rows.map(|row| row[..columns].to_vec()))
}

/// Charts of all series, those with steps first.
fn charts(series: &[Series<'_>]) -> Markup {
    let (with, without): (Vec<_>, Vec<_>) = series.iter().partition(|series| !series.steps.is_empty());
    html! {
        @for series in with { (chart(series)) }
        @if series.len() <= MOST_OPEN {
            @for series in without { (chart(series)) }
        } @else if !without.is_empty() {
            (folded(
                &format!("{} without a step", plural(without.len(), "series", "series")),
                &html! { @for series in without { (chart(series)) } },
            ))
        }
    }
}

fn chart(series: &Series<'_>) -> Markup {
    let unit = unit_of(series.unit);
    // As git shortens them: there is little room below a chart.
    let name = |commit| short(commit).chars().take(7).collect();
    let names: Vec<String> = series.points.iter().map(|point| name(&point.entry.commit)).collect();
    let ends = series.points.iter().flat_map(|point| {
        let interval = point.figure.interval.into_iter().flatten();
        // A very wide interval would hide all others.
        let near = interval.filter(|end| (0.5..2.0).contains(&(end / point.figure.value)));
        near.chain([point.figure.value])
    });
    let scale = Scale::close_to(ends);
    let mut plot = Plot::new(Axis::categories("", names), Axis::new(series.metric, scale, unit), 200);
    for step in &series.steps {
        plot.divide(step.at as f64 - 0.5);
    }
    for level in series.levels().iter().filter(|level| !level.is_empty()) {
        let values = series.values(level);
        let middle = (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp();
        let ends = [level[0] as f64 - 0.4, level[level.len() - 1] as f64 + 0.4];
        plot.line(1, "", ends.map(|at| (at, Some(middle))));
    }
    for (place, point) in series.points.iter().enumerate() {
        let at = place as f64;
        if let Some([low, high]) = point.figure.interval {
            plot.whisker(0, at, low, high);
        }
        let commit = &point.entry.commit;
        let mut title = format!(
            "{} {}: {} ({})",
            short(commit),
            commit.subject,
            unit.text(point.figure.value),
            figure::date(commit.unix_s)
        );
        if let Some(why) = point.disturbed {
            title += &format!("; not in a level: {why}");
            plot.ring((at, point.figure.value));
        }
        plot.mark(0, "", (at, point.figure.value), &title);
    }
    let title = format!("{}: {}", series.subject, series.metric);
    let label = format!("{title} over {} measurements, {}", series.points.len(), described(series));
    let better = if series.higher_is_better { "higher is better" } else { "lower is better" };
    let mut key =
        vec![(Swatch::Mark(0), "measurement, with its interval".to_owned()), (Swatch::Line(1), "level".into())];
    if series.points.iter().any(|point| point.disturbed.is_some()) {
        key.push((Swatch::Ring, "disturbed".into()));
    }
    Figure {
        title: &title,
        note: html! { (series.load) "; " (better) "; " (described(series)) "." },
        key,
        chart: plot.draw(&label),
        numbers: Some(numbers(series, unit)),
    }
    .draw()
}

/// The steps in words: `1 step: +4.9 % at 0123456789`.
fn described(series: &Series<'_>) -> String {
    if series.steps.is_empty() {
        return "no step".into();
    }
    let each = series
        .steps
        .iter()
        .map(|step| format!("{} at {}", as_change(step.ratio.estimate), short(&series.points[step.at].entry.commit)));
    format!("{}: {}", plural(series.steps.len(), "step", "steps"), each.collect::<Vec<_>>().join(", "))
}

fn numbers(series: &Series<'_>, unit: Unit) -> Markup {
    let rows = series.points.iter().map(|point| {
        let interval = point
            .figure
            .interval
            .map_or_else(|| "–".to_owned(), |[low, high]| format!("{} – {}", unit.text(low), unit.text(high)));
        [
            html! { code { (short(&point.entry.commit)) } },
            cell(figure::date(point.entry.commit.unix_s)),
            cell(unit.text(point.figure.value)),
            cell(interval),
            cell(point.figure.runs.to_string()),
            cell(point.disturbed.unwrap_or_default()),
        ]
    });
    table("Measurements", &["commit", "date", "figure", "95 % interval", "runs", "disturbed"], rows)
}

fn machines(series: &[Series<'_>]) -> Markup {
    let mut seen = BTreeSet::new();
    html! {
        @for machine in series.iter().map(|series| series.machine).filter(|machine| seen.insert(&machine.fingerprint)) {
            h3 { code { (machine.fingerprint) } " " (machine.words) }
            (facts(machine.conditions.iter().map(|(name, value)| (name.as_str(), Some(value.clone())))))
        }
    }
}

fn unit_of(unit: HistoryUnit) -> Unit {
    match unit {
        HistoryUnit::PerSecond => Unit::PerSecond,
        HistoryUnit::Nanoseconds => Unit::Nanoseconds,
        HistoryUnit::Bytes => Unit::Bytes,
        HistoryUnit::Ratio => Unit::Ratio,
        HistoryUnit::Points | HistoryUnit::Plain => Unit::Plain,
    }
}
