//! Steps in the level of a figure from measurement to measurement: change points over commits.
//!
//! [`steps`] divides a series again and again, as E-divisive does (Matteson and James 2014; Otava uses it). It differs
//! in two points, because a history is short and its machine is known:
//!
//! - E-divisive tests a division by permutations, which cannot be significant with few points on a side. Here the
//!   statistic is the step's height in standard errors, and the test compares it with simulated series without a step.
//!   Two points on a side can suffice.
//! - The standard error also uses the [`Noise`] of the machine, known from its other series. Each side's own points
//!   then need not show how much measurements scatter.
//!
//! A division cuts a window out of the series: either a rest of it (one step), or a part within it (a dip that
//! recovers, two steps). Divisions that an adjacent one makes superfluous are removed afterwards. Points are compared
//! by their logarithms, so all changes are ratios.
//!
//! Measurements of one machine vary together for a while, which produces chance steps. The simulated series are
//! therefore AR(1) processes, as in [`changepoint`](crate::changepoint).
//!
//! The interval of a step is Student's, with both sides' scatter pooled with the machine's. It assumes that the step's
//! place is right. `tests/all/steps.rs` has its coverage, and the rates of false and of missed steps.

use std::ops::Add;

use fastrand::Rng;

use crate::changepoint::{cautious, median, normal_pair, simulate, without_outliers};
use crate::compare::Interval;
use crate::compare::student;

/// The most points of a series that are divided; of more, the last ones.
pub const MOST_POINTS: usize = 400;
/// The fewest points of a series in which a step can be found with the noise of the machine.
pub const LEAST_POINTS: usize = 4;
/// The fewest points of a series in which a step is found without that noise, four on each side. In shorter series a
/// level that doubles is seldom found, because they cannot show that their points do not vary together.
pub const LEAST_ALONE: usize = 8;

/// How measurements on one machine scatter around their level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    /// Standard deviation of the logarithms: 0.01 is about 1 %.
    pub spread: f64,
    /// Degrees of freedom behind it: points minus levels.
    pub freedom: usize,
    /// Lag-1 autocorrelation, with an allowance for its error; 0 to 1.
    pub autocorrelation: f64,
}

/// A change of level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The first point at the new level, from 0.
    pub at: usize,
    /// The new level over the old one, with its 95 % interval.
    pub ratio: Interval,
    /// Probability that a series without a step is divided as clearly; below 0.01.
    pub p: f64,
}

/// The ratio of two given groups of measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// The second group's level over the first one's, with its 95 % interval.
    pub ratio: Interval,
    /// Probability of a ratio at least this far from 1 without a change.
    pub p: f64,
}

/// Finds the steps of a series of positive figures, in order.
///
/// A step begins only at points for which `may_begin` is true (the first measurement of a commit), and has at least two
/// points on each side. Steps whose ratio differs from 1 by less than `least_change` are left out. Returns no step if a
/// figure is not positive and finite. Only the last [`MOST_POINTS`] are divided. The same series always gives the same
/// answer; 100 points take a few milliseconds.
#[must_use]
pub fn steps(points: &[f64], may_begin: &[bool], noise: Option<&Noise>, least_change: f64) -> Vec<Step> {
    let skipped = points.len().saturating_sub(MOST_POINTS);
    let points = &points[skipped..];
    let may_begin = &may_begin[skipped.min(may_begin.len())..];
    if points.len() < LEAST_POINTS
        || may_begin.len() != points.len()
        || points.iter().any(|point| !(point.is_finite() && *point > 0.0))
    {
        return Vec::new();
    }
    let logs: Vec<f64> = points.iter().map(|point| point.ln()).collect();
    let tamed = without_outliers(&logs);
    let autocorrelation = match noise {
        Some(noise) if noise.freedom >= points.len() => noise.autocorrelation,
        _ => autocorrelation_within_levels(&tamed, may_begin),
    };
    let test = Test { known: noise.map(|noise| (noise.spread, noise.freedom)), autocorrelation, least_p: SIGNIFICANT };
    let mut cuts = test.cuts(&tamed, may_begin);
    loop {
        let at: Vec<usize> = cuts.iter().map(|cut| cut.0).collect();
        let found = estimate(&logs, &at, noise, autocorrelation);
        let least = (1.0 + least_change).ln();
        let superfluous = |change: &Change| change.p >= SIGNIFICANT || change.ratio.estimate.ln().abs() < least;
        let weakest = found.iter().enumerate().filter(|(_, change)| superfluous(change));
        match weakest.max_by(|one, other| one.1.p.total_cmp(&other.1.p)) {
            Some((place, _)) => {
                cuts.remove(place);
            }
            None => {
                let step = |(cut, change): (&(usize, f64), Change)| Step {
                    at: skipped + cut.0,
                    ratio: change.ratio,
                    p: cut.1,
                };
                return cuts.iter().zip(found).map(step).collect();
            }
        }
    }
}

/// Returns the noise of one machine from its series of one figure, each with its steps. `None` with fewer than three
/// degrees of freedom.
#[must_use]
pub fn noise<'s>(series: impl IntoIterator<Item = (&'s [f64], &'s [Step])>) -> Option<Noise> {
    let sum = series.into_iter().fold(Scatter::default(), |sum, (figures, steps)| sum + Scatter::of(figures, steps));
    sum.noise()
}

/// The scatter of series around their levels, as sums: those of several series add up to the [`Noise`] of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scatter {
    squares: f64,
    products: f64,
    points: usize,
    levels: usize,
}

impl Scatter {
    /// Returns the scatter of one series with its steps. Figures that are not positive and finite scatter by nothing.
    #[must_use]
    pub fn of(figures: &[f64], steps: &[Step]) -> Self {
        if figures.is_empty() || figures.iter().any(|figure| !(figure.is_finite() && *figure > 0.0)) {
            return Self::default();
        }
        let logs: Vec<f64> = figures.iter().map(|figure| figure.ln()).collect();
        let at: Vec<usize> = steps.iter().map(|step| step.at).collect();
        let tamed = without_strays(&logs, &at);
        let own = levels_of(&tamed, &at);
        let (squares, products) = squares_and_products(&own);
        Self { squares, products, points: tamed.len(), levels: own.len() }
    }

    /// Returns the noise; `None` with fewer than three degrees of freedom.
    #[must_use]
    pub fn noise(&self) -> Option<Noise> {
        let freedom = self.points.checked_sub(self.levels).filter(|freedom| *freedom >= 3)?;
        Some(Noise { spread: (self.squares / freedom as f64).sqrt(), freedom, autocorrelation: self.autocorrelation() })
    }

    /// Returns the lag-1 autocorrelation, with an allowance for its error.
    fn autocorrelation(&self) -> f64 {
        let estimate = unbiased(self.squares, self.products, self.levels, self.points);
        cautious(estimate, self.points.max(LEAST_POINTS + 1))
    }
}

impl Add for Scatter {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            squares: self.squares + other.squares,
            products: self.products + other.products,
            points: self.points + other.points,
            levels: self.levels + other.levels,
        }
    }
}

/// Compares two groups of measurements of one series, of which `after` follows `before`. `None` with too few of them to
/// know how they scatter: together with the machine's, two degrees of freedom.
///
/// Without `noise`, the groups' own autocorrelation counts: measurements that vary together for a while say less than
/// as many independent ones. Short groups cannot show that they are independent, so their interval is wide.
#[must_use]
pub fn change(before: &[f64], after: &[f64], noise: Option<&Noise>) -> Option<Change> {
    let is_figure = |figure: &f64| figure.is_finite() && *figure > 0.0;
    if before.is_empty() || after.is_empty() || !before.iter().chain(after).all(is_figure) {
        return None;
    }
    let logs: Vec<f64> = before.iter().chain(after).map(|figure| figure.ln()).collect();
    let cuts = [before.len()];
    let own = || {
        let tamed = without_strays(&logs, &cuts);
        let levels = levels_of(&tamed, &cuts);
        let (squares, products) = squares_and_products(&levels);
        Scatter { squares, products, points: tamed.len(), levels: levels.len() }.autocorrelation()
    };
    let autocorrelation = noise.map_or_else(own, |noise| noise.autocorrelation);
    estimate(&logs, &cuts, noise, autocorrelation).pop().filter(|change| change.p.is_finite())
}

const CONFIDENCE: f64 = 0.95;
const SIGNIFICANT: f64 = 0.01;
/// The p value of divisions that count for the autocorrelation.
const CLEAR: f64 = 0.003;
const LEAST_SIDE: usize = 2;
/// Number of simulated series, as in `changepoint`.
const SIMULATED: usize = 999;
/// Measurements never agree better than this share: a division must not rest on rounding.
const LEAST_SPREAD: f64 = 1e-6;

/// How a division is tested.
struct Test {
    /// The machine's standard deviation, with its degrees of freedom.
    known: Option<(f64, usize)>,
    /// The lag-1 autocorrelation of the noise.
    autocorrelation: f64,
    /// A division is significant if its p value is below this.
    least_p: f64,
}

/// The part of a series that differs most from the rest.
#[derive(Clone, Copy, Debug)]
struct Window {
    from: usize,
    to: usize,
    /// Variance that the difference explains over the variance that remains.
    clearness: f64,
}

impl Test {
    /// Returns all cuts of a series in order, each with its p value.
    fn cuts(&self, points: &[f64], may_begin: &[bool]) -> Vec<(usize, f64)> {
        let mut cuts = Vec::new();
        self.divide(points, may_begin, 0, &mut cuts);
        cuts.sort_by_key(|cut: &(usize, f64)| cut.0);
        cuts.dedup_by_key(|cut| cut.0);
        cuts
    }

    /// Divides a part of the series that begins at `offset`, and the parts that result.
    fn divide(&self, points: &[f64], may_begin: &[bool], offset: usize, cuts: &mut Vec<(usize, f64)>) {
        let Some((window, p)) = self.division(points, may_begin) else { return };
        let is_inside = |at: &usize| (1..points.len()).contains(at);
        let ends: Vec<usize> = [window.from, window.to].into_iter().filter(is_inside).collect();
        cuts.extend(ends.iter().map(|at| (offset + at, p)));
        let mut from = 0;
        for to in ends.into_iter().chain([points.len()]) {
            self.divide(&points[from..to], &may_begin[from..to], offset + from, cuts);
            from = to;
        }
    }

    /// Returns the significant division of a series, and its p value.
    fn division(&self, points: &[f64], may_begin: &[bool]) -> Option<(Window, f64)> {
        let n = points.len();
        if n < LEAST_POINTS {
            return None;
        }
        let found = clearest(points, may_begin, self.known)?;
        let mut rng = Rng::with_seed(1);
        let mut series = vec![0.0; n];
        let mut as_clear = 1; // this one
        for _ in 0..SIMULATED {
            simulate(&mut series, self.autocorrelation, &mut rng);
            let known = self.known.map(|(_, freedom)| (drawn_spread(freedom, &mut rng), freedom));
            if clearest(&series, may_begin, known).is_some_and(|window| window.clearness >= found.clearness) {
                as_clear += 1;
                if as_clear as f64 >= self.least_p * (SIMULATED + 1) as f64 {
                    return None;
                }
            }
        }
        Some((found, as_clear as f64 / (SIMULATED + 1) as f64))
    }
}

/// Estimates the autocorrelation of a series' noise, with an allowance for its error.
///
/// Undetected steps would look like autocorrelation, so the series is first divided as if there were none. Only the
/// clearest divisions count, because autocorrelated noise is divided too often in this way.
fn autocorrelation_within_levels(points: &[f64], may_begin: &[bool]) -> f64 {
    let test = Test { known: None, autocorrelation: 0.0, least_p: CLEAR };
    let cuts: Vec<usize> = test.cuts(points, may_begin).into_iter().map(|cut| cut.0).collect();
    let levels = levels_of(points, &cuts);
    let (squares, products) = squares_and_products(&levels);
    Scatter { squares, products, points: points.len(), levels: levels.len() }.autocorrelation()
}

/// Returns the sums of squares and of lag-1 products around the levels.
fn squares_and_products(levels: &[&[f64]]) -> (f64, f64) {
    let (mut squares, mut products) = (0.0, 0.0);
    for level in levels {
        let centre = mean(level);
        squares += level.iter().map(|point| (point - centre) * (point - centre)).sum::<f64>();
        products += level.windows(2).map(|two| (two[0] - centre) * (two[1] - centre)).sum::<f64>();
    }
    (squares, products)
}

/// Returns the autocorrelation; subtracting a mean lowers it, which this mends to the first order (Kendall 1954).
fn unbiased(squares: f64, products: f64, levels: usize, points: usize) -> f64 {
    let raw = if squares > 0.0 { products / squares } else { 0.0 };
    raw + levels as f64 * (1.0 + 2.0 * raw) / points as f64
}

/// Finds the window whose mean differs most clearly from the rest's. `known`: the machine's standard deviation, with
/// its degrees of freedom.
fn clearest(points: &[f64], may_begin: &[bool], known: Option<(f64, usize)>) -> Option<Window> {
    let n = points.len();
    let centre = mean(points);
    let mut sums = Vec::with_capacity(n + 1);
    let (mut sum, mut total) = (0.0, 0.0);
    sums.push(0.0);
    for point in points {
        sum += point - centre;
        total += (point - centre) * (point - centre);
        sums.push(sum);
    }
    let is_end = |at: usize| at == 0 || at == n || may_begin[at];
    let mut best: Option<(usize, usize, f64)> = None;
    for from in (0..n).filter(|at| is_end(*at)) {
        // What stands before the window needs two points too, or none.
        if from == 1 {
            continue;
        }
        for to in (from + LEAST_SIDE..=n).filter(|at| is_end(*at) && n - at != 1) {
            let length = to - from;
            if n - length < LEAST_SIDE {
                continue;
            }
            let off: f64 = sums[to] - sums[from];
            let explained = off * off * n as f64 / (length * (n - length)) as f64;
            if best.is_none_or(|(.., most)| explained > most) {
                best = Some((from, to, explained));
            }
        }
    }
    let (from, to, explained) = best?;
    let (spread, freedom) = known.unwrap_or((0.0, 0));
    let left = (total - explained).max(0.0) + freedom as f64 * spread * spread;
    let clearness = explained / (left / (n - 2 + freedom) as f64).max(LEAST_SPREAD * LEAST_SPREAD);
    (clearness.is_finite() && explained > 0.0).then_some(Window { from, to, clearness })
}

/// The standard deviation of normal numbers with variance 1, as so many degrees of freedom estimate it.
fn drawn_spread(freedom: usize, rng: &mut Rng) -> f64 {
    // Wilson and Hilferty (1931): the cube root of a chi-squared number is nearly normal.
    let share = 2.0 / (9.0 * freedom as f64);
    let root = 1.0 - share + normal_pair(rng).0 * share.sqrt();
    root.max(0.0).powi(3).sqrt()
}

/// Estimates the ratio at each cut between the levels beside it. The ends of intervals are finite and positive.
fn estimate(logs: &[f64], cuts: &[usize], noise: Option<&Noise>, autocorrelation: f64) -> Vec<Change> {
    let tamed = without_strays(logs, cuts);
    let levels = levels_of(&tamed, cuts);
    let (squares, _) = squares_and_products(&levels);
    let own = logs.len() - levels.len();
    // Points that vary together stay closer to their own mean than to the level.
    let kept = |level: &&[f64]| level.len() as f64 * (1.0 - mean_variance(level.len(), autocorrelation));
    let kept: f64 = levels.iter().map(kept).sum();
    let squares = if kept > 0.0 { squares * own as f64 / kept } else { squares };
    let (known, freedom) = noise.map_or((0.0, 0), |noise| (noise.spread * noise.spread, noise.freedom));
    let freedom_of_both = own + freedom;
    let variance = (squares + known * freedom as f64) / freedom_of_both as f64;
    let variance = variance.max(LEAST_SPREAD * LEAST_SPREAD);
    let pair = |two: &[&[f64]]| {
        let difference = mean(two[1]) - mean(two[0]);
        let variances = two.iter().map(|level| mean_variance(level.len(), autocorrelation));
        let error = (variance * variances.sum::<f64>()).sqrt();
        if freedom_of_both < 2 {
            let ratio = Interval { estimate: difference.exp(), low: 0.0, high: f64::INFINITY };
            return Change { ratio, p: f64::NAN };
        }
        let reach = student::quantile(CONFIDENCE, freedom_of_both) * error;
        let low = (difference - reach).exp().max(f64::MIN_POSITIVE);
        let high = (difference + reach).exp().min(f64::MAX);
        let ratio = Interval { estimate: difference.exp(), low, high };
        Change { ratio, p: student::outside(difference.abs() / error, freedom_of_both) }
    };
    levels.windows(2).map(pair).collect()
}

/// Returns the variance of the mean of an AR(1) process of so many points, in units of one point's.
fn mean_variance(points: usize, autocorrelation: f64) -> f64 {
    let (mut sum, mut power) = (1.0, 1.0);
    for lag in 1..points {
        power *= autocorrelation;
        sum += 2.0 * (1.0 - lag as f64 / points as f64) * power;
    }
    sum / points as f64
}

fn levels_of<'p>(points: &'p [f64], cuts: &[usize]) -> Vec<&'p [f64]> {
    let mut levels = Vec::new();
    let mut from = 0;
    for to in cuts.iter().copied().filter(|at| *at <= points.len()).chain([points.len()]) {
        if to > from {
            levels.push(&points[from..to]);
        }
        from = to;
    }
    levels
}

/// Moves each point to within four standard deviations of its level's median. Unlike `without_outliers`, it knows where
/// the levels begin, so it leaves large steps as large as they are.
fn without_strays(logs: &[f64], cuts: &[usize]) -> Vec<f64> {
    let levels = levels_of(logs, cuts);
    let centres: Vec<f64> = levels.iter().map(|level| median(level)).collect();
    let off = |(level, centre): (&&[f64], &f64)| level.iter().map(|log| (log - centre).abs()).collect::<Vec<_>>();
    let distances: Vec<f64> = levels.iter().zip(&centres).flat_map(off).collect();
    let reach = 4.0 * 1.4826 * median(&distances);
    let tame = |(level, centre): (&&[f64], &f64)| {
        let centre = *centre;
        let within = move |log: &f64| if reach > 0.0 { log.clamp(centre - reach, centre + reach) } else { *log };
        level.iter().map(within).collect::<Vec<_>>()
    };
    levels.iter().zip(&centres).flat_map(tame).collect()
}

fn mean(points: &[f64]) -> f64 {
    points.iter().sum::<f64>() / points.len().max(1) as f64
}
