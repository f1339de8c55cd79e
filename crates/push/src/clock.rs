//! The clock of one thread: it counts ticks, so that a session stores a time in four bytes.

use std::cell::Cell;
use std::time::Duration;

use oroshi_core::{sweep_pause, ticks};

use crate::plan::Limits;

/// Ticks since the thread began. The sweep advances it.
#[derive(Debug)]
pub(crate) struct Clock {
    now: Cell<u32>,
    tick: Duration,
}

impl Clock {
    /// Creates a clock whose tick is an eighth of the shortest limit, between 10 ms and 1 s.
    pub(crate) fn new(limits: &Limits) -> Self {
        let all = [
            limits.idle,
            limits.ping,
            Some(limits.pong),
            Some(limits.write),
            Some(limits.poll_absence),
            Some(limits.close),
        ];
        let shortest = all.into_iter().flatten().min().unwrap_or(Duration::MAX);
        let tick = sweep_pause(shortest, (Duration::from_millis(10), Duration::from_secs(1)));
        // 0 is never, for the times of sessions.
        Clock { now: Cell::new(1), tick }
    }

    /// Returns the tick of the last sweep.
    pub(crate) fn now(&self) -> u32 {
        self.now.get()
    }

    /// Returns the length of a tick.
    pub(crate) fn tick(&self) -> Duration {
        self.tick
    }

    /// Returns the first tick that is at least `time` later.
    pub(crate) fn after(&self, time: Duration) -> u32 {
        self.now.get().saturating_add(self.ticks(time)).saturating_add(1)
    }

    /// Converts a time to ticks, rounded up.
    pub(crate) fn ticks(&self, time: Duration) -> u32 {
        u32::try_from(ticks(time, self.tick)).unwrap_or(u32::MAX)
    }

    /// Begins the next tick.
    pub(crate) fn advance(&self) {
        self.now.set(self.now.get().saturating_add(1));
    }
}
