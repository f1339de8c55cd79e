//! Collects framing, persistence, Host, Expect and Upgrade in one pass over a head's fields.

use std::time::Duration;

use crate::head::trim;
use crate::syntax::is_token;
use crate::{DecodeError, Framing, Version};

/// The relevant fields of a head, before the kind of message decides which of them apply.
#[derive(Debug, Default)]
pub(crate) struct Fields<'b> {
    /// Content-Length, validated.
    pub(crate) content_length: Option<u64>,
    /// Whether Transfer-Encoding is present: validated, so it is `chunked`.
    pub(crate) chunked: bool,
    /// The Host value, for requests.
    pub(crate) host: Option<&'b [u8]>,
    /// Whether the request expects 100-continue.
    pub(crate) expect_continue: bool,
    /// The first Upgrade value.
    pub(crate) upgrade: Option<&'b [u8]>,
    /// Whether Connection lists `upgrade`.
    pub(crate) connection_upgrade: bool,
    close: bool,
    keep_alive: bool,
}

impl<'b> Fields<'b> {
    /// Reads the fields in order and stops at the first defect.
    ///
    /// `REQUEST`: whether Host, Expect and Upgrade apply.
    #[inline]
    pub(crate) fn collect<const REQUEST: bool>(
        table: &[httparse::Header<'b>],
        version: Version,
    ) -> Result<Self, DecodeError> {
        let mut fields = Fields::default();
        for &httparse::Header { name, value } in table {
            // The length first: it excludes nearly every field without reading its name.
            match name.len() {
                4 if REQUEST && name.eq_ignore_ascii_case("host") => fields.host(value)?,
                // RFC 9110 section 10.1.1: an expectation in HTTP/1.0 is ignored.
                6 if REQUEST && version == Version::Http11 && name.eq_ignore_ascii_case("expect") => {
                    if !value.eq_ignore_ascii_case(b"100-continue") {
                        return Err(DecodeError::UnknownExpectation);
                    }
                    fields.expect_continue = true;
                }
                7 if REQUEST && name.eq_ignore_ascii_case("upgrade") => {
                    fields.upgrade.get_or_insert(value);
                }
                10 if name.eq_ignore_ascii_case("connection") => fields.connection(value),
                14 if name.eq_ignore_ascii_case("content-length") => fields.content_length(value)?,
                14 if name.eq_ignore_ascii_case("content_length") => return Err(DecodeError::UnderscoreFraming),
                17 if name.eq_ignore_ascii_case("transfer-encoding") => fields.transfer_encoding(value, version)?,
                17 if name.eq_ignore_ascii_case("transfer_encoding") => return Err(DecodeError::UnderscoreFraming),
                _ => {}
            }
        }
        Ok(fields)
    }

    /// Returns the framing of the fields, or `otherwise` if they have none.
    pub(crate) fn framing(&self, otherwise: Framing) -> Framing {
        match self.content_length {
            _ if self.chunked => Framing::Chunked,
            Some(length) => Framing::Length(length),
            None => otherwise,
        }
    }

    /// Whether the connection stays open after the message (RFC 9112 section 9.3).
    pub(crate) fn keep_alive(&self, version: Version) -> bool {
        !self.close && (version == Version::Http11 || self.keep_alive)
    }

    fn host(&mut self, value: &'b [u8]) -> Result<(), DecodeError> {
        match self.host.replace(value) {
            Some(_) => Err(DecodeError::RepeatedHost),
            None => Ok(()),
        }
    }

    fn content_length(&mut self, value: &[u8]) -> Result<(), DecodeError> {
        if self.chunked {
            return Err(DecodeError::LengthAndTransferEncoding);
        }
        match self.content_length.replace(content_length(value)?) {
            Some(_) => Err(DecodeError::RepeatedContentLength),
            None => Ok(()),
        }
    }

    fn transfer_encoding(&mut self, value: &[u8], version: Version) -> Result<(), DecodeError> {
        if version == Version::Http10 {
            return Err(DecodeError::TransferEncodingInHttp10);
        }
        if self.content_length.is_some() {
            return Err(DecodeError::LengthAndTransferEncoding);
        }
        if std::mem::replace(&mut self.chunked, true) {
            return Err(DecodeError::RepeatedTransferEncoding);
        }
        if value.eq_ignore_ascii_case(b"chunked") { Ok(()) } else { Err(other_coding(value)) }
    }

    fn connection(&mut self, value: &[u8]) {
        // The usual values first: one comparison, no splitting.
        if value.eq_ignore_ascii_case(b"keep-alive") {
            self.keep_alive = true;
            return;
        }
        for option in value.split(|&byte| byte == b',').map(trim) {
            match option.len() {
                5 if option.eq_ignore_ascii_case(b"close") => self.close = true,
                10 if option.eq_ignore_ascii_case(b"keep-alive") => self.keep_alive = true,
                7 if option.eq_ignore_ascii_case(b"upgrade") => self.connection_upgrade = true,
                _ => {}
            }
        }
    }
}

/// Parses a Content-Length (RFC 9110 section 8.6): 1*DIGIT, at most 2^63-1 so that no neighbour's signed number
/// overflows.
///
/// # Errors
///
/// `BadContentLength` or `ContentLengthOverflow`.
pub fn content_length(value: &[u8]) -> Result<u64, DecodeError> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(DecodeError::BadContentLength);
    }
    // 19 digits are less than 10^19 and fit in 64 bits.
    if value.len() > 19 {
        return Err(DecodeError::ContentLengthOverflow);
    }
    let length = value.iter().fold(0, |length, digit| length * 10 + u64::from(digit & 0x0f));
    if length > i64::MAX as u64 { Err(DecodeError::ContentLengthOverflow) } else { Ok(length) }
}

/// Returns the error for a Transfer-Encoding other than `chunked`.
///
/// RFC 9112 section 6.3 comes first: without one final chunked the answer is 400, because the end of the message is
/// unknown. With a known end, an unknown coding is 501 (section 6.1).
#[cold]
fn other_coding(value: &[u8]) -> DecodeError {
    let mut codings = value.split(|&byte| byte == b',').map(trim).rev();
    let ends_in_chunked = codings.next().is_some_and(|last| last.eq_ignore_ascii_case(b"chunked"));
    let others_are_codings = codings.all(|coding| {
        let name = coding.split(|&byte| byte == b';').next().map(trim).unwrap_or_default();
        is_token(name) && !name.eq_ignore_ascii_case(b"chunked")
    });
    if ends_in_chunked && others_are_codings {
        DecodeError::UnsupportedTransferEncoding
    } else {
        DecodeError::BadTransferEncoding
    }
}

/// Returns whether a field frames a message or concerns one connection (RFC 9110, section 7.6.1), so that only the
/// sender of the message sets it.
#[must_use]
pub fn is_connection_field(name: &str) -> bool {
    const FIELDS: [&str; 8] = [
        "connection",
        "content-length",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    FIELDS.iter().any(|field| name.eq_ignore_ascii_case(field))
}

/// Parses how long a server keeps an idle connection (`Keep-Alive: timeout=5`), less a second for the network.
#[must_use]
pub fn keep_alive_timeout(value: &[u8]) -> Option<Duration> {
    let text = str::from_utf8(value).ok()?;
    let seconds = text.split(',').find_map(|part| part.trim().strip_prefix("timeout="))?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).saturating_sub(Duration::from_secs(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_lengths() {
        assert_eq!(content_length(b"0"), Ok(0));
        assert_eq!(content_length(b"007"), Ok(7));
        assert_eq!(content_length(b"9223372036854775807"), Ok(i64::MAX as u64));
        for over in
            [&b"9223372036854775808"[..], b"9999999999999999999", b"18446744073709551616", b"00000000000000000001"]
        {
            assert_eq!(content_length(over), Err(DecodeError::ContentLengthOverflow), "{}", over.escape_ascii());
        }
        for bad in [&b""[..], b"+1", b"-1", b"1 2", b"1,1", b"0x1", b"1_0", b"1.0", b"\xb2"] {
            assert_eq!(content_length(bad), Err(DecodeError::BadContentLength), "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn codings_other_than_chunked() {
        for unsupported in ["gzip, chunked", "gzip;q=1 ,\tCHUNKED", "identity,chunked"] {
            assert_eq!(other_coding(unsupported.as_bytes()), DecodeError::UnsupportedTransferEncoding, "{unsupported}");
        }
        for bad in [
            "",
            "gzip",
            "identity",
            ",chunked",
            "chunked,",
            "chunked, chunked",
            "chunked, gzip",
            "chunked;a=b",
            "xchunked",
            "\"chunked\"",
            "a b, chunked",
        ] {
            assert_eq!(other_coding(bad.as_bytes()), DecodeError::BadTransferEncoding, "{bad}");
        }
    }

    #[test]
    fn servers_say_how_long_they_keep_a_connection() {
        let seconds = |value: &str| keep_alive_timeout(value.as_bytes()).map(|time| time.as_secs());
        assert_eq!(seconds("timeout=5, max=100"), Some(4));
        assert_eq!(seconds("max=100, timeout=1"), Some(0));
        assert_eq!(seconds("timeout=0"), Some(0));
        assert_eq!(seconds("max=100"), None);
        assert_eq!(seconds("timeout=soon"), None);
    }
}
