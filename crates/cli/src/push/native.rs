//! Reads the keys of a configuration in TOML; kuiperbelt's configuration may have some of them too.

use std::path::Path;
use std::time::Duration;

use oroshi_config::values::{number, off_or, switch, text};
use oroshi_config::{Field, SecretSource, Table, secret};
use oroshi_net::CpuList;
use oroshi_push::{
    Access, Cluster, Draft, GroupRule, HistoryRule, Jwt, KeySource, Listener, Origins, Serves, SlowPolicy,
    StreamSettings, Transports,
};
use oroshi_service::Role;
use oroshi_words::units::parse_time;

use crate::listener_keys;

/// The default time that a publish waits for the receipts of other nodes.
const RECEIPT_TIMEOUT: Duration = Duration::from_secs(2);

/// Reads a configuration.
///
/// `folder` is its folder: paths of certificates are relative to it.
pub(super) fn read(root: Table<'_>, folder: &Path) -> Draft {
    let mut draft = Draft::default();
    shared(&root, &mut draft);
    draft.session_header = root.text("session-header");
    draft.endpoint = root.text("endpoint");
    draft.origins = root.get("origins").and_then(|field| origins(&field));
    root.within("listen", |listen| {
        for &(key, serves) in Serves::NAMED {
            draft.listeners.extend(listen.texts(key).into_iter().map(|address| Listener { address, serves }));
        }
    });
    root.within("tls", |table| draft.tls = Some(listener_keys::handshakes(table, folder)));
    root.within("paths", |table| {
        let paths = &mut draft.paths;
        for (key, place) in [
            ("connect", &mut paths.connect),
            ("poll", &mut paths.poll),
            ("command", &mut paths.command),
            ("send", &mut paths.send),
            ("close", &mut paths.close),
            ("broadcast", &mut paths.broadcast),
            ("ping", &mut paths.ping),
            ("stats", &mut paths.stats),
        ] {
            table.set(key, place, text);
        }
    });
    root.within("callbacks", |table| {
        let callbacks = &mut draft.callbacks;
        callbacks.connect = table.text("connect");
        callbacks.establish = table.text("establish");
        callbacks.receive = table.text("receive");
        callbacks.close = table.text("close");
        table.set("timeout", &mut callbacks.timeout, parse_time);
        table.set("queue", &mut callbacks.queue, parse_time);
        table.set("retries", &mut callbacks.retries, number);
        table.set("connections", &mut callbacks.connections, number);
        table.set("answer-bytes", &mut callbacks.answer_bytes, number);
        if let Some(headers) = table.table("headers") {
            callbacks.headers = self::headers(&headers);
        }
    });
    root.within("send", |table| {
        table.set("strict", &mut draft.send.strict, switch);
        table.set("timeout", &mut draft.send.timeout, parse_time);
    });
    root.set("access-log", &mut draft.access_log, switch);
    root.finish();
    draft
}

/// Reads the keys that both kinds of configuration have.
pub(super) fn shared(root: &Table<'_>, draft: &mut Draft) {
    draft.threads = root.read("threads", number);
    draft.cpus = root.read("cpus", CpuList::parse_available);
    root.set("compat", &mut draft.compat_ekbo, compat);
    if draft.compat_ekbo {
        super::kuiperbelt::habits(draft);
    }
    draft.transports = root.get("transports").and_then(|field| transports(&field));
    draft.subprotocols = root.texts("subprotocols");
    draft.compress_from_bytes =
        root.read("compress-from-bytes", |text| off_or(text, number)).unwrap_or(draft.compress_from_bytes);
    root.set("echo", &mut draft.echo, switch);
    root.within("limits", |table| {
        let limits = &mut draft.limits;
        table.set("sessions", &mut limits.sessions, number);
        table.set("connects-per-second", &mut limits.connects_per_second, |text| off_or(text, number));
        table.set("message-bytes", &mut limits.message_bytes, number);
        table.set("publish-bytes", &mut limits.publish_bytes, number);
        table.set("session-queue-bytes", &mut limits.session_queue_bytes, number);
        table.set("session-queue-messages", &mut limits.session_queue_messages, number);
        table.set("total-queue-bytes", &mut limits.total_queue_bytes, number);
        table.set("idle", &mut limits.idle, |text| off_or(text, parse_time));
        table.set("ping", &mut limits.ping, |text| off_or(text, parse_time));
        table.set("pong", &mut limits.pong, parse_time);
        table.set("write", &mut limits.write, parse_time);
        table.set("poll-absence", &mut limits.poll_absence, parse_time);
        table.set("poll-wait", &mut limits.poll_wait, parse_time);
        table.set("close", &mut limits.close, parse_time);
        table.set("client-publishes", &mut limits.client_publishes, |text| off_or(text, number));
        let [client, user, address] = [&mut limits.client, &mut limits.user, &mut limits.address];
        for (key, place) in [
            ("client-messages", &mut client.messages),
            ("client-bytes", &mut client.bytes),
            ("client-subscribes", &mut client.subscribes),
            ("user-messages", &mut user.messages),
            ("user-bytes", &mut user.bytes),
            ("user-subscribes", &mut user.subscribes),
            ("address-messages", &mut address.messages),
            ("address-bytes", &mut address.bytes),
            ("address-subscribes", &mut address.subscribes),
        ] {
            table.set(key, place, |text| off_or(text, number));
        }
        table.set("session-channels", &mut limits.session_channels, number);
        table.set("history-bytes", &mut limits.history_bytes, number);
    });
    for element in root.get("group").and_then(|field| field.elements()).unwrap_or_default() {
        if let Some(table) = element.table() {
            let mut rule = GroupRule::default();
            match table.text("pattern") {
                Some(pattern) => rule.pattern = pattern,
                // The group's own name, so that no further mistake is reported.
                None => element
                    .wrong("`pattern` is missing: expected a group's name, or the beginning of one such as chat:*"),
            }
            table.set("slow", &mut rule.slow, slow);
            table.set("client-may-join", &mut rule.client_may_join, switch);
            channel(&table, &mut rule);
            table.finish();
            draft.groups.push(rule);
        }
    }
    listener_keys::proxies(root, &mut draft.proxies);
    root.within("auth", |table| {
        draft.token = secret(table, &[("token-file", SecretSource::File), ("token-env", SecretSource::Variable)]);
    });
    if let Some(table) = root.table("jwt") {
        draft.jwt = Some(jwt(&table));
        table.finish();
    }
    root.within("drain", |table| {
        table.set("timeout", &mut draft.drain.timeout, parse_time);
        table.set("retry-after", &mut draft.drain.retry_after, parse_time);
        table.set("polls", &mut draft.drain.polls, parse_time);
    });
    if let Some(field) = root.get("cluster")
        && let Some(table) = field.table()
    {
        let kept =
            [("nats", SecretSource::Here), ("nats-file", SecretSource::File), ("nats-env", SecretSource::Variable)];
        let nats = secret(&table, &kept);
        if nats.is_none() && !["nats", "nats-file", "nats-env"].into_iter().any(|key| table.get(key).is_some()) {
            field
                .wrong("`nats` is missing: expected nats = \"nats://host:4222\", or nats-file or nats-env that has it");
        }
        let name = table.text("name").unwrap_or_else(|| "oroshi".to_owned());
        let receipt_timeout = table.read("receipt-timeout", parse_time).unwrap_or(RECEIPT_TIMEOUT);
        let history = history(&table);
        table.finish();
        draft.cluster = nats.map(|nats| Cluster { nats, name, receipt_timeout, history });
    }
}

/// Reads where the histories of channels are.
fn history(table: &Table<'_>) -> Option<StreamSettings> {
    let is_stream = table.read("history", |text| match text {
        "memory" => Ok(false),
        "jetstream" => Ok(true),
        _ => Err(format!("`{text}` is unknown: expected memory or jetstream")),
    });
    let mut settings = StreamSettings::default();
    table.set("history-replicas", &mut settings.replicas, number);
    table.set("history-storage", &mut settings.in_memory, |text| match text {
        "file" => Ok(false),
        "memory" => Ok(true),
        _ => Err(format!("`{text}` is unknown: expected file or memory")),
    });
    let further = table.get("history-replicas").or_else(|| table.get("history-storage"));
    if let Some(field) = further.filter(|_| is_stream == Some(false) || table.get("history").is_none()) {
        field.wrong("it is for histories in JetStream: expected history = \"jetstream\"");
    }
    (is_stream == Some(true)).then_some(settings)
}

/// Reads how clients' tokens are checked.
fn jwt(table: &Table<'_>) -> Jwt {
    let places = [("secret-file", SecretSource::File), ("secret-env", SecretSource::Variable)];
    let file = table.text("keys-file").map(|path| KeySource::File(path.into()));
    let keys = match (file, table.get("keys-url")) {
        (Some(_), Some(field)) => {
            field.wrong("keys-file is given, too: expected one of them");
            None
        }
        (file, url) => file.or(url.and_then(|field| Some(KeySource::Url(field.text()?.to_owned())))),
    };
    let (issuer, audience) = (table.text("issuer"), table.texts("audience"));
    let mut jwt = Jwt { secret: secret(table, &places), keys, issuer, audience, ..Jwt::default() };
    table.set("keys-refresh", &mut jwt.refresh, parse_time);
    table.set("leeway", &mut jwt.leeway, parse_time);
    table.set("required", &mut jwt.required, switch);
    table.set("wait", &mut jwt.wait, parse_time);
    jwt
}

/// Reads the keys of a group that clients use as a channel.
fn channel(table: &Table<'_>, rule: &mut GroupRule) {
    table.set("subscribe", &mut rule.subscribe, access);
    table.set("subscribe-patterns", &mut rule.subscribe_patterns, switch);
    table.set("publish", &mut rule.publish, access);
    table.set("see-history", &mut rule.history, access);
    table.set("see-presence", &mut rule.presence, access);
    table.set("presence-events", &mut rule.presence_events, switch);
    let mut keeps = HistoryRule::default();
    table.set("history-messages", &mut keeps.messages, number);
    table.set("history-bytes", &mut keeps.bytes, number);
    table.set("history-time", &mut keeps.time, parse_time);
    table.set("latest", &mut keeps.latest, switch);
    table.set("delta", &mut keeps.delta, switch);
    let is_kept = keeps.latest
        || keeps.delta
        || ["history-messages", "history-bytes", "history-time"].into_iter().any(|key| table.get(key).is_some());
    rule.keeps = is_kept.then_some(keeps);
}

fn access(text: &str) -> Result<Access, String> {
    match text {
        "nobody" => Ok(Access::Nobody),
        "users" => Ok(Access::Users),
        "anyone" => Ok(Access::Anyone),
        _ => Err(format!("`{text}` names no clients: expected nobody, users or anyone")),
    }
}

/// Reads header fields to set; an empty text removes a field.
pub(super) fn headers(table: &Table<'_>) -> Vec<(String, Option<String>)> {
    let field = |(name, field): (&str, Field<'_>)| {
        let value = field.text()?;
        Some((name.to_owned(), (!value.is_empty()).then(|| value.to_owned())))
    };
    table.fields().filter_map(field).collect()
}

fn compat(text: &str) -> Result<bool, String> {
    match text {
        "ekbo" => Ok(true),
        "none" => Ok(false),
        _ => Err(format!("`{text}` is no compatibility mode: expected ekbo or none")),
    }
}

fn slow(text: &str) -> Result<SlowPolicy, String> {
    match text {
        "disconnect" => Ok(SlowPolicy::Disconnect),
        "drop-oldest" => Ok(SlowPolicy::DropOldest),
        "keep-latest" => Ok(SlowPolicy::KeepLatest),
        "refuse" => Ok(SlowPolicy::Refuse),
        _ => Err(format!(
            "`{text}` is no rule for slow sessions: expected disconnect, drop-oldest, keep-latest or refuse"
        )),
    }
}

fn transports(field: &Field<'_>) -> Option<Transports> {
    let mut transports = Transports::NONE;
    for name in field.texts()? {
        if !transports.add(&name) {
            field.wrong(format!("`{name}` is no transport: expected some of websocket, sse, stream and poll"));
            return None;
        }
    }
    Some(transports)
}

fn origins(field: &Field<'_>) -> Option<Origins> {
    let texts = field.texts()?;
    Some(match texts.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["any"] => Origins::Any,
        ["same-origin"] => Origins::SameOrigin,
        ["same-hostname"] => Origins::SameHostname,
        [] => {
            field.wrong(
                "the list is empty, so that no page could connect: expected any, same-origin, same-hostname or origins",
            );
            return None;
        }
        _ => Origins::List(texts),
    })
}
