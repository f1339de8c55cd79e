//! Frame headers (RFC 6455 section 5.2) and masking (section 5.3).

use crate::error::Violation;

/// The type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// UTF-8.
    Text,
    /// Any bytes.
    Binary,
}

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opcode {
    Continuation,
    Message(Kind),
    Close,
    Ping,
    Pong,
}

impl Opcode {
    pub(crate) fn bits(self) -> u8 {
        match self {
            Opcode::Continuation => 0,
            Opcode::Message(Kind::Text) => 1,
            Opcode::Message(Kind::Binary) => 2,
            Opcode::Close => 8,
            Opcode::Ping => 9,
            Opcode::Pong => 10,
        }
    }

    fn of(bits: u8) -> Result<Self, Violation> {
        Ok(match bits {
            0 => Opcode::Continuation,
            1 => Opcode::Message(Kind::Text),
            2 => Opcode::Message(Kind::Binary),
            8 => Opcode::Close,
            9 => Opcode::Ping,
            10 => Opcode::Pong,
            _ => return Err(Violation::Opcode),
        })
    }

    pub(crate) fn is_control(self) -> bool {
        matches!(self, Opcode::Close | Opcode::Ping | Opcode::Pong)
    }
}

/// The largest payload of a control frame.
pub(crate) const CONTROL_BYTES: u64 = 125;

/// The first reserved bit.
const COMPRESSED: u8 = 0x40;

/// A frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Whether the frame ends its message.
    pub(crate) last: bool,
    /// Whether it begins a compressed message: the first reserved bit (RFC 7692, section 6).
    pub(crate) compressed: bool,
    pub(crate) opcode: Opcode,
    pub(crate) length: u64,
    pub(crate) mask: Option<[u8; 4]>,
}

impl Header {
    /// Reads a header from the front of `bytes`, and returns its length too. `None`: more bytes are needed. Reports
    /// violations as early as possible. `deflate`: messages may be compressed.
    pub(crate) fn read(bytes: &[u8], deflate: bool) -> Result<Option<(Self, usize)>, Violation> {
        let Some(&first) = bytes.first() else { return Ok(None) };
        let compressed = first & COMPRESSED != 0;
        if first & 0x30 != 0 || (compressed && !deflate) {
            return Err(Violation::ReservedBits);
        }
        let (last, opcode) = (first & 0x80 != 0, Opcode::of(first & 0x0f)?);
        if compressed && !matches!(opcode, Opcode::Message(_)) {
            return Err(Violation::ReservedBits);
        }
        if opcode.is_control() && !last {
            return Err(Violation::FragmentedControl);
        }
        let Some(&second) = bytes.get(1) else { return Ok(None) };
        let (masked, short) = (second & 0x80 != 0, second & 0x7f);
        if opcode.is_control() && u64::from(short) > CONTROL_BYTES {
            return Err(Violation::LargeControl);
        }
        let (length, at) = match short {
            126 => match bytes.get(2..4).and_then(|two| two.try_into().ok()) {
                Some(two) => (u64::from(u16::from_be_bytes(two)), 4),
                None => return Ok(None),
            },
            127 => match bytes.get(2..10).and_then(|eight| eight.try_into().ok()) {
                Some(eight) => (u64::from_be_bytes(eight), 10),
                None => return Ok(None),
            },
            short => (u64::from(short), 2),
        };
        // Section 5.2 requires the shortest form, and the highest bit of eight bytes is zero.
        if (short == 126 && length < 126) || (short == 127 && !(65_536..1 << 63).contains(&length)) {
            return Err(Violation::Length);
        }
        if !masked {
            return Ok(Some((Header { last, compressed, opcode, length, mask: None }, at)));
        }
        let Some(mask) = bytes.get(at..at + 4).and_then(|four| four.try_into().ok()) else { return Ok(None) };
        Ok(Some((Header { last, compressed, opcode, length, mask: Some(mask) }, at + 4)))
    }

    /// Appends the header.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let compressed = if self.compressed { COMPRESSED } else { 0 };
        out.push(if self.last { 0x80 } else { 0 } | compressed | self.opcode.bits());
        let masked = if self.mask.is_some() { 0x80 } else { 0 };
        match self.length {
            short @ 0..126 => out.push(masked | short as u8),
            middle @ 126..65_536 => {
                out.push(masked | 126);
                out.extend_from_slice(&(middle as u16).to_be_bytes());
            }
            long => {
                out.push(masked | 127);
                out.extend_from_slice(&long.to_be_bytes());
            }
        }
        out.extend_from_slice(self.mask.as_ref().map_or(&[][..], |mask| mask));
    }
}

/// Masks or unmasks `bytes`; the first byte uses the first byte of `key`.
pub(crate) fn mask(bytes: &mut [u8], key: [u8; 4]) {
    let eight = u64::from_ne_bytes(std::array::from_fn(|at| key[at % 4]));
    let (chunks, rest) = bytes.as_chunks_mut::<8>();
    for chunk in chunks {
        *chunk = (u64::from_ne_bytes(*chunk) ^ eight).to_ne_bytes();
    }
    for (byte, key) in rest.iter_mut().zip(key.iter().cycle()) {
        *byte ^= key;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_examples_of_the_standard() {
        let read = |bytes: &[u8]| Header::read(bytes, false).unwrap().unwrap();
        let text = Opcode::Message(Kind::Text);
        assert_eq!(
            read(&[0x81, 0x05]),
            (Header { last: true, compressed: false, opcode: text, length: 5, mask: None }, 2)
        );
        let masked = Header { mask: Some([0x37, 0xfa, 0x21, 0x3d]), ..read(&[0x81, 0x05]).0 };
        assert_eq!(read(&[0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d]), (masked, 6));
        assert!(!read(&[0x01, 0x03]).0.last);
        let binary = |length| Header { opcode: Opcode::Message(Kind::Binary), length, ..read(&[0x81, 0x05]).0 };
        assert_eq!(read(&[0x82, 0x7e, 0x01, 0x00]), (binary(256), 4));
        assert_eq!(read(&[0x82, 0x7f, 0, 0, 0, 0, 0, 1, 0, 0]), (binary(65_536), 10));
        let mut hello = [0x7f, 0x9f, 0x4d, 0x51, 0x58];
        mask(&mut hello, [0x37, 0xfa, 0x21, 0x3d]);
        assert_eq!(&hello, b"Hello");
    }

    #[test]
    fn what_is_wrong_is_told_as_soon_as_it_is_seen() {
        let wrong = |bytes: &[u8]| Header::read(bytes, false).unwrap_err();
        assert_eq!(wrong(&[0xc1]), Violation::ReservedBits);
        // The first reserved bit may only begin a message, and only if that was agreed on.
        for first in [0xa1, 0x91, 0xc0, 0x40, 0xc9, 0xc8] {
            assert_eq!(Header::read(&[first], true), Err(Violation::ReservedBits), "{first:x}");
        }
        assert_eq!(Header::read(&[0xc1], true), Ok(None));
        assert_eq!(wrong(&[0x83]), Violation::Opcode);
        assert_eq!(wrong(&[0x8b]), Violation::Opcode);
        assert_eq!(wrong(&[0x09]), Violation::FragmentedControl);
        assert_eq!(wrong(&[0x89, 0xfe]), Violation::LargeControl);
        assert_eq!(wrong(&[0x81, 126, 0, 125]), Violation::Length);
        assert_eq!(wrong(&[0x81, 127, 0, 0, 0, 0, 0, 0, 255, 255]), Violation::Length);
        assert_eq!(wrong(&[0x81, 127, 0x80, 0, 0, 0, 0, 0, 0, 0]), Violation::Length);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            last: bool,
            compressed: bool,
            length in prop_oneof![0..200u64, 65_000..66_000u64, 0..1u64 << 63],
            key: Option<[u8; 4]>,
        ) {
            let header = Header { last, compressed, opcode: Opcode::Message(Kind::Binary), length, mask: key };
            let mut bytes = Vec::new();
            header.write(&mut bytes);
            prop_assert!(bytes.len() <= 14);
            prop_assert_eq!(Header::read(&bytes, true).unwrap(), Some((header, bytes.len())));
            for cut in 0..bytes.len() {
                prop_assert_eq!(Header::read(&bytes[..cut], true).unwrap(), None);
            }
        }

        #[test]
        fn each_byte_meets_its_byte_of_the_key(bytes: Vec<u8>, key: [u8; 4]) {
            let mut masked = bytes.clone();
            mask(&mut masked, key);
            let mut pairs = masked.iter().zip(&bytes).enumerate();
            prop_assert!(pairs.all(|(at, (masked, byte))| *masked == byte ^ key[at % 4]));
        }
    }
}
