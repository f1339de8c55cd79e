//! A request's stream of HTTP/2 to an upstream: writes to it, and the failures that its errors mean.

use std::cell::{Cell, RefCell};
use std::error::Error as _;
use std::future::poll_fn;
use std::task::{Context, Poll};

use oroshi_core::SpareBuffer;
use oroshi_http1::Headers;
use oroshi_http2::SendError;
use oroshi_multiplex::{ConnectionError, Error as StreamError, ErrorCode, Stream};
use oroshi_net::monotonic_ns;
use oroshi_server::Error;

use super::answer::ExchangeError;
use super::link::{Phase, Waiting};
use super::message::Message;
use super::upload::Unsent;
use crate::failure::{Failure, ForwardError};

/// A request's stream to an upstream. Its two directions borrow it in turn, within one poll.
pub(crate) struct StreamLink {
    pub(crate) stream: RefCell<Stream>,
    /// Bytes of the response's body that the client gets next.
    pub(crate) piece: RefCell<SpareBuffer>,
    /// Whether the client takes trailers.
    pub(crate) trailers: bool,
    /// How many bytes of the buffered body were written.
    written: Cell<usize>,
    /// Whether the end of the request was written.
    is_finished: Cell<bool>,
    /// Whether bytes of the body went out that the gateway has not kept.
    has_streamed: Cell<bool>,
}

impl StreamLink {
    /// `is_finished`: the request has no body.
    pub(crate) fn new(stream: Stream, is_finished: bool, trailers: bool) -> Self {
        StreamLink {
            stream: RefCell::new(stream),
            piece: RefCell::new(SpareBuffer::take()),
            trailers,
            written: Cell::new(0),
            is_finished: Cell::new(is_finished),
            has_streamed: Cell::new(false),
        }
    }

    /// Returns the failure that an error of the stream means. `begun`: the client has the response's head.
    #[cold]
    pub(crate) fn failure(&self, error: &StreamError, begun: bool) -> ExchangeError {
        let mut stop = stream_failure(error, begun || self.stream.borrow().is_answered());
        if let ExchangeError::Upstream(error) = &mut stop {
            // What is not kept cannot be sent again.
            error.sent |= self.has_streamed.get();
        }
        stop
    }

    /// Writes as much of a whole message as the windows allow. Ready at its end.
    pub(crate) fn poll_send(&self, context: &mut Context<'_>, message: &Message) -> Poll<Result<(), Unsent>> {
        let (body, trailers) = (message.body(), message.trailers());
        let ends = trailers.as_bytes().is_empty();
        while !self.is_finished.get() && (ends || self.written.get() < body.len()) {
            match self.stream.borrow_mut().poll_write(context, &body[self.written.get()..], ends) {
                Poll::Ready(Ok(count)) => {
                    self.written.set(self.written.get() + count);
                    self.is_finished.set(ends && self.written.get() == body.len());
                }
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Unsent::Refused)),
                Poll::Pending => return Poll::Pending,
            }
        }
        self.poll_finish(context, trailers)
    }

    /// Sends a whole message, or the rest of it.
    pub(crate) async fn send(&self, message: &Message, waiting: &Waiting<'_>) -> Result<(), Unsent> {
        poll_fn(|context| {
            let before = self.written.get();
            let step = self.poll_send(context, message);
            note_progress(waiting, self.written.get() > before, step.is_pending());
            step
        })
        .await
    }

    /// Sends a piece of the body that is not kept.
    pub(crate) async fn send_piece(&self, piece: &[u8], waiting: &Waiting<'_>) -> Result<(), Unsent> {
        self.has_streamed.set(true);
        self.write_all(piece, waiting).await
    }

    /// Sends bytes of the body.
    pub(crate) async fn write_all(&self, bytes: &[u8], waiting: &Waiting<'_>) -> Result<(), Unsent> {
        let mut done = 0;
        poll_fn(|context| {
            while done < bytes.len() {
                match self.stream.borrow_mut().poll_write(context, &bytes[done..], false) {
                    Poll::Ready(Ok(count)) => {
                        done += count;
                        note_progress(waiting, true, false);
                    }
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(Unsent::Refused)),
                    Poll::Pending => {
                        note_progress(waiting, false, true);
                        return Poll::Pending;
                    }
                }
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Ends the request, with trailers if there are any.
    pub(crate) fn poll_finish(&self, context: &mut Context<'_>, trailers: Headers<'_>) -> Poll<Result<(), Unsent>> {
        if self.is_finished.replace(true) {
            return Poll::Ready(Ok(()));
        }
        let mut stream = self.stream.borrow_mut();
        if trailers.as_bytes().is_empty() {
            // An empty section would be a second head, which some servers refuse.
            return stream.poll_write(context, b"", true).map(|ended| ended.map(|_| ()).map_err(|_| Unsent::Refused));
        }
        let fields = trailers.iter().map(|field| (field.name, field.value));
        Poll::Ready(stream.finish(fields).map_err(|_| Unsent::Refused))
    }
}

/// Keeps the phase: [`Phase::Send`] while the upstream takes nothing.
fn note_progress(waiting: &Waiting<'_>, has_written: bool, is_blocked: bool) {
    if has_written && waiting.phase() == Phase::Send {
        waiting.enter(Phase::Client, 0);
    }
    if is_blocked && waiting.phase() == Phase::Client {
        waiting.enter(Phase::Send, monotonic_ns());
    }
}

/// Returns the failure that an error of a stream means. `begun`: a part of the response has come.
#[cold]
pub(crate) fn stream_failure(error: &StreamError, begun: bool) -> ExchangeError {
    let failure = match error {
        StreamError::Send(SendError::Encode(_)) => {
            return ExchangeError::Client(Error::Misuse("HTTP/2 cannot carry a request of this form"));
        }
        StreamError::Send(_) | StreamError::Reset(ErrorCode::REFUSED_STREAM) => Failure::Refused,
        StreamError::Response(_) => Failure::Malformed,
        _ if begun => Failure::Cut,
        StreamError::Connection { cause, .. } if matches!(**cause, ConnectionError::Protocol(_)) => Failure::Malformed,
        _ => Failure::Closed,
    };
    let mut detail = error.to_string();
    let mut cause = error.source();
    while let Some(why) = cause {
        detail += &format!(": {why}");
        cause = why.source();
    }
    let reset = match error {
        // The client must not take its request for unprocessed, nor its answer for whole.
        StreamError::Reset(ErrorCode::REFUSED_STREAM | ErrorCode::NO_ERROR) => None,
        StreamError::Reset(code) => Some(*code),
        _ => None,
    };
    ForwardError { failure, detail, sent: !error.is_unprocessed(), reset }.into()
}
