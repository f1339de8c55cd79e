//! One request on one connection: sends it and receives the response within its deadlines.
//!
//! Sending and receiving overlap: a server may respond before it has the whole request, and a body may be sent while
//! the response's body is read. A poll for the response also sends.

mod http2;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use oroshi_core::{Incoming, Registration, Scratch, after, spares};
use oroshi_http1::{DecodeError, ExpectedResponse, Framing, ResponseDecoder, ResponseEvent, Version};
use oroshi_net::{Stream, monotonic_ns};
use tokio::io::{AsyncRead, ReadBuf};

use crate::body::Body;
use crate::core::{Connection, Core, Lease, add};
use crate::deadline::{Deadlines, Phase, Timestamps, Timings};
use crate::error::{Cause, Error};
use crate::headers::Headers;
use crate::outgoing::Outgoing;
use crate::retry::Progress;

/// The maximum of a request body's bytes per read.
const COPY_BYTES: usize = 16 * 1024;

/// A request under way. Boxed by its owner, because it moves from the call to the response.
pub(crate) struct Exchange {
    registration: Registration<Core>,
    /// The request's own deadlines, if it has some.
    deadlines: Option<Box<Deadlines>>,
    total_due: u64,
    phase: Phase,
    pub(crate) stamps: Timestamps,
    /// The attempt's turn in the queue; 0 before it asks for a connection.
    pub(crate) turn: u64,
    lease: Option<Lease>,
    outgoing: Outgoing,
    decoder: ResponseDecoder,
    /// Received bytes of an incomplete head, chunk line or trailer section.
    input: Incoming,
    /// Body bytes that came with the head, or that nobody has taken yet.
    body: Vec<u8>,
    /// Boxed, because few responses have any.
    trailers: Option<Box<Headers>>,
    /// See [`RequestBuilder::stamp_sent`](crate::RequestBuilder::stamp_sent).
    sent_stamp: Option<Arc<AtomicU64>>,
    /// Whether the server keeps the connection.
    keep_alive: bool,
    /// How long the server keeps the connection, in seconds, which takes less room than a `Duration`.
    keep_hint: Option<u32>,
    /// Whether the response is complete.
    ended: bool,
    /// Whether the request's method is HEAD.
    is_head: bool,
    progress: Progress,
}

/// The head of a response.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) version: Version,
    pub(crate) status: u16,
    pub(crate) reason: Box<[u8]>,
    pub(crate) headers: Headers,
    /// The body's length, if announced.
    pub(crate) length: Option<u64>,
    /// The remote address of the connection; `None` for a unix socket.
    pub(crate) remote: Option<SocketAddr>,
}

impl Exchange {
    pub(crate) fn new(
        core: &Rc<Core>,
        deadlines: Option<Box<Deadlines>>,
        total: Option<Duration>,
        called: u64,
    ) -> Box<Self> {
        let total = total.unwrap_or(deadlines.as_deref().unwrap_or(&core.settings.deadlines).total);
        Box::new(Exchange {
            registration: core.register(),
            deadlines,
            total_due: after(called, total),
            phase: Phase::Request,
            stamps: Timestamps { called, began: called, ..Timestamps::default() },
            turn: 0,
            lease: None,
            outgoing: Outgoing::nothing(),
            decoder: ResponseDecoder::default(),
            input: Incoming::default(),
            body: Vec::new(),
            trailers: None,
            sent_stamp: None,
            keep_alive: false,
            keep_hint: None,
            ended: false,
            is_head: false,
            progress: Progress::default(),
        })
    }

    /// Begins an attempt with the request's encoded head.
    pub(crate) fn begin(&mut self, head: Vec<u8>, body: Body<dyn AsyncRead>, expect: ExpectedResponse) {
        self.drop_lease();
        self.turn = 0;
        self.stamps = Timestamps { called: self.stamps.called, began: monotonic_ns(), ..Timestamps::default() };
        self.outgoing = Outgoing::new(head, body);
        self.decoder = ResponseDecoder::default();
        self.is_head = expect == ExpectedResponse::Head;
        self.decoder.expect(expect);
        self.input.clear();
        self.body.clear();
        self.trailers = None;
        (self.keep_alive, self.keep_hint, self.ended) = (false, None, false);
        self.progress = Progress::default();
    }

    pub(crate) fn core(&self) -> &Rc<Core> {
        self.registration.owner()
    }

    /// Returns the request's progress.
    pub(crate) fn progress(&self) -> Progress {
        self.progress
    }

    /// Returns a reader's body that was not polled, for another attempt.
    pub(crate) fn take_untouched_body(&mut self) -> Option<Body<dyn AsyncRead>> {
        match &self.outgoing.body {
            Body::Reader(reader) if !reader.touched => Some(std::mem::replace(&mut self.outgoing.body, Body::Empty)),
            _ => None,
        }
    }

    pub(crate) fn timings(&self) -> Timings {
        self.stamps.timings(monotonic_ns())
    }

    pub(crate) fn trailers(&self) -> Option<&Headers> {
        self.trailers.as_deref()
    }

    /// Ends the response early, and closes the connection.
    pub(crate) fn give_up(&mut self, cause: Cause) -> Error {
        self.drop_lease();
        self.failure(Phase::BetweenBytes, cause)
    }

    /// Whether the response is complete; the connection then belongs to the pool.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Sets where to store when the first byte of an attempt goes out.
    pub(crate) fn stamp_sent(&mut self, stamp: Option<Arc<AtomicU64>>) {
        self.sent_stamp = stamp;
    }

    // The connection, for `connect`.

    pub(crate) fn set_lease(&mut self, lease: Lease) {
        self.lease = Some(lease);
    }

    pub(crate) fn drop_lease(&mut self) {
        self.lease = None;
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.lease.as_ref().is_some_and(Lease::is_connected)
    }

    pub(crate) fn put_connection(&mut self, connection: Connection, is_http2: bool) {
        match &mut self.lease {
            Some(lease) if is_http2 => lease.share(connection),
            Some(lease) => lease.put(connection),
            None => {}
        }
    }

    /// Notes that the attempt to connect has failed.
    pub(crate) fn unreachable(&self) {
        self.lease.iter().for_each(Lease::unreachable);
    }

    /// Takes the bytes that can be sent during the connect.
    pub(crate) fn take_first(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outgoing.bytes)
    }

    /// Returns these bytes after the connect has sent some of them, at that time.
    pub(crate) fn put_first(&mut self, bytes: Vec<u8>, sent: usize, at: u64) {
        if !bytes.is_empty() {
            self.outgoing.bytes = bytes;
            self.outgoing.sent = sent;
            if sent > 0 {
                self.sent_some(sent, at);
            }
        }
    }

    fn sent_some(&mut self, count: usize, at: u64) {
        if !self.progress.sent {
            self.progress.sent = true;
            self.stamps.first_sent = at;
            if let Some(stamp) = &self.sent_stamp {
                stamp.store(at, Ordering::Relaxed);
            }
        }
        add(&self.core().counts.bytes_written, count);
    }

    /// Assumes for retries that a part of the request was sent, if this is not known.
    pub(crate) fn assume_sent(&mut self) {
        self.progress.sent = true;
    }

    fn stream(&mut self) -> Option<&mut Stream> {
        self.lease.as_mut()?.connection().map(|connection| &mut connection.stream)
    }

    // Time.

    /// Enters a phase, and starts its deadline. The queue's deadline runs from the attempt's beginning, so a request
    /// that returns to the queue gets no extra time.
    pub(crate) fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        let from = match phase {
            Phase::Queue => self.stamps.began,
            Phase::FirstByte if self.stamps.sent != 0 => self.stamps.sent,
            _ => monotonic_ns(),
        };
        let due = after(from, self.deadlines().limit(phase));
        self.registration.set(due.min(self.total_due));
    }

    fn deadlines(&self) -> &Deadlines {
        self.deadlines.as_deref().unwrap_or(&self.core().settings.deadlines)
    }

    /// Returns the result of a poll, or the phase's failure if its deadline has passed.
    pub(crate) fn bounded<T>(&self, polled: Poll<T>, context: &Context<'_>) -> Poll<Result<T, Error>> {
        match polled {
            Poll::Ready(value) => Poll::Ready(Ok(value)),
            Poll::Pending if self.registration.poll_over(context) => Poll::Ready(Err(self.overdue())),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Whether the total deadline leaves this much time.
    pub(crate) fn has_left(&self, wait: Duration) -> bool {
        after(monotonic_ns(), wait) < self.total_due
    }

    /// Waits without a connection, within the total deadline.
    pub(crate) async fn wait(&mut self, time: Duration) -> Result<(), Error> {
        self.drop_lease();
        self.pause();
        let mut sleep = std::pin::pin!(tokio::time::sleep(time));
        std::future::poll_fn(|context| self.bounded(sleep.as_mut().poll(context), context)).await
    }

    fn overdue(&self) -> Error {
        if self.total_due <= monotonic_ns() {
            let limit = Duration::from_nanos(self.total_due - self.stamps.called);
            return self.failure(Phase::Total, Cause::Timeout { limit });
        }
        self.fail(Cause::Timeout { limit: self.deadlines().limit(self.phase) })
    }

    /// Fails after the total deadline: for a body that is still being decoded, though all of it may have come.
    pub(crate) fn check_total(&mut self) -> Result<(), Error> {
        if monotonic_ns() < self.total_due {
            return Ok(());
        }
        self.drop_lease();
        self.stamps.ended = 0; // The time that went into unpacking counts.
        Err(self.overdue())
    }

    /// Ready at the total deadline: for a received body that nobody takes at present.
    pub(crate) fn poll_total(&mut self, context: &Context<'_>) -> Poll<Error> {
        if self.total_due <= monotonic_ns() {
            return Poll::Ready(self.overdue());
        }
        self.registration.poll_over(context);
        Poll::Pending
    }

    /// Returns a failure of the current phase.
    pub(crate) fn fail(&self, cause: Cause) -> Error {
        self.failure(self.phase, cause)
    }

    fn failure(&self, phase: Phase, cause: Cause) -> Error {
        Error::new(phase, cause).after(self.timings())
    }

    // Sending.

    /// Sends as much as possible. Ready when nothing is left, or nothing more can be sent; an error is the request's
    /// own.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            if self.outgoing.done || self.outgoing.broken.is_some() {
                return Poll::Ready(Ok(()));
            }
            let Some(connection) = self.lease.as_mut().and_then(Lease::connection) else { return Poll::Ready(Ok(())) };
            let stream = &mut connection.stream;
            match self.outgoing.poll_write(context, stream) {
                Poll::Ready(Ok(count)) => {
                    let waited = self.phase == Phase::Write;
                    if waited {
                        self.pause(); // entered again when it has to wait again
                    }
                    if count > 0 {
                        // The first attempt to write follows at once when the connection is ready.
                        let at = if waited && !self.progress.sent { monotonic_ns() } else { self.stamps.ready };
                        self.sent_some(count, at);
                        continue;
                    }
                }
                Poll::Ready(Err(error)) => {
                    self.outgoing.broken = Some(error);
                    continue;
                }
                Poll::Pending => {
                    // After the response begins, the pause between its bytes counts. (Two alternating phases would also
                    // restart their deadlines at each poll, and never end.)
                    if self.phase != Phase::Write && self.stamps.head == 0 {
                        self.enter(Phase::Write);
                    }
                    return Poll::Pending;
                }
            }
            let Body::Reader(reader) = &mut self.outgoing.body else {
                self.sent_all();
                continue;
            };
            // A separate buffer: the reader may be a response of this very client.
            let mut buffer = Scratch::take();
            let polled = reader.poll(context, &mut buffer[..COPY_BYTES]).map_ok(|count| {
                self.outgoing.append(&buffer[..count]);
            });
            drop(buffer);
            if let Err(error) = ready!(polled) {
                self.phase = Phase::Write;
                self.drop_lease();
                return Poll::Ready(Err(self.fail(Cause::Body(error))));
            }
        }
    }

    fn sent_all(&mut self) {
        self.outgoing.done = true;
        self.stamps.sent = monotonic_ns();
        spares::give(std::mem::take(&mut self.outgoing.bytes));
        self.outgoing.body = Body::Empty;
    }

    // Receiving.

    /// Receives the response's head. Keeps body bytes that came with it; a response that is complete already has
    /// returned its connection.
    pub(crate) fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<Result<Head, Error>> {
        if self.is_http2() {
            return self.poll_head_http2(context);
        }
        loop {
            let sending = self.poll_send(context)?;
            if sending.is_ready() && !matches!(self.phase, Phase::FirstByte) {
                self.enter(Phase::FirstByte);
            }
            match self.poll_receive(context) {
                Poll::Ready(Ok(Some(head))) => {
                    self.stamps.head = monotonic_ns();
                    self.pause();
                    if self.ended {
                        self.finish(self.stamps.head);
                    }
                    return Poll::Ready(Ok(head));
                }
                Poll::Ready(Ok(None)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return self.bounded(Poll::Pending, context),
            }
        }
    }

    /// Appends the next bytes of the body to `into`; returns false at the end.
    pub(crate) fn poll_body(&mut self, context: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<Result<bool, Error>> {
        loop {
            if !self.body.is_empty() {
                if into.is_empty() {
                    std::mem::swap(into, &mut self.body);
                    spares::give(std::mem::take(&mut self.body));
                } else {
                    into.append(&mut self.body);
                }
                return Poll::Ready(Ok(true));
            }
            if self.ended {
                return Poll::Ready(Ok(false));
            }
            // A server that sends without a pause never makes the client wait.
            if self.registration.is_over() && self.total_due <= monotonic_ns() {
                self.drop_lease();
                return Poll::Ready(Err(self.overdue()));
            }
            if self.is_http2() {
                return self.poll_body_http2(context, into);
            }
            // A caller that stops sending harms only itself; its reads continue.
            let _ = self.poll_send(context)?;
            match self.poll_receive_into(context, into) {
                Poll::Ready(Ok((_, got))) => {
                    self.pause();
                    if self.ended {
                        self.finish(monotonic_ns());
                    }
                    if got {
                        return Poll::Ready(Ok(true));
                    }
                }
                Poll::Ready(Err(error)) => {
                    self.drop_lease();
                    return Poll::Ready(Err(error));
                }
                Poll::Pending => {
                    if self.phase != Phase::BetweenBytes {
                        self.enter(Phase::BetweenBytes);
                    }
                    let polled = self.bounded(Poll::Pending, context);
                    if polled.is_ready() {
                        self.drop_lease();
                    }
                    return polled;
                }
            }
        }
    }

    /// Stops the current phase's deadline: only the total deadline counts.
    pub(crate) fn pause(&mut self) {
        self.phase = Phase::Request;
        self.registration.set(self.total_due);
    }

    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Head>, Error>> {
        let mut body = std::mem::take(&mut self.body);
        let polled = self.poll_receive_into(context, &mut body);
        self.body = body;
        polled.map_ok(|(head, _)| head)
    }

    /// Reads once, and decodes. Returns the head if it came, and whether there were body bytes.
    fn poll_receive_into(
        &mut self,
        context: &mut Context<'_>,
        body: &mut Vec<u8>,
    ) -> Poll<Result<(Option<Head>, bool), Error>> {
        let mut scratch = Scratch::take();
        let mut buffer = ReadBuf::new(&mut scratch);
        let Some(stream) = self.stream() else {
            let gone = io::Error::from(io::ErrorKind::NotConnected);
            return Poll::Ready(Err(self.fail(Cause::Io(gone))));
        };
        let read = ready!(Pin::new(stream).poll_read(context, &mut buffer));
        if self.stamps.head != 0 {
            self.phase = Phase::BetweenBytes;
        }
        let before = body.len();
        let data = match read {
            Ok(()) => buffer.filled(),
            // A missing close_notify of TLS truncates a body that only the close ends.
            Err(error) => return Poll::Ready(Err(self.broke(Cause::Io(error)))),
        };
        self.progress.answered |= !data.is_empty();
        add(&self.core().counts.bytes_read, data.len());
        let decoded = if data.is_empty() { self.end_of_stream() } else { self.decode(data, body) };
        match decoded {
            Ok(head) => Poll::Ready(Ok((head, body.len() > before))),
            Err(DecodeError::UnexpectedEof) => {
                Poll::Ready(Err(self.broke(Cause::Response(DecodeError::UnexpectedEof))))
            }
            Err(error) => Poll::Ready(Err(self.fail(Cause::Response(error)))),
        }
    }

    /// Fails because the connection ended before the response was complete.
    fn broke(&mut self, cause: Cause) -> Error {
        self.progress.broke = true;
        match self.outgoing.broken.take() {
            // The failed write came first.
            Some(error) if !self.progress.answered => self.failure(Phase::Write, Cause::Io(error)),
            _ => self.fail(cause),
        }
    }

    fn end_of_stream(&mut self) -> Result<Option<Head>, DecodeError> {
        self.keep_alive = false;
        if let Some(ResponseEvent::End) = self.decoder.eof()? {
            self.ended = true;
        }
        Ok(None)
    }

    fn decode(&mut self, data: &[u8], body: &mut Vec<u8>) -> Result<Option<Head>, DecodeError> {
        let mut kept = std::mem::take(&mut self.input);
        let decoded = kept.decode(data, |input| self.decode_events(input, body));
        self.input = kept;
        decoded
    }

    /// Decodes available bytes. Discards bytes behind the end of the response.
    fn decode_events(&mut self, input: &mut &[u8], body: &mut Vec<u8>) -> Result<Option<Head>, DecodeError> {
        let core = Rc::clone(self.core());
        let mut head = None;
        while !self.ended
            && let Some(event) = self.decoder.decode(&core.settings.limits, input)?
        {
            match event {
                ResponseEvent::Informational(_) => {}
                ResponseEvent::Head(received) => {
                    self.keep_alive = received.keep_alive;
                    let hint = received.headers.get("Keep-Alive").and_then(oroshi_http1::keep_alive_timeout);
                    // As seconds, so that a request under way stays small.
                    self.keep_hint = hint.map(|time| u32::try_from(time.as_secs()).unwrap_or(u32::MAX));
                    head = Some(Head {
                        version: received.version,
                        status: received.status,
                        reason: received.reason.into(),
                        headers: Headers::received(received.headers),
                        length: match received.framing {
                            Framing::Length(length) => Some(length),
                            Framing::None => Some(0),
                            _ => None,
                        },
                        remote: self
                            .lease
                            .as_mut()
                            .and_then(Lease::connection)
                            .and_then(|connection| connection.remote),
                    });
                }
                ResponseEvent::Data(data) => {
                    if body.capacity() == 0 {
                        *body = spares::take();
                    }
                    body.extend_from_slice(data);
                }
                ResponseEvent::Trailers(trailers) => self.trailers = Some(Box::new(Headers::received(trailers))),
                ResponseEvent::End => self.ended = true,
            }
        }
        if self.ended {
            // Further bytes answer no request.
            self.keep_alive &= input.is_empty();
            *input = &[];
        }
        Ok(head)
    }

    /// Ends the response, and returns the connection to the pool if it is reusable.
    fn finish(&mut self, now: u64) {
        self.stamps.ended = now;
        self.registration.leave();
        let reusable = self.keep_alive
            && self.core().settings.keep_alive
            && self.outgoing.done
            && !self.outgoing.unflushed
            && self.outgoing.broken.is_none();
        match self.lease.take() {
            Some(lease) if reusable => {
                let hint = self.keep_hint.map(|seconds| Duration::from_secs(seconds.into()));
                lease.give_back(self.stamps.ended, hint);
            }
            lease => drop(lease),
        }
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange")
            .field("phase", &self.phase)
            .field("progress", &self.progress)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}
