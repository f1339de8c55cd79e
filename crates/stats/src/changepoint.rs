//! Detects a change of level within a series.
//!
//! A run counts as one measurement only if its server behaved the same throughout. [`shift`] finds the point where
//! the level of a series changes most clearly. It then estimates how often a series *without* a change would show a
//! step as clear. Neighbouring points of a throughput curve are correlated, which produces chance steps. Therefore
//! the simulated series are AR(1) processes, as correlated as the measured series may be. Short series underestimate
//! their autocorrelation, hence the allowance `CAUTION`.
//!
//! The table has the share of series in which `shift` finds a step, in per cent: false alarms in series without a
//! change (`least_change` is 0), and drops of 10 %. Noise is normal, 3 %; each cell has 4,000 series (1,000 from 100
//! points on).
//!
//! | points | no change: independent | autocorrelation 0.5 | autocorrelation 0.7 | drop at 1/2 | at 1/3 | at 1/6 |
//! | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
//! | 8 | 0.2 | 1.2 | 2.1 | 20 | 0 | 0 |
//! | 15 | 0.2 | 1.8 | 2.8 | 57 | 54 | 2 |
//! | 20 | 0.3 | 1.1 | 2.6 | 75 | 70 | 44 |
//! | 30 | 0.2 | 0.8 | 1.9 | 96 | 95 | 83 |
//! | 50 | 0.3 | 1.0 | 2.1 | 100 | 100 | 100 |
//! | 100 | 0.2 | 0.5 | 0.8 | 100 | 100 | 100 |
//! | 600 | 0.5 | 0.5 | 0.4 | 100 | 100 | 100 |
//!
//! The drops are in independent points. With an autocorrelation of 0.5, `shift` finds a drop after a half in 52 % of
//! series of 30 points, in 85 % of 50 points, and in all of 100 points.
//!
//! Chance steps are small, so a `least_change` removes about half of the false alarms in short series and nearly all
//! in long ones. Limits: `shift` does not find two changes (a dip that recovers appears as one step, or not at all),
//! and does not distinguish slow drift from a step. Noise with an autocorrelation near 1 is taken for a step more
//! often; such a run had no level.

use std::f64::consts::TAU;

use fastrand::Rng;

/// A change of level within a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shift {
    /// The first point at the new level, from 0.
    pub at: usize,
    /// The level before: the median of the points, in their unit.
    pub before: f64,
    /// The level from there on: the median of those points.
    pub after: f64,
    /// Probability of a step at least as clear in a series without a change; below 0.01.
    pub p: f64,
}

/// Finds the clearest change of level in a series of equally spaced measurements.
///
/// The change is significant (p < 0.01), and `after` differs from `before` by at least `least_change` of `before`
/// (0.05 is 5 %). Each side of a change has at least three points, and at least a twentieth of all.
///
/// Returns `None` without such a change, for fewer than eight points, or if a point is not finite. The same series
/// always gives the same answer. A clear change in 600 points takes a few milliseconds.
#[must_use]
pub fn shift(points: &[f64], least_change: f64) -> Option<Shift> {
    if points.len() < LEAST_POINTS || points.iter().any(|point| !point.is_finite()) {
        return None;
    }
    let tamed = without_outliers(points);
    let step = Step::clearest(&tamed)?;
    let (before, after) = (median(&points[..step.at]), median(&points[step.at..]));
    let change = ((after - before) / before).abs();
    if change.is_nan() || change == 0.0 || change < least_change {
        return None;
    }
    let p = step.p(points.len(), cautious(step.autocorrelation(&tamed), points.len()))?;
    Some(Shift { at: step.at, before, after, p })
}

const LEAST_POINTS: usize = 8;
const LEAST_SIDE: usize = 3;
/// Points on either side of a point that count as its neighbourhood.
const NEIGHBOURS: usize = 3;
const SIGNIFICANT: f64 = 0.01;
/// Number of simulated series. The smallest p is one over one more than this.
const SIMULATED: usize = 999;
/// Degrees of freedom of a fitted step: two means, and a position that counts as two.
const FITTED: usize = 4;
/// Standard errors added to the estimated autocorrelation.
const CAUTION: f64 = 1.8;
/// Upper limit of the autocorrelation: with more, no series would ever show a step.
const MOST_AUTOCORRELATION: f64 = 0.98;

/// A series cut in two, each part with its mean.
struct Step {
    at: usize,
    means: [f64; 2],
    /// Variance that the step explains over the variance that remains: the square of Student's t.
    clearness: f64,
}

impl Step {
    /// Finds the cut that explains most. `None` if the points do not vary.
    fn clearest(points: &[f64]) -> Option<Self> {
        let n = points.len();
        let least = LEAST_SIDE.max(n / 20);
        let mean = points.iter().sum::<f64>() / n as f64;
        let total: f64 = points.iter().map(|point| (point - mean) * (point - mean)).sum();
        if !(total > 0.0 && total.is_finite()) {
            return None;
        }
        let (mut at, mut explained, mut off) = (0, -1.0, 0.0);
        let mut sum = 0.0;
        for (index, point) in points[..n - least].iter().enumerate() {
            sum += point - mean;
            let before = index + 1;
            let here = sum * sum * n as f64 / (before * (n - before)) as f64;
            if before >= least && here > explained {
                (at, explained, off) = (before, here, sum);
            }
        }
        let left = (total - explained).max(0.0) / (n - 2) as f64;
        let means = [mean + off / at as f64, mean - off / (n - at) as f64];
        Some(Self { at, means, clearness: explained / left })
    }

    /// Estimates the lag-1 autocorrelation after removing the step.
    ///
    /// Unbiased to the first order: subtracting two means from a series lowers its autocorrelation (Kendall 1954).
    fn autocorrelation(&self, points: &[f64]) -> f64 {
        let off = |index: usize| points[index] - self.means[usize::from(index >= self.at)];
        let squares: f64 = (0..points.len()).map(|index| off(index) * off(index)).sum();
        let products: f64 = (1..points.len()).map(|index| off(index) * off(index - 1)).sum();
        let raw = if squares > 0.0 { products / squares } else { 0.0 };
        raw + (2.0 + 4.0 * raw) / points.len() as f64
    }

    /// Returns the share of stationary series of `points` points that show a step as clear. Returns `None` as soon as
    /// the step is certainly not significant.
    fn p(&self, points: usize, autocorrelation: f64) -> Option<f64> {
        let mut rng = Rng::with_seed(1);
        let mut series = vec![0.0; points];
        let mut as_clear = 1; // this one
        for _ in 0..SIMULATED {
            simulate(&mut series, autocorrelation, &mut rng);
            if Self::clearest(&series).is_some_and(|step| step.clearness >= self.clearness) {
                as_clear += 1;
                if as_clear as f64 >= SIGNIFICANT * (SIMULATED + 1) as f64 {
                    return None;
                }
            }
        }
        Some(as_clear as f64 / (SIMULATED + 1) as f64)
    }
}

/// Returns the estimate plus `CAUTION` standard errors, at most `MOST_AUTOCORRELATION`.
pub(crate) fn cautious(estimate: f64, points: usize) -> f64 {
    let error = ((1.0 - estimate * estimate).max(0.0) / (points - FITTED) as f64).sqrt();
    (estimate + CAUTION * error).clamp(0.0, MOST_AUTOCORRELATION)
}

/// Fills `series` with a normal AR(1) process of variance 1.
pub(crate) fn simulate(series: &mut [f64], autocorrelation: f64, rng: &mut Rng) {
    let fresh = (1.0 - autocorrelation * autocorrelation).sqrt();
    let mut last = None;
    for two in series.chunks_mut(2) {
        let normals = normal_pair(rng);
        for (point, normal) in two.iter_mut().zip([normals.0, normals.1]) {
            *point = last.map_or(normal, |last: f64| autocorrelation * last + fresh * normal);
            last = Some(*point);
        }
    }
}

/// Draws two normal numbers (Box and Muller 1958).
pub(crate) fn normal_pair(rng: &mut Rng) -> (f64, f64) {
    let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
    let (sin, cos) = (TAU * rng.f64()).sin_cos();
    (radius * cos, radius * sin)
}

/// Moves each point to within four standard deviations of the median of its neighbourhood. A stall of a few points is
/// not a change of level, and must not hide one.
pub(crate) fn without_outliers(points: &[f64]) -> Vec<f64> {
    let around =
        |index: usize| median(&points[index.saturating_sub(NEIGHBOURS)..points.len().min(index + NEIGHBOURS + 1)]);
    let levels: Vec<f64> = (0..points.len()).map(around).collect();
    let distances: Vec<f64> = points.iter().zip(&levels).map(|(point, level)| (point - level).abs()).collect();
    // For normal numbers, the median distance from the centre is two thirds of a standard deviation.
    let reach = 4.0 * 1.4826 * median(&distances);
    if reach > 0.0 {
        points.iter().zip(&levels).map(|(point, level)| point.clamp(level - reach, level + reach)).collect()
    } else {
        points.to_vec() // where most points are equal, "far" has no meaning
    }
}

pub(crate) fn median(points: &[f64]) -> f64 {
    let mut sorted = points.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[(sorted.len() - 1) / 2].midpoint(sorted[sorted.len() / 2])
}
