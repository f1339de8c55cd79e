//! A bounded cache with S3-FIFO eviction (Yang et al., SOSP 2023).
//!
//! New entries go through a small queue. Only entries that are used again meanwhile reach the main queue, so a scan of
//! keys that nobody uses twice evicts nothing else. The cache remembers the hashes of evicted entries for a while; an
//! entry that returns goes to the main queue at once. A hit changes two bits and moves nothing.
//!
//! A hit reads only the [`table`]. The keys are stored apart, for purges by prefix.

mod index;
mod interned;
mod queue;
mod slab;
mod table;

use std::hash::{BuildHasher as _, Hash, RandomState};

use siphasher::sip128::SipHasher13;

use interned::Interned;
use queue::{Link, Queue};
use slab::Slab;
pub(crate) use table::Fingerprint;
use table::{Table, USES, Word};

/// The limits of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Entries.
    pub(crate) entries: usize,
    /// Bytes, as [`Cache::bytes`] counts them.
    pub(crate) bytes: usize,
}

/// A value of the cache.
pub(crate) trait Value: Clone + Eq + Hash {
    /// Returns the value as a word, if it fits into one.
    fn to_word(&self) -> Option<u64>;

    /// Returns the value that a word stands for.
    fn from_word(word: u64) -> Self;

    /// Bytes that the value holds outside itself.
    fn heap_bytes(&self) -> usize;
}

/// Hashes keys with a secret, because they come from the network.
#[derive(Clone, Debug)]
pub(crate) struct KeyHash(SipHasher13);

impl Default for KeyHash {
    fn default() -> Self {
        // std gets its secret from the kernel; hashes of two numbers do not reveal it.
        let secret = RandomState::new();
        KeyHash(SipHasher13::new_with_keys(secret.hash_one(0), secret.hash_one(1)))
    }
}

impl KeyHash {
    /// Returns a key's fingerprint.
    #[inline]
    pub(crate) fn of(&self, key: &[u8]) -> Fingerprint {
        let hash = self.0.hash(key);
        Fingerprint { tag: hash.h1, more: hash.h2 }
    }
}

impl Fingerprint {
    /// Returns 4 bits by which the caller may choose among caches; the cache itself does not use them.
    #[inline]
    pub(crate) fn choice(self) -> usize {
        (self.tag & 15) as usize
    }

    /// Returns the hash that the cache remembers after an eviction, and a number that gives its position.
    fn ghost(self) -> (u32, usize) {
        (self.more as u32, (self.tag >> 4) as u32 as usize)
    }
}

/// Values `V` by key, each with a word that hits read (the meta) and a note for everything else.
#[derive(Debug)]
pub(crate) struct Cache<V, N> {
    bounds: Bounds,
    key_hash: KeyHash,
    table: Table,
    /// Values that do not fit into the table.
    interned: Interned<V>,
    /// The parts of entries that are not in the table. Positions in this slab identify entries everywhere else.
    keys: Slab<Slot<N>>,
    /// Positions in `keys` that are empty and in no queue.
    free: Queue,
    small: Queue,
    main: Queue,
    /// Hashes of evicted entries, each at the position that it gives; a later one overwrites an earlier one.
    ghosts: Vec<u32>,
    /// Bytes of keys outside their slots.
    key_bytes: usize,
    evictions: u64,
}

/// A found entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hit(usize);

#[derive(Debug)]
struct Slot<N> {
    /// `None`: the entry was removed, and its position is still in its queue.
    key: Option<Key>,
    note: N,
    /// The next position in the queue.
    next: u32,
}

impl<N> Link for Slot<N> {
    fn next(&mut self) -> &mut u32 {
        &mut self.next
    }
}

/// A key. Most are short and stored inline.
#[derive(Debug)]
enum Key {
    Short { len: u8, bytes: [u8; Key::SHORT] },
    Long(Box<[u8]>),
}

/// The small queue's share of all entries: one in this many.
const SMALL_SHARE: usize = 10;
/// The number of free positions below which the cache does not compact.
const SPARSE: usize = 64;
/// The number of uses that moves an entry from the small queue to the main one.
const USES_TO_STAY: u8 = 2;

impl<V: Value, N: Copy> Cache<V, N> {
    pub(crate) fn new(bounds: Bounds, key_hash: KeyHash) -> Self {
        Cache {
            bounds,
            key_hash,
            table: Table::default(),
            interned: Interned::new(),
            keys: Slab::new(),
            free: Queue::default(),
            small: Queue::default(),
            main: Queue::default(),
            ghosts: Vec::new(),
            key_bytes: 0,
            evictions: 0,
        }
    }

    /// Returns a key's entry, and counts a use. Valid until the next insertion or removal.
    #[inline]
    pub(crate) fn get(&mut self, key: Fingerprint) -> Option<Hit> {
        let at = self.table.find(key)?;
        let uses = self.table.uses(at);
        // A hit writes only changes, so that the line stays valid in other cores' caches.
        if uses < USES {
            self.table.set_uses(at, uses + 1);
        }
        Some(Hit(at))
    }

    /// Returns a key's entry without counting a use.
    pub(crate) fn peek(&self, key: Fingerprint) -> Option<Hit> {
        self.table.find(key).map(Hit)
    }

    /// Returns an entry's value.
    #[inline]
    pub(crate) fn value(&self, hit: Hit) -> V {
        match self.table.value(hit.0) {
            Word::Inline(word) => V::from_word(word),
            Word::At(place) => self.interned.get(place).clone(),
        }
    }

    /// Returns an entry's meta.
    #[inline]
    pub(crate) fn meta(&self, hit: Hit) -> u64 {
        self.table.meta(hit.0)
    }

    pub(crate) fn set_meta(&mut self, hit: Hit, meta: u64) {
        self.table.set_meta(hit.0, meta);
    }

    /// Returns an entry's note, which costs one more cache line.
    pub(crate) fn note(&self, hit: Hit) -> &N {
        &self.keys[self.table.place(hit.0)].note
    }

    pub(crate) fn note_mut(&mut self, hit: Hit) -> &mut N {
        &mut self.keys[self.table.place(hit.0)].note
    }

    /// Stores a value under a key, replaces an older one, and evicts others to make room.
    pub(crate) fn insert(&mut self, fingerprint: Fingerprint, key: &[u8], value: V, meta: u64, note: N) {
        if let Some(at) = self.table.find(fingerprint) {
            let (old, new) = (self.table.value(at), self.word(value));
            self.table.set_value(at, new);
            self.table.set_meta(at, meta);
            *self.note_mut(Hit(at)) = note;
            self.release(old);
        } else {
            // Allocations do not shrink when an entry goes, so the room must exist before. A new entry reuses the
            // position of an evicted one.
            while self.bytes() + self.growth() > self.bounds.bytes && self.queued() > 0 {
                self.evict();
            }
            let key = Key::new(key);
            self.key_bytes += key.heap_bytes();
            let value = self.word(value);
            let place = self.place(Slot { key: Some(key), note, next: 0 });
            self.table.insert(fingerprint, place, value, meta);
            let known = self.ghost(fingerprint).is_some_and(|(ghost, at)| self.ghosts[at] == ghost);
            let queue = if known { &mut self.main } else { &mut self.small };
            queue.push(&mut self.keys, place);
        }
        while self.queued() > self.bounds.entries || self.bytes() > self.bounds.bytes && self.queued() > 0 {
            self.evict();
        }
    }

    /// Removes a key's value.
    pub(crate) fn remove(&mut self, key: Fingerprint) -> Option<V> {
        self.table.find(key).map(|at| self.clear(at))
    }

    /// Removes every entry that `wanted` rejects, and returns how many.
    pub(crate) fn retain(&mut self, wanted: impl Fn(&[u8]) -> bool) -> usize {
        let before = self.len();
        for place in 0..self.keys.len() as u32 {
            if self.keys[place].key.as_ref().is_some_and(|key| !wanted(key.bytes()))
                && let Some((_, at)) = self.entry(place)
            {
                self.clear(at);
            }
        }
        self.compact_if_sparse();
        before - self.len()
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Bytes of the table, keys, separate values and remembered hashes.
    pub(crate) fn bytes(&self) -> usize {
        self.table.bytes()
            + self.interned.bytes()
            + self.keys.bytes()
            + self.key_bytes
            + self.ghosts.len() * size_of::<u32>()
    }

    /// The number of evictions.
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// The number of queued positions, removed entries included.
    fn queued(&self) -> usize {
        self.small.len() + self.main.len()
    }

    /// Returns the word that the table keeps for a value.
    fn word(&mut self, value: V) -> Word {
        value.to_word().map_or_else(|| Word::At(self.interned.add(value)), Word::Inline)
    }

    fn release(&mut self, word: Word) -> V {
        match word {
            Word::Inline(word) => V::from_word(word),
            Word::At(place) => self.interned.release(place),
        }
    }

    /// Returns by how many bytes one more entry enlarges the cache, without the entry's separate bytes.
    fn growth(&self) -> usize {
        let slot = if self.free.len() > 0 { 0 } else { size_of::<Slot<N>>() };
        let ghosts = self.ghosts_for(self.keys.len() + usize::from(slot > 0)).saturating_sub(self.ghosts.len());
        self.table.growth() + slot + ghosts * size_of::<u32>()
    }

    fn place(&mut self, slot: Slot<N>) -> u32 {
        if let Some(place) = self.free.pop(&mut self.keys) {
            self.keys[place] = slot;
            return place;
        }
        let place = self.keys.push(slot);
        let wanted = self.ghosts_for(self.keys.len());
        if self.ghosts.len() < wanted {
            self.ghosts = vec![0; wanted];
        }
        place
    }

    /// Returns how many evicted hashes to remember: roughly as many as there are entries.
    fn ghosts_for(&self, entries: usize) -> usize {
        entries.next_power_of_two()
    }

    /// Evicts one entry.
    fn evict(&mut self) {
        let from_small = self.small.len() * SMALL_SHARE > self.queued() || self.main.len() == 0;
        let queue = if from_small { &mut self.small } else { &mut self.main };
        let Some(place) = queue.pop(&mut self.keys) else { return };
        let Some((fingerprint, at)) = self.entry(place) else {
            self.free.push(&mut self.keys, place);
            return;
        };
        let uses = self.table.uses(at);
        let (stays, uses_left) =
            if from_small { (uses >= USES_TO_STAY, 0) } else { (uses > 0, uses.saturating_sub(1)) };
        if stays {
            self.table.set_uses(at, uses_left);
            self.main.push(&mut self.keys, place);
            return;
        }
        if from_small && let Some((ghost, at)) = self.ghost(fingerprint) {
            self.ghosts[at] = ghost;
        }
        self.clear(at);
        self.evictions += 1;
        self.free.push(&mut self.keys, place);
        self.compact_if_sparse();
    }

    /// Frees memory if most positions are free, because larger entries came or after a purge.
    fn compact_if_sparse(&mut self) {
        if self.keys.len() < 2 * self.len() + SPARSE {
            return;
        }
        let before = std::mem::replace(self, Cache::new(self.bounds, self.key_hash.clone()));
        let Cache { table, interned, mut keys, small, main, evictions, .. } = before;
        self.evictions = evictions;
        self.table = Table::with_room_for(table.len());
        for (mut queue, is_small) in [(small, true), (main, false)] {
            while let Some(place) = queue.pop(&mut keys) {
                let Slot { key, note, .. } = &mut keys[place];
                let (Some(key), note) = (key.take(), *note) else { continue };
                let fingerprint = self.key_hash.of(key.bytes());
                let Some(at) = table.find(fingerprint) else { continue };
                let value = match table.value(at) {
                    Word::Inline(word) => Word::Inline(word),
                    Word::At(place) => self.word(interned.get(place).clone()),
                };
                self.key_bytes += key.heap_bytes();
                let place = self.place(Slot { key: Some(key), note, next: 0 });
                let inserted = self.table.insert(fingerprint, place, value, table.meta(at));
                self.table.set_uses(inserted, table.uses(at));
                let queue = if is_small { &mut self.small } else { &mut self.main };
                queue.push(&mut self.keys, place);
            }
        }
    }

    /// Removes an entry. Its position stays queued, and becomes free at the front of the queue.
    fn clear(&mut self, at: usize) -> V {
        let (place, value) = (self.table.place(at), self.table.value(at));
        self.table.remove(at);
        self.key_bytes -= self.keys[place].key.take().map_or(0, |key| key.heap_bytes());
        self.release(value)
    }

    /// Returns the entry at a position; `None` if it was removed. Entries keep no whole fingerprint, as only removals
    /// need it.
    fn entry(&self, place: u32) -> Option<(Fingerprint, usize)> {
        let fingerprint = self.key_hash.of(self.keys[place].key.as_ref()?.bytes());
        Some((fingerprint, self.table.find(fingerprint)?))
    }

    /// Returns the ghost of an entry, and its position.
    fn ghost(&self, fingerprint: Fingerprint) -> Option<(u32, usize)> {
        let (ghost, place) = fingerprint.ghost();
        if self.ghosts.is_empty() { None } else { Some((ghost, place & (self.ghosts.len() - 1))) }
    }
}

impl Key {
    const SHORT: usize = 22;

    fn new(key: &[u8]) -> Key {
        let mut bytes = [0; Key::SHORT];
        match bytes.get_mut(..key.len()) {
            Some(short) => {
                short.copy_from_slice(key);
                Key::Short { len: key.len() as u8, bytes }
            }
            None => Key::Long(key.into()),
        }
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Key::Short { len, bytes } => &bytes[..usize::from(*len)],
            Key::Long(bytes) => bytes,
        }
    }

    fn heap_bytes(&self) -> usize {
        match self {
            Key::Short { .. } => 0,
            // Includes the allocator's overhead.
            Key::Long(bytes) => bytes.len() + 16,
        }
    }
}

#[cfg(test)]
mod tests;
