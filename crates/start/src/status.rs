//! The status of a superdaemon, for people and programs.

use std::fmt::Write;
use std::time::{Duration, Instant};

use oroshi_net::diag::{dropped, listen_overflows, queue};
use oroshi_net::process::descendants;
use serde::{Deserialize, Serialize};

use crate::machine::{Machine, Stage};
use crate::output::Reader;
use crate::socket_spec::Kind;
use crate::sockets::Socket;

/// The name and version of the JSON document.
pub const SCHEMA: &str = "oroshi-start-status/1.1";

/// The status of a superdaemon. Times are seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`SCHEMA`].
    pub schema: String,
    /// The superdaemon's process.
    pub pid: u32,
    /// Time since its start.
    pub uptime_s: f64,
    /// A summary.
    pub state: State,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// From the oldest to the newest.
    pub generations: Vec<GenerationStatus>,
    /// Time until the next start, while none is in progress.
    pub next_start_in_s: Option<f64>,
    /// Restarts that produced a new generation.
    pub restarts: u64,
    /// Generations that did not become ready.
    pub failed: u64,
    /// Generations that ended unexpectedly.
    pub died: u64,
    /// Generations that had to be killed.
    pub killed: u64,
    /// The last generation that did not become ready.
    pub last_failure: Option<FailureStatus>,
    /// The command that reads the log, if there is one.
    pub log_command: Option<LogCommandStatus>,
    /// How often a connection found the queue of a TCP socket full since the superdaemon began. The kernel counts all
    /// sockets of the network namespace together, including those of others.
    pub listen_overflows: Option<u64>,
    /// In configured order, ports first.
    pub sockets: Vec<SocketStatus>,
}

/// A summary of the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// No generation serves; one is starting, or will be.
    Starting,
    /// One serves.
    Serving,
    /// One serves, and the next is starting.
    Restarting,
    /// The end was requested.
    Stopping,
}

/// A generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerationStatus {
    /// 1 for the first.
    pub generation: u64,
    /// The process that was started.
    pub pid: u32,
    /// Its stage.
    pub state: GenerationState,
    /// Time since its start.
    pub age_s: f64,
    /// Time from its start until it was ready, if ever.
    pub ready_after_s: Option<f64>,
    /// Time since it was told to end, or killed.
    pub stopping_for_s: Option<f64>,
    /// Number of its processes, including descendants.
    pub processes: usize,
}

/// The stage of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GenerationState {
    /// Not ready yet.
    Starting,
    /// Ready.
    Serving,
    /// Notified to end.
    Stopping,
    /// Killed, because it did not end in time.
    Killed,
}

/// A generation that did not become ready.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FailureStatus {
    /// Its number.
    pub generation: u64,
    /// The reason.
    pub why: String,
    /// Time since then.
    pub ago_s: f64,
}

/// The command that reads the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogCommandStatus {
    /// The command line for the shell.
    pub command: String,
    /// Its process; `null` between its end and its next start.
    pub pid: Option<u32>,
    /// Number of its ends.
    pub ends: u64,
    /// A description of its last end.
    pub last_end: Option<String>,
    /// Time since then.
    pub last_end_ago_s: Option<f64>,
    /// Time until its next start, while it is not running.
    pub next_start_in_s: Option<f64>,
}

/// A socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SocketStatus {
    /// Its name in SERVER_STARTER_PORT.
    pub name: String,
    /// Its listening address: `127.0.0.1:8080`, `unix:/run/app.sock`, `udp 0.0.0.0:53`.
    pub address: String,
    /// Its kind.
    pub kind: SocketKind,
    /// Its number in the command.
    pub descriptor: i32,
    /// Connections that wait for accept; `null` for UDP, and if the kernel does not report it.
    pub waiting: Option<u32>,
    /// The most that may wait.
    pub backlog: Option<u32>,
    /// Packets that the kernel has dropped at this socket.
    ///
    /// For TCP, packets of the handshake: those without room in the queue, and a few others; `null` if the command
    /// has set TCP_DEFER_ACCEPT, which drops one or more for each connection. For UDP, datagrams without room. `null`
    /// for unix sockets, where clients wait.
    pub dropped_packets: Option<u32>,
}

/// The kind of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SocketKind {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// A unix stream socket.
    Unix,
}

/// State at the superdaemon's start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StartInfo {
    at: Instant,
    overflows: Option<u64>,
}

impl StartInfo {
    pub(crate) fn now() -> Self {
        Self { at: Instant::now(), overflows: listen_overflows() }
    }
}

impl Status {
    /// Takes the present status.
    pub(crate) fn now(
        machine: &Machine,
        sockets: &[Socket],
        command: Vec<String>,
        reader: Option<&Reader>,
        began: &StartInfo,
    ) -> Self {
        let now = Instant::now();
        let overflows = listen_overflows().zip(began.overflows).map(|(now, then)| now.saturating_sub(then));
        let since = |then: Instant| seconds(now.saturating_duration_since(then));
        let generations = machine.generations().iter().map(|generation| {
            let (state, stopping_for_s) = match generation.stage {
                Stage::Starting { .. } => (GenerationState::Starting, None),
                Stage::Serving => (GenerationState::Serving, None),
                Stage::Stopping { since: then, killed: false, .. } => (GenerationState::Stopping, Some(since(then))),
                Stage::Stopping { since: then, .. } => (GenerationState::Killed, Some(since(then))),
            };
            let ready = generation.ready.map(|ready| seconds(ready.saturating_duration_since(generation.started)));
            GenerationStatus {
                generation: generation.number,
                pid: generation.pid,
                state,
                age_s: since(generation.started),
                ready_after_s: ready,
                stopping_for_s,
                processes: 1 + descendants(generation.pid).len(),
            }
        });
        let generations: Vec<GenerationStatus> = generations.collect();
        let is_starting = generations.iter().any(|one| one.state == GenerationState::Starting);
        let state = match machine.current() {
            _ if machine.is_stopping() => State::Stopping,
            None => State::Starting,
            Some(_) if is_starting => State::Restarting,
            Some(_) => State::Serving,
        };
        let counts = machine.counts();
        Status {
            schema: SCHEMA.to_owned(),
            pid: std::process::id(),
            uptime_s: since(began.at),
            state,
            command,
            generations,
            next_start_in_s: machine.next_start().map(|at| seconds(at.saturating_duration_since(now))),
            restarts: counts.restarts,
            failed: counts.failed,
            died: counts.died,
            killed: counts.killed,
            last_failure: machine.last_failure().map(|failure| FailureStatus {
                generation: failure.number,
                why: failure.why.clone(),
                ago_s: since(failure.at),
            }),
            log_command: reader.map(|reader| LogCommandStatus {
                command: reader.command.clone(),
                pid: reader.pid,
                ends: reader.ends,
                last_end: reader.last_end.as_ref().map(|(how, _)| how.clone()),
                last_end_ago_s: reader.last_end.as_ref().map(|(_, at)| since(*at)),
                next_start_in_s: reader.next_start.map(|at| seconds(at.saturating_duration_since(now))),
            }),
            listen_overflows: overflows,
            sockets: sockets.iter().map(SocketStatus::now).collect(),
        }
    }

    /// Returns the status in Prometheus' text format.
    pub fn metrics(&self) -> String {
        let mut text = String::new();
        let mut family = |name: &str, kind: &str, help: &str, values: &[(String, f64)]| {
            // Writing to a `String` does not fail.
            let _ = writeln!(text, "# HELP oroshi_start_{name} {help}\n# TYPE oroshi_start_{name} {kind}");
            for (labels, value) in values {
                let _ = writeln!(text, "oroshi_start_{name}{labels} {value}");
            }
        };
        let one = |value: f64| vec![(String::new(), value)];
        family("uptime_seconds", "gauge", "How long the superdaemon has been running.", &one(self.uptime_s));
        family("restarts_total", "counter", "Restarts that came to a new generation.", &one(self.restarts as f64));
        family("failed_total", "counter", "Generations that did not become ready.", &one(self.failed as f64));
        family("died_total", "counter", "Generations that ended without being told to.", &one(self.died as f64));
        family("killed_total", "counter", "Generations that had to be killed.", &one(self.killed as f64));
        let ends: Vec<_> = self.log_command.iter().map(|log| (String::new(), log.ends as f64)).collect();
        family("log_command_ends_total", "counter", "How often the log command ended and was started again.", &ends);
        let labels =
            |one: &GenerationStatus| format!("{{generation=\"{}\",state=\"{}\"}}", one.generation, one.state.name());
        let ages: Vec<_> = self.generations.iter().map(|one| (labels(one), one.age_s)).collect();
        family("generation_age_seconds", "gauge", "Since a generation was started.", &ages);
        let processes: Vec<_> = self.generations.iter().map(|one| (labels(one), one.processes as f64)).collect();
        family("generation_processes", "gauge", "How many processes a generation has.", &processes);
        let sockets = |value: fn(&SocketStatus) -> Option<u32>| -> Vec<(String, f64)> {
            let known = self.sockets.iter().filter_map(|socket| Some((socket, value(socket)?)));
            known
                .map(|(socket, value)| (format!("{{socket=\"{}\"}}", escaped(&socket.address)), f64::from(value)))
                .collect()
        };
        family("waiting_connections", "gauge", "Connections that wait to be accepted.", &sockets(|one| one.waiting));
        family("backlog_connections", "gauge", "How many connections may wait.", &sockets(|one| one.backlog));
        let dropped = sockets(|one| one.dropped_packets);
        family("dropped_packets_total", "counter", "Packets that the kernel dropped at a socket.", &dropped);
        let overflows: Vec<_> = self.listen_overflows.map(|count| (String::new(), count as f64)).into_iter().collect();
        let help = "How often a TCP socket's queue was full, on all sockets of the network namespace.";
        family("listen_overflows_total", "counter", help, &overflows);
        text
    }
}

impl State {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            State::Starting => "starting",
            State::Serving => "serving",
            State::Restarting => "restarting",
            State::Stopping => "stopping",
        }
    }
}

impl GenerationState {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            GenerationState::Starting => "starting",
            GenerationState::Serving => "serving",
            GenerationState::Stopping => "stopping",
            GenerationState::Killed => "killed",
        }
    }
}

impl SocketStatus {
    fn now(socket: &Socket) -> Self {
        let kind = match socket.spec.kind {
            Kind::Tcp(..) => SocketKind::Tcp,
            Kind::Udp(..) => SocketKind::Udp,
            Kind::Unix(_) => SocketKind::Unix,
        };
        let queue = if kind == SocketKind::Udp { None } else { queue(socket) };
        SocketStatus {
            name: socket.spec.name.clone(),
            address: socket.address(),
            kind,
            descriptor: socket.descriptor,
            waiting: queue.map(|queue| queue.waiting),
            backlog: queue.map(|queue| queue.limit),
            dropped_packets: if kind == SocketKind::Unix { None } else { dropped(socket) },
        }
    }
}

/// Rounds to milliseconds.
fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e3).round() / 1e3
}

/// Escapes a label's value for Prometheus' text format.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket_spec::SocketSpec;
    use crate::sockets::{SocketOptions, hold_all};

    #[test]
    fn sockets_tell_their_queues() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a\"b.sock");
        let path = path.to_str().unwrap();
        let specs = [
            SocketSpec::port("127.0.0.1:0").unwrap(),
            SocketSpec::port("127.0.0.1:u0").unwrap(),
            SocketSpec::path(path).unwrap(),
        ];
        let sockets = hold_all(Vec::new(), &specs, &SocketOptions { backlog: 8, ..SocketOptions::default() }).unwrap();
        let _waiting = std::net::TcpStream::connect(sockets[0].address()).unwrap();
        let all: Vec<SocketStatus> = sockets.iter().map(SocketStatus::now).collect();
        assert_eq!((all[0].waiting, all[0].backlog, all[0].dropped_packets), (Some(1), Some(8), Some(0)));
        assert_eq!((all[1].waiting, all[1].backlog, all[1].dropped_packets), (None, None, Some(0)));
        assert_eq!(all[2].dropped_packets, None);
        assert!(all[2].backlog.is_none_or(|backlog| backlog == 8));

        let status = Status {
            schema: SCHEMA.into(),
            pid: 1,
            uptime_s: 1.5,
            state: State::Serving,
            command: vec!["a".into()],
            generations: vec![GenerationStatus {
                generation: 3,
                pid: 7,
                state: GenerationState::Serving,
                age_s: 1.0,
                ready_after_s: Some(0.5),
                stopping_for_s: None,
                processes: 2,
            }],
            next_start_in_s: None,
            restarts: 2,
            failed: 1,
            died: 0,
            killed: 0,
            last_failure: None,
            log_command: Some(LogCommandStatus {
                command: "cat".into(),
                pid: None,
                ends: 4,
                last_end: Some("exit code 1".into()),
                last_end_ago_s: Some(0.5),
                next_start_in_s: Some(0.3),
            }),
            listen_overflows: Some(5),
            sockets: all,
        };
        let text = status.metrics();
        let address = format!("oroshi_start_waiting_connections{{socket=\"{}\"}} 1\n", sockets[0].address());
        let ends = "oroshi_start_log_command_ends_total 4\n";
        for line in ["oroshi_start_restarts_total 2\n", ends, "{generation=\"3\",state=\"serving\"} 2\n", &address] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        let json = serde_json::to_string(&status).unwrap();
        assert_eq!(serde_json::from_str::<Status>(&json).unwrap(), status);
    }
}
