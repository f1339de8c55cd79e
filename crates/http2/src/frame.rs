//! Frames as bytes (RFC 9113 sections 4 and 6).

use crate::{Defect, ErrorCode};

/// The bytes that a client begins a connection with (RFC 9113 section 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes of a frame before its payload.
pub const FRAME_HEAD_BYTES: usize = 9;

/// The longest payload that this crate accepts: the default of SETTINGS_MAX_FRAME_SIZE.
pub const MAX_FRAME_BYTES: usize = 16_384;

/// The greatest window (RFC 9113 section 6.9.1).
pub(crate) const MAX_WINDOW: u32 = (1 << 31) - 1;

/// The window of a new connection, and of streams without the setting.
pub(crate) const DEFAULT_WINDOW: u32 = 65_535;

/// Types of frames.
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const PRIORITY: u8 = 2;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PUSH_PROMISE: u8 = 5;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

/// Flags of frames.
pub(crate) mod flag {
    pub(crate) const ACK: u8 = 0x1;
    pub(crate) const END_STREAM: u8 = 0x1;
    pub(crate) const END_HEADERS: u8 = 0x4;
    pub(crate) const PADDED: u8 = 0x8;
    pub(crate) const PRIORITY: u8 = 0x20;
}

/// Identifiers of settings (RFC 9113 section 6.5.2, RFC 8441 section 3).
pub(crate) mod setting {
    pub(crate) const HEADER_TABLE_SIZE: u16 = 1;
    pub(crate) const ENABLE_PUSH: u16 = 2;
    pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(crate) const MAX_FRAME_SIZE: u16 = 5;
    pub(crate) const MAX_HEADER_LIST_SIZE: u16 = 6;
    pub(crate) const ENABLE_CONNECT_PROTOCOL: u16 = 8;
}

/// The first nine bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHead {
    pub(crate) length: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

impl FrameHead {
    /// Reads the head at the start of `input`; `None` if it is not complete.
    #[inline]
    pub(crate) fn parse(input: &[u8]) -> Option<Self> {
        let &[a, b, c, kind, flags, d, e, f, g] = input.first_chunk::<FRAME_HEAD_BYTES>()?;
        Some(FrameHead {
            length: u32::from_be_bytes([0, a, b, c]) as usize,
            kind,
            flags,
            // The highest bit is reserved and ignored.
            stream: u32::from_be_bytes([d, e, f, g]) & MAX_WINDOW,
        })
    }

    pub(crate) const fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Removes the padding of a payload (RFC 9113 section 6.1).
pub(crate) fn without_padding(head: FrameHead, payload: &[u8]) -> Result<&[u8], Defect> {
    if !head.has(flag::PADDED) {
        return Ok(payload);
    }
    let (&padding, rest) = payload.split_first().ok_or(Defect::BadFrameSize)?;
    let length = rest.len().checked_sub(usize::from(padding)).ok_or(Defect::BadPadding)?;
    Ok(&rest[..length])
}

/// Returns the 32 bits at the start, without the reserved highest one.
pub(crate) fn number(payload: &[u8]) -> Option<u32> {
    payload.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes) & MAX_WINDOW)
}

/// The settings in a payload whose length is a multiple of six.
pub(crate) fn settings(payload: &[u8]) -> impl Iterator<Item = (u16, u32)> {
    payload.as_chunks::<6>().0.iter().map(|&[a, b, c, d, e, f]| {
        (u16::from_be_bytes([a, b]), u32::from_be_bytes([c, d, e, f])) //
    })
}

/// Appends a frame's head.
#[inline]
pub(crate) fn head(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    let [_, a, b, c] = (length as u32).to_be_bytes();
    let [d, e, f, g] = stream.to_be_bytes();
    out.extend_from_slice(&[a, b, c, kind, flags, d, e, f, g]);
}

/// Changes length and flags of the frame head that begins at `start`.
#[inline]
pub(crate) fn patch(out: &mut [u8], start: usize, length: usize, flags: u8) {
    let [_, a, b, c] = (length as u32).to_be_bytes();
    if let Some(head) = out.get_mut(start..start + 5) {
        head[..3].copy_from_slice(&[a, b, c]);
        head[4] = flags;
    }
}

/// Appends SETTINGS.
pub(crate) fn write_settings(out: &mut Vec<u8>, settings: &[(u16, u32)]) {
    head(out, settings.len() * 6, kind::SETTINGS, 0, 0);
    for (setting, value) in settings {
        out.extend_from_slice(&setting.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends the acknowledgement of settings.
pub(crate) fn write_settings_ack(out: &mut Vec<u8>) {
    head(out, 0, kind::SETTINGS, flag::ACK, 0);
}

/// Appends PING.
pub(crate) fn write_ping(out: &mut Vec<u8>, data: [u8; 8], ack: bool) {
    head(out, 8, kind::PING, if ack { flag::ACK } else { 0 }, 0);
    out.extend_from_slice(&data);
}

/// Appends RST_STREAM.
pub(crate) fn write_reset(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    head(out, 4, kind::RST_STREAM, 0, stream);
    out.extend_from_slice(&code.0.to_be_bytes());
}

/// Appends GOAWAY.
pub(crate) fn write_goaway(out: &mut Vec<u8>, last_stream: u32, code: ErrorCode, debug: &[u8]) {
    head(out, 8 + debug.len(), kind::GOAWAY, 0, 0);
    out.extend_from_slice(&last_stream.to_be_bytes());
    out.extend_from_slice(&code.0.to_be_bytes());
    out.extend_from_slice(debug);
}

/// Appends WINDOW_UPDATE.
pub(crate) fn write_window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    head(out, 4, kind::WINDOW_UPDATE, 0, stream);
    out.extend_from_slice(&increment.to_be_bytes());
}

/// Splits the header block that ends `out`, and whose HEADERS frame begins at `start`, into frames of at most `most`
/// bytes.
pub(crate) fn finish_block(out: &mut Vec<u8>, start: usize, most: usize, flags: u8, stream: u32) {
    let length = out.len() - start - FRAME_HEAD_BYTES;
    if length <= most {
        patch(out, start, length, flags | flag::END_HEADERS);
        return;
    }
    patch(out, start, most, flags);
    let rest = out.split_off(start + FRAME_HEAD_BYTES + most);
    let mut pieces = rest.chunks(most).peekable();
    while let Some(piece) = pieces.next() {
        let flags = if pieces.peek().is_none() { flag::END_HEADERS } else { 0 };
        head(out, piece.len(), kind::CONTINUATION, flags, stream);
        out.extend_from_slice(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_as_they_are_written() {
        let mut out = Vec::new();
        head(&mut out, 0x12_3456, kind::PING, flag::ACK, MAX_WINDOW);
        let read = FrameHead { length: 0x12_3456, kind: kind::PING, flags: flag::ACK, stream: MAX_WINDOW };
        assert_eq!(FrameHead::parse(&out), Some(read));
        out[5] |= 0x80;
        assert_eq!(FrameHead::parse(&out), Some(read), "the reserved bit");
        assert_eq!(FrameHead::parse(&out[..8]), None);
    }

    #[test]
    fn long_blocks_are_continued() {
        let mut out = b"before".to_vec();
        head(&mut out, 0, kind::HEADERS, 0, 5);
        out.extend_from_slice(b"0123456789");
        let mut whole = out.clone();
        finish_block(&mut whole, 6, 10, flag::END_STREAM, 5);
        assert_eq!(&whole[6..], b"\0\0\x0a\x01\x05\0\0\0\x050123456789");
        finish_block(&mut out, 6, 4, flag::END_STREAM, 5);
        let expected = b"\0\0\x04\x01\x01\0\0\0\x050123\0\0\x04\x09\0\0\0\0\x054567\0\0\x02\x09\x04\0\0\0\x0589";
        assert_eq!(&out[6..], expected);
    }
}
