//! `oroshi push top`: what a running hub does, on a terminal that is drawn anew every few seconds, or as lines.
//!
//! It reads `/status`, `/slow` and `/groups` of the hub's API, as the page at `/page` does.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use oroshi_client::Client;
use oroshi_net::Shutdown;
use oroshi_report::paint::Paint;
use oroshi_words::printable::printable;
use oroshi_words::units::{bytes, count, number};
use rustix::termios::tcgetwinsize;
use serde_json::Value;

use crate::terminal;

/// The reasons why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TopError {
    /// Name an admin address.
    #[error(
        "there is no address to ask: expected --admin unix:/run/push.sock, or [listen] admin or everything in the \
         configuration"
    )]
    Nowhere,
    /// The hub does not run there, or this user may not connect.
    #[error("cannot ask the hub at `{address}`: {cause}")]
    Unreachable {
        /// The address.
        address: String,
        /// The reason.
        cause: String,
    },
    /// The hub rejected the request, for example because its token is missing.
    #[error("the hub refuses: {0}")]
    Refused(String),
    /// The terminal is gone.
    #[error("cannot write to standard output")]
    Output(#[source] io::Error),
}

impl TopError {
    /// Whether the command line was wrong.
    pub(crate) fn is_usage(&self) -> bool {
        matches!(self, TopError::Nowhere | TopError::Refused(_))
    }
}

/// What to ask, and how often.
pub(super) struct Top<'t> {
    pub(super) address: &'t str,
    pub(super) token: Option<&'t str>,
    pub(super) interval: Duration,
    /// How often it shows something; `None`: until a signal comes.
    pub(super) samples: Option<u64>,
}

/// The hub's answers at one moment.
struct Sample {
    at: Instant,
    status: Value,
    slow: Value,
    groups: Value,
}

/// The most channels and groups that the hub is asked for.
const GROUPS: usize = 100;

/// Another screen without line breaks at its edge and without a cursor; and back.
const BEGIN: &str = "\x1b[?1049h\x1b[?7l\x1b[?25l";
const END: &str = "\x1b[?25h\x1b[?7h\x1b[?1049l";

/// Shows a hub until a signal comes.
pub(super) async fn run(top: &Top<'_>, shutdown: &Shutdown) -> Result<(), TopError> {
    let mut out = io::stdout();
    let is_terminal = out.is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb");
    let unreachable = |cause: String| TopError::Unreachable { address: top.address.to_owned(), cause };
    let client = Client::builder().build().map_err(|error| unreachable(error.to_string()))?;
    let mut last: Option<Sample> = None;
    let mut write = |text: &str| out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(TopError::Output);
    let mut shown = 0;
    let ended = loop {
        // A hub that does not answer at first is a mistake; later it may come back.
        let sample = match sample(top, &client).await {
            Ok(sample) => sample,
            Err(error) if last.is_none() => break Err(error),
            Err(error) => {
                let text = if is_terminal {
                    format!("\x1b[H{}\x1b[K", printable(&error.to_string()))
                } else {
                    format!("{error}\n")
                };
                if let Err(error) = write(&text) {
                    break Err(error);
                }
                match wait(top.interval, shutdown).await {
                    true => continue,
                    false => break Ok(()),
                }
            }
        };
        let text = if is_terminal {
            let begin = if last.is_none() { BEGIN } else { "" };
            let size = tcgetwinsize(io::stdout()).ok();
            let (width, height) = size.map_or((80, 24), |size| (usize::from(size.ws_col), usize::from(size.ws_row)));
            // The last column stays free: clearing behind a full line would clear its last character.
            let (width, height) = (width.max(20) - 1, height.max(5));
            let lines = screen(last.as_ref(), &sample, width, height, terminal::paint(&io::stdout()));
            // Each line is cleared behind its end, and all below the last: without flicker.
            format!("{begin}\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n"))
        } else {
            line(last.as_ref(), &sample) + "\n"
        };
        if let Err(error) = write(&text) {
            break Err(error);
        }
        last = Some(sample);
        shown += 1;
        if top.samples.is_some_and(|samples| shown >= samples) || !wait(top.interval, shutdown).await {
            break Ok(());
        }
    };
    if is_terminal && last.is_some() {
        let _ = write(END);
    }
    ended
}

/// Waits for the next sample. False: a signal came.
async fn wait(interval: Duration, shutdown: &Shutdown) -> bool {
    tokio::time::timeout(interval, shutdown.reached(1)).await.is_err()
}

async fn sample(top: &Top<'_>, client: &Client) -> Result<Sample, TopError> {
    let status = ask(top, client, "/status").await?;
    let slow = ask(top, client, "/slow").await?;
    let groups = ask(top, client, &format!("/groups?limit={GROUPS}")).await?;
    Ok(Sample { at: Instant::now(), status, slow, groups })
}

async fn ask(top: &Top<'_>, client: &Client, path: &str) -> Result<Value, TopError> {
    let unreachable = |cause: String| TopError::Unreachable { address: top.address.to_owned(), cause };
    let told = |error: oroshi_client::Error| unreachable(format!("{error} ({})", error.cause()));
    let mut request = client.get(crate::service::admin_url(top.address) + path);
    if let Some(token) = top.token {
        request = request.bearer_auth(token);
    }
    let response = request.send().await.map_err(told)?;
    let status = response.status();
    let text = response.text().await.map_err(told)?;
    let value: Value =
        serde_json::from_str(&text).map_err(|_| unreachable("the server there is no push hub".to_owned()))?;
    match status {
        200 => Ok(value),
        _ => Err(TopError::Refused(printable(value["message"].as_str().unwrap_or(&text)))),
    }
}

/// The rates between two samples.
struct Rates<'s> {
    last: Option<(&'s Sample, f64)>,
    now: &'s Sample,
}

impl<'s> Rates<'s> {
    /// `last`: the sample before, unless the hub has restarted since.
    fn between(last: Option<&'s Sample>, now: &'s Sample) -> Self {
        let last = last
            .filter(|last| last.status["node"] == now.status["node"])
            .map(|last| (last, now.at.saturating_duration_since(last.at).as_secs_f64()))
            .filter(|(_, seconds)| *seconds > 0.0);
        Rates { last, now }
    }

    /// Returns how much a counter grows per second.
    fn of(&self, pointer: &str) -> Option<f64> {
        let (last, seconds) = self.last?;
        let at = |sample: &Sample| sample.status.pointer(pointer).and_then(Value::as_f64);
        Some((at(self.now)? - at(last)?).max(0.0) / seconds)
    }

    fn text(&self, pointer: &str) -> String {
        self.of(pointer).map_or("-".to_owned(), |rate| format!("{}/s", number(rate)))
    }
}

fn counter(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

fn list<'v>(value: &'v Value, name: &str) -> &'v [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

/// Formats a sample as one line.
fn line(last: Option<&Sample>, now: &Sample) -> String {
    let (rates, status) = (Rates::between(last, now), &now.status);
    format!(
        "{}  sessions {}  published {}  deliveries {}  dropped {}  waiting {}  slow {}",
        text(status, "state"),
        count(counter(status, "/sessions/current")),
        rates.text("/published/messages"),
        rates.text("/deliveries/written"),
        rates.text("/deliveries/dropped"),
        bytes(counter(status, "/queues/bytes") as f64),
        list(&now.slow, "sessions").len(),
    )
}

/// Draws a sample in at most `height` lines. Lines may be longer than `width`; the terminal cuts them.
fn screen(last: Option<&Sample>, now: &Sample, width: usize, height: usize, paint: Paint) -> Vec<String> {
    let (rates, status) = (Rates::between(last, now), &now.status);
    let state = text(status, "state");
    let state = if state == "serving" { paint.green(state) } else { paint.red(&printable(state)) };
    let mut lines = vec![
        format!("{}  {state}  node {}", paint.bold("oroshi push"), printable(text(status, "node"))),
        String::new(),
    ];
    let named = |pointer: &str| -> String {
        let all = status.pointer(pointer).and_then(Value::as_object);
        let parts = all.into_iter().flatten().filter(|(_, value)| value.as_u64() != Some(0));
        parts
            .map(|(name, value)| format!("{} {}", printable(name), count(value.as_u64().unwrap_or(0))))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let bytes_of = |pointer: &str| bytes(counter(status, pointer) as f64);
    let mut field = |name: &str, value: String| {
        for (at, part) in oroshi_report::table::wrap(&value, width.saturating_sub(12)).into_iter().enumerate() {
            lines.push(format!("{}  {part}", paint.dim(&format!("{:<10}", if at == 0 { name } else { "" }))));
        }
    };
    let by_transport = named("/sessions/by_transport");
    let current = count(counter(status, "/sessions/current"));
    field("sessions", if by_transport.is_empty() { current } else { format!("{current}: {by_transport}") });
    let published = rates.of("/published/bytes").map_or(String::new(), |rate| format!(", {}/s", bytes(rate)));
    field("published", rates.text("/published/messages") + &published);
    let [written, dropped, closed] =
        ["written", "dropped", "closed"].map(|name| rates.text(&format!("/deliveries/{name}")));
    field("deliveries", format!("{written}, dropped {dropped}, closed {closed}"));
    field("waiting", format!("{} of at most {}", bytes_of("/queues/bytes"), bytes_of("/queues/most_bytes")));
    let ended = named("/sessions/ended");
    field("ended", if ended.is_empty() { "none".to_owned() } else { ended });
    if let Some(cluster) = status.get("cluster") {
        let connected = if cluster["connected"] == true { "connected" } else { "NATS is lost" };
        let (nodes, absent) = (counter(cluster, "/nodes"), counter(cluster, "/absent"));
        field("cluster", format!("{connected}, other nodes {}, absent {}", count(nodes), count(absent)));
    }
    // The two tables share what is left; channels get what slow sessions do not need.
    let left = height.saturating_sub(lines.len() + 4);
    let (slow, groups) = (list(&now.slow, "sessions"), list(&now.groups, "groups"));
    let slow_rows = slow.len().min((left / 2).max(left.saturating_sub(groups.len()))).max(1);
    let rows: Vec<[String; 4]> = slow
        .iter()
        .take(slow_rows)
        .map(|one| {
            let messages = count(counter(one, "/queued_messages"));
            [
                text(one, "key").to_owned(),
                text(one, "transport").to_owned(),
                messages,
                bytes(counter(one, "/queued_bytes") as f64),
            ]
        })
        .collect();
    lines.push(String::new());
    lines.extend(table(["slow sessions", "transport", "messages", "bytes"], &rows, width, paint));
    lines.push(String::new());
    let room = height.saturating_sub(lines.len() + 1);
    let rows: Vec<[String; 3]> = groups
        .iter()
        .take(room)
        .map(|one| {
            let [sessions, subscribers] = ["/sessions", "/subscribers"].map(|pointer| count(counter(one, pointer)));
            [text(one, "group").to_owned(), sessions, subscribers]
        })
        .collect();
    lines.extend(table(["channels and groups", "sessions", "subscribers"], &rows, width, paint));
    lines.truncate(height);
    lines
}

/// Formats a table as wide as the terminal; the first column is cut where there is no room.
fn table<const N: usize>(head: [&str; N], rows: &[[String; N]], width: usize, paint: Paint) -> Vec<String> {
    let length = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].len()]).max().unwrap_or(0)
    };
    let others: usize = (1..N).map(|column| length(column) + 2).sum();
    let first = width.saturating_sub(others).clamp(8, 60);
    let formatted = |cells: [&str; N]| {
        let name = printable(cells[0]);
        let cut = name.chars().count() > first;
        let mut line: String = name.chars().take(if cut { first - 1 } else { first }).collect();
        line.push_str(if cut { "…" } else { "" });
        let mut line = format!("{line:<first$}");
        for (column, cell) in cells.iter().enumerate().skip(1) {
            line.push_str(&format!("  {:>1$}", printable(cell), length(column)));
        }
        line
    };
    let mut lines = vec![paint.dim(&formatted(head))];
    lines.extend(rows.iter().map(|row| formatted(row.each_ref().map(String::as_str))));
    if rows.is_empty() {
        lines.push("none".to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(at: Instant, written: u64) -> Sample {
        let sessions = |n: usize| {
            let key = format!("key-{n}\u{1b}[2J{}", "x".repeat(70));
            json!({ "key": key, "transport": "websocket", "queued_messages": 3, "queued_bytes": 4096 })
        };
        Sample {
            at,
            status: json!({
                "node": "0123456789ab", "state": "serving",
                "sessions": {
                    "current": 1200, "by_transport": { "websocket": 1200, "sse": 0 },
                    "ended": { "client": 7, "slow": 0 },
                },
                "queues": { "bytes": 4096, "most_bytes": 1 << 20 },
                "published": { "messages": written / 100, "bytes": written },
                "deliveries": { "written": written, "dropped": 0, "closed": 0 },
                "cluster": { "connected": true, "nodes": 2, "absent": 0 },
            }),
            slow: json!({ "sessions": (0..20).map(sessions).collect::<Vec<_>>() }),
            groups: json!({ "groups": [{ "group": "chat:tea", "sessions": 5, "subscribers": 4 }] }),
        }
    }

    fn two() -> (Sample, Sample) {
        let now = Instant::now();
        (at(now, 1000), at(now + Duration::from_secs(2), 5000))
    }

    #[test]
    fn a_line_has_the_rates_between_two_samples() {
        let (first, second) = two();
        let rest = "waiting 4.0 KiB  slow 20";
        let rates = |line: String| line.split("  waiting").next().unwrap().to_owned();
        assert_eq!(rates(line(None, &first)), "serving  sessions 1,200  published -  deliveries -  dropped -");
        let line = line(Some(&first), &second);
        assert!(line.ends_with(rest) || line.ends_with("slow 20"), "{line}");
        let rates = rates(line);
        assert_eq!(rates, "serving  sessions 1,200  published 20.0/s  deliveries 2,000/s  dropped 0/s");
    }

    #[test]
    fn a_hub_that_restarted_has_no_rates_at_first() {
        let (mut first, second) = two();
        first.status["node"] = json!("another");
        assert!(line(Some(&first), &second).contains("deliveries -"));
    }

    #[test]
    fn a_screen_fits_whatever_its_size_and_no_name_steers_it() {
        let (first, second) = two();
        for (width, height) in [(60, 24), (80, 24), (160, 50), (20, 5), (60, 12)] {
            let lines = screen(Some(&first), &second, width, height, Paint::PLAIN);
            assert!(lines.len() <= height, "{width}x{height}: {lines:#?}");
            for line in &lines {
                assert!(!line.contains('\u{1b}'), "{line}");
                assert!(line.chars().count() <= width.max(60), "{width}: {line}");
            }
        }
        let lines = screen(Some(&first), &second, 80, 40, Paint::PLAIN);
        assert!(lines.iter().any(|line| line.starts_with("chat:tea") && line.ends_with("4")), "{lines:#?}");
        assert!(lines.iter().any(|line| line.contains("2,000/s, dropped 0/s")), "{lines:#?}");
        assert!(lines.iter().any(|line| line.contains("connected, other nodes 2, absent 0")), "{lines:#?}");
    }
}
