//! Each variant's own figures.

use maud::{Markup, html};
use oroshi_lab::result::{CellResult, MetricRecord};

use super::View;
use crate::chart::Figure;
use crate::chart::strip::Rows;
use crate::figure::{self, Unit};
use crate::page::{Cell, cell, table};

/// Renders the primary metric as a chart, unless there are curves; and all metrics as a table per group.
pub(super) fn section(view: &View<'_>) -> Markup {
    html! {
        p.small {
            "Median over the runs of a variant, with its " (figure::percent(view.result.rules.confidence)) " interval."
        }
        @if view.result.sweep.is_none() {
            @if let Some(primary) = view.result.metrics.first() { (levels(view, primary)) }
        }
        @for group in &view.groups {
            @if view.groups.len() > 1 { h3 { (group) } }
            (figures_table(view, group))
        }
    }
}

fn levels(view: &View<'_>, metric: &MetricRecord) -> Markup {
    let unit = Unit::from(metric.unit);
    let cells = || view.result.cells.iter();
    let figures: Vec<_> =
        cells().flat_map(|cell| &cell.variants).filter_map(|v| v.figures.get(&metric.metric)).collect();
    if figures.is_empty() {
        return html! {};
    }
    let rows = Rows::of_figures(figures.iter().copied(), unit);
    let chart = html! {
        div.rows {
            @for cell in cells() {
                @if view.result.cells.len() > 1 { div.group { (view.result.cell_name(cell)) } }
                @for variant in &cell.variants {
                    div.row {
                        div.name { (variant.name) }
                        @match variant.figures.get(&metric.metric) {
                            Some(figure) => {
                                @let (value, range) = (unit.text(figure.estimate), figure::range(figure, unit));
                                @let label = format!("{}: {value} ({range})", variant.name);
                                (rows.row(view.series(&variant.name), figure, &label))
                                div.value { strong { (value) } " " span.small { (range) } }
                            },
                            None => { (rows.empty()) div.value { "–" } },
                        }
                    }
                }
            }
            div.row.foot { div.name {} (rows.axis()) div.value {} }
        }
    };
    Figure { title: &metric.label, note: html! {}, key: Vec::new(), chart, numbers: None }.draw()
}

fn figures_table(view: &View<'_>, group: &str) -> Markup {
    let metrics = &view.result.metrics;
    let head: Vec<&str> =
        std::iter::once("").chain(metrics.iter().map(|metric| metric.label.as_str())).chain(["runs"]).collect();
    let rows = view
        .cells(group)
        .into_iter()
        .flat_map(|cell| cell.variants.iter().enumerate().map(move |(index, _)| figures_row(view, cell, index)));
    table(&format!("Figures of each variant {group}"), &head, rows.collect::<Vec<_>>())
}

fn figures_row(view: &View<'_>, of: &CellResult, index: usize) -> Vec<Cell> {
    let variant = &of.variants[index];
    let at = view.point_name(of);
    let mut row = vec![html! {
        (variant.name)
        @if !at.is_empty() { " " span.small { (at) } }
        @if variant.failed.is_some() { " " span.chip.bad { "failed" } }
    }];
    row.extend(view.result.metrics.iter().map(|metric| match variant.figures.get(&metric.metric) {
        Some(figure) => {
            let unit = Unit::from(metric.unit);
            html! { (unit.text(figure.estimate)) br; span.small { (figure::range(figure, unit)) } }
        }
        None => cell("–"),
    }));
    row.push(cell(of.runs.iter().filter(|run| run.variant == index).count().to_string()));
    row
}
