//! The flow of a scenario: one row per step, and lines from each step to those that follow it.
//!
//! The drawing has a fixed width and one height per row, so it needs no script and fits a phone. Lines to a later row
//! bend to the left, lines to an earlier one to the right; their width is the share of the most frequent transition.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};
use oroshi_bench::record::scenario::{FlowRecord, ScenarioRecord};
use oroshi_words::units;

use crate::chart::Figure;
use crate::page::{cell, table};
use crate::words::scenario as words;

/// Height of a row, pixels. The style sheet has it too.
const ROW: usize = 40;
/// Width of the drawing, pixels; the line of the steps is at [`SPINE`].
const WIDTH: usize = 160;
const SPINE: usize = 96;
/// The widest and the narrowest line.
const WIDEST: f64 = 16.0;
const NARROWEST: f64 = 1.2;
/// Limits per scenario: rows, lines, and the charts of a page.
const MOST_STEPS: usize = 200;
const MOST_LINES: usize = 300;
const MOST_CHARTS: usize = 20;
/// Rows of the table.
const MOST_ROWS: usize = 200;
/// The longest name.
const MOST_NAME: usize = 120;

/// Renders a chart per scenario.
pub(super) fn charts(scenario: &ScenarioRecord) -> Markup {
    let left = scenario.journeys.len().saturating_sub(MOST_CHARTS);
    html! {
        @for journey in scenario.journeys.iter().take(MOST_CHARTS) {
            @let flows: Vec<&FlowRecord> = scenario.flows.iter().filter(|flow| flow.scenario == journey.name).collect();
            @if !flows.is_empty() { (chart(&journey.name, &flows)) }
        }
        @if left > 0 { p.small { "And " (units::plural(left as u64, "scenario")) " more, which the JSON file has." } }
    }
}

fn chart(scenario: &str, flows: &[&FlowRecord]) -> Markup {
    let graph = Graph::of(flows);
    let title = format!("Flow of {}", words::one_line(scenario, MOST_NAME));
    let height = graph.rows.len() * ROW;
    let label =
        format!("{title}: {} and how often they follow each other", units::plural(graph.steps() as u64, "step"));
    let chart = html! {
        div.flow {
            svg.frame.lines role="img" aria-label=(label) width=(WIDTH) height=(height)
                viewBox={ "0 0 " (WIDTH) " " (height) } {
                @for line in &graph.lines {
                    @let width = format!("{:.1}", line.width);
                    path class={ "stream " (line.class()) } d=(line.path()) stroke-width=(width) {
                        title { (line.words(&graph)) }
                    }
                }
                @for row in 0..graph.rows.len() { circle.stop cx=(SPINE) cy=(middle(row)) r="4.5" {} }
            }
            ol.stops {
                @for row in &graph.rows {
                    li { span.step.ends[row.is_end] { (row.name) } span.small { (units::count(row.count)) } }
                }
            }
        }
    };
    let note = html! {
        "Wider lines are more frequent. Lines on the left lead down, those on the right back up; a straight one leads \
         to the next row."
        @if graph.left_out > 0 { " " (units::plural(graph.left_out as u64, "rare transition")) " not drawn." }
    };
    Figure { title: &title, note, key: Vec::new(), chart, numbers: Some(numbers(flows)) }.draw()
}

fn middle(row: usize) -> usize {
    row * ROW + ROW / 2
}

/// Returns the name of a step, or of the beginning or the end of a journey.
fn shown(name: &str, end: &str) -> String {
    if name.is_empty() { end.to_owned() } else { words::one_line(name, MOST_NAME) }
}

fn numbers(flows: &[&FlowRecord]) -> Markup {
    let left = sums(flows, |flow| &flow.from);
    let rows = flows.iter().take(MOST_ROWS).map(|flow| {
        let share = words::share(flow.count, left.get(flow.from.as_str()).copied().unwrap_or(0));
        [cell(shown(&flow.from, "begin")), cell(shown(&flow.to, "end")), cell(units::count(flow.count)), cell(share)]
    });
    html! {
        (table("Transitions", &["after", "came", "times", "of all after it"], rows))
        @if flows.len() > MOST_ROWS {
            @let left = units::count((flows.len() - MOST_ROWS) as u64);
            p.small { "And " (left) " more, which the JSON file has." }
        }
    }
}

fn sums<'f>(flows: &[&'f FlowRecord], name: impl Fn(&'f FlowRecord) -> &'f String) -> BTreeMap<&'f str, u64> {
    let mut sums = BTreeMap::new();
    for flow in flows {
        *sums.entry(name(flow).as_str()).or_insert(0) += flow.count;
    }
    sums
}

/// What is drawn: rows from the beginning of a journey to its end, and lines between them.
#[derive(Debug)]
struct Graph {
    rows: Vec<Row>,
    /// The widest first, so that narrow ones lie above them.
    lines: Vec<Line>,
    /// Transitions without a line.
    left_out: usize,
}

#[derive(Debug)]
struct Row {
    name: String,
    /// How often journeys came here; of the beginning, how often they began.
    count: u64,
    is_end: bool,
}

#[derive(Debug)]
struct Line {
    from: usize,
    to: usize,
    count: u64,
    /// The share of all that left `from`.
    share: String,
    width: f64,
}

impl Graph {
    fn of(flows: &[&FlowRecord]) -> Self {
        let arrived = sums(flows, |flow| &flow.to);
        let left = sums(flows, |flow| &flow.from);
        let order = order(flows);
        let mut places: BTreeMap<&str, usize> =
            order.iter().enumerate().map(|(place, name)| (*name, place + 1)).collect();
        let end = order.len() + 1;
        // The beginning is the first row, the end the last: both have an empty name.
        let count = |sums: &BTreeMap<&str, u64>, name: &str| sums.get(name).copied().unwrap_or(0);
        let mut rows = vec![Row { name: "begin".into(), count: count(&left, ""), is_end: true }];
        rows.extend(order.iter().map(|name| Row {
            name: shown(name, ""),
            count: count(&arrived, name).max(count(&left, name)),
            is_end: false,
        }));
        rows.push(Row { name: "end".into(), count: count(&arrived, ""), is_end: true });
        places.insert("", 0);
        let most = flows.iter().map(|flow| flow.count).max().unwrap_or(1).max(1) as f64;
        let mut lines: Vec<Line> = flows
            .iter()
            .filter_map(|flow| {
                let to = if flow.to.is_empty() { end } else { *places.get(flow.to.as_str())? };
                Some(Line {
                    from: *places.get(flow.from.as_str())?,
                    to,
                    count: flow.count,
                    share: words::share(flow.count, count(&left, &flow.from)),
                    width: (WIDEST * flow.count as f64 / most).max(NARROWEST),
                })
            })
            .collect();
        lines.sort_by_key(|line| std::cmp::Reverse(line.count));
        lines.truncate(MOST_LINES);
        Self { rows, left_out: flows.len() - lines.len(), lines }
    }

    fn steps(&self) -> usize {
        self.rows.len() - 2
    }
}

/// Returns the steps from the first to the last: after each the most frequent one that follows and has no place yet,
/// else the one that follows any of those before it most often.
fn order<'f>(flows: &[&'f FlowRecord]) -> Vec<&'f str> {
    let names = flows.iter().flat_map(|flow| [flow.from.as_str(), flow.to.as_str()]);
    let mut all: BTreeSet<&str> = names.filter(|name| !name.is_empty()).collect();
    let mut after: BTreeMap<&str, Vec<(&str, u64)>> = BTreeMap::new();
    for flow in flows {
        if !flow.to.is_empty() {
            after.entry(flow.from.as_str()).or_default().push((&flow.to, flow.count));
        }
    }
    // How often steps with a place lead to one without.
    let mut reached: BTreeMap<&str, u64> = BTreeMap::new();
    let mut order: Vec<&str> = Vec::new();
    let mut last = "";
    while !all.is_empty() && order.len() < MOST_STEPS {
        let next = after.get(last).map(Vec::as_slice).unwrap_or_default();
        for (name, count) in next.iter().filter(|(name, _)| all.contains(name)) {
            *reached.entry(name).or_insert(0) += count;
        }
        let most = |found: Option<(&'f str, u64)>| found.map(|(name, _)| name);
        let follows = next.iter().filter(|(name, _)| all.contains(name)).copied().max_by_key(|(_, count)| *count);
        let any = || reached.iter().map(|(name, count)| (*name, *count)).max_by_key(|(_, count)| *count);
        let Some(name) = most(follows).or_else(|| most(any())).or_else(|| all.first().copied()) else { break };
        all.remove(name);
        reached.remove(name);
        order.push(name);
        last = name;
    }
    order
}

impl Line {
    fn class(&self) -> &'static str {
        if self.to > self.from { "s0" } else { "s1" }
    }

    fn path(&self) -> String {
        let (from, to) = (middle(self.from), middle(self.to));
        if self.to == self.from + 1 {
            return format!("M{SPINE} {from}V{to}");
        }
        if self.to == self.from {
            let (high, low) = (from - ROW / 3, from + ROW / 3);
            return format!("M{SPINE} {from}C{0} {high} {0} {low} {SPINE} {from}", SPINE + 40);
        }
        // Longer lines reach further out, within the drawing: a curve reaches three quarters of its handles.
        let rows = self.to.abs_diff(self.from) as f64;
        let out = |room: f64| (room * (1.0 - 1.0 / (1.0 + rows / 3.0)) * 4.0 / 3.0).round();
        let x = if self.to > self.from {
            SPINE as f64 - out(SPINE as f64 - WIDEST / 2.0)
        } else {
            SPINE as f64 + out((WIDTH - SPINE) as f64 - WIDEST / 2.0)
        };
        format!("M{SPINE} {from}C{x} {from} {x} {to} {SPINE} {to}")
    }

    fn words(&self, graph: &Graph) -> String {
        let name = |row: usize| graph.rows[row].name.as_str();
        format!("{} → {}: {} ({})", name(self.from), name(self.to), units::count(self.count), self.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(from: &str, to: &str, count: u64) -> FlowRecord {
        FlowRecord { scenario: "s".into(), from: from.into(), to: to.into(), count }
    }

    fn graph(flows: &[FlowRecord]) -> Graph {
        Graph::of(&flows.iter().collect::<Vec<_>>())
    }

    #[test]
    fn rows_follow_the_most_frequent_way_from_begin_to_end() {
        let graph = graph(&[
            flow("", "top", 10),
            flow("top", "rare", 1),
            flow("top", "item", 9),
            flow("item", "cart", 3),
            flow("item", "top", 4),
            flow("cart", "", 3),
            flow("rare", "", 1),
            flow("item", "", 2),
        ]);
        let names: Vec<_> = graph.rows.iter().map(|row| (row.name.as_str(), row.count)).collect();
        assert_eq!(names, [("begin", 10), ("top", 14), ("item", 9), ("cart", 3), ("rare", 1), ("end", 6)]);
        assert_eq!((graph.lines.len(), graph.left_out, graph.steps()), (8, 0, 4));
        let back = graph.lines.iter().find(|line| line.to < line.from).unwrap();
        assert_eq!((back.class(), &*back.words(&graph)), ("s1", "item → top: 4 (44.45 %)"));
        assert!((graph.lines[0].width - WIDEST).abs() < 1e-9 && graph.lines[7].width >= NARROWEST);
    }

    #[test]
    fn lines_stay_within_the_drawing() {
        for (from, to) in [(0, 1), (0, 200), (200, 0), (3, 3), (1, 0), (0, 2)] {
            let line = Line { from, to, count: 1, share: String::new(), width: WIDEST };
            let path = line.path();
            let handle = path.split('C').nth(1).map(|rest| rest.split(' ').next().unwrap().parse::<f64>().unwrap());
            if let Some(x) = handle {
                // The middle of the curve.
                let reach = SPINE as f64 + (x - SPINE as f64) * 0.75;
                assert!(reach >= WIDEST / 2.0 - 1.0 && reach <= WIDTH as f64 - WIDEST / 2.0 + 1.0, "{path}");
            }
        }
    }

    #[test]
    fn nothing_flows_and_steps_without_a_beginning_have_a_place() {
        assert_eq!(graph(&[]).rows.len(), 2);
        let graph = graph(&[flow("a", "b", 1), flow("b", "a", 1)]);
        assert_eq!((graph.rows.len(), graph.lines.len()), (4, 2));
    }

    #[test]
    fn a_hundred_thousand_transitions_cost_a_bounded_page() {
        let flows: Vec<FlowRecord> =
            (0..320).flat_map(|i| (0..320).map(move |j| flow(&format!("s{i}"), &format!("s{j}"), 1))).collect();
        let graph = graph(&flows);
        assert_eq!((graph.rows.len(), graph.lines.len()), (MOST_STEPS + 2, MOST_LINES));
        assert_eq!(graph.left_out, flows.len() - MOST_LINES);
    }
}
