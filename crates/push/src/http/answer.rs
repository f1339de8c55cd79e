//! Answers of the API: their form, errors, authorization, request bodies.
//!
//! A handler returns [`HandlerResult`]; [`send`] alone writes it.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use oroshi_http1::Framing;
use oroshi_server::{Error, Exchange, page};
use oroshi_websocket::handshake::UpgradeRequestError;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::plan::{Paths, Plan, Serves};
use crate::publish::{Overloaded, PublishError, StoreError};
use crate::secrets::is_same;

/// The Content-Type of every JSON answer.
pub(crate) const JSON_TYPE: &str = "application/json; charset=utf-8";

/// The result of a handler.
pub(crate) type HandlerResult = Result<Reply, Failure>;

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    status: u16,
    content_type: Option<&'static str>,
    fields: Vec<(&'static str, Cow<'static, str>)>,
    body: Cow<'static, [u8]>,
}

impl Reply {
    /// Returns a response whose body has this Content-Type.
    pub(crate) fn new(status: u16, content_type: &'static str, body: impl Into<Cow<'static, [u8]>>) -> Self {
        Self { status, content_type: Some(content_type), fields: Vec::new(), body: body.into() }
    }

    /// Returns a response with `value` as JSON.
    ///
    /// # Errors
    /// When `value` has no form in JSON.
    pub(crate) fn json(status: u16, value: &impl Serialize) -> HandlerResult {
        let body = serde_json::to_vec(value).map_err(|error| Error::Handler(Box::new(error)))?;
        Ok(Self::new(status, JSON_TYPE, body))
    }

    /// Returns 204 No Content.
    pub(crate) fn nothing() -> Self {
        Self { status: 204, content_type: None, fields: Vec::new(), body: Cow::Borrowed(b"") }
    }

    /// Returns the body of a successful response.
    pub(crate) fn success(&self) -> Option<&[u8]> {
        (self.status == 200).then_some(&*self.body)
    }

    /// Adds a header field.
    pub(crate) fn field(mut self, name: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        self.fields.push((name, value.into()));
        self
    }
}

/// Why a handler returns no response of its own.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The client gets this answer.
    Problem(Problem),
    /// The connection broke, or the server failed; the client gets what the server says.
    Broken(Error),
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl From<PublishError> for Failure {
    fn from(error: PublishError) -> Self {
        Self::Problem(error.into())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Broken(error)
    }
}

/// Writes what a handler returned.
pub(crate) async fn send(exchange: &mut Exchange<'_>, answered: HandlerResult) -> Result<(), Error> {
    let Reply { status, content_type, fields, body } = match answered {
        Ok(reply) => reply,
        Err(Failure::Problem(problem)) => problem.into_reply(),
        Err(Failure::Broken(error)) => return Err(error),
    };
    let content_type = content_type.map(|value| ("Content-Type", value.as_bytes()));
    let fields = fields.iter().map(|(name, value)| (*name, value.as_bytes()));
    exchange.reply.send(status, content_type.into_iter().chain(fields), &body).await
}

/// An error as an answer: `{"error": NAME, "message": SENTENCE, ...}`.
#[derive(Debug)]
pub(crate) struct Problem {
    status: u16,
    /// A stable name in kebab-case.
    name: &'static str,
    /// The mistake, and the expected value.
    message: String,
    /// More members, for programs.
    details: Map<String, Value>,
    fields: Vec<(&'static str, Cow<'static, str>)>,
}

impl Problem {
    /// Returns an error with a stable name in kebab-case.
    pub(crate) fn new(status: u16, name: &'static str, message: impl Into<String>) -> Self {
        Problem { status, name, message: message.into(), details: Map::new(), fields: Vec::new() }
    }

    /// 400: the request is malformed.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(400, "bad-request", message)
    }

    /// 404: nothing is at this path.
    pub(crate) fn no_route(path: &str) -> Self {
        let message = format!("there is nothing at `{path}`: /openapi.json says what there is");
        Self::new(404, "unknown-path", message)
    }

    /// 404: clients have nothing at this path.
    pub(crate) fn no_route_for_clients(plan: &Plan, path: &str) -> Self {
        let Paths { connect, poll, ping, .. } = &plan.paths;
        let expected =
            if plan.transports.poll { format!("{connect}, {poll} or {ping}") } else { format!("{connect} or {ping}") };
        Self::new(404, "unknown-path", format!("there is nothing at `{path}` for clients: expected {expected}"))
    }

    /// 404: no session has this key.
    pub(crate) fn no_session(key: &str) -> Self {
        Self::new(404, "unknown-session", format!("no session has the key `{key}`")).with("session", key)
    }

    /// 405, with the allowed methods.
    pub(crate) fn method(method: &str, allowed: &'static str) -> Self {
        let message = format!("{method} is not allowed here: expected {allowed}");
        Self::new(405, "method-not-allowed", message).with("allowed", allowed).field("Allow", allowed)
    }

    /// 426 or 400: the request does not open a WebSocket. kuiperbelt always answers 400.
    pub(crate) fn handshake(refusal: UpgradeRequestError, as_kuiperbelt: bool) -> Self {
        let status = if as_kuiperbelt { 400 } else { refusal.status() };
        let problem = Self::new(status, "bad-handshake", refusal.to_string());
        match status {
            426 => problem.field("Upgrade", "websocket").field("Sec-WebSocket-Version", "13"),
            _ => problem,
        }
    }

    /// 503: the client may try again in a second.
    pub(crate) fn busy(message: &str) -> Self {
        Self::new(503, "busy", message).field("Retry-After", "1")
    }

    /// 413: a message has more than `most` bytes.
    pub(crate) fn too_large(most: u64) -> Self {
        let message = format!("the message is too large: expected at most {most} bytes (limits.publish-bytes)");
        Self::new(413, "too-large", message).with("most_bytes", most)
    }

    /// 413: the envelope of a message has more than `most` bytes.
    pub(crate) fn envelope_too_large(most: u64) -> Self {
        let message = format!(
            "the envelope is too large: expected at most {most} bytes, which hold any message of limits.publish-bytes; \
             /publish/raw takes a message as it is"
        );
        Self::new(413, "too-large", message).with("most_bytes", most)
    }

    /// Adds a member for programs.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.details.insert(name.to_owned(), value.into());
        self
    }

    /// Adds a header field.
    pub(super) fn field(mut self, name: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    /// Returns it as JSON: `error`, `message` and details.
    pub(crate) fn into_json(self) -> Value {
        let mut body = json!({ "error": self.name, "message": self.message });
        if let Value::Object(body) = &mut body {
            body.extend(self.details);
        }
        body
    }

    /// Names the place of a mistake before the mistake.
    pub(crate) fn at(mut self, place: &str) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    fn into_reply(mut self) -> Reply {
        let (status, fields) = (self.status, std::mem::take(&mut self.fields));
        Reply { fields, ..Reply::new(status, JSON_TYPE, self.into_json().to_string().into_bytes()) }
    }

    /// Sends it as the answer.
    pub(crate) async fn send(self, exchange: &mut Exchange<'_>) -> Result<(), Error> {
        send(exchange, Err(self.into())).await
    }
}

impl From<PublishError> for Problem {
    fn from(error: PublishError) -> Self {
        let overloaded = match error {
            PublishError::Overloaded(overloaded) => overloaded,
            PublishError::NotStored(why) => {
                let text = why.to_string();
                return match why {
                    StoreError::Unreached => Problem::new(503, "history-unreached", text).field("Retry-After", "1"),
                    StoreError::Unconfirmed => Problem::new(503, "unconfirmed", text),
                    StoreError::TooLarge => Problem::new(413, "too-large", text),
                };
            }
        };
        overloaded.into()
    }
}

impl From<Overloaded> for Problem {
    fn from(overloaded: Overloaded) -> Self {
        Problem::new(429, "overloaded", overloaded.to_string())
            .with("queued_bytes", overloaded.queued)
            .with("most_bytes", overloaded.most)
            .field("Retry-After", "1")
    }
}

/// Checks whether a request may use the API of backends and operators.
///
/// Pages of another origin may not, nor pages whose name may have been rebound to this host.
///
/// # Errors
/// 403 to a request that may not.
pub(crate) fn check_page(plan: &Plan, serves: Serves, exchange: &Exchange<'_>) -> Result<(), Problem> {
    let head = &exchange.head;
    if page::is_foreign(head) {
        let message =
            "a page of another origin asks (Origin, Sec-Fetch-Site): expected a backend or an operator, no browser";
        return Err(Problem::new(403, "forbidden-origin", message));
    }
    // DNS rebinding does not help a page to the token.
    if plan.token.is_some() {
        return Ok(());
    }
    let came_to_loopback = || exchange.local().is_some_and(|address| address.ip().to_canonical().is_loopback());
    if serves == Serves::Admin && !page::names_loopback(head) && came_to_loopback() {
        let message =
            "this listener is for this machine: expected localhost or a loopback address in Host, or a token (auth)";
        return Err(Problem::new(403, "forbidden-host", message));
    }
    if page::is_from_page(head) && !page::names_address(head) {
        let message =
            "a page asks by a name, which could be made to lead here: expected an address in Host, or a token (auth)";
        return Err(Problem::new(403, "forbidden-host", message));
    }
    Ok(())
}

/// Checks the hub's token, if the hub has one.
///
/// # Errors
/// 401 to a request without it.
pub(crate) fn authorize(plan: &Plan, exchange: &Exchange<'_>) -> Result<(), Problem> {
    let Some(token) = &plan.token else { return Ok(()) };
    let given = exchange.head.headers.get("Authorization").and_then(|value| {
        let (scheme, token) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
    });
    if given.is_some_and(|given| is_same(given, token.reveal().as_bytes())) {
        return Ok(());
    }
    let message = "this takes the hub's token: expected a header `Authorization: Bearer TOKEN`";
    Err(Problem::new(401, "unauthorized", message).field("WWW-Authenticate", "Bearer realm=\"oroshi push\""))
}

/// Reads a message, which is the request's body.
///
/// # Errors
/// 413 to a client that sends more than `most` bytes; [`Failure::Broken`] where the body ends early.
pub(crate) async fn body(exchange: &mut Exchange<'_>, most: u64) -> Result<Bytes, Failure> {
    body_or(exchange, most, Problem::too_large).await
}

/// Reads the request's body, with an answer to a client that sends more than `most` bytes.
///
/// # Errors
/// As [`body`], with this answer.
pub(crate) async fn body_or(
    exchange: &mut Exchange<'_>,
    most: u64,
    too_large: fn(u64) -> Problem,
) -> Result<Bytes, Failure> {
    let announced = match exchange.head.framing {
        Framing::None => return Ok(Bytes::new()),
        Framing::Length(length) if length > most => return Err(too_large(most).into()),
        Framing::Length(length) => length,
        _ => 0,
    };
    let Some(first) = exchange.body.chunk().await? else { return Ok(Bytes::new()) };
    if first.len() as u64 == announced {
        return Ok(Bytes::copy_from_slice(first));
    }
    // The announced length may be a lie, so it reserves little.
    let mut whole = BytesMut::with_capacity(announced.min(64 * 1024) as usize);
    whole.extend_from_slice(first);
    while let Some(piece) = exchange.body.chunk().await? {
        if (whole.len() + piece.len()) as u64 > most {
            return Err(too_large(most).into());
        }
        whole.extend_from_slice(piece);
    }
    if whole.len() as u64 > most {
        return Err(too_large(most).into());
    }
    Ok(whole.freeze())
}
