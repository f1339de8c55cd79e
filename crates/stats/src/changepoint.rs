//! Whether a series stayed at one level.
//!
//! A run counts as one measurement only if its server did the same thing all along. [`shift`] looks for the one place
//! where the level of a series changes most clearly, and asks how often a series *without* a change would show one as
//! clear. Neighbouring points of a throughput curve resemble each other, which makes chance steps; so the series it
//! compares with are simulated with as much resemblance as this one may have (an AR(1) process). The estimate of it
//! from a short series runs low, hence the allowance `CAUTION`.
//!
//! How often it finds something where there is nothing, `least_change` being 0, and how often it finds a drop of 10 %;
//! normal noise of 3 %, per cent of 4,000 series (1,000 of 100 points and more):
//!
//! | points | nothing, independent points | nothing, autocorrelation 0.5 | nothing, 0.7 | drop after a half | after a third | after a sixth |
//! | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
//! | 8 | 0.2 | 1.2 | 2.1 | 20 | 0 | 0 |
//! | 15 | 0.2 | 1.8 | 2.8 | 57 | 54 | 2 |
//! | 20 | 0.3 | 1.1 | 2.6 | 75 | 70 | 44 |
//! | 30 | 0.2 | 0.8 | 1.9 | 96 | 95 | 83 |
//! | 50 | 0.3 | 1.0 | 2.1 | 100 | 100 | 100 |
//! | 100 | 0.2 | 0.5 | 0.8 | 100 | 100 | 100 |
//! | 600 | 0.5 | 0.5 | 0.4 | 100 | 100 | 100 |
//!
//! (The drops are in independent points; with an autocorrelation of 0.5, 30 points show 52 % of those after a half, 50
//! points 85 %, 100 points all.)
//!
//! A `least_change` takes away about half of the false alarms in short series and nearly all in long ones, since chance
//! steps are small. What it does not do: find two changes (a dip that recovers shows as one step, or not at all), or
//! tell a slow drift from a step. Noise that wanders, with an autocorrelation near 1, passes for a step more often:
//! such a run had no level.

use std::f64::consts::TAU;

use fastrand::Rng;

/// A change of level within a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shift {
    /// The first point at the new level, from 0.
    pub at: usize,
    /// The level before: the median of the points, in their unit.
    pub before: f64,
    /// The level from there on.
    pub after: f64,
    /// Probability of a step as clear as this in a series without one; below 0.01.
    pub p: f64,
}

/// The clearest change of level in a series of measurements at even distances, if there is one: significant (p < 0.01),
/// and with `after` differing from `before` by at least `least_change` of `before` (0.05 is 5 %). `None` also for fewer
/// than eight points, or if one of them is not finite. At least three points lie on either side of a change, and a
/// twentieth of all.
///
/// The same series always gives the same answer. A clear change takes a few milliseconds for 600 points.
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
/// Points on either side of one that tell what is usual around it.
const NEIGHBOURS: usize = 3;
const SIGNIFICANT: f64 = 0.01;
/// Series that a step is compared with. The smallest p is one over one more than this.
const SIMULATED: usize = 999;
/// Degrees of freedom that a fitted step uses up: two means, and a place that is worth as much.
const FITTED: usize = 4;
/// Standard errors that the autocorrelation is taken to be above its estimate.
const CAUTION: f64 = 1.8;
/// With more, no series would ever show a step.
const MOST_AUTOCORRELATION: f64 = 0.98;

/// A series cut in two, each part with its mean.
struct Step {
    at: usize,
    means: [f64; 2],
    /// How much of the variance it explains, over the variance that is left: the square of Student's t.
    clearness: f64,
}

impl Step {
    /// The cut that explains most. `None` if nothing varies.
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

    /// How much each point resembles the one before it, the step taken away. Unbiased to the first order: a series from
    /// which two means are subtracted shows too little (Kendall 1954).
    fn autocorrelation(&self, points: &[f64]) -> f64 {
        let off = |index: usize| points[index] - self.means[usize::from(index >= self.at)];
        let squares: f64 = (0..points.len()).map(|index| off(index) * off(index)).sum();
        let products: f64 = (1..points.len()).map(|index| off(index) * off(index - 1)).sum();
        let raw = if squares > 0.0 { products / squares } else { 0.0 };
        raw + (2.0 + 4.0 * raw) / points.len() as f64
    }

    /// The share of stationary series, `points` long, that show a step as clear. `None` as soon as it is sure not to be
    /// significant.
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

/// As high as the autocorrelation may well be.
fn cautious(estimate: f64, points: usize) -> f64 {
    let error = ((1.0 - estimate * estimate).max(0.0) / (points - FITTED) as f64).sqrt();
    (estimate + CAUTION * error).clamp(0.0, MOST_AUTOCORRELATION)
}

/// Fills in a normal AR(1) process with variance 1.
fn simulate(series: &mut [f64], autocorrelation: f64, rng: &mut Rng) {
    let fresh = (1.0 - autocorrelation * autocorrelation).sqrt();
    let mut last = None;
    for two in series.chunks_mut(2) {
        // Box and Muller (1958): two normal numbers at a time.
        let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
        let (sin, cos) = (TAU * rng.f64()).sin_cos();
        for (point, normal) in two.iter_mut().zip([radius * cos, radius * sin]) {
            *point = last.map_or(normal, |last: f64| autocorrelation * last + fresh * normal);
            last = Some(*point);
        }
    }
}

/// With each point moved to within four standard deviations of the median of its neighbourhood: a stall of a few points
/// is no change of level, and is not to hide one either.
fn without_outliers(points: &[f64]) -> Vec<f64> {
    let around =
        |index: usize| median(&points[index.saturating_sub(NEIGHBOURS)..points.len().min(index + NEIGHBOURS + 1)]);
    let levels: Vec<f64> = (0..points.len()).map(around).collect();
    let distances: Vec<f64> = points.iter().zip(&levels).map(|(point, level)| (point - level).abs()).collect();
    // The median distance of normal numbers from their middle is two thirds of a standard deviation.
    let reach = 4.0 * 1.4826 * median(&distances);
    if reach > 0.0 {
        points.iter().zip(&levels).map(|(point, level)| point.clamp(level - reach, level + reach)).collect()
    } else {
        points.to_vec() // where most points are equal, "far" has no meaning
    }
}

fn median(points: &[f64]) -> f64 {
    let mut sorted = points.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[(sorted.len() - 1) / 2].midpoint(sorted[sorted.len() / 2])
}
