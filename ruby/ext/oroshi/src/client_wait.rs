//! Waits until a client has room for its answer. Ruby's lock is released meanwhile, and no limit on the application
//! counts the time.

use std::ffi::{c_int, c_void};

use crate::clock;
use crate::slot::Slot;

/// The arguments and result of a wait, passed through Ruby's frames.
struct Wait<'s> {
    watch: libc::pollfd,
    timeout_ms: c_int,
    ready: c_int,
    slot: &'s Slot,
}

/// Whether one of `events` occurs on a socket within `timeout_ms`. May raise: call it within `protect`.
pub(crate) fn wait_raising(slot: &Slot, socket: c_int, events: i16, timeout_ms: u64) -> bool {
    let over_ms = clock::coarse_ms().saturating_add(timeout_ms);
    loop {
        let left_ms = over_ms.saturating_sub(clock::coarse_ms());
        let watch = libc::pollfd { fd: socket, events, revents: 0 };
        let mut wait = Wait { watch, timeout_ms: c_int::try_from(left_ms).unwrap_or(c_int::MAX), ready: 0, slot };
        // SAFETY: `poll` has the type that Ruby asks for, and RUBY_UBF_IO is the constant -1: interrupt the thread by a
        // signal. An exception leaves a frame without anything to drop.
        unsafe {
            rb_sys::rb_thread_call_without_gvl(
                Some(poll),
                (&raw mut wait).cast(),
                std::mem::transmute::<isize, rb_sys::rb_unblock_function_t>(-1),
                std::ptr::null_mut(),
            );
        }
        match wait.ready {
            1.. => return true,
            _ if left_ms == 0 => return false,
            // A signal, whose handler has run by now.
            _ => {}
        }
    }
}

/// Waits, and notes the wait in the slot. No exception passes through here, so the note always ends.
unsafe extern "C" fn poll(wait: *mut c_void) -> *mut c_void {
    // SAFETY: the pointer given above, whose frame waits.
    let wait = unsafe { &mut *wait.cast::<Wait<'_>>() };
    wait.slot.client_wait_begins();
    // SAFETY: one pollfd.
    wait.ready = unsafe { libc::poll(&raw mut wait.watch, 1, wait.timeout_ms) };
    wait.slot.client_wait_ends();
    std::ptr::null_mut()
}
