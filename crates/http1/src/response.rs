//! Decodes responses from bytes to events.

use std::mem::MaybeUninit;

use crate::body::{Body, BodyEvent};
use crate::fields::Fields;
use crate::head::{Headers, STACK_HEADERS, table_length};
use crate::{DecodeError, Framing, Limits, Version, scan, syntax};

/// The head of a response, validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead<'b> {
    /// The version.
    pub version: Version,
    /// The status, 100 to 999. RFC 9110 section 15 ends at 599, but servers send others, and their messages are
    /// unambiguous.
    pub status: u16,
    /// The reason phrase, may be empty. No control character but HTAB; may have bytes over 0x7f.
    pub reason: &'b [u8],
    /// The header section.
    pub headers: Headers<'b>,
    /// How the body ends, by the request's kind and the status (RFC 9112 section 6.3).
    pub framing: Framing,
    /// Whether the server lets the connection stay open after this response. False for `UntilClose` and `Tunnel`.
    pub keep_alive: bool,
}

/// An event of a [`ResponseDecoder`], in this order: any number of `Informational`, `Head`, any number of `Data`,
/// perhaps `Trailers`, `End`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseEvent<'b> {
    /// An interim response, 100 to 199 without 101. The final one follows.
    Informational(ResponseHead<'b>),
    /// The final response begins. With `Framing::Tunnel` it is the last event of the connection.
    Head(ResponseHead<'b>),
    /// Bytes of its body, without any framing. Never empty.
    Data(&'b [u8]),
    /// The fields after a chunked body. Never empty.
    Trailers(Headers<'b>),
    /// The response is complete.
    End,
}

/// The response to expect, as far as its request decides its framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExpectedResponse {
    /// An ordinary request: a body may follow the head.
    Body,
    /// HEAD: no body, whatever the fields say.
    Head,
    /// CONNECT: 2xx opens a tunnel.
    Connect,
    /// A request with Upgrade: 101 is legal and opens a tunnel.
    Upgrade,
}

/// The most responses that can be outstanding.
pub const MAX_EXPECTED: usize = 64;

/// Decodes the responses of one connection. Small, without heap; [`Default`] is the start of a connection.
#[derive(Clone, Debug, Default)]
pub struct ResponseDecoder {
    expected: Expected,
    body: Body,
    /// Number of bytes already searched for the end of the head.
    scanned: u32,
    /// Interim responses since the last final one.
    informational: u16,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Before or in a head.
    #[default]
    Head,
    Body,
    Failed(DecodeError),
}

impl ResponseDecoder {
    /// Announces one more response, in the order of the requests, at the latest before its first byte is decoded.
    ///
    /// At most [`MAX_EXPECTED`] can be outstanding; after one more, the next call of `decode` returns
    /// [`TooManyExpected`](DecodeError::TooManyExpected).
    #[inline]
    pub fn expect(&mut self, request: ExpectedResponse) {
        if !self.expected.push(request) && !matches!(self.state, State::Failed(_)) {
            self.state = State::Failed(DecodeError::TooManyExpected);
        }
    }

    /// Returns the next event, or `None` when more bytes are needed.
    ///
    /// Advances `input` past the bytes used. After `None` the caller keeps the rest of `input`, appends new bytes and
    /// calls again: the rest must come back unchanged at the front. Call until `None`: events can be due without
    /// further input.
    ///
    /// # Errors
    ///
    /// The first defect of the bytes. An error is final: every later call returns it again.
    pub fn decode<'b>(
        &mut self,
        limits: &Limits,
        input: &mut &'b [u8],
    ) -> Result<Option<ResponseEvent<'b>>, DecodeError> {
        let result = match self.state {
            State::Head => self.head(limits, input),
            State::Body => self.body.decode(limits, input).map(|event| event.map(|event| self.body_event(event))),
            State::Failed(error) => Err(error),
        };
        if let Err(error) = result {
            self.state = State::Failed(error);
        }
        result
    }

    /// Ends the stream. Call it when the peer has closed, after the last [`decode`](ResponseDecoder::decode).
    ///
    /// Returns `End` if the close completes a body, `None` if no response was due or the connection is a tunnel.
    ///
    /// # Errors
    ///
    /// [`UnexpectedEof`](DecodeError::UnexpectedEof) within a response or while one is expected
    /// ([`has_begun`](ResponseDecoder::has_begun) distinguishes these); the error of `decode` if there was one.
    pub fn eof(&mut self) -> Result<Option<ResponseEvent<'static>>, DecodeError> {
        match self.state {
            State::Failed(error) => return Err(error),
            State::Body if self.body.ends_at_eof() => return Ok(Some(self.body_event(BodyEvent::End))),
            State::Body if self.body.is_tunnel() => return Ok(None),
            State::Head if self.is_idle() => return Ok(None),
            _ => {}
        }
        self.state = State::Failed(DecodeError::UnexpectedEof);
        Err(DecodeError::UnexpectedEof)
    }

    /// Whether no response is outstanding: the connection can take another request, or close, without loss.
    pub fn is_idle(&self) -> bool {
        self.state == State::Head && self.scanned == 0 && self.expected.is_empty()
    }

    /// Whether a byte of the due response has arrived, including interim ones. While false, a server that closes may
    /// never have seen the request: a client may retry it where that is safe.
    pub fn has_begun(&self) -> bool {
        self.state != State::Head || self.scanned > 0 || self.informational > 0
    }

    fn head<'b>(&mut self, limits: &Limits, input: &mut &'b [u8]) -> Result<Option<ResponseEvent<'b>>, DecodeError> {
        if input.is_empty() {
            return Ok(None);
        }
        let request = self.expected.first().ok_or(DecodeError::Unsolicited)?;
        let most = limits.head_bytes.min(u32::MAX as usize);
        let window = &input[..input.len().min(most)];
        syntax::response_prefix(window)?;
        // The usual case first: the whole head is here and valid.
        let whole = if self.scanned == 0 { parse(window, request, limits)? } else { None };
        let (head, length) = match whole {
            Some(whole) => whole,
            None => match scan::find_end(window, &mut self.scanned)? {
                None if window.len() == most => return Err(DecodeError::HeadTooLarge),
                None => return Ok(None),
                Some(end) => {
                    let head = &window[..end];
                    parse(head, request, limits)?.ok_or_else(|| syntax::explain_response(head, limits))?
                }
            },
        };
        self.scanned = 0;
        *input = &input[length..];
        if head.status < 200 && head.framing != Framing::Tunnel {
            self.informational = self.informational.saturating_add(1);
            if usize::from(self.informational) > limits.informational {
                return Err(DecodeError::TooManyInformational);
            }
            return Ok(Some(ResponseEvent::Informational(head)));
        }
        self.body = Body::new(head.framing, limits)?;
        self.state = State::Body;
        Ok(Some(ResponseEvent::Head(head)))
    }

    fn body_event<'b>(&mut self, event: BodyEvent<'b>) -> ResponseEvent<'b> {
        match event {
            BodyEvent::Data(data) => ResponseEvent::Data(data),
            BodyEvent::Trailers(trailers) => ResponseEvent::Trailers(trailers),
            BodyEvent::End => {
                self.state = State::Head;
                self.informational = 0;
                self.expected.pop();
                ResponseEvent::End
            }
        }
    }
}

/// Parses the head at the start of `input`, and returns its length too.
///
/// `None` if the head is incomplete or invalid; the slow path finds out which, and names the defect.
fn parse<'b>(
    input: &'b [u8],
    request: ExpectedResponse,
    limits: &Limits,
) -> Result<Option<(ResponseHead<'b>, usize)>, DecodeError> {
    let length = table_length(input, limits);
    if length <= STACK_HEADERS {
        let mut table = [const { MaybeUninit::uninit() }; STACK_HEADERS];
        return parse_with(input, request, &mut table[..length]);
    }
    parse_with(input, request, &mut Box::new_uninit_slice(length))
}

#[inline]
fn parse_with<'b>(
    input: &'b [u8],
    request: ExpectedResponse,
    table: &mut [MaybeUninit<httparse::Header<'b>>],
) -> Result<Option<(ResponseHead<'b>, usize)>, DecodeError> {
    let mut response = httparse::Response::new(&mut []);
    let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut response, input, table);
    let (Ok(httparse::Status::Complete(length)), Some(minor), Some(status @ 100..)) =
        (parsed, response.version, response.code)
    else {
        return Ok(None);
    };
    let Some(lines) = scan::field_lines(&input[..length], response.headers) else { return Ok(None) };
    let version = if minor == 0 { Version::Http10 } else { Version::Http11 };
    // httparse hides a reason with bytes over 0x7f, so this takes the bytes after `HTTP/1.x 200 `, before CRLF.
    let reason = input.get(13..length - lines.len() - 4).unwrap_or_default();
    let fields = Fields::collect::<false>(response.headers, version)?;
    let framing = match (request, status) {
        // RFC 9112 section 6.3, items 1 and 2: the fields do not count.
        (ExpectedResponse::Connect, 200..300) => Framing::Tunnel,
        (ExpectedResponse::Upgrade, 101) => Framing::Tunnel,
        (_, 101) => return Err(DecodeError::UnsolicitedUpgrade),
        (ExpectedResponse::Head, _) | (_, 100..200 | 204 | 304) => Framing::None,
        _ => fields.framing(Framing::UntilClose),
    };
    let keep_alive = fields.keep_alive(version) && !matches!(framing, Framing::UntilClose | Framing::Tunnel);
    let head = ResponseHead { version, status, reason, headers: Headers::validated(lines), framing, keep_alive };
    Ok(Some((head, length)))
}

/// The kinds of the outstanding responses: a queue of two-bit entries, the first in the lowest bits.
#[derive(Clone, Copy, Debug, Default)]
struct Expected {
    kinds: [u64; 2],
    count: u8,
}

impl Expected {
    /// Returns false if there is no room.
    #[inline]
    fn push(&mut self, kind: ExpectedResponse) -> bool {
        if usize::from(self.count) == MAX_EXPECTED {
            return false;
        }
        self.kinds[usize::from(self.count / 32)] |= (kind as u64) << (self.count % 32 * 2);
        self.count += 1;
        true
    }

    fn first(&self) -> Option<ExpectedResponse> {
        const KINDS: [ExpectedResponse; 4] =
            [ExpectedResponse::Body, ExpectedResponse::Head, ExpectedResponse::Connect, ExpectedResponse::Upgrade];
        if self.count == 0 { None } else { Some(KINDS[(self.kinds[0] & 3) as usize]) }
    }

    fn pop(&mut self) {
        self.kinds[0] = self.kinds[0] >> 2 | self.kinds[1] << 62;
        self.kinds[1] >>= 2;
        self.count = self.count.saturating_sub(1);
    }

    fn is_empty(&self) -> bool {
        self.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_of_expectations_keeps_its_order() {
        let kinds = [
            ExpectedResponse::Head,
            ExpectedResponse::Body,
            ExpectedResponse::Upgrade,
            ExpectedResponse::Connect,
            ExpectedResponse::Body,
        ];
        let mut queue = Expected::default();
        for round in 0..3 {
            for n in 0..MAX_EXPECTED {
                assert!(queue.push(kinds[(n * 7 + round) % 5]));
            }
            assert!(!queue.push(ExpectedResponse::Body));
            for n in 0..MAX_EXPECTED {
                assert_eq!(queue.first(), Some(kinds[(n * 7 + round) % 5]), "round {round}, entry {n}");
                queue.pop();
            }
            assert!(queue.is_empty());
        }
    }

    #[test]
    fn decoders_are_small() {
        assert!(size_of::<ResponseDecoder>() <= 64, "{}", size_of::<ResponseDecoder>());
        assert!(size_of::<crate::RequestDecoder>() <= 64, "{}", size_of::<crate::RequestDecoder>());
    }
}
