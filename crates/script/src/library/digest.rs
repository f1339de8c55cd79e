//! Digests in lower-case hexadecimal, and base64.

use base64::Engine as _;
use base64::engine::GeneralPurpose;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use sha2::Digest as _;

/// Returns the MD5 digest, in hexadecimal.
#[must_use]
pub fn md5(bytes: &[u8]) -> String {
    hex(&md5::Md5::digest(bytes))
}

/// Returns the SHA-1 digest, in hexadecimal.
#[must_use]
pub fn sha1(bytes: &[u8]) -> String {
    hex(&sha1::Sha1::digest(bytes))
}

/// Returns the SHA-256 digest, in hexadecimal.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    hex(&sha2::Sha256::digest(bytes))
}

/// Encodes in lower-case hexadecimal.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)]))
        .collect()
}

/// Encodes in base64 (RFC 4648): with `+`, `/` and padding; or, for URLs, with `-`, `_` and none.
#[must_use]
pub fn base64_encode(bytes: &[u8], for_url: bool) -> String {
    alphabet(for_url).encode(bytes)
}

/// Decodes what [`base64_encode`] encodes.
///
/// # Errors
/// What is wrong with the text.
pub fn base64_decode(text: &[u8], for_url: bool) -> Result<Vec<u8>, String> {
    alphabet(for_url).decode(text).map_err(|error| error.to_string())
}

fn alphabet(for_url: bool) -> &'static GeneralPurpose {
    if for_url { &BASE64_URL_SAFE_NO_PAD } else { &BASE64_STANDARD }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_standards() {
        // RFC 1321, section A.5; RFC 3174, section 7.3; FIPS 180-2, appendix B.1.
        assert_eq!(md5(b"abc"), "900150983cd24fb0d6963f7d28e17f72");
        assert_eq!(sha1(b"abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(hex(&[0, 15, 255]), "000fff");
    }

    #[test]
    fn base64_has_two_alphabets() {
        let bytes = b"\xff\xfea?";
        assert_eq!((&*base64_encode(bytes, false), &*base64_encode(bytes, true)), ("//5hPw==", "__5hPw"));
        assert_eq!(base64_decode(b"//5hPw==", false), Ok(bytes.to_vec()));
        assert_eq!(base64_decode(b"__5hPw", true), Ok(bytes.to_vec()));
        for (text, for_url) in [(&b"__5hPw=="[..], false), (b"//5hPw", true), (b"//5hPw", false), (b"*", false)] {
            base64_decode(text, for_url).unwrap_err();
        }
    }
}
