//! The state that all requests of one core share: the connector, the deadlines, the names.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use oroshi_core::{Deadline, Deadlines, HasDeadlines, Names, Registration, Ttl, system};
use oroshi_net::{Connector, ConnectorOptions};
use oroshi_server::Seldom;

/// What all requests of one core share.
pub(crate) struct Engine {
    pub(crate) connector: Connector,
    pub(super) deadlines: Deadlines,
    /// A cache of names for each TTL, of which settings have few.
    names: RefCell<HashMap<Ttl, Rc<RefCell<Names>>>>,
    /// Requests for the gateway's own sockets, as far as operators were told.
    pub(super) own_told: Cell<Seldom>,
    /// Bytes of requests' bodies that were waited for and are still held.
    buffered: Cell<usize>,
}

/// So many bytes of requests' bodies are held by a core at most; beyond that they stream.
const MOST_BUFFERED: usize = 64 << 20;

/// The most caches of names, beside those in use.
const MOST_NAMES: usize = 16;

impl Engine {
    pub(super) fn new() -> Self {
        Engine {
            connector: Connector::new(ConnectorOptions::default()),
            deadlines: Deadlines::default(),
            names: RefCell::default(),
            own_told: Cell::default(),
            buffered: Cell::new(0),
        }
    }

    /// An account of bytes that a request holds.
    pub(crate) fn account(self: &Rc<Self>) -> Account {
        Account { bytes: 0, engine: Rc::clone(self) }
    }

    /// Registers a request until the guard is dropped.
    pub(crate) fn register(self: &Rc<Self>) -> Registration<Self> {
        Deadlines::register(self)
    }

    /// Returns the cache of names with this TTL.
    pub(super) fn names(&self, ttl: Ttl) -> Rc<RefCell<Names>> {
        let mut all = self.names.borrow_mut();
        if all.len() >= MOST_NAMES && !all.contains_key(&ttl) {
            all.retain(|_, names| Rc::strong_count(names) > 1);
        }
        Rc::clone(all.entry(ttl).or_insert_with(|| Rc::new(RefCell::new(Names::new(Arc::new(system), ttl)))))
    }
}

impl HasDeadlines for Engine {
    type Value = Deadline;

    fn deadlines(&self) -> &Deadlines {
        &self.deadlines
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("under_way", &self.deadlines.count()).finish_non_exhaustive()
    }
}

/// How many bytes of its body a request holds; none any more when this is dropped.
#[derive(Debug)]
pub(crate) struct Account {
    bytes: usize,
    engine: Rc<Engine>,
}

impl Account {
    /// It holds so many; whether there is room for more.
    pub(crate) fn holds(&mut self, bytes: usize) -> bool {
        let others = self.engine.buffered.get() - self.bytes;
        self.bytes = bytes;
        self.engine.buffered.set(others + bytes);
        others + bytes < MOST_BUFFERED
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.engine.buffered.set(self.engine.buffered.get() - self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn names_are_kept_once_for_each_ttl_and_not_without_end() {
        let engine = Engine::new();
        let ttl = |seconds| Ttl { positive: Duration::from_secs(seconds), negative: Duration::from_secs(1) };
        let first = engine.names(ttl(0));
        assert!(Rc::ptr_eq(&first, &engine.names(ttl(0))));
        for seconds in 0..MOST_NAMES as u64 {
            engine.names(ttl(seconds));
        }
        assert_eq!(engine.names.borrow().len(), MOST_NAMES);
        engine.names(ttl(MOST_NAMES as u64));
        assert_eq!(engine.names.borrow().len(), 2, "the one in use and the new one");
        assert!(Rc::ptr_eq(&first, &engine.names(ttl(0))));
    }
}
