//! The opening handshake (RFC 6455 section 4): an HTTP/1.1 request for an upgrade, and the response that accepts it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oroshi_http1::{Headers, RequestHead, ResponseHead};
use sha1::{Digest as _, Sha1};
use thiserror::Error;

use crate::deflate::{self, Agreement};

/// The protocol version in Sec-WebSocket-Version.
pub const VERSION: &str = "13";

/// A valid request for WebSocket.
#[derive(Clone, Copy, Debug)]
pub struct UpgradeRequest<'b> {
    key: &'b [u8],
    headers: Headers<'b>,
}

/// The reason why a request does not open a WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum UpgradeRequestError {
    /// It is not an upgrade to WebSocket: answer it like any other request, or with 426.
    #[error("the request has no `Upgrade: websocket` with `Connection: Upgrade`, or is not GET")]
    NotAsked,
    /// Answer with 426 and `Sec-WebSocket-Version: 13`.
    #[error("Sec-WebSocket-Version is not 13")]
    Version,
    /// Answer with 400.
    #[error("Sec-WebSocket-Key is missing, repeated, or no 16 bytes in base64")]
    Key,
    /// Answer with 400.
    #[error("the request has a body")]
    Body,
    /// Answer with 400 (section 9.1).
    #[error("Sec-WebSocket-Extensions is no list of extensions")]
    Extensions,
}

impl UpgradeRequestError {
    /// Returns the status of the response.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            UpgradeRequestError::NotAsked | UpgradeRequestError::Version => 426,
            UpgradeRequestError::Key | UpgradeRequestError::Body | UpgradeRequestError::Extensions => 400,
        }
    }
}

impl<'b> UpgradeRequest<'b> {
    /// Reads a request (section 4.2.1). The caller checks its Origin and its user.
    ///
    /// # Errors
    ///
    /// [`UpgradeRequestError`], with the status of the response.
    pub fn of(head: &RequestHead<'b>) -> Result<Self, UpgradeRequestError> {
        let asked = head.method == "GET" && head.upgrade.is_some_and(|upgrade| lists(upgrade, "websocket"));
        if !asked {
            return Err(UpgradeRequestError::NotAsked);
        }
        if single(head.headers, "Sec-WebSocket-Version") != Some(VERSION.as_bytes()) {
            return Err(UpgradeRequestError::Version);
        }
        let key = single(head.headers, "Sec-WebSocket-Key").ok_or(UpgradeRequestError::Key)?;
        if STANDARD.decode(key).ok().is_none_or(|bytes| bytes.len() != 16) {
            return Err(UpgradeRequestError::Key);
        }
        match head.framing {
            oroshi_http1::Framing::None | oroshi_http1::Framing::Length(0) => {
                Ok(UpgradeRequest { key, headers: head.headers })
            }
            _ => Err(UpgradeRequestError::Body),
        }
    }

    /// The subprotocols that the client offers, in its order of preference.
    pub fn protocols(&self) -> impl Iterator<Item = &'b [u8]> {
        let fields = self.headers.get_all("Sec-WebSocket-Protocol");
        fields
            .flat_map(|names| names.split(|&byte| byte == b','))
            .map(<[u8]>::trim_ascii)
            .filter(|name| !name.is_empty())
    }

    /// Returns the agreement on permessage-deflate, if the client offers it in a form that a server accepts.
    ///
    /// # Errors
    ///
    /// [`UpgradeRequestError::Extensions`]: the field is malformed.
    pub fn deflate(&self) -> Result<Option<Agreement>, UpgradeRequestError> {
        let fields = self.headers.get_all("Sec-WebSocket-Extensions");
        deflate::accept(fields).map_err(|_| UpgradeRequestError::Extensions)
    }

    /// The value of `Sec-WebSocket-Accept` in the response.
    #[must_use]
    pub fn accept(&self) -> String {
        accepted(self.key)
    }

    /// Appends the response that accepts. `protocol`: one of [`protocols`](Self::protocols), or none. A browser that
    /// offered some and gets none closes the connection. `deflate`: the agreement to enter into, or none.
    pub fn agree(&self, out: &mut Vec<u8>, protocol: Option<&[u8]>, deflate: Option<Agreement>) {
        out.extend_from_slice(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ",
        );
        out.extend_from_slice(accepted(self.key).as_bytes());
        if let Some(protocol) = protocol {
            out.extend_from_slice(b"\r\nSec-WebSocket-Protocol: ");
            out.extend_from_slice(protocol);
        }
        if let Some(deflate) = deflate {
            out.extend_from_slice(b"\r\nSec-WebSocket-Extensions: ");
            out.extend_from_slice(deflate.field.as_bytes());
        }
        out.extend_from_slice(b"\r\n\r\n");
    }
}

/// Returns the fields of a client's request beside Host, and their key for [`check`]. `nonce`: 16 random bytes.
#[must_use]
pub fn request_fields(nonce: [u8; 16]) -> ([(&'static str, String); 4], String) {
    let key = STANDARD.encode(nonce);
    let fields = [
        ("Upgrade", "websocket".to_owned()),
        ("Connection", "Upgrade".to_owned()),
        ("Sec-WebSocket-Version", VERSION.to_owned()),
        ("Sec-WebSocket-Key", key.clone()),
    ];
    (fields, key)
}

/// The reason why a server's response does not open a WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum UpgradeResponseError {
    /// Another status: read it as an ordinary response.
    #[error("the server answered {0}; 101 opens a WebSocket")]
    Status(u16),
    /// It upgrades to another protocol.
    #[error("the server's 101 has no `Upgrade: websocket` with `Connection: Upgrade`")]
    Upgrade,
    /// An intermediary answered that did not understand the request.
    #[error("the server's Sec-WebSocket-Accept is not the one of this request")]
    Accept,
    /// The response has an extension that the client did not offer, or with other parameters.
    #[error("the server has chosen an extension or parameters that were not offered")]
    Extension,
    /// The response has a subprotocol that the client did not offer.
    #[error("the server has chosen a subprotocol that was not offered")]
    Protocol,
}

/// What a server agreed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed<'b> {
    /// The subprotocol that it chose.
    pub protocol: Option<&'b [u8]>,
    /// Whether messages may be compressed: read them with [`Decoder::with_deflate`](crate::Decoder::with_deflate).
    pub deflate: bool,
}

/// Reads a server's response to a request with this key and these subprotocols (section 4.1). `deflate`: whether the
/// request had [`deflate::OFFER`] as its only extension; else it had none.
///
/// # Errors
///
/// [`UpgradeResponseError`]: the connection is not a WebSocket; close it.
pub fn check<'b>(
    head: &ResponseHead<'b>,
    key: &str,
    protocols: &[&[u8]],
    deflate: bool,
) -> Result<Agreed<'b>, UpgradeResponseError> {
    if head.status != 101 {
        return Err(UpgradeResponseError::Status(head.status));
    }
    let field = |name| single(head.headers, name);
    let upgrade = field("Upgrade").is_some_and(|upgrade| upgrade.eq_ignore_ascii_case(b"websocket"));
    if !upgrade || !head.headers.get_all("Connection").any(|options| lists(options, "upgrade")) {
        return Err(UpgradeResponseError::Upgrade);
    }
    if field("Sec-WebSocket-Accept") != Some(accepted(key.as_bytes()).as_bytes()) {
        return Err(UpgradeResponseError::Accept);
    }
    let extensions = head.headers.get_all("Sec-WebSocket-Extensions");
    let agrees = deflate::check_answer(extensions).map_err(|_| UpgradeResponseError::Extension)?;
    if agrees && !deflate {
        return Err(UpgradeResponseError::Extension);
    }
    let mut chosen = head.headers.get_all("Sec-WebSocket-Protocol");
    match (chosen.next(), chosen.next()) {
        (None, _) => Ok(Agreed { protocol: None, deflate: agrees }),
        (Some(protocol), None) if protocols.contains(&protocol) => {
            Ok(Agreed { protocol: Some(protocol), deflate: agrees })
        }
        _ => Err(UpgradeResponseError::Protocol),
    }
}

/// Returns Sec-WebSocket-Accept for a key (section 4.2.2, 5.4).
fn accepted(key: &[u8]) -> String {
    const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    STANDARD.encode(Sha1::new().chain_update(key).chain_update(GUID).finalize())
}

/// Returns the value of a field that occurs once; `None` if it is missing or repeated.
fn single<'b>(headers: Headers<'b>, name: &str) -> Option<&'b [u8]> {
    let mut values = headers.get_all(name);
    let first = values.next()?;
    values.next().is_none().then_some(first)
}

/// Whether a list contains `name`.
fn lists(list: &[u8], name: &str) -> bool {
    list.split(|&byte| byte == b',').any(|item| item.trim_ascii().eq_ignore_ascii_case(name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use oroshi_http1::{ExpectedResponse, Limits, RequestDecoder, RequestEvent, ResponseDecoder, ResponseEvent};

    use super::*;

    const FIELDS: &str = "Host: a\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\
                          Sec-WebSocket-Version: 13\r\n\
                          Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

    fn opened(text: &str) -> Result<(Vec<String>, String), UpgradeRequestError> {
        let mut input = text.as_bytes();
        let Ok(Some(RequestEvent::Head(head))) = RequestDecoder::default().decode(&Limits::default(), &mut input)
        else {
            panic!("no head: {text}")
        };
        UpgradeRequest::of(&head).map(|opening| {
            let mut out = Vec::new();
            let protocols: Vec<_> = opening.protocols().collect();
            opening.agree(&mut out, protocols.first().copied(), opening.deflate().unwrap());
            let names = protocols.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
            (names, String::from_utf8(out).unwrap())
        })
    }

    #[test]
    fn the_example_of_the_standard_is_agreed_to() {
        let request = format!("GET /chat HTTP/1.1\r\n{FIELDS}Sec-WebSocket-Protocol: chat, superchat\r\n\r\n");
        let (protocols, answer) = opened(&request).unwrap();
        assert_eq!(protocols, ["chat", "superchat"]);
        assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
        assert!(answer.contains("\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"), "{answer}");
        assert!(answer.ends_with("\r\nSec-WebSocket-Protocol: chat\r\n\r\n"), "{answer}");
        let offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits";
        let (_, answer) = opened(&format!("GET /chat HTTP/1.1\r\n{FIELDS}{offer}\r\n\r\n")).unwrap();
        assert!(answer.ends_with(&format!("\r\nSec-WebSocket-Extensions: {}\r\n\r\n", deflate::OFFER)), "{answer}");
    }

    #[test]
    fn what_opens_nothing_is_refused_with_a_status() {
        let refused = |request: &str| opened(request).unwrap_err();
        assert_eq!(refused("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), UpgradeRequestError::NotAsked);
        assert_eq!(refused(&format!("POST / HTTP/1.1\r\n{FIELDS}\r\n")), UpgradeRequestError::NotAsked);
        assert_eq!(
            refused(&format!("GET / HTTP/1.1\r\n{}\r\n", FIELDS.replace("13", "8"))),
            UpgradeRequestError::Version
        );
        assert_eq!(refused(&format!("GET / HTTP/1.1\r\n{}\r\n", FIELDS.replace("dGhl", ""))), UpgradeRequestError::Key);
        assert_eq!(refused(&format!("GET / HTTP/1.1\r\n{FIELDS}Content-Length: 1\r\n\r\n")), UpgradeRequestError::Body);
        assert_eq!(
            [UpgradeRequestError::NotAsked, UpgradeRequestError::Version, UpgradeRequestError::Key]
                .map(UpgradeRequestError::status),
            [426, 426, 400]
        );
    }

    #[test]
    fn an_answer_must_fit_its_request() {
        let (fields, key) = request_fields(*b"the sample nonce");
        assert_eq!((fields[3].1.as_str(), key.as_str()), ("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25jZQ=="));
        let checked_with = |deflate: bool, answer: &str| {
            let mut decoder = ResponseDecoder::default();
            decoder.expect(ExpectedResponse::Upgrade);
            let mut input = answer.as_bytes();
            let Ok(Some(ResponseEvent::Head(head))) = decoder.decode(&Limits::default(), &mut input) else {
                panic!("no head: {answer}")
            };
            let agreed = check(&head, &key, &[b"chat"], deflate)?;
            assert_eq!(agreed.deflate, answer.contains("permessage-deflate"));
            Ok(agreed.protocol.map(|name| String::from_utf8_lossy(name).into_owned()))
        };
        let checked = |answer: &str| checked_with(false, answer);
        let good = "HTTP/1.1 101 x\r\nUpgrade: WebSocket\r\nConnection: upgrade\r\n\
                    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
        let with = |field: &str| good.replace("Sec-WebSocket-A", &format!("{field}\r\nSec-WebSocket-A"));
        assert_eq!(checked(good), Ok(None));
        assert_eq!(checked(&with("Sec-WebSocket-Protocol: chat")), Ok(Some("chat".to_owned())));
        assert_eq!(checked(&with("Sec-WebSocket-Protocol: other")), Err(UpgradeResponseError::Protocol));
        assert_eq!(
            checked(&with("Sec-WebSocket-Protocol: chat\r\nSec-WebSocket-Protocol: chat")),
            Err(UpgradeResponseError::Protocol)
        );
        assert_eq!(checked(&good.replace("s3p", "t3p")), Err(UpgradeResponseError::Accept));
        assert_eq!(checked(&good.replace("WebSocket\r", "h2c\r")), Err(UpgradeResponseError::Upgrade));
        assert_eq!(checked(&good.replace(": upgrade", ": close")), Err(UpgradeResponseError::Upgrade));
        for answer in ["permessage-deflate", deflate::OFFER] {
            let answer = with(&format!("Sec-WebSocket-Extensions: {answer}"));
            assert_eq!(checked(&answer), Err(UpgradeResponseError::Extension), "none was offered");
        }
        let agreed = with(&format!("Sec-WebSocket-Extensions: {}", deflate::OFFER));
        assert_eq!(checked_with(true, &agreed), Ok(None));
        assert_eq!(checked_with(true, good), Ok(None));
        let keeps = with("Sec-WebSocket-Extensions: permessage-deflate");
        assert_eq!(checked_with(true, &keeps), Err(UpgradeResponseError::Extension), "it would keep its window");
        assert_eq!(
            checked(&with("Sec-WebSocket-Extensions: permessage-deflate\r\nSec-WebSocket-Extensions: x")),
            Err(UpgradeResponseError::Extension),
            "told twice it is told as well"
        );
        assert_eq!(checked("HTTP/1.1 403 x\r\nContent-Length: 0\r\n\r\n"), Err(UpgradeResponseError::Status(403)));
    }
}
