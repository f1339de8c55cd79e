//! The request as the gateway sends it: its head, and as much of its body as is buffered.

use std::rc::Rc;

use oroshi_core::SpareBuffer;
use oroshi_http1::{ExpectedResponse, Framing, Headers, Limits, RequestDecoder, RequestEvent, encode};
use oroshi_http2 as codec;
use oroshi_multiplex as multiplex;
use oroshi_server::{Error, Exchange};

use super::Call;
use super::fields::is_websocket;
use super::outcome::{Outcome, RequestId};
use super::request_head::{Peer, Request, is_trusted};
use super::rules::Rules;
use super::trace::TraceParent;
use super::upload::{self, Buffered};
use crate::upstream::{BufferShare, Engine, Pool};

/// The request as the gateway sends it, the same for every attempt at targets of one protocol.
pub(super) struct Message {
    /// The head and the buffered body, which is complete if `whole`. Over HTTP/1 in the form on the wire; over HTTP/2
    /// path, authority, field lines and the bytes of the body, one behind the other.
    pub(super) bytes: SpareBuffer,
    pub(super) head_bytes: usize,
    pub(super) whole: bool,
    pub(super) framing: Framing,
    pub(super) expect: ExpectedResponse,
    /// What only HTTP/2 needs; `None` over HTTP/1.
    http2: Option<Http2Parts>,
    /// The scheme of the request over HTTP/2.
    scheme: &'static str,
    /// The core's account of the buffered body.
    account: Option<BufferShare>,
    /// Whether the method is idempotent (RFC 9110, section 9.2.2).
    idempotent: bool,
    /// Whether client and server may answer each other's messages within the body: gRPC.
    is_dialogue: bool,
}

/// The parts of a request of HTTP/2.
#[derive(Debug, Default)]
struct Http2Parts {
    path_end: usize,
    authority_end: usize,
    /// The lines of the trailers, once the body is complete.
    trailers: Vec<u8>,
}

impl Message {
    /// Writes the head and the body that arrived with it.
    pub(super) fn compose(
        exchange: &mut Exchange<'_>,
        call: &Call<'_>,
        pool: &Pool,
        outcome: &mut Outcome,
    ) -> Result<Message, Error> {
        let head = exchange.head;
        let settings = &call.rules.settings;
        if outcome.request_id.is_none() {
            outcome.request_id = request_id(exchange, call.rules);
        }
        if outcome.traceparent.is_none() {
            outcome.traceparent = traceparent(exchange, call.rules);
        }
        let mut message = Message {
            bytes: SpareBuffer::take(),
            head_bytes: 0,
            whole: true,
            framing: head.framing,
            http2: None,
            scheme: "http",
            account: None,
            expect: match head.method {
                "HEAD" => ExpectedResponse::Head,
                // Any other protocol would bypass the rules, h2c above all.
                _ if settings.upgrade && is_websocket(head.upgrade) => ExpectedResponse::Upgrade,
                _ => ExpectedResponse::Body,
            },
            idempotent: matches!(head.method, "GET" | "HEAD" | "PUT" | "DELETE" | "OPTIONS"),
            is_dialogue: head.framing != Framing::None && is_grpc(head.headers),
        };
        message.write_head(exchange, call, pool, outcome);
        if !matches!(head.framing, Framing::None) {
            if !message.is_buffered(call.rules) {
                exchange.body.leave_continue();
            }
            message.whole = upload::gather(&mut exchange.body, &mut message.buffered(), call.drops())?;
        }
        Ok(message)
    }

    /// Buffers the body, up to the route's limit.
    pub(super) async fn wait_for_body(
        &mut self,
        exchange: &mut Exchange<'_>,
        call: &Call<'_>,
        engine: &Rc<Engine>,
    ) -> Result<(), Error> {
        let mut account = engine.account();
        let most = (self.head_bytes, call.rules.settings.buffer);
        let body = &mut exchange.body;
        self.whole = upload::buffer(body, &mut self.buffered(), most, &mut account, call.drops()).await?;
        self.account = Some(account);
        Ok(())
    }

    fn buffered(&mut self) -> Buffered<'_> {
        Buffered {
            bytes: &mut self.bytes,
            is_chunked: self.http2.is_none() && self.framing == Framing::Chunked,
            trailers: self.http2.as_mut().map(|parts| &mut parts.trailers),
        }
    }

    /// Returns whether the gateway buffers the body before sending.
    pub(super) fn is_buffered(&self, rules: &Rules) -> bool {
        rules.settings.buffer > 0 && self.expect != ExpectedResponse::Upgrade && !self.is_dialogue
    }

    /// Returns whether a retry is safe although a server may have acted on the request.
    pub(super) fn is_repeatable(&self) -> bool {
        self.idempotent && self.whole
    }

    /// Returns whether the form fits the target's protocol.
    pub(super) fn fits(&self, pool: &Pool) -> bool {
        self.http2.is_some() == pool.takes_http2(self.is_tunnel()) && self.scheme == scheme(pool)
    }

    /// Returns whether the message has the form for HTTP/2.
    pub(super) fn is_http2(&self) -> bool {
        self.http2.is_some()
    }

    /// Returns whether the connection may become a tunnel.
    fn is_tunnel(&self) -> bool {
        self.expect == ExpectedResponse::Upgrade
    }

    fn write_head(&mut self, exchange: &Exchange<'_>, call: &Call<'_>, pool: &Pool, outcome: &Outcome) {
        let remote = exchange.remote();
        let request = Request {
            head: &exchange.head,
            target: call.target,
            peer: Peer {
                address: remote.map(|remote| remote.ip()),
                port: exchange.local().map(|local| local.port()),
                is_tls: exchange.is_tls(),
            },
            rules: call.rules,
            edits: call.request,
            authority: pool.authority(),
            upgrade: self.expect == ExpectedResponse::Upgrade,
            expect: !self.is_buffered(call.rules),
            id: outcome.request_id.as_ref().map(RequestId::as_str),
            trace: outcome.traceparent.as_ref(),
            is_http2: pool.takes_http2(self.is_tunnel()),
            client: call.client,
        };
        self.scheme = scheme(pool);
        if request.is_http2 {
            let parts = self.http2.get_or_insert_default();
            (parts.path_end, parts.authority_end) = request.write_http2(&mut self.bytes);
        } else {
            self.http2 = None;
            request.write(&mut self.bytes);
        }
        self.head_bytes = self.bytes.len();
    }

    /// Writes the message again for another target, whose name or protocol is in it.
    pub(super) fn readdress(&mut self, exchange: &Exchange<'_>, call: &Call<'_>, pool: &Pool, outcome: &Outcome) {
        let mut body = self.bytes.split_off(self.head_bytes);
        self.bytes.clear();
        let (before, is_chunked) = (self.http2.take(), self.framing == Framing::Chunked);
        let was_http2 = before.is_some();
        let mut trailers = before.map(|parts| parts.trailers).unwrap_or_default();
        let is_http2 = pool.takes_http2(self.is_tunnel());
        if is_chunked && was_http2 && !is_http2 {
            body = chunked(&body, self.whole, &trailers);
        } else if is_chunked && !was_http2 && is_http2 {
            (body, trailers) = unchunked(&body);
        }
        self.write_head(exchange, call, pool, outcome);
        if let Some(parts) = &mut self.http2 {
            parts.trailers = trailers;
        }
        self.bytes.extend_from_slice(&body);
    }

    /// Begins the request on a stream, with its head alone. Returns whether that is all of it.
    pub(super) fn begin(
        &self,
        method: &str,
        place: multiplex::Place,
    ) -> Result<(multiplex::Stream, bool), multiplex::Error> {
        let Some(parts) = &self.http2 else { return Err(codec::SendError::OutOfOrder.into()) };
        let is_tunnel = self.is_tunnel();
        let request = codec::Request {
            // RFC 8441, section 5.
            method: if is_tunnel { "CONNECT" } else { method },
            scheme: self.scheme,
            authority: text(&self.bytes[parts.path_end..parts.authority_end]),
            path: text(&self.bytes[..parts.path_end]),
            protocol: is_tunnel.then_some("websocket"),
        };
        let lines = Headers::from_checked_lines(&self.bytes[parts.authority_end..self.head_bytes]);
        let is_all = self.framing == Framing::None && !is_tunnel;
        let stream = place.begin(&request, lines.iter().map(|field| (field.name, field.value)), is_all)?;
        Ok((stream, is_all))
    }

    /// Returns the buffered body.
    pub(super) fn body(&self) -> &[u8] {
        &self.bytes[self.head_bytes..]
    }

    /// Returns the trailers of a complete body over HTTP/2.
    pub(super) fn trailers(&self) -> Headers<'_> {
        Headers::from_checked_lines(self.http2.as_ref().map_or(&[][..], |parts| &parts.trailers))
    }
}

/// Returns the request's id, if the route asks for one: a trusted client's, or a new one.
pub(crate) fn request_id(exchange: &Exchange<'_>, rules: &Rules) -> Option<RequestId> {
    let forwarding = &rules.settings.forwarding;
    if !forwarding.request_id {
        return None;
    }
    let address = exchange.remote().map(|remote| remote.ip());
    let given = is_trusted(forwarding, address).then(|| exchange.head.headers.get("x-request-id")).flatten();
    Some(given.and_then(RequestId::given).unwrap_or_else(RequestId::new))
}

/// Returns the request's trace, if the route asks for one: a trusted client's, or a new one.
fn traceparent(exchange: &Exchange<'_>, rules: &Rules) -> Option<TraceParent> {
    let forwarding = &rules.settings.forwarding;
    if !forwarding.traceparent {
        return None;
    }
    let address = exchange.remote().map(|remote| remote.ip());
    let is_trusted = is_trusted(forwarding, address);
    let received = is_trusted.then(|| TraceParent::received(exchange.head.headers)).flatten();
    Some(received.unwrap_or_else(TraceParent::new))
}

/// Returns the scheme of requests to a target.
fn scheme(pool: &Pool) -> &'static str {
    if pool.is_secure() { "https" } else { "http" }
}

/// Returns a part of the head, which was text before.
fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap_or_default()
}

/// Returns whether a request is one of gRPC, by its content type (`application/grpc`, `application/grpc+proto`).
pub(super) fn is_grpc(headers: Headers<'_>) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let kind = headers.get("content-type").unwrap_or_default();
    kind.get(..GRPC.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(GRPC))
}

/// Writes a body as chunks, with its end if it is whole.
fn chunked(body: &[u8], whole: bool, trailers: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 64);
    if !body.is_empty() {
        encode::chunk(&mut out, body);
    }
    let fields = Headers::from_checked_lines(trailers);
    // The lines were read as valid fields, so they can be written.
    if whole && encode::last_chunk(&mut out, fields.iter().map(|field| (field.name, field.value))).is_err() {
        out.extend_from_slice(encode::LAST_CHUNK);
    }
    out
}

/// Takes the chunks of this gateway apart: the body's bytes, and the lines of its trailers.
fn unchunked(chunks: &[u8]) -> (Vec<u8>, Vec<u8>) {
    const HEAD: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let limits = Limits { trailer_bytes: usize::MAX, trailers: usize::MAX, ..Limits::default() };
    let (mut decoder, mut body, mut trailers) =
        (RequestDecoder::default(), Vec::with_capacity(chunks.len()), Vec::new());
    for mut input in [HEAD, chunks] {
        while let Ok(Some(event)) = decoder.decode(&limits, &mut input) {
            match event {
                RequestEvent::Data(piece) => body.extend_from_slice(piece),
                RequestEvent::Trailers(fields) => trailers.extend_from_slice(fields.as_bytes()),
                RequestEvent::Head(_) if input.is_empty() => break,
                RequestEvent::Head(_) => {}
                RequestEvent::End => break,
            }
        }
    }
    (body, trailers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_can_be_taken_apart_and_made_again() {
        for (body, whole, trailers) in [
            (&b""[..], true, &b""[..]),
            (b"", false, b""),
            (b"some bytes\r\n0\r\n\r\n", false, b""),
            (b"some bytes\r\n0\r\n\r\n", true, b""),
            (b"x", true, b"checksum: 7\r\na: b\r\n"),
        ] {
            let chunks = chunked(body, whole, trailers);
            assert_eq!(unchunked(&chunks), (body.to_vec(), trailers.to_vec()), "{}", chunks.escape_ascii());
        }
        assert_eq!(unchunked(b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"), (b"abc".to_vec(), Vec::new()));
    }
}
