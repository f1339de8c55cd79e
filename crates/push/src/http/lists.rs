//! `GET /sessions` and `GET /groups`: pages of what this node has.

use std::rc::Rc;

use oroshi_server::Exchange;
use serde_json::{Value, json};

use crate::http::answer::{HandlerResult, Problem, Reply};
use crate::http::query;
use crate::hub::Hub;
use crate::hub::lists::PageRequest;

/// The most names on a page, and how many there are unless the request says it.
const MOST: usize = 1000;

/// `GET /sessions`: the keys of sessions.
pub(crate) fn sessions(hub: &Rc<Hub>, exchange: &Exchange<'_>) -> HandlerResult {
    let page = page(exchange)?;
    let keys = hub.session_keys(&page).into_iter().map(|key| (json!(&*key), key));
    reply("sessions", page.limit, keys.collect())
}

/// `GET /groups`: groups and channels with their sizes.
pub(crate) async fn groups(hub: &Rc<Hub>, exchange: &Exchange<'_>) -> HandlerResult {
    let page = page(exchange)?;
    let limit = page.limit;
    let groups = hub.group_page(page).await.into_iter().map(|(name, counts)| {
        let (sessions, subscribers) = (counts.sessions, counts.subscribers);
        (json!({ "group": &*name, "sessions": sessions, "subscribers": subscribers }), name)
    });
    reply("groups", limit, groups.collect())
}

/// `GET /slow`: the sessions with the longest queues.
pub(crate) async fn slow(hub: &Rc<Hub>, exchange: &Exchange<'_>) -> HandlerResult {
    let head = exchange.head;
    if !matches!(head.method, "GET" | "HEAD") {
        return Err(Problem::method(head.method, "GET, HEAD").into());
    }
    let sessions: Vec<Value> = hub
        .slow_sessions()
        .await
        .into_iter()
        .map(|of| {
            json!({
                "key": &*of.key, "transport": of.transport, "queued_messages": of.queued_messages,
                "queued_bytes": of.queued_bytes, "age_seconds": of.age.as_secs_f64(),
            })
        })
        .collect();
    Reply::json(200, &json!({ "sessions": sessions }))
}

/// Answers with a page. One element more than the limit says that there are more.
fn reply(name: &str, limit: usize, mut all: Vec<(Value, std::sync::Arc<str>)>) -> HandlerResult {
    let has_more = all.len() > limit;
    all.truncate(limit);
    let next = all.last().filter(|_| has_more).map(|(_, name)| name.to_string());
    let list: Vec<Value> = all.into_iter().map(|(value, _)| value).collect();
    let mut body = json!({ name: list });
    if let Some(next) = next {
        body["next"] = json!(next);
    }
    Reply::json(200, &body)
}

fn page(exchange: &Exchange<'_>) -> Result<PageRequest, Problem> {
    let head = exchange.head;
    if !matches!(head.method, "GET" | "HEAD") {
        return Err(Problem::method(head.method, "GET, HEAD"));
    }
    let mut page = PageRequest { after: None, prefix: Box::default(), limit: MOST };
    for pair in query::pairs(query::split(head.target).1) {
        let (name, value) = pair?;
        match &*name {
            "after" => page.after = Some((&*value).into()),
            "prefix" => page.prefix = (&*value).into(),
            "limit" => {
                let limit = value.parse().ok().filter(|limit| (1..=MOST).contains(limit));
                let expected = || Problem::bad(format!("limit: `{value}`: expected 1 to {MOST}"));
                page.limit = limit.ok_or_else(expected)?;
            }
            _ => return Err(query::unknown(&name, &["after", "prefix", "limit"])),
        }
    }
    Ok(page)
}
