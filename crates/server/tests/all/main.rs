//! The server against clients that write raw bytes.
//!
//! All modules share one process, and run at the same time. A test that changes limits, variables or signals of its
//! process, or counts its memory or descriptors, runs in another process (`oroshi_testkit::in_a_process`) or stands in
//! another binary.

mod bodies;
mod capacity;
mod conformance;
mod endings;
mod http2;
mod http2_limits;
mod http2_peers;
mod messages;
mod relay;
#[path = "../support/mod.rs"]
mod support;
mod timeouts;
