//! Counters of a target on one core: one writer, any number of readers.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::failure::Failure;

/// Upper bounds of the latency buckets, in microseconds. One more bucket holds everything slower.
pub const LATENCY_BOUNDS_US: [u64; 14] = [
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 10_000_000,
];

const BUCKETS: usize = LATENCY_BOUNDS_US.len() + 1;

/// Figures of a target, as [`Counters`] or as [`Counts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(128))]
pub struct TargetFigures<N> {
    /// Requests for which the balancer chose this target. A retry on another target counts at both.
    pub requests: N,
    /// Final responses whose head arrived, with any status.
    pub answers: N,
    /// Responses with a status of 500 to 599.
    pub server_errors: N,
    /// Connections opened.
    pub connects: N,
    /// TLS handshakes that succeeded.
    pub handshakes: N,
    /// Of these, those that resumed an earlier session.
    pub resumed: N,
    /// Requests on connections that had carried others.
    pub reuses: N,
    /// Idle connections found closed, at reuse or by the sweeper.
    pub stale: N,
    /// Requests retried on another connection.
    pub retries: N,
    /// Ejections of the target.
    pub ejections: N,
    /// Open connections and connections being made, including idle ones.
    pub open: N,
    /// Idle connections.
    pub idle: N,
    /// Requests that wait for a connection.
    pub queued: N,
    /// The number of cores that eject the target, as of the last failure, response or sweep there (each second).
    pub ejected: N,
    /// Bytes of response bodies.
    pub bytes: N,
    /// Failures, in the order of [`Failure::ALL`].
    pub failures: [N; Failure::ALL.len()],
    /// Responses by the time from the request's first byte to the end of the response's head, per bucket of
    /// [`LATENCY_BOUNDS_US`]. Not cumulative.
    pub latency: [N; BUCKETS],
    /// The sum of these times, in microseconds.
    pub latency_us: N,
}

/// One core's counters of one target, on cache lines of their own.
pub type Counters = TargetFigures<Counter>;

/// Counts of a target, on one core or more. Add them with `+=`.
pub type Counts = TargetFigures<u64>;

impl<N> TargetFigures<N> {
    /// Combines each figure with the same one of `other`.
    fn zip<M, O>(&self, other: &TargetFigures<M>, combine: impl Fn(&N, &M) -> O) -> TargetFigures<O> {
        TargetFigures {
            requests: combine(&self.requests, &other.requests),
            answers: combine(&self.answers, &other.answers),
            server_errors: combine(&self.server_errors, &other.server_errors),
            connects: combine(&self.connects, &other.connects),
            handshakes: combine(&self.handshakes, &other.handshakes),
            resumed: combine(&self.resumed, &other.resumed),
            reuses: combine(&self.reuses, &other.reuses),
            stale: combine(&self.stale, &other.stale),
            retries: combine(&self.retries, &other.retries),
            ejections: combine(&self.ejections, &other.ejections),
            open: combine(&self.open, &other.open),
            idle: combine(&self.idle, &other.idle),
            queued: combine(&self.queued, &other.queued),
            ejected: combine(&self.ejected, &other.ejected),
            bytes: combine(&self.bytes, &other.bytes),
            failures: std::array::from_fn(|place| combine(&self.failures[place], &other.failures[place])),
            latency: std::array::from_fn(|place| combine(&self.latency[place], &other.latency[place])),
            latency_us: combine(&self.latency_us, &other.latency_us),
        }
    }
}

impl Counters {
    /// Reads the current counts, one after the other.
    pub fn counts(&self) -> Counts {
        self.zip(self, |cell, _| cell.get())
    }

    pub(crate) fn count_failure(&self, failure: Failure) {
        self.failures[failure as usize].add(1);
    }

    pub(crate) fn count_latency(&self, ns: u64) {
        let us = ns / 1_000;
        let bucket = LATENCY_BOUNDS_US.iter().position(|&bound| us <= bound).unwrap_or(BUCKETS - 1);
        self.latency[bucket].add(1);
        self.latency_us.add(us);
    }
}

impl Counts {
    /// Returns the count of one failure.
    pub fn failure(&self, failure: Failure) -> u64 {
        self.failures[failure as usize]
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        *self = self.zip(&other, |mine, others| mine + others);
    }
}

/// A counter with one writer and any number of readers, updated by a plain load and store.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.set(self.get() + count);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_add_up_and_latencies_fall_into_their_buckets() {
        let (one, two) = (Counters::default(), Counters::default());
        for (counters, ns) in [(&one, 250_000), (&one, 250_999), (&one, 251_000), (&two, u64::MAX)] {
            counters.count_latency(ns);
            counters.requests.add(1);
            counters.count_failure(Failure::HeadTimeout);
        }
        let mut sum = one.counts();
        sum += two.counts();
        assert_eq!((sum.requests, sum.failure(Failure::HeadTimeout)), (4, 4));
        assert_eq!((sum.latency[0], sum.latency[1], sum.latency[BUCKETS - 1]), (2, 1, 1));
        assert_eq!(sum.latency.iter().sum::<u64>(), 4);
    }

    #[test]
    fn failures_are_listed_in_their_order() {
        for (place, failure) in Failure::ALL.into_iter().enumerate() {
            assert_eq!(failure as usize, place, "{failure}");
        }
    }
}
