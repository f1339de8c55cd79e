//! What to do: a [`Draft`] as somebody wrote it becomes a [`Plan`] in which everything has been decided.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

use oroshi_net::{Endpoint, Scheme, UnixAddress};
use oroshi_words::Mistake;
use rustix::process::Signal;

use crate::machine::{Policy, Readiness};
use crate::output::LogTo;
use crate::place::{Kind, Place};
use crate::sockets::Listening;

/// A superdaemon as the user described it: typed, not yet checked for sense. `Default` is `start_server`'s, without a command.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// This program, and the words that make a new process of it a [`Child`](crate::Child).
    pub helper: Vec<OsString>,
    /// This program, and the words that make a new process of it a [`guard`](crate::guard()).
    pub guard: Vec<OsString>,
    /// The sockets, ports first.
    pub places: Vec<Place>,
    /// How they listen.
    pub listening: Listening,
    /// The folder that the command runs in.
    pub folder: Option<PathBuf>,
    /// How long a generation must live to be ready, when nothing else says so; also the least time from a failed start to the next.
    pub interval: Duration,
    /// When a generation is ready; `None`: when it has lived for the interval, and a restart that failed is tried again
    /// until it succeeds.
    pub ready: Option<Ready>,
    /// How long it may take to become ready, when it is asked or told.
    pub ready_timeout: Duration,
    /// What older generations are sent when a newer one is ready.
    pub signal_on_hup: Signal,
    /// What all are sent at the end.
    pub signal_on_term: Signal,
    /// How long a generation may take to end before it is killed; `None`: as long as it likes.
    pub stop_timeout: Option<Duration>,
    /// The file for the superdaemon's process number.
    pub pid_file: Option<PathBuf>,
    /// The file for the generations.
    pub status_file: Option<PathBuf>,
    /// Where standard output and error go.
    pub log: Option<LogTo>,
    /// The socket for questions and orders.
    pub control: Option<ControlAt>,
    /// Options that the command sees as variables (see [`environment`](crate::environment)).
    pub variables: Vec<(&'static str, OsString)>,
    /// Whether it runs in the background.
    pub daemonize: bool,
    /// Whether the command ends when the superdaemon dies, however that comes about.
    pub die_together: bool,
}

impl Default for Draft {
    fn default() -> Self {
        Self {
            command: Vec::new(),
            helper: Vec::new(),
            guard: Vec::new(),
            places: Vec::new(),
            listening: Listening::default(),
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

/// A place for the control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlAt {
    /// Its path.
    pub path: PathBuf,
    /// Whether somebody asked for it there. Otherwise, where it cannot be made, it is done without.
    pub asked_for: bool,
}

/// How a generation shows that it is ready. A restart whose generation does not become so has failed, and the older one stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ready {
    /// It is still there after the interval.
    Alive,
    /// It says `READY=1` to the socket in NOTIFY_SOCKET (sd_notify(3)).
    Notify,
    /// A process of it answers a GET of this with 200 to 399.
    Answers(Box<Endpoint>),
}

/// What is to be done, decided and without contradictions.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) draft: Draft,
    pub(crate) control: Option<UnixAddress>,
    /// Why there is no control socket where nobody asked for one.
    pub(crate) without_control: Option<String>,
}

impl Draft {
    /// Checks it.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn plan(self) -> Result<Plan, Vec<Mistake>> {
        let mut problems = Vec::new();
        if self.command.is_empty() {
            let text = "there is no command to run: expected it behind the options, as in -- ./server";
            problems.push(Mistake::new("", text));
        }
        let mut taken: HashMap<RawFd, &str> = HashMap::new();
        let mut seen: Vec<&Kind> = Vec::new();
        for place in &self.places {
            if let Some(descriptor) = place.descriptor
                && let Some(first) = taken.insert(descriptor, &place.name)
            {
                let second = &place.name;
                problems.push(Mistake::new(
                    "port",
                    format!(
                        "descriptor {descriptor} is asked for by {first} and by {second}: expected a number for each"
                    ),
                ));
            }
            // Port 0 is another one each time.
            let is_free = matches!(place.kind, Kind::Tcp(_, 0) | Kind::Udp(_, 0));
            if !is_free && seen.contains(&&place.kind) {
                let text = format!("{} is given twice: expected each place once", place.name);
                problems.push(Mistake::new("", text));
            }
            seen.push(&place.kind);
            if place.name.contains(';') {
                let why = "cannot be handed down: a `;` is in it, which SERVER_STARTER_PORT has between names";
                problems.push(Mistake::new("path", format!("`{}` {why}", place.name)));
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
        if let Some(ControlAt { path, asked_for }) = &self.control {
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
            Some(Ready::Notify | Ready::Answers(_)) => Readiness::Told { timeout: draft.ready_timeout },
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
        let place = |text: &str| Place::port(text).unwrap();
        let draft = Draft {
            places: vec![place("80=5"), place("81=5"), place("81"), Place::path("/run/a;b").unwrap()],
            daemonize: true,
            ready: Some(Ready::Answers(Box::new("https://localhost/".parse().unwrap()))),
            control: Some(ControlAt { path: "/x".repeat(60).into(), asked_for: true }),
            ..Draft::default()
        };
        let problems: Vec<String> = draft.plan().unwrap_err().iter().map(ToString::to_string).collect();
        for (problem, words) in
            problems.iter().zip(["no command", "descriptor 5", "81 is given twice", "a;b", "log", "https", "control"])
        {
            assert!(problem.contains(words), "{problem}");
        }
        assert_eq!(problems.len(), 7, "{problems:?}");
        let control = Some(ControlAt { path: "/x".repeat(60).into(), asked_for: false });
        let places = vec![place("80=5"), place("81")];
        let plan = Draft { command: vec!["x".into()], places, control, ..Draft::default() }.plan().unwrap();
        assert!(plan.policy().keep_trying);
        assert!(plan.control.is_none() && plan.without_control.is_some());
    }
}
