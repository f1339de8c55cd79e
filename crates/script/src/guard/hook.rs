//! The hook that LuaJIT calls between two instructions.

use std::ffi::CStr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mlua::{Thread, ffi};

use super::budget::Step;
use super::{KEY, NONE, Reason, STATES, Watched, chunk, is_own};

/// Called by LuaJIT before the next instruction.
pub(super) unsafe extern "C-unwind" fn hook(state: *mut ffi::lua_State, _: *mut ffi::lua_Debug) {
    // SAFETY: LuaJIT calls a hook with stack space for some values. No value with a destructor is alive when
    // `lua_error` leaves this function.
    unsafe {
        if interrupts(state) {
            ffi::lua_pushstring(state, c"interrupted".as_ptr());
            ffi::lua_error(state);
        }
    }
}

/// Whether to interrupt the call in progress here. If so, records the position; otherwise removes the hook.
///
/// # Safety
/// For a hook, with its state.
unsafe fn interrupts(state: *mut ffi::lua_State) -> bool {
    // SAFETY: the key holds a `Watched` that lives at least as long as this hook is set.
    let (watched, bytes) = unsafe {
        ffi::lua_pushlightuserdata(state, (&raw const KEY).cast_mut().cast());
        ffi::lua_rawget(state, ffi::LUA_REGISTRYINDEX);
        let pointer = ffi::lua_touserdata(state, -1).cast::<Watched>();
        ffi::lua_pop(state, 1);
        let Some(watched) = pointer.as_ref() else { return false };
        (watched, ffi::lua_gc(state, ffi::LUA_GCCOUNT, 0) as u64 * 1024)
    };
    let running = watched.running.load(Ordering::Relaxed);
    if let Some(budget) = &watched.budget
        && (running == NONE || running != watched.ordered.load(Ordering::Relaxed))
    {
        if running == NONE {
            // A metamethod that runs when Rust reads a value between two calls.
            let is_over = budget.step_outside();
            if is_over {
                watched.seen().hook();
            }
            return is_over;
        }
        match budget.step() {
            Step::On => return false,
            Step::Slow => {
                // SAFETY: as this function's.
                let place = unsafe { place(state) };
                watched.seen().slow = place.map(|place| (running, place));
                return false;
            }
            Step::Over => {
                let mut seen = watched.seen();
                // Pretends a check now: the next check sees the same call.
                (seen.call, seen.held) = (running, Duration::ZERO);
                seen.order = Some((Instant::now(), Reason::Instructions));
                watched.ordered.store(running, Ordering::Relaxed);
                // From here on at every instruction.
                seen.hook();
            }
        }
    }
    let mut seen = watched.seen();
    let share = watched.memory / (2 * STATES.load(Ordering::Relaxed).max(1) as u64);
    if watched.crowded.load(Ordering::Relaxed) && bytes > share && running != NONE {
        seen.order.get_or_insert((Instant::now(), Reason::Memory(bytes)));
        watched.ordered.store(running, Ordering::Relaxed);
    }
    if running == NONE || running != watched.ordered.load(Ordering::Relaxed) {
        seen.unhook();
        return false;
    }
    if watched.fired.swap(running, Ordering::Relaxed) != running {
        // SAFETY: as this function's.
        seen.place = unsafe { place(state) };
    }
    true
}

/// Returns the script's line where a waiting or failed coroutine stopped.
pub(crate) fn place_in(thread: &Thread) -> Option<String> {
    // SAFETY: the borrowed thread exists, and does not run.
    unsafe { place(thread.state()) }
}

/// Returns the running line of the script. LuaJIT forgets it when a coroutine fails in its own code, as it does without
/// memory: then the first line of the innermost function.
///
/// # Safety
/// For a hook, with its state.
unsafe fn place(state: *mut ffi::lua_State) -> Option<String> {
    // SAFETY: `lua_getstack` fills in a level, of which `lua_getinfo` fills in the requested fields. The source is a
    // string that lives as long as its function.
    unsafe {
        let mut level: ffi::lua_Debug = std::mem::zeroed();
        let mut function = None;
        for depth in 0.. {
            if ffi::lua_getstack(state, depth, &raw mut level) == 0 {
                break;
            }
            let is_known = ffi::lua_getinfo(state, c"Sl".as_ptr(), &raw mut level) != 0;
            // A function in C has no lines; a file itself begins at line 0.
            if !is_known || level.currentline.max(level.linedefined) <= 0 {
                continue;
            }
            let source = CStr::from_ptr(level.source).to_string_lossy();
            if is_own(&source) {
                continue;
            }
            if level.currentline > 0 {
                return Some(format!("{}:{}", chunk(&source), level.currentline));
            }
            function.get_or_insert_with(|| format!("{}:{}", chunk(&source), level.linedefined));
        }
        function
    }
}
