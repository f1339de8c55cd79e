//! Who asks a store. Each has a breaker of its own: what one does is not held against the others.

use std::fmt;
use std::sync::Arc;

/// Who asks a store, by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum User {
    Lookup(Arc<str>),
    Script(Arc<str>),
}

impl User {
    /// Whether its queries are not the configuration's.
    pub(crate) fn is_script(&self) -> bool {
        matches!(self, User::Script(_))
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            User::Lookup(name) => write!(f, "look-up `{name}`"),
            User::Script(name) => write!(f, "script `{name}`"),
        }
    }
}
