//! The command as a superdaemon: `start`. These tests tell which descriptors a process inherits.
//!
//! All modules share one process, and run at the same time. A test that changes limits, variables or signals of its
//! process, or counts its memory or descriptors, runs in another process (`oroshi_testkit::in_a_process`) or stands in
//! another binary.

#[path = "../common/mod.rs"]
mod common;
mod start;
mod start_differential;
mod start_differential_settings;
mod start_lossless;
mod start_processes;
#[path = "../superdaemon/mod.rs"]
mod superdaemon;
