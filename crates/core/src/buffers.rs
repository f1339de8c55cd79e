//! The buffers of a thread: one for reads, and spares that are used again, so that a request allocates nothing.

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

/// Takes the buffer that was kept last. A thread that ends has none.
#[inline]
fn pop<T>(kept: fn(&Buffers) -> &RefCell<Vec<T>>) -> Option<T> {
    BUFFERS.try_with(|buffers| kept(buffers).borrow_mut().pop()).ok().flatten()
}

/// Keeps a buffer, unless there are `most`, or the thread ends.
#[inline]
fn push<T>(kept: fn(&Buffers) -> &RefCell<Vec<T>>, most: usize, buffer: T) {
    let _ = BUFFERS.try_with(|buffers| {
        let mut kept = kept(buffers).borrow_mut();
        if kept.len() < most {
            kept.push(buffer);
        }
    });
}

/// The thread's buffer for one read, of [`Scratch::BYTES`] bytes. Its content is arbitrary.
///
/// Hold it during one poll only: a connection that waits has no buffer. A poll inside another poll gets a second one.
pub struct Scratch(Box<[u8]>);

impl Scratch {
    /// The most bytes of one read.
    pub const BYTES: usize = 64 * 1024;

    /// The most buffers that are kept: more than polls are nested.
    const KEPT: usize = 4;

    /// Takes the thread's buffer until the guard is dropped.
    #[inline]
    #[must_use]
    pub fn take() -> Self {
        Scratch(pop(|buffers| &buffers.scratch).unwrap_or_else(|| vec![0; Self::BYTES].into_boxed_slice()))
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
        push(|buffers| &buffers.scratch, Self::KEPT, std::mem::take(&mut self.0));
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

/// The thread's spare buffers: at most 64, of at most 128 KiB each.
pub mod spares {
    use super::{Scratch, pop, push};

    /// The most spare buffers.
    pub(super) const KEPT: usize = 64;

    /// The largest capacity of a spare buffer.
    pub(super) const BYTES: usize = 2 * Scratch::BYTES;

    /// Returns an empty buffer of any capacity, without allocating.
    #[inline]
    #[must_use]
    pub fn take() -> Vec<u8> {
        pop(|buffers| &buffers.spares).unwrap_or_default()
    }

    /// Clears a buffer and keeps it for the next request.
    #[inline]
    pub fn give(mut buffer: Vec<u8>) {
        if (1..=BYTES).contains(&buffer.capacity()) {
            buffer.clear();
            push(|buffers| &buffers.spares, KEPT, buffer);
        }
    }
}

/// A spare buffer that goes back when dropped.
#[derive(Debug, Default)]
pub struct SpareBuffer(Vec<u8>);

impl SpareBuffer {
    /// Takes an empty buffer, without allocating.
    #[inline]
    #[must_use]
    pub fn take() -> Self {
        SpareBuffer(spares::take())
    }
}

impl Deref for SpareBuffer {
    type Target = Vec<u8>;

    #[inline]
    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl DerefMut for SpareBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}

impl Drop for SpareBuffer {
    #[inline]
    fn drop(&mut self) {
        spares::give(std::mem::take(&mut self.0));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Runs on a thread of its own, which no other test shares.
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
            let spare = SpareBuffer::take();
            assert!(spare.is_empty() && spare.capacity() >= 3);
            let address = spare.as_ptr();
            drop(spare);
            assert_eq!(SpareBuffer::take().as_ptr(), address);
            for _ in 0..spares::KEPT + 1 {
                spares::give(vec![0]);
            }
            BUFFERS.with(|buffers| assert_eq!(buffers.spares.borrow().len(), spares::KEPT));
        });
    }

    #[test]
    fn buffers_that_outlive_the_threads_own_do_no_harm() {
        thread_local!(static LAST: Cell<Option<(Scratch, SpareBuffer)>> = const { Cell::new(None) });
        on_a_thread(|| {
            // Registered first, and so dropped last.
            LAST.set(None);
            let mut spare = SpareBuffer::take();
            spare.push(1);
            LAST.set(Some((Scratch::take(), spare)));
        });
    }
}
