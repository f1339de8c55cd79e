//! Writes a plan as TOML, with every default and without secrets: the output of `--check`.

use oroshi_config::written::Toml;
use oroshi_push::{Access, GroupRule, HistoryRule, Jwt, KeySource, Listener, Origins, Plan, Serves, SlowPolicy};
use oroshi_service::Role;

use crate::listener_keys;

/// Returns the configuration of a plan, without its secrets.
pub(super) fn config(plan: &Plan) -> String {
    let mut out = Toml::default();
    out.bare("threads", plan.threads);
    if let Some(cpus) = &plan.cpus {
        out.text("cpus", &cpus.to_string());
    }
    out.text("session-header", &plan.session_header);
    out.text("endpoint", &plan.endpoint);
    match &plan.origins {
        Origins::Any => out.text("origins", "any"),
        Origins::SameOrigin => out.text("origins", "same-origin"),
        Origins::SameHostname => out.text("origins", "same-hostname"),
        Origins::List(list) => out.texts("origins", list.iter().map(String::as_str)),
    }
    out.texts("transports", plan.transports.names());
    out.texts("subprotocols", plan.subprotocols.iter().map(String::as_str));
    out.or_off("compress-from-bytes", plan.compress_from_bytes);
    out.text("compat", if plan.compat_ekbo { "ekbo" } else { "none" });
    out.bare("echo", plan.echo);
    out.bare("access-log", plan.access_log);

    out.table("listen");
    for &(key, serves) in Serves::NAMED {
        let addresses: Vec<&str> =
            plan.listeners.iter().filter(|listener| listener.serves == serves).map(address).collect();
        if !addresses.is_empty() {
            out.texts(key, addresses.into_iter());
        }
    }

    if let Some(tls) = &plan.tls {
        out.table("tls");
        listener_keys::write_certificates(&mut out, tls.settings(), &tls.catalogue());
        listener_keys::write_handshakes(&mut out, tls.settings());
        listener_keys::write_tickets(&mut out, tls.settings());
    }
    listener_keys::write_proxies(&mut out, &plan.proxies);

    out.table("auth");
    out.comment(if plan.token.is_some() {
        "a token is set"
    } else {
        "no token: every client that reaches a listener may use it"
    });

    if let Some(jwt) = &plan.jwt {
        self::jwt(&mut out, jwt);
    }

    let paths = &plan.paths;
    out.table("paths");
    out.text("connect", &paths.connect);
    out.text("poll", &paths.poll);
    out.text("command", &paths.command);
    out.text("send", &paths.send);
    out.text("close", &paths.close);
    out.text("broadcast", &paths.broadcast);
    out.text("ping", &paths.ping);
    out.text("stats", &paths.stats);

    callbacks(&mut out, plan);

    out.table("send");
    out.bare("strict", plan.send.strict);
    out.time("timeout", plan.send.timeout);

    limits(&mut out, plan);

    out.table("drain");
    out.time("timeout", plan.drain.timeout);
    out.time("retry-after", plan.drain.retry_after);
    out.time("polls", plan.drain.polls);

    for rule in &plan.groups {
        out.line("\n[[group]]");
        out.text("pattern", &rule.pattern);
        let slow = match rule.slow {
            SlowPolicy::Disconnect => "disconnect",
            SlowPolicy::DropOldest => "drop-oldest",
            SlowPolicy::KeepLatest => "keep-latest",
            SlowPolicy::Refuse => "refuse",
        };
        out.text("slow", slow);
        out.bare("client-may-join", rule.client_may_join);
        channel(&mut out, rule);
    }
    if let Some(cluster) = &plan.cluster {
        out.table("cluster");
        out.comment("nats is set, and may hold a password");
        out.text("name", &cluster.name);
        out.time("receipt-timeout", cluster.receipt_timeout);
        if let Some(stream) = &cluster.history {
            out.text("history", "jetstream");
            out.bare("history-replicas", stream.replicas);
            out.text("history-storage", if stream.in_memory { "memory" } else { "file" });
        }
    }
    out.0
}

/// How clients' tokens are checked.
fn jwt(out: &mut Toml, jwt: &Jwt) {
    out.table("jwt");
    out.comment(if jwt.secret.is_some() { "a secret is set" } else { "no secret" });
    match &jwt.keys {
        Some(KeySource::File(path)) => out.text("keys-file", &path.display().to_string()),
        Some(KeySource::Url(url)) => out.text("keys-url", &without_query(url)),
        None => out.comment("no keys"),
    }
    out.time("keys-refresh", jwt.refresh);
    match &jwt.issuer {
        Some(issuer) => out.text("issuer", issuer),
        None => out.comment("any issuer"),
    }
    out.texts("audience", jwt.audience.iter().map(String::as_str));
    out.time("leeway", jwt.leeway);
    out.bare("required", jwt.required);
    out.time("wait", jwt.wait);
}

/// The keys of a group that clients use as a channel.
fn channel(out: &mut Toml, rule: &GroupRule) {
    let access = |access| match access {
        Access::Nobody => "nobody",
        Access::Users => "users",
        Access::Anyone => "anyone",
    };
    out.text("subscribe", access(rule.subscribe));
    out.bare("subscribe-patterns", rule.subscribe_patterns);
    out.text("publish", access(rule.publish));
    out.text("see-history", access(rule.history));
    out.text("see-presence", access(rule.presence));
    out.bare("presence-events", rule.presence_events);
    match rule.keeps {
        Some(HistoryRule { messages, bytes, time, latest, delta }) => {
            out.bare("history-messages", messages);
            out.bare("history-bytes", bytes);
            out.time("history-time", time);
            out.bare("latest", latest);
            out.bare("delta", delta);
        }
        None => out.comment("no history"),
    }
}

fn callbacks(out: &mut Toml, plan: &Plan) {
    let callbacks = &plan.callbacks;
    out.table("callbacks");
    for (key, url) in [
        ("connect", &callbacks.connect),
        ("establish", &callbacks.establish),
        ("receive", &callbacks.receive),
        ("close", &callbacks.close),
    ] {
        match url {
            Some(url) => out.text(key, &without_query(url)),
            None => out.comment(&format!("no {key}")),
        }
    }
    out.time("timeout", callbacks.timeout);
    out.time("queue", callbacks.queue);
    out.bare("retries", callbacks.retries);
    out.bare("connections", callbacks.connections);
    out.bare("answer-bytes", callbacks.answer_bytes);
    if !callbacks.headers.is_empty() {
        out.table("callbacks.headers");
        for (name, value) in &callbacks.headers {
            match value {
                None => out.text(name, ""),
                Some(_) if is_secret(name) => out.comment(&format!("{name} is set, and may be a secret")),
                Some(value) => out.text(name, value),
            }
        }
    }
}

fn limits(out: &mut Toml, plan: &Plan) {
    let limits = &plan.limits;
    out.table("limits");
    out.bare("sessions", limits.sessions);
    out.or_off("connects-per-second", limits.connects_per_second);
    out.bare("message-bytes", limits.message_bytes);
    out.bare("publish-bytes", limits.publish_bytes);
    out.bare("session-queue-bytes", limits.session_queue_bytes);
    out.bare("session-queue-messages", limits.session_queue_messages);
    out.bare("total-queue-bytes", limits.total_queue_bytes);
    for (key, time) in [("idle", limits.idle), ("ping", limits.ping)] {
        match time {
            Some(time) => out.time(key, time),
            None => out.text(key, "off"),
        }
    }
    out.time("pong", limits.pong);
    out.time("write", limits.write);
    out.time("poll-absence", limits.poll_absence);
    out.time("poll-wait", limits.poll_wait);
    out.time("close", limits.close);
    out.or_off("client-publishes", limits.client_publishes);
    for (scope, rates) in [("client", limits.client), ("user", limits.user), ("address", limits.address)] {
        for (what, rate) in [("messages", rates.messages), ("bytes", rates.bytes), ("subscribes", rates.subscribes)] {
            out.or_off(&format!("{scope}-{what}"), rate);
        }
    }
    out.bare("session-channels", limits.session_channels);
    out.bare("history-bytes", limits.history_bytes);
}

fn address(listener: &Listener) -> &str {
    &listener.address
}

/// Masks the query of a callback's URL: it may hold a secret of the backend, and only `connect` replaces it.
fn without_query(url: &str) -> String {
    match url.split_once('?') {
        Some((before, _)) => format!("{before}?***"),
        None => url.to_owned(),
    }
}

/// Whether a header of this name may hold a secret.
fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["auth", "cookie", "token", "secret", "session", "key", "password"].iter().any(|part| name.contains(part))
}
