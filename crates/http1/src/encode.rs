//! Encodes heads and chunks into a caller's buffer.
//!
//! Nothing is formatted by `format!`, and only the buffer's own growth allocates. The decoders of this crate accept
//! everything that these functions write. After an error the buffer is unchanged.
//!
//! ```
//! use oroshi_http1::{Version, encode};
//!
//! let mut out = Vec::new();
//! encode::response_head(&mut out, Version::Http11, 200, None, [("Content-Type", &b"text/plain"[..])])?;
//! assert_eq!(out, b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n");
//! # Ok::<(), encode::EncodeError>(())
//! ```

use crate::Version;
use crate::syntax::{METHOD_BYTES, is_field_value, is_token, is_value_byte};

/// An invalid part of a message to write. The buffer is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The method is not a token of 1 to 32 bytes. Use another.
    #[error("method is not a token of 1 to 32 bytes")]
    Method,
    /// The request target is empty, or has white space, a control character or a `#`. Percent-encode these.
    #[error("request target is empty or has a byte that must be percent-encoded")]
    Target,
    /// The status is not within 100 to 999.
    #[error("status is not a three-digit number")]
    Status,
    /// The reason phrase has a control character.
    #[error("reason phrase has a control character")]
    Reason,
    /// The field name is not a token: empty, or with white space, a colon, a control character.
    #[error("field name is not a token")]
    Name,
    /// The field value has a CR, LF, NUL or another control character, which would end its line early. Never pass
    /// outside input unchecked.
    #[error("field value has a control character")]
    Value,
}

/// Appends a whole request head: request line, fields, empty line.
///
/// # Errors
///
/// [`EncodeError`] for the first invalid part.
pub fn request_head<'f>(
    out: &mut Vec<u8>,
    method: &str,
    target: &str,
    version: Version,
    fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
) -> Result<(), EncodeError> {
    let start = out.len();
    let written = request_line(out, method, target, version).and_then(|()| fields_and_end(out, fields));
    restore_on_error(out, start, written)
}

/// Appends a whole response head: status line, fields, empty line. Without a `reason`, uses the standard one.
///
/// # Errors
///
/// [`EncodeError`] for the first invalid part.
pub fn response_head<'f>(
    out: &mut Vec<u8>,
    version: Version,
    status: u16,
    reason: Option<&[u8]>,
    fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
) -> Result<(), EncodeError> {
    let start = out.len();
    let written = status_line(out, version, status, reason).and_then(|()| fields_and_end(out, fields));
    restore_on_error(out, start, written)
}

/// Appends a request line with its CRLF.
///
/// # Errors
///
/// `Method` or `Target`. The form of the target is not checked against the method.
pub fn request_line(out: &mut Vec<u8>, method: &str, target: &str, version: Version) -> Result<(), EncodeError> {
    if !is_token(method.as_bytes()) || method.len() > METHOD_BYTES {
        return Err(EncodeError::Method);
    }
    if target.is_empty() || !target.bytes().all(|byte| byte > b' ' && byte != 0x7f && byte != b'#') {
        return Err(EncodeError::Target);
    }
    out.extend_from_slice(method.as_bytes());
    out.push(b' ');
    out.extend_from_slice(target.as_bytes());
    out.push(b' ');
    out.extend_from_slice(version_text(version));
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// Appends a status line with its CRLF. Without a `reason`, uses the standard one.
///
/// # Errors
///
/// `Status` or `Reason`.
pub fn status_line(out: &mut Vec<u8>, version: Version, status: u16, reason: Option<&[u8]>) -> Result<(), EncodeError> {
    if !(100..1000).contains(&status) {
        return Err(EncodeError::Status);
    }
    let reason = reason.unwrap_or(standard_reason(status).as_bytes());
    if !reason.iter().all(|&byte| is_value_byte(byte)) {
        return Err(EncodeError::Reason);
    }
    out.extend_from_slice(version_text(version));
    out.push(b' ');
    decimal(out, u64::from(status));
    // The space is required even before an empty reason (RFC 9112 section 4).
    out.push(b' ');
    out.extend_from_slice(reason);
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// Appends one field line with its CRLF.
///
/// # Errors
///
/// `Name` or `Value`.
pub fn header(out: &mut Vec<u8>, name: &str, value: &[u8]) -> Result<(), EncodeError> {
    if !is_token(name.as_bytes()) {
        return Err(EncodeError::Name);
    }
    if !is_field_value(value) {
        return Err(EncodeError::Value);
    }
    out.reserve(name.len() + value.len() + 4);
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// Appends a Content-Length line.
pub fn content_length(out: &mut Vec<u8>, length: u64) {
    out.extend_from_slice(b"Content-Length: ");
    decimal(out, length);
    out.extend_from_slice(b"\r\n");
}

/// Appends `Transfer-Encoding: chunked`.
pub fn chunked(out: &mut Vec<u8>) {
    out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
}

/// Appends the empty line that ends a head.
pub fn end_of_head(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
}

/// The line before a chunk's data, on the stack, for vectored writes: `ChunkHead`, data, [`CHUNK_END`].
#[derive(Clone, Copy, Debug)]
pub struct ChunkHead {
    bytes: [u8; 18],
    start: u8,
}

impl ChunkHead {
    /// Makes the head of a chunk of `length` bytes. Length 0 would mean the last chunk: use [`last_chunk`] for that.
    pub fn new(length: usize) -> Self {
        let mut bytes = [0; 18];
        bytes[16..].copy_from_slice(b"\r\n");
        let mut start = 16;
        let mut rest = length;
        while rest > 0 || start == 16 {
            start -= 1;
            bytes[start] = b"0123456789abcdef"[rest & 0x0f];
            rest >>= 4;
        }
        ChunkHead { bytes, start: start as u8 }
    }

    /// The size in hexadecimal and CRLF.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[usize::from(self.start)..]
    }
}

/// The bytes after a chunk's data.
pub const CHUNK_END: &[u8] = b"\r\n";

/// The last chunk with no trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Appends one whole chunk; nothing for empty data, which would end the body.
pub fn chunk(out: &mut Vec<u8>, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    let head = ChunkHead::new(data.len());
    out.reserve(head.as_bytes().len() + data.len() + CHUNK_END.len());
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(data);
    out.extend_from_slice(CHUNK_END);
}

/// Appends the last chunk, the trailers and the empty line.
///
/// # Errors
///
/// `Name` or `Value`. The caller checks whether a field is allowed in trailers (RFC 9110 section 6.5.1).
pub fn last_chunk<'f>(
    out: &mut Vec<u8>,
    trailers: impl IntoIterator<Item = (&'f str, &'f [u8])>,
) -> Result<(), EncodeError> {
    let start = out.len();
    out.extend_from_slice(b"0\r\n");
    let written = fields_and_end(out, trailers);
    restore_on_error(out, start, written)
}

/// Returns the reason phrase of a status in IANA's registry; empty for others.
pub const fn standard_reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        102 => "Processing",
        103 => "Early Hints",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        203 => "Non-Authoritative Information",
        204 => "No Content",
        205 => "Reset Content",
        206 => "Partial Content",
        207 => "Multi-Status",
        208 => "Already Reported",
        226 => "IM Used",
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        305 => "Use Proxy",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        423 => "Locked",
        424 => "Failed Dependency",
        425 => "Too Early",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        506 => "Variant Also Negotiates",
        507 => "Insufficient Storage",
        508 => "Loop Detected",
        511 => "Network Authentication Required",
        _ => "",
    }
}

fn fields_and_end<'f>(
    out: &mut Vec<u8>,
    fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
) -> Result<(), EncodeError> {
    for (name, value) in fields {
        header(out, name, value)?;
    }
    end_of_head(out);
    Ok(())
}

fn restore_on_error(out: &mut Vec<u8>, start: usize, written: Result<(), EncodeError>) -> Result<(), EncodeError> {
    if written.is_err() {
        out.truncate(start);
    }
    written
}

const fn version_text(version: Version) -> &'static [u8] {
    match version {
        Version::Http10 => b"HTTP/1.0",
        // A message of HTTP/2 that goes on here gets the version of the connection (RFC 9110 section 6.2).
        Version::Http11 | Version::Http2 => b"HTTP/1.1",
    }
}

/// Appends a number in decimal digits.
fn decimal(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    while number > 0 || start == digits.len() {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    out.extend_from_slice(&digits[start..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads() {
        let mut out = b"before ".to_vec();
        let fields: [(&str, &[u8]); 2] = [("Host", b"a"), ("X-Empty", b"")];
        request_head(&mut out, "GET", "/x?y=1", Version::Http10, fields).unwrap();
        assert_eq!(out, b"before GET /x?y=1 HTTP/1.0\r\nHost: a\r\nX-Empty: \r\n\r\n");

        out.clear();
        response_head(&mut out, Version::Http11, 404, None, []).unwrap();
        response_head(&mut out, Version::Http11, 299, None, []).unwrap();
        response_head(&mut out, Version::Http11, 200, Some(b"Fine"), []).unwrap();
        assert_eq!(out, b"HTTP/1.1 404 Not Found\r\n\r\nHTTP/1.1 299 \r\n\r\nHTTP/1.1 200 Fine\r\n\r\n");
    }

    #[test]
    fn what_cannot_be_written_leaves_the_buffer_as_it_was() {
        let mut out = b"kept".to_vec();
        let v = Version::Http11;
        let inject: [(&str, &[u8]); 2] = [("A", b"1"), ("B", b"1\r\nC: 2")];
        assert_eq!(request_head(&mut out, "GET", "/", v, inject), Err(EncodeError::Value));
        assert_eq!(response_head(&mut out, v, 200, None, inject), Err(EncodeError::Value));
        assert_eq!(last_chunk(&mut out, inject), Err(EncodeError::Value));
        for (method, target, error) in [
            ("", "/", EncodeError::Method),
            ("GE T", "/", EncodeError::Method),
            ("GET\r\n", "/", EncodeError::Method),
            ("ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFG", "/", EncodeError::Method),
            ("GET", "", EncodeError::Target),
            ("GET", "/a b", EncodeError::Target),
            ("GET", "/a\r\n", EncodeError::Target),
            ("GET", "/a#b", EncodeError::Target),
        ] {
            assert_eq!(request_line(&mut out, method, target, v), Err(error), "{method:?} {target:?}");
        }
        assert_eq!(status_line(&mut out, v, 99, None), Err(EncodeError::Status));
        assert_eq!(status_line(&mut out, v, 1000, None), Err(EncodeError::Status));
        assert_eq!(status_line(&mut out, v, 200, Some(b"a\nb")), Err(EncodeError::Reason));
        for name in ["", "a b", "a:", "a\r\n", "\u{e9}"] {
            assert_eq!(header(&mut out, name, b""), Err(EncodeError::Name), "{name:?}");
        }
        for value in [&b"\r"[..], b"\n", b"\0", b"a\x7f", b"\x1b"] {
            assert_eq!(header(&mut out, "a", value), Err(EncodeError::Value), "{value:?}");
        }
        assert_eq!(out, b"kept");
    }

    #[test]
    fn chunks() {
        for (length, head) in
            [(0, "0\r\n"), (1, "1\r\n"), (15, "f\r\n"), (16, "10\r\n"), (usize::MAX, "ffffffffffffffff\r\n")]
        {
            assert_eq!(ChunkHead::new(length).as_bytes(), head.as_bytes(), "{length}");
        }
        let mut out = Vec::new();
        chunk(&mut out, b"hello");
        chunk(&mut out, b"");
        out.extend_from_slice(LAST_CHUNK);
        assert_eq!(out, b"5\r\nhello\r\n0\r\n\r\n");
        out.clear();
        last_chunk(&mut out, [("X-Sum", &b"1"[..])]).unwrap();
        assert_eq!(out, b"0\r\nX-Sum: 1\r\n\r\n");
    }

    #[test]
    fn numbers() {
        let mut out = Vec::new();
        content_length(&mut out, 0);
        content_length(&mut out, 1_234_567_890);
        content_length(&mut out, u64::MAX);
        assert_eq!(out, b"Content-Length: 0\r\nContent-Length: 1234567890\r\nContent-Length: 18446744073709551615\r\n");
    }
}
