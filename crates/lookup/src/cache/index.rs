//! An index from hashes to slots: open addressing in one flat array. A look-up touches one cache line of it.

/// Positions of entries, by 32 bits of their keys' hashes. The caller knows what a position holds, and tells apart two
/// keys with the same hash.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Cells, a power of two. An empty cell is 0; another has the hash in its upper half and the position plus 1 in its
    /// lower half.
    cells: Vec<u64>,
    len: usize,
}

/// The smallest allocation.
const LEAST: usize = 16;

impl Index {
    /// Returns the first position with this hash that `is_it` accepts.
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

    /// Adds a position that the index does not contain.
    pub(super) fn insert(&mut self, hash: u32, place: u32) {
        // At most three quarters are full, so a search soon meets an empty cell and ends.
        if (self.len + 1) * 4 > self.cells.len() * 3 {
            let larger = vec![0; (self.cells.len() * 2).max(LEAST)];
            for cell in std::mem::replace(&mut self.cells, larger).into_iter().filter(|&cell| cell != 0) {
                self.put(cell);
            }
        }
        self.put(u64::from(hash) << 32 | u64::from(place + 1));
        self.len += 1;
    }

    /// Removes a position that the index contains.
    pub(super) fn remove(&mut self, hash: u32, place: u32) {
        let Some(mut hole) = self.home(hash) else { return };
        while split(self.cells[hole]) != (hash, place) {
            debug_assert!(self.cells[hole] != 0, "it is not there");
            hole = self.after(hole);
        }
        self.len -= 1;
        // Later cells of the run move up into the hole, so that no search ends too early.
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

    /// Bytes that the index takes.
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

/// Returns a cell's hash and position.
fn split(cell: u64) -> (u32, u32) {
    ((cell >> 32) as u32, (cell as u32).wrapping_sub(1))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Few hashes, many of them equal or adjacent, so that runs form and wrap around the end.
        #[test]
        fn it_finds_what_was_put_in_and_nothing_else(
            steps in prop::collection::vec((any::<bool>(), 0u32..6, 0u32..40), 0..300),
        ) {
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
                    let expected: BTreeSet<_> = model.iter().copied().filter(|entry| entry.0 == hash).collect();
                    prop_assert_eq!(found, expected);
                }
            }
        }
    }
}
