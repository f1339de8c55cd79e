//! The verdicts in words.

use maud::{Markup, html};
use oroshi_lab::metric::{Better, Metric};
use oroshi_lab::result::{CellResult, Comparison, MetricRecord, SweepRecord};
use oroshi_stats::compare::Verdict;

use super::View;
use crate::chart::scale::ends;
use crate::figure;
use crate::page::{Cell, cell, table};
use crate::table::distinct;

/// Renders the primary metric's verdicts: sentences for one cell, a table with a summary for many.
pub(super) fn summary(view: &View<'_>) -> Markup {
    let Some(primary) = view.result.metrics.first() else { return html! {} };
    let of_primary = |cell: &CellResult| -> Vec<Comparison> {
        cell.comparisons.iter().filter(|c| c.metric == primary.metric).cloned().collect()
    };
    html! {
        div.verdict {
            @match view.result.cells.as_slice() {
                [] => p.first { "Nothing was compared." },
                [only] => (sentences(only.base(), &of_primary(only))),
                cells => {
                    (counts(view, primary.metric, cells))
                    @match &view.result.sweep {
                        Some(sweep) => (swept(view, primary, sweep)),
                        None => (matrix(view, primary, cells)),
                    }
                }
            }
        }
    }
}

/// Renders a verdict as a coloured word.
pub(super) fn chip(metric: Metric, verdict: Verdict) -> Markup {
    let kind = match verdict {
        Verdict::Faster => "good",
        Verdict::Slower => "bad",
        Verdict::Equivalent => "same",
        Verdict::Undecided | Verdict::Disturbed | Verdict::NotCompared => "unknown",
    };
    html! { span class={ "chip " (kind) } { (word(metric, verdict)) } }
}

fn word(metric: Metric, verdict: Verdict) -> &'static str {
    let timed = metric == Metric::Rps || metric.is_latency();
    match verdict {
        Verdict::Faster if metric == Metric::Score => "higher",
        Verdict::Slower if metric == Metric::Score => "lower",
        Verdict::Faster if timed => "faster",
        Verdict::Faster => "needs less",
        Verdict::Slower if timed => "slower",
        Verdict::Slower => "needs more",
        Verdict::Equivalent => "equivalent",
        Verdict::Undecided => "undecided",
        Verdict::Disturbed => "disturbed",
        Verdict::NotCompared => "not compared",
    }
}

/// Renders comparisons with the first variant in large, the others below.
fn sentences(base: usize, comparisons: &[Comparison]) -> Markup {
    let (first, others): (Vec<&Comparison>, Vec<&Comparison>) = comparisons.iter().partition(|c| c.base == base);
    html! {
        @if comparisons.is_empty() { p.first { "Nothing was compared." } }
        @for comparison in first { p.first { (comparison.words) "." } }
        @for comparison in others { p { (comparison.words) "." } }
    }
}

/// Counts the verdicts: `unix beside TCP: faster in 5 of 6, undecided in 1; ratios from +4 % to +31 %.`
fn counts(view: &View<'_>, metric: Metric, cells: &[CellResult]) -> Markup {
    let pairs = pairs(metric, cells);
    let all = [
        Verdict::Faster,
        Verdict::Slower,
        Verdict::Equivalent,
        Verdict::Undecided,
        Verdict::Disturbed,
        Verdict::NotCompared,
    ];
    let line = |pair: &(&str, &str)| {
        let of_pair = |(cell, comparison): &(&CellResult, &Comparison)| {
            (View::name(cell, comparison.base), View::name(cell, comparison.variant)) == *pair
        };
        let comparisons: Vec<&Comparison> =
            against_first(metric, cells).filter(of_pair).map(|(_, found)| found).collect();
        let count = |verdict: Verdict| comparisons.iter().filter(|c| c.verdict == verdict).count();
        let found = all.into_iter().map(|verdict| (verdict, count(verdict))).filter(|(_, n)| *n > 0);
        let of = comparisons.len();
        let words = found.map(|(verdict, n)| match n {
            n if n == of && of > 1 => format!("{} in all {of}", word(metric, verdict)),
            n => format!("{} in {n} of {of}", word(metric, verdict)),
        });
        let words = words.collect::<Vec<_>>().join(", ");
        let ratios = comparisons.iter().filter_map(|c| c.ratio.map(|ratio| ratio.estimate));
        (words, ends(ratios))
    };
    html! {
        @for pair in &pairs {
            @let (words, ends) = line(pair);
            p.first {
                strong { (pair.1) } " beside " (pair.0) ": " (words)
                @if let Some((low, high)) = ends {
                    @if figure::ratio(low) == figure::ratio(high) { "; " (figure::ratio(low)) }
                    @else { "; " (figure::ratios(low, high, if low < 0.5 { low } else { high })) }
                    " " (view.result.metrics[0].label)
                }
                "."
            }
        }
        @if pairs.is_empty() { p.first { "Nothing was compared." } }
    }
}

/// Renders each variant of each group, with its ratios to the first one at each point of the sweep.
fn swept(view: &View<'_>, primary: &MetricRecord, sweep: &SweepRecord) -> Markup {
    let rows = view.groups.iter().flat_map(|group| {
        let cells = view.cells(group);
        let pairs = pairs(primary.metric, cells.iter().copied());
        pairs.into_iter().map(move |(base, variant)| {
            let at = |point: usize| cells.iter().copied().find(|cell| cell.point == Some(point));
            let mut row: Vec<Cell> = vec![html! {
                (variant) span.small { " beside " (base) @if !group.is_empty() { ", " (group) } }
            }];
            row.extend((0..sweep.values.len()).map(|point| {
                match at(point).and_then(|cell| against(primary.metric, cell, variant)) {
                    Some(comparison) => ratio_and_verdict(comparison),
                    None => cell("–"),
                }
            }));
            row
        })
    });
    let head: Vec<&str> =
        std::iter::once(sweep.label.as_str()).chain(sweep.values.iter().map(String::as_str)).collect();
    table(&format!("{}: ratios to the first variant", primary.label), &head, rows.collect::<Vec<_>>())
}

/// Renders each cell with its ratios to the first variant.
fn matrix(view: &View<'_>, primary: &MetricRecord, cells: &[CellResult]) -> Markup {
    let variants = distinct(pairs(primary.metric, cells).into_iter().map(|(_, variant)| variant));
    let rows = cells.iter().map(|cell| {
        let base = View::name(cell, cell.base());
        let mut row: Vec<Cell> = vec![html! { (view.result.cell_name(cell)) span.small { " beside " (base) } }];
        row.extend(variants.iter().map(|name| match against(primary.metric, cell, name) {
            Some(comparison) => ratio_and_verdict(comparison),
            None => html! { "–" },
        }));
        row
    });
    let head: Vec<&str> = std::iter::once("").chain(variants.iter().copied()).collect();
    table(&format!("{}: ratios to the first variant", primary.label), &head, rows.collect::<Vec<_>>())
}

fn ratio_and_verdict(comparison: &Comparison) -> Markup {
    html! {
        @if let Some(ratio) = comparison.ratio { strong { (figure::ratio(ratio.estimate)) } br; }
        (chip(comparison.metric, comparison.verdict))
    }
}

/// Returns the comparison of a variant with the first one of its cell.
fn against<'a>(metric: Metric, cell: &'a CellResult, variant: &str) -> Option<&'a Comparison> {
    cell.comparisons
        .iter()
        .find(|c| c.metric == metric && c.base == cell.base() && View::name(cell, c.variant) == variant)
}

/// Returns the pairs of names compared with the first variant of their cell, base first, each pair once.
fn pairs<'a>(metric: Metric, cells: impl IntoIterator<Item = &'a CellResult>) -> Vec<(&'a str, &'a str)> {
    let name = View::name;
    distinct(against_first(metric, cells).map(|(cell, c)| (name(cell, c.base), name(cell, c.variant))))
}

fn against_first<'a>(
    metric: Metric,
    cells: impl IntoIterator<Item = &'a CellResult>,
) -> impl Iterator<Item = (&'a CellResult, &'a Comparison)> {
    cells.into_iter().flat_map(move |cell| {
        cell.comparisons.iter().filter(move |c| c.metric == metric && c.base == cell.base()).map(move |c| (cell, c))
    })
}

/// Names the better direction.
pub(super) fn better(better: Better) -> &'static str {
    match better {
        Better::Higher => "more is better",
        Better::Lower => "less is better",
    }
}
