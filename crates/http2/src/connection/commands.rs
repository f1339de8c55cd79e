//! Commands of the caller: requests, responses, bodies, resets.

use oroshi_http1::check;
use oroshi_http1::encode::EncodeError;

use super::{Connection, Role};
use crate::ErrorCode;
use crate::frame::{self, MAX_FRAME_BYTES, MAX_WINDOW, flag, kind};
use crate::hpack::name::Kind;
use crate::hpack::{Compression, Encoder, name};
use crate::stream::{self, Closed};

/// The longest payload that this side writes, if the peer accepts it.
const MOST_FRAME_BYTES: usize = 65_536;

/// DATA that the peer's windows limit to fewer bytes than this earns no budget: else a peer that grants a byte at a
/// time would make this side send a large body in frames of one byte.
const SMALLEST_GRANT: usize = 64;

/// A command that was not carried out. Nothing is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The stream is not open: it has ended, or was reset. Stop its work; an event has told or will tell.
    #[error("stream is not open")]
    Closed,
    /// The command does not fit the stream's state: a second head, a body before the head or after the end.
    #[error("command out of order")]
    OutOfOrder,
    /// The peer allows no more streams at once. Wait for one to end, or use another connection.
    #[error("as many streams as the peer allows")]
    TooManyStreams,
    /// The peer, or this side, has sent GOAWAY, or the identifiers are used up. Use another connection.
    #[error("connection takes no more streams")]
    GoingAway,
    /// A part of the head is invalid.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// The pseudo-headers of a request to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'r> {
    /// The method.
    pub method: &'r str,
    /// `http` or `https`. Not sent with a plain CONNECT.
    pub scheme: &'r str,
    /// `host [":" port]`.
    pub authority: &'r str,
    /// `/path?query`, or `*`. Not sent with a plain CONNECT.
    pub path: &'r str,
    /// The protocol of an extended CONNECT (RFC 8441). Only if the peer allows it
    /// ([`PeerSettings::extended_connect`](crate::PeerSettings::extended_connect)).
    pub protocol: Option<&'r str>,
}

/// The head of a request in its encoded form, for many requests of one shape.
///
/// It uses the static table alone, so it is valid on any connection at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedRequest {
    block: Vec<u8>,
    flags: u16,
}

impl EncodedRequest {
    /// Encodes a head.
    ///
    /// # Errors
    ///
    /// [`EncodeError`] for the first invalid part.
    pub fn new<'f>(
        request: &Request<'_>,
        fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
    ) -> Result<Self, EncodeError> {
        let mut block = Vec::new();
        encode_request(&mut Encoder::new(Compression::Static), &mut block, request, fields)?;
        Ok(EncodedRequest { block, flags: method_flags(request.method) })
    }

    /// Returns the length of the header block in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.block.len()
    }

    /// Whether the block is empty, which no request's is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.block.is_empty()
    }
}

/// The head of a response in its encoded form, for a server that sends it many times.
///
/// As with [`EncodedRequest`], it is valid on any connection at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedResponse {
    block: Vec<u8>,
    is_final: bool,
}

impl EncodedResponse {
    /// Encodes a head.
    ///
    /// # Errors
    ///
    /// [`EncodeError`] for the first invalid part.
    pub fn new<'f>(status: u16, fields: impl IntoIterator<Item = (&'f str, &'f [u8])>) -> Result<Self, EncodeError> {
        let mut block = Vec::new();
        encode_response(&mut Encoder::new(Compression::Static), &mut block, status, fields)?;
        Ok(EncodedResponse { block, is_final: status >= 200 })
    }
}

impl Connection {
    /// Sends the head of a request, and returns the identifier of its stream. `end`: the request has no body.
    ///
    /// Names are written in lower case. Fields of an HTTP/1.1 connection are left out, and Host too, because
    /// `:authority` has it.
    ///
    /// # Errors
    ///
    /// `TooManyStreams`, `GoingAway`, or `Encode`.
    pub fn send_request<'f>(
        &mut self,
        out: &mut Vec<u8>,
        request: &Request<'_>,
        fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
        end: bool,
        tag: u32,
    ) -> Result<u32, SendError> {
        self.can_open()?;
        let id = self.next_id;
        self.write_block(out, id, end, |encoder, out| encode_request(encoder, out, request, fields))?;
        self.open(id, end, tag, method_flags(request.method));
        Ok(id)
    }

    /// Sends a request whose head is encoded, and returns the identifier of its stream.
    ///
    /// # Errors
    ///
    /// `TooManyStreams` or `GoingAway`.
    #[inline]
    pub fn send_encoded_request(
        &mut self,
        out: &mut Vec<u8>,
        request: &EncodedRequest,
        end: bool,
        tag: u32,
    ) -> Result<u32, SendError> {
        self.can_open()?;
        let id = self.next_id;
        self.write_block(out, id, end, |_, out| {
            out.extend_from_slice(&request.block);
            Ok(())
        })?;
        self.open(id, end, tag, request.flags);
        Ok(id)
    }

    /// Checks that a new stream may be opened now.
    ///
    /// # Errors
    ///
    /// `TooManyStreams`, `GoingAway`; `OutOfOrder` for a server.
    #[inline]
    pub fn can_open(&self) -> Result<(), SendError> {
        if self.role == Role::Server {
            return Err(SendError::OutOfOrder);
        }
        if self.goaway_received.is_some() || self.goaway_sent.is_some() || self.next_id > MAX_WINDOW {
            return Err(SendError::GoingAway);
        }
        if self.streams.len() >= self.peer.streams as usize { Err(SendError::TooManyStreams) } else { Ok(()) }
    }

    /// Sends the head of a response. A `status` below 200 is an interim one. `end`: the response has no body.
    ///
    /// Names are written in lower case; fields of an HTTP/1.1 connection are left out.
    ///
    /// # Errors
    ///
    /// `Closed`, `OutOfOrder`, or `Encode`.
    pub fn send_response<'f>(
        &mut self,
        out: &mut Vec<u8>,
        id: u32,
        status: u16,
        fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
        end: bool,
    ) -> Result<(), SendError> {
        self.respond(out, id, status >= 200, end, |encoder, out| encode_response(encoder, out, status, fields))
    }

    /// Sends the head of a response that is encoded. `end`: the response has no body.
    ///
    /// # Errors
    ///
    /// `Closed` or `OutOfOrder`.
    pub fn send_encoded_response(
        &mut self,
        out: &mut Vec<u8>,
        id: u32,
        response: &EncodedResponse,
        end: bool,
    ) -> Result<(), SendError> {
        self.respond(out, id, response.is_final, end, |_, out| {
            out.extend_from_slice(&response.block);
            Ok(())
        })
    }

    #[inline]
    fn respond(
        &mut self,
        out: &mut Vec<u8>,
        id: u32,
        is_final: bool,
        end: bool,
        encode: impl FnOnce(&mut Encoder, &mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), SendError> {
        let stream = self.streams.get(id).ok_or(SendError::Closed)?;
        if self.role == Role::Client || stream.is(stream::HEAD_SENT) || end && !is_final {
            return Err(SendError::OutOfOrder);
        }
        self.write_block(out, id, end, encode)?;
        if is_final {
            self.sent(id, stream::HEAD_SENT, end);
        }
        Ok(())
    }

    /// Sends the fields after a body, and ends the message.
    ///
    /// # Errors
    ///
    /// `Closed`, `OutOfOrder`, or `Encode`; a field that is forbidden in trailers is `Encode(Name)`.
    pub fn send_trailers<'f>(
        &mut self,
        out: &mut Vec<u8>,
        id: u32,
        fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
    ) -> Result<(), SendError> {
        self.check_sending(id)?;
        self.write_block(out, id, true, |encoder, out| {
            fields.into_iter().try_for_each(|(name, value)| {
                if check::is_forbidden_trailer(name) {
                    return Err(EncodeError::Name);
                }
                encode_field(encoder, out, name, value, false)
            })
        })?;
        self.sent(id, 0, true);
        Ok(())
    }

    /// Sends as much of a body as the windows allow, and returns the number of bytes. `end`: `data` is the last; the
    /// stream ends when all of it is taken.
    ///
    /// After a shorter count, call again with the rest when [`WindowOpen`](crate::Event::WindowOpen) or
    /// [`Settings`](crate::Event::Settings) comes.
    ///
    /// # Errors
    ///
    /// `Closed` or `OutOfOrder`.
    #[inline]
    pub fn send_data(&mut self, out: &mut Vec<u8>, id: u32, data: &[u8], end: bool) -> Result<usize, SendError> {
        self.check_sending(id)?;
        let most = self.frame_bytes();
        let stream = self.streams.get_mut(id).ok_or(SendError::Closed)?;
        let window = usize::try_from(self.send_window.min(i64::from(stream.send_window))).unwrap_or(0);
        let taken = data.len().min(window);
        let complete = taken == data.len();
        if taken > 0 {
            self.send_window -= taken as i64;
            stream.send_window -= taken as i32;
            // A few bytes of more, because the peer grants no more, are no use of its grant. A few bytes that are all
            // there is are the caller's choice.
            if complete || taken >= SMALLEST_GRANT {
                // Receivers that read in pieces of 4 KiB grant both windows for each.
                self.idle_frames.earn(2 + (taken / 1024) as u32);
            }
            stream.stalled_ticks = 0;
        }
        if complete {
            stream.flags &= !stream::BLOCKED;
        } else {
            stream.flags |= stream::BLOCKED;
            self.blocked |= self.send_window <= 0;
        }
        let ends = complete && end;
        let mut rest = &data[..taken];
        while !rest.is_empty() || ends {
            let (piece, after) = rest.split_at(rest.len().min(most));
            let last = after.is_empty();
            frame::head(out, piece.len(), kind::DATA, if last && ends { flag::END_STREAM } else { 0 }, id);
            out.extend_from_slice(piece);
            rest = after;
            if last {
                break;
            }
        }
        if ends {
            self.sent(id, 0, true);
        }
        Ok(taken)
    }

    /// Ends a stream early. Has no effect on a stream that is not open.
    ///
    /// A server that does not need the rest of a request, after its whole response, resets with
    /// [`ErrorCode::NO_ERROR`].
    pub fn reset(&mut self, out: &mut Vec<u8>, id: u32, code: ErrorCode) {
        if self.streams.remove(id).is_some() {
            self.recent.push(id, Closed::ByUs);
            frame::write_reset(out, id, code);
        }
    }

    /// Sends a PING, which the peer answers with [`Pong`](crate::Event::Pong).
    pub fn ping(&mut self, out: &mut Vec<u8>, data: [u8; 8]) {
        frame::write_ping(out, data, false);
    }

    /// The longest payload to write.
    pub(super) fn frame_bytes(&self) -> usize {
        (self.peer.frame_bytes as usize).clamp(MAX_FRAME_BYTES, MOST_FRAME_BYTES)
    }

    /// Checks that a body or trailers may follow.
    #[inline]
    fn check_sending(&self, id: u32) -> Result<(), SendError> {
        let stream = self.streams.get(id).ok_or(SendError::Closed)?;
        if stream.is(stream::HEAD_SENT) && !stream.is(stream::LOCAL_CLOSED) {
            Ok(())
        } else {
            Err(SendError::OutOfOrder)
        }
    }

    /// Writes a header block; after an error nothing of it.
    #[inline]
    fn write_block(
        &mut self,
        out: &mut Vec<u8>,
        id: u32,
        end: bool,
        encode: impl FnOnce(&mut Encoder, &mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let start = out.len();
        frame::head(out, 0, kind::HEADERS, 0, id);
        self.encoder.begin(out);
        if let Err(error) = encode(&mut self.encoder, out) {
            out.truncate(start);
            self.encoder.discard();
            return Err(error);
        }
        frame::finish_block(out, start, self.frame_bytes(), if end { flag::END_STREAM } else { 0 }, id);
        Ok(())
    }

    #[inline]
    fn open(&mut self, id: u32, end: bool, tag: u32, flags: u16) {
        let flags = flags | stream::HEAD_SENT | if end { stream::LOCAL_CLOSED } else { 0 };
        // As much as a server gives for a request.
        self.answered_frames.earn(1);
        self.idle_frames.earn(4);
        let stream = self.new_stream(id, tag, flags);
        self.streams.insert(stream);
        self.next_id += 2;
    }

    /// Notes what was sent on a stream.
    #[inline]
    fn sent(&mut self, id: u32, flags: u16, end: bool) {
        if let Some(stream) = self.streams.get_mut(id) {
            stream.flags |= flags | if end { stream::LOCAL_CLOSED } else { 0 };
        }
        if end {
            self.close_if_ended(id);
        }
    }
}

fn method_flags(method: &str) -> u16 {
    match method {
        "HEAD" => stream::HEAD_METHOD,
        "CONNECT" => stream::CONNECT,
        _ => 0,
    }
}

fn encode_request<'f>(
    encoder: &mut Encoder,
    out: &mut Vec<u8>,
    request: &Request<'_>,
    fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
) -> Result<(), EncodeError> {
    let method = request.method;
    check::method(method).map_err(|_| EncodeError::Method)?;
    let authority = request.authority.as_bytes();
    if authority.is_empty() || !check::is_authority(authority) {
        return Err(EncodeError::Target);
    }
    let has_path = method != "CONNECT" || request.protocol.is_some();
    encoder.field(out, b":method", method.as_bytes());
    if has_path {
        let path = request.path;
        let form = if method == "CONNECT" { "GET" } else { method };
        let is_path = check::target(form, path, usize::MAX).is_ok() && (path.starts_with('/') || path == "*");
        if !is_path || !matches!(request.scheme, "http" | "https") {
            return Err(EncodeError::Target);
        }
        encoder.field(out, b":scheme", request.scheme.as_bytes());
        encoder.field(out, b":path", path.as_bytes());
    }
    encoder.field(out, b":authority", authority);
    if let Some(protocol) = request.protocol {
        if method != "CONNECT" || !oroshi_http1::is_token(protocol.as_bytes()) {
            return Err(EncodeError::Target);
        }
        encoder.field(out, b":protocol", protocol.as_bytes());
    }
    fields.into_iter().try_for_each(|(name, value)| encode_field(encoder, out, name, value, true))
}

fn encode_response<'f>(
    encoder: &mut Encoder,
    out: &mut Vec<u8>,
    status: u16,
    fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
) -> Result<(), EncodeError> {
    if !(100..1000).contains(&status) || status == 101 {
        return Err(EncodeError::Status);
    }
    encoder.status(out, status);
    fields.into_iter().try_for_each(|(name, value)| encode_field(encoder, out, name, value, false))
}

/// Encodes a field that HTTP/2 has.
#[inline]
fn encode_field(
    encoder: &mut Encoder,
    out: &mut Vec<u8>,
    name: &str,
    value: &[u8],
    is_request: bool,
) -> Result<(), EncodeError> {
    let name = name.as_bytes();
    if name.iter().any(u8::is_ascii_uppercase) {
        let mut lower = [0; 64];
        return match lower.get_mut(..name.len()) {
            Some(lower) => {
                lower.copy_from_slice(name);
                lower.make_ascii_lowercase();
                encode_lower(encoder, out, lower, value, is_request)
            }
            None => encode_lower(encoder, out, &name.to_ascii_lowercase(), value, is_request),
        };
    }
    encode_lower(encoder, out, name, value, is_request)
}

#[inline]
fn encode_lower(
    encoder: &mut Encoder,
    out: &mut Vec<u8>,
    name: &[u8],
    value: &[u8],
    is_request: bool,
) -> Result<(), EncodeError> {
    if name.first() == Some(&b':') || name::check_name(name).is_some() {
        return Err(EncodeError::Name);
    }
    // RFC 9113 section 8.2.1: no white space around a value. HTTP/1.1 has some, which is not part of the value.
    let value = trim(value);
    if name::check_value(value).is_some() {
        return Err(EncodeError::Value);
    }
    match Kind::of(name) {
        Kind::Underscore => return Err(EncodeError::Name),
        Kind::Connection => return Ok(()),
        Kind::Te if !value.eq_ignore_ascii_case(b"trailers") => return Ok(()),
        Kind::Host if is_request => return Ok(()),
        _ => {}
    }
    encoder.field(out, name, value);
    Ok(())
}

/// Removes optional white space (SP, HTAB) from both ends.
#[inline]
fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}
