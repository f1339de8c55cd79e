//! What must not be touched after a `fork`.
//!
//! The child has a copy of everything here but of the thread that worked on it. Locks may be held by nobody, and
//! lists be half changed. So the child must neither use such a copy nor drop it; it makes its own.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How many forks lie between this process and the one in which the library was loaded. Cheaper to ask for than
/// getpid(2).
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// A value of the process that made it.
pub(crate) struct Here<T> {
    generation: u64,
    value: ManuallyDrop<T>,
}

impl<T> Here<T> {
    pub(crate) fn new(value: T) -> Self {
        watch();
        Here { generation: GENERATION.load(Relaxed), value: ManuallyDrop::new(value) }
    }

    /// The value; nothing in a child of the process that made it.
    pub(crate) fn get(&self) -> Option<&T> {
        self.is_here().then_some(&*self.value)
    }

    fn is_here(&self) -> bool {
        self.generation == GENERATION.load(Relaxed)
    }
}

impl<T> Drop for Here<T> {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: it is dropped here and nowhere else.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

impl<T> fmt::Debug for Here<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Here").field("generation", &self.generation).finish_non_exhaustive()
    }
}

/// Has forks counted from now on.
fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function has the right type, and only changes an atomic, which is allowed between fork and what
        // follows.
        unsafe { libc::pthread_atfork(None, None, Some(count)) };
    });
}

unsafe extern "C" fn count() {
    GENERATION.fetch_add(1, Relaxed);
}
