//! The hub's state in JSON and for Prometheus, and the description of its API.

use std::rc::Rc;

use oroshi_certificates::CertificateCounts;
use oroshi_server::Exchange;
use oroshi_words::metrics::Kind::{Counter, Gauge};
use oroshi_words::metrics::{Family, Metrics};
use serde_json::{Map, Value, json};

use crate::callbacks::CallbackCounts;
use crate::cluster::link::LinkCounts;
use crate::counts::Counts;
use crate::http::answer::{HandlerResult, Problem, Reply};
use crate::hub::Hub;
use crate::identity::VerifierCounts;
use crate::jwt::TOKEN_RESULTS;
use crate::message::TRANSPORTS;
use crate::rates::LIMITS;
use crate::session::REASONS;

/// The OpenAPI description of the API. Tests compare the server with it.
const OPENAPI: &str = include_str!("../../openapi.json");

/// Serves `/status`, `/metrics` and `/openapi.json`.
pub(crate) async fn answer(hub: &Rc<Hub>, path: &str, exchange: &mut Exchange<'_>) -> HandlerResult {
    if !matches!(exchange.head.method, "GET" | "HEAD") {
        return Err(Problem::method(exchange.head.method, "GET, HEAD").into());
    }
    match path {
        "/status" => Reply::json(200, &status(hub, &hub.counts().await)),
        "/metrics" => {
            let text = metrics(hub, &hub.counts().await);
            Ok(Reply::new(200, "text/plain; version=0.0.4; charset=utf-8", text.into_bytes()))
        }
        _ => Ok(Reply::new(200, "application/json", OPENAPI.as_bytes())),
    }
}

fn status(hub: &Hub, counts: &Counts) -> Value {
    let plan = hub.plan();
    let named = |names: &[&str], values: &[u64]| -> Map<String, Value> {
        names.iter().zip(values).map(|(name, value)| ((*name).to_owned(), json!(value))).collect()
    };
    let callbacks: Map<String, Value> = counts
        .callbacks
        .each()
        .into_iter()
        .map(|(name, count)| {
            let count = json!({
                "accepted": count.accepted, "refused": count.refused, "failed": count.failed, "retried": count.retried,
                "crowded": count.crowded,
            });
            (name.to_owned(), count)
        })
        .collect();
    let (histories, presences) = (hub.node.histories.counts(), hub.node.presences.counts());
    let mut status = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "node": hub.node.name,
        "state": if hub.draining.get() { "draining" } else { "serving" },
        "threads": hub.node.threads(),
        "sessions": {
            "current": counts.sessions,
            "most": plan.limits.sessions,
            "connecting": counts.connecting,
            "closing": counts.closing,
            "by_transport": named(&TRANSPORTS, &counts.by_transport),
            "opened": named(&TRANSPORTS, &counts.opened),
            "ended": named(&REASONS, &counts.ended),
            "connect_errors": counts.connect_errors,
            "connect_refused": counts.connect_refused,
        },
        "queues": { "bytes": counts.queued_bytes, "most_bytes": plan.limits.total_queue_bytes },
        "published": { "messages": counts.published, "bytes": counts.published_bytes, "overloaded": counts.overloaded },
        "deliveries": {
            "matched": counts.matched, "written": counts.written, "dropped": counts.dropped, "closed": counts.closed,
        },
        "compression": {
            "messages": counts.compression.messages, "before_bytes": counts.compression.before,
            "after_bytes": counts.compression.after,
        },
        "histories": {
            "channels": histories.channels, "bytes": histories.bytes, "most_bytes": plan.limits.history_bytes,
        },
        "presence": { "channels": presences.channels, "watchers": presences.watchers },
        "received": {
            "messages": counts.received, "bytes": counts.received_bytes,
            "limited": counts.limited.iter().flatten().sum::<u64>(),
        },
        "callbacks": callbacks,
        "dead_letters": counts.callbacks.dead_letters(),
    });
    if let Some(tls) = &plan.tls {
        let CertificateCounts { handshakes, resumed, failed, .. } = tls.counts();
        status["tls"] = json!({ "handshakes": handshakes, "resumed": resumed, "failed": failed });
    }
    if let Some(verifier) = &hub.node.verifier {
        status["tokens"] = tokens(&verifier.counts());
    }
    if let Some(link) = &hub.node.link {
        status["cluster"] = cluster(&link.counts());
    }
    status
}

fn tokens(counts: &VerifierCounts) -> Value {
    let results: Map<String, Value> =
        TOKEN_RESULTS.iter().zip(counts.tokens).map(|(name, count)| ((*name).to_owned(), json!(count))).collect();
    let mut tokens = json!({
        "results": results,
        "keys": counts.keys,
        "keys_read": counts.read,
        "keys_failed": counts.failed,
        "trouble": counts.trouble.as_deref().unwrap_or_default(),
    });
    if let Some(age) = counts.age {
        tokens["keys_age_seconds"] = json!(age.as_secs_f64());
    }
    tokens
}

fn cluster(counts: &LinkCounts) -> Value {
    json!({
        "connected": counts.connected,
        "following": counts.following,
        "nodes": counts.nodes,
        "absent": counts.absent,
        "connects": counts.connects,
        "sent": counts.sent,
        "received": counts.received,
        "incomplete": counts.incomplete,
        "unsent": counts.unsent,
        "late": counts.late,
        "stale": counts.stale,
        "repeated": counts.repeated,
        "missed": counts.missed,
        "refused": counts.refused,
        "trouble": counts.trouble,
    })
}

/// Formats the counters for Prometheus.
fn metrics(hub: &Hub, counts: &Counts) -> String {
    let mut metrics = Metrics::new("oroshi_push");
    let limits = &hub.plan().limits;
    let (histories, presences) = (hub.node.histories.counts(), hub.node.presences.counts());
    let by_transport = |of: &[u64; TRANSPORTS.len()]| TRANSPORTS.into_iter().zip(*of).collect::<Vec<_>>();
    labelled(
        &mut metrics.family("sessions", Gauge, "Sessions by transport"),
        "transport",
        by_transport(&counts.by_transport),
    );
    for (name, help, value) in [
        ("sessions_connecting", "Clients that the backend is being asked about", counts.connecting),
        ("close_callbacks", "Close callbacks under way", counts.closing),
        ("queued_bytes", "What waits for sessions", counts.queued_bytes),
        ("queued_bytes_limit", "What may wait for sessions", limits.total_queue_bytes as u64),
        ("sessions_limit", "Sessions that there may be", limits.sessions as u64),
        ("history_channels", "Channels with a history", histories.channels as u64),
        ("history_bytes", "What the histories of channels hold", histories.bytes as u64),
        ("history_bytes_limit", "What the histories of channels may hold", limits.history_bytes as u64),
        (
            "presence_channels",
            "Channels whose subscribers this node notes, as clients watch",
            presences.channels as u64,
        ),
        ("presence_watchers", "Subscriptions whose clients hear who comes and goes", presences.watchers as u64),
        ("draining", "1 while the hub ends", u64::from(hub.draining.get())),
    ] {
        metrics.one(name, Gauge, help, value);
    }
    let mut opened = metrics.family("sessions_opened_total", Counter, "Sessions that were opened");
    labelled(&mut opened, "transport", by_transport(&counts.opened));
    let mut ended = metrics.family("sessions_ended_total", Counter, "Sessions that ended, by why");
    labelled(&mut ended, "reason", REASONS.into_iter().zip(counts.ended));
    for (name, help, value) in [
        ("connect_errors_total", "Requests to connect that failed", counts.connect_errors),
        ("connect_refused_total", "Requests to connect that the backend refused", counts.connect_refused),
        ("published_messages_total", "Messages that were published here", counts.published),
        ("published_bytes_total", "Bytes of messages that were published here", counts.published_bytes),
        ("overloaded_total", "Publishes that were answered 429", counts.overloaded),
        (
            "compressed_messages_total",
            "Messages that were compressed, once for all sessions",
            counts.compression.messages,
        ),
        ("compressed_before_bytes_total", "Bytes of these messages before", counts.compression.before),
        ("compressed_after_bytes_total", "Bytes of these messages after", counts.compression.after),
        ("received_messages_total", "Messages from sessions", counts.received),
        ("received_bytes_total", "Bytes of messages from sessions", counts.received_bytes),
    ] {
        metrics.one(name, Counter, help, value);
    }
    let help = "Deliveries by what became of them; matched are all";
    let outcomes = [
        ("matched", counts.matched),
        ("written", counts.written),
        ("dropped", counts.dropped),
        ("closed", counts.closed),
    ];
    labelled(&mut metrics.family("deliveries_total", Counter, help), "outcome", outcomes);
    let help = "Messages, bytes, subscriptions and publishes of clients that exceeded a limit";
    let limits = LIMITS.into_iter().flatten().zip(counts.limited.into_iter().flatten());
    let limits = limits.filter(|(name, _)| !name.is_empty());
    labelled(&mut metrics.family("client_limited_total", Counter, help), "limit", limits);
    callbacks(&mut metrics, &counts.callbacks);
    if let Some(tls) = &hub.plan().tls {
        let CertificateCounts { handshakes, resumed, failed, .. } = tls.counts();
        let mut ended = metrics.family("tls_handshakes_total", Counter, "Handshakes of clients by their end");
        let results = [("full", handshakes.saturating_sub(resumed)), ("resumed", resumed), ("failed", failed)];
        labelled(&mut ended, "result", results);
    }
    if let Some(verifier) = &hub.node.verifier {
        token_metrics(&mut metrics, &verifier.counts());
    }
    if let Some(link) = &hub.node.link {
        cluster_metrics(&mut metrics, &link.counts());
    }
    metrics.into_text()
}

/// Adds samples that differ in one label.
fn labelled(family: &mut Family<'_>, label: &str, samples: impl IntoIterator<Item = (&'static str, u64)>) {
    for (of, value) in samples {
        family.sample(&[(label, of)], value);
    }
}

fn callbacks(metrics: &mut Metrics, counts: &CallbackCounts) {
    let mut ended = metrics.family("callbacks_total", Counter, "Callbacks that ended, by what the backend said");
    for (callback, count) in counts.each() {
        for (result, value) in [
            ("accepted", count.accepted),
            ("refused", count.refused),
            ("failed", count.failed),
            ("crowded", count.crowded),
        ] {
            ended.sample(&[("callback", callback), ("result", result)], value);
        }
    }
    let mut retries = metrics.family("callback_retries_total", Counter, "Tries of callbacks after the first");
    labelled(&mut retries, "callback", counts.each().map(|(callback, count)| (callback, count.retried)));
    let help = "Messages and ends of sessions that the backend was never told of";
    metrics.one("dead_letters_total", Counter, help, counts.dead_letters());
}

fn token_metrics(metrics: &mut Metrics, counts: &VerifierCounts) {
    let mut tokens = metrics.family("tokens_total", Counter, "Tokens of clients that were checked, by result");
    labelled(&mut tokens, "result", TOKEN_RESULTS.into_iter().zip(counts.tokens));
    let mut readings = metrics.family("token_keys_reads_total", Counter, "Readings of the keys that verify tokens");
    labelled(&mut readings, "result", [("read", counts.read), ("failed", counts.failed)]);
    metrics.one("token_keys", Gauge, "Keys that verify tokens", counts.keys as u64);
    let age = counts.age.map_or(0, |age| age.as_secs());
    metrics.one("token_keys_age_seconds", Gauge, "Time since the keys were read; 0 before that", age);
}

fn cluster_metrics(metrics: &mut Metrics, counts: &LinkCounts) {
    for (name, help, value) in [
        ("cluster_connected", "1 while this node reaches the others through NATS", u64::from(counts.connected)),
        ("cluster_following", "1 while this node follows the histories in JetStream", u64::from(counts.following)),
        ("cluster_nodes", "The other nodes that are there, or were when NATS was lost", counts.nodes.into()),
        ("cluster_absent_nodes", "Nodes that have gone silent within a minute and have not left", counts.absent.into()),
    ] {
        metrics.one(name, Gauge, help, value);
    }
    for (name, help, value) in [
        ("cluster_connects_total", "Connections made to NATS", counts.connects),
        ("cluster_sent_total", "Requests to the other nodes, publishes among them", counts.sent),
        ("cluster_received_total", "Requests of other nodes that were taken up", counts.received),
        ("cluster_incomplete_receipts_total", "Receipts in which a node is missing", counts.incomplete),
        (
            "cluster_unsent_total",
            "Requests that went to no other node, as NATS was lost, is just back, slow, or takes less",
            counts.unsent,
        ),
        ("cluster_late_replies_total", "Replies of other nodes that nobody waited for any more", counts.late),
        ("cluster_stale_total", "Requests of other nodes that came too late to be taken up", counts.stale),
        ("cluster_repeated_total", "Requests of other nodes that came again or out of order", counts.repeated),
        ("cluster_missed_total", "Requests of other nodes that never came", counts.missed),
        ("cluster_refused_total", "Messages that were no node's, a stranger's, or too much", counts.refused),
    ] {
        metrics.one(name, Counter, help, value);
    }
}
