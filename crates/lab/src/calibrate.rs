//! Calibration: how often intervals contain the true ratio, and how often verdicts are false.
//!
//! Comparisons of set-ups with a known true ratio take all steps of real ones: connections that send requests one after
//! the other, the count within a window, the bootstrap, the stopping rule, the verdict. The calibration counts how
//! often each was right.
//!
//! - [`simulate`]: thousands of comparisons on a virtual clock. Only servers and sockets are simulated (`simulated`).
//!   The count ([`oroshi_stats::window`]), the lengths of runs, the rule and the verdicts ([`decide`](crate::decide))
//!   are the functions of real runs.
//! - [`real`]: some dozens with real servers (`oroshi target`), each beside simulated ones of the same kind.
//! - [`report`]: the tables, and whether all is within bounds.

pub mod real;
pub mod report;
mod simulated;

use std::time::Duration;

use oroshi_bench::Draft;
use oroshi_stats::compare::Verdict;
use serde::{Deserialize, Serialize};

pub use report::Report;
pub use simulated::{Scenario, simulate_one};

/// Mean delays of the servers, milliseconds.
pub const DELAYS_MS: [f64; 5] = [1.0, 5.0, 20.0, 100.0, 500.0];
/// Connections under load.
pub const CONNECTIONS: [usize; 3] = [1, 10, 100];
/// True ratios of the rates, besides 1.
pub const RATIOS: [f64; 8] = [0.90, 0.95, 0.97, 0.985, 1.015, 1.03, 1.05, 1.10];

/// Limit for one request: longer than all drawn delays, because a timeout would count as a failure.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The load of `compare` without flags, except its timeout.
fn usual_load() -> Draft {
    Draft {
        duration: Some(Duration::from_secs(1)),
        warmup: Duration::from_millis(250),
        free_duration: true,
        free_warmup: true,
        timeout: TIMEOUT,
        ..Draft::default()
    }
}

/// The outcome of a comparison with a known true ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The true ratio, variant by base.
    pub truth: f64,
    /// The estimate, with its interval.
    pub estimate: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// The verdict.
    pub verdict: Verdict,
    /// Blocks of the comparison.
    pub blocks: usize,
}

impl Trial {
    /// Whether the interval contains the true ratio.
    #[must_use]
    pub fn covered(&self) -> bool {
        (self.low..=self.high).contains(&self.truth)
    }

    /// Whether a set-up differed from itself.
    #[must_use]
    pub fn is_false_alarm(&self) -> bool {
        self.truth == 1.0 && matches!(self.verdict, Verdict::Faster | Verdict::Slower)
    }
}

/// Runs comparisons on a virtual clock: `trials` in each row of each table, on `workers` threads. `going_on` receives
/// how many are done, and of how many; if it returns false, the calibration ends with the trials so far.
pub fn simulate(trials: usize, seed: u64, workers: usize, going_on: &(dyn Fn(usize, usize) -> bool + Sync)) -> Report {
    simulated::all(trials, seed, workers.max(1), going_on)
}
