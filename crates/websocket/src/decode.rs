//! Bytes to messages.

use std::borrow::Cow;
use std::mem;

use thiserror::Error;

use crate::close::CloseCode;
use crate::frame::{Header, Kind, Opcode, mask};
use crate::utf8::Utf8;

/// Which end of the connection reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// What comes is masked.
    Server,
    /// What comes is not.
    Client,
}

/// What is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest message, in bytes, all its fragments together.
    pub message_bytes: usize,
}

impl Default for Limits {
    /// Messages up to 64 KiB.
    fn default() -> Self {
        Limits { message_bytes: 64 * 1024 }
    }
}

/// What a [`Decoder`] gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'b> {
    /// A message, whole. A [`Kind::Text`] is UTF-8.
    Message {
        /// What it holds.
        kind: Kind,
        /// It, as it lies in the input if it came in one piece.
        data: Cow<'b, [u8]>,
    },
    /// To be answered with a pong of the same payload, of at most 125 bytes.
    Ping(&'b [u8]),
    /// An answer to a ping, or a sign of life.
    Pong(&'b [u8]),
    /// The peer closes; what follows is not read any more. To be answered with a close frame, unless one was sent.
    Close {
        /// Why, if it says so.
        code: Option<CloseCode>,
        /// The same for people: UTF-8 of at most 123 bytes, often empty.
        reason: &'b str,
    },
}

/// How the peer broke the protocol. The connection is to be closed, with [`code`](Violation::code).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Violation {
    /// One of the three bits that only extensions use.
    #[error("a reserved bit is set, and no extension was agreed on")]
    ReservedBits,
    /// 3 to 7, or 11 to 15.
    #[error("a frame of an unknown kind")]
    Opcode,
    /// A ping, pong or close that does not end its message.
    #[error("a control frame in fragments")]
    FragmentedControl,
    /// More than 125 bytes.
    #[error("a control frame of more than 125 bytes")]
    LargeControl,
    /// Not in its shortest form, or beyond 63 bits.
    #[error("a length that is not written in its shortest form")]
    Length,
    /// From a client.
    #[error("a frame without a mask")]
    Unmasked,
    /// From a server.
    #[error("a frame with a mask")]
    Masked,
    /// There is no message to go on with.
    #[error("a continuation of nothing")]
    Continuation,
    /// The one before is not at its end.
    #[error("a message within a message")]
    Interleaved,
    /// One byte where a close code has two, or a code that may not be sent.
    #[error("a close frame with no or a reserved code")]
    Close,
    /// A text, or a close frame's reason.
    #[error("a text that is not UTF-8")]
    Utf8,
    /// See [`Limits`].
    #[error("a message that is too large")]
    TooLarge,
}

impl Violation {
    /// What to close with.
    #[must_use]
    pub fn code(self) -> CloseCode {
        match self {
            Violation::Utf8 => CloseCode::INVALID_DATA,
            Violation::TooLarge => CloseCode::TOO_LARGE,
            _ => CloseCode::PROTOCOL_ERROR,
        }
    }
}

/// Decodes what one peer sends. What events come, and the error they end with, does not depend on how the bytes were cut; a broken
/// text is told at the first byte that breaks it.
#[derive(Debug)]
pub struct Decoder {
    role: Role,
    closed: bool,
    /// The data frame that is read.
    frame: Option<Frame>,
    /// The message of which a part has come.
    message: Option<Box<Partial>>,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    last: bool,
    mask: [u8; 4],
    /// Bytes that were read, for the mask.
    offset: u64,
    left: u64,
}

#[derive(Debug)]
struct Partial {
    kind: Kind,
    data: Vec<u8>,
    utf8: Utf8,
}

impl Decoder {
    /// The start of a connection.
    #[must_use]
    pub fn new(role: Role) -> Self {
        Decoder { role, closed: false, frame: None, message: None }
    }

    /// Whether nothing of a message has been taken and is kept here.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.message.is_none()
    }

    /// Takes the next event from the front of `input`, and advances it. `None`: more bytes are wanted. What is left of `input` then, at
    /// most 138 bytes, is a frame's incomplete header or an incomplete control frame, and is to be offered again with more bytes
    /// behind it. Bytes are unmasked where they lie. Behind an error there is nothing to read.
    pub fn decode<'b>(&mut self, limits: &Limits, input: &mut &'b mut [u8]) -> Result<Option<Event<'b>>, Violation> {
        loop {
            if self.closed {
                *input = &mut [];
                return Ok(None);
            }
            if let Some(frame) = self.frame {
                if frame.left > 0 && input.is_empty() {
                    return Ok(None);
                }
                let event = self.go_on(frame, input)?;
                if event.is_some() {
                    return Ok(event);
                }
                continue;
            }
            let Some((header, length)) = Header::read(input)? else { return Ok(None) };
            match (self.role, header.mask) {
                (Role::Server, None) => return Err(Violation::Unmasked),
                (Role::Client, Some(_)) => return Err(Violation::Masked),
                _ => {}
            }
            let kind = match header.opcode {
                Opcode::Message(_) if self.message.is_some() => return Err(Violation::Interleaved),
                Opcode::Message(kind) => kind,
                Opcode::Continuation => self.message.as_ref().ok_or(Violation::Continuation)?.kind,
                Opcode::Close | Opcode::Ping | Opcode::Pong => {
                    if ((input.len() - length) as u64) < header.length {
                        return Ok(None);
                    }
                    take(input, length);
                    return self.control(header, take(input, header.length as usize)).map(Some);
                }
            };
            let held = self.message.as_ref().map_or(0, |message| message.data.len());
            if header.length > (limits.message_bytes.saturating_sub(held)) as u64 {
                return Err(Violation::TooLarge);
            }
            take(input, length);
            let key = header.mask.unwrap_or_default();
            if self.message.is_none() && header.last && input.len() as u64 >= header.length {
                let data = take(input, header.length as usize);
                unmask(data, key, 0);
                if kind == Kind::Text && std::str::from_utf8(data).is_err() {
                    return Err(Violation::Utf8);
                }
                return Ok(Some(Event::Message { kind, data: Cow::Borrowed(data) }));
            }
            self.message.get_or_insert_with(|| Box::new(Partial { kind, data: Vec::new(), utf8: Utf8::default() }));
            self.frame = Some(Frame { last: header.last, mask: key, offset: 0, left: header.length });
        }
    }

    /// More of a data frame. Gives its message if that ends here.
    fn go_on<'b>(&mut self, mut frame: Frame, input: &mut &'b mut [u8]) -> Result<Option<Event<'b>>, Violation> {
        let count = usize::try_from(frame.left).unwrap_or(usize::MAX).min(input.len());
        let data = take(input, count);
        unmask(data, frame.mask, frame.offset);
        let Some(message) = &mut self.message else { return Err(Violation::Continuation) };
        if message.kind == Kind::Text && !message.utf8.push(data) {
            return Err(Violation::Utf8);
        }
        message.data.extend_from_slice(data);
        frame.offset += count as u64;
        frame.left -= count as u64;
        self.frame = (frame.left > 0).then_some(frame);
        if self.frame.is_some() || !frame.last {
            return Ok(None);
        }
        if !message.utf8.is_whole() {
            return Err(Violation::Utf8);
        }
        let message = self.message.take();
        Ok(message.map(|message| Event::Message { kind: message.kind, data: Cow::Owned(message.data) }))
    }

    fn control<'b>(&mut self, header: Header, payload: &'b mut [u8]) -> Result<Event<'b>, Violation> {
        unmask(payload, header.mask.unwrap_or_default(), 0);
        match header.opcode {
            Opcode::Ping => Ok(Event::Ping(payload)),
            Opcode::Pong => Ok(Event::Pong(payload)),
            _ => {
                let (code, reason): (_, &[u8]) = match &*payload {
                    [] => (None, &[]),
                    [_] => return Err(Violation::Close),
                    [high, low, reason @ ..] => (Some(CloseCode(u16::from_be_bytes([*high, *low]))), reason),
                };
                if code.is_some_and(|code| !code.may_be_sent()) {
                    return Err(Violation::Close);
                }
                let reason = std::str::from_utf8(reason).map_err(|_| Violation::Utf8)?;
                self.closed = true;
                Ok(Event::Close { code, reason })
            }
        }
    }
}

/// Takes so many bytes from the front.
fn take<'b>(input: &mut &'b mut [u8], count: usize) -> &'b mut [u8] {
    let (front, rest) = mem::take(input).split_at_mut(count);
    *input = rest;
    front
}

fn unmask(bytes: &mut [u8], key: [u8; 4], offset: u64) {
    if key != [0; 4] {
        mask(bytes, key, offset);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encode;

    /// What came, without what it borrows.
    #[derive(Clone, Debug, PartialEq, Eq)]
    enum Came {
        Message(Kind, Vec<u8>),
        Ping(Vec<u8>),
        Pong(Vec<u8>),
        Close(Option<CloseCode>, String),
    }

    /// All that comes of `bytes`, which arrive in pieces that end at `cuts`, and the error at their end.
    fn decoded(role: Role, bytes: &[u8], cuts: &[usize]) -> (Vec<Came>, Option<Violation>) {
        let limits = Limits { message_bytes: 1000 };
        let mut decoder = Decoder::new(role);
        let (mut all, mut kept, mut from) = (Vec::new(), Vec::new(), 0);
        for &cut in cuts.iter().chain([&bytes.len()]) {
            let cut = cut.clamp(from, bytes.len());
            kept.extend_from_slice(&bytes[from..cut]);
            from = cut;
            let mut input = &mut kept[..];
            loop {
                match decoder.decode(&limits, &mut input) {
                    Ok(Some(event)) => all.push(match event {
                        Event::Message { kind, data } => Came::Message(kind, data.into_owned()),
                        Event::Ping(payload) => Came::Ping(payload.to_vec()),
                        Event::Pong(payload) => Came::Pong(payload.to_vec()),
                        Event::Close { code, reason } => Came::Close(code, reason.to_owned()),
                    }),
                    Ok(None) => break,
                    Err(violation) => return (all, Some(violation)),
                }
            }
            assert!(input.len() <= 138, "{} bytes are left to the caller", input.len());
            kept = input.to_vec();
        }
        (all, None)
    }

    fn of_client(bytes: &[u8]) -> (Vec<Came>, Option<Violation>) {
        decoded(Role::Server, bytes, &[])
    }

    /// A frame of a client's, as its first byte says.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let key = [1, 2, 3, 4];
        let mut bytes = vec![first];
        match payload.len() {
            short @ 0..126 => bytes.push(0x80 | short as u8),
            long => {
                bytes.push(0x80 | 126);
                bytes.extend_from_slice(&(long as u16).to_be_bytes());
            }
        }
        bytes.extend_from_slice(&key);
        bytes.extend(payload.iter().enumerate().map(|(at, byte)| byte ^ key[at % 4]));
        bytes
    }

    #[test]
    fn messages_whole_and_in_fragments() {
        let bytes = [
            frame(0x81, "grün".as_bytes()),
            frame(0x02, b"bi"),
            frame(0x89, b"now?"),
            frame(0x00, b""),
            frame(0x80, b"nary"),
            frame(0x8a, b""),
            frame(0x88, b"\x03\xe8done"),
            frame(0x81, b"not read any more"),
        ]
        .concat();
        let (all, error) = of_client(&bytes);
        let expected = [
            Came::Message(Kind::Text, "grün".into()),
            Came::Ping(b"now?".to_vec()),
            Came::Message(Kind::Binary, b"binary".to_vec()),
            Came::Pong(Vec::new()),
            Came::Close(Some(CloseCode::NORMAL), "done".to_owned()),
        ];
        assert_eq!((all, error), (expected.to_vec(), None));
    }

    #[test]
    fn what_is_wrong_ends_it_with_its_code() {
        let wrong = |bytes: &[u8]| of_client(bytes).1.map(|violation| (violation, violation.code().0));
        assert_eq!(wrong(&[0x81, 0x01, b'a']), Some((Violation::Unmasked, 1002)));
        assert_eq!(decoded(Role::Client, &frame(0x81, b"a"), &[]).1, Some(Violation::Masked));
        assert_eq!(wrong(&frame(0x80, b"a")), Some((Violation::Continuation, 1002)));
        assert_eq!(wrong(&[frame(0x01, b"a"), frame(0x81, b"b")].concat()), Some((Violation::Interleaved, 1002)));
        assert_eq!(wrong(&frame(0x88, b"\x03")), Some((Violation::Close, 1002)));
        assert_eq!(wrong(&frame(0x88, &1006_u16.to_be_bytes())), Some((Violation::Close, 1002)));
        assert_eq!(wrong(&frame(0x88, b"\x03\xe8\xff")), Some((Violation::Utf8, 1007)));
        assert_eq!(wrong(&frame(0x81, b"\xc3")), Some((Violation::Utf8, 1007)));
        assert_eq!(wrong(&[frame(0x01, b"\xc3"), frame(0x80, b"")].concat()), Some((Violation::Utf8, 1007)));
        // At the byte that breaks it, not at the end of its message.
        assert_eq!(wrong(&frame(0x01, b"\xff")), Some((Violation::Utf8, 1007)));
        assert_eq!(wrong(&frame(0x82, &[0; 1001])), Some((Violation::TooLarge, 1009)));
        let pieces = [frame(0x02, &[0; 600]), frame(0x80, &[0; 401])].concat();
        assert_eq!(wrong(&pieces), Some((Violation::TooLarge, 1009)));
        assert_eq!(wrong(&frame(0x82, &[0; 1000])), None);
    }

    #[test]
    fn an_idle_decoder_is_small_and_a_whole_message_takes_no_memory() {
        assert!(size_of::<Decoder>() <= 48, "{} bytes", size_of::<Decoder>());
        let mut bytes = frame(0x81, b"hello");
        let mut decoder = Decoder::new(Role::Server);
        let allocated = allocation_counter::measure(|| {
            let mut input = &mut bytes[..];
            let event = decoder.decode(&Limits::default(), &mut input);
            assert!(matches!(event, Ok(Some(Event::Message { data: Cow::Borrowed(b"hello"), .. }))));
        });
        assert_eq!(allocated.count_total, 0);
        assert!(decoder.is_idle());
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_the_bytes_were_cut(
            frames in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..300)), 0..6),
            texts: Vec<String>,
            noise in prop::collection::vec(any::<u8>(), 0..20),
            mut cuts in prop::collection::vec(0..2000usize, 0..10),
        ) {
            let texts = texts.iter().map(|text| frame(0x81, text.as_bytes()));
            let bytes: Vec<u8> = texts.chain(frames.iter().map(|(first, payload)| frame(*first, payload))).flatten().chain(noise).collect();
            cuts.sort_unstable();
            let whole = of_client(&bytes);
            prop_assert_eq!(decoded(Role::Server, &bytes, &cuts), whole.clone());
            let each: Vec<usize> = (0..bytes.len()).collect();
            prop_assert_eq!(decoded(Role::Server, &bytes, &each), whole);
        }

        #[test]
        fn what_is_sent_comes_as_it_was(text: String, data in prop::collection::vec(any::<u8>(), 0..500), key: [u8; 4]) {
            let mut bytes = Vec::new();
            encode::message(&mut bytes, Kind::Text, text.as_bytes());
            encode::message(&mut bytes, Kind::Binary, &data);
            encode::close(&mut bytes, CloseCode::GOING_AWAY, &text);
            let (all, error) = decoded(Role::Client, &bytes, &[]);
            prop_assert!(error.is_none());
            prop_assert_eq!(&all[..2], &[Came::Message(Kind::Text, text.clone().into_bytes()), Came::Message(Kind::Binary, data.clone())]);
            let Came::Close(code, reason) = &all[2] else { panic!("{all:?}") };
            prop_assert!(*code == Some(CloseCode::GOING_AWAY) && text.starts_with(reason.as_str()));

            let mut masked = Vec::new();
            encode::masked_message(&mut masked, Kind::Binary, &data, key);
            prop_assert_eq!(of_client(&masked), (vec![Came::Message(Kind::Binary, data)], None));
        }
    }
}
