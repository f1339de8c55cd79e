//! Validates the configuration: a [`Draft`] becomes a [`Plan`].

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

use oroshi_net::{Endpoint, Scheme, UnixAddress};
use oroshi_words::Mistake;
use rustix::process::Signal;

use crate::machine::{Policy, Readiness};
use crate::output::LogDestination;
use crate::socket_spec::{Kind, SocketSpec};
use crate::sockets::SocketOptions;

/// A superdaemon as the user configured it, unchecked. `Default` has `start_server`'s defaults, without a command.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// This program, and the arguments that make it a [`Child`](crate::Child).
    pub helper: Vec<OsString>,
    /// This program, and the arguments that make it a [`guard`](crate::guard()).
    pub guard: Vec<OsString>,
    /// The sockets, ports first.
    pub sockets: Vec<SocketSpec>,
    /// Options of the sockets.
    pub listening: SocketOptions,
    /// The folder to run the command in.
    pub folder: Option<PathBuf>,
    /// How long a generation must live to be ready without another condition; also the minimum time from a failed
    /// start to the next.
    pub interval: Duration,
    /// The condition for readiness. `None`: alive after the interval, with failed restarts retried until one
    /// succeeds.
    pub ready: Option<Ready>,
    /// Time to become ready, for the conditions other than the interval.
    pub ready_timeout: Duration,
    /// The signal to older generations when a newer one is ready.
    pub signal_on_hup: Signal,
    /// The signal to all generations at the end.
    pub signal_on_term: Signal,
    /// Time for a generation to end before it is killed; `None`: unlimited.
    pub stop_timeout: Option<Duration>,
    /// The file for the superdaemon's process number.
    pub pid_file: Option<PathBuf>,
    /// The file for the generations.
    pub status_file: Option<PathBuf>,
    /// The destination of standard output and error.
    pub log: Option<LogDestination>,
    /// The control socket.
    pub control: Option<ControlAddress>,
    /// Options that the command gets as variables (see [`environment`](crate::environment)).
    pub variables: Vec<(&'static str, OsString)>,
    /// Whether it runs in the background.
    pub daemonize: bool,
    /// Whether the command ends when the superdaemon dies, for any reason.
    pub die_together: bool,
}

impl Default for Draft {
    fn default() -> Self {
        Self {
            command: Vec::new(),
            helper: Vec::new(),
            guard: Vec::new(),
            sockets: Vec::new(),
            listening: SocketOptions::default(),
            folder: None,
            interval: Duration::from_secs(1),
            ready: None,
            ready_timeout: Duration::from_secs(60),
            signal_on_hup: Signal::TERM,
            signal_on_term: Signal::TERM,
            stop_timeout: None,
            pid_file: None,
            status_file: None,
            log: None,
            control: None,
            variables: Vec::new(),
            daemonize: false,
            die_together: false,
        }
    }
}

/// The location of the control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlAddress {
    /// Its path.
    pub path: PathBuf,
    /// Whether the user configured it. Otherwise the superdaemon works without it if it cannot be made.
    pub asked_for: bool,
}

/// The condition for a generation's readiness. If a new generation does not meet it, the restart has failed, and the
/// older one stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ready {
    /// It is still alive after the interval.
    Alive,
    /// It sends `READY=1` to the socket in NOTIFY_SOCKET (sd_notify(3)).
    Notify,
    /// One of its processes answers a GET of this URL with 200 to 399.
    Answers(Box<Endpoint>),
}

/// A validated configuration.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) draft: Draft,
    pub(crate) control: Option<UnixAddress>,
    /// The reason why there is no control socket if the user did not configure one.
    pub(crate) without_control: Option<String>,
}

impl Draft {
    /// Validates the draft.
    ///
    /// # Errors
    /// All mistakes in it.
    pub fn plan(self) -> Result<Plan, Vec<Mistake>> {
        let mut problems = Vec::new();
        if self.command.is_empty() {
            let text = "there is no command to run: expected it behind the options, as in -- ./server";
            problems.push(Mistake::new("", text));
        }
        let mut taken: HashMap<RawFd, &str> = HashMap::new();
        let mut seen: Vec<&Kind> = Vec::new();
        for socket in &self.sockets {
            if let Some(descriptor) = socket.descriptor
                && let Some(first) = taken.insert(descriptor, &socket.name)
            {
                let second = &socket.name;
                problems.push(Mistake::new(
                    "port",
                    format!(
                        "descriptor {descriptor} is asked for by {first} and by {second}: expected a number for each"
                    ),
                ));
            }
            // Port 0 is another one each time.
            let is_free = matches!(socket.kind, Kind::Tcp(_, 0) | Kind::Udp(_, 0));
            if !is_free && seen.contains(&&socket.kind) {
                let text = format!("{} is given twice: expected each place once", socket.name);
                problems.push(Mistake::new("", text));
            }
            seen.push(&socket.kind);
            if socket.name.contains(';') {
                let why = "cannot be handed down: a `;` is in it, which SERVER_STARTER_PORT has between names";
                problems.push(Mistake::new("path", format!("`{}` {why}", socket.name)));
            }
        }
        if self.daemonize && self.log.is_none() {
            problems.push(Mistake::new("daemonize", "to run in the background takes a log file"));
        }
        if let Some(Ready::Answers(url)) = &self.ready
            && url.scheme == Scheme::Https
        {
            let expected = "http:// or unix:, as nobody checks certificates here";
            problems.push(Mistake::value("ready", url, "cannot be asked", expected));
        }
        let (mut control, mut without_control) = (None, None);
        if let Some(ControlAddress { path, asked_for }) = &self.control {
            match UnixAddress::path(path) {
                Ok(address) => control = Some(address),
                Err(why) if *asked_for => {
                    let text = format!("the control socket cannot be at {}: {why}", path.display());
                    problems.push(Mistake::new("control", text));
                }
                Err(why) => without_control = Some(format!("there is no control socket: {why}")),
            }
        }
        if problems.is_empty() { Ok(Plan { draft: self, control, without_control }) } else { Err(problems) }
    }
}

impl Plan {
    /// Whether it runs in the background.
    pub fn is_daemon(&self) -> bool {
        self.draft.daemonize
    }

    /// The command and its arguments.
    pub fn command(&self) -> &[OsString] {
        &self.draft.command
    }

    pub(crate) fn policy(&self) -> Policy {
        let draft = &self.draft;
        let readiness = match draft.ready {
            None | Some(Ready::Alive) => Readiness::Alive,
            Some(Ready::Notify | Ready::Answers(_)) => Readiness::Notified { timeout: draft.ready_timeout },
        };
        Policy {
            interval: draft.interval,
            readiness,
            keep_trying: draft.ready.is_none(),
            signal_on_hup: draft.signal_on_hup,
            signal_on_term: draft.signal_on_term,
            stop_timeout: draft.stop_timeout,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_wrong_is_said_at_once() {
        let place = |text: &str| SocketSpec::port(text).unwrap();
        let draft = Draft {
            sockets: vec![place("80=5"), place("81=5"), place("81"), SocketSpec::path("/run/a;b").unwrap()],
            daemonize: true,
            ready: Some(Ready::Answers(Box::new("https://localhost/".parse().unwrap()))),
            control: Some(ControlAddress { path: "/x".repeat(60).into(), asked_for: true }),
            ..Draft::default()
        };
        let problems: Vec<String> = draft.plan().unwrap_err().iter().map(ToString::to_string).collect();
        for (problem, words) in
            problems.iter().zip(["no command", "descriptor 5", "81 is given twice", "a;b", "log", "https", "control"])
        {
            assert!(problem.contains(words), "{problem}");
        }
        assert_eq!(problems.len(), 7, "{problems:?}");
        let control = Some(ControlAddress { path: "/x".repeat(60).into(), asked_for: false });
        let sockets = vec![place("80=5"), place("81")];
        let plan = Draft { command: vec!["x".into()], sockets, control, ..Draft::default() }.plan().unwrap();
        assert!(plan.policy().keep_trying);
        assert!(plan.control.is_none() && plan.without_control.is_some());
    }
}
