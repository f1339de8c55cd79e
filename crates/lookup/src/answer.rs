//! Answers of look-ups, and failures of stores.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::value::Targets;

/// An answer to a look-up, and its source.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The outcome.
    pub outcome: Outcome,
    /// The tier that answered.
    pub tier: Tier,
    /// Time since the answer was fetched from a store; zero if it was fetched for this look-up.
    pub age: Duration,
    /// Time that the answer stays in memory; zero if it is not kept there, or has expired.
    pub ttl_left: Duration,
}

/// The outcome of a look-up. Separate variants keep "no such key" apart from "no store could answer".
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The targets for requests.
    Hit(Targets),
    /// The key has no value: no row, NULL, or nothing in memcached without SQL behind it.
    Negative,
    /// Expired targets, used because the stores cannot answer now.
    Stale(Targets, StoreError),
    /// The stores cannot answer, and memory has no expired value.
    StoreDown(StoreError),
    /// The value is no target, or no allowed target. The reason is for the store's operator and shows nothing secret.
    Invalid(Arc<str>),
    /// Too many keys are being looked up, or too many look-ups wait.
    Overloaded,
}

impl Outcome {
    /// Returns the targets, if they are known.
    pub fn targets(&self) -> Option<&Targets> {
        match self {
            Outcome::Hit(targets) | Outcome::Stale(targets, _) => Some(targets),
            Outcome::Negative | Outcome::StoreDown(_) | Outcome::Invalid(_) | Outcome::Overloaded => None,
        }
    }

    /// Returns the name for logs and metrics: `hit`, `negative`, `stale`, `store-down`, `invalid`, `overloaded`.
    pub fn name(&self) -> &'static str {
        match self {
            Outcome::Hit(_) => "hit",
            Outcome::Negative => "negative",
            Outcome::Stale(..) => "stale",
            Outcome::StoreDown(_) => "store-down",
            Outcome::Invalid(_) => "invalid",
            Outcome::Overloaded => "overloaded",
        }
    }
}

/// The source of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// This process's own memory.
    Memory,
    /// memcached.
    Memcached,
    /// The database.
    Sql,
    /// No tier: overloaded, or down.
    None,
}

impl Tier {
    /// Returns `memory`, `memcached`, `sql` or `none`.
    pub fn as_str(self) -> &'static str {
        match self {
            Tier::Memory => "memory",
            Tier::Memcached => "memcached",
            Tier::Sql => "sql",
            Tier::None => "none",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A failed request to a store. Names the store, and shows nothing secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("store `{store}`: {failure}")]
pub struct StoreError {
    /// The store's name in the configuration.
    pub store: Arc<str>,
    /// The failure.
    pub failure: Failure,
}

/// A failure of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Name a configured store of the right kind.
    #[error("there is no such store")]
    Unknown,
    /// The breaker is open after several failures in a row.
    #[error("left alone for a while after failures in a row (its breaker is open)")]
    BreakerOpen,
    /// Check that the store is up and accepts connections from this machine.
    #[error("cannot connect: {0}")]
    Connect(Box<str>),
    /// It did not answer within its time limit.
    #[error("no answer within its time limit")]
    Timeout,
    /// The connection broke during the request.
    #[error("the connection broke: {0}")]
    Lost(Box<str>),
    /// The reply violates the protocol. Check whether something else listens there.
    #[error("it sent what is not its protocol: {0}")]
    InvalidReply(Box<str>),
    /// The store refused the request. Correct the request.
    #[error("it refused: {0}")]
    Refused(Box<str>),
    /// Too many requests wait for the store.
    #[error("too much is waiting for it")]
    Busy,
    /// A result, a key or a value is larger than the settings allow.
    #[error("{0}")]
    TooLarge(Box<str>),
    /// The stores' thread has ended.
    #[error("stores are closed")]
    Closed,
}

impl Failure {
    /// Returns the name for logs and metrics, in kebab-case.
    pub fn name(&self) -> &'static str {
        match self {
            Failure::Unknown => "unknown-store",
            Failure::BreakerOpen => "breaker-open",
            Failure::Connect(_) => "connect",
            Failure::Timeout => "timeout",
            Failure::Lost(_) => "connection-lost",
            Failure::InvalidReply(_) => "garbage",
            Failure::Refused(_) => "refused",
            Failure::Busy => "busy",
            Failure::TooLarge(_) => "too-large",
            Failure::Closed => "closed",
        }
    }

    /// Whether the failure concerns the store, not the request, and so counts for the breaker.
    pub(crate) fn is_its_fault(&self) -> bool {
        matches!(self, Failure::Connect(_) | Failure::Timeout | Failure::Lost(_) | Failure::InvalidReply(_))
    }
}
