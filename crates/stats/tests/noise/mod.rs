//! Random numbers distributed like measurements.

use fastrand::Rng;

/// Returns a standard normal number.
pub(crate) fn normal(rng: &mut Rng) -> f64 {
    (-2.0 * (1.0 - rng.f64()).ln()).sqrt() * (std::f64::consts::TAU * rng.f64()).cos()
}
