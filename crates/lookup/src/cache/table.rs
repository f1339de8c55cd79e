//! A hash table of entries: open addressing in one flat array. A look-up touches one cache line of it.
//!
//! An entry is half a cache line, and its home is a line. Overflow goes to the next lines, which the CPU prefetches.
//! The table has no keys: a hash of 128 bits, keyed by a secret, stands for each.

use oroshi_net::pages::{HUGE, Pages};

/// The hash that stands for a key. Nobody outside can choose or guess a bit of it.
///
/// An entry has 92 of its bits, and the table takes two keys for one if they agree in these. With two million entries
/// this happens in one of 2^71 look-ups of missing keys: once in seventy million years at a million such look-ups per
/// second. To find such a pair, an attacker has to try 2^46 keys, each with an answer from a store, without learning
/// how close they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    /// The entry has all of these bits. The upper half gives the home, so that a look-up waits for it alone; other uses
    /// of the hash are computed while the entry loads.
    pub(crate) tag: u64,
    /// The entry has the upper 28 bits.
    pub(crate) more: u64,
}

/// Entries by fingerprint.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Entries of four words, an even number of them; an empty one is all zeros.
    ///
    /// - 0: the tag;
    /// - 1: from above, 28 more bits of the fingerprint, the position in 32 bits, [`TAKEN`], [`INLINE`], and the number
    ///   of uses in 2 bits;
    /// - 2: the value, or its position;
    /// - 3: the caller's word.
    entries: Pages<4>,
    len: usize,
}

/// The table's form of a value, which fits in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// The value itself.
    Inline(u64),
    /// Its position elsewhere.
    At(u32),
}

/// The maximum that counts uses of an entry since the last check.
pub(super) const USES: u8 = 3;

type Entry = [u64; 4];

const MORE: u64 = !0 << 36;
const PLACE: u32 = 4;
/// Set in every entry.
const TAKEN: u64 = 1 << 3;
/// Set if the entry contains the value.
const INLINE: u64 = 1 << 2;

/// The smallest allocation: a page.
const LEAST: usize = 4096 / size_of::<Entry>();
/// The size up to which the table doubles: half a huge page. Beyond, it grows by half, in whole huge pages.
const DOUBLES: usize = HUGE / 2 / size_of::<Entry>();

impl Table {
    /// Returns an empty table that takes this many entries before it grows.
    pub(super) fn with_room_for(entries: usize) -> Self {
        let mut size = 0;
        while entries * 4 > size * 3 {
            size = larger(size);
        }
        Table { entries: Pages::zeroed(size), len: 0 }
    }

    /// Returns the entry's index, valid until the next insertion or removal.
    #[inline]
    pub(super) fn find(&self, fingerprint: Fingerprint) -> Option<usize> {
        let mut at = self.home(fingerprint.tag)?;
        let second = fingerprint.more & MORE | TAKEN;
        let is_it = |entry: &Entry| (entry[0] == fingerprint.tag) & (entry[1] & (MORE | TAKEN) == second);
        loop {
            // Compare both entries of the line before the branch: the CPU can predict that one of them matches, but not
            // which.
            let line = &self.entries[at..at + 2];
            let (first, second) = (is_it(&line[0]), is_it(&line[1]));
            if first | second {
                return Some(at + usize::from(second));
            }
            if (line[0][1] == 0) | (line[1][1] == 0) {
                return None;
            }
            at = self.after(at + 1);
        }
    }

    /// Adds an entry that is not in the table. Returns its index, valid until the next insertion or removal.
    pub(super) fn insert(&mut self, fingerprint: Fingerprint, place: u32, value: Word, meta: u64) -> usize {
        if self.is_full() {
            self.grow();
        }
        let (inline, word) = value.bits();
        let second = fingerprint.more & MORE | u64::from(place) << PLACE | TAKEN | inline;
        self.len += 1;
        self.put([fingerprint.tag, second, word, meta])
    }

    /// Removes the entry at this index.
    pub(super) fn remove(&mut self, at: usize) {
        debug_assert!(self.entries[at][1] != 0, "nothing is there");
        self.len -= 1;
        // Later entries of the run move up into the hole, so that no search ends too early.
        let (mut hole, mut at) = (at, at);
        loop {
            at = self.after(at);
            let entry = self.entries[at];
            if entry[1] == 0 {
                break;
            }
            let home = self.home(entry[0]).expect("there are entries");
            if self.distance(home, at) >= self.distance(hole, at) {
                self.entries[hole] = entry;
                hole = at;
            }
        }
        self.entries[hole] = [0; 4];
    }

    /// Returns the position that the entry was inserted with.
    pub(super) fn place(&self, at: usize) -> u32 {
        ((self.entries[at][1] & !MORE) >> PLACE) as u32
    }

    #[inline]
    pub(super) fn value(&self, at: usize) -> Word {
        let entry = &self.entries[at];
        if entry[1] & INLINE != 0 { Word::Inline(entry[2]) } else { Word::At(entry[2] as u32) }
    }

    pub(super) fn set_value(&mut self, at: usize, value: Word) {
        let (inline, word) = value.bits();
        let entry = &mut self.entries[at];
        entry[1] = entry[1] & !INLINE | inline;
        entry[2] = word;
    }

    #[inline]
    pub(super) fn meta(&self, at: usize) -> u64 {
        self.entries[at][3]
    }

    pub(super) fn set_meta(&mut self, at: usize, meta: u64) {
        self.entries[at][3] = meta;
    }

    #[inline]
    pub(super) fn uses(&self, at: usize) -> u8 {
        (self.entries[at][1] & u64::from(USES)) as u8
    }

    #[inline]
    pub(super) fn set_uses(&mut self, at: usize, uses: u8) {
        let second = &mut self.entries[at][1];
        *second = *second & !u64::from(USES) | u64::from(uses.min(USES));
    }

    /// The number of entries.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes that the table takes.
    pub(super) fn bytes(&self) -> usize {
        Pages::<4>::bytes(self.entries.len())
    }

    /// Returns by how many bytes one more entry enlarges the table.
    pub(super) fn growth(&self) -> usize {
        if self.is_full() { Pages::<4>::bytes(larger(self.entries.len())) - self.bytes() } else { 0 }
    }

    /// Whether one more entry would fill more than three quarters. The empty ones end searches.
    fn is_full(&self) -> bool {
        (self.len + 1) * 4 > self.entries.len() * 3
    }

    fn grow(&mut self) {
        let larger = Pages::zeroed(larger(self.entries.len()));
        let before = std::mem::replace(&mut self.entries, larger);
        before.iter().filter(|entry| entry[1] != 0).for_each(|&entry| _ = self.put(entry));
    }

    fn put(&mut self, entry: Entry) -> usize {
        let mut at = self.home(entry[0]).expect("it has grown");
        while self.entries[at][1] != 0 {
            at = self.after(at);
        }
        self.entries[at] = entry;
        at
    }

    /// Returns the first index of a tag's home line. It scales the tag, so that any number of lines works.
    #[inline]
    fn home(&self, tag: u64) -> Option<usize> {
        let lines = self.entries.len() as u64 / 2;
        if lines == 0 { None } else { Some((((tag >> 32) * lines) >> 32) as usize * 2) }
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.entries.len() { 0 } else { at + 1 }
    }

    /// Returns the number of steps between two indexes.
    fn distance(&self, from: usize, to: usize) -> usize {
        if from <= to { to - from } else { to + self.entries.len() - from }
    }
}

/// Returns the size of the next larger table.
fn larger(entries: usize) -> usize {
    let huge = HUGE / size_of::<Entry>();
    if entries <= DOUBLES { (entries * 2).max(LEAST) } else { (entries + entries / 2).next_multiple_of(huge) }
}

impl Word {
    fn bits(self) -> (u64, u64) {
        match self {
            Word::Inline(word) => (INLINE, word),
            Word::At(place) => (0, u64::from(place)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_entry_is_half_a_cache_line() {
        assert_eq!((size_of::<Entry>(), LEAST % 2, HUGE % size_of::<Entry>()), (32, 0, 0));
    }

    #[test]
    fn it_grows_in_whole_pages_and_then_in_huge_ones() {
        let mut table = Table::default();
        let mut sizes = Vec::new();
        for n in 0..400_000u32 {
            let grown = table.bytes() + table.growth();
            let tag = u64::from(n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            table.insert(Fingerprint { tag, more: u64::from(n) << 36 }, n, Word::At(n), 0);
            assert_eq!(table.bytes(), grown);
            if sizes.last() != Some(&grown) {
                sizes.push(grown);
            }
        }
        let small = (12..=21).map(|power| 1 << power);
        let huge = [2, 3, 5, 8, 12].map(|pages| pages * HUGE);
        assert_eq!(sizes, small.chain(huge).collect::<Vec<_>>());
        assert_eq!(table.len(), 400_000);
    }

    /// Few homes, many of them equal or adjacent, so that runs form and wrap around the end.
    fn fingerprint(n: u8) -> Fingerprint {
        let homes = [0, 1, 2, 3, 63, 62];
        // Neither the tag alone nor the bits that an entry omits distinguish these.
        Fingerprint { tag: homes[usize::from(n) % 6] << 58, more: u64::from(n / 6) << 36 | u64::from(n) }
    }

    proptest! {
        #[test]
        fn it_finds_what_was_put_in_and_nothing_else(steps in prop::collection::vec((0u8..5, any::<u8>()), 0..400)) {
            let (mut table, mut model) = (Table::default(), BTreeMap::new());
            for (kind, n) in steps {
                let found = table.find(fingerprint(n));
                prop_assert_eq!(found.is_some(), model.contains_key(&n));
                match (kind, found) {
                    (0 | 1, None) => {
                        let value = if n % 2 == 0 { Word::At(u32::MAX) } else { Word::Inline(u64::MAX) };
                        table.insert(fingerprint(n), u32::from(n), value, !u64::from(n));
                        model.insert(n, (value, !u64::from(n), 0));
                    }
                    (2, Some(at)) => {
                        table.remove(at);
                        model.remove(&n);
                    }
                    (3, Some(at)) => {
                        let uses = table.uses(at) + 1;
                        table.set_uses(at, uses);
                        model.entry(n).and_modify(|entry| entry.2 = uses.min(USES));
                    }
                    (4, Some(at)) => {
                        table.set_value(at, Word::Inline(7));
                        table.set_meta(at, 8);
                        model.entry(n).and_modify(|entry| (entry.0, entry.1) = (Word::Inline(7), 8));
                    }
                    _ => {}
                }
                prop_assert_eq!(table.len(), model.len());
                for n in 0..=u8::MAX {
                    let entry = table.find(fingerprint(n)).map(|at| {
                        assert_eq!(table.place(at), u32::from(n));
                        (table.value(at), table.meta(at), table.uses(at))
                    });
                    prop_assert_eq!(entry.as_ref(), model.get(&n));
                }
            }
        }
    }
}
