//! Connecting to an origin: its addresses take turns.

use std::cell::Cell;

use oroshi_net::{Connector, Peer, Scheme};

use crate::plan::{Origin, Plan};

/// Connects to the addresses of one origin in turn.
#[derive(Debug)]
pub(crate) struct Dialer {
    pub(crate) connector: Connector,
    peers: Vec<Peer>,
    next: Cell<usize>,
}

impl Dialer {
    /// A dialer with the connection settings of `plan`. `offset`: the first turn; workers differ in it.
    pub(crate) fn new(plan: &Plan, origin: &Origin, peers: Vec<Peer>, offset: usize) -> Self {
        let next = Cell::new(offset % peers.len());
        Self { connector: Connector::new(plan.connector_options(origin)), peers, next }
    }

    /// The next address in turn.
    pub(crate) fn next_peer(&self) -> &Peer {
        &self.peers[next_in_turn(&self.next, self.peers.len())]
    }

    /// The address of connection `number`, which always has the same one.
    pub(crate) fn peer_of(&self, number: usize) -> &Peer {
        &self.peers[number % self.peers.len()]
    }

    /// The scheme of the origin's URLs.
    pub(crate) fn scheme(&self) -> Scheme {
        if self.uses_tls() { Scheme::Https } else { Scheme::Http }
    }

    pub(crate) fn uses_tls(&self) -> bool {
        self.connector.options().tls.is_some()
    }
}

/// Returns the index in turn among `len`, and moves on.
#[inline]
pub(crate) fn next_in_turn(next: &Cell<usize>, len: usize) -> usize {
    let index = next.get();
    next.set(if index + 1 == len { 0 } else { index + 1 });
    index
}
