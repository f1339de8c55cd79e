//! Reads kuiperbelt's configuration: its keys and defaults, and some keys of oroshi beside them.

use std::time::Duration;

use oroshi_config::Table;
use oroshi_config::values::{number, switch, text};
use oroshi_push::{Draft, Listener, Origins, Serves, Transports};
use oroshi_words::units::parse_time;

use super::native;

/// The default port.
const PORT: &str = "9180";

/// With `compat: ekbo`, a time for waits that kuiperbelt does not limit.
const WITHOUT_END: Duration = Duration::from_secs(10 * 365 * 86_400);

/// With `compat: ekbo`, the largest messages from and to clients. kuiperbelt has no limit; its users' messages are
/// smaller.
const MESSAGE_BYTES: usize = 1 << 20;
const PUBLISH_BYTES: u64 = 16 << 20;

/// kuiperbelt's names of oroshi's keys; the first prefix of a key applies.
const NAMES: [(&str, &str); 9] = [
    ("listen", "port"),
    ("paths", "path"),
    ("callbacks.headers", "proxy_set_header"),
    ("callbacks", "callback"),
    ("session-header", "session_header"),
    ("send.timeout", "send_timeout"),
    ("send.strict", "strict_broadcast"),
    ("origins", "origin_policy"),
    ("limits.idle", "idle_timeout"),
];

/// Returns kuiperbelt's name of one of oroshi's keys.
pub(super) fn name_of(key: &str) -> String {
    let rest_of = |ours: &str| key.strip_prefix(ours).filter(|rest| rest.is_empty() || rest.starts_with('.'));
    let renamed = NAMES.iter().find_map(|(ours, theirs)| Some((theirs, rest_of(ours)?)));
    match renamed {
        // kuiperbelt does not distinguish what an address serves.
        Some((&"port", _)) => "port".to_owned(),
        Some((theirs, rest)) => format!("{theirs}{rest}"),
        None => key.to_owned(),
    }
}

/// Sets the defaults of `compat: ekbo`. Keys of the file take precedence.
pub(super) fn habits(draft: &mut Draft) {
    draft.callbacks.timeout = WITHOUT_END;
    draft.callbacks.queue = WITHOUT_END;
    draft.callbacks.retries = 0;
    draft.send.timeout = WITHOUT_END;
    draft.limits.ping = None;
    draft.limits.message_bytes = MESSAGE_BYTES;
    draft.limits.publish_bytes = PUBLISH_BYTES;
    draft.limits.session_queue_bytes = PUBLISH_BYTES as usize;
}

/// Reads a configuration.
pub(super) fn read(root: Table<'_>) -> Draft {
    let mut draft = Draft::default();
    native::shared(&root, &mut draft);
    draft.transports.get_or_insert(Transports::WEBSOCKET);
    let port = root.read("port", port).unwrap_or_else(|| PORT.to_owned());
    // The socket takes precedence over the port.
    let address = root.text("sock").map_or_else(|| format!(":{port}"), |path| format!("unix:{path}"));
    draft.listeners.push(Listener { address, serves: Serves::Everything });
    draft.session_header = root.text("session_header");
    draft.endpoint = root.text("endpoint");
    root.within("path", |table| {
        let paths = &mut draft.paths;
        for (key, place) in [
            ("connect", &mut paths.connect),
            ("close", &mut paths.close),
            ("stats", &mut paths.stats),
            ("send", &mut paths.send),
            ("ping", &mut paths.ping),
            ("poll", &mut paths.poll),
            ("command", &mut paths.command),
            ("broadcast", &mut paths.broadcast),
        ] {
            table.set(key, place, text);
        }
    });
    root.within("callback", |table| {
        let callbacks = &mut draft.callbacks;
        callbacks.connect = table.text("connect");
        callbacks.establish = table.text("establish");
        callbacks.receive = table.text("receive");
        callbacks.close = table.text("close");
        limit(table.read("timeout", duration), &mut callbacks.timeout);
        limit(table.read("queue", duration), &mut callbacks.queue);
        table.set("retries", &mut callbacks.retries, number);
    });
    if let Some(table) = root.table("proxy_set_header") {
        draft.callbacks.headers = native::headers(&table);
    }
    root.set("strict_broadcast", &mut draft.send.strict, switch);
    limit(root.read("send_timeout", duration), &mut draft.send.timeout);
    match root.read("send_queue_size", number::<usize>) {
        None | Some(0) => {}
        Some(size) => draft.limits.session_queue_messages = size,
    }
    draft.origins = root.read("origin_policy", origin_policy);
    if let Some(idle) = root.read("idle_timeout", duration) {
        draft.limits.idle = (!idle.is_zero()).then_some(idle);
    }
    // As in kuiperbelt: on, unless suppressed.
    draft.access_log = !root.read("suppress_access_log", switch).unwrap_or(false);
    root.finish();
    draft
}

/// Sets a limit; zero leaves it unchanged.
fn limit(read: Option<Duration>, place: &mut Duration) {
    if let Some(limit) = read.filter(|limit| !limit.is_zero()) {
        *place = limit;
    }
}

/// Reads a time in Go's notation.
fn duration(text: &str) -> Result<Duration, String> {
    let expected = || format!("`{text}` is no time: expected one as Go writes it, such as 10s, 500ms or 1m30s");
    // Without a unit, kuiperbelt reads nanoseconds, which nobody means.
    let has_unit = text.ends_with(|last: char| last.is_ascii_alphabetic());
    if !has_unit && text != "0" {
        return Err(expected());
    }
    parse_time(&text.replace(['µ', 'μ'], "u")).map_err(|_| expected())
}

/// Reads a port of the command line or the file.
pub(super) fn port(text: &str) -> Result<String, String> {
    match text.parse::<u16>() {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(format!("`{text}` is no port: expected a number from 0 to 65535")),
    }
}

fn origin_policy(text: &str) -> Result<Origins, String> {
    match text {
        "none" => Ok(Origins::Any),
        "same_origin" => Ok(Origins::SameOrigin),
        "same_hostname" => Ok(Origins::SameHostname),
        _ => Err(format!("`{text}` is no policy: expected none, same_origin or same_hostname")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_their_old_names() {
        for (ours, theirs) in [
            ("callbacks.connect", "callback.connect"),
            ("callbacks.headers.X-A", "proxy_set_header.X-A"),
            ("paths.send", "path.send"),
            ("listen.everything", "port"),
            ("limits.pong", "limits.pong"),
            ("sends", "sends"),
        ] {
            assert_eq!(name_of(ours), theirs);
        }
    }

    #[test]
    fn times_are_gos() {
        for (text, time) in [
            ("0", 0),
            ("0s", 0),
            ("10s", 10_000_000),
            ("1m30s", 90_000_000),
            ("500ms", 500_000),
            ("2h", 7_200_000_000),
            ("7us", 7),
            ("7µs", 7),
            ("1.5s", 1_500_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_micros(time)), "{text}");
        }
        for bad in ["10", "-1s", "s", "1x", "ten", ""] {
            assert!(duration(bad).unwrap_err().contains("expected"), "{bad}");
        }
    }
}
