//! A history for a terminal: each step, then the present level of every series.

use oroshi_history::check::{Checked, Judged};
use oroshi_history::series::{Series, as_change, short};
use oroshi_stats::compare::Verdict;
use oroshi_words::printable;

use crate::figure;
use crate::paint::Paint;
use crate::table::columns;

/// Writes the steps and the present levels.
#[must_use]
pub fn history(series: &[Series<'_>], paint: Paint) -> String {
    let mut text = String::new();
    let mut machine = None;
    for one in series {
        if machine != Some(&one.machine.fingerprint) {
            let line = format!("machine {}: {}", one.machine.fingerprint, printable(&one.machine.words));
            text += &format!("{}{}\n", if text.is_empty() { "" } else { "\n" }, paint.dim(&line));
            machine = Some(&one.machine.fingerprint);
            let own: Vec<&Series<'_>> =
                series.iter().filter(|other| other.machine.fingerprint == one.machine.fingerprint).collect();
            text += &of_machine(&own, paint);
        }
    }
    text
}

fn of_machine(series: &[&Series<'_>], paint: Paint) -> String {
    let mut steps = Vec::new();
    let mut rows = vec![["", "measured", "level", "scatter", "steps"].map(str::to_owned).to_vec()];
    for series in series {
        let name = printable(&format!("{}: {}", series.subject, series.metric));
        for step in &series.steps {
            let entry = series.points[step.at].entry;
            let word = if step.is_better { paint.green("better") } else { paint.red("worse") };
            let [low, high] = [step.ratio.low, step.ratio.high].map(as_change);
            let mut line = format!(
                "{word}  {name}: {} ({low} to {high}) at {} {} {}",
                as_change(step.ratio.estimate),
                short(&entry.commit),
                figure::date(entry.commit.unix_s),
                printable(&entry.commit.subject)
            );
            for changed in &step.changed {
                line += &format!("\n       at the same place changed {}", printable(changed));
            }
            steps.push((entry.commit.unix_s, line.trim_end().to_owned() + "\n"));
        }
        let level = series.levels().pop().unwrap_or_default();
        let values = series.values(&level);
        let middle = (values.iter().map(|value| value.ln()).sum::<f64>() / values.len().max(1) as f64).exp();
        let spread =
            series.noise.map_or_else(|| "-".to_owned(), |noise| oroshi_words::units::percent(noise.spread.exp() - 1.0));
        let level = if values.is_empty() { "-".to_owned() } else { series.unit.text(middle) };
        let steps = match series.is_too_short() {
            true => "too few measurements to tell".to_owned(),
            false => series.steps.len().to_string(),
        };
        rows.push(vec![name, series.points.len().to_string(), level, spread, steps]);
    }
    steps.sort_by(|one, other| other.0.total_cmp(&one.0));
    let steps: String = steps.into_iter().map(|step| step.1).collect();
    let steps = if steps.is_empty() { "no series has a step\n".to_owned() } else { steps };
    format!("{steps}\n{}", columns(0, &rows))
}

/// Writes what a check found: the judged commit, then a line per figure, those that are worse first.
#[must_use]
pub fn checked(judged: &Judged, paint: Paint) -> String {
    let rank = |verdict: Verdict| match verdict {
        Verdict::Slower => 0,
        Verdict::Disturbed => 1,
        Verdict::Undecided | Verdict::NotCompared => 2,
        Verdict::Faster => 3,
        Verdict::Equivalent => 4,
    };
    let commit = &judged.commit;
    let head = format!("commit {} {} {}", short(commit), figure::date(commit.unix_s), printable(&commit.subject));
    let mut sorted: Vec<&Checked> = judged.figures.iter().collect();
    sorted.sort_by_key(|one| rank(one.verdict));
    let line = |one: &&Checked| {
        let words = printable(&one.words);
        let words = match one.verdict {
            Verdict::Slower => paint.red(&words),
            Verdict::Faster => paint.green(&words),
            Verdict::Equivalent => words,
            Verdict::Undecided | Verdict::Disturbed | Verdict::NotCompared => paint.yellow(&words),
        };
        format!("{}: {}: {words}\n", printable(&one.subject), printable(&one.metric))
    };
    let lines: String = sorted.iter().map(line).collect();
    format!("{}\n{lines}", paint.dim(head.trim_end()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use oroshi_history::check::{Against, check};
    use oroshi_history::entry::{Commit, Entry, Figure, Machine, SCHEMA, Subject, Unit};
    use oroshi_history::series::{all, undivided};

    use super::*;

    /// Commits whose figure doubles after a half.
    fn doubled(commits: usize) -> Vec<Entry> {
        let entry = |number: usize| {
            let unix_s = 1.77e9 + 3600.0 * number as f64;
            let value = (if number < commits / 2 { 1000.0 } else { 2000.0 }) + (number % 2) as f64;
            let unit = Unit::Nanoseconds;
            let figure = Figure { value, interval: None, runs: 1, unit, higher_is_better: false, sensitive: false };
            Entry {
                schema: SCHEMA.into(),
                commit: Commit { id: format!("v{number}"), unix_s, subject: "\u{1b}[2J".into(), ..Commit::default() },
                measured_unix_s: unix_s,
                machine: Machine { fingerprint: "ab".into(), ..Machine::default() },
                source: format!("{number:064x}"),
                subjects: vec![Subject {
                    name: "hello".into(),
                    plan: "cd".into(),
                    load: String::new(),
                    disturbed: None,
                    figures: BTreeMap::from([("cpu".to_owned(), figure)]),
                }],
            }
        };
        (0..commits).map(entry).collect()
    }

    #[test]
    fn a_series_that_is_too_short_for_a_step_says_so() {
        let text = |commits| history(&all(&doubled(commits), 0.01), Paint::PLAIN);
        assert!(text(6).contains("too few measurements to tell"), "{}", text(6));
        assert!(text(8).starts_with("machine ab: \nworse  hello: cpu: +100 % ("), "{}", text(8));
        assert!(!text(8).contains("too few"), "{}", text(8));
    }

    #[test]
    fn a_check_names_its_commit() {
        let entries = doubled(30);
        let judged = check(&entries, &undivided(&entries), Some("v15"), &Against::Before, 0.03).unwrap();
        let text = checked(&judged, Paint::PLAIN);
        assert!(text.starts_with("commit v15 2026-02-02 17:40 UTC \\u{1b}[2J\nhello: cpu: worse: "), "{text}");
    }
}
