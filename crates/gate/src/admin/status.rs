//! The gateway's state as JSON.

use std::time::UNIX_EPOCH;

use oroshi_lookup::{ServerState, SqlState, StoreState};
use serde_json::{Map, Value, json};

use crate::forward::Failure;
use crate::site::Site;
use crate::upstream::Counts;

pub(super) async fn status(site: &Site) -> Value {
    let works = &site.works;
    let clients = works.ledger.clients();
    let errors: Map<String, Value> = oroshi_server::ErrorKind::ALL
        .into_iter()
        .filter(|&kind| clients.error(kind) > 0)
        .map(|kind| (kind.name().to_owned(), json!(clients.error(kind))))
        .collect();
    let routes: Map<String, Value> = works
        .ledger
        .routes()
        .into_iter()
        .map(|(name, counts)| {
            let by_status: Map<String, Value> = (1..6)
                .filter(|&class| counts.by_status[class] > 0)
                .map(|class| (format!("{class}xx"), json!(counts.by_status[class])))
                .collect();
            let value = json!({
                "requests": counts.by_status.iter().sum::<u64>(), "by_status": by_status, "limited": counts.limited, "bytes": counts.bytes,
            });
            (name, value)
        })
        .collect();
    let lookups: Map<String, Value> = works
        .lookups
        .iter()
        .map(|lookup| {
            let counts = lookup.counts();
            let tier = |counts: &oroshi_lookup::counts::TierCounts| {
                json!({
                    "hits": counts.hits, "negatives": counts.negatives, "misses": counts.misses, "invalid": counts.invalid,
                    "errors": counts.errors, "timeouts": counts.timeouts, "writes": counts.writes, "write_errors": counts.write_errors,
                })
            };
            let memory = &counts.memory;
            let value = json!({
                "asked": counts.asked, "joined": counts.joined, "overloaded": counts.overloaded, "overdue": counts.overdue,
                "stale": counts.stale, "keys_in_flight": counts.keys_in_flight,
                "memory": {
                    "hits": memory.hits, "negatives": memory.negatives, "expired": memory.expired, "misses": memory.misses,
                    "refreshes": memory.refreshes, "evictions": memory.evictions, "negative_evictions": memory.negative_evictions,
                    "entries": memory.entries, "bytes": memory.bytes,
                    "negative_entries": memory.negative_entries, "negative_bytes": memory.negative_bytes,
                },
                "memcached": tier(&counts.memcached),
                "sql": tier(&counts.sql),
            });
            (lookup.settings().name.clone(), value)
        })
        .collect();
    let stores: Map<String, Value> = works
        .stores
        .states()
        .await
        .into_iter()
        .map(|(name, state)| {
            let value = match state {
                StoreState::Memcached(servers) => {
                    json!({ "memcached": servers.iter().map(server).collect::<Vec<_>>() })
                }
                StoreState::Sql(state) => json!({ "sql": database(&state) }),
            };
            (name, value)
        })
        .collect();
    let targets: Vec<Value> = works
        .ledger
        .targets
        .counts()
        .into_iter()
        .map(|found| counted(&found.target, group(site, found.class), None, &found.counts))
        .collect();
    let lost = works.log.as_ref().map(|log| log.counts()).unwrap_or_default();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "since_unix_s": works.since.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        "generation": works.generation,
        "threads": works.plan.threads,
        "clients": {
            "connections": clients.alive, "accepted": clients.accepted, "requests": clients.requests, "errors": errors,
        },
        "routes": routes,
        "lookups": lookups,
        "stores": stores,
        "targets": targets,
        "access_log": { "dropped_buffers": lost.dropped, "failed_writes": lost.failed },
    })
}

/// A target's state, over all cores.
pub(super) fn target(site: &Site, target: &str, class: u32, weight: Option<u32>) -> Value {
    let all = site.works.ledger.targets.counts();
    let counts = all.iter().find(|found| &*found.target == target && found.class == class);
    counted(target, group(site, class), weight, &counts.map(|found| found.counts).unwrap_or_default())
}

/// The upstream or look-up that pools of a class belong to.
pub(super) fn group(site: &Site, class: u32) -> &str {
    let plan = &site.works.plan;
    let upstream = plan.upstreams.iter().find(|upstream| upstream.pool.class == class).map(|upstream| &*upstream.name);
    let lookup = || plan.lookups.iter().find(|lookup| lookup.pool.class == class).map(|lookup| &*lookup.settings.name);
    // One of a plan before this one.
    upstream.or_else(lookup).unwrap_or("-")
}

fn counted(target: &str, group: &str, weight: Option<u32>, counts: &Counts) -> Value {
    let failures: Map<String, Value> = Failure::ALL
        .into_iter()
        .filter(|&failure| counts.failure(failure) > 0)
        .map(|failure| (failure.name().to_owned(), json!(counts.failure(failure))))
        .collect();
    let mut value = json!({
        "target": target, "of": group, "requests": counts.requests, "answers": counts.answers, "server_errors": counts.server_errors,
        "connects": counts.connects, "reuses": counts.reuses, "stale": counts.stale, "retries": counts.retries,
        "open": counts.open, "idle": counts.idle, "queued": counts.queued,
        "ejections": counts.ejections, "ejected_on_threads": counts.ejected, "failures": failures,
    });
    if let Some(weight) = weight {
        value["weight"] = json!(weight);
    }
    value
}

pub(super) fn server(state: &ServerState) -> Value {
    json!({
        "server": state.server, "breaker": state.breaker.as_str(), "connected": state.connected, "connects": state.connects,
        "pending": state.pending,
    })
}

pub(super) fn database(state: &SqlState) -> Value {
    json!({
        "database": state.database, "breaker": state.breaker.as_str(), "busy": state.busy, "idle": state.idle,
        "connections": state.connections, "waiting": state.waiting,
    })
}
