//! Saves connections when a worker crashes: before Ruby's handler writes its report and ends the process, the watcher
//! hands all other connections over (each watcher, if the worker has several threads; those without a request have no
//! watcher that may). A stack overflow raises the same signal, and Ruby continues after it; then
//! connections have moved without need, and half-received chunked bodies were refused.

use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicU32, AtomicUsize};

use crate::forked;
use crate::socket::checked;

const SIGNALS: [i32; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

/// The previous handlers, in the order of [`SIGNALS`].
static BEFORE: [AtomicUsize; SIGNALS.len()] = [const { AtomicUsize::new(libc::SIG_DFL) }; SIGNALS.len()];
/// Counts crashes: more than one if the process goes on after a stack overflow.
static CRASHES: AtomicU32 = AtomicU32::new(0);
/// Watchers that have not handed over yet.
static LEFT: AtomicU32 = AtomicU32::new(0);
/// Watchers of this process.
static WATCHERS: AtomicU32 = AtomicU32::new(0);

/// The watcher looks every 10 ms. It may never get there: the crash may be in the server, or hold a lock.
const MOST_WAIT_MS: u32 = 100;

/// Installs the handler before Ruby's.
pub(crate) fn install() -> std::io::Result<()> {
    let ours = handler as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) as usize;
    for (signal, place) in SIGNALS.iter().zip(&BEFORE) {
        // SAFETY: zeros are a valid sigaction, and the handler has the type that SA_SIGINFO asks for.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            checked(libc::sigaction(*signal, ptr::null(), &raw mut action) as isize)?;
            if action.sa_sigaction == ours {
                continue;
            }
            place.store(action.sa_sigaction, Release);
            action.sa_sigaction = ours;
            action.sa_flags |= libc::SA_SIGINFO | libc::SA_ONSTACK;
            checked(libc::sigaction(*signal, &raw const action, ptr::null_mut()) as isize)?;
        }
    }
    Ok(())
}

/// A watcher's view of crashes.
#[derive(Debug)]
pub(crate) struct Watcher {
    seen: u32,
}

impl Watcher {
    pub(crate) fn new() -> Self {
        WATCHERS.fetch_add(1, AcqRel);
        Watcher { seen: CRASHES.load(Acquire) }
    }

    /// Whether the process is crashing, and waits for [`done`](Self::done).
    pub(crate) fn has_crashed(&self) -> bool {
        CRASHES.load(Acquire) != self.seen
    }

    /// Ends this watcher's part of the wait: its connections have been handed over.
    pub(crate) fn done(&mut self) {
        let crashes = CRASHES.load(Acquire);
        if std::mem::replace(&mut self.seen, crashes) != crashes {
            LEFT.fetch_sub(1, AcqRel);
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        WATCHERS.fetch_sub(1, AcqRel);
    }
}

/// Forgets the watchers of the process that this one was forked from.
pub(crate) fn forget_watchers() {
    WATCHERS.store(0, Release);
}

extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if !forked::is_child() {
        LEFT.store(WATCHERS.load(Acquire), Release);
        CRASHES.fetch_add(1, AcqRel);
        for _ in 0..MOST_WAIT_MS {
            if LEFT.load(Acquire) == 0 {
                break;
            }
            // SAFETY: a local; allowed in a signal handler.
            unsafe { libc::nanosleep(&libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 }, ptr::null_mut()) };
        }
    }
    let before = SIGNALS.iter().position(|one| *one == signal).map_or(libc::SIG_DFL, |at| BEFORE[at].load(Acquire));
    if before == libc::SIG_DFL || before == libc::SIG_IGN {
        // SAFETY: the signal's cause recurs when this returns, and then ends the process.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    // SAFETY: the handler that Ruby had installed; one that takes one argument ignores the other two.
    let before: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = unsafe { std::mem::transmute(before) };
    before(signal, info, context);
}
