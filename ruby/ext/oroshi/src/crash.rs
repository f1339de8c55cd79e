//! What a worker still does when it crashes: before Ruby's handler writes its report and ends the process, the watcher
//! hands all other connections over. A stack that is too deep arrives as the same signal, and Ruby goes on after it: then
//! connections have moved without need, and half-received bodies in chunks were refused.

use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use crate::forked;
use crate::socket::checked;

const SIGNALS: [i32; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

/// What was installed before, by the order of [`SIGNALS`].
static BEFORE: [AtomicUsize; SIGNALS.len()] = [const { AtomicUsize::new(libc::SIG_DFL) }; SIGNALS.len()];
static CRASHED: AtomicBool = AtomicBool::new(false);

/// The watcher looks every 10 ms. It may not come to it: the crash may be within the server, or have taken a lock along.
const PATIENCE_MS: u32 = 100;

/// Puts the handler before Ruby's.
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

/// Whether the process crashes, and waits for [`done`].
pub(crate) fn has_crashed() -> bool {
    CRASHED.load(Acquire)
}

/// Connections are handed over.
pub(crate) fn done() {
    CRASHED.store(false, Release);
}

extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if !forked::is_child() {
        CRASHED.store(true, Release);
        for _ in 0..PATIENCE_MS {
            if !has_crashed() {
                break;
            }
            // SAFETY: a local; allowed in a signal handler.
            unsafe { libc::nanosleep(&libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 }, ptr::null_mut()) };
        }
        CRASHED.store(false, Release);
    }
    let before = SIGNALS.iter().position(|one| *one == signal).map_or(libc::SIG_DFL, |at| BEFORE[at].load(Acquire));
    if before == libc::SIG_DFL || before == libc::SIG_IGN {
        // SAFETY: what caused the signal happens again when this returns, and ends the process then.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    // SAFETY: what Ruby had installed as a handler; the two more arguments do no harm to one that takes one.
    let before: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = unsafe { std::mem::transmute(before) };
    before(signal, info, context);
}
