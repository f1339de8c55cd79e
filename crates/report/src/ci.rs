//! Results of comparisons for continuous integration: Markdown for summaries and comments, GitHub's annotations,
//! JUnit's XML.
//!
//! All text comes from names, commands and servers. Each format escapes it, so that it can neither begin a command nor
//! close an element.

pub mod junit;

use std::fmt::Write as _;

use oroshi_bench::Record;
use oroshi_bench::record::{Condition, ConditionOutcome};
use oroshi_lab::LabResult;
use oroshi_lab::result::CellResult;
use oroshi_stats::compare::Verdict;
use oroshi_words::units;

use crate::text::{cell_ratios, how, own_figure, reasons};
use crate::words::{headline, machine, push};
use junit::{Case, Outcome, Suite};

/// A verdict on the primary metric, for an annotation or a test case.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The cell: `kept connections`. Empty if there is one only.
    pub place: String,
    /// The pair, `new / old`; beside a saved result the set-up.
    pub pair: String,
    /// The verdict.
    pub verdict: Verdict,
    /// The verdict as a sentence.
    pub words: String,
    /// Whether the run fails by it (`--fail-if`).
    pub fails: bool,
}

impl Finding {
    /// Returns `kept connections: new / old`.
    #[must_use]
    pub fn name(&self) -> String {
        placed(&self.place, &self.pair)
    }

    /// Returns the sentence, with the cell before it.
    #[must_use]
    pub fn sentence(&self) -> String {
        placed(&self.place, &self.words)
    }
}

/// Puts a cell's name, unless it is empty, before words.
#[must_use]
pub fn placed(cell: &str, words: &str) -> String {
    if cell.is_empty() { words.to_owned() } else { format!("{cell}: {words}") }
}

/// Writes Markdown, as GitHub and GitLab read it: the verdicts, the figures and ratios in tables, and the method,
/// folded.
#[must_use]
pub fn markdown(result: &LabResult, findings: &[Finding]) -> String {
    let mut text = format!("### {}\n\n", escaped(&result.title));
    for finding in findings {
        let place = if finding.place.is_empty() { String::new() } else { format!("{}: ", escaped(&finding.place)) };
        line(&mut text, &format!("- {place}**{}**", escaped(&finding.words)));
    }
    for (name, why) in failures(result) {
        line(&mut text, &format!("- {}: **failed**: {}", escaped(&name), escaped(&why)));
    }
    for skipped in &result.skipped {
        line(&mut text, &format!("- {}: skipped: {}", escaped(&skipped.name), escaped(&skipped.why)));
    }
    for cell in &result.cells {
        let name = result.cell_name(cell);
        if !name.is_empty() {
            line(&mut text, &format!("\n#### {}", escaped(&name)));
        }
        text.push('\n');
        figures(&mut text, result, cell);
        text.push('\n');
        ratios(&mut text, result, cell);
        for reason in reasons(cell, result) {
            line(&mut text, &format!("\n{}", escaped(&reason)));
        }
    }
    text.push_str("\n<details><summary>Method</summary>\n\n");
    line(&mut text, &escaped(&how(result)));
    for warning in &result.warnings {
        line(&mut text, &format!("\nWarning: {}", escaped(warning)));
    }
    line(&mut text, &format!("\n{}", escaped(&machine(&result.environment))));
    if !result.rerun.is_empty() {
        let command = shell_words::join(&result.rerun);
        // A fence longer than any in the text.
        let fence = "`".repeat(longest_run(&command, '`').max(2) + 1);
        line(&mut text, &format!("\n{fence}sh\n{command}\n{fence}"));
    }
    text.push_str("\n</details>\n");
    text
}

/// Writes GitHub's workflow commands: an annotation for each verdict and failure. `report` stands before them, folded;
/// `token` ends the part in which GitHub reads no commands, so nobody may guess it.
#[must_use]
pub fn github(result: &LabResult, findings: &[Finding], report: &str, token: &str) -> String {
    let mut text = format!("::group::{}\n::stop-commands::{token}\n{report}", command_data(&result.title));
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let _ = writeln!(text, "::{token}::\n::endgroup::");
    let mut annotate = |level: &str, title: &str, words: &str| {
        let _ = writeln!(text, "::{level} title={}::{}", command_property(title), command_data(words));
    };
    for finding in findings {
        let level = match finding.verdict {
            _ if finding.fails => "error",
            Verdict::Faster | Verdict::Equivalent => "notice",
            Verdict::Slower | Verdict::Undecided | Verdict::Disturbed | Verdict::NotCompared => "warning",
        };
        annotate(level, &finding.name(), &finding.words);
    }
    for (name, why) in failures(result) {
        annotate("error", &name, &why);
    }
    text
}

/// Writes JUnit's XML: a test case for each verdict and for each set-up that failed. A verdict by which the run fails
/// is a failure; one that says nothing is skipped; a set-up that failed is an error.
#[must_use]
pub fn junit(result: &LabResult, findings: &[Finding]) -> String {
    let says_nothing = |verdict| matches!(verdict, Verdict::Undecided | Verdict::Disturbed | Verdict::NotCompared);
    let case = |finding: &Finding| {
        let outcome = match finding.verdict {
            _ if finding.fails => Outcome::Failed,
            verdict if says_nothing(verdict) => Outcome::Skipped,
            _ => Outcome::Passed,
        };
        Case { name: finding.name(), outcome, words: finding.words.clone() }
    };
    let failed = failures(result).into_iter().map(|(name, words)| Case { name, outcome: Outcome::Error, words });
    junit::write(&Suite {
        name: result.name.clone(),
        seconds: result.elapsed_s,
        properties: vec![
            ("title", result.title.clone()),
            ("machine", machine(&result.environment)),
            ("method", how(result)),
        ],
        cases: findings.iter().map(case).chain(failed).collect(),
    })
}

/// Writes JUnit's XML of a run of `oroshi bench`: a test case for whether it was answered, and for each condition
/// (`--fail-if`).
#[must_use]
pub fn junit_of_run(record: &Record) -> String {
    let completed = record.requests.completed;
    let rate = units::number(record.rates.requests_per_s);
    let answered = format!("{} answered, {rate}/s, {}", units::count(completed), errors(record));
    let (outcome, words) = match &record.gone {
        _ if completed == 0 => (Outcome::Error, "not one request was answered".to_owned()),
        Some(gone) => (Outcome::Error, gone.words()),
        None if record.cut_short => (Outcome::Skipped, format!("ended early: {answered}")),
        None => (Outcome::Passed, answered),
    };
    let run = Case { name: "answered".into(), outcome, words };
    let cases = std::iter::once(run).chain(record.fail_if.iter().map(of_condition)).collect();
    junit::write(&Suite {
        name: "bench".into(),
        seconds: record.elapsed_s,
        properties: vec![
            ("title", headline(record)),
            ("machine", machine(&record.environment)),
            ("cut-short", record.cut_short.to_string()),
        ],
        cases,
    })
}

/// `12 errors, 0.4 % of requests`.
fn errors(record: &Record) -> String {
    let errors = units::plural(record.errors, "error");
    let all = record.requests.started;
    if record.errors == 0 || all == 0 {
        return errors;
    }
    format!("{errors}, {} of requests", units::percent((record.errors as f64 / all as f64).min(1.0)))
}

/// Writes the same of a run of subscriptions (`oroshi bench --mode`).
#[must_use]
pub fn junit_of_subscriptions(record: &oroshi_bench::push::Record) -> String {
    let opened = record.subscriptions.opened;
    let (outcome, words) = match opened {
        0 => (Outcome::Error, "not one subscription was opened".to_owned()),
        _ => {
            let words = format!("{}, {}", push::subscribed(record), push::delivered(record));
            match record.cut_short {
                true => (Outcome::Skipped, format!("ended early: {words}")),
                false => (Outcome::Passed, words),
            }
        }
    };
    let run = Case { name: "subscribed".into(), outcome, words };
    junit::write(&Suite {
        name: "bench".into(),
        seconds: record.elapsed_s,
        properties: vec![
            ("title", push::headline(record)),
            ("machine", machine(&record.environment)),
            ("cut-short", record.cut_short.to_string()),
        ],
        cases: std::iter::once(run).chain(record.fail_if.iter().map(of_condition)).collect(),
    })
}

/// A condition that could not be decided fails the run, so it is a failure here too.
fn of_condition(condition: &Condition) -> Case {
    let outcome = match condition.outcome {
        ConditionOutcome::Passed => Outcome::Passed,
        ConditionOutcome::Failed | ConditionOutcome::Undecided => Outcome::Failed,
    };
    let name = format!("--fail-if {}", condition.condition);
    Case { name, outcome, words: format!("{}: {}", condition.outcome.name(), condition.measured) }
}

/// The set-ups that failed, with the cell's name if there is one, and why.
fn failures(result: &LabResult) -> Vec<(String, String)> {
    let failed = |cell: &CellResult| {
        let name = result.cell_name(cell);
        let failed = cell.variants.iter().filter_map(|variant| Some((variant, variant.failed.as_ref()?)));
        failed.map(|(variant, failure)| (placed(&name, &variant.name), failure.why.clone())).collect::<Vec<_>>()
    };
    result.cells.iter().flat_map(failed).collect()
}

/// A row per set-up, a column per metric.
fn figures(text: &mut String, result: &LabResult, cell: &CellResult) {
    let head = std::iter::once("median ±").chain(result.metrics.iter().map(|m| m.label.as_str()));
    row(text, head);
    line(text, &format!("|---|{}", "---:|".repeat(result.metrics.len())));
    for variant in &cell.variants {
        let own: Vec<String> = result.metrics.iter().map(|m| own_figure(variant, m.metric)).collect();
        row(text, std::iter::once(variant.name.as_str()).chain(own.iter().map(String::as_str)));
    }
}

/// A row per ratio.
fn ratios(text: &mut String, result: &LabResult, cell: &CellResult) {
    let ratios = cell_ratios(cell, result);
    if ratios.is_empty() {
        return;
    }
    let interval = format!("{} interval", units::percent(result.rules.confidence).replace(".0 %", " %"));
    row(text, ["", "pair", "ratio", &interval, "verdict"].into_iter());
    line(text, "|---|---|---:|---:|---|");
    for [metric, pair, ratio, interval, verdict] in &ratios {
        row(text, [metric, pair, ratio, interval, verdict].into_iter().map(String::as_str));
    }
}

fn row<'c>(text: &mut String, cells: impl Iterator<Item = &'c str>) {
    text.push('|');
    for cell in cells {
        let _ = write!(text, " {} |", escaped(cell));
    }
    text.push('\n');
}

fn line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

/// Text that Markdown shows as it is, in one line.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' => escaped.extend(['\\', char]),
            '<' => escaped.push_str("&lt;"),
            '&' => escaped.push_str("&amp;"),
            // GitHub notifies whoever is named, and links numbers to issues; an empty comment separates them.
            '@' | '#' => escaped.extend([char, '<', '!', '-', '-', ' ', '-', '-', '>']),
            char if char.is_control() => escaped.push(' '),
            char => escaped.push(char),
        }
    }
    escaped
}

/// The message of a workflow command.
fn command_data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// A property of a workflow command.
fn command_property(text: &str) -> String {
    command_data(text).replace(':', "%3A").replace(',', "%2C")
}

/// The longest run of a character.
fn longest_run(text: &str, of: char) -> usize {
    text.split(|char| char != of).map(str::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{bench, lab as sample};

    fn finding(verdict: Verdict, fails: bool) -> Finding {
        let words = "new is slower: x 0.9".into();
        Finding { place: String::new(), pair: "new / old".into(), verdict, words, fails }
    }

    #[test]
    fn markdown_has_the_verdicts_the_tables_and_the_method() {
        let text = markdown(&sample::two(), &[finding(Verdict::Faster, false)]);
        assert_eq!(text, include_str!("ci/two.md"), "\n{text}");
        let many = markdown(&sample::many(), &[]);
        for words in ["- hey: **failed**: it ended by signal SEGV", "- oha: skipped: oha is not installed"] {
            assert!(many.contains(words), "`{words}`: {many}");
        }
        let groups = sample::groups();
        let found = Finding { place: "kept connections".into(), ..finding(Verdict::Faster, false) };
        let text = markdown(&groups, &[found]);
        assert!(text.contains("- kept connections: **new is") && text.contains("\n#### kept connections\n"), "{text}");
    }

    #[test]
    fn names_neither_break_tables_nor_begin_markup() {
        let mut result = sample::two();
        result.cells[0].variants[1].name = "a|b\n<img src=x>`*_[y](http://h)@all".into();
        result.rerun = vec!["echo".into(), "```".into()];
        let text = markdown(&result, &[]);
        let escaped = "a\\|b &lt;img src=x>\\`\\*\\_\\[y\\](http://h)@<!-- -->all";
        assert!(text.contains(&format!("| {escaped} |")), "{text}");
        assert!(text.contains("\n````sh\necho '```'\n````\n"), "{text}");
    }

    #[test]
    fn annotations_have_levels() {
        let level = |verdict, fails| {
            let text = github(&sample::two(), &[finding(verdict, fails)], "report\n", "token");
            let last = text.lines().last().unwrap().to_owned();
            last.split(' ').next().unwrap().to_owned()
        };
        assert_eq!(level(Verdict::Slower, true), "::error");
        assert_eq!(level(Verdict::Slower, false), "::warning");
        assert_eq!(level(Verdict::Disturbed, false), "::warning");
        assert_eq!(level(Verdict::Faster, false), "::notice");
        let text = github(&sample::many(), &[], "report", "token");
        assert!(text.contains("\n::stop-commands::token\nreport\n::token::\n::endgroup::\n"), "{text}");
        assert!(text.ends_with("::error title=hey::it ended by signal SEGV\n"), "{text}");
    }

    #[test]
    fn no_text_begins_a_workflow_command() {
        let finding = Finding { words: "100 %\n::set-env name=x::y".into(), ..finding(Verdict::Slower, true) };
        let finding = Finding { pair: "a,b:c\r".into(), ..finding };
        let text = github(&sample::two(), &[finding], "", "token");
        let last = text.lines().last().unwrap();
        assert_eq!(last, "::error title=a%2Cb%3Ac%0D::100 %25%0A::set-env name=x::y");
    }

    #[test]
    fn junit_counts_failures_errors_and_skipped() {
        let findings =
            [finding(Verdict::Slower, true), finding(Verdict::Faster, false), finding(Verdict::Undecided, false)];
        let text = junit(&sample::many(), &findings);
        let counts = "tests=\"4\" failures=\"1\" errors=\"1\" skipped=\"1\"";
        assert_eq!(text.matches(counts).count(), 2, "{text}");
        assert!(text.contains("<failure message=\"new is slower: x 0.9\">"), "{text}");
        assert!(text.contains("name=\"hey\" time=\"0\"><error message=\"it ended by signal SEGV\">"), "{text}");
        assert_eq!(text.matches("<testcase").count(), text.matches("</testcase>").count());
    }

    #[test]
    fn a_run_has_a_case_for_each_condition() {
        let mut record = bench::closed();
        let condition = |condition: &str, outcome| Condition {
            condition: condition.into(),
            metric: "p99".into(),
            outcome,
            value: Some(1.0),
            at_least: false,
            measured: "measured 1ms".into(),
        };
        record.fail_if =
            vec![condition("p99>10ms", ConditionOutcome::Passed), condition("p99<2ms", ConditionOutcome::Failed)];
        let text = junit_of_run(&record);
        assert!(text.contains("tests=\"3\" failures=\"1\" errors=\"0\" skipped=\"0\""), "{text}");
        assert!(text.contains("name=\"--fail-if p99&lt;2ms\" time=\"0\"><failure message=\"failed: measured 1ms\">"));
        let mut failing = bench::closed();
        (failing.errors, failing.requests.started) = (99_999, 100_000);
        let text = junit_of_run(&failing);
        assert!(text.contains("99,999 errors, 100 % of requests</system-out>"), "{text}");
        failing.cut_short = true;
        let text = junit_of_run(&failing);
        assert!(text.contains("name=\"answered\" time=\"0\"><skipped message=\"ended early: "), "{text}");
        assert!(text.contains("<property name=\"cut-short\" value=\"true\"/>"), "{text}");
        let none = junit_of_run(&bench::nothing());
        assert!(none.contains("<error message=\"not one request was answered\">"), "{none}");
    }
}
