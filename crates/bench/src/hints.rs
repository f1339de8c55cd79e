//! Hints for a user who expected other responses: redirects, a TLS port.

use oroshi_net::Scheme;

use crate::failure::Failure;
use crate::first::FirstResponse;
use crate::plan::Plan;
use crate::record::Record;

/// Sentences for the report, each with what to do.
pub(crate) fn of(record: &Record, plan: &Plan, first: &FirstResponse) -> Vec<String> {
    redirects(record, first).into_iter().chain(tls(record, plan, first)).collect()
}

/// Warns if every response was a redirect: the user meant another URL.
fn redirects(record: &Record, first: &FirstResponse) -> Option<String> {
    let is_redirect = |status: u16| matches!(status, 301 | 302 | 303 | 307 | 308);
    let completed = record.requests.completed;
    let each: Vec<String> = record
        .statuses
        .iter()
        .filter(|(status, _)| is_redirect(**status))
        .map(|(status, _)| status.to_string())
        .collect();
    if completed == 0 || each.is_empty() || record.statuses.keys().any(|status| !is_redirect(*status)) {
        return None;
    }
    let to = match first.location.get().map(String::as_str) {
        None | Some("") => String::new(),
        Some(to) => format!("; the first led to {to}"),
    };
    Some(format!(
        "every answer was a redirect ({}), and none was followed: these figures are the redirect's{to}; use the URL \
         that is meant",
        each.join(", ")
    ))
}

/// Warns if the plan seems to send plain HTTP to a port for TLS.
fn tls(record: &Record, plan: &Plan, first: &FirstResponse) -> Option<String> {
    if plan.origins.iter().any(|origin| origin.scheme != Scheme::Http) {
        return None;
    }
    let of = |failure| record.failures.get(&failure).copied().unwrap_or(0);
    let refused = record.statuses.len() == 1 && record.statuses.contains_key(&400);
    let complaint = first.complaint.get().map(|text| String::from_utf8_lossy(text).to_ascii_lowercase());
    let said_so =
        refused && complaint.is_some_and(|text| text.contains("https") || text.contains("tls") || text.contains("ssl"));
    // A server that waits for a handshake closes without a word, or says so in a TLS record.
    let closed = of(Failure::ReadEof) + of(Failure::ReadReset);
    let silent = record.requests.completed == 0 && closed > 0 && of(Failure::Parse) == 0;
    if said_so {
        Some("the server says that this port is for TLS: use https:// in the URL".into())
    } else if silent {
        Some(
            "the server closed every connection without an answer: if it speaks TLS there, use https:// in the URL"
                .into(),
        )
    } else {
        None
    }
}
