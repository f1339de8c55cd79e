//! One connection, from its first request to its end: the hot path.

mod end;
mod scripted;

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use oroshi_core::{Incoming, Scratch};
use oroshi_http1::{DecodeError, Framing, ResponseDecoder, ResponseEvent};
use oroshi_net::{Stream, monotonic_ns};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::answer::Answer;
use crate::batch::{Batch, BatchedRequest};
use crate::core::{Core, OriginState, Outgoing, Take, Ticket};
use crate::failure::Failure;
use crate::flight::Flight;
use crate::scripting::Pause;

/// Pieces of requests that one write can carry.
const WRITE_BATCH: usize = 64;

/// A request on its way.
struct InFlight {
    flight: Flight,
    request: RequestRef,
    /// Whether it says `Connection: close`.
    last: bool,
}

/// Where the bytes of a request are.
#[derive(Clone, Copy)]
enum RequestRef {
    /// Among the origin's requests.
    Planned(usize),
    /// In the connection's batch.
    Made(BatchedRequest),
}

/// One connection, from its first request to its end.
pub(crate) struct Connection<'c> {
    core: &'c Core,
    id: usize,
    origin: &'c OriginState,
    stream: Stream,
    decoder: ResponseDecoder,
    /// Bytes of an incomplete head, chunk line or trailer.
    kept: Incoming,
    in_flight: VecDeque<InFlight>,
    /// Requests that a script made for this connection; empty without a script.
    batch: Batch,
    pause: Pause,
    /// How many requests of `in_flight` are written whole, and how many bytes of the next one.
    written: usize,
    offset: usize,
    /// Requests that were given to this connection.
    given: u64,
    answer: Answer,
    /// Connect time, nanoseconds, until it is counted for the first request.
    connect_ns: u64,
    /// Nothing has been written yet.
    fresh: bool,
    /// TLS holds records that the socket had no room for.
    unflushed: bool,
    /// No request may follow those in flight.
    closing: bool,
    /// The peer reads no more. Responses that it sent before are still read.
    write_failed: bool,
    /// The connection ended because nothing was left to send.
    spare: bool,
    /// The last reading of the clock in this poll.
    now: Option<u64>,
}

/// Requests to send again on another connection: the server announced that it would not respond to them.
pub(crate) type ToResend = VecDeque<(Ticket, Outgoing)>;

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
        let mut connection = Self {
            core,
            id,
            origin,
            stream,
            decoder: ResponseDecoder::default(),
            kept: Incoming::default(),
            in_flight: VecDeque::with_capacity(core.rules.pipeline.min(WRITE_BATCH)),
            batch: Batch::default(),
            pause: Pause::ToAsk,
            written: 0,
            offset: 0,
            given: 0,
            answer: Answer::default(),
            connect_ns,
            fresh: true,
            unflushed: false,
            closing: false,
            write_failed: false,
            spare: false,
            now: None,
        };
        for (ticket, request) in carried {
            // In a closed loop, time on another connection is part of the request's time.
            let began = if core.rules.open { monotonic_ns() } else { ticket.due };
            connection.give(ticket, &request, began);
        }
        connection
    }

    /// Adds a request that the slot began at `began`.
    pub(crate) fn give(&mut self, ticket: Ticket, request: &Outgoing, began: u64) {
        let request = match request {
            Outgoing::Planned(request) => RequestRef::Planned(*request),
            Outgoing::Made(made, bytes) => RequestRef::Made(self.batch.adopt(bytes, made)),
        };
        self.take(ticket, request, began);
    }

    #[inline]
    fn take(&mut self, ticket: Ticket, request: RequestRef, began: u64) {
        self.given += 1;
        let last = self.given >= self.core.rules.per_connection;
        self.closing |= last;
        let url = match request {
            RequestRef::Planned(request) => self.origin.requests[request].url,
            RequestRef::Made(_) => None,
        };
        self.in_flight.push_back(InFlight { flight: Flight { ticket, began, sent: None, url }, request, last });
    }

    /// Whether it was given any request.
    pub(crate) fn was_used(&self) -> bool {
        self.given > 0
    }

    /// Whether it was up, and idle, when nothing was left to send.
    pub(crate) fn is_spare(&self) -> bool {
        self.spare
    }

    /// Sends and receives until the connection has ended.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToResend> {
        self.now = None;
        self.core.slots[self.id].enrol(cx);
        loop {
            if self.core.timeline.is_over() {
                return Poll::Ready(self.end_of_run());
            }
            if self.core.take_expired(self.id)
                && !self.in_flight.is_empty()
                && let Some(carried) = self.overdue(cx)
            {
                return Poll::Ready(carried);
            }
            self.fill(cx);
            if self.in_flight.is_empty() && self.closing {
                self.spare = !self.write_failed;
                return Poll::Ready(ToResend::new());
            }
            if (self.written < self.in_flight.len() || self.unflushed) && !self.write_failed {
                self.write(cx);
            }
            if self.written < self.in_flight.len() {
                self.bound_the_wait();
            }
            match self.read(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => {}
                Poll::Ready(Some(carried)) => return Poll::Ready(carried),
            }
        }
    }

    fn now(&mut self) -> u64 {
        *self.now.get_or_insert_with(monotonic_ns)
    }

    /// Takes as many requests as the connection may carry.
    #[inline]
    fn fill(&mut self, cx: &mut Context<'_>) {
        if self.core.script.is_some() && (self.core.delays() || self.core.makes_requests()) {
            return self.fill_as_scripted(cx);
        }
        while !self.closing && self.in_flight.len() < self.core.rules.pipeline {
            match self.ticket(cx) {
                Some(ticket) => {
                    let began = self.now();
                    self.take(ticket, RequestRef::Planned(self.origin.next_request()), began);
                }
                None => return,
            }
        }
    }

    /// Takes a ticket, if there is one now.
    #[inline]
    fn ticket(&mut self, cx: &Context<'_>) -> Option<Ticket> {
        let (core, now) = (self.core, &mut self.now);
        match core.take_ticket(self.id, cx, || *now.get_or_insert_with(monotonic_ns)) {
            Take::Now(ticket) => Some(ticket),
            Take::Wait => None,
            Take::Over => {
                self.closing = true;
                None
            }
        }
    }

    /// Writes requests as far as the kernel takes them.
    #[inline]
    fn write(&mut self, cx: &mut Context<'_>) {
        let now = self.now();
        while self.written < self.in_flight.len() {
            let [head, body] = pieces(self.origin, &self.batch, &self.in_flight[self.written]);
            let (first, second) = match self.offset.checked_sub(head.len()) {
                None => (&head[self.offset..], body),
                Some(into_body) => (&body[into_body..], &[][..]),
            };
            let only = self.written + 1 == self.in_flight.len() && second.is_empty();
            let result = if std::mem::take(&mut self.fresh) {
                // tokio would first wait for epoll to say that a socket just connected is writable.
                match self.stream.write_first(first) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                    result => Poll::Ready(result),
                }
            } else if only {
                Pin::new(&mut self.stream).poll_write(cx, first)
            } else {
                let mut slices = [IoSlice::new(&[]); WRITE_BATCH];
                let (origin, batch) = (self.origin, &self.batch);
                let later = self.in_flight.iter().skip(self.written + 1);
                let later = later.flat_map(|flight| pieces(origin, batch, flight));
                let pieces = [first, second].into_iter().chain(later).filter(|piece| !piece.is_empty());
                let n = slices.iter_mut().zip(pieces).map(|(to, piece)| *to = IoSlice::new(piece)).count();
                Pin::new(&mut self.stream).poll_write_vectored(cx, &slices[..n])
            };
            match result {
                Poll::Ready(Ok(n)) => self.wrote(n, now),
                Poll::Ready(Err(_)) => {
                    self.write_failed = true;
                    self.closing = true;
                    return;
                }
                Poll::Pending => return,
            }
        }
        // TLS may hold records back. For plain sockets this does nothing.
        if let Stream::Tls(_) = self.stream {
            let flushed = Pin::new(&mut self.stream).poll_flush(cx);
            self.unflushed = flushed.is_pending();
            if let Poll::Ready(Err(_)) = flushed {
                self.write_failed = true;
                self.closing = true;
            }
        }
    }

    /// Sets a deadline for requests of which the kernel takes no byte.
    #[cold]
    fn bound_the_wait(&mut self) {
        let deadline = &self.core.slots[self.id].deadline;
        if !deadline.is_set() {
            deadline.set(self.now() + self.core.rules.timeout);
        }
    }

    /// Ends a connection whose deadline has passed.
    ///
    /// If this core is late itself, the response may be in the socket: it reads once more.
    #[cold]
    fn overdue(&mut self, cx: &mut Context<'_>) -> Option<ToResend> {
        let waiting = self.in_flight.len();
        match self.read(cx) {
            Poll::Ready(Some(carried)) => return Some(carried),
            Poll::Ready(None) if self.in_flight.len() < waiting => return None,
            _ => {}
        }
        Some(self.fail(if self.write_failed { Failure::Write } else { Failure::Timeout }))
    }

    /// Notes that `n` bytes were written from `now` on, and to which requests they belong.
    #[inline]
    pub(crate) fn wrote(&mut self, n: usize, now: u64) {
        let timeline = &self.core.timeline;
        let mut tally = self.core.counters.tally.borrow_mut();
        if timeline.is_running() {
            tally.bytes_written += n as u64;
        }
        self.offset += n;
        while self.written < self.in_flight.len() && self.offset > 0 {
            let length = pieces(self.origin, &self.batch, &self.in_flight[self.written]).map(<[u8]>::len).iter().sum();
            let flight = &mut self.in_flight[self.written].flight;
            if flight.note_sent(self.core, &mut tally, now) && self.written == 0 {
                self.core.slots[self.id].deadline.set(now + self.core.rules.timeout);
            }
            if self.offset < length {
                break;
            }
            self.offset -= length;
            self.written += 1;
        }
    }

    /// Reads once. `Some` when the connection has ended.
    #[inline]
    fn read(&mut self, cx: &mut Context<'_>) -> Poll<Option<ToResend>> {
        let core = self.core;
        let mut scratch = Scratch::take();
        let mut buffer = ReadBuf::new(&mut scratch);
        if let Err(error) = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer)) {
            return Poll::Ready(Some(self.ended(read_failure(&error, &self.stream))));
        }
        let data = buffer.filled();
        let now = monotonic_ns();
        self.now = Some(now);
        if data.is_empty() {
            return Poll::Ready(Some(self.end_of_stream(now)));
        }
        if core.timeline.is_running() {
            core.counters.tally.borrow_mut().bytes_read += data.len() as u64;
            core.counters.interval.borrow_mut().bytes += data.len() as u64;
        }
        let mut kept = std::mem::take(&mut self.kept);
        let result = kept.decode(data, |input| {
            let result = self.decode(input, now);
            if let Err(error) = result {
                self.note_unreadable(error, input);
            }
            result
        });
        self.kept = kept;
        match result {
            Ok(false) => Poll::Ready(None),
            Ok(true) => Poll::Ready(Some(self.carry())),
            Err(_) => {
                core.activity.last_contact.set(now);
                Poll::Ready(Some(self.fail(Failure::Parse)))
            }
        }
    }

    /// Decodes responses from `input`. True when the connection cannot be used after the last one.
    #[inline]
    fn decode(&mut self, input: &mut &[u8], now: u64) -> Result<bool, DecodeError> {
        let core = self.core;
        loop {
            if !self.answer.begun && !input.is_empty() {
                // The decoder refuses bytes before any request was sent: it expects nothing.
                if let Some(InFlight { flight, request, .. }) = self.in_flight.front()
                    && flight.sent.is_some()
                {
                    self.decoder.expect(match request {
                        RequestRef::Planned(request) => self.origin.requests[*request].expect,
                        RequestRef::Made(made) => made.expect,
                    });
                    flight.note_first_byte(core, &mut self.answer, now);
                }
            }
            match self.decoder.decode(&core.rules.limits, input)? {
                None => return Ok(false),
                Some(ResponseEvent::Informational(_)) => {}
                Some(ResponseEvent::Trailers(trailers)) => self.answer.trailers(&core.rules, trailers),
                Some(ResponseEvent::Head(head)) => {
                    core.first.head(head.status, head.headers);
                    self.answer.head(&core.rules, head.status, head.headers, head.keep_alive);
                    // A requested upgrade is a response; what follows is no longer HTTP.
                    if head.framing == Framing::Tunnel {
                        self.answer.reusable = false;
                        self.complete(now);
                        *input = &[];
                        return Ok(true);
                    }
                }
                Some(ResponseEvent::Data(data)) => {
                    core.first.data(self.answer.status, data);
                    let kept = self.answer.data(&core.rules, data);
                    if kept > 0 && !core.keep_body(kept) {
                        self.closing = true;
                    }
                }
                Some(ResponseEvent::End) => {
                    if self.complete(now) {
                        return Ok(true);
                    }
                }
            }
        }
    }

    /// Counts a whole response. True when the connection cannot be used after it.
    #[inline]
    fn complete(&mut self, now: u64) -> bool {
        let core = self.core;
        let Some(InFlight { flight, last, .. }) = self.in_flight.pop_front() else { return true };
        // A response before its request was written whole leaves the rest of it unwritable.
        let whole = self.written > 0;
        self.written = self.written.saturating_sub(1);
        flight.complete(core, self.origin, &self.answer, &mut self.connect_ns, now);
        let goes_on = self.tell_script();
        let next = self.in_flight.front().and_then(|next| next.flight.sent);
        core.slots[self.id].deadline.set(next.map_or(u64::MAX, |sent| sent + core.rules.timeout));
        // After a failed write, requests that were written before may still get responses.
        let answers_more = !self.write_failed || self.written > 0;
        let usable = self.answer.reusable && whole && !last && answers_more && goes_on;
        self.answer.begun = false;
        !usable
    }
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.forget_body();
    }
}

/// Returns the bytes of a request: the piece with its head, and its body.
#[inline]
fn pieces<'b>(origin: &'b OriginState, batch: &'b Batch, flight: &InFlight) -> [&'b [u8]; 2] {
    match &flight.request {
        RequestRef::Planned(request) => {
            let request = &origin.requests[*request];
            [if flight.last { &request.last } else { &request.keep }, &request.body]
        }
        RequestRef::Made(made) => [batch.bytes_of(made), &[]],
    }
}

pub(crate) fn read_failure(error: &io::Error, stream: &Stream) -> Failure {
    match (stream, error.kind()) {
        // rustls reports a bad record as InvalidData, and an end without close_notify as UnexpectedEof.
        (Stream::Tls(_), io::ErrorKind::InvalidData) => Failure::Tls,
        (_, io::ErrorKind::UnexpectedEof) => Failure::ReadEof,
        _ => Failure::ReadReset,
    }
}
