//! One connection with all its streams, from its first request to its end: the hot path.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use oroshi_core::{Incoming, Scratch, spares};
use oroshi_http2::{Connection as Codec, ErrorCode, SendError};
use oroshi_net::{Stream, monotonic_ns};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::place::{Place, Source};
use super::request::send_made;
use crate::connection::{ToResend, read_failure};
use crate::core::{Core, OriginState, Outgoing, Phase, Take, Ticket};
use crate::flight::Flight;

/// Bytes that wait to be written, above which no body is added, bytes.
const WRITE_BATCH: usize = 64 * 1024;
/// Bytes of one body that are added at a time: bodies of several streams take turns.
const PIECE: usize = 16 * 1024;
/// Bytes that wait to be written, above which nothing is read: answers to the server's frames must not pile up.
const MOST_UNWRITTEN: usize = 256 * 1024;

/// A GOAWAY of the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goaway {
    /// The last stream that it has processed or will process.
    pub(super) last: u32,
    pub(super) code: ErrorCode,
}

/// One connection, from its first request to its end.
pub(crate) struct Connection<'c> {
    pub(super) core: &'c Core,
    id: usize,
    /// The slot of the first place.
    first_slot: usize,
    pub(super) origin: &'c OriginState,
    pub(super) stream: Stream,
    pub(super) codec: Codec,
    /// Bytes of an incomplete frame.
    pub(super) kept: Incoming,
    pub(super) places: Vec<Place>,
    /// Places without a request, the one to use next last.
    idle: Vec<u32>,
    /// Requests that wait to be written, in order, and where each begins in `out`.
    unsent: VecDeque<(u32, usize)>,
    /// Places whose body is not written whole.
    bodies: VecDeque<u32>,
    /// Bytes to write, of which `written` are.
    pub(super) out: Vec<u8>,
    written: usize,
    /// Requests that were given to this connection, and those that got a response.
    given: u64,
    pub(super) completed: u64,
    /// Requests to send again on another connection.
    pub(super) carried: ToResend,
    /// Connect time, nanoseconds, until it is counted for the first request.
    connect_ns: u64,
    /// When frames of a response last came, nanoseconds of the monotonic clock. SETTINGS and its acknowledgement do not
    /// count: they can come after the first request was sent.
    pub(super) heard: u64,
    pub(super) goaway: Option<Goaway>,
    /// The text of the GOAWAY.
    pub(super) goaway_text: Vec<u8>,
    /// Nothing has been written yet.
    fresh: bool,
    /// TLS holds records that the socket had no room for.
    unflushed: bool,
    /// There will be no more tickets.
    exhausted: bool,
    /// The connection can carry no request after those under way.
    pub(super) closing: bool,
    /// The peer reads no more. Responses that it sent before are still read.
    pub(super) write_failed: bool,
    /// The connection ended because nothing was left to send.
    spare: bool,
    /// The last reading of the clock in this poll.
    now: Option<u64>,
}

impl<'c> Connection<'c> {
    /// A connection that begins with the `carried` requests. `connect_ns`: its connect time, nanoseconds.
    pub(crate) fn new(
        core: &'c Core,
        id: usize,
        origin: &'c OriginState,
        stream: Stream,
        connect_ns: u64,
        carried: ToResend,
    ) -> Self {
        let mut connection = Self::with_places(core, id, origin, stream, core.ticket_slots(id));
        connection.connect_ns = connect_ns;
        for (ticket, request) in carried {
            // In a closed loop, time on another connection is part of the request's time.
            let began = if core.rules.open { monotonic_ns() } else { ticket.due };
            connection.give(ticket, &request, began);
        }
        connection
    }

    /// A connection that carries no request, and answers the server's frames.
    pub(crate) fn held(core: &'c Core, id: usize, origin: &'c OriginState, stream: Stream) -> Self {
        Self::with_places(core, id, origin, stream, 0..0)
    }

    /// `slots`: those of its places.
    fn with_places(core: &'c Core, id: usize, origin: &'c OriginState, stream: Stream, slots: Range<usize>) -> Self {
        let mut out = spares::take();
        let codec = Codec::client(core.http2.config.clone(), &mut out);
        let places = slots.len();
        Self {
            core,
            id,
            first_slot: slots.start,
            origin,
            stream,
            codec,
            kept: Incoming::default(),
            places: (0..places).map(|_| Place::default()).collect(),
            idle: (0..places as u32).rev().collect(),
            unsent: VecDeque::new(),
            bodies: VecDeque::new(),
            out,
            written: 0,
            given: 0,
            completed: 0,
            carried: ToResend::new(),
            connect_ns: 0,
            heard: 0,
            goaway: None,
            goaway_text: Vec::new(),
            fresh: true,
            unflushed: false,
            exhausted: false,
            closing: false,
            write_failed: false,
            spare: false,
            now: None,
        }
    }

    /// Adds a request that the slot began at `began`.
    pub(crate) fn give(&mut self, ticket: Ticket, request: &Outgoing, began: u64) {
        let Some(number) = self.idle.pop() else { return self.carried.push_back((ticket, request.clone())) };
        let place = &mut self.places[number as usize];
        place.source = match request {
            Outgoing::Planned(request) => Source::Planned(*request),
            Outgoing::Made(made, bytes) => {
                place.made.clear();
                let made = place.made.adopt(bytes, made);
                place.made.requests.push(made);
                Source::Made
            }
        };
        self.send(number, ticket, began);
    }

    /// Whether it was given any request.
    pub(crate) fn was_used(&self) -> bool {
        self.given > 0
    }

    /// Whether it was up, and idle, when nothing was left to send.
    pub(crate) fn is_spare(&self) -> bool {
        self.spare
    }

    /// Requests under way.
    pub(super) fn under_way(&self) -> usize {
        self.places.len() - self.idle.len()
    }

    /// Sends and receives until the connection has ended.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToResend> {
        self.now = None;
        self.core.slots[self.id].enrol(cx);
        loop {
            if self.core.timeline.is_over() {
                self.end_of_run();
                return Poll::Ready(self.take_carried());
            }
            if self.core.take_expired(self.id) && self.overdue(cx) {
                return Poll::Ready(self.take_carried());
            }
            self.fill(cx);
            if (self.closing || self.exhausted) && self.under_way() == 0 {
                self.spare = !self.closing;
                return Poll::Ready(self.take_carried());
            }
            self.flush(cx);
            if self.out.len() - self.written > MOST_UNWRITTEN && !self.write_failed {
                return Poll::Pending;
            }
            match self.read(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(false) => {}
                Poll::Ready(true) => return Poll::Ready(self.take_carried()),
            }
        }
    }

    fn take_carried(&mut self) -> ToResend {
        std::mem::take(&mut self.carried)
    }

    fn now(&mut self) -> u64 {
        *self.now.get_or_insert_with(monotonic_ns)
    }

    /// Takes as many requests as the connection may carry.
    #[inline]
    fn fill(&mut self, cx: &mut Context<'_>) {
        if self.closing || self.idle.is_empty() {
            return;
        }
        // Before the server has said how many streams it allows, one is safe.
        let allowed = if self.codec.is_ready() { self.codec.peer().streams } else { 1 };
        let running = self.core.timeline.is_running() && !self.core.exhausted();
        let mut at = self.idle.len();
        while at > 0 && !self.closing {
            at -= 1;
            let number = self.idle[at];
            let slot = &self.core.slots[self.first_slot + number as usize];
            // A place that waits for an arrival is woken by it. A ticket that was given is never left behind.
            let waits = running && self.core.rules.open && slot.is_queued();
            if (waits || self.exhausted || number >= allowed) && !slot.is_assigned() {
                continue;
            }
            match self.codec.can_open() {
                Ok(()) => {}
                Err(SendError::TooManyStreams) => return,
                Err(_) => {
                    self.closing = true;
                    return;
                }
            }
            if let Some(ticket) = self.next(number, cx) {
                self.idle.swap_remove(at);
                // A pause may have set it.
                slot.deadline.clear();
                let began = self.now();
                self.send(number, ticket, began);
            }
        }
    }

    /// Takes a ticket for a place, if there is one now, and its request.
    #[inline]
    fn next(&mut self, number: u32, cx: &mut Context<'_>) -> Option<Ticket> {
        if self.core.script.is_some() && (self.core.delays() || self.core.makes_requests()) {
            return self.next_scripted(number, cx);
        }
        let ticket = self.ticket(number, cx)?;
        self.places[number as usize].source = Source::Planned(self.origin.next_request());
        Some(ticket)
    }

    /// Takes a ticket and a request from the script, once its pause is over.
    #[cold]
    fn next_scripted(&mut self, number: u32, cx: &mut Context<'_>) -> Option<Ticket> {
        let (core, slot) = (self.core, self.first_slot + number as usize);
        if core.timeline.phase() == Phase::Connecting {
            // There is no ticket yet. Asking for one notes since when this place is free.
            return self.ticket(number, cx);
        }
        if core.delays() {
            // Nothing would follow the pause.
            if core.exhausted() {
                self.exhausted = true;
                return None;
            }
            core.slots[slot].enrol(cx);
            if self.places[number as usize].pause.poll(core, slot).is_pending() {
                return None;
            }
            core.slots[slot].deadline.clear();
            self.now = None;
        }
        let ticket = self.ticket(number, cx)?;
        let place = &mut self.places[number as usize];
        place.pause = crate::scripting::Pause::ToAsk;
        if core.makes_requests() {
            place.source = Source::Made;
            if !core.make_requests(&mut place.made) {
                // The script has ended: the ticket is of no use, and the run is given up.
                self.exhausted = true;
                core.request_ended();
                return None;
            }
        } else {
            place.source = Source::Planned(self.origin.next_request());
        }
        // Making the request took its time.
        self.now = None;
        let now = self.now();
        Some(if core.rules.open { ticket } else { Ticket { due: now, free: now } })
    }

    /// Takes a ticket for a place, if there is one now.
    #[inline]
    fn ticket(&mut self, number: u32, cx: &Context<'_>) -> Option<Ticket> {
        let (core, now) = (self.core, &mut self.now);
        let slot = self.first_slot + number as usize;
        match core.take_ticket(slot, cx, || *now.get_or_insert_with(monotonic_ns)) {
            Take::Now(ticket) => Some(ticket),
            Take::Wait => None,
            Take::Over => {
                self.exhausted = true;
                None
            }
        }
    }

    /// Puts the request of a place into the output.
    #[inline]
    fn send(&mut self, number: u32, ticket: Ticket, began: u64) {
        self.given += 1;
        self.closing |= self.given >= self.core.rules.per_connection;
        if self.out.capacity() == 0 {
            self.out = spares::take();
        }
        let start = self.out.len();
        let place = &mut self.places[number as usize];
        let url = match place.source {
            Source::Planned(request) => self.origin.requests[request].url,
            Source::Made => None,
        };
        place.flight = Some(Flight { ticket, began, sent: None, url });
        place.answer.begun = false;
        place.body_sent = 0;
        let (codec, out) = (&mut self.codec, &mut self.out);
        let sent = match place.source {
            Source::Planned(request) => match &self.origin.requests[request].http2 {
                Some(request) => {
                    place.body_done = request.body.is_empty();
                    codec.send_encoded_request(out, &request.head, place.body_done, number)
                }
                None => Err(SendError::OutOfOrder),
            },
            Source::Made => {
                let bytes = place.made.bytes_of(&place.made.requests[0]);
                let scheme = self.origin.dialer.scheme();
                let sent = send_made(codec, out, bytes, scheme, &mut place.made_body, number);
                place.body_done = place.made_body.is_empty();
                sent
            }
        };
        match sent {
            Ok(stream) => {
                place.stream = stream;
                let body_waits = !place.body_done;
                self.unsent.push_back((number, start));
                if body_waits {
                    self.bodies.push_back(number);
                }
            }
            Err(error) => self.unfit(number, error),
        }
    }

    /// Writes all that is to be written, as far as the kernel takes it.
    #[inline]
    fn flush(&mut self, cx: &mut Context<'_>) {
        while !self.write_failed {
            let more = self.add_bodies();
            if self.out.len() > self.written || self.unflushed {
                self.write(cx);
            }
            if !more || !self.out.is_empty() {
                return;
            }
        }
        self.out.clear();
        self.written = 0;
    }

    /// Adds parts of bodies to the output. False when no body can go on.
    #[inline]
    fn add_bodies(&mut self) -> bool {
        let mut any = false;
        for _ in 0..self.bodies.len() {
            if self.out.len() - self.written >= WRITE_BATCH {
                return true;
            }
            let Some(number) = self.bodies.pop_front() else { break };
            let place = &mut self.places[number as usize];
            if place.flight.is_none() || place.body_done {
                continue;
            }
            let body = match place.source {
                Source::Planned(request) => self.origin.requests[request].http2.as_ref().map_or(&[][..], |r| &r.body),
                Source::Made => &place.made_body,
            };
            let rest = &body[place.body_sent..];
            let piece = &rest[..rest.len().min(PIECE)];
            if self.out.capacity() == 0 {
                self.out = spares::take();
            }
            let end = piece.len() == rest.len();
            let taken = self.codec.send_data(&mut self.out, place.stream, piece, end).unwrap_or(0);
            place.body_sent += taken;
            place.body_done = end && taken == piece.len();
            any |= taken > 0;
            if !place.body_done {
                self.bodies.push_back(number);
            }
        }
        any && !self.bodies.is_empty()
    }

    #[inline]
    fn write(&mut self, cx: &mut Context<'_>) {
        // Requests are sent from here on, however long it took to make them all.
        let now = monotonic_ns();
        while self.written < self.out.len() {
            let bytes = &self.out[self.written..];
            let result = if std::mem::take(&mut self.fresh) {
                // tokio would first wait for epoll to say that a socket just connected is writable.
                match self.stream.write_first(bytes) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                    result => Poll::Ready(result),
                }
            } else {
                Pin::new(&mut self.stream).poll_write(cx, bytes)
            };
            match result {
                Poll::Ready(Ok(n)) => self.wrote(n, now),
                Poll::Ready(Err(_)) => return self.fail_writing(now),
                Poll::Pending => return self.bound_the_wait(now),
            }
        }
        self.written = 0;
        spares::give(std::mem::take(&mut self.out));
        // TLS may hold records back. For plain sockets this does nothing.
        if let Stream::Tls(_) = self.stream {
            let flushed = Pin::new(&mut self.stream).poll_flush(cx);
            self.unflushed = flushed.is_pending();
            if let Poll::Ready(Err(_)) = flushed {
                self.fail_writing(now);
            }
        }
    }

    #[cold]
    fn fail_writing(&mut self, now: u64) {
        self.write_failed = true;
        self.closing = true;
        self.bound_the_wait(now);
    }

    /// Sets a deadline for requests of which the kernel takes no byte.
    #[cold]
    fn bound_the_wait(&mut self, now: u64) {
        let deadline = &self.core.slots[self.id].deadline;
        if !deadline.is_set() {
            deadline.set(now + self.core.rules.timeout);
        }
    }

    /// Notes that `n` bytes were written from `now` on, and to which requests they belong.
    #[inline]
    fn wrote(&mut self, n: usize, now: u64) {
        let core = self.core;
        let mut tally = core.counters.tally.borrow_mut();
        if core.timeline.is_running() {
            tally.bytes_written += n as u64;
        }
        self.written += n;
        while let Some(&(number, start)) = self.unsent.front()
            && start < self.written
        {
            self.unsent.pop_front();
            if let Some(flight) = &mut self.places[number as usize].flight {
                flight.note_sent(core, &mut tally, now);
            }
            let deadline = &core.slots[self.id].deadline;
            if !deadline.is_set() {
                deadline.set(now + core.rules.timeout);
            }
        }
    }

    /// Reads once. True when the connection has ended.
    #[inline]
    pub(super) fn read(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let core = self.core;
        let mut scratch = Scratch::take();
        let mut buffer = ReadBuf::new(&mut scratch);
        if let Err(error) = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer)) {
            self.ended(read_failure(&error, &self.stream));
            return Poll::Ready(true);
        }
        let data = buffer.filled();
        let now = monotonic_ns();
        self.now = Some(now);
        if data.is_empty() {
            self.ended(crate::failure::Failure::ReadEof);
            return Poll::Ready(true);
        }
        if core.timeline.is_running() {
            core.counters.tally.borrow_mut().bytes_read += data.len() as u64;
            core.counters.interval.borrow_mut().bytes += data.len() as u64;
        }
        if self.out.capacity() == 0 {
            self.out = spares::take();
        }
        let mut kept = std::mem::take(&mut self.kept);
        let result = kept.decode(data, |input| {
            let before = *input;
            self.decode(input, now).map_err(|defect| self.unreadable(defect, before))
        });
        self.kept = kept;
        Poll::Ready(result.is_err())
    }

    /// Handles all whole frames of `input`.
    #[inline]
    fn decode(&mut self, input: &mut &[u8], now: u64) -> Result<(), oroshi_http2::Defect> {
        let core = self.core;
        let mut heads = core.http2.heads.borrow_mut();
        while let Some(event) = self.codec.receive(input, &mut heads, &mut self.out)? {
            self.event(event, now);
        }
        Ok(())
    }

    /// Counts the whole response of a place at `now`, and frees the place.
    #[inline]
    pub(super) fn complete(&mut self, number: u32, now: u64) {
        let place = &mut self.places[number as usize];
        let Some(flight) = place.flight.take() else { return };
        if !place.body_done {
            // The server does not need the rest of the request (RFC 9113, section 8.1).
            self.codec.reset(&mut self.out, place.stream, ErrorCode::NO_ERROR);
        }
        self.completed += 1;
        self.idle.push(number);
        flight.complete(self.core, self.origin, &place.answer, &mut self.connect_ns, now);
        if let Some(response) = place.answer.response() {
            self.closing |= !self.core.tell_script(response);
        }
        self.forget_body(number);
    }

    /// Gives back the memory of a body that was kept for the script.
    #[inline]
    pub(super) fn forget_body(&mut self, number: u32) {
        if self.core.script.is_some() {
            self.core.release_body(self.places[number as usize].answer.forget_body());
        }
    }

    /// Takes the request of a place, and frees the place.
    pub(super) fn release(&mut self, number: u32) -> Option<Flight> {
        let flight = self.places[number as usize].flight.take()?;
        // Numbers of requests that are not written yet must not meet the next request of the place.
        self.unsent.retain(|(unsent, _)| *unsent != number);
        self.idle.push(number);
        self.forget_body(number);
        Some(flight)
    }

    /// The connection's own slot.
    pub(super) fn slot(&self) -> usize {
        self.id
    }
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        for number in 0..self.places.len() as u32 {
            self.forget_body(number);
        }
        spares::give(std::mem::take(&mut self.out));
    }
}
