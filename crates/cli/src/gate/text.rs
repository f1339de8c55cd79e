//! Writes a plan as TOML, with every default and without secrets: the output of `--check`.

use oroshi_config::written::Toml;
use oroshi_gate::forward::{Compression, Edits, Forwarding, HostPolicy, Settings};
use oroshi_gate::route::{HeaderPattern, HostPattern, Matcher};
use oroshi_gate::upstream::{CheckSettings, Policy, PoolSettings, TlsSettings};
use oroshi_gate::{Action, Answer, HashBy, Hook, KeyFrom, Limits, Plan, Serves, access};
use oroshi_lookup::{BreakerSettings, StoreKind};
use oroshi_net::proxy_protocol::ProxyVersion;

use crate::listener_keys;

/// Returns the configuration of a plan, without its secrets.
pub(super) fn config(plan: &Plan) -> String {
    let mut out = Toml::default();
    out.bare("threads", plan.threads);
    if let Some(cpus) = &plan.cpus {
        out.text("cpus", &cpus.to_string());
    }
    out.time("drain", plan.drain);
    out.bare("script-cache", plan.script_cache);
    listeners(&mut out, plan);
    listener_keys::write_proxies(&mut out, &plan.proxies);
    limits(&mut out, &plan.limits);
    access_log(&mut out, plan.access_log.as_ref());
    answer(&mut out, "no-route", &plan.no_route);
    // All routes have the same settings.
    if let Some(route) = plan.routes.first() {
        forwarding(&mut out, &route.rules.settings().forwarding);
    }
    if let Some(settings) = plan.routes.iter().find_map(|route| route.rules.settings().compression.as_ref()) {
        compression(&mut out, settings);
    }
    super::tls::write(&mut out, plan);
    super::acme::write(&mut out, plan);
    stores(&mut out, plan);
    scripts(&mut out, plan);
    lookups(&mut out, plan);
    upstreams(&mut out, plan);
    limits_by_key(&mut out, plan);
    routes(&mut out, plan);
    out.0
}

fn listeners(out: &mut Toml, plan: &Plan) {
    out.table("listen");
    for (key, serves) in [("public", Serves::Public), ("tls", Serves::Tls), ("admin", Serves::Admin)] {
        let addresses: Vec<&str> = plan
            .listeners
            .iter()
            .filter(|listener| listener.serves == serves)
            .map(|listener| &*listener.address)
            .collect();
        if !addresses.is_empty() {
            out.texts(key, addresses.into_iter());
        }
    }
}

fn limits(out: &mut Toml, limits: &Limits) {
    out.table("limits");
    out.bare("connections", limits.connections);
    out.bare("handshakes", limits.handshakes);
    out.or_off("per-host", limits.per_host);
    out.bare("head-bytes", limits.head_bytes);
    out.bare("headers", limits.headers);
    out.bare("answer-headers", limits.answer_headers);
    out.bare("compression-bytes", limits.compression_bytes);
    out.bare("target-bytes", limits.target_bytes);
    out.or_off("hops", limits.hops);
    out.or_off("body-bytes", Some(limits.body_bytes).filter(|&bytes| bytes < u64::MAX));
    out.time("idle", limits.idle);
    out.time("head", limits.head);
    out.time_or_off("body", limits.body);
    out.time("body-pause", limits.body_pause);
    out.or_off("body-rate", (limits.body_rate > 0).then_some(limits.body_rate));
    out.time("body-rate-window", limits.body_rate_window);
    out.time("write", limits.write);
}

fn limits_by_key(out: &mut Toml, plan: &Plan) {
    for limit in &plan.limits_by_key {
        let name = format!("limit.{}", Toml::key(&limit.name));
        out.table(&name);
        let key: Vec<String> = limit.key.iter().map(ToString::to_string).collect();
        out.texts("key", key.iter().map(String::as_str));
        out.text("rate", &format!("{}/{}ms", limit.rate.count, limit.rate.period.as_secs_f64() * 1e3));
        out.bare("burst", limit.burst);
        out.bare("entries", limit.entries);
        if let Some(shared) = &limit.memcached {
            out.table(&format!("{name}.memcached"));
            out.text("store", &shared.store);
            out.text("prefix", &shared.prefix);
        }
        answer(out, &format!("{name}.answer"), &limit.answer);
    }
}

fn access_log(out: &mut Toml, log: Option<&access::Settings>) {
    let Some(log) = log else { return out.comment("no access log") };
    out.table("access-log");
    if let Some(file) = &log.file {
        out.text("file", &file.display().to_string());
    }
    match &log.format {
        access::Format::Json => out.text("format", "json"),
        access::Format::Combined => out.text("format", "combined"),
        access::Format::Template(template) => {
            out.text("format", template.text());
            out.text("escape", if template.escaping() == access::Escaping::Json { "json" } else { "text" });
        }
    }
    out.bare("sample", log.sample);
}

fn upstreams(out: &mut Toml, plan: &Plan) {
    for upstream in &plan.upstreams {
        out.table(&format!("upstream.{}", Toml::key(&upstream.name)));
        let targets = upstream
            .targets
            .iter()
            .map(|(target, weight)| format!("{{ to = {}, weight = {weight} }}", Toml::quoted(&target.to_string())));
        out.bare("targets", format!("[{}]", targets.collect::<Vec<_>>().join(", ")));
        let name = format!("upstream.{}", Toml::key(&upstream.name));
        pool(out, upstream.policy, &upstream.hash, &upstream.pool, &name);
        if let Some(check) = &upstream.check {
            out.table(&format!("{name}.health"));
            health(out, check);
        }
    }
}

fn routes(out: &mut Toml, plan: &Plan) {
    for (number, route) in plan.routes.iter().enumerate() {
        out.line("\n[[route]]");
        out.text("name", &route.name);
        let headers = plan.table.matcher(number).map_or(&[][..], |matcher| matches(out, matcher));
        if !route.limits.is_empty() {
            out.texts("limit", route.limits.iter().map(|&limit| &*plan.limits_by_key[limit].name));
        }
        if let Some(script) = route.script {
            out.text("script", &plan.scripts[script].settings.name);
        }
        match &route.action {
            Action::Forward(upstream) => out.text("to", &plan.upstreams[*upstream].name),
            Action::Lookup(lookup) => out.text("lookup", &plan.lookups[*lookup].settings.name),
            Action::Redirect { status, .. } => out.comment(&format!("redirects with {status}")),
            Action::Answer(answer) => out.comment(&format!("answers {}", answer.status)),
        }
        if route.script.is_some() || matches!(route.action, Action::Forward(_) | Action::Lookup(_)) {
            rules(out, route.rules.settings());
        }
        if let Some(rule) = &route.clients {
            super::tls::write_clients(out, rule);
        }
        if !headers.is_empty() {
            out.table("route.header");
            for pattern in headers {
                out.text(&pattern.name, pattern.value.as_deref().unwrap_or("*"));
            }
        }
    }
}

fn forwarding(out: &mut Toml, forwarding: &Forwarding) {
    out.table("forwarding");
    out.bare("x-forwarded", forwarding.x_forwarded);
    out.bare("x-forwarded-port", forwarding.x_forwarded_port);
    out.bare("x-real-ip", forwarding.x_real_ip);
    out.bare("forwarded", forwarding.forwarded);
    out.bare("request-id", forwarding.request_id);
    out.bare("traceparent", forwarding.traceparent);
    listener_keys::write_networks(out, &forwarding.trusted);
    out.bare("trust-unix", forwarding.trust_unix);
}

fn compression(out: &mut Toml, compression: &Compression) {
    out.table("compression");
    out.texts("codings", compression.codings.iter().map(|coding| coding.name()));
    out.texts("types", compression.types.iter().map(String::as_str));
    out.bare("min-bytes", compression.min_bytes);
    out.table("compression.levels");
    out.bare("gzip", compression.levels.gzip);
    out.bare("br", compression.levels.br);
    out.bare("zstd", compression.levels.zstd);
}

/// Writes the conditions of a route. Conditions on header fields are a table, so they follow all keys.
fn matches<'p>(out: &mut Toml, matcher: &'p Matcher) -> &'p [HeaderPattern] {
    let hosts: Vec<String> = matcher
        .hosts
        .iter()
        .map(|host| match host {
            HostPattern::Exact(name) => name.clone(),
            HostPattern::Below(name) => format!("*.{name}"),
        })
        .collect();
    if !hosts.is_empty() {
        out.texts("host", hosts.iter().map(String::as_str));
    }
    if !matcher.path.is_empty() {
        out.text("path", &matcher.path);
    }
    if !matcher.methods.is_empty() {
        out.texts("method", matcher.methods.iter().map(String::as_str));
    }
    &matcher.headers
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
                out.bare("script-connections", sql.for_scripts());
                out.time("query-timeout", sql.query_timeout);
                out.time("connect-timeout", sql.connect_timeout);
                out.bare("pending", sql.pending);
                out.bare("rows", sql.rows);
                out.bare("row-bytes", sql.row_bytes);
                breaker(out, &name, &sql.breaker);
            }
        }
    }
}

fn breaker(out: &mut Toml, store: &str, breaking: &BreakerSettings) {
    out.table(&format!("{store}.breaker"));
    out.bare("failures", breaking.failures);
    out.time("pause", breaking.pause);
    out.time("pause-max", breaking.pause_max);
}

fn scripts(out: &mut Toml, plan: &Plan) {
    for script in &plan.scripts {
        let settings = &script.settings;
        let name = format!("script.{}", Toml::key(&settings.name));
        out.table(&name);
        out.text("file", &settings.file.display().to_string());
        let hooks: Vec<&str> = Hook::ALL.into_iter().filter(|&hook| script.hooks.has(hook)).map(Hook::name).collect();
        out.comment(&format!("its functions: {}", hooks.join(", ")));
        out.bare("instructions", settings.instructions);
        out.time("wall", settings.wall);
        out.bare("memory", settings.memory);
        out.bare("jit", settings.jit);
        out.comment(&format!("allowed targets: {:?}", script.allow));
        pool(out, script.policy, &script.hash, &script.pool, &name);
        for (key, said) in [("unknown", &script.unknown), ("invalid", &script.invalid)] {
            answer(out, &format!("{name}.{key}"), said);
        }
    }
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
                KeyFrom::Script(place) => format!("script {}", plan.scripts[*place].settings.name),
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
    out.text("proxy-protocol", pool.proxy_protocol.map_or("off", ProxyVersion::name));
    let ejection = &pool.ejection;
    out.table(&format!("{name}.ejection"));
    out.or_off("failures", Some(ejection.failures).filter(|&failures| failures > 0));
    out.time("back-off", ejection.back_off);
    out.time("longest", ejection.longest);
    out.bare("server-errors", ejection.server_errors);
    out.table(&format!("{name}.tls"));
    tls(out, &pool.tls);
}

fn health(out: &mut Toml, check: &CheckSettings) {
    out.text("path", &check.path);
    if let Some(host) = &check.host {
        out.text("host", host);
    }
    out.time("interval", check.interval);
    out.bare("jitter", check.jitter);
    out.time("timeout", check.timeout);
    let statuses = check.statuses.iter().map(|range| format!("{}-{}", range.start(), range.end()));
    out.texts("statuses", statuses.collect::<Vec<_>>().iter().map(String::as_str));
    out.bare("rise", check.rise);
    out.bare("fall", check.fall);
}

fn tls(out: &mut Toml, tls: &TlsSettings) {
    out.bare("verify", tls.verify);
    let files: Vec<String> = tls.roots.files.iter().map(|file| file.display().to_string()).collect();
    if !files.is_empty() {
        out.texts("ca", files.iter().map(String::as_str));
    }
    if tls.verify {
        out.bare("system-roots", tls.roots.has_system());
    }
    if let Some(name) = &tls.server_name {
        out.text("server-name", name);
    }
    for (key, file) in [("certificate", &tls.certificate), ("key", &tls.key)] {
        if let Some(file) = file {
            out.text(key, &file.display().to_string());
        }
    }
    out.text("protocol", tls.protocol.name());
    out.bare("resume", tls.resume);
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
    out.or_off("buffer", (settings.buffer > 0).then_some(settings.buffer));
    out.bare("upgrade", settings.upgrade);
    out.bare("retry", settings.retry);
    out.bare("compress", settings.compression.is_some());
    out.bare("explain", settings.explain);
    let timeouts = &settings.timeouts;
    out.table("route.timeouts");
    out.time("queue", timeouts.queue);
    out.time("connect", timeouts.connect);
    out.time_or_off("head", timeouts.head);
    out.time_or_off("between", timeouts.between);
    out.time_or_off("total", timeouts.total);
    out.time_or_off("tunnel", timeouts.tunnel);
    out.time_or_off("half-close", timeouts.half_close);
    edits(out, "route.request", &settings.request);
    edits(out, "route.response", &settings.response);
}

fn edits(out: &mut Toml, name: &str, edits: &Edits) {
    if edits.is_empty() {
        return;
    }
    let is_set = |name: &str| edits.dropped().any(|dropped| dropped.eq_ignore_ascii_case(name));
    let is_written = |name: &str| edits.written().any(|(written, _)| written.eq_ignore_ascii_case(name));
    out.table(name);
    out.texts("remove", edits.dropped().filter(|name| !is_written(name)));
    for (key, sets) in [("set", true), ("add", false)] {
        out.table(&format!("{name}.{key}"));
        for (name, value) in edits.written().filter(|(name, _)| is_set(name) == sets) {
            out.text(name, value);
        }
    }
}
