//! How much a worker holds for clients that are slower than it: bytes in memory and bytes in temporary files, each with a
//! limit for all connections together.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Bytes of one kind that are held. A process has one worker, so these are statics. The worker's two threads never count
/// at the same time (`watcher`).
#[derive(Debug)]
pub(crate) struct Store {
    held: AtomicU64,
    most: AtomicU64,
}

/// Half-received bodies and unread answers in memory.
pub(crate) static MEMORY: Store = Store::new(64 << 20);
/// Unread answers in temporary files.
pub(crate) static FILES: Store = Store::new(1 << 30);

/// Bytes of memory that were given back since the last [`take_released`].
static RELEASED: AtomicU64 = AtomicU64::new(0);

impl Store {
    const fn new(most: u64) -> Self {
        Store { held: AtomicU64::new(0), most: AtomicU64::new(most) }
    }

    /// Sets the limit, in bytes.
    pub(crate) fn limit(&self, most: u64) {
        self.most.store(most, Relaxed);
    }

    /// The limit, in bytes.
    pub(crate) fn most(&self) -> u64 {
        self.most.load(Relaxed)
    }

    /// Whether so many bytes more are within the limit.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.held.load(Relaxed).saturating_add(bytes as u64) <= self.most()
    }
}

/// A share of a [`Store`]; dropping it gives the bytes back.
#[derive(Debug)]
pub(crate) struct Held {
    store: &'static Store,
    bytes: u64,
}

impl Held {
    /// A share of nothing.
    pub(crate) const fn none(store: &'static Store) -> Self {
        Held { store, bytes: 0 }
    }

    /// Takes so many bytes more, if they are within the limit. False: they are not, and nothing was taken.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let has_room = self.store.has_room(bytes);
        if has_room {
            self.grow_anyway(bytes);
        }
        has_room
    }

    /// Takes so many bytes more, whatever the limit.
    pub(crate) fn grow_anyway(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.store.held.fetch_add(bytes as u64, Relaxed);
    }

    /// Gives back what is above so many bytes.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes as u64);
        if less == 0 {
            return;
        }
        self.bytes -= less;
        self.store.held.fetch_sub(less, Relaxed);
        if std::ptr::eq(self.store, &raw const MEMORY) {
            RELEASED.fetch_add(less, Relaxed);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

/// From this many released bytes on, the allocator is asked to give memory back to the kernel.
const WORTH_A_TRIM: u64 = 4 << 20;

/// Gives memory back to the kernel, if much was released since the last time. glibc keeps freed blocks of up to 32 MiB
/// for the next allocation, so without this a worker stays as large as its worst moment.
pub(crate) fn trim() {
    if RELEASED.load(Relaxed) < WORTH_A_TRIM {
        return;
    }
    RELEASED.store(0, Relaxed);
    #[cfg(target_env = "gnu")]
    // SAFETY: a plain number; it takes the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_bounded_and_comes_back() {
        static STORE: Store = Store::new(100);
        let mut first = Held::none(&STORE);
        assert!(first.grow(60) && !first.grow(41) && first.grow(40));
        let mut second = Held::none(&STORE);
        assert!(!second.grow(1));
        first.shrink_to(50);
        assert!(second.grow(50) && !STORE.has_room(1));
        second.grow_anyway(10);
        drop(first);
        assert!(STORE.has_room(40) && !STORE.has_room(41));
    }
}
