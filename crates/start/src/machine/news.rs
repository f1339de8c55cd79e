//! What is told about the generations, each transition in one line.

use std::fmt;
use std::time::Duration;

use oroshi_net::process::signal_name;
use oroshi_words::units::{self, length};
use rustix::process::Signal;

/// A generation, as it is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// 1 for the first.
    pub number: u64,
    /// Its process, if there ever was one.
    pub pid: Option<u32>,
}

/// Why a new generation is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The signal HUP.
    Hup,
    /// Through the control socket.
    Control,
    /// By time (`--enable-auto-restart`).
    Time,
}

/// Why a generation did not become, or stay, ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It ended: how, and how long after its start.
    Died {
        /// In words.
        how: String,
        /// After so long.
        after: Duration,
    },
    /// It said nothing for so long.
    NotReady {
        /// For how long.
        timeout: Duration,
        /// What was last found when it was asked.
        found: Option<String>,
    },
    /// No process could be made: why.
    NotStarted(String),
}

/// What follows a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// A start, after so long.
    Start {
        /// From now.
        after: Duration,
    },
    /// One is starting already.
    Starting(Who),
    /// Nothing by itself.
    Nothing,
}

/// What is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A new generation is asked for, and is being started.
    Asked {
        /// By whom.
        cause: Cause,
    },
    /// It is asked for while one is starting: it comes after that.
    Queued {
        /// By whom.
        cause: Cause,
        /// The one that is starting.
        after: Who,
    },
    /// It is asked for after the end was.
    TooLate {
        /// By whom.
        cause: Cause,
    },
    /// What was asked for meanwhile is done now.
    Again,
    /// There is a process.
    Started {
        /// Which.
        who: Who,
    },
    /// It can do its work.
    Ready {
        /// Which.
        who: Who,
        /// So long after its start.
        after: Duration,
        /// Those that serve too, and are told to stop.
        older: Vec<Who>,
        /// After so long.
        delay: Duration,
        /// By this signal.
        signal: Signal,
    },
    /// The older ones are told to stop, after the delay.
    HandOver {
        /// Which.
        older: Vec<Who>,
        /// By this signal.
        signal: Signal,
    },
    /// It did not become ready.
    Failed {
        /// Which.
        who: Who,
        /// Why.
        ended: Ended,
        /// The one that serves on.
        stays: Option<Who>,
        /// What follows.
        next: Next,
    },
    /// A ready one ended before the older ones were told to stop.
    Relapse {
        /// Which.
        who: Who,
        /// The one that serves on.
        stays: Who,
    },
    /// The one that served ended without being told to.
    Died {
        /// Which.
        who: Who,
        /// How.
        how: String,
        /// How long it served.
        served: Duration,
        /// What follows.
        next: Next,
    },
    /// One that would have ended soon did so by itself.
    Gone {
        /// Which.
        who: Who,
        /// How.
        how: String,
        /// How old it was.
        after: Duration,
    },
    /// It ended as it was told to.
    Stopped {
        /// Which.
        who: Who,
        /// How.
        how: String,
        /// By what it was told.
        signal: Signal,
        /// How long it took.
        after: Duration,
    },
    /// It did not end in time.
    Killed {
        /// Which.
        who: Who,
        /// By what it was told.
        signal: Signal,
        /// So long ago.
        after: Duration,
    },
    /// The end is asked for.
    Stop {
        /// By this signal.
        signal: Signal,
        /// What the generations are sent.
        to_send: Signal,
        /// All that there are.
        told: Vec<Who>,
    },
    /// The end is asked for again.
    StopAgain {
        /// By this signal.
        signal: Signal,
        /// Those that there are still.
        left: Vec<Who>,
        /// They are killed.
        at_once: bool,
    },
}

/// `generation 3 (pid 123)`
impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "generation {} (pid {pid})", self.number),
            None => write!(f, "generation {}", self.number),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::Hup => "received HUP",
            Cause::Control => "restart asked for",
            Cause::Time => "time for an automatic restart",
        })
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Died { how, after } => write!(f, "{how}, {} after its start", seconds(*after)),
            Ended::NotReady { timeout, found: None } => write!(f, "not ready within {}", seconds(*timeout)),
            Ended::NotReady { timeout, found: Some(found) } => {
                write!(f, "not ready within {} (last: {found})", seconds(*timeout))
            }
            Ended::NotStarted(why) => f.write_str(why),
        }
    }
}

impl fmt::Display for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Next::Start { after } if after.is_zero() => f.write_str("starting another at once"),
            Next::Start { after } => write!(f, "starting another in {}", seconds(*after)),
            Next::Starting(who) => write!(f, "{who} is starting already"),
            Next::Nothing => f.write_str("nothing else is started"),
        }
    }
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            News::Asked { cause } => write!(f, "{cause}: starting a new generation"),
            News::Queued { cause, after } => write!(f, "{cause}: another generation will follow {after}"),
            News::TooLate { cause } => write!(f, "{cause}: not done, as the end was asked for before"),
            News::Again => f.write_str("a restart was asked for meanwhile: starting a new generation"),
            News::Started { who } => write!(f, "{who}: started"),
            News::Ready { who, after, older, .. } if older.is_empty() => {
                write!(f, "{who}: ready after {}", seconds(*after))
            }
            News::Ready { who, after, older, delay, signal } if delay.is_zero() => {
                let after = seconds(*after);
                write!(f, "{who}: ready after {after}; stopping {} with {}", all(older), name(*signal))
            }
            News::Ready { who, after, older, delay, signal } => {
                let (after, delay) = (seconds(*after), seconds(*delay));
                write!(f, "{who}: ready after {after}; stopping {} with {} in {delay}", all(older), name(*signal))
            }
            News::HandOver { older, signal } => write!(f, "stopping {} with {}", all(older), name(*signal)),
            News::Failed { who, ended, stays: None, next } => write!(f, "{who}: failed: {ended}; {next}"),
            News::Failed { who, ended, stays: Some(stays), next: Next::Nothing } => {
                write!(f, "{who}: failed: {ended}; {stays} stays")
            }
            News::Failed { who, ended, stays: Some(stays), next } => {
                write!(f, "{who}: failed: {ended}; {stays} stays; {next}")
            }
            News::Relapse { who, stays } => {
                write!(f, "{who}: ended before {stays} was told to stop, which therefore stays")
            }
            News::Died { who, how, served, next } => {
                write!(f, "{who}: ended unexpectedly after {}: {how}; {next}", seconds(*served))
            }
            News::Gone { who, how, after } => write!(f, "{who}: ended by itself after {}: {how}", seconds(*after)),
            News::Stopped { who, how, signal, after } => {
                write!(f, "{who}: ended {} after {}: {how}", seconds(*after), name(*signal))
            }
            News::Killed { who, signal, after } => {
                let after = seconds(*after);
                write!(f, "{who}: still there {after} after {}: killing it and what it started", name(*signal))
            }
            News::Stop { signal, told, .. } if told.is_empty() => write!(f, "received {}", name(*signal)),
            News::Stop { signal, to_send, told } => {
                write!(f, "received {}: stopping {} with {}", name(*signal), all(told), name(*to_send))
            }
            News::StopAgain { signal, left, at_once: true } => {
                write!(f, "received {} again: killing {}", name(*signal), all(left))
            }
            News::StopAgain { signal, left, at_once: false } => {
                write!(f, "received {} again: still waiting for {}", name(*signal), all(left))
            }
        }
    }
}

fn all(who: &[Who]) -> String {
    let names: Vec<String> = who.iter().map(Who::to_string).collect();
    names.join(", ")
}

fn name(signal: Signal) -> String {
    signal_name(signal.as_raw())
}

/// `350ms`, `1.2s`, `2.5h`.
pub(crate) fn seconds(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        _ if seconds <= 0.0 => "0s".to_owned(),
        ..1.0 => format!("{}ms", (seconds * 1e3).ceil()),
        ..120.0 => length(seconds),
        _ => units::time(seconds * 1e9),
    }
}
