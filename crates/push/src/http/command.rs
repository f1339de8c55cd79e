//! `POST /command`: commands of a session whose transport carries none.

use std::rc::Rc;

use oroshi_http1::RequestHead;
use oroshi_server::{Error, Exchange};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::http::answer::{Failure, JSON_TYPE, Problem, body_or};
use crate::http::poll::CROWDED;
use crate::http::{origin, query};
use crate::hub::Hub;
use crate::session::info::PollError;

/// The most commands in a request.
const MOST_COMMANDS: usize = 100;

/// `POST /command?session=KEY&token=TOKEN`: carries out one command, or an array of them.
pub(crate) async fn answer(hub: &Rc<Hub>, exchange: &mut Exchange<'_>) -> Result<(), Error> {
    let (head, origins) = (exchange.head, &hub.plan().origins);
    let problem = match perform(hub, exchange).await {
        Ok(answers) => {
            let mut fields = vec![("Content-Type", JSON_TYPE.as_bytes()), ("Cache-Control", &b"no-store"[..])];
            fields.extend(origin::fields(origins, &head));
            return exchange.reply.send(200, fields, answers.to_string().as_bytes()).await;
        }
        Err(Failure::Problem(problem)) => problem,
        Err(Failure::Broken(error)) => return Err(error),
    };
    problem.for_page(origins, &head).send(exchange).await
}

async fn perform(hub: &Rc<Hub>, exchange: &mut Exchange<'_>) -> Result<Value, Failure> {
    let (key, token) = session(hub, &exchange.head)?;
    let most = hub.plan().limits.message_bytes as u64;
    let data = body_or(exchange, most, |most| {
        Problem::new(413, "too-large", format!("expected at most {most} bytes (limits.message-bytes)"))
    });
    let data = data.await?;
    let is_list = data.trim_ascii_start().first() == Some(&b'[');
    let commands: Vec<&RawValue> = if is_list {
        let wrong = |error| Problem::bad(format!("the commands cannot be read: {error}"));
        serde_json::from_slice(&data).map_err(wrong)?
    } else {
        let wrong = |error| Problem::bad(format!("the command cannot be read: {error}"));
        vec![serde_json::from_slice(&data).map_err(wrong)?]
    };
    if commands.is_empty() || commands.len() > MOST_COMMANDS {
        return Err(Problem::bad(format!("expected 1 to {MOST_COMMANDS} commands")).into());
    }
    let commands = commands.into_iter().map(|command| command.get().into()).collect();
    let answers = match hub.commands(&key, token.into(), commands).await {
        Ok(answers) => answers,
        Err(PollError::Unreached) => {
            let message = "another node may have the session, and does not answer: nobody knows what was carried out";
            return Err(Problem::new(503, "nodes-unreached", message).into());
        }
        Err(PollError::Crowded) => return Err(Problem::busy(CROWDED).into()),
        Err(PollError::TooLarge | PollError::Gone | PollError::Batch(_)) => {
            let message = "the session is on another node, which has carried out the commands, and its answers do not \
                 fit into a message of NATS (its max_payload)";
            return Err(Problem::new(503, "answer-too-large", message).into());
        }
        Err(PollError::Unknown) => {
            let message = "no session has this key and token: connect again";
            return Err(Problem::new(404, "unknown-session", message).into());
        }
    };
    Ok(if is_list { answers.into() } else { answers.into_iter().next().unwrap_or_default() })
}

/// Returns the session's key and token, if the request may come from its page.
fn session(hub: &Hub, head: &RequestHead<'_>) -> Result<(String, String), Problem> {
    if head.method != "POST" {
        return Err(Problem::method(head.method, "POST, OPTIONS"));
    }
    if !origin::may_connect(&hub.plan().origins, head) {
        return Err(origin::forbidden());
    }
    let (mut key, mut token) = (None, None);
    for pair in query::pairs(query::split(head.target).1) {
        let (name, value) = pair?;
        match &*name {
            "session" => key = Some(value.into_owned()),
            "token" => token = Some(value.into_owned()),
            _ => return Err(query::unknown(&name, &["session", "token"])),
        }
    }
    match (key, token) {
        (Some(key), Some(token)) => Ok((key, token)),
        _ => Err(Problem::bad("session and token are needed: they stand in the first frame")),
    }
}
