//! From hashes to places in a list: open addressing in one flat array, so that a look-up touches one cache line of it.

/// Where entries are, by 32 bits of their keys' hashes. What a place holds is the caller's to know, and so is whether
/// two keys that share a hash are the same.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// A power of two of cells; an empty one is 0, any other has the hash in its upper half, and in its lower one the
    /// place plus 1.
    cells: Vec<u64>,
    len: usize,
}

/// The least that is allocated.
const LEAST: usize = 16;

impl Index {
    /// The first place with this hash that `is_it` says yes to.
    #[inline]
    pub(super) fn find(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = self.home(hash)?;
        loop {
            let cell = self.cells[at];
            if cell == 0 {
                return None;
            }
            let (its, place) = split(cell);
            if its == hash && is_it(place) {
                return Some(place);
            }
            at = self.after(at);
        }
    }

    /// Adds a place, which must not be there yet.
    pub(super) fn insert(&mut self, hash: u32, place: u32) {
        // At most three quarters are full, so that there is always an empty cell close by, where a search ends.
        if (self.len + 1) * 4 > self.cells.len() * 3 {
            let larger = vec![0; (self.cells.len() * 2).max(LEAST)];
            for cell in std::mem::replace(&mut self.cells, larger).into_iter().filter(|&cell| cell != 0) {
                self.put(cell);
            }
        }
        self.put(u64::from(hash) << 32 | u64::from(place + 1));
        self.len += 1;
    }

    /// Takes a place out, which must be there.
    pub(super) fn remove(&mut self, hash: u32, place: u32) {
        let Some(mut hole) = self.home(hash) else { return };
        while split(self.cells[hole]) != (hash, place) {
            debug_assert!(self.cells[hole] != 0, "it is not there");
            hole = self.after(hole);
        }
        self.len -= 1;
        // Whatever stands behind and would be found sooner moves up, so that no search ends too early.
        let mut at = hole;
        loop {
            at = self.after(at);
            let cell = self.cells[at];
            if cell == 0 {
                break;
            }
            let mask = self.cells.len() - 1;
            let home = split(cell).0 as usize & mask;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.cells[hole] = cell;
                hole = at;
            }
        }
        self.cells[hole] = 0;
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.cells.capacity() * size_of::<u64>()
    }

    fn put(&mut self, cell: u64) {
        let mut at = split(cell).0 as usize & (self.cells.len() - 1);
        while self.cells[at] != 0 {
            at = self.after(at);
        }
        self.cells[at] = cell;
    }

    fn home(&self, hash: u32) -> Option<usize> {
        if self.cells.is_empty() { None } else { Some(hash as usize & (self.cells.len() - 1)) }
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.cells.len() - 1)
    }
}

/// A cell's hash and place.
fn split(cell: u64) -> (u32, u32) {
    ((cell >> 32) as u32, (cell as u32).wrapping_sub(1))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Few hashes, many of them the same or neighbours, so that runs form and wrap around the end.
        #[test]
        fn it_finds_what_was_put_in_and_nothing_else(steps in prop::collection::vec((any::<bool>(), 0u32..6, 0u32..40), 0..300)) {
            let hashes = [0, 1, 2, 15, u32::MAX, u32::MAX - 1];
            let (mut index, mut model) = (Index::default(), BTreeSet::new());
            for (add, hash, place) in steps {
                let hash = hashes[hash as usize];
                let place = place * 6 + hash % 6;
                if add && model.insert((hash, place)) {
                    index.insert(hash, place);
                } else if !add && model.remove(&(hash, place)) {
                    index.remove(hash, place);
                }
                prop_assert_eq!(index.len, model.len());
                for hash in hashes {
                    let mut found = BTreeSet::new();
                    index.find(hash, |place| { found.insert((hash, place)); false });
                    prop_assert_eq!(found, model.iter().copied().filter(|entry| entry.0 == hash).collect::<BTreeSet<_>>());
                }
            }
        }
    }
}
