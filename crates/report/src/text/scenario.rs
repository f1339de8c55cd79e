//! The part of a report on scenarios: score, checks, journeys, steps, timers, failures, phases.

use oroshi_bench::record::ClockRecord;
use oroshi_bench::record::scenario::{ScenarioRecord, StepRecord};
use oroshi_words::units;

use super::bench::{NAME, Page};
use crate::paint::Paint;
use crate::words::quantile;
use crate::words::scenario as words;

/// The shortest name that a table cuts a name to.
const LEAST_NAME: usize = 12;
/// The longest name in a table.
const MOST_NAME: usize = 40;
/// Rows of a table; the rest is in the other formats.
const MOST_ROWS: usize = 100;
/// Checks and failures that are listed.
const MOST_LISTED: usize = 20;
/// Transitions that are listed, per scenario.
const MOST_FLOWS: usize = 20;

/// Adds what users did. `detailed`: also how steps followed each other.
pub(super) fn add(page: &mut Page, scenario: &ScenarioRecord, detailed: bool) {
    score(page, scenario);
    checks(page, scenario);
    journeys(page, scenario);
    steps(page, ["Steps", "Step times"], &scenario.steps);
    timers(page, scenario);
    fails(page, scenario);
    if detailed {
        flows(page, scenario);
    }
    if let Some(arrivals) = words::arrivals(scenario) {
        let late = scenario.users.late > 0 || scenario.users.unbegun > 0;
        page.painted_row("Arrivals", &arrivals, if late { Paint::yellow } else { plain });
    }
    for (i, phase) in scenario.phases.iter().enumerate() {
        let paint = if phase.error.is_some() { Paint::red } else { plain };
        page.painted_row(if i == 0 { "Phases" } else { "" }, &words::phase(phase), paint);
    }
    page.line("");
}

fn plain(_: Paint, text: &str) -> String {
    text.to_owned()
}

fn score(page: &mut Page, scenario: &ScenarioRecord) {
    if let Some(score) = &scenario.score {
        let paint = if score.void.is_some() { Paint::red } else { Paint::bold };
        page.painted_row("Score", &words::score(score), paint);
        let parts = score.breakdown.iter();
        let rows = parts.map(|part| vec![part.label.clone(), units::count(part.count), words::points(part.points)]);
        named(page, &["  points for", "times", "points"], rows);
    }
    if let Some(why) = &scenario.aborted {
        page.painted_row("Aborted", &words::one_line(why, 400), Paint::red);
    }
}

fn checks(page: &mut Page, scenario: &ScenarioRecord) {
    let Some(text) = words::checks(scenario) else { return };
    let any = words::failed_checks(scenario).next().is_some();
    page.painted_row("Checks", &text, if any { Paint::red } else { plain });
    for check in words::failed_checks(scenario).take(MOST_LISTED) {
        let all = check.passed + check.failed;
        let failed = format!("failed {} of {}", units::count(check.failed), units::count(all));
        listed(page, &check.name, &format!("{failed} ({})", words::share(check.failed, all)));
        check.samples.first().iter().for_each(|sample| detail(page, &words::sample(sample)));
    }
    rest(page, words::failed_checks(scenario).count(), MOST_LISTED);
}

fn fails(page: &mut Page, scenario: &ScenarioRecord) {
    if scenario.fails.is_empty() {
        return;
    }
    page.painted_row("Failed", "journeys, by the reason in the script", Paint::red);
    for fail in scenario.fails.iter().take(MOST_LISTED) {
        listed(page, &fail.reason, &units::plural(fail.count, "time"));
        fail.samples.first().iter().for_each(|sample| detail(page, &words::sample(sample)));
    }
    rest(page, scenario.fails.len(), MOST_LISTED);
}

/// Adds a name and a short text after it. A long name gives way.
fn listed(page: &mut Page, name: &str, text: &str) {
    let room = page.width.saturating_sub(4 + text.chars().count());
    if room >= LEAST_NAME {
        page.line(&format!("  {}  {text}", words::one_line(name, room)));
    } else {
        page.line(&format!("  {}", words::one_line(name, page.width.saturating_sub(2))));
        page.line(&format!("    {text}"));
    }
}

/// Adds a line that is cut off at the edge.
fn detail(page: &mut Page, text: &str) {
    let text = words::one_line(text, page.width.saturating_sub(4).max(1));
    page.line(&format!("    {}", page.paint.dim(&text)));
}

/// Says how many were left out.
fn rest(page: &mut Page, all: usize, shown: usize) {
    if all > shown {
        let count = units::count((all - shown) as u64);
        page.wrapped(&format!("  and {count} more: --format json has all"), Paint::dim);
    }
}

fn journeys(page: &mut Page, scenario: &ScenarioRecord) {
    let rows = scenario.journeys.iter().map(|journey| {
        let counts = [journey.begun, journey.completed, journey.failed, journey.cut_off].map(units::count);
        std::iter::once(journey.name.clone()).chain(counts).chain(at(&journey.duration, &[0.5, 0.95, 0.99])).collect()
    });
    named(page, &["Journeys", "begun", "completed", "failed", "cut off", "p50", "p95", "p99"], rows);
}

/// Adds requests by step or by URL: in one table on a wide terminal, in two on a narrow one. `titles`: of the counts,
/// and of a table of times alone.
pub(super) fn steps(page: &mut Page, titles: [&str; 2], steps: &[StepRecord]) {
    let figures = |step: &StepRecord| {
        let counts = [units::count(step.count), units::number(step.per_s), units::count(step.errors)];
        counts.into_iter().chain((step.cached > 0).then(|| units::count(step.cached))).collect::<Vec<_>>()
    };
    let cached = steps.iter().any(|step| step.cached > 0);
    let counts: Vec<Vec<String>> = steps
        .iter()
        .map(|step| {
            let mut figures = figures(step);
            if cached && step.cached == 0 {
                figures.push("-".into());
            }
            figures
        })
        .collect();
    let times: Vec<Vec<String>> = steps
        .iter()
        .map(|step| at(&step.service, &[0.5, 0.99]).chain(at(&step.response, &[0.5, 0.99, 1.0])).collect())
        .collect();
    let mut count_names = vec!["requests", "per s", "errors"];
    count_names.extend(cached.then_some("cached"));
    let time_names = ["service p50", "p99", "response p50", "p99", "max"];
    let with_names = |figures: Vec<Vec<String>>| {
        let names = steps.iter().map(|step| step.name.clone());
        names.zip(figures).map(|(name, figures)| [vec![name], figures].concat()).collect::<Vec<_>>()
    };
    let both: Vec<Vec<String>> =
        counts.iter().zip(&times).map(|(one, other)| [&one[..], &other[..]].concat()).collect();
    let head = [&titles[..1], &count_names, &time_names].concat();
    if widths(&head, &both) + MOST_NAME / 2 <= page.width {
        named(page, &head, with_names(both));
    } else {
        named(page, &[&titles[..1], &count_names].concat(), with_names(counts));
        named(page, &[&titles[1..], &time_names].concat(), with_names(times));
    }
}

fn timers(page: &mut Page, scenario: &ScenarioRecord) {
    let rows = scenario.timers.iter().map(|timer| {
        let summary = &timer.time.summary;
        let count = units::count(summary.count + summary.censored);
        [timer.name.clone(), count].into_iter().chain(at(&timer.time, &[0.5, 0.95, 0.99, 1.0])).collect()
    });
    named(page, &["Timers", "count", "p50", "p95", "p99", "max"], rows);
}

/// Adds how often one step followed another.
fn flows(page: &mut Page, scenario: &ScenarioRecord) {
    let end =
        |name: &str, other: &str| if name.is_empty() { other.to_owned() } else { words::one_line(name, MOST_NAME) };
    for journey in &scenario.journeys {
        let flows: Vec<_> = scenario.flows.iter().filter(|flow| flow.scenario == journey.name).collect();
        let rows = flows.iter().take(MOST_FLOWS).map(|flow| {
            let left: u64 = flows.iter().filter(|other| other.from == flow.from).map(|other| other.count).sum();
            let name = format!("{} -> {}", end(&flow.from, "begin"), end(&flow.to, "end"));
            vec![name, units::count(flow.count), words::share(flow.count, left)]
        });
        let head = format!("Flow of {}", words::one_line(&journey.name, LEAST_NAME));
        named_up_to(page, &[&head, "times", "of all"], rows, 2 * MOST_NAME);
        rest(page, flows.len(), MOST_FLOWS);
    }
}

/// Returns quantiles of a clock.
fn at<'a>(clock: &'a ClockRecord, quantiles: &'a [f64]) -> impl Iterator<Item = String> + use<'a> {
    quantiles.iter().map(|q| quantile(clock, *q))
}

/// Returns the width of the columns beside the names.
fn widths(head: &[&str], figures: &[Vec<String>]) -> usize {
    let width = |(i, name): (usize, &&str)| {
        let cells = figures.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count());
        2 + cells.max().unwrap_or(0).max(name.chars().count())
    };
    head[1..].iter().enumerate().map(width).sum()
}

fn named(page: &mut Page, head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
    named_up_to(page, head, rows, MOST_NAME);
}

/// Adds a table whose first column has names, which it cuts so that the table fits. Adds nothing without rows.
fn named_up_to(page: &mut Page, head: &[&str], rows: impl IntoIterator<Item = Vec<String>>, longest: usize) {
    let rows: Vec<Vec<String>> = rows.into_iter().collect();
    if rows.is_empty() {
        return;
    }
    let figures: Vec<Vec<String>> = rows.iter().map(|row| row[1..].to_vec()).collect();
    let room = page.width.saturating_sub(widths(head, &figures) + 2);
    // Without room for names, the table is taken apart, and a name has a line of its own.
    let room = if room < LEAST_NAME { page.width.saturating_sub(4) } else { room };
    let name = |name: &str| format!("  {}", words::one_line(name, room.min(longest)));
    // Aligned with the names of other rows where the names are short.
    let mut table = vec![head.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()];
    table[0][0] = format!("{:<width$}", table[0][0], width = NAME);
    let shown = rows.iter().take(MOST_ROWS);
    table.extend(shown.map(|row| [vec![name(&row[0])], row[1..].to_vec()].concat()));
    page.table(&table);
    rest(page, rows.len(), MOST_ROWS);
}

#[cfg(test)]
mod tests {
    use oroshi_bench::Record;

    use crate::paint::Paint;
    use crate::sample::scenario as sample;
    use crate::text::bench;

    fn text(record: &Record, width: usize) -> String {
        bench(record, true, Paint::PLAIN, width)
    }

    #[test]
    fn score_checks_journeys_and_steps_come_first() {
        let text = bench(&sample::shop(), false, Paint::PLAIN, 80);
        assert_eq!(text, include_str!("golden/shop.txt"), "\n{text}");
    }

    #[test]
    fn a_void_score_says_why_and_arrivals_how_late_they_were() {
        let text = text(&sample::void(), 120);
        assert_eq!(text, include_str!("golden/shop-void.txt"), "\n{text}");
    }

    #[test]
    fn every_sample_fits_and_nothing_in_it_steers_the_terminal() {
        for record in
            [sample::shop(), sample::void(), sample::idle(), sample::hostile(), sample::chain(1), sample::chain(60)]
        {
            for width in [40, 60, 80, 110, 200] {
                let text = text(&record, width);
                // Long words in wrapped texts may stick out: the hostile text has two.
                let breaks = |line: &&str| !["alert('x')", "a-name-without"].iter().any(|word| line.contains(word));
                let long: Vec<_> = text.lines().filter(|line| line.chars().count() > width).filter(breaks).collect();
                assert!(long.is_empty(), "{width}: {long:#?}");
                assert!(!text.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}'), "{text}");
                assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
            }
        }
        assert!(text(&sample::idle(), 80).contains("Aborted     no accounts are left"));
    }

    #[test]
    fn a_long_list_says_how_many_it_leaves_out() {
        let text = text(&sample::chain(130), 80);
        assert!(text.contains("and 30 more"), "{text}");
        assert_eq!(text.matches("GET /part/99/of/the/shop").count(), 2, "in both tables: {text}");
    }
}
