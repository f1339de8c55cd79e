//! Student's t distribution, for whole degrees of freedom.

use std::f64::consts::{FRAC_2_PI, FRAC_PI_2};

/// Returns the probability of a value outside `-t ..= t`.
pub(crate) fn outside(t: f64, freedom: usize) -> f64 {
    (1.0 - within_angle((t / (freedom as f64).sqrt()).atan(), freedom)).clamp(0.0, 1.0)
}

/// Returns the t for which a value lies within `-t ..= t` with this probability.
pub(crate) fn quantile(probability: f64, freedom: usize) -> f64 {
    let (mut low, mut high) = (0.0, FRAC_PI_2);
    // Each step halves the distance; 60 steps reach the resolution of a float.
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if within_angle(middle, freedom) < probability {
            low = middle;
        } else {
            high = middle;
        }
    }
    high.tan() * (freedom as f64).sqrt()
}

/// Returns the probability of a value within `-t ..= t` for `t = tan(angle) * sqrt(freedom)`.
///
/// Uses the finite sums of Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
fn within_angle(angle: f64, freedom: usize) -> f64 {
    let (sin, cos) = angle.sin_cos();
    let odd = freedom % 2 == 1;
    let mut term = if odd { cos } else { 1.0 };
    let mut sum = 0.0;
    for k in 1..=freedom / 2 {
        sum += term;
        let k = k as f64;
        term *= cos * cos * if odd { 2.0 * k / (2.0 * k + 1.0) } else { (2.0 * k - 1.0) / (2.0 * k) };
    }
    if odd { FRAC_2_PI * (angle + sin * sum) } else { sin * sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        let table =
            [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (19, 2.093), (30, 2.042), (1000, 1.962)];
        for (freedom, expected) in table {
            let t = quantile(0.95, freedom);
            assert!((t - expected).abs() < 0.0006, "{freedom} degrees of freedom: {t} instead of {expected}");
            assert!((outside(t, freedom) - 0.05).abs() < 1e-12);
        }
        assert!((quantile(0.99, 5) - 4.032).abs() < 0.0006);
    }

    #[test]
    fn the_ends_are_the_ends() {
        for freedom in [1, 2, 9, 10] {
            assert_eq!(outside(0.0, freedom), 1.0);
            assert!(outside(f64::INFINITY, freedom) < 1e-15);
        }
    }
}
