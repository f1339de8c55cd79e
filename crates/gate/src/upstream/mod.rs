//! Targets, their pools of connections, and balancing. Cores share only counters.
//!
//! Read `target` (an address), `pool` (its connections; `slots` and `health` make its decisions without I/O),
//! `multiplexed` (those of HTTP/2, with `streams` for `slots`), `dial` (opens them), `secure` (TLS), `pools` (all pools
//! of a core, with one sweeper), `balance` (several targets), `check` (active health checks), `own` (the gateway's own
//! listeners, which are no targets), `engine` and `counters`.

mod balance;
mod check;
mod counters;
mod dial;
mod engine;
mod health;
mod multiplexed;
mod own;
mod pool;
mod pools;
mod recent;
mod secure;
mod slots;
mod streams;
mod target;

pub use balance::{Balancer, Policy, hash};
pub use check::CheckSettings;
pub(crate) use check::{CheckCounts, Checked, CheckedUpstream, Checks};
pub use counters::{Counters, Counts, LATENCY_BOUNDS_US};
pub(crate) use engine::{BufferShare, Engine};
pub use health::Ejection;
pub(crate) use multiplexed::StreamLease;
pub use oroshi_lookup::Protocol;
pub use own::{OwnSocket, OwnSockets};
pub(crate) use pool::{AcquireLimits, Connection, Wanted};
pub use pool::{Allow, Pool, PoolSettings};
pub use pools::{Pools, Registry, Settings, TargetCounts};
pub use secure::{CaRoots, TlsMistake, TlsProtocol, TlsSettings, UpstreamTls};
pub use target::{Place, Target, TargetError};
