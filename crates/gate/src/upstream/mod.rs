//! Where requests go: targets, their pools of connections, and the choice among several of them. One core's; nothing is shared
//! between cores but what is counted.
//!
//! Read `target` (a place), `pool` (its connections; its decisions are `slots` and `health`, without I/O), `pools` (all of a core's,
//! with one sweep for all deadlines), `balance` (several targets), `own` (the gateway's own sockets, which are no targets), `engine` and `counters`.

mod balance;
mod counters;
mod engine;
mod health;
mod own;
mod pool;
mod pools;
mod recent;
mod slots;
mod target;

pub use balance::{Balancer, Policy, hash};
pub use counters::{Counters, Counts, LATENCY_BOUNDS_US};
pub(crate) use engine::{Account, Engine};
pub use health::Ejection;
pub use own::{OwnSocket, OwnSockets};
pub(crate) use pool::{AcquireLimits, Connection, Lease};
pub use pool::{Allow, Pool, PoolSettings};
pub use pools::{Pools, Registry, Settings, TargetCounts};
pub use target::{Target, TargetError};
