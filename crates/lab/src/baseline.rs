//! Compares today's result with a saved one.
//!
//! This is weaker than a comparison within one experiment. The runs did not alternate, so every other change counts as
//! a difference too: the machine, its neighbours, the kernel. The caveats say so, and name the known differences.

mod caveats;

use oroshi_bench::Record;
use oroshi_stats::compare::{self, Bootstrap, Interval, Stopping, Value, Verdict};
use oroshi_words::units;
use serde::Serialize;

use crate::analysis::{
    Facts, Finding, Sentence, bootstrap, given_rate, no_figure, other_work, same_rate, too_few, values,
};
use crate::metric::{Metric, Unit};
use crate::plan::LEAST_BLOCKS;
use crate::result::{CellResult, Ended, LabResult, RulesRecord, Run};

/// A saved result.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one of them, and it is read from a file")]
pub enum SavedResult {
    /// The result of a comparison or an experiment.
    Lab(LabResult),
    /// Single runs of one set-up.
    Bench(Vec<Record>),
}

/// The comparison of today with the saved result.
#[derive(Clone, Debug, Serialize)]
pub struct BaselineComparison {
    /// Every metric of each of today's variants, the primary metric first.
    pub comparisons: Vec<BaselineRow>,
    /// The limits of the comparison and the known differences, in words.
    pub caveats: Vec<String>,
}

/// One figure of a variant, today against the saved one.
#[derive(Clone, Debug, Serialize)]
pub struct BaselineRow {
    /// The variant, with group and sweep value if there are several: `puma / unix / 100`.
    pub variant: String,
    /// The figure.
    pub metric: Metric,
    /// Today's figure over the saved one, with its interval. `None` with fewer than three runs on a side, or if the
    /// ratio would say nothing.
    pub ratio: Option<Interval>,
    /// Probability of a ratio at least this far from 1 without a change, corrected for the number of questions (Holm).
    pub p: Option<f64>,
    /// The verdict on today's figure.
    pub verdict: Verdict,
    /// The verdict as a sentence.
    pub words: String,
}

/// Compares each of today's variants with the saved variant of the same name, or with the saved runs if they have no
/// names.
#[must_use]
pub fn against(saved: &SavedResult, today: &LabResult) -> BaselineComparison {
    let saved_runs: Vec<Run> = match saved {
        SavedResult::Lab(_) => Vec::new(),
        SavedResult::Bench(records) => records.iter().enumerate().map(as_run).collect(),
    };
    let mut caveats = caveats::of(saved, today);
    let mut sides = Vec::new();
    for cell in &today.cells {
        for (variant, now) in cell.variants.iter().enumerate() {
            let name = title(today, cell, &now.name);
            let then = match saved {
                SavedResult::Bench(_) => Some(((saved_runs.as_slice(), 0), false)),
                SavedResult::Lab(saved) => find(saved, today, cell, &now.name),
            };
            match then {
                Some((then, stopped)) => {
                    let stopped_when_precise = stopped || stopped_on_one(cell);
                    sides.push(Sides { name, now: (cell.runs.as_slice(), variant), then, stopped_when_precise });
                }
                None => caveats.push(format!("{name} has nothing saved to be compared with")),
            }
        }
    }
    let metrics: Vec<Metric> = today.metrics.iter().map(|metric| metric.metric).collect();
    let (primary, others) = metrics.split_at(metrics.len().min(1));
    let comparisons = [primary, others].into_iter().flat_map(|family| {
        let asked = family.iter().flat_map(|&metric| sides.iter().map(move |sides| (metric, sides)));
        judge(&asked.collect::<Vec<_>>(), &today.rules)
    });
    BaselineComparison { comparisons: comparisons.collect(), caveats }
}

/// A variant's runs, among those of its cell.
type Runs<'a> = (&'a [Run], usize);

/// One variant, today and then.
struct Sides<'a> {
    name: String,
    now: Runs<'a>,
    then: Runs<'a>,
    /// One side ran until its interval was narrow enough.
    stopped_when_precise: bool,
}

/// Answers a family of questions, with p values corrected for their number.
fn judge(asked: &[(Metric, &Sides<'_>)], rules: &RulesRecord) -> Vec<BaselineRow> {
    let found = |(metric, sides): &(Metric, &Sides<'_>)| {
        let saved = saved_name(&sides.name);
        let both = [&facts(&saved, sides.then), &facts(&sides.name, sides.now)];
        finding(*metric, sides, rules).unless_disturbed(*metric, rules.disturbed, both)
    };
    let findings: Vec<Finding> = asked.iter().map(found).collect();
    let raw: Vec<f64> = findings.iter().filter_map(Finding::p).collect();
    let mut adjusted = compare::holm(&raw).into_iter();
    let row = |(&(metric, sides), mut finding): (&(Metric, &Sides<'_>), Finding)| {
        let p = finding.p().and_then(|_| adjusted.next());
        let saved = saved_name(&sides.name);
        let both = [&facts(&saved, sides.then), &facts(&sides.name, sides.now)];
        let verdict = finding.judge(metric, p, rules.smallest_effect, both);
        let ratio = finding.ratio().map(|estimate| estimate.interval).filter(|_| verdict != Verdict::NotCompared);
        let (questions, smallest_effect) = (raw.len(), rules.smallest_effect);
        let sentence =
            Sentence { metric, base: &saved, variant: &sides.name, smallest_effect, questions, unit: "runs" };
        let words = sentence.say(&finding, p, verdict, both);
        BaselineRow { variant: sides.name.clone(), metric, ratio, p, verdict, words }
    };
    asked.iter().zip(findings).map(row).collect()
}

fn finding(metric: Metric, sides: &Sides<'_>, rules: &RulesRecord) -> Finding {
    let of = |(runs, variant): Runs<'_>, metric| values(runs, variant, metric);
    let saved = saved_name(&sides.name);
    let (then, now) = (facts(&saved, sides.then), facts(&sides.name, sides.now));
    let (old, new) = (of(sides.then, metric), of(sides.now, metric));
    for (values, facts) in [(&old, &then), (&new, &now)] {
        if values.is_empty() {
            return Finding::Nothing(no_figure(metric, facts));
        }
    }
    if let Some(finding) = given_rate(metric, &then, &now) {
        return finding;
    }
    if let Some(why) = other_work(metric, rules.any_answers, &then, &now) {
        return Finding::Nothing(why);
    }
    // How narrow the intervals had to be, if their width ended the cell.
    let stopping = if sides.stopped_when_precise { Stopping::AtPrecision(rules.precision) } else { Stopping::Fixed };
    let options = Bootstrap { stopping, ..bootstrap() };
    let Some(estimate) = compare::ratio_unpaired(&old, &new, &options) else {
        return Finding::Nothing(single(metric, &old, &new));
    };
    if metric.is_latency() {
        let rates = then.rate.zip(now.rate).map(|(then, now)| now / then);
        if let Err(why) = same_rate(rates, &then, &now) {
            return Finding::Nothing(why);
        }
    }
    Finding::Ratio(estimate)
}

/// Shows two figures without an interval, and why there is none.
fn single(metric: Metric, old: &[Value], new: &[Value]) -> String {
    let middle = |values: &[Value]| {
        let mut values: Vec<f64> = values.iter().map(|value| value.value).collect();
        values.sort_by(f64::total_cmp);
        written(metric, values[values.len() / 2])
    };
    let (runs, whose) = if old.len() < LEAST_BLOCKS { (old.len(), "saved runs") } else { (new.len(), "runs today") };
    format!("it was {} and is {} today, and {}", middle(old), middle(new), too_few(runs, whose))
}

fn written(metric: Metric, value: f64) -> String {
    match metric.unit() {
        Unit::PerSecond => format!("{}/s", units::number(value)),
        Unit::Nanoseconds => units::time(value),
        Unit::Bytes => units::bytes(value),
        Unit::Points => units::number(value),
    }
}

fn facts<'a>(name: &'a str, (runs, variant): Runs<'a>) -> Facts<'a> {
    Facts::of(name, runs, variant)
}

fn saved_name(name: &str) -> String {
    format!("{name} as saved")
}

/// Finds today's variant in the saved result: same name, group and sweep value. With one cell on both sides the name is
/// enough. Also tells whether the variant's own figure ended its cell.
fn find<'a>(saved: &'a LabResult, today: &LabResult, cell: &CellResult, name: &str) -> Option<(Runs<'a>, bool)> {
    let then = same_cell(saved, today, cell)?;
    let variant = then.variants.iter().position(|variant| variant.name == name)?;
    Some(((&then.runs, variant), stopped_on_one(then)))
}

/// Whether the cell ended by the precision of its only variant.
fn stopped_on_one(cell: &CellResult) -> bool {
    cell.variants.len() == 1 && cell.ended == Ended::Precise
}

/// Finds today's cell in the saved result.
fn same_cell<'a>(saved: &'a LabResult, today: &LabResult, cell: &CellResult) -> Option<&'a CellResult> {
    let alone = saved.cells.len() == 1 && today.cells.len() == 1;
    let same = |then: &&CellResult| alone || then.group == cell.group && point(saved, then) == point(today, cell);
    saved.cells.iter().find(same)
}

fn point<'a>(result: &'a LabResult, cell: &CellResult) -> Option<&'a str> {
    result.sweep.as_ref()?.values.get(cell.point?).map(String::as_str)
}

fn title(result: &LabResult, cell: &CellResult, name: &str) -> String {
    let group = Some(cell.group.as_str()).filter(|group| !group.is_empty() && *group != name);
    let parts = [group, Some(name), point(result, cell)];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" / ")
}

/// Turns a saved single run into a run with a start of its own.
fn as_run((index, record): (usize, &Record)) -> Run {
    let figures = Metric::ALL.into_iter().filter_map(|metric| Some((metric, metric.of(record)?)));
    Run {
        block: index,
        session: index,
        figures: figures.collect(),
        warnings: record.warnings.clone(),
        record: Some(Box::new(record.clone())),
        ..Run::default()
    }
}

#[cfg(test)]
mod tests;
