//! One origin of the plan, as one core sees it: how to connect, what to send, and when its server was last heard of.

use std::cell::Cell;

use super::Outgoing;
use crate::dialer::{Dialer, next_in_turn};
use crate::ending::ServerState;
use crate::request::Request;

/// One origin, as one core sees it. Times are nanoseconds of the monotonic clock.
#[derive(Debug)]
pub(crate) struct OriginState {
    pub(crate) dialer: Dialer,
    pub(crate) requests: Vec<Request>,
    next_request: Cell<usize>,
    /// Connections that are up now, the held ones apart.
    pub(crate) alive: Cell<usize>,
    /// Attempts to connect that found nobody, since the last one that found somebody.
    refused_last: Cell<u64>,
    /// Requests begun since the last response that timed out or were cut off.
    unanswered: Cell<u64>,
    /// When the last whole response came; 0: none did.
    last_response: Cell<u64>,
    /// Responses to requests of the measured part, and the longest service time of one.
    answered: Cell<u64>,
    slowest: Cell<u64>,
}

impl OriginState {
    /// `offset`: the first request in turn; cores differ in it.
    pub(crate) fn new(dialer: Dialer, requests: Vec<Request>, offset: usize) -> Self {
        Self {
            dialer,
            next_request: Cell::new(offset % requests.len()),
            requests,
            alive: Cell::new(0),
            refused_last: Cell::new(0),
            unanswered: Cell::new(0),
            last_response: Cell::new(0),
            answered: Cell::new(0),
            slowest: Cell::new(0),
        }
    }

    /// The next request in turn.
    #[inline]
    pub(crate) fn next_request(&self) -> usize {
        next_in_turn(&self.next_request, self.requests.len())
    }

    /// The number of a request's URL, if requests are counted by URL.
    pub(crate) fn url(&self, request: &Outgoing) -> Option<u16> {
        match request {
            Outgoing::Planned(request) => self.requests[*request].url,
            Outgoing::Made(..) => None,
        }
    }

    /// Notes a whole response at `now`, with its service time. `measured`: its request belongs to the measured part.
    #[inline]
    pub(crate) fn answered(&self, now: u64, service: u64, measured: bool) {
        self.last_response.set(now);
        self.unanswered.set(0);
        if measured {
            self.answered.set(self.answered.get() + 1);
            self.slowest.set(self.slowest.get().max(service));
        }
    }

    /// Notes a request that timed out or was cut off; `began`: when its slot began it.
    ///
    /// A request that was on its way when others got responses says nothing of the server as a whole.
    pub(crate) fn not_answered(&self, began: u64) {
        if began >= self.last_response.get() {
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

    /// When the last whole response came; 0: none did.
    pub(crate) fn last_response(&self) -> u64 {
        self.last_response.get()
    }

    /// Completes the state of the server when the measured part ended with what came after that.
    pub(crate) fn complete(&self, state: &mut ServerState) {
        state.refused_last = self.refused_last.get();
        state.unanswered = self.unanswered.get();
        state.last_response = self.last_response.get();
        state.answered = self.answered.get();
        state.slowest = self.slowest.get();
    }
}
