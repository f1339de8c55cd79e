//! One generation: its process, and its stage.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::GenerationId;

/// A generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// 1 for the first.
    pub number: u64,
    /// Its first process.
    pub pid: u32,
    /// Time of its start.
    pub started: Instant,
    /// Time when it became ready, if ever.
    pub ready: Option<Instant>,
    /// Its stage.
    pub stage: Stage,
    /// While it serves beside a newer one: the time to tell it to stop.
    pub(super) hand_over_at: Option<Instant>,
    /// The latest result of probing it.
    pub(super) found: Option<String>,
}

/// The stage of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It has started, and is not ready yet.
    Starting {
        /// The time when it becomes ready, or has failed.
        until: Instant,
    },
    /// It is ready and serves.
    Serving,
    /// It was told to end, or killed.
    Stopping {
        /// Time of the signal.
        since: Instant,
        /// The signal.
        signal: Signal,
        /// Time when it will be killed.
        kill_at: Option<Instant>,
        /// Whether it was killed.
        killed: bool,
    },
}

impl Generation {
    /// Its number and its process.
    pub fn who(&self) -> GenerationId {
        GenerationId { number: self.number, pid: Some(self.pid) }
    }

    /// Whether it is ready and was not told to stop.
    pub fn is_serving(&self) -> bool {
        self.stage == Stage::Serving
    }

    /// Whether it is or was ready.
    pub fn was_ready(&self) -> bool {
        self.ready.is_some()
    }

    /// Marks it as told to stop.
    pub(super) fn stop(&mut self, now: Instant, signal: Signal, patience: Option<Duration>) {
        // An earlier deadline stays.
        let before = if let Stage::Stopping { kill_at, .. } = self.stage { kill_at } else { None };
        let kill_at = patience.map(|patience| later(now, patience)).into_iter().chain(before).min();
        self.stage = Stage::Stopping { since: now, signal, kill_at, killed: false };
    }

    /// Marks it as killed.
    pub(super) fn killed(&mut self, now: Instant) {
        self.stage = Stage::Stopping { since: now, signal: Signal::KILL, kill_at: None, killed: true };
    }
}

/// Adds like `+`, and saturates for very long times.
pub(super) fn later(instant: Instant, by: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
    instant.checked_add(by).unwrap_or_else(|| instant + CENTURY)
}
