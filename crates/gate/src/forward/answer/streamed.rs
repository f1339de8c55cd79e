//! Passes the response of a stream of HTTP/2 to the client.

use std::task::{Context, Poll, ready};

use oroshi_core::SpareBuffer;
use oroshi_http1::encode::standard_reason;
use oroshi_http1::{Framing, Headers, Limits, ResponseHead, Version};
use oroshi_net::monotonic_ns;
use oroshi_server::Reply;

use super::{Answer, AnswerContext, ExchangeError, ProtocolSwitch, ResponseEnd, fields};
use crate::failure::{Failure, ForwardError};
use crate::forward::link::Phase;
use crate::forward::stream_link::StreamLink;

impl Answer {
    /// As [`poll`](Self::poll), from a stream.
    pub(crate) fn poll_stream(
        &mut self,
        context: &mut Context<'_>,
        answering: &AnswerContext<'_>,
        link: &StreamLink,
        reply: &mut Reply<'_>,
    ) -> Poll<Result<ResponseEnd, ExchangeError>> {
        loop {
            if self.is_held()
                && let Some(ending) = ready!(self.poll_held(context, answering, reply))?
            {
                return Poll::Ready(Ok(ending));
            }
            if self.status != 0 {
                ready!(self.poll_room(context, answering, reply))?;
            }
            let step = match self.given {
                0 => self.poll_stream_head(context, answering, link, reply),
                _ => self.poll_stream_body(context, answering, link, reply),
            };
            match step {
                Poll::Pending => {
                    self.flush(context, reply)?;
                    return self.wait(context, answering, reply);
                }
                Poll::Ready(ended) => {
                    if let Some(ending) = ended? {
                        return Poll::Ready(Ok(ending));
                    }
                }
            }
            if self.status != 0 && !link.stream.borrow().has_ended() {
                self.came_at_once = false;
                if answering.waiting.phase() != Phase::Send {
                    answering.waiting.enter(Phase::Body, monotonic_ns());
                }
            }
        }
    }

    fn poll_stream_head(
        &mut self,
        context: &mut Context<'_>,
        answering: &AnswerContext<'_>,
        link: &StreamLink,
        reply: &mut Reply<'_>,
    ) -> Poll<Result<Option<ResponseEnd>, ExchangeError>> {
        let read = link.stream.borrow_mut().poll_head(context, |head| {
            let mut lines = SpareBuffer::take();
            lines.extend_from_slice(head.headers.as_bytes());
            (head.status, head.content_length, lines)
        });
        let (status, length, lines) = ready!(read).map_err(|error| link.failure(&error, false))?;
        let headers = Headers::from_checked_lines(&lines);
        if status < 200 {
            // An interim response that cannot be passed on may be lost: a final one follows.
            let _ = reply.inform(status, fields(headers, false));
            return Poll::Ready(Ok(None));
        }
        check(headers, &answering.rules.settings.limits)?;
        if self.is_tunnel && (200..300).contains(&status) {
            let named = fields(headers, false).into_iter();
            let fields = named.map(|(name, value)| (name.to_owned(), value.to_vec())).collect();
            let switch = ProtocolSwitch { fields, rest: Vec::new() };
            return Poll::Ready(Ok(Some(ResponseEnd::Switch(Box::new(switch)))));
        }
        let framing = match length {
            _ if self.is_head || matches!(status, 204 | 304) => Framing::None,
            Some(length) => Framing::Length(length),
            None if is_empty(context, link) => Framing::Length(0),
            None => Framing::Chunked,
        };
        let reason = standard_reason(status).as_bytes();
        let head = ResponseHead { version: Version::Http2, status, reason, headers, framing, keep_alive: true };
        match answering.inspect {
            None => self.pass_head_on(&head, answering, reply)?,
            Some(inspect) => self.hold(&head, answering, inspect),
        }
        Poll::Ready(Ok(None))
    }

    fn poll_stream_body(
        &mut self,
        context: &mut Context<'_>,
        answering: &AnswerContext<'_>,
        link: &StreamLink,
        reply: &mut Reply<'_>,
    ) -> Poll<Result<Option<ResponseEnd>, ExchangeError>> {
        let mut piece = link.piece.borrow_mut();
        if piece.is_empty() {
            let read = link.stream.borrow_mut().poll_data(context, &mut piece);
            if !ready!(read).map_err(|error| link.failure(&error, true))? {
                let stream = link.stream.borrow();
                let passed = match link.trailers {
                    true => stream.trailers(|trailers| self.pass_trailers_on(context, trailers, answering, reply)),
                    false => None,
                };
                passed.unwrap_or_else(|| self.finish(context, reply))?;
                return Poll::Ready(Ok(Some(ResponseEnd::Whole)));
            }
        }
        self.push(context, &piece, reply)?;
        piece.clear();
        Poll::Ready(Ok(None))
    }
}

/// Returns whether the whole response has come, with neither body nor trailers.
fn is_empty(context: &mut Context<'_>, link: &StreamLink) -> bool {
    let mut stream = link.stream.borrow_mut();
    // What has come already waits in the piece.
    stream.has_ended()
        && matches!(stream.poll_data(context, &mut link.piece.borrow_mut()), Poll::Ready(Ok(false)))
        && stream.trailers(|_| ()).is_none()
}

/// Checks a head against the route's limits, which may be below the connection's.
fn check(headers: Headers<'_>, limits: &Limits) -> Result<(), ForwardError> {
    let bytes = headers.as_bytes().len();
    // The shortest line, with its CRLF, has four bytes.
    if bytes > limits.head_bytes || (bytes / 4 > limits.headers && headers.iter().count() > limits.headers) {
        return Err(ForwardError::sent(Failure::Malformed, "the response's head is over the route's limits"));
    }
    Ok(())
}
