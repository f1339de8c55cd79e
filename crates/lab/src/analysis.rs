//! From runs to figures, ratios and verdicts. Pure: no clock, no process.
//!
//! - Two variants are compared block by block: the ratio of two runs of a block, and an interval over the blocks
//!   ([`oroshi_stats::compare::ratio`]).
//! - Every pair is compared; the earlier variant is the base. With more than four variants, each is compared only with
//!   the first that did not fail.
//! - p values are corrected for the number of questions (Holm): the primary metric's among the pairs of its cell, the
//!   other metrics' among all of theirs. Cells are separate, because each answers at another value of the sweep.
//! - Latency depends on the rate. It is compared only where both sides answered at the same rate, within 2 %, and not
//!   both fell behind their timetable: an overloaded side's latency measures the length of the run. Bursts must have
//!   the same size.
//! - Where more than 5 % of one side's requests were errors, no cost or time of requests is compared.
//! - Nor where the answers differ in kind, by status class or length of bodies, unless the rules allow it (`kinds`).
//!   Scores are compared all the same: the script judges the answers before it awards points.
//! - Where other work disturbed too many runs of one side, scores, rates and latencies have no verdict
//!   ([`disturbed`](crate::disturbed)). Rates have none either where the load generator was at its limit in more than
//!   half of the runs of the worse side, or of either side if no difference was found: the figure is then the
//!   generator's rate.
//! - Where both kept one timetable (an open loop), their requests per second are equal by design.
//!
//! [`comparisons`] does all of it. `facts` describes a variant's runs, `sentence` words the verdict.

mod facts;
mod kinds;
mod sentence;

use std::collections::BTreeMap;

use oroshi_stats::compare::{self, Bootstrap, Interval, Pair, RatioEstimate, Stopping, Value, Verdict};

use crate::disturbed::is_sensitive;
use crate::metric::{Better, Metric};
use crate::plan::LEAST_BLOCKS;
use crate::result::{Comparison, Run};

use facts::Timetables;
pub(crate) use facts::{Facts, no_figure, same_rate};
pub(crate) use sentence::Sentence;

/// The confidence of intervals.
pub const CONFIDENCE: f64 = 0.95;
/// With more variants than this, each is compared with the first only: nobody asks about ten pairs.
const MOST_FOR_ALL_PAIRS: usize = 4;

/// The comparisons to make in a cell, and when a difference counts.
#[derive(Clone, Copy, Debug)]
pub struct ComparisonOptions<'a> {
    /// The variants' names; runs refer to them by index.
    pub names: &'a [String],
    /// The variants that did not fail.
    pub alive: &'a [bool],
    /// The metrics to compare, the primary one first.
    pub metrics: &'a [Metric],
    /// Smaller differences than this share do not matter.
    pub smallest_effect: f64,
    /// No verdict on rates and latencies where more than this share of one side's runs were disturbed.
    pub disturbed: f64,
    /// Judges ratios even if the two sides' answers differ in kind.
    pub any_answers: bool,
    /// The cell ended because the primary intervals reached no further than this share. Then chance makes some of them
    /// too narrow, so they are widened ([`Stopping`]). Other metrics are widened as far as they move with the primary
    /// one.
    pub stopped_at: Option<f64>,
}

/// Returns a variant's own figures: for every metric of its runs, the median with its interval. Empty with fewer than
/// three runs. `stopped_at`: the variant is alone in a cell that ended by precision, as in [`ComparisonOptions`].
#[must_use]
pub fn figures(runs: &[Run], variant: usize, stopped_at: Option<f64>) -> BTreeMap<Metric, Interval> {
    let options = stopped(stopped_at);
    let of = |metric| Some((metric, compare::level(&values(runs, variant, metric), &options)?));
    Metric::ALL.into_iter().filter_map(of).collect()
}

/// Compares every pair by every metric: ratio, verdict, and verdict in words.
#[must_use]
pub fn comparisons(asked: &ComparisonOptions<'_>, runs: &[Run]) -> Vec<Comparison> {
    let facts: Vec<Facts<'_>> =
        asked.names.iter().enumerate().map(|(variant, name)| Facts::of(name, runs, variant)).collect();
    let own = stopped(asked.stopped_at);
    // By how much early looks widened each pair's primary ratio.
    let mut widened: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    let mut primary = Vec::new();
    let mut others = Vec::new();
    for (place, &metric) in asked.metrics.iter().enumerate() {
        let family = if place == 0 { &mut primary } else { &mut others };
        let found = |(base, variant)| {
            let blocks = blocks(runs, base, variant);
            let options = match widened.get(&(base, variant)) {
                Some(&widened) if place > 0 => {
                    let [primary, other] = [asked.metrics[0], metric].map(|metric| figure_pairs(metric, &blocks));
                    let shared = compare::shared_variance(&primary, &other);
                    Bootstrap { stopping: Stopping::As(1.0 + (widened - 1.0) * shared), ..own }
                }
                _ if place > 0 => bootstrap(),
                _ => own,
            };
            let finding = finding(metric, &facts[base], &facts[variant], &blocks, &options, asked.any_answers);
            let finding = finding.unless_disturbed(metric, asked.disturbed, [&facts[base], &facts[variant]]);
            Found { metric, base, variant, both: blocks.len(), finding }
        };
        // A variant that failed before any run is only reported as failed.
        let there = |&(base, variant): &(usize, usize)| {
            (asked.alive[base] && asked.alive[variant]) || !blocks(runs, base, variant).is_empty()
        };
        let all: Vec<Found> = pairs(asked.alive).into_iter().filter(there).map(found).collect();
        if place == 0 {
            let ratios = all.iter().filter_map(|found| match &found.finding {
                Finding::Ratio(estimate) | Finding::Disturbed(estimate, _) => {
                    Some(((found.base, found.variant), estimate.widened))
                }
                Finding::Timetable { .. } | Finding::Nothing(_) => None,
            });
            widened = ratios.collect();
        }
        family.extend(all);
    }
    [primary, others].into_iter().flat_map(|family| judge(asked, &facts, family)).collect()
}

/// Returns how far the widest primary interval reaches, as a share of the ratio, over all pairs that are still `alive`;
/// with one variant alone, the interval of its own figure. `asked` is the precision to reach. `None` while a pair has
/// no interval.
#[must_use]
pub fn precision(metric: Metric, runs: &[Run], alive: &[bool], asked: f64) -> Option<f64> {
    let options = stopped(Some(asked));
    let intervals: Option<Vec<Interval>> = match alive {
        [true] => Some(vec![compare::level(&values(runs, 0, metric), &options)?]),
        _ => pairs(alive)
            .into_iter()
            .filter(|&(base, variant)| alive[base] && alive[variant])
            .map(|(base, variant)| Some(ratio(metric, &blocks(runs, base, variant), &options)?.interval))
            .collect(),
    };
    intervals?.iter().map(Interval::half_width_share).reduce(f64::max)
}

/// Returns the pairs to compare: base and variant. With many variants: those with the first; if it failed, also those
/// with the next, until a base did not fail.
fn pairs(alive: &[bool]) -> Vec<(usize, usize)> {
    let variants = alive.len();
    let first_alive = alive.iter().position(|alive| *alive).unwrap_or(0);
    let bases = if variants > MOST_FOR_ALL_PAIRS { first_alive + 1 } else { variants };
    (0..bases).flat_map(|base| (base + 1..variants).map(move |variant| (base, variant))).collect()
}

/// Returns the blocks in which both were measured.
fn blocks(runs: &[Run], base: usize, variant: usize) -> Vec<(&Run, &Run)> {
    let find = |run: &Run| runs.iter().find(|other| other.variant == variant && other.block == run.block);
    runs.iter().filter(|run| run.variant == base).filter_map(|run| Some((run, find(run)?))).collect()
}

fn ratio(metric: Metric, blocks: &[(&Run, &Run)], options: &Bootstrap) -> Option<RatioEstimate> {
    compare::ratio(&figure_pairs(metric, blocks), options)
}

/// Returns a metric's figures block by block; a missing one is NaN.
fn figure_pairs(metric: Metric, blocks: &[(&Run, &Run)]) -> Vec<Pair> {
    let figure = |run: &Run| run.figures.get(&metric).copied().unwrap_or(f64::NAN);
    let pair =
        |(base, variant): &(&Run, &Run)| Pair { session: base.session, base: figure(base), variant: figure(variant) };
    blocks.iter().map(pair).collect()
}

/// Returns a variant's figures, run by run.
pub(crate) fn values(runs: &[Run], variant: usize, metric: Metric) -> Vec<Value> {
    let value = |run: &Run| Some(Value { session: run.session, value: *run.figures.get(&metric)? });
    runs.iter().filter(|run| run.variant == variant).filter_map(value).collect()
}

/// Returns the bootstrap for intervals that ended the cell at this precision.
fn stopped(at: Option<f64>) -> Bootstrap {
    Bootstrap { stopping: at.map_or(Stopping::Fixed, Stopping::AtPrecision), ..bootstrap() }
}

pub(crate) fn bootstrap() -> Bootstrap {
    Bootstrap { confidence: CONFIDENCE, ..Bootstrap::default() }
}

/// A metric's finding on a pair, before its verdict.
struct Found {
    metric: Metric,
    base: usize,
    variant: usize,
    both: usize,
    finding: Finding,
}

/// The statement that the runs allow.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Finding {
    /// A ratio to judge.
    Ratio(RatioEstimate),
    /// A ratio without a verdict, and the reason.
    Disturbed(RatioEstimate, String),
    /// Both kept one timetable, so their rates say nothing.
    Timetable {
        /// Requests per second.
        rate: f64,
    },
    /// No ratio, and the reason.
    Nothing(String),
}

impl Finding {
    /// Withholds the verdict on a disturbed rate or latency. `facts` are those of base and variant.
    pub(crate) fn unless_disturbed(self, metric: Metric, limit: f64, facts: [&Facts<'_>; 2]) -> Self {
        match self {
            Self::Ratio(estimate) if is_sensitive(metric) => match facts.iter().find(|f| f.disturbed.is_above(limit)) {
                Some(facts) => {
                    let why = facts.disturbed.say(facts.name);
                    let again = "run it again when the machine is quiet";
                    Self::Disturbed(estimate, format!("{why}; {again}, or compare CPU time per request"))
                }
                None => Self::Ratio(estimate),
            },
            other => other,
        }
    }

    /// Returns the verdict on a ratio. If a generator was at its limit, the ratio may become
    /// [`Disturbed`](Self::Disturbed).
    pub(crate) fn judge(
        &mut self,
        metric: Metric,
        p: Option<f64>,
        smallest_effect: f64,
        facts: [&Facts<'_>; 2],
    ) -> Verdict {
        let (estimate, p) = match (&*self, p) {
            (Self::Ratio(estimate), Some(p)) => (*estimate, p),
            (Self::Disturbed(..), _) => return Verdict::Disturbed,
            (Self::Timetable { .. }, _) => return Verdict::Equivalent,
            (Self::Ratio(_) | Self::Nothing(_), _) => return Verdict::NotCompared,
        };
        let better = metric.better() == Better::Higher;
        let verdict = compare::verdict(&estimate.interval, p, smallest_effect, better, CONFIDENCE);
        match facts::limited(metric, verdict, facts) {
            Some(why) => {
                *self = Self::Disturbed(estimate, why);
                Verdict::Disturbed
            }
            None => verdict,
        }
    }

    /// Its ratio, if it has one.
    pub(crate) fn ratio(&self) -> Option<&RatioEstimate> {
        match self {
            Self::Ratio(estimate) | Self::Disturbed(estimate, _) => Some(estimate),
            Self::Timetable { .. } | Self::Nothing(_) => None,
        }
    }

    /// Returns the probability of the finding by chance, where it has one.
    pub(crate) fn p(&self) -> Option<f64> {
        if let Self::Ratio(estimate) = self { Some(estimate.p) } else { None }
    }
}

fn finding(
    metric: Metric,
    base: &Facts<'_>,
    variant: &Facts<'_>,
    blocks: &[(&Run, &Run)],
    options: &Bootstrap,
    any_answers: bool,
) -> Finding {
    if let Some(finding) = given_rate(metric, base, variant) {
        return finding;
    }
    // A script counts failures itself, before it awards points.
    if let Some(why) = facts::failing(base, variant).filter(|_| !matches!(metric, Metric::Memory | Metric::Score)) {
        return Finding::Nothing(why);
    }
    if let Some(why) = other_work(metric, any_answers, base, variant) {
        return Finding::Nothing(why);
    }
    let Some(found) = ratio(metric, blocks, options) else {
        return Finding::Nothing(facts::why_no_ratio(metric, base, variant, blocks));
    };
    if metric.is_latency() {
        // Over the same blocks, so that both sides saw the same machine.
        let rates = ratio(Metric::Rps, blocks, options).map(|rates| rates.interval.estimate);
        if let Err(why) = same_rate(rates, base, variant) {
            return Finding::Nothing(why);
        }
    }
    Finding::Ratio(found)
}

/// Returns why request figures cannot be compared: the answers differ in kind. `any_answers` allows it.
pub(crate) fn other_work(metric: Metric, any_answers: bool, base: &Facts<'_>, variant: &Facts<'_>) -> Option<String> {
    if any_answers || matches!(metric, Metric::Memory | Metric::Score) {
        return None;
    }
    let how = kinds::different((base.name, &base.kind), (variant.name, &variant.kind))?;
    Some(format!(
        "{how}: that is not the same work; mend the URL or the server of one, or say that any answers may be compared \
         (--any-answers; in a file, any-answers = true)"
    ))
}

/// Returns the finding that timetables force on requests per second. `None` for other metrics, and where the servers
/// decided the rate.
pub(crate) fn given_rate(metric: Metric, base: &Facts<'_>, variant: &Facts<'_>) -> Option<Finding> {
    match facts::timetables(base, variant) {
        _ if metric != Metric::Rps => None,
        Timetables::Ratio => None,
        Timetables::Kept { rate } => Some(Finding::Timetable { rate }),
        Timetables::Differ(why) => Some(Finding::Nothing(why)),
    }
}

/// Corrects a family's p values and gives the verdicts.
fn judge(asked: &ComparisonOptions<'_>, facts: &[Facts<'_>], family: Vec<Found>) -> Vec<Comparison> {
    let raw: Vec<f64> = family.iter().filter_map(|found| found.finding.p()).collect();
    let questions = raw.len();
    let mut adjusted = compare::holm(&raw).into_iter();
    let judged = |mut found: Found| {
        let p = found.finding.p().and_then(|_| adjusted.next());
        let sides = [&facts[found.base], &facts[found.variant]];
        let verdict = found.finding.judge(found.metric, p, asked.smallest_effect, sides);
        let ratio = found.finding.ratio().map(|estimate| estimate.interval).filter(|_| verdict != Verdict::NotCompared);
        let blocks = found.finding.ratio().map_or(found.both, |estimate| estimate.blocks);
        let sentence = Sentence {
            metric: found.metric,
            base: &asked.names[found.base],
            variant: &asked.names[found.variant],
            smallest_effect: asked.smallest_effect,
            questions,
            unit: "blocks",
        };
        let words = sentence.say(&found.finding, p, verdict, sides);
        Comparison { metric: found.metric, base: found.base, variant: found.variant, ratio, blocks, p, verdict, words }
    };
    family.into_iter().map(judged).collect()
}

/// Says how many blocks are missing before a difference can be judged.
pub(crate) fn too_few(blocks: usize, what: &str) -> String {
    match blocks {
        1 => {
            let one = what.replace("blocks", "block").replace("runs", "run");
            format!("there is only 1 {one}, and it takes {LEAST_BLOCKS}")
        }
        _ => format!("there are only {blocks} {what}, and it takes {LEAST_BLOCKS}"),
    }
}

#[cfg(test)]
mod tests;
