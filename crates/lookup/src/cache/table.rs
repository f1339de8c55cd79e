//! From a key's hash to its entry: open addressing in one flat array, of which a look-up touches one cache line.
//!
//! An entry is half a line, and its home is a line. What does not fit there stands in one of the lines behind, which
//! the CPU fetches along. Keys are not in it: a hash of 128 bits, keyed by a secret, stands for each.

use oroshi_net::pages::{HUGE, Pages};

/// What stands for a key: its hash, of which nobody outside can choose or guess a bit.
///
/// An entry has 92 bits of it, and two keys are taken for one if they agree in them. With two million entries that
/// happens in one of 2^71 look-ups of keys that are not there: a gateway that does a million of them per second waits for
/// it for seventy million years. Who wants two such keys has to try 2^46 of them, each with an answer from a store,
/// without learning how close they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    /// All of it is in the entry. The upper half says where its home is, so that it alone is waited for; what else is
    /// made of the hash is ready before the entry is.
    pub(crate) tag: u64,
    /// The upper 28 bits are in the entry.
    pub(crate) more: u64,
}

/// Entries by their fingerprints.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// An even number of entries, each of four words; an empty one is all zeros.
    ///
    /// - 0: the tag;
    /// - 1: from above, 28 bits more of the fingerprint, the place in 32 bits, [`TAKEN`], [`INLINE`], and how often it was
    ///   asked for in 2 bits;
    /// - 2: the value, or where it is;
    /// - 3: the caller's.
    entries: Pages<4>,
    len: usize,
}

/// What is kept of a value: as much as a word holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// The value itself.
    Inline(u64),
    /// Its place elsewhere.
    At(u32),
}

/// How often an entry was asked for since that was last looked at, up to this.
pub(super) const USES: u8 = 3;

type Entry = [u64; 4];

const MORE: u64 = !0 << 36;
const PLACE: u32 = 4;
/// Set in every entry.
const TAKEN: u64 = 1 << 3;
/// Whether the value stands here.
const INLINE: u64 = 1 << 2;

/// The least that is allocated: a page.
const LEAST: usize = 4096 / size_of::<Entry>();
/// The table doubles until it fills half a huge page; then it grows by half, in whole ones.
const DOUBLES: usize = HUGE / 2 / size_of::<Entry>();

impl Table {
    /// An empty one that takes so many entries before it grows.
    pub(super) fn with_room_for(entries: usize) -> Self {
        let mut size = 0;
        while entries * 4 > size * 3 {
            size = larger(size);
        }
        Table { entries: Pages::zeroed(size), len: 0 }
    }

    /// Where the entry is, until something is inserted or removed.
    #[inline]
    pub(super) fn find(&self, fingerprint: Fingerprint) -> Option<usize> {
        let mut at = self.home(fingerprint.tag)?;
        let second = fingerprint.more & MORE | TAKEN;
        let is_it = |entry: &Entry| (entry[0] == fingerprint.tag) & (entry[1] & (MORE | TAKEN) == second);
        loop {
            // Both entries of the line before anything is decided: which of them it is cannot be predicted, that it is one
            // of them can.
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

    /// Adds an entry, which must not be there yet; where it is, until something is inserted or removed.
    pub(super) fn insert(&mut self, fingerprint: Fingerprint, place: u32, value: Word, meta: u64) -> usize {
        if self.is_full() {
            self.grow();
        }
        let (inline, word) = value.bits();
        let second = fingerprint.more & MORE | u64::from(place) << PLACE | TAKEN | inline;
        self.len += 1;
        self.put([fingerprint.tag, second, word, meta])
    }

    /// Takes the entry out that is there.
    pub(super) fn remove(&mut self, at: usize) {
        debug_assert!(self.entries[at][1] != 0, "nothing is there");
        self.len -= 1;
        // Whatever stands behind and would be found sooner moves up, so that no search ends too early.
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

    /// The place that it was inserted with.
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

    /// How many entries there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        Pages::<4>::bytes(self.entries.len())
    }

    /// By how many bytes one more entry would make it larger.
    pub(super) fn growth(&self) -> usize {
        if self.is_full() { Pages::<4>::bytes(larger(self.entries.len())) - self.bytes() } else { 0 }
    }

    /// At most three quarters are taken, so that there is always an empty entry close by, where a search ends.
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

    /// Where the line begins that a tag belongs to: a share of the lines, so that there may be any number of them.
    #[inline]
    fn home(&self, tag: u64) -> Option<usize> {
        let lines = self.entries.len() as u64 / 2;
        if lines == 0 { None } else { Some((((tag >> 32) * lines) >> 32) as usize * 2) }
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.entries.len() { 0 } else { at + 1 }
    }

    /// How many steps it is from one to the other.
    fn distance(&self, from: usize, to: usize) -> usize {
        if from <= to { to - from } else { to + self.entries.len() - from }
    }
}

/// How many entries a table gets that had so many.
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

    /// Few homes, many of them the same or neighbours, so that runs form and wrap around the end.
    fn fingerprint(n: u8) -> Fingerprint {
        let homes = [0, 1, 2, 3, 63, 62];
        // The tag alone does not tell them apart, and neither do the bits that an entry leaves out.
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
