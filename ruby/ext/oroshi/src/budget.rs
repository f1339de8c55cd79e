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
/// Half-received bodies in temporary files.
pub(crate) static BODY_FILES: Store = Store::new(2 << 30);
/// Half-received heads, and requests behind others, in memory.
pub(crate) static HEADS: Store = Store::new(64 << 20);

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

    /// Whether more is held than the limit allows.
    pub(crate) fn is_over(&self) -> bool {
        self.held.load(Relaxed) > self.most()
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

    /// Takes exactly so many bytes, whatever the limit. True: those are more than before.
    pub(crate) fn set(&mut self, bytes: usize) -> bool {
        let more = (bytes as u64).saturating_sub(self.bytes);
        if more > 0 {
            self.grow_anyway(more as usize);
        }
        self.shrink_to(bytes);
        more > 0
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

/// A descriptor that is open for a client: its connection, or a file with its body or answer.
#[derive(Debug)]
pub(crate) struct Descriptor(());

static DESCRIPTORS: AtomicU64 = AtomicU64::new(0);
static MOST_CONNECTIONS: AtomicU64 = AtomicU64::new(u64::MAX / 2);

impl Descriptor {
    pub(crate) fn new() -> Self {
        DESCRIPTORS.fetch_add(1, Relaxed);
        Descriptor(())
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        DESCRIPTORS.fetch_sub(1, Relaxed);
    }
}

/// Shares out the descriptors that this process may still open: three quarters are for clients, a tenth more for files
/// with what clients send or have not read. The rest is the application's, whatever clients do. Returns how many
/// connections there may be.
pub(crate) fn share_descriptors() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a local. If it fails, the limit is 0, and the least is taken.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let open = std::fs::read_dir("/proc/self/fd").map_or(32, Iterator::count) as u64;
    let most = (limit.rlim_cur.min(1 << 32).saturating_sub(open) / 4 * 3).max(LEAST_CONNECTIONS);
    MOST_CONNECTIONS.store(most, Relaxed);
    most
}

/// With less than this no worker can serve; then it tries.
const LEAST_CONNECTIONS: u64 = 8;

/// Whether a connection more is within the clients' share.
pub(crate) fn has_room_for_connection() -> bool {
    DESCRIPTORS.load(Relaxed) < MOST_CONNECTIONS.load(Relaxed)
}

/// Whether a file more is.
pub(crate) fn has_room_for_file() -> bool {
    let most = MOST_CONNECTIONS.load(Relaxed);
    DESCRIPTORS.load(Relaxed) < most + most / 8
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
