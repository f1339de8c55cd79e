//! Every ratio with its interval, stacked on one scale.

use maud::{Markup, html};
use oroshi_lab::result::{CellResult, Comparison, MetricRecord};
use oroshi_stats::compare::Interval;

use super::View;
use super::verdict::{better, chip};
use crate::chart::strip::Rows;
use crate::chart::{Figure, Swatch};
use crate::figure;
use crate::page::{Cell, cell, folded, table};

/// A comparison, with its cell and its metric.
#[derive(Clone, Copy)]
struct Row<'a> {
    cell: &'a CellResult,
    metric: &'a MetricRecord,
    comparison: &'a Comparison,
}

/// Renders one figure for all metrics of a single cell. For several cells, one figure per metric, folded except for
/// the primary one.
pub(super) fn section(view: &View<'_>) -> Markup {
    let of_metric = |metric| -> Vec<Row<'_>> {
        let in_cell = |cell| found(cell, metric);
        view.result.cells.iter().flat_map(in_cell).collect()
    };
    let each: Vec<(&MetricRecord, Vec<Row<'_>>)> = view
        .result
        .metrics
        .iter()
        .map(|metric| (metric, of_metric(metric)))
        .filter(|(_, found)| !found.is_empty())
        .collect();
    if let [_] = view.result.cells[..] {
        let groups: Vec<(String, Vec<Row<'_>>)> = each
            .into_iter()
            .map(|(metric, found)| (format!("{}, {}", metric.label, better(metric.better)), found))
            .collect();
        return figure(view, "All metrics", "", &groups);
    }
    html! {
        @for (place, (metric, found)) in each.into_iter().enumerate() {
            @let drawn = figure(view, &metric.label, better(metric.better), &by_cell(view, &found));
            @if place == 0 { (drawn) } @else { (folded(&format!("Ratios of {}", metric.label), &drawn)) }
        }
    }
}

/// Groups the comparisons of one metric by the name of their cell.
fn by_cell<'a>(view: &View<'_>, found: &[Row<'a>]) -> Vec<(String, Vec<Row<'a>>)> {
    let mut groups: Vec<(String, Vec<Row<'a>>)> = Vec::new();
    for one in found {
        let name = view.result.cell_name(one.cell);
        match groups.last_mut() {
            Some((last, group)) if *last == name => group.push(*one),
            _ => groups.push((name, vec![*one])),
        }
    }
    groups
}

fn found<'a>(cell: &'a CellResult, metric: &'a MetricRecord) -> impl Iterator<Item = Row<'a>> {
    let of_metric = cell.comparisons.iter().filter(|comparison| comparison.metric == metric.metric);
    of_metric.map(move |comparison| Row { cell, metric, comparison })
}

fn figure(view: &View<'_>, title: &str, direction: &str, groups: &[(String, Vec<Row<'_>>)]) -> Markup {
    let rules = &view.result.rules;
    let all = || groups.iter().flat_map(|(_, group)| group);
    let ratios: Vec<Interval> = all().filter_map(|found| found.comparison.ratio).collect();
    let rows = Rows::of_ratios(&ratios, rules.smallest_effect);
    // If no group has more than one row, the group names it.
    let single = groups.iter().all(|(_, group)| group.len() == 1);
    let chart = html! {
        div.rows {
            @for (name, group) in groups {
                @if !single { div.group { (name) } }
                @for found in group { (row(view, &rows, *found, if single { Some(name) } else { None })) }
            }
            @if !ratios.is_empty() { div.row.foot { div.name {} (rows.axis()) div.value {} } }
        }
    };
    let numbers = table(
        &format!("Ratios: {title}"),
        &["", "pair", "ratio", "from", "to", "p (Holm)", "blocks", "verdict"],
        groups
            .iter()
            .flat_map(|(name, group)| group.iter().map(move |found| numbers_of(name, found.comparison, &found.pair()))),
    );
    let note = html! {
        "Ratio to the base, with its " (figure::percent(rules.confidence)) " interval"
        @if !direction.is_empty() { "; " (direction) } "."
    };
    let zone = format!("within ±{}: no difference that matters", figure::percent(rules.smallest_effect));
    let key = if ratios.is_empty() { Vec::new() } else { vec![(Swatch::Zone, zone)] };
    Figure { title, note, key, chart, numbers: Some(numbers) }.draw()
}

fn row(view: &View<'_>, rows: &Rows, found: Row<'_>, name: Option<&String>) -> Markup {
    let Row { cell, metric, comparison } = found;
    let pair = found.pair();
    html! {
        div.row {
            div.name { @match name { Some(name) => { (name) " " span.small { (pair) } }, None => (pair) } }
            @match &comparison.ratio {
                Some(ratio) => {
                    (rows.row(view.series(View::name(cell, comparison.variant)), ratio, &comparison.words))
                    div.value {
                        strong { (figure::ratio(ratio.estimate)) } " "
                        span.small { (figure::ratios(ratio.low, ratio.high, ratio.estimate)) } " "
                        (chip(metric.metric, comparison.verdict))
                    }
                },
                None => {
                    (rows.empty())
                    div.value { (chip(metric.metric, comparison.verdict)) }
                    div.why { (comparison.words) "." }
                },
            }
        }
    }
}

fn numbers_of(name: &str, comparison: &Comparison, pair: &str) -> Vec<Cell> {
    let number = |value: Option<f64>| cell(value.map_or_else(|| "–".into(), |value| format!("{value:.4}")));
    let ratio = comparison.ratio;
    vec![
        cell(name),
        cell(pair),
        number(ratio.map(|ratio| ratio.estimate)),
        number(ratio.map(|ratio| ratio.low)),
        number(ratio.map(|ratio| ratio.high)),
        cell(comparison.p.map_or_else(|| "–".into(), p_value)),
        cell(comparison.blocks.to_string()),
        html! { span.words { (comparison.words) } },
    ]
}

fn p_value(p: f64) -> String {
    if p < 0.0001 { "< 0.0001".into() } else { format!("{p:.4}") }
}

impl Row<'_> {
    /// Formats `unix / TCP`.
    fn pair(&self) -> String {
        let name = |variant| View::name(self.cell, variant);
        format!("{} / {}", name(self.comparison.variant), name(self.comparison.base))
    }
}
