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
    let looked = blocks >= rules.min_blocks && are_whole_starts(rules, blocks);
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

/// Whether this many blocks are two or more whole starts of the servers. If servers start only once, every number is.
///
/// The interval draws starts: a part of one would weigh as much as a whole one, and each look more would be another
/// chance to stop too early. One start alone does not show how much starts differ.
fn are_whole_starts(rules: &Rules, blocks: usize) -> bool {
    match rules.blocks_per_start {
        Some(each) if (2..rules.max_blocks).contains(&each) => blocks > each && blocks.is_multiple_of(each),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precision_is_looked_at_after_whole_starts_only() {
        let looks = |each| {
            let rules = Rules { blocks_per_start: each, max_blocks: 20, ..Rules::default() };
            (1..=20).filter(|&blocks| are_whole_starts(&rules, blocks)).collect::<Vec<_>>()
        };
        assert_eq!(looks(Some(5)), [10, 15, 20], "not after one start");
        assert_eq!(looks(Some(8)), [16]);
        for started_once_or_each_time in [None, Some(1), Some(0), Some(20), Some(50)] {
            assert_eq!(looks(started_once_or_each_time).len(), 20, "{started_once_or_each_time:?}");
        }
    }
}
