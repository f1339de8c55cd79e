//! Which core holds which session: the one thing that all cores of the process write.
//!
//! It is locked, in parts, for as long as a look-up takes. A publish to one session would otherwise have to ask every core, and two
//! connections that claim one key on different cores need somebody to decide.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where a session lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The core.
    pub(crate) core: u16,
    /// Its number there, which is given again once it is free.
    pub(crate) slot: u32,
    /// Which of those who had that number.
    pub(crate) generation: u32,
    /// A page in a browser has opened it, whose origin was looked at. Only another such page takes its key.
    pub(crate) of_page: bool,
}

/// A page's session has the key, and what wants it is no page's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OfPage;

/// Sessions by key.
#[derive(Debug)]
pub(crate) struct Directory {
    hasher: RandomState,
    parts: Box<[Mutex<Part>]>,
}

type Part = HashMap<Arc<str>, Place>;

/// Enough that cores seldom meet in one.
const PARTS: usize = 64;

impl Directory {
    pub(crate) fn new() -> Self {
        Directory { hasher: RandomState::new(), parts: (0..PARTS).map(|_| Mutex::default()).collect() }
    }

    /// Puts a session in. Whoever had the key before has lost it, and is returned.
    ///
    /// # Errors
    /// To take a key takes what it took to get it first: nothing has changed then.
    pub(crate) fn insert(&self, key: &Arc<str>, place: Place) -> Result<Option<Place>, OfPage> {
        match self.part(key).entry(Arc::clone(key)) {
            Entry::Occupied(held) if held.get().of_page && !place.of_page => Err(OfPage),
            Entry::Occupied(mut held) => Ok(Some(std::mem::replace(held.get_mut(), place))),
            Entry::Vacant(free) => {
                free.insert(place);
                Ok(None)
            }
        }
    }

    /// Takes a session out, unless its key has gone to another by now.
    pub(crate) fn remove(&self, key: &Arc<str>, place: Place) {
        let mut part = self.part(key);
        if part.get(key) == Some(&place) {
            part.remove(key);
        }
    }

    pub(crate) fn find(&self, key: &str) -> Option<Place> {
        self.part(key).get(key).copied()
    }

    fn part(&self, key: &str) -> MutexGuard<'_, Part> {
        let part = self.hasher.hash_one(key) as usize % PARTS;
        // Nothing here can be left half done by a panic.
        self.parts[part].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_of_two_has_the_key_and_the_earlier_one_leaves_it_alone() {
        let directory = Directory::new();
        let key: Arc<str> = "k".into();
        let [first, second] = [0, 1].map(|core| Place { core, slot: 7, generation: 1, of_page: false });
        assert_eq!(directory.insert(&key, first), Ok(None));
        assert_eq!(directory.insert(&key, second), Ok(Some(first)));
        directory.remove(&key, first);
        assert_eq!(directory.find("k"), Some(second));
        directory.remove(&key, second);
        assert_eq!(directory.find("k"), None);
    }

    #[test]
    fn a_pages_key_goes_to_another_page_alone() {
        let directory = Directory::new();
        let key: Arc<str> = "k".into();
        let [page, program, other] =
            [(1, true), (2, false), (3, true)].map(|(slot, of_page)| Place { core: 0, slot, generation: 1, of_page });
        assert_eq!(directory.insert(&key, program), Ok(None));
        assert_eq!(directory.insert(&key, page), Ok(Some(program)));
        assert_eq!(directory.insert(&key, program), Err(OfPage));
        assert_eq!(directory.find("k"), Some(page));
        assert_eq!(directory.insert(&key, other), Ok(Some(page)));
        directory.remove(&key, other);
        assert_eq!(directory.insert(&key, program), Ok(None));
    }
}
