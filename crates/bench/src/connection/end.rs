//! How a connection ends, and the requests in flight with it.

use oroshi_http1::DecodeError;
use oroshi_net::monotonic_ns;

use super::{Connection, InFlight, RequestRef, ToResend};
use crate::core::{Core, OriginState, Outgoing};
use crate::failure::Failure;

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
        let again = |flight: InFlight| match flight.request {
            RequestRef::Planned(request) => (flight.ticket, Outgoing::Planned(request)),
            RequestRef::Made(made) => (flight.ticket, Outgoing::Made(made, batch.bytes_of(&made).into())),
        };
        self.in_flight.drain(..).map(again).collect()
    }

    /// Notes what is wrong with the bytes because of which all requests in flight will fail.
    #[cold]
    pub(super) fn note_unreadable(&self, error: DecodeError, bytes: &[u8]) {
        let timeline = &self.core.timeline;
        let failing = self.in_flight.iter().filter(|flight| timeline.measures(flight.ticket.due)).count() as u64;
        let count = if self.in_flight.is_empty() { 1 } else { failing };
        if count > 0 {
            self.core.counters.tally.borrow_mut().unreadable.add(error, &self.core.rules.limits, bytes, count);
        }
    }

    /// Fails all requests in flight by one name.
    pub(super) fn fail(&mut self, failure: Failure) -> ToResend {
        let now = monotonic_ns();
        let mut tally = self.core.counters.tally.borrow_mut();
        let mut interval = self.core.counters.interval.borrow_mut();
        if self.in_flight.is_empty() {
            // Bytes without a request: none failed, yet something is wrong with the server.
            tally.failures.add(failure);
            interval.errors += 1;
        }
        if failure == Failure::Timeout {
            self.in_flight.iter().for_each(|flight| self.origin.not_answered(flight.began));
        }
        let mut begun = self.answer.begun;
        for flight in self.in_flight.drain(..) {
            self.core.request_ended();
            let first_byte_came = std::mem::take(&mut begun);
            if !self.core.timeline.measures(flight.ticket.due) {
                continue;
            }
            interval.errors += 1;
            tally.fail(failure);
            // The request would have taken longer than its timeout: the percentiles must know.
            if failure == Failure::Timeout {
                tally.clocks.response.record_censored(now.saturating_sub(flight.ticket.due));
                if let Some(sent) = flight.sent {
                    tally.clocks.service.record_censored(now.saturating_sub(sent));
                    if !first_byte_came {
                        tally.clocks.first_byte.record_censored(now.saturating_sub(sent));
                    }
                }
            }
        }
        ToResend::new()
    }

    pub(super) fn end_of_run(&mut self) -> ToResend {
        let now = self.core.timeline.over_since();
        let mut begun = self.answer.begun;
        for flight in self.in_flight.drain(..) {
            let first_byte_came = std::mem::take(&mut begun);
            cut_off(self.core, self.origin, flight.ticket.due, flight.began, flight.sent);
            if let Some(sent) = flight.sent.filter(|_| !first_byte_came)
                && self.core.timeline.measures(flight.ticket.due)
            {
                self.core.counters.tally.borrow_mut().clocks.first_byte.record_censored(now.saturating_sub(sent));
            }
        }
        ToResend::new()
    }
}

/// Counts a request to `origin` that the end of the run cut off. `began`: when its slot began it.
pub(crate) fn cut_off(core: &Core, origin: &OriginState, due: u64, began: u64, sent: Option<u64>) {
    let now = core.timeline.over_since();
    core.request_ended();
    origin.not_answered(began);
    core.counters.tally.borrow_mut().window.unanswered(began, now);
    if !core.timeline.measures(due) {
        return;
    }
    let mut tally = core.counters.tally.borrow_mut();
    tally.cut_off += 1;
    tally.failures.add(Failure::CutOffAtEnd);
    tally.clocks.response.record_censored(now.saturating_sub(due));
    if let Some(sent) = sent {
        tally.clocks.service.record_censored(now.saturating_sub(sent));
    }
}
