//! First in, first out, through links in the entries themselves: it needs no memory of its own, and cannot run out of it.

use super::slab::Slab;

/// Places in a slab, each in one queue at most.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// The first and the last, if there is any.
    ends: Option<(u32, u32)>,
    len: usize,
}

/// What can be in a queue.
pub(super) trait Link {
    /// The place behind its own; means nothing for the last one.
    fn next(&mut self) -> &mut u32;
}

impl Queue {
    /// Puts a place at the end, which must be in no queue.
    pub(super) fn push<T: Link>(&mut self, slots: &mut Slab<T>, place: u32) {
        let first = match self.ends {
            Some((first, last)) => {
                *slots[last].next() = place;
                first
            }
            None => place,
        };
        self.ends = Some((first, place));
        self.len += 1;
    }

    /// Takes the first place out.
    pub(super) fn pop<T: Link>(&mut self, slots: &mut Slab<T>) -> Option<u32> {
        let (first, last) = self.ends?;
        self.ends = if first == last { None } else { Some((*slots[first].next(), last)) };
        self.len -= 1;
        Some(first)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}
