//! Decides when a cell is done, and estimates the time left.

use std::time::Duration;

use crate::plan::{LEAST_BLOCKS, Rules};
use crate::result::Ended;

/// Returns why a cell ends after this many blocks, or `None` to go on. `precision` is the reach of its widest primary
/// interval; `over` means that its share of the time is used up.
pub(crate) fn ended(rules: &Rules, blocks: usize, precision: Option<f64>, over: bool) -> Option<Ended> {
    if blocks >= rules.min_blocks && precision.is_some_and(|precision| precision <= rules.precision) {
        Some(Ended::Precise)
    } else if blocks >= rules.max_blocks {
        Some(Ended::MaxBlocks)
    } else if over && blocks >= LEAST_BLOCKS {
        Some(Ended::MaxTime)
    } else {
        None
    }
}

/// Returns when the share of a cell (from 0) is used up, since the start. Time that earlier cells saved goes to later
/// ones; time that they overran is not taken twice.
pub(super) fn deadline(rules: &Rules, cell: usize, cells: usize) -> Option<Duration> {
    rules.max_time.map(|time| time.mul_f64((cell + 1) as f64 / cells.max(1) as f64))
}

/// The progress of an experiment.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    /// Time since the start.
    pub(super) elapsed: Duration,
    /// Runs made since then.
    pub(super) runs: usize,
    /// Runs in the current cell.
    pub(super) in_cell: usize,
    /// Its variants that still run.
    pub(super) variants: usize,
    /// Its intervals are as narrow as the rules ask.
    pub(super) precise: bool,
    /// Variants of each later cell.
    pub(super) later: Vec<usize>,
}

/// Returns the minimum and maximum time for the rest, at the pace so far.
pub(super) fn left(rules: &Rules, progress: &Progress) -> (Duration, Duration) {
    let Progress { elapsed, runs, in_cell, variants, precise, ref later } = *progress;
    let pace = elapsed.as_secs_f64() / runs.max(1) as f64;
    let later: usize = later.iter().sum();
    let rest = |blocks: usize| (blocks * variants).saturating_sub(in_cell) as f64 + (blocks * later) as f64;
    // An imprecise cell needs at least one more block.
    let next = if precise { 0 } else { in_cell / variants.max(1) + 1 };
    let least = rest(rules.min_blocks).max((next * variants).saturating_sub(in_cell) as f64);
    let most = rest(rules.max_blocks.max(rules.min_blocks));
    let time = |runs: f64| Duration::try_from_secs_f64(runs * pace).unwrap_or(Duration::MAX);
    let over = rules.max_time.map_or(Duration::MAX, |time| time.saturating_sub(elapsed));
    // Time ends no cell before this.
    let over = over.max(time(rest(LEAST_BLOCKS)));
    (time(least.min(most)).min(over), time(most).min(over))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn rules() -> Rules {
        Rules { min_blocks: 5, max_blocks: 8, precision: 0.02, ..Rules::default() }
    }

    #[test]
    fn the_rule_looks_at_precision_blocks_and_time_and_at_nothing_else() {
        let of = |blocks, precision, over| ended(&rules(), blocks, precision, over);
        assert_eq!(of(4, Some(0.001), false), None, "the least number of blocks comes first");
        assert_eq!(of(5, Some(0.02), false), Some(Ended::Precise));
        assert_eq!(of(5, Some(0.021), false), None);
        assert_eq!(of(7, None, false), None);
        assert_eq!(of(8, None, false), Some(Ended::MaxBlocks));
        assert_eq!(of(8, Some(0.01), true), Some(Ended::Precise));
        assert_eq!(of(2, None, true), None, "with fewer than three blocks nothing could be said");
        assert_eq!(of(3, Some(0.001), true), Some(Ended::MaxTime));
    }

    #[test]
    fn time_that_one_cell_leaves_over_is_for_the_next() {
        let rules = Rules { max_time: Some(60 * SECOND), ..rules() };
        assert_eq!([0, 1, 2].map(|cell| deadline(&rules, cell, 3)), [20, 40, 60].map(|s| Some(s * SECOND)));
        assert_eq!(deadline(&Rules { max_time: None, ..rules }, 0, 1), None);
    }

    #[test]
    fn what_is_left_follows_the_pace_until_now() {
        let so_far = Progress { elapsed: 8 * SECOND, runs: 4, in_cell: 4, variants: 2, precise: false, later: vec![] };
        // Two seconds per run: four of at least ten and at most sixteen are done.
        assert_eq!(left(&rules(), &so_far), (12 * SECOND, 24 * SECOND));
        let later = Progress { later: vec![2, 3], ..so_far.clone() };
        assert_eq!(left(&rules(), &later), ((12 + 50) * SECOND, (24 + 80) * SECOND));
        let beyond = Progress { in_cell: 11, ..so_far.clone() };
        assert_eq!(left(&rules(), &beyond), (2 * SECOND, 10 * SECOND), "the block under way, and no more than three");
        let precise = Progress { precise: true, ..beyond };
        assert_eq!(left(&rules(), &precise).0, Duration::ZERO);
        let hurried = Rules { max_time: Some(10 * SECOND), ..rules() };
        assert_eq!(left(&hurried, &so_far), (4 * SECOND, 4 * SECOND), "three blocks are made in any case");
        assert_eq!(left(&rules(), &Progress::default()), (Duration::ZERO, Duration::ZERO));
    }
}
