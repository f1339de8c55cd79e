//! The bytes of a request, made once before the run.

use std::sync::Arc;

use oroshi_http1::encode::{self, EncodeError};
use oroshi_http1::{ExpectedResponse, Version};
use oroshi_net::{Endpoint, Scheme};
use oroshi_words::{Naming, with_causes};

use crate::batch::{Batch, BatchError};
use crate::http2::Http2Request;

/// A body up to this length is in one piece with its head; all requests and threads share one copy of a longer one.
const JOINED: usize = 4096;

/// One request, ready to be written: its head with a short body, or head and body apart. Clones share the bytes.
#[derive(Clone, Debug)]
pub struct Request {
    /// The head, on a connection that stays open.
    pub keep: Arc<[u8]>,
    /// The head of a connection's last request: with `Connection: close`.
    pub last: Arc<[u8]>,
    /// The body, if it is apart from the head.
    pub body: Arc<[u8]>,
    /// The kind of response that it gets.
    pub expect: ExpectedResponse,
    /// Whether the user's own headers already ask the server to close.
    pub closes: bool,
    /// The request as HTTP/2 has it, where the load speaks that.
    pub(crate) http2: Option<Http2Request>,
    /// The number of its URL, if requests are counted by URL.
    pub(crate) url: Option<u16>,
}

/// Why a request cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// A header's name or value, the method or the path holds something that must not be on the wire: correct it.
    #[error("{what} `{value}` cannot be sent: {source}")]
    Encode {
        /// Which part.
        what: &'static str,
        /// The value.
        value: String,
        /// The broken rule.
        source: EncodeError,
    },
    /// CONNECT makes a tunnel, and a tunnel answers no further request: use another method.
    #[error("method CONNECT makes a tunnel, which a load of requests cannot use: use another method")]
    Connect,
    /// oroshi writes the body's length itself: leave out Transfer-Encoding.
    #[error("{}", self.told(Naming::Flags))]
    TransferEncoding,
    /// The server would wait for a body that does not come, or take a part of it for the next request.
    #[error("{}", self.told(Naming::Flags))]
    ContentLength {
        /// The header's value.
        value: String,
        /// The body's length, bytes.
        body: usize,
    },
}

impl RequestError {
    /// Describes the mistake and its causes; `naming` writes the names of fields.
    pub(crate) fn told(&self, naming: Naming) -> String {
        let [in_body, in_file] = ["body", "body-file"].map(|field| naming.of(field));
        match self {
            RequestError::TransferEncoding => format!(
                "header `Transfer-Encoding` is not for bodies given by {in_body} or {in_file}, whose length is known: \
                 leave it out"
            ),
            RequestError::ContentLength { value, body } => format!(
                "header `Content-Length: {value}` does not fit the body, which has {body} bytes: leave the header out, \
                 as it is added, or give that body ({in_body}, {in_file})"
            ),
            RequestError::Encode { .. } | RequestError::Connect => with_causes(self),
        }
    }
}

/// Methods whose requests usually have a body: they have a Content-Length without one too (RFC 9110, section 8.6).
const WITH_BODY: [&str; 3] = ["POST", "PUT", "PATCH"];

impl Request {
    /// Writes the request for `url`; a connection takes `per_connection` of them (`None`: any number).
    pub(crate) fn new(
        method: &str,
        url: &Endpoint,
        headers: &[(String, String)],
        body: &Arc<[u8]>,
        per_connection: Option<u64>,
    ) -> Result<Self, RequestError> {
        if method == "CONNECT" {
            return Err(RequestError::Connect);
        }
        if is_given(headers, "Transfer-Encoding") {
            return Err(RequestError::TransferEncoding);
        }
        let length = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("Content-Length"));
        if let Some((_, value)) = length.filter(|(_, value)| !says(value, body.len())) {
            return Err(RequestError::ContentLength { value: value.clone(), body: body.len() });
        }
        let mut head = HeadWriter::new(method, &url.target, headers)?;
        head.host(&url.authority)?;
        for (name, value) in headers {
            head.header(name, value)?;
        }
        if length.is_none() && (!body.is_empty() || WITH_BODY.contains(&method)) {
            let length = body.len().to_string();
            head.field("body", "Content-Length", &length, &length)?;
        }
        let joined = body.len() <= JOINED;
        let finish = |mut bytes: Vec<u8>| -> Arc<[u8]> {
            bytes.extend_from_slice(b"\r\n");
            if joined {
                bytes.extend_from_slice(body);
            }
            bytes.into()
        };
        let keep = finish(head.bytes.clone());
        let last = if head.is_given("Connection") || per_connection.is_none() {
            Arc::clone(&keep)
        } else {
            head.field("header", "Connection", "close", "Connection: close")?;
            finish(head.bytes.clone())
        };
        let closes = headers
            .iter()
            .any(|(n, v)| n.eq_ignore_ascii_case("Connection") && v.to_ascii_lowercase().contains("close"));
        let expect = if method == "HEAD" {
            ExpectedResponse::Head
        } else if head.is_given("Upgrade") {
            ExpectedResponse::Upgrade
        } else {
            ExpectedResponse::Body
        };
        let body = if joined { Arc::default() } else { Arc::clone(body) };
        Ok(Self { keep, last, body, expect, closes, http2: None, url: None })
    }

    /// Takes the only request in `bytes`, as a script made it.
    pub(crate) fn made(bytes: Vec<u8>, per_connection: Option<u64>) -> Result<Self, BatchError> {
        let mut batch = Batch { bytes, requests: Vec::new() };
        batch.divide()?;
        let [made] = batch.requests[..] else { return Err(BatchError::Several) };
        let keep = batch.bytes_of(&made).into();
        let last = if per_connection.is_some() {
            batch.close_after_the_only();
            batch.bytes_of(&batch.requests[0]).into()
        } else {
            Arc::clone(&keep)
        };
        Ok(Self { keep, last, body: Arc::default(), expect: made.expect, closes: made.closes, http2: None, url: None })
    }

    /// Encodes it for HTTP/2 as well. `body`: its body, where that is apart from the head.
    pub(crate) fn encode_http2(&mut self, scheme: Scheme, body: &Arc<[u8]>) -> Result<(), RequestError> {
        self.http2 = Some(Http2Request::of(&self.keep, body, scheme)?);
        Ok(())
    }

    /// Returns the length of the longer form, body included, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        if let Some(request) = &self.http2 {
            return request.size();
        }
        self.keep.len().max(self.last.len()) + self.body.len()
    }
}

/// Writes the head of a request with the user's headers; an error names the part that cannot be sent.
pub(crate) struct HeadWriter<'h> {
    pub(crate) bytes: Vec<u8>,
    given: &'h [(String, String)],
}

impl<'h> HeadWriter<'h> {
    /// Begins with the request line. `given`: the user's headers, which take the place of ours.
    pub(crate) fn new(method: &str, target: &str, given: &'h [(String, String)]) -> Result<Self, RequestError> {
        let mut bytes = Vec::with_capacity(256);
        let line = encode::request_line(&mut bytes, method, target, Version::Http11);
        let value = || format!("{method} {target}");
        line.map_err(|source| RequestError::Encode { what: "request line", value: value(), source })?;
        Ok(Self { bytes, given })
    }

    /// Whether the user gives this header.
    pub(crate) fn is_given(&self, name: &str) -> bool {
        is_given(self.given, name)
    }

    /// Writes `Host`, unless the user gives it.
    pub(crate) fn host(&mut self, authority: &str) -> Result<(), RequestError> {
        if self.is_given("Host") { Ok(()) } else { self.field("host", "Host", authority, authority) }
    }

    /// Writes a header of the user's. Its value may be a secret: the error shows the name alone.
    pub(crate) fn header(&mut self, name: &str, value: &str) -> Result<(), RequestError> {
        self.field("header", name, value, name)
    }

    /// Writes a field; an error calls it `what`, and shows `shown`.
    pub(crate) fn field(
        &mut self,
        what: &'static str,
        name: &str,
        value: &str,
        shown: &str,
    ) -> Result<(), RequestError> {
        let written = encode::header(&mut self.bytes, name, value.as_bytes());
        written.map_err(|source| RequestError::Encode { what, value: shown.to_owned(), source })
    }
}

/// Whether a header is among those that the user gives.
pub(crate) fn is_given(headers: &[(String, String)], name: &str) -> bool {
    headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name))
}

/// Whether a Content-Length is this number, in digits alone.
fn says(value: &str, length: usize) -> bool {
    value.bytes().all(|byte| byte.is_ascii_digit()) && value.parse() == Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, headers: &[(&str, &str)], body: &[u8], per_connection: Option<u64>) -> Request {
        let url: Endpoint = "http://example.com:81/a?b".parse().unwrap();
        let headers: Vec<_> = headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        Request::new(method, &url, &headers, &body.into(), per_connection).unwrap()
    }

    fn text(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    #[test]
    fn plain() {
        let r = request("GET", &[("X-A", "1")], b"", None);
        assert_eq!(text(&r.keep), "GET /a?b HTTP/1.1\r\nHost: example.com:81\r\nX-A: 1\r\n\r\n");
        assert_eq!(r.last, r.keep);
    }

    #[test]
    fn a_body_has_its_length_and_the_last_request_says_close() {
        let r = request("POST", &[], b"hello", Some(3));
        assert_eq!(text(&r.keep), "POST /a?b HTTP/1.1\r\nHost: example.com:81\r\nContent-Length: 5\r\n\r\nhello");
        assert_eq!(
            text(&r.last),
            "POST /a?b HTTP/1.1\r\nHost: example.com:81\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
        );
    }

    /// Without a length, servers may wait for a body, or respond with 411.
    #[test]
    fn an_empty_body_has_its_length_where_one_is_expected() {
        let head = |method| String::from_utf8(request(method, &[], b"", None).keep.to_vec()).unwrap();
        for (method, said) in [("POST", true), ("PUT", true), ("PATCH", true), ("GET", false), ("DELETE", false)] {
            assert_eq!(head(method).contains("Content-Length: 0\r\n"), said, "{method}");
        }
    }

    #[test]
    fn a_length_that_is_not_the_body_s_is_refused() {
        let url: Endpoint = "http://h/".parse().unwrap();
        let with = |length: &str, body: &[u8]| {
            let headers = vec![("content-length".to_owned(), length.to_owned())];
            Request::new("POST", &url, &headers, &body.into(), None)
        };
        assert_eq!(text(&with("5", b"hello").unwrap().keep).matches("ontent-").count(), 1);
        for (length, body) in [("5", &b""[..]), ("4", b"hello"), ("", b""), ("5, 5", b"hello"), ("+5", b"hello")] {
            let error = with(length, body).unwrap_err();
            assert!(matches!(error, RequestError::ContentLength { .. }), "{length}: {error}");
        }
    }

    #[test]
    fn the_users_own_headers_take_precedence() {
        let r = request("GET", &[("host", "other"), ("connection", "Close")], b"", Some(1));
        assert_eq!(text(&r.last), "GET /a?b HTTP/1.1\r\nhost: other\r\nconnection: Close\r\n\r\n");
        assert!(r.closes);
    }

    #[test]
    fn what_would_split_the_head_is_refused() {
        let url: Endpoint = "http://h/".parse().unwrap();
        for (name, value) in [("A", "b\r\nC: d"), ("A b", "c"), ("", "x")] {
            let headers = vec![(name.to_owned(), value.to_owned())];
            let error = Request::new("GET", &url, &headers, &Arc::default(), None).unwrap_err();
            assert!(matches!(error, RequestError::Encode { what: "header", .. }), "{error}");
        }
        assert!(Request::new("GE T", &url, &[], &Arc::default(), None).is_err());
        assert!(matches!(Request::new("CONNECT", &url, &[], &Arc::default(), None), Err(RequestError::Connect)));
    }
}
