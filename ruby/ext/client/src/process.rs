//! Protects values from use after a `fork`.
//!
//! The child has copies of everything except the client's thread. Locks may be held by nobody, and lists half changed.
//! So the child must neither use nor drop a copy; it makes its own.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of forks since the library was loaded. Cheaper than getpid(2).
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// A value that only the process that made it can use.
pub(crate) struct ProcessLocal<T> {
    generation: u64,
    value: ManuallyDrop<T>,
}

impl<T> ProcessLocal<T> {
    pub(crate) fn new(value: T) -> Self {
        watch();
        ProcessLocal { generation: GENERATION.load(Relaxed), value: ManuallyDrop::new(value) }
    }

    /// Returns the value; `None` in a child process.
    pub(crate) fn get(&self) -> Option<&T> {
        self.is_here().then_some(&*self.value)
    }

    fn is_here(&self) -> bool {
        self.generation == GENERATION.load(Relaxed)
    }
}

impl<T> Drop for ProcessLocal<T> {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: only dropped here.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

impl<T> fmt::Debug for ProcessLocal<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessLocal").field("generation", &self.generation).finish_non_exhaustive()
    }
}

/// Starts to count forks.
fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function has the right type, and only changes atomics, which is allowed after fork.
        unsafe { libc::pthread_atfork(None, None, Some(count)) };
    });
}

unsafe extern "C" fn count() {
    GENERATION.fetch_add(1, Relaxed);
    crate::inbox::forget_waiting();
}
