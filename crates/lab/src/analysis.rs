//! From runs to figures, ratios and verdicts: no clock, no process, only numbers and what may be said of them.
//!
//! - Two variants are compared block by block: the ratio of two runs of one block, and an interval over the blocks
//!   ([`oroshi_stats::compare::ratio`]).
//! - Every pair is compared, the earlier variant being the base; with more than four variants, each only with the first, or with the first that did not fail.
//! - p values are corrected for the number of questions (Holm): the primary metric's among the pairs of its cell, those of the
//!   other metrics among all of theirs. Cells stand for themselves: each answers at another place of the sweep.
//! - Latency depends on the rate, so it is compared only where both answered at the same one, within 2 %, and not both fell behind
//!   their timetable: then it says how long the run was. Of a burst, all that was asked for is its size.
//! - Where more than 5 % of one side's requests were errors, nothing is compared that requests cost or took.
//! - Where both kept one timetable (an open loop), their requests per second are equal because that was asked for.
//!
//! [`comparisons`] does all of it; `facts` holds what must be known of a variant's runs, `sentence` says the verdict.

mod facts;
mod sentence;

use std::collections::BTreeMap;

use oroshi_stats::compare::{self, Bootstrap, Interval, Pair, RatioEstimate, Stopping, Value, Verdict};

use crate::metric::{Better, Metric};
use crate::plan::LEAST_BLOCKS;
use crate::result::{Comparison, Run};

use facts::Timetables;
pub(crate) use facts::{Facts, no_figure, same_rate};
pub(crate) use sentence::Sentence;

/// How often an interval holds the true value.
pub const CONFIDENCE: f64 = 0.95;
/// With more variants than this, each is compared with the first only: ten pairs and more are nobody's question.
const MOST_FOR_ALL_PAIRS: usize = 4;

/// What is asked of the runs of a cell.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The variants' names; their runs tell them by index.
    pub names: &'a [String],
    /// Which of them did not fail.
    pub alive: &'a [bool],
    /// What is compared; the first is the primary one.
    pub metrics: &'a [Metric],
    /// Differences of less than this share do not matter.
    pub smallest_effect: f64,
    /// The cell ended because the primary intervals reached no further than this share. Then some of them are narrow by chance, and
    /// reach further to make up for it ([`Stopping`]): other metrics as much as the primary one, as they move together.
    pub stopped_at: Option<f64>,
}

/// A variant's own figures: of every metric that its runs have, the median over runs with its interval. Empty with fewer than
/// three runs. `stopped_at`: it is alone in its cell, which ended because an interval was narrow enough, as in [`Asked`].
#[must_use]
pub fn figures(runs: &[Run], variant: usize, stopped_at: Option<f64>) -> BTreeMap<Metric, Interval> {
    let options = stopped(stopped_at);
    let of = |metric| Some((metric, compare::level(&values(runs, variant, metric), &options)?));
    Metric::ALL.into_iter().filter_map(of).collect()
}

/// Every metric, every pair: the ratio, the verdict, and the verdict in words.
#[must_use]
pub fn comparisons(asked: &Asked<'_>, runs: &[Run]) -> Vec<Comparison> {
    let facts: Vec<Facts<'_>> =
        asked.names.iter().enumerate().map(|(variant, name)| Facts::of(name, runs, variant)).collect();
    let own = stopped(asked.stopped_at);
    // How much wider the primary ratio of each pair is for having been looked at.
    let mut widened: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    let mut primary = Vec::new();
    let mut others = Vec::new();
    for (place, &metric) in asked.metrics.iter().enumerate() {
        let family = if place == 0 { &mut primary } else { &mut others };
        let found = |(base, variant)| {
            let blocks = blocks(runs, base, variant);
            let options = match widened.get(&(base, variant)) {
                Some(&widened) if place > 0 => Bootstrap { stopping: Stopping::As(widened), ..own },
                _ if place > 0 => bootstrap(),
                _ => own,
            };
            let finding = finding(metric, &facts[base], &facts[variant], &blocks, &options);
            Found { metric, base, variant, both: blocks.len(), finding }
        };
        // One that failed before it was measured is said to have failed, and that is all.
        let there = |&(base, variant): &(usize, usize)| {
            (asked.alive[base] && asked.alive[variant]) || !blocks(runs, base, variant).is_empty()
        };
        let all: Vec<Found> = pairs(asked.alive).into_iter().filter(there).map(found).collect();
        if place == 0 {
            let ratios = all.iter().filter_map(|found| match &found.finding {
                Finding::Ratio(estimate) => Some(((found.base, found.variant), estimate.widened)),
                Finding::Timetable { .. } | Finding::Nothing(_) => None,
            });
            widened = ratios.collect();
        }
        family.extend(all);
    }
    [primary, others].into_iter().flat_map(|family| judge(asked, &facts, family)).collect()
}

/// How far the widest interval of the primary ratios reaches, as a share of the ratio, over all pairs of variants that are still
/// `alive`; with one variant alone, the interval of its own figure. `asked` is how far it may reach in the end. `None` while one of them has no interval.
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

/// Which are compared: base and variant. With many, those with the first; if that failed, those with the next as well, until there is
/// a base that did not.
fn pairs(alive: &[bool]) -> Vec<(usize, usize)> {
    let variants = alive.len();
    let first_alive = alive.iter().position(|alive| *alive).unwrap_or(0);
    let bases = if variants > MOST_FOR_ALL_PAIRS { first_alive + 1 } else { variants };
    (0..bases).flat_map(|base| (base + 1..variants).map(move |variant| (base, variant))).collect()
}

/// The blocks in which both were measured.
fn blocks(runs: &[Run], base: usize, variant: usize) -> Vec<(&Run, &Run)> {
    let find = |run: &Run| runs.iter().find(|other| other.variant == variant && other.block == run.block);
    runs.iter().filter(|run| run.variant == base).filter_map(|run| Some((run, find(run)?))).collect()
}

fn ratio(metric: Metric, blocks: &[(&Run, &Run)], options: &Bootstrap) -> Option<RatioEstimate> {
    let pair = |(base, variant): &(&Run, &Run)| {
        let (base_figure, figure) = (*base.figures.get(&metric)?, *variant.figures.get(&metric)?);
        Some(Pair { session: base.session, base: base_figure, variant: figure })
    };
    compare::ratio(&blocks.iter().filter_map(pair).collect::<Vec<_>>(), options)
}

/// A variant's figures, run by run.
pub(crate) fn values(runs: &[Run], variant: usize, metric: Metric) -> Vec<Value> {
    let value = |run: &Run| Some(Value { session: run.session, value: *run.figures.get(&metric)? });
    runs.iter().filter(|run| run.variant == variant).filter_map(value).collect()
}

/// Of intervals that decided when to stop: once they reached no further than this share.
fn stopped(at: Option<f64>) -> Bootstrap {
    Bootstrap { stopping: at.map_or(Stopping::Fixed, Stopping::AtPrecision), ..bootstrap() }
}

pub(crate) fn bootstrap() -> Bootstrap {
    Bootstrap { confidence: CONFIDENCE, ..Bootstrap::default() }
}

/// What a metric shows of a pair, before it is judged.
struct Found {
    metric: Metric,
    base: usize,
    variant: usize,
    both: usize,
    finding: Finding,
}

/// What can be said at all.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Finding {
    /// A ratio, to be judged.
    Ratio(RatioEstimate),
    /// Both answered what one timetable asked of them, so their rates say nothing.
    Timetable {
        /// Requests per second.
        rate: f64,
    },
    /// Nothing; why.
    Nothing(String),
}

fn finding(
    metric: Metric,
    base: &Facts<'_>,
    variant: &Facts<'_>,
    blocks: &[(&Run, &Run)],
    options: &Bootstrap,
) -> Finding {
    if let Some(finding) = given_rate(metric, base, variant) {
        return finding;
    }
    if let Some(why) = facts::failing(base, variant).filter(|_| metric != Metric::Memory) {
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

/// What timetables say of the requests per second; `None` where the servers had a say in it, and for other metrics.
pub(crate) fn given_rate(metric: Metric, base: &Facts<'_>, variant: &Facts<'_>) -> Option<Finding> {
    match facts::timetables(base, variant) {
        _ if metric != Metric::Rps => None,
        Timetables::Ratio => None,
        Timetables::Kept { rate } => Some(Finding::Timetable { rate }),
        Timetables::Differ(why) => Some(Finding::Nothing(why)),
    }
}

/// Corrects the p values of a family of questions and says what follows.
fn judge(asked: &Asked<'_>, facts: &[Facts<'_>], family: Vec<Found>) -> Vec<Comparison> {
    let raw: Vec<f64> = family.iter().filter_map(Found::p).collect();
    let questions = raw.len();
    let mut adjusted = compare::holm(&raw).into_iter();
    let judged = |found: Found| {
        let p = found.p().and_then(|_| adjusted.next());
        let (ratio, blocks, verdict) = match (&found.finding, p) {
            (Finding::Ratio(estimate), Some(p)) => {
                let better = found.metric.better() == Better::Higher;
                let verdict = compare::verdict(&estimate.interval, p, asked.smallest_effect, better, CONFIDENCE);
                (Some(estimate.interval), estimate.blocks, verdict)
            }
            (Finding::Timetable { .. }, _) => (None, found.both, Verdict::Equivalent),
            (Finding::Ratio(_) | Finding::Nothing(_), _) => (None, found.both, Verdict::NotCompared),
        };
        let sentence = Sentence {
            metric: found.metric,
            base: &asked.names[found.base],
            variant: &asked.names[found.variant],
            smallest_effect: asked.smallest_effect,
            questions,
            unit: "blocks",
        };
        let words = sentence.say(&found.finding, p, verdict, [&facts[found.base], &facts[found.variant]]);
        Comparison { metric: found.metric, base: found.base, variant: found.variant, ratio, blocks, p, verdict, words }
    };
    family.into_iter().map(judged).collect()
}

impl Found {
    fn p(&self) -> Option<f64> {
        match &self.finding {
            Finding::Ratio(estimate) => Some(estimate.p),
            Finding::Timetable { .. } | Finding::Nothing(_) => None,
        }
    }
}

/// Blocks that are needed before anything is said of a difference, in words.
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
