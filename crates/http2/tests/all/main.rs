//! The codec: its table, its properties, its bounds, its corpora.
//!
//! All modules share one process, and run at the same time. A test that changes limits, variables or signals of its
//! process, or counts its memory or descriptors, runs in another process (`oroshi_testkit::in_a_process`) or stands in
//! another binary.

mod attacks;
mod attacks_cost;
mod conformance;
mod corpus;
mod hpack;
#[path = "../../../../fuzz/http2_checks.rs"]
mod http2_checks;
mod notation;
mod pairs;
mod peers;
mod properties;
mod real;

use http2_checks::trace;
