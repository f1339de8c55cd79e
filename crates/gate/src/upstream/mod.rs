//! Targets, their pools of connections, and balancing. Cores share only counters.
//!
//! Read `target` (an address), `pool` (its connections; `slots` and `health` make its decisions without I/O), `pools`
//! (all pools of a core, with one sweeper), `balance` (several targets), `own` (the gateway's own listeners, which are
//! no targets), `engine` and `counters`.

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
pub(crate) use engine::{BufferShare, Engine};
pub use health::Ejection;
pub use own::{OwnSocket, OwnSockets};
pub(crate) use pool::{AcquireLimits, Connection, Lease};
pub use pool::{Allow, Pool, PoolSettings};
pub use pools::{Pools, Registry, Settings, TargetCounts};
pub use target::{Target, TargetError};
