//! The head of a request in memory of its own, in the form of HTTP/1.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use oroshi_core::spares;
use oroshi_http1::{Framing, Headers, RequestHead, Version};
use oroshi_http2 as codec;

/// The protocol of an extended CONNECT that becomes a request as over HTTP/1.1.
const WEBSOCKET: &str = "websocket";

/// The fields that a request for WebSocket has over HTTP/1.1 alone (RFC 8441 section 5). Nobody checks the key: it
/// proves nothing about a stream that the peer has opened for this protocol.
const WEBSOCKET_FIELDS: &[u8] =
    b"upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";

/// The head of a request. The connection decodes the next head while the handler still reads this one.
#[derive(Debug)]
pub(crate) struct OwnedHead {
    /// Method, target and authority, and then the field lines.
    bytes: Vec<u8>,
    method: Range<usize>,
    target: Range<usize>,
    authority: Range<usize>,
    framing: Framing,
    expect_continue: bool,
    is_websocket: bool,
    /// The bytes of all heads of the connection.
    held: Rc<Cell<usize>>,
}

impl OwnedHead {
    /// Copies a head. `end`: the request has no body. `held`: the bytes of all heads of the connection, to which this
    /// one belongs until it is dropped.
    pub(super) fn new(head: &codec::RequestHead<'_>, end: bool, held: &Rc<Cell<usize>>) -> Self {
        let is_websocket = head.protocol.is_some_and(|protocol| protocol.eq_ignore_ascii_case(WEBSOCKET));
        let mut bytes = spares::take();
        let mut add = |text: &str| {
            bytes.extend_from_slice(text.as_bytes());
            bytes.len() - text.len()..bytes.len()
        };
        // RFC 8441 section 5: the request is a GET over HTTP/1.1.
        let method = add(if is_websocket { "GET" } else { head.method });
        let (target, authority) = (add(head.target), add(head.authority));
        bytes.extend_from_slice(head.headers.as_bytes());
        if is_websocket {
            bytes.extend_from_slice(WEBSOCKET_FIELDS);
        }
        let framing = match head.content_length {
            // The data behind it belongs to the tunnel.
            _ if end || head.method == "CONNECT" => Framing::None,
            Some(length) => Framing::Length(length),
            None => Framing::Chunked,
        };
        held.set(held.get() + bytes.len());
        let (held, expect_continue) = (Rc::clone(held), head.expect_continue);
        OwnedHead { bytes, method, target, authority, framing, expect_continue, is_websocket, held }
    }

    /// Whether the request is an extended CONNECT for WebSocket (RFC 8441).
    pub(super) fn is_websocket(&self) -> bool {
        self.is_websocket
    }

    /// Returns the head as handlers see it.
    pub(super) fn get(&self) -> RequestHead<'_> {
        let text = |range: &Range<usize>| str::from_utf8(&self.bytes[range.clone()]).unwrap_or_default();
        RequestHead {
            method: text(&self.method),
            target: text(&self.target),
            version: Version::Http2,
            headers: Headers::from_checked_lines(&self.bytes[self.authority.end..]),
            framing: self.framing,
            keep_alive: true,
            host: Some(&self.bytes[self.authority.clone()]),
            expect_continue: self.expect_continue,
            upgrade: self.is_websocket.then_some(WEBSOCKET.as_bytes()),
        }
    }
}

impl Drop for OwnedHead {
    fn drop(&mut self) {
        self.held.set(self.held.get() - self.bytes.len());
        spares::give(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head<'h>(method: &'h str, protocol: Option<&'h str>) -> codec::RequestHead<'h> {
        codec::RequestHead {
            method,
            scheme: "http",
            authority: "a.test:1",
            target: "/p?q",
            protocol,
            headers: Headers::from_checked_lines(b"host: a.test:1\r\nx: y\r\n"),
            content_length: None,
            expect_continue: false,
        }
    }

    fn owned(head: &codec::RequestHead<'_>, end: bool) -> OwnedHead {
        OwnedHead::new(head, end, &Rc::default())
    }

    #[test]
    fn heads_are_held_until_they_are_dropped() {
        let held = Rc::default();
        let one = OwnedHead::new(&head("POST", None), false, &held);
        let each = held.get();
        let two = OwnedHead::new(&head("POST", None), false, &held);
        assert!(each > 20 && held.get() == 2 * each);
        drop((one, two));
        assert_eq!(held.get(), 0);
    }

    #[test]
    fn a_head_looks_as_over_http_1() {
        let post = owned(&head("POST", None), false);
        let got = post.get();
        assert_eq!((got.method, got.target, got.host), ("POST", "/p?q", Some(&b"a.test:1"[..])));
        assert_eq!((got.version, got.framing, got.upgrade), (Version::Http2, Framing::Chunked, None));
        assert_eq!(got.headers.as_bytes(), b"host: a.test:1\r\nx: y\r\n");
        assert_eq!(owned(&head("GET", None), true).get().framing, Framing::None);
    }

    #[test]
    fn a_request_for_websocket_is_an_upgrade() {
        let upgrade = owned(&head("CONNECT", Some("websocket")), false);
        let got = upgrade.get();
        assert_eq!((got.method, got.framing, got.upgrade), ("GET", Framing::None, Some(&b"websocket"[..])));
        assert_eq!(got.headers.get("Upgrade"), Some(&b"websocket"[..]));
        let other = owned(&head("CONNECT", Some("connect-udp")), false);
        assert_eq!((other.get().method, other.get().upgrade), ("CONNECT", None));
    }
}
