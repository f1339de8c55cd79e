//! One generation: its process, and how far it is.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::Who;

/// A generation as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// 1 for the first.
    pub number: u64,
    /// The process that was started.
    pub pid: u32,
    /// When.
    pub started: Instant,
    /// When it was ready, if it ever was.
    pub ready: Option<Instant>,
    /// How far it is.
    pub stage: Stage,
    /// While it serves beside a newer one: when it is told to stop.
    pub(super) hand_over_at: Option<Instant>,
    /// What was last found when it was asked.
    pub(super) found: Option<String>,
}

/// How far a generation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It was started, and is not ready yet.
    Starting {
        /// When it is ready, or has failed.
        until: Instant,
    },
    /// It does its work.
    Serving,
    /// It was told to end, or killed.
    Stopping {
        /// When.
        since: Instant,
        /// By what.
        signal: Signal,
        /// When it will be killed.
        kill_at: Option<Instant>,
        /// Whether it was killed.
        killed: bool,
    },
}

impl Generation {
    /// Its number and its process.
    pub fn who(&self) -> Who {
        Who { number: self.number, pid: Some(self.pid) }
    }

    /// Whether it does its work, and was not told to end.
    pub fn is_serving(&self) -> bool {
        self.stage == Stage::Serving
    }

    /// Whether it does its work or has done so.
    pub fn was_ready(&self) -> bool {
        self.ready.is_some()
    }

    /// It is told to end.
    pub(super) fn stop(&mut self, now: Instant, signal: Signal, patience: Option<Duration>) {
        // A deadline that was set before stays, unless the new one is earlier.
        let before = if let Stage::Stopping { kill_at, .. } = self.stage { kill_at } else { None };
        let kill_at = patience.map(|patience| later(now, patience)).into_iter().chain(before).min();
        self.stage = Stage::Stopping { since: now, signal, kill_at, killed: false };
    }

    /// It is killed.
    pub(super) fn killed(&mut self, now: Instant) {
        self.stage = Stage::Stopping { since: now, signal: Signal::KILL, kill_at: None, killed: true };
    }
}

/// As `+`, for times that somebody may have set to next to for ever.
pub(super) fn later(instant: Instant, by: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
    instant.checked_add(by).unwrap_or_else(|| instant + CENTURY)
}
