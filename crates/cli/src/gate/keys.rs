//! Reads the keys of a gateway's configuration. docs/gate.md explains them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oroshi_config::values::{number, off_or, switch, text};
use oroshi_config::{SecretSource, Table, secret};
use oroshi_gate::forward::{Coding, Compression, Edits, Forwarding, HostPolicy};
use oroshi_gate::limit::{self, KeyPart, Rate, SharedCounts};
use oroshi_gate::route::HeaderPattern;
use oroshi_gate::upstream::{CheckSettings, Policy, PoolSettings, TlsProtocol, TlsSettings};
use oroshi_gate::{
    Answer, Draft, HashBy, KeyDraft, KeyFrom, Limits, Listener, LookupDraft, RouteDraft, ScriptDraft, ScriptSettings,
    Serves, UpstreamDraft, access, forward,
};
use oroshi_http1::is_token;
use oroshi_lookup::{
    Allow, BreakerSettings, MemcachedSettings, MemcachedTier, SqlSettings, SqlTier, StoreKind, StoreSettings,
};
use oroshi_net::CpuList;
use oroshi_net::proxy_protocol::ProxyVersion;
use oroshi_service::Role;
use oroshi_words::units::{parse_number, parse_time};

use crate::listener_keys;

/// Reads a configuration. `folder` is its folder: paths of scripts are relative to it.
pub(super) fn read(root: Table<'_>, folder: &Path) -> Draft {
    let (threads, cpus) = (root.read("threads", number), root.read("cpus", CpuList::parse_available));
    let mut draft = Draft { threads, cpus, ..Draft::default() };
    root.set("drain", &mut draft.drain, parse_time);
    root.set("script-cache", &mut draft.script_cache, number);
    root.within("listen", |listen| {
        for &(key, serves) in Serves::NAMED {
            draft.listeners.extend(listen.texts(key).into_iter().map(|address| Listener { address, serves }));
        }
    });
    root.within("tls", |table| draft.tls = Some(super::tls::read(table, folder)));
    root.within("acme", |table| {
        draft.tls.get_or_insert_default().acme = Some(super::acme::read(table, folder));
    });
    listener_keys::proxies(&root, &mut draft.proxies);
    root.within("limits", |table| limits(table, &mut draft.limits));
    root.within("access-log", |table| draft.access_log = Some(access_log(table)));
    root.within("no-route", |table| answer(table, &mut draft.no_route));
    let stores = &mut draft.stores;
    named(&root, "memcached", |name, table| {
        stores.push(StoreSettings { name: name.to_owned(), kind: StoreKind::Memcached(memcached(table)) });
    });
    named(&root, "sql", |name, table| {
        stores.push(StoreSettings { name: name.to_owned(), kind: StoreKind::Sql(sql(table)) });
    });
    named(&root, "lookup", |name, table| draft.lookups.push(lookup(name, table, folder)));
    named(&root, "upstream", |name, table| draft.upstreams.push(upstream(name, table, folder)));
    named(&root, "limit", |name, table| draft.limits_by_key.push(limit(name, table)));
    named(&root, "script", |name, table| draft.scripts.push(script(name, table, folder)));
    let mut settings = forward::Settings::default();
    root.within("forwarding", |table| forwarding_keys(table, &mut settings.forwarding));
    root.within("compression", |table| settings.compression = Some(Arc::new(compression(table))));
    for element in root.get("route").and_then(|field| field.elements()).unwrap_or_default() {
        if let Some(table) = element.table() {
            draft.routes.push(route(table, folder, &settings));
        }
    }
    root.finish();
    draft
}

fn limits(table: &Table<'_>, limits: &mut Limits) {
    table.set("connections", &mut limits.connections, number);
    table.set("handshakes", &mut limits.handshakes, number);
    table.set("per-host", &mut limits.per_host, |text| off_or(text, number));
    table.set("head-bytes", &mut limits.head_bytes, number);
    if let Some(headers) = table.read("headers", number) {
        (limits.headers, limits.answer_headers) = (headers, headers);
    }
    table.set("answer-headers", &mut limits.answer_headers, number);
    table.set("hops", &mut limits.hops, |text| off_or(text, number));
    table.set("compression-bytes", &mut limits.compression_bytes, number);
    table.set("target-bytes", &mut limits.target_bytes, number);
    table.set("body-bytes", &mut limits.body_bytes, |text| Ok(off_or(text, number)?.unwrap_or(u64::MAX)));
    table.set("idle", &mut limits.idle, parse_time);
    table.set("head", &mut limits.head, parse_time);
    table.set("body", &mut limits.body, |text| Ok(off_or(text, parse_time)?.unwrap_or(Duration::MAX)));
    table.set("body-pause", &mut limits.body_pause, parse_time);
    table.set("body-rate", &mut limits.body_rate, |text| Ok(off_or(text, number)?.unwrap_or(0)));
    table.set("body-rate-window", &mut limits.body_rate_window, parse_time);
    table.set("write", &mut limits.write, parse_time);
}

fn access_log(table: &Table<'_>) -> access::Settings {
    let mut log = access::Settings { file: table.text("file").map(PathBuf::from), ..access::Settings::default() };
    let escape = table.get("escape");
    let escaping = escape.as_ref().and_then(|field| {
        field.read(|text| match text {
            "text" => Ok(access::Escaping::Text),
            "json" => Ok(access::Escaping::Json),
            _ => Err(format!("`{text}` is no way to escape: expected text or json")),
        })
    });
    table.set("format", &mut log.format, |text| match text {
        "json" => Ok(access::Format::Json),
        "combined" => Ok(access::Format::Combined),
        _ => {
            let template = access::Template::parse(text, escaping.unwrap_or_default())?;
            Ok(access::Format::Template(Arc::new(template)))
        }
    });
    if let (Some(escape), access::Format::Json | access::Format::Combined) = (escape, &log.format) {
        escape.wrong("only templates are escaped in a way to choose: expected a `format` with variables");
    }
    table.set("sample", &mut log.sample, parse_number);
    log
}

fn forwarding_keys(table: &Table<'_>, forwarding: &mut Forwarding) {
    for (key, place) in [
        ("x-forwarded", &mut forwarding.x_forwarded),
        ("x-forwarded-port", &mut forwarding.x_forwarded_port),
        ("x-real-ip", &mut forwarding.x_real_ip),
        ("forwarded", &mut forwarding.forwarded),
        ("request-id", &mut forwarding.request_id),
        ("traceparent", &mut forwarding.traceparent),
        ("trust-unix", &mut forwarding.trust_unix),
    ] {
        table.set(key, place, switch);
    }
    listener_keys::networks(table, &mut forwarding.trusted);
}

/// Reads which responses are compressed.
fn compression(table: &Table<'_>) -> Compression {
    let mut compression = Compression::default();
    if let Some(field) = table.get("codings") {
        compression.codings.clear();
        for text in field.texts().unwrap_or_default() {
            match Coding::ALL.into_iter().find(|coding| coding.name() == text) {
                Some(coding) if compression.codings.contains(&coding) => {
                    field.wrong(format!("`{text}` is given twice: expected each only once"));
                }
                Some(coding) => compression.codings.push(coding),
                None => field.wrong(format!("`{text}` is no coding: expected br, zstd or gzip")),
            }
        }
    }
    if let Some(field) = table.get("types") {
        compression.types = field.texts().unwrap_or_default().iter().map(|kind| kind.to_ascii_lowercase()).collect();
    }
    table.set("min-bytes", &mut compression.min_bytes, number);
    table.within("levels", |table| {
        table.set("gzip", &mut compression.levels.gzip, number);
        table.set("br", &mut compression.levels.br, number);
        table.set("zstd", &mut compression.levels.zstd, number);
    });
    if let Some((key, why)) = compression.mistake()
        && let Some(field) = ["codings", "types", "levels"].into_iter().find(|known| key.starts_with(known))
        && let Some(field) = table.get(field)
    {
        field.wrong(why);
    }
    compression
}

fn limit(name: &str, table: &Table<'_>) -> limit::Settings {
    let mut limit = limit::Settings::new(name);
    if let Some(field) = table.get("key") {
        limit.key.clear();
        for text in field.texts().unwrap_or_default() {
            match text.split_once(' ') {
                None if text == "client" => limit.key.push(KeyPart::Client),
                None if text == "host" => limit.key.push(KeyPart::Host),
                Some(("header", name)) if is_token(name.as_bytes()) => limit.key.push(KeyPart::Header(name.to_owned())),
                _ => field.wrong(format!("`{text}` is no key of a limit: expected client, host or header NAME")),
            }
        }
    }
    table.set("rate", &mut limit.rate, rate);
    table.set("burst", &mut limit.burst, |text| {
        number(text).and_then(|burst| match burst {
            0 => Err("0 leaves room for nothing: expected at least 1".to_owned()),
            burst => Ok(burst),
        })
    });
    table.set("entries", &mut limit.entries, number);
    table.within("memcached", |table| {
        let prefix = table.text("prefix").unwrap_or_else(|| "oroshi-limit:".to_owned());
        limit.memcached = Some(SharedCounts { store: table.text("store").unwrap_or_default(), prefix });
    });
    table.within("answer", |table| answer(table, &mut limit.answer));
    limit
}

/// Reads a rate: `100/s`, `5/10m`.
pub(super) fn rate(text: &str) -> Result<Rate, String> {
    let wrong = || format!("`{text}` is no rate: expected a count per time such as 100/s, 600/m or 5/10m");
    let (count, period) = text.split_once('/').ok_or_else(wrong)?;
    let period =
        if period.starts_with(|first: char| first.is_ascii_digit()) { period.to_owned() } else { format!("1{period}") };
    let (count, period) = (number(count).map_err(|_| wrong())?, parse_time(&period).map_err(|_| wrong())?);
    Ok(Rate { count, period })
}

/// Reads the tables of a kind, by their names.
fn named(root: &Table<'_>, kind: &'static str, mut read: impl FnMut(&str, &Table<'_>)) {
    for (name, field) in root.table(kind).iter().flat_map(Table::fields) {
        if let Some(table) = field.table() {
            read(name, &table);
            table.finish();
        }
    }
}

fn memcached(table: &Table<'_>) -> MemcachedSettings {
    let mut settings = MemcachedSettings::new(table.texts("servers"));
    table.set("timeout", &mut settings.timeout, parse_time);
    table.set("connect-timeout", &mut settings.connect_timeout, parse_time);
    table.set("value-bytes", &mut settings.value_bytes, number);
    table.set("pending", &mut settings.pending, number);
    breaker(table, &mut settings.breaker);
    settings
}

fn sql(table: &Table<'_>) -> SqlSettings {
    let url = secret(
        table,
        &[("url", SecretSource::Here), ("url-file", SecretSource::File), ("url-env", SecretSource::Variable)],
    );
    let mut settings = SqlSettings::new("");
    settings.url = url.unwrap_or(settings.url);
    settings.password =
        secret(table, &[("password-file", SecretSource::File), ("password-env", SecretSource::Variable)]);
    table.set("connections", &mut settings.connections, number);
    table.set("script-connections", &mut settings.script_connections, |text| number(text).map(Some));
    table.set("query-timeout", &mut settings.query_timeout, parse_time);
    table.set("connect-timeout", &mut settings.connect_timeout, parse_time);
    table.set("pending", &mut settings.pending, number);
    table.set("rows", &mut settings.rows, number);
    table.set("row-bytes", &mut settings.row_bytes, number);
    breaker(table, &mut settings.breaker);
    settings
}

fn breaker(table: &Table<'_>, breaking: &mut BreakerSettings) {
    table.within("breaker", |table| {
        table.set("failures", &mut breaking.failures, number);
        table.set("pause", &mut breaking.pause, parse_time);
        table.set("pause-max", &mut breaking.pause_max, parse_time);
    });
}

fn lookup(name: &str, table: &Table<'_>, folder: &Path) -> LookupDraft {
    let mut draft = LookupDraft::new(name);
    let settings = &mut draft.settings;
    table.set("key", &mut draft.key, key);
    table.set("wait", &mut settings.wait, parse_time);
    table.set("keys-in-flight", &mut settings.keys_in_flight, number);
    table.set("waiting", &mut settings.waiting, number);
    allow(table, &mut settings.allow);
    match table.get("memory") {
        Some(field) if matches!(field.quiet_text(), Some("off")) => settings.memory = None,
        Some(field) => {
            if let (Some(table), Some(memory)) = (field.table(), &mut settings.memory) {
                table.set("entries", &mut memory.entries, number);
                table.set("bytes", &mut memory.bytes, number);
                table.set("negative-entries", &mut memory.negative_entries, number);
                table.set("negative-bytes", &mut memory.negative_bytes, number);
                table.set("ttl", &mut memory.ttl, parse_time);
                table.set("negative-ttl", &mut memory.negative_ttl, parse_time);
                table.set("jitter", &mut memory.jitter, parse_number);
                table.set("refresh-ahead", &mut memory.refresh_ahead, |text| off_or(text, parse_number));
                table.set("stale-if-error", &mut memory.stale_if_error, parse_time);
                table.finish();
            }
        }
        None => {}
    }
    table.within("memcached", |table| {
        let mut tier = MemcachedTier::new(table.text("store").unwrap_or_default());
        table.set("prefix", &mut tier.prefix, text);
        table.set("ttl", &mut tier.ttl, parse_time);
        table.set("negative-ttl", &mut tier.negative_ttl, |text| off_or(text, parse_time));
        table.set("write-back", &mut tier.write_back, switch);
        settings.memcached = Some(tier);
    });
    table.within("sql", |table| {
        let (store, query) = (table.text("store").unwrap_or_default(), table.text("query").unwrap_or_default());
        settings.sql = Some(SqlTier { store, query });
    });
    for (key, place) in [("unknown", &mut draft.unknown), ("down", &mut draft.down), ("invalid", &mut draft.invalid)] {
        table.within(key, |table| answer(table, place));
    }
    balance(table, &mut draft.policy, &mut draft.hash);
    pool(table, folder, &mut draft.pool);
    draft
}

fn script(name: &str, table: &Table<'_>, folder: &Path) -> ScriptDraft {
    let mut draft = ScriptDraft::new(name);
    draft.settings = table.read("file", |text| {
        let file = folder.join(text);
        ScriptSettings::read(name, &file).map_err(|error| format!("cannot read `{}`: {error}", file.display()))
    });
    let (instructions, wall) = (table.read("instructions", number), table.read("wall", parse_time));
    let (memory, jit) = (table.read("memory", number), table.read("jit", switch));
    if let Some(settings) = &mut draft.settings {
        settings.instructions = instructions.unwrap_or(settings.instructions);
        settings.wall = wall.unwrap_or(settings.wall);
        settings.memory = memory.unwrap_or(settings.memory);
        settings.jit = jit.unwrap_or(settings.jit);
    }
    allow(table, &mut draft.allow);
    for (key, place) in [("unknown", &mut draft.unknown), ("invalid", &mut draft.invalid)] {
        table.within(key, |table| answer(table, place));
    }
    balance(table, &mut draft.policy, &mut draft.hash);
    pool(table, folder, &mut draft.pool);
    draft
}

/// Reads the rules about permitted targets.
fn allow(table: &Table<'_>, place: &mut Allow) {
    let Some(field) = table.get("allow") else { return };
    let rules = field.texts().unwrap_or_default();
    match Allow::parse(rules.iter().map(String::as_str)) {
        Ok(allow) => *place = allow,
        Err(errors) => errors.iter().for_each(|error| field.wrong(error.to_string())),
    }
}

fn upstream(name: &str, table: &Table<'_>, folder: &Path) -> UpstreamDraft {
    let mut draft = UpstreamDraft { name: name.to_owned(), ..UpstreamDraft::default() };
    if let Some(field) = table.get("targets") {
        for element in field.elements().unwrap_or_default() {
            if let Some(text) = element.quiet_text() {
                draft.targets.push((text.to_owned(), 1));
            } else if let Some(table) = element.table() {
                let (to, weight) = (table.text("to").unwrap_or_default(), table.read("weight", number).unwrap_or(1));
                table.finish();
                draft.targets.push((to, weight));
            }
        }
    }
    table.within("health", |table| draft.check = Some(health(table)));
    balance(table, &mut draft.policy, &mut draft.hash);
    pool(table, folder, &mut draft.pool);
    draft
}

/// Reads how the targets of an upstream are checked.
fn health(table: &Table<'_>) -> CheckSettings {
    let mut check = CheckSettings::default();
    table.set("path", &mut check.path, text);
    check.host = table.text("host");
    table.set("interval", &mut check.interval, parse_time);
    table.set("jitter", &mut check.jitter, parse_number);
    table.set("timeout", &mut check.timeout, parse_time);
    table.set("rise", &mut check.rise, number);
    table.set("fall", &mut check.fall, number);
    if let Some(field) = table.get("statuses") {
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
        };
        check.statuses.clear();
        for text in field.texts().unwrap_or_default() {
            match range(&text) {
                Some(range) => check.statuses.push(range),
                None => field.wrong(format!("`{text}` is no status: expected one such as 200, or 200-399")),
            }
        }
    }
    check
}

fn balance(table: &Table<'_>, policy: &mut Policy, hash: &mut HashBy) {
    table.set("balance", policy, |text| {
        let found = Policy::ALL.into_iter().find(|policy| policy.name() == text);
        found.ok_or_else(|| {
            let names: Vec<&str> = Policy::ALL.into_iter().map(Policy::name).collect();
            format!("`{text}` is no way to choose: expected one of {}", names.join(", "))
        })
    });
    table.set("hash", hash, |text| match text.split_once(' ') {
        None if text == "host" => Ok(HashBy::Host),
        None if text == "target" => Ok(HashBy::Target),
        None if text == "client" => Ok(HashBy::Client),
        Some(("header", name)) if is_token(name.as_bytes()) => Ok(HashBy::Header(name.to_owned())),
        _ => Err(format!("`{text}` is no key for hashing: expected host, target, client or header NAME")),
    });
}

fn pool(table: &Table<'_>, folder: &Path, pool: &mut PoolSettings) {
    table.set("connections", &mut pool.connections, number);
    table.set("idle-connections", &mut pool.idle_connections, number);
    table.set("queue", &mut pool.queue, number);
    table.set("idle-timeout", &mut pool.idle_timeout, parse_time);
    table.set("max-age", &mut pool.max_age, |text| Ok(off_or(text, parse_time)?.unwrap_or(Duration::MAX)));
    table.set("max-requests", &mut pool.max_requests, |text| Ok(off_or(text, number)?.unwrap_or(u64::MAX)));
    table.set("name-ttl", &mut pool.name_ttl, parse_time);
    table.set("name-negative-ttl", &mut pool.name_negative_ttl, parse_time);
    table.set("proxy-protocol", &mut pool.proxy_protocol, |text| {
        off_or(text, |text| {
            let found = ProxyVersion::NAMED.into_iter().find(|(name, _)| *name == text);
            found.map(|(_, version)| version).ok_or_else(|| format!("`{text}` is no version: expected v1, v2 or off"))
        })
    });
    table.within("ejection", |table| {
        let ejection = &mut pool.ejection;
        table.set("failures", &mut ejection.failures, |text| Ok(off_or(text, number)?.unwrap_or(0)));
        table.set("back-off", &mut ejection.back_off, parse_time);
        table.set("longest", &mut ejection.longest, parse_time);
        table.set("server-errors", &mut ejection.server_errors, switch);
    });
    table.within("tls", |table| tls(table, folder, &mut pool.tls));
}

fn tls(table: &Table<'_>, folder: &Path, tls: &mut TlsSettings) {
    let file = |key: &'static str| table.text(key).map(|text| folder.join(text));
    table.set("verify", &mut tls.verify, switch);
    if let Some(field) = table.get("ca") {
        let files = field.texts().unwrap_or_default();
        tls.roots.files = files.iter().map(|file| folder.join(file)).collect();
    }
    tls.roots.system = table.read("system-roots", switch);
    tls.server_name = table.text("server-name");
    (tls.certificate, tls.key) = (file("certificate"), file("key"));
    table.set("protocol", &mut tls.protocol, |text| {
        let found = TlsProtocol::ALL.into_iter().find(|protocol| protocol.name() == text);
        found.ok_or_else(|| format!("`{text}` is no protocol over TLS: expected auto, http/1.1 or h2"))
    });
    table.set("resume", &mut tls.resume, switch);
}

fn key(text: &str) -> Result<KeyDraft, String> {
    Ok(KeyDraft::Request(match text.split_once(' ') {
        None if text == "host" => KeyFrom::Host,
        Some(("header", name)) if is_token(name.as_bytes()) => KeyFrom::Header(name.to_owned()),
        Some(("segment", place)) => KeyFrom::Segment(number(place)?),
        Some(("script", name)) => return Ok(KeyDraft::Script(name.to_owned())),
        _ => {
            return Err(format!(
                "`{text}` is no key of a look-up: expected host, header NAME, segment N or script NAME"
            ));
        }
    }))
}

/// Reads a route. `settings`: those of all routes.
fn route(table: Table<'_>, folder: &Path, settings: &forward::Settings) -> RouteDraft {
    let mut draft = RouteDraft {
        name: table.text("name").unwrap_or_default(),
        hosts: table.get("host").and_then(|field| field.texts()).unwrap_or_default(),
        path: table.text("path").unwrap_or_default(),
        methods: table.get("method").and_then(|field| field.texts()).unwrap_or_default(),
        script: table.text("script"),
        to: table.text("to"),
        lookup: table.text("lookup"),
        limits: table.texts("limit"),
        forward: settings.clone(),
        ..RouteDraft::default()
    };
    if let Some(table) = table.table("header") {
        for (name, field) in table.fields() {
            if !is_token(name.as_bytes()) {
                field.wrong(format!("`{name}` is no field name: expected one such as X-Beta"));
            }
            // `*` matches any value.
            let value = field.text().filter(|value| *value != "*").map(str::to_owned);
            draft.headers.push(HeaderPattern { name: name.to_owned(), value });
        }
    }
    table.within("client-certificate", |table| draft.clients = Some(super::tls::clients(table, folder)));
    table.within("redirect", |table| {
        let status = table.read("status", number).unwrap_or(302);
        draft.redirect = Some((status, table.text("to").unwrap_or_default()));
    });
    table.within("answer", |table| {
        let mut own = Answer::text(200, "");
        own.body = Vec::new().into();
        answer(table, &mut own);
        draft.answer = Some(own);
    });
    let settings = &mut draft.forward;
    table.set("host-header", &mut settings.host, |text| {
        Ok(match text {
            "preserve" => HostPolicy::Preserve,
            "target" => HostPolicy::Target,
            fixed => HostPolicy::Fixed(fixed.to_owned()),
        })
    });
    table.set("strip-prefix", &mut settings.strip_prefix, text);
    table.set("add-prefix", &mut settings.add_prefix, text);
    table.set("via", &mut settings.via, text);
    table.set("buffer", &mut settings.buffer, |text| Ok(off_or(text, number)?.unwrap_or(0)));
    table.set("upgrade", &mut settings.upgrade, switch);
    table.set("retry", &mut settings.retry, switch);
    match table.read("compress", switch) {
        Some(false) => settings.compression = None,
        Some(true) => drop(settings.compression.get_or_insert_default()),
        None => {}
    }
    table.set("explain", &mut settings.explain, switch);
    table.within("timeouts", |table| {
        let timeouts = &mut settings.timeouts;
        let or_never = |text: &str| Ok(off_or(text, parse_time)?.unwrap_or(Duration::MAX));
        table.set("queue", &mut timeouts.queue, parse_time);
        table.set("connect", &mut timeouts.connect, parse_time);
        table.set("head", &mut timeouts.head, or_never);
        table.set("between", &mut timeouts.between, or_never);
        table.set("total", &mut timeouts.total, or_never);
        table.set("tunnel", &mut timeouts.tunnel, or_never);
        table.set("half-close", &mut timeouts.half_close, or_never);
    });
    for (key, edits) in [("request", &mut settings.request), ("response", &mut settings.response)] {
        table.within(key, |table| *edits = self::edits(table));
    }
    table.finish();
    draft
}

/// Reads the edits of a head: `set` and `add` are tables of fields, `remove` is a list of names.
fn edits(table: &Table<'_>) -> Edits {
    let mut edits = Edits::none();
    if let Some(field) = table.get("remove") {
        for name in field.texts().unwrap_or_default() {
            if let Err(error) = edits.remove(&name) {
                field.wrong(error.to_string());
            }
        }
    }
    for (key, replaces) in [("set", true), ("add", false)] {
        let Some(table) = table.table(key) else { continue };
        for (name, field) in table.fields() {
            let Some(value) = field.text() else { continue };
            let edited = if replaces { edits.set(name, value.as_bytes()) } else { edits.add(name, value.as_bytes()) };
            if let Err(error) = edited.map(drop) {
                field.wrong(error.to_string());
            }
        }
    }
    edits
}

fn answer(table: &Table<'_>, place: &mut Answer) {
    table.set("status", &mut place.status, number);
    table.set("content-type", &mut place.content_type, text);
    table.set("body", &mut place.body, |text| Ok(text.as_bytes().into()));
    let file = table.get("body-file");
    let read = |name: &str| std::fs::read(name).map_err(|error| format!("cannot read `{name}`: {error}"));
    if let Some(body) = file.and_then(|file| file.read(read)) {
        place.body = body.into();
    }
    table.set("retry-after", &mut place.retry_after, |text| {
        let time = off_or(text, parse_time)?;
        time.map(|time| u32::try_from(time.as_secs()).map_err(|_| format!("`{text}` is too long"))).transpose()
    });
}
