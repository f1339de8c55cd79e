//! kuiperbelt's API for backends and monitors, and what is left of its first version of 2014.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use oroshi_server::{Error, Exchange};
use oroshi_websocket::{CloseCode, Kind};
use serde::{Deserialize, Serialize};

use crate::callbacks::kind_of;
use crate::control::Closed;
use crate::http::answer::{self, JSON, Problem, body, json};
use crate::http::query;
use crate::hub::Hub;
use crate::message::Message;
use crate::publish::{Overloaded, Publish, Receipt, Targets};
use crate::tally::Wait;

const OK: &[u8] = br#"{"result":"OK"}"#;
/// The first version's word for it, whoever was there to hear.
const OK_2014: &[u8] = br#"{"result":"ok"}"#;

const NOT_FOUND: &str = "kuiperbelt: session is not found";
const CLOSED: &str = "kuiperbelt: session is closed";
const TIMEOUT: &str = "context deadline exceeded";

/// An answer that is not a plain OK.
#[derive(Debug, Serialize)]
struct Answer<'a> {
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
pub(crate) async fn send(hub: &Rc<Hub>, exchange: &mut Exchange<'_>) -> Result<(), Error> {
    if exchange.head.method != "POST" {
        return not_post(exchange).await;
    }
    let sessions = match sessions(hub, exchange) {
        Ok(sessions) => sessions,
        Err(why) => return wrong(exchange, 400, why).await,
    };
    let content_type = exchange.head.headers.get("Content-Type");
    let data = match body(exchange, hub.plan().limits.publish_bytes).await? {
        Ok(data) => data,
        Err(problem) => return problem.send(exchange).await,
    };
    if sessions.is_empty() {
        return send_2014(hub, exchange, data).await;
    }
    let message = match message(content_type, data) {
        Ok(message) => message,
        Err(why) => return wrong(exchange, 400, why).await,
    };
    let strict = hub.plan().send.strict;
    if strict {
        let unknown = hub.unknown(&sessions).await;
        if !unknown.is_empty() {
            return not_found(exchange, strict, &unknown).await;
        }
    }
    let (message, mut all) = (Arc::new(message), Receipt::default());
    for sessions in rounds(sessions, hub.plan().compat_ekbo) {
        match publish(hub, Arc::clone(&message), Targets { sessions, ..Targets::default() }).await {
            Ok(Receipt { unknown, refused, closed, .. }) => {
                all.unknown.extend(unknown);
                all.refused.extend(refused);
                all.closed += closed;
            }
            Err(overloaded) => return Problem::from(overloaded).send(exchange).await,
        }
    }
    let Receipt { unknown, refused, closed, .. } = &all;
    if unknown.is_empty() && refused.is_empty() && *closed == 0 {
        return exchange.reply.send(200, [JSON], OK).await;
    }
    let mut errors: Vec<SessionError<'_>> = Vec::new();
    errors.extend(unknown.iter().map(|key| SessionError { error: NOT_FOUND, session: Some(&**key) }));
    errors.extend(refused.iter().map(|key| SessionError { error: TIMEOUT, session: Some(&**key) }));
    if errors.is_empty() {
        // Of several, which it was is not known.
        let mut keys = exchange.head.headers.get_all(&hub.plan().session_header);
        let one = keys.next().filter(|_| keys.next().is_none()).and_then(|key| str::from_utf8(key).ok());
        errors.push(SessionError { error: CLOSED, session: one });
    }
    failed(exchange, strict, errors).await
}

/// To whom a message is published at a time: to all of them at once, or, as kuiperbelt does, again to those that are named again.
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

/// `POST /close`: a last message to every session that a header names, and its end.
pub(crate) async fn close(hub: &Rc<Hub>, exchange: &mut Exchange<'_>) -> Result<(), Error> {
    if exchange.head.method != "POST" {
        return not_post(exchange).await;
    }
    let sessions = match sessions(hub, exchange) {
        Ok(sessions) if sessions.is_empty() => return wrong(exchange, 400, MISSING).await,
        Ok(sessions) => sessions,
        Err(why) => return wrong(exchange, 400, why).await,
    };
    let content_type = exchange.head.headers.get("Content-Type");
    let data = match body(exchange, hub.plan().limits.publish_bytes).await? {
        Ok(data) => data,
        Err(problem) => return problem.send(exchange).await,
    };
    // kuiperbelt sends an empty message where there is nothing to say.
    let has_last = !data.is_empty() || hub.plan().compat_ekbo;
    let last = match message(content_type, data) {
        Ok(message) => has_last.then(|| Arc::new(message)),
        Err(why) => return wrong(exchange, 400, why).await,
    };
    let strict = hub.plan().send.strict;
    let mut unknown = if strict { hub.unknown(&sessions).await } else { Vec::new() };
    if !unknown.is_empty() {
        return not_found(exchange, strict, &unknown).await;
    }
    for key in sessions {
        if hub.close(&key, last.clone(), CloseCode::NORMAL, "").await == Closed::Unknown {
            unknown.push(key);
        }
    }
    if unknown.is_empty() {
        return exchange.reply.send(200, [JSON], OK).await;
    }
    not_found(exchange, strict, &unknown).await
}

/// `POST /broadcast`, of 2014: the body to everybody.
pub(crate) async fn broadcast(hub: &Rc<Hub>, exchange: &mut Exchange<'_>) -> Result<(), Error> {
    if exchange.head.method != "POST" {
        return not_post(exchange).await;
    }
    let content_type = exchange.head.headers.get("Content-Type");
    let data = match body(exchange, hub.plan().limits.publish_bytes).await? {
        Ok(data) => data,
        Err(problem) => return problem.send(exchange).await,
    };
    let message = match message(content_type, data) {
        Ok(message) => message,
        Err(why) => return wrong(exchange, 400, why).await,
    };
    let everybody = Targets { all: true, ..Targets::default() };
    let published = publish(hub, Arc::new(message), everybody).await;
    answer_2014(exchange, published).await
}

/// `/ping`, by any method.
pub(crate) async fn ping(exchange: &mut Exchange<'_>) -> Result<(), Error> {
    exchange.reply.send(200, [JSON], OK).await
}

/// `/stats`, by any method: six counters, as JSON or as lines of tabs.
pub(crate) async fn stats(hub: &Rc<Hub>, exchange: &mut Exchange<'_>) -> Result<(), Error> {
    let counts = hub.counts().await;
    let ever = counts.opened.iter().sum::<u64>() + counts.connect_errors + counts.connect_refused;
    let stats = Stats {
        // From before the connect callback, as kuiperbelt counts.
        connections: counts.sessions + counts.connecting,
        total_connections: ever + counts.connecting,
        total_messages: counts.matched + counts.words,
        connect_errors: counts.connect_errors,
        message_errors: counts.dropped + counts.closed,
        closing_connections: counts.closing,
    };
    let (_, query) = query::split(exchange.head.target);
    let format = query.split('&').rev().find_map(|pair| pair.strip_prefix("format="));
    match format {
        Some("tsv" | "txt" | "text") => {
            let lines = stats.lines();
            exchange.reply.send(200, [("Content-Type", &b"text/plain; charset=utf-8"[..])], lines.as_bytes()).await
        }
        _ => json(exchange, 200, &stats).await,
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
    /// As Sensu and Mackerel read it: name, value, unix time.
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

/// What the first version took: JSON that names a session, and goes there as it is.
#[derive(Debug, Deserialize)]
struct Addressed {
    #[serde(rename = "UUID")]
    session: Box<str>,
}

/// `POST /send` without a header.
async fn send_2014(hub: &Rc<Hub>, exchange: &mut Exchange<'_>, data: Bytes) -> Result<(), Error> {
    let Ok(Addressed { session }) = serde_json::from_slice(&data) else {
        return wrong(exchange, 400, MISSING).await;
    };
    let to = Targets { sessions: vec![session], ..Targets::default() };
    // What is JSON is UTF-8.
    let published = publish(hub, Arc::new(Message::data(Kind::Text, data)), to).await;
    answer_2014(exchange, published).await
}

async fn publish(hub: &Rc<Hub>, message: Arc<Message>, to: Targets) -> Result<Receipt, Overloaded> {
    let deadline = hub.plan().send.timeout;
    hub.publish(Publish { message, to, except: Vec::new(), wait: Wait::Queued, deadline }).await
}

async fn answer_2014(exchange: &mut Exchange<'_>, published: Result<Receipt, Overloaded>) -> Result<(), Error> {
    match published {
        Ok(_) => exchange.reply.send(200, [JSON], OK_2014).await,
        Err(overloaded) => Problem::from(overloaded).send(exchange).await,
    }
}

/// The sessions that headers name, one each.
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

/// These keys nobody has.
async fn not_found(exchange: &mut Exchange<'_>, strict: bool, keys: &[Box<str>]) -> Result<(), Error> {
    let errors = keys.iter().map(|key| SessionError { error: NOT_FOUND, session: Some(&**key) }).collect();
    failed(exchange, strict, errors).await
}

/// Not all went well, which is an error of the whole only if the plan is strict.
async fn failed(exchange: &mut Exchange<'_>, strict: bool, errors: Vec<SessionError<'_>>) -> Result<(), Error> {
    let (status, result) = if strict { (400, "NG") } else { (200, "OK") };
    json(exchange, status, &Answer { errors, result }).await
}

async fn wrong(exchange: &mut Exchange<'_>, status: u16, error: &str) -> Result<(), Error> {
    let answer = Answer { errors: vec![SessionError { error, session: None }], result: "NG" };
    json(exchange, status, &answer).await
}

async fn not_post(exchange: &mut Exchange<'_>) -> Result<(), Error> {
    let answer = Answer { errors: vec![SessionError { error: "required POST method", session: None }], result: "NG" };
    answer::json_with(exchange, 405, &[("Allow", b"POST")], &answer).await
}
