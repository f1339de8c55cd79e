//! The engine against peers of every kind.
//!
//! All modules share one process, and run at the same time. A test that changes limits, variables or signals of its
//! process, or counts its memory or descriptors, runs in another process (`oroshi_testkit::in_a_process`) or stands in
//! another binary.

mod answers;
mod exchange;
mod failures;
mod http2;
mod many_runs;
mod nchan;
mod nginx;
mod open_loop;
mod parts;
mod push;
mod scripts;
#[path = "../support/mod.rs"]
mod support;
