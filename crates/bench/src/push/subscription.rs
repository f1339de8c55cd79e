//! Opens one subscription, and reads it until it ends.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use oroshi_core::{Incoming, Scratch};
use oroshi_http1::{ExpectedResponse, Limits, ResponseDecoder, ResponseEvent, ResponseHead};
use oroshi_net::{Connected, Stream, monotonic_ns};
use oroshi_websocket::handshake::{self, UpgradeResponseError};
use oroshi_websocket::{Decoder, Role};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::core::{Core, Receiver};
use super::plan::Mode;
use super::wire::{End, TextScanner, Wire};
use crate::failure::Failure;
use crate::unreadable::{explained, shown};

/// A subscription that the server has accepted.
pub(crate) struct Opened {
    number: u32,
    stream: Stream,
    wire: Wire,
    /// Bytes behind the head of the response that are not read yet.
    kept: Incoming,
}

/// Why a subscription was not opened.
pub(crate) struct SubscribeError {
    pub(crate) failure: Failure,
    /// Status of the response that refused it.
    pub(crate) status: Option<u16>,
    /// The server's unexpected response, in words.
    pub(crate) came: Option<String>,
}

impl From<Failure> for SubscribeError {
    fn from(failure: Failure) -> Self {
        Self { failure, status: None, came: None }
    }
}

impl SubscribeError {
    /// A response that does not fit this request.
    fn answered(failure: Failure, came: String) -> Self {
        Self { failure, status: None, came: Some(came) }
    }
}

/// Opens the subscription of connection `number`, and returns it with the time that took, nanoseconds.
pub(crate) async fn open(core: &Core, number: u32) -> Result<(Opened, u64), SubscribeError> {
    let began = monotonic_ns();
    let timeout = core.shared.plan.connect.timeout;
    let deadline = Instant::now() + timeout;
    let (request, key) = core.shared.plan.request.write(number);
    let connected = core.dialer.connector.connect_sending(core.dialer.next_peer(), Some(deadline), &request).await;
    let Connected { stream, sent, .. } = connected.map_err(|error| Failure::from(&error))?;
    let subscribed = tokio::time::timeout_at(deadline.into(), subscribe(core, stream, &request[sent..], &key)).await;
    let (stream, wire, kept) = subscribed.unwrap_or(Err(Failure::Timeout.into()))?;
    Ok((Opened { number, stream, wire, kept }, monotonic_ns() - began))
}

/// Sends the rest of the request, and reads the head of the response.
async fn subscribe(
    core: &Core,
    mut stream: Stream,
    mut request: &[u8],
    key: &str,
) -> Result<(Stream, Wire, Incoming), SubscribeError> {
    while !request.is_empty() {
        let written = poll_fn(|cx| Pin::new(&mut stream).poll_write(cx, request)).await;
        request = &request[written.map_err(|_| Failure::Write)?..];
    }
    poll_fn(|cx| Pin::new(&mut stream).poll_flush(cx)).await.map_err(|_| Failure::Write)?;
    let mut decoder = ResponseDecoder::default();
    decoder.expect(if core.shared.plan.mode == Mode::Ws { ExpectedResponse::Upgrade } else { ExpectedResponse::Body });
    let mut kept = Incoming::default();
    let mut read_some = |cx: &mut Context<'_>| -> Poll<Result<Option<Agreed>, SubscribeError>> {
        let mut scratch = Scratch::take();
        let mut buffer = ReadBuf::new(&mut scratch);
        ready!(Pin::new(&mut stream).poll_read(cx, &mut buffer)).map_err(|_| Failure::ReadReset)?;
        match buffer.filled() {
            [] => Poll::Ready(Err(Failure::ReadEof.into())),
            came => Poll::Ready(kept.decode(came, |input| has_agreed(core, &mut decoder, input, key))),
        }
    };
    let Agreed { deflate } = loop {
        if let Some(agreed) = poll_fn(&mut read_some).await? {
            break agreed;
        }
    };
    let mode = core.shared.plan.mode;
    let wire = match mode {
        Mode::Ws if deflate => Wire::WebSocket(Decoder::with_deflate(Role::Client)),
        Mode::Ws => Wire::WebSocket(Decoder::new(Role::Client)),
        Mode::Sse | Mode::Stream => Wire::Body(decoder, TextScanner::new(mode)),
    };
    Ok((stream, wire, kept))
}

/// What a server agreed to beside the subscription.
#[derive(Clone, Copy)]
struct Agreed {
    /// Messages may be compressed.
    deflate: bool,
}

/// Reads the received part of the response's head. Returns the agreement once the head is complete and accepts the
/// subscription.
fn has_agreed(
    core: &Core,
    decoder: &mut ResponseDecoder,
    input: &mut &[u8],
    key: &str,
) -> Result<Option<Agreed>, SubscribeError> {
    loop {
        match decoder.decode(&Limits::default(), input) {
            Ok(Some(ResponseEvent::Head(head))) => return agreed(core, &head, key).map(Some),
            Ok(Some(_)) => {}
            Ok(None) => return Ok(None),
            Err(error) => {
                let (rule, bytes) = (explained(error, &Limits::default(), input), shown(input));
                let came = format!("what came is no HTTP/1.1 ({rule}); it begins with \"{bytes}\"");
                return Err(SubscribeError::answered(Failure::Parse, came));
            }
        }
    }
}

/// Checks that a response accepts the subscription.
fn agreed(core: &Core, head: &ResponseHead<'_>, key: &str) -> Result<Agreed, SubscribeError> {
    let plan = &core.shared.plan;
    let kind = match head.headers.get("Content-Type") {
        Some(kind) => format!("of type {}", kind[..kind.len().min(64)].escape_ascii()),
        None => "without a Content-Type".to_owned(),
    };
    let refused = |expected: &str| SubscribeError {
        failure: Failure::Status,
        status: Some(head.status),
        came: Some(format!("the answer is {} {kind}, where {expected}", head.status)),
    };
    match plan.mode {
        Mode::Ws => match handshake::check(head, key, &plan.request.protocols(), plan.request.offers_deflate()) {
            Ok(handshake::Agreed { deflate, .. }) => Ok(Agreed { deflate }),
            Err(UpgradeResponseError::Status(_)) => Err(refused("101 would open a WebSocket")),
            Err(mismatch) => Err(SubscribeError::answered(Failure::Parse, mismatch.to_string())),
        },
        _ if head.status != 200 => Err(refused("200 would begin the stream")),
        Mode::Sse => {
            let sent = head.headers.get("Content-Type").unwrap_or_default();
            let events = sent.get(..17).is_some_and(|kind| kind.eq_ignore_ascii_case(b"text/event-stream"));
            if events {
                Ok(Agreed { deflate: false })
            } else {
                let came = format!("the answer is 200 {kind}, where text/event-stream would begin the events");
                Err(SubscribeError::answered(Failure::Check, came))
            }
        }
        Mode::Stream => Ok(Agreed { deflate: false }),
    }
}

/// Reads a subscription until it ends.
pub(crate) async fn serve(core: Rc<Core>, id: usize, opened: Opened) {
    let mut subscription = Subscription { core: &core, id, opened, out: Vec::new() };
    let end = match subscription.read_kept() {
        Err(end) => end,
        Ok(()) => poll_fn(|cx| subscription.poll(cx)).await,
    };
    core.ended(id, end);
}

struct Subscription<'c> {
    core: &'c Core,
    id: usize,
    opened: Opened,
    /// Bytes to send: pongs, and the reply to a close.
    out: Vec<u8>,
}

impl Subscription<'_> {
    /// Takes the bytes that came together with the head of the response.
    fn read_kept(&mut self) -> Result<(), End> {
        self.take(&mut [])
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            while !self.out.is_empty() {
                match Pin::new(&mut self.opened.stream).poll_write(cx, &self.out) {
                    Poll::Ready(Ok(written)) => drop(self.out.drain(..written)),
                    Poll::Ready(Err(_)) => return Poll::Ready(End::Reset),
                    Poll::Pending => break,
                }
                if self.out.is_empty() {
                    self.out = Vec::new();
                    let _ = Pin::new(&mut self.opened.stream).poll_flush(cx);
                }
            }
            let mut scratch = Scratch::take();
            let mut buffer = ReadBuf::new(&mut scratch);
            if ready!(Pin::new(&mut self.opened.stream).poll_read(cx, &mut buffer)).is_err() {
                return Poll::Ready(End::Reset);
            }
            let came = buffer.filled_mut();
            if came.is_empty() {
                return Poll::Ready(self.opened.wire.eof());
            }
            if let Err(end) = self.take(came) {
                // Reply to a close frame if that is possible at once; the server need not wait for it.
                let _ = Pin::new(&mut self.opened.stream).poll_write(cx, &self.out);
                return Poll::Ready(end);
            }
        }
    }

    /// Takes bytes, and keeps what is incomplete.
    fn take(&mut self, came: &mut [u8]) -> Result<(), End> {
        let now = monotonic_ns();
        let Self { core, id, opened: Opened { number, wire, kept, .. }, out } = self;
        kept.decode_mut(came, |input| {
            core.tally.borrow_mut().flow.bytes += input.len() as u64;
            let mut receiver = Receiver { core, id: *id, number: *number, now };
            wire.read(input, out, &mut receiver)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Subscriptions by the ten thousand hold one of each.
    #[test]
    fn a_subscription_stays_small() {
        let size = size_of::<Opened>() + size_of::<Subscription<'_>>();
        assert!(size <= 512, "{size} bytes");
    }
}
