//! The basic types: version, framing, header fields, limits.

/// The protocol version of a message. The decoders accept HTTP/1.0 and HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// HTTP/1.0: no chunked coding, Host optional, closes unless `Connection: keep-alive`.
    Http10,
    /// HTTP/1.1.
    Http11,
    /// HTTP/2: another crate has decoded the message to the types of this one. It is written as HTTP/1.1.
    Http2,
}

impl Version {
    /// Returns the number: `1.0`, `1.1` or `2.0`.
    #[must_use]
    pub const fn number(self) -> &'static str {
        match self {
            Version::Http10 => "1.0",
            Version::Http11 => "1.1",
            Version::Http2 => "2.0",
        }
    }
}

/// How a message's body ends (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Framing {
    /// No body: the message ends with its head.
    None,
    /// This many bytes (at most 2^63-1), from Content-Length. Zero is possible.
    Length(u64),
    /// The chunked transfer coding, with trailers.
    Chunked,
    /// A response whose body ends when the server closes.
    UntilClose,
    /// After 101, or 2xx to CONNECT: the following bytes are not HTTP. The decoder returns no further event and takes
    /// no further byte.
    Tunnel,
}

/// Number of header fields that fit in the table on the stack. A longer head, where allowed, allocates one.
pub(crate) const STACK_HEADERS: usize = 256;

/// Bytes of the shortest field line, `a:` and its end.
const SHORTEST_FIELD: usize = 4;

/// Returns the table size for a head: at most as many entries as the bytes in `input` can hold.
pub(crate) fn table_length(input: &[u8], limits: &Limits) -> usize {
    limits.headers.min(input.len() / SHORTEST_FIELD)
}

/// The limits of a decoder. Each call takes them as an argument, so thousands of idle connections share one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one head, including the empty line. Default 65,536. Values above `u32::MAX` count as that.
    pub head_bytes: usize,
    /// Header fields of one head. Default 100. A head with more than 256 costs an allocation of at most eight times
    /// its length.
    pub headers: usize,
    /// Bytes of a request target. Default 8,192.
    pub target_bytes: usize,
    /// Bytes of one chunk line, size and extensions, without its CRLF. Default 256.
    pub chunk_line_bytes: usize,
    /// Bytes of all chunk extensions of one message. Default 16,384.
    pub extension_bytes: usize,
    /// Bytes of a trailer section, including the empty line. Default 8,192. Values above `u32::MAX` count as that.
    pub trailer_bytes: usize,
    /// Trailer fields of one message. Default 32.
    pub trailers: usize,
    /// Bytes of one body, decoded. Default `u64::MAX`; set it if you store bodies.
    pub body_bytes: u64,
    /// Interim (1xx) responses before a final one. Default 16.
    pub informational: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            head_bytes: 65_536,
            headers: 100,
            target_bytes: 8_192,
            chunk_line_bytes: 256,
            extension_bytes: 16_384,
            trailer_bytes: 8_192,
            trailers: 32,
            body_bytes: u64::MAX,
            informational: 16,
        }
    }
}

/// A validated header or trailer section: field lines as received, parsed on demand.
///
/// There is no table and no allocation: each call walks the lines again. Names compare without regard to case.
#[derive(Clone, Copy, Default)]
pub struct Headers<'b> {
    /// Field lines, each with its CRLF, without the final empty line.
    lines: &'b [u8],
}

/// One field of a [`Headers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'b> {
    /// The name, a token, spelled as received.
    pub name: &'b str,
    /// The value without surrounding white space. No control character but HTAB; may have bytes over 0x7f.
    pub value: &'b [u8],
}

impl<'b> Headers<'b> {
    /// Wraps `lines`, which must have passed this crate's checks: every line is `token ":" value CRLF`.
    pub(crate) const fn validated(lines: &'b [u8]) -> Self {
        Headers { lines }
    }

    /// Wraps field lines that another version of HTTP carried. Each must be `token ":" value CRLF`, with a value that
    /// passes [`is_field_value`](crate::is_field_value), because callers that forward the section do not check again.
    #[must_use]
    pub const fn from_checked_lines(lines: &'b [u8]) -> Self {
        Headers { lines }
    }

    /// The fields in the order received.
    pub fn iter(&self) -> impl Iterator<Item = Header<'b>> + use<'b> {
        Lines { rest: self.lines }.filter_map(|line| {
            let colon = memchr::memchr(b':', line)?;
            Some(Header { name: str::from_utf8(&line[..colon]).ok()?, value: trim(&line[colon + 1..]) })
        })
    }

    /// The fields in the order received, each with its whole line: for callers that forward most of them unchanged.
    pub fn lines(&self) -> impl Iterator<Item = (Header<'b>, &'b [u8])> + use<'b> {
        let lines = self.lines;
        // One check of the whole section is faster than one per name; values need not be UTF-8.
        let text = str::from_utf8(lines).ok();
        let mut start = 0;
        std::iter::from_fn(move || {
            let rest = &lines[start..];
            let line = &rest[..=memchr::memchr(b'\n', rest)?];
            let colon = memchr::memchr(b':', line)?;
            let name = match text {
                Some(text) => text.get(start..start + colon)?,
                None => str::from_utf8(&line[..colon]).ok()?,
            };
            start += line.len();
            let value = trim(&line[colon + 1..line.len().saturating_sub(2)]);
            Some((Header { name, value }, line))
        })
    }

    /// The value of the first field of this name.
    pub fn get(&self, name: &str) -> Option<&'b [u8]> {
        self.get_all(name).next()
    }

    /// The values of all fields of this name, in the order received.
    pub fn get_all<'n>(&self, name: &'n str) -> impl Iterator<Item = &'b [u8]> + use<'b, 'n> {
        let name = name.as_bytes();
        Lines { rest: self.lines }.filter_map(move |line| {
            let same = line.get(name.len()) == Some(&b':') && line[..name.len()].eq_ignore_ascii_case(name);
            // The colon must be the first of the line: the caller's `name` can be anything.
            (same && !name.contains(&b':')).then(|| trim(&line[name.len() + 1..]))
        })
    }

    /// The field lines as received, each with its CRLF, without the final empty line.
    pub const fn as_bytes(&self) -> &'b [u8] {
        self.lines
    }

    /// Whether there is no field.
    pub const fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

impl std::fmt::Debug for Headers<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter().map(|field| (field.name, field.value.escape_ascii().to_string()))).finish()
    }
}

/// Two sections are equal when their bytes are.
impl PartialEq for Headers<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.lines == other.lines
    }
}

impl Eq for Headers<'_> {}

/// Lines without their CRLF.
struct Lines<'b> {
    rest: &'b [u8],
}

impl<'b> Iterator for Lines<'b> {
    type Item = &'b [u8];

    fn next(&mut self) -> Option<&'b [u8]> {
        let end = memchr::memchr(b'\n', self.rest)?;
        let (line, rest) = self.rest.split_at(end + 1);
        self.rest = rest;
        Some(&line[..line.len().saturating_sub(2)])
    }
}

/// Removes optional white space (SP, HTAB: RFC 9110 section 5.6.3) from both ends.
pub(crate) fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTION: Headers<'_> =
        Headers::validated(b"Host: a\r\nX-Empty:\r\nX-Two:  1 \t\r\nx-two: 2\r\nX-Colon: a:b\r\n");

    #[test]
    fn fields_come_in_order_and_trimmed() {
        let all: Vec<_> = SECTION.iter().map(|field| (field.name, field.value)).collect();
        let expected: [(&str, &[u8]); 5] =
            [("Host", b"a"), ("X-Empty", b""), ("X-Two", b"1"), ("x-two", b"2"), ("X-Colon", b"a:b")];
        assert_eq!(all, expected);
    }

    #[test]
    fn lines_are_whole_and_join_to_the_section() {
        let mut joined = Vec::new();
        for ((field, line), same) in SECTION.lines().zip(SECTION.iter()) {
            assert_eq!(field, same);
            assert!(line.starts_with(field.name.as_bytes()) && line.ends_with(b"\r\n"));
            joined.extend_from_slice(line);
        }
        assert_eq!(joined, SECTION.as_bytes());
        assert_eq!(Headers::default().lines().count(), 0);
    }

    #[test]
    fn lookups_ignore_case_and_match_whole_names() {
        assert_eq!(SECTION.get("HOST"), Some(&b"a"[..]));
        assert_eq!(SECTION.get("X-Empty"), Some(&b""[..]));
        assert_eq!(SECTION.get("X-Tw"), None);
        assert_eq!(SECTION.get("X-Colon: a"), None);
        assert_eq!(SECTION.get_all("x-two").collect::<Vec<_>>(), [b"1", b"2"]);
        assert!(Headers::default().is_empty());
    }
}
