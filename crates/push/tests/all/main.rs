//! The hub: its transports, its promises, its faults.
//!
//! All modules share one process, and run at the same time. A test that changes limits, variables or signals of its
//! process, or counts its memory or descriptors, runs in another process (`oroshi_testkit::in_a_process`) or stands in
//! another binary.

mod api;
mod autobahn;
mod callbacks;
mod channels;
mod cluster;
mod cluster_faults;
mod compression;
mod deltas;
mod drain;
mod faults;
mod http2;
#[path = "../hub/mod.rs"]
mod hub;
mod killed;
mod limits;
#[path = "../nats/mod.rs"]
mod nats;
mod openapi;
mod page;
mod presence;
mod presence_feeds;
mod scenarios;
mod slow;
mod storm;
mod stream;
mod stream_faults;
mod stream_lost;
mod tokens;
