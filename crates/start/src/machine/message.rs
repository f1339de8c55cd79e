//! Log messages about the generations, one line per transition.

use std::fmt;
use std::time::Duration;

use oroshi_net::process::signal_name;
use oroshi_words::units::{self, length};
use rustix::process::Signal;

/// The identity of a generation in messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenerationId {
    /// 1 for the first.
    pub number: u64,
    /// Its process, if there was one.
    pub pid: Option<u32>,
}

/// The cause of a new generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The signal HUP.
    Hup,
    /// A request through the control socket.
    Control,
    /// The time (`--enable-auto-restart`).
    Time,
}

/// The reason why a generation did not become, or stay, ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GenerationEnd {
    /// Its process ended.
    Died {
        /// A description of its end.
        how: String,
        /// Time since its start.
        after: Duration,
    },
    /// It was not ready in time.
    NotReady {
        /// The timeout.
        timeout: Duration,
        /// The latest result of probing it.
        found: Option<String>,
    },
    /// No process could be made, for this reason.
    NotStarted(String),
}

/// The consequence of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AfterFailure {
    /// Another start.
    Start {
        /// Delay from now.
        after: Duration,
    },
    /// Another generation is already starting.
    Starting(GenerationId),
    /// No automatic action.
    Nothing,
}

/// A log message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogMessage {
    /// A new generation is requested, and is being started.
    Asked {
        /// The cause.
        cause: Cause,
    },
    /// The request waits for the generation that is starting.
    Queued {
        /// The cause.
        cause: Cause,
        /// The starting generation.
        after: GenerationId,
    },
    /// The request came after the end was requested.
    TooLate {
        /// The cause.
        cause: Cause,
    },
    /// A waiting request is carried out.
    Again,
    /// A generation has a process.
    Started {
        /// The generation.
        who: GenerationId,
    },
    /// A generation is ready.
    Ready {
        /// The generation.
        who: GenerationId,
        /// Time since its start.
        after: Duration,
        /// Older serving generations, which are told to stop.
        older: Vec<GenerationId>,
        /// Delay until then.
        delay: Duration,
        /// The signal for them.
        signal: Signal,
    },
    /// The older generations are told to stop, after the delay.
    HandOver {
        /// The generations.
        older: Vec<GenerationId>,
        /// The signal.
        signal: Signal,
    },
    /// A generation did not become ready.
    Failed {
        /// The generation.
        who: GenerationId,
        /// The reason.
        ended: GenerationEnd,
        /// The generation that keeps serving.
        stays: Option<GenerationId>,
        /// The consequence.
        next: AfterFailure,
    },
    /// A ready generation ended before the older ones were told to stop.
    Relapse {
        /// The generation.
        who: GenerationId,
        /// The generation that keeps serving.
        stays: GenerationId,
    },
    /// The serving generation ended unexpectedly.
    Died {
        /// The generation.
        who: GenerationId,
        /// A description of its end.
        how: String,
        /// Time that it served.
        served: Duration,
        /// The consequence.
        next: AfterFailure,
    },
    /// A generation that was about to be told to stop ended by itself.
    Gone {
        /// The generation.
        who: GenerationId,
        /// A description of its end.
        how: String,
        /// Its age.
        after: Duration,
    },
    /// A generation ended as it was told to.
    Stopped {
        /// The generation.
        who: GenerationId,
        /// A description of its end.
        how: String,
        /// The signal to it.
        signal: Signal,
        /// Time since the signal.
        after: Duration,
    },
    /// A generation did not end in time.
    Killed {
        /// The generation.
        who: GenerationId,
        /// The signal to it.
        signal: Signal,
        /// Time since the signal.
        after: Duration,
    },
    /// The end is requested.
    Stop {
        /// The received signal.
        signal: Signal,
        /// The signal to the generations.
        to_send: Signal,
        /// All generations.
        told: Vec<GenerationId>,
    },
    /// The end is requested again.
    StopAgain {
        /// The received signal.
        signal: Signal,
        /// The remaining generations.
        left: Vec<GenerationId>,
        /// Whether they are killed.
        at_once: bool,
    },
}

/// Prints `generation 3 (pid 123)`.
impl fmt::Display for GenerationId {
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

impl fmt::Display for GenerationEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GenerationEnd::Died { how, after } => write!(f, "{how}, {} after its start", seconds(*after)),
            GenerationEnd::NotReady { timeout, found: None } => write!(f, "not ready within {}", seconds(*timeout)),
            GenerationEnd::NotReady { timeout, found: Some(found) } => {
                write!(f, "not ready within {} (last: {found})", seconds(*timeout))
            }
            GenerationEnd::NotStarted(why) => f.write_str(why),
        }
    }
}

impl fmt::Display for AfterFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AfterFailure::Start { after } if after.is_zero() => f.write_str("starting another at once"),
            AfterFailure::Start { after } => write!(f, "starting another in {}", seconds(*after)),
            AfterFailure::Starting(who) => write!(f, "{who} is starting already"),
            AfterFailure::Nothing => f.write_str("nothing else is started"),
        }
    }
}

impl fmt::Display for LogMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogMessage::Asked { cause } => write!(f, "{cause}: starting a new generation"),
            LogMessage::Queued { cause, after } => write!(f, "{cause}: another generation will follow {after}"),
            LogMessage::TooLate { cause } => write!(f, "{cause}: not done, as the end was asked for before"),
            LogMessage::Again => f.write_str("a restart was asked for meanwhile: starting a new generation"),
            LogMessage::Started { who } => write!(f, "{who}: started"),
            LogMessage::Ready { who, after, older, .. } if older.is_empty() => {
                write!(f, "{who}: ready after {}", seconds(*after))
            }
            LogMessage::Ready { who, after, older, delay, signal } if delay.is_zero() => {
                let after = seconds(*after);
                write!(f, "{who}: ready after {after}; stopping {} with {}", all(older), name(*signal))
            }
            LogMessage::Ready { who, after, older, delay, signal } => {
                let (after, delay) = (seconds(*after), seconds(*delay));
                write!(f, "{who}: ready after {after}; stopping {} with {} in {delay}", all(older), name(*signal))
            }
            LogMessage::HandOver { older, signal } => write!(f, "stopping {} with {}", all(older), name(*signal)),
            LogMessage::Failed { who, ended, stays: None, next } => write!(f, "{who}: failed: {ended}; {next}"),
            LogMessage::Failed { who, ended, stays: Some(stays), next: AfterFailure::Nothing } => {
                write!(f, "{who}: failed: {ended}; {stays} stays")
            }
            LogMessage::Failed { who, ended, stays: Some(stays), next } => {
                write!(f, "{who}: failed: {ended}; {stays} stays; {next}")
            }
            LogMessage::Relapse { who, stays } => {
                write!(f, "{who}: ended before {stays} was told to stop, which therefore stays")
            }
            LogMessage::Died { who, how, served, next } => {
                write!(f, "{who}: ended unexpectedly after {}: {how}; {next}", seconds(*served))
            }
            LogMessage::Gone { who, how, after } => {
                write!(f, "{who}: ended by itself after {}: {how}", seconds(*after))
            }
            LogMessage::Stopped { who, how, signal, after } => {
                write!(f, "{who}: ended {} after {}: {how}", seconds(*after), name(*signal))
            }
            LogMessage::Killed { who, signal, after } => {
                let after = seconds(*after);
                write!(f, "{who}: still there {after} after {}: killing it and what it started", name(*signal))
            }
            LogMessage::Stop { signal, told, .. } if told.is_empty() => write!(f, "received {}", name(*signal)),
            LogMessage::Stop { signal, to_send, told } => {
                write!(f, "received {}: stopping {} with {}", name(*signal), all(told), name(*to_send))
            }
            LogMessage::StopAgain { signal, left, at_once: true } => {
                write!(f, "received {} again: killing {}", name(*signal), all(left))
            }
            LogMessage::StopAgain { signal, left, at_once: false } => {
                write!(f, "received {} again: still waiting for {}", name(*signal), all(left))
            }
        }
    }
}

fn all(who: &[GenerationId]) -> String {
    let names: Vec<String> = who.iter().map(GenerationId::to_string).collect();
    names.join(", ")
}

fn name(signal: Signal) -> String {
    signal_name(signal.as_raw())
}

/// Formats `350ms`, `1.2s`, `2.5h`.
pub(crate) fn seconds(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        _ if seconds <= 0.0 => "0s".to_owned(),
        ..1.0 => format!("{}ms", (seconds * 1e3).ceil()),
        ..120.0 => length(seconds),
        _ => units::time(seconds * 1e9),
    }
}
