//! Keys of look-ups: a request's host in its one canonical form, or another short text.

use std::borrow::Cow;
use std::net::{Ipv4Addr, Ipv6Addr};

use idna::uts46::{AsciiDenyList, DnsLength, Hyphens, Uts46};

/// The longest host: the longest DNS name (RFC 1035, section 2.3.4).
pub const HOST_BYTES: usize = 253;
/// The longest key that is not a host.
pub const TEXT_BYTES: usize = 1024;
/// The longest label of a DNS name (RFC 1035, section 2.3.4).
const LABEL_BYTES: usize = 63;

/// An error in a key. Invalid keys are never looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The key is empty.
    #[error("the key is empty")]
    Empty,
    /// The key is longer than [`HOST_BYTES`] or [`TEXT_BYTES`].
    #[error("the key has more than {limit} bytes")]
    TooLong {
        /// The maximum.
        limit: usize,
    },
    /// Not a host as in a URL: a name, an IPv4 address or an IPv6 address in brackets, with an optional port.
    #[error("the key is not a host")]
    NotAHost,
    /// Not UTF-8, or with control characters.
    #[error("the key is not text")]
    NotText,
}

/// Returns the canonical form of a request's host (RFC 9110, section 7.2): lower case, as A-labels (UTS 46), without
/// port and trailing dot; IPv6 in brackets and in its shortest form (RFC 5952). Allocates nothing for a host in
/// canonical form.
///
/// A name that ends in a number must be an IPv4 address in four decimal parts, as in URLs: resolvers take `127.1` and
/// `0x7f000001` for addresses too.
///
/// # Errors
/// The text is not a host.
pub fn host(host: &[u8]) -> Result<Cow<'_, str>, KeyError> {
    match plain(host) {
        Some(length) => std::str::from_utf8(&host[..length]).map(Cow::Borrowed).map_err(|_| KeyError::NotAHost),
        None => any_host(host),
    }
}

/// Returns the length of a host in canonical form, with an optional port behind it, in one pass. This covers nearly all
/// requests. `None`: the host needs the full check.
fn plain(host: &[u8]) -> Option<usize> {
    // Of the current label: its length, its value as a part of an address, and whether it has only digits.
    let (mut length, mut number, mut digits) = (0_usize, 0_u32, true);
    // Finished labels, and whether all of them are parts of an address.
    let (mut labels, mut address) = (0_usize, true);
    let mut end = host.len();
    for (place, &byte) in host.iter().enumerate() {
        match byte {
            b'0'..=b'9' => {
                address &= length == 0 || number > 0;
                number = (number * 10 + u32::from(byte - b'0')).min(1000);
            }
            // `xn--` and `0x` need the full check.
            b'x' if length == 0 && host[place..].starts_with(b"xn--") || length == 1 && host[place - 1] == b'0' => {
                return None;
            }
            b'a'..=b'z' | b'-' | b'_' => digits = false,
            b'.' | b':' if length == 0 || length > LABEL_BYTES => return None,
            b'.' => {
                address &= digits && number <= 255;
                (length, number, digits, labels) = (0, 0, true, labels + 1);
                continue;
            }
            b':' => {
                end = place;
                break;
            }
            _ => return None,
        }
        length += 1;
    }
    let is_host = (1..=LABEL_BYTES).contains(&length) && (!digits || (address && labels == 3 && number <= 255));
    let port = host.get(end + 1..).unwrap_or_default();
    // Ports from 60000 need the full check.
    let is_port = port.iter().all(u8::is_ascii_digit) && (port.len() < 5 || (port.len() == 5 && port[0] < b'6'));
    (is_host && is_port && end <= HOST_BYTES).then_some(end)
}

fn any_host(host: &[u8]) -> Result<Cow<'_, str>, KeyError> {
    let text = std::str::from_utf8(host).map_err(|_| KeyError::NotAHost)?;
    if let Some(rest) = text.strip_prefix('[') {
        let (address, port) = rest.split_once(']').ok_or(KeyError::NotAHost)?;
        check_port(port)?;
        return ipv6(text, address);
    }
    let (name, port) = text.find(':').map_or((text, ""), |colon| text.split_at(colon));
    check_port(port)?;
    name_or_ipv4(name.strip_suffix('.').unwrap_or(name))
}

/// Checks a key that is not a host: a header's value, a path segment, a script's text. 1 to [`TEXT_BYTES`] bytes of
/// UTF-8 without control characters.
///
/// # Errors
/// The key is not such a text.
pub fn text(key: &[u8]) -> Result<&str, KeyError> {
    match key.len() {
        0 => return Err(KeyError::Empty),
        bytes if bytes > TEXT_BYTES => return Err(KeyError::TooLong { limit: TEXT_BYTES }),
        _ => {}
    }
    let text = std::str::from_utf8(key).map_err(|_| KeyError::NotText)?;
    if text.chars().any(char::is_control) { Err(KeyError::NotText) } else { Ok(text) }
}

/// Returns the canonical form of a name or an IPv4 address without port.
pub(crate) fn name_or_ipv4(name: &str) -> Result<Cow<'_, str>, KeyError> {
    if name.is_empty() {
        return Err(KeyError::Empty);
    }
    // Four bytes of a typed name make at least one of its A-label form.
    if name.len() > HOST_BYTES * 4 {
        return Err(KeyError::TooLong { limit: HOST_BYTES });
    }
    match check_name(name) {
        Shape::Canonical if name.len() <= HOST_BYTES => Ok(Cow::Borrowed(name)),
        Shape::Canonical => Err(KeyError::TooLong { limit: HOST_BYTES }),
        Shape::Wrong => Err(KeyError::NotAHost),
        Shape::Other => {
            let ascii = Uts46::new()
                .to_ascii(name.as_bytes(), AsciiDenyList::URL, Hyphens::Allow, DnsLength::Ignore)
                .map_err(|_| KeyError::NotAHost)?;
            // The mapping has replaced full-width digits and dots, so check the shape again.
            let ascii = ascii.strip_suffix('.').unwrap_or(&ascii).to_owned();
            if ascii.len() > HOST_BYTES {
                return Err(KeyError::TooLong { limit: HOST_BYTES });
            }
            match check_name(&ascii) {
                Shape::Wrong => Err(KeyError::NotAHost),
                // `Other` now means A-labels, which `to_ascii` has just checked; it leaves nothing else.
                Shape::Canonical | Shape::Other => Ok(Cow::Owned(ascii)),
            }
        }
    }
}

enum Shape {
    /// Lower-case letters, digits, `-`, `_` in labels of 1 to 63; an IPv4 address if it ends in a number.
    Canonical,
    /// Needs mapping: upper case, A-labels, or non-ASCII.
    Other,
    /// Not a host.
    Wrong,
}

fn check_name(name: &str) -> Shape {
    let mut other = false;
    let mut last = "";
    for label in name.split('.') {
        let odd = |byte: &u8| !matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
        match label.bytes().find(|byte| odd(byte)) {
            None => {}
            Some(byte) if byte.is_ascii_uppercase() || !byte.is_ascii() => other = true,
            Some(_) => return Shape::Wrong,
        }
        // Non-ASCII text can map to a dot, or to nothing, so its lengths are checked later.
        if label.is_ascii() && !(1..=LABEL_BYTES).contains(&label.len()) {
            return Shape::Wrong;
        }
        other |= label.starts_with("xn--");
        last = label;
    }
    if !other && ends_in_number(last) && name.parse::<Ipv4Addr>().is_err() {
        return Shape::Wrong;
    }
    if other { Shape::Other } else { Shape::Canonical }
}

/// Whether a resolver could take a name with this last label for an IPv4 address (inet_aton(3)).
fn ends_in_number(last: &str) -> bool {
    let hexadecimal = last.get(..2).is_some_and(|start| start.eq_ignore_ascii_case("0x"));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    digits(last) || hexadecimal && last[2..].bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn ipv6<'a>(host: &'a str, address: &str) -> Result<Cow<'a, str>, KeyError> {
    let address: Ipv6Addr = address.parse().map_err(|_| KeyError::NotAHost)?;
    let canonical = format!("[{address}]");
    // Without its port the text may be canonical already, but IPv6 addresses are too rare for a second path that saves
    // the allocation.
    Ok(if host == canonical { Cow::Borrowed(host) } else { Cow::Owned(canonical) })
}

/// Accepts nothing, or `:` and an optional number (RFC 3986, section 3.2.3).
fn check_port(port: &str) -> Result<(), KeyError> {
    let digits = match port.strip_prefix(':') {
        None if port.is_empty() => return Ok(()),
        None => return Err(KeyError::NotAHost),
        Some(digits) => digits,
    };
    let fine = digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits.is_empty() || digits.parse::<u16>().is_ok());
    if fine { Ok(()) } else { Err(KeyError::NotAHost) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hosts_have_one_form() {
        let cases = [
            ("example.com", "example.com"),
            ("EXAMPLE.com.", "example.com"),
            ("Example.COM:8080", "example.com"),
            ("example.com:", "example.com"),
            ("localhost", "localhost"),
            ("a_b.example", "a_b.example"),
            ("Bücher.example", "xn--bcher-kva.example"),
            ("bu\u{308}cher.example", "xn--bcher-kva.example"),
            ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
            ("日本。example", "xn--wgv71a.example"),
            ("127.0.0.1:80", "127.0.0.1"),
            ("１２７.0.0.1", "127.0.0.1"),
            ("[::1]", "[::1]"),
            ("[2001:DB8:0::1]:443", "[2001:db8::1]"),
        ];
        for (from, to) in cases {
            assert_eq!(host(from.as_bytes()).as_deref(), Ok(to), "{from}");
        }
    }

    #[test]
    fn what_is_no_host_is_refused() {
        let long_label = format!("{}.example", "a".repeat(64));
        let long_name = format!("{}example", "abcdefg.".repeat(32));
        let cases = [
            "",
            ".",
            "a..b",
            "..",
            ".a",
            "a b",
            "a\0b",
            "a/b",
            "a@b",
            "a:b",
            "a:80:80",
            "a:65536",
            "a:-1",
            "*.example",
            "::1",
            "[::1",
            "[::1]x",
            "[1.2.3.4]",
            "[]",
            "1.2.3",
            "127.1",
            "2130706433",
            "0x7f.1",
            "0x7f000001",
            "1.2.3.4.5",
            "1.2.3.04",
            "256.1.1.1",
            "a.1",
            "xn--a.example",
            "a%20b",
            "\u{ad}",
            "１２７.1",
            "0X7F.1",
            &long_label,
            &long_name,
        ];
        for case in cases {
            assert!(host(case.as_bytes()).is_err(), "{case:?} became {:?}", host(case.as_bytes()));
        }
        assert!(host(b"\xff.example").is_err());
    }

    #[test]
    fn a_canonical_host_costs_nothing() {
        for same in ["example.com", "example.com:80", "a-b.c-d.example.com"] {
            assert!(matches!(host(same.as_bytes()), Ok(Cow::Borrowed(_))), "{same}");
        }
    }

    #[test]
    fn texts_have_limits() {
        assert_eq!(text("customer 17 \u{e9}".as_bytes()), Ok("customer 17 \u{e9}"));
        assert_eq!(text(b""), Err(KeyError::Empty));
        assert_eq!(text(&[b'a'; TEXT_BYTES + 1]), Err(KeyError::TooLong { limit: TEXT_BYTES }));
        assert_eq!(text(b"a\r\nb"), Err(KeyError::NotText));
        assert_eq!(text(b"a\xffb"), Err(KeyError::NotText));
    }

    proptest! {
        #[test]
        fn the_short_way_says_what_the_long_one_does(text in prop_oneof![
            "[a-z0-9_-]{0,4}(\\.[a-zA-Z0-9_-]{0,4}){0,4}\\.?(:[0-9]{0,6})?",
            "(0x|xn--)?[0-9a-f]{1,3}(\\.(0x|xn--)?[0-9]{1,3}){0,4}(:[0-9]{0,6})?",
            "[a-z]{60,66}(\\.[a-z]{60,66}){2,4}",
        ]) {
            if let Some(length) = plain(text.as_bytes()) {
                let long = any_host(text.as_bytes());
                prop_assert_eq!(long.as_deref(), Ok(&text[..length]));
            }
        }

        #[test]
        fn the_canonical_form_is_its_own(bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..40),
            "[a-zA-Z0-9._\\[\\]:ü。-]{0,40}".prop_map(String::into_bytes),
        ]) {
            if let Ok(canonical) = host(&bytes) {
                prop_assert!(canonical.is_ascii() && canonical.len() <= HOST_BYTES && !canonical.ends_with('.'));
                let again = host(canonical.as_bytes());
                prop_assert_eq!(again.as_deref(), Ok(&*canonical));
            }
        }
    }
}
