//! Recognises requests of pages in browsers, for servers that must not act on every page's requests.
//!
//! A browser sends any page's requests to any server that it can reach, even to a server on this machine alone
//! (cross-site request forgery). And a page can resolve its own name to this server (DNS rebinding), which makes them
//! one origin. Scripts in a page cannot set the fields that this module reads: Host, Origin, Referer's origin, and
//! `Sec-` fields.

use std::net::IpAddr;

use oroshi_http1::RequestHead;

/// Whether a page of another origin makes the request.
///
/// `Origin` names a page (RFC 6454); browsers send it on every request that is not GET or HEAD. `Sec-Fetch-Site` gives
/// the relation of page and server (Fetch Metadata); browsers send it over https, and to this machine. A request with
/// neither comes from no page, or from a page in an old browser, which can only read or embed.
pub fn is_foreign(head: &RequestHead<'_>) -> bool {
    let host = head.host.unwrap_or_default();
    let foreign = |origin: &[u8]| !str::from_utf8(origin).is_ok_and(|origin| is_origin_of(origin, host));
    let apart = |site: &[u8]| !matches!(site, b"same-origin" | b"none");
    head.headers.get_all("Origin").any(foreign) || head.headers.get_all("Sec-Fetch-Site").any(apart)
}

/// Whether any page makes the request, as far as its fields say.
pub fn is_from_page(head: &RequestHead<'_>) -> bool {
    head.headers.get("Origin").is_some() || head.headers.get_all("Sec-Fetch-Site").any(|site| site != b"none")
}

/// Whether the request's Host is this machine: `localhost`, or a loopback address, with or without a port. No page can
/// have such a name. A request without Host (HTTP/1.0) is no browser's.
pub fn names_loopback(head: &RequestHead<'_>) -> bool {
    head.host.is_none_or(|host| str::from_utf8(host).is_ok_and(|host| names_this_machine(split(host).0)))
}

/// Whether the request's Host is an address, or as in [`names_loopback`]: a page with such a Host was loaded from that
/// address.
pub fn names_address(head: &RequestHead<'_>) -> bool {
    let is_address = |host: &str| host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    names_loopback(head)
        || head.host.is_some_and(|host| str::from_utf8(host).is_ok_and(|host| is_address(split(host).0)))
}

/// Whether a host without a port is this machine from everywhere. An IPv6 address may have its brackets.
pub fn names_this_machine(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host).trim_matches(['[', ']']);
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Whether an origin (`https://example.org`) belongs to a server with this Host. Behind a TLS proxy a server does not
/// know its own scheme, so the default port of either scheme matches.
pub fn is_origin_of(origin: &str, host: &[u8]) -> bool {
    let (Some((scheme, theirs)), Ok(own)) = (origin.split_once("://"), str::from_utf8(host)) else { return false };
    let ((name, port), (own_name, own_port)) = (split(theirs), split(own));
    let default = if scheme.eq_ignore_ascii_case("https") {
        "443"
    } else if scheme.eq_ignore_ascii_case("http") {
        "80"
    } else {
        // The pages of an application or an extension.
        return false;
    };
    !name.is_empty() && name.eq_ignore_ascii_case(own_name) && port.unwrap_or(default) == own_port.unwrap_or(default)
}

/// Whether an origin has the same host as a server with this Host, at any port.
pub fn is_hostname_of(origin: &str, host: &[u8]) -> bool {
    let (Some((_, theirs)), Ok(own)) = (origin.split_once("://"), str::from_utf8(host)) else { return false };
    !split(theirs).0.is_empty() && split(theirs).0.eq_ignore_ascii_case(split(own).0)
}

/// Splits a host from its port; an IPv6 address keeps its brackets.
fn split(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port).filter(|port| !port.is_empty())),
        _ => (authority, None),
    }
}

#[cfg(test)]
mod tests {
    use oroshi_testkit::head::with as look;

    use super::*;

    #[test]
    fn a_foreign_page_is_told_by_what_it_cannot_change() {
        for (host, fields, foreign, page) in [
            ("a.test", "", false, false),
            ("a.test", "Sec-Fetch-Site: none\r\n", false, false),
            ("a.test", "Sec-Fetch-Site: same-origin\r\n", false, true),
            ("a.test", "Sec-Fetch-Site: same-site\r\n", true, true),
            ("a.test", "Sec-Fetch-Site: cross-site\r\n", true, true),
            ("a.test", "Sec-Fetch-Site: same-origin\r\nSec-Fetch-Site: cross-site\r\n", true, true),
            ("a.test:80", "Origin: http://A.test\r\n", false, true),
            ("a.test", "Origin: https://a.test:443\r\n", false, true),
            ("a.test", "Origin: http://a.test:81\r\n", true, true),
            ("a.test", "Origin: http://b.test\r\n", true, true),
            ("a.test", "Origin: null\r\n", true, true),
            ("a.test", "Origin: \r\n", true, true),
            ("a.test", "Origin: http://a.test\r\nOrigin: http://b.test\r\n", true, true),
            ("a.test", "Origin: \u{e9}\r\n", true, true),
            ("", "Origin: http://\r\n", true, true),
        ] {
            assert_eq!(look(host, fields, is_foreign), foreign, "{host} {fields}");
            assert_eq!(look(host, fields, is_from_page), page, "{host} {fields}");
        }
    }

    #[test]
    fn names_of_this_machine_are_few() {
        for host in [
            "localhost",
            "LOCALHOST:1",
            "localhost.:1",
            "127.0.0.1",
            "127.1.2.3:80",
            "[::1]",
            "[::1]:80",
            "[::ffff:127.0.0.1]",
        ] {
            assert!(look(host, "", names_loopback) && look(host, "", names_address), "{host}");
        }
        for host in
            ["", "a.test", "localhost.a.test", "127.0.0.1.a.test", "127.1", "2130706433", "0x7f000001", "localhosts"]
        {
            assert!(!look(host, "", names_loopback) && !look(host, "", names_address), "{host}");
        }
        for host in ["192.0.2.1", "192.0.2.1:80", "[2001:db8::1]:80", "0.0.0.0"] {
            assert!(!look(host, "", names_loopback) && look(host, "", names_address), "{host}");
        }
    }

    #[test]
    fn origins_are_compared_with_their_default_ports() {
        let same = |host: &str, origin: &str| is_origin_of(origin, host.as_bytes());
        assert!(same("example.org", "http://example.org") && same("example.org", "https://example.org"));
        assert!(same("example.org:9180", "http://Example.org:9180") && same("[::1]:80", "http://[::1]"));
        assert!(!same("example.org:9180", "http://example.org") && !same("a", "http://b") && !same("a", "null"));
        assert!(!same("localhost", "capacitor://localhost"));
        let name = |host: &str, origin: &str| is_hostname_of(origin, host.as_bytes());
        assert!(name("example.org:9180", "https://example.org") && !name("example.org", "http://www.example.org"));
        assert!(!name("", "http://") && !name("a", "null"));
    }
}
