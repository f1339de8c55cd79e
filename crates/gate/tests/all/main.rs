//! The gateway's forwarding between clients and servers of every kind.
//!
//! All modules share one process, and run at the same time. A test that changes limits, variables or signals of its
//! process, or counts its memory or descriptors, runs in another process (`oroshi_testkit::in_a_process`) or stands in
//! another binary.

mod forward;
mod forward_bodies;
mod forward_conformance;
mod forward_faults;
mod forward_http2;
mod forward_inspect;
mod forward_multiplexed;
mod forward_nginx;
mod forward_tls;
mod forward_tunnel;
mod http2_smuggling;
mod multiplexed_faults;
mod multiplexed_tunnel;
#[path = "../support/mod.rs"]
mod support;
