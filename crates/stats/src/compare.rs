//! Intervals for the ratio of two variants, and verdicts on them.
//!
//! # Method
//!
//! A *block* is one run of each variant, one right after the other. Drift of the machine affects both, so it cancels
//! out in the ratio of their figures. [`ratio`] takes the logarithms of these ratios, so that twice and half are
//! equally far from 1, and computes:
//!
//! - **Centre**: the pseudo-median (Hodges and Lehmann), which is the median of the means of all pairs of blocks. It
//!   resists outliers like the median, but its interval is narrower: by 15 % for normal noise and 20 blocks, which
//!   saves more than a quarter of the runs. (Only for noise wilder than any measured here is the interval of the
//!   median narrower, by up to 10 %.)
//! - **Spread**: a bootstrap. Blocks are drawn with replacement many times; the spread of the resampled centres
//!   estimates the error of ours. If the servers were restarted, and a *session* between two starts has several
//!   blocks, whole sessions are drawn. The blocks of a session share conditions, such as the layout of memory or the
//!   assignment of connections to workers, so these do not average out within a session. (Drawing blocks within drawn
//!   sessions as well would count their noise twice: 98.5 to 100 % coverage instead of 95 where sessions differ by 1
//!   % or less. See Davison and Hinkley, Bootstrap Methods and their Application, section 3.8.)
//! - **Interval**: the standard error from the bootstrap, times `sqrt(n / (n - 1))`, times `1 + 0.4 / n` as a
//!   correction for few blocks, times Student's t for `n - 1` degrees of freedom; `n` is the number of blocks or
//!   sessions, whichever are drawn. Figures of slow servers are skewed, and a plain interval would find a difference in
//!   up to 6 % of comparisons of a server with itself. So it is 3 % wider: with 50 blocks of normal noise it contains
//!   the true ratio in 95.7 % instead of 95.1. Plain percentiles of the draws contain it in only 75 % of cases with
//!   three blocks, 86 % with five, 92 % with ten. Bias-corrected ones (BCa) are no better.
//! - **p**: from the same t, so p is below 0.05 exactly where the 95 % interval excludes 1.
//!
//! # Coverage of a 95 % interval
//!
//! The table has the per cent of 4,000 simulated comparisons, of 1,000 draws each, whose interval contains the true
//! ratio. The noise is independent in each run. `tests/compare.rs` repeats the essential ones.
//!
//! | noise | 3 blocks | 4 | 5 | 10 | 20 | 40 |
//! | :--- | ---: | ---: | ---: | ---: | ---: | ---: |
//! | normal, 3 % | 97.3 | 97.9 | 96.5 | 96.2 | 96.3 | 95.5 |
//! | log-normal, 10 % | 97.4 | 97.8 | 96.3 | 96.1 | 96.1 | 95.4 |
//! | normal, 3 %, and 5 % of the runs slowed by 30 % | 97.8 | 98.4 | 97.3 | 96.4 | 97.5 | 96.3 |
//! | *mean half-width for normal, 3 %* | 14.5 % | 9.7 % | 6.4 % | 3.6 % | 2.2 % | 1.5 % |
//!
//! Three blocks thus suffice for a large difference only. With sessions that differ by 0 to 6 %: 10 sessions of 2
//! blocks 95.7 to 96.6, 5 of 4 96.4 to 96.8, 20 of 2 95.7 to 96.2, 3 of 10 96.0 to 96.3. The interval from two
//! sessions reaches nine times as far as their distance, because two sessions carry little information.
//!
//! # Stopping when it is precise enough
//!
//! A procedure that checks after each block, and stops once the interval is narrow, stops too often when the interval
//! is narrow by chance. A 95 % interval then contains the true ratio in only 92 %, and one comparison in thirteen of
//! a server with itself finds a difference. Therefore an interval whose width decides when to stop is widened
//! ([`Stopping`]):
//!
//! - by `5 / n` from 85 % of the requested width on;
//! - not at all up to 45 % of that width: such an interval would have been narrow enough in any case, and widening it
//!   too would raise its coverage to 99.5 %;
//! - by a part of `5 / n` in between.
//!
//! With fewer than seven blocks or sessions, chance makes much narrower intervals: two sessions often agree. Both
//! limits then shrink in proportion to `n - 1`. For a precise figure from sessions, look only when a session is
//! complete: with 5 blocks per session, or 10, looks after each block left only 92 % or 85 % coverage.
//!
//! Figures that did not decide are selected as far as they [vary together](shared_variance) with the figure that did.
//! They are widened by that share: an independent figure, widened in full, had 98 to 99 % coverage.
//!
//! An interval that is still too wide after the last block is not widened. The table has the whole procedure as
//! `compare` runs it (10 to 50 blocks, a check after each, stop at 2 %, smallest effect 3 %), per cent of 2,000, 500
//! draws each:
//!
//! | noise | true ratio | interval contains it | called different | equivalent | undecided | blocks |
//! | :--- | ---: | ---: | ---: | ---: | ---: | ---: |
//! | normal, 1 % | 1 | 96.8 | 0.1 | 99.7 | 0.3 | 10.4 |
//! | normal, 2 % | 1 | 97.3 | 1.8 | 89.2 | 9.1 | 16.8 |
//! | normal, 3 % | 1 | 96.3 | 3.5 | 81.3 | 15.2 | 28.4 |

mod bootstrap;
pub(crate) mod student;
mod verdict;

use serde::{Deserialize, Serialize};

use bootstrap::{Centre, Sample};
pub use verdict::{Verdict, holm, verdict};

/// An estimate with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The estimate.
    pub estimate: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// Distance from the estimate to the farther end, as a share: 0.02 if 1 may be 1.02 or 1/1.02.
    #[must_use]
    pub fn half_width_share(&self) -> f64 {
        (self.high / self.estimate).max(self.estimate / self.low) - 1.0
    }
}

/// Parameters of an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bootstrap {
    /// Number of resamples; at least 100. 5,000 resamples of 50 blocks take about three milliseconds; time grows with
    /// the square of the number of blocks.
    pub resamples: usize,
    /// Seed of the draws: the same data and seed give the same interval.
    pub seed: u64,
    /// Share of intervals that contain the true value: 0.95.
    pub confidence: f64,
    /// Whether intervals decided when measuring stopped.
    pub stopping: Stopping,
}

/// The rule that decided when measuring stopped.
///
/// Stopping once an interval is narrow selects some that are narrow by chance. Those intervals are widened to
/// compensate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stopping {
    /// The width of an interval had no influence.
    Fixed,
    /// Measuring stopped when this interval reached no further than this share to either side (0.02 is 2 %). Set it
    /// both for the decision to stop, and for the reported interval if that decision ended the measurement.
    AtPrecision(f64),
    /// The interval of another figure of the same runs decided. This interval is widened by this factor, which depends
    /// on how far both figures [move together](shared_variance).
    As(f64),
}

impl Default for Bootstrap {
    fn default() -> Self {
        Self { resamples: 5000, seed: 1, confidence: 0.95, stopping: Stopping::Fixed }
    }
}

/// One block: both variants were measured, one right after the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Number of earlier starts of the servers.
    pub session: usize,
    /// The base's figure.
    pub base: f64,
    /// The variant's figure.
    pub variant: f64,
}

/// One figure of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// Number of earlier starts of the server.
    pub session: usize,
    /// The figure.
    pub value: f64,
}

/// A ratio, its interval, and the amount of data behind it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RatioEstimate {
    /// `variant / base`.
    pub interval: Interval,
    /// Probability of a ratio at least this far from 1 if there were no difference. Below `1 - confidence` exactly
    /// when the interval excludes 1.
    pub p: f64,
    /// Blocks used: those with two positive, finite figures.
    pub blocks: usize,
    /// Starts of the servers that the blocks come from.
    pub sessions: usize,
    /// Factor by which the interval was widened because its width decided when to stop; 1 if it did not. For
    /// [`Stopping::As`].
    pub widened: f64,
}

/// Estimates the ratio `variant / base` from blocks in which both were measured.
///
/// Skips blocks without two positive, finite figures; returns `None` if fewer than three remain. The result does not
/// depend on the order of the blocks or on the numbers of the sessions. Swapping base and variant gives the inverse.
#[must_use]
pub fn ratio(pairs: &[Pair], options: &Bootstrap) -> Option<RatioEstimate> {
    let logs = pairs.iter().map(|pair| (pair.session, pair.variant.ln() - pair.base.ln()));
    let sample = Sample::new(logs, Centre::PseudoMedian)?;
    let spread = sample.spread(options);
    Some(RatioEstimate {
        interval: spread.interval(options.confidence),
        p: spread.p(),
        blocks: sample.blocks(),
        sessions: sample.sessions(),
        widened: spread.widened(),
    })
}

/// Returns the share of one figure's variance between blocks that goes with the other's: r² of their logarithmic
/// ratios.
///
/// `one` and `other` are figures of the same blocks, in the same order. Skips blocks in which a figure is not positive
/// and finite. Without any variance the share is 1.
#[must_use]
pub fn shared_variance(one: &[Pair], other: &[Pair]) -> f64 {
    let log = |pair: &Pair| pair.variant.ln() - pair.base.ln();
    let logs = one.iter().zip(other).map(|(one, other)| (log(one), log(other)));
    let logs: Vec<(f64, f64)> = logs.filter(|(one, other)| one.is_finite() && other.is_finite()).collect();
    let mean = |of: fn(&(f64, f64)) -> f64| logs.iter().map(of).sum::<f64>() / logs.len() as f64;
    let (centre, other_centre) = (mean(|log| log.0), mean(|log| log.1));
    let (mut both, mut own, mut others) = (0.0, 0.0, 0.0);
    for (log, other) in &logs {
        let (stray, other_stray) = (log - centre, other - other_centre);
        both += stray * other_stray;
        own += stray * stray;
        others += other_stray * other_stray;
    }
    if own * others > 0.0 { (both * both / (own * others)).min(1.0) } else { 1.0 }
}

/// Estimates the ratio `variant / base` from runs that did not alternate, such as those of a saved result.
///
/// The interval does not account for anything else that changed between the two. Returns `None` with fewer than three
/// usable runs on either side. Its `blocks` and `sessions` are the counts of the smaller side.
#[must_use]
pub fn ratio_unpaired(base: &[Value], variant: &[Value], options: &Bootstrap) -> Option<RatioEstimate> {
    let base = Sample::new(logs(base), Centre::PseudoMedian)?;
    let variant = Sample::new(logs(variant), Centre::PseudoMedian)?;
    let spread = variant.spread(options).minus(&base.spread(options));
    Some(RatioEstimate {
        interval: spread.interval(options.confidence),
        p: spread.p(),
        blocks: base.blocks().min(variant.blocks()),
        sessions: base.sessions().min(variant.sessions()),
        widened: spread.widened(),
    })
}

/// Returns the median of a figure over runs, with its interval.
///
/// For an even number of runs, the median is the geometric mean of the two in the middle. Returns `None` with fewer
/// than three usable runs. The interval contains the true median in 92 to 98 % of cases from ten runs on; with fewer,
/// more often.
#[must_use]
pub fn level(values: &[Value], options: &Bootstrap) -> Option<Interval> {
    let sample = Sample::new(logs(values), Centre::Median)?;
    Some(sample.spread(options).interval(options.confidence))
}

fn logs(values: &[Value]) -> impl Iterator<Item = (usize, f64)> {
    values.iter().map(|value| (value.session, value.value.ln()))
}
