//! Statistics of latencies and counts, in bounded memory.
//!
//! Knows: latency histograms with right-censored values (known only to be *at least* something), quantiles that hold
//! despite them, compact sketches for one interval, time series that never outgrow their capacity, the two
//! HdrHistogram formats that other tools read, and which of two set-ups is better.
//!
//! Does not know: clocks, sockets, requests, files, how a number is printed. A duration is a `u64` of nanoseconds
//! everywhere; the caller has the clock. The crate does no I/O except through a writer that the caller passes in.
//!
//! Read the modules in this order:
//! 1. [`quantile`]: the answer to "what is p99?", which may be "at least x".
//! 2. [`latency`]: the histogram of a run, the source of every latency figure in a report.
//! 3. [`summary`]: the figures of it that reports have.
//! 4. [`sketch`] and [`series`]: latencies over time, small enough to keep one sketch per interval.
//! 5. [`stored`] and [`interval_log`]: how histograms leave and enter the process; `compact`: in messages.
//! 6. [`window`]: how many requests a window of time holds, and its rate.
//! 7. [`changepoint`]: whether a run stayed at one level, and so counts as one measurement.
//! 8. [`steps`]: where the level of a figure changed over commits.
//! 9. [`shape`]: how delays are distributed.
//! 10. [`compare`]: from the figures of many runs to a ratio, its interval, and a verdict.
//!
//! **Circles.** `latency`, `stored` and `summary`: one type, whose methods for storing and summarizing have files of
//! their own. `compare`, its `bootstrap` and `verdict`: the parts of one computation, with the types in the parent.

pub mod changepoint;
mod compact;
pub mod compare;
pub mod interval_log;
pub mod latency;
pub mod quantile;
pub mod series;
pub mod shape;
pub mod sketch;
pub mod steps;
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
