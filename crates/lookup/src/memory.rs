//! The first tier: answers in this process's memory, shared by all cores. Bounded, without I/O; time is an argument, in
//! milliseconds of any one clock.
//!
//! Values and refusals (no such key, an invalid value) stand in separate caches, so that no number of unknown keys
//! pushes a value out.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::answer::{Answer, Outcome, Tier};
use crate::cache::{Bounds, Cache, HeapBytes, KeyHash};
use crate::counts::MemoryCounts;
use crate::settings::MemoryTier;
use crate::value::Targets;

/// What is kept, and until when.
#[derive(Debug)]
pub(crate) struct Memory {
    settings: MemoryTier,
    key_hash: KeyHash,
    shards: Box<[Shard]>,
    /// How often something was purged.
    purges: AtomicU64,
}

/// What is known of a key.
#[derive(Debug, PartialEq)]
pub(crate) enum Found {
    /// An answer; the key is to be asked for in the background if `refresh`, which is said once in a while.
    Fresh { answer: Answer, refresh: bool },
    /// Targets that have expired, to fall back on; not worth asking for again so soon after a failure if not `ask`.
    Expired { targets: Targets, age: Duration, ask: bool },
    /// Nothing.
    Missing,
}

/// What a store has said.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Said {
    /// These targets.
    Targets(Targets),
    /// Nothing stands there, or, with a reason, nothing that can be used.
    Refusal(Option<Arc<str>>),
}

/// What stands in memory for a key, for those who ask about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// Who said so.
    pub from: Tier,
    /// `None`: nothing stands under the key; a reason: what stands there is invalid.
    pub value: Result<Targets, Option<Arc<str>>>,
    /// How long ago.
    pub age: Duration,
    /// How long it counts from now on; zero if it has expired.
    pub ttl_left: Duration,
    /// How long it is still used if the stores are down, from now on.
    pub stale_left: Duration,
}

/// One lock's worth. By itself on its cache lines, so that cores do not slow each other down.
#[derive(Debug)]
#[repr(align(128))]
struct Shard(Mutex<Caches>);

#[derive(Debug)]
struct Caches {
    values: Cache<Targets, Times>,
    refusals: Cache<Refusal, Times>,
    counts: MemoryCounts,
}

type Refusal = Option<Arc<str>>;

/// A shard is worth its overhead from so many entries on.
const ENTRIES_PER_SHARD: usize = 1024;
const SHARDS: usize = 64;

/// After a refresh that came to nothing, or an answer that did not come, how long until the next one.
const RETRY: Duration = Duration::from_secs(1);

impl Memory {
    pub(crate) fn new(settings: MemoryTier) -> Self {
        let count = (settings.entries / ENTRIES_PER_SHARD).clamp(1, SHARDS).next_power_of_two();
        let share = |entries: usize, bytes: usize| Bounds { entries: entries.div_ceil(count), bytes: bytes / count };
        let key_hash = KeyHash::default();
        let shard = || {
            Shard(Mutex::new(Caches {
                values: Cache::new(share(settings.entries, settings.bytes), key_hash.clone()),
                refusals: Cache::new(share(settings.negative_entries, settings.negative_bytes), key_hash.clone()),
                counts: MemoryCounts::default(),
            }))
        };
        let shards = (0..count).map(|_| shard()).collect();
        Memory { settings, key_hash, shards, purges: AtomicU64::new(0) }
    }

    /// What is known of a key.
    #[inline]
    pub(crate) fn find(&self, key: &str, now: u64) -> Found {
        let (hash, mut shard) = self.shard(key);
        let shard = &mut *shard;
        if let Some((targets, times)) = shard.values.get(hash, key.as_bytes()) {
            let age = times.age(now);
            let targets = || targets.clone();
            if age < times.ttl() {
                shard.counts.hits += 1;
                let refresh = age >= times.ask_at();
                if refresh {
                    times.ask_again_at(age + RETRY);
                    shard.counts.refreshes += 1;
                }
                return Found::Fresh { answer: fresh(Outcome::Hit(targets()), age, times.ttl() - age), refresh };
            }
            if age < times.ttl() + self.settings.stale_if_error {
                shard.counts.expired += 1;
                return Found::Expired { targets: targets(), age, ask: age >= times.ask_at() };
            }
        } else if let Some((refusal, times)) = shard.refusals.get(hash, key.as_bytes()) {
            let age = times.age(now);
            if age < times.ttl() {
                shard.counts.negatives += 1;
                let outcome = refusal.clone().map_or(Outcome::Negative, Outcome::Invalid);
                return Found::Fresh { answer: fresh(outcome, age, times.ttl() - age), refresh: false };
            }
        }
        shard.counts.misses += 1;
        Found::Missing
    }

    /// Keeps what a store has said, unless something was purged since `purges` was read: then it may be older than
    /// that. `chance`, between 0 and 1, decides on the jitter. How long it is kept.
    pub(crate) fn keep(&self, key: &str, said: &Said, from: Tier, now: u64, chance: f64, purges: u64) -> Duration {
        let (hash, mut shard) = self.shard(key);
        if self.purges() != purges {
            return Duration::ZERO;
        }
        let jitter = 1.0 + self.settings.jitter * (2.0 * chance - 1.0);
        match said {
            Said::Targets(targets) => {
                let ttl = self.settings.ttl.mul_f64(jitter);
                let ask_at = self.settings.refresh_ahead.map_or(ttl, |share| ttl.mul_f64(share));
                shard.refusals.remove(hash, key.as_bytes());
                shard.values.insert(hash, key.as_bytes(), targets.clone(), Times::new(now, ttl, ask_at, from));
                ttl
            }
            Said::Refusal(reason) => {
                let ttl = self.settings.negative_ttl.mul_f64(jitter);
                shard.values.remove(hash, key.as_bytes());
                shard.refusals.insert(hash, key.as_bytes(), reason.clone(), Times::new(now, ttl, ttl, from));
                ttl
            }
        }
    }

    /// No store could say anything about a key: what has expired is used for a moment without asking again.
    pub(crate) fn could_not_ask(&self, key: &str, now: u64) {
        let (hash, mut shard) = self.shard(key);
        if let Some((_, times)) = shard.values.get(hash, key.as_bytes()) {
            let age = times.age(now);
            times.ask_again_at(age + RETRY);
        }
    }

    /// What stands there for a key, be it still good or not.
    pub(crate) fn peek(&self, key: &str, now: u64) -> Option<Kept> {
        let (hash, shard) = self.shard(key);
        let kept = |value, times: &Times, stale: Duration| {
            let (age, ttl) = (times.age(now), times.ttl());
            Kept {
                from: times.from,
                value,
                age,
                ttl_left: ttl.saturating_sub(age),
                stale_left: (ttl + stale).saturating_sub(age),
            }
        };
        if let Some((targets, times)) = shard.values.peek(hash, key.as_bytes()) {
            return Some(kept(Ok(targets.clone()), times, self.settings.stale_if_error));
        }
        let (refusal, times) = shard.refusals.peek(hash, key.as_bytes())?;
        Some(kept(Err(refusal.clone()), times, Duration::ZERO))
    }

    /// Forgets a key; whether there was anything.
    pub(crate) fn purge(&self, key: &str) -> bool {
        let (hash, mut shard) = self.shard(key);
        self.purges.fetch_add(1, Relaxed);
        let value = shard.values.remove(hash, key.as_bytes()).is_some();
        shard.refusals.remove(hash, key.as_bytes()).is_some() || value
    }

    /// Forgets all keys that begin so, with an empty prefix all; how many there were.
    pub(crate) fn purge_prefix(&self, prefix: &str) -> usize {
        self.purges.fetch_add(1, Relaxed);
        let wanted = |key: &[u8]| !key.starts_with(prefix.as_bytes());
        let shard = |shard: &Shard| {
            let mut shard = lock(shard);
            shard.values.retain(wanted) + shard.refusals.retain(wanted)
        };
        self.shards.iter().map(shard).sum()
    }

    /// Changes with each purge.
    pub(crate) fn purges(&self) -> u64 {
        self.purges.load(Relaxed)
    }

    pub(crate) fn counts(&self) -> MemoryCounts {
        let mut sum = MemoryCounts::default();
        for shard in &self.shards {
            let shard = lock(shard);
            sum.add(&shard.counts);
            sum.entries += shard.values.len();
            sum.bytes += shard.values.bytes();
            sum.evictions += shard.values.evictions();
            sum.negative_entries += shard.refusals.len();
            sum.negative_bytes += shard.refusals.bytes();
            sum.negative_evictions += shard.refusals.evictions();
        }
        sum
    }

    #[inline]
    fn shard(&self, key: &str) -> (u32, MutexGuard<'_, Caches>) {
        let hash = self.key_hash.of(key.as_bytes());
        (hash as u32, lock(&self.shards[(hash >> 32) as usize & (self.shards.len() - 1)]))
    }
}

/// Nothing that is done under the lock panics half-way, so a poisoned one is as good as another.
fn lock(shard: &Shard) -> MutexGuard<'_, Caches> {
    shard.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn fresh(outcome: Outcome, age: Duration, ttl_left: Duration) -> Answer {
    Answer { outcome, tier: Tier::Memory, age, ttl_left }
}

impl HeapBytes for Targets {
    fn heap_bytes(&self) -> usize {
        Targets::heap_bytes(self)
    }
}

impl HeapBytes for Refusal {
    fn heap_bytes(&self) -> usize {
        self.as_ref().map_or(0, |reason| reason.len() + 32)
    }
}

/// When an entry was fetched and how long it counts, in 13 bytes: in ticks of 32 ms, which go round after four years.
/// An entry that nobody has touched for that long would look young; a process that runs for so long with a cache that
/// is never full is not worth a wider entry.
#[derive(Clone, Copy)]
#[repr(Rust, packed)]
struct Times {
    since: u32,
    ttl: u32,
    /// At which age it is asked for again.
    ask_at: u32,
    from: Tier,
}

const TICK_MS: u64 = 32;
/// Entries may be from so far in the future, in ticks: half a minute.
const FUTURE: u32 = 1000;

impl Times {
    fn new(now: u64, ttl: Duration, ask_at: Duration, from: Tier) -> Self {
        Times { since: (now / TICK_MS) as u32, ttl: ticks(ttl), ask_at: ticks(ask_at), from }
    }

    #[inline]
    fn age(&self, now: u64) -> Duration {
        let age = ((now / TICK_MS) as u32).wrapping_sub(self.since);
        // Whoever asks may have looked at the clock just before the entry was made.
        duration(if age > u32::MAX - FUTURE { 0 } else { age })
    }

    fn ttl(&self) -> Duration {
        duration(self.ttl)
    }

    fn ask_at(&self) -> Duration {
        duration(self.ask_at)
    }

    fn ask_again_at(&mut self, age: Duration) {
        self.ask_at = ticks(age);
    }
}

impl fmt::Debug for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ttl {:?}, asked for again at {:?}, from {}", self.ttl(), self.ask_at(), { self.from })
    }
}

/// At least one, so that nothing has expired before it is kept.
fn ticks(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis() / u128::from(TICK_MS)).unwrap_or(u32::MAX).max(1)
}

fn duration(ticks: u32) -> Duration {
    Duration::from_millis(u64::from(ticks) * TICK_MS)
}

#[cfg(test)]
mod tests;
