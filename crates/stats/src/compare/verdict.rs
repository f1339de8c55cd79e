//! Verdicts from intervals.

use serde::{Deserialize, Serialize};

use super::Interval;

/// The conclusion about a variant beside its base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It is better.
    Faster,
    /// It is worse.
    Slower,
    /// Any difference is smaller than the smallest effect that matters.
    Equivalent,
    /// The interval allows more than one of the above.
    Undecided,
    /// Other work on the machine disturbed the measurement, so no conclusion is possible; the result states the
    /// reason.
    Disturbed,
    /// No comparison is possible; the result states the reason.
    NotCompared,
}

/// Returns the verdict on `variant` for the ratio `variant / base`:
///
/// 1. *equivalent* when the whole interval lies within `1/(1 + smallest_effect) ..= 1 + smallest_effect`;
/// 2. otherwise *faster* or *slower* when the interval excludes 1 and the p value, corrected for the number of
///    questions (see [`holm`]), is below `1 - confidence`;
/// 3. otherwise *undecided*.
#[must_use]
pub fn verdict(
    interval: &Interval,
    adjusted_p: f64,
    smallest_effect: f64,
    higher_is_better: bool,
    confidence: f64,
) -> Verdict {
    let largest = 1.0 + smallest_effect;
    if interval.low >= 1.0 / largest && interval.high <= largest {
        return Verdict::Equivalent;
    }
    let (above, below) = (interval.low > 1.0, interval.high < 1.0);
    if !(above || below) || adjusted_p.is_nan() || adjusted_p >= 1.0 - confidence {
        Verdict::Undecided
    } else if above == higher_is_better {
        Verdict::Faster
    } else {
        Verdict::Slower
    }
}

/// Corrects p values for multiple comparisons, in the same order: step-down after Holm (1979).
///
/// Comparing the results with 0.05 keeps the chance of *any* false alarm at 5 %, however the questions depend on each
/// other. A NaN counts as a question with the answer 1.
#[must_use]
pub fn holm(p: &[f64]) -> Vec<f64> {
    let known = |p: f64| if p.is_nan() { 1.0 } else { p };
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| known(p[*a]).total_cmp(&known(p[*b])));
    let mut adjusted = vec![1.0; p.len()];
    let mut least: f64 = 0.0;
    for (rank, index) in order.into_iter().enumerate() {
        least = least.max(known(p[index]) * (p.len() - rank) as f64).min(1.0);
        adjusted[index] = least;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(low: f64, high: f64, p: f64) -> Verdict {
        verdict(&Interval { estimate: (low * high).sqrt(), low, high }, p, 0.03, true, 0.95)
    }

    #[test]
    fn an_interval_within_what_matters_is_equivalent_even_if_it_leaves_out_one() {
        assert_eq!(judged(0.98, 1.02, 0.9), Verdict::Equivalent);
        assert_eq!(judged(1.01, 1.02, 0.001), Verdict::Equivalent);
        assert_eq!(judged(1.0 / 1.03, 1.03, 1.0), Verdict::Equivalent);
    }

    #[test]
    fn a_difference_needs_the_interval_and_the_corrected_p() {
        assert_eq!(judged(1.01, 1.09, 0.01), Verdict::Faster);
        assert_eq!(judged(0.90, 0.99, 0.01), Verdict::Slower);
        assert_eq!(judged(1.01, 1.09, 0.06), Verdict::Undecided);
        assert_eq!(judged(1.01, 1.09, f64::NAN), Verdict::Undecided);
        assert_eq!(judged(0.99, 1.09, 0.01), Verdict::Undecided);
    }

    #[test]
    fn less_is_better_where_it_is() {
        let half = Interval { estimate: 0.5, low: 0.4, high: 0.6 };
        assert_eq!(verdict(&half, 0.001, 0.03, false, 0.95), Verdict::Faster);
        assert_eq!(verdict(&half, 0.001, 0.03, true, 0.95), Verdict::Slower);
    }

    #[test]
    fn nonsense_is_undecided() {
        let nothing = Interval { estimate: f64::NAN, low: f64::NAN, high: f64::NAN };
        assert_eq!(verdict(&nothing, 0.0, 0.03, true, 0.95), Verdict::Undecided);
    }

    #[test]
    fn holm_steps_down() {
        let close = |found: Vec<f64>, expected: &[f64]| {
            assert!(
                found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12),
                "{found:?} instead of {expected:?}"
            );
        };
        // p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm") in R.
        close(holm(&[0.01, 0.04, 0.03, 0.005]), &[0.03, 0.06, 0.06, 0.02]);
        close(holm(&[0.04]), &[0.04]);
        close(holm(&[0.5, 0.9, f64::NAN]), &[1.0, 1.0, 1.0]);
        close(holm(&[]), &[]);
    }
}
