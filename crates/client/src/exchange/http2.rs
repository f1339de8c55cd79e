//! One request on a stream of HTTP/2.
//!
//! The request is encoded as HTTP/1.1 first, so that the rules for both versions are the same. The stream's head has
//! the same parts. The codec leaves out the fields that only HTTP/1.1 has: `Connection`, `Transfer-Encoding` and Host.

use std::io;
use std::task::{Context, Poll};

use oroshi_core::{Scratch, after};
use oroshi_http1::encode::EncodeError;
use oroshi_http1::{Headers as Lines, Version};
use oroshi_multiplex::{ConnectionError, Defect, Error as StreamError, Request, Stream};
use oroshi_net::{Scheme, monotonic_ns};

use super::{COPY_BYTES, Exchange, Head};
use crate::body::Body;
use crate::core::Lease;
use crate::deadline::Phase;
use crate::error::{Cause, Error};
use crate::headers::Headers;

impl Exchange {
    pub(super) fn is_http2(&self) -> bool {
        self.lease.as_ref().is_some_and(Lease::is_http2)
    }

    /// Begins a stream, if the request has a place on a shared connection. Returns false if the connection takes no
    /// more streams. `checked`: the request cannot be sent again, so the kernel is asked whether the connection is
    /// open.
    pub(crate) fn begin_stream(&mut self, scheme: Scheme, checked: bool) -> Result<bool, Error> {
        let Some(place) = self.lease.as_mut().and_then(Lease::take_place) else { return Ok(self.is_connected()) };
        if checked {
            place.connection().check();
        }
        let head_bytes = self.outgoing.bytes.windows(4).position(|end| end == b"\r\n\r\n").map_or(0, |end| end + 4);
        let begun = match parts(&self.outgoing.bytes[..head_bytes], scheme) {
            Some((request, lines)) => {
                let fields = lines.iter().map(|field| (field.name, field.value));
                place.begin(&request, fields, self.outgoing.bytes.len() == head_bytes && self.outgoing.body.is_empty())
            }
            None => Err(StreamError::Send(EncodeError::Target.into())),
        };
        let stream = match begun {
            Ok(stream) => stream,
            // A request that cannot be sent at all does not become one on another connection.
            Err(error) if is_invalid(&error) => return Err(self.failure(Phase::Request, Cause::Http2(error))),
            Err(_) => return Ok(false),
        };
        self.outgoing.sent = head_bytes;
        if let Some(lease) = &mut self.lease {
            lease.put_stream(stream);
        }
        if self.outgoing.bytes.len() == head_bytes && self.outgoing.body.is_empty() {
            self.handed_over();
        }
        Ok(true)
    }

    fn http2(&mut self) -> Option<&mut Stream> {
        self.lease.as_mut()?.stream()
    }

    /// Notes that the stream has the whole request.
    fn handed_over(&mut self) {
        self.sent_all();
        // The connection's task writes it later.
        self.stamps.sent = 0;
    }

    /// Notes what the connection has sent of the request.
    fn note_sent(&mut self) {
        let Some(sent) = self.http2().map(|stream| stream.sent()) else { return };
        if sent.first != 0 && !self.progress.sent {
            // The connection counts the bytes.
            self.sent_some(0, sent.first);
        }
        if self.outgoing.done && self.stamps.sent == 0 {
            self.stamps.sent = sent.last;
        }
    }

    /// Gives the stream as much of the body as it takes. Ready when it has all, or wants no more; an error is the
    /// request's own.
    fn poll_send_http2(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            if self.outgoing.done || self.outgoing.broken.is_some() {
                return Poll::Ready(Ok(()));
            }
            let Some(stream) = self.lease.as_mut().and_then(Lease::stream) else { return Poll::Ready(Ok(())) };
            let (rest, is_last) = match (&self.outgoing.bytes[self.outgoing.sent..], &self.outgoing.body) {
                (rest, Body::Empty | Body::Used) => (rest, true),
                ([], Body::Bytes(bytes)) => (&bytes[self.outgoing.body_sent..], true),
                (rest, _) => (rest, false),
            };
            if rest.is_empty() && !is_last {
                std::task::ready!(self.poll_reader(context))?;
                continue;
            }
            let is_body = self.outgoing.bytes.len() == self.outgoing.sent;
            match stream.poll_write(context, rest, is_last) {
                Poll::Ready(Ok(count)) => {
                    let ends = is_last && count == rest.len();
                    let place = if is_body { &mut self.outgoing.body_sent } else { &mut self.outgoing.sent };
                    *place += count;
                    if self.phase == Phase::Write {
                        self.pause(); // entered again when it has to wait again
                    }
                    if ends {
                        self.handed_over();
                    }
                }
                // The response says why.
                Poll::Ready(Err(_)) => self.outgoing.broken = Some(io::ErrorKind::BrokenPipe.into()),
                Poll::Pending => {
                    if self.phase != Phase::Write && self.stamps.head == 0 {
                        self.enter(Phase::Write);
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    /// Reads the next piece of the body.
    fn poll_reader(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let Body::Reader(reader) = &mut self.outgoing.body else { return Poll::Ready(Ok(())) };
        // A separate buffer: the reader may be a response of this very client.
        let mut buffer = Scratch::take();
        let polled = reader.poll(context, &mut buffer[..COPY_BYTES]).map_ok(|count| {
            self.outgoing.append_plain(&buffer[..count]);
        });
        drop(buffer);
        polled.map_err(|error| {
            self.phase = Phase::Write;
            self.assume_sent();
            self.drop_lease();
            self.fail(Cause::Body(error))
        })
    }

    /// As [`poll_head`](Self::poll_head), on a stream.
    pub(super) fn poll_head_http2(&mut self, context: &mut Context<'_>) -> Poll<Result<Head, Error>> {
        let sending = self.poll_send_http2(context)?;
        let is_head = self.is_head;
        let Some(stream) = self.http2() else {
            return Poll::Ready(Err(self.fail(Cause::Io(io::ErrorKind::NotConnected.into()))));
        };
        let remote = stream.connection().remote_address();
        let polled = stream.poll_head(context, |head| Head {
            version: Version::Http2,
            status: head.status,
            reason: Box::default(),
            headers: Headers::received(head.headers),
            length: if is_head || matches!(head.status, 204 | 304) { Some(0) } else { head.content_length },
            remote,
        });
        match polled {
            Poll::Ready(Ok(mut head)) => {
                self.stamps.head = monotonic_ns();
                self.progress.answered = true;
                self.note_sent();
                self.pause();
                if self.http2().is_some_and(|stream| stream.has_ended()) {
                    self.take_whole_body(context);
                    if self.body.is_empty() {
                        head.length = Some(0);
                    }
                }
                Poll::Ready(Ok(head))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(self.broke_http2(error))),
            Poll::Pending => {
                self.note_sent();
                if sending.is_ready() {
                    let is_blocked = self.http2().is_some_and(|stream| stream.is_blocked());
                    let phase = if is_blocked { Phase::Write } else { Phase::FirstByte };
                    if self.phase != phase {
                        self.enter(phase);
                    }
                }
                self.bounded_http2(context)
            }
        }
    }

    /// Takes a body of which all has come, and ends the response.
    fn take_whole_body(&mut self, context: &mut Context<'_>) {
        let mut body = std::mem::take(&mut self.body);
        while let Some(stream) = self.http2()
            && let Poll::Ready(Ok(true)) = stream.poll_data(context, &mut body)
        {}
        self.body = body;
        self.end_stream(self.stamps.head);
    }

    /// As [`poll_body`](Self::poll_body), on a stream.
    pub(super) fn poll_body_http2(
        &mut self,
        context: &mut Context<'_>,
        into: &mut Vec<u8>,
    ) -> Poll<Result<bool, Error>> {
        // A caller that stops sending harms only itself; its reads continue.
        let _ = self.poll_send_http2(context)?;
        let Some(stream) = self.http2() else {
            return Poll::Ready(Err(self.fail(Cause::Io(io::ErrorKind::NotConnected.into()))));
        };
        match stream.poll_data(context, into) {
            Poll::Ready(Ok(more)) => {
                self.pause();
                if !more {
                    self.end_stream(monotonic_ns());
                }
                Poll::Ready(Ok(more))
            }
            Poll::Ready(Err(error)) => {
                self.phase = Phase::BetweenBytes;
                let error = self.broke_http2(error);
                self.drop_lease();
                Poll::Ready(Err(error))
            }
            Poll::Pending => {
                if self.phase != Phase::BetweenBytes {
                    self.enter(Phase::BetweenBytes);
                }
                let polled = self.bounded_http2(context);
                if polled.is_ready() {
                    self.drop_lease();
                }
                polled
            }
        }
    }

    /// Ends the response. The connection goes on without the stream.
    fn end_stream(&mut self, now: u64) {
        self.note_sent();
        self.ended = true;
        self.stamps.ended = now;
        let trailers = self.http2().and_then(|stream| stream.trailers(|lines| Box::new(Headers::received(lines))));
        self.trailers = trailers;
        self.registration.leave();
        self.drop_lease();
    }

    /// Pending, or the failure of the phase whose deadline has passed.
    fn bounded_http2<T>(&mut self, context: &Context<'_>) -> Poll<Result<T, Error>> {
        let bounded = self.bounded(Poll::<T>::Pending, context);
        if bounded.is_ready() {
            self.note_sent();
            if self.http2().is_some() {
                // The output of the connection may hold the request, and send it yet.
                self.assume_sent();
            }
            let now = monotonic_ns();
            let since = match self.phase {
                Phase::FirstByte if self.stamps.sent != 0 => self.stamps.sent,
                phase => now.saturating_sub(after(0, self.deadlines().limit(phase))),
            };
            if let Some(stream) = self.http2()
                && stream.connection().heard_at() < since
            {
                // Nothing has come meanwhile: the connection may be dead, so later requests get another.
                stream.connection().close();
            }
        }
        bounded
    }

    /// Fails because the stream has.
    fn broke_http2(&mut self, error: StreamError) -> Error {
        self.note_sent();
        if self.http2().is_some_and(|stream| stream.is_answered()) {
            self.progress.answered = true;
        }
        let is_connection = matches!(error, StreamError::Connection { .. });
        self.progress.broke = is_connection;
        self.progress.refused = error.is_unprocessed() && !self.progress.answered;
        let was_sending = self.outgoing.broken.take().is_some() && is_connection && !self.progress.answered;
        let phase = if was_sending { Phase::Write } else { self.phase };
        self.failure(phase, cause(error))
    }
}

/// Whether the request itself is invalid.
fn is_invalid(error: &StreamError) -> bool {
    matches!(error, StreamError::Send(oroshi_multiplex::SendError::Encode(_)))
}

/// Returns the cause of a failed stream: as for HTTP/1 where HTTP/1 has the same.
fn cause(error: StreamError) -> Cause {
    match &error {
        StreamError::Response(Defect::Message(defect)) => Cause::Response(*defect),
        StreamError::Connection { cause, .. } => match &**cause {
            ConnectionError::Closed => Cause::Response(oroshi_http1::DecodeError::UnexpectedEof),
            ConnectionError::Io(broken) => Cause::Io(match broken.raw_os_error() {
                Some(code) => io::Error::from_raw_os_error(code),
                None => broken.kind().into(),
            }),
            _ => Cause::Http2(error),
        },
        _ => Cause::Http2(error),
    }
}

/// Reads a head of HTTP/1.1 that this client has encoded. The authority is what Host says.
fn parts(head: &[u8], scheme: Scheme) -> Option<(Request<'_>, Lines<'_>)> {
    let line_end = memchr::memchr(b'\r', head)?;
    let line = str::from_utf8(&head[..line_end]).ok()?;
    let mut words = line.split(' ');
    let (method, path) = (words.next()?, words.next()?);
    let lines = Lines::from_checked_lines(head.get(line_end + 2..head.len() - 2)?);
    let authority = str::from_utf8(lines.get("Host")?).ok()?;
    Some((Request { method, scheme: scheme.as_str(), authority, path, protocol: None }, lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_keeps_its_parts() {
        let head = b"GET /a?b HTTP/1.1\r\nHost: a.test:1\r\nX-A: 1\r\n\r\n";
        let (request, lines) = parts(head, Scheme::Https).unwrap();
        assert_eq!((request.method, request.scheme, request.path), ("GET", "https", "/a?b"));
        assert_eq!(request.authority, "a.test:1");
        assert_eq!(lines.iter().count(), 2);
        assert!(parts(b"", Scheme::Http).is_none());
        assert!(parts(b"GET / HTTP/1.1\r\nX: y\r\n\r\n", Scheme::Http).is_none(), "no authority");
    }
}
