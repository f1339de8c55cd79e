//! The gateway's state as JSON.

use std::time::UNIX_EPOCH;

use oroshi_lookup::counts::{LookupCounts, TierCounts};
use oroshi_lookup::{ServerState, SqlState, StoreState};
use serde_json::{Map, Value, json};

use crate::clients;
use crate::failure::Failure;
use crate::generation::Generation;
use crate::plan::Script;
use crate::script::Hook;
use crate::site::Site;
use crate::upstream::Counts;

pub(super) async fn status(site: &Site) -> Value {
    let generation = &site.generation;
    let clients = generation.counters.clients();
    let errors = named(oroshi_server::ErrorKind::ALL.map(|kind| (kind.name(), clients.error(kind))));
    let targets = generation.counters.targets.counts().into_iter();
    let targets: Vec<Value> =
        targets.map(|found| counted(site, &found.target, found.class, None, &found.counts)).collect();
    let cache = generation.cache.counts();
    let encoders = generation.counters.encoders.counts();
    let lost = generation.log.as_ref().map(|log| log.counts()).unwrap_or_default();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "since_unix_s": generation.since.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        "generation": generation.number,
        "threads": generation.plan.threads,
        "clients": {
            "connections": clients.alive, "accepted": clients.accepted, "requests": clients.requests, "errors": errors,
        },
        "compression": { "bytes": encoders.bytes, "limited": encoders.refused },
        "tls": tls(generation),
        "acme": acme(generation),
        "routes": routes(generation),
        "limits": limits(generation),
        "scripts": scripts(generation),
        "script_cache": {
            "entries": cache.entries, "bytes": cache.bytes, "hits": cache.hits, "misses": cache.misses,
            "evictions": cache.evictions,
        },
        "lookups": lookups(generation),
        "stores": stores(generation).await,
        "targets": targets,
        "access_log": { "dropped_buffers": lost.dropped, "failed_writes": lost.failed },
    })
}

/// Returns the counts of handshakes and certificates; null without TLS.
fn tls(generation: &Generation) -> Value {
    let Some(counts) = generation.certificates.as_ref().map(|certificates| certificates.counts()) else {
        return Value::Null;
    };
    json!({
        "handshakes": counts.handshakes, "resumed": counts.resumed,
        "client_certificates": counts.client_certificates, "failed": counts.failed,
        "refused": counts.refused, "crl_expires": clients::first_expiry(&generation.plan.routes),
        "lookup": {
            "hits": counts.hits, "negatives": counts.negatives, "asked": counts.asked, "joined": counts.joined,
            "limited": counts.limited, "invalid": counts.invalid, "store_down": counts.store_down,
            "entries": counts.entries, "bytes": counts.bytes, "evictions": counts.evictions,
        },
    })
}

/// Returns the counts of ACME, and what it does next; null without ACME.
fn acme(generation: &Generation) -> Value {
    let Some(acme) = &generation.acme else { return Value::Null };
    let counts = acme.counts();
    let at = |time: i64| if time > 0 { json!(time) } else { Value::Null };
    json!({
        "directory": acme.settings().directory,
        "orders": counts.orders, "issued": counts.issued, "failed": counts.failed, "troubles": counts.troubles,
        "limited": counts.limited, "refused": counts.refused, "under_way": counts.under_way,
        "paused_until_unix_s": at(counts.paused_until), "next_due_unix_s": at(counts.next_due),
        "last_error": counts.last_error,
    })
}

/// Returns the counts above 0 by name.
fn named<'n>(counts: impl IntoIterator<Item = (&'n str, u64)>) -> Map<String, Value> {
    let counted = counts.into_iter().filter(|(_, count)| *count > 0);
    counted.map(|(name, count)| (name.to_owned(), json!(count))).collect()
}

fn routes(generation: &Generation) -> Map<String, Value> {
    let routes = generation.counters.routes().into_iter().map(|(name, counts)| {
        let by_status: Map<String, Value> = (1..6)
            .filter(|&class| counts.by_status[class] > 0)
            .map(|class| (format!("{class}xx"), json!(counts.by_status[class])))
            .collect();
        let value = json!({
            "requests": counts.by_status.iter().sum::<u64>(), "by_status": by_status, "limited": counts.limited,
            "bytes": counts.bytes,
        });
        (name, value)
    });
    routes.collect()
}

fn limits(generation: &Generation) -> Map<String, Value> {
    let limits = generation.limiters.iter().map(|limiter| {
        let counts = limiter.counts();
        let value = json!({
            "passed": counts.passed, "refused": counts.refused, "forgotten_keys": counts.forgotten,
            "alone": limiter.alone(),
        });
        (limiter.settings.name.clone(), value)
    });
    limits.collect()
}

fn lookups(generation: &Generation) -> Map<String, Value> {
    let lookups = generation.lookups.iter().map(|lookup| (lookup.settings().name.clone(), asked(&lookup.counts())));
    lookups.collect()
}

/// Returns the counts of a look-up.
fn asked(counts: &LookupCounts) -> Value {
    let memory = &counts.memory;
    json!({
        "asked": counts.asked, "joined": counts.joined, "overloaded": counts.overloaded,
        "overdue": counts.overdue,
        "stale": counts.stale, "keys_in_flight": counts.keys_in_flight,
        "memory": {
            "hits": memory.hits, "negatives": memory.negatives, "expired": memory.expired,
            "misses": memory.misses,
            "refreshes": memory.refreshes, "evictions": memory.evictions,
            "negative_evictions": memory.negative_evictions,
            "entries": memory.entries, "bytes": memory.bytes,
            "negative_entries": memory.negative_entries, "negative_bytes": memory.negative_bytes,
        },
        "memcached": tier(&counts.memcached),
        "sql": tier(&counts.sql),
    })
}

fn tier(counts: &TierCounts) -> Value {
    json!({
        "hits": counts.hits, "negatives": counts.negatives, "misses": counts.misses, "invalid": counts.invalid,
        "errors": counts.errors, "timeouts": counts.timeouts, "writes": counts.writes,
        "write_errors": counts.write_errors,
    })
}

async fn stores(generation: &Generation) -> Map<String, Value> {
    let stores = generation.stores.states().await.into_iter().map(|(name, state)| {
        let value = match state {
            StoreState::Memcached(servers) => json!({ "memcached": servers.iter().map(server).collect::<Vec<_>>() }),
            StoreState::Sql(state) => json!({ "sql": database(&state) }),
        };
        (name, value)
    });
    stores.collect()
}

fn scripts(generation: &Generation) -> Map<String, Value> {
    let scripts = generation.counters.scripts().into_iter().map(|(name, counts)| {
        let plan = generation.plan.scripts.iter().find(|script| script.settings.name == name);
        let has = |hook: Hook| plan.is_some_and(|plan| plan.hooks.has(hook)) || counts.hooks[hook as usize].calls > 0;
        let hooks = Hook::ALL.into_iter().filter(|&hook| has(hook)).map(|hook| {
            let counts = &counts.hooks[hook as usize];
            let value = json!({
                "calls": counts.calls, "errors": counts.errors, "breaches": counts.breaches,
                "busy_s": counts.busy.as_secs_f64(), "seconds": counts.wall.as_secs_f64(),
                "instructions": counts.instructions,
            });
            (hook.name().to_owned(), value)
        });
        let hooks: Map<String, Value> = hooks.collect();
        let file = plan.map(|plan| plan.settings.file.display().to_string());
        (name, json!({ "file": file, "hooks": hooks, "logs_dropped": counts.logs_dropped }))
    });
    scripts.collect()
}

/// Returns a target's state, over all cores.
pub(super) fn target(site: &Site, target: &str, class: u32, weight: Option<u32>) -> Value {
    let all = site.generation.counters.targets.counts();
    let counts = all.iter().find(|found| &*found.target == target && found.class == class);
    counted(site, target, class, weight, &counts.map(|found| found.counts).unwrap_or_default())
}

/// Returns the name of the upstream, look-up or script that a pool class belongs to.
pub(super) fn group(site: &Site, class: u32) -> &str {
    let plan = &site.generation.plan;
    let upstream = plan.upstreams.iter().find(|upstream| upstream.pool.class == class).map(|upstream| &*upstream.name);
    let lookup = || plan.lookups.iter().find(|lookup| lookup.pool.class == class).map(|lookup| &*lookup.settings.name);
    let script = || plan.scripts.iter().find(|script| script.pool.class == class).map(|script| &*script.settings.name);
    // The class belongs to an earlier plan.
    upstream.or_else(lookup).or_else(script).unwrap_or("-")
}

/// Describes a script of the plan.
pub(super) fn script(script: &Script) -> Value {
    let hooks: Vec<&str> = Hook::ALL.into_iter().filter(|&hook| script.hooks.has(hook)).map(Hook::name).collect();
    json!({ "name": script.settings.name, "file": script.settings.file.display().to_string(), "hooks": hooks })
}

fn counted(site: &Site, target: &str, class: u32, weight: Option<u32>, counts: &Counts) -> Value {
    let failures = named(Failure::ALL.map(|failure| (failure.name(), counts.failure(failure))));
    let mut value = json!({
        "target": target, "of": group(site, class), "requests": counts.requests, "answers": counts.answers,
        "server_errors": counts.server_errors,
        "connects": counts.connects, "tls_handshakes": counts.handshakes, "tls_resumed": counts.resumed,
        "reuses": counts.reuses, "stale": counts.stale, "retries": counts.retries,
        "open": counts.open, "idle": counts.idle, "queued": counts.queued,
        "ejections": counts.ejections, "ejected_on_threads": counts.ejected, "failures": failures,
    });
    if let Some(check) = site.generation.check_counts(class, target) {
        value["health"] = json!({
            "state": if check.is_down { "down" } else { "up" }, "passed": check.passed, "failed": check.failed,
            "last_failure": check.last_failure,
        });
    }
    if let Some(weight) = weight {
        value["weight"] = json!(weight);
    }
    value
}

pub(super) fn server(state: &ServerState) -> Value {
    json!({
        "server": state.server, "breaker": state.breaker.as_str(), "connected": state.connected,
        "connects": state.connects,
        "pending": state.pending,
    })
}

pub(super) fn database(state: &SqlState) -> Value {
    json!({
        "database": state.database, "breaker": state.breaker.as_str(), "busy": state.busy, "idle": state.idle,
        "connections": state.connections, "waiting": state.waiting,
    })
}
