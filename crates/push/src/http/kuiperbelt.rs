//! kuiperbelt's API for backends and monitors, and the rest of its first version of 2014.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use oroshi_server::Exchange;
use oroshi_websocket::{CloseCode, Kind};
use serde::{Deserialize, Serialize};

use crate::callbacks::kind_of;
use crate::http::answer::{HandlerResult, JSON_TYPE, Reply, body};
use crate::http::query;
use crate::hub::Hub;
use crate::message::Message;
use crate::publish::{Publish, PublishError, Receipt, ReceiptWait, Targets};
use crate::session::info::Closed;

const OK: &[u8] = br#"{"result":"OK"}"#;
/// The first version's answer, whether a session got the message or not.
const OK_2014: &[u8] = br#"{"result":"ok"}"#;

const NOT_FOUND: &str = "kuiperbelt: session is not found";
const CLOSED: &str = "kuiperbelt: session is closed";
const TIMEOUT: &str = "context deadline exceeded";

/// An answer with errors.
#[derive(Debug, Serialize)]
struct Errors<'a> {
    errors: Vec<SessionError<'a>>,
    result: &'static str,
}

#[derive(Debug, Serialize)]
struct SessionError<'a> {
    error: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a str>,
}

/// `POST /send`: one message to every session that a header names.
pub(crate) async fn send(hub: &Rc<Hub>, exchange: &mut Exchange<'_>) -> HandlerResult {
    if exchange.head.method != "POST" {
        return not_post();
    }
    let sessions = match sessions(hub, exchange) {
        Ok(sessions) => sessions,
        Err(why) => return bad_request(why),
    };
    let content_type = exchange.head.headers.get("Content-Type");
    let data = body(exchange, hub.plan().limits.publish_bytes).await?;
    if sessions.is_empty() {
        return send_2014(hub, data).await;
    }
    let message = match message(content_type, data) {
        Ok(message) => message,
        Err(why) => return bad_request(why),
    };
    let strict = hub.plan().send.strict;
    if strict {
        let unknown = hub.unknown(&sessions).await;
        if !unknown.is_empty() {
            return not_found(strict, &unknown);
        }
    }
    let (message, mut all) = (Arc::new(message), Receipt::default());
    for sessions in rounds(sessions, hub.plan().compat_ekbo) {
        let to = Targets { sessions, ..Targets::default() };
        let Receipt { unknown, refused, closed, .. } = publish(hub, Arc::clone(&message), to).await?;
        all.unknown.extend(unknown);
        all.refused.extend(refused);
        all.closed += closed;
    }
    let Receipt { unknown, refused, closed, .. } = &all;
    if unknown.is_empty() && refused.is_empty() && *closed == 0 {
        return Ok(Reply::new(200, JSON_TYPE, OK));
    }
    let mut errors: Vec<SessionError<'_>> = Vec::new();
    errors.extend(unknown.iter().map(|key| SessionError { error: NOT_FOUND, session: Some(&**key) }));
    errors.extend(refused.iter().map(|key| SessionError { error: TIMEOUT, session: Some(&**key) }));
    if errors.is_empty() {
        // With several sessions, the hub does not know which one closed.
        let mut keys = exchange.head.headers.get_all(&hub.plan().session_header);
        let one = keys.next().filter(|_| keys.next().is_none()).and_then(|key| str::from_utf8(key).ok());
        errors.push(SessionError { error: CLOSED, session: one });
    }
    failed(strict, errors)
}

/// Splits sessions into publishes: one for all. As in kuiperbelt, a session that is named again gets the message again.
fn rounds(sessions: Vec<Box<str>>, as_kuiperbelt: bool) -> Vec<Vec<Box<str>>> {
    if !as_kuiperbelt {
        return vec![sessions];
    }
    let (mut rounds, mut times) = (Vec::new(), HashMap::<Box<str>, usize>::new());
    for key in sessions {
        let time = times.entry(key.clone()).or_default();
        if rounds.len() == *time {
            rounds.push(Vec::new());
        }
        rounds[*time].push(key);
        *time += 1;
    }
    rounds
}

/// `POST /close`: closes every session that a header names, with a last message.
pub(crate) async fn close(hub: &Rc<Hub>, exchange: &mut Exchange<'_>) -> HandlerResult {
    if exchange.head.method != "POST" {
        return not_post();
    }
    let sessions = match sessions(hub, exchange) {
        Ok(sessions) if sessions.is_empty() => return bad_request(MISSING),
        Ok(sessions) => sessions,
        Err(why) => return bad_request(why),
    };
    let content_type = exchange.head.headers.get("Content-Type");
    let data = body(exchange, hub.plan().limits.publish_bytes).await?;
    // kuiperbelt sends even an empty last message.
    let has_last = !data.is_empty() || hub.plan().compat_ekbo;
    let last = match message(content_type, data) {
        Ok(message) => has_last.then(|| Arc::new(message)),
        Err(why) => return bad_request(why),
    };
    let strict = hub.plan().send.strict;
    let mut unknown = if strict { hub.unknown(&sessions).await } else { Vec::new() };
    if !unknown.is_empty() {
        return not_found(strict, &unknown);
    }
    for key in sessions {
        if hub.close(&key, last.clone(), CloseCode::NORMAL, "").await == Closed::Unknown {
            unknown.push(key);
        }
    }
    if unknown.is_empty() {
        return Ok(Reply::new(200, JSON_TYPE, OK));
    }
    not_found(strict, &unknown)
}

/// `POST /broadcast`, of 2014: sends the body to all sessions.
pub(crate) async fn broadcast(hub: &Rc<Hub>, exchange: &mut Exchange<'_>) -> HandlerResult {
    if exchange.head.method != "POST" {
        return not_post();
    }
    let content_type = exchange.head.headers.get("Content-Type");
    let data = body(exchange, hub.plan().limits.publish_bytes).await?;
    let message = match message(content_type, data) {
        Ok(message) => message,
        Err(why) => return bad_request(why),
    };
    let all = Targets { all: true, ..Targets::default() };
    publish(hub, Arc::new(message), all).await?;
    Ok(Reply::new(200, JSON_TYPE, OK_2014))
}

/// `/ping`, by any method.
pub(crate) fn ping() -> Reply {
    Reply::new(200, JSON_TYPE, OK)
}

/// `/stats`, by any method: six counters, as JSON or as lines with tabs.
pub(crate) async fn stats(hub: &Rc<Hub>, exchange: &mut Exchange<'_>) -> HandlerResult {
    let counts = hub.counts().await;
    let ever = counts.opened.iter().sum::<u64>() + counts.connect_errors + counts.connect_refused;
    let stats = Stats {
        // kuiperbelt counts from before the connect callback.
        connections: counts.sessions + counts.connecting,
        total_connections: ever + counts.connecting,
        total_messages: counts.matched + counts.direct_messages,
        connect_errors: counts.connect_errors,
        message_errors: counts.dropped + counts.closed,
        closing_connections: counts.closing,
    };
    let (_, query) = query::split(exchange.head.target);
    let format = query.split('&').rev().find_map(|pair| pair.strip_prefix("format="));
    match format {
        Some("tsv" | "txt" | "text") => Ok(Reply::new(200, "text/plain; charset=utf-8", stats.lines().into_bytes())),
        _ => Reply::json(200, &stats),
    }
}

/// The counters of `/stats`, in kuiperbelt's order.
#[derive(Debug, Serialize)]
struct Stats {
    connections: u64,
    total_connections: u64,
    total_messages: u64,
    connect_errors: u64,
    message_errors: u64,
    closing_connections: u64,
}

impl Stats {
    /// Formats the counters for Sensu and Mackerel: name, value, Unix time.
    fn lines(&self) -> String {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
        let lines = [
            ("conn.current", self.connections),
            ("conn.total", self.total_connections),
            ("conn.errors", self.connect_errors),
            ("conn.closing", self.closing_connections),
            ("messages.total", self.total_messages),
            ("messages.errors", self.message_errors),
        ];
        lines.map(|(name, value)| format!("kuiperbelt.{name}\t{value}\t{now}\n")).concat()
    }
}

const MISSING: &str = "session header is missing";

/// The body of `/send` in the first version: JSON that names its session. The session gets it unchanged.
#[derive(Debug, Deserialize)]
struct Body2014 {
    #[serde(rename = "UUID")]
    session: Box<str>,
}

/// `POST /send` without a header.
async fn send_2014(hub: &Rc<Hub>, data: Bytes) -> HandlerResult {
    let Ok(Body2014 { session }) = serde_json::from_slice(&data) else {
        return bad_request(MISSING);
    };
    let to = Targets { sessions: vec![session], ..Targets::default() };
    // JSON is UTF-8.
    publish(hub, Arc::new(Message::data(Kind::Text, data)), to).await?;
    Ok(Reply::new(200, JSON_TYPE, OK_2014))
}

async fn publish(hub: &Rc<Hub>, message: Arc<Message>, to: Targets) -> Result<Receipt, PublishError> {
    let deadline = hub.plan().send.timeout;
    let (except, stored) = (Vec::new(), Vec::new());
    hub.publish(Publish { message, to, except, wait: ReceiptWait::Queued, deadline, stored }).await
}

/// Returns the sessions that header fields name, one each.
fn sessions(hub: &Hub, exchange: &Exchange<'_>) -> Result<Vec<Box<str>>, &'static str> {
    let keys = exchange.head.headers.get_all(&hub.plan().session_header);
    keys.map(|key| str::from_utf8(key).map(Box::from).map_err(|_| "session header is not UTF-8")).collect()
}

fn message(content_type: Option<&[u8]>, data: Bytes) -> Result<Message, &'static str> {
    let kind = kind_of(content_type);
    if kind == Kind::Text && str::from_utf8(&data).is_err() {
        return Err("the body is not UTF-8, which a text must be: send bytes as application/octet-stream");
    }
    Ok(Message::data(kind, data))
}

/// Answers that no session has these keys.
fn not_found(strict: bool, keys: &[Box<str>]) -> HandlerResult {
    failed(strict, keys.iter().map(|key| SessionError { error: NOT_FOUND, session: Some(&**key) }).collect())
}

/// Answers with errors; the whole request fails only if the plan is strict.
fn failed(strict: bool, errors: Vec<SessionError<'_>>) -> HandlerResult {
    let (status, result) = if strict { (400, "NG") } else { (200, "OK") };
    Reply::json(status, &Errors { errors, result })
}

fn bad_request(error: &str) -> HandlerResult {
    Reply::json(400, &Errors { errors: vec![SessionError { error, session: None }], result: "NG" })
}

fn not_post() -> HandlerResult {
    let errors = Errors { errors: vec![SessionError { error: "required POST method", session: None }], result: "NG" };
    Ok(Reply::json(405, &errors)?.field("Allow", "POST"))
}
