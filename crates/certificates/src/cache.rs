//! A cache of values by name, bounded by bytes. No I/O and no clock: times are milliseconds.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// A cache. Names without a value have a bound of their own, so that unknown names evict no values.
#[derive(Debug)]
pub(crate) struct Cache<V> {
    values: Part<Arc<V>>,
    negatives: Part<()>,
}

/// The result of a look at the cache.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Cached<V> {
    /// A value until this time.
    Value(Arc<V>, u64),
    /// The name has no value.
    Negative,
    /// A value whose time is over, or nothing.
    Missing(Option<Arc<V>>),
}

#[derive(Debug)]
struct Part<T> {
    entries: HashMap<Box<str>, Entry<T>>,
    /// The names in the order in which they came. A used one gets a second chance.
    order: VecDeque<Box<str>>,
    bytes: usize,
    most: usize,
    evictions: u64,
}

#[derive(Debug)]
struct Entry<T> {
    value: T,
    until: u64,
    /// The end that the store's answer gave, which `extend` does not move.
    first_end: u64,
    bytes: usize,
    used: bool,
}

/// The bytes of an entry beside its name (twice) and its value.
const OVERHEAD: usize = 128;

impl<T> Part<T> {
    fn new(most: usize) -> Self {
        Part { entries: HashMap::new(), order: VecDeque::new(), bytes: 0, most, evictions: 0 }
    }

    fn insert(&mut self, name: &str, value: T, bytes: usize, until: u64) {
        let bytes = bytes + 2 * name.len() + OVERHEAD;
        match self.entries.get_mut(name) {
            Some(entry) => {
                self.bytes = self.bytes - entry.bytes + bytes;
                *entry = Entry { value, until, first_end: until, bytes, used: entry.used };
            }
            None => {
                self.bytes += bytes;
                self.entries.insert(name.into(), Entry { value, until, first_end: until, bytes, used: false });
                self.order.push_back(name.into());
            }
        }
        // The newest entry stays, even if it alone is over the bound.
        while self.bytes > self.most && self.entries.len() > 1 {
            let Some(oldest) = self.order.pop_front() else { return };
            match self.entries.get_mut(&oldest) {
                Some(entry) if entry.used || *oldest == *name => {
                    entry.used = false;
                    self.order.push_back(oldest);
                }
                Some(_) => {
                    self.remove(&oldest);
                    self.evictions += 1;
                }
                None => {}
            }
        }
    }

    fn remove(&mut self, name: &str) {
        if let Some(entry) = self.entries.remove(name) {
            self.bytes -= entry.bytes;
        }
    }
}

impl<V> Cache<V> {
    pub(crate) fn new(bytes: usize, negative_bytes: usize) -> Self {
        Cache { values: Part::new(bytes), negatives: Part::new(negative_bytes) }
    }

    pub(crate) fn get(&mut self, name: &str, now: u64) -> Cached<V> {
        if let Some(entry) = self.values.entries.get_mut(name) {
            entry.used = true;
            let value = Arc::clone(&entry.value);
            return if now < entry.until { Cached::Value(value, entry.until) } else { Cached::Missing(Some(value)) };
        }
        match self.negatives.entries.get(name) {
            Some(entry) if now < entry.until => Cached::Negative,
            _ => Cached::Missing(None),
        }
    }

    pub(crate) fn keep(&mut self, name: &str, value: Arc<V>, bytes: usize, until: u64) {
        self.forget_negative(name);
        self.values.insert(name, value, bytes, until);
    }

    /// Keeps that a name has no value. A value that it had is forgotten.
    pub(crate) fn keep_negative(&mut self, name: &str, until: u64) {
        self.forget_value(name);
        self.negatives.insert(name, (), 0, until);
    }

    /// Lets a value be used for longer.
    pub(crate) fn extend(&mut self, name: &str, until: u64) {
        if let Some(entry) = self.values.entries.get_mut(name) {
            entry.until = entry.until.max(until);
        }
    }

    /// Returns when a value's time ended or ends, as the store's answer gave it.
    pub(crate) fn first_end(&self, name: &str) -> Option<u64> {
        self.values.entries.get(name).map(|entry| entry.first_end)
    }

    pub(crate) fn forget(&mut self, name: &str) -> bool {
        let known = self.values.entries.contains_key(name) || self.negatives.entries.contains_key(name);
        self.forget_negative(name);
        self.forget_value(name);
        known
    }

    fn forget_value(&mut self, name: &str) {
        if self.values.entries.contains_key(name) {
            self.values.remove(name);
            self.values.order.retain(|other| **other != *name);
        }
    }

    fn forget_negative(&mut self, name: &str) {
        if self.negatives.entries.contains_key(name) {
            self.negatives.remove(name);
            self.negatives.order.retain(|other| **other != *name);
        }
    }

    /// Entries, bytes and evictions of values.
    pub(crate) fn counts(&self) -> (usize, usize, u64) {
        (self.values.entries.len(), self.values.bytes, self.values.evictions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_bounded_and_used_values_stay() {
        let mut cache = Cache::new(10_000, 2_000);
        for number in 0..100 {
            cache.keep(&format!("{number}.example"), Arc::new(number), 1000, 10);
            assert!(matches!(cache.get("0.example", 0), Cached::Value(value, 10) if *value == 0), "{number}");
            let (entries, bytes, evictions) = cache.counts();
            assert!(bytes <= 10_000 && entries as u64 + evictions == number + 1, "{entries} {bytes} {evictions}");
        }
        for number in 0..100_000 {
            cache.keep_negative(&format!("{number}.unknown"), 10);
        }
        assert!(cache.negatives.bytes <= 2_000 && cache.negatives.order.len() <= 20);
        assert!(matches!(cache.get("0.example", 0), Cached::Value(..)), "unknown names evict no values");
        assert_eq!(cache.get("99999.unknown", 9), Cached::Negative);
        assert_eq!(cache.get("99999.unknown", 10), Cached::Missing(None));
    }

    #[test]
    fn values_end_and_begin_again() {
        let mut cache = Cache::new(10_000, 10_000);
        cache.keep("a", Arc::new(1), 10, 5);
        assert_eq!(cache.get("a", 5), Cached::Missing(Some(Arc::new(1))));
        cache.extend("a", 8);
        assert_eq!(cache.get("a", 7), Cached::Value(Arc::new(1), 8));
        cache.keep_negative("a", 20);
        assert_eq!((cache.get("a", 7), cache.counts().0), (Cached::Negative, 0));
        cache.keep("a", Arc::new(2), 10, 30);
        assert_eq!(cache.get("a", 7), Cached::Value(Arc::new(2), 30));
        assert!(cache.forget("a") && !cache.forget("a"));
        assert_eq!(cache.get("a", 7), Cached::Missing(None));
        assert!(cache.values.order.is_empty() && cache.negatives.order.is_empty());
    }
}
