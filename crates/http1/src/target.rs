//! Request targets and authorities (RFC 9112 section 3.2, RFC 3986 section 3.2).

use crate::DecodeError;

/// The four forms of a request target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target<'b> {
    /// `/path?query`
    Origin,
    /// `http://host/path`, with the default port of its scheme.
    Absolute(Authority<'b>, u16),
    /// `host:port`, for CONNECT alone.
    Authority(Authority<'b>),
    /// `*`, for OPTIONS alone.
    Asterisk,
}

impl<'b> Target<'b> {
    /// Parses a target in a form that `method` allows. The caller has already refused white space and control
    /// characters.
    pub(crate) fn parse(method: &str, target: &'b str) -> Result<Self, DecodeError> {
        let bytes = target.as_bytes();
        if method == "CONNECT" {
            // RFC 9110 section 9.3.6: no empty or invalid port.
            let authority = Authority::parse(bytes, 0).filter(|a| !a.host.is_empty() && a.port != 0);
            return authority.map(Target::Authority).ok_or(DecodeError::BadTarget);
        }
        // Clients never send a fragment (RFC 9112 section 3.2.1), and two readers could split it differently.
        if memchr::memchr(b'#', bytes).is_some() {
            return Err(DecodeError::BadTarget);
        }
        match bytes {
            [b'/', ..] => Ok(Target::Origin),
            b"*" if method == "OPTIONS" => Ok(Target::Asterisk),
            _ => {
                let (rest, port) = match bytes {
                    _ if starts_with(bytes, b"http://") => (&bytes[7..], 80),
                    _ if starts_with(bytes, b"https://") => (&bytes[8..], 443),
                    _ => return Err(DecodeError::BadTarget),
                };
                let end = memchr::memchr2(b'/', b'?', rest).unwrap_or(rest.len());
                // RFC 9110 section 4.2.1: an http URI with an empty host is invalid.
                let authority = Authority::parse(&rest[..end], port).filter(|authority| !authority.host.is_empty());
                authority.map(|authority| Target::Absolute(authority, port)).ok_or(DecodeError::BadTarget)
            }
        }
    }
}

/// `host [":" port]`. Never userinfo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Authority<'b> {
    /// As written.
    pub(crate) text: &'b [u8],
    host: &'b [u8],
    port: u16,
}

impl<'b> Authority<'b> {
    /// Parses an authority; `None` if invalid. An empty host is valid (RFC 9112 section 3.2 requires an empty Host
    /// where a target has no authority). `default_port` replaces an absent or empty port.
    pub(crate) fn parse(text: &'b [u8], default_port: u16) -> Option<Self> {
        let (host, after) = if let [b'[', rest @ ..] = text {
            let close = memchr::memchr(b']', rest)?;
            let address = str::from_utf8(&rest[..close]).ok()?;
            // IPv6 only: no zone (RFC 9110 section 4.2 has none), no future version of IP.
            address.parse::<std::net::Ipv6Addr>().ok()?;
            text.split_at(close + 2)
        } else {
            let end = text.iter().position(|&byte| !is_host_byte(byte)).unwrap_or(text.len());
            let (host, after) = text.split_at(end);
            percent_encoding_is_sound(host).then_some((host, after))?
        };
        let port = match after {
            [] | [b':'] => default_port,
            [b':', digits @ ..] => port(digits)?,
            _ => return None,
        };
        Some(Authority { text, host, port })
    }

    /// Whether both have the same host, without regard to case, and the same port.
    pub(crate) fn is_same_as(&self, other: &Authority<'_>) -> bool {
        self.port == other.port && self.host.eq_ignore_ascii_case(other.host)
    }

    /// The port, or the default one.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

/// Whether a byte is in RFC 3986 reg-name, without the comma: a comma would make two Hosts out of one.
const fn is_host_byte(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~'
        | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b';' | b'=' | b'%')
}

fn percent_encoding_is_sound(host: &[u8]) -> bool {
    memchr::memchr_iter(b'%', host)
        .all(|at| matches!(host.get(at + 1..at + 3), Some([a, b]) if a.is_ascii_hexdigit() && b.is_ascii_hexdigit()))
}

fn port(digits: &[u8]) -> Option<u16> {
    let sound = digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit);
    let value = digits.iter().fold(0u32, |value, digit| value.wrapping_mul(10).wrapping_add(u32::from(digit & 0x0f)));
    if sound { u16::try_from(value).ok() } else { None }
}

fn starts_with(bytes: &[u8], prefix: &[u8]) -> bool {
    bytes.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities() {
        let good: [&[u8]; 12] = [
            b"",
            b"a",
            b"a:",
            b"a:80",
            b"a.b-c_d~e:65535",
            b"127.0.0.1:1",
            b"[::1]",
            b"[::1]:8080",
            b"[::ffff:1.2.3.4]",
            b"%2Frun%2Fapp.sock",
            b":8080",
            b"a:00080",
        ];
        for text in good {
            assert!(Authority::parse(text, 80).is_some(), "{}", text.escape_ascii());
        }
        let bad: [&[u8]; 18] = [
            b"u@a",
            b"u:p@a",
            b"a,b",
            b"a b",
            b"a/",
            b"a?",
            b"a#",
            b"a\\b",
            b"a:65536",
            b"a:000080",
            b"a:8a",
            b"a:-1",
            b"a:80:80",
            b"[::1",
            b"[::1]x",
            b"[1.2.3.4]",
            b"[fe80::1%25eth0]",
            b"%2",
        ];
        for text in bad {
            assert!(Authority::parse(text, 80).is_none(), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn sameness_ignores_case_and_default_ports() {
        let same = |a: &str, b: &str| {
            Authority::parse(a.as_bytes(), 80).unwrap().is_same_as(&Authority::parse(b.as_bytes(), 80).unwrap())
        };
        assert!(same("Example.org", "example.ORG:80"));
        assert!(same("a:", "a"));
        assert!(!same("a", "b"));
        assert!(!same("a:81", "a"));
        assert!(!same("a.", "a"));
    }
}
