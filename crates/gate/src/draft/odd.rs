//! Finds valid but probably unintended settings, and addresses that conflict.

use std::collections::HashMap;

use oroshi_lookup::{StoreKind, StoreSettings};
use oroshi_net::Peer;

use super::Findings;
use crate::limit;
use crate::plan::{Action, KeyFrom, Lookup, Route, Script, Upstream};
use crate::route::Matcher;
use crate::tls::TlsPlan;

/// Returns whether two addresses cannot both be bound. Several threads share ports with SO_REUSEPORT, so a specific
/// address can then stand beside the wildcard address: the kernel chooses the more specific one.
pub(super) fn is_one_socket(one: &Peer, other: &Peer, threads: usize) -> bool {
    match (one, other) {
        (Peer::Tcp(one), Peer::Tcp(other)) => {
            let is_covered = threads == 1 && (one.ip().is_unspecified() || other.ip().is_unspecified());
            one.port() != 0 && one.port() == other.port() && (one.ip() == other.ip() || is_covered)
        }
        (one, other) => one == other,
    }
}

/// Warns of routes that no request takes, because earlier routes have the same conditions.
pub(super) fn same_routes(matchers: &[Matcher], routes: &[Route], findings: &mut Findings) {
    let mut seen: HashMap<_, usize> = HashMap::new();
    for (place, matcher) in matchers.iter().enumerate() {
        let mut methods = matcher.methods.clone();
        methods.sort();
        let mut headers: Vec<_> =
            matcher.headers.iter().map(|field| (field.name.to_ascii_lowercase(), field.value.clone())).collect();
        headers.sort();
        let path = matcher.path.trim_end_matches('/');
        let hosts = if matcher.hosts.is_empty() { vec![None] } else { matcher.hosts.iter().map(Some).collect() };
        let mut first = Vec::new();
        for host in &hosts {
            let fits = (*host, path, methods.clone(), headers.clone());
            match seen.get(&fits) {
                Some(&before) => first.push(before),
                None => drop(seen.insert(fits, place)),
            }
        }
        if let Some(&before) = first.first().filter(|&&before| first.len() == hosts.len() && before != place) {
            let name = &routes[before].name;
            let problem = format!("no request takes it: route `{name}` stands before it, and fits all that it fits");
            findings.warn(format!("route[{}]", place + 1), problem);
        }
    }
}

/// Warns of rate limits that no route names.
pub(super) fn unused_limits(routes: &[Route], limits: &[limit::Settings], findings: &mut Findings) {
    for (place, limit) in limits.iter().enumerate() {
        if !routes.iter().any(|route| route.limits.contains(&place)) {
            findings.warn(format!("limit.{}", limit.name), "no route uses it");
        }
    }
}

/// Returns the stores in which no rate limit counts.
pub(super) fn without_counts<'s>(stores: &'s [StoreSettings], limits: &[limit::Settings]) -> Vec<&'s StoreSettings> {
    let counts = |store: &&StoreSettings| {
        limits.iter().any(|limit| limit.memcached.as_ref().is_some_and(|shared| shared.store == store.name))
    };
    stores.iter().filter(|store| !counts(store)).collect()
}

/// Warns of unused parts. `stores`: those in which no rate limit counts. If there are scripts, every upstream, look-up
/// and store counts as used.
pub(super) fn unused(
    routes: &[Route],
    lookups: &[Lookup],
    upstreams: &[Upstream],
    scripts: &[Script],
    stores: &[&StoreSettings],
    tls: Option<&TlsPlan>,
    findings: &mut Findings,
) {
    for (place, script) in scripts.iter().enumerate() {
        let is_used = routes.iter().any(|route| route.script == Some(place))
            || lookups.iter().any(|lookup| lookup.key == KeyFrom::Script(place));
        if !is_used {
            findings.warn(format!("script.{}", script.settings.name), "no route and no look-up uses it");
        }
    }
    if !scripts.is_empty() {
        return;
    }
    for (place, upstream) in upstreams.iter().enumerate() {
        if !routes.iter().any(|route| route.action == Action::Forward(place)) {
            findings.warn(format!("upstream.{}", upstream.name), "no route uses it");
        }
    }
    for (place, lookup) in lookups.iter().enumerate() {
        let allows = tls.and_then(|tls| tls.acme.as_ref()?.lookup.as_ref()) == Some(&lookup.settings.name);
        if !allows && !routes.iter().any(|route| route.action == Action::Lookup(place)) {
            findings.warn(format!("lookup.{}", lookup.settings.name), "no route uses it");
        }
    }
    for store in stores {
        let certificates = tls.and_then(|tls| tls.settings.lookup.as_ref());
        let is_used = lookups.iter().map(|lookup| &lookup.settings).chain(certificates).any(|settings| {
            settings.memcached.as_ref().is_some_and(|tier| tier.store == store.name)
                || settings.sql.as_ref().is_some_and(|tier| tier.store == store.name)
        });
        let is_acmes = tls.and_then(|tls| tls.acme.as_ref()).is_some_and(|acme| acme.store == store.name);
        if !is_used && !is_acmes {
            let kind = if matches!(store.kind, StoreKind::Sql(_)) { "sql" } else { "memcached" };
            findings.warn(format!("{kind}.{}", store.name), "no look-up and no limit uses it");
        }
    }
}
