//! Passes the upstream's response to the client, through the core's scratch buffer. `streamed` does so from a stream of
//! HTTP/2, `compressed` through an encoder.

mod compressed;
mod streamed;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use oroshi_core::{Incoming, Scratch};
use oroshi_http1::{DecodeError, ExpectedResponse, Framing, Headers, Version};
use oroshi_http1::{ResponseDecoder, ResponseEvent, ResponseHead};
use oroshi_net::{PeerState, monotonic_ns};
use oroshi_server::{Error, Reply};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Sleep;

use super::compress::{Encoder, EncoderBudget, is_of_content};
use super::edits::Edits;
use super::held::{Held, Inspect, InspectedHead, Verdict};
use super::link::{Phase, Waiting};
use super::response_head::{self, fields};
use super::rules::Rules;
use crate::failure::{Failure, ForwardError};
use crate::upstream::Connection;

/// The settings and changes for passing on a response.
#[derive(Clone, Copy)]
pub(crate) struct AnswerContext<'c> {
    pub(crate) rules: &'c Rules,
    /// Changes to the request's fields, beside the route's.
    pub(crate) request: &'c Edits,
    /// Changes to the response's fields, beside the route's.
    pub(crate) edits: &'c Edits,
    /// Inspects the response's head before it goes to the client.
    pub(crate) inspect: Option<&'c dyn Inspect>,
    /// The fields of the client's request.
    pub(crate) asked: Headers<'c>,
    pub(crate) encoders: &'c Arc<EncoderBudget>,
    pub(crate) waiting: &'c Waiting<'c>,
}

/// Why an exchange stops.
#[derive(Debug)]
pub(crate) enum ExchangeError {
    /// A failure at the upstream.
    Upstream(ForwardError),
    /// A failure at the client or in the gateway itself.
    Client(Error),
}

impl From<ForwardError> for ExchangeError {
    fn from(error: ForwardError) -> Self {
        ExchangeError::Upstream(error)
    }
}

/// How a response ends.
#[derive(Debug)]
pub(crate) enum ResponseEnd {
    /// The client has the whole response.
    Whole,
    /// The upstream switched to another protocol.
    Switch(Box<ProtocolSwitch>),
}

/// The head of a 101 and the bytes after it.
#[derive(Debug)]
pub(crate) struct ProtocolSwitch {
    pub(crate) fields: Vec<(String, Vec<u8>)>,
    pub(crate) rest: Vec<u8>,
}

/// A response in progress.
pub(crate) struct Answer {
    decoder: ResponseDecoder,
    /// An incomplete head or trailers.
    kept: Incoming,
    /// The status of the final response, once its head went to the client.
    pub(crate) status: u16,
    /// The upstream's status. It differs from `status` only if an inspector changed it.
    pub(crate) given: u16,
    /// The upstream's version of HTTP.
    pub(crate) version: Version,
    /// When the head arrived.
    pub(crate) head_at: u64,
    /// Whether one read brought the head and the whole body so far.
    pub(crate) came_at_once: bool,
    /// Bytes of the body for the client so far, after compression.
    pub(crate) bytes: u64,
    /// Bytes of the body from the upstream so far.
    pub(crate) received: u64,
    /// Whether the connection can carry another request.
    pub(crate) keep_alive: bool,
    /// The keep-alive time that the server announced.
    pub(crate) keep: Option<Duration>,
    is_head: bool,
    /// Whether a 2xx is no response but the begin of a tunnel, over HTTP/2.
    is_tunnel: bool,
    /// Whether the client reads too slowly.
    stalled: bool,
    watch: Watch,
    /// The inspection of this response. Boxed, because few are inspected.
    inspection: Option<Box<Inspection>>,
    /// Compresses this response. Boxed, because few are compressed.
    encoder: Option<Box<Encoder>>,
}

/// The client's state while the upstream prepares a response.
enum Watch {
    /// The client has sent nothing more.
    Quiet,
    /// The client has ended its sending side. The gateway gives it this long.
    Ended(Pin<Box<Sleep>>),
    /// The gateway watches no longer: more bytes hide the client's end, or it waits without limit.
    Over,
}

/// The state of an inspection.
enum Inspection {
    /// Head and body wait for the verdict.
    Held(Held),
    /// The head went on with these changes.
    Over(Edits),
}

impl Answer {
    pub(crate) fn new(expect: ExpectedResponse) -> Self {
        let mut decoder = ResponseDecoder::default();
        decoder.expect(expect);
        Answer {
            decoder,
            kept: Incoming::default(),
            status: 0,
            given: 0,
            version: Version::Http11,
            head_at: 0,
            came_at_once: true,
            bytes: 0,
            received: 0,
            keep_alive: false,
            keep: None,
            is_head: expect == ExpectedResponse::Head,
            is_tunnel: expect == ExpectedResponse::Upgrade,
            stalled: false,
            watch: Watch::Quiet,
            inspection: None,
            encoder: None,
        }
    }

    /// Returns whether any byte of the response has arrived.
    pub(crate) fn has_begun(&self) -> bool {
        self.decoder.has_begun() || !self.kept.is_empty()
    }

    /// Passes on the bytes that arrived. Ready at the response's end.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        answering: &AnswerContext<'_>,
        connection: &Connection,
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
            let mut scratch = Scratch::take();
            let mut buffer = ReadBuf::new(&mut scratch);
            let read = Pin::new(&mut *connection.stream.borrow_mut()).poll_read(context, &mut buffer);
            match read {
                Poll::Pending => {
                    self.flush(context, reply)?;
                    return self.wait(context, answering, reply);
                }
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(ForwardError::sent(self.broken(), error.to_string()).into()));
                }
                Poll::Ready(Ok(())) => {}
            }
            let data = buffer.filled();
            let step =
                if data.is_empty() { self.end(context, reply) } else { self.pass_on(context, answering, data, reply) };
            if let Some(ending) = step? {
                return Poll::Ready(Ok(ending));
            }
            if self.status != 0 {
                self.came_at_once = false;
                if answering.waiting.phase() != Phase::Send {
                    answering.waiting.enter(Phase::Body, monotonic_ns());
                }
            }
        }
    }

    /// Waits for the upstream, unless it is overdue or the client has left.
    fn wait(
        &mut self,
        context: &mut Context<'_>,
        answering: &AnswerContext<'_>,
        reply: &mut Reply<'_>,
    ) -> Poll<Result<ResponseEnd, ExchangeError>> {
        if self.client_has_left(context, answering, reply) {
            let left = io::Error::new(io::ErrorKind::ConnectionAborted, "the client has left");
            return Poll::Ready(Err(ExchangeError::Client(Error::Io(left))));
        }
        match answering.waiting.poll_over(context) {
            Some(error) => Poll::Ready(Err(ExchangeError::Upstream(error))),
            None => Poll::Pending,
        }
    }

    /// Returns whether the client has left. Otherwise wakes the task when that may have changed.
    fn client_has_left(
        &mut self,
        context: &mut Context<'_>,
        answering: &AnswerContext<'_>,
        reply: &mut Reply<'_>,
    ) -> bool {
        // In other phases, the reader of the request's body sees the client's end.
        if !matches!(answering.waiting.phase(), Phase::Head | Phase::Body) {
            return false;
        }
        if let Watch::Quiet = self.watch {
            let half_close = answering.rules.settings.timeouts.half_close;
            self.watch = match reply.poll_peer(context) {
                Poll::Pending => return false,
                Poll::Ready(PeerState::Gone) => return true,
                Poll::Ready(PeerState::End) if half_close.is_zero() => return true,
                Poll::Ready(PeerState::End) if half_close < Duration::MAX => {
                    Watch::Ended(Box::pin(tokio::time::sleep(half_close)))
                }
                Poll::Ready(PeerState::End | PeerState::More) => Watch::Over,
            };
        }
        match &mut self.watch {
            Watch::Ended(half_close) => half_close.as_mut().poll(context).is_ready(),
            Watch::Quiet | Watch::Over => false,
        }
    }

    /// Ready when the client keeps up. The client's slowness does not count against the upstream.
    fn poll_room(
        &mut self,
        context: &mut Context<'_>,
        answering: &AnswerContext<'_>,
        reply: &mut Reply<'_>,
    ) -> Poll<Result<(), ExchangeError>> {
        match reply.poll_room(context) {
            Poll::Pending => {
                if !self.stalled {
                    self.stalled = true;
                    answering.waiting.enter(Phase::Client, 0);
                }
                match answering.waiting.poll_over(context) {
                    Some(error) => Poll::Ready(Err(error.into())),
                    None => Poll::Pending,
                }
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(ExchangeError::Client(error))),
            Poll::Ready(Ok(())) => {
                if std::mem::take(&mut self.stalled) {
                    answering.waiting.enter(Phase::Body, monotonic_ns());
                }
                Poll::Ready(Ok(()))
            }
        }
    }

    /// Decodes bytes and passes them on, up to the response's end.
    fn pass_on(
        &mut self,
        context: &mut Context<'_>,
        answering: &AnswerContext<'_>,
        data: &[u8],
        reply: &mut Reply<'_>,
    ) -> Result<Option<ResponseEnd>, ExchangeError> {
        let mut kept = std::mem::take(&mut self.kept);
        let passed = kept.decode(data, |input| self.pass_events_on(context, answering, input, reply));
        self.kept = kept;
        passed
    }

    fn pass_events_on(
        &mut self,
        context: &mut Context<'_>,
        answering: &AnswerContext<'_>,
        input: &mut &[u8],
        reply: &mut Reply<'_>,
    ) -> Result<Option<ResponseEnd>, ExchangeError> {
        let limits = &answering.rules.settings.limits;
        while let Some(event) = self.decoder.decode(limits, input).map_err(|error| self.malformed(error))? {
            match event {
                ResponseEvent::Data(piece) => {
                    self.push(context, piece, reply)?;
                }
                ResponseEvent::Head(head) if head.framing == Framing::Tunnel => {
                    let named = fields(head.headers, true).into_iter();
                    let fields = named.map(|(name, value)| (name.to_owned(), value.to_vec())).collect();
                    return Ok(Some(ResponseEnd::Switch(Box::new(ProtocolSwitch {
                        fields,
                        rest: std::mem::take(input).to_vec(),
                    }))));
                }
                ResponseEvent::Head(head) => match answering.inspect {
                    None => self.pass_head_on(&head, answering, reply)?,
                    Some(inspect) => {
                        self.hold(&head, answering, inspect);
                        break;
                    }
                },
                ResponseEvent::Informational(head) => {
                    // An interim response that cannot be passed on may be lost: a final one follows.
                    let _ = reply.inform(head.status, fields(head.headers, false));
                }
                ResponseEvent::Trailers(trailers) => self.pass_trailers_on(context, trailers, answering, reply)?,
                ResponseEvent::End => {
                    // Bytes after the response answer no request.
                    self.keep_alive &= std::mem::take(input).is_empty();
                    self.finish(context, reply)?;
                    return Ok(Some(ResponseEnd::Whole));
                }
            }
        }
        Ok(None)
    }

    fn pass_trailers_on(
        &mut self,
        context: &mut Context<'_>,
        trailers: Headers<'_>,
        answering: &AnswerContext<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<(), ExchangeError> {
        let is_compressed = self.encoder.is_some();
        self.end_encoder(context, reply)?;
        let changes = match self.inspection.as_deref() {
            Some(Inspection::Over(changes)) => changes,
            _ => const { &Edits::none() },
        };
        let drops = |name: &str| answering.rules.settings.response.drops(name) || changes.drops(name);
        let is_false = |name: &str| is_compressed && is_of_content(name);
        let kept = trailers.iter().filter(|field| !drops(field.name) && !is_false(field.name));
        reply.finish_with(kept.map(|field| (field.name, field.value))).map_err(ExchangeError::Client)
    }

    fn pass_head_on(
        &mut self,
        head: &ResponseHead<'_>,
        answering: &AnswerContext<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<(), ExchangeError> {
        self.head_at = monotonic_ns();
        self.version = head.version;
        self.keep_alive = head.keep_alive;
        if is_stream(head) {
            answering.waiting.is_stream();
        }
        let length = self.length(head);
        if let Some(compression) = &answering.rules.settings.compression {
            return self.pass_compressed_head_on(head, length, compression, answering, reply);
        }
        let mut seen = response_head::ResponseFacts::default();
        let relayed = reply.relay(head.status, head.reason, length, |out| {
            seen = response_head::write(out, head, answering.rules, answering.edits);
            seen.date
        });
        relayed.map_err(ExchangeError::Client)?;
        self.keep = seen.keep;
        (self.status, self.given) = (head.status, head.status);
        Ok(())
    }

    /// Returns the `Content-Length` for the client.
    fn length(&self, head: &ResponseHead<'_>) -> Option<u64> {
        match head.framing {
            Framing::Length(length) => Some(length),
            // The length of the response to a GET. The decoder has checked it.
            Framing::None if self.is_head => head.headers.get("content-length").and_then(decimal),
            Framing::None => Some(0),
            _ => None,
        }
    }

    /// Holds a head back for inspection.
    #[cold]
    fn hold(&mut self, head: &ResponseHead<'_>, answering: &AnswerContext<'_>, inspect: &dyn Inspect) {
        self.head_at = monotonic_ns();
        self.version = head.version;
        self.keep_alive = head.keep_alive;
        self.given = head.status;
        if is_stream(head) {
            answering.waiting.is_stream();
        }
        // Inspection takes time, so `head_at` is no longer the current time.
        self.came_at_once = false;
        let mut lines = Vec::with_capacity(head.headers.as_bytes().len() + 64);
        self.keep = response_head::write(&mut lines, head, answering.rules, answering.edits).keep;
        let (lines, length) = (std::rc::Rc::<[u8]>::from(lines), self.length(head));
        let verdict = inspect.inspect(InspectedHead {
            status: head.status,
            lines: std::rc::Rc::clone(&lines),
            length,
            has_body: head.framing != Framing::None,
        });
        let reason = head.reason.into();
        let held = Held { verdict, status: head.status, reason, lines, length };
        self.inspection = Some(Box::new(Inspection::Held(held)));
    }

    fn is_held(&self) -> bool {
        matches!(self.inspection.as_deref(), Some(Inspection::Held(_)))
    }

    /// Ready when the inspection is over and the held bytes went on.
    #[cold]
    fn poll_held(
        &mut self,
        context: &mut Context<'_>,
        answering: &AnswerContext<'_>,
        reply: &mut Reply<'_>,
    ) -> Poll<Result<Option<ResponseEnd>, ExchangeError>> {
        // The gateway waits for the client or the inspector now, not for the upstream, unless the upstream still reads
        // the request.
        if !matches!(answering.waiting.phase(), Phase::Client | Phase::Send) {
            answering.waiting.enter(Phase::Client, 0);
        }
        let Some(Inspection::Held(held)) = self.inspection.as_deref_mut() else { return Poll::Ready(Ok(None)) };
        let Poll::Ready(verdict) = held.verdict.as_mut().poll(context) else {
            return match answering.waiting.poll_over(context) {
                Some(error) => Poll::Ready(Err(error.into())),
                None => Poll::Pending,
            };
        };
        if answering.waiting.phase() == Phase::Client {
            answering.waiting.enter(Phase::Body, monotonic_ns());
        }
        Poll::Ready(match verdict {
            Verdict::Pass { status, changes } => {
                let (mut lines, has_date) = held.lines(&changes);
                let (reason, mut length) = (held.reason(status).to_vec(), held.length);
                if let Some(compression) = &answering.rules.settings.compression {
                    length = self.compress(compression, &mut lines, (status, length), answering);
                }
                let relayed = reply.relay(status, &reason, length, |out| {
                    out.extend_from_slice(&lines);
                    has_date
                });
                relayed.map_err(ExchangeError::Client)?;
                self.status = status;
                self.inspection = Some(Box::new(Inspection::Over(changes)));
                self.pass_on(context, answering, &[], reply)
            }
            Verdict::Replace { status, fields, body } => {
                let fields = fields.iter().map(|(name, value)| (&**name, &**value));
                reply.begin(status, fields, Some(body.len() as u64)).map_err(ExchangeError::Client)?;
                if !body.is_empty() {
                    reply.push(context, &body).map_err(ExchangeError::Client)?;
                }
                reply.finish().map_err(ExchangeError::Client)?;
                (self.status, self.bytes) = (status, body.len() as u64);
                self.keep_alive &= self.is_over(answering);
                Ok(Some(ResponseEnd::Whole))
            }
            Verdict::Fail(detail) => Err(ForwardError::sent(Failure::Script, detail).into()),
        })
    }

    /// Returns whether an unwanted response is complete, so that its connection can be reused.
    fn is_over(&mut self, answering: &AnswerContext<'_>) -> bool {
        let (mut kept, limits) = (std::mem::take(&mut self.kept), &answering.rules.settings.limits);
        kept.decode(&[], |input| {
            while let Ok(Some(event)) = self.decoder.decode(limits, input) {
                if event == ResponseEvent::End {
                    return input.is_empty();
                }
            }
            false
        })
    }

    fn finish(&mut self, context: &mut Context<'_>, reply: &mut Reply<'_>) -> Result<(), ExchangeError> {
        self.end_encoder(context, reply)?;
        if reply.is_complete() { Ok(()) } else { reply.finish().map_err(ExchangeError::Client) }
    }

    /// Handles the upstream's close of the connection.
    fn end(&mut self, context: &mut Context<'_>, reply: &mut Reply<'_>) -> Result<Option<ResponseEnd>, ExchangeError> {
        let failure = self.broken();
        match self.decoder.eof() {
            Ok(Some(ResponseEvent::End)) => {
                self.keep_alive = false;
                self.finish(context, reply)?;
                Ok(Some(ResponseEnd::Whole))
            }
            _ => Err(ForwardError::sent(failure, "the connection was closed").into()),
        }
    }

    /// Returns the failure of a connection lost before the end of the response.
    fn broken(&self) -> Failure {
        if self.has_begun() { Failure::Cut } else { Failure::Closed }
    }

    #[cold]
    fn malformed(&self, error: DecodeError) -> ExchangeError {
        ForwardError::sent(Failure::Malformed, format!("{}: {error}", error.name())).into()
    }
}

/// Returns whether the response is a stream of events, which has no natural end.
fn is_stream(head: &ResponseHead<'_>) -> bool {
    const EVENTS: &[u8] = b"text/event-stream";
    // A response of known length has an end.
    let is_open = matches!(head.framing, Framing::Chunked | Framing::UntilClose);
    let is_events = |kind: &[u8]| kind.get(..EVENTS.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(EVENTS));
    is_open && head.headers.get("content-type").is_some_and(is_events)
}

fn decimal(digits: &[u8]) -> Option<u64> {
    str::from_utf8(digits).ok()?.parse().ok()
}
