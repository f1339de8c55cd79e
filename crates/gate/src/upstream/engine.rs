//! What all requests of one core share: the scratch buffer, spare buffers, the connector, the deadlines.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use oroshi_net::{Connector, ConnectorOptions};
use oroshi_server::Seldom;

use super::clock::Clock;

/// How much one read takes in at most, in bytes.
const SCRATCH_BYTES: usize = 64 * 1024;

/// What all requests of one core share.
pub(crate) struct Engine {
    /// What every read from a server reads into. Borrowed within one poll only.
    pub(crate) scratch: RefCell<Box<[u8]>>,
    pub(crate) connector: Connector,
    pub(crate) clock: Rc<Clock>,
    /// Requests for the gateway's own sockets, as far as operators were told.
    pub(super) own_told: Cell<Seldom>,
    spares: RefCell<Vec<Vec<u8>>>,
    /// Bytes of requests' bodies that were waited for and are still held.
    buffered: Cell<usize>,
}

/// So many bytes of requests' bodies are held by a core at most; beyond that they stream.
const MOST_BUFFERED: usize = 64 << 20;

impl Engine {
    pub(super) fn new() -> Self {
        Engine {
            scratch: RefCell::new(vec![0; SCRATCH_BYTES].into()),
            connector: Connector::new(ConnectorOptions::default()),
            clock: Rc::new(Clock::new()),
            own_told: Cell::default(),
            spares: RefCell::default(),
            buffered: Cell::new(0),
        }
    }

    /// An account of bytes that a request holds.
    pub(crate) fn account(self: &Rc<Self>) -> Account {
        Account { bytes: 0, engine: Rc::clone(self) }
    }

    /// An empty buffer, which goes back when it is dropped. Nothing is allocated for it here.
    pub(crate) fn spare(self: &Rc<Self>) -> Spare {
        Spare { bytes: self.spares.borrow_mut().pop().unwrap_or_default(), engine: Rc::clone(self) }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("under_way", &self.clock.seats()).finish_non_exhaustive()
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

/// A buffer that is kept for the next request when it is dropped.
#[derive(Debug)]
pub(crate) struct Spare {
    bytes: Vec<u8>,
    engine: Rc<Engine>,
}

impl Spare {
    /// At most so many are kept, of at most so many bytes: 8 MiB at most.
    const BUFFERS: usize = 64;
    const BYTES: usize = 2 * SCRATCH_BYTES;
}

impl Deref for Spare {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.bytes
    }
}

impl DerefMut for Spare {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        let mut spares = self.engine.spares.borrow_mut();
        if (1..=Self::BYTES).contains(&self.bytes.capacity()) && spares.len() < Self::BUFFERS {
            self.bytes.clear();
            spares.push(std::mem::take(&mut self.bytes));
        }
    }
}
