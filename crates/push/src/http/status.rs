//! What operators ask: how the hub is, in JSON and for Prometheus, and what can be asked.

use std::fmt::Write as _;
use std::rc::Rc;

use oroshi_server::{Error, Exchange};
use serde_json::{Map, Value, json};

use crate::callbacks::CallbackCounts;
use crate::cluster::LinkCounts;
use crate::counts::{Counts, REASONS, TRANSPORTS};
use crate::http::answer::{self, Problem};
use crate::http::query;
use crate::hub::Hub;

/// The description of the API, as OpenAPI has it. Tests hold the server to it.
const OPENAPI: &str = include_str!("../../openapi.json");

/// `/status`, `/metrics`, `/openapi.json`.
pub(crate) async fn answer(hub: &Rc<Hub>, exchange: &mut Exchange<'_>) -> Result<(), Error> {
    if !matches!(exchange.head.method, "GET" | "HEAD") {
        return Problem::method(exchange.head.method, "GET, HEAD").send(exchange).await;
    }
    match query::split(exchange.head.target).0 {
        "/status" => answer::json(exchange, 200, &status(hub, &hub.counts().await)).await,
        "/metrics" => {
            let text = metrics(hub, &hub.counts().await);
            let fields = [("Content-Type", &b"text/plain; version=0.0.4; charset=utf-8"[..])];
            exchange.reply.send(200, fields, text.as_bytes()).await
        }
        _ => exchange.reply.send(200, [("Content-Type", &b"application/json"[..])], OPENAPI.as_bytes()).await,
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
            });
            (name.to_owned(), count)
        })
        .collect();
    let mut status = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "node": hub.node.name,
        "state": if hub.draining.get() { "draining" } else { "serving" },
        "threads": hub.node.cores(),
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
        "received": { "messages": counts.heard, "bytes": counts.heard_bytes },
        "callbacks": callbacks,
        "dead_letters": counts.callbacks.dead_letters(),
    });
    if let Some(link) = &hub.node.cluster {
        status["cluster"] = cluster(&link.counts());
    }
    status
}

fn cluster(counts: &LinkCounts) -> Value {
    json!({
        "connected": counts.connected,
        "nodes": counts.nodes,
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

/// Prometheus' text format.
fn metrics(hub: &Hub, counts: &Counts) -> String {
    let mut text = Metrics::default();
    let gauge = [
        ("sessions_connecting", "Clients that the backend is being asked about", counts.connecting),
        ("close_callbacks", "Close callbacks under way", counts.closing),
        ("queued_bytes", "What waits for sessions", counts.queued_bytes),
        ("queued_bytes_limit", "What may wait for sessions", hub.plan().limits.total_queue_bytes as u64),
        ("sessions_limit", "Sessions that there may be", hub.plan().limits.sessions as u64),
        ("draining", "1 while the hub ends", u64::from(hub.draining.get())),
    ];
    text.family("sessions", "gauge", "Sessions by transport", "transport", &TRANSPORTS, &counts.by_transport);
    for (name, help, value) in gauge {
        text.one(name, "gauge", help, value);
    }
    text.family(
        "sessions_opened_total",
        "counter",
        "Sessions that were opened",
        "transport",
        &TRANSPORTS,
        &counts.opened,
    );
    text.family("sessions_ended_total", "counter", "Sessions that ended, by why", "reason", &REASONS, &counts.ended);
    for (name, help, value) in [
        ("connect_errors_total", "Requests to connect that failed", counts.connect_errors),
        ("connect_refused_total", "Requests to connect that the backend said no to", counts.connect_refused),
        ("published_messages_total", "Messages that were published here", counts.published),
        ("published_bytes_total", "Bytes of messages that were published here", counts.published_bytes),
        ("overloaded_total", "Publishes that were answered 429", counts.overloaded),
        ("received_messages_total", "Messages from sessions", counts.heard),
        ("received_bytes_total", "Bytes of messages from sessions", counts.heard_bytes),
    ] {
        text.one(name, "counter", help, value);
    }
    let outcomes = [counts.matched, counts.written, counts.dropped, counts.closed];
    let help = "Deliveries by what became of them; matched are all";
    text.family(
        "deliveries_total",
        "counter",
        help,
        "outcome",
        &["matched", "written", "dropped", "closed"],
        &outcomes,
    );
    text.callbacks(&counts.callbacks);
    text.one(
        "dead_letters_total",
        "counter",
        "Messages and ends of sessions that the backend was never told of",
        counts.callbacks.dead_letters(),
    );
    if let Some(link) = &hub.node.cluster {
        text.cluster(&link.counts());
    }
    text.0
}

/// Metrics as text, each called `oroshi_push_NAME`.
#[derive(Default)]
struct Metrics(String);

impl Metrics {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a text does not fail.
        let _ = write!(self.0, "# HELP oroshi_push_{name} {help}.\n# TYPE oroshi_push_{name} {kind}\n");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: u64) {
        self.head(name, kind, help);
        let _ = writeln!(self.0, "oroshi_push_{name} {value}");
    }

    fn family(&mut self, name: &str, kind: &str, help: &str, label: &str, names: &[&str], values: &[u64]) {
        self.head(name, kind, help);
        for (of, value) in names.iter().zip(values) {
            let _ = writeln!(self.0, "oroshi_push_{name}{{{label}=\"{of}\"}} {value}");
        }
    }

    fn cluster(&mut self, counts: &LinkCounts) {
        self.one(
            "cluster_connected",
            "gauge",
            "1 while this node reaches the others through NATS",
            counts.connected.into(),
        );
        self.one(
            "cluster_nodes",
            "gauge",
            "The other nodes that are there, or were when NATS was lost",
            counts.nodes.into(),
        );
        for (name, help, value) in [
            ("cluster_connects_total", "Connections to NATS that came about", counts.connects),
            ("cluster_sent_total", "Requests to the other nodes, publishes among them", counts.sent),
            ("cluster_received_total", "Requests of other nodes that were taken up", counts.received),
            ("cluster_incomplete_receipts_total", "Receipts in which a node is missing", counts.incomplete),
            (
                "cluster_unsent_total",
                "Requests that went to no other node, as NATS was lost, slow, or takes less",
                counts.unsent,
            ),
            ("cluster_late_replies_total", "Replies of other nodes that nobody waited for any more", counts.late),
            ("cluster_stale_total", "Requests of other nodes that came too late to be taken up", counts.stale),
            ("cluster_repeated_total", "Requests of other nodes that came again or out of order", counts.repeated),
            ("cluster_missed_total", "Requests of other nodes that never came", counts.missed),
            ("cluster_refused_total", "Messages that were no node's, a stranger's, or too much", counts.refused),
        ] {
            self.one(name, "counter", help, value);
        }
    }

    fn callbacks(&mut self, counts: &CallbackCounts) {
        self.head("callbacks_total", "counter", "Callbacks that ended, by what the backend said");
        for (callback, count) in counts.each() {
            for (result, value) in [("accepted", count.accepted), ("refused", count.refused), ("failed", count.failed)]
            {
                let _ = writeln!(
                    self.0,
                    "oroshi_push_callbacks_total{{callback=\"{callback}\",result=\"{result}\"}} {value}"
                );
            }
        }
        let each = counts.each();
        let retried = each.map(|(_, count)| count.retried);
        let help = "Tries of callbacks after the first";
        self.family("callback_retries_total", "counter", help, "callback", &each.map(|(name, _)| name), &retried);
    }
}
