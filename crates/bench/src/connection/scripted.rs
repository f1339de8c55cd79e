//! How a connection takes requests where a script has a say: batch by batch, with a pause before each.

use std::task::{Context, Poll};

use oroshi_net::monotonic_ns;

use super::{Asked, Connection};
use crate::core::{Phase, Ticket};

/// The pause that a script wants before each batch of requests.
pub(super) enum Pause {
    /// The script has not been asked yet.
    ToAsk,
    /// Nanoseconds of the monotonic clock; the slot's deadline until then.
    Until(u64),
    Over,
}

impl Connection<'_> {
    /// Takes the next batch of requests once the one before it is answered, and the pause before it is over.
    pub(super) fn fill_as_scripted(&mut self, cx: &mut Context<'_>) {
        let core = self.core;
        if self.closing || !self.in_flight.is_empty() {
            return;
        }
        if core.phase.get() == Phase::Connecting {
            // There is none yet; asking says since when this connection has been free.
            self.ticket(cx);
            return;
        }
        // Nothing would come after the pause. (It goes with a closed loop only, where nothing is assigned beforehand.)
        if core.delays() && core.exhausted() {
            self.closing = true;
            return;
        }
        if core.delays() && self.pause().is_pending() {
            return;
        }
        let Some(ticket) = self.ticket(cx) else { return };
        self.pause = Pause::ToAsk;
        if !core.makes_requests() {
            self.take_at(ticket, Asked::Planned(self.origin.next_request()));
            while !self.closing && self.in_flight.len() < core.rules.pipeline {
                let Some(ticket) = self.ticket(cx) else { return };
                self.take_at(ticket, Asked::Planned(self.origin.next_request()));
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
        self.take_at(ticket, Asked::Made(self.batch.requests[0]));
        for i in 1..self.batch.requests.len() {
            let Some(ticket) = self.ticket(cx) else { return };
            self.take_at(ticket, Asked::Made(self.batch.requests[i]));
        }
    }

    /// In a closed loop a request that a script had to be asked for is due when the script is done.
    fn take_at(&mut self, ticket: Ticket, request: Asked) {
        let now = self.now();
        let ticket = if self.core.rules.open { ticket } else { Ticket { due: now, free: now } };
        self.take(ticket, request, now);
    }

    /// Waits for as long as the script wants.
    fn pause(&mut self) -> Poll<()> {
        loop {
            match &mut self.pause {
                Pause::Over => return Poll::Ready(()),
                Pause::Until(end) => {
                    let now = monotonic_ns();
                    if now < *end {
                        self.core.rest_until(self.id, *end);
                        return Poll::Pending;
                    }
                    self.now = Some(now);
                    self.pause = Pause::Over;
                }
                Pause::ToAsk => {
                    self.pause = match self.core.ask_for_pause() {
                        Some(pause) if pause.is_zero() => Pause::Over,
                        Some(pause) => Pause::Until(monotonic_ns() + pause.as_nanos() as u64),
                        // The script is over, and so is what would have come after the pause.
                        None => Pause::Over,
                    }
                }
            }
        }
    }
}
