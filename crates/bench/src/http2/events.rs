//! The effect of the server's frames on the requests.

use oroshi_http2::{ErrorCode, Event, Heads, StreamRef};

use super::connection::{Connection, Goaway};
use crate::failure::Failure;

impl Connection<'_> {
    #[inline]
    pub(super) fn event(&mut self, event: Event<'_>, now: u64) {
        let core = self.core;
        if !matches!(event, Event::Settings | Event::WindowOpen { .. } | Event::Pong { .. }) {
            self.heard = now;
        }
        match event {
            Event::Response { stream, head, end } => {
                let Some(place) = self.places.get_mut(stream.tag as usize) else { return };
                let Some(flight) = &place.flight else { return };
                core.first.head(head.status, head.headers);
                flight.note_first_byte(core, &mut place.answer, now);
                place.answer.head(&core.rules, head.status, head.headers, true);
                self.choose_heads(head.status);
                if end {
                    self.complete(stream.tag, now);
                }
            }
            Event::Data { stream, data, end } => {
                let Some(place) = self.places.get_mut(stream.tag as usize) else { return };
                core.first.data(place.answer.status, data);
                let kept = place.answer.data(&core.rules, data);
                if kept > 0 && !core.keep_body(kept) {
                    self.closing = true;
                }
                if end {
                    self.complete(stream.tag, now);
                }
            }
            Event::Trailers { stream, headers } => {
                let Some(place) = self.places.get_mut(stream.tag as usize) else { return };
                place.answer.trailers(&core.rules, headers);
                self.complete(stream.tag, now);
            }
            Event::Reset { stream, code, defect: None } => self.was_reset(stream, code),
            Event::Reset { stream, defect: Some(defect), .. } => {
                core.counters.tally.borrow_mut().unreadable.add_http2(defect, &[], 1);
                core.activity.last_contact.set(now);
                self.fail(stream.tag, Failure::Parse);
            }
            Event::GoAway { last_stream, code, debug } => {
                let first = self.goaway.replace(Goaway { last: last_stream, code }).is_none();
                self.goaway_text = debug.to_vec();
                self.closing = true;
                core.activity.last_contact.set(now);
                if first {
                    core.counters.tally.borrow_mut().closed_by_server += 1;
                }
            }
            Event::Settings => core.counters.tally.borrow_mut().http2.allow(self.codec.peer().streams),
            Event::Informational { .. }
            | Event::WindowOpen { .. }
            | Event::Pong { .. }
            | Event::Request { .. }
            | Event::Refused { .. } => {}
        }
    }

    /// Decodes only what frames a response, once the record has what it shows of other fields.
    #[inline]
    fn choose_heads(&mut self, status: u16) {
        let wants_fields = self.core.rules.wanted.is_some_and(|wanted| wanted.headers);
        let redirect = (300..400).contains(&status) && !self.core.first.has_location();
        let all = wants_fields || redirect || !self.core.first.has_server();
        self.codec.decode_heads(if all { Heads::All } else { Heads::Framing });
    }

    /// The server has reset a stream, or its GOAWAY excludes it.
    #[cold]
    fn was_reset(&mut self, stream: StreamRef, code: ErrorCode) {
        let excluded = self.goaway.filter(|goaway| stream.id > goaway.last);
        match excluded {
            // Something was done on this connection, so sending again on others comes to an end.
            Some(goaway) if goaway.code == ErrorCode::NO_ERROR && self.completed > 0 => self.carry(stream.tag),
            Some(goaway) => {
                self.note_end(Failure::Goaway, goaway.code);
                self.fail(stream.tag, Failure::Goaway);
            }
            None => {
                self.note_end(Failure::StreamReset, code);
                self.fail(stream.tag, Failure::StreamReset);
            }
        }
    }
}
