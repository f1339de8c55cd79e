//! A list that grows without moving its elements: growing copies nothing, and leaves no gap of the old size in the
//! heap.

use std::ops::{Index, IndexMut};

#[derive(Debug)]
pub(super) struct Slab<T>(Vec<Vec<T>>);

/// Elements per allocation: many, so that the list of chunks stays in the CPU's cache. Unused parts of a chunk take no
/// memory, because the kernel provides pages at the first write.
const CHUNK: usize = 4096;

impl<T> Slab<T> {
    pub(super) fn new() -> Self {
        Slab(Vec::new())
    }

    /// Appends an element, and returns its position.
    pub(super) fn push(&mut self, element: T) -> u32 {
        if self.0.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.0.push(Vec::with_capacity(CHUNK));
        }
        let place = self.len();
        self.0.last_mut().expect("there is one").push(element);
        place as u32
    }

    pub(super) fn len(&self) -> usize {
        self.0.last().map_or(0, |last| (self.0.len() - 1) * CHUNK + last.len())
    }

    /// Bytes that the list takes, without the few chunks' headers.
    pub(super) fn bytes(&self) -> usize {
        self.len() * size_of::<T>()
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, place: u32) -> &T {
        &self.0[place as usize / CHUNK][place as usize % CHUNK]
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, place: u32) -> &mut T {
        &mut self.0[place as usize / CHUNK][place as usize % CHUNK]
    }
}
