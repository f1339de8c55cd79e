//! Parses and prints the text of an endpoint.

use std::ffi::OsString;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::ffi::OsStringExt;

use super::{Address, Endpoint, EndpointError, Scheme};
use crate::address::{UnixAddress, UnixAddressError, shown};

const SCHEMES: [&str; 5] = ["http", "https", "unix", "http+unix", "https+unix"];

/// Parses one endpoint; [`Endpoint`] documents the grammar.
pub(super) fn endpoint(text: &str) -> Result<Endpoint, EndpointError> {
    if text.trim().is_empty() {
        return Err(EndpointError::Empty);
    }
    read(text).map_err(|error| without_password(text, error))
}

/// Replaces errors that would repeat a `user:password@`, wherever the mistake is. A slash in the password makes it
/// look like a bad port before a path.
fn without_password(text: &str, error: EndpointError) -> EndpointError {
    use EndpointError::{Host, NoScheme, Port, UnknownScheme};
    let before_query = text.split(['?', '#']).next().unwrap_or_default();
    let place = before_query.split_once("://").map_or(before_query, |(_, place)| place);
    let is_unix = before_query.contains("unix:") || place.starts_with(['/', '.', '@']);
    let (false, Some((before, host))) = (is_unix, place.rsplit_once('@')) else { return error };
    let looks_like_a_port = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit());
    let is_secret = match before.split_once('/') {
        None => true,
        Some((authority, _)) => authority.split_once(':').is_some_and(|(_, rest)| !looks_like_a_port(rest)),
    };
    match error {
        NoScheme { .. } | UnknownScheme { .. } | Host { .. } | Port { .. } if is_secret => {
            EndpointError::Userinfo { host: shown(host.as_bytes()) }
        }
        error => error,
    }
}

fn read(text: &str) -> Result<Endpoint, EndpointError> {
    let (scheme, rest) = split_scheme(text)?;
    match scheme {
        "unix" => unix(text, Scheme::Http, rest),
        "http" | "https" => {
            let scheme = if scheme == "http" { Scheme::Http } else { Scheme::Https };
            match rest.strip_prefix("unix:") {
                // nginx's form in proxy_pass. This is not a host: a port would have to follow the colon.
                Some(rest) if rest.starts_with(['/', '@']) => unix(text, scheme, rest),
                _ => tcp(text, scheme, rest),
            }
        }
        _ => encoded_unix(text, if scheme == "http+unix" { Scheme::Http } else { Scheme::Https }, rest),
    }
}

/// Whether `unix:NAME` parses to the same name: it has no `:/` and nothing that printing escapes.
pub(super) fn reads_back(name: &[u8]) -> bool {
    let text = shown(name);
    text.as_bytes() == name && !text.contains(":/") && !text.ends_with(':') && !text.starts_with("//")
}

/// Writes everything but RFC 3986's unreserved characters (section 2.3) as `%XX`.
pub(super) fn percent_encoded(bytes: &[u8]) -> String {
    let mut text = String::new();
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// Splits off the known scheme, in lower case, from the rest after `:` (`unix`) or `://` (all others).
fn split_scheme(text: &str) -> Result<(&'static str, &str), EndpointError> {
    let value = shown(text.as_bytes());
    let before_colon = text.split(':').next().unwrap_or_default();
    let known = SCHEMES.iter().copied().find(|scheme| before_colon.eq_ignore_ascii_case(scheme));
    if let Some(scheme) = known.filter(|_| before_colon.len() < text.len()) {
        let rest = &text[before_colon.len() + 1..];
        if scheme == "unix" {
            return Ok((scheme, rest));
        }
        return match rest.strip_prefix("//") {
            Some(rest) => Ok((scheme, rest)),
            None => {
                let suggestion = format!("{scheme}://{}", shown(rest.trim_start_matches('/').as_bytes()));
                Err(EndpointError::NoScheme { value, suggestion })
            }
        };
    }
    if let Some((scheme, _)) = text.split_once("://") {
        return Err(EndpointError::UnknownScheme { value, scheme: shown(scheme.as_bytes()), nearest: nearest(scheme) });
    }
    // No scheme: `/run/app.sock`, `@name`, `localhost:8080`, `localhost/path`.
    let suggestion = if text.starts_with(['/', '@', '.']) {
        format!("unix:{value}")
    } else if text.contains('/') {
        format!("http://{value}")
    } else {
        format!("http://{value}/")
    };
    Err(EndpointError::NoScheme { value, suggestion })
}

/// Parses `host`, `host:port`, `[v6]:port`, then path and query.
fn tcp(text: &str, scheme: Scheme, rest: &str) -> Result<Endpoint, EndpointError> {
    let (authority, target) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if let Some((_, host)) = authority.rsplit_once('@') {
        return Err(EndpointError::Userinfo { host: shown(host.as_bytes()) });
    }
    let value = || shown(text.as_bytes());
    let (host, port) = if authority.starts_with('[') {
        let end = authority.find(']').ok_or_else(|| EndpointError::Host {
            value: value(),
            host: shown(authority.as_bytes()),
            why: "the bracket of the IPv6 address is not closed",
        })?;
        let (host, after) = authority.split_at(end + 1);
        match after.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if after.is_empty() => (host, None),
            None => {
                return Err(EndpointError::Host {
                    value: value(),
                    host: shown(authority.as_bytes()),
                    why: "expected a colon and a port, or nothing, after the bracket",
                });
            }
        }
    } else {
        match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    let bad_host = |host: &str, why| EndpointError::Host { value: value(), host: shown(host.as_bytes()), why };
    if !host.starts_with('[') && authority.matches(':').count() > 1 {
        return Err(bad_host(authority, "an IPv6 address stands in brackets, for example http://[::1]:8080/"));
    }
    if host.is_empty() {
        let example = if scheme == Scheme::Http { "http://localhost:8080/" } else { "https://localhost:8443/" };
        return Err(EndpointError::NoHost { value: value(), example });
    }
    let host = checked_host(host).map_err(|why| bad_host(host, why))?;
    let default = scheme.default_port();
    let port = match port {
        None => default,
        // `parse` would accept a sign; a port has digits only.
        Some(digits) => Some(digits)
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|digits| digits.parse::<u16>().ok())
            .filter(|&port| port != 0)
            .ok_or_else(|| EndpointError::Port { value: value(), port: shown(digits.as_bytes()), default })?,
    };
    let bracketed = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    let authority = if port == default { bracketed } else { format!("{bracketed}:{port}") };
    let target = checked_target(text, target)?;
    Ok(Endpoint { scheme, address: Address::Tcp { host: host.into(), port }, authority: authority.into(), target })
}

/// Parses `NAME`, `NAME:`, `NAME:/path?query`, where NAME is a path or `@name`.
fn unix(text: &str, scheme: Scheme, rest: &str) -> Result<Endpoint, EndpointError> {
    let (name, target) = match rest.find(":/") {
        Some(colon) => (&rest[..colon], &rest[colon + 1..]),
        None => (rest.strip_suffix(':').unwrap_or(rest), &rest[rest.len()..]),
    };
    // `unix:///run/app.sock` is the URL form of `unix:/run/app.sock`.
    let name = if name.starts_with("///") { &name[2..] } else { name };
    if let Some(relative) = name.strip_prefix("//") {
        let value = shown(text.as_bytes());
        return Err(EndpointError::NoScheme { value, suggestion: format!("unix:/{}", shown(relative.as_bytes())) });
    }
    let address = UnixAddress::parse(name).map_err(|source| unix_error(text, source))?;
    let target = checked_target(text, target)?;
    Ok(Endpoint { scheme, address: Address::Unix(address), authority: "localhost".into(), target })
}

/// Parses `%2Frun%2Fapp.sock/path?query`.
fn encoded_unix(text: &str, scheme: Scheme, rest: &str) -> Result<Endpoint, EndpointError> {
    let (encoded, target) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if encoded.is_empty() {
        let example = "http+unix://%2Frun%2Fapp.sock/path";
        return Err(EndpointError::NoHost { value: shown(text.as_bytes()), example });
    }
    let name = percent_decoded(encoded)
        .map_err(|position| EndpointError::PercentEncoding { value: shown(text.as_bytes()), position })?;
    let address = match name.split_first() {
        // The kernel's spelling of an abstract name has a NUL instead of `@`.
        Some((b'@' | 0, name)) => UnixAddress::abstract_name(name),
        _ => UnixAddress::path(OsString::from_vec(name)),
    };
    let address = address.map_err(|source| unix_error(text, source))?;
    let target = checked_target(text, target)?;
    Ok(Endpoint { scheme, address: Address::Unix(address), authority: "localhost".into(), target })
}

fn unix_error(text: &str, source: UnixAddressError) -> EndpointError {
    EndpointError::Unix { value: shown(text.as_bytes()), source }
}

/// Checks a host: an IPv6 address without brackets, an IPv4 address, or a name. Returns it in lower case.
fn checked_host(host: &str) -> Result<String, &'static str> {
    if let Some(inside) = host.strip_prefix('[') {
        let inside = inside.strip_suffix(']').unwrap_or(inside);
        if inside.contains('%') {
            return Err("an address with a zone is not supported: use one that needs none");
        }
        return match inside.parse::<Ipv6Addr>() {
            Ok(address) => Ok(address.to_string()),
            Err(_) => Err("expected an IPv6 address in the brackets, for example [::1]"),
        };
    }
    if let Ok(address) = host.parse::<Ipv4Addr>() {
        return Ok(address.to_string());
    }
    if !host.is_ascii() {
        return Err("a name outside ASCII is written in its xn-- form");
    }
    if host.contains('%') {
        return Err("a percent sign cannot stand in a host name; a unix socket is http+unix://%2Frun%2Fapp.sock/");
    }
    if !host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) {
        return Err("expected letters, digits, dots and hyphens");
    }
    if host.len() > 253 {
        return Err("a host name has at most 253 bytes");
    }
    // getaddrinfo reads `127.1` and `0x7f000001` as addresses; a name cannot have a number as its last label.
    let last = host.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    if last.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("expected an IPv4 address of four numbers from 0 to 255, or a name");
    }
    Ok(host.to_ascii_lowercase())
}

/// Checks the origin form: a leading slash, no fragment, no character that would end or split the request line.
fn checked_target(text: &str, target: &str) -> Result<String, EndpointError> {
    let target = target.split('#').next().unwrap_or_default();
    // `target` is a slice of `text`, so its distance from the start is the position in the user's text.
    let start = target.as_ptr() as usize - text.as_ptr() as usize;
    for (offset, character) in target.char_indices() {
        if character.is_ascii_graphic() {
            continue;
        }
        let mut bytes = [0; 4];
        let instead = percent_encoded(character.encode_utf8(&mut bytes).as_bytes());
        let character = match character {
            ' ' => "a space".to_owned(),
            other if other.is_control() => format!("the control character U+{:04X}", u32::from(other)),
            other => format!("`{other}`"),
        };
        let value = shown(text.as_bytes());
        return Err(EndpointError::Character { value, character, position: start + offset, instead });
    }
    Ok(if target.starts_with('/') { target.to_owned() } else { format!("/{target}") })
}

/// Decodes `%XX` in a text.
///
/// # Errors
/// The offset of a `%` without two hexadecimal digits after it.
pub fn percent_decoded(text: &str) -> Result<Vec<u8>, usize> {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).and_then(|&byte| char::from(byte).to_digit(16));
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'%' {
            decoded.push(bytes[at]);
            at += 1;
            continue;
        }
        let (Some(high), Some(low)) = (digit(at + 1), digit(at + 2)) else { return Err(at) };
        decoded.push((high * 16 + low) as u8);
        at += 3;
    }
    Ok(decoded)
}

/// Returns the first known scheme with the fewest changes from this one.
fn nearest(scheme: &str) -> &'static str {
    let scheme: String = scheme.chars().take(32).collect::<String>().to_ascii_lowercase();
    SCHEMES.iter().copied().min_by_key(|known| changes(&scheme, known)).unwrap_or("http")
}

/// Returns the Levenshtein distance.
fn changes(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// text, scheme, address, authority, target, canonical text.
    const GOOD: &[(&str, &str, &str, &str, &str, &str)] = &[
        ("http://localhost:8080/a", "http", "localhost:8080", "localhost:8080", "/a", "http://localhost:8080/a"),
        ("http://localhost", "http", "localhost:80", "localhost", "/", "http://localhost/"),
        ("HTTP://LocalHost:80", "http", "localhost:80", "localhost", "/", "http://localhost/"),
        ("https://a.b-c_d.example", "https", "a.b-c_d.example:443", "a.b-c_d.example", "/", "https://a.b-c_d.example/"),
        ("https://a:80/", "https", "a:80", "a:80", "/", "https://a:80/"),
        ("http://a?b=c", "http", "a:80", "a", "/?b=c", "http://a/?b=c"),
        ("http://a/b?c#d?e", "http", "a:80", "a", "/b?c", "http://a/b?c"),
        ("http://a#d", "http", "a:80", "a", "/", "http://a/"),
        ("http://a/b@c:d//e", "http", "a:80", "a", "/b@c:d//e", "http://a/b@c:d//e"),
        ("http://127.0.0.1:1/", "http", "127.0.0.1:1", "127.0.0.1:1", "/", "http://127.0.0.1:1/"),
        ("http://[::1]:8080/x", "http", "::1:8080", "[::1]:8080", "/x", "http://[::1]:8080/x"),
        ("http://[0:0:0::1]", "http", "::1:80", "[::1]", "/", "http://[::1]/"),
        ("unix:/run/app.sock", "http", "unix:/run/app.sock", "localhost", "/", "unix:/run/app.sock"),
        ("unix:/run/app.sock:", "http", "unix:/run/app.sock", "localhost", "/", "unix:/run/app.sock"),
        ("UNIX:/a:/b?c=:/d", "http", "unix:/a", "localhost", "/b?c=:/d", "unix:/a:/b?c=:/d"),
        ("unix:///run/app.sock:/b", "http", "unix:/run/app.sock", "localhost", "/b", "unix:/run/app.sock:/b"),
        ("unix:app.sock:/b", "http", "unix:app.sock", "localhost", "/b", "unix:app.sock:/b"),
        ("unix:/a:80", "http", "unix:/a:80", "localhost", "/", "unix:/a:80"),
        ("unix:/with space", "http", "unix:/with space", "localhost", "/", "unix:/with space"),
        ("unix:@name:/path", "http", "unix:@name", "localhost", "/path", "unix:@name:/path"),
        ("unix:@name", "http", "unix:@name", "localhost", "/", "unix:@name"),
        ("http://unix:/a:/b", "http", "unix:/a", "localhost", "/b", "unix:/a:/b"),
        ("https://unix:/a:/b", "https", "unix:/a", "localhost", "/b", "https+unix://%2Fa/b"),
        (
            "http+unix://%2Frun%2Fapp.sock/p?q",
            "http",
            "unix:/run/app.sock",
            "localhost",
            "/p?q",
            "unix:/run/app.sock:/p?q",
        ),
        ("http+unix://%2Fa%3a%2Fb", "http", "unix:/a:/b", "localhost", "/", "http+unix://%2Fa%3A%2Fb/"),
        ("http+unix://%40name?q", "http", "unix:@name", "localhost", "/?q", "unix:@name:/?q"),
        ("http+unix://%00name/", "http", "unix:@name", "localhost", "/", "unix:@name"),
        ("http+unix://%40a%ff/", "http", "unix:@a\\xff", "localhost", "/", "http+unix://%40a%FF/"),
        ("https+unix://%2Fa/b", "https", "unix:/a", "localhost", "/b", "https+unix://%2Fa/b"),
    ];

    #[test]
    fn good_endpoints_are_read_and_given_back() {
        for &(text, scheme, address, authority, target, canonical) in GOOD {
            let read = endpoint(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(read.scheme.as_str(), scheme, "{text}");
            let shown = match &read.address {
                Address::Tcp { host, port } => format!("{host}:{port}"),
                Address::Unix(name) => format!("unix:{name}"),
            };
            assert_eq!(shown, address, "{text}");
            assert_eq!(&*read.authority, authority, "{text}");
            assert_eq!(read.target, target, "{text}");
            assert_eq!(read.to_string(), canonical, "{text}");
            assert_eq!(endpoint(canonical).unwrap(), read, "{text}: the canonical text reads back");
        }
    }

    /// text, words that the message has.
    const BAD: &[(&str, &[&str])] = &[
        ("", &["empty", "http://localhost:8080/"]),
        ("  ", &["empty"]),
        ("localhost:8080", &["`localhost:8080` has no scheme", "did you mean http://localhost:8080/ ?"]),
        ("localhost/a", &["did you mean http://localhost/a ?"]),
        ("/run/app.sock", &["did you mean unix:/run/app.sock ?"]),
        ("@name", &["did you mean unix:@name ?"]),
        ("http:localhost", &["did you mean http://localhost ?"]),
        ("https:/localhost", &["did you mean https://localhost ?"]),
        ("http", &["did you mean http://http/ ?"]),
        ("htp://a/", &["unknown scheme `htp`", "did you mean http?", "https+unix"]),
        ("httpss://a/", &["did you mean https?"]),
        ("unxi://a/", &["did you mean unix?"]),
        ("unix+http://a/", &["unknown scheme `unix+http`"]),
        ("http://", &["names no host", "http://localhost:8080/"]),
        ("https:///path", &["names no host", "https://localhost:8443/"]),
        ("http://:80/", &["names no host"]),
        ("http+unix:///path", &["names no host", "http+unix://%2Frun%2Fapp.sock/path"]),
        ("http://a:/", &["`` is no port", "80"]),
        ("http://a:0/", &["`0` is no port", "1 to 65535"]),
        ("http://a:+80/", &["`+80` is no port"]),
        ("http://a:65536/", &["`65536` is no port"]),
        ("https://a:b/", &["`b` is no port", "443"]),
        ("http://::1/", &["brackets"]),
        ("http://[::1/", &["not closed"]),
        ("http://[::1]80/", &["after the bracket"]),
        ("http://[::x]/", &["expected an IPv6 address"]),
        ("http://[fe80::1%25eth0]/", &["zone"]),
        ("http://a b/", &["letters, digits"]),
        ("http://a\r\nX: y/", &["letters, digits", "\\r\\n"]),
        ("http://ä/", &["xn--"]),
        ("http://a%2Fb/", &["percent sign", "http+unix"]),
        ("http://1.2.3/", &["four numbers"]),
        ("http://256.1.1.1/", &["four numbers"]),
        ("http://a/b c", &["a space at byte 10", "%20"]),
        ("http://a/b\r\nX:", &["U+000D", "%0D"]),
        ("http://a/\u{7f}", &["U+007F"]),
        ("http://a/ä", &["`ä` at byte 9", "%C3%A4"]),
        ("unix:/a:/b c", &["a space at byte 10"]),
        ("unix:", &["names no unix socket"]),
        ("unix:@", &["names no unix socket"]),
        ("unix://run/app.sock", &["did you mean unix:/run/app.sock ?"]),
        ("http+unix://%2/", &["percent-encoding at byte 0"]),
        ("http+unix://a%zz/", &["percent-encoding at byte 1"]),
        ("http+unix://%2Fa%00b/", &["names no unix socket"]),
    ];

    #[test]
    fn bad_endpoints_are_refused_with_the_next_step() {
        for &(text, words) in BAD {
            let error = endpoint(text).expect_err(text);
            let message = error.to_string();
            for word in words {
                assert!(message.contains(word), "{text:?}: {word:?} is missing in: {message}");
            }
        }
    }

    #[test]
    fn a_password_does_not_show_in_the_message() {
        for text in [
            "http://user:secret@a/",
            "https://secret@a:1/",
            "http://a@secret@b/",
            "user:secret@a/",
            "secret@a",
            "http:user:secret@a/",
            "ftp://user:secret@a/",
            "http://user:se/cret@a/",
            "http://user:s:e/cret@a/",
            "user:se/cret@a/",
        ] {
            let message = endpoint(text).unwrap_err().to_string();
            assert!(message.contains("Authorization") && !message.contains("cret"), "{message}");
        }
        // An @ elsewhere does not end a password.
        for (text, word) in [("http://a:0/b@c", "no port"), ("a:80/b@c", "did you mean"), ("a/?b@c", "did you mean")] {
            let message = endpoint(text).unwrap_err().to_string();
            assert!(message.contains(word), "{text}: {message}");
        }
    }

    #[test]
    fn a_name_too_long_for_a_socket_is_refused() {
        let error = endpoint(&format!("unix:/{}", "x".repeat(107))).unwrap_err();
        let EndpointError::Unix { source, .. } = error else { panic!("{error}") };
        assert!(source.to_string().contains("108 bytes long"), "{source}");
    }
}
