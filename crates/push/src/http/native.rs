//! The native API: publishing with receipts, sessions, groups.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use oroshi_server::{Error, Exchange};
use oroshi_websocket::{CloseCode, Kind};
use oroshi_words::units::parse_time;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use crate::callbacks::kind_of;
use crate::http::answer::{Failure, HandlerResult, JSON_TYPE, Problem, Reply, body, body_or};
use crate::http::{lists, query};
use crate::hub::Hub;
use crate::idempotency::{Begun, KEY_BYTES};
use crate::message::Message;
use crate::publish::{Publish, ReceiptWait, Targets};
use crate::session::info::{Closed, SessionInfo};

/// The longest deadline of a publish.
const LONGEST: Duration = Duration::from_secs(300);

/// The longest time that a message may wait.
const LONGEST_TTL: Duration = Duration::from_secs(86_400);

/// The most envelopes in a batch.
const MOST_PUBLISHES: usize = 1000;

/// The longest reason that fits into a close frame, bytes (RFC 6455 section 5.5).
const REASON_BYTES: usize = 123;

/// Serves every path that no other module serves.
pub(crate) async fn answer(hub: &Rc<Hub>, path: &str, exchange: &mut Exchange<'_>) -> HandlerResult {
    match path {
        "/publish" => return publish(hub, exchange).await,
        "/publish/raw" => return publish_raw(hub, exchange).await,
        "/publish/batch" => return publish_batch(hub, exchange).await,
        _ => {}
    }
    let mut parts = path.split('/').skip(1).map(query::segment);
    let parts = [parts.next(), parts.next(), parts.next(), parts.next(), parts.next()].map(Option::transpose);
    let parts = match parts {
        [Ok(first), Ok(second), Ok(third), Ok(fourth), Ok(None)] => [first, second, third, fourth],
        [.., Ok(Some(_))] => return Err(Problem::no_route(path).into()),
        parts => {
            let problem = parts.into_iter().find_map(Result::err);
            return Err(problem.unwrap_or_else(|| Problem::no_route(path)).into());
        }
    };
    match parts.each_ref().map(Option::as_deref) {
        [Some("sessions"), None, ..] => lists::sessions(hub, exchange),
        [Some("slow"), None, ..] => lists::slow(hub, exchange).await,
        [Some("groups"), None, ..] => lists::groups(hub, exchange).await,
        [Some("users"), Some(user), None, _] if !user.is_empty() => self::user(hub, exchange, user).await,
        [Some("sessions"), Some(key), None, _] if !key.is_empty() => session(hub, exchange, key).await,
        [Some("sessions"), Some(key), Some("groups"), Some(group)] if !key.is_empty() && !group.is_empty() => {
            membership(hub, exchange, key, group).await
        }
        [Some("groups"), Some(group), None, _] if !group.is_empty() => self::group(hub, exchange, group).await,
        _ => Err(Problem::no_route(path).into()),
    }
}

/// `POST /publish`: an envelope in JSON.
async fn publish(hub: &Rc<Hub>, exchange: &mut Exchange<'_>) -> HandlerResult {
    let data = json_body(hub, exchange).await?;
    let publish = envelope(hub, &data)?;
    once(hub, exchange, &data, Box::pin(receipt(Rc::clone(hub), publish))).await
}

/// `POST /publish/batch`: an array of envelopes. They are published one after the other, if none has a mistake.
async fn publish_batch(hub: &Rc<Hub>, exchange: &mut Exchange<'_>) -> HandlerResult {
    let data = json_body(hub, exchange).await?;
    let wrong = |error| Problem::bad(format!("the batch cannot be read: {error}: expected an array of envelopes"));
    let envelopes: Vec<&RawValue> = serde_json::from_slice(&data).map_err(wrong)?;
    if envelopes.is_empty() || envelopes.len() > MOST_PUBLISHES {
        return Err(Problem::bad(format!("expected 1 to {MOST_PUBLISHES} envelopes")).into());
    }
    let read = |(at, one): (usize, &&RawValue)| {
        envelope(hub, one.get().as_bytes()).map_err(|problem| problem.at(&format!("[{at}]")).with("index", at))
    };
    let publishes = envelopes.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
    let publisher = Rc::clone(hub);
    let receipts = async move {
        let mut receipts = Vec::with_capacity(publishes.len());
        for publish in publishes {
            receipts.push(match publisher.publish(publish).await {
                Ok(receipt) => json!(receipt),
                Err(overloaded) => Problem::from(overloaded).into_json(),
            });
        }
        Reply::json(200, &json!({ "receipts": receipts }))
    };
    once(hub, exchange, &data, Box::pin(receipts)).await
}

/// Reads a body of JSON: one or more envelopes.
async fn json_body(hub: &Rc<Hub>, exchange: &mut Exchange<'_>) -> Result<Bytes, Failure> {
    expect_post(exchange)?;
    if let Some(content_type) = exchange.head.headers.get("Content-Type")
        && !is_json(content_type)
    {
        let found = content_type.escape_ascii();
        let message = format!("an envelope of type `{found}` is not taken: expected Content-Type: application/json");
        return Err(Problem::new(415, "unsupported-type", message).into());
    }
    // JSON may need six bytes for a character. The rest of the envelope gets 1 MiB.
    let most = hub.plan().limits.publish_bytes;
    let most = most.saturating_mul(6).saturating_add(1 << 20);
    body_or(exchange, most, Problem::envelope_too_large).await
}

/// Publishes, unless a request with the same `Idempotency-Key` has done so: then it returns that one's receipt.
///
/// `publish` is boxed because a publish is large, and would be copied from future to future on its way.
async fn once(
    hub: &Rc<Hub>,
    exchange: &Exchange<'_>,
    data: &[u8],
    publish: LocalBoxFuture<'static, HandlerResult>,
) -> HandlerResult {
    let head = exchange.head;
    let Some(key) = head.headers.get("Idempotency-Key") else { return publish.await };
    let key = str::from_utf8(key).ok().filter(|key| !key.is_empty() && key.len() <= KEY_BYTES);
    let expected = || Problem::bad(format!("Idempotency-Key: expected 1 to {KEY_BYTES} bytes of UTF-8"));
    let key = key.ok_or_else(expected)?;
    let all = &hub.node.idempotency;
    let digest = all.digest((head.target, data));
    loop {
        match all.begin(key, digest, hub.node.now_ms()) {
            Begun::First(first) => {
                // In a task of its own: the publisher may leave, and come again with the same key.
                let published = tokio::task::spawn_local(async move {
                    let reply = publish.await?;
                    if let Some(body) = reply.success() {
                        first.done(body);
                    }
                    Ok(reply)
                });
                return published.await.unwrap_or_else(|error| Err(Error::Handler(Box::new(error)).into()));
            }
            Begun::Again(again) => {
                if let Some(receipt) = again.receipt().await {
                    return Ok(Reply::new(200, JSON_TYPE, receipt.to_vec()).field("Idempotent-Replayed", "true"));
                }
            }
            Begun::Other => {
                let message = "Idempotency-Key: another publish has this key: expected a key of its own for each";
                return Err(Problem::new(422, "other-publish", message).into());
            }
        }
    }
}

/// `POST /publish/raw`: the body is the message, the query says the rest.
async fn publish_raw(hub: &Rc<Hub>, exchange: &mut Exchange<'_>) -> HandlerResult {
    expect_post(exchange)?;
    let head = exchange.head;
    let kind = kind_of(head.headers.get("Content-Type"));
    let options = PublishOptions::from_query(query::split(head.target).1)?;
    let data = body(exchange, hub.plan().limits.publish_bytes).await?;
    let publish = options.publish(hub, kind, data.clone())?;
    once(hub, exchange, &data, Box::pin(receipt(Rc::clone(hub), publish))).await
}

fn expect_post(exchange: &Exchange<'_>) -> Result<(), Problem> {
    match exchange.head.method {
        "POST" => Ok(()),
        method => Err(Problem::method(method, "POST")),
    }
}

/// `/sessions/{key}`: describes or ends a session.
async fn session(hub: &Rc<Hub>, exchange: &mut Exchange<'_>, key: &str) -> HandlerResult {
    let (_, query) = query::split(exchange.head.target);
    match exchange.head.method {
        "GET" | "HEAD" => match hub.find(key).await {
            Some(info) => Reply::json(200, &SessionReply::new(key, &info)),
            None => Err(Problem::no_session(key).into()),
        },
        "DELETE" => {
            let (code, reason) = close_options(query)?;
            match hub.close(key, None, code, &reason).await {
                Closed::Done | Closed::Already => Ok(Reply::nothing()),
                Closed::Unknown => Err(Problem::no_session(key).into()),
            }
        }
        method => Err(Problem::method(method, "GET, HEAD, DELETE").into()),
    }
}

/// `/sessions/{key}/groups/{group}`: joins or leaves a group. A client may repeat either.
async fn membership(hub: &Rc<Hub>, exchange: &mut Exchange<'_>, key: &str, group: &str) -> HandlerResult {
    let known = match exchange.head.method {
        "PUT" => hub.join(key, group).await,
        "DELETE" => hub.leave(key, group).await,
        method => return Err(Problem::method(method, "PUT, DELETE").into()),
    };
    if known { Ok(Reply::nothing()) } else { Err(Problem::no_session(key).into()) }
}

/// `/groups/{group}`: counts a group's sessions. An unknown group has none.
async fn group(hub: &Rc<Hub>, exchange: &mut Exchange<'_>, group: &str) -> HandlerResult {
    match exchange.head.method {
        "GET" | "HEAD" => Reply::json(200, &GroupSize { group, sessions: hub.group_size(group).await }),
        method => Err(Problem::method(method, "GET, HEAD").into()),
    }
}

/// `/users/{user}`: counts or ends the sessions of a user. An unknown user has none.
async fn user(hub: &Rc<Hub>, exchange: &mut Exchange<'_>, user: &str) -> HandlerResult {
    let sessions = match exchange.head.method {
        "GET" | "HEAD" => hub.user_size(user).await,
        "DELETE" => {
            let (code, reason) = close_options(query::split(exchange.head.target).1)?;
            hub.close_user(user, code, &reason).await
        }
        method => return Err(Problem::method(method, "GET, HEAD, DELETE").into()),
    };
    Reply::json(200, &json!({ "user": user, "sessions": sessions }))
}

/// The body of `POST /publish`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<'a> {
    #[serde(default)]
    sessions: Vec<Box<str>>,
    #[serde(default)]
    groups: Vec<Box<str>>,
    #[serde(default)]
    users: Vec<Box<str>>,
    #[serde(default)]
    all: bool,
    #[serde(default)]
    except: Vec<Box<str>>,
    text: Option<String>,
    /// Sent byte for byte as written here.
    #[serde(borrow, default, deserialize_with = "present")]
    json: Option<&'a RawValue>,
    base64: Option<String>,
    key: Option<Box<str>>,
    ttl: Option<String>,
    wait: Option<String>,
    deadline: Option<String>,
}

/// Reads a value that is present, even `null`, which is JSON too.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// The options of a publish: all but its message.
#[derive(Debug, Default)]
struct PublishOptions {
    to: Targets,
    except: Vec<Box<str>>,
    key: Option<Box<str>>,
    ttl: Option<Duration>,
    wait: ReceiptWait,
    deadline: Option<Duration>,
}

fn envelope(hub: &Hub, data: &[u8]) -> Result<Publish, Problem> {
    // serde would take an array as the fields in their order.
    let kind = match data.trim_ascii_start().first() {
        Some(b'{') => None,
        None => Some("there is no envelope"),
        Some(b'[') => Some("the envelope is an array"),
        Some(_) => Some("the envelope is no object"),
    };
    if let Some(kind) = kind {
        return Err(Problem::bad(format!("{kind}: expected an object such as {{\"all\": true, \"text\": \"hello\"}}")));
    }
    let envelope: Envelope<'_> = serde_json::from_slice(data).map_err(|error| {
        Problem::bad(format!("the envelope cannot be read: {error}"))
            .with("line", error.line())
            .with("column", error.column())
    })?;
    let Envelope { sessions, groups, users, all, except, text, json, base64, key, ttl, wait, deadline } = envelope;
    let (kind, data) = match (text, json, base64) {
        (Some(text), None, None) => (Kind::Text, text.into()),
        (None, Some(json), None) => (Kind::Text, Bytes::copy_from_slice(json.get().as_bytes())),
        (None, None, Some(base64)) => {
            let expected =
                |error| Problem::bad(format!("base64: {error}: expected bytes in base64 (RFC 4648, section 4)"));
            (Kind::Binary, BASE64.decode(base64).map_err(expected)?.into())
        }
        _ => return Err(Problem::bad("expected exactly one of text, json and base64, which is the message")),
    };
    let to = Targets { all, groups, sessions, users };
    let mut options = PublishOptions { to, except, key, ..PublishOptions::default() };
    if let Some(text) = ttl {
        options.ttl = Some(parse_ttl(&text)?);
    }
    if let Some(text) = wait {
        options.wait = parse_wait(&text)?;
    }
    if let Some(text) = deadline {
        options.deadline = Some(parse_deadline(&text)?);
    }
    options.publish(hub, kind, data)
}

impl PublishOptions {
    fn from_query(query: &str) -> Result<Self, Problem> {
        const KNOWN: [&str; 9] = ["session", "group", "user", "all", "except", "key", "ttl", "wait", "deadline"];
        let mut options = PublishOptions::default();
        for pair in query::pairs(query) {
            let (name, value) = pair?;
            let owned = || Box::from(&*value);
            match &*name {
                "session" => options.to.sessions.push(owned()),
                "group" => options.to.groups.push(owned()),
                "user" => options.to.users.push(owned()),
                "all" => options.to.all = parse_flag(&value)?,
                "except" => options.except.push(owned()),
                "key" => options.key = Some(owned()),
                "ttl" => options.ttl = Some(parse_ttl(&value)?),
                "wait" => options.wait = parse_wait(&value)?,
                "deadline" => options.deadline = Some(parse_deadline(&value)?),
                _ => return Err(query::unknown(&name, &KNOWN)),
            }
        }
        Ok(options)
    }

    fn publish(self, hub: &Hub, kind: Kind, data: Bytes) -> Result<Publish, Problem> {
        let most = hub.plan().limits.publish_bytes;
        if data.len() as u64 > most {
            return Err(Problem::too_large(most));
        }
        if kind == Kind::Text && str::from_utf8(&data).is_err() {
            let message = "the message is not UTF-8, which a text must be: send bytes as application/octet-stream";
            return Err(Problem::new(400, "not-utf8", message));
        }
        let Targets { all, groups, sessions, users } = &self.to;
        if !all && groups.is_empty() && sessions.is_empty() && users.is_empty() {
            return Err(Problem::bad("the message has no target: expected sessions, groups, users or all"));
        }
        Ok(Publish {
            message: Arc::new(Message::data(kind, data).with_key(self.key).with_ttl(self.ttl)),
            to: self.to,
            except: self.except,
            wait: self.wait,
            deadline: self.deadline.unwrap_or(hub.plan().send.timeout),
            stored: Vec::new(),
        })
    }
}

/// Publishes, and returns the receipt.
async fn receipt(hub: Rc<Hub>, publish: Publish) -> HandlerResult {
    Reply::json(200, &hub.publish(publish).await?)
}

/// The description of a session.
#[derive(Debug, Serialize)]
struct SessionReply<'a> {
    key: &'a str,
    transport: &'static str,
    groups: &'a [Box<str>],
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    queued_messages: usize,
    queued_bytes: usize,
    age_seconds: f64,
}

impl<'a> SessionReply<'a> {
    fn new(key: &'a str, info: &'a SessionInfo) -> Self {
        SessionReply {
            key,
            transport: info.transport,
            groups: &info.groups,
            user: info.user.as_deref(),
            queued_messages: info.queued_messages,
            queued_bytes: info.queued_bytes,
            age_seconds: info.age.as_secs_f64(),
        }
    }
}

#[derive(Debug, Serialize)]
struct GroupSize<'a> {
    group: &'a str,
    sessions: u64,
}

/// Returns the close code and the reason in a query.
fn close_options(query: &str) -> Result<(CloseCode, Cow<'_, str>), Problem> {
    let (mut code, mut reason) = (CloseCode::NORMAL, Cow::Borrowed(""));
    for pair in query::pairs(query) {
        let (name, value) = pair?;
        match &*name {
            "code" => {
                let read = value.parse().ok().map(CloseCode).filter(|code| code.may_be_sent());
                let expected = "expected 1000 to 1003, 1007 to 1014 or 3000 to 4999 (RFC 6455, section 7.4)";
                code = read
                    .ok_or_else(|| Problem::bad(format!("code: `{value}` is no code that can be sent: {expected}")))?;
            }
            "reason" if value.len() > REASON_BYTES => {
                let message = format!("reason: it has {} bytes: expected at most {REASON_BYTES}", value.len());
                return Err(Problem::bad(message));
            }
            "reason" => reason = value,
            _ => return Err(query::unknown(&name, &["code", "reason"])),
        }
    }
    Ok((code, reason))
}

fn parse_wait(text: &str) -> Result<ReceiptWait, Problem> {
    match text {
        "queued" => Ok(ReceiptWait::Queued),
        "attempted" => Ok(ReceiptWait::Attempted),
        "written" => Ok(ReceiptWait::Written),
        _ => Err(Problem::bad(format!("wait: `{text}` is unknown: expected queued, attempted or written"))),
    }
}

fn parse_deadline(text: &str) -> Result<Duration, Problem> {
    match parse_time(text) {
        Ok(time) if time <= LONGEST => Ok(time),
        Ok(_) => Err(Problem::bad(format!("deadline: `{text}` is too long: expected at most {} s", LONGEST.as_secs()))),
        Err(why) => Err(Problem::bad(format!("deadline: {why}"))),
    }
}

fn parse_ttl(text: &str) -> Result<Duration, Problem> {
    match parse_time(text) {
        Ok(time) if (Duration::from_millis(1)..=LONGEST_TTL).contains(&time) => Ok(time),
        Ok(_) => {
            let expected = format!("expected 1ms to {} s", LONGEST_TTL.as_secs());
            Err(Problem::bad(format!("ttl: `{text}` is too short or too long: {expected}")))
        }
        Err(why) => Err(Problem::bad(format!("ttl: {why}"))),
    }
}

fn parse_flag(text: &str) -> Result<bool, Problem> {
    match text {
        "" | "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(Problem::bad(format!("all: `{text}` is neither yes nor no: expected 1 or 0"))),
    }
}

/// Returns whether a content type is JSON or based on it.
fn is_json(content_type: &[u8]) -> bool {
    let essence = content_type.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii().to_ascii_lowercase();
    essence == b"application/json" || essence.ends_with(b"+json")
}
