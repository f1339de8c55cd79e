//! Where a thread's stack ends.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;

/// What is kept for functions that call none of the script's, bytes at most; a share of small stacks.
const RESERVE: usize = 4 << 20;
const RESERVED_SHARE: usize = 4;

/// Not looked at yet.
const UNKNOWN: usize = usize::MAX;

thread_local! {
    /// Below this address there is too little left.
    static SOFT: Cell<usize> = const { Cell::new(UNKNOWN) };
    /// Below this one even for what tells of that.
    static HARD: Cell<usize> = const { Cell::new(0) };
    /// It was told in this call, whose error handlers may go on to `HARD`.
    static TOLD: Cell<bool> = const { Cell::new(false) };
}

/// A call into a state begins on this thread.
#[inline]
pub(super) fn begin() {
    TOLD.set(false);
}

/// Whether it may be that too little of this thread's stack is left.
#[inline]
pub(super) fn is_low() -> bool {
    address() < SOFT.get()
}

/// Whether so little is left that nothing more is to be called.
#[cold]
pub(super) fn ends() -> bool {
    if SOFT.get() == UNKNOWN {
        let (end, bytes) = bounds().unwrap_or((0, 0));
        let reserve = RESERVE.min(bytes / RESERVED_SHARE);
        SOFT.set(end + reserve);
        HARD.set(end + reserve / 2);
    }
    address() < HARD.get() || is_low() && !TOLD.replace(true)
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
