//! Redirects: the target of a `Location`, the new method and body, and the credentials.
//!
//! - 301 and 302 turn POST into GET, 303 turns everything but HEAD into GET, and the body is dropped; 307 and 308
//!   repeat the request unchanged (RFC 9110, section 15.4).
//! - `Authorization`, `Cookie` and similar fields stay within their origin: the same scheme, host and port.
//! - A redirect leads to http or https. It never leads to a unix socket, unless by a relative reference from the same
//!   socket: a remote server must not choose among this machine's sockets.

use oroshi_net::{Address, Endpoint};

use crate::error::without_query;
use crate::headers::Headers;

/// The next request of a redirect.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    pub(crate) endpoint: Endpoint,
    /// Whether the request becomes a GET without a body.
    pub(crate) becomes_get: bool,
    /// Whether scheme, host and port stay the same.
    pub(crate) same_origin: bool,
}

/// Whether this status with a `Location` is a redirect.
pub(crate) fn is_redirect(status: u16) -> bool {
    matches!(status, 301 | 302 | 303 | 307 | 308)
}

/// Returns the next request of a redirect, or why it cannot be followed.
pub(crate) fn follow(from: &Endpoint, method: &str, status: u16, location: &[u8]) -> Result<Hop, String> {
    let endpoint = join(from, location)?;
    let becomes_get = match status {
        301 | 302 => method == "POST",
        303 => method != "HEAD",
        _ => false,
    };
    let same_origin =
        (endpoint.scheme, &endpoint.address, &endpoint.authority) == (from.scheme, &from.address, &from.authority);
    Ok(Hop { endpoint, becomes_get: becomes_get && method != "GET", same_origin })
}

/// Removes fields that the next request must not carry.
pub(crate) fn prune(headers: &mut Headers, hop: &Hop) {
    let drops = |name: &str| {
        let of_body = name.to_ascii_lowercase().starts_with("content-");
        (hop.becomes_get && of_body)
            || (!hop.same_origin && (Headers::is_secret(name) || name.eq_ignore_ascii_case("host")))
    };
    let names: Vec<String> = headers.iter().map(|(name, _)| name.to_owned()).filter(|name| drops(name)).collect();
    for name in names {
        headers.remove(&name);
    }
}

/// Resolves a reference (RFC 3986, section 5.2). Percent-encodes invalid bytes, as browsers do: servers send spaces and
/// non-ASCII text.
fn join(from: &Endpoint, location: &[u8]) -> Result<Endpoint, String> {
    let text = graphic(location);
    let text = text.split('#').next().unwrap_or_default();
    if let Some(scheme) = scheme_of(text) {
        if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
            return Err(format!("it has the scheme `{scheme}`; only http and https are followed"));
        }
        return absolute(from, text);
    }
    if text.starts_with("//") {
        return absolute(from, &format!("{}:{text}", from.scheme.as_str()));
    }
    let (path, query) =
        from.target.split_once('?').map_or((from.target.as_str(), None), |(path, query)| (path, Some(query)));
    let target = match text.split_once('?').map_or((text, None), |(path, query)| (path, Some(query))) {
        ("", None) => return Ok(Endpoint { target: with_query(path, query), ..from.clone() }),
        ("", new) => with_query(path, new),
        (rooted, new) if rooted.starts_with('/') => with_query(&without_dots(rooted), new),
        (relative, new) => {
            let folder = &path[..=path.rfind('/').unwrap_or(0)];
            with_query(&without_dots(&format!("{folder}{relative}")), new)
        }
    };
    Ok(Endpoint { target, ..from.clone() })
}

fn absolute(from: &Endpoint, text: &str) -> Result<Endpoint, String> {
    let Ok(endpoint) = text.parse::<Endpoint>() else {
        // The error repeats only the text before the query, which may hold a secret.
        let before = text.split('?').next().unwrap_or_default();
        let why = before.parse::<Endpoint>().err();
        return Err(why.map_or_else(|| "it is no URL".to_owned(), |error| error.to_string()));
    };
    let (Address::Tcp { .. }, false) = (&endpoint.address, endpoint.authority.is_empty()) else {
        return Err(format!(
            "it leads to a unix socket, {}, which no server may send anybody to",
            without_query(&endpoint)
        ));
    };
    let endpoint = Endpoint { target: dotless(&endpoint.target), ..endpoint };
    // A server behind a unix socket names itself by the Host of the request.
    match &from.address {
        Address::Unix(socket) if endpoint.scheme == from.scheme && endpoint.authority == from.authority => {
            Ok(endpoint.with_unix(socket.clone()))
        }
        _ => Ok(endpoint),
    }
}

fn dotless(target: &str) -> String {
    match target.split_once('?') {
        Some((path, query)) => with_query(&without_dots(path), Some(query)),
        None => without_dots(target),
    }
}

fn with_query(path: &str, query: Option<&str>) -> String {
    match query {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    }
}

/// Returns the scheme of an absolute reference.
fn scheme_of(text: &str) -> Option<&str> {
    let (scheme, _) = text.split_once(':')?;
    let mut bytes = scheme.bytes();
    let sound = bytes.next()?.is_ascii_alphabetic() && bytes.all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    sound.then_some(scheme)
}

/// Removes dot segments (RFC 3986, section 5.2.4) from a path that begins with a slash.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            other => kept.push(other),
        }
    }
    format!("/{}", kept.join("/"))
}

fn graphic(location: &[u8]) -> String {
    let mut text = String::with_capacity(location.len());
    for &byte in location {
        if byte.is_ascii_graphic() { text.push(char::from(byte)) } else { text.push_str(&format!("%{byte:02X}")) }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hop(from: &str, method: &str, status: u16, location: &str) -> Result<Hop, String> {
        follow(&from.parse().unwrap(), method, status, location.as_bytes())
    }

    #[test]
    fn references_are_resolved_as_the_rfc_says() {
        // RFC 3986, section 5.4, the cases for http.
        const BASE: &str = "http://a/b/c/d;p?q";
        for (location, target) in [
            ("g", "/b/c/g"),
            ("./g", "/b/c/g"),
            ("g/", "/b/c/g/"),
            ("/g", "/g"),
            ("?y", "/b/c/d;p?y"),
            ("g?y", "/b/c/g?y"),
            ("#s", "/b/c/d;p?q"),
            ("g#s", "/b/c/g"),
            (";x", "/b/c/;x"),
            ("", "/b/c/d;p?q"),
            (".", "/b/c/"),
            ("./", "/b/c/"),
            ("..", "/b/"),
            ("../g", "/b/g"),
            ("../..", "/"),
            ("../../g", "/g"),
            ("../../../g", "/g"),
            ("/./g", "/g"),
            ("/../g", "/g"),
            ("g.", "/b/c/g."),
            ("..g", "/b/c/..g"),
            ("./../g", "/b/g"),
            ("g;x=1/./y", "/b/c/g;x=1/y"),
            ("g?y/../x", "/b/c/g?y/../x"),
            ("a b\u{e4}", "/b/c/a%20b%C3%A4"),
            ("/a?b=http://c/", "/a?b=http://c/"),
        ] {
            let hop = hop(BASE, "GET", 302, location).unwrap();
            assert_eq!(hop.endpoint.target, target, "{location}");
            assert!(hop.same_origin && hop.endpoint.authority == "a", "{location}");
        }
        for (location, whole) in
            [("//g", "http://g/"), ("http://g:81/x/../y#z", "http://g:81/y"), ("HTTPS://G/?q", "https://g/?q")]
        {
            let hop = hop(BASE, "GET", 302, location).unwrap();
            assert_eq!((hop.endpoint.to_string().as_str(), hop.same_origin), (whole, false), "{location}");
        }
    }

    #[test]
    fn some_places_are_not_gone_to() {
        for location in [
            "ftp://a/",
            "file:///etc/passwd",
            "javascript:alert(1)",
            "unix:/run/docker.sock:/",
            "http://unix:/run/docker.sock:/",
            "http+unix://%2Frun%2Fdocker.sock/",
            "//unix:/run/docker.sock:/",
            "http://user:hidden@a/",
            "http://a:0/?key=hidden",
            "http://",
            "http://a:0/",
        ] {
            for from in ["http://a/b", "unix:/run/app.sock:/b"] {
                let error = hop(from, "GET", 302, location).unwrap_err();
                assert!(!error.contains("hidden"), "{error}");
            }
        }
    }

    #[test]
    fn a_unix_socket_is_left_only_for_another_host() {
        for location in ["/c", "c", "http://localhost/c"] {
            let hop = hop("unix:/run/app.sock:/b", "GET", 302, location).unwrap();
            assert_eq!(hop.endpoint.to_string(), "unix:/run/app.sock:/c", "{location}");
            assert!(hop.same_origin);
        }
        let hop = hop("unix:/run/app.sock:/b", "GET", 302, "http://example.org/c").unwrap();
        assert_eq!((hop.endpoint.to_string().as_str(), hop.same_origin), ("http://example.org/c", false));
    }

    #[test]
    fn methods_change_as_browsers_have_them() {
        for (method, status, becomes_get) in [
            ("POST", 301, true),
            ("POST", 302, true),
            ("PUT", 302, false),
            ("PUT", 303, true),
            ("HEAD", 303, false),
            ("GET", 303, false),
            ("POST", 307, false),
            ("POST", 308, false),
        ] {
            assert_eq!(hop("http://a/", method, status, "/b").unwrap().becomes_get, becomes_get, "{method} {status}");
        }
        assert!([301, 302, 303, 307, 308].into_iter().all(is_redirect));
        assert!(![200, 300, 304, 305, 306, 400].into_iter().any(is_redirect));
    }

    #[test]
    fn credentials_stay_with_their_origin() {
        let mut headers = Headers::new();
        for (name, value) in
            [("Authorization", "a"), ("Private-TOKEN", "b"), ("Content-Type", "c"), ("Host", "d"), ("X-Y", "e")]
        {
            headers.append(name, value).unwrap();
        }
        let names = |headers: &Headers| headers.iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
        for (to, status, kept) in [
            ("/b", 307, vec!["Authorization", "Private-TOKEN", "Content-Type", "Host", "X-Y"]),
            ("/b", 303, vec!["Authorization", "Private-TOKEN", "Host", "X-Y"]),
            ("http://b/", 307, vec!["Content-Type", "X-Y"]),
            ("https://a/", 307, vec!["Content-Type", "X-Y"]),
            ("http://a:81/", 303, vec!["X-Y"]),
        ] {
            let mut pruned = headers.clone();
            prune(&mut pruned, &hop("http://a/", "POST", status, to).unwrap());
            assert_eq!(names(&pruned), kept, "{to} {status}");
        }
    }

    proptest! {
        #[test]
        fn whatever_a_server_sends_the_target_can_be_sent(location in proptest::collection::vec(any::<u8>(), 0..60)) {
            for from in ["http://a/b/c?d", "unix:/run/app.sock:/b"] {
                if let Ok(hop) = follow(&from.parse().unwrap(), "GET", 302, &location) {
                    let target = hop.endpoint.target;
                    prop_assert!(target.starts_with('/') && target.bytes().all(|b| b.is_ascii_graphic() && b != b'#'));
                }
            }
        }
    }
}
