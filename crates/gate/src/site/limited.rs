//! Requests on routes with rate limits.

use oroshi_net::monotonic_ns;
use oroshi_server::Exchange;

use super::client;
use crate::generation::Generation;
use crate::limit::Limited;
use crate::plan::{Answer, Route};

/// Counts a request for the route's rate limits. Returns the response if it is beyond one of them.
pub(super) fn over_limit(
    generation: &Generation,
    route: &Route,
    exchange: &Exchange<'_>,
    host: &str,
) -> Option<Answer> {
    let (now, request) = (monotonic_ns(), limited(exchange, host));
    route.limits.iter().find_map(|&limit| {
        let limiter = &generation.limiters[limit];
        limiter.check(request, now).err().map(|wait| limiter.refusal(wait))
    })
}

/// As [`over_limit`], with limits that gateways share.
pub(super) async fn over_shared_limit(
    generation: &Generation,
    route: &Route,
    exchange: &Exchange<'_>,
    host: &str,
) -> Option<Answer> {
    let (stores, request) = (&generation.stores, limited(exchange, host));
    for &limit in &route.limits {
        let limiter = &generation.limiters[limit];
        let checked = match &limiter.settings.memcached {
            None => limiter.check(request, monotonic_ns()),
            Some(shared) => limiter.check_shared(shared, stores, request).await,
        };
        if let Err(wait) = checked {
            return Some(limiter.refusal(wait));
        }
    }
    None
}

/// Returns whether gateways share a limit of the route.
pub(super) fn has_shared(generation: &Generation, route: &Route) -> bool {
    route.limits.iter().any(|&limit| generation.limiters[limit].settings.memcached.is_some())
}

fn limited<'r>(exchange: &'r Exchange<'_>, host: &'r str) -> Limited<'r> {
    let client = client(exchange).map(|address| address.ip());
    Limited { client, host, headers: exchange.head.headers }
}
