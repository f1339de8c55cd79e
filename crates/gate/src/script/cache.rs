//! `gate.cache`: values that all cores share, bounded in bytes. One caller makes a missing value while the others wait.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oroshi_script::Data;
use tokio::sync::watch;

/// The longest key, bytes.
pub(crate) const KEY_BYTES: usize = 1024;

/// Each shard has at least this size, bytes, to be worth its lock.
const SHARD_BYTES: usize = 1 << 20;
const MOST_SHARDS: usize = 16;

/// An entry's overhead beside key and value, bytes: its node, its place in the index, and two counters each for key and
/// value.
const ENTRY_BYTES: usize = 128;

/// No index.
const NONE: u32 = u32::MAX;

/// A cache of values that all cores share. It survives reloads.
#[derive(Debug)]
pub(crate) struct Cache {
    shards: Box<[Mutex<Shard>]>,
    hash: RandomState,
    since: Instant,
    bytes: AtomicU64,
}

/// A function's outcome for a key: its results, or the error.
pub(crate) type Outcome = Result<Arc<[Data]>, Arc<str>>;

/// The result of asking for a value that a function can make.
#[derive(Debug)]
pub(crate) enum CacheLookup {
    /// The cached value.
    Known(Arc<Data>),
    /// Another caller makes the value; the outcome arrives here. If the channel closes without one, ask again.
    Made(watch::Receiver<Option<Outcome>>),
    /// The caller that takes this ticket must make the value.
    Make(Option<Ticket>),
}

/// The exclusive right to make a value. Dropping it passes the right to the next caller.
#[derive(Debug)]
pub(crate) struct Ticket {
    cache: Arc<Cache>,
    key: Arc<[u8]>,
    /// Wakes the waiting callers.
    outcome: watch::Sender<Option<Outcome>>,
}

/// Why a value cannot be cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CacheError {
    #[error("the value takes more than {limit} bytes, half of one of the cache's parts")]
    TooLarge { limit: usize },
    #[error("what stands there is not a number")]
    NotANumber,
}

/// The cache's contents and events, as counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheCounts {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) evictions: u64,
}

impl Cache {
    /// Makes a cache of at most this many bytes, including keys.
    pub(crate) fn new(bytes: usize) -> Self {
        let count = (bytes / SHARD_BYTES).clamp(1, MOST_SHARDS);
        let shards = (0..count).map(|_| Mutex::default()).collect();
        Cache { shards, hash: RandomState::new(), since: Instant::now(), bytes: AtomicU64::new(bytes as u64) }
    }

    /// Sets the limit in bytes. The next insertions evict the excess.
    pub(crate) fn set_bytes(&self, bytes: usize) {
        self.bytes.store(bytes as u64, Ordering::Relaxed);
    }

    /// Returns a key's value.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Arc<Data>> {
        self.shard(key).get(key, self.now())
    }

    /// Caches a value until `ttl` is over or room is needed.
    pub(crate) fn set(&self, key: &[u8], value: Data, ttl: Option<Duration>) -> Result<(), CacheError> {
        let value = self.sized(key, value)?;
        self.shard(key).insert(key.into(), value, self.until(ttl), self.limit());
        Ok(())
    }

    /// Removes a key; returns whether it was there.
    pub(crate) fn delete(&self, key: &[u8]) -> bool {
        let mut shard = self.shard(key);
        let is_there = shard.get(key, self.now()).is_some();
        shard.remove(key);
        is_there
    }

    /// Adds to a number and returns the sum. A missing number counts as 0 and is kept for `ttl`.
    pub(crate) fn incr(&self, key: &[u8], more: f64, ttl: Option<Duration>) -> Result<f64, CacheError> {
        let mut shard = self.shard(key);
        if let Some(place) = shard.find(key, self.now()) {
            let node = &mut shard.nodes[place as usize];
            let Data::Number(number) = *node.value else { return Err(CacheError::NotANumber) };
            node.value = Arc::new(Data::Number(number + more));
            shard.move_to_front(place);
            return Ok(number + more);
        }
        let value = SizedValue { bytes: ENTRY_BYTES + key.len(), value: Data::Number(more) };
        shard.insert(key.into(), value, self.until(ttl), self.limit());
        Ok(more)
    }

    /// Asks for a value that the caller can make if it is missing.
    pub(crate) fn ask(self: &Arc<Self>, key: &[u8]) -> CacheLookup {
        let mut shard = self.shard(key);
        if let Some(value) = shard.get(key, self.now()) {
            return CacheLookup::Known(value);
        }
        if let Some(made) = shard.flights.get(key) {
            return CacheLookup::Made(made.clone());
        }
        let (outcome, made) = watch::channel(None);
        let key: Arc<[u8]> = key.into();
        shard.flights.insert(Arc::clone(&key), made);
        CacheLookup::Make(Some(Ticket { cache: Arc::clone(self), key, outcome }))
    }

    /// Returns the counts.
    pub(crate) fn counts(&self) -> CacheCounts {
        let mut sum = CacheCounts::default();
        for shard in &self.shards {
            let shard = locked(shard);
            sum.entries += shard.index.len() as u64;
            sum.bytes += shard.bytes as u64;
            sum.hits += shard.hits;
            sum.misses += shard.misses;
            sum.evictions += shard.evictions;
        }
        sum
    }

    fn shard(&self, key: &[u8]) -> MutexGuard<'_, Shard> {
        locked(&self.shards[self.hash.hash_one(key) as usize % self.shards.len()])
    }

    /// Returns the limit of a shard, bytes.
    fn limit(&self) -> usize {
        self.bytes.load(Ordering::Relaxed) as usize / self.shards.len()
    }

    /// Returns the limit of an entry, bytes.
    pub(crate) fn most(&self) -> usize {
        self.limit() / 2
    }

    fn sized(&self, key: &[u8], value: Data) -> Result<SizedValue, CacheError> {
        let (bytes, limit) = (ENTRY_BYTES + key.len() + value.bytes(), self.most());
        if bytes > limit { Err(CacheError::TooLarge { limit }) } else { Ok(SizedValue { bytes, value }) }
    }

    /// Returns the milliseconds since the cache was made.
    fn now(&self) -> u64 {
        self.since.elapsed().as_millis() as u64
    }

    fn until(&self, ttl: Option<Duration>) -> u64 {
        ttl.map_or(u64::MAX, |ttl| self.now().saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)))
    }
}

impl Ticket {
    /// Returns whether the ticket is for this key.
    pub(crate) fn is_for(&self, key: &[u8]) -> bool {
        *self.key == *key
    }

    /// Completes the ticket with the function's results, and caches the first. A lone `nil` is cached too; `nil`
    /// followed by other values means that there is no value now.
    pub(crate) fn made(self, results: Vec<Data>, ttl: Option<Duration>) -> Result<(), CacheError> {
        let is_failure = matches!(results.first(), None | Some(Data::Nil)) && results.len() > 1;
        let mut kept = Ok(());
        {
            // Later callers find either the value or a new ticket.
            let mut shard = self.cache.shard(&self.key);
            shard.flights.remove(&self.key);
            if !is_failure {
                let sized = self.cache.sized(&self.key, results.first().cloned().unwrap_or(Data::Nil));
                let (until, limit) = (self.cache.until(ttl), self.cache.limit());
                kept = sized.map(|value| shard.insert(Arc::clone(&self.key), value, until, limit));
            }
        }
        self.outcome.send_replace(Some(Ok(results.into())));
        kept
    }

    /// Completes the ticket with an error: nothing is cached, and the waiting callers get the error.
    pub(crate) fn failed(self, why: &str) {
        self.cache.shard(&self.key).flights.remove(&self.key);
        self.outcome.send_replace(Some(Err(why.into())));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // A completed ticket's key may belong to another ticket by now.
        if self.outcome.borrow().is_none() {
            self.cache.shard(&self.key).flights.remove(&self.key);
        }
    }
}

/// A value with the size of its entry.
struct SizedValue {
    bytes: usize,
    value: Data,
}

/// A shard behind one lock: an index, and entries in order of use.
#[derive(Debug)]
struct Shard {
    index: HashMap<Arc<[u8]>, u32>,
    nodes: Vec<Node>,
    /// Free indexes in `nodes`.
    free: Vec<u32>,
    /// The most and the least recently used entry.
    front: u32,
    back: u32,
    bytes: usize,
    /// Values that callers are making.
    flights: HashMap<Arc<[u8]>, watch::Receiver<Option<Outcome>>>,
    hits: u64,
    misses: u64,
    evictions: u64,
}

#[derive(Debug)]
struct Node {
    key: Arc<[u8]>,
    value: Arc<Data>,
    bytes: usize,
    /// Milliseconds on the cache's clock.
    until: u64,
    before: u32,
    after: u32,
}

impl Default for Shard {
    fn default() -> Self {
        Shard {
            index: HashMap::new(),
            nodes: Vec::new(),
            free: Vec::new(),
            front: NONE,
            back: NONE,
            bytes: 0,
            flights: HashMap::new(),
            hits: 0,
            misses: 0,
            evictions: 0,
        }
    }
}

impl Shard {
    /// Returns a key's index; removes an expired entry.
    fn find(&mut self, key: &[u8], now: u64) -> Option<u32> {
        let place = *self.index.get(key)?;
        if self.nodes[place as usize].until <= now {
            self.remove(key);
            return None;
        }
        Some(place)
    }

    fn get(&mut self, key: &[u8], now: u64) -> Option<Arc<Data>> {
        let Some(place) = self.find(key, now) else {
            self.misses += 1;
            return None;
        };
        self.hits += 1;
        self.move_to_front(place);
        Some(Arc::clone(&self.nodes[place as usize].value))
    }

    fn insert(&mut self, key: Arc<[u8]>, SizedValue { bytes, value }: SizedValue, until: u64, limit: usize) {
        self.remove(&key);
        self.bytes += bytes;
        let node = Node { key: Arc::clone(&key), value: Arc::new(value), bytes, until, before: NONE, after: NONE };
        let place = match self.free.pop() {
            Some(place) => {
                self.nodes[place as usize] = node;
                place
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        self.index.insert(key, place);
        self.link(place);
        while self.bytes > limit && self.back != NONE {
            let key = Arc::clone(&self.nodes[self.back as usize].key);
            self.remove(&key);
            self.evictions += 1;
        }
    }

    fn remove(&mut self, key: &[u8]) {
        let Some(place) = self.index.remove(key) else { return };
        self.unlink(place);
        let node = &mut self.nodes[place as usize];
        self.bytes -= node.bytes;
        (node.key, node.value) = (Arc::default(), Arc::new(Data::Nil));
        self.free.push(place);
    }

    fn move_to_front(&mut self, place: u32) {
        if self.front != place {
            self.unlink(place);
            self.link(place);
        }
    }

    fn link(&mut self, place: u32) {
        let after = std::mem::replace(&mut self.front, place);
        let node = &mut self.nodes[place as usize];
        (node.before, node.after) = (NONE, after);
        match after {
            NONE => self.back = place,
            after => self.nodes[after as usize].before = place,
        }
    }

    fn unlink(&mut self, place: u32) {
        let Node { before, after, .. } = self.nodes[place as usize];
        match before {
            NONE => self.front = after,
            before => self.nodes[before as usize].after = after,
        }
        match after {
            NONE => self.back = before,
            after => self.nodes[after as usize].before = before,
        }
    }
}

fn locked(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(value: f64) -> Data {
        Data::Number(value)
    }

    fn text(bytes: usize) -> Data {
        Data::String(vec![b'x'; bytes])
    }

    #[test]
    fn values_are_kept_until_their_time_is_over() {
        let mut shard = Shard::default();
        let value = |value| SizedValue { bytes: 100, value };
        shard.insert((*b"a").into(), value(number(1.0)), 1000, usize::MAX);
        shard.insert((*b"b").into(), value(number(2.0)), u64::MAX, usize::MAX);
        assert_eq!(shard.get(b"a", 999).as_deref(), Some(&number(1.0)));
        assert_eq!(shard.get(b"a", 1000), None);
        assert_eq!(shard.get(b"b", u64::MAX - 1).as_deref(), Some(&number(2.0)));
        assert_eq!((shard.bytes, shard.index.len(), shard.hits, shard.misses), (100, 1, 2, 1));
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let mut shard = Shard::default();
        for n in 0..10u8 {
            shard.insert([n].into(), SizedValue { bytes: 100, value: Data::Nil }, u64::MAX, 1000);
        }
        assert!(shard.get(&[0], 0).is_some());
        shard.insert((*b"new").into(), SizedValue { bytes: 250, value: Data::Nil }, u64::MAX, 1000);
        let there: Vec<u8> = (0..10).filter(|n| shard.index.contains_key(&[*n][..])).collect();
        assert_eq!((there, shard.bytes, shard.evictions), (vec![0, 4, 5, 6, 7, 8, 9], 950, 3));
        // Replaces another value.
        shard.insert((*b"new").into(), SizedValue { bytes: 50, value: Data::Nil }, u64::MAX, 1000);
        assert_eq!((shard.bytes, shard.index.len()), (750, 8));
    }

    #[test]
    fn bytes_are_bounded_and_nothing_too_large_is_kept() {
        let cache = Cache::new(1 << 20);
        for n in 0..10_000 {
            cache.set(format!("{n}").as_bytes(), text(1000), None).unwrap();
        }
        let counts = cache.counts();
        assert!(counts.bytes <= 1 << 20 && counts.entries > 800, "{counts:?}");
        assert_eq!(counts.evictions + counts.entries, 10_000);
        let refused = cache.set(b"large", text(1 << 20), None);
        assert!(matches!(refused, Err(CacheError::TooLarge { limit: 524_288 })), "{refused:?}");
        assert!(cache.get(b"9999").is_some() && cache.get(b"0").is_none());
        cache.set_bytes(100_000);
        cache.set(b"one more", number(1.0), None).unwrap();
        assert!(cache.counts().bytes <= 100_000);
    }

    #[test]
    fn numbers_are_added_up_by_many_threads() {
        let cache = Arc::new(Cache::new(32 << 20));
        let add = |_| {
            let cache = Arc::clone(&cache);
            std::thread::spawn(move || {
                for n in 0..10_000 {
                    cache.incr(format!("{}", n % 10).as_bytes(), 1.0, None).unwrap();
                }
            })
        };
        let threads: Vec<_> = (0..4).map(add).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        for n in 0..10 {
            assert_eq!(cache.get(n.to_string().as_bytes()).as_deref(), Some(&number(4000.0)));
        }
        cache.set(b"text", text(1), None).unwrap();
        assert_eq!(cache.incr(b"text", 1.0, None), Err(CacheError::NotANumber));
        assert!(cache.delete(b"text") && !cache.delete(b"text"));
    }

    #[test]
    fn a_value_is_made_once() {
        let cache = Arc::new(Cache::new(1 << 20));
        let CacheLookup::Make(Some(ticket)) = cache.ask(b"k") else { panic!() };
        let CacheLookup::Made(waiting) = cache.ask(b"k") else { panic!() };
        ticket.made(vec![number(7.0)], None).unwrap();
        assert_eq!(waiting.borrow().clone(), Some(Ok([number(7.0)].into())));
        assert!(matches!(cache.ask(b"k"), CacheLookup::Known(value) if *value == number(7.0)));
    }

    #[test]
    fn what_failed_is_told_and_not_kept_and_who_goes_is_replaced() {
        let cache = Arc::new(Cache::new(1 << 20));
        let CacheLookup::Make(Some(ticket)) = cache.ask(b"k") else { panic!() };
        let CacheLookup::Made(waiting) = cache.ask(b"k") else { panic!() };
        ticket.failed("down");
        assert_eq!(waiting.borrow().clone(), Some(Err("down".into())));

        let CacheLookup::Make(Some(ticket)) = cache.ask(b"k") else { panic!() };
        let CacheLookup::Made(waiting) = cache.ask(b"k") else { panic!() };
        drop(ticket);
        assert!(waiting.has_changed().is_err() && waiting.borrow().is_none(), "it has gone");

        // A failure that the function returns itself.
        let CacheLookup::Make(Some(ticket)) = cache.ask(b"k") else { panic!() };
        ticket.made(vec![Data::Nil, Data::String(b"down".to_vec())], None).unwrap();
        // Absence is cached, too.
        let CacheLookup::Make(Some(ticket)) = cache.ask(b"k") else { panic!("nothing was kept") };
        ticket.made(vec![Data::Nil], None).unwrap();
        assert!(matches!(cache.ask(b"k"), CacheLookup::Known(value) if *value == Data::Nil));
    }
}
