//! Whose pages may connect: WebSocket has no same-origin policy of its own (RFC 6455 section 10.2), and the other transports need a word
//! of ours before a page of another origin may read them.

use oroshi_http1::RequestHead;
use oroshi_server::page::{is_hostname_of, is_origin_of};
use oroshi_server::{Error, Exchange};

use crate::http::answer::Problem;
use crate::hub::Hub;
use crate::plan::Origins;

/// How long a browser may rely on the answer to a preflight, seconds.
const PREFLIGHT_AGE: &[u8] = b"600";

/// The longest list of header names that a preflight is answered with, bytes.
const PREFLIGHT_HEADERS: usize = 1024;

/// Sees whether a request may open a session, as far as the page is concerned that it comes from. `handshake`: it asks for WebSocket, which
/// browsers never do without Origin. True: a page whose origin may connect has made it, and origins are set.
///
/// # Errors
/// The answer to a request that may not.
pub(crate) fn check(origins: &Origins, head: &RequestHead<'_>, handshake: bool) -> Result<bool, Problem> {
    // Fetch Metadata: a browser that follows a link, fills a frame or loads an image has no use for a session; whoever makes it do so has.
    let loads = |mode: &[u8]| mode.eq_ignore_ascii_case(b"navigate") || mode.eq_ignore_ascii_case(b"no-cors");
    if head.headers.get_all("Sec-Fetch-Mode").any(loads) {
        let message = "a browser asks for this as a page, a frame or an image (Sec-Fetch-Mode): expected a WebSocket, an EventSource or fetch";
        return Err(Problem::new(403, "forbidden-fetch", message));
    }
    if !may_connect(origins, head) {
        return Err(Problem::new(403, "forbidden-origin", "pages of this Origin may not connect here: see `origins`"));
    }
    if *origins == Origins::Any {
        return Ok(false);
    }
    if head.headers.get("Origin").is_some() {
        return Ok(true);
    }
    match head.headers.get("Sec-Fetch-Site") {
        Some(b"same-origin") => Ok(true),
        Some(b"none") => Ok(false),
        None if handshake || !is_nameless_browser(head) => Ok(false),
        None if referer(head).is_some_and(|referer| is_allowed(origins, referer, head) || is_own(referer, head)) => {
            Ok(true)
        }
        _ => {
            let message = "a browser asks without saying which page does: expected Origin, Sec-Fetch-Site: same-origin, or a Referer that \
                           may connect";
            Err(Problem::new(403, "forbidden-origin", message))
        }
    }
}

/// Whether the request's Origin, if it has one, may connect.
pub(crate) fn may_connect(origins: &Origins, head: &RequestHead<'_>) -> bool {
    let mut all = head.headers.get_all("Origin");
    *origins == Origins::Any
        || all.all(|origin| str::from_utf8(origin).is_ok_and(|origin| is_allowed(origins, origin, head)))
}

/// What lets the page read the answer, cookies and all where its origin was looked at (Fetch, "CORS protocol").
pub(crate) fn fields<'b>(
    origins: &Origins,
    head: &RequestHead<'b>,
) -> impl Iterator<Item = (&'static str, &'b [u8])> + use<'b> {
    let origin = head.headers.get("Origin").filter(|_| may_connect(origins, head));
    let credentials = *origins != Origins::Any;
    let fields = origin.map(|origin| {
        [
            Some(("Access-Control-Allow-Origin", origin)),
            credentials.then_some(("Access-Control-Allow-Credentials", &b"true"[..])),
            Some(("Vary", &b"Origin"[..])),
        ]
    });
    fields.into_iter().flatten().flatten()
}

/// `OPTIONS`: whether a page may ask what a browser asks about first (Fetch, "CORS-preflight request").
pub(crate) async fn preflight(hub: &Hub, exchange: &mut Exchange<'_>) -> Result<(), Error> {
    let (origins, head) = (&hub.plan().origins, exchange.head);
    if !may_connect(origins, &head) {
        let message = "pages of this Origin may not connect here: see `origins`";
        return Problem::new(403, "forbidden-origin", message).send(exchange).await;
    }
    let mut fields = vec![("Allow", &b"GET, OPTIONS"[..])];
    fields.extend(self::fields(origins, &head));
    if head.headers.get("Origin").is_some() {
        fields.push(("Access-Control-Allow-Methods", b"GET"));
        fields.push(("Access-Control-Max-Age", PREFLIGHT_AGE));
        let names = head.headers.get("Access-Control-Request-Headers");
        if let Some(names) = names.filter(|names| names.len() <= PREFLIGHT_HEADERS && names.iter().all(is_in_list)) {
            fields.push(("Access-Control-Allow-Headers", names));
        }
    }
    exchange.reply.send(204, fields, b"").await
}

fn is_allowed(origins: &Origins, origin: &str, head: &RequestHead<'_>) -> bool {
    let host = head.host.unwrap_or_default();
    match origins {
        Origins::Any => true,
        Origins::List(list) => list.iter().any(|one| one.eq_ignore_ascii_case(origin)),
        Origins::SameOrigin => is_origin_of(origin, host),
        Origins::SameHostname => is_hostname_of(origin, host),
    }
}

fn is_own(origin: &str, head: &RequestHead<'_>) -> bool {
    is_origin_of(origin, head.host.unwrap_or_default())
}

/// Whether a browser that knows no Sec-Fetch-Site, or does not send it as the connection is not secure, asks with what identifies its user. No
/// page can change the name that a browser gives itself here, and no other page's request has credentials that it was given by a script.
fn is_nameless_browser(head: &RequestHead<'_>) -> bool {
    let get = |name| head.headers.get(name);
    let is_bearer = |value: &[u8]| value.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer "));
    let is_identified = get("Cookie").is_some() || get("Authorization").is_some_and(|value| !is_bearer(value));
    is_identified && get("User-Agent").is_some_and(|agent| agent.starts_with(b"Mozilla/"))
}

/// The origin of the page in Referer: up to its path.
fn referer<'b>(head: &RequestHead<'b>) -> Option<&'b str> {
    let referer = str::from_utf8(head.headers.get("Referer")?).ok()?;
    let authority = ["https://", "http://"].into_iter().find(|scheme| referer.starts_with(scheme))?.len();
    let end = referer[authority..].find(['/', '?', '#']).map_or(referer.len(), |at| authority + at);
    Some(&referer[..end])
}

fn is_in_list(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~, \t".contains(byte)
}

#[cfg(test)]
mod tests {
    use oroshi_testkit::head::with as look;

    use super::*;

    fn may(origins: &Origins, host: &str, origin: &str) -> bool {
        look(host, &format!("Origin: {origin}\r\n"), |head| may_connect(origins, head))
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
        assert!(!may(&list, "x", "https://a.example\r\nOrigin: https://b.example"), "each of them counts");
        assert!(may(&Origins::Any, "x", "anything"));
    }

    #[test]
    fn the_origin_in_a_referer_ends_before_its_path() {
        for (text, origin) in [
            ("http://a.test/b://c", Some("http://a.test")),
            ("http://a.test?b", Some("http://a.test")),
            ("http://a.test", Some("http://a.test")),
            ("a.test/http://b.test", None),
            ("about:blank", None),
        ] {
            look("h", &format!("Referer: {text}\r\n"), |head| assert_eq!(referer(head), origin, "{text}"));
        }
    }
}
