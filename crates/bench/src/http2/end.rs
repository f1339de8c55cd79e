//! How requests end that get no response: each in exactly one way.

use std::task::{Context, Poll};

use oroshi_http2::{Defect, ErrorCode, PREFACE, SendError};
use oroshi_net::monotonic_ns;

use super::connection::Connection;
use super::place::Source;
use crate::core::Outgoing;
use crate::failure::Failure;
use crate::flight::fail_without_request;

impl Connection<'_> {
    /// Fails the request of a place.
    #[cold]
    pub(super) fn fail(&mut self, number: u32, failure: Failure) {
        let begun = self.places[number as usize].answer.begun;
        if let Some(flight) = self.release(number) {
            flight.fail(self.core, self.origin, failure, begun);
        }
    }

    /// Numbers of the places with requests under way.
    fn busy(&self) -> Vec<u32> {
        (0..self.places.len() as u32).filter(|number| self.places[*number as usize].flight.is_some()).collect()
    }

    /// Fails all requests.
    fn fail_all(&mut self, failure: Failure) {
        self.busy().into_iter().for_each(|number| self.fail(number, failure));
    }

    /// Sends the request of a place again on another connection: the server has not processed it.
    pub(super) fn carry(&mut self, number: u32) {
        let Some(flight) = self.release(number) else { return };
        let place = &self.places[number as usize];
        let request = match place.source {
            Source::Planned(request) => Outgoing::Planned(request),
            Source::Made => {
                let made = place.made.requests[0];
                Outgoing::Made(made, place.made.bytes_of(&made).into())
            }
        };
        self.carried.push_back((flight.ticket, request));
    }

    /// Counts the code with which the server ended a request.
    pub(super) fn note_end(&self, failure: Failure, code: ErrorCode) {
        let text = if failure == Failure::Goaway { &self.goaway_text[..] } else { &[] };
        self.core.counters.tally.borrow_mut().http2.end(failure, code, text);
    }

    /// Ends the connection that the server closed, with `failure` for requests under way unless a GOAWAY came before.
    #[cold]
    pub(super) fn ended(&mut self, failure: Failure) {
        let goaway = self.goaway;
        if self.under_way() == 0 && self.kept.is_empty() {
            // A GOAWAY was counted when it came.
            self.core.counters.tally.borrow_mut().closed_by_server += u64::from(goaway.is_none());
            return;
        }
        self.core.activity.last_contact.set(monotonic_ns());
        let failure = match goaway {
            Some(_) => Failure::Goaway,
            None if self.write_failed => Failure::Write,
            None => failure,
        };
        if self.under_way() == 0 {
            return fail_without_request(self.core, failure);
        }
        if let Some(goaway) = goaway {
            self.busy().iter().for_each(|_| self.note_end(Failure::Goaway, goaway.code));
        }
        self.fail_all(failure);
    }

    /// Ends the connection because the server broke the protocol. `bytes` begin with frames that came before.
    #[cold]
    pub(super) fn unreadable(&mut self, defect: Defect, bytes: &[u8]) {
        let timeline = &self.core.timeline;
        let flights = self.places.iter().filter_map(|place| place.flight.as_ref());
        let failing = flights.filter(|flight| timeline.measures(flight.ticket.due)).count() as u64;
        let count = if self.under_way() == 0 { 1 } else { failing };
        // Frames are not text. Bytes of another protocol show which.
        let shown = if self.codec.is_ready() || bytes.starts_with(PREFACE) { &[] } else { bytes };
        if count > 0 {
            self.core.counters.tally.borrow_mut().unreadable.add_http2(defect, shown, count);
        }
        self.core.activity.last_contact.set(monotonic_ns());
        if self.under_way() == 0 {
            fail_without_request(self.core, Failure::Parse);
        }
        self.fail_all(Failure::Parse);
        self.closing = true;
    }

    /// Fails requests whose time is over. True when the connection has ended.
    ///
    /// If this core is late itself, responses may be in the socket: it reads once more.
    #[cold]
    pub(super) fn overdue(&mut self, cx: &mut Context<'_>) -> bool {
        if let Poll::Ready(true) = self.read(cx) {
            return true;
        }
        let now = monotonic_ns();
        let timeout = self.core.rules.timeout;
        let mut earliest = u64::MAX;
        for number in self.busy() {
            let place = &self.places[number as usize];
            let Some(flight) = &place.flight else { continue };
            let since = flight.sent.unwrap_or(flight.began);
            if since + timeout > now {
                earliest = earliest.min(since + timeout);
                continue;
            }
            let stalled = !place.body_done && self.codec.window(place.stream) == Some(0);
            let failure = match () {
                () if self.write_failed => Failure::Write,
                () if stalled => Failure::FlowControlStall,
                () => Failure::Timeout,
            };
            // The server has sent nothing for so long: others shall not wait on this connection too.
            self.closing |= self.heard < since;
            let stream = place.stream;
            self.fail(number, failure);
            self.codec.reset(&mut self.out, stream, ErrorCode::CANCEL);
        }
        if earliest != u64::MAX {
            self.core.slots[self.slot()].deadline.set(earliest);
        }
        false
    }

    /// Counts all requests as cut off by the end of the run.
    #[cold]
    pub(super) fn end_of_run(&mut self) {
        for number in self.busy() {
            let begun = self.places[number as usize].answer.begun;
            if let Some(flight) = self.release(number) {
                flight.cut_off(self.core, self.origin, begun);
            }
        }
    }

    /// A request of the script cannot be sent over HTTP/2: this ends the core's part of the run.
    #[cold]
    pub(super) fn unfit(&mut self, number: u32, error: SendError) {
        self.closing = true;
        self.core.fail_script("request", format!("request() returned what HTTP/2 cannot carry: {error}"));
        self.fail(number, Failure::Write);
    }
}
