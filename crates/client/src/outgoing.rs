//! The unsent part of an attempt: bytes, and a body behind them.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use oroshi_http1::encode;
use oroshi_net::Stream;
use oroshi_net::stream::nonzero_write;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::body::{Body, Reader};

/// The size up to which a body is copied behind the head, so that both leave in one write; larger bodies are written in
/// place.
const COPIED_BYTES: usize = 16 * 1024;

/// The unsent part of an attempt.
pub(crate) struct Outgoing {
    /// The head, and encoded parts of the body.
    pub(crate) bytes: Vec<u8>,
    pub(crate) sent: usize,
    pub(crate) body: Body<dyn AsyncRead>,
    /// Sent bytes of a body that consists of bytes.
    pub(crate) body_sent: usize,
    /// Whether TLS holds unsent records.
    pub(crate) unflushed: bool,
    pub(crate) done: bool,
    /// The error that stopped sending; the server's earlier response is still read.
    pub(crate) broken: Option<io::Error>,
}

impl Outgoing {
    /// Returns an empty value.
    pub(crate) const fn nothing() -> Self {
        Outgoing {
            bytes: Vec::new(),
            sent: 0,
            body: Body::Empty,
            body_sent: 0,
            unflushed: false,
            done: false,
            broken: None,
        }
    }

    /// Returns a request's head and body.
    pub(crate) fn new(head: Vec<u8>, body: Body<dyn AsyncRead>) -> Self {
        let mut outgoing = Outgoing { bytes: head, body, ..Outgoing::nothing() };
        if let Body::Bytes(bytes) = &outgoing.body
            && bytes.len() <= COPIED_BYTES
        {
            outgoing.bytes.extend_from_slice(bytes);
            outgoing.body = Body::Empty;
        }
        outgoing
    }

    /// Writes what it can: returns bytes written, 0 if nothing is left.
    pub(crate) fn poll_write(&mut self, context: &mut Context<'_>, stream: &mut Stream) -> Poll<io::Result<usize>> {
        let body = match &self.body {
            Body::Bytes(bytes) => &bytes[self.body_sent..],
            _ => &[],
        };
        let bytes = &self.bytes[self.sent..];
        let is_tls = stream.is_tls();
        let pinned = Pin::new(stream);
        let written = match (bytes, body) {
            ([], []) => {
                if self.unflushed {
                    ready!(pinned.poll_flush(context))?;
                    self.unflushed = false;
                }
                return Poll::Ready(Ok(0));
            }
            (bytes, []) => pinned.poll_write(context, bytes),
            ([], body) => pinned.poll_write(context, body),
            (bytes, body) => pinned.poll_write_vectored(context, &[IoSlice::new(bytes), IoSlice::new(body)]),
        };
        let count = ready!(nonzero_write(written))?;
        self.unflushed = is_tls;
        let of_bytes = count.min(bytes.len());
        self.sent += of_bytes;
        self.body_sent += count - of_bytes;
        Poll::Ready(Ok(count))
    }

    /// As [`append`](Self::append), without chunks: HTTP/2 frames the body by itself.
    pub(crate) fn append_plain(&mut self, piece: &[u8]) {
        self.bytes.clear();
        self.sent = 0;
        self.bytes.extend_from_slice(piece);
        if piece.is_empty() {
            self.body = Body::Empty;
        }
    }

    /// Appends a piece from the reader; an empty one is its end.
    pub(crate) fn append(&mut self, piece: &[u8]) {
        self.bytes.clear();
        self.sent = 0;
        match &self.body {
            Body::Reader(Reader { length: None, .. }) if piece.is_empty() => {
                self.bytes.extend_from_slice(encode::LAST_CHUNK);
            }
            Body::Reader(Reader { length: None, .. }) => encode::chunk(&mut self.bytes, piece),
            _ => self.bytes.extend_from_slice(piece),
        }
        if piece.is_empty() {
            self.body = Body::Empty;
        }
    }
}
