//! Single flight: each key is looked up once for all who wait. No I/O and no clock.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Keys being looked up, each with the waiters `W` for its answer.
#[derive(Debug)]
pub(crate) struct Flights<W> {
    keys: HashMap<Box<str>, Vec<W>>,
    bound: usize,
}

/// The result of joining a look-up.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Join<W> {
    /// No look-up of this key is under way; the caller starts one.
    Begin,
    /// A look-up is under way, and the waiter has joined it.
    Wait,
    /// Too many keys are being looked up.
    Full(W),
}

impl<W> Flights<W> {
    /// Allows at most `bound` keys at the same time.
    pub(crate) fn new(bound: usize) -> Self {
        Flights { keys: HashMap::new(), bound }
    }

    pub(crate) fn join(&mut self, key: &str, waiter: W) -> Join<W> {
        if let Some(waiters) = self.keys.get_mut(key) {
            waiters.push(waiter);
            return Join::Wait;
        }
        if self.keys.len() >= self.bound {
            return Join::Full(waiter);
        }
        match self.keys.entry(key.into()) {
            Entry::Vacant(entry) => entry.insert(vec![waiter]),
            Entry::Occupied(entry) => entry.into_mut(), // it was looked for above
        };
        Join::Begin
    }

    /// Ends a key's look-up, and returns its waiters.
    pub(crate) fn finish(&mut self, key: &str) -> Vec<W> {
        let waiters = self.keys.remove(key).unwrap_or_default();
        // Without this, the table would keep its size after a burst.
        if self.keys.is_empty() {
            self.keys.shrink_to(64);
        }
        waiters
    }

    /// Whether a key is being looked up.
    pub(crate) fn contains(&self, key: &str) -> bool {
        self.keys.contains_key(key)
    }

    /// The number of keys being looked up.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_asks_and_all_get_the_answer() {
        let mut flights = Flights::new(2);
        assert_eq!(flights.join("a", 0), Join::Begin);
        for waiter in 1..1000 {
            assert_eq!(flights.join("a", waiter), Join::Wait);
        }
        assert_eq!(flights.join("b", 0), Join::Begin);
        assert_eq!(flights.join("c", 7), Join::Full(7));
        assert_eq!(flights.join("a", 1000), Join::Wait, "a bound on keys, not on those who wait");
        assert_eq!(flights.finish("a"), (0..=1000).collect::<Vec<_>>());
        assert_eq!((flights.finish("a"), flights.len()), (vec![], 1));
        assert_eq!(flights.join("a", 0), Join::Begin);
    }
}
