//! Decodes a body by its framing, byte by byte: lengths, chunks, trailers; for requests and responses.

use crate::head::Headers;
use crate::{DecodeError, Framing, Limits, scan, syntax};

/// An event of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyEvent<'b> {
    Data(&'b [u8]),
    Trailers(Headers<'b>),
    End,
}

/// The position of the input within a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// `left` bytes of a body with a length.
    Length,
    /// Everything until the peer closes.
    UntilClose,
    /// In the digits of a chunk size; `line` counts them, `left` is their value.
    ChunkSize,
    /// After the semicolon of a chunk line.
    ChunkExtension,
    /// After the CR of a chunk line.
    ChunkLineLf,
    /// `left` bytes of a chunk.
    ChunkData,
    /// Where a chunk's data must end.
    ChunkDataCr,
    ChunkDataLf,
    /// After the line of the last chunk.
    Trailers,
    /// Everything is read; the `End` event is still due.
    #[default]
    End,
    /// No longer HTTP.
    Tunnel,
}

/// The state of one body.
#[derive(Clone, Debug, Default)]
pub(crate) struct Body {
    /// Bytes left of the body or of the chunk; the value so far while a chunk size is read.
    left: u64,
    /// Body bytes counted so far, announced chunks included.
    taken: u64,
    /// Bytes of the current chunk line.
    line: u32,
    /// Bytes of all chunk extensions so far.
    extensions: u32,
    /// Number of bytes already searched for the end of the trailers.
    scanned: u32,
    phase: Phase,
}

impl Body {
    /// The start of a body. `BodyTooLarge` if it announces more than the limit.
    #[inline]
    pub(crate) fn new(framing: Framing, limits: &Limits) -> Result<Self, DecodeError> {
        let (phase, left) = match framing {
            Framing::None | Framing::Length(0) => (Phase::End, 0),
            Framing::Length(length) if length > limits.body_bytes => return Err(DecodeError::BodyTooLarge),
            Framing::Length(length) => (Phase::Length, length),
            Framing::Chunked => (Phase::ChunkSize, 0),
            Framing::UntilClose => (Phase::UntilClose, 0),
            Framing::Tunnel => (Phase::Tunnel, 0),
        };
        Ok(Body { left, phase, ..Body::default() })
    }

    /// Returns the next event of the body, or `None` when more input is needed. After `End` the body is over.
    pub(crate) fn decode<'b>(
        &mut self,
        limits: &Limits,
        input: &mut &'b [u8],
    ) -> Result<Option<BodyEvent<'b>>, DecodeError> {
        loop {
            match self.phase {
                Phase::End => return Ok(Some(BodyEvent::End)),
                Phase::Length | Phase::ChunkData => {
                    let Some(data) = self.take(input) else { return Ok(None) };
                    if self.left == 0 {
                        self.phase = if self.phase == Phase::Length { Phase::End } else { Phase::ChunkDataCr };
                    }
                    return Ok(Some(BodyEvent::Data(data)));
                }
                Phase::UntilClose => {
                    if input.is_empty() {
                        return Ok(None);
                    }
                    self.left = limits.body_bytes.saturating_sub(self.taken);
                    let data = self.take(input).ok_or(DecodeError::BodyTooLarge)?;
                    self.taken += data.len() as u64;
                    return Ok(Some(BodyEvent::Data(data)));
                }
                Phase::Trailers => return self.trailers(limits, input),
                Phase::Tunnel => return Ok(None),
                _ => {
                    let Some((&byte, rest)) = input.split_first() else { return Ok(None) };
                    self.chunk_line_byte(byte, limits)?;
                    *input = rest;
                }
            }
        }
    }

    /// Whether a close by the peer ends the body normally.
    pub(crate) fn ends_at_eof(&self) -> bool {
        matches!(self.phase, Phase::UntilClose | Phase::End)
    }

    /// Whether the following bytes are not HTTP.
    pub(crate) fn is_tunnel(&self) -> bool {
        self.phase == Phase::Tunnel
    }

    /// Takes at most `left` bytes; `None` if there are none to take.
    fn take<'b>(&mut self, input: &mut &'b [u8]) -> Option<&'b [u8]> {
        let length = usize::try_from(self.left).unwrap_or(usize::MAX).min(input.len());
        let (data, rest) = input.split_at(length);
        *input = rest;
        self.left -= length as u64;
        if data.is_empty() { None } else { Some(data) }
    }

    /// Processes one byte of the lines around chunk data (RFC 9112 section 7.1).
    fn chunk_line_byte(&mut self, byte: u8, limits: &Limits) -> Result<(), DecodeError> {
        match (self.phase, byte) {
            (Phase::ChunkSize | Phase::ChunkExtension, b'\r') if self.line > 0 => self.phase = Phase::ChunkLineLf,
            (Phase::ChunkSize | Phase::ChunkExtension | Phase::ChunkDataCr, b'\n') => return Err(DecodeError::BareLf),
            (Phase::ChunkSize | Phase::ChunkExtension, 0) => return Err(DecodeError::Nul),
            (Phase::ChunkSize, b';') if self.line > 0 => {
                self.phase = Phase::ChunkExtension;
                self.count_line_byte(limits)?;
                self.count_extension_byte(limits)?;
            }
            (Phase::ChunkSize, _) => {
                let digit = (byte as char).to_digit(16).ok_or(DecodeError::BadChunkSize)?;
                self.count_line_byte(limits)?;
                // Below 2^59 a further digit stays below 2^63.
                if self.left >> 59 != 0 || self.line > 16 {
                    return Err(DecodeError::ChunkSizeOverflow);
                }
                self.left = self.left << 4 | u64::from(digit);
            }
            (Phase::ChunkExtension, _) if syntax::is_value_byte(byte) => {
                self.count_line_byte(limits)?;
                self.count_extension_byte(limits)?;
            }
            (Phase::ChunkExtension, _) => return Err(DecodeError::BadChunkExtension),
            (Phase::ChunkLineLf, b'\n') => self.chunk_line_end(limits)?,
            (Phase::ChunkDataCr, b'\r') => self.phase = Phase::ChunkDataLf,
            (Phase::ChunkDataLf, b'\n') => (self.phase, self.line) = (Phase::ChunkSize, 0),
            (Phase::ChunkLineLf | Phase::ChunkDataLf, _) => return Err(DecodeError::BareCr),
            _ => return Err(DecodeError::BadChunkEnd),
        }
        Ok(())
    }

    fn chunk_line_end(&mut self, limits: &Limits) -> Result<(), DecodeError> {
        if self.left == 0 {
            self.phase = Phase::Trailers;
            return Ok(());
        }
        // Both are below 2^63.
        self.taken = self.taken.saturating_add(self.left);
        if self.taken > limits.body_bytes {
            return Err(DecodeError::BodyTooLarge);
        }
        self.phase = Phase::ChunkData;
        Ok(())
    }

    fn count_line_byte(&mut self, limits: &Limits) -> Result<(), DecodeError> {
        self.line = self.line.saturating_add(1);
        if self.line as usize > limits.chunk_line_bytes { Err(DecodeError::ChunkLineTooLong) } else { Ok(()) }
    }

    fn count_extension_byte(&mut self, limits: &Limits) -> Result<(), DecodeError> {
        self.extensions = self.extensions.saturating_add(1);
        if self.extensions as usize > limits.extension_bytes { Err(DecodeError::ChunkLineTooLong) } else { Ok(()) }
    }

    fn trailers<'b>(&mut self, limits: &Limits, input: &mut &'b [u8]) -> Result<Option<BodyEvent<'b>>, DecodeError> {
        let most = limits.trailer_bytes.min(u32::MAX as usize);
        let section = &input[..input.len().min(most)];
        let Some(end) = scan::find_end(section, &mut self.scanned)? else {
            let full = section.len() == most;
            return if full { Err(DecodeError::TrailersTooLarge) } else { Ok(None) };
        };
        let lines = &section[..end - 2];
        *input = &input[end..];
        self.phase = Phase::End;
        if lines.is_empty() {
            return Ok(Some(BodyEvent::End));
        }
        syntax::field_lines(lines, limits.trailers, DecodeError::TooManyTrailers)?;
        let trailers = Headers::validated(lines);
        if trailers.iter().any(|field| is_forbidden_in_trailers(field.name)) {
            return Err(DecodeError::ForbiddenTrailer);
        }
        Ok(Some(BodyEvent::Trailers(trailers)))
    }
}

/// Whether a field must not come after the body (RFC 9110 section 6.5.1).
///
/// Forbidden are fields that frame, route, authenticate or modify the request, control the response, or say how to
/// read the body. Many recipients merge trailers into the header, and would act on these.
#[must_use]
pub fn is_forbidden_in_trailers(name: &str) -> bool {
    const FORBIDDEN: [&str; 33] = [
        // Framing and the connection.
        "content-length",
        "content_length",
        "transfer-encoding",
        "transfer_encoding",
        "te",
        "trailer",
        "connection",
        "keep-alive",
        "proxy-connection",
        "upgrade",
        // Routing and request modifiers.
        "host",
        "expect",
        "max-forwards",
        "cache-control",
        "pragma",
        "range",
        "if-match",
        "if-none-match",
        "if-modified-since",
        "if-unmodified-since",
        "if-range",
        // Authentication and state.
        "authorization",
        "proxy-authorization",
        "www-authenticate",
        "proxy-authenticate",
        "cookie",
        "set-cookie",
        // Body decoding and destination.
        "content-encoding",
        "content-type",
        "content-range",
        "location",
        "vary",
        "retry-after",
    ];
    FORBIDDEN.iter().any(|forbidden| name.eq_ignore_ascii_case(forbidden))
}
