//! Budgets for clients that are slower than the worker: memory, temporary files, descriptors; each for all connections
//! together.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// A limit on bytes of one kind, and the bytes in use. A process has one worker, so these are statics, for all its
/// threads together.
#[derive(Debug)]
pub(crate) struct Budget {
    held: AtomicU64,
    most: AtomicU64,
}

/// Half-received bodies and unread answers in memory.
pub(crate) static MEMORY: Budget = Budget::new(64 << 20);
/// Unread answers in temporary files.
pub(crate) static FILES: Budget = Budget::new(1 << 30);
/// Half-received bodies in temporary files.
pub(crate) static BODY_FILES: Budget = Budget::new(2 << 30);
/// Half-received heads, and requests behind others, in memory.
pub(crate) static HEADS: Budget = Budget::new(64 << 20);

/// Bytes of memory released since the last [`trim`].
static RELEASED: AtomicU64 = AtomicU64::new(0);

impl Budget {
    const fn new(most: u64) -> Self {
        Budget { held: AtomicU64::new(0), most: AtomicU64::new(most) }
    }

    /// Sets the limit, in bytes.
    pub(crate) fn limit(&self, most: u64) {
        self.most.store(most, Relaxed);
    }

    /// Returns the limit, in bytes.
    pub(crate) fn most(&self) -> u64 {
        self.most.load(Relaxed)
    }

    /// Whether more bytes are in use than the limit allows.
    pub(crate) fn is_over(&self) -> bool {
        self.held.load(Relaxed) > self.most()
    }

    /// Whether this many more bytes are within the limit.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.held.load(Relaxed).saturating_add(bytes as u64) <= self.most()
    }
}

/// Bytes reserved from a [`Budget`]; dropping it releases them.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: &'static Budget,
    bytes: u64,
}

impl Reservation {
    /// An empty reservation.
    pub(crate) const fn none(budget: &'static Budget) -> Self {
        Reservation { budget, bytes: 0 }
    }

    /// Reserves this many more bytes. False: they exceed the limit, and none was reserved.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let has_room = self.budget.has_room(bytes);
        if has_room {
            self.grow_anyway(bytes);
        }
        has_room
    }

    /// Reserves this many more bytes, regardless of the limit.
    pub(crate) fn grow_anyway(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.budget.held.fetch_add(bytes as u64, Relaxed);
    }

    /// Reserves exactly this many bytes, regardless of the limit. True: more than before.
    pub(crate) fn set(&mut self, bytes: usize) -> bool {
        let more = (bytes as u64).saturating_sub(self.bytes);
        if more > 0 {
            self.grow_anyway(more as usize);
        }
        self.shrink_to(bytes);
        more > 0
    }

    /// Releases the bytes above this number.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes as u64);
        if less == 0 {
            return;
        }
        self.bytes -= less;
        self.budget.held.fetch_sub(less, Relaxed);
        if std::ptr::eq(self.budget, &raw const MEMORY) {
            RELEASED.fetch_add(less, Relaxed);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

/// A descriptor open for a client: its connection, or a file with its body or answer.
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

/// Divides the descriptors that this process may still open: three quarters for clients, a tenth more for files with
/// their data. The rest is the application's. Returns the maximum number of connections.
pub(crate) fn share_descriptors() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a local. If it fails, the limit is 0, and the minimum applies.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let open = std::fs::read_dir("/proc/self/fd").map_or(32, Iterator::count) as u64;
    let most = (limit.rlim_cur.min(1 << 32).saturating_sub(open) / 4 * 3).max(LEAST_CONNECTIONS);
    MOST_CONNECTIONS.store(most, Relaxed);
    most
}

/// The minimum: with fewer no worker can serve.
const LEAST_CONNECTIONS: u64 = 8;

/// Whether another connection fits into the clients' share.
pub(crate) fn has_room_for_connection() -> bool {
    DESCRIPTORS.load(Relaxed) < MOST_CONNECTIONS.load(Relaxed)
}

/// Whether another file does.
pub(crate) fn has_room_for_file() -> bool {
    let most = MOST_CONNECTIONS.load(Relaxed);
    DESCRIPTORS.load(Relaxed) < most + most / 8
}

/// Released bytes from which the allocator returns memory to the kernel.
const WORTH_A_TRIM: u64 = 4 << 20;

/// Returns memory to the kernel, if much was released since the last call. glibc keeps freed blocks of up to 32 MiB, so
/// otherwise a worker stays as large as its worst moment.
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
        static BUDGET: Budget = Budget::new(100);
        let mut first = Reservation::none(&BUDGET);
        assert!(first.grow(60) && !first.grow(41) && first.grow(40));
        let mut second = Reservation::none(&BUDGET);
        assert!(!second.grow(1));
        first.shrink_to(50);
        assert!(second.grow(50) && !BUDGET.has_room(1));
        second.grow_anyway(10);
        drop(first);
        assert!(BUDGET.has_room(40) && !BUDGET.has_room(41));
    }
}
