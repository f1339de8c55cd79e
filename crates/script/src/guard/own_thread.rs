//! Sets hooks in a state on the state's own thread, whoever asks for it.
//!
//! LuaJIT bears that its own thread sets a hook at any moment, from a signal handler for one. It does not bear another thread:
//! `lua_sethook` reads the flags of all hooks, changes its own and writes all of them back. Another thread that does so while the state's
//! thread leaves a hook writes back that the hook is still running, and then none is ever called again; what both write into the table of
//! instructions at the same time leaves entries of either. Such a loop was never ended.
//!
//! So another thread sends a signal to the state's thread, whose handler sets the hook.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;
use std::sync::Once;

use mlua::ffi;

use super::hook::hook;

/// Nobody else here uses it, and whoever gets it without a handler ignores it.
const SIGNAL: c_int = libc::SIGURG;

thread_local! {
    /// The state that this thread calls; null when it calls none. Without a destructor, so that a signal handler may read it.
    static CALLED: Cell<*mut ffi::lua_State> = const { Cell::new(ptr::null_mut()) };
}

/// A thread, as the kernel numbers them.
pub(super) fn current() -> libc::pid_t {
    // SAFETY: it takes nothing and cannot fail.
    unsafe { libc::gettid() }
}

/// Notes which state this thread calls, null for none, and returns the one before.
#[inline]
pub(super) fn calls(state: *mut ffi::lua_State) -> *mut ffi::lua_State {
    CALLED.replace(state)
}

/// Sets the hook in a state whose thread this is.
///
/// # Safety
/// The state is open, and this is its thread.
pub(super) unsafe fn set_hook(state: *mut ffi::lua_State) {
    // SAFETY: as this function's. Taken away first: a signal may have come while LuaJIT changed its table of instructions, and it writes the
    // table anew only if it takes the hooks for others than before.
    unsafe {
        ffi::lua_sethook(state, None, 0, 0);
        ffi::lua_sethook(state, Some(hook), ffi::LUA_MASKCOUNT | ffi::LUA_MASKLINE, 1);
    }
}

/// Has a thread set the hook in the state that it calls at that moment, if any. A hook that is not wanted by then takes itself away.
pub(super) fn order_hook(thread: libc::pid_t) {
    static HANDLED: Once = Once::new();
    HANDLED.call_once(|| {
        // SAFETY: all zeroes is an action without flags and with an empty mask. The handler does no more than what LuaJIT allows in one.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as extern "C" fn(c_int) as libc::sighandler_t;
            // System calls that the script waits in go on.
            action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
            libc::sigaction(SIGNAL, &raw const action, ptr::null_mut());
        }
    });
    // SAFETY: it sends a signal that has a handler; a thread that has ended is not found.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, SIGNAL) };
}

extern "C" fn handle(_: c_int) {
    let state = CALLED.get();
    if !state.is_null() {
        // SAFETY: this thread is in a call into it, so it is open, and the thread is its own.
        unsafe { set_hook(state) };
    }
}
