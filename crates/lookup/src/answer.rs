//! What a look-up comes to, and what can be wrong with a store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::value::Targets;

/// What stands under a key, and who says so.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// What came of it.
    pub outcome: Outcome,
    /// Who answered.
    pub tier: Tier,
    /// How long ago the answer was fetched from a store; zero for one that was fetched for this look-up.
    pub age: Duration,
    /// How long it stays in memory from now on; zero for what is not kept there, and for what has expired.
    pub ttl_left: Duration,
}

/// What came of a look-up. Each has its own name, so that "there is none" is never mistaken for "nobody could say".
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Where to send requests to.
    Hit(Targets),
    /// Nothing stands under this key: no row, NULL, or nothing in memcached where there is no SQL behind it.
    Negative,
    /// Where to send requests to, as far as was known before it expired: the stores cannot say now.
    Stale(Targets, StoreError),
    /// The stores cannot say, and nothing is known from before.
    StoreDown(StoreError),
    /// Something stands under this key that is no target, or none that is allowed; why, for whoever looks after the
    /// store. Shows nothing secret.
    Invalid(Arc<str>),
    /// Too many keys, or too many who wait for one, are being looked up already.
    Overloaded,
}

impl Outcome {
    /// Where to send requests to, if that is known.
    pub fn targets(&self) -> Option<&Targets> {
        match self {
            Outcome::Hit(targets) | Outcome::Stale(targets, _) => Some(targets),
            Outcome::Negative | Outcome::StoreDown(_) | Outcome::Invalid(_) | Outcome::Overloaded => None,
        }
    }

    /// Its name in logs and metrics: `hit`, `negative`, `stale`, `store-down`, `invalid`, `overloaded`.
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

/// Who answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// This process's own memory.
    Memory,
    /// memcached.
    Memcached,
    /// The database.
    Sql,
    /// Nobody: too busy, or down.
    None,
}

impl Tier {
    /// `memory`, `memcached`, `sql`, `none`.
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

/// Why a store did not do what it was asked. Says which store, and nothing secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("store `{store}`: {failure}")]
pub struct StoreError {
    /// Its name in the configuration.
    pub store: Arc<str>,
    /// What happened.
    pub failure: Failure,
}

/// What can be wrong with a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Name one that is configured, of the right kind.
    #[error("there is no such store")]
    Unknown,
    /// It has failed several times in a row, and is left alone for a while.
    #[error("left alone for a while after failures in a row (its breaker is open)")]
    BreakerOpen,
    /// See whether it is up, and whether this machine may connect.
    #[error("cannot connect: {0}")]
    Connect(Box<str>),
    /// It did not answer within its time limit.
    #[error("no answer within its time limit")]
    Timeout,
    /// The connection broke while it was asked.
    #[error("the connection broke: {0}")]
    Lost(Box<str>),
    /// What it sent is not its protocol. See whether something else listens there.
    #[error("it sent what is not its protocol: {0}")]
    Garbage(Box<str>),
    /// It understood, and said no. Mend what is asked.
    #[error("it refused: {0}")]
    Refused(Box<str>),
    /// More is waiting for it than it has room for.
    #[error("too much is waiting for it")]
    Busy,
    /// A result, a key or a value is larger than the settings allow.
    #[error("{0}")]
    TooLarge(Box<str>),
    /// The thread that looks after the stores has ended.
    #[error("stores are closed")]
    Closed,
}

impl Failure {
    /// Its name in logs and metrics, in kebab-case.
    pub fn name(&self) -> &'static str {
        match self {
            Failure::Unknown => "unknown-store",
            Failure::BreakerOpen => "breaker-open",
            Failure::Connect(_) => "connect",
            Failure::Timeout => "timeout",
            Failure::Lost(_) => "connection-lost",
            Failure::Garbage(_) => "garbage",
            Failure::Refused(_) => "refused",
            Failure::Busy => "busy",
            Failure::TooLarge(_) => "too-large",
            Failure::Closed => "closed",
        }
    }

    /// Whether it says something about the store rather than about what was asked, and so counts for its breaker.
    pub(crate) fn is_its_fault(&self) -> bool {
        matches!(self, Failure::Connect(_) | Failure::Timeout | Failure::Lost(_) | Failure::Garbage(_))
    }
}
