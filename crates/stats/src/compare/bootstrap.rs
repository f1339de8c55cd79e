//! The centre of a sample of blocks, and its standard error.

use fastrand::Rng;

use super::{Bootstrap, Interval, Stopping, student};

/// The fewest blocks that give a usable spread.
const LEAST_BLOCKS: usize = 3;
/// The fewest resamples; with fewer, results depend too much on the seed.
const LEAST_RESAMPLES: usize = 100;
/// Widening of an interval whose width decided when to stop, times the number of units. Measured, see the tables in
/// [`compare`](super).
const STOPPING: f64 = 5.0;
/// Share of the requested width up to which an interval is not widened.
const NO_CHOICE: f64 = 0.45;
/// Share of the requested width from which on the whole widening applies.
const FULL_CHOICE: f64 = 0.85;
/// Degrees of freedom for which both shares hold. With fewer, chance alone makes much narrower intervals, so the shares
/// shrink in proportion.
const ENOUGH_FREEDOM: f64 = 6.0;
/// Widening of every interval: a margin for figures that no normal distribution describes.
const MARGIN: f64 = 1.03;
/// Correction for few units, beyond Student's t: a share, times the number of units; measured.
const FEW: f64 = 0.4;
/// The share of a normal distribution that lies more than one standard deviation below its middle.
const BELOW_ONE_DEVIATION: f64 = 0.158_655;

/// The measure of the middle of the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Centre {
    /// The median.
    Median,
    /// The median of the means of all pairs of blocks, including each block with itself (Hodges and Lehmann 1963).
    PseudoMedian,
}

/// Blocks as logarithms; their order has no effect.
pub(super) struct Sample {
    /// Number of blocks in each unit. A bootstrap draws units: sessions if any has several blocks, else blocks.
    units: Vec<usize>,
    centre: Centre,
    /// The points whose median is the centre, ascending.
    points: Vec<Point>,
    blocks: usize,
    sessions: usize,
}

/// A block, or the mean of two.
struct Point {
    value: f64,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    /// One block of this unit.
    Block(usize),
    /// One block of this unit, paired with its own copies.
    Twin(usize),
    /// Two blocks, of these units.
    Two(usize, usize),
}

impl Sample {
    /// Builds a sample from `(session, logarithm)`. Skips values that are not finite; returns `None` if fewer than
    /// three remain.
    pub(super) fn new(logs: impl Iterator<Item = (usize, f64)>, centre: Centre) -> Option<Self> {
        let mut logs: Vec<(usize, f64)> = logs.filter(|(_, log)| log.is_finite()).collect();
        if logs.len() < LEAST_BLOCKS {
            return None;
        }
        logs.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let mut units: Vec<Vec<f64>> =
            logs.chunk_by(|a, b| a.0 == b.0).map(|session| session.iter().map(|(_, log)| *log).collect()).collect();
        let sessions = units.len();
        if sessions == 1 {
            units = logs.iter().map(|(_, log)| vec![*log]).collect();
        }
        // Sorted by their means, so names of sessions have no effect; the inverse ratios give the reverse order.
        let mean = |unit: &[f64]| unit.iter().sum::<f64>() / unit.len() as f64;
        units.sort_by(|a, b| mean(a).total_cmp(&mean(b)));
        Some(Self {
            centre,
            points: points(&units, centre),
            blocks: logs.len(),
            sessions,
            units: units.iter().map(Vec::len).collect(),
        })
    }

    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    pub(super) fn sessions(&self) -> usize {
        self.sessions
    }

    /// Draws the units many times, and measures the spread of the centre.
    pub(super) fn spread(&self, options: &Bootstrap) -> Spread {
        let units = self.units.len();
        let mut copies = vec![1; units];
        let centre = self.centre_of(&copies);
        let mut rng = Rng::with_seed(options.seed);
        let mut strays = Vec::with_capacity(options.resamples.max(LEAST_RESAMPLES) + 1);
        while strays.len() < options.resamples.max(LEAST_RESAMPLES) {
            copies.fill(0);
            for _ in 0..units {
                copies[rng.usize(..units)] += 1;
            }
            strays.push(self.centre_of(&copies) - centre);
            // The mirror image is as likely. With both, swapping base and variant gives exactly the inverse ratio.
            copies.reverse();
            strays.push(self.centre_of(&copies) - centre);
        }
        // Draws from n units spread as if n were n - 1.
        let small = (units as f64 / (units - 1) as f64).sqrt() * (1.0 + FEW / units as f64);
        let (error, freedom) = (self.deviation(&mut strays) * small * MARGIN, units - 1);
        let widened = match options.stopping {
            Stopping::Fixed => 1.0,
            Stopping::As(widened) => widened,
            Stopping::AtPrecision(share) => {
                // The wider the interval, the likelier it is that chance made it narrow enough.
                let enough = (freedom as f64 / ENOUGH_FREEDOM).min(1.0);
                let reach = error * student::quantile(options.confidence, freedom) / share.ln_1p() / enough;
                let choice = ((reach - NO_CHOICE) / (FULL_CHOICE - NO_CHOICE)).clamp(0.0, 1.0);
                1.0 + STOPPING / units as f64 * choice
            }
        };
        Spread { centre, error: error * widened, freedom, widened }
    }

    /// Returns the median of the points when each unit occurs this many times.
    fn centre_of(&self, copies: &[usize]) -> f64 {
        let blocks: usize = self.units.iter().zip(copies).map(|(size, copies)| size * copies).sum();
        let total = if self.centre == Centre::Median { blocks } else { blocks * (blocks + 1) / 2 };
        let (mut seen, mut lower) = (0, None);
        for point in &self.points {
            seen += match point.kind {
                Kind::Two(one, other) => copies[one] * copies[other],
                Kind::Block(unit) => copies[unit],
                Kind::Twin(unit) => copies[unit] * (copies[unit] + 1) / 2,
            };
            if 2 * seen > total {
                // For an even number, takes the mean of the two in the middle.
                return lower.map_or(point.value, |lower: f64| lower.midpoint(point.value));
            }
            if 2 * seen == total && lower.is_none() {
                lower = Some(point.value);
            }
        }
        f64::NAN // not reached: all points together are the total
    }

    /// Returns the standard deviation of the strays.
    ///
    /// For the pseudo-median, it is read from the quantiles that correspond to one deviation of a normal
    /// distribution. A rare resample full of outliers then has no influence. The strays of a median take too few
    /// values for that.
    fn deviation(&self, strays: &mut [f64]) -> f64 {
        if self.centre == Centre::Median {
            return (strays.iter().map(|stray| stray * stray).sum::<f64>() / strays.len() as f64).sqrt();
        }
        let last = strays.len() - 1;
        let below = (BELOW_ONE_DEVIATION * last as f64).round() as usize;
        let low = *strays.select_nth_unstable_by(below, f64::total_cmp).1;
        let high = *strays.select_nth_unstable_by(last - below, f64::total_cmp).1;
        0.5 * (high - low)
    }
}

fn points(units: &[Vec<f64>], centre: Centre) -> Vec<Point> {
    let blocks: Vec<(usize, f64)> =
        units.iter().enumerate().flat_map(|(unit, logs)| logs.iter().map(move |log| (unit, *log))).collect();
    let mut points = Vec::new();
    for (index, &(unit, log)) in blocks.iter().enumerate() {
        if centre == Centre::Median {
            points.push(Point { value: log, kind: Kind::Block(unit) });
            continue;
        }
        points.push(Point { value: log, kind: Kind::Twin(unit) });
        let pair =
            |&(other, other_log): &(usize, f64)| Point { value: 0.5 * (log + other_log), kind: Kind::Two(unit, other) };
        points.extend(blocks[..index].iter().map(pair));
    }
    points.sort_by(|a, b| a.value.total_cmp(&b.value));
    points
}

/// A centre, its standard error, and the degrees of freedom of that error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    centre: f64,
    error: f64,
    freedom: usize,
    /// Factor by which the stopping rule widens the error.
    widened: f64,
}

impl Spread {
    /// Returns the spread of the difference between two independent samples (Welch 1947).
    pub(super) fn minus(&self, other: &Self) -> Self {
        let (one, two) = (self.error * self.error, other.error * other.error);
        let freedom = (one + two) * (one + two) / (one * one / self.freedom as f64 + two * two / other.freedom as f64);
        let least = self.freedom.min(other.freedom);
        Self {
            centre: self.centre - other.centre,
            error: (one + two).sqrt(),
            // Rounds down, towards the wider interval. Without any spread the quotient is NaN.
            freedom: if freedom.is_finite() { (freedom as usize).max(least) } else { least },
            widened: self.widened.max(other.widened),
        }
    }

    /// Returns the factor by which the stopping rule widens the interval.
    pub(super) fn widened(&self) -> f64 {
        self.widened
    }

    /// Returns the interval, with logarithms converted back.
    pub(super) fn interval(&self, confidence: f64) -> Interval {
        let reach = self.error * student::quantile(confidence, self.freedom);
        // JSON has no infinity.
        let exp = |log: f64| log.exp().clamp(f64::MIN_POSITIVE, f64::MAX);
        Interval { estimate: exp(self.centre), low: exp(self.centre - reach), high: exp(self.centre + reach) }
    }

    /// Returns the probability of a centre at least this far from 0 if the true one is 0.
    pub(super) fn p(&self) -> f64 {
        if self.centre == 0.0 { 1.0 } else { student::outside((self.centre / self.error).abs(), self.freedom) }
    }
}
