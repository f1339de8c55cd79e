//! Questions to a running gateway, over its admin address.

use std::io::{self, Write};
use std::process::ExitCode;

use oroshi_client::Client;
use serde_json::Value;

use super::args::Command;
use crate::service::admin_url;

/// The reasons why there was no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// Name an admin address.
    #[error(
        "there is no admin address: expected --admin unix:/run/gate-admin.sock, or [listen] admin in the configuration"
    )]
    Nowhere,
    /// The gateway does not run there, or this user may not connect.
    #[error("cannot ask the gateway at `{address}`: {cause}")]
    Unreachable {
        /// The admin address.
        address: String,
        /// The reason.
        cause: String,
    },
    /// The gateway rejected the question.
    #[error("{0}")]
    Refused(String),
    /// The answer could not be printed.
    #[error("cannot write to standard output")]
    Output(#[source] io::Error),
}

impl AskError {
    /// Whether the command line was wrong.
    pub(crate) fn is_usage(&self) -> bool {
        matches!(self, AskError::Nowhere | AskError::Refused(_))
    }
}

/// Asks a question and prints the answer. `configured` reads the address from the configuration.
pub(super) fn ask<E: From<AskError>>(
    command: &Command,
    admin: Option<&str>,
    configured: impl FnOnce() -> Result<Option<String>, E>,
) -> Result<ExitCode, E> {
    let address = match admin {
        Some(address) => address.to_owned(),
        None => configured()?.ok_or(AskError::Nowhere)?,
    };
    let value = put(command, &address)?;
    let text = match command {
        Command::Explain { .. } => explained(&value),
        Command::Purge { .. } => format!("forgotten: {}\n", value["forgotten"]),
        Command::Status | Command::Seal { .. } => format!("{value:#}\n"),
    };
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(AskError::Output)?;
    Ok(ExitCode::SUCCESS)
}

fn put(command: &Command, address: &str) -> Result<Value, AskError> {
    let unreachable = |cause: String| AskError::Unreachable { address: address.to_owned(), cause };
    let base = admin_url(address);
    let client = Client::builder().build().map_err(|error| unreachable(error.to_string()))?;
    let request = match command {
        // A row is sealed without asking.
        Command::Status | Command::Seal { .. } => client.get(format!("{base}/status")),
        Command::Explain { host, path, method, key } => {
            let mut query = vec![("host", &**host), ("path", path), ("method", method)];
            if let Some(key) = key {
                query.push(("key", key));
            }
            client.get(format!("{base}/explain?{}", written(&query)))
        }
        Command::Purge { key, prefix, all, certificate, lookup, everywhere } => {
            let mut query = Vec::new();
            let mut add = |name, value: &Option<String>| {
                if let Some(value) = value {
                    query.push((name, value.clone()));
                }
            };
            add("key", key);
            add("prefix", prefix);
            add("certificate", certificate);
            add("lookup", lookup);
            add("all", &all.then(|| "1".to_owned()));
            add("everywhere", &everywhere.then(|| "1".to_owned()));
            let query: Vec<(&str, &str)> = query.iter().map(|(name, value)| (*name, &**value)).collect();
            client.post(format!("{base}/purge?{}", written(&query)))
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| unreachable(error.to_string()))?;
    runtime.block_on(async {
        let told = |error: oroshi_client::Error| unreachable(format!("{error} ({})", error.cause()));
        let response = request.send().await.map_err(told)?;
        let status = response.status();
        let text = response.text().await.map_err(told)?;
        let value: Value = serde_json::from_str(&text)
            .map_err(|_| unreachable("the server there is no admin address of a gateway".to_owned()))?;
        if status == 200 {
            Ok(value)
        } else {
            Err(AskError::Refused(value["error"].as_str().unwrap_or(&text).to_owned()))
        }
    })
}

fn written(query: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (name, value) in query {
        if !text.is_empty() {
            text.push('&');
        }
        text.push_str(name);
        text.push('=');
        for byte in value.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                    text.push(char::from(byte));
                }
                _ => text.push_str(&format!("%{byte:02X}")),
            }
        }
    }
    text
}

/// Writes an explanation for people.
fn explained(value: &Value) -> String {
    let mut lines = vec![line("host", text(&value["host"])), line("path", text(&value["path"]))];
    if value["route"].is_null() {
        lines.push(line("route", format!("none: answered {}", value["answer"])));
        return lines.concat();
    }
    lines.push(line("route", text(&value["route"])));
    let script = &value["script"];
    if !script.is_null() {
        let hooks = script["hooks"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let deciding: Vec<&str> = hooks.filter(|hook| matches!(*hook, "on_request" | "on_route")).collect();
        let decides = match deciding.is_empty() {
            true => String::new(),
            false => format!(": {} may decide otherwise than what follows", deciding.join(", ")),
        };
        lines.push(line("script", format!("{} ({}){decides}", text(&script["name"]), text(&script["file"]))));
    }
    for (key, name) in [
        ("upstream", "upstream"),
        ("redirect", "redirect"),
        ("answer", "answered"),
        ("lookup", "look-up"),
        ("key", "key"),
    ] {
        if !value[key].is_null() {
            lines.push(line(name, text(&value[key])));
        }
    }
    if !value["outcome"].is_null() {
        lines.push(outcome(value));
        let tiers = ["memory", "memcached", "sql"].into_iter().filter(|tier| !value["tiers"][tier].is_null());
        lines.extend(tiers.map(|name| tier(name, &value["tiers"][name])));
    }
    lines.extend(value["targets"].as_array().into_iter().flatten().map(target));
    lines.concat()
}

fn line(name: &str, text: String) -> String {
    format!("{name:<10} {text}\n")
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn outcome(value: &Value) -> String {
    let why = value["why"].as_str().map(|why| format!(": {why}")).unwrap_or_default();
    let (outcome, from) = (text(&value["outcome"]), text(&value["tier"]));
    line("outcome", format!("{outcome} from {from}, {} s old, {} s left{why}", value["age_s"], value["ttl_left_s"]))
}

/// Describes what a tier has under the key, and the state of its stores.
fn tier(name: &str, held: &Value) -> String {
    let has = match (&held["has"], &held["invalid"], &held["failed"]) {
        (_, _, failed) if !failed.is_null() => format!("failed: {}", text(failed)),
        (_, invalid, _) if !invalid.is_null() => format!("invalid: {}", text(invalid)),
        (Value::Null, ..) => "nothing".to_owned(),
        (has, ..) => text(has),
    };
    let state = match (&held["servers"], &held["store"]) {
        (Value::Array(servers), _) => {
            let each = servers.iter().map(|server| format!("{} {}", text(&server["server"]), text(&server["breaker"])));
            format!(" (breakers: {})", each.collect::<Vec<_>>().join(", "))
        }
        (_, store) if !store.is_null() => format!(
            " (breaker {}; {} of {} connections busy, {} wait)",
            text(&store["breaker"]),
            store["busy"],
            store["connections"],
            store["waiting"]
        ),
        _ => format!(", {} s old, {} s left, from {}", held["age_s"], held["ttl_left_s"], text(&held["from"])),
    };
    line(&format!("  {name}"), format!("{has}{state}"))
}

fn target(target: &Value) -> String {
    let out = target["ejected_on_threads"].as_u64().unwrap_or(0);
    let state = if out > 0 { format!(", left out on {out} threads") } else { String::new() };
    line(
        "target",
        format!(
            "{} (weight {}): {} open, {} idle, {} wait; {} requests, {} connects{state}",
            text(&target["target"]),
            target["weight"],
            target["open"],
            target["idle"],
            target["queued"],
            target["requests"],
            target["connects"]
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_asked_where_they_are_listened_on() {
        for (address, url) in [
            ("unix:/run/a.sock", "unix:/run/a.sock:"),
            ("/run/a.sock", "unix:/run/a.sock:"),
            ("unix:@a", "unix:@a:"),
            ("127.0.0.1:81", "http://127.0.0.1:81"),
            (":81", "http://127.0.0.1:81"),
            ("http://localhost:81/", "http://localhost:81"),
        ] {
            assert_eq!(admin_url(address), url);
        }
        assert_eq!(written(&[("host", "a b&c"), ("path", "/é")]), "host=a%20b%26c&path=/%C3%A9");
    }
}
