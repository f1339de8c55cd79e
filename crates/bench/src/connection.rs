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
use crate::batch::{Batch, Made};
use crate::core::{Core, OriginState, Outgoing, Phase, Take, Ticket};
use crate::failure::Failure;
use crate::tally::Times;
pub(crate) use end::cut_off;
use scripted::Pause;

/// Pieces of requests that one write can carry.
const WRITE_BATCH: usize = 64;

/// A request on its way.
struct InFlight {
    ticket: Ticket,
    request: Asked,
    /// It says `Connection: close`.
    last: bool,
    /// When the slot set about it: connecting, if it had to, is part of carrying it.
    began: u64,
    /// When its first byte was handed to the kernel; `None` while it waits for the ones before it.
    sent: Option<u64>,
}

/// Where the bytes of a request are.
#[derive(Clone, Copy)]
enum Asked {
    /// Among the origin's.
    Planned(usize),
    /// In the connection's batch.
    Made(Made),
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
    /// What a script made for this connection; empty without one.
    batch: Batch,
    pause: Pause,
    /// How many of `in_flight` are written to the last byte, and how many bytes of the one after them.
    written: usize,
    offset: usize,
    /// Requests that were given to this connection.
    given: u64,
    answer: Answer,
    /// How long connecting took, until the first request has borne it; nanoseconds.
    connect_ns: u64,
    /// Nothing has been written yet.
    fresh: bool,
    /// TLS holds records that the socket had no room for.
    unflushed: bool,
    /// No request may follow those in flight.
    closing: bool,
    /// The peer reads no more; what it may have answered before is still read.
    write_failed: bool,
    /// It ended because nothing was left to send.
    spare: bool,
    /// The last reading of the clock in this poll.
    now: Option<u64>,
}

/// Requests to be sent again, on another connection: the server announced that it would not answer them.
pub(crate) type Carried = VecDeque<(Ticket, Outgoing)>;

impl<'c> Connection<'c> {
    /// `connect_ns`: how long connecting took, nanoseconds.
    pub(crate) fn new(
        core: &'c Core,
        id: usize,
        origin: &'c OriginState,
        stream: Stream,
        connect_ns: u64,
        carried: Carried,
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
            // In a closed loop the time that another connection spent on it is part of carrying it.
            let began = if core.rules.open { monotonic_ns() } else { ticket.due };
            connection.give(ticket, &request, began);
        }
        connection
    }

    /// Gives it a request, on which the slot has worked since `began`.
    pub(crate) fn give(&mut self, ticket: Ticket, request: &Outgoing, began: u64) {
        let request = match request {
            Outgoing::Planned(request) => Asked::Planned(*request),
            Outgoing::Made(made, bytes) => Asked::Made(self.batch.adopt(bytes, made)),
        };
        self.take(ticket, request, began);
    }

    #[inline]
    fn take(&mut self, ticket: Ticket, request: Asked, began: u64) {
        self.given += 1;
        let last = self.given >= self.core.rules.per_connection;
        self.closing |= last;
        self.in_flight.push_back(InFlight { ticket, request, last, began, sent: None });
    }

    /// Whether it was given any request.
    pub(crate) fn was_used(&self) -> bool {
        self.given > 0
    }

    /// Whether it was up, and idle, when nothing was left to send.
    pub(crate) fn is_spare(&self) -> bool {
        self.spare
    }

    /// Sends and receives until the connection has served its time.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Carried> {
        self.now = None;
        self.core.slots[self.id].enrol(cx);
        loop {
            if self.core.phase.get() == Phase::Over {
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
                return Poll::Ready(Carried::new());
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
                    self.take(ticket, Asked::Planned(self.origin.next_request()), began);
                }
                None => return,
            }
        }
    }

    /// The right to send one more request, if there is one now.
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

    /// Writes what is not yet written, as far as the kernel takes it.
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
        // TLS keeps records of its own: hand them over too. For plain sockets this does nothing.
        if let Stream::Tls(_) = self.stream {
            let flushed = Pin::new(&mut self.stream).poll_flush(cx);
            self.unflushed = flushed.is_pending();
            if let Poll::Ready(Err(_)) = flushed {
                self.write_failed = true;
                self.closing = true;
            }
        }
    }

    /// What the kernel takes no byte of must end in time as well.
    #[cold]
    fn bound_the_wait(&mut self) {
        let deadline = &self.core.slots[self.id].deadline;
        if !deadline.is_set() {
            deadline.set(self.now() + self.core.rules.timeout);
        }
    }

    /// The deadline has passed. If this core is late itself, the answer may lie in the socket: it is looked for once.
    #[cold]
    fn overdue(&mut self, cx: &mut Context<'_>) -> Option<Carried> {
        let waiting = self.in_flight.len();
        match self.read(cx) {
            Poll::Ready(Some(carried)) => return Some(carried),
            Poll::Ready(None) if self.in_flight.len() < waiting => return None,
            _ => {}
        }
        Some(self.fail(if self.write_failed { Failure::Write } else { Failure::Timeout }))
    }

    /// Notes which requests the `n` bytes, written from `now` on, belonged to.
    #[inline]
    pub(crate) fn wrote(&mut self, n: usize, now: u64) {
        let measure_from = self.core.measure_from.get();
        let mut tally = self.core.tally.borrow_mut();
        if self.core.is_running() {
            tally.bytes_written += n as u64;
        }
        self.offset += n;
        while self.written < self.in_flight.len() && self.offset > 0 {
            let length = pieces(self.origin, &self.batch, &self.in_flight[self.written]).map(<[u8]>::len).iter().sum();
            let flight = &mut self.in_flight[self.written];
            if flight.sent.is_none() {
                flight.sent = Some(now);
                if self.core.rules.open && flight.ticket.due >= measure_from {
                    // Waiting for a connection to become free is the server's doing; anything beyond that is ours.
                    let could = flight.ticket.due.max(flight.ticket.free);
                    tally.clocks.lateness.record(flight.began.saturating_sub(could));
                }
                if self.written == 0 {
                    self.core.slots[self.id].deadline.set(now + self.core.rules.timeout);
                }
            }
            if self.offset < length {
                break;
            }
            self.offset -= length;
            self.written += 1;
        }
    }

    /// Reads once. `Some` when the connection is done with.
    #[inline]
    fn read(&mut self, cx: &mut Context<'_>) -> Poll<Option<Carried>> {
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
        if core.is_running() {
            core.tally.borrow_mut().bytes_read += data.len() as u64;
            core.interval.borrow_mut().bytes += data.len() as u64;
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
                core.stirred.set(now);
                Poll::Ready(Some(self.fail(Failure::Parse)))
            }
        }
    }

    /// Takes answers off `input`; true when the connection cannot be used after the last one.
    #[inline]
    fn decode(&mut self, input: &mut &[u8], now: u64) -> Result<bool, DecodeError> {
        let core = self.core;
        loop {
            if !self.answer.begun && !input.is_empty() {
                // Bytes before any request was sent are for the decoder to refuse: it expects nothing.
                if let Some(InFlight { sent: Some(sent), ticket, request, .. }) = self.in_flight.front() {
                    self.decoder.expect(match request {
                        Asked::Planned(request) => self.origin.requests[*request].expect,
                        Asked::Made(made) => made.expect,
                    });
                    let wait = now.saturating_sub(*sent);
                    self.answer.begin(wait);
                    if ticket.due >= core.measure_from.get() {
                        core.tally.borrow_mut().clocks.first_byte.record(wait);
                    }
                }
            }
            match self.decoder.decode(&core.rules.limits, input)? {
                None => return Ok(false),
                Some(ResponseEvent::Informational(_)) => {}
                Some(ResponseEvent::Trailers(trailers)) => self.answer.trailers(core, trailers),
                Some(ResponseEvent::Head(head)) => {
                    self.answer.head(core, &head);
                    // An upgrade that was asked for is an answer; what follows is no longer HTTP.
                    if head.framing == Framing::Tunnel {
                        self.answer.reusable = false;
                        self.complete(now);
                        *input = &[];
                        return Ok(true);
                    }
                }
                Some(ResponseEvent::Data(data)) => {
                    if !self.answer.data(core, data) {
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

    /// An answer is whole; true when the connection cannot be used after it.
    #[inline]
    fn complete(&mut self, now: u64) -> bool {
        let core = self.core;
        let Some(flight) = self.in_flight.pop_front() else { return true };
        // An answer that came before its request was written whole leaves the rest of it unwritable.
        let whole = self.written > 0;
        self.written = self.written.saturating_sub(1);
        let sent = flight.sent.unwrap_or(now);
        let (service, response) = (now.saturating_sub(sent), now.saturating_sub(flight.ticket.due));
        let failed = self.answer.failure(core);
        let measured = flight.ticket.due >= core.measure_from.get();
        {
            let mut tally = core.tally.borrow_mut();
            self.origin.answered(now, service, measured);
            let in_time = core.count_answer(&mut tally, flight.began, now);
            if measured {
                tally.completed += 1;
                tally.clocks.service.record(service);
                tally.clocks.response.record(response);
                tally.statuses[usize::from(self.answer.status.min(999))] += 1;
                tally.answers.body_bytes += self.answer.body_bytes;
                tally.answers.kept += u64::from(self.answer.reusable);
                tally.answers.other_lengths += u64::from(self.answer.is_of_other_length(core));
                if let Some(failure) = failed {
                    tally.failures.add(failure);
                }
            }
            let mut interval = core.interval.borrow_mut();
            if in_time {
                tally.answered += 1;
                interval.requests += 1;
                interval.errors += u64::from(failed.is_some() && measured);
                interval.service.record(service);
            }
            if let Some(full) = &mut interval.full {
                full.0.record(service);
                full.1.record(response);
            }
        }
        if core.rules.connection_times || core.rules.each_request {
            self.note_connection_times(sent, service, measured);
        }
        let goes_on = self.answer.tell_script(core);
        let next = self.in_flight.front().and_then(|f| f.sent);
        core.slots[self.id].deadline.set(next.map_or(u64::MAX, |sent| sent + core.rules.timeout));
        // After a failed write, what was written before it may still be answered.
        let answers_more = !self.write_failed || self.written > 0;
        let usable = self.answer.reusable && whole && !flight.last && answers_more && goes_on;
        self.answer.begun = false;
        !usable
    }

    /// What a request took that was sent at `sent`, connecting included.
    #[cold]
    fn note_connection_times(&mut self, sent: u64, service: u64, measured: bool) {
        let core = self.core;
        let connect = std::mem::take(&mut self.connect_ns);
        if !measured {
            return;
        }
        let total = connect + service;
        if core.rules.connection_times {
            let mut tally = core.tally.borrow_mut();
            let times = tally.connection_times.get_or_insert_default();
            times.connect.record(connect);
            times.total.record(total);
        }
        if core.rules.each_request {
            let began = sent.saturating_sub(connect);
            core.interval.borrow_mut().each.push(Times { began, connect, wait: self.answer.wait, total });
        }
    }
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.answer.forget_body(self.core);
    }
}

/// The bytes of a request: its head's piece and its body's.
#[inline]
fn pieces<'b>(origin: &'b OriginState, batch: &'b Batch, flight: &InFlight) -> [&'b [u8]; 2] {
    match &flight.request {
        Asked::Planned(request) => {
            let request = &origin.requests[*request];
            [if flight.last { &request.last } else { &request.keep }, &request.body]
        }
        Asked::Made(made) => [batch.bytes_of(made), &[]],
    }
}

fn read_failure(error: &io::Error, stream: &Stream) -> Failure {
    match (stream, error.kind()) {
        // rustls reports a bad record as InvalidData, and an end without close_notify as UnexpectedEof.
        (Stream::Tls(_), io::ErrorKind::InvalidData) => Failure::Tls,
        (_, io::ErrorKind::UnexpectedEof) => Failure::ReadEof,
        _ => Failure::ReadReset,
    }
}
