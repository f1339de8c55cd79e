//! Received DATA, and the windows that bound it.

use super::{Connection, Role, Step, TINY_DATA_BYTES, reference};
use crate::config::Grants;
use crate::event::Event;
use crate::frame::{self, DEFAULT_WINDOW, FrameHead, MAX_WINDOW, flag};
use crate::stream::{self, Closed};
use crate::{Defect, ErrorCode};

/// A DATA frame whose head has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataFrame {
    /// The stream; 0 if its data is ignored.
    stream: u32,
    /// Bytes of data that have not come yet.
    data: usize,
    /// Bytes of padding that have not come yet.
    padding: usize,
    end: bool,
}

/// The result of the next bytes of a DATA frame.
pub(super) enum Piece<'i> {
    Event(Event<'i>),
    Incomplete,
    Complete,
}

impl Connection {
    /// Bytes after the frame's head that must be there: the length of the padding.
    #[inline]
    pub(super) fn data_prefix(&self, head: FrameHead) -> bool {
        head.has(flag::PADDED) && head.length > 0
    }

    /// Handles the head of a DATA frame, and the length of its padding.
    #[inline]
    pub(super) fn data_frame(
        &mut self,
        head: FrameHead,
        padding: Option<u8>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Step<'static>>, Defect> {
        if head.stream == 0 {
            return Err(Defect::BadStreamId);
        }
        let prefix = usize::from(head.has(flag::PADDED));
        let padding = usize::from(padding.unwrap_or_default());
        let rest = head.length.checked_sub(prefix).ok_or(Defect::BadFrameSize)?;
        let data = rest.checked_sub(padding).ok_or(Defect::BadPadding)?;
        self.receive_window -= head.length as i64;
        if self.receive_window < 0 {
            return Err(Defect::WindowExceeded);
        }
        let end = head.has(flag::END_STREAM);
        if data >= TINY_DATA_BYTES && data >= padding {
            self.idle_frames.earn(2);
            if self.role == Role::Client {
                // Servers measure the bandwidth with a PING per DATA frame, those of gRPC for example.
                self.answered_frames.earn(1);
            }
        } else if !end {
            self.count_idle_frame()?;
        }
        let mut frame = DataFrame { stream: head.stream, data, padding, end };
        match self.data_defect(head, data, end)? {
            Some(Some(defect)) => {
                self.ignore(&mut frame, prefix, out);
                return self.message_error(head.stream, defect, out);
            }
            Some(None) => {
                self.ignore(&mut frame, prefix, out);
                return Ok(None);
            }
            None => {}
        }
        // Nobody consumes padding: its window goes back at once.
        self.credit(head.stream, prefix + padding, out);
        self.data = Some(frame);
        Ok(None)
    }

    /// Drops the payload of a frame, and gives its window back to the connection.
    fn ignore(&mut self, frame: &mut DataFrame, prefix: usize, out: &mut Vec<u8>) {
        self.credit(0, frame.data + frame.padding + prefix, out);
        self.data = Some(DataFrame { stream: 0, end: false, ..*frame });
    }

    /// Counts a frame for its stream. `Some(Some(defect))` resets the stream, `Some(None)` ignores the frame.
    #[inline]
    fn data_defect(&mut self, head: FrameHead, data: usize, end: bool) -> Result<Option<Option<Defect>>, Defect> {
        let Some(stream) = self.streams.get_mut(head.stream) else {
            if self.is_unopened(head.stream) {
                return Err(Defect::IdleStream);
            }
            return match self.recent.find(head.stream) {
                Some(Closed::Ended) => Err(Defect::StreamClosed),
                Some(Closed::ByPeer) => Ok(Some(Some(Defect::StreamClosed))),
                // On its way when we reset the stream, or long closed.
                Some(Closed::ByUs) => Ok(Some(None)),
                None => self.count_idle_frame().map(|()| Some(None)),
            };
        };
        let defect = if stream.is(stream::REMOTE_CLOSED) {
            Some(Defect::StreamClosed)
        } else if !stream.is(stream::HEAD_RECEIVED) {
            Some(Defect::DataBeforeHead)
        } else {
            stream.receive_window -= head.length as i32;
            if stream.receive_window < 0 { Some(Defect::WindowExceeded) } else { count_body(stream, data, end) }
        };
        Ok(defect.map(Some))
    }

    /// Takes the bytes of a DATA frame that are there.
    #[inline]
    pub(super) fn data_piece<'i>(&mut self, input: &mut &'i [u8], out: &mut Vec<u8>) -> Piece<'i> {
        let Some(frame) = &mut self.data else { return Piece::Complete };
        let (piece, rest) = input.split_at(frame.data.min(input.len()));
        frame.data -= piece.len();
        *input = rest;
        let last = frame.data == 0;
        let (id, end) = (frame.stream, last && std::mem::take(&mut frame.end));
        if last {
            let padding = frame.padding.min(input.len());
            frame.padding -= padding;
            *input = &input[padding..];
            if frame.padding == 0 {
                self.data = None;
            }
        }
        let is_complete = self.data.is_none();
        if (!piece.is_empty() || end) && id != 0 {
            let Some(stream) = self.streams.get_mut(id) else {
                // The caller has reset the stream meanwhile, and will not grant these bytes.
                self.credit(0, piece.len(), out);
                return if is_complete { Piece::Complete } else { Piece::Incomplete };
            };
            if end {
                stream.flags |= stream::REMOTE_CLOSED;
            }
            let stream = reference(stream);
            if self.config.grants == Grants::Automatic {
                self.credit(id, piece.len(), out);
            }
            if end {
                self.close_if_ended(id);
            }
            return Piece::Event(Event::Data { stream, data: piece, end });
        }
        if is_complete { Piece::Complete } else { Piece::Incomplete }
    }

    /// Lets the peer send `bytes` more: on a stream, and on the connection. Call it when DATA of a stream has been
    /// consumed, also after the stream has ended. Has no effect beyond the bytes that were received.
    ///
    /// A WINDOW_UPDATE goes to `out` when half of a window is granted.
    pub fn grant(&mut self, out: &mut Vec<u8>, id: u32, bytes: usize) {
        self.credit(id, bytes, out);
    }

    /// Gives window back to the connection and, unless `id` is 0 or ended by the peer, to a stream.
    pub(super) fn credit(&mut self, id: u32, bytes: usize, out: &mut Vec<u8>) {
        let window = self.config.connection_window.clamp(DEFAULT_WINDOW, MAX_WINDOW);
        let outstanding = i64::from(window) - self.receive_window - i64::from(self.granted);
        let bytes = u32::try_from(i64::try_from(bytes).unwrap_or(i64::MAX).min(outstanding)).unwrap_or(0);
        self.granted += bytes;
        if self.granted > 0 && self.granted >= window / 2 {
            frame::write_window_update(out, 0, self.granted);
            self.receive_window += i64::from(std::mem::take(&mut self.granted));
        }
        let window = self.receive_initial;
        let Some(stream) = self.streams.get_mut(id).filter(|stream| !stream.is(stream::REMOTE_CLOSED)) else { return };
        let outstanding = i64::from(window) - i64::from(stream.receive_window) - i64::from(stream.granted);
        stream.granted += i64::from(bytes).min(outstanding).max(0) as u32;
        if stream.granted > 0 && stream.granted >= window as u32 / 2 {
            frame::write_window_update(out, id, stream.granted);
            stream.receive_window += std::mem::take(&mut stream.granted) as i32;
        }
    }

    /// Ends a stream because of a message's defect: with a status, if HTTP has one and no response has begun.
    pub(super) fn message_error(
        &mut self,
        id: u32,
        defect: Defect,
        out: &mut Vec<u8>,
    ) -> Result<Option<Step<'static>>, Defect> {
        let unanswered = self.streams.get(id).is_none_or(|stream| !stream.is(stream::HEAD_SENT));
        let (Role::Server, Some(status), true) = (self.role, defect.status(), unanswered) else {
            return self.stream_error(id, defect, out);
        };
        self.write_error_response(out, id, status);
        // The rest of the request is not needed (RFC 9113 section 8.1).
        frame::write_reset(out, id, ErrorCode::NO_ERROR);
        let removed = self.streams.remove(id);
        self.recent.push(id, Closed::ByUs);
        self.count_reset()?;
        let reset = |stream| Event::Reset { stream, code: ErrorCode::NO_ERROR, defect: Some(defect) };
        Ok(removed.map(|stream| Step::Event(reset(reference(&stream)))))
    }
}

/// Compares a body with its length and its limit.
#[inline]
fn count_body(stream: &mut stream::Stream, data: usize, end: bool) -> Option<Defect> {
    let exact = stream.is(stream::EXACT_LENGTH);
    match stream.body_left.checked_sub(data as u64) {
        None if exact => return Some(Defect::LengthMismatch),
        None => return Some(oroshi_http1::DecodeError::BodyTooLarge.into()),
        Some(left) => stream.body_left = left,
    }
    (end && exact && stream.body_left > 0).then_some(Defect::LengthMismatch)
}
