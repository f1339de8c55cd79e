//! `GET /poll`: the messages of a session without a connection of its own.

use std::rc::Rc;

use oroshi_http1::RequestHead;
use oroshi_server::{Error, Exchange};
use serde_json::json;

use crate::http::answer::{JSON_TYPE, Problem};
use crate::http::{origin, query};
use crate::hub::Hub;
use crate::hub::opening::Opened;
use crate::identity::unix_time;
use crate::plan::Origins;
use crate::session::info::PollError;

/// What the client of a request learns that would have to wait for other nodes with too many others.
pub(super) const CROWDED: &str = "too many requests wait for other nodes: ask again in a second";

/// Answers the request that opened a polling session, with what the client needs to poll.
pub(crate) async fn begin(hub: &Rc<Hub>, exchange: &mut Exchange<'_>, opened: Opened<'_>) -> Result<(), Error> {
    let Some(key) = opened.key() else { return Ok(()) };
    let channels = opened.channels();
    let token = channels.as_ref().map_or_else(crate::secrets::key, |(_, token)| token.to_string());
    if !opened.establish_polling(&token).await {
        let refused = Problem::new(403, "refused", "the backend did not agree");
        return refused.for_page(&hub.plan().origins, &exchange.head).send(exchange).await;
    }
    let mut body = json!({ "session": &*key, "UUID": &*key, "token": token, "next": 0 });
    if let Some((client, _)) = channels {
        body["client"] = json!(client);
    }
    if let Some(expires) = opened.expires() {
        body["expires_in"] = json!(expires.saturating_sub(unix_time()));
        if let Some(user) = opened.user() {
            body["user"] = json!(user);
        }
    }
    answer_json(hub, exchange, &body.to_string()).await?;
    opened.keep();
    Ok(())
}

/// `GET /poll?session=KEY&token=TOKEN&after=N`: returns the messages after batch N, as soon as there are any.
pub(crate) async fn answer(hub: &Rc<Hub>, exchange: &mut Exchange<'_>) -> Result<(), Error> {
    let (head, origins) = (exchange.head, &hub.plan().origins);
    let PollRequest { key, token, after } = match PollRequest::of(origins, &head) {
        Ok(request) => request,
        Err(problem) => return problem.for_page(origins, &head).send(exchange).await,
    };
    let problem = match hub.poll(&key, token, after).await {
        Ok(body) => return answer_json(hub, exchange, &body).await,
        Err(PollError::Unknown) => {
            Problem::new(404, "unknown-session", "no session has this key and token: connect again")
        }
        Err(PollError::Unreached) => {
            let message = "another node may have the session, and does not answer: poll again in a second";
            Problem::new(503, "nodes-unreached", message).field("Retry-After", "1")
        }
        Err(PollError::Crowded) => Problem::busy(CROWDED),
        Err(PollError::TooLarge) => {
            let message = "the session is on another node, and the messages that wait for it do not fit into one of \
                 NATS (its max_payload): poll that node";
            Problem::new(503, "answer-too-large", message)
        }
        Err(PollError::Gone) => Problem::new(410, "ended", "the session has ended: connect again"),
        Err(PollError::Batch(next)) => {
            let message = format!("after={after}: expected {next}, which `next` was in the last answer");
            Problem::new(409, "wrong-batch", message).with("next", next)
        }
    };
    problem.for_page(origins, &head).send(exchange).await
}

/// The query of a poll.
struct PollRequest {
    key: String,
    token: String,
    /// The last batch that the client has.
    after: u64,
}

impl PollRequest {
    /// Reads a request, and checks that its page may poll.
    fn of(origins: &Origins, head: &RequestHead<'_>) -> Result<Self, Problem> {
        if head.method != "GET" {
            return Err(Problem::method(head.method, "GET, OPTIONS"));
        }
        if !origin::may_connect(origins, head) {
            return Err(origin::forbidden());
        }
        let (mut key, mut token, mut after) = (None, None, 0);
        for pair in query::pairs(query::split(head.target).1) {
            let (name, value) = pair?;
            match &*name {
                "session" => key = Some(value.into_owned()),
                "token" => token = Some(value.into_owned()),
                "after" => {
                    let number = value.parse();
                    after = number.map_err(|_| {
                        Problem::bad(format!("after={value}: expected the number that `next` was in the last answer"))
                    })?;
                }
                _ => return Err(query::unknown(&name, &["session", "token", "after"])),
            }
        }
        match (key, token) {
            (Some(key), Some(token)) => Ok(PollRequest { key, token, after }),
            _ => Err(Problem::bad(
                "session and token are needed: they stand in the answer to connecting with transport=poll",
            )),
        }
    }
}

async fn answer_json(hub: &Hub, exchange: &mut Exchange<'_>, body: &str) -> Result<(), Error> {
    let head = exchange.head;
    let mut fields = vec![("Content-Type", JSON_TYPE.as_bytes()), ("Cache-Control", &b"no-store"[..])];
    fields.extend(origin::fields(&hub.plan().origins, &head));
    exchange.reply.send(200, fields, body.as_bytes()).await
}
