//! Who waits for what: each key is asked for once, however many want it. No I/O and no clock.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Keys that are being asked for, each with the waiters `W` of its answer.
#[derive(Debug)]
pub(crate) struct Flights<W> {
    keys: HashMap<Box<str>, Vec<W>>,
    bound: usize,
}

/// What became of somebody who wants a key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Join<W> {
    /// Nobody is asking for it yet: whoever called begins.
    Begin,
    /// It is being asked for.
    Wait,
    /// Too many keys are being asked for.
    Full(W),
}

impl<W> Flights<W> {
    /// With at most so many keys at the same time.
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

    /// The answer is there: all who wait for it.
    pub(crate) fn finish(&mut self, key: &str) -> Vec<W> {
        let waiters = self.keys.remove(key).unwrap_or_default();
        // After a burst the table would stay as large as it was.
        if self.keys.is_empty() {
            self.keys.shrink_to(64);
        }
        waiters
    }

    /// Whether a key is being asked for.
    pub(crate) fn contains(&self, key: &str) -> bool {
        self.keys.contains_key(key)
    }

    /// How many keys are being asked for.
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
