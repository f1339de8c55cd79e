//! A request as HTTP/2 has it, made from its bytes in HTTP/1.1: both versions send the same request.

use std::sync::Arc;

use oroshi_http1::encode::EncodeError;
use oroshi_http1::{RequestDecoder, RequestEvent, RequestHead};
use oroshi_http2::{Connection, EncodedRequest, Request, SendError};
use oroshi_net::Scheme;

use crate::batch;
use crate::request::RequestError;

/// A request that is encoded before the run. Clones share the bytes.
#[derive(Clone, Debug)]
pub(crate) struct Http2Request {
    pub(crate) head: Arc<EncodedRequest>,
    pub(crate) body: Arc<[u8]>,
}

impl Http2Request {
    /// Encodes the request in `bytes`. `body`: its body, if that is not in the bytes.
    pub(crate) fn of(bytes: &[u8], body: &Arc<[u8]>, scheme: Scheme) -> Result<Self, RequestError> {
        let line =
            || String::from_utf8_lossy(bytes.split(|&byte| byte == b'\r').next().unwrap_or_default()).into_owned();
        let wrong = |source| RequestError::Encode { what: "request", value: line(), source };
        let mut head = None;
        let mut own = Vec::new();
        read(bytes, &mut own, |parts| {
            head = Some(EncodedRequest::new(&parts.request(scheme)?, parts.fields()));
            Ok(())
        })
        .map_err(wrong)?;
        let head = head.ok_or(EncodeError::Target).and_then(|encoded| encoded).map_err(wrong)?;
        let body = if own.is_empty() { Arc::clone(body) } else { own.into() };
        Ok(Self { head: Arc::new(head), body })
    }

    /// The length of the encoded head and the body, bytes.
    pub(crate) fn size(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

/// Sends the head of the request in `bytes`, which a script made, and puts its body into `body`. Returns the stream.
pub(super) fn send_made(
    codec: &mut Connection,
    out: &mut Vec<u8>,
    bytes: &[u8],
    scheme: Scheme,
    body: &mut Vec<u8>,
    tag: u32,
) -> Result<u32, SendError> {
    let has_body = has_body(bytes);
    let mut stream = Err(SendError::Encode(EncodeError::Target));
    body.clear();
    read(bytes, body, |parts| {
        stream = codec.send_request(out, &parts.request(scheme)?, parts.fields(), !has_body, tag);
        Ok(())
    })?;
    stream
}

/// Whether a request's body has any bytes.
fn has_body(bytes: &[u8]) -> bool {
    let mut decoder = RequestDecoder::default();
    let mut input = bytes;
    loop {
        match decoder.decode(&batch::limits(), &mut input) {
            Ok(Some(RequestEvent::Head(_) | RequestEvent::Trailers(_))) => {}
            Ok(Some(RequestEvent::Data(_))) => return true,
            Ok(Some(RequestEvent::End) | None) | Err(_) => return false,
        }
    }
}

/// The head of a request in HTTP/1.1.
struct Parts<'h>(RequestHead<'h>);

impl<'h> Parts<'h> {
    fn request(&self, scheme: Scheme) -> Result<Request<'h>, EncodeError> {
        let authority = self.0.host.and_then(|host| str::from_utf8(host).ok()).ok_or(EncodeError::Target)?;
        // A target of a proxy (`http://host/path`) names the authority too.
        let path = match self.0.target.split_once("://") {
            Some((_, rest)) if !self.0.target.starts_with('/') => rest.find('/').map_or("/", |at| &rest[at..]),
            _ => self.0.target,
        };
        Ok(Request { method: self.0.method, scheme: scheme.as_str(), authority, path, protocol: None })
    }

    fn fields(&self) -> impl Iterator<Item = (&'h str, &'h [u8])> {
        self.0.headers.iter().map(|field| (field.name, field.value))
    }
}

/// Reads a request: calls `head`, and collects the body.
fn read(
    bytes: &[u8],
    body: &mut Vec<u8>,
    mut head: impl FnMut(&Parts<'_>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let mut decoder = RequestDecoder::default();
    let mut input = bytes;
    loop {
        match decoder.decode(&batch::limits(), &mut input).map_err(|_| EncodeError::Target)? {
            Some(RequestEvent::Head(parts)) => head(&Parts(parts))?,
            Some(RequestEvent::Data(data)) => body.extend_from_slice(data),
            Some(RequestEvent::Trailers(_)) => {}
            Some(RequestEvent::End) | None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use oroshi_http2::{Config, Event, HeadBuffer};

    use super::*;

    /// The request as a server reads it, with its body.
    fn read_back(bytes: &[u8], body: &[u8]) -> (String, Vec<u8>) {
        let request = Http2Request::of(bytes, &body.into(), Scheme::Https).unwrap();
        let (config, mut heads) = (Arc::new(Config::default()), HeadBuffer::default());
        let (mut to_server, mut to_client, mut made, mut made_body) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut client = Connection::client(Arc::clone(&config), &mut to_server);
        let id = client.send_encoded_request(&mut to_server, &request.head, request.body.is_empty(), 0).unwrap();
        let rest = client.send_data(&mut to_server, id, &request.body, true);
        assert_eq!(rest.is_ok(), !request.body.is_empty());
        // A script's request is the same on the wire.
        if body.is_empty() {
            let mut other = Connection::client(Arc::clone(&config), &mut made);
            let id = send_made(&mut other, &mut made, bytes, Scheme::Https, &mut made_body, 0).unwrap();
            let _ = other.send_data(&mut made, id, &made_body, true);
            assert_eq!(made, to_server);
        }
        let mut server = Connection::server(config, &mut to_client);
        let (mut input, mut text, mut body) = (&to_server[..], String::new(), Vec::new());
        while let Some(event) = server.receive(&mut input, &mut heads, &mut to_client).unwrap() {
            match event {
                Event::Request { head, .. } => {
                    let fields = String::from_utf8_lossy(head.headers.as_bytes()).into_owned();
                    text = format!("{} {}://{}{} {fields}", head.method, head.scheme, head.authority, head.target);
                }
                Event::Data { data, .. } => body.extend_from_slice(data),
                _ => {}
            }
        }
        (text, body)
    }

    #[test]
    fn the_request_is_that_of_http1() {
        let get = b"GET /a?b HTTP/1.1\r\nHost: h:8\r\nX-A: 1\r\nConnection: keep-alive\r\n\r\n";
        let (text, body) = read_back(get, b"");
        assert_eq!(text, "GET https://h:8/a?b host: h:8\r\nx-a: 1\r\n");
        assert!(body.is_empty());
        let (text, body) = read_back(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", b"");
        assert!(text.contains("content-length: 3"), "{text}");
        assert_eq!(body, b"abc");
        let chunked =
            b"POST /d HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n2\r\nyz\r\n0\r\n\r\n";
        let (text, body) = read_back(chunked, b"");
        assert!(!text.contains("transfer"), "{text}");
        assert_eq!(body, b"xyz");
    }

    #[test]
    fn a_body_apart_from_the_head_is_sent_as_well() {
        let (text, body) = read_back(b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n", b"hello");
        assert!(text.contains("content-length: 5"), "{text}");
        assert_eq!(body, b"hello");
    }

    #[test]
    fn what_http2_cannot_carry_is_refused() {
        let odd = b"GET / HTTP/1.1\r\nHost: h\r\nContent_Length: 1\r\n\r\n";
        assert!(matches!(Http2Request::of(odd, &Arc::default(), Scheme::Http), Err(RequestError::Encode { .. })));
    }
}
