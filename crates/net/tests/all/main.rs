//! Sockets, TLS, threads and processes.
//!
//! All modules share one process, and run at the same time. A test that changes limits, variables or signals of its
//! process, or counts its memory or descriptors, runs in another process (`oroshi_testkit::in_a_process`) or stands in
//! another binary.

#[path = "../common/mod.rs"]
mod common;
mod connect;
mod corpus;
mod listen;
mod process;
mod threads;
mod tls;
mod tls_session;
