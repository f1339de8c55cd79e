//! A place to connect to, as one core sees it, and what was heard from there.

use std::cell::Cell;

use oroshi_net::{Connector, Peer};

use crate::ending::Place;
use crate::request::Request;

/// A place to connect to, as one core sees it.
#[derive(Debug)]
pub(crate) struct OriginState {
    pub(crate) connector: Connector,
    pub(crate) peers: Vec<Peer>,
    pub(crate) requests: Vec<Request>,
    next_request: Cell<usize>,
    next_peer: Cell<usize>,
    /// Connections that are up now, the held ones apart.
    pub(crate) alive: Cell<usize>,
    /// Attempts to connect that found nobody, since the last one that found somebody.
    refused_last: Cell<u64>,
    /// Requests set about since the last answer that timed out or were cut off.
    unanswered: Cell<u64>,
    /// When the last whole answer came, nanoseconds of the monotonic clock; 0: none did.
    last_answer: Cell<u64>,
    /// Answers to requests of the measured part, and the service time of the slowest, nanoseconds.
    answered: Cell<u64>,
    slowest: Cell<u64>,
}

impl OriginState {
    pub(crate) fn new(connector: Connector, peers: Vec<Peer>, requests: Vec<Request>, offset: usize) -> Self {
        let (r, p) = (offset % requests.len(), offset % peers.len());
        Self {
            connector,
            peers,
            requests,
            next_request: Cell::new(r),
            next_peer: Cell::new(p),
            alive: Cell::new(0),
            refused_last: Cell::new(0),
            unanswered: Cell::new(0),
            last_answer: Cell::new(0),
            answered: Cell::new(0),
            slowest: Cell::new(0),
        }
    }

    /// The next request in turn.
    #[inline]
    pub(crate) fn next_request(&self) -> usize {
        turn(&self.next_request, self.requests.len())
    }

    pub(crate) fn next_peer(&self) -> &Peer {
        &self.peers[turn(&self.next_peer, self.peers.len())]
    }

    /// Notes an answer that was whole at `now`; `service`: how long it took, nanoseconds. `measured`: its request belongs to the measured part.
    #[inline]
    pub(crate) fn answered(&self, now: u64, service: u64, measured: bool) {
        self.last_answer.set(now);
        self.unanswered.set(0);
        if measured {
            self.answered.set(self.answered.get() + 1);
            self.slowest.set(self.slowest.get().max(service));
        }
    }

    /// Notes a request that timed out or was cut off; `began`: when its slot set about it. One that was on its way when others were answered
    /// says nothing of the server as a whole.
    pub(crate) fn not_answered(&self, began: u64) {
        if began >= self.last_answer.get() {
            self.unanswered.set(self.unanswered.get() + 1);
        }
    }

    /// Notes an attempt to connect that found nobody.
    pub(crate) fn refused(&self) {
        self.refused_last.set(self.refused_last.get() + 1);
    }

    /// Notes a new connection. True where the attempt before it had found nobody.
    pub(crate) fn connected(&self) -> bool {
        self.alive.set(self.alive.get() + 1);
        self.refused_last.replace(0) > 0
    }

    /// Notes that a connection has ended.
    pub(crate) fn disconnected(&self) {
        self.alive.set(self.alive.get() - 1);
    }

    /// Attempts to connect that found nobody, since the last one that found somebody.
    pub(crate) fn refused_last(&self) -> u64 {
        self.refused_last.get()
    }

    /// When the last whole answer came; 0: none did.
    pub(crate) fn last_answer(&self) -> u64 {
        self.last_answer.get()
    }

    /// Completes what was known when the measured part ended.
    pub(crate) fn conclude(&self, place: &mut Place) {
        place.refused_last = self.refused_last.get();
        place.unanswered = self.unanswered.get();
        place.last_answer = self.last_answer.get();
        place.answered = self.answered.get();
        place.slowest = self.slowest.get();
    }
}

#[inline]
fn turn(next: &Cell<usize>, len: usize) -> usize {
    let i = next.get();
    next.set(if i + 1 == len { 0 } else { i + 1 });
    i
}
