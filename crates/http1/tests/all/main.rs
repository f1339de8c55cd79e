//! The codec: its table, its properties, its corpora.
//!
//! All modules share one process, and run at the same time. A test that changes limits, variables or signals of its
//! process, or counts its memory or descriptors, runs in another process (`oroshi_testkit::in_a_process`) or stands in
//! another binary.

mod conformance;
mod corpus;
mod decoders;
#[path = "../../../../fuzz/http1_checks.rs"]
mod http1_checks;
mod properties;

use http1_checks::trace;
