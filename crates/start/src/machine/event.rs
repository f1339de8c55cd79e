//! What happens to the machine, and what it wants done.

use rustix::process::Signal;

use super::message::{Cause, GenerationId, LogMessage};

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The superdaemon is set up: begin.
    Begin,
    /// A request for a new generation.
    Restart(Cause),
    /// A request to stop, by this signal. A second INT ends everything at once.
    Stop(Signal),
    /// The requested generation has a process.
    Started {
        /// Its number.
        number: u64,
        /// Its process.
        pid: u32,
    },
    /// The requested generation could not be started.
    NotStarted {
        /// Its number.
        number: u64,
        /// The reason.
        why: String,
    },
    /// A generation is ready.
    Ready {
        /// Its number.
        number: u64,
    },
    /// The latest result of probing a generation.
    Found {
        /// Its number.
        number: u64,
        /// The result as text.
        what: String,
    },
    /// A process has ended.
    Exited {
        /// The process; unknown ones are ignored.
        pid: u32,
        /// A description of its end.
        how: String,
        /// Its exit code; `None` where a signal ended it.
        code: Option<i32>,
    },
    /// A time from [`Machine::due`](super::Machine::due) has passed.
    Due,
}

/// An action, to be carried out in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start a generation, and report [`Event::Started`] or [`Event::NotStarted`] before anything else.
    Start {
        /// Its number, used up even if the start fails.
        number: u64,
    },
    /// Send a signal to a generation's process.
    Signal {
        /// The process.
        pid: u32,
        /// The signal.
        signal: Signal,
    },
    /// Kill the process and everything below it.
    Kill {
        /// The process.
        pid: u32,
    },
    /// Rewrite the status file.
    Write,
    /// Log this.
    Log(LogMessage),
    /// The result of a restart, or of the first start.
    Verdict(Verdict),
    /// Everything is done: exit.
    Leave,
}

/// The result of an attempt to start a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is ready, and older ones are told to stop, at once or after the delay.
    Ready(GenerationId),
    /// It has failed.
    Failed {
        /// Its number.
        number: u64,
        /// The reason.
        why: String,
        /// The generation that keeps serving, if any.
        stays: Option<GenerationId>,
        /// Whether another attempt follows automatically.
        again: bool,
    },
}
