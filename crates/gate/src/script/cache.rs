//! `gate.cache`: values that all cores share, bounded in bytes. Who is asked for a value that is not there is asked once, however many wait.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oroshi_script::Data;
use tokio::sync::watch;

/// The longest key, bytes.
pub(crate) const KEY_BYTES: usize = 1024;

/// A shard is worth its lock from so many bytes on.
const SHARD_BYTES: usize = 1 << 20;
const MOST_SHARDS: usize = 16;

/// What an entry takes beside its key and its value, bytes: its node, its place in the index, and two counters each for key and value.
const ENTRY_BYTES: usize = 128;

/// No place.
const NONE: u32 = u32::MAX;

/// The values. They stay over reloads.
#[derive(Debug)]
pub(crate) struct Cache {
    shards: Box<[Mutex<Shard>]>,
    hash: RandomState,
    since: Instant,
    bytes: AtomicU64,
}

/// What a function has given for a key: its results, or why it failed.
pub(crate) type Outcome = Result<Arc<[Data]>, Arc<str>>;

/// What comes of asking for a value that a function can make.
#[derive(Debug)]
pub(crate) enum Asked {
    /// Here it is.
    Known(Arc<Data>),
    /// Somebody makes it: their outcome comes here. If there is none, they have gone, and it is to be asked for again.
    Made(watch::Receiver<Option<Outcome>>),
    /// It is to be made; by whoever takes this.
    Make(Option<Ticket>),
}

/// The right to make a value, which nobody else has meanwhile. Dropping it gives it to the next who asks.
#[derive(Debug)]
pub(crate) struct Ticket {
    cache: Arc<Cache>,
    key: Arc<[u8]>,
    /// Those who wait.
    outcome: watch::Sender<Option<Outcome>>,
}

/// Why a value is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CacheError {
    #[error("the value takes more than {limit} bytes, half of one of the cache's parts")]
    TooLarge { limit: usize },
    #[error("what stands there is not a number")]
    NotANumber,
}

/// What it holds, and what has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheCounts {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) evictions: u64,
}

impl Cache {
    /// A cache of at most so many bytes, keys among them.
    pub(crate) fn new(bytes: usize) -> Self {
        let count = (bytes / SHARD_BYTES).clamp(1, MOST_SHARDS);
        let shards = (0..count).map(|_| Mutex::default()).collect();
        Cache { shards, hash: RandomState::new(), since: Instant::now(), bytes: AtomicU64::new(bytes as u64) }
    }

    /// Changes how many bytes it may have. What is too much goes when something comes.
    pub(crate) fn set_bytes(&self, bytes: usize) {
        self.bytes.store(bytes as u64, Ordering::Relaxed);
    }

    /// A key's value.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Arc<Data>> {
        self.shard(key).get(key, self.now())
    }

    /// Keeps a value, for some time or until there is no room for it.
    pub(crate) fn set(&self, key: &[u8], value: Data, ttl: Option<Duration>) -> Result<(), CacheError> {
        let value = self.sized(key, value)?;
        self.shard(key).insert(key.into(), value, self.until(ttl), self.limit());
        Ok(())
    }

    /// Forgets a key; whether there was anything.
    pub(crate) fn delete(&self, key: &[u8]) -> bool {
        let mut shard = self.shard(key);
        let is_there = shard.get(key, self.now()).is_some();
        shard.remove(key);
        is_there
    }

    /// Adds to a number, and gives the sum. One that is not there is 0, and is kept for `ttl`.
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

    /// Asks for a value that is made if it is not there.
    pub(crate) fn ask(self: &Arc<Self>, key: &[u8]) -> Asked {
        let mut shard = self.shard(key);
        if let Some(value) = shard.get(key, self.now()) {
            return Asked::Known(value);
        }
        if let Some(made) = shard.flights.get(key) {
            return Asked::Made(made.clone());
        }
        let (outcome, made) = watch::channel(None);
        let key: Arc<[u8]> = key.into();
        shard.flights.insert(Arc::clone(&key), made);
        Asked::Make(Some(Ticket { cache: Arc::clone(self), key, outcome }))
    }

    /// What it holds, and what has happened.
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

    /// What a shard may have, bytes.
    fn limit(&self) -> usize {
        self.bytes.load(Ordering::Relaxed) as usize / self.shards.len()
    }

    /// What an entry may take, bytes.
    pub(crate) fn most(&self) -> usize {
        self.limit() / 2
    }

    fn sized(&self, key: &[u8], value: Data) -> Result<SizedValue, CacheError> {
        let (bytes, limit) = (ENTRY_BYTES + key.len() + value.bytes(), self.most());
        if bytes > limit { Err(CacheError::TooLarge { limit }) } else { Ok(SizedValue { bytes, value }) }
    }

    /// Milliseconds since it was made.
    fn now(&self) -> u64 {
        self.since.elapsed().as_millis() as u64
    }

    fn until(&self, ttl: Option<Duration>) -> u64 {
        ttl.map_or(u64::MAX, |ttl| self.now().saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)))
    }
}

impl Ticket {
    /// Whether it is for this key.
    pub(crate) fn is_for(&self, key: &[u8]) -> bool {
        *self.key == *key
    }

    /// The value is made: the function's results, of which the first is kept. `nil` alone is a value too; with anything behind it, it says
    /// that there is none now.
    pub(crate) fn made(self, results: Vec<Data>, ttl: Option<Duration>) -> Result<(), CacheError> {
        let is_failure = matches!(results.first(), None | Some(Data::Nil)) && results.len() > 1;
        let mut kept = Ok(());
        {
            // Those who ask from here on find either the value or that they are to make it.
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

    /// The function has failed: nothing is kept, and those who wait are told.
    pub(crate) fn failed(self, why: &str) {
        self.cache.shard(&self.key).flights.remove(&self.key);
        self.outcome.send_replace(Some(Err(why.into())));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // It is another's by now, if it was used.
        if self.outcome.borrow().is_none() {
            self.cache.shard(&self.key).flights.remove(&self.key);
        }
    }
}

/// A value, and what its entry takes.
struct SizedValue {
    bytes: usize,
    value: Data,
}

/// One lock's worth: an index, and its entries in the order of their use.
#[derive(Debug)]
struct Shard {
    index: HashMap<Arc<[u8]>, u32>,
    nodes: Vec<Node>,
    /// Places in `nodes` that hold nothing.
    free: Vec<u32>,
    /// Used last and first.
    front: u32,
    back: u32,
    bytes: usize,
    /// What is being made.
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
    /// Milliseconds of the cache's clock.
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
    /// Where a key stands; what has expired goes.
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
        // In the place of another.
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
        let Asked::Make(Some(ticket)) = cache.ask(b"k") else { panic!() };
        let Asked::Made(waiting) = cache.ask(b"k") else { panic!() };
        ticket.made(vec![number(7.0)], None).unwrap();
        assert_eq!(waiting.borrow().clone(), Some(Ok([number(7.0)].into())));
        assert!(matches!(cache.ask(b"k"), Asked::Known(value) if *value == number(7.0)));
    }

    #[test]
    fn what_failed_is_told_and_not_kept_and_who_goes_is_replaced() {
        let cache = Arc::new(Cache::new(1 << 20));
        let Asked::Make(Some(ticket)) = cache.ask(b"k") else { panic!() };
        let Asked::Made(waiting) = cache.ask(b"k") else { panic!() };
        ticket.failed("down");
        assert_eq!(waiting.borrow().clone(), Some(Err("down".into())));

        let Asked::Make(Some(ticket)) = cache.ask(b"k") else { panic!() };
        let Asked::Made(waiting) = cache.ask(b"k") else { panic!() };
        drop(ticket);
        assert!(waiting.has_changed().is_err() && waiting.borrow().is_none(), "it has gone");

        // A failure that the function tells itself.
        let Asked::Make(Some(ticket)) = cache.ask(b"k") else { panic!() };
        ticket.made(vec![Data::Nil, Data::String(b"down".to_vec())], None).unwrap();
        // That there is nothing is a value, too.
        let Asked::Make(Some(ticket)) = cache.ask(b"k") else { panic!("nothing was kept") };
        ticket.made(vec![Data::Nil], None).unwrap();
        assert!(matches!(cache.ask(b"k"), Asked::Known(value) if *value == Data::Nil));
    }
}
