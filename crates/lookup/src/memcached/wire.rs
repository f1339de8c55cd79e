//! memcached's text protocol (its doc/protocol.txt), without I/O: encodes requests and decodes replies.

/// The longest key (protocol.txt, "Keys").
pub const KEY_BYTES: usize = 250;
/// The longest line of a reply: `VALUE`, a key, two numbers, and room for an error message.
const LINE_BYTES: usize = 1024;

/// The kind of a request, which determines the possible replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// `get`.
    Get,
    /// `gets`: as `get`, with the value's version.
    Gets,
    /// `set`.
    Set,
    /// `cas`: sets a value if it still has its version.
    Cas,
    /// `add`: sets a value if there is none.
    Add,
    /// `delete`.
    Delete,
    /// `version`, which checks that the server is up.
    Version,
}

/// A reply, borrowed from the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// To `get` and `gets`: the key's value.
    Value {
        /// The key, as the server repeats it.
        key: &'a [u8],
        /// The flags that the writer attached.
        flags: u32,
        /// The value.
        data: &'a [u8],
        /// The version of the value (its `cas unique`), to `gets`.
        version: Option<u64>,
    },
    /// To `get` and `gets`: no value. To `delete`: nothing to delete.
    Missing,
    /// To `set`, `cas`, `add` and `delete`: done. To `version`: the server is up.
    Done,
    /// To `cas` and `add`: nothing was stored, because another writer was first.
    Changed,
    /// The server understood the request but failed: out of memory, value too large. The connection stays usable.
    ServerError(&'a [u8]),
}

/// Bytes that are no reply to the request. The rest of the stream is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// An unexpected line.
    #[error("a line that is no reply to a {0}")]
    Line(&'static str),
    /// A line that is too long.
    #[error("a line of more than {LINE_BYTES} bytes")]
    LongLine,
    /// A value larger than the limit.
    #[error("a value of {bytes} bytes, of which at most {limit} are allowed")]
    LargeValue {
        /// The size that the line announces.
        bytes: usize,
        /// The maximum.
        limit: usize,
    },
    /// A value without the expected end.
    #[error("a value without its end")]
    ValueEnd,
    /// Raise memcached's option -c, or open fewer connections.
    #[error("the server has too many open connections")]
    TooManyConnections,
    /// The server did not understand the request.
    #[error("the server did not understand a {0}")]
    NotUnderstood(&'static str),
}

/// Decodes one reply at the start of `bytes`, and returns its length too. `None`: it is incomplete.
///
/// # Errors
/// The bytes cannot become a reply; close the connection.
pub fn decode(bytes: &[u8], asked: Request, value_limit: usize) -> Result<Option<(Reply<'_>, usize)>, ProtocolError> {
    let name = match asked {
        Request::Get => "get",
        Request::Gets => "gets",
        Request::Set => "set",
        Request::Cas => "cas",
        Request::Add => "add",
        Request::Delete => "delete",
        Request::Version => "version",
    };
    let Some((line, taken)) = line(bytes)? else { return Ok(None) };
    if let Some(message) = line.strip_prefix(b"SERVER_ERROR") {
        return Ok(Some((Reply::ServerError(message.trim_ascii()), taken)));
    }
    let reply = match (asked, line) {
        (Request::Get | Request::Gets, b"END") | (Request::Delete, b"NOT_FOUND") => Reply::Missing,
        (Request::Set | Request::Cas | Request::Add, b"STORED") | (Request::Delete, b"DELETED") => Reply::Done,
        // The value has another version, or is gone; or there is one.
        (Request::Cas, b"EXISTS" | b"NOT_FOUND") | (Request::Add, b"NOT_STORED") => Reply::Changed,
        (Request::Version, _) if line.starts_with(b"VERSION ") => Reply::Done,
        (Request::Get | Request::Gets, _) if line.starts_with(b"VALUE ") => {
            let is_versioned = asked == Request::Gets;
            let (key, flags, length, version) = value_line(line, is_versioned).ok_or(ProtocolError::Line(name))?;
            if length > value_limit {
                return Err(ProtocolError::LargeValue { bytes: length, limit: value_limit });
            }
            let (data, rest) = match bytes[taken..].split_at_checked(length) {
                Some(split) => split,
                None => return Ok(None),
            };
            const AFTER: &[u8] = b"\r\nEND\r\n";
            let seen = rest.len().min(AFTER.len());
            if rest[..seen] != AFTER[..seen] {
                return Err(ProtocolError::ValueEnd);
            }
            let whole = seen == AFTER.len();
            return Ok(whole.then_some((Reply::Value { key, flags, data, version }, taken + length + AFTER.len())));
        }
        // The server says this at a connect, whatever the request (memcached.c, drive_machine).
        (_, b"ERROR Too many open connections") => return Err(ProtocolError::TooManyConnections),
        _ if line == b"ERROR" || line.starts_with(b"CLIENT_ERROR") => return Err(ProtocolError::NotUnderstood(name)),
        _ => return Err(ProtocolError::Line(name)),
    };
    Ok(Some((reply, taken)))
}

/// Appends a `get`.
pub fn get(key: &[u8], out: &mut Vec<u8>) {
    command(b"get ", key, b"\r\n", out);
}

/// Appends a `set`. 0 means that the value never expires; memcached takes more than 30 days for a date.
pub fn set(key: &[u8], data: &[u8], flags: u32, ttl_seconds: u32, out: &mut Vec<u8>) {
    command(b"set ", key, format!(" {flags} {ttl_seconds} {}\r\n", data.len()).as_bytes(), out);
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// Appends a `gets`.
pub fn gets(key: &[u8], out: &mut Vec<u8>) {
    command(b"gets ", key, b"\r\n", out);
}

/// Appends a `cas`: a `set` without flags that fails if the value has another version. TTLs as for [`set`].
pub fn cas(key: &[u8], data: &[u8], ttl_seconds: u32, version: u64, out: &mut Vec<u8>) {
    command(b"cas ", key, format!(" 0 {ttl_seconds} {} {version}\r\n", data.len()).as_bytes(), out);
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// Appends an `add`: a `set` without flags that fails if there is a value. TTLs as for [`set`].
pub fn add(key: &[u8], data: &[u8], ttl_seconds: u32, out: &mut Vec<u8>) {
    command(b"add ", key, format!(" 0 {ttl_seconds} {}\r\n", data.len()).as_bytes(), out);
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// Appends a `delete`.
pub fn delete(key: &[u8], out: &mut Vec<u8>) {
    command(b"delete ", key, b"\r\n", out);
}

/// Appends a `version`.
pub fn version(out: &mut Vec<u8>) {
    out.extend_from_slice(b"version\r\n");
}

/// Whether the protocol can carry a key; other bytes could inject a command.
pub fn is_key(key: &[u8]) -> bool {
    (1..=KEY_BYTES).contains(&key.len()) && key.iter().all(|&byte| byte > b' ' && byte != 0x7f)
}

fn command(name: &[u8], key: &[u8], rest: &[u8], out: &mut Vec<u8>) {
    debug_assert!(is_key(key));
    for part in [name, key, rest] {
        out.extend_from_slice(part);
    }
}

/// Returns the first line without its end, and its length including the end.
fn line(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, ProtocolError> {
    let looked_at = &bytes[..bytes.len().min(LINE_BYTES)];
    match looked_at.windows(2).position(|pair| pair == b"\r\n") {
        Some(end) => Ok(Some((&bytes[..end], end + 2))),
        None if looked_at.len() == LINE_BYTES => Err(ProtocolError::LongLine),
        None => Ok(None),
    }
}

/// Parses `VALUE <key> <flags> <bytes>`, with the version behind it if there must be one.
fn value_line(line: &[u8], is_versioned: bool) -> Option<(&[u8], u32, usize, Option<u64>)> {
    let mut words = line.split(|&byte| byte == b' ');
    words.next().filter(|word| *word == b"VALUE")?;
    let key = words.next().filter(|key| is_key(key))?;
    let (flags, length) = (number(words.next()?, 10)?, number(words.next()?, 10)?);
    let version = if is_versioned { Some(number(words.next()?, 20)?) } else { None };
    words.next().is_none().then_some((key, u32::try_from(flags).ok()?, usize::try_from(length).ok()?, version))
}

/// Parses a decimal number without sign.
fn number(word: &[u8], most_digits: usize) -> Option<u64> {
    let digits = (1..=most_digits).contains(&word.len()) && word.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(word).ok().filter(|_| digits)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: usize = 100;

    #[test]
    fn replies_are_read() {
        let cases: [(&[u8], Request, Reply<'_>); 15] = [
            (b"END\r\n", Request::Get, Reply::Missing),
            (
                b"VALUE a 7 3\r\nx\r\n\r\nEND\r\n",
                Request::Get,
                Reply::Value { key: b"a", flags: 7, data: b"x\r\n", version: None },
            ),
            (
                b"VALUE a 0 0\r\n\r\nEND\r\n",
                Request::Get,
                Reply::Value { key: b"a", flags: 0, data: b"", version: None },
            ),
            (b"STORED\r\n", Request::Set, Reply::Done),
            (b"DELETED\r\n", Request::Delete, Reply::Done),
            (b"NOT_FOUND\r\n", Request::Delete, Reply::Missing),
            (
                b"SERVER_ERROR out of memory storing object\r\n",
                Request::Set,
                Reply::ServerError(b"out of memory storing object"),
            ),
            (b"SERVER_ERROR\r\n", Request::Get, Reply::ServerError(b"")),
            (
                b"VALUE a 0 1 18446744073709551615\r\nx\r\nEND\r\n",
                Request::Gets,
                Reply::Value { key: b"a", flags: 0, data: b"x", version: Some(u64::MAX) },
            ),
            (b"END\r\n", Request::Gets, Reply::Missing),
            (b"STORED\r\n", Request::Cas, Reply::Done),
            (b"EXISTS\r\n", Request::Cas, Reply::Changed),
            (b"NOT_FOUND\r\n", Request::Cas, Reply::Changed),
            (b"STORED\r\n", Request::Add, Reply::Done),
            (b"NOT_STORED\r\n", Request::Add, Reply::Changed),
        ];
        for (bytes, asked, reply) in cases {
            assert_eq!(decode(bytes, asked, LIMIT), Ok(Some((reply, bytes.len()))));
            // Later bytes belong to the next reply.
            let more = [bytes, b"STORED\r\n"].concat();
            assert_eq!(decode(&more, asked, LIMIT), Ok(Some((reply, bytes.len()))));
            for cut in 0..bytes.len() {
                assert_eq!(decode(&bytes[..cut], asked, LIMIT), Ok(None), "cut at {cut}");
            }
        }
    }

    #[test]
    fn garbage_is_none() {
        let long = vec![b'a'; LINE_BYTES];
        let cases: [(&[u8], Request); 24] = [
            (b"ERROR Too many open connections\r\n", Request::Get),
            (b"STORED\r\n", Request::Get),
            (b"END\r\n", Request::Set),
            (b"END\r\n", Request::Delete),
            (b"DELETED\r\n", Request::Set),
            (b"NOT_STORED\r\n", Request::Set),
            (b"ERROR\r\n", Request::Get),
            (b"CLIENT_ERROR bad data chunk\r\n", Request::Set),
            (b"\r\n", Request::Get),
            (b"end\r\n", Request::Get),
            (b"VALUE a 0 101\r\n", Request::Get),
            (b"VALUE a 0 1\r\nxy", Request::Get),
            (b"VALUE a 0 1\r\nx\r\nVALUE b 0 1\r\ny\r\nEND\r\n", Request::Get),
            (b"VALUE a 0 -1\r\n", Request::Get),
            (b"VALUE a 0 +1\r\n", Request::Get),
            (b"VALUE a 0 1 99\r\n", Request::Get),
            (b"VALUE  0 1\r\n", Request::Get),
            (b"VALUE a 99999999999 1\r\n", Request::Get),
            (b"VALUE a 0 1\r\n", Request::Gets),
            (b"VALUE a 0 1 18446744073709551616\r\n", Request::Gets),
            (b"VALUE a 0 1 -1\r\n", Request::Gets),
            (b"NOT_STORED\r\n", Request::Cas),
            (b"EXISTS\r\n", Request::Add),
            (&long, Request::Get),
        ];
        for (bytes, asked) in cases {
            assert!(decode(bytes, asked, LIMIT).is_err(), "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn requests_are_written() {
        let mut out = Vec::new();
        get(b"a", &mut out);
        set(b"b", b"x\r\ny", 3, 60, &mut out);
        delete(b"c", &mut out);
        gets(b"d", &mut out);
        cas(b"e", b"1", 5, 7, &mut out);
        add(b"f", b"23", 6, &mut out);
        let (first, second) = (
            "get a\r\nset b 3 60 4\r\nx\r\ny\r\ndelete c\r\n",
            "gets d\r\ncas e 0 5 1 7\r\n1\r\nadd f 0 6 2\r\n23\r\n",
        );
        assert_eq!(String::from_utf8(out).unwrap(), [first, second].concat());
        assert!(is_key("ü".as_bytes()) && is_key(&[b'a'; 250]));
        for wrong in ["", "a b", "a\r\nflush_all", "a\0", "a\x7f", &"a".repeat(251)] {
            assert!(!is_key(wrong.as_bytes()), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn a_reply_does_not_depend_on_where_it_is_cut(
            bytes in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..60),
                "(VALUE a [0-9]{1,3} [0-9]{1,2}( [0-9]{1,3})?\r\n)?[a-z\r\n]{0,20}\r\n(END\r\n|STORED\r\n|EXISTS\r\n\
                 )?".prop_map(String::into_bytes),
            ],
            asked in prop_oneof![
                Just(Request::Get), Just(Request::Gets), Just(Request::Set), Just(Request::Cas), Just(Request::Delete)
            ],
        ) {
            let whole = decode(&bytes, asked, LIMIT);
            if let Ok(Some((_, taken))) = whole {
                prop_assert!(taken <= bytes.len());
            }
            for cut in 0..bytes.len() {
                match decode(&bytes[..cut], asked, LIMIT) {
                    Ok(None) => {}
                    early => prop_assert_eq!(early, whole),
                }
            }
        }
    }
}
