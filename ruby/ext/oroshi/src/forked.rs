//! Whether this process has forked another one since it serves: the application's doing. The child has copies of our
//! sockets then, and a close here no longer ends a connection; it must be shut down too.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static FORKED: AtomicBool = AtomicBool::new(false);

/// From now on forks are noticed; those before do not count.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function has the right type and does nothing that is not allowed between fork and what follows.
        unsafe { libc::pthread_atfork(None, Some(note), None) };
    });
    FORKED.store(false, Relaxed);
}

/// Whether there was a fork.
pub(crate) fn has_forked() -> bool {
    FORKED.load(Relaxed)
}

unsafe extern "C" fn note() {
    FORKED.store(true, Relaxed);
}
