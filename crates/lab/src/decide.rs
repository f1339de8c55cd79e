//! The decisions on a comparison: whether it has seen enough, and what follows from its runs.
//!
//! Numbers in, decisions out: no clock, no process. What carries out an experiment asks here, and so does its
//! [calibration](crate::calibrate), whose runs are simulated.

use crate::analysis::{self, Asked};
use crate::metric::Metric;
use crate::plan::Rules;
use crate::result::{Comparison, Ended, Run};
use crate::run::stop;

/// Whether a cell makes no further block after this many, and why. `over`: its share of the time is used up. `alive`: which variants did
/// not fail.
#[must_use]
pub fn ended(rules: &Rules, primary: Metric, runs: &[Run], alive: &[bool], blocks: usize, over: bool) -> Option<Ended> {
    // Not looked at earlier: it would cost time, and change nothing.
    let looked = blocks >= rules.min_blocks;
    let precision = looked.then(|| analysis::precision(primary, runs, alive, rules.precision)).flatten();
    stop::ended(rules, blocks, precision, over)
}

/// Every metric, every pair: the ratio, the verdict, and the verdict in words.
#[must_use]
pub fn comparisons(
    rules: &Rules,
    metrics: &[Metric],
    names: &[String],
    alive: &[bool],
    ended: Ended,
    runs: &[Run],
) -> Vec<Comparison> {
    let asked = Asked {
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
