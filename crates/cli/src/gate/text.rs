//! A plan as a configuration in TOML, with every default in its place: what `--check` prints. Secrets are left out.

use std::time::Duration;

use oroshi_gate::forward::{HostPolicy, Settings};
use oroshi_gate::upstream::{Policy, PoolSettings};
use oroshi_gate::{Action, Answer, HashBy, KeyFrom, Plan, Serves, access};
use oroshi_lookup::{Breaking, StoreKind};

use crate::config::written::Toml;

/// The configuration that makes this plan, but for its secrets and for what routes match.
pub(super) fn config(plan: &Plan) -> String {
    let mut out = Toml(String::new());
    out.bare("threads", plan.threads);
    if let Some(cpus) = &plan.cpus {
        out.text("cpus", &cpus.to_string());
    }
    out.time("drain", plan.drain);
    out.table("listen");
    for (key, serves) in [("public", Serves::Public), ("admin", Serves::Admin)] {
        let addresses: Vec<&str> =
            plan.doors.iter().filter(|door| door.serves == serves).map(|door| &*door.address).collect();
        if !addresses.is_empty() {
            out.texts(key, addresses.into_iter());
        }
    }
    let limits = &plan.limits;
    out.table("limits");
    out.bare("connections", limits.connections);
    out.or_off("per-host", limits.per_host);
    out.bare("head-bytes", limits.head_bytes);
    out.bare("headers", limits.headers);
    out.bare("target-bytes", limits.target_bytes);
    out.or_off("body-bytes", Some(limits.body_bytes).filter(|&bytes| bytes < u64::MAX));
    out.time("idle", limits.idle);
    out.time("head", limits.head);
    out.time("body", limits.body);
    out.time("write", limits.write);
    match &plan.access_log {
        None => out.comment("no access log"),
        Some(log) => {
            out.table("access-log");
            if let Some(file) = &log.file {
                out.text("file", &file.display().to_string());
            }
            out.text("format", if log.format == access::Format::Json { "json" } else { "combined" });
            out.bare("sample", log.sample);
        }
    }
    answer(&mut out, "no-route", &plan.no_route);
    stores(&mut out, plan);
    lookups(&mut out, plan);
    for upstream in &plan.upstreams {
        out.table(&format!("upstream.{}", Toml::key(&upstream.name)));
        let targets = upstream
            .targets
            .iter()
            .map(|(target, weight)| format!("{{ to = {}, weight = {weight} }}", Toml::quoted(&target.to_string())));
        out.bare("targets", format!("[{}]", targets.collect::<Vec<_>>().join(", ")));
        pool(
            &mut out,
            upstream.policy,
            &upstream.hash,
            &upstream.pool,
            &format!("upstream.{}", Toml::key(&upstream.name)),
        );
    }
    for route in &plan.routes {
        out.line("\n[[route]]");
        out.text("name", &route.name);
        match &route.action {
            Action::Forward(upstream) => out.text("to", &plan.upstreams[*upstream].name),
            Action::Lookup(lookup) => out.text("lookup", &plan.lookups[*lookup].settings.name),
            Action::Redirect { status, .. } => out.comment(&format!("redirects with {status}")),
            Action::Answer(answer) => out.comment(&format!("answers {}", answer.status)),
        }
        if matches!(route.action, Action::Forward(_) | Action::Lookup(_)) {
            rules(&mut out, route.rules.settings());
        }
    }
    out.0
}

fn stores(out: &mut Toml, plan: &Plan) {
    for store in &plan.stores {
        match &store.kind {
            StoreKind::Memcached(memcached) => {
                let name = format!("memcached.{}", Toml::key(&store.name));
                out.table(&name);
                out.texts("servers", memcached.servers.iter().map(String::as_str));
                out.time("timeout", memcached.timeout);
                out.time("connect-timeout", memcached.connect_timeout);
                out.bare("value-bytes", memcached.value_bytes);
                out.bare("pending", memcached.pending);
                breaker(out, &name, &memcached.breaker);
            }
            StoreKind::Sql(sql) => {
                let name = format!("sql.{}", Toml::key(&store.name));
                out.table(&name);
                out.comment("a URL is set");
                out.comment(if sql.password.is_some() { "a password is set" } else { "no password beside the URL" });
                out.bare("connections", sql.connections);
                out.time("query-timeout", sql.query_timeout);
                out.time("connect-timeout", sql.connect_timeout);
                out.bare("pending", sql.pending);
                breaker(out, &name, &sql.breaker);
            }
        }
    }
}

fn breaker(out: &mut Toml, store: &str, breaking: &Breaking) {
    out.table(&format!("{store}.breaker"));
    out.bare("failures", breaking.failures);
    out.time("pause", breaking.pause);
    out.time("pause-max", breaking.pause_max);
}

fn lookups(out: &mut Toml, plan: &Plan) {
    for lookup in &plan.lookups {
        let settings = &lookup.settings;
        let name = format!("lookup.{}", Toml::key(&settings.name));
        out.table(&name);
        out.text(
            "key",
            &match &lookup.key {
                KeyFrom::Host => "host".to_owned(),
                KeyFrom::Header(name) => format!("header {name}"),
                KeyFrom::Segment(place) => format!("segment {place}"),
            },
        );
        out.time("wait", settings.wait);
        out.bare("keys-in-flight", settings.keys_in_flight);
        out.bare("waiting", settings.waiting);
        out.comment(&format!("allowed targets: {:?}", settings.allow));
        if settings.memory.is_none() {
            out.text("memory", "off");
        }
        pool(out, lookup.policy, &lookup.hash, &lookup.pool, &name);
        if let Some(memory) = &settings.memory {
            out.table(&format!("{name}.memory"));
            out.bare("entries", memory.entries);
            out.bare("bytes", memory.bytes);
            out.bare("negative-entries", memory.negative_entries);
            out.bare("negative-bytes", memory.negative_bytes);
            out.time("ttl", memory.ttl);
            out.time("negative-ttl", memory.negative_ttl);
            out.bare("jitter", memory.jitter);
            out.or_off("refresh-ahead", memory.refresh_ahead);
            out.time("stale-if-error", memory.stale_if_error);
        }
        if let Some(memcached) = &settings.memcached {
            out.table(&format!("{name}.memcached"));
            out.text("store", &memcached.store);
            out.text("prefix", &memcached.prefix);
            out.time("ttl", memcached.ttl);
            match memcached.negative_ttl {
                Some(ttl) => out.time("negative-ttl", ttl),
                None => out.text("negative-ttl", "off"),
            }
            out.bare("write-back", memcached.write_back);
        }
        if let Some(sql) = &settings.sql {
            out.table(&format!("{name}.sql"));
            out.text("store", &sql.store);
            out.text("query", &sql.query);
        }
        for (key, said) in [("unknown", &lookup.unknown), ("down", &lookup.down), ("invalid", &lookup.invalid)] {
            answer(out, &format!("{name}.{key}"), said);
        }
    }
}

fn answer(out: &mut Toml, name: &str, answer: &Answer) {
    out.table(name);
    out.bare("status", answer.status);
    out.text("content-type", &answer.content_type);
    match str::from_utf8(&answer.body) {
        Ok(text) if text.len() <= 200 => out.text("body", text),
        _ => out.comment(&format!("a body of {} bytes", answer.body.len())),
    }
    match answer.retry_after {
        Some(seconds) => out.text("retry-after", &format!("{seconds}s")),
        None => out.text("retry-after", "off"),
    }
}

fn pool(out: &mut Toml, policy: Policy, hash: &HashBy, pool: &PoolSettings, name: &str) {
    out.text("balance", policy.name());
    out.text(
        "hash",
        &match hash {
            HashBy::Host => "host".to_owned(),
            HashBy::Target => "target".to_owned(),
            HashBy::Client => "client".to_owned(),
            HashBy::Header(name) => format!("header {name}"),
        },
    );
    out.bare("connections", pool.connections);
    out.bare("idle-connections", pool.idle_connections);
    out.bare("queue", pool.queue);
    out.time("idle-timeout", pool.idle_timeout);
    out.time_or_off("max-age", pool.max_age);
    out.or_off("max-requests", Some(pool.max_requests).filter(|&most| most < u64::MAX));
    out.time("name-ttl", pool.name_ttl);
    out.time("name-negative-ttl", pool.name_negative_ttl);
    let ejection = &pool.ejection;
    out.table(&format!("{name}.ejection"));
    out.or_off("failures", Some(ejection.failures).filter(|&failures| failures > 0));
    out.time("back-off", ejection.back_off);
    out.time("longest", ejection.longest);
    out.bare("server-errors", ejection.server_errors);
}

fn rules(out: &mut Toml, settings: &Settings) {
    out.text(
        "host-header",
        match &settings.host {
            HostPolicy::Preserve => "preserve",
            HostPolicy::Target => "target",
            HostPolicy::Fixed(host) => host,
        },
    );
    out.text("strip-prefix", &settings.strip_prefix);
    out.text("add-prefix", &settings.add_prefix);
    out.text("via", &settings.via);
    out.bare("upgrade", settings.upgrade);
    out.bare("retry", settings.retry);
    out.bare("explain", settings.explain);
    for (name, edits) in [("request", &settings.request), ("response", &settings.response)] {
        if !edits.is_empty() {
            out.comment(&format!("fields of the {name} are changed"));
        }
    }
    let timeouts = &settings.timeouts;
    out.table("route.timeouts");
    out.time("queue", timeouts.queue);
    out.time("connect", timeouts.connect);
    out.time_or_off("head", timeouts.head);
    out.time_or_off("between", timeouts.between);
    out.time_or_off("total", timeouts.total);
    out.time_or_off("tunnel", timeouts.tunnel);
}

impl Toml {
    fn or_off(&mut self, key: &str, value: Option<impl ToString>) {
        match value {
            Some(value) => self.bare(key, value),
            None => self.text(key, "off"),
        }
    }

    fn time_or_off(&mut self, key: &str, time: Duration) {
        match time {
            Duration::MAX => self.text(key, "off"),
            time => self.time(key, time),
        }
    }
}
