//! Counters of a target on one core: one writer, any number of readers.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::failure::Failure;

/// Upper bounds of the latency buckets, in microseconds. One more bucket holds everything slower.
pub const LATENCY_BOUNDS_US: [u64; 14] = [
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 10_000_000,
];

const BUCKETS: usize = LATENCY_BOUNDS_US.len() + 1;

/// One core's counters of one target, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    pub(crate) requests: Counter,
    pub(crate) answers: Counter,
    pub(crate) server_errors: Counter,
    pub(crate) connects: Counter,
    pub(crate) reuses: Counter,
    pub(crate) stale: Counter,
    pub(crate) retries: Counter,
    pub(crate) ejections: Counter,
    pub(crate) open: Counter,
    pub(crate) idle: Counter,
    pub(crate) queued: Counter,
    pub(crate) ejected: Counter,
    pub(crate) bytes: Counter,
    failures: [Counter; Failure::ALL.len()],
    latency: [Counter; BUCKETS],
    latency_us: Counter,
}

impl Counters {
    /// Reads the current counts, one after the other.
    pub fn counts(&self) -> Counts {
        Counts {
            requests: self.requests.get(),
            answers: self.answers.get(),
            server_errors: self.server_errors.get(),
            connects: self.connects.get(),
            reuses: self.reuses.get(),
            stale: self.stale.get(),
            retries: self.retries.get(),
            ejections: self.ejections.get(),
            open: self.open.get(),
            idle: self.idle.get(),
            queued: self.queued.get(),
            ejected: self.ejected.get(),
            bytes: self.bytes.get(),
            failures: std::array::from_fn(|place| self.failures[place].get()),
            latency: std::array::from_fn(|place| self.latency[place].get()),
            latency_us: self.latency_us.get(),
        }
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

/// Counts of a target, on one core or more. Add them with `+=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests for which the balancer chose this target. A retry on another target counts at both.
    pub requests: u64,
    /// Final responses whose head arrived, with any status.
    pub answers: u64,
    /// Responses with a status of 500 to 599.
    pub server_errors: u64,
    /// Connections opened.
    pub connects: u64,
    /// Requests on connections that had carried others.
    pub reuses: u64,
    /// Idle connections found closed, at reuse or by the sweeper.
    pub stale: u64,
    /// Requests retried on another connection.
    pub retries: u64,
    /// Ejections of the target.
    pub ejections: u64,
    /// Open connections and connections being made, including idle ones.
    pub open: u64,
    /// Idle connections.
    pub idle: u64,
    /// Requests that wait for a connection.
    pub queued: u64,
    /// The number of cores that eject the target, as of the last failure, response or sweep there (each second).
    pub ejected: u64,
    /// Bytes of response bodies.
    pub bytes: u64,
    /// Failures, in the order of [`Failure::ALL`].
    pub failures: [u64; Failure::ALL.len()],
    /// Responses by the time from the request's first byte to the end of the response's head, per bucket of
    /// [`LATENCY_BOUNDS_US`]. Not cumulative.
    pub latency: [u64; BUCKETS],
    /// The sum of these times, in microseconds.
    pub latency_us: u64,
}

impl Counts {
    /// Returns the count of one failure.
    pub fn failure(&self, failure: Failure) -> u64 {
        self.failures[failure as usize]
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        let Counts {
            requests,
            answers,
            server_errors,
            connects,
            reuses,
            stale,
            retries,
            ejections,
            open,
            idle,
            queued,
            ejected,
            bytes,
            failures,
            latency,
            latency_us,
        } = other;
        self.requests += requests;
        self.answers += answers;
        self.server_errors += server_errors;
        self.connects += connects;
        self.reuses += reuses;
        self.stale += stale;
        self.retries += retries;
        self.ejections += ejections;
        self.open += open;
        self.idle += idle;
        self.queued += queued;
        self.ejected += ejected;
        self.bytes += bytes;
        self.latency_us += latency_us;
        for (mine, others) in self.failures.iter_mut().zip(failures).chain(self.latency.iter_mut().zip(latency)) {
            *mine += others;
        }
    }
}

/// A counter with one writer and any number of readers, updated by a plain load and store.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

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
