//! Counters and gauges of look-ups, for monitoring.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of the latency histogram's buckets; one more bucket has no bound.
pub const LATENCY_BOUNDS: [Duration; 12] = [
    Duration::from_micros(100),
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2_500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_secs(1),
    Duration::from_secs(5),
];

/// Counts of a look-up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LookupCounts {
    /// Counts of the memory tier; all zero without one.
    pub memory: MemoryCounts,
    /// Counts of the memcached tier.
    pub memcached: TierCounts,
    /// Counts of the SQL tier.
    pub sql: TierCounts,
    /// Look-ups that asked a store, including refreshes ahead.
    pub asked: u64,
    /// Of these, look-ups that joined one under way for the same key.
    pub joined: u64,
    /// Of these, look-ups refused as overload.
    pub overloaded: u64,
    /// Of these, look-ups that timed out.
    pub overdue: u64,
    /// Of these, look-ups answered with an expired value.
    pub stale: u64,
    /// Keys being looked up now.
    pub keys_in_flight: u64,
}

/// Counts of the memory tier.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryCounts {
    /// Look-ups that found targets.
    pub hits: u64,
    /// Look-ups of keys known to have no value, or an invalid one.
    pub negatives: u64,
    /// Look-ups that found expired targets to fall back on.
    pub expired: u64,
    /// Look-ups of unknown keys.
    pub misses: u64,
    /// Hits that started a refresh ahead.
    pub refreshes: u64,
    /// Evicted values.
    pub evictions: u64,
    /// Evicted refusals.
    pub negative_evictions: u64,
    /// Values now.
    pub entries: usize,
    /// Bytes of values.
    pub bytes: usize,
    /// Refusals now.
    pub negative_entries: usize,
    /// Bytes of refusals.
    pub negative_bytes: usize,
}

impl MemoryCounts {
    /// Adds the counters, but not the gauges.
    pub(crate) fn add(&mut self, other: &MemoryCounts) {
        self.hits += other.hits;
        self.negatives += other.negatives;
        self.expired += other.expired;
        self.misses += other.misses;
        self.refreshes += other.refreshes;
    }
}

/// Counts of a tier that is a store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TierCounts {
    /// Answers with targets.
    pub hits: u64,
    /// Keys that the store knows to have no value (in memcached: written as such).
    pub negatives: u64,
    /// Keys that the store does not know. Always zero for SQL, where a missing key is a negative.
    pub misses: u64,
    /// Values that are no targets, or no allowed ones.
    pub invalid: u64,
    /// Failed requests, without timeouts.
    pub errors: u64,
    /// Requests that timed out.
    pub timeouts: u64,
    /// Values and refusals written back.
    pub writes: u64,
    /// Failed writes.
    pub write_errors: u64,
    /// Latency of answered requests.
    pub latency: Histogram,
}

/// A latency histogram: counts per bucket of [`LATENCY_BOUNDS`], not cumulative.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// One count for each bound, and one for everything longer.
    pub buckets: [u64; LATENCY_BOUNDS.len() + 1],
    /// The sum of all latencies.
    pub sum: Duration,
}

/// The atomic counterpart of [`TierCounts`].
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) hits: Counter,
    pub(crate) negatives: Counter,
    pub(crate) misses: Counter,
    pub(crate) invalid: Counter,
    pub(crate) errors: Counter,
    pub(crate) timeouts: Counter,
    pub(crate) writes: Counter,
    pub(crate) write_errors: Counter,
    buckets: [Counter; LATENCY_BOUNDS.len() + 1],
    sum_ns: Counter,
}

impl Tally {
    pub(crate) fn took(&self, time: Duration) {
        let bucket = LATENCY_BOUNDS.iter().position(|&bound| time <= bound).unwrap_or(LATENCY_BOUNDS.len());
        self.buckets[bucket].more();
        self.sum_ns.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn counts(&self) -> TierCounts {
        TierCounts {
            hits: self.hits.get(),
            negatives: self.negatives.get(),
            misses: self.misses.get(),
            invalid: self.invalid.get(),
            errors: self.errors.get(),
            timeouts: self.timeouts.get(),
            writes: self.writes.get(),
            write_errors: self.write_errors.get(),
            latency: Histogram {
                buckets: std::array::from_fn(|bucket| self.buckets[bucket].get()),
                sum: Duration::from_nanos(self.sum_ns.get()),
            },
        }
    }
}

/// A counter that any thread may increase.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn more(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
