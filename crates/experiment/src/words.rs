//! Descriptions of loads.

use oroshi_bench::{Draft, Load, push};
use oroshi_report::words::push::with_article;
use oroshi_report::words::rhythm;
use oroshi_words::units;

/// Describes a load: `10 connections, closed loop, 1s after 250ms of warm-up`. `share`: the rate is this share of the
/// slowest set-up's capacity. Header values and bodies are not shown, because they may be secret.
#[must_use]
pub fn load_words(draft: &Draft, share: Option<f64>) -> String {
    let mut parts = vec![units::plural(draft.connections as u64, "connection")];
    if draft.http2.is_some() {
        parts[0] += " of HTTP/2";
    }
    if draft.streams > 1 {
        parts[0] += &format!(" with {} streams each", units::count(draft.streams as u64));
    }
    match draft.requests_per_connection {
        Some(1) => parts.push("one per request".into()),
        Some(n) => parts.push(format!("each for {}", units::plural(n, "request"))),
        None => {}
    }
    parts.push(match share {
        Some(share) => format!("open loop at {} of what the slowest can", units::percent(share)),
        None => rhythm(&draft.load),
    });
    if draft.pipeline > 1 {
        parts.push(format!("{} in flight on each", units::count(draft.pipeline as u64)));
    }
    if !draft.gather.is_zero() {
        parts.push(format!("gathering for {}", units::length(draft.gather.as_secs_f64())));
    }
    if draft.hold > 0 {
        parts.push(format!("{} idle ones beside them", units::count(draft.hold as u64)));
    }
    if draft.method != "GET" || !draft.body.is_empty() {
        let body = if draft.body.is_empty() {
            String::new()
        } else {
            format!(" with {}", units::bytes(draft.body.len() as f64))
        };
        parts.push(draft.method.clone() + &body);
    }
    if !draft.headers.is_empty() {
        let names: Vec<&str> = draft.headers.iter().map(|header| header.0.as_str()).collect();
        parts.push(format!("with {}", names.join(", ")));
    }
    if let Some(n) = draft.requests {
        parts.push(units::plural(n, "request"));
    }
    if let Some(duration) = draft.duration {
        let or = if draft.requests.is_some() { "or " } else { "" };
        parts.push(format!("{or}{}", units::length(duration.as_secs_f64())));
    }
    if let (Some(last), false) = (parts.last_mut(), draft.warmup.is_zero()) {
        *last += &format!(" after {} of warm-up", units::length(draft.warmup.as_secs_f64()));
    }
    parts.join(", ")
}

/// Describes the load of a script: `shop.lua, 20 users, 30s`. `users`: whether their number was given.
#[must_use]
pub fn script_words(draft: &Draft, script: &str, users: bool) -> String {
    let mut parts = vec![script.to_owned()];
    parts.extend(users.then(|| units::plural(draft.connections as u64, "user")));
    if draft.load != Load::Closed {
        parts.push(rhythm(&draft.load).replace("open loop", "journeys by timetable"));
    }
    parts.extend(draft.duration.map(|duration| units::length(duration.as_secs_f64())));
    if let (Some(last), false) = (parts.last_mut(), draft.warmup.is_zero()) {
        *last += &format!(" after {} of warm-up", units::length(draft.warmup.as_secs_f64()));
    }
    parts.join(", ")
}

/// Describes a load of subscriptions: `1,000 subscriptions (ws), 16 publishers in a closed loop, 10s`.
#[must_use]
pub fn subscribe_words(draft: &push::Draft) -> String {
    let connections = units::plural(draft.base.connections as u64, "subscription");
    let mut parts = vec![format!("{connections} ({})", draft.mode.name())];
    if let Some(publish) = &draft.publish {
        let publishers = units::plural(publish.publishers as u64, "publisher");
        parts.push(format!("{publishers} in {}", with_article(&rhythm(&draft.base.load))));
    }
    if let Some(publish_to) = &draft.publish_to {
        parts.push(format!("{}/s to one each", units::number(publish_to.rate)));
    }
    if let Some(n) = draft.base.requests {
        parts.push(units::plural(n, "message"));
    }
    if let Some(duration) = draft.base.duration {
        parts.push(units::length(duration.as_secs_f64()));
    }
    if let (Some(last), false) = (parts.last_mut(), draft.base.warmup.is_zero()) {
        *last += &format!(" after {} of warm-up", units::length(draft.base.warmup.as_secs_f64()));
    }
    parts.join(", ")
}
