//! Values that are too large for the table, each stored once for all its keys: there are many domains, and few servers.

use std::hash::{BuildHasher as _, RandomState};

use super::Value;
use super::index::Index;
use super::slab::Slab;

#[derive(Debug)]
pub(super) struct Interned<V> {
    /// Keyed by a secret, because strangers may write values to a store.
    hash: RandomState,
    index: Index,
    /// Values, each with the number of its keys.
    values: Slab<Option<(V, u32)>>,
    free: Vec<u32>,
    heap_bytes: usize,
}

impl<V: Value> Interned<V> {
    pub(super) fn new() -> Self {
        Interned {
            hash: RandomState::new(),
            index: Index::default(),
            values: Slab::new(),
            free: Vec::new(),
            heap_bytes: 0,
        }
    }

    /// Adds a value for one more key, and returns its position.
    pub(super) fn add(&mut self, value: V) -> u32 {
        let hash = self.hash(&value);
        let same = |place| self.values[place].as_ref().is_some_and(|(its, _)| *its == value);
        if let Some(place) = self.index.find(hash, same) {
            if let Some((_, keys)) = &mut self.values[place] {
                *keys += 1;
            }
            return place;
        }
        self.heap_bytes += value.heap_bytes();
        let slot = Some((value, 1));
        let place = match self.free.pop() {
            Some(place) => {
                self.values[place] = slot;
                place
            }
            None => self.values.push(slot),
        };
        self.index.insert(hash, place);
        place
    }

    /// Returns the value that `add` stored at this position.
    #[inline]
    pub(super) fn get(&self, place: u32) -> &V {
        &self.values[place].as_ref().expect("a key has it").0
    }

    /// Releases a value for one of its keys.
    pub(super) fn release(&mut self, place: u32) -> V {
        let (value, keys) = self.values[place].as_mut().expect("a key has it");
        *keys -= 1;
        let (value, left) = (value.clone(), *keys);
        if left == 0 {
            self.values[place] = None;
            self.free.push(place);
            self.heap_bytes -= value.heap_bytes();
            self.index.remove(self.hash(&value), place);
        }
        value
    }

    /// Bytes of the values and of their index.
    pub(super) fn bytes(&self) -> usize {
        self.heap_bytes + self.values.bytes() + self.index.bytes() + self.free.capacity() * size_of::<u32>()
    }

    /// Bytes that values hold outside themselves.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        self.heap_bytes
    }

    fn hash(&self, value: &V) -> u32 {
        self.hash.hash_one(value) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allow::Allow;
    use crate::value::Targets;

    #[test]
    fn a_value_stands_there_once_and_goes_with_its_last_key() {
        let target = |n: usize| Targets::parse(format!("app-{n}.internal").as_bytes(), &Allow::any()).unwrap();
        let mut interned = Interned::new();
        let places: Vec<u32> = (0..10_000).map(|n| interned.add(target(n % 10))).collect();
        assert_eq!((interned.values.len(), interned.heap_bytes), (10, 10 * target(0).heap_bytes()));
        for (n, &place) in places.iter().enumerate() {
            assert_eq!(*interned.get(place), target(n % 10));
            assert_eq!(interned.release(place), target(n % 10));
        }
        assert_eq!(interned.heap_bytes, 0);
        // Positions are reused.
        (10..20).for_each(|n| _ = interned.add(target(n)));
        assert_eq!((interned.values.len(), interned.free.len()), (10, 0));
    }
}
