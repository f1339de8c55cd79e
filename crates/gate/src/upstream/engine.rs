//! The state that all requests of one core share: connector, deadlines, names.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use oroshi_core::{Deadline, Deadlines, HasDeadlines, Names, Registration, Ttl, system};
use oroshi_net::{Connector, ConnectorOptions};
use oroshi_server::LogThrottle;

/// The state that all requests of one core share.
pub(crate) struct Engine {
    pub(crate) connector: Connector,
    pub(super) deadlines: Deadlines,
    /// One cache of names per TTL. Settings have few different TTLs.
    names: RefCell<HashMap<Ttl, Rc<RefCell<Names>>>>,
    /// Limits how often the log warns of requests to the gateway's own listeners.
    pub(super) own_told: Cell<LogThrottle>,
    /// Bytes of buffered request bodies.
    buffered: Cell<usize>,
}

/// The limit on a core's buffered request bodies. Beyond it, bodies stream.
const MOST_BUFFERED: usize = 64 << 20;

/// At this number of caches, unused ones are dropped.
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

    /// Returns an account for a request's buffered bytes.
    pub(crate) fn account(self: &Rc<Self>) -> BufferShare {
        BufferShare { bytes: 0, engine: Rc::clone(self) }
    }

    /// Registers a request's deadline; dropping the guard removes it.
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

/// A request's share of the buffered bytes. Dropping it releases them.
#[derive(Debug)]
pub(crate) struct BufferShare {
    bytes: usize,
    engine: Rc<Engine>,
}

impl BufferShare {
    /// Sets the request's share; returns whether there is room for more.
    pub(crate) fn holds(&mut self, bytes: usize) -> bool {
        let others = self.engine.buffered.get() - self.bytes;
        self.bytes = bytes;
        self.engine.buffered.set(others + bytes);
        others + bytes < MOST_BUFFERED
    }
}

impl Drop for BufferShare {
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
