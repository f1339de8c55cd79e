//! How much of a thread's stack a call has taken, and where that stack ends.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;

/// So much of the stack a call of a confined state may take before another function is called through C, bytes: some hundred calls of `string.gsub` within one
/// another. An error has to leave all of them, in a time that grows with the square of their number, and in which nothing interrupts it.
const MOST: usize = 1 << 20;

/// What an error's handlers may take beyond that.
const HANDLERS: usize = MOST / 2;

/// What is kept for functions that call none of the script's, bytes at most; a share of small stacks.
const RESERVE: usize = 4 << 20;
const RESERVED_SHARE: usize = 4;

/// Not looked at yet.
const UNKNOWN: usize = usize::MAX;

thread_local! {
    /// The lowest address that calls may come to.
    static END: Cell<usize> = const { Cell::new(UNKNOWN) };
    /// Below this address the call that is under way has taken too much.
    static SOFT: Cell<usize> = const { Cell::new(0) };
    /// It was told in this call, whose error handlers may go on a little.
    static TOLD: Cell<bool> = const { Cell::new(false) };
}

/// A call into a state begins on this thread.
#[inline]
pub(super) fn begin(is_confined: bool) {
    if END.get() == UNKNOWN {
        find_end();
    }
    let most = if is_confined { MOST } else { usize::MAX };
    SOFT.set(address().saturating_sub(most).max(END.get()));
    TOLD.set(false);
}

/// Whether it may be that too much of this thread's stack is taken.
#[inline]
pub(super) fn is_low() -> bool {
    address() < SOFT.get()
}

/// Whether so much is taken that nothing more is to be called.
#[cold]
pub(super) fn ends() -> bool {
    address() < SOFT.get().saturating_sub(HANDLERS) || is_low() && !TOLD.replace(true)
}

#[cold]
fn find_end() {
    let (end, bytes) = bounds().unwrap_or((0, 0));
    END.set(end + RESERVE.min(bytes / RESERVED_SHARE));
}

/// How far the stack has come; it grows downwards.
#[inline]
fn address() -> usize {
    let here = 0_u8;
    (&raw const here).addr()
}

/// This thread's stack: its lowest address, and its bytes.
fn bounds() -> Option<(usize, usize)> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut end, mut bytes) = (ptr::null_mut(), 0);
    // SAFETY: the attributes are filled in by the first call if it says so, read by the second, and freed.
    let known = unsafe {
        libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) == 0 && {
            let known = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut end, &raw mut bytes) == 0;
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            known
        }
    };
    known.then(|| (end.addr(), bytes))
}
