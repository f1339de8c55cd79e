//! The state of a superdaemon, for people.

use std::fmt::Write;

use oroshi_report::table::columns;
use oroshi_start::Status;
use oroshi_start::status::{GenerationState, GenerationStatus, LogCommandStatus, SocketStatus};
use oroshi_words::units::{length, plural, time};

/// Writes the state, in several lines.
pub(super) fn status(status: &Status) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = writeln!(text, "{}, pid {}, up for {}", status.state.name(), status.pid, age(status.uptime_s));
    let _ = writeln!(text, "command: {}", shell_words::join(&status.command));
    let _ = write!(text, "restarts: {}; failed: {}; died: {}", status.restarts, status.failed, status.died);
    let _ = writeln!(text, "; killed: {}", status.killed);
    if let Some(failure) = &status.last_failure {
        let ago = age(failure.ago_s);
        let _ = writeln!(text, "last failure, {ago} ago: generation {}: {}", failure.generation, failure.why);
    }
    if let Some(seconds) = status.next_start_in_s {
        let _ = writeln!(text, "next start in {}", age(seconds));
    }
    if let Some(log) = &status.log_command {
        let _ = writeln!(text, "{}", log_command(log));
    }
    text.push('\n');
    let mut rows = vec![["generation", "pid", "state", "age", "ready after", "processes"].map(str::to_owned).to_vec()];
    rows.extend(status.generations.iter().map(generation));
    text += &columns(0, &rows);
    if !status.sockets.is_empty() {
        text.push('\n');
        let head = ["socket", "descriptor", "waiting", "backlog", "dropped"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        rows.extend(status.sockets.iter().map(socket));
        text += &columns(0, &rows);
        if let Some(count) = status.listen_overflows {
            let _ = writeln!(
                text,
                "times that a queue was full since the start, of all TCP sockets in this network namespace: {count}"
            );
        }
    }
    text
}

/// `log command cat, pid 12; ended 3 times, last 5s ago: exit code 1`
fn log_command(log: &LogCommandStatus) -> String {
    let mut text = format!("log command: {}, ", log.command);
    text += &match (log.pid, log.next_start_in_s) {
        (Some(pid), _) => format!("pid {pid}"),
        (None, Some(seconds)) => format!("down, next start in {}", age(seconds)),
        (None, None) => "down".to_owned(),
    };
    if let (Some(how), Some(ago)) = (&log.last_end, log.last_end_ago_s) {
        text += &format!("; ended {}, last {} ago: {how}", plural(log.ends, "time"), age(ago));
    }
    text
}

fn generation(one: &GenerationStatus) -> Vec<String> {
    let state = match (one.state, one.stopping_for_s) {
        (GenerationState::Stopping | GenerationState::Killed, Some(seconds)) => {
            format!("{} for {}", one.state.name(), age(seconds))
        }
        (state, _) => state.name().to_owned(),
    };
    let ready = one.ready_after_s.map_or_else(|| "-".to_owned(), age);
    vec![one.generation.to_string(), one.pid.to_string(), state, age(one.age_s), ready, one.processes.to_string()]
}

fn socket(one: &SocketStatus) -> Vec<String> {
    let number = |value: Option<u32>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
    let rest = [number(one.waiting), number(one.backlog), number(one.dropped_packets)];
    [one.address.clone(), one.descriptor.to_string()].into_iter().chain(rest).collect()
}

fn age(seconds: f64) -> String {
    if seconds < 120.0 { length(seconds) } else { time(seconds * 1e9) }
}
