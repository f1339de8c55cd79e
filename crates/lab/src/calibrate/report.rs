//! The result of a calibration, as data and as tables.

use std::fmt::Write as _;

use oroshi_stats::compare::Verdict;
use serde::{Deserialize, Serialize};

use super::Trial;
use super::simulated::Noise;

/// A verdict of equivalence beyond this share is false.
const SMALLEST_EFFECT: f64 = 0.03;
/// The bounds for the share of intervals that contain the true ratio, in each row. With fewer than [`ENOUGH`] intervals
/// the bounds widen by what chance causes once in a thousand times.
pub const COVERAGE: (f64, f64) = (0.93, 0.98);
/// Intervals in a row that show its coverage well enough.
pub const ENOUGH: usize = 1000;
/// The maximum share of false verdicts.
pub const FALSE: f64 = 0.05;
/// The minimum share of set-ups with 1 % more CPU time per request that must be found within a minute, where runs
/// differ by at most [`QUIET`].
pub const FOUND: f64 = 0.90;
/// Spread of CPU time per request between runs on a quiet machine.
pub const QUIET: &str = "0.5 %";

/// A simulated calibration.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The seed of all randomness.
    pub seed: u64,
    /// The noise of the simulated machine.
    pub noise: Noise,
    /// Coverage of the intervals.
    pub tables: Vec<Table>,
    /// How often 1 % more CPU time per request is found within a minute.
    pub power: Vec<Power>,
}

/// Rows of one kind.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Table {
    /// The rows' common property.
    pub name: String,
    /// The rows.
    pub rows: Vec<Row>,
}

/// Comparisons of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The comparisons' common property.
    pub name: String,
    /// Comparisons made.
    pub cells: usize,
    /// Intervals: one per pair of variants.
    pub intervals: usize,
    /// Intervals that contain the true ratio.
    pub covered: usize,
    /// Comparisons of equal set-ups.
    pub same: usize,
    /// Those with a false difference.
    pub false_alarms: usize,
    /// Pairs whose difference exceeds the smallest effect.
    pub beyond: usize,
    /// Those called equivalent.
    pub false_equivalent: usize,
    /// Those found faster or slower, in the right direction.
    pub found: usize,
    /// Mean number of blocks.
    pub blocks: f64,
    /// Mean error of the estimates, as a share: the bias.
    pub bias: f64,
}

/// How often a small difference is found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Power {
    /// The spread of the runs.
    pub name: String,
    /// Comparisons with 1 % more.
    pub cells: usize,
    /// Those in which it was found.
    pub found: usize,
    /// Comparisons of a set-up with itself.
    pub same: usize,
    /// Those with a false difference.
    pub false_alarms: usize,
}

impl Row {
    /// Summarises comparisons, each with its pairs.
    pub(super) fn of(name: String, cells: &[Vec<Trial>]) -> Self {
        let all = || cells.iter().flatten();
        let beyond = |trial: &&Trial| trial.truth.ln().abs() > SMALLEST_EFFECT.ln_1p() + 1e-9;
        let same = || cells.iter().filter(|trials| trials.iter().all(|trial| trial.truth == 1.0));
        let right = |trial: &&Trial| {
            let verdict = if trial.truth > 1.0 { Verdict::Faster } else { Verdict::Slower };
            trial.verdict == verdict
        };
        let mean = |sum: f64, count: usize| if count > 0 { sum / count as f64 } else { 0.0 };
        Self {
            name,
            cells: cells.len(),
            intervals: all().count(),
            covered: all().filter(|trial| trial.covered()).count(),
            same: same().count(),
            false_alarms: same().filter(|trials| trials.iter().any(Trial::is_false_alarm)).count(),
            beyond: all().filter(beyond).count(),
            false_equivalent: all().filter(beyond).filter(|trial| trial.verdict == Verdict::Equivalent).count(),
            found: all().filter(beyond).filter(right).count(),
            blocks: mean(all().map(|trial| trial.blocks as f64).sum(), all().count()),
            bias: mean(all().map(|trial| (trial.estimate / trial.truth).ln()).sum(), all().count()),
        }
    }

    /// Returns the share of intervals that contain the true ratio.
    #[must_use]
    pub fn coverage(&self) -> f64 {
        self.covered as f64 / self.intervals.max(1) as f64
    }
}

impl Report {
    /// Returns the number of comparisons.
    #[must_use]
    pub fn cells(&self) -> usize {
        // The second and third table repeat the first one's.
        let rows =
            |index: usize| self.tables.get(index).map_or(0, |table| table.rows.iter().map(|row| row.cells).sum());
        rows(0) + rows(3) + self.power.iter().map(|power| power.cells + power.same).sum::<usize>()
    }

    /// Lists values out of bounds, in words; empty if there are none.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for table in &self.tables {
            for row in &table.rows {
                let coverage = row.coverage();
                let chance = |share: f64| match row.intervals {
                    few if few < ENOUGH => 3.3 * (share * (1.0 - share) / few.max(1) as f64).sqrt(),
                    _ => 0.0,
                };
                if !(COVERAGE.0 - chance(COVERAGE.0)..=COVERAGE.1 + chance(COVERAGE.1)).contains(&coverage) {
                    failures.push(format!(
                        "{}: {}: {:.1} % of the intervals hold the truth, expected {:.0} to {:.0} %",
                        table.name,
                        row.name,
                        coverage * 100.0,
                        COVERAGE.0 * 100.0,
                        COVERAGE.1 * 100.0
                    ));
                }
            }
            let sum = |of: fn(&Row) -> usize| table.rows.iter().map(of).sum::<usize>();
            let kinds = [
                ("false alarms", sum(|row| row.false_alarms), sum(|row| row.same)),
                ("falsely equivalent", sum(|row| row.false_equivalent), sum(|row| row.beyond)),
            ];
            for (what, count, of) in kinds {
                if count as f64 > FALSE * of as f64 {
                    failures.push(format!(
                        "{}: {count} of {of} {what}, expected at most {:.0} %",
                        table.name,
                        FALSE * 100.0
                    ));
                }
            }
        }
        let quiet = self.power.iter().filter(|power| power.name.ends_with(QUIET));
        for power in quiet.filter(|power| (power.found as f64) < FOUND * power.cells as f64) {
            failures.push(format!(
                "1 % more CPU time: {}: found in {} of {}, expected {:.0} %",
                power.name,
                power.found,
                power.cells,
                FOUND * 100.0
            ));
        }
        failures
    }

    /// Returns the tables in Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        for table in &self.tables {
            let _ = write!(
                text,
                "**{}**\n\n| | comparisons | truth in the interval | false alarms | beyond 3 %: found | called \
                 equivalent | bias | blocks |\n\
                 | :--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
                table.name
            );
            for row in &table.rows {
                let _ = writeln!(
                    text,
                    "| {} | {} | {:.1} % | {} of {} | {} of {} | {} | {:+.3} % | {:.1} |",
                    row.name,
                    row.cells,
                    row.coverage() * 100.0,
                    row.false_alarms,
                    row.same,
                    row.found,
                    row.beyond,
                    row.false_equivalent,
                    row.bias * 100.0,
                    row.blocks
                );
            }
            text.push('\n');
        }
        text.push_str(
            "**1 % more CPU time per request, in a minute**\n\n| | found | false alarms |\n| :--- | ---: | ---: |\n",
        );
        for power in &self.power {
            let _ = writeln!(
                text,
                "| {} | {} of {} | {} of {} |",
                power.name, power.found, power.cells, power.false_alarms, power.same
            );
        }
        text
    }
}
