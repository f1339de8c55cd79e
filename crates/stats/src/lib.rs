//! Numbers: what a run's latencies and counts were, in bounded memory.
//!
//! What it knows: latency histograms with values that are only known to be *at least* something (right-censored), the
//! quantiles that can honestly be said of them, compact sketches for one interval, time series that never outgrow
//! their capacity, the two formats in which other HdrHistogram tools read all this, and which of two set-ups is better.
//!
//! What it does not know: clocks, sockets, requests, files, how a number is printed. A duration is a `u64` of
//! nanoseconds everywhere; whoever has the clock takes the difference. It does no I/O except through a writer it is
//! given.
//!
//! Read the modules in this order:
//! 1. [`quantile`]: the answer to "what is p99?", which may be "at least x".
//! 2. [`latency`]: the histogram of a run; everything a report says about latency comes out of it.
//! 3. [`summary`]: the handful of its figures that reports carry.
//! 4. [`sketch`] and [`series`]: the same over time, small enough to keep one per interval.
//! 5. [`stored`] and [`interval_log`]: how histograms leave and enter the process.
//! 6. [`window`]: how many requests a window of time holds, and its rate.
//! 7. [`changepoint`]: whether a run stayed at one level, and so counts as one measurement.
//! 8. [`shape`]: how delays are distributed.
//! 9. [`compare`]: from the figures of many runs to a ratio, its interval, and a verdict.

pub mod changepoint;
pub mod compare;
pub mod interval_log;
pub mod latency;
pub mod quantile;
pub mod series;
pub mod shape;
pub mod sketch;
pub mod stored;
pub mod summary;
pub mod window;

pub use interval_log::{IntervalLog, IntervalLogError};
pub use latency::Latency;
pub use quantile::Quantile;
pub use series::{Point, Series, SeriesMismatch};
pub use shape::Shape;
pub use sketch::Sketch;
pub use stored::BlobError;
pub use summary::{LatencySummary, Percentile};
pub use window::{Throughput, WindowCount};
