//! What has happened so far, for whoever watches: numbers that only grow, and how much there is right now.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The upper ends of a latency histogram's buckets; there is one more, without an end.
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

/// A look-up's numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LookupCounts {
    /// Of the memory tier; all zero where there is none.
    pub memory: MemoryCounts,
    /// Of the memcached tier.
    pub memcached: TierCounts,
    /// Of the SQL tier.
    pub sql: TierCounts,
    /// Look-ups that had to ask a store, refreshes ahead among them.
    pub asked: u64,
    /// Of these, those that found the same key being asked for already.
    pub joined: u64,
    /// Of these, those that were refused because too much was being asked for.
    pub overloaded: u64,
    /// Of these, those whose waiting time ran out before there was an answer.
    pub overdue: u64,
    /// Of these, those that got what had expired.
    pub stale: u64,
    /// Keys that are being asked for now.
    pub keys_in_flight: u64,
}

/// The memory tier's numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryCounts {
    /// Targets that were there.
    pub hits: u64,
    /// Keys known to have none, or an invalid value.
    pub negatives: u64,
    /// Targets that had expired, and were something to fall back on.
    pub expired: u64,
    /// Keys of which nothing was known.
    pub misses: u64,
    /// Hits that caused a refresh ahead.
    pub refreshes: u64,
    /// Values that were pushed out for others.
    pub evictions: u64,
    /// Refusals that were pushed out for others.
    pub negative_evictions: u64,
    /// Values now.
    pub entries: usize,
    /// What they take.
    pub bytes: usize,
    /// Refusals now.
    pub negative_entries: usize,
    /// What they take.
    pub negative_bytes: usize,
}

impl MemoryCounts {
    /// Adds what only grows.
    pub(crate) fn add(&mut self, other: &MemoryCounts) {
        self.hits += other.hits;
        self.negatives += other.negatives;
        self.expired += other.expired;
        self.misses += other.misses;
        self.refreshes += other.refreshes;
    }
}

/// The numbers of a tier that is a store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TierCounts {
    /// Targets that were there.
    pub hits: u64,
    /// Keys that it knows to have none (in memcached: that were written down as such).
    pub negatives: u64,
    /// Keys of which it knows nothing. In SQL that is a negative, so there are none.
    pub misses: u64,
    /// Values that are no targets, or none that are allowed.
    pub invalid: u64,
    /// Requests that came to nothing, those that took too long not among them.
    pub errors: u64,
    /// Requests that took too long.
    pub timeouts: u64,
    /// Values and refusals that were written back to it.
    pub writes: u64,
    /// Those that could not be.
    pub write_errors: u64,
    /// How long requests took that were answered.
    pub latency: Histogram,
}

/// Latencies: how many were up to each of [`LATENCY_BOUNDS`], and how many were longer than all; not cumulative.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// One for each bound, and the rest.
    pub buckets: [u64; LATENCY_BOUNDS.len() + 1],
    /// Their sum.
    pub sum: Duration,
}

/// [`TierCounts`] as they grow.
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

/// A number that any thread may add to.
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
