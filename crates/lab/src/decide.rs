//! Decides when a comparison has seen enough, and what follows from its runs.
//!
//! Pure: no clock, no process. Experiments and their [calibration](crate::calibrate) both decide here.

use crate::analysis::{self, ComparisonOptions};
use crate::metric::Metric;
use crate::plan::Rules;
use crate::result::{Comparison, Ended, Run};
use crate::run::stop;

/// Returns why a cell ends after this many blocks, or `None` to go on. `over`: its share of the time is used up.
/// `alive`: the variants that did not fail.
#[must_use]
pub fn ended(rules: &Rules, primary: Metric, runs: &[Run], alive: &[bool], blocks: usize, over: bool) -> Option<Ended> {
    // An earlier look costs time and changes nothing.
    let looked = blocks >= rules.min_blocks;
    let precision = looked.then(|| analysis::precision(primary, runs, alive, rules.precision)).flatten();
    stop::ended(rules, blocks, precision, over)
}

/// Compares every pair by every metric: ratio, verdict, and verdict in words.
#[must_use]
pub fn comparisons(
    rules: &Rules,
    metrics: &[Metric],
    names: &[String],
    alive: &[bool],
    ended: Ended,
    runs: &[Run],
) -> Vec<Comparison> {
    let asked = ComparisonOptions {
        names,
        alive,
        metrics,
        smallest_effect: rules.smallest_effect,
        disturbed: rules.disturbed,
        any_answers: rules.any_answers,
        stopped_at: Some(rules.precision).filter(|_| ended == Ended::Precise),
    };
    analysis::comparisons(&asked, runs)
}
