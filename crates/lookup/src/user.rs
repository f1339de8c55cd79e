//! Users of a store. Each has its own breaker, so that one user's failures do not affect the others.

use std::fmt;
use std::sync::Arc;

/// A user of a store, by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StoreUser {
    Lookup(Arc<str>),
    Script(Arc<str>),
}

impl StoreUser {
    /// Whether this is a script, whose queries are not the configuration's.
    pub(crate) fn is_script(&self) -> bool {
        matches!(self, StoreUser::Script(_))
    }
}

impl fmt::Display for StoreUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUser::Lookup(name) => write!(f, "look-up `{name}`"),
            StoreUser::Script(name) => write!(f, "script `{name}`"),
        }
    }
}
