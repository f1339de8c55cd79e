//! The tokens of clients that connect: in a field, in a subprotocol, or in the first frame of a WebSocket.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use oroshi_core::Scratch;
use oroshi_http1::RequestHead;
use oroshi_net::Stream;
use oroshi_websocket::handshake::UpgradeRequest;
use oroshi_websocket::{CloseCode, Decoder, Event, Kind, Limits, Role, encode};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::time::timeout;

use crate::http::answer::Problem;
use crate::hub::{Hub, TOKEN};
use crate::identity::{NO_KEYS, Refused, Verifier};
use crate::jwt::{Identity, MOST_BYTES};

/// The beginning of a subprotocol that holds a token.
const PROTOCOL: &[u8] = b"oroshi.token.";

/// How long a client may take to read the frame that refuses it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Identifies the client of a request. `None`: it has no token.
///
/// # Errors
/// The answer to a client whose token is refused.
pub(crate) async fn of_request(
    verifier: &Verifier,
    head: &RequestHead<'_>,
    opening: Option<&UpgradeRequest<'_>>,
) -> Result<Option<Identity>, Problem> {
    let mut tokens = head.headers.get_all("Authorization").filter_map(bearer);
    let in_field = tokens.next();
    let mut offered = opening.into_iter().flat_map(UpgradeRequest::protocols);
    let in_protocol = offered.by_ref().find_map(|name| name.strip_prefix(PROTOCOL));
    let is_repeated = tokens.next().is_some() || offered.any(|name| name.starts_with(PROTOCOL));
    let token = match (in_field, in_protocol) {
        (Some(_), Some(_)) => return Err(Problem::bad("there are two tokens: expected one")),
        _ if is_repeated => return Err(Problem::bad("there are two tokens: expected one")),
        (None, None) => return Ok(None),
        (Some(token), None) | (None, Some(token)) => token,
    };
    match verifier.verify(token).await {
        Ok(identity) => Ok(Some(identity)),
        Err(Refused::Token(error)) => Err(unauthorized(error.name(), &error.to_string())),
        Err(Refused::NoKeys) => Err(Problem::busy(NO_KEYS)),
    }
}

/// 401: the client has no token.
pub(crate) fn missing() -> Problem {
    let message = "clients need a token here: expected Authorization: Bearer TOKEN, the subprotocol \
                   oroshi.token.TOKEN, or a WebSocket with oroshi.v1 whose first frame is {\"token\": TOKEN}";
    unauthorized("missing-token", message)
}

fn unauthorized(name: &'static str, message: &str) -> Problem {
    // RFC 6750, section 3.
    let challenge = match name {
        "missing-token" => "Bearer realm=\"oroshi push\"",
        _ => "Bearer realm=\"oroshi push\", error=\"invalid_token\"",
    };
    Problem::new(401, name, message).field("WWW-Authenticate", challenge)
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// A client that has sent its token as its first frame.
pub(crate) struct Identified {
    pub(crate) identity: Identity,
    /// The `id` of its command, if it wants an answer.
    pub(crate) id: Option<u64>,
    /// The bytes behind the first frame.
    pub(crate) ahead: Vec<u8>,
}

/// Reads the first frame of a WebSocket, and identifies its client. `None`: the connection is over.
///
/// `deflate`: the frame may be compressed.
pub(crate) async fn first_frame(
    hub: &Hub,
    verifier: &Verifier,
    deflate: bool,
    stream: &mut Stream,
    ahead: Vec<u8>,
) -> Option<Identified> {
    let wait = hub.plan().jwt.as_ref().map_or(Duration::ZERO, |jwt| jwt.wait);
    let (text, ahead) = match timeout(wait, read_first(hub, deflate, stream, ahead)).await {
        Ok(Ok(first)) => first,
        Ok(Err(Some((code, why)))) => return refuse(stream, code, &why).await,
        Ok(Err(None)) => return None,
        Err(_) => return refuse(stream, TOKEN, "there was no token in time").await,
    };
    let Ok(FirstFrame { id, token }) = serde_json::from_slice(&text) else {
        return refuse(stream, TOKEN, "expected {\"token\": TOKEN} as the first frame").await;
    };
    match verifier.verify(token.as_bytes()).await {
        Ok(identity) => Some(Identified { identity, id, ahead }),
        Err(Refused::Token(error)) => refuse(stream, TOKEN, &error.to_string()).await,
        Err(Refused::NoKeys) => refuse(stream, CloseCode(1013), NO_KEYS).await,
    }
}

/// Ends a WebSocket that is no session yet, and returns `None`.
pub(crate) async fn refuse<T>(stream: &mut Stream, code: CloseCode, why: &str) -> Option<T> {
    let mut frame = Vec::new();
    encode::close(&mut frame, code, why);
    let close = async {
        stream.write_all(&frame).await?;
        stream.shutdown().await?;
        // A connection that is closed with unread bytes is reset, and its client may never see the frame.
        let mut scratch = [0; 1024];
        while stream.read(&mut scratch).await? > 0 {}
        Ok::<(), std::io::Error>(())
    };
    let _ = timeout(CLOSE_TIMEOUT, close).await;
    None
}

/// The command that must come first.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FirstFrame {
    id: Option<u64>,
    token: String,
}

/// Reads the first text, with the bytes behind it. An error has the code and reason to close with, if any.
async fn read_first(
    hub: &Hub,
    deflate: bool,
    stream: &mut Stream,
    mut bytes: Vec<u8>,
) -> Result<(Vec<u8>, Vec<u8>), Option<(CloseCode, String)>> {
    // A stranger gets no more room than a token needs.
    let limits = Limits { message_bytes: hub.plan().limits.message_bytes.min(MOST_BYTES + 256) };
    let mut decoder = if deflate { Decoder::with_deflate(Role::Server) } else { Decoder::new(Role::Server) };
    loop {
        let mut input = &mut bytes[..];
        let decoded = loop {
            match decoder.decode(&limits, &mut input) {
                Ok(None) => break None,
                Ok(Some(Event::Ping(_) | Event::Pong(_))) => {}
                Ok(Some(Event::Message { kind: Kind::Text, data })) => break Some(data.to_vec()),
                Ok(Some(Event::Message { kind: Kind::Binary, .. })) => {
                    return Err(Some((CloseCode(1003), "commands are text".to_owned())));
                }
                Ok(Some(Event::Close { .. })) => return Err(Some((CloseCode::NORMAL, String::new()))),
                Err(violation) => return Err(Some((violation.code(), violation.to_string()))),
            }
        };
        let left = input.to_vec();
        if let Some(text) = decoded {
            return Ok((text, left));
        }
        bytes = left;
        // The thread's buffer is taken for one poll only.
        let read = poll_fn(|context| {
            let mut scratch = Scratch::take();
            let mut into = ReadBuf::new(&mut scratch);
            Pin::new(&mut *stream).poll_read(context, &mut into).map_ok(|()| {
                bytes.extend_from_slice(into.filled());
                into.filled().len()
            })
        });
        if !read.await.is_ok_and(|count| count > 0) {
            return Err(None);
        }
    }
}
