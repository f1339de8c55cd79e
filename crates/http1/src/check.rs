//! Checks of single parts of a message, for other versions of HTTP that carry the same parts differently.
//!
//! A head that passes these checks is one that HTTP/1.1 can carry, so a gateway can forward it without a second look.

use crate::DecodeError;
pub use crate::body::is_forbidden_in_trailers as is_forbidden_trailer;
pub use crate::fields::content_length;
use crate::syntax::{METHOD_BYTES, is_token};
use crate::target::{Authority, Target};

/// Returns the method as text if it is a token of at most 32 bytes.
///
/// # Errors
///
/// `BadRequestLine` or `MethodTooLong`.
pub fn method(text: &[u8]) -> Result<&str, DecodeError> {
    if text.len() > METHOD_BYTES {
        return Err(DecodeError::MethodTooLong);
    }
    if !is_token(text) {
        return Err(DecodeError::BadRequestLine);
    }
    str::from_utf8(text).map_err(|_| DecodeError::BadRequestLine)
}

/// Returns the target as text if `method` allows its form, and it has no white space, control character or `#`, and is
/// at most `most` bytes long.
///
/// # Errors
///
/// `TargetTooLong` or `BadTarget`.
pub fn target<'b>(method: &str, text: &'b [u8], most: usize) -> Result<&'b str, DecodeError> {
    if text.len() > most {
        return Err(DecodeError::TargetTooLong);
    }
    if !text.iter().all(|&byte| byte > b' ' && byte != 0x7f) {
        return Err(DecodeError::BadTarget);
    }
    let text = str::from_utf8(text).map_err(|_| DecodeError::BadTarget)?;
    Target::parse(method, text).map(|_| text)
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
        assert_eq!(method(b"GET"), Ok("GET"));
        assert_eq!(method(&[b'A'; 33]), Err(DecodeError::MethodTooLong));
        for bad in [&b""[..], b"G T", b"G\r", b"\xff"] {
            assert_eq!(method(bad), Err(DecodeError::BadRequestLine));
        }
        assert_eq!(target("GET", b"/a?b", 4), Ok("/a?b"));
        assert_eq!(target("GET", b"/a?bc", 4), Err(DecodeError::TargetTooLong));
        assert_eq!(target("OPTIONS", b"*", 4), Ok("*"));
        for bad in [&b""[..], b"a", b"*", b"/ ", b"/\r\n", b"/#", b"/\xff", b"/\x7f"] {
            assert_eq!(target("GET", bad, 100), Err(DecodeError::BadTarget), "{}", bad.escape_ascii());
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
