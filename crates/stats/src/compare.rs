//! Which of two is better: intervals for ratios, and what may be said of them.
//!
//! # What is computed
//!
//! A *block* is one run of each, one right after the other. Whatever the machine was doing, it did to both, so the
//! ratio of their figures says more than the figures. [`ratio`] takes the logarithms of these ratios, so that twice and
//! half are equally far from 1, and then:
//!
//! - **Centre**: their pseudo-median (Hodges and Lehmann), the median of the means of all pairs of blocks. Like the
//!   median it hardly minds a block that went wrong, but its interval is narrower: by 15 % for normal noise and 20
//!   blocks, which saves more than a quarter of the runs. (Where noise is wilder than anything measured here, the
//!   median's is narrower by up to 10 %.)
//! - **Spread**: a bootstrap. The blocks are drawn anew from themselves, with replacement, time and again; how far the
//!   centres of such draws stray from ours tells how far ours may have strayed from the true one. If the servers were
//!   restarted and a *session* between two starts has several blocks, whole sessions are drawn: what they share, be it
//!   the layout of memory or which worker got which connection, does not average out over their blocks. (Drawing blocks
//!   within drawn sessions as well counts their noise twice: 98.5 to 100 % coverage instead of 95 where sessions differ
//!   by 1 % or less. Davison and Hinkley, Bootstrap Methods and their Application, section 3.8, say why.)
//! - **Interval**: the standard error from the bootstrap, times `sqrt(n / (n - 1))`, times `1 + 0.4 / n` for what few blocks leave
//!   out, times Student's t for `n - 1` degrees of freedom; `n` is the number of blocks or sessions, whichever are drawn. Plain
//!   percentiles of the draws hold the truth in only 75 % of cases with three blocks, 86 % with five, 92 % with ten; bias-corrected
//!   ones (BCa) are no better.
//! - **p**: from the same t, so that it is below 0.05 exactly where the interval leaves out 1.
//!
//! # How often a 95 % interval holds the true ratio
//!
//! Per cent of 4,000 simulated comparisons, 1,000 draws each; the noise is that of each run, independent in both.
//! `tests/all/compare.rs` repeats the essential ones.
//!
//! | noise | 3 blocks | 4 | 5 | 10 | 20 | 40 |
//! | :--- | ---: | ---: | ---: | ---: | ---: | ---: |
//! | normal, 3 % | 96.8 | 97.5 | 96.3 | 95.6 | 95.4 | 95.4 |
//! | log-normal, 10 % | 96.7 | 97.5 | 96.3 | 95.7 | 95.5 | 95.3 |
//! | normal, 3 %, and 5 % of the runs slowed by 30 % | 98.0 | 98.2 | 97.7 | 96.7 | 96.7 | 95.7 |
//! | *half-width for normal, 3 %* | 12.5 % | 8.5 % | 5.8 % | 3.4 % | 2.1 % | 1.4 % |
//!
//! Three blocks are thus enough for a large difference only. With sessions that differ by 0 to 6 % among
//! themselves: 10 sessions of 2 blocks 95.2 to 95.9, 5 of 4 96.5 to 97.0, 20 of 2 96.2 to 97.0, 3 of 10 95.8 to 96.5.
//! Two sessions give an interval that reaches nine times as far as what separates them, since two cannot say more.
//!
//! # Stopping when it is precise enough
//!
//! Whoever looks after each block, and stops once the interval is narrow, stops too often when it is narrow by chance:
//! an interval of 95 % then holds the truth in 92 %, and one comparison in thirteen of a server with itself finds a
//! difference. So an interval by whose width one stops reaches further ([`Stopping`]): by `6 / n` where it is nearly as
//! wide as was asked for, from 85 % of that on; by nothing up to 45 % of it, as then it would have been narrow enough whatever
//! chance did (to widen those as well would make them hold the truth in 99.5 %); in between by a part. One that did not become narrow
//! enough until the last block had no such choice, and is computed without. The whole procedure as `compare` runs it (at least 10 blocks,
//! at most 50, a look after each, stop at 2 %, smallest effect 3 %), per cent of 2,000, 500 draws each:
//!
//! | noise | true ratio | interval holds it | called different | equivalent | undecided | blocks |
//! | :--- | ---: | ---: | ---: | ---: | ---: | ---: |
//! | normal, 1 % | 1 | 95.5 | 0.0 | 99.7 | 0.3 | 10.3 |
//! | normal, 2 % | 1 | 96.9 | 1.8 | 88.8 | 9.4 | 16.8 |
//! | normal, 3 % | 1 | 96.2 | 3.5 | 80.1 | 16.4 | 28.4 |

mod bootstrap;
mod student;
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
    /// How far it reaches, to whichever side is farther, as a share: 0.02 if what is estimated at 1 may be 1.02 or
    /// 1/1.02.
    #[must_use]
    pub fn half_width_share(&self) -> f64 {
        (self.high / self.estimate).max(self.estimate / self.low) - 1.0
    }
}

/// How an interval is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bootstrap {
    /// How often the blocks are drawn anew; at least 100 times. 50 blocks drawn 5,000 times take some three
    /// milliseconds; time grows with the square of the number of blocks.
    pub resamples: usize,
    /// Decides the draws: the same data and seed give the same interval.
    pub seed: u64,
    /// How often an interval is to hold the true value: 0.95.
    pub confidence: f64,
    /// Whether intervals decided when measuring stopped.
    pub stopping: Stopping,
}

/// What decided when measuring stopped. Stopping once an interval is narrow picks some that are narrow by chance: those are made wider, to
/// pay for having chosen the moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stopping {
    /// Not the width of an interval.
    Fixed,
    /// This interval reached no further than this share to either side (0.02 is 2 %). To be set both for deciding whether to stop, and
    /// for the interval that is reported if this is why it stopped.
    AtPrecision(f64),
    /// The interval of another figure of the same runs did, which is [wider](RatioEstimate::widened) by this: figures of the same runs
    /// move together.
    As(f64),
}

impl Default for Bootstrap {
    fn default() -> Self {
        Self { resamples: 5000, seed: 1, confidence: 0.95, stopping: Stopping::Fixed }
    }
}

/// One block: both were measured, one right after the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// How often the servers had been started before.
    pub session: usize,
    /// The base's figure.
    pub base: f64,
    /// The variant's figure.
    pub variant: f64,
}

/// One figure of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// How often the server had been started before.
    pub session: usize,
    /// The figure.
    pub value: f64,
}

/// A ratio, and what it rests on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RatioEstimate {
    /// `variant / base`.
    pub interval: Interval,
    /// Probability of a ratio at least so far from 1 if there were no difference. Below `1 - confidence` exactly when
    /// the interval leaves out 1.
    pub p: f64,
    /// Blocks that it rests on: those with two positive, finite figures.
    pub blocks: usize,
    /// Starts of the servers that it rests on.
    pub sessions: usize,
    /// How many times as far the interval reaches as it would if its width had not decided when to stop: 1 where it had no part in
    /// that. For [`Stopping::As`].
    pub widened: f64,
}

/// The ratio `variant / base` from blocks in which both were measured. A block without two positive, finite figures is
/// left out; `None` if fewer than three are left. Neither the order of the blocks matters nor how sessions are
/// numbered, and swapping base and variant gives the inverse.
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

/// The ratio `variant / base` from runs that did not take turns, such as those of a saved result: the interval knows
/// nothing of what else changed between the two. `None` with fewer than three usable runs on either side. Its `blocks`
/// and `sessions` are those of the side that has fewer.
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

/// The median of a figure over runs (of an even number, the geometric mean of the two in the middle), with its
/// interval. `None` with fewer than three usable runs. It holds the true median in 92 to 98 % of cases from ten runs
/// on; with fewer, more often.
#[must_use]
pub fn level(values: &[Value], options: &Bootstrap) -> Option<Interval> {
    let sample = Sample::new(logs(values), Centre::Median)?;
    Some(sample.spread(options).interval(options.confidence))
}

fn logs(values: &[Value]) -> impl Iterator<Item = (usize, f64)> {
    values.iter().map(|value| (value.session, value.value.ln()))
}
