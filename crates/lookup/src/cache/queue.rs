//! A FIFO queue with links inside the entries: it allocates nothing, and cannot run out of memory.

use super::slab::Slab;

/// A queue of positions in a slab. Each position is in one queue at most.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// The first and the last position, if there are any.
    ends: Option<(u32, u32)>,
    len: usize,
}

/// An element with a link of a queue.
pub(super) trait Link {
    /// The next position; meaningless for the last one.
    fn next(&mut self) -> &mut u32;
}

impl Queue {
    /// Appends a position that is in no queue.
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

    /// Removes the first position.
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
