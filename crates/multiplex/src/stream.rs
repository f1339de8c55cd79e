//! One request and its response.

use std::cell::RefMut;
use std::fmt;
use std::task::{Context, Poll};

use oroshi_core::spares;
use oroshi_http1::Headers;
use oroshi_http2::{ErrorCode, ResponseHead};

use crate::connection::Connection;
use crate::error::Error;
use crate::shared::{PIECE_BYTES, State};

/// Bytes of a body up to which they are copied, and the stream keeps its buffer.
const COPIED_BYTES: usize = 1024;

/// One request and its response. One task polls it, in both directions; the last poll's waker is woken.
///
/// Dropping it before both messages have ended resets the stream (CANCEL). The connection goes on.
pub struct Stream {
    connection: Connection,
    slot: u32,
    id: u32,
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
    pub(crate) fn new(connection: Connection, slot: u32, id: u32) -> Self {
        Stream { connection, slot, id }
    }

    fn state(&self) -> RefMut<'_, State> {
        self.connection.shared.state.borrow_mut()
    }

    /// Returns the connection.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Takes bytes of the body, and returns how many: as many as the windows and the turn allow. `end`: the bytes are
    /// the last, and the request ends when all are taken. Empty bytes with `end` end it at once.
    ///
    /// Pending while a window is shut, or while it is the turn of other streams.
    ///
    /// # Errors
    /// The stream has failed, or the peer wants no more of the request ([`Error::Reset`] with `NO_ERROR`); the response
    /// may have come before.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8], end: bool) -> Poll<Result<usize, Error>> {
        let mut state = self.state();
        state.check_writing(self.slot)?;
        if bytes.is_empty() {
            return Poll::Ready(if end { state.end_request(self.slot, self.id).map(|()| 0) } else { Ok(0) });
        }
        if !state.may_write(self.slot) {
            state.slots.get_mut(self.slot).enrol(cx);
            return Poll::Pending;
        }
        let piece = &bytes[..bytes.len().min(PIECE_BYTES)];
        let ends = end && piece.len() == bytes.len();
        state.open_output();
        let State { codec, out, .. } = &mut *state;
        let taken = codec.send_data(out, self.id, piece, ends)?;
        let ends = ends && taken == piece.len();
        let slot = state.slots.get_mut(self.slot);
        slot.done = ends;
        slot.waits_for_window = taken < piece.len();
        if taken == 0 {
            slot.enrol(cx);
            return Poll::Pending;
        }
        if ends {
            state.end_request_sent(self.slot, self.id);
        }
        state.wake_task();
        Poll::Ready(Ok(taken))
    }

    /// Ends the request with trailers, after all bytes of its body.
    ///
    /// # Errors
    /// As [`poll_write`](Self::poll_write); [`Error::Send`] for an invalid field.
    pub fn finish<'f>(&mut self, trailers: impl IntoIterator<Item = (&'f str, &'f [u8])>) -> Result<(), Error> {
        let mut state = self.state();
        state.check_writing(self.slot)?;
        state.open_output();
        let State { codec, out, .. } = &mut *state;
        codec.send_trailers(out, self.id, trailers)?;
        state.end_request_sent(self.slot, self.id);
        Ok(())
    }

    /// Returns what has been sent. While the socket takes nothing, the stream is woken when this changes.
    #[must_use]
    pub fn sent(&self) -> Sent {
        let state = self.connection.shared.state.borrow();
        let slot = state.slots.get(self.slot);
        let begun = slot.sent.first == 0 && slot.begun_at < state.position();
        Sent { first: if begun { state.wrote_at } else { slot.sent.first }, last: slot.sent.last }
    }

    /// Whether a window or the socket keeps the request from being sent.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        let state = self.connection.shared.state.borrow();
        let slot = state.slots.get(self.slot);
        slot.waits_for_window || slot.is_queued || state.blocked && slot.sent.last == 0
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
        let mut state = self.state();
        let slot = state.slots.get_mut(self.slot);
        let Some((stored, lines)) = slot.take_head() else {
            if let Some(error) = &slot.failed {
                return Poll::Ready(Err(error.clone()));
            }
            slot.enrol(cx);
            return Poll::Pending;
        };
        drop(state);
        let headers = Headers::from_checked_lines(&lines[stored.start..stored.end]);
        let head = ResponseHead { status: stored.status, headers, content_length: stored.content_length };
        let taken = take(&head);
        self.state().slots.get_mut(self.slot).put_lines(lines);
        Poll::Ready(Ok(taken))
    }

    /// Appends the next bytes of the body to `into`; false at its end. Taking them lets the peer send more. Into an
    /// empty buffer it moves many bytes without a copy, and keeps that buffer for the next.
    ///
    /// # Errors
    /// The stream has failed; bytes that came before the failure are returned first.
    pub fn poll_data(&mut self, cx: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<Result<bool, Error>> {
        let mut state = self.state();
        let slot = state.slots.get_mut(self.slot);
        let count = slot.body.len();
        if count == 0 {
            if slot.ended {
                return Poll::Ready(Ok(false));
            }
            if let Some(error) = &slot.failed {
                return Poll::Ready(Err(error.clone()));
            }
            slot.enrol(cx);
            return Poll::Pending;
        }
        if into.is_empty() && count > COPIED_BYTES {
            std::mem::swap(into, &mut slot.body);
        } else {
            if into.capacity() == 0 {
                *into = spares::take();
            }
            into.append(&mut slot.body);
        }
        state.grant(self.id, count);
        Poll::Ready(Ok(true))
    }

    /// Whether the whole response has come, read or not.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.connection.shared.state.borrow().slots.get(self.slot).ended
    }

    /// Whether any frame of a response has come, even an interim one.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.connection.shared.state.borrow().slots.get(self.slot).answered
    }

    /// Calls `read` with the trailers, if the response has ended with any.
    pub fn trailers<T>(&self, read: impl FnOnce(Headers<'_>) -> T) -> Option<T> {
        let state = self.connection.shared.state.borrow();
        state.slots.get(self.slot).trailers.as_deref().map(|lines| read(Headers::from_checked_lines(lines)))
    }

    /// Resets the stream with this code, unless both messages have ended.
    pub fn reset(self, code: ErrorCode) {
        self.state().reset(self.id, code);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.state();
        let slot = state.slots.get(self.slot);
        let (unread, ended) = (slot.body.len(), slot.ended);
        // Without effect if the stream has ended.
        state.reset(self.id, if ended { ErrorCode::NO_ERROR } else { ErrorCode::CANCEL });
        state.grant(self.id, unread);
        state.free(self.slot);
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("id", &self.id).finish_non_exhaustive()
    }
}
