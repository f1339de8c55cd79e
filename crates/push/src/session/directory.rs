//! The directory of a process: which thread holds which session.
//!
//! It is the one structure that all threads write. Each look-up locks a part of it for its duration. Without it, a
//! publish to one session would have to ask every thread, and two connections on different threads could claim the same
//! key.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The place of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    /// The thread that holds it.
    pub(crate) thread: u16,
    /// Its slot there. A later session may reuse the slot.
    pub(crate) slot: u32,
    /// Tells it from earlier sessions in the slot.
    pub(crate) generation: u32,
    /// Whether a page with a permitted origin opened it. Then only such a page can take its key.
    pub(crate) of_page: bool,
}

/// A page's session has the key, and a client that is no page wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldByPage;

/// Sessions by key.
#[derive(Debug)]
pub(crate) struct Directory {
    hasher: RandomState,
    parts: Box<[Mutex<Part>]>,
}

type Part = HashMap<Arc<str>, Location>;

/// The number of parts: enough that threads seldom meet in one.
const PARTS: usize = 64;

impl Directory {
    /// Creates an empty directory.
    pub(crate) fn new() -> Self {
        Directory { hasher: RandomState::new(), parts: (0..PARTS).map(|_| Mutex::default()).collect() }
    }

    /// Inserts a session, and returns the session that had the key before.
    ///
    /// # Errors
    /// [`HeldByPage`] if only a page may take the key; nothing has changed then.
    pub(crate) fn insert(&self, key: &Arc<str>, location: Location) -> Result<Option<Location>, HeldByPage> {
        match self.part(key).entry(Arc::clone(key)) {
            Entry::Occupied(held) if held.get().of_page && !location.of_page => Err(HeldByPage),
            Entry::Occupied(mut held) => Ok(Some(std::mem::replace(held.get_mut(), location))),
            Entry::Vacant(free) => {
                free.insert(location);
                Ok(None)
            }
        }
    }

    /// Removes a session, unless another has its key by now.
    pub(crate) fn remove(&self, key: &Arc<str>, location: Location) {
        let mut part = self.part(key);
        if part.get(key) == Some(&location) {
            part.remove(key);
        }
    }

    /// Finds a session by its key.
    pub(crate) fn find(&self, key: &str) -> Option<Location> {
        self.part(key).get(key).copied()
    }

    /// Calls `visit` with every key, in any order. It locks one part of the directory after the other.
    pub(crate) fn each(&self, mut visit: impl FnMut(&Arc<str>)) {
        for part in &self.parts {
            part.lock().unwrap_or_else(PoisonError::into_inner).keys().for_each(&mut visit);
        }
    }

    fn part(&self, key: &str) -> MutexGuard<'_, Part> {
        let part = self.hasher.hash_one(key) as usize % PARTS;
        // A panic cannot leave a part half changed.
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
        let [first, second] = [0, 1].map(|thread| Location { thread, slot: 7, generation: 1, of_page: false });
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
        let [page, program, other] = [(1, true), (2, false), (3, true)].map(|(slot, of_page)| Location {
            thread: 0,
            slot,
            generation: 1,
            of_page,
        });
        assert_eq!(directory.insert(&key, program), Ok(None));
        assert_eq!(directory.insert(&key, page), Ok(Some(program)));
        assert_eq!(directory.insert(&key, program), Err(HeldByPage));
        assert_eq!(directory.find("k"), Some(page));
        assert_eq!(directory.insert(&key, other), Ok(Some(page)));
        directory.remove(&key, other);
        assert_eq!(directory.insert(&key, program), Ok(None));
    }
}
