//! Whose pages may connect: WebSocket has no same-origin policy of its own (RFC 6455 section 10.2), and the other transports need a word
//! of ours before a page of another origin may read them.

use oroshi_http1::RequestHead;

use crate::plan::Origins;

/// Whether a request may open a session, as far as the page is concerned that it comes from.
pub(crate) fn may_connect(origins: &Origins, head: &RequestHead<'_>) -> bool {
    let Some(origin) = head.headers.get("Origin") else { return true };
    let Ok(origin) = str::from_utf8(origin) else { return *origins == Origins::Any };
    let host = head.host.and_then(|host| str::from_utf8(host).ok()).unwrap_or_default();
    match origins {
        Origins::Any => true,
        Origins::List(list) => list.iter().any(|one| one.eq_ignore_ascii_case(origin)),
        // Behind a proxy that speaks TLS the hub cannot know its own scheme, so either one's default port will do.
        Origins::SameOrigin => authority(origin).is_some_and(|(scheme, theirs)| {
            let (name, port) = split(theirs);
            let (own_name, own_port) = split(host);
            let default = if scheme.eq_ignore_ascii_case("https") { "443" } else { "80" };
            name.eq_ignore_ascii_case(own_name) && port.unwrap_or(default) == own_port.unwrap_or(default)
        }),
        Origins::SameHostname => {
            authority(origin).is_some_and(|(_, theirs)| split(theirs).0.eq_ignore_ascii_case(split(host).0))
        }
    }
}

/// What lets the page read the answer (Fetch, "CORS protocol").
pub(crate) fn fields<'b>(head: &RequestHead<'b>) -> impl Iterator<Item = (&'static str, &'b [u8])> {
    let origin = head.headers.get("Origin");
    let allowed = origin.map(|origin| ("Access-Control-Allow-Origin", origin));
    allowed.into_iter().chain(origin.map(|_| ("Vary", &b"Origin"[..])))
}

fn authority(origin: &str) -> Option<(&str, &str)> {
    origin.split_once("://")
}

/// A host and its port; an IPv6 address keeps its brackets.
fn split(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (authority, None),
    }
}

#[cfg(test)]
mod tests {
    use oroshi_http1::{Limits, RequestDecoder, RequestEvent};

    use super::*;

    fn may(origins: &Origins, host: &str, origin: &str) -> bool {
        let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\n\r\n");
        let mut input = text.as_bytes();
        match RequestDecoder::default().decode(&Limits::default(), &mut input) {
            Ok(Some(RequestEvent::Head(head))) => may_connect(origins, &head),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_policy() {
        let same = Origins::SameOrigin;
        assert!(may(&same, "example.org", "http://example.org") && may(&same, "example.org", "https://example.org"));
        assert!(may(&same, "example.org:9180", "http://Example.org:9180") && may(&same, "[::1]:80", "http://[::1]"));
        assert!(
            !may(&same, "example.org:9180", "http://example.org")
                && !may(&same, "a", "http://b")
                && !may(&same, "a", "null")
        );
        let name = Origins::SameHostname;
        assert!(
            may(&name, "example.org:9180", "https://example.org")
                && !may(&name, "example.org", "http://www.example.org")
        );
        let list = Origins::List(vec!["https://a.example".to_owned()]);
        assert!(may(&list, "x", "https://a.example") && !may(&list, "x", "https://b.example"));
        assert!(may(&Origins::Any, "x", "anything"));
    }
}
