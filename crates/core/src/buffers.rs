//! Buffers of a thread: one that every read goes into, and others that are used again, so that a request allocates
//! nothing.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};

thread_local! {
    static BUFFERS: Buffers = const { Buffers { scratch: RefCell::new(Vec::new()), spares: RefCell::new(Vec::new()) } };
}

struct Buffers {
    scratch: RefCell<Vec<Box<[u8]>>>,
    spares: RefCell<Vec<Vec<u8>>>,
}

/// The thread's buffer for one read, of [`Scratch::BYTES`] bytes. Its content is arbitrary.
///
/// It is for the length of one poll: a connection that waits holds none. Where polls stand within each other, each has
/// a buffer of its own.
pub struct Scratch(Box<[u8]>);

impl Scratch {
    /// How much one read takes in at most, in bytes.
    pub const BYTES: usize = 64 * 1024;

    /// So many are kept: more than polls stand within each other.
    const KEPT: usize = 4;

    /// Takes the thread's buffer, until the guard is dropped.
    #[inline]
    #[must_use]
    pub fn take() -> Self {
        let kept = BUFFERS.try_with(|buffers| buffers.scratch.borrow_mut().pop()).ok().flatten();
        Scratch(kept.unwrap_or_else(|| vec![0; Self::BYTES].into_boxed_slice()))
    }
}

impl Deref for Scratch {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Scratch {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for Scratch {
    #[inline]
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.0);
        // A thread that ends keeps nothing.
        let _ = BUFFERS.try_with(|buffers| {
            let mut scratch = buffers.scratch.borrow_mut();
            if scratch.len() < Self::KEPT {
                scratch.push(buffer);
            }
        });
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

/// Buffers of the thread that nobody needs at the moment: at most 64, of at most 128 KiB each.
pub mod spares {
    use super::{BUFFERS, Scratch};

    /// So many buffers are kept at most.
    pub(super) const BUFFERS_KEPT: usize = 64;

    /// A larger buffer is not kept.
    pub(super) const BYTES: usize = 2 * Scratch::BYTES;

    /// Returns an empty buffer, of whatever capacity. Nothing is allocated for it here.
    #[inline]
    #[must_use]
    pub fn take() -> Vec<u8> {
        BUFFERS.try_with(|buffers| buffers.spares.borrow_mut().pop()).ok().flatten().unwrap_or_default()
    }

    /// Takes a buffer back, whatever it holds.
    #[inline]
    pub fn give(mut buffer: Vec<u8>) {
        if !(1..=BYTES).contains(&buffer.capacity()) {
            return;
        }
        buffer.clear();
        let _ = BUFFERS.try_with(|buffers| {
            let mut spares = buffers.spares.borrow_mut();
            if spares.len() < BUFFERS_KEPT {
                spares.push(buffer);
            }
        });
    }
}

/// A spare buffer that goes back when it is dropped.
#[derive(Debug, Default)]
pub struct Spare(Vec<u8>);

impl Spare {
    /// Takes an empty buffer. Nothing is allocated for it here.
    #[inline]
    #[must_use]
    pub fn take() -> Self {
        Spare(spares::take())
    }
}

impl Deref for Spare {
    type Target = Vec<u8>;

    #[inline]
    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl DerefMut for Spare {
    #[inline]
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}

impl Drop for Spare {
    #[inline]
    fn drop(&mut self) {
        spares::give(std::mem::take(&mut self.0));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Runs on a thread of its own, whose buffers are nobody else's.
    fn on_a_thread(test: fn()) {
        std::thread::spawn(test).join().unwrap();
    }

    #[test]
    fn every_read_goes_into_the_same_buffer_but_not_two_at_once() {
        on_a_thread(|| {
            let first = Scratch::take();
            assert_eq!(first.len(), Scratch::BYTES);
            let address = first.as_ptr();
            let within = Scratch::take();
            assert_ne!(within.as_ptr(), address);
            drop(within);
            drop(first);
            assert_eq!(Scratch::take().as_ptr(), address);
            let many: Vec<Scratch> = (0..2 * Scratch::KEPT).map(|_| Scratch::take()).collect();
            drop(many);
            BUFFERS.with(|buffers| assert_eq!(buffers.scratch.borrow().len(), Scratch::KEPT));
        });
    }

    #[test]
    fn spares_keep_neither_huge_buffers_nor_too_many() {
        on_a_thread(|| {
            spares::give(Vec::with_capacity(spares::BYTES + 1));
            spares::give(Vec::new());
            assert_eq!(spares::take().capacity(), 0);
            spares::give(b"old".to_vec());
            let spare = Spare::take();
            assert!(spare.is_empty() && spare.capacity() >= 3);
            let address = spare.as_ptr();
            drop(spare);
            assert_eq!(Spare::take().as_ptr(), address);
            for _ in 0..spares::BUFFERS_KEPT + 1 {
                spares::give(vec![0]);
            }
            BUFFERS.with(|buffers| assert_eq!(buffers.spares.borrow().len(), spares::BUFFERS_KEPT));
        });
    }

    #[test]
    fn buffers_that_outlive_the_threads_own_do_no_harm() {
        thread_local!(static LAST: Cell<Option<(Scratch, Spare)>> = const { Cell::new(None) });
        on_a_thread(|| {
            // Registered first, and so dropped last.
            LAST.set(None);
            let mut spare = Spare::take();
            spare.push(1);
            LAST.set(Some((Scratch::take(), spare)));
        });
    }
}
