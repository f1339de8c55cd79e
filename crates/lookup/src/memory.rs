//! The first tier: answers in this process's memory, shared by all cores. Bounded, without I/O; time is an argument, in
//! milliseconds of any one clock.
//!
//! Values and refusals (no such key, an invalid value) have separate caches, so that unknown keys never evict values.

use std::fmt;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::answer::{Answer, Outcome, Tier};
use crate::cache::{self, Bounds, Cache, Fingerprint, Hit, KeyHash};
use crate::counts::MemoryCounts;
use crate::settings::MemoryTier;
use crate::value::{Protocol, Target, Targets};

/// The memory tier: sharded caches of values and refusals.
#[derive(Debug)]
pub(crate) struct Memory {
    settings: MemoryTier,
    /// The share of a value's TTL after which it is refreshed, in parts of 2^32.
    ask_from: u64,
    key_hash: KeyHash,
    shards: Box<[Shard]>,
    /// The number of purges.
    purges: AtomicU64,
}

/// The state of a key in memory.
#[derive(Debug, PartialEq)]
pub(crate) enum MemoryResult {
    /// A valid answer. `refresh`, set once in a while, asks the caller to refresh it in the background.
    Fresh { answer: Answer, refresh: bool },
    /// Expired targets, as a fallback. Without `ask`, a request to the stores failed too recently to ask again.
    Expired { targets: Targets, age: Duration, ask: bool },
    /// No entry.
    Missing,
}

/// The answer of a store.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StoreAnswer {
    /// These targets.
    Targets(Targets),
    /// No value, or, with a reason, an invalid one.
    Refusal(Option<Arc<str>>),
}

/// A key's entry in memory, for operators.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryEntry {
    /// The tier that answered.
    pub from: Tier,
    /// The targets; `None`: the key has no value; a reason: its value is invalid.
    pub value: Result<Targets, Option<Arc<str>>>,
    /// Time since the answer.
    pub age: Duration,
    /// Time until it expires; zero if it has expired.
    pub ttl_left: Duration,
    /// Time for which it may still be used while the stores are down.
    pub stale_left: Duration,
}

/// One lock's caches. They have cache lines of their own, so that cores do not slow each other down.
#[derive(Debug)]
#[repr(align(128))]
struct Shard(Mutex<Caches>);

#[derive(Debug)]
struct Caches {
    values: Cache<Targets, Note>,
    refusals: Cache<Refusal, Note>,
    counts: MemoryCounts,
}

/// A refusal, with the reason if the value is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Refusal(Option<Arc<str>>);

/// The number of entries that justifies a shard's overhead.
const ENTRIES_PER_SHARD: usize = 1024;
/// The number of shards that [`Fingerprint::choice`] can address. With more, each table would be too small for huge
/// pages.
const SHARDS: usize = 16;

/// Ticks until the next refresh, after one that failed or did not answer.
const RETRY: u32 = 1000_u32.div_ceil(TICK_MS as u32);

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
        let ask_from = (settings.refresh_ahead.unwrap_or(1.0) * (1u64 << 32) as f64) as u64;
        Memory { settings, ask_from, key_hash, shards, purges: AtomicU64::new(0) }
    }

    /// Looks a key up. Reads the clock while the entry is still loading.
    #[inline]
    pub(crate) fn find(&self, key: &str, now: impl Fn() -> u64) -> MemoryResult {
        let (key, mut shard) = self.shard(key);
        let shard = &mut *shard;
        if let Some(hit) = shard.values.get(key) {
            let times = Times::from_word(shard.values.meta(hit));
            let age = times.age(now());
            if age < times.ttl {
                shard.counts.hits += 1;
                let refresh = age >= self.ask_at(&shard.values, hit, times);
                if refresh {
                    ask_again_at(&mut shard.values, hit, times, age.saturating_add(RETRY));
                    shard.counts.refreshes += 1;
                }
                return MemoryResult::Fresh {
                    answer: fresh(Outcome::Hit(shard.values.value(hit)), age, times),
                    refresh,
                };
            }
            if duration(age) < duration(times.ttl) + self.settings.stale_if_error {
                shard.counts.expired += 1;
                let ask = age >= self.ask_at(&shard.values, hit, times);
                return MemoryResult::Expired { targets: shard.values.value(hit), age: duration(age), ask };
            }
        } else if let Some(hit) = shard.refusals.get(key) {
            let times = Times::from_word(shard.refusals.meta(hit));
            let age = times.age(now());
            if age < times.ttl {
                shard.counts.negatives += 1;
                let outcome = shard.refusals.value(hit).0.map_or(Outcome::Negative, Outcome::Invalid);
                return MemoryResult::Fresh { answer: fresh(outcome, age, times), refresh: false };
            }
        }
        shard.counts.misses += 1;
        MemoryResult::Missing
    }

    /// Keeps a store's answer, and returns for how long. Skips an answer that may predate a purge, that is, if a purge
    /// came since `purges` was read. `chance`, between 0 and 1, selects the jitter.
    pub(crate) fn keep(
        &self,
        key: &str,
        said: &StoreAnswer,
        from: Tier,
        now: u64,
        chance: f64,
        purges: u64,
    ) -> Duration {
        let (fingerprint, mut shard) = self.shard(key);
        if self.purges() != purges {
            return Duration::ZERO;
        }
        let jitter = 1.0 + self.settings.jitter * (2.0 * chance - 1.0);
        let note = Note::new(from);
        match said {
            StoreAnswer::Targets(targets) => {
                let ttl = self.settings.ttl.mul_f64(jitter);
                let meta = Times::new(now, ttl).to_word();
                shard.refusals.remove(fingerprint);
                shard.values.insert(fingerprint, key.as_bytes(), targets.clone(), meta, note);
                ttl
            }
            StoreAnswer::Refusal(reason) => {
                let ttl = self.settings.negative_ttl.mul_f64(jitter);
                let meta = Times::new(now, ttl).to_word();
                shard.values.remove(fingerprint);
                shard.refusals.insert(fingerprint, key.as_bytes(), Refusal(reason.clone()), meta, note);
                ttl
            }
        }
    }

    /// Notes that no store could answer: the expired value is used for a moment without asking again.
    pub(crate) fn could_not_ask(&self, key: &str, now: u64) {
        let (key, mut shard) = self.shard(key);
        if let Some(hit) = shard.values.peek(key) {
            let times = Times::from_word(shard.values.meta(hit));
            ask_again_at(&mut shard.values, hit, times, times.age(now).saturating_add(RETRY));
        }
    }

    /// Returns a key's entry, valid or expired.
    pub(crate) fn peek(&self, key: &str, now: u64) -> Option<MemoryEntry> {
        let (key, shard) = self.shard(key);
        let kept = |value, meta, note: &Note, stale: Duration| {
            let times = Times::from_word(meta);
            let (age, ttl) = (duration(times.age(now)), duration(times.ttl));
            MemoryEntry {
                from: note.from(),
                value,
                age,
                ttl_left: ttl.saturating_sub(age),
                stale_left: (ttl + stale).saturating_sub(age),
            }
        };
        if let Some(hit) = shard.values.peek(key) {
            let (meta, note) = (shard.values.meta(hit), shard.values.note(hit));
            return Some(kept(Ok(shard.values.value(hit)), meta, note, self.settings.stale_if_error));
        }
        let hit = shard.refusals.peek(key)?;
        let (meta, note) = (shard.refusals.meta(hit), shard.refusals.note(hit));
        Some(kept(Err(shard.refusals.value(hit).0), meta, note, Duration::ZERO))
    }

    /// Removes a key, and returns whether it was there.
    pub(crate) fn purge(&self, key: &str) -> bool {
        let (key, mut shard) = self.shard(key);
        self.purges.fetch_add(1, Relaxed);
        let value = shard.values.remove(key).is_some();
        shard.refusals.remove(key).is_some() || value
    }

    /// Removes all keys with this prefix, and returns how many; the empty prefix removes all.
    pub(crate) fn purge_prefix(&self, prefix: &str) -> usize {
        self.purges.fetch_add(1, Relaxed);
        let wanted = |key: &[u8]| !key.starts_with(prefix.as_bytes());
        let shard = |shard: &Shard| {
            let mut shard = lock(shard);
            shard.values.retain(wanted) + shard.refusals.retain(wanted)
        };
        self.shards.iter().map(shard).sum()
    }

    /// Returns a number that changes with each purge.
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
    fn shard(&self, key: &str) -> (Fingerprint, MutexGuard<'_, Caches>) {
        let fingerprint = self.key_hash.of(key.as_bytes());
        (fingerprint, lock(&self.shards[fingerprint.choice() & (self.shards.len() - 1)]))
    }

    /// Returns the age, in ticks, at which to refresh a key.
    #[inline]
    fn ask_at(&self, values: &Cache<Targets, Note>, hit: Hit, times: Times) -> u32 {
        let share = (u64::from(times.ttl) * self.ask_from) >> 32;
        if times.asked { values.note(hit).ask_at() } else { (share as u32).max(1) }
    }
}

/// Locks a shard. No code panics half-way under this lock, so a poisoned lock is safe.
fn lock(shard: &Shard) -> MutexGuard<'_, Caches> {
    shard.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[inline]
fn fresh(outcome: Outcome, age: u32, times: Times) -> Answer {
    Answer { outcome, tier: Tier::Memory, age: duration(age), ttl_left: duration(times.ttl - age) }
}

fn ask_again_at(values: &mut Cache<Targets, Note>, hit: Hit, times: Times, age: u32) {
    values.note_mut(hit).set_ask_at(age);
    values.set_meta(hit, Times { asked: true, ..times }.to_word());
}

/// The first bit of a target's protocol in its word, above address and port.
const PROTOCOL_BIT: u32 = 48;

/// An IPv4 address, the most common target, fits into a word.
impl cache::Value for Targets {
    fn to_word(&self) -> Option<u64> {
        match self {
            Targets::One(Target::V4 { address, port, protocol }) => {
                Some((*protocol as u64) << PROTOCOL_BIT | u64::from(address.to_bits()) << 16 | u64::from(*port))
            }
            _ => None,
        }
    }

    #[inline]
    fn from_word(word: u64) -> Self {
        let protocol = match word >> PROTOCOL_BIT {
            0 => Protocol::Http1,
            1 => Protocol::H2c,
            _ => Protocol::Https,
        };
        Targets::One(Target::V4 { address: Ipv4Addr::from_bits((word >> 16) as u32), port: word as u16, protocol })
    }

    fn heap_bytes(&self) -> usize {
        Targets::heap_bytes(self)
    }
}

/// A refusal without a reason fits into a word.
impl cache::Value for Refusal {
    fn to_word(&self) -> Option<u64> {
        self.0.is_none().then_some(0)
    }

    fn from_word(_: u64) -> Self {
        Refusal(None)
    }

    fn heap_bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |reason| reason.len() + 32)
    }
}

/// The times of an entry in one word: all that a hit needs. Ticks of 32 ms wrap after four years. An entry untouched
/// for that long would look young; this case does not justify a wider entry.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Times {
    since: u32,
    /// Below [`ASKED`], as a year is.
    ttl: u32,
    /// Whether a refresh was started or tried; the note then has the time of the next.
    asked: bool,
}

/// Data of an entry that few hits need. The lower 2 bits are the tier that answered; the others, after a refresh, are
/// the age of the next refresh in units of two ticks.
#[derive(Clone, Copy)]
struct Note(u32);

impl Note {
    fn new(from: Tier) -> Self {
        Note(from as u32)
    }

    fn from(self) -> Tier {
        [Tier::Memory, Tier::Memcached, Tier::Sql, Tier::None][(self.0 & 3) as usize]
    }

    fn ask_at(self) -> u32 {
        self.0 >> 2 << 1
    }

    /// Rounds up: rather later than earlier.
    fn set_ask_at(&mut self, age: u32) {
        self.0 = self.0 & 3 | age.div_ceil(2).min(u32::MAX >> 2) << 2;
    }
}

impl fmt::Debug for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from {}, asked for again at {:?}", self.from(), duration(self.ask_at()))
    }
}

const TICK_MS: u64 = 32;
/// The tolerance for entries from the future, in ticks: half a minute.
const FUTURE: u32 = 1000;
/// The bit for `asked` in the word of a TTL.
const ASKED: u32 = 1 << 31;

impl Times {
    fn new(now: u64, ttl: Duration) -> Self {
        Times { since: (now / TICK_MS) as u32, ttl: ticks(ttl), asked: false }
    }

    fn to_word(self) -> u64 {
        u64::from(self.since) << 32 | u64::from(self.ttl | if self.asked { ASKED } else { 0 })
    }

    #[inline]
    fn from_word(word: u64) -> Self {
        Times { since: (word >> 32) as u32, ttl: word as u32 & !ASKED, asked: word as u32 & ASKED != 0 }
    }

    #[inline]
    fn age(self, now: u64) -> u32 {
        let age = ((now / TICK_MS) as u32).wrapping_sub(self.since);
        // The caller may have read the clock just before the entry was made.
        if age > u32::MAX - FUTURE { 0 } else { age }
    }
}

/// Converts a duration to ticks, at least one, so that no entry expires before it is kept.
fn ticks(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis() / u128::from(TICK_MS)).unwrap_or(u32::MAX).clamp(1, ASKED - 1)
}

#[inline]
fn duration(ticks: u32) -> Duration {
    Duration::from_millis(u64::from(ticks) * TICK_MS)
}

#[cfg(test)]
mod tests;
