//! Whether this process has forked another one since it serves: the application's doing. The child has copies of our
//! sockets then, and a close here no longer ends a connection; it must be shut down too. And should the child come back
//! from the application, it must leave all of that alone: clients, log and scoreboard are its parent's.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static FORKED: AtomicBool = AtomicBool::new(false);
static CHILD: AtomicBool = AtomicBool::new(false);

/// From now on forks are noticed; those before do not count.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the functions have the right type and do nothing that is not allowed between fork and what follows.
        unsafe { libc::pthread_atfork(None, Some(note), Some(note_child)) };
    });
    FORKED.store(false, Relaxed);
    CHILD.store(false, Relaxed);
}

/// Whether there was a fork.
pub(crate) fn has_forked() -> bool {
    FORKED.load(Relaxed)
}

/// Whether this is a process that was forked from the one that serves.
pub(crate) fn is_child() -> bool {
    CHILD.load(Relaxed)
}

unsafe extern "C" fn note_child() {
    CHILD.store(true, Relaxed);
}

unsafe extern "C" fn note() {
    FORKED.store(true, Relaxed);
}
