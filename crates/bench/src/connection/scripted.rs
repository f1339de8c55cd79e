//! How a connection takes requests from a script: batch by batch, with a pause before each.

use std::task::Context;

use super::{Connection, RequestRef};
use crate::core::{Phase, Ticket};
use crate::scripting::Pause;

impl Connection<'_> {
    /// Takes the next batch of requests, once the last one got its responses and the pause is over.
    pub(super) fn fill_as_scripted(&mut self, cx: &mut Context<'_>) {
        let core = self.core;
        if self.closing || !self.in_flight.is_empty() {
            return;
        }
        if core.timeline.phase() == Phase::Connecting {
            // There is no ticket yet. Asking for one notes since when this connection is free.
            self.ticket(cx);
            return;
        }
        // Nothing would follow the pause. (Pauses need a closed loop, which assigns no tickets in advance.)
        if core.delays() && core.exhausted() {
            self.closing = true;
            return;
        }
        if core.delays() {
            if self.pause.poll(core, self.id).is_pending() {
                return;
            }
            self.now = None;
        }
        let Some(ticket) = self.ticket(cx) else { return };
        self.pause = Pause::ToAsk;
        if !core.makes_requests() {
            self.take_at(ticket, RequestRef::Planned(self.origin.next_request()));
            while !self.closing && self.in_flight.len() < core.rules.pipeline {
                let Some(ticket) = self.ticket(cx) else { return };
                self.take_at(ticket, RequestRef::Planned(self.origin.next_request()));
            }
            return;
        }
        if !core.make_requests(&mut self.batch) {
            self.closing = true;
            return;
        }
        if core.rules.per_connection == self.given + 1 {
            self.batch.close_after_the_only();
        }
        // Making the request took its time.
        self.now = None;
        self.take_at(ticket, RequestRef::Made(self.batch.requests[0]));
        for i in 1..self.batch.requests.len() {
            let Some(ticket) = self.ticket(cx) else { return };
            self.take_at(ticket, RequestRef::Made(self.batch.requests[i]));
        }
    }

    /// Hands a whole response to the script, if it reads them. False when that ended the core's part of the run.
    #[inline]
    pub(super) fn tell_script(&mut self) -> bool {
        let Some(response) = self.answer.response() else { return true };
        let goes_on = self.core.tell_script(response);
        self.forget_body();
        goes_on
    }

    /// Gives back the memory of a body that was kept for the script.
    #[inline]
    pub(super) fn forget_body(&mut self) {
        if self.core.script.is_some() {
            self.core.release_body(self.answer.forget_body());
        }
    }

    /// Takes a request that a script made: in a closed loop it is due when the script has returned.
    fn take_at(&mut self, ticket: Ticket, request: RequestRef) {
        let now = self.now();
        let ticket = if self.core.rules.open { ticket } else { Ticket { due: now, free: now } };
        self.take(ticket, request, now);
    }
}
