//! permessage-deflate (RFC 7692): which offers are accepted, and the coding of messages.
//!
//! Neither side keeps a window from message to message (`server_no_context_takeover`, `client_no_context_takeover`).
//! Thus a connection holds no state, one compressed frame fits all clients, and the memory is that of one compressor
//! and one decompressor per thread, about 300 KiB.

use std::cell::RefCell;

use zlib_rs::{Deflate, DeflateFlush, Inflate, InflateFlush, Status};

use crate::error::Violation;

mod offer;

pub(crate) use offer::{accept, check_answer};

/// How far back a compressed message may refer (RFC 7692, section 7.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// 32 KiB: window bits 15.
    Full,
    /// 512 bytes: window bits 9, which also serves clients that want 10 to 14.
    Small,
}

impl Window {
    fn bits(self) -> u8 {
        match self {
            Window::Full => 15,
            Window::Small => 9,
        }
    }
}

/// The accepted offer of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The window for messages to the client.
    pub window: Window,
    /// The value of Sec-WebSocket-Extensions in the response.
    pub field: &'static str,
}

/// The value of Sec-WebSocket-Extensions that a client offers, to keep no window either.
pub const OFFER: &str = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";

/// The compression level of zlib. Level 6 of zlib-rs searches less than zlib's: messages would be 1 % (1 KB of JSON) to
/// 6 % (47 KB) larger. 7 takes the same time for the former, and half more for the latter.
const LEVEL: i32 = 7;

/// The end of a flushed stream, which messages leave out (RFC 7692, section 7.2.1).
const FLUSHED: &[u8] = &[0, 0, 0xff, 0xff];

/// [`FLUSHED`], and an empty final block: an intact message ends exactly with it.
const END: &[u8] = &[0, 0, 0xff, 0xff, 1, 0, 0, 0xff, 0xff];

/// The pieces in which output is taken.
const PIECE: usize = 8192;

thread_local! {
    static COMPRESSORS: RefCell<[Option<Deflate>; 2]> = const { RefCell::new([None, None]) };
    static DECOMPRESSOR: RefCell<Option<Inflate>> = const { RefCell::new(None) };
}

/// Compresses a message. `None` if it would not become smaller.
#[must_use]
pub fn compress(data: &[u8], window: Window) -> Option<Vec<u8>> {
    COMPRESSORS.with_borrow_mut(|all| {
        let deflate = all[window as usize].get_or_insert_with(|| Deflate::new(LEVEL, false, window.bits()));
        deflate.reset();
        let (mut input, mut out, mut piece) = (data, Vec::with_capacity(data.len() / 2), [0; PIECE]);
        loop {
            let (before_in, before_out) = (deflate.total_in(), deflate.total_out());
            // An error would be a mistake in this loop; the message then goes out as it is.
            deflate.compress(input, &mut piece, DeflateFlush::SyncFlush).ok()?;
            input = &input[(deflate.total_in() - before_in) as usize..];
            let count = (deflate.total_out() - before_out) as usize;
            out.extend_from_slice(&piece[..count]);
            if out.len() >= data.len() + FLUSHED.len() {
                return None;
            }
            if input.is_empty() && count < piece.len() {
                break;
            }
        }
        out.truncate(out.strip_suffix(FLUSHED)?.len());
        (out.len() < data.len()).then_some(out)
    })
}

/// Returns the most bytes of a compressed message that may inflate to `most` bytes: data that does not compress grows,
/// by some bytes for each flush of the peer.
pub(crate) fn compressed_bound(most: usize) -> usize {
    most.saturating_add(most / 8).saturating_add(64)
}

/// Inflates a message of at most `most` bytes. Stops at the first byte beyond.
pub(crate) fn inflate(data: &[u8], most: usize) -> Result<Vec<u8>, Violation> {
    // zlib's flush writes nothing for an empty message that follows another one.
    if data.is_empty() {
        return Ok(Vec::new());
    }
    DECOMPRESSOR.with_borrow_mut(|inflate| {
        let inflate = inflate.get_or_insert_with(|| Inflate::new(false, Window::Full.bits()));
        inflate.reset(false);
        let mut out = Vec::new();
        inflate_piece(inflate, data, &mut out, most)?;
        match inflate_piece(inflate, END, &mut out, most)? {
            Status::StreamEnd => Ok(out),
            // The message ends within a block.
            _ => Err(Violation::Deflate),
        }
    })
}

/// Inflates more of a message, and returns the last status.
fn inflate_piece(inflate: &mut Inflate, mut input: &[u8], out: &mut Vec<u8>, most: usize) -> Result<Status, Violation> {
    let mut piece = [0; PIECE];
    loop {
        let (before_in, before_out) = (inflate.total_in(), inflate.total_out());
        let status = inflate.decompress(input, &mut piece, InflateFlush::NoFlush).map_err(|_| Violation::Deflate)?;
        let read = (inflate.total_in() - before_in) as usize;
        let count = (inflate.total_out() - before_out) as usize;
        input = &input[read..];
        if count > most - out.len() {
            return Err(Violation::TooLarge);
        }
        out.extend_from_slice(&piece[..count]);
        match status {
            // A final block may end within a message (RFC 7692, section 7.2.3.4): the rest is a stream of its own.
            Status::StreamEnd if input.is_empty() => {
                inflate.reset(false);
                return Ok(status);
            }
            Status::StreamEnd => inflate.reset(false),
            _ if input.is_empty() && count < piece.len() => return Ok(status),
            _ if read == 0 && count == 0 => return Err(Violation::Deflate),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use sha1::{Digest as _, Sha1};

    use super::*;

    /// Bytes that do not compress.
    fn noise(count: usize) -> Vec<u8> {
        (0..count.div_ceil(20) as u32).flat_map(|n| Sha1::digest(n.to_be_bytes())).take(count).collect()
    }

    #[test]
    fn the_examples_of_the_standard() {
        // Section 7.2.3: one block, two blocks, no compression, a final block, two blocks with a flush between them.
        for bytes in [
            &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00][..],
            &[0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00],
            &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00],
            &[0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00],
        ] {
            assert_eq!(inflate(bytes, 5).unwrap(), b"Hello", "{bytes:x?}");
            assert_eq!(inflate(bytes, 4), Err(Violation::TooLarge));
        }
        assert_eq!(inflate(&[0x00], 0).unwrap(), b"");
        assert_eq!(inflate(&[], 0).unwrap(), b"");
    }

    #[test]
    fn what_is_no_deflate_or_is_cut_is_refused() {
        assert_eq!(inflate(&[0xff], 100), Err(Violation::Deflate), "a reserved type of block");
        assert_eq!(inflate(&[0xf2, 0x48, 0xcd], 100), Err(Violation::Deflate), "within a block");
        // A reference to the window of an earlier message (section 7.2.3.2), which is not kept.
        assert_eq!(inflate(&[0xf2, 0x00, 0x11, 0x00, 0x00], 100), Err(Violation::Deflate));
    }

    #[test]
    fn a_bomb_stops_at_the_limit() {
        let bomb = compress(&vec![0; 50_000_000], Window::Full).unwrap();
        assert!(bomb.len() < 60_000, "{}", bomb.len());
        assert_eq!(inflate(&bomb, 65_536), Err(Violation::TooLarge));
        assert_eq!(inflate(b"\xf2\x48\xcd\xc9\xc9\x07\x00", 5).unwrap(), b"Hello", "the next one is another stream");
    }

    #[test]
    fn what_does_not_become_smaller_is_not_compressed() {
        assert_eq!(compress(b"", Window::Full), None);
        assert_eq!(compress(b"ab", Window::Full), None);
        assert_eq!(compress(&noise(1000), Window::Full), None);
    }

    #[test]
    fn a_small_window_reaches_512_bytes_back() {
        let noise = noise(600);
        let twice = [&noise[..], &noise[..]].concat();
        let full = compress(&twice, Window::Full).unwrap();
        assert!(full.len() < 700, "{}", full.len());
        assert_eq!(compress(&twice, Window::Small), None, "600 bytes back is too far");
        let near = [&noise[..200], &noise[..200], &noise[..200]].concat();
        let small = compress(&near, Window::Small).unwrap();
        // A decompressor with this window reads it.
        let (mut decompressor, mut out) = (Inflate::new(false, 9), vec![0; 1000]);
        decompressor.decompress(&[&small[..], FLUSHED].concat(), &mut out, InflateFlush::SyncFlush).unwrap();
        assert_eq!(&out[..decompressor.total_out() as usize], near);
    }

    proptest! {
        #[test]
        fn what_is_compressed_is_inflated(words in vec(0_u8..20, 0..3000), repeats in 1..30_usize, small: bool) {
            let data = words.repeat(repeats);
            let window = if small { Window::Small } else { Window::Full };
            if let Some(compressed) = compress(&data, window) {
                prop_assert!(compressed.len() < data.len());
                prop_assert_eq!(inflate(&compressed, data.len()), Ok(data));
            }
        }

        #[test]
        fn no_bytes_inflate_beyond_the_limit(data in vec(any::<u8>(), 0..300), most in 0..2000_usize) {
            if let Ok(out) = inflate(&data, most) {
                prop_assert!(out.len() <= most);
            }
        }
    }
}
