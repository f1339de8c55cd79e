//! Which pages may connect.
//!
//! WebSocket has no same-origin policy (RFC 6455, section 10.2). With the other transports, a page of another origin
//! may read a response only if a header permits it.

use oroshi_http1::{RequestHead, is_token_byte};
use oroshi_server::page::{is_hostname_of, is_origin_of};
use oroshi_server::{Error, Exchange};

use crate::http::answer::Problem;
use crate::hub::Hub;
use crate::plan::Origins;

/// How long a browser may rely on the answer to a preflight, seconds.
const PREFLIGHT_AGE: &[u8] = b"600";

/// The longest list of header names that the answer to a preflight repeats, bytes.
const PREFLIGHT_HEADERS: usize = 1024;

/// Checks whether the page that sent a request may open a session.
///
/// `handshake`: it asks for WebSocket, which browsers never do without Origin. Returns true if a page sent it and the
/// plan restricts origins.
///
/// # Errors
/// The answer to a request that may not open a session.
pub(crate) fn check(origins: &Origins, head: &RequestHead<'_>, handshake: bool) -> Result<bool, Problem> {
    // Fetch Metadata: a browser that follows a link or loads an image cannot use a session. The page behind it attacks.
    let loads = |mode: &[u8]| mode.eq_ignore_ascii_case(b"navigate") || mode.eq_ignore_ascii_case(b"no-cors");
    if head.headers.get_all("Sec-Fetch-Mode").any(loads) {
        let message = "a browser asks for this as a page, a frame or an image (Sec-Fetch-Mode): expected a WebSocket, \
                       an EventSource or fetch";
        return Err(Problem::new(403, "forbidden-fetch", message));
    }
    if !may_connect(origins, head) {
        return Err(forbidden());
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
            let message = "a browser asks without saying which page does: expected Origin, \
                           Sec-Fetch-Site: same-origin, or a Referer that may connect";
            Err(Problem::new(403, "forbidden-origin", message))
        }
    }
}

/// Returns the answer to a page whose origin may not connect.
pub(crate) fn forbidden() -> Problem {
    Problem::new(403, "forbidden-origin", "pages of this Origin may not connect here: see `origins`")
}

impl Problem {
    /// Adds the fields that let the asking page read it, if that page may connect.
    pub(crate) fn for_page(self, origins: &Origins, head: &RequestHead<'_>) -> Self {
        let fields = fields(origins, head);
        fields.fold(self, |problem, (name, value)| problem.field(name, String::from_utf8_lossy(value).into_owned()))
    }
}

/// Returns whether the request's Origin, if it has one, may connect.
pub(crate) fn may_connect(origins: &Origins, head: &RequestHead<'_>) -> bool {
    let mut all = head.headers.get_all("Origin");
    *origins == Origins::Any
        || all.all(|origin| str::from_utf8(origin).is_ok_and(|origin| is_allowed(origins, origin, head)))
}

/// Returns the fields that let the page read the answer (Fetch, "CORS protocol").
///
/// They permit credentials if the plan restricts origins.
pub(crate) fn fields<'b>(
    origins: &Origins,
    head: &RequestHead<'b>,
) -> impl Iterator<Item = (&'static str, &'b [u8])> + use<'b> {
    let origin = head.headers.get("Origin").filter(|_| may_connect(origins, head));
    let credentials = *origins != Origins::Any;
    let fields = origin.map(|origin| {
        [
            Some(("Access-Control-Allow-Origin", origin)),
            // A page that polls asks again after it.
            Some(("Access-Control-Expose-Headers", &b"Retry-After"[..])),
            credentials.then_some(("Access-Control-Allow-Credentials", &b"true"[..])),
            Some(("Vary", &b"Origin"[..])),
        ]
    });
    fields.into_iter().flatten().flatten()
}

/// `OPTIONS`: answers a preflight (Fetch, "CORS-preflight request").
///
/// `method`: what the page may send here beside OPTIONS.
pub(crate) async fn preflight(hub: &Hub, exchange: &mut Exchange<'_>, method: &'static str) -> Result<(), Error> {
    let (origins, head) = (&hub.plan().origins, exchange.head);
    if !may_connect(origins, &head) {
        return forbidden().send(exchange).await;
    }
    let allow = format!("{method}, OPTIONS");
    let mut fields = vec![("Allow", allow.as_bytes())];
    fields.extend(self::fields(origins, &head));
    if head.headers.get("Origin").is_some() {
        fields.push(("Access-Control-Allow-Methods", method.as_bytes()));
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

/// Returns whether a browser without Sec-Fetch-Site sends credentials of its user.
///
/// Old browsers do not know that field, and none sends it over plain HTTP. A page can neither change User-Agent nor add
/// credentials of its own to a request to another origin.
fn is_nameless_browser(head: &RequestHead<'_>) -> bool {
    let get = |name| head.headers.get(name);
    let is_bearer = |value: &[u8]| value.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer "));
    let is_identified = get("Cookie").is_some() || get("Authorization").is_some_and(|value| !is_bearer(value));
    is_identified && get("User-Agent").is_some_and(|agent| agent.starts_with(b"Mozilla/"))
}

/// Returns the origin of the page in Referer, which ends before its path.
fn referer<'b>(head: &RequestHead<'b>) -> Option<&'b str> {
    let referer = str::from_utf8(head.headers.get("Referer")?).ok()?;
    let authority = ["https://", "http://"].into_iter().find(|scheme| referer.starts_with(scheme))?.len();
    let end = referer[authority..].find(['/', '?', '#']).map_or(referer.len(), |at| authority + at);
    Some(&referer[..end])
}

fn is_in_list(byte: &u8) -> bool {
    is_token_byte(*byte) || b", \t".contains(byte)
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
