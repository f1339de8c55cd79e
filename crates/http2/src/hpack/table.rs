//! The dynamic table of HPACK (RFC 7541 sections 2.3.2 and 4).

use std::collections::VecDeque;

use super::name::Kind;
use crate::Defect;

/// The size of an entry beside its bytes (RFC 7541 section 4.1).
pub(crate) const ENTRY_BYTES: usize = 32;

/// A queue of fields: new ones enter, the oldest leave when the size is exceeded.
///
/// It allocates nothing before the first entry. Its bytes never exceed one and a half times its greatest size.
#[derive(Debug)]
pub(crate) struct Table {
    /// Names and values of the entries, oldest first. The bytes before the oldest belong to none.
    bytes: Vec<u8>,
    /// The oldest at the front.
    entries: VecDeque<Entry>,
    /// Number of entries that have left.
    evicted: u64,
    size: usize,
    max: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u32,
    name_len: u32,
    value_len: u32,
    kind: Kind,
    defect: Option<Defect>,
}

/// An entry, with the checks that it passed or failed when it entered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableField<'t> {
    pub(crate) name: &'t [u8],
    pub(crate) value: &'t [u8],
    pub(crate) kind: Kind,
    pub(crate) defect: Option<Defect>,
}

impl Table {
    /// Makes an empty table of `max` bytes, counted as RFC 7541 section 4.1 says.
    pub(crate) const fn new(max: usize) -> Self {
        Table { bytes: Vec::new(), entries: VecDeque::new(), evicted: 0, size: 0, max }
    }

    /// The greatest size.
    pub(crate) const fn max(&self) -> usize {
        self.max
    }

    /// Changes the greatest size and evicts what no longer fits (RFC 7541 section 4.3).
    pub(crate) fn set_max(&mut self, max: usize) {
        self.max = max;
        self.evict(max);
        if self.entries.is_empty() {
            // A table of size 0 keeps no memory.
            self.bytes = Vec::new();
            self.entries = VecDeque::new();
        }
        self.make_room(0);
    }

    /// The number of entries.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The size by RFC 7541 section 4.1.
    #[cfg(test)]
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Returns an entry; 0 is the newest one.
    #[inline]
    pub(crate) fn get(&self, place: usize) -> Option<TableField<'_>> {
        let entry = self.entries.get(self.entries.len().checked_sub(place + 1)?)?;
        let start = entry.start as usize;
        let (name, value) =
            self.bytes[start..][..(entry.name_len + entry.value_len) as usize].split_at(entry.name_len as usize);
        Some(TableField { name, value, kind: entry.kind, defect: entry.defect })
    }

    /// The number that identifies the next entry for [`place_of`](Self::place_of).
    pub(crate) fn next_number(&self) -> u64 {
        self.evicted + self.entries.len() as u64
    }

    /// Returns the place of an entry by its number, or `None` if the entry has left.
    #[inline]
    pub(crate) fn place_of(&self, number: u64) -> Option<usize> {
        let from_oldest = number.checked_sub(self.evicted)?;
        self.entries.len().checked_sub(usize::try_from(from_oldest).ok()? + 1)
    }

    /// Adds a field, after evicting as many as it needs room for. A field larger than the table empties it (RFC 7541
    /// section 4.4).
    pub(crate) fn insert(&mut self, name: &[u8], value: &[u8], kind: Kind, defect: Option<Defect>) {
        let length = name.len() + value.len();
        let size = length + ENTRY_BYTES;
        if size > self.max {
            self.evict(0);
            return;
        }
        self.evict(self.max - size);
        self.make_room(length);
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        let (name_len, value_len) = (name.len() as u32, value.len() as u32);
        self.entries.push_back(Entry { start, name_len, value_len, kind, defect });
        self.size += size;
    }

    /// Evicts the oldest entries until the others have at most `most` bytes.
    fn evict(&mut self, most: usize) {
        while self.size > most {
            let Some(entry) = self.entries.pop_front() else { break };
            self.size -= (entry.name_len + entry.value_len) as usize + ENTRY_BYTES;
            self.evicted += 1;
        }
    }

    /// Moves the entries to the front once the unused bytes before them are half of the table.
    fn make_room(&mut self, length: usize) {
        let Some(oldest) = self.entries.front().map(|entry| entry.start) else {
            self.bytes.clear();
            return;
        };
        if self.bytes.len() + length > self.max + self.max / 2 {
            self.bytes.drain(..oldest as usize);
            self.entries.iter_mut().for_each(|entry| entry.start -= oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(table: &Table) -> Vec<(Vec<u8>, Vec<u8>)> {
        let field = |place| table.get(place).map(|field: TableField<'_>| (field.name.to_vec(), field.value.to_vec()));
        let all: Vec<_> = (0..).map_while(field).collect();
        assert_eq!(all.len(), table.len());
        all
    }

    proptest! {
        /// The table against the standard's words: a plain list, whose size is counted anew each time.
        #[test]
        fn it_holds_what_a_plain_list_would(
            steps in prop::collection::vec((0usize..60, 0usize..60, prop::option::weighted(0.1, 0usize..300)), 0..200),
        ) {
            let (mut table, mut list, mut max) = (Table::new(200), Vec::new(), 200);
            let mut numbers = Vec::new();
            for (n, (name, value, resize)) in steps.into_iter().enumerate() {
                if let Some(to) = resize {
                    max = to;
                    table.set_max(to);
                } else {
                    let field = (vec![n as u8; name], vec![!(n as u8); value]);
                    numbers.push((table.next_number(), field.clone()));
                    table.insert(&field.0, &field.1, Kind::Other, None);
                    if name + value + ENTRY_BYTES > max {
                        list.clear();
                        numbers.pop();
                    } else {
                        list.insert(0, field);
                    }
                }
                let size = |list: &[(Vec<u8>, Vec<u8>)]| {
                    list.iter().map(|field| field.0.len() + field.1.len() + ENTRY_BYTES).sum::<usize>()
                };
                while size(&list) > max {
                    list.pop();
                }
                prop_assert_eq!(&all(&table), &list);
                prop_assert_eq!(table.size(), size(&list));
                prop_assert!(table.bytes.len() <= max + max / 2 || table.entries.is_empty());
                for (number, field) in &numbers {
                    match table.place_of(*number) {
                        Some(place) => prop_assert_eq!(&list[place], field),
                        None => prop_assert!(!list.contains(field) || field.0.is_empty() && field.1.is_empty()),
                    }
                }
            }
        }
    }
}
