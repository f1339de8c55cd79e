//! NATS's nkeys: Ed25519 keys (RFC 8032) as text, with a kind and a checksum.
//!
//! A seed is `S`, the letter of its kind, and 32 bytes; a public key is that letter and 32 bytes. Both are in base32
//! without padding (RFC 4648, section 6) and end in a CRC-16. `nk -gen user` makes one, `nk -inkey FILE -pubout` shows
//! its public key.

use data_encoding::BASE32_NOPAD;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};

/// Bytes of a public key, and of a signature.
pub const PUBLIC: usize = 32;
/// See [`PUBLIC`].
pub const SIGNATURE: usize = 64;
/// Kinds of keys, as the first byte of a public key: user, account, operator, server, cluster.
const KINDS: [u8; 5] = [20 << 3, 0, 14 << 3, 13 << 3, 2 << 3];
/// The first five bits of a seed.
const SEED: u8 = 18 << 3;

/// A text is no nkey.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NkeyError {
    /// Give the whole seed, which `nk -gen user` prints.
    #[error("it is no seed of an nkey: expected SU and 56 letters and digits more")]
    Seed,
    /// Give public keys, which `nk -inkey FILE -pubout` prints. The text is not shown: it may be a seed.
    #[error("it is no public key of an nkey: expected U and 55 letters and digits more")]
    Public,
}

/// A public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Public(pub [u8; PUBLIC]);

impl Public {
    /// Reads a public key as text.
    ///
    /// # Errors
    /// The text is something else, or has a wrong checksum.
    pub fn parse(text: &str) -> Result<Self, NkeyError> {
        let bytes = checked(text).ok_or(NkeyError::Public)?;
        match bytes.split_first() {
            Some((kind, key)) if KINDS.contains(kind) => key.try_into().map(Self).map_err(|_| NkeyError::Public),
            _ => Err(NkeyError::Public),
        }
    }

    /// Whether `signature` is that of `message` by this key.
    #[must_use]
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.0).verify(message, signature).is_ok()
    }
}

/// A key that signs.
#[derive(Debug)]
pub struct Seed(Ed25519KeyPair);

impl Seed {
    /// Whether a text is meant to be a seed.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        text.len() == 58 && text.starts_with('S') && BASE32_NOPAD.decode(text.as_bytes()).is_ok()
    }

    /// Reads a seed as text.
    ///
    /// # Errors
    /// The text is something else, or has a wrong checksum.
    pub fn parse(text: &str) -> Result<Self, NkeyError> {
        let bytes = checked(text).ok_or(NkeyError::Seed)?;
        let [first, second, seed @ ..] = &bytes[..] else { return Err(NkeyError::Seed) };
        let kind = (first & 7) << 5 | second >> 3;
        if first & 0xf8 != SEED || !KINDS.contains(&kind) {
            return Err(NkeyError::Seed);
        }
        Ed25519KeyPair::from_seed_unchecked(seed).map(Self).map_err(|_| NkeyError::Seed)
    }

    /// Returns the public key.
    ///
    /// # Panics
    /// Never: an Ed25519 key has 32 bytes.
    #[must_use]
    pub fn public(&self) -> Public {
        Public(self.0.public_key().as_ref().try_into().expect("an Ed25519 key has 32 bytes"))
    }

    /// Signs a message.
    ///
    /// # Panics
    /// Never: an Ed25519 signature has 64 bytes.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> [u8; SIGNATURE] {
        self.0.sign(message).as_ref().try_into().expect("an Ed25519 signature has 64 bytes")
    }
}

/// Decodes a text whose checksum is right; returns its bytes without that.
fn checked(text: &str) -> Option<Vec<u8>> {
    let mut bytes = BASE32_NOPAD.decode(text.as_bytes()).ok()?;
    let at = bytes.len().checked_sub(2)?;
    let sum = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    bytes.truncate(at);
    (crc16(&bytes) == sum).then_some(bytes)
}

/// CRC-16/XMODEM: polynomial 0x1021, from 0.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(
            crc ^ u16::from(*byte) << 8,
            |crc: u16, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
            },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pair that NATS's own library for Go made.
    const PAIR: (&str, &str) = (
        "SAAPN4W3EG6KCJGUQTKTJ5GSB5NHK5CHAJL4DBGFUM3HHROI4XUEP4OBK4",
        "ACODERUVFFAWZQDSS6SBIACUA5O6SXF7HJ3YTYXBALHZP3P7R4BUO4J2",
    );

    #[test]
    fn a_pair_of_another_library_is_read() {
        let (seed, public) = (Seed::parse(PAIR.0).unwrap(), Public::parse(PAIR.1).unwrap());
        assert_eq!(seed.public(), public);
        let signature = seed.sign(b"a message");
        assert!(public.verifies(b"a message", &signature));
        assert!(!public.verifies(b"a massage", &signature) && !public.verifies(b"a message", &signature[1..]));
        assert!(Seed::is_meant(PAIR.0) && !Seed::is_meant(PAIR.1) && !Seed::is_meant(&"S".repeat(64)));
    }

    #[test]
    fn every_changed_letter_and_every_part_is_refused() {
        for (text, is_seed) in [(PAIR.0, true), (PAIR.1, false)] {
            let read = |text: &str| if is_seed { Seed::parse(text).is_ok() } else { Public::parse(text).is_ok() };
            assert!(read(text));
            for at in 0..text.len() {
                assert!(!read(&text[..at]), "{at}");
                let mut changed = text.as_bytes().to_vec();
                changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
                assert!(!read(std::str::from_utf8(&changed).unwrap()), "{at}");
            }
        }
        assert!(Seed::parse(PAIR.1).is_err() && Public::parse(PAIR.0).is_err() && Public::parse("").is_err());
    }
}
