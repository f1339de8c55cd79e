//! Redirects: the target of a `Location`, the new method and body, and the credentials.
//!
//! - 301 and 302 turn POST into GET, 303 turns everything but HEAD into GET, and the body is dropped; 307 and 308
//!   repeat the request unchanged (RFC 9110, section 15.4).
//! - `Authorization`, `Cookie` and similar fields stay within their origin: the same scheme, host and port.
//! - A redirect leads to http or https. It never leads to a unix socket, unless by a relative reference from the same
//!   socket: a remote server must not choose among this machine's sockets.

use oroshi_net::Endpoint;

use crate::error::Cause;
use crate::headers::Headers;

/// The next request of a redirect, for a caller that follows redirects itself: with
/// [`redirects(0)`](crate::RequestBuilder::redirects) it gets the redirect's own response.
///
/// ```
/// use oroshi_client::Redirect;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let next = Redirect::follow(&"http://a/login".parse()?, "POST", 303, b"/home?from=login")?;
/// assert_eq!(next.endpoint.to_string(), "http://a/home?from=login");
/// assert!(next.becomes_get && next.same_origin && !next.keeps("Content-Type") && next.keeps("Authorization"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Redirect {
    /// The URL of the next request.
    pub endpoint: Endpoint,
    /// Whether the request becomes a GET without a body.
    pub becomes_get: bool,
    /// Whether scheme, host and port stay the same. If not, secrets must not follow.
    pub same_origin: bool,
}

impl Redirect {
    /// Whether a response of this status is a redirect if it has a `Location`.
    pub fn is_status(status: u16) -> bool {
        matches!(status, 301 | 302 | 303 | 307 | 308)
    }

    /// Returns the next request after a response of this status and `Location`. `method` is the method of the request
    /// that was redirected.
    ///
    /// # Errors
    /// [`Cause::Location`]: the client would not follow it either.
    pub fn follow(from: &Endpoint, method: &str, status: u16, location: &[u8]) -> Result<Redirect, Cause> {
        let endpoint = from.join(location).map_err(|error| Cause::Location { why: error.to_string() })?;
        let becomes_get = match status {
            301 | 302 => method == "POST",
            303 => method != "HEAD",
            _ => false,
        };
        let same_origin = endpoint.is_same_origin(from);
        Ok(Redirect { endpoint, becomes_get: becomes_get && method != "GET", same_origin })
    }

    /// Whether the next request may carry this field of the request that was redirected: a body's fields go with the
    /// body, and secrets ([`Headers::is_secret`]) and `Host` stay with their origin.
    pub fn keeps(&self, name: &str) -> bool {
        let of_body = name.get(..8).is_some_and(|start| start.eq_ignore_ascii_case("content-"));
        !(self.becomes_get && of_body)
            && (self.same_origin || !(Headers::is_secret(name) || name.eq_ignore_ascii_case("host")))
    }
}

/// Removes fields that the next request must not carry.
pub(crate) fn prune(headers: &mut Headers, redirect: &Redirect) {
    let dropped = |name: &&str| !redirect.keeps(name);
    let names: Vec<String> = headers.iter().map(|(name, _)| name).filter(dropped).map(str::to_owned).collect();
    for name in names {
        headers.remove(&name);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hop(from: &str, method: &str, status: u16, location: &str) -> Result<Redirect, Cause> {
        Redirect::follow(&from.parse().unwrap(), method, status, location.as_bytes())
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
        assert!([301, 302, 303, 307, 308].into_iter().all(Redirect::is_status));
        assert!(![200, 300, 304, 305, 306, 400].into_iter().any(Redirect::is_status));
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
                if let Ok(hop) = Redirect::follow(&from.parse().unwrap(), "GET", 302, &location) {
                    let target = hop.endpoint.target;
                    prop_assert!(target.starts_with('/') && target.bytes().all(|b| b.is_ascii_graphic() && b != b'#'));
                }
            }
        }
    }
}
