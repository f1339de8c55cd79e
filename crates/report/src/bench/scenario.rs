//! Scenarios: score, checks with samples, journeys, steps, timers.

use maud::{Markup, html};
use oroshi_bench::Record;
use oroshi_bench::record::ClockRecord;
use oroshi_bench::record::scenario::{SampleRecord, ScenarioRecord, StepRecord};
use oroshi_stats::compare::Interval;
use oroshi_words::units;

use super::flow;
use crate::chart::Figure;
use crate::chart::strip::Rows;
use crate::figure;
use crate::page::{Cell, Section, cell, facts, table};
use crate::words::scenario as words;

/// The longest name.
const MOST_NAME: usize = 120;
/// The longest part of a sample, characters.
const MOST_SAMPLE: usize = 4_000;
/// Rows of a table.
const MOST_ROWS: usize = 500;

/// Renders what users did, as sections of a page.
pub(super) fn sections(scenario: &ScenarioRecord) -> Vec<Section> {
    vec![
        Section { id: "score", title: "Score and checks", body: outcome(scenario) },
        Section { id: "journeys", title: "Journeys", body: journeys(scenario) },
        Section { id: "steps", title: "Steps", body: steps(scenario) },
    ]
}

/// Renders that the score is void, or that the script ended the run.
pub(super) fn alarm(record: &Record) -> Markup {
    let aborted = record.scenario.as_ref().and_then(|scenario| scenario.aborted.as_deref());
    let (what, why) = if aborted.is_some() { ("ABORTED", aborted) } else { ("SCORE VOID", words::void(record)) };
    html! {
        @if let Some(why) = why { p.grade.bad { strong { (what) } ": " (words::one_line(why, MOST_SAMPLE)) } }
    }
}

/// Returns the headline figures: name, value, explanation.
pub(super) fn tiles(scenario: &ScenarioRecord) -> Vec<(&'static str, String, String)> {
    let mut tiles = Vec::new();
    if let Some(score) = &scenario.score {
        let formula = if score.formula { "by the script’s formula" } else { "the sum of all points" };
        tiles.push(match score.void {
            Some(_) => ("score", "void".to_owned(), "see why above".to_owned()),
            None => ("score", words::points(score.value), formula.to_owned()),
        });
    }
    let (passed, all) = scenario.checks_passed();
    if all > 0 {
        let failed = units::count(all - passed);
        let of = format!("{failed} of {} failed", units::count(all));
        tiles.push(("checks passed", words::share(passed, all).replace(' ', "\u{a0}"), of));
    }
    let completed = words::journeys(scenario, |journey| journey.completed);
    let failed = words::journeys(scenario, |journey| journey.failed);
    let text = if failed == 0 { "none failed".to_owned() } else { format!("{} failed", units::count(failed)) };
    tiles.push(("journeys", units::count(completed), text));
    tiles
}

fn name(text: &str) -> Cell {
    cell(words::one_line(text, MOST_NAME))
}

fn prose(text: impl AsRef<str>) -> Cell {
    html! { span.words { (text.as_ref()) } }
}

fn quantile(clock: &ClockRecord, q: f64) -> String {
    figure::quantile_value(clock.histogram.quantile(q))
}

/// Renders a table of at most [`MOST_ROWS`], and how many rows it lacks.
fn rows<R: AsRef<[Cell]>>(label: &str, head: &[&str], rows: impl ExactSizeIterator<Item = R>) -> Markup {
    let left = rows.len().saturating_sub(MOST_ROWS);
    html! {
        (table(label, head, rows.take(MOST_ROWS)))
        @if left > 0 { p.small { "And " (units::count(left as u64)) " more, which the JSON file has." } }
    }
}

fn outcome(scenario: &ScenarioRecord) -> Markup {
    html! {
        @match &scenario.score {
            Some(score) => {
                h3 { "Score" }
                p { (words::score(score)) }
                @if !score.breakdown.is_empty() {
                    @let each = score.breakdown.iter();
                    @let figures = |count: u64, sum: f64| [units::count(count), words::points(sum)].map(cell);
                    @let each = each.map(|part| {
                        let [count, sum] = figures(part.count, part.points);
                        [name(&part.label), count, sum]
                    });
                    (rows("Points by label", &["points for", "times", "points"], each))
                }
            }
            None => p.none { "The script awards no points." }
        }
        h3 { "Checks" }
        (checks(scenario))
        @if !scenario.fails.is_empty() {
            h3 { "Failed journeys, by reason" }
            @let each = scenario.fails.iter();
            @let each = each.map(|fail| [name(&fail.reason), cell(units::count(fail.count))]);
            (rows("Failures by reason", &["reason", "times"], each))
            @for fail in scenario.fails.iter().take(MOST_ROWS) {
                (samples(&fail.reason, &units::plural(fail.count, "time"), &fail.samples, false))
            }
        }
        (phases(scenario))
    }
}

fn checks(scenario: &ScenarioRecord) -> Markup {
    let Some(text) = words::checks(scenario) else {
        return html! { p.none { "The script makes no checks." } };
    };
    let each = scenario.checks.iter().map(|check| {
        let all = check.passed + check.failed;
        let failed = units::count(check.failed);
        let failed = html! { @if check.failed > 0 { strong { (failed) } } @else { (failed) } };
        [name(&check.name), cell(units::count(check.passed)), failed, cell(words::share(check.passed, all))]
    });
    html! {
        p { (text) "." }
        (rows("Checks by name", &["check", "passed", "failed", "share passed"], each))
        @for (i, check) in words::failed_checks(scenario).take(MOST_ROWS).enumerate() {
            @let all = check.passed + check.failed;
            @let failed = format!("failed {} of {}", units::count(check.failed), units::count(all));
            (samples(&check.name, &failed, &check.samples, i == 0))
        }
    }
}

/// Renders samples that the reader can unfold; `open`: the first one is unfolded.
fn samples(name: &str, what: &str, samples: &[SampleRecord], open: bool) -> Markup {
    let part = |what: &str, text: &str| {
        let text = text.trim_end();
        html! {
            @if !text.is_empty() {
                p.small { (what) }
                pre.sample { (several_lines(text)) }
            }
        }
    };
    html! {
        @if !samples.is_empty() {
            details.failed open[open] {
                summary {
                    strong { (words::one_line(name, MOST_NAME)) } " " (what) ": "
                    (units::plural(samples.len() as u64, "sample"))
                }
                @for sample in samples {
                    div.failure {
                        p { (words::origin(sample)) }
                        (part("Request", &sample.request))
                        (part("Response", &sample.head))
                        (part("Beginning of its body", &sample.body))
                    }
                }
            }
        }
    }
}

/// Returns text in lines, each of which steers nothing, of a bounded length.
fn several_lines(text: &str) -> String {
    let mut left = MOST_SAMPLE;
    let mut lines = Vec::new();
    for line in text.lines() {
        let line = words::one_line(line, left);
        left = left.saturating_sub(line.chars().count() + 1);
        lines.push(line);
        if left == 0 {
            lines.push("…".into());
            break;
        }
    }
    lines.join("\n")
}

fn phases(scenario: &ScenarioRecord) -> Markup {
    let each = scenario.phases.iter().map(|phase| {
        let error = phase.error.as_deref().map(|error| words::one_line(error, MOST_SAMPLE));
        let what = html! { @match error { Some(error) => span.words { strong { (error) } }, None => "done" } };
        [name(&phase.name), cell(figure::time(phase.elapsed_s * 1e9)), what]
    });
    html! {
        h3 { "Users and phases" }
        (facts([("Arrivals", words::arrivals(scenario)), ("Seed", Some(scenario.seed.to_string()))]))
        @if !scenario.phases.is_empty() { (rows("Phases beside the load", &["phase", "took", "outcome"], each)) }
    }
}

fn journeys(scenario: &ScenarioRecord) -> Markup {
    if scenario.journeys.is_empty() {
        return html! { p.none { "No journey began." } };
    }
    let head = ["scenario", "weight", "begun", "completed", "failed", "cut off", "p50", "p95", "p99", "max"];
    let each = scenario.journeys.iter().map(|journey| {
        let counts = [journey.begun, journey.completed, journey.failed, journey.cut_off].map(units::count);
        let times = [0.5, 0.95, 0.99, 1.0].map(|q| quantile(&journey.duration, q));
        let first = [name(&journey.name), cell(units::number(journey.weight))];
        first.into_iter().chain(counts.into_iter().chain(times).map(cell)).collect::<Vec<_>>()
    });
    html! {
        (rows("Journeys by scenario", &head, each))
        (flow::charts(scenario))
    }
}

fn steps(scenario: &ScenarioRecord) -> Markup {
    if scenario.steps.is_empty() {
        return html! { p.none { "No request was sent." } };
    }
    let timers = scenario.timers.iter().map(|timer| {
        let count = timer.time.summary.count + timer.time.summary.censored;
        let times = [0.5, 0.95, 0.99, 1.0].map(|q| quantile(&timer.time, q));
        [name(&timer.name), cell(units::count(count))].into_iter().chain(times.map(cell)).collect::<Vec<_>>()
    });
    html! {
        (requests_by("step", "Steps", &scenario.steps))
        @if !scenario.timers.is_empty() {
            h3 { "Timers" }
            (rows("Blocks that the script times", &["timer", "count", "p50", "p95", "p99", "max"], timers))
        }
    }
}

/// Renders requests by step or by URL: response times as a chart, and all figures as a table.
pub(super) fn requests_by(what: &str, caption: &str, steps: &[StepRecord]) -> Markup {
    let head = [
        what,
        "requests",
        "per second",
        "errors",
        "cached",
        "service p50",
        "p99",
        "response p50",
        "p99",
        "max",
        "statuses",
    ];
    let each = steps.iter().map(|step| {
        let errors = html! { @if step.errors > 0 { strong { (units::count(step.errors)) } } @else { "0" } };
        let figures = [quantile(&step.service, 0.5), quantile(&step.service, 0.99)];
        let response = [0.5, 0.99, 1.0].map(|q| quantile(&step.response, q));
        let first = [name(&step.name), cell(units::count(step.count)), cell(units::number(step.per_s)), errors];
        let cached = cell(units::count(step.cached));
        first
            .into_iter()
            .chain([cached])
            .chain(figures.into_iter().chain(response).map(cell))
            .chain([prose(outcomes(step))])
            .collect::<Vec<_>>()
    });
    html! {
        (percentiles(what, steps))
        (rows(caption, &head, each))
    }
}

/// Describes statuses and failures: `200 x 1,321, 500 x 12, timeout x 3`.
fn outcomes(step: &StepRecord) -> String {
    let statuses = step.statuses.iter().map(|(status, n)| format!("{status} × {}", units::count(*n)));
    let failures = step.failures.iter().map(|(failure, n)| format!("{failure} × {}", units::count(*n)));
    statuses.chain(failures).collect::<Vec<_>>().join(", ")
}

/// Renders a row per step or URL: the median response time, and a line to the 99th percentile.
fn percentiles(what: &str, steps: &[StepRecord]) -> Markup {
    let at = |step: &StepRecord, q| step.response.histogram.quantile(q).map(|quantile| quantile.value() as f64);
    let spread =
        |step: &StepRecord| Some(Interval { estimate: at(step, 0.5)?, low: at(step, 0.01)?, high: at(step, 0.99)? });
    let measured: Vec<(&StepRecord, Interval)> =
        steps.iter().take(MOST_ROWS).filter_map(|step| Some((step, spread(step)?))).collect();
    if measured.is_empty() {
        return html! { p.none { "No response time was measured." } };
    }
    let lanes = Rows::of_times(measured.iter().flat_map(|(_, spread)| [spread.low, spread.high]).collect::<Vec<_>>());
    let chart = html! {
        div.rows.steps {
            @for (step, spread) in &measured {
                @let [median, p95, p99] = [0.5, 0.95, 0.99].map(|q| quantile(&step.response, q));
                @let text = words::one_line(&step.name, MOST_NAME);
                div.row {
                    div.name { (text) " " span.small { (units::count(step.count)) } }
                    (lanes.row(0, spread, &format!("{text}: median {median}, 99 % within {p99}")))
                    div.value { strong { (median) } " " span.small { "p95 " (p95) } " " span.small { "p99 " (p99) } }
                }
            }
            div.row.foot { div.name {} (lanes.axis()) div.value {} }
        }
    };
    let note = html! {
        "Response time of each " (what) ": the median, with the line from the 1st to the 99th percentile."
    };
    Figure { title: &format!("Response time by {what}"), note, key: Vec::new(), chart, numbers: None }.draw()
}
