//! Random choices of users that are the same in each run with the same seed.

use std::f64::consts::TAU;
use std::time::Duration;

use fastrand::Rng;
/// The longest time that a user thinks: a day. Longer draws become this long.
pub(crate) const MAX_THINK: Duration = Duration::from_secs(24 * 3600);

/// The largest sigma of a lognormal distribution: one draw in six is then 150 times the median or more.
const MAX_SIGMA: f64 = 5.0;

/// The most things to choose from by weight.
pub(crate) const MAX_WEIGHTS: usize = 10_000;

/// The random choices of one journey.
///
/// They depend on the seed, the user and the journey alone: not on the thread, nor on what others do.
#[derive(Clone, Debug)]
pub(crate) struct Choices(Rng);

impl Choices {
    /// Creates the choices of a user's journey.
    pub(crate) fn new(seed: u64, user: u64, journey: u64) -> Self {
        // Each step is a bijection of a number, so journeys of a user, and users, differ from each other.
        Self(Rng::with_seed(mix(mix(mix(seed) ^ user) ^ journey)))
    }

    /// Returns a random number of 64 bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// Returns a random number from 0 up to, but not including, 1.
    pub(crate) fn random(&mut self) -> f64 {
        self.0.f64()
    }

    /// Returns a whole number from `least` to `most`, each equally likely.
    ///
    /// # Errors
    /// A message for the user if there is no such number.
    pub(crate) fn between(&mut self, least: i64, most: i64) -> Result<i64, String> {
        if least > most {
            return Err(format!("there is no number from {least} to {most}: expected the smaller one first"));
        }
        Ok(self.0.i64(least..=most))
    }

    /// Returns the index of one of `count` things, each equally likely; `None` if there are none.
    pub(crate) fn pick(&mut self, count: usize) -> Option<usize> {
        (count > 0).then(|| self.0.usize(..count))
    }

    /// Brings `count` things into a random order, each order equally likely. `swap` exchanges two, by their indexes.
    ///
    /// # Errors
    /// The first error of `swap`, which ends it.
    pub(crate) fn shuffle<E>(
        &mut self,
        count: usize,
        mut swap: impl FnMut(usize, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        (1..count).rev().try_for_each(|last| {
            let other = self.0.usize(..=last);
            if other == last { Ok(()) } else { swap(last, other) }
        })
    }

    /// Returns a draw of the standard normal distribution, by the method of Box and Muller.
    fn normal(&mut self) -> f64 {
        // 1 - random() is above 0, where the logarithm is finite.
        let radius = (-2.0 * (1.0 - self.random()).ln()).sqrt();
        radius * (TAU * self.random()).cos()
    }
}

/// Mixes the bits of a number: a step of SplitMix64.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Weights by which one of several things is chosen: the scenario of a journey.
#[derive(Clone, Debug)]
pub(crate) struct Weights {
    /// The sum of the weights up to each thing.
    sums: Vec<f64>,
}

impl Weights {
    /// Takes a weight for each thing.
    ///
    /// # Errors
    /// A message for the user: a weight is negative or not finite, or all are 0.
    pub(crate) fn new(weights: impl IntoIterator<Item = f64>) -> Result<Self, String> {
        let (mut sums, mut sum) = (Vec::new(), 0.0);
        for weight in weights {
            if !(weight.is_finite() && weight >= 0.0) {
                return Err(format!("the weight {weight} is wrong: expected 0 or more"));
            }
            if sums.len() == MAX_WEIGHTS {
                return Err(format!("there are too many weights: expected at most {MAX_WEIGHTS}"));
            }
            sum += weight;
            sums.push(sum);
        }
        if sum == 0.0 {
            return Err("all weights are 0: expected one above 0".to_owned());
        }
        if !sum.is_finite() {
            return Err("the sum of the weights is not finite: expected smaller weights".to_owned());
        }
        Ok(Self { sums })
    }

    /// Returns the index of a thing. Its chance is its share of all weights.
    pub(crate) fn choose(&self, choices: &mut Choices) -> usize {
        let last = self.sums.len() - 1; // There is a weight above 0.
        let at = choices.random() * self.sums[last];
        // Rounding may make `at` the whole sum: then it is the last thing with a weight.
        let chosen = self.sums.partition_point(|sum| *sum <= at);
        if chosen <= last { chosen } else { self.sums.partition_point(|sum| *sum < self.sums[last]) }
    }
}

/// How long a user thinks; all times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Think {
    /// This long each time.
    Constant(f64),
    /// Any time from the first to the second, each equally likely.
    Uniform(f64, f64),
    /// Exponential, as between independent events.
    Exponential {
        /// The mean.
        mean: f64,
    },
    /// Normal; draws below 0 become 0.
    Normal {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        sd: f64,
    },
    /// Lognormal, as people read: most are near the median, a few take far longer.
    Lognormal {
        /// The median.
        median: f64,
        /// The standard deviation of the time's natural logarithm.
        sigma: f64,
    },
}

impl Think {
    /// Returns the distribution if its numbers can be right.
    ///
    /// # Errors
    /// A message for the user.
    pub(crate) fn check(self) -> Result<Self, String> {
        let longest = MAX_THINK.as_secs_f64();
        let check = |name: &str, seconds: f64| match (0.0..=longest).contains(&seconds) {
            true => Ok(()),
            false => Err(format!("{name} is {seconds}: expected 0 to {longest} seconds")),
        };
        match self {
            Think::Constant(seconds) => check("the time", seconds)?,
            Think::Uniform(least, most) => {
                check("the least time", least)?;
                check("the most time", most)?;
                if least > most {
                    return Err(format!("`uniform` is {least} to {most}: expected the smaller one first"));
                }
            }
            Think::Exponential { mean } => check("the mean", mean)?,
            Think::Normal { mean, sd } => {
                check("the mean", mean)?;
                check("the standard deviation", sd)?;
            }
            Think::Lognormal { median, sigma } => {
                check("the median", median)?;
                if !(0.0..=MAX_SIGMA).contains(&sigma) {
                    return Err(format!("sigma is {sigma}: expected 0 to {MAX_SIGMA}"));
                }
            }
        }
        Ok(self)
    }

    /// Draws a time, at most [`MAX_THINK`]. A distribution takes as many random numbers for each draw.
    pub(crate) fn draw(self, choices: &mut Choices) -> Duration {
        let seconds = match self {
            Think::Constant(seconds) => seconds,
            Think::Uniform(least, most) => least + (most - least) * choices.random(),
            Think::Exponential { mean } => -mean * (1.0 - choices.random()).ln(),
            Think::Normal { mean, sd } => mean + sd * choices.normal(),
            Think::Lognormal { median, sigma } => median * (sigma * choices.normal()).exp(),
        };
        // Also of a distribution that was not checked: no number panics here, and NaN becomes 0.
        Duration::try_from_secs_f64(seconds.max(0.0).min(MAX_THINK.as_secs_f64())).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};
    use std::convert::Infallible;

    use super::*;

    const DRAWS: usize = 100_000;

    fn choices() -> Choices {
        Choices::new(7, 1, 1)
    }

    /// Whether counts of equally likely outcomes vary no more than chance makes them: chi-square within five standard
    /// deviations of its mean. Seeds are fixed, so the result is the same each time.
    fn are_even(counts: impl IntoIterator<Item = usize>) -> bool {
        let counts: Vec<f64> = counts.into_iter().map(|count| count as f64).collect();
        let mean = counts.iter().sum::<f64>() / counts.len() as f64;
        let square: f64 = counts.iter().map(|count| (count - mean).powi(2) / mean).sum();
        let freedom = counts.len() as f64 - 1.0;
        (square - freedom).abs() < 5.0 * (2.0 * freedom).sqrt()
    }

    #[test]
    fn choices_depend_on_seed_user_and_journey_alone() {
        let first = |seed, user, journey| Choices::new(seed, user, journey).bits();
        assert_eq!(first(1, 2, 3), first(1, 2, 3));
        let all: HashSet<u64> = (0..10)
            .flat_map(|seed| (0..100).flat_map(move |user| (0..100).map(move |journey| first(seed, user, journey))))
            .collect();
        assert_eq!(all.len(), 10 * 100 * 100);
    }

    #[test]
    fn neighbours_choose_independently() {
        // The first choices of journeys 1, 2, ... of users 1, 2, ... are as even as those of one generator.
        let mut pairs = [[0usize; 10]; 10];
        for user in 1..=300 {
            for journey in 1..=300 {
                let here = Choices::new(0, user, journey).pick(10).unwrap();
                pairs[here][Choices::new(0, user, journey + 1).pick(10).unwrap()] += 1;
                pairs[here][Choices::new(0, user + 1, journey).pick(10).unwrap()] += 1;
            }
        }
        assert!(are_even(pairs.into_iter().flatten()), "{pairs:?}");
    }

    #[test]
    fn whole_numbers_are_even_and_reach_both_ends() {
        let mut choices = choices();
        let mut counts = BTreeMap::<i64, usize>::new();
        for _ in 0..DRAWS {
            *counts.entry(choices.between(-3, 9).unwrap()).or_default() += 1;
        }
        assert!(counts.keys().copied().eq(-3..=9));
        assert!(are_even(counts.into_values()));
        assert_eq!(choices.between(5, 5), Ok(5));
        choices.between(i64::MIN, i64::MAX).unwrap();
        assert!(choices.between(5, 1).unwrap_err().starts_with("there is no number from 5 to 1: expected"));
        // A range of two thirds of 2^63 would lean to its first half without rejection.
        let third = i64::MAX / 3;
        let low = (0..DRAWS).filter(|_| choices.between(0, 2 * third).unwrap() < third).count();
        assert!(are_even([low, DRAWS - low]));
    }

    #[test]
    fn every_order_is_equally_likely() {
        let mut choices = choices();
        let mut counts = BTreeMap::<[u8; 4], usize>::new();
        for _ in 0..DRAWS {
            let mut list = [1, 2, 3, 4];
            let swap = |a, b| {
                list.swap(a, b);
                Ok::<(), Infallible>(())
            };
            choices.shuffle(4, swap).unwrap();
            *counts.entry(list).or_default() += 1;
        }
        assert_eq!(counts.len(), 24);
        assert!(are_even(counts.into_values()));
        assert_eq!(choices.shuffle(100, |_, _| Err("full")), Err("full"));
        for few in [0, 1] {
            choices.shuffle(few, |_, _| Err("nothing to swap")).unwrap();
        }
        assert_eq!((choices.pick(0), choices.pick(1)), (None, Some(0)));
    }

    #[test]
    fn weights_are_shares() {
        let weights = Weights::new([0.0, 3.0, 0.0, 1.0, 0.0]).unwrap();
        let (mut choices, mut counts) = (choices(), [0usize; 5]);
        for _ in 0..DRAWS {
            counts[weights.choose(&mut choices)] += 1;
        }
        assert_eq!([counts[0], counts[2], counts[4]], [0, 0, 0]);
        // Five standard deviations of a binomial count.
        assert!(counts[1].abs_diff(DRAWS * 3 / 4) < 700, "{counts:?}");
        let expected = |weights: &[f64]| Weights::new(weights.iter().copied()).unwrap_err();
        assert_eq!(expected(&[1.0, -1.0]), "the weight -1 is wrong: expected 0 or more");
        assert_eq!(expected(&[f64::NAN]), "the weight NaN is wrong: expected 0 or more");
        assert_eq!(expected(&[0.0, 0.0]), "all weights are 0: expected one above 0");
        assert_eq!(expected(&[]), "all weights are 0: expected one above 0");
        assert!(expected(&[f64::MAX, f64::MAX]).contains("expected smaller weights"));
        assert!(expected(&[1.0; MAX_WEIGHTS + 1]).contains("expected at most 10000"));
        Weights::new([1.0; MAX_WEIGHTS]).unwrap();
    }

    #[test]
    fn a_sum_that_rounds_up_chooses_the_last_thing_with_a_weight() {
        // 1 - 2^-53 times the smallest number rounds up to that number.
        let weights = Weights::new([f64::from_bits(1), 0.0]).unwrap();
        let mut choices = choices();
        assert!((0..1000).all(|_| weights.choose(&mut choices) == 0));
    }

    /// Draws times, in seconds, in order.
    fn draws(think: Think) -> Vec<f64> {
        let mut choices = choices();
        let think = think.check().unwrap();
        let mut draws: Vec<f64> = (0..DRAWS).map(|_| think.draw(&mut choices).as_secs_f64()).collect();
        draws.sort_by(f64::total_cmp);
        draws
    }

    /// Checks the share of draws below a time. Five standard deviations of a share of 100,000 draws are at most 0.008.
    fn below(draws: &[f64], seconds: f64, share: f64) {
        let found = draws.partition_point(|draw| *draw < seconds) as f64 / draws.len() as f64;
        assert!((found - share).abs() < 0.008, "{found} below {seconds}: expected {share}");
    }

    fn mean(draws: &[f64]) -> f64 {
        draws.iter().sum::<f64>() / draws.len() as f64
    }

    #[test]
    fn think_times_follow_their_distributions() {
        assert!(draws(Think::Constant(0.5)).iter().all(|draw| *draw == 0.5));

        let uniform = draws(Think::Uniform(1.0, 3.0));
        assert!(uniform[0] >= 1.0 && uniform[DRAWS - 1] <= 3.0);
        for (at, share) in [(1.5, 0.25), (2.0, 0.5), (2.9, 0.95)] {
            below(&uniform, at, share);
        }

        let exponential = draws(Think::Exponential { mean: 2.0 });
        for at in [0.1, 2.0, 6.0, 10.0] {
            below(&exponential, at, 1.0 - f64::exp(-at / 2.0));
        }
        assert!((mean(&exponential) - 2.0).abs() < 5.0 * 2.0 / (DRAWS as f64).sqrt());

        // Shares of the normal distribution below -2, -1, 0, 1 and 2 standard deviations.
        let shares = [(-2.0, 0.022_750), (-1.0, 0.158_655), (0.0, 0.5), (1.0, 0.841_345), (2.0, 0.977_250)];
        let normal = draws(Think::Normal { mean: 5.0, sd: 1.5 });
        let lognormal = draws(Think::Lognormal { median: 3.0, sigma: 0.8 });
        for (z, share) in shares {
            below(&normal, 5.0 + z * 1.5, share);
            below(&lognormal, 3.0 * f64::exp(z * 0.8), share);
        }
    }

    #[test]
    fn normal_times_below_zero_are_zero() {
        let normal = draws(Think::Normal { mean: 1.0, sd: 1.0 });
        let zero = normal.iter().filter(|draw| **draw == 0.0).count() as f64 / DRAWS as f64;
        assert!((zero - 0.158_655).abs() < 0.008, "{zero}");
    }

    #[test]
    fn no_numbers_make_a_draw_panic_or_exceed_the_longest_time() {
        let numbers = [0.0, -1.0, 1e-300, 1e300, f64::MAX, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
        let mut choices = choices();
        for a in numbers {
            for b in numbers {
                let (mean, sd, median, sigma) = (a, b, a, b);
                let all = [
                    Think::Constant(a),
                    Think::Uniform(a, b),
                    Think::Exponential { mean },
                    Think::Normal { mean, sd },
                    Think::Lognormal { median, sigma },
                ];
                assert!(all.into_iter().all(|think| think.draw(&mut choices) <= MAX_THINK));
            }
        }
        let long = Think::Lognormal { median: 86_400.0, sigma: 5.0 };
        assert!((0..100).any(|_| long.draw(&mut choices) == MAX_THINK));
    }

    #[test]
    fn wrong_numbers_say_what_was_expected() {
        for (think, what) in [
            (Think::Constant(-1.0), "the time is -1: expected 0 to 86400 seconds"),
            (Think::Constant(f64::NAN), "the time is NaN: expected 0 to 86400 seconds"),
            (Think::Uniform(3.0, 1.0), "`uniform` is 3 to 1: expected the smaller one first"),
            (Think::Uniform(-1.0, 1.0), "the least time is -1: expected 0 to 86400 seconds"),
            (Think::Uniform(1.0, f64::INFINITY), "the most time is inf: expected 0 to 86400 seconds"),
            (Think::Exponential { mean: -0.5 }, "the mean is -0.5: expected 0 to 86400 seconds"),
            (Think::Normal { mean: 1.0, sd: -1.0 }, "the standard deviation is -1: expected 0 to 86400 seconds"),
            (Think::Normal { mean: -1.0, sd: 1.0 }, "the mean is -1: expected 0 to 86400 seconds"),
            (Think::Lognormal { median: 1.0, sigma: 6.0 }, "sigma is 6: expected 0 to 5"),
            (Think::Lognormal { median: -1.0, sigma: 1.0 }, "the median is -1: expected 0 to 86400 seconds"),
        ] {
            assert_eq!(think.check(), Err(what.into()));
        }
    }
}
