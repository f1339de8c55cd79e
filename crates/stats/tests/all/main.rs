//! Statistics against data whose truth is known.
//!
//! All modules share one process, and run at the same time. A test that changes limits, variables or signals of its
//! process, or counts its memory or descriptors, runs in another process (`oroshi_testkit::in_a_process`) or stands in
//! another binary.

mod changepoint;
mod compare;
mod compare_properties;
mod latency;
#[path = "../noise/mod.rs"]
mod noise;
mod steps;
mod stored;
mod window;
