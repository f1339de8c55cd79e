//! How a connection ends: what becomes of the requests that are on their way.

use oroshi_http1::DecodeError;
use oroshi_net::monotonic_ns;

use super::{Asked, Carried, Connection, InFlight};
use crate::core::{Core, OriginState, Outgoing, Ticket};
use crate::failure::Failure;

impl Connection<'_> {
    /// The server closed.
    pub(super) fn end_of_stream(&mut self, now: u64) -> Carried {
        match self.decoder.eof() {
            Ok(Some(_)) => {
                self.complete(now);
                self.carry()
            }
            Ok(None) | Err(_) => self.ended(Failure::ReadEof),
        }
    }

    /// The connection ended, in order or not: `failure` if anything was still to come on it.
    pub(super) fn ended(&mut self, failure: Failure) -> Carried {
        if self.in_flight.is_empty() && self.kept.is_empty() {
            self.core.tally.borrow_mut().closed_by_server += 1;
            return Carried::new();
        }
        self.core.stirred.set(monotonic_ns());
        self.fail(if self.write_failed { Failure::Write } else { failure })
    }

    /// The connection cannot be used after the last answer. What the server, by announcing the end, promised not to answer
    /// is sent again elsewhere, and so is what stood behind a request that was answered before it was sent whole.
    pub(super) fn carry(&mut self) -> Carried {
        let announced = !self.answer.reusable;
        if announced && !self.closing {
            self.core.tally.borrow_mut().closed_by_server += 1;
        }
        if self.write_failed && !announced && !self.in_flight.is_empty() {
            return self.fail(Failure::Write);
        }
        let batch = &self.batch;
        let again = |flight: InFlight| match flight.request {
            Asked::Planned(request) => (flight.ticket, Outgoing::Planned(request)),
            Asked::Made(made) => (flight.ticket, Outgoing::Made(made, batch.bytes_of(&made).into())),
        };
        self.in_flight.drain(..).map(again).collect()
    }

    /// Notes what is wrong with the bytes for which everything in flight will fail.
    #[cold]
    pub(super) fn note_unreadable(&self, error: DecodeError, bytes: &[u8]) {
        let measure_from = self.core.measure_from.get();
        let failing = self.in_flight.iter().filter(|flight| flight.ticket.due >= measure_from).count() as u64;
        let count = if self.in_flight.is_empty() { 1 } else { failing };
        if count > 0 {
            self.core.tally.borrow_mut().unreadable.add(error, &self.core.rules.limits, bytes, count);
        }
    }

    /// Everything in flight fails by one name.
    pub(super) fn fail(&mut self, failure: Failure) -> Carried {
        let now = monotonic_ns();
        let measure_from = self.core.measure_from.get();
        let mut tally = self.core.tally.borrow_mut();
        let mut interval = self.core.interval.borrow_mut();
        if self.in_flight.is_empty() {
            // Bytes that nobody asked for: no request failed, yet something is wrong with the server.
            tally.failures.add(failure);
            interval.errors += 1;
        }
        if failure == Failure::Timeout {
            self.in_flight.iter().for_each(|flight| self.origin.not_answered(flight.began));
        }
        let mut begun = self.answer.begun;
        for flight in self.in_flight.drain(..) {
            self.core.came_to_an_end();
            let first_byte_came = std::mem::take(&mut begun);
            if flight.ticket.due < measure_from {
                continue;
            }
            interval.errors += 1;
            tally.fail(failure);
            // Past its timeout the request would have taken longer still: the percentiles must know.
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
        Carried::new()
    }

    pub(super) fn end_of_run(&mut self) -> Carried {
        let now = self.core.over_since.get();
        let mut begun = self.answer.begun;
        for flight in self.in_flight.drain(..) {
            let first_byte_came = std::mem::take(&mut begun);
            cut_off(self.core, self.origin, flight.ticket, flight.began, flight.sent);
            if let Some(sent) = flight.sent.filter(|_| !first_byte_came)
                && flight.ticket.due >= self.core.measure_from.get()
            {
                self.core.tally.borrow_mut().clocks.first_byte.record_censored(now.saturating_sub(sent));
            }
        }
        Carried::new()
    }
}

/// The run ended while a request to `origin` was on its way, or waiting to be. `began`: when its slot set about it.
pub(crate) fn cut_off(core: &Core, origin: &OriginState, ticket: Ticket, began: u64, sent: Option<u64>) {
    let now = core.over_since.get();
    core.came_to_an_end();
    origin.not_answered(began);
    core.tally.borrow_mut().window.unanswered(began, now);
    if ticket.due < core.measure_from.get() {
        return;
    }
    let mut tally = core.tally.borrow_mut();
    tally.cut_off += 1;
    tally.failures.add(Failure::CutOffAtEnd);
    tally.clocks.response.record_censored(now.saturating_sub(ticket.due));
    if let Some(sent) = sent {
        tally.clocks.service.record_censored(now.saturating_sub(sent));
    }
}
