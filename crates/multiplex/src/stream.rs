//! One request and its response.

use std::task::{Context, Poll};

use oroshi_http1::Headers;
use oroshi_http2::{ErrorCode, ResponseHead};

use crate::connection::Connection;
use crate::error::Error;

/// One request and its response. One task polls it, in both directions; the last poll's waker is woken.
///
/// Dropping it before both messages have ended resets the stream (CANCEL). The connection goes on.
pub struct Stream {
    connection: Connection,
    slot: u32,
}

/// What of a request the kernel, or TLS, has taken; times are nanoseconds of [`oroshi_net::monotonic_ns`], 0 for not
/// yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// When its first bytes were taken.
    pub first: u64,
    /// When its last bytes were taken.
    pub last: u64,
}

impl Stream {
    /// Returns the connection.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Takes bytes of the body, and returns how many: as many as the windows and the turn allow. `end`: the bytes are the
    /// last, and the request ends when all are taken. Empty bytes with `end` end it at once.
    ///
    /// Pending while a window is shut, or while it is the turn of other streams.
    ///
    /// # Errors
    /// The stream has failed, or the peer wants no more of the request ([`Error::Reset`] with `NO_ERROR`); the response
    /// may have come before.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8], end: bool) -> Poll<Result<usize, Error>> {
        let _ = (cx, bytes, end, self.slot);
        unimplemented!()
    }

    /// Ends the request with trailers, after all bytes of its body.
    ///
    /// # Errors
    /// As [`poll_write`](Self::poll_write); [`Error::Send`] for an invalid field.
    pub fn finish<'f>(&mut self, trailers: impl IntoIterator<Item = (&'f str, &'f [u8])>) -> Result<(), Error> {
        let _ = trailers.into_iter().count();
        unimplemented!()
    }

    /// Returns what has been sent. While the socket takes nothing, the stream is woken when this changes.
    #[must_use]
    pub fn sent(&self) -> Sent {
        unimplemented!()
    }

    /// Whether a window or the socket keeps the request from being sent.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        unimplemented!()
    }

    /// Waits for the next head, and calls `take` with it: interim ones (1xx) if [`Config::interim`] is set, then the
    /// final one. The head is valid during the call.
    ///
    /// [`Config::interim`]: crate::Config::interim
    ///
    /// # Errors
    /// The stream has failed before the head.
    pub fn poll_head<T>(
        &mut self,
        cx: &mut Context<'_>,
        take: impl FnOnce(&ResponseHead<'_>) -> T,
    ) -> Poll<Result<T, Error>> {
        let _ = (cx, take);
        unimplemented!()
    }

    /// Appends the next bytes of the body to `into`; false at its end. Taking them lets the peer send more. Into an empty
    /// buffer it moves them without a copy, and leaves another in its place.
    ///
    /// # Errors
    /// The stream has failed; bytes that came before the failure are returned first.
    pub fn poll_data(&mut self, cx: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<Result<bool, Error>> {
        let _ = (cx, into);
        unimplemented!()
    }

    /// Whether the whole response has come, read or not.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        unimplemented!()
    }

    /// Whether any frame of a response has come, even an interim one.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        unimplemented!()
    }

    /// Calls `read` with the trailers, if the response has ended with any.
    pub fn trailers<T>(&self, read: impl FnOnce(Headers<'_>) -> T) -> Option<T> {
        let _ = read;
        unimplemented!()
    }

    /// Resets the stream with this code, unless both messages have ended.
    pub fn reset(self, code: ErrorCode) {
        let _ = code;
        unimplemented!()
    }
}
