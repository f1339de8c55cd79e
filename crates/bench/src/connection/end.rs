//! How a connection ends, and the requests in flight with it.

use oroshi_http1::DecodeError;
use oroshi_net::monotonic_ns;

use super::{Connection, InFlight, RequestRef, ToResend};
use crate::core::Outgoing;
use crate::failure::Failure;
use crate::flight::{Flight, fail_without_request};

impl Connection<'_> {
    /// Ends the connection that the server closed.
    pub(super) fn end_of_stream(&mut self, now: u64) -> ToResend {
        match self.decoder.eof() {
            Ok(Some(_)) => {
                self.complete(now);
                self.carry()
            }
            Ok(None) | Err(_) => self.ended(Failure::ReadEof),
        }
    }

    /// Ends the connection, with `failure` for requests in flight or an incomplete response.
    pub(super) fn ended(&mut self, failure: Failure) -> ToResend {
        if self.in_flight.is_empty() && self.kept.is_empty() {
            self.core.counters.tally.borrow_mut().closed_by_server += 1;
            return ToResend::new();
        }
        self.core.activity.last_contact.set(monotonic_ns());
        self.fail(if self.write_failed { Failure::Write } else { failure })
    }

    /// Ends a connection that cannot be used after the last response, and returns requests to send again elsewhere.
    ///
    /// These are requests to which the server announced no response, and those behind a request that got its response
    /// before it was sent whole.
    pub(super) fn carry(&mut self) -> ToResend {
        let announced = !self.answer.reusable;
        if announced && !self.closing {
            self.core.counters.tally.borrow_mut().closed_by_server += 1;
        }
        if self.write_failed && !announced && !self.in_flight.is_empty() {
            return self.fail(Failure::Write);
        }
        let batch = &self.batch;
        let again = |InFlight { flight: Flight { ticket, .. }, request, .. }: InFlight| match request {
            RequestRef::Planned(request) => (ticket, Outgoing::Planned(request)),
            RequestRef::Made(made) => (ticket, Outgoing::Made(made, batch.bytes_of(&made).into())),
        };
        self.in_flight.drain(..).map(again).collect()
    }

    /// Notes what is wrong with the bytes because of which all requests in flight will fail.
    #[cold]
    pub(super) fn note_unreadable(&self, error: DecodeError, bytes: &[u8]) {
        let timeline = &self.core.timeline;
        let failing = self.in_flight.iter().filter(|one| timeline.measures(one.flight.ticket.due)).count() as u64;
        let count = if self.in_flight.is_empty() { 1 } else { failing };
        if count > 0 {
            self.core.counters.tally.borrow_mut().unreadable.add(error, &self.core.rules.limits, bytes, count);
        }
    }

    /// Fails all requests in flight by one name.
    pub(super) fn fail(&mut self, failure: Failure) -> ToResend {
        if self.in_flight.is_empty() {
            // Bytes without a request: none failed, yet something is wrong with the server.
            fail_without_request(self.core, failure);
        }
        let mut begun = self.answer.begun;
        for InFlight { flight, .. } in self.in_flight.drain(..) {
            flight.fail(self.core, self.origin, failure, std::mem::take(&mut begun));
        }
        ToResend::new()
    }

    pub(super) fn end_of_run(&mut self) -> ToResend {
        let mut begun = self.answer.begun;
        for InFlight { flight, .. } in self.in_flight.drain(..) {
            flight.cut_off(self.core, self.origin, std::mem::take(&mut begun));
        }
        ToResend::new()
    }
}
