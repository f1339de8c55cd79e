//! Sets hooks in a state on the state's own thread, for any requesting thread.
//!
//! LuaJIT allows its own thread to set a hook at any moment, even in a signal handler. It does not allow another
//! thread to: `lua_sethook` reads the flags of all hooks, changes its own and writes all of them back. If another
//! thread does so while the state's thread leaves a hook, it writes back that the hook is still running, and LuaJIT
//! never calls a hook again. Concurrent writes also mix entries in the table of instructions. Such loops were never
//! ended.
//!
//! Therefore another thread sends a signal to the state's thread, and the handler sets the hook.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;
use std::sync::Once;

use mlua::ffi;

use super::hook::hook;

/// Nothing else here uses it, and its default action is to ignore it.
const SIGNAL: c_int = libc::SIGURG;

thread_local! {
    /// The state that this thread calls; null if none. Without a destructor, so that a signal handler may read it.
    static CALLED: Cell<*mut ffi::lua_State> = const { Cell::new(ptr::null_mut()) };
}

/// Returns the kernel's id of this thread.
pub(super) fn current() -> libc::pid_t {
    // SAFETY: it has no arguments and cannot fail.
    unsafe { libc::gettid() }
}

/// Records the state that this thread calls, null for none, and returns the previous one.
#[inline]
pub(super) fn calls(state: *mut ffi::lua_State) -> *mut ffi::lua_State {
    CALLED.replace(state)
}

/// Sets the hook in a state of this thread.
///
/// # Safety
/// The state is open, and this is its thread.
pub(super) unsafe fn set_hook(state: *mut ffi::lua_State) {
    // SAFETY: as this function's. The hook is removed first: a signal may have arrived while LuaJIT changed its table
    // of instructions, and LuaJIT rewrites the table only if the hooks have changed.
    unsafe {
        ffi::lua_sethook(state, None, 0, 0);
        ffi::lua_sethook(state, Some(hook), ffi::LUA_MASKCOUNT | ffi::LUA_MASKLINE, 1);
    }
}

/// Makes a thread set the hook in the state that it calls at that moment, if any. A hook that is no longer needed
/// then removes itself.
pub(super) fn order_hook(thread: libc::pid_t) {
    static HANDLED: Once = Once::new();
    HANDLED.call_once(|| {
        // SAFETY: all zeroes is an action without flags and with an empty mask. The handler does only what LuaJIT
        // allows in one.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as extern "C" fn(c_int) as libc::sighandler_t;
            // System calls of the script continue.
            action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
            libc::sigaction(SIGNAL, &raw const action, ptr::null_mut());
        }
    });
    // SAFETY: it sends a signal that has a handler; the kernel does not find a thread that has ended.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, SIGNAL) };
}

extern "C" fn handle(_: c_int) {
    let state = CALLED.get();
    if !state.is_null() {
        // SAFETY: this thread is in a call into the state, so the state is open and belongs to this thread.
        unsafe { set_hook(state) };
    }
}
