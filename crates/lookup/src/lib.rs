//! Looks keys up in memory, memcached and SQL.
//!
//! **What it knows**: keys and their canonical form, targets and which are allowed, tiers and TTLs, stores and their
//! failures.
//!
//! **What it does not know**: HTTP, who asks, what is sent to a target, and whether it answers. This crate does not
//! resolve the names of targets; callers that do check the addresses with [`Allow::resolved`].
//!
//! # How it works
//!
//! - All cores share one memory tier, in shards. A hit takes one uncontended lock, allocates nothing, and touches one
//!   cache line of a table in huge pages, even with two million entries. Targets that are no IPv4 addresses are stored
//!   separately, once for all their keys.
//! - Misses go by message to one thread that owns all connections to the stores. That thread deduplicates look-ups; a
//!   waiter that gives up costs nothing.
//! - Every outcome has its own variant ([`Outcome`]), so a missing key never looks like a failed store.
//! - Everything is bounded: entries, bytes, keys under way, waiters, requests to a store, and all times.
//!
//! # Where to read
//!
//! 1. [`Lookup`] (`lookup`) and [`Stores`] (`stores`): the interface. [`settings`]: the configuration. [`Answer`]
//!    (`answer`): the result.
//! 2. [`key`], `target`, [`value`], [`allow`]: keys, targets, the values that name them, and the allowed targets.
//! 3. `memory` on `cache`, `flight`, `breaker` with `user`: entries, waiters, breakers. No I/O; time is an
//!    argument.
//! 4. `fly`: from tier to tier, on the stores' thread. `memcached` ([`wire`] without I/O), `sql`: the stores.
//! 5. `explain`, [`counts`]: for operators and monitoring.
//!
//! **Circles.** `lookup`, `stores`, `fly` and `explain` import each other: the interface sends jobs to the stores'
//! thread, whose jobs answer with the interface's types. `cache/interned` stores the values of `cache`, which uses it.

pub mod allow;
pub mod answer;
mod breaker;
mod cache;
mod clock;
pub mod counts;
mod explain;
mod flight;
mod fly;
mod health;
pub mod key;
mod lookup;
mod memcached;
mod memory;
pub mod settings;
mod sql;
mod stores;
mod target;
mod user;
pub mod value;

pub use allow::Allow;
pub use answer::{Answer, Failure, Outcome, StoreError, Tier};
pub use breaker::{BreakerSettings, State as BreakerState};
pub use explain::{Explanation, StoreEntry};
pub use lookup::{Lookup, LookupResult, PendingAnswer};
pub use memcached::{Change, ServerState, wire};
pub use memory::MemoryEntry;
pub use settings::{
    LookupSettings, MemcachedSettings, MemcachedTier, MemoryTier, SqlSettings, SqlTier, StoreKind, StoreSettings,
};
pub use sql::{Rows, SqlState, Value, panics_are_contained};
pub use stores::{MemcachedStore, SqlStore, StartError, StoreState, Stores};
pub use value::{Protocol, Target, Targets};
