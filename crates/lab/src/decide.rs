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
    let looked = blocks >= rules.min_blocks && is_time_to_look(rules, blocks);
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

/// Whether the precision is looked at after this many blocks.
///
/// If servers start several times, only after two or more whole starts. The interval draws starts: a part of one would
/// weigh as much as a whole one, and each look more would be another chance to stop too early. One start alone does not
/// show how much starts differ.
///
/// Else after each block, and from 40 blocks on once per 5 % of blocks more: a look takes a time that grows with the
/// square of the blocks, 3 ms of CPU after 50 and 60 ms after 210. And after the last one.
fn is_time_to_look(rules: &Rules, blocks: usize) -> bool {
    match rules.blocks_per_start {
        Some(each) if (2..rules.max_blocks).contains(&each) => blocks > each && blocks.is_multiple_of(each),
        _ => blocks >= rules.max_blocks || blocks.is_multiple_of((blocks / 20).max(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_become_rarer_with_the_blocks() {
        let looks = |range: std::ops::RangeInclusive<usize>| {
            let rules = Rules { max_blocks: 230, ..Rules::default() };
            range.filter(|&blocks| is_time_to_look(&rules, blocks)).collect::<Vec<_>>()
        };
        assert_eq!(looks(1..=39).len(), 39);
        assert_eq!(looks(39..=50), [39, 40, 42, 44, 46, 48, 50]);
        assert_eq!(looks(200..=230), [200, 210, 220, 230], "the last one too");
    }

    #[test]
    fn precision_is_looked_at_after_whole_starts() {
        let looks = |each| {
            let rules = Rules { blocks_per_start: each, max_blocks: 20, ..Rules::default() };
            (1..=20).filter(|&blocks| is_time_to_look(&rules, blocks)).collect::<Vec<_>>()
        };
        assert_eq!(looks(Some(5)), [10, 15, 20], "not after one start");
        assert_eq!(looks(Some(8)), [16]);
        for started_once_or_each_time in [None, Some(1), Some(0), Some(20), Some(50)] {
            assert_eq!(looks(started_once_or_each_time).len(), 20, "{started_once_or_each_time:?}");
        }
    }
}
