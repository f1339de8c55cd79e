//! Decodes bytes to messages.

use std::borrow::Cow;
use std::mem;

use crate::close::CloseCode;
use crate::deflate;
use crate::error::Violation;
use crate::frame::{Header, Kind, Opcode, mask};
use crate::utf8::Utf8;

/// The reading end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Received frames are masked.
    Server,
    /// Received frames are not masked.
    Client,
}

/// The limits of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest message, in bytes, including all fragments; of a compressed one, after inflation.
    pub message_bytes: usize,
}

impl Default for Limits {
    /// Messages up to 64 KiB.
    fn default() -> Self {
        Limits { message_bytes: 64 * 1024 }
    }
}

impl Limits {
    /// The most payload of all frames of a message.
    fn frame_bytes(&self, compressed: bool) -> usize {
        if compressed { deflate::compressed_bound(self.message_bytes) } else { self.message_bytes }
    }
}

/// An event of a [`Decoder`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'b> {
    /// A complete message. [`Kind::Text`] is valid UTF-8.
    Message {
        /// Text or binary.
        kind: Kind,
        /// The payload, inflated; borrows the input if the message arrived in one piece and uncompressed.
        data: Cow<'b, [u8]>,
    },
    /// A ping; answer with a pong of the same payload, at most 125 bytes.
    Ping(&'b [u8]),
    /// An answer to a ping, or a sign of life.
    Pong(&'b [u8]),
    /// The peer closes; the decoder reads nothing more. Answer with a close frame, unless you sent one.
    Close {
        /// The close code, if the frame has one.
        code: Option<CloseCode>,
        /// The reason for people: UTF-8 of at most 123 bytes, often empty.
        reason: &'b str,
    },
}

/// Decodes the frames of one peer.
///
/// Events and the final error do not depend on how the bytes were cut. Invalid UTF-8 is reported at its first byte, in
/// a compressed message at its end.
/// Small; allocates only for an incomplete message.
#[derive(Debug)]
pub struct Decoder {
    role: Role,
    /// Whether permessage-deflate was agreed on.
    deflate: bool,
    state: State,
    /// The data frame in progress.
    frame: Option<Frame>,
    /// The incomplete message.
    message: Option<Box<Partial>>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Open,
    /// The peer has sent its close frame.
    Closed,
    Broken(Violation),
}

/// The rest of a data frame.
#[derive(Clone, Copy, Debug)]
struct Frame {
    last: bool,
    /// The mask, rotated to the next byte of the payload.
    key: [u8; 4],
    left: u64,
}

#[derive(Debug)]
struct Partial {
    kind: Kind,
    compressed: bool,
    data: Vec<u8>,
    utf8: Utf8,
}

impl Decoder {
    /// Makes a decoder for a new connection.
    #[must_use]
    pub fn new(role: Role) -> Self {
        Decoder { role, deflate: false, state: State::Open, frame: None, message: None }
    }

    /// Makes a decoder for a new connection whose peer may compress messages, without a window that it keeps from
    /// message to message.
    #[must_use]
    pub fn with_deflate(role: Role) -> Self {
        Decoder { deflate: true, ..Decoder::new(role) }
    }

    /// Memory held for an incomplete message, in bytes: at most [`Limits::message_bytes`], an eighth and 64 bytes more
    /// for a compressed one; 0 between messages.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.message.as_ref().map_or(0, |message| message.data.capacity())
    }

    /// Takes the next event from the front of `input`, and advances it. `None`: more bytes are needed.
    ///
    /// The rest of `input` is then an incomplete frame header or control frame of at most 130 bytes. Pass it again,
    /// unchanged, with more bytes after it. Payloads are unmasked in place. Nothing is read after a close frame.
    ///
    /// # Errors
    ///
    /// [`Violation`], with the code to close with. It is final: every later call returns it again.
    pub fn decode<'b>(&mut self, limits: &Limits, input: &mut &'b mut [u8]) -> Result<Option<Event<'b>>, Violation> {
        match self.state {
            State::Open => {}
            State::Closed => {
                *input = &mut [];
                return Ok(None);
            }
            State::Broken(violation) => return Err(violation),
        }
        let result = self.next(limits, input);
        match &result {
            Ok(Some(Event::Close { .. })) => self.state = State::Closed,
            Err(violation) => self.state = State::Broken(*violation),
            _ => {}
        }
        result
    }

    fn next<'b>(&mut self, limits: &Limits, input: &mut &'b mut [u8]) -> Result<Option<Event<'b>>, Violation> {
        loop {
            if let Some(frame) = self.frame {
                if frame.left > 0 && input.is_empty() {
                    return Ok(None);
                }
                match self.go_on(frame, limits, input)? {
                    Some(event) => return Ok(Some(event)),
                    None => continue,
                }
            }
            let Some((header, length)) = Header::read(input, self.deflate)? else { return Ok(None) };
            match (self.role, header.mask) {
                (Role::Server, None) => return Err(Violation::Unmasked),
                (Role::Client, Some(_)) => return Err(Violation::Masked),
                _ => {}
            }
            let (kind, compressed) = match header.opcode {
                Opcode::Message(_) if self.message.is_some() => return Err(Violation::Interleaved),
                Opcode::Message(kind) => (kind, header.compressed),
                Opcode::Continuation => {
                    let message = self.message.as_ref().ok_or(Violation::Continuation)?;
                    (message.kind, message.compressed)
                }
                Opcode::Close | Opcode::Ping | Opcode::Pong => {
                    if ((input.len() - length) as u64) < header.length {
                        return Ok(None);
                    }
                    take(input, length);
                    return control(header, take(input, header.length as usize)).map(Some);
                }
            };
            let so_far = self.message.as_ref().map_or(0, |message| message.data.len());
            if header.length > limits.frame_bytes(compressed).saturating_sub(so_far) as u64 {
                return Err(Violation::TooLarge);
            }
            take(input, length);
            if self.message.is_none() && header.last && input.len() as u64 >= header.length {
                let data = take(input, header.length as usize);
                unmask(data, header.mask);
                if compressed {
                    return inflated(kind, data, limits).map(Some);
                }
                if kind == Kind::Text && std::str::from_utf8(data).is_err() {
                    return Err(Violation::Utf8);
                }
                return Ok(Some(Event::Message { kind, data: Cow::Borrowed(data) }));
            }
            self.message
                .get_or_insert_with(|| Box::new(Partial { kind, compressed, data: Vec::new(), utf8: Utf8::default() }));
            self.frame = Some(Frame { last: header.last, key: header.mask.unwrap_or_default(), left: header.length });
        }
    }

    /// Reads more of a data frame. Returns the message if it ends here.
    fn go_on<'b>(
        &mut self,
        mut frame: Frame,
        limits: &Limits,
        input: &mut &'b mut [u8],
    ) -> Result<Option<Event<'b>>, Violation> {
        let Some(message) = &mut self.message else { return Err(Violation::Continuation) };
        let count = usize::try_from(frame.left).unwrap_or(usize::MAX).min(input.len());
        let data = take(input, count);
        unmask(data, Some(frame.key));
        if message.kind == Kind::Text && !message.compressed && !message.utf8.push(data) {
            return Err(Violation::Utf8);
        }
        append(&mut message.data, data, limits.frame_bytes(message.compressed));
        frame.key.rotate_left(count % 4);
        frame.left -= count as u64;
        self.frame = (frame.left > 0).then_some(frame);
        if frame.left > 0 || !frame.last {
            return Ok(None);
        }
        if !message.utf8.is_whole() {
            return Err(Violation::Utf8);
        }
        match self.message.take() {
            Some(message) if message.compressed => inflated(message.kind, &message.data, limits).map(Some),
            message => Ok(message.map(|of| Event::Message { kind: of.kind, data: Cow::Owned(of.data) })),
        }
    }
}

/// Inflates a complete message.
fn inflated<'b>(kind: Kind, data: &[u8], limits: &Limits) -> Result<Event<'b>, Violation> {
    let data = deflate::inflate(data, limits.message_bytes)?;
    if kind == Kind::Text && std::str::from_utf8(&data).is_err() {
        return Err(Violation::Utf8);
    }
    Ok(Event::Message { kind, data: Cow::Owned(data) })
}

/// Decodes a complete control frame.
fn control(header: Header, payload: &mut [u8]) -> Result<Event<'_>, Violation> {
    unmask(payload, header.mask);
    match header.opcode {
        Opcode::Ping => return Ok(Event::Ping(payload)),
        Opcode::Pong => return Ok(Event::Pong(payload)),
        _ => {}
    }
    let (code, reason): (_, &[u8]) = match payload {
        [] => (None, &[]),
        [_] => return Err(Violation::Close),
        [high, low, reason @ ..] => (Some(CloseCode(u16::from_be_bytes([*high, *low]))), reason),
    };
    if code.is_some_and(|code| !code.may_be_sent()) {
        return Err(Violation::Close);
    }
    let reason = std::str::from_utf8(reason).map_err(|_| Violation::Utf8)?;
    Ok(Event::Close { code, reason })
}

/// Takes `count` bytes from the front.
fn take<'b>(input: &mut &'b mut [u8], count: usize) -> &'b mut [u8] {
    let (front, rest) = mem::take(input).split_at_mut(count);
    *input = rest;
    front
}

fn unmask(bytes: &mut [u8], key: Option<[u8; 4]>) {
    // Without a mask, or with one of zeros, there is nothing to undo.
    if let Some(key) = key.filter(|key| *key != [0; 4]) {
        mask(bytes, key);
    }
}

/// Appends `more`, doubling the capacity as `Vec` does, but not beyond the largest message.
fn append(data: &mut Vec<u8>, more: &[u8], most: usize) {
    let length = data.len() + more.len();
    if length > data.capacity() {
        data.reserve_exact((2 * data.capacity()).min(most).max(length) - data.len());
    }
    data.extend_from_slice(more);
}

#[cfg(test)]
mod tests;
