//! Look-ups in memory, memcached and SQL.
//!
//! All modules share one process, and run at the same time. A test that changes limits, variables or signals of its
//! process, or counts its memory or descriptors, runs in another process (`oroshi_testkit::in_a_process`) or stands in
//! another binary.

mod corpus;
mod lookup;
mod memcached;
#[path = "../peers/mod.rs"]
mod peers;
mod sql;
