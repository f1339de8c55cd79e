//! Challenges of certificate authorities, and the redirect from plain HTTP to TLS.

use oroshi_certificates::Challenges;
use oroshi_server::{Error, Exchange};

use super::{parts, redirect, refuse};
use crate::forward::{Rules, is_trusted};
use crate::record::Record;

/// Keeps the method and the body, and browsers remember it (RFC 9110, section 15.4.9).
const PERMANENT: u16 = 308;

/// Returns the answer to a challenge of HTTP-01, which this gateway or another one with the same store entered. Unknown
/// tokens take their route: the upstream may be a client of ACME itself.
pub(super) async fn answer_challenge(challenges: &Challenges, token: &str) -> Option<String> {
    match challenges.http_answer(token) {
        Some(answer) => Some(answer),
        None => challenges.issuer()?.http_answer(token)?.await,
    }
}

/// Returns whether the client came by TLS: to this gateway, or to a trusted proxy in front that says so.
pub(super) fn is_secure(exchange: &Exchange<'_>, rules: &Rules) -> bool {
    if exchange.is_tls() {
        return true;
    }
    let mut schemes = exchange.head.headers.get_all("x-forwarded-proto");
    let is_https = schemes.next().is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"https"));
    let address = exchange.remote().map(|remote| remote.ip());
    is_https && schemes.next().is_none() && is_trusted(&rules.settings.forwarding, address)
}

/// Sends a client to the same host and path by TLS, on its default port. `host` is in canonical form.
pub(super) async fn redirect_to_tls(
    exchange: &mut Exchange<'_>,
    host: &str,
    record: &mut Record<'_, '_>,
) -> Result<(), Error> {
    if host.is_empty() {
        return refuse(exchange, "this host is served by TLS alone, and the request names no host", record).await;
    }
    let (path, query) = parts(exchange.head.target);
    redirect(exchange, PERMANENT, &format!("https://{host}{path}{query}"), record).await
}
