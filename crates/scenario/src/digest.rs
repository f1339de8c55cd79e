//! Digests in hexadecimal digits.

use std::fmt::Write;

use md5::{Digest, Md5};
use sha1::Sha1;
use sha2::Sha256;

/// MD5.
pub(crate) fn md5(bytes: &[u8]) -> String {
    hex(&Md5::digest(bytes))
}

/// SHA-1.
pub(crate) fn sha1(bytes: &[u8]) -> String {
    hex(&Sha1::digest(bytes))
}

/// SHA-256.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Whether bytes have a digest; its length tells which one.
pub(crate) fn matches(digest: &str, bytes: &[u8]) -> bool {
    match digest.len() {
        32 => md5(bytes) == digest,
        40 => sha1(bytes) == digest,
        _ => sha256(bytes) == digest,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_standards() {
        assert_eq!(md5(b"abc"), "900150983cd24fb0d6963f7d28e17f72");
        assert_eq!(sha1(b"abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert!(matches(&sha1(b"abc"), b"abc") && !matches(&md5(b"abc"), b"abd"));
    }
}
