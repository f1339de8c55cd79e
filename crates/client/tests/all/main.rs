//! The client against servers of every kind.
//!
//! All modules share one process, and run at the same time. A test that changes limits, variables or signals of its
//! process, or counts its memory or descriptors, runs in another process (`oroshi_testkit::in_a_process`) or stands in
//! another binary.

mod clients;
mod cookies;
mod corpus;
mod hostile;
mod http2;
mod http2_servers;
mod https_proxies;
mod nginx;
mod partitions;
mod proxies;
mod redirects;
mod retries;
mod reuse;
#[path = "../support/mod.rs"]
mod support;
