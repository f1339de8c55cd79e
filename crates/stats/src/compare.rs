//! Which of two is better: intervals for ratios, and what may be said of them.

use serde::{Deserialize, Serialize};

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

/// What may be said of a variant beside its base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It is better.
    Faster,
    /// It is worse.
    Slower,
    /// Whatever difference there may be is smaller than what matters.
    Equivalent,
    /// The interval allows both.
    Undecided,
    /// No comparison is possible; the reason stands beside.
    NotCompared,
}
