//! Sessions without a connection of their own: the client asks, and waits a while for an answer.
//!
//! What was handed out is kept until the next question says that it arrived, so a lost answer loses nothing.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use oroshi_http1::RequestHead;
use oroshi_server::{Error, Exchange};
use serde_json::json;
use tokio::time::timeout;

use crate::directory::Place;
use crate::http::answer::{JSON_TYPE, Problem, is_same};
use crate::http::connect::Opened;
use crate::http::query;
use crate::hub::Hub;
use crate::message::Framing;
use crate::origin;
use crate::plan::Origins;
use crate::session::{Reason, Session, State};

/// What a session that polls knows beyond others.
#[derive(Debug)]
pub(crate) struct Polling {
    /// Shows that whoever asks is who connected: keys are known to backends and logs.
    token: Box<str>,
    /// How many batches were handed out.
    batch: u64,
    /// How many questions were asked.
    turn: u64,
    /// Whether one waits for an answer.
    pub(crate) waits: bool,
}

/// Why there are no messages to be had.
enum Refused {
    /// No such session, or a wrong token: which of them is nobody's business.
    Unknown,
    /// The session has ended.
    Gone,
    /// The client has mixed up its batches.
    Batch(u64),
}

/// Answers the request that opened a session, with what the client needs to ask on.
pub(crate) async fn begin(hub: &Rc<Hub>, exchange: &mut Exchange<'_>, opened: Opened<'_>) -> Result<(), Error> {
    let Some(session) = opened.session().cloned() else { return Ok(()) };
    let token = crate::random::key();
    let polling = Polling { token: token.as_str().into(), batch: 0, turn: 0, waits: false };
    session.rare(|rare| rare.poll = Some(polling));
    if hub.plan().callbacks.establish.is_some() && !hub.callbacks.establish(&session.key).await {
        session.tells_close.set(false);
        let refused = Problem::new(403, "refused", "the backend did not agree");
        return refused.for_page(&hub.plan().origins, &exchange.head).send(exchange).await;
    }
    let key = &*session.key;
    let body = json!({ "session": key, "UUID": key, "token": token, "next": 0 });
    answer_json(hub, exchange, &body.to_string()).await?;
    opened.keep();
    Ok(())
}

/// `GET /poll?session=KEY&token=TOKEN&after=N`: what came after batch N, as soon as there is any.
pub(crate) async fn answer(hub: &Rc<Hub>, exchange: &mut Exchange<'_>) -> Result<(), Error> {
    let (head, origins) = (exchange.head, &hub.plan().origins);
    let (key, token, after) = match question(origins, &head) {
        Ok(question) => question,
        Err(problem) => return problem.for_page(origins, &head).send(exchange).await,
    };
    let taken = match hub.node.directory.find(&key) {
        None => Err(Refused::Unknown),
        Some(place) if place.core == hub.core => take(hub, place, &token, after).await,
        Some(place) => {
            let asked = hub.node.ask(place.core, move |hub| async move { take(&hub, place, &token, after).await });
            asked.await.unwrap_or(Err(Refused::Gone))
        }
    };
    let problem = match taken {
        Ok(body) => return answer_json(hub, exchange, &body).await,
        Err(Refused::Unknown) => {
            Problem::new(404, "unknown-session", "no session has this key and token: connect again")
        }
        Err(Refused::Gone) => Problem::new(410, "ended", "the session has ended: connect again"),
        Err(Refused::Batch(next)) => {
            let message = format!("after={after}: expected {next}, which `next` was in the last answer");
            Problem::new(409, "wrong-batch", message).with("next", next)
        }
    };
    problem.for_page(origins, &head).send(exchange).await
}

/// Key, token and batch.
fn question(origins: &Origins, head: &RequestHead<'_>) -> Result<(String, String, u64), Problem> {
    if head.method != "GET" {
        return Err(Problem::method(head.method, "GET, OPTIONS"));
    }
    if !origin::may_connect(origins, head) {
        return Err(Problem::new(403, "forbidden-origin", "pages of this Origin may not connect here: see `origins`"));
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
        (Some(key), Some(token)) => Ok((key, token, after)),
        _ => Err(Problem::bad(
            "session and token are needed: they stand in the answer to connecting with transport=poll",
        )),
    }
}

async fn answer_json(hub: &Hub, exchange: &mut Exchange<'_>, body: &str) -> Result<(), Error> {
    let head = exchange.head;
    let mut fields = vec![("Content-Type", JSON_TYPE.as_bytes()), ("Cache-Control", &b"no-store"[..])];
    fields.extend(origin::fields(&hub.plan().origins, &head));
    exchange.reply.send(200, fields, body.as_bytes()).await
}

/// Waits for messages on the session's own core, and takes them.
async fn take(hub: &Rc<Hub>, place: Place, token: &str, after: u64) -> Result<String, Refused> {
    let session = hub.at(place).filter(|session| session.framing == Framing::Poll).ok_or(Refused::Unknown)?;
    let (turn, batch) = session.rare(|rare| {
        let polling = rare
            .poll
            .as_mut()
            .filter(|polling| is_same(polling.token.as_bytes(), token.as_bytes()))
            .ok_or(Refused::Unknown)?;
        polling.turn += 1;
        Ok((polling.turn, polling.batch))
    })?;
    // Whoever asked before, and was given up by its client, has nothing to wait for any more.
    session.wake();
    session.times.heard.set(hub.now());
    if after.checked_add(1) == Some(batch) {
        let again = hand_out(hub, &session, true);
        end_with_answer(hub, &session);
        return Ok(again);
    }
    if after != batch {
        return Err(Refused::Batch(batch));
    }
    let acknowledged = hand_out(hub, &session, false);
    if session.outbox.borrow().is_empty() {
        // It has everything that was for it.
        if session.state.get() == State::Ending {
            session.cut_off(Reason::Client);
        } else if hub.draining.get() {
            hub.remove(&session, Reason::Drain);
        }
    }
    let waited = if session.outbox.borrow().is_empty() {
        let _waiting = Waiting::new(hub, &session);
        let wait = poll_fn(|context| {
            session.wake_by(context.waker());
            let superseded = session.rare(|rare| rare.poll.as_ref().is_some_and(|polling| polling.turn != turn));
            let over = !session.is_open() || superseded || !session.outbox.borrow().is_empty();
            if over { Poll::Ready(superseded) } else { Poll::Pending }
        });
        if timeout(hub.plan().limits.poll_wait, wait).await == Ok(true) {
            return Ok(json!({ "messages": [], "next": after }).to_string());
        }
        hand_out(hub, &session, false)
    } else {
        acknowledged
    };
    if matches!(session.state.get(), State::Over(_)) {
        return Err(Refused::Gone);
    }
    end_with_answer(hub, &session);
    Ok(waited)
}

/// While the hub ends, so does each connection with its answer: nobody can come to acknowledge what is in it, or to ask for more.
fn end_with_answer(hub: &Rc<Hub>, session: &Rc<Session>) {
    if hub.draining.get() && !session.outbox.borrow().is_empty() {
        hub.remove(session, Reason::Drain);
    }
}

/// The messages that wait, as an answer.
fn hand_out(hub: &Hub, session: &Session, again: bool) -> String {
    let mut outbox = session.outbox.borrow_mut();
    let before = outbox.bytes();
    let messages: Vec<String> = outbox
        .hand_out(again)
        .map(|message| String::from_utf8_lossy(message.frame(Framing::Poll)).into_owned())
        .collect();
    hub.unqueue(before, outbox.bytes());
    let next = session.rare(|rare| {
        let Some(polling) = &mut rare.poll else { return 0 };
        if !again && !messages.is_empty() {
            polling.batch += 1;
        }
        polling.batch
    });
    format!("{{\"messages\":[{}],\"next\":{next}}}", messages.join(","))
}

/// Marks a session as being waited for, for as long as this lives.
struct Waiting<'h> {
    hub: &'h Hub,
    session: Rc<Session>,
}

impl<'h> Waiting<'h> {
    fn new(hub: &'h Hub, session: &Rc<Session>) -> Self {
        Self::set(session, true);
        Waiting { hub, session: Rc::clone(session) }
    }

    fn set(session: &Session, waits: bool) {
        session.rare(|rare| {
            if let Some(polling) = &mut rare.poll {
                polling.waits = waits;
            }
        });
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        Self::set(&self.session, false);
        self.session.times.heard.set(self.hub.now());
    }
}
