//! Calibration: how often the intervals hold the truth, and how often a verdict is false.
//!
//! Comparisons of set-ups whose true ratio is known go through all that a real one goes through: connections that send one request after
//! the other, the count of requests in a window of time, the bootstrap, the rule that says when it is enough, the verdict. What is
//! counted is how often each was right.
//!
//! - [`simulate`]: thousands of comparisons on a virtual clock. Only servers and sockets are simulated (`simulated`); the count
//!   ([`oroshi_stats::window`]), the lengths of runs, the rule and the verdicts ([`decide`](crate::decide)) are the functions that real runs
//!   use.
//! - [`real`]: some dozens with real servers (`oroshi target`), each beside simulated ones of the same kind.
//! - [`report`]: the tables, and whether all is within its bounds.

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
/// True ratios of the rates, beside 1.
pub const RATIOS: [f64; 8] = [0.90, 0.95, 0.97, 0.985, 1.015, 1.03, 1.05, 1.10];

/// How long a request may take: longer than the delays that are drawn. A request that is given up would be a failed one.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The load of `compare` without flags, but for its timeout.
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

/// What became of one comparison whose truth is known.
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
    /// Blocks that it took.
    pub blocks: usize,
}

impl Trial {
    /// Whether the interval holds the truth.
    #[must_use]
    pub fn covered(&self) -> bool {
        (self.low..=self.high).contains(&self.truth)
    }

    /// Whether a difference was found between a set-up and itself.
    #[must_use]
    pub fn is_false_alarm(&self) -> bool {
        self.truth == 1.0 && matches!(self.verdict, Verdict::Faster | Verdict::Slower)
    }
}

/// Comparisons on a virtual clock: `trials` in each row of each table, `workers` threads. `going_on` is told how many are done, and of how
/// many; where it says false, it ends with what there is.
pub fn simulate(trials: usize, seed: u64, workers: usize, going_on: &(dyn Fn(usize, usize) -> bool + Sync)) -> Report {
    simulated::all(trials, seed, workers.max(1), going_on)
}
