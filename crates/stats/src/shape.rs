//! Distributions of delays around their mean.

use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// The distribution of a server's delays around their mean, as in `oroshi target --delay-shape`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// All delays equal the mean.
    #[default]
    Constant,
    /// Uniform from zero to twice the mean.
    Uniform,
    /// Memoryless: most are short, few are long.
    Exponential,
    /// Nine of ten are half the mean, the tenth is 5.5 times the mean.
    Bimodal,
}

impl Shape {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Constant, Self::Uniform, Self::Exponential, Self::Bimodal];

    /// The name in flags, JSON and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::Uniform => "uniform",
            Self::Exponential => "exponential",
            Self::Bimodal => "bimodal",
        }
    }

    /// Draws a delay, for a mean of 1.
    pub fn draw(self, rng: &mut Rng) -> f64 {
        match self {
            Self::Constant => 1.0,
            Self::Uniform => 2.0 * rng.f64(),
            Self::Exponential => -(1.0 - rng.f64()).ln(),
            Self::Bimodal => {
                if rng.u8(..10) == 0 {
                    5.5
                } else {
                    0.5
                }
            }
        }
    }
}
