//! Checks of single parts of a message, for other versions of HTTP that carry the same parts differently.
//!
//! A head that passes these checks is one that HTTP/1.1 can carry, so a gateway can forward it without a second look.

use crate::DecodeError;
pub use crate::body::is_forbidden_in_trailers as is_forbidden_trailer;
pub use crate::fields::content_length;
use crate::syntax::{METHOD_BYTES, is_token};
use crate::target::{Authority, Target};

/// Checks that a method is a token of at most 32 bytes.
///
/// # Errors
///
/// `BadRequestLine` or `MethodTooLong`.
pub fn method(text: &str) -> Result<(), DecodeError> {
    if text.len() > METHOD_BYTES {
        return Err(DecodeError::MethodTooLong);
    }
    if is_token(text.as_bytes()) { Ok(()) } else { Err(DecodeError::BadRequestLine) }
}

/// Checks that `method` allows the form of a target, and that it has no white space, control character or `#`, and is
/// at most `most` bytes long.
///
/// # Errors
///
/// `TargetTooLong` or `BadTarget`.
pub fn target(method: &str, text: &str, most: usize) -> Result<(), DecodeError> {
    if text.len() > most {
        return Err(DecodeError::TargetTooLong);
    }
    if !text.bytes().all(|byte| byte > b' ' && byte != 0x7f) {
        return Err(DecodeError::BadTarget);
    }
    Target::parse(method, text).map(|_| ())
}

/// Returns whether `text` is `host [":" port]`, without userinfo. An empty host is valid here.
#[must_use]
pub fn is_authority(text: &[u8]) -> bool {
    Authority::parse(text, 0).is_some()
}

/// Returns whether both texts are authorities, and name the same host and port. `default_port` stands for a missing
/// port.
#[must_use]
pub fn is_same_authority(one: &[u8], other: &[u8], default_port: u16) -> bool {
    match (Authority::parse(one, default_port), Authority::parse(other, default_port)) {
        (Some(one), Some(other)) => one.is_same_as(&other),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_checked_as_in_a_request_line() {
        assert_eq!(method("GET"), Ok(()));
        assert_eq!(method(&"A".repeat(33)), Err(DecodeError::MethodTooLong));
        for bad in ["", "G T", "G\r", "\u{e9}"] {
            assert_eq!(method(bad), Err(DecodeError::BadRequestLine));
        }
        assert_eq!(target("GET", "/a?b", 4), Ok(()));
        assert_eq!(target("GET", "/a?bc", 4), Err(DecodeError::TargetTooLong));
        assert_eq!(target("OPTIONS", "*", 4), Ok(()));
        for bad in ["", "a", "*", "/ ", "/\r\n", "/#", "/\x7f"] {
            assert_eq!(target("GET", bad, 100), Err(DecodeError::BadTarget), "{bad:?}");
        }
    }

    #[test]
    fn authorities_are_compared_as_host_and_target_are() {
        assert!(is_authority(b"a:1") && !is_authority(b"u@a"));
        assert!(is_same_authority(b"A", b"a:443", 443));
        assert!(!is_same_authority(b"a", b"a:443", 80));
        assert!(!is_same_authority(b"a,b", b"a,b", 80));
    }
}
