//! A bounded map that keeps what is asked for again: S3-FIFO (Yang et al., SOSP 2023).
//!
//! What is new goes through a small queue, and into the main one only if it was asked for again meanwhile; so a scan of
//! keys that nobody asks for twice passes through the small queue, and pushes nothing else out. What was pushed out is
//! remembered by its hash for a while, and goes into the main queue at once when it comes back. A hit changes two bits,
//! and moves nothing.

mod index;
mod slab;

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use index::Index;
use slab::Slab;

/// How much there may be at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Entries.
    pub(crate) entries: usize,
    /// Bytes, as [`Cache::bytes`] counts them.
    pub(crate) bytes: usize,
}

/// What a value holds outside itself.
pub(crate) trait HeapBytes {
    /// Bytes that are freed with it.
    fn heap_bytes(&self) -> usize;
}

/// How keys are hashed: by a secret, as they come from the network.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyHash(RandomState);

impl KeyHash {
    /// A key's hash. A cache goes by the lower half; the upper one is the caller's, to choose among caches.
    #[inline]
    pub(crate) fn of(&self, key: &[u8]) -> u64 {
        let mut hasher = self.0.build_hasher();
        hasher.write(key);
        hasher.finish()
    }
}

/// Values `V`, each with some fixed data `M`, by their keys.
#[derive(Debug)]
pub(crate) struct Cache<V, M> {
    bounds: Bounds,
    key_hash: KeyHash,
    index: Index,
    slots: Slab<Slot<V, M>>,
    /// Places in `slots` that hold nothing and stand in no queue.
    free: Vec<u32>,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    /// Hashes of what was pushed out, each at the place that it picks: what comes later takes the place of what was
    /// before.
    ghosts: Vec<u32>,
    live: usize,
    heap_bytes: usize,
    evictions: u64,
}

/// One cache line, if value and data have no more than 39 bytes.
#[derive(Debug)]
#[repr(align(64))]
struct Slot<V, M> {
    key: Key,
    value: Option<V>,
    meta: M,
    /// How often it was asked for since it was last looked at, up to 3.
    uses: u8,
}

/// Most keys stand where their entries do.
#[derive(Debug)]
enum Key {
    Short { len: u8, bytes: [u8; Key::SHORT] },
    Long(Box<[u8]>),
}

/// One in so many is the small queue's.
const SMALL_SHARE: usize = 10;
/// From so many uses on an entry moves from the small queue to the main one.
const USES_TO_STAY: u8 = 2;
const USES: u8 = 3;

impl<V: HeapBytes, M: Copy> Cache<V, M> {
    pub(crate) fn new(bounds: Bounds, key_hash: KeyHash) -> Self {
        Cache {
            bounds,
            key_hash,
            index: Index::default(),
            slots: Slab::new(),
            free: Vec::new(),
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: Vec::new(),
            live: 0,
            heap_bytes: 0,
            evictions: 0,
        }
    }

    /// A key's value, which counts as a use of it.
    #[inline]
    pub(crate) fn get(&mut self, hash: u32, key: &[u8]) -> Option<(&V, &mut M)> {
        let place = self.find(hash, key)?;
        let slot = &mut self.slots[place];
        slot.uses = (slot.uses + 1).min(USES);
        Some((slot.value.as_ref()?, &mut slot.meta))
    }

    /// A key's value, for somebody who only wants to know.
    pub(crate) fn peek(&self, hash: u32, key: &[u8]) -> Option<(&V, &M)> {
        let slot = &self.slots[self.find(hash, key)?];
        Some((slot.value.as_ref()?, &slot.meta))
    }

    /// Puts a value under a key, in the place of what was there; others are pushed out for it.
    pub(crate) fn insert(&mut self, hash: u32, key: &[u8], value: V, meta: M) {
        if let Some(place) = self.find(hash, key) {
            let slot = &mut self.slots[place];
            slot.meta = meta;
            self.heap_bytes += value.heap_bytes();
            self.heap_bytes -= slot.value.replace(value).map_or(0, |old| old.heap_bytes());
        } else {
            let key = Key::new(key);
            self.heap_bytes += key.heap_bytes() + value.heap_bytes();
            self.live += 1;
            let place = self.place(Slot { key, value: Some(value), meta, uses: 0 });
            self.index.insert(hash, place);
            let known = self.ghost(hash).is_some_and(|ghost| self.ghosts[ghost] == hash);
            let queue = if known { &mut self.main } else { &mut self.small };
            queue.push_back(place);
        }
        while self.queued() > self.bounds.entries || self.bytes() > self.bounds.bytes && self.queued() > 0 {
            self.evict();
        }
    }

    /// Takes a key's value out.
    pub(crate) fn remove(&mut self, hash: u32, key: &[u8]) -> Option<V> {
        self.find(hash, key).map(|place| self.clear(place))
    }

    /// Takes out every entry that `wanted` says no to; how many.
    pub(crate) fn retain(&mut self, wanted: impl Fn(&[u8]) -> bool) -> usize {
        let before = self.live;
        for place in 0..self.slots.len() as u32 {
            let slot = &self.slots[place];
            if slot.value.is_some() && !wanted(slot.key.bytes()) {
                self.clear(place);
            }
        }
        before - self.live
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// What they take: their slots, what keys and values hold elsewhere, and their share of the index and the queues.
    pub(crate) fn bytes(&self) -> usize {
        self.heap_bytes
            + self.slots.bytes()
            + self.index.bytes()
            + (self.small.capacity() + self.main.capacity() + self.free.capacity() + self.ghosts.len())
                * size_of::<u32>()
    }

    /// How many were pushed out.
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }

    #[inline]
    fn find(&self, hash: u32, key: &[u8]) -> Option<u32> {
        self.index.find(hash, |place| self.slots[place].key.bytes() == key)
    }

    /// What stands in a queue, be it still wanted or not.
    fn queued(&self) -> usize {
        self.small.len() + self.main.len()
    }

    fn place(&mut self, slot: Slot<V, M>) -> u32 {
        if let Some(place) = self.free.pop() {
            self.slots[place] = slot;
            return place;
        }
        let place = self.slots.push(slot);
        let wanted = self.slots.len().next_power_of_two();
        if self.ghosts.len() < wanted {
            self.ghosts = vec![0; wanted];
        }
        place
    }

    /// Makes room for one.
    fn evict(&mut self) {
        if self.small.len() * SMALL_SHARE > self.queued() || self.main.is_empty() {
            let Some(place) = self.small.pop_front() else { return };
            let slot = &mut self.slots[place];
            if slot.value.is_some() && slot.uses >= USES_TO_STAY {
                slot.uses = 0;
                self.main.push_back(place);
                return;
            }
            if slot.value.is_some() {
                let hash = self.hash(place);
                if let Some(ghost) = self.ghost(hash) {
                    self.ghosts[ghost] = hash;
                }
            }
            self.push_out(place);
        } else {
            let Some(place) = self.main.pop_front() else { return };
            let slot = &mut self.slots[place];
            if slot.value.is_some() && slot.uses > 0 {
                slot.uses -= 1;
                self.main.push_back(place);
            } else {
                self.push_out(place);
            }
        }
    }

    /// Ends what is in no queue any more.
    fn push_out(&mut self, place: u32) {
        if self.slots[place].value.is_some() {
            self.clear(place);
            self.evictions += 1;
        }
        self.free.push(place);
    }

    /// Empties a slot. Its place stays in its queue, and is free when it gets to the front there.
    fn clear(&mut self, place: u32) -> V {
        self.index.remove(self.hash(place), place);
        let slot = &mut self.slots[place];
        let value = slot.value.take().expect("a slot is cleared once");
        let key = std::mem::replace(&mut slot.key, Key::new(b""));
        self.heap_bytes -= key.heap_bytes() + value.heap_bytes();
        self.live -= 1;
        value
    }

    /// What a key's hash was: not kept, as it is needed only when the key leaves.
    fn hash(&self, place: u32) -> u32 {
        self.key_hash.of(self.slots[place].key.bytes()) as u32
    }

    fn ghost(&self, hash: u32) -> Option<usize> {
        // Not the bits that the index goes by, so that its neighbours are not each other's ghosts.
        if self.ghosts.is_empty() { None } else { Some(hash.rotate_left(16) as usize & (self.ghosts.len() - 1)) }
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
            // With what the allocator adds.
            Key::Long(bytes) => bytes.len() + 16,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    impl HeapBytes for u32 {
        fn heap_bytes(&self) -> usize {
            *self as usize
        }
    }

    fn cache(entries: usize) -> Cache<u32, ()> {
        Cache::new(Bounds { entries, bytes: usize::MAX }, KeyHash::default())
    }

    fn hash(cache: &Cache<u32, ()>, key: &str) -> u32 {
        cache.key_hash.of(key.as_bytes()) as u32
    }

    fn insert(cache: &mut Cache<u32, ()>, key: &str, value: u32) {
        cache.insert(hash(cache, key), key.as_bytes(), value, ());
    }

    fn get(cache: &mut Cache<u32, ()>, key: &str) -> Option<u32> {
        cache.get(hash(cache, key), key.as_bytes()).map(|found| *found.0)
    }

    #[test]
    fn a_scan_pushes_out_nothing_that_is_in_use() {
        let mut cache = cache(1000);
        let hot: Vec<String> = (0..500).map(|n| format!("hot-{n}")).collect();
        for _ in 0..3 {
            for key in &hot {
                if get(&mut cache, key).is_none() {
                    insert(&mut cache, key, 1);
                }
            }
        }
        for n in 0..100_000 {
            insert(&mut cache, &format!("scan-{n}"), 0);
        }
        let kept = hot.iter().filter(|key| get(&mut cache, key).is_some()).count();
        assert_eq!((kept, cache.len()), (500, 1000));
    }

    #[test]
    fn what_comes_back_stays() {
        let mut cache = cache(1000);
        for n in 0..1100 {
            insert(&mut cache, &format!("{n}"), 0);
        }
        assert_eq!(get(&mut cache, "0"), None);
        // Most are remembered (a few hashes share a place), so they go into the main queue, where no scan gets at them.
        for n in 0..50 {
            insert(&mut cache, &format!("{n}"), 0);
        }
        for n in 0..2000 {
            insert(&mut cache, &format!("other-{n}"), 0);
        }
        let kept = (0..50).filter(|n| get(&mut cache, &n.to_string()).is_some()).count();
        assert!(kept >= 35, "{kept}");
    }

    #[test]
    fn bytes_are_a_bound_too() {
        let mut cache = Cache::new(Bounds { entries: usize::MAX, bytes: 1_000_000 }, KeyHash::default());
        for n in 0..10_000 {
            insert(&mut cache, &format!("{n}"), 1000);
            assert!(cache.bytes() <= 1_000_000);
        }
        assert!(cache.len() > 800, "{}", cache.len());
        // A larger value in the place of another counts as well.
        insert(&mut cache, "9999", 900_000);
        assert!(cache.bytes() <= 1_000_000 && cache.len() < 100);
        // One that is larger than everything is not kept.
        insert(&mut cache, "x", 2_000_000);
        assert_eq!((get(&mut cache, "x"), cache.len()), (None, 0));
    }

    #[test]
    fn an_entry_is_one_cache_line() {
        assert_eq!(size_of::<Slot<crate::value::Targets, [u8; 13]>>(), 64);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u8, u32),
        Get(u8),
        Remove(u8),
        Retain(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (any::<u8>(), 0u32..100).prop_map(|(key, value)| Step::Insert(key, value)),
            6 => any::<u8>().prop_map(Step::Get),
            2 => any::<u8>().prop_map(Step::Remove),
            1 => any::<u8>().prop_map(Step::Retain),
        ]
    }

    proptest! {
        #[test]
        fn it_is_a_map_that_forgets(entries in 1usize..60, steps in prop::collection::vec(step(), 0..500)) {
            let (mut cache, mut model) = (cache(entries), BTreeMap::new());
            // Every third key is too long to stand in its slot.
            let name = |key: u8| if key.is_multiple_of(3) { format!("{key}-{}", "x".repeat(40)) } else { key.to_string() };
            for step in steps {
                match step {
                    Step::Insert(key, value) => {
                        insert(&mut cache, &name(key), value);
                        model.insert(key, value);
                    }
                    Step::Get(key) => {
                        let found = get(&mut cache, &name(key));
                        prop_assert!(found.is_none() || found.as_ref() == model.get(&key));
                    }
                    Step::Remove(key) => {
                        let was = cache.remove(hash(&cache, &name(key)), name(key).as_bytes());
                        let expected = model.remove(&key);
                        prop_assert!(was.is_none() || was == expected);
                        prop_assert_eq!(get(&mut cache, &name(key)), None);
                    }
                    Step::Retain(start) => {
                        let start = (start % 10).to_string();
                        cache.retain(|key| !key.starts_with(start.as_bytes()));
                        model.retain(|&key, _| !name(key).starts_with(&start));
                    }
                }
                let is_kept = |&key: &u8| cache.peek(hash(&cache, &name(key)), name(key).as_bytes()).is_some();
                let kept: Vec<u8> = model.keys().copied().filter(is_kept).collect();
                prop_assert_eq!(kept.len(), cache.len());
                prop_assert!(cache.len() <= entries);
                let key_bytes = |key: u8| Key::new(name(key).as_bytes()).heap_bytes();
                let held: usize = kept.iter().map(|&key| model[&key] as usize + key_bytes(key)).sum();
                prop_assert_eq!(held, cache.heap_bytes);
                prop_assert_eq!(cache.queued() + cache.free.len(), cache.slots.len());
            }
        }
    }
}
