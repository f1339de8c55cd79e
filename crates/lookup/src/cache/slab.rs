//! A list that grows without moving what is in it: so it costs no copy to grow, and no gap in the heap where the
//! shorter list was.

use std::ops::{Index, IndexMut};

#[derive(Debug)]
pub(super) struct Slab<T>(Vec<Vec<T>>);

/// Elements that are allocated together: many, so that where the chunks are stays in the CPU's cache. What of a chunk
/// was never used takes no memory: the kernel gives pages when they are first written to.
const CHUNK: usize = 4096;

impl<T> Slab<T> {
    pub(super) fn new() -> Self {
        Slab(Vec::new())
    }

    /// Appends an element; its place.
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

    /// Bytes that it takes, but for its few chunks' own.
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
