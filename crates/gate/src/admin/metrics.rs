//! The gateway's metrics for Prometheus.

use std::collections::BTreeMap;
use std::time::Duration;

use oroshi_lookup::counts::{LATENCY_BOUNDS, LookupCounts, TierCounts};
use oroshi_lookup::{BreakerState, StoreState};
use oroshi_words::metrics::{Kind, Metrics};

use super::status::group;
use crate::clients;
use crate::failure::Failure;
use crate::generation::{Generation, ScriptCounts};
use crate::script::{Hook, HookCounts};
use crate::site::Site;
use crate::upstream::{Counts, LATENCY_BOUNDS_US, TargetCounts};

pub(super) async fn text(site: &Site) -> String {
    let generation = &site.generation;
    let mut metrics = Metrics::new("oroshi_gate");
    clients(&mut metrics, generation);
    tls(&mut metrics, generation);
    acme(&mut metrics, generation);
    routes(&mut metrics, generation);
    limits(&mut metrics, generation);
    let counts: Vec<(String, LookupCounts)> =
        generation.lookups.iter().map(|lookup| (lookup.settings().name.clone(), lookup.counts())).collect();
    lookups(&mut metrics, &counts);
    scripts(&mut metrics, generation);
    stores(&mut metrics, &generation.stores.states().await);
    targets(&mut metrics, site, &generation.counters.targets.counts());
    metrics.into_text()
}

fn clients(metrics: &mut Metrics, generation: &Generation) {
    let clients = generation.counters.clients();
    metrics.one(
        "generation",
        Kind::Gauge,
        "Plans that were in force since the start, this one included",
        generation.number,
    );
    metrics.one("client_connections", Kind::Gauge, "Connections of clients", clients.alive);
    metrics.one(
        "client_connections_total",
        Kind::Counter,
        "Connections of clients that were accepted",
        clients.accepted,
    );
    metrics.one("client_requests_total", Kind::Counter, "Requests whose head was sound", clients.requests);
    let mut errors =
        metrics.family("client_errors_total", Kind::Counter, "What went wrong between clients and the gateway");
    for kind in oroshi_server::ErrorKind::ALL {
        errors.sample(&[("error", kind.name())], clients.error(kind));
    }
    let encoders = generation.counters.encoders.counts();
    let about = "Memory that compressed responses take, about";
    metrics.one("compression_bytes", Kind::Gauge, about, encoders.bytes as u64);
    let about = "Responses that went uncompressed, because limits.compression-bytes was reached";
    metrics.one("compression_limited_total", Kind::Counter, about, encoders.refused);
    if let Some(log) = &generation.log {
        let lost = log.counts();
        metrics.one(
            "access_log_dropped_total",
            Kind::Counter,
            "Buffers of the access log that were dropped",
            lost.dropped,
        );
        metrics.one("access_log_failed_total", Kind::Counter, "Writes of the access log that failed", lost.failed);
    }
}

fn acme(metrics: &mut Metrics, generation: &Generation) {
    let Some(counts) = generation.acme.as_ref().map(|acme| acme.counts()) else { return };
    metrics.one("acme_orders_total", Kind::Counter, "Orders of certificates that began", counts.orders);
    let mut ends = metrics.family("acme_attempts_total", Kind::Counter, "Attempts to get a certificate by their end");
    for (result, count) in [
        ("issued", counts.issued),
        ("failed", counts.failed),
        ("trouble", counts.troubles),
        ("limited", counts.limited),
        ("not-allowed", counts.refused),
    ] {
        ends.sample(&[("result", result)], count);
    }
    let time = |time: i64| u64::try_from(time).unwrap_or_default();
    metrics.one("acme_orders", Kind::Gauge, "Orders under way", counts.under_way);
    let about = "When a certificate is due next (renewal, retry, or a look at it), since 1970; 0: unknown";
    metrics.one("acme_next_due_seconds", Kind::Gauge, about, time(counts.next_due));
    let about = "Until when no certificate is ordered after troubles, since 1970; 0: orders are permitted";
    metrics.one("acme_paused_until_seconds", Kind::Gauge, about, time(counts.paused_until));
}

fn tls(metrics: &mut Metrics, generation: &Generation) {
    let Some(counts) = generation.certificates.as_ref().map(|certificates| certificates.counts()) else { return };
    let mut handshakes = metrics.family("tls_handshakes_total", Kind::Counter, "Handshakes of clients by their end");
    for (result, count) in [
        ("full", counts.handshakes.saturating_sub(counts.resumed)),
        ("resumed", counts.resumed),
        ("refused", counts.refused),
        ("failed", counts.failed.saturating_sub(counts.refused)),
    ] {
        handshakes.sample(&[("result", result)], count);
    }
    metrics.one(
        "tls_client_certificates_total",
        Kind::Counter,
        "Handshakes whose client has a certificate",
        counts.client_certificates,
    );
    // No sample without a list: its time would look like one that has passed.
    if let Some(first) = clients::first_expiry(&generation.plan.routes) {
        let about = "When the first revocation list of clients' certificates expires, since 1970";
        metrics.one("tls_crl_expires_seconds", Kind::Gauge, about, u64::try_from(first).unwrap_or_default());
    }
    let mut names = metrics.family("tls_names_total", Kind::Counter, "Names of clients by how they were looked up");
    for (result, count) in [
        ("hit", counts.hits),
        ("negative", counts.negatives),
        ("asked", counts.asked),
        ("joined", counts.joined),
        ("limited", counts.limited),
        ("invalid", counts.invalid),
        ("store-down", counts.store_down),
    ] {
        names.sample(&[("result", result)], count);
    }
    metrics.one("tls_certificates", Kind::Gauge, "Certificates in memory that were looked up", counts.entries);
    metrics.one("tls_certificates_bytes", Kind::Gauge, "What they take, about", counts.bytes);
}

fn routes(metrics: &mut Metrics, generation: &Generation) {
    let routes = generation.counters.routes();
    let mut requests =
        metrics.family("requests_total", Kind::Counter, "Requests by route (- for none) and status class");
    for (name, counts) in &routes {
        for (class, count) in ["none", "1xx", "2xx", "3xx", "4xx", "5xx"].into_iter().zip(counts.by_status) {
            if count > 0 {
                requests.sample(&[("route", name), ("status", class)], count);
            }
        }
    }
    let mut limited = metrics.family(
        "host_limited_total",
        Kind::Counter,
        "Requests refused as too many were under way for their host",
    );
    for (name, counts) in &routes {
        limited.sample(&[("route", name)], counts.limited);
    }
    let mut bytes = metrics.family("answered_bytes_total", Kind::Counter, "Bytes of answers' bodies");
    for (name, counts) in &routes {
        bytes.sample(&[("route", name)], counts.bytes);
    }
}

fn limits(metrics: &mut Metrics, generation: &Generation) {
    let counts: Vec<_> =
        generation.limiters.iter().map(|limiter| (&*limiter.settings.name, limiter.counts())).collect();
    if counts.is_empty() {
        return;
    }
    let mut requests = metrics.family("limit_requests_total", Kind::Counter, "Requests that rate limits looked at");
    for (name, counts) in &counts {
        for (result, count) in [("passed", counts.passed), ("refused", counts.refused)] {
            requests.sample(&[("limit", name), ("result", result)], count);
        }
    }
    let help = "Keys of rate limits that were forgotten too early, for lack of room";
    let mut forgotten = metrics.family("limit_forgotten_keys_total", Kind::Counter, help);
    for (name, counts) in &counts {
        forgotten.sample(&[("limit", name)], counts.forgotten);
    }
    let help = "Requests that a gateway decided about alone, because the counts of all gateways could not be had";
    let mut alone = metrics.family("limit_alone_total", Kind::Counter, help);
    for limiter in generation.limiters.iter().filter(|limiter| limiter.settings.memcached.is_some()) {
        alone.sample(&[("limit", &limiter.settings.name)], limiter.alone());
    }
}

fn lookups(metrics: &mut Metrics, all: &[(String, LookupCounts)]) {
    type Read = fn(&LookupCounts) -> u64;
    let counters: [(&'static str, &str, Read); 6] = [
        ("lookup_asked_total", "Look-ups that had to ask a store", |counts| counts.asked),
        ("lookup_joined_total", "Of these, those that found their key being asked for already", |counts| counts.joined),
        ("lookup_overloaded_total", "Of these, those that were refused as too much was being asked for", |counts| {
            counts.overloaded
        }),
        ("lookup_overdue_total", "Of these, those whose time ran out", |counts| counts.overdue),
        ("lookup_stale_total", "Of these, those that got what had expired, as the stores were down", |counts| {
            counts.stale
        }),
        ("lookup_refreshes_total", "Hits in memory that caused a refresh ahead", |counts| counts.memory.refreshes),
    ];
    for (name, help, read) in counters {
        let mut family = metrics.family(name, Kind::Counter, help);
        for (lookup, counts) in all {
            family.sample(&[("lookup", lookup)], read(counts));
        }
    }
    let mut results = metrics.family("lookup_results_total", Kind::Counter, "What each tier said");
    for (lookup, counts) in all {
        let memory = &counts.memory;
        let of = [
            ("hit", memory.hits),
            ("negative", memory.negatives),
            ("expired", memory.expired),
            ("miss", memory.misses),
        ];
        for (result, count) in of {
            results.sample(&[("lookup", lookup), ("tier", "memory"), ("result", result)], count);
        }
        for (tier, counts) in [("memcached", &counts.memcached), ("sql", &counts.sql)] {
            for (result, count) in said(counts) {
                results.sample(&[("lookup", lookup), ("tier", tier), ("result", result)], count);
            }
        }
    }
    let mut took = metrics.histograms("lookup_seconds", "How long a store took to answer a look-up");
    for (lookup, counts) in all {
        for (tier, counts) in [("memcached", &counts.memcached), ("sql", &counts.sql)] {
            let latency = &counts.latency;
            let within = LATENCY_BOUNDS.iter().map(Duration::as_secs_f64).zip(latency.buckets);
            let beyond = latency.buckets[LATENCY_BOUNDS.len()];
            took.histogram(&[("lookup", lookup), ("tier", tier)], within, beyond, latency.sum.as_secs_f64());
        }
    }
    let gauges: [(&'static str, &str, Read); 5] = [
        ("lookup_entries", "Values in memory", |counts| counts.memory.entries as u64),
        ("lookup_bytes", "What they take", |counts| counts.memory.bytes as u64),
        ("lookup_negative_entries", "Keys in memory that are known to have none", |counts| {
            counts.memory.negative_entries as u64
        }),
        ("lookup_negative_bytes", "What they take", |counts| counts.memory.negative_bytes as u64),
        ("lookup_keys_in_flight", "Keys that are being asked for", |counts| counts.keys_in_flight),
    ];
    for (name, help, read) in gauges {
        let mut family = metrics.family(name, Kind::Gauge, help);
        for (lookup, counts) in all {
            family.sample(&[("lookup", lookup)], read(counts));
        }
    }
    let mut evictions =
        metrics.family("lookup_evictions_total", Kind::Counter, "Entries that were pushed out of memory for others");
    for (lookup, counts) in all {
        for (of, count) in [("values", counts.memory.evictions), ("negatives", counts.memory.negative_evictions)] {
            evictions.sample(&[("lookup", lookup), ("of", of)], count);
        }
    }
}

fn scripts(metrics: &mut Metrics, generation: &Generation) {
    let all = &generation.counters.scripts();
    type Read = fn(&HookCounts) -> f64;
    let figures: [(&'static str, &str, Read); 4] = [
        ("script_calls_total", "Calls of scripts' functions that have ended", |counts| counts.calls as f64),
        ("script_busy_seconds_total", "How long Lua ran in them", |counts| counts.busy.as_secs_f64()),
        ("script_seconds_total", "How long they took, waiting included", |counts| counts.wall.as_secs_f64()),
        ("script_instructions_total", "Instructions in them, where these are counted", |counts| {
            counts.instructions as f64
        }),
    ];
    for (name, help, read) in figures {
        let mut family = metrics.family(name, Kind::Counter, help);
        for (script, hook, counts) in called(all) {
            family.sample(&[("script", script), ("hook", hook.name())], read(counts));
        }
    }
    let mut failures =
        metrics.family("script_failures_total", Kind::Counter, "Calls that failed, by an error or by a limit");
    for (script, hook, counts) in called(all) {
        for (failure, count) in [("error", counts.errors), ("limit", counts.breaches)] {
            failures.sample(&[("script", script), ("hook", hook.name()), ("failure", failure)], count);
        }
    }
    let mut dropped = metrics.family(
        "script_logs_dropped_total",
        Kind::Counter,
        "Requests that on_log was not told of, as too many calls of it were under way",
    );
    for (script, counts) in all {
        dropped.sample(&[("script", script)], counts.logs_dropped);
    }
    script_cache(metrics, generation);
}

/// Writes the metrics of `gate.cache`.
fn script_cache(metrics: &mut Metrics, generation: &Generation) {
    let counts = generation.cache.counts();
    for (name, kind, help, count) in [
        ("script_cache_entries", Kind::Gauge, "Values in gate.cache", counts.entries),
        ("script_cache_bytes", Kind::Gauge, "What they take", counts.bytes),
        ("script_cache_hits_total", Kind::Counter, "Values that scripts asked for and that were there", counts.hits),
        ("script_cache_misses_total", Kind::Counter, "Those that were not there", counts.misses),
        ("script_cache_evictions_total", Kind::Counter, "Values that were pushed out for others", counts.evictions),
    ] {
        metrics.one(name, kind, help, count);
    }
}

/// Returns the hooks that were called, with their script's name.
fn called(all: &BTreeMap<String, ScriptCounts>) -> impl Iterator<Item = (&str, Hook, &HookCounts)> {
    all.iter().flat_map(|(name, counts)| {
        let hooks = Hook::ALL.into_iter().map(|hook| (&**name, hook, &counts.hooks[hook as usize]));
        hooks.filter(|(.., counts)| counts.calls > 0)
    })
}

fn said(counts: &TierCounts) -> [(&'static str, u64); 6] {
    [
        ("hit", counts.hits),
        ("negative", counts.negatives),
        ("miss", counts.misses),
        ("invalid", counts.invalid),
        ("error", counts.errors),
        ("timeout", counts.timeouts),
    ]
}

fn stores(metrics: &mut Metrics, stores: &[(String, StoreState)]) {
    // By store and server: the breaker, and the requests that wait.
    let mut servers = Vec::new();
    for (name, state) in stores {
        match state {
            StoreState::Memcached(all) => {
                servers.extend(all.iter().map(|server| (name, &*server.server, server.breaker, server.pending)));
            }
            StoreState::Sql(state) => servers.push((name, &*state.database, state.breaker, state.waiting)),
        }
    }
    let mut breakers =
        metrics.family("store_breaker_open", Kind::Gauge, "1 while a store is left alone after failures");
    for (store, server, breaker, _) in &servers {
        breakers.sample(&[("store", store), ("server", server)], u8::from(*breaker != BreakerState::Closed));
    }
    let mut waiting = metrics.family(
        "store_waiting",
        Kind::Gauge,
        "Requests that wait for a store's answer or for a connection to it",
    );
    for (store, server, _, count) in &servers {
        waiting.sample(&[("store", store), ("server", server)], *count);
    }
}

/// Writes the results of active checks.
fn health(metrics: &mut Metrics, site: &Site, all: &[TargetCounts]) {
    let checked =
        all.iter().filter_map(|found| Some((found, site.generation.check_counts(found.class, &found.target)?)));
    let checked: Vec<_> = checked.map(|(found, counts)| (&*found.target, group(site, found.class), counts)).collect();
    if checked.is_empty() {
        return;
    }
    let mut up = metrics.family("target_up", Kind::Gauge, "0 while health checks leave a target out");
    for (target, of, counts) in &checked {
        up.sample(&[("target", target), ("of", of)], u8::from(!counts.is_down));
    }
    let mut checks = metrics.family("target_checks_total", Kind::Counter, "Health checks of targets");
    for (target, of, counts) in &checked {
        for (result, count) in [("passed", counts.passed), ("failed", counts.failed)] {
            checks.sample(&[("target", target), ("of", of), ("result", result)], count);
        }
    }
}

fn targets(metrics: &mut Metrics, site: &Site, all: &[TargetCounts]) {
    type Read = fn(&Counts) -> u64;
    let figures: [(&'static str, Kind, &str, Read); 15] = [
        ("target_requests_total", Kind::Counter, "Requests for which a target was chosen", |counts| counts.requests),
        ("target_answers_total", Kind::Counter, "Answers whose head came", |counts| counts.answers),
        ("target_server_errors_total", Kind::Counter, "Of these, those of 500 to 599", |counts| counts.server_errors),
        ("target_connects_total", Kind::Counter, "Connections made", |counts| counts.connects),
        ("target_reuses_total", Kind::Counter, "Requests on a connection that had carried others", |counts| {
            counts.reuses
        }),
        ("target_tls_handshakes_total", Kind::Counter, "TLS handshakes that succeeded", |counts| counts.handshakes),
        ("target_tls_resumed_total", Kind::Counter, "Of these, those that resumed a session", |counts| counts.resumed),
        ("target_stale_total", Kind::Counter, "Idle connections that turned out to be closed", |counts| counts.stale),
        ("target_retries_total", Kind::Counter, "Requests sent a second time", |counts| counts.retries),
        ("target_ejections_total", Kind::Counter, "How often a target was left out for a while", |counts| {
            counts.ejections
        }),
        ("target_answered_bytes_total", Kind::Counter, "Bytes of answers' bodies", |counts| counts.bytes),
        ("target_connections", Kind::Gauge, "Connections that are open or being made", |counts| counts.open),
        ("target_idle_connections", Kind::Gauge, "Of these, those that wait for a request", |counts| counts.idle),
        ("target_queued", Kind::Gauge, "Requests that wait for a connection", |counts| counts.queued),
        ("target_ejected_threads", Kind::Gauge, "On how many threads a target is left out", |counts| counts.ejected),
    ];
    for (name, kind, help, read) in figures {
        let mut family = metrics.family(name, kind, help);
        for found in all {
            family.sample(&[("target", &found.target), ("of", group(site, found.class))], read(&found.counts));
        }
    }
    health(metrics, site, all);
    let mut failures = metrics.family("target_failures_total", Kind::Counter, "Failures by name");
    for found in all {
        for failure in Failure::ALL.into_iter().filter(|&failure| found.counts.failure(failure) > 0) {
            let labels = [("target", &*found.target), ("of", group(site, found.class)), ("failure", failure.name())];
            failures.sample(&labels, found.counts.failure(failure));
        }
    }
    let mut took = metrics.histograms("target_seconds", "From a request's first byte to the end of its answer's head");
    for found in all {
        let within = LATENCY_BOUNDS_US.iter().map(|&bound| bound as f64 / 1e6).zip(found.counts.latency);
        let beyond = found.counts.latency[LATENCY_BOUNDS_US.len()];
        let sum = found.counts.latency_us as f64 / 1e6;
        took.histogram(&[("target", &found.target), ("of", group(site, found.class))], within, beyond, sum);
    }
}
