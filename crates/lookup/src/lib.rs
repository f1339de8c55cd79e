//! What stands under a key: from memory, memcached, SQL.
//!
//! **What it knows**: keys and their canonical form, targets and where they may be, tiers and how long an answer
//! counts, stores and what is wrong with them.
//!
//! **What it does not know**: HTTP, who asks, what is sent to a target, and whether it answers. Names among the targets
//! are not resolved here; whoever does holds their addresses against [`Allow::resolved`].
//!
//! # How it works
//!
//! - Answers stand in memory that all cores share, in shards. A look-up that finds one there takes one uncontended
//!   lock, allocates nothing, and of two million entries touches one cache line, in huge pages; a target that is no IPv4
//!   address stands elsewhere, once for all its keys.
//! - What is not there goes by message to one thread, which has all connections to the stores. However many ask for a
//!   key, it is asked for once; who has gone meanwhile costs nothing.
//! - Every outcome has its own type ([`Outcome`]): that there is no such key is never mistaken for a store that is
//!   down.
//! - Everything is bounded: entries, bytes, keys under way, those who wait, what is sent to a store, and every time.
//!
//! # Where to read
//!
//! 1. [`Lookup`] (`lookup`) and [`Stores`] (`stores`): what one calls. [`settings`]: how they are set up. [`Answer`]
//!    (`answer`): what comes of it.
//! 2. [`key`], [`value`], [`allow`]: what is looked up, what is found, what of it may be used.
//! 3. `memory` on `cache`, `flight`, `breaker` with `user`: what is kept, who waits, who is left alone. No I/O; time is
//!    an argument.
//! 4. `fly`: from tier to tier, on the stores' thread. `memcached` ([`wire`] without I/O), `sql`: the stores.
//! 5. `explain`, [`counts`]: for those who watch.

pub mod allow;
pub mod answer;
mod breaker;
mod cache;
mod clock;
pub mod counts;
mod explain;
mod flight;
mod fly;
pub mod key;
mod lookup;
mod memcached;
mod memory;
mod news;
pub mod settings;
mod sql;
mod stores;
mod user;
pub mod value;

pub use allow::Allow;
pub use answer::{Answer, Failure, Outcome, StoreError, Tier};
pub use breaker::{Breaking, State as BreakerState};
pub use explain::{Explanation, Held};
pub use lookup::{Get, Later, Lookup};
pub use memcached::{ServerState, wire};
pub use memory::Kept;
pub use settings::{
    LookupSettings, MemcachedSettings, MemcachedTier, MemoryTier, SqlSettings, SqlTier, StoreKind, StoreSettings,
};
pub use sql::{Rows, SqlState, Value, panics_are_contained};
pub use stores::{MemcachedStore, SqlStore, StartError, StoreState, Stores};
pub use value::{Target, Targets};
