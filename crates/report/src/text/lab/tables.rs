//! The figures of an experiment, in tables.

use std::collections::BTreeSet;

use oroshi_lab::metric::{Better, Unit};
use oroshi_lab::result::{CellResult, Comparison, SweepRecord, VariantResult};
use oroshi_lab::{LabResult, Metric};
use oroshi_stats::compare::{Interval, Verdict};
use oroshi_words::units;

use super::{WIDTH, asked, in_colour, pair};
use crate::paint::Paint;
use crate::table::{columns, distinct, wrap};

/// Text before the reason why there is no comparison.
const NOT_COMPARED: &str = " is not compared: ";

/// Each variant's own figures: a row per variant, a column per metric.
pub(super) fn figures(cell: &CellResult, result: &LabResult, paint: Paint) -> String {
    let mut head = vec!["median ±".to_owned()];
    head.extend(result.metrics.iter().map(|m| m.label.clone()));
    let mut rows = vec![head];
    for variant in &cell.variants {
        let mut row = vec![variant.name.clone()];
        row.extend(result.metrics.iter().map(|m| own_figure(variant, m.metric)));
        rows.push(row);
    }
    headed(&within(&rows), paint)
}

/// The ratios, with intervals and verdicts. Empty when there are none.
pub(super) fn ratios(cell: &CellResult, result: &LabResult, paint: Paint) -> String {
    let told: Vec<(&str, Vec<&Comparison>)> = result
        .metrics
        .iter()
        .map(|m| (m.label.as_str(), told(cell, m.metric)))
        .filter(|(_, told)| !told.is_empty())
        .collect();
    if told.iter().flat_map(|(_, told)| told).all(|c| c.ratio.is_none()) {
        return String::new();
    }
    let pairs: BTreeSet<(usize, usize)> = told.iter().flat_map(|(_, told)| told).map(|c| (c.base, c.variant)).collect();
    let interval = format!("{} interval", asked(result.rules.confidence));
    let mut table = Table::new(paint);
    match told.first() {
        None => return String::new(),
        Some((_, first)) if pairs.len() == 1 => {
            table.head(&[&pair(cell, first[0]), "ratio", &interval]);
            told.iter().for_each(|(label, told)| table.ratio(label, told[0]));
        }
        Some(_) => {
            table.head(&["", "ratio", &interval]);
            for (label, told) in &told {
                table.plain(label);
                told.iter().for_each(|c| table.ratio(&format!("  {}", pair(cell, c)), c));
            }
        }
    }
    table.text()
}

/// The ratios as rows of texts: metric, pair, ratio, interval and verdict.
pub(crate) fn cell_ratios(cell: &CellResult, result: &LabResult) -> Vec<[String; 5]> {
    let row = |label: &str, c: &Comparison| {
        let (ratio, interval) = ratio_texts(c);
        [label.to_owned(), pair(cell, c), ratio, interval, short(c).to_owned()]
    };
    result.metrics.iter().flat_map(|m| told(cell, m.metric).into_iter().map(|c| row(&m.label, c))).collect()
}

/// The primary ratios of every comparison.
pub(super) fn summary(result: &LabResult, paint: Paint) -> String {
    let Some(primary) = result.metrics.first() else { return String::new() };
    let rows: Vec<(String, Vec<(String, &Comparison)>)> = result
        .cells
        .iter()
        .map(|cell| {
            let told = told(cell, primary.metric).into_iter().filter(|c| c.base == cell.base());
            (result.cell_name(cell), told.map(|c| (pair(cell, c), c)).collect())
        })
        .collect();
    let pairs: BTreeSet<&str> = rows.iter().flat_map(|(_, told)| told).map(|(pair, _)| pair.as_str()).collect();
    let interval = format!("{} interval", asked(result.rules.confidence));
    let mut table = Table::new(paint);
    if let (1, Some(pair)) = (pairs.len(), pairs.first()) {
        table.head(&[&format!("{}, {pair}", primary.label), "ratio", &interval]);
    } else {
        table.head(&[&primary.label, "ratio", &interval]);
    }
    for (name, told) in &rows {
        match told.as_slice() {
            [] => table.plain(&format!("{name}  (nothing compared)")),
            [(_, only)] if pairs.len() == 1 => table.ratio(name, only),
            several => {
                table.plain(name);
                several.iter().for_each(|(pair, c)| table.ratio(&format!("  {pair}"), c));
            }
        }
    }
    table.text()
}

/// A table per metric and group: a row per value that was swept over.
pub(super) fn sweep(result: &LabResult, sweep: &SweepRecord, paint: Paint) -> String {
    let groups = distinct(result.cells.iter().map(|cell| cell.group.as_str()));
    let mut tables = Vec::new();
    let mut unknown = Vec::new();
    for metric in &result.metrics {
        let known = result.cells.iter().flat_map(|c| &c.variants).any(|v| v.figures.contains_key(&metric.metric));
        if !known {
            unknown.push(metric.label.as_str());
            continue;
        }
        for group in &groups {
            let cells: Vec<&CellResult> = result.cells.iter().filter(|cell| cell.group == *group).collect();
            let title = if group.is_empty() { metric.label.clone() } else { format!("{}, {group}", metric.label) };
            let mut table = paint.bold(&title) + "\n" + &swept(&cells, metric.metric, sweep, paint);
            // One stands for all: they differ in their figures only.
            let without = cells.iter().flat_map(|cell| told(cell, metric.metric)).find(|c| c.ratio.is_none());
            for line in without.iter().flat_map(|c| wrap(&format!("the first of them: {}", c.words), WIDTH)) {
                table += &(paint.dim(&line) + "\n");
            }
            tables.push(table);
        }
    }
    if !unknown.is_empty() {
        tables.push(paint.dim(&format!("Not known in any run: {}", unknown.join(", "))) + "\n");
    }
    tables.join("\n")
}

/// The comparisons of a metric.
pub(super) fn told(cell: &CellResult, metric: Metric) -> Vec<&Comparison> {
    cell.comparisons.iter().filter(|c| c.metric == metric).collect()
}

/// Why there is no ratio where there is none, each reason once. The primary metric's sentences stand elsewhere.
pub(crate) fn reasons(cell: &CellResult, result: &LabResult) -> Vec<String> {
    let Some((primary, others)) = result.metrics.split_first() else { return Vec::new() };
    let said: Vec<&str> = told(cell, primary.metric).into_iter().map(|c| c.words.as_str()).collect();
    let told = others.iter().flat_map(|m| told(cell, m.metric).into_iter().map(move |c| (m.label.as_str(), c)));
    let without = told.filter(|(_, c)| c.ratio.is_none()).map(|(label, c)| (label, c.words.as_str()));
    grouped_reasons(&said, without)
}

/// Sentences of comparisons that were not made, with their labels: one for those of the same reason, none for a reason
/// that is in what was said already.
pub(crate) fn grouped_reasons<'w>(said: &[&str], sentences: impl Iterator<Item = (&'w str, &'w str)>) -> Vec<String> {
    let reason = |words: &'w str| words.split_once(NOT_COMPARED).map(|(_, why)| why);
    let mut groups: Vec<(Vec<&str>, &str)> = Vec::new();
    for (label, words) in sentences {
        let (label, why) = reason(words).map_or(("", words), |why| (label, why));
        if said.iter().any(|said| said.ends_with(why)) {
            continue;
        }
        match groups.iter_mut().find(|(_, known)| *known == why) {
            Some((labels, _)) if labels.contains(&label) => {}
            Some((labels, _)) => labels.push(label),
            None => groups.push((vec![label], why)),
        }
    }
    let sentence = |(labels, why): (Vec<&str>, &str)| match labels.join(", ") {
        labels if labels.is_empty() => why.to_owned(),
        labels => format!("{labels} not compared: {why}"),
    };
    groups.into_iter().map(sentence).collect()
}

fn swept(cells: &[&CellResult], metric: Metric, sweep: &SweepRecord, paint: Paint) -> String {
    let names = distinct(cells.iter().flat_map(|cell| &cell.variants).map(|variant| variant.name.clone()));
    let value = |cell: &CellResult| cell.point.and_then(|point| sweep.values.get(point)).cloned().unwrap_or_default();
    let find = |cell: &CellResult, name: &str| cell.variants.iter().position(|v| v.name == name);
    let figure = |cell: &CellResult, name: &str| {
        find(cell, name).map_or_else(|| "-".into(), |at| own_figure(&cell.variants[at], metric))
    };
    let compared = |cell: &CellResult, name: &str| {
        let (base, variant) = (find(cell, &names[0])?, find(cell, name)?);
        cell.comparisons.iter().position(|c| (c.metric, c.base, c.variant) == (metric, base, variant))
    };
    if let [base, variant] = names.as_slice() {
        // All in one row.
        let mut table = Table::new(paint);
        table.head(&[&sweep.label, base, variant, &format!("{variant} / {base}"), "interval"]);
        for cell in cells {
            let before = vec![value(cell), figure(cell, base), figure(cell, variant)];
            match compared(cell, variant) {
                Some(at) => table.ratio_after(before, &cell.comparisons[at]),
                None => table.row(before),
            }
        }
        return table.text();
    }
    let mut rows = vec![[sweep.label.clone()].into_iter().chain(names.iter().cloned()).collect::<Vec<_>>()];
    let mut ratios = vec![vec![sweep.label.clone()]];
    ratios[0].extend(names.iter().skip(1).map(|name| format!("{name} / {}", names[0])));
    for cell in cells {
        rows.push([value(cell)].into_iter().chain(names.iter().map(|name| figure(cell, name))).collect());
        let each = names.iter().skip(1).map(|name| {
            compared(cell, name).map_or_else(
                || "-".into(),
                |at| {
                    let c = &cell.comparisons[at];
                    match c.ratio {
                        Some(ratio) => format!("{} ±{}  {}", times(ratio.estimate), reach(&ratio), short(c)),
                        None => short(c).to_owned(),
                    }
                },
            )
        });
        ratios.push([value(cell)].into_iter().chain(each).collect());
    }
    let mut text = headed(&within(&rows), paint);
    if names.len() > 1 {
        text += &headed(&within(&ratios), paint);
    }
    text
}

/// A table whose rows may end in a coloured verdict.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    /// A verdict after a row, by the row's number.
    words: Vec<(usize, Verdict, String)>,
    paint: Paint,
}

impl Table {
    pub(crate) fn new(paint: Paint) -> Self {
        Self { rows: Vec::new(), words: Vec::new(), paint }
    }

    /// The head, in bold.
    pub(crate) fn head(&mut self, cells: &[&str]) {
        self.rows.push(cells.iter().map(|&cell| cell.to_owned()).collect());
    }

    /// A row with nothing but its label.
    pub(crate) fn plain(&mut self, label: &str) {
        self.rows.push(vec![label.to_owned()]);
    }

    fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// A row with a ratio, its interval and its verdict.
    pub(crate) fn ratio(&mut self, label: &str, comparison: &Comparison) {
        self.ratio_after(vec![label.to_owned()], comparison);
    }

    fn ratio_after(&mut self, mut cells: Vec<String>, comparison: &Comparison) {
        let (ratio, interval) = ratio_texts(comparison);
        cells.extend([ratio, interval]);
        let mut words = short(comparison).to_owned();
        // An interval without 1, and yet no verdict: the reader wants to know why.
        let excludes_1 = comparison.ratio.is_some_and(|ratio| ratio.low > 1.0 || ratio.high < 1.0);
        if let (Verdict::Undecided, true, Some(p)) = (comparison.verdict, excludes_1, comparison.p) {
            words += &format!(" (p {p:.2})");
        }
        self.words.push((self.rows.len(), comparison.verdict, words));
        self.rows.push(cells);
    }

    /// The lines.
    pub(crate) fn text(self) -> String {
        let table = columns(0, &self.rows);
        let lines: Vec<&str> = table.lines().collect();
        let width = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
        let mut text = String::new();
        for (i, line) in lines.iter().enumerate() {
            let words = self.words.iter().find(|(row, ..)| *row == i);
            text += &match words {
                _ if i == 0 => self.paint.bold(line),
                Some((_, verdict, words)) => {
                    format!("{line:<width$}  {}", in_colour(self.paint, *verdict, words))
                }
                None => (*line).to_owned(),
            };
            text.push('\n');
        }
        text
    }
}

/// The figure of a variant with how far its interval reaches: `81,234 ±1.2 %`.
pub(crate) fn own_figure(variant: &VariantResult, metric: Metric) -> String {
    match (variant.figures.get(&metric), &variant.failed) {
        (Some(interval), _) if interval.low < interval.high => {
            format!("{} ±{}", value(metric, interval.estimate), reach(interval))
        }
        (Some(interval), _) => value(metric, interval.estimate),
        (None, Some(_)) => "failed".into(),
        (None, None) => "-".into(),
    }
}

/// A metric's value as people read it.
pub(super) fn value(metric: Metric, value: f64) -> String {
    match metric.unit() {
        Unit::PerSecond | Unit::Points => units::number(value),
        Unit::Nanoseconds => units::time(value),
        Unit::Bytes => units::bytes(value),
    }
}

/// How far an interval reaches to its farther side, as a percentage of the estimate.
fn reach(interval: &Interval) -> String {
    match interval.half_width_share() {
        share if share <= 1.0 => units::percent(share),
        // With three blocks it may be thousands, which says no more.
        _ => "> 100 %".into(),
    }
}

/// A ratio and its interval.
fn ratio_texts(comparison: &Comparison) -> (String, String) {
    match &comparison.ratio {
        Some(ratio) => (times(ratio.estimate), from_to(ratio)),
        None => ("-".into(), "-".into()),
    }
}

/// `x 1.171`.
fn times(ratio: f64) -> String {
    if ratio < 9.9995 { format!("x {ratio:.3}") } else { format!("x {}", units::number(ratio)) }
}

fn from_to(interval: &Interval) -> String {
    let number = |n: f64| if n < 9.9995 { format!("{n:.3}") } else { units::number(n) };
    format!("{} … {}", number(interval.low), number(interval.high))
}

/// The verdict in a word or two, as one says it of this metric.
fn short(comparison: &Comparison) -> &'static str {
    let metric = comparison.metric;
    // A server that takes less memory is not faster.
    let amount = metric.better() == Better::Lower && !metric.is_latency();
    match comparison.verdict {
        Verdict::Faster if amount => "less",
        Verdict::Slower if amount => "more",
        Verdict::Faster => "faster",
        Verdict::Slower => "slower",
        Verdict::Equivalent => "equivalent",
        Verdict::Undecided => "undecided",
        Verdict::Disturbed => "disturbed",
        Verdict::NotCompared => "not compared",
    }
}

/// The rows as one table, or as several where the columns do not fit beside each other; the first column is repeated.
fn within(rows: &[Vec<String>]) -> Vec<String> {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width_of = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let (mut tables, mut taken) = (Vec::new(), 1);
    while taken < count {
        let mut width = width_of(0) + 2 + width_of(taken);
        let mut end = taken + 1;
        while end < count && width + 2 + width_of(end) <= WIDTH {
            width += 2 + width_of(end);
            end += 1;
        }
        let part: Vec<Vec<String>> = rows
            .iter()
            .map(|row| row.iter().take(1).chain(row.iter().take(end).skip(taken)).cloned().collect())
            .collect();
        tables.push(columns(0, &part));
        taken = end;
    }
    tables
}

/// Tables below each other, the first line of each in bold.
fn headed(tables: &[String], paint: Paint) -> String {
    let bold = |table: &String| {
        let (head, body) = table.split_once('\n').unwrap_or((table, ""));
        paint.bold(head) + "\n" + body
    };
    tables.iter().map(bold).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_do_not_fit_go_below_with_the_names_repeated() {
        let cell = |text: &str| format!("{text:>40}");
        let rows =
            vec![vec!["v".into(), cell("a"), cell("b"), cell("c")], vec!["w".into(), cell("1"), cell("2"), cell("3")]];
        let tables = within(&rows);
        assert_eq!(tables.len(), 2, "{tables:?}");
        assert!(tables[1].starts_with("v ") && tables[1].contains("c\nw ") && !tables[1].contains('b'), "{tables:?}");
        assert!(within(&[vec!["only".into()]]).is_empty());
    }

    #[test]
    fn ratios_keep_three_digits_behind_the_point_until_ten() {
        assert_eq!(
            [times(1.1714), times(0.0123), times(9.9996), times(123.4)],
            ["x 1.171", "x 0.012", "x 10.0", "x 123"]
        );
        assert_eq!(from_to(&Interval { estimate: 5.0, low: 1.0, high: 12.34 }), "1.000 … 12.3");
    }
}
