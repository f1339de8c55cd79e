//! What must hold for any bytes that a WebSocket peer sends; one function for each fuzz target. The fuzzer calls them
//! with bytes it makes up; a test of the crate websocket calls them with those in `corpus/`.
#![allow(dead_code)] // each target uses one of them

use oroshi_http1::{
    ExpectedResponse, Limits as HttpLimits, RequestDecoder, RequestEvent, ResponseDecoder, ResponseEvent,
};
use oroshi_websocket::deflate::Window;
use oroshi_websocket::handshake::{self, Agreed, UpgradeRequest};
use oroshi_websocket::{CloseCode, Decoder, Event, Kind, Limits, Role, Violation, encode};

/// The largest message: small, so that bytes of the size that fuzzers like pass it.
const LIMITS: Limits = Limits { message_bytes: 300 };
/// The most that a decoder may hold of a compressed message.
const HELD: usize = 300 + 300 / 8 + 64;
/// What a decoder may leave to its caller: a control frame but for its last byte.
const LEFT: usize = 130;

/// Frames. The first byte says whose they are (its lowest bit) and how they are cut (the others).
pub(crate) fn websocket_decode(data: &[u8]) {
    let Some((&how, bytes)) = data.split_first() else { return };
    let role = if how & 1 == 1 { Role::Server } else { Role::Client };
    decode_in_pieces(|| Decoder::new(role), how, bytes);
}

/// Frames between two sides that agreed on permessage-deflate. The first byte is as in [`websocket_decode`].
pub(crate) fn websocket_deflate(data: &[u8]) {
    let Some((&how, bytes)) = data.split_first() else { return };
    let role = if how & 1 == 1 { Role::Server } else { Role::Client };
    decode_in_pieces(|| Decoder::with_deflate(role), how, bytes);
}

fn decode_in_pieces(decoder: impl Fn() -> Decoder, how: u8, bytes: &[u8]) {
    let whole = trace(decoder(), bytes, bytes.len().max(1));
    assert_eq!(trace(decoder(), bytes, usize::from(how >> 1) + 1), whole, "in pieces");
    assert_eq!(trace(decoder(), bytes, 1), whole, "byte by byte");
    // What was understood can be said again, compressed as well.
    for window in [None, Some(Window::Full), Some(Window::Small)] {
        let mut again = Vec::new();
        for event in &whole.0 {
            event.write(&mut again, window);
        }
        let decoder = Decoder::with_deflate(Role::Client);
        let read = trace(decoder, &again, again.len().max(1));
        assert_eq!(read, (whole.0.clone(), None), "written and read again");
    }
}

/// A handshake. The first byte says whose part it is (its lowest bit): a client's request or a server's answer.
pub(crate) fn websocket_handshake(data: &[u8]) {
    let Some((&whose, bytes)) = data.split_first() else { return };
    if whose & 1 == 1 { request(bytes) } else { answer(bytes) }
}

/// A server agrees only to what a client then takes for agreed.
fn request(mut bytes: &[u8]) {
    let Ok(Some(RequestEvent::Head(head))) = RequestDecoder::default().decode(&HttpLimits::default(), &mut bytes)
    else {
        return;
    };
    let opening = match UpgradeRequest::of(&head) {
        Ok(opening) => opening,
        Err(refusal) => return assert!([400, 426].contains(&refusal.status()), "{refusal}"),
    };
    let key = head.headers.get("Sec-WebSocket-Key").and_then(|key| std::str::from_utf8(key).ok());
    let key = key.expect("an opening has a key, of base64");
    let protocols: Vec<&[u8]> = opening.protocols().collect();
    let deflate = match opening.deflate() {
        Ok(deflate) => deflate,
        Err(refusal) => return assert_eq!(refusal.status(), 400, "{refusal}"),
    };
    for chosen in protocols.iter().copied().map(Some).chain([None]) {
        let mut out = Vec::new();
        opening.agree(&mut out, chosen, deflate);
        let mut decoder = ResponseDecoder::default();
        decoder.expect(ExpectedResponse::Upgrade);
        let mut input = &out[..];
        let Ok(Some(ResponseEvent::Head(head))) = decoder.decode(&HttpLimits::default(), &mut input) else {
            panic!("no answer: {}", out.escape_ascii());
        };
        let agreed = Agreed { protocol: chosen, deflate: deflate.is_some() };
        assert_eq!(handshake::check(&head, key, &protocols, true), Ok(agreed), "{}", out.escape_ascii());
        assert!(input.is_empty());
    }
}

/// A client takes nothing for agreed without the accept of its own key.
fn answer(mut bytes: &[u8]) {
    const ACCEPT: &[u8] = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
    let (_, key) = handshake::request_fields(*b"the sample nonce");
    let mut decoder = ResponseDecoder::default();
    decoder.expect(ExpectedResponse::Upgrade);
    while let Ok(Some(event)) = decoder.decode(&HttpLimits::default(), &mut bytes) {
        let ResponseEvent::Head(head) = event else { continue };
        if let Ok(Agreed { protocol, deflate }) = handshake::check(&head, &key, &[b"chat"], false) {
            assert_eq!(head.status, 101);
            assert!(!deflate, "none was offered");
            assert_eq!(head.headers.get("Sec-WebSocket-Accept"), Some(ACCEPT));
            assert!(protocol.is_none_or(|protocol| protocol == b"chat"));
        }
        return;
    }
}

/// What came, without what it borrows.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Came {
    Message(Kind, Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<CloseCode>, String),
}

impl Came {
    fn write(&self, out: &mut Vec<u8>, window: Option<Window>) {
        match self {
            Came::Message(kind, data) if window.is_some() => {
                encode::deflated_message(out, *kind, data, window.unwrap_or(Window::Full));
            }
            Came::Message(kind, data) => encode::message(out, *kind, data),
            Came::Ping(payload) => encode::ping(out, payload, None),
            Came::Pong(payload) => encode::pong(out, payload, None),
            Came::Close(Some(code), reason) => encode::close(out, *code, reason),
            Came::Close(None, _) => out.extend_from_slice(&[0x88, 0]),
        }
    }
}

/// All that comes of bytes in pieces of this size, and the error at their end.
fn trace(mut decoder: Decoder, bytes: &[u8], size: usize) -> (Vec<Came>, Option<Violation>) {
    let (mut all, mut kept) = (Vec::new(), Vec::new());
    for piece in bytes.chunks(size) {
        kept.extend_from_slice(piece);
        let mut input = &mut kept[..];
        loop {
            match decoder.decode(&LIMITS, &mut input) {
                Ok(Some(event)) => all.push(owned(event)),
                Ok(None) => break,
                Err(violation) => {
                    assert!(violation.code().may_be_sent());
                    return (all, Some(violation));
                }
            }
        }
        assert!(input.len() <= LEFT, "{} bytes are left", input.len());
        assert!(decoder.held_bytes() <= HELD, "{} bytes are held", decoder.held_bytes());
        kept = input.to_vec();
    }
    (all, None)
}

fn owned(event: Event<'_>) -> Came {
    match event {
        Event::Message { kind, data } => {
            assert!(data.len() <= LIMITS.message_bytes);
            assert!(kind == Kind::Binary || std::str::from_utf8(&data).is_ok(), "a text that is none");
            Came::Message(kind, data.into_owned())
        }
        Event::Ping(payload) => Came::Ping(payload.to_vec()),
        Event::Pong(payload) => Came::Pong(payload.to_vec()),
        Event::Close { code, reason } => {
            assert!(code.is_none_or(CloseCode::may_be_sent));
            Came::Close(code, reason.to_owned())
        }
    }
}
