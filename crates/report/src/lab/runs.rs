//! Every run, in order.

use maud::{Markup, html};
use oroshi_lab::result::{CellResult, MetricRecord, Run};
use oroshi_words::units;

use super::View;
use crate::chart::scale::Scale;
use crate::chart::{Axis, Figure, Plot, Swatch};
use crate::figure::Unit;
use crate::page::{Cell, cell, folded, table};

/// Renders a chart per cell of the primary metric, with folded other metrics and numbers.
pub(super) fn section(view: &View<'_>) -> Markup {
    html! {
        p.small {
            "A mark is a run; the lines are the medians. Runs of one block stand together, in the order in which \
             they were made."
        }
        @for cell in &view.result.cells { (of_cell(view, cell)) }
    }
}

fn of_cell(view: &View<'_>, cell: &CellResult) -> Markup {
    let name = view.result.cell_name(cell);
    let metrics: Vec<&MetricRecord> = view
        .result
        .metrics
        .iter()
        .filter(|metric| cell.runs.iter().any(|run| run.figures.contains_key(&metric.metric)))
        .collect();
    let Some((primary, others)) = metrics.split_first() else {
        return html! { p.none { @if !name.is_empty() { (name) ": " } "no run has a figure." } };
    };
    html! {
        (chart(view, cell, primary, &name))
        @if !others.is_empty() {
            (folded("Other metrics, run by run", &html! {
                @for metric in others { (chart(view, cell, metric, &name)) }
            }))
        }
    }
}

fn chart(view: &View<'_>, cell: &CellResult, metric: &MetricRecord, name: &str) -> Markup {
    let unit = Unit::from(metric.unit);
    let runs: Vec<(&Run, f64)> =
        cell.runs.iter().filter_map(|run| Some((run, *run.figures.get(&metric.metric)?))).collect();
    let blocks = runs.iter().map(|(run, _)| run.block + 1).max().unwrap_or(1);
    let places = runs.iter().map(|(run, _)| run.place + 1).max().unwrap_or(1);
    // Blocks count from 1; runs lie around their block's number.
    let at = |run: &Run| run.block as f64 + 1.0 + ((run.place as f64 + 0.5) / places as f64 - 0.5) * 0.8;
    let x = Axis::new("block", Scale::Linear { low: 0.4, high: blocks as f64 + 0.6 }, Unit::Plain);
    let y = Scale::close_to(runs.iter().map(|(_, value)| *value));
    let mut plot = Plot::new(x, Axis::new(metric.label.as_str(), y, unit), 220);
    // Restarts of the servers, unless they happened before each block.
    let starts: Vec<f64> = runs
        .windows(2)
        .filter(|pair| pair[0].0.session != pair[1].0.session)
        .map(|pair| pair[1].0.block as f64 + 0.5)
        .collect();
    let restarts = !starts.is_empty() && starts.len() + 1 < blocks;
    if restarts {
        starts.iter().for_each(|start| plot.divide(*start));
    }
    for variant in &cell.variants {
        if let Some(level) = variant.figures.get(&metric.metric) {
            let series = view.series(&variant.name);
            plot.line(series, "median", [(0.4, Some(level.estimate)), (blocks as f64 + 0.6, Some(level.estimate))]);
        }
    }
    for (run, value) in &runs {
        let variant = View::name(cell, run.variant);
        if doubtful(run) {
            plot.ring((at(run), *value));
        }
        let mut title = format!("{variant}, block {}, run {}: {}", run.block + 1, run.place + 1, unit.text(*value));
        for remark in run.shift.iter().chain(&run.warnings) {
            title = title + "; " + remark;
        }
        plot.mark(view.series(variant), "", (at(run), *value), &title);
    }
    let marked = runs.iter().filter(|(run, _)| doubtful(run)).count();
    let mut key = view.key(&[cell]);
    if marked > 0 {
        key.push((
            Swatch::Ring,
            format!("shifted, or has a warning ({marked} of {})", units::plural(runs.len() as u64, "run")),
        ));
    }
    let title = if name.is_empty() { metric.label.clone() } else { format!("{name}: {}", metric.label) };
    let label = format!(
        "{title} of each of {} in {}",
        units::plural(runs.len() as u64, "run"),
        units::plural(blocks as u64, "block")
    );
    let note = html! {
        @if restarts { "Upright lines: the servers were started anew. " }
    };
    let numbers = Some(run_table(view, cell));
    Figure { title: &title, note, key, chart: plot.draw(&label), numbers }.draw()
}

fn doubtful(run: &Run) -> bool {
    run.shift.is_some() || !run.warnings.is_empty()
}

fn run_table(view: &View<'_>, of: &CellResult) -> Markup {
    let metrics = &view.result.metrics;
    let rows = of.runs.iter().map(|run| {
        let mut row: Vec<Cell> = vec![
            cell(View::name(of, run.variant)),
            cell((run.block + 1).to_string()),
            cell((run.place + 1).to_string()),
            cell((run.session + 1).to_string()),
            cell(Unit::Seconds.text(run.at_s)),
        ];
        row.extend(metrics.iter().map(|metric| {
            cell(
                run.figures
                    .get(&metric.metric)
                    .map_or_else(|| "–".into(), |value| Unit::from(metric.unit).text(*value)),
            )
        }));
        row.push(cell(run.grade().map_or("", |grade| grade.name())));
        let remarks: Vec<&str> = run.shift.iter().chain(&run.warnings).map(String::as_str).collect();
        row.push(html! { span.words { (remarks.join("; ")) } });
        row
    });
    let head: Vec<&str> = ["", "block", "place", "start", "at"]
        .into_iter()
        .chain(metrics.iter().map(|metric| metric.label.as_str()))
        .chain(["bottleneck", "remarks"])
        .collect();
    table("Every run", &head, rows.collect::<Vec<_>>())
}
