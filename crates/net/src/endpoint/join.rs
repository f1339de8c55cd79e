//! References of servers: the target of a `Location`, of a link in a page.

use std::borrow::Cow;

use thiserror::Error;

use super::{Address, Endpoint, EndpointError};

/// The reason why a reference leads nowhere. No message has the reference's query, which may hold a secret.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum JoinError {
    /// Only http and https can be followed.
    #[error("it has the scheme `{scheme}`; only http and https are followed")]
    Scheme {
        /// The scheme.
        scheme: String,
    },
    /// The text is no URL; the error has the part before the query.
    #[error(transparent)]
    Url(EndpointError),
    /// The query makes it no URL.
    #[error("it is no URL")]
    Query,
    /// A server must not choose among the sockets of this machine.
    #[error("it leads to a unix socket, {endpoint}, which no server may send anybody to")]
    Unix {
        /// The socket and the path.
        endpoint: String,
    },
}

impl Endpoint {
    /// Resolves a reference that a server has sent (RFC 3986, section 5.2): a `Location`, a link.
    ///
    /// - Invalid bytes are percent-encoded, as browsers do: servers send spaces and non-ASCII text. A fragment is
    ///   dropped.
    /// - The result is http or https. It is never a unix socket, unless the reference is relative or names the
    ///   authority of a request to the same socket.
    ///
    /// # Errors
    /// [`JoinError`], with the reason.
    pub fn join(&self, reference: &[u8]) -> Result<Endpoint, JoinError> {
        let text = graphic(reference);
        let text = text.split('#').next().unwrap_or_default();
        if let Some(scheme) = scheme_of(text) {
            if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
                return Err(JoinError::Scheme { scheme: scheme.to_owned() });
            }
            return absolute(self, text);
        }
        if text.starts_with("//") {
            return absolute(self, &format!("{}:{text}", self.scheme.as_str()));
        }
        let (path, query) =
            self.target.split_once('?').map_or((self.target.as_str(), None), |(path, query)| (path, Some(query)));
        let target = match text.split_once('?').map_or((text, None), |(path, query)| (path, Some(query))) {
            ("", None) => with_query(path, query),
            ("", new) => with_query(path, new),
            (rooted, new) if rooted.starts_with('/') => with_query(&without_dots(rooted), new),
            (relative, new) => {
                let folder = &path[..=path.rfind('/').unwrap_or(0)];
                with_query(&without_dots(&format!("{folder}{relative}")), new)
            }
        };
        Ok(self.with_target(target))
    }

    /// Returns the endpoint with another target.
    fn with_target(&self, target: String) -> Endpoint {
        Endpoint { scheme: self.scheme, address: self.address.clone(), authority: self.authority.clone(), target }
    }

    /// Whether scheme, host and port, or socket, are the same: the origin (RFC 6454).
    pub fn is_same_origin(&self, other: &Endpoint) -> bool {
        (self.scheme, &self.address, &self.authority) == (other.scheme, &other.address, &other.authority)
    }
}

fn absolute(from: &Endpoint, text: &str) -> Result<Endpoint, JoinError> {
    let Ok(endpoint) = text.parse::<Endpoint>() else {
        // The error repeats only the text before the query, which may hold a secret.
        let before = text.split('?').next().unwrap_or_default();
        return Err(before.parse::<Endpoint>().map_or_else(JoinError::Url, |_| JoinError::Query));
    };
    let (Address::Tcp { .. }, false) = (&endpoint.address, endpoint.authority.is_empty()) else {
        let text = endpoint.to_string();
        return Err(JoinError::Unix { endpoint: text.split('?').next().unwrap_or_default().to_owned() });
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
        None => without_dots(target).into_owned(),
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
fn without_dots(path: &str) -> Cow<'_, str> {
    if !path.contains("/.") {
        return path.into();
    }
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
    format!("/{}", kept.join("/")).into()
}

/// Returns the reference as text, with its invalid bytes percent-encoded.
fn graphic(reference: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = str::from_utf8(reference)
        && text.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return text.into();
    }
    let mut text = String::with_capacity(reference.len());
    for &byte in reference {
        if byte.is_ascii_graphic() { text.push(char::from(byte)) } else { text.push_str(&format!("%{byte:02X}")) }
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(from: &str, reference: &str) -> Result<Endpoint, JoinError> {
        from.parse::<Endpoint>().unwrap().join(reference.as_bytes())
    }

    #[test]
    fn references_are_resolved_as_the_rfc_says() {
        // RFC 3986, section 5.4, the cases for http.
        const BASE: &str = "http://a/b/c/d;p?q";
        for (reference, target) in [
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
            ("/a/.b/..", "/a/"),
            ("g.", "/b/c/g."),
            ("..g", "/b/c/..g"),
            ("./../g", "/b/g"),
            ("g;x=1/./y", "/b/c/g;x=1/y"),
            ("g?y/../x", "/b/c/g?y/../x"),
            ("a b\u{e4}", "/b/c/a%20b%C3%A4"),
            ("/a?b=http://c/", "/a?b=http://c/"),
        ] {
            let joined = join(BASE, reference).unwrap();
            assert_eq!((joined.target.as_str(), &*joined.authority), (target, "a"), "{reference}");
            assert!(joined.is_same_origin(&BASE.parse().unwrap()), "{reference}");
        }
        for (reference, whole) in
            [("//g", "http://g/"), ("http://g:81/x/../y#z", "http://g:81/y"), ("HTTPS://G/?q", "https://g/?q")]
        {
            let joined = join(BASE, reference).unwrap();
            assert_eq!(joined.to_string(), whole, "{reference}");
            assert!(!joined.is_same_origin(&BASE.parse().unwrap()), "{reference}");
        }
    }

    #[test]
    fn some_places_are_not_gone_to() {
        for reference in [
            "ftp://a/",
            "file:///etc/passwd",
            "javascript:alert(1)",
            "unix:/run/docker.sock:/?hidden",
            "http://unix:/run/docker.sock:/?hidden",
            "http+unix://%2Frun%2Fdocker.sock/",
            "//unix:/run/docker.sock:/",
            "http://user:hidden@a/",
            "http://a:0/?key=hidden",
            "http://",
            "http://a:0/",
        ] {
            for from in ["http://a/b", "unix:/run/app.sock:/b"] {
                let error = join(from, reference).unwrap_err();
                assert!(!error.to_string().contains("hidden"), "{error}");
            }
        }
    }

    #[test]
    fn a_unix_socket_is_left_only_for_another_host() {
        for reference in ["/c", "c", "http://localhost/c"] {
            let joined = join("unix:/run/app.sock:/b", reference).unwrap();
            assert_eq!(joined.to_string(), "unix:/run/app.sock:/c", "{reference}");
        }
        assert_eq!(join("unix:/run/app.sock:/b", "http://example.org/c").unwrap().to_string(), "http://example.org/c");
    }
}
