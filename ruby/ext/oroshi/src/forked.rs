//! Detects forks by the application. The child has copies of our sockets, so closing one here no longer ends the
//! connection; it must be shut down too. If the child returns from the application, it must leave clients, log and
//! scoreboard alone: they are its parent's.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static FORKED: AtomicBool = AtomicBool::new(false);
static CHILD: AtomicBool = AtomicBool::new(false);

/// Begins to detect forks; earlier ones do not count.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the functions have the right type, and do only what is allowed around fork.
        unsafe { libc::pthread_atfork(None, Some(note), Some(note_child)) };
    });
    FORKED.store(false, Relaxed);
    CHILD.store(false, Relaxed);
}

/// Whether the application has forked.
pub(crate) fn has_forked() -> bool {
    FORKED.load(Relaxed)
}

/// Whether this process is a fork of the serving one.
pub(crate) fn is_child() -> bool {
    CHILD.load(Relaxed)
}

unsafe extern "C" fn note_child() {
    CHILD.store(true, Relaxed);
}

unsafe extern "C" fn note() {
    FORKED.store(true, Relaxed);
}
