//! What the answers of the API have in common: their form, errors, who may ask, bodies.

use bytes::{Bytes, BytesMut};
use oroshi_http1::{Framing, RequestHead};
use oroshi_server::{Error, Exchange, page};
use oroshi_websocket::handshake::Refusal;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::origin;
use crate::plan::{Origins, Paths, Plan, Serves};
use crate::publish::Overloaded;

/// The type of every JSON answer.
pub(crate) const JSON: (&str, &[u8]) = ("Content-Type", b"application/json; charset=utf-8");

/// An answer that says what is wrong: `{"error": NAME, "message": SENTENCE, ...}`.
#[derive(Debug)]
pub(crate) struct Problem {
    status: u16,
    /// A stable name in kebab case.
    name: &'static str,
    /// What is wrong, and what was expected.
    message: String,
    /// More, for programs.
    details: Map<String, Value>,
    fields: Vec<(&'static str, String)>,
}

impl Problem {
    pub(crate) fn new(status: u16, name: &'static str, message: impl Into<String>) -> Self {
        Problem { status, name, message: message.into(), details: Map::new(), fields: Vec::new() }
    }

    /// 400: something in the request is not as it must be.
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

    /// 404: nobody has this key.
    pub(crate) fn no_session(key: &str) -> Self {
        Self::new(404, "unknown-session", format!("no session has the key `{key}`")).with("session", key)
    }

    /// 405, with what would have been allowed.
    pub(crate) fn method(method: &str, allowed: &'static str) -> Self {
        let message = format!("{method} is not allowed here: expected {allowed}");
        Self::new(405, "method-not-allowed", message).with("allowed", allowed).field("Allow", allowed)
    }

    /// 426, or 400: the request does not open a WebSocket. kuiperbelt says 400 to all of them.
    pub(crate) fn handshake(refusal: Refusal, as_kuiperbelt: bool) -> Self {
        let status = if as_kuiperbelt { 400 } else { refusal.status() };
        let problem = Self::new(status, "bad-handshake", refusal.to_string());
        match status {
            426 => problem.field("Upgrade", "websocket").field("Sec-WebSocket-Version", "13"),
            _ => problem,
        }
    }

    /// 503: another time.
    pub(crate) fn busy(message: &str) -> Self {
        Self::new(503, "busy", message).field("Retry-After", "1")
    }

    /// 413: a message has more than `most` bytes.
    pub(crate) fn too_large(most: u64) -> Self {
        let message = format!("the message is too large: expected at most {most} bytes (limits.publish-bytes)");
        Self::new(413, "too-large", message).with("most_bytes", most)
    }

    /// 413: what a message comes in has more than `most` bytes.
    pub(crate) fn envelope_too_large(most: u64) -> Self {
        let message = format!(
            "the envelope is too large: expected at most {most} bytes, which hold any message of limits.publish-bytes; \
             /publish/raw takes a message as it is"
        );
        Self::new(413, "too-large", message).with("most_bytes", most)
    }

    /// To be read by the page that asks, if one does that may connect.
    pub(crate) fn for_page(self, origins: &Origins, head: &RequestHead<'_>) -> Self {
        let fields = origin::fields(origins, head);
        fields.fold(self, |problem, (name, value)| problem.field(name, String::from_utf8_lossy(value)))
    }

    /// Adds something for programs.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.details.insert(name.to_owned(), value.into());
        self
    }

    fn field(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    /// Answers with it.
    pub(crate) async fn send(self, exchange: &mut Exchange<'_>) -> Result<(), Error> {
        let mut body = json!({ "error": self.name, "message": self.message });
        if let Value::Object(body) = &mut body {
            body.extend(self.details);
        }
        let fields = self.fields.iter().map(|(name, value)| (*name, value.as_bytes()));
        exchange.reply.send(self.status, [JSON].into_iter().chain(fields), body.to_string().as_bytes()).await
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

/// Answers with JSON.
pub(crate) async fn json(exchange: &mut Exchange<'_>, status: u16, value: &impl Serialize) -> Result<(), Error> {
    json_with(exchange, status, &[], value).await
}

/// Answers with JSON, and further fields.
pub(crate) async fn json_with(
    exchange: &mut Exchange<'_>,
    status: u16,
    fields: &[(&str, &[u8])],
    value: &impl Serialize,
) -> Result<(), Error> {
    let body = serde_json::to_vec(value).map_err(|error| Error::Handler(Box::new(error)))?;
    exchange.reply.send(status, [JSON].into_iter().chain(fields.iter().copied()), &body).await
}

/// Answers 200, or with what is wrong.
pub(crate) async fn outcome(exchange: &mut Exchange<'_>, result: Result<impl Serialize, Problem>) -> Result<(), Error> {
    match result {
        Ok(value) => json(exchange, 200, &value).await,
        Err(problem) => problem.send(exchange).await,
    }
}

/// Sees whether a request may give orders, or ask what is for operators: no page of another origin may, nor one whose name was made to lead
/// here.
///
/// # Errors
/// The answer to one that may not.
pub(crate) fn may_order(plan: &Plan, serves: Serves, exchange: &Exchange<'_>) -> Result<(), Problem> {
    let head = &exchange.head;
    if page::is_foreign(head) {
        let message =
            "a page of another origin asks (Origin, Sec-Fetch-Site): expected a backend or an operator, no browser";
        return Err(Problem::new(403, "forbidden-origin", message));
    }
    // Whoever knows a token was not led here by a name.
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

/// Whether the request may do what takes the token.
pub(crate) fn is_authorized(plan: &Plan, exchange: &Exchange<'_>) -> bool {
    let Some(token) = &plan.token else { return true };
    let given = exchange.head.headers.get("Authorization").and_then(|value| {
        let (scheme, token) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
    });
    given.is_some_and(|given| is_same(given, token.reveal().as_bytes()))
}

/// Answers 401.
pub(crate) async fn unauthorized(exchange: &mut Exchange<'_>) -> Result<(), Error> {
    let message = "this takes the hub's token: expected a header `Authorization: Bearer TOKEN`";
    let problem = Problem::new(401, "unauthorized", message).field("WWW-Authenticate", "Bearer realm=\"oroshi push\"");
    problem.send(exchange).await
}

/// Whether two byte strings are the same; how long that takes says nothing about where they differ.
pub(crate) fn is_same(a: &[u8], b: &[u8]) -> bool {
    let differences = a.iter().zip(b).fold(0, |differences, (a, b)| differences | (a ^ b));
    // Not to be optimised into an early end.
    std::hint::black_box(differences) == 0 && a.len() == b.len()
}

/// Reads a message, which is the request's body; the inner error is for a client that sends more than `most` bytes.
pub(crate) async fn body(exchange: &mut Exchange<'_>, most: u64) -> Result<Result<Bytes, Problem>, Error> {
    body_or(exchange, most, Problem::too_large).await
}

/// Reads the request's body, with an answer to a client that sends more than `most` bytes.
pub(crate) async fn body_or(
    exchange: &mut Exchange<'_>,
    most: u64,
    too_large: fn(u64) -> Problem,
) -> Result<Result<Bytes, Problem>, Error> {
    let announced = match exchange.head.framing {
        Framing::None => return Ok(Ok(Bytes::new())),
        Framing::Length(length) if length > most => return Ok(Err(too_large(most))),
        Framing::Length(length) => length,
        _ => 0,
    };
    let Some(first) = exchange.body.chunk().await? else { return Ok(Ok(Bytes::new())) };
    if first.len() as u64 == announced {
        return Ok(Ok(Bytes::copy_from_slice(first)));
    }
    // What is announced is believed as far as it costs little.
    let mut whole = BytesMut::with_capacity(announced.min(64 * 1024) as usize);
    whole.extend_from_slice(first);
    while let Some(piece) = exchange.body.chunk().await? {
        if (whole.len() + piece.len()) as u64 > most {
            return Ok(Err(too_large(most)));
        }
        whole.extend_from_slice(piece);
    }
    if whole.len() as u64 > most {
        return Ok(Err(too_large(most)));
    }
    Ok(Ok(whole.freeze()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_the_same_or_not() {
        assert!(is_same(b"", b"") && is_same(b"abc", b"abc"));
        for (a, b) in [("abc", "abd"), ("abc", "ab"), ("ab", "abc"), ("", "a"), ("a", "")] {
            assert!(!is_same(a.as_bytes(), b.as_bytes()), "{a} {b}");
        }
    }
}
