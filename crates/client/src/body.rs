//! A request's body: bytes, or a reader that is read while the body is sent.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};

/// A body; `R` is the type of the reader: [`AsyncRead`], with or without `Send`.
pub(crate) enum Body<R: ?Sized> {
    Empty,
    Bytes(Bytes),
    Reader(Reader<R>),
    /// The body was a reader, which an attempt has taken.
    Used,
}

/// A body that a reader provides.
pub(crate) struct Reader<R: ?Sized> {
    pub(crate) reader: Pin<Box<R>>,
    /// The length, if known in advance; otherwise the body is sent in chunks.
    pub(crate) length: Option<u64>,
    /// Bytes read so far.
    pub(crate) read: u64,
    /// Whether the reader was polled, so that it cannot start again.
    pub(crate) touched: bool,
}

impl<R: ?Sized> Body<R> {
    /// Returns the length for the request's framing; `None` for chunks.
    pub(crate) fn length(&self) -> Option<u64> {
        match self {
            Body::Empty | Body::Used => Some(0),
            Body::Bytes(bytes) => Some(bytes.len() as u64),
            Body::Reader(reader) => reader.length,
        }
    }

    /// Returns the body for one attempt. Bytes remain for the next attempt; a reader does not.
    pub(crate) fn hand_out(&mut self) -> Body<R> {
        match self {
            Body::Bytes(bytes) => Body::Bytes(bytes.clone()),
            Body::Empty => Body::Empty,
            reader => std::mem::replace(reader, Body::Used),
        }
    }

    /// Whether there is nothing to send.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Body::Empty | Body::Used)
    }

    pub(crate) fn is_used(&self) -> bool {
        matches!(self, Body::Used)
    }
}

impl Body<dyn AsyncRead + Send> {
    /// Drops the requirement that the reader is `Send`.
    pub(crate) fn into_local(self) -> Body<dyn AsyncRead> {
        match self {
            Body::Empty => Body::Empty,
            Body::Used => Body::Used,
            Body::Bytes(bytes) => Body::Bytes(bytes),
            Body::Reader(Reader { reader, length, read, touched }) => {
                Body::Reader(Reader { reader, length, read, touched })
            }
        }
    }
}

impl Reader<dyn AsyncRead> {
    /// Reads the next bytes, and returns how many; none at the end. A reader that breaks its announced length is an
    /// error.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>, scratch: &mut [u8]) -> Poll<io::Result<usize>> {
        self.touched = true;
        let left = self.length.map_or(u64::MAX, |length| length - self.read);
        // One byte more than is left, to detect a reader that is too long.
        let most = usize::try_from(left.saturating_add(1)).unwrap_or(usize::MAX).min(scratch.len());
        let mut buffer = ReadBuf::new(&mut scratch[..most]);
        match self.reader.as_mut().poll_read(context, &mut buffer) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => {}
        }
        let count = buffer.filled().len();
        self.read += count as u64;
        let wrong = |how| Err(io::Error::new(io::ErrorKind::InvalidData, how));
        Poll::Ready(match self.length {
            Some(length) if self.read > length => {
                wrong(format!("the reader has more than the {length} bytes announced"))
            }
            Some(length) if count == 0 && self.read < length => {
                wrong(format!("the reader ended after {} of the {length} bytes announced", self.read))
            }
            _ => Ok(count),
        })
    }
}

impl<R: ?Sized> fmt::Debug for Body<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Body::Empty => f.write_str("Empty"),
            Body::Used => f.write_str("Used"),
            Body::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
            Body::Reader(reader) => write!(f, "Reader({:?})", reader.length),
        }
    }
}
