//! Limits the part of a thread's stack that a call may use.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;

use rustix::process::{Resource, getrlimit};

use crate::STACK_BYTES;

/// Stack that a call of a confined state may use before another call through C, bytes: some hundred nested calls of
/// `string.gsub`. An error has to unwind all of them, in a time that grows with the square of their number, and
/// nothing interrupts it.
const MOST: usize = 1 << 20;

/// Additional stack for an error's handlers.
const HANDLERS: usize = MOST / 2;

/// The most stack reserved for functions that do not call the script, bytes; a share of small stacks.
const RESERVE: usize = 4 << 20;
const RESERVED_SHARE: usize = 4;

/// Not determined yet.
const UNKNOWN: usize = usize::MAX;

thread_local! {
    /// The lowest address that calls may use.
    static END: Cell<usize> = const { Cell::new(UNKNOWN) };
    /// Below this address, the call in progress has used too much.
    static SOFT: Cell<usize> = const { Cell::new(0) };
    /// Whether this call was told of it; its error handlers may continue a little.
    static TOLD: Cell<bool> = const { Cell::new(false) };
}

/// Begins a call into a state on this thread.
#[inline]
pub(super) fn begin(is_confined: bool) {
    if END.get() == UNKNOWN {
        find_end();
    }
    let most = if is_confined { MOST } else { usize::MAX };
    SOFT.set(address().saturating_sub(most).max(END.get()));
    TOLD.set(false);
}

/// Whether too much of this thread's stack may be in use.
#[inline]
pub(super) fn is_low() -> bool {
    address() < SOFT.get()
}

/// Whether so much is in use that nothing more may be called.
#[cold]
pub(super) fn ends() -> bool {
    address() < SOFT.get().saturating_sub(HANDLERS) || is_low() && !TOLD.replace(true)
}

#[cold]
fn find_end() {
    let (end, bytes) = bounds().unwrap_or((0, 0));
    END.set(end + RESERVE.min(bytes / RESERVED_SHARE));
}

/// Returns the present depth of the stack; it grows downwards.
#[inline]
fn address() -> usize {
    let here = 0_u8;
    (&raw const here).addr()
}

/// Returns this thread's stack: its lowest address, and its size in bytes.
fn bounds() -> Option<(usize, usize)> {
    // SAFETY: no arguments.
    let is_main = unsafe { libc::gettid() == libc::getpid() };
    if cfg!(target_env = "musl") && is_main { main_stack() } else { thread_stack() }
}

/// Returns the main thread's stack, which grows up to a limit. glibc knows it; musl counts the pages that it has now.
fn main_stack() -> Option<(usize, usize)> {
    let limit = getrlimit(Resource::Stack).current.map_or(STACK_BYTES, |limit| (limit as usize).min(STACK_BYTES));
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let stack = maps.lines().find(|line| line.ends_with("[stack]"))?;
    let (_, top) = stack.split_once(' ')?.0.split_once('-')?;
    Some((usize::from_str_radix(top, 16).ok()?.checked_sub(limit)?, limit))
}

/// Returns this thread's stack as the C library knows it.
fn thread_stack() -> Option<(usize, usize)> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut end, mut bytes) = (ptr::null_mut(), 0);
    // SAFETY: the first call fills in the attributes if it returns 0, the second reads them, and the third frees
    // them.
    let known = unsafe {
        libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) == 0 && {
            let known = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut end, &raw mut bytes) == 0;
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            known
        }
    };
    known.then(|| (end.addr(), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" {
        static environ: *const *const libc::c_char;
    }

    #[test]
    fn the_environment_is_at_the_top_of_the_main_stack() {
        let (end, bytes) = main_stack().unwrap();
        // SAFETY: nothing changes the environment here.
        let variable = unsafe { *environ }.addr();
        assert!((end..end + bytes).contains(&variable) && end + bytes - variable < 4 << 20, "{end} {bytes} {variable}");
        let here = address();
        assert!(!(end..end + bytes).contains(&here), "this thread is not the main one");
    }
}
