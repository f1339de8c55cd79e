//! A limit of connections that the servers of several cores share.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::log_throttle::LogThrottle;

/// The shortest time between two calls of [`Capacity::with_report`]'s function.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// A limit of connections over all servers that share it. It keeps descriptors free for other uses: operators,
/// upstreams, files.
#[derive(Debug)]
pub struct Capacity {
    most: usize,
    held: AtomicUsize,
    waiting: AtomicUsize,
    unproven: AtomicUsize,
    reporter: Option<Reporter>,
}

/// A report of [`Capacity::with_report`]: the capacity is full, and a client waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapacityReport {
    /// The number of connections.
    pub held: usize,
    /// The maximum of connections.
    pub most: usize,
    /// Connections ended to make room since the last report.
    pub ended: u64,
}

/// The function that gets the reports, and the time of the last one.
struct Reporter {
    throttle: Mutex<LogThrottle>,
    report: Box<dyn Fn(CapacityReport) + Send + Sync>,
}

impl Capacity {
    /// Creates a capacity of `most` connections. Each listener of each core may hold one more, which it has accepted
    /// and which waits for its permit.
    #[must_use]
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Capacity::with(most, None))
    }

    /// As [`new`](Self::new). Calls `report` when a client waits and the capacity is full, at most once in ten seconds.
    #[must_use]
    pub fn with_report(most: usize, report: impl Fn(CapacityReport) + Send + Sync + 'static) -> Arc<Self> {
        let reporter = Reporter { throttle: Mutex::new(LogThrottle::every(REPORT_EVERY)), report: Box::new(report) };
        Arc::new(Capacity::with(most, Some(reporter)))
    }

    fn with(most: usize, reporter: Option<Reporter>) -> Self {
        let none = AtomicUsize::default;
        Capacity { most, held: none(), waiting: none(), unproven: none(), reporter }
    }

    /// Takes a permit, if one is free. Dropping it frees it.
    pub(crate) fn try_acquire(self: &Arc<Self>) -> Option<Permit> {
        let more = |held: usize| (held < self.most).then_some(held + 1);
        self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Permit(Arc::clone(self)))
    }

    /// Takes a permit even if none is free: at the shutdown, for clients that are connected from their point of view.
    pub(crate) fn acquire_beyond(self: &Arc<Self>) -> Permit {
        self.held.fetch_add(1, Ordering::Relaxed);
        Permit(Arc::clone(self))
    }

    /// Returns the maximum of connections.
    #[must_use]
    pub fn most(&self) -> usize {
        self.most
    }

    /// Returns the number of connections.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether the maximum is reached.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.held() >= self.most
    }

    /// Whether a client waits for a permit.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Counts a waiting client for as long as the guard lives.
    pub(crate) fn wait_for_permit(&self) -> WaitingClient<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        WaitingClient(self)
    }

    /// Whether there are unproven connections: no handler has vouched for them yet.
    pub(crate) fn has_unproven(&self) -> bool {
        self.unproven.load(Ordering::Relaxed) > 0
    }

    /// Counts one more unproven connection.
    pub(crate) fn add_unproven(&self) {
        self.unproven.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes an unproven connection that has ended, or that a handler has vouched for.
    pub(crate) fn remove_unproven(&self) {
        self.unproven.fetch_sub(1, Ordering::Relaxed);
    }

    /// Reports, at most every [`REPORT_EVERY`], that a client waits while the capacity is full. `ended` is the number
    /// of connections just ended to make room.
    pub(crate) fn report_full(&self, ended: usize) {
        let Some(Reporter { throttle, report }) = self.reporter.as_ref().filter(|_| self.is_full()) else { return };
        let due = throttle.lock().unwrap_or_else(PoisonError::into_inner).add(ended as u64, Instant::now());
        if let Some(ended) = due {
            report(CapacityReport { held: self.held(), most: self.most, ended });
        }
    }
}

impl fmt::Debug for Reporter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Reporter").field("throttle", &self.throttle).finish_non_exhaustive()
    }
}

/// A connection's permit from a [`Capacity`].
#[derive(Debug)]
pub struct Permit(Arc<Capacity>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A client that waits for a permit.
#[derive(Debug)]
pub(crate) struct WaitingClient<'r>(&'r Capacity);

impl Drop for WaitingClient<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_never_more_than_there_may_be() {
        const MOST: usize = 3;
        let capacity = Capacity::new(MOST);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let permit = capacity.try_acquire();
                        assert!(capacity.held() <= MOST, "{} of {MOST}", capacity.held());
                        drop(permit);
                    }
                });
            }
        });
        assert_eq!(capacity.held(), 0);
        let permits: Vec<_> = (0..5).map_while(|_| capacity.try_acquire()).collect();
        assert_eq!((permits.len(), capacity.is_full()), (MOST, true));
    }

    #[test]
    fn a_full_capacity_is_reported_once_with_what_was_ended() {
        let reports = Arc::new(Mutex::new(Vec::new()));
        let reported = Arc::clone(&reports);
        let capacity = Capacity::with_report(1, move |report| reported.lock().unwrap().push(report));
        capacity.report_full(1);
        assert!(reports.lock().unwrap().is_empty(), "there is room");
        let _permit = capacity.acquire_beyond();
        (0..1000).for_each(|_| capacity.report_full(1));
        assert_eq!(*reports.lock().unwrap(), [CapacityReport { held: 1, most: 1, ended: 1 }]);
    }
}
