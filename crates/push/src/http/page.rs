//! `/page`: what the hub does, live, for operators in a browser.
//!
//! The files hold nothing of the hub. Their script asks the API like any other client, with the hub's token if there is
//! one. It only reads.

use crate::http::answer::{HandlerResult, Problem, Reply};

/// Nothing from elsewhere, nothing inline, no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

/// Returns a file of the page; `None` if the path is not one of the page's.
pub(crate) fn answer(method: &str, path: &str) -> Option<HandlerResult> {
    let (content_type, file): (_, &'static str) = match path {
        "/page" => ("text/html; charset=utf-8", include_str!("page/page.html")),
        "/page/page.js" => ("text/javascript; charset=utf-8", include_str!("page/page.js")),
        "/page/page.css" => ("text/css; charset=utf-8", include_str!("page/page.css")),
        "/page/icon.svg" => ("image/svg+xml", include_str!("page/icon.svg")),
        _ => return None,
    };
    if !matches!(method, "GET" | "HEAD") {
        return Some(Err(Problem::method(method, "GET, HEAD").into()));
    }
    let reply = Reply::new(200, content_type, file.as_bytes());
    Some(Ok(reply
        .field("Content-Security-Policy", POLICY)
        .field("X-Content-Type-Options", "nosniff")
        .field("Referrer-Policy", "no-referrer")
        .field("Cache-Control", "no-cache")))
}
