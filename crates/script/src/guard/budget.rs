//! Counts the instructions of a call, and the time that it holds its thread.
//!
//! LuaJIT counts down, and calls the hook at 0. Each slice of a call (from one wait to the next) sets the countdown
//! anew, so calls that alternate in one state are counted separately. LuaJIT does not expose the count at the end of
//! a slice, so we find its address when the state is made.

mod charge;

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use mlua::{Lua, ffi};

use super::{Watched, hook::hook};
use crate::watchdog::now_ns;

/// The most instructions between two checks of the time.
const STEP: u32 = 1000;

/// The most steps outside any call: scripts have nothing to do there.
const MOST_OUTSIDE: u32 = 100;

/// A slice that holds its thread for longer is reported.
const SLOW: Duration = Duration::from_millis(5);

/// Counters of the running slice. Written by the state's own thread.
#[derive(Debug)]
pub(crate) struct Budget {
    state: AtomicPtr<ffi::lua_State>,
    /// Address of LuaJIT's countdown.
    count: AtomicPtr<i32>,
    /// Start of the countdown.
    armed: AtomicU32,
    /// Instructions left to the call when the countdown was set.
    left: AtomicU64,
    began_ns: AtomicU64,
    /// Steps since the last slice.
    outside: AtomicU32,
    /// Whether the slice is slow, and its position was recorded.
    is_slow: AtomicBool,
}

/// The hook's next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Continue.
    On,
    /// Continue, and record the position.
    Slow,
    /// End the call.
    Over,
}

/// The count of a slice, as seen by another thread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    left: u64,
    count: i32,
}

impl Counted {
    /// Whether LuaJIT has restarted the count since, without calling the hook.
    pub(super) fn began_anew_since(self, before: Counted) -> bool {
        self.left == before.left && self.count > before.count
    }
}

impl Budget {
    /// Makes the budget of a state without compilation.
    pub(super) fn new(lua: &Lua) -> mlua::Result<Self> {
        let mut found = None;
        let mut state = ptr::null_mut();
        // SAFETY: `lua` is the whole state, and LuaJIT allocates the main thread at the beginning of it.
        unsafe {
            lua.exec_raw::<()>((), |this| {
                state = this;
                found = countdown(this);
            })?;
        }
        let count = found.ok_or_else(|| mlua::Error::runtime("this LuaJIT does not count as expected"))?;
        Ok(Budget {
            state: AtomicPtr::new(state),
            count: AtomicPtr::new(count),
            armed: AtomicU32::new(0),
            left: AtomicU64::new(0),
            began_ns: AtomicU64::new(0),
            outside: AtomicU32::new(0),
            is_slow: AtomicBool::new(false),
        })
    }

    /// Begins a slice of a call with `left` instructions left.
    pub(super) fn begin(&self, left: u64, now_ns: u64) {
        self.began_ns.store(now_ns, Ordering::Relaxed);
        self.is_slow.store(false, Ordering::Relaxed);
        self.outside.store(0, Ordering::Relaxed);
        self.left.store(left, Ordering::Relaxed);
        self.arm(left);
    }

    /// Ends counting until the next slice.
    pub(super) fn rest(&self) {
        self.outside.store(0, Ordering::Relaxed);
        self.arm(u64::from(STEP));
    }

    /// Counts a call of the hook outside any call; returns whether there were too many.
    pub(super) fn step_outside(&self) -> bool {
        self.outside.fetch_add(1, Ordering::Relaxed) >= MOST_OUTSIDE
    }

    /// Ends the slice; returns the instructions left.
    pub(super) fn end(&self) -> u64 {
        // SAFETY: the state exists, because a call into it has just returned. LuaJIT's code is not running, so
        // nothing writes there.
        let count = unsafe { AtomicI32::from_ptr(self.count.load(Ordering::Relaxed)) }.load(Ordering::Relaxed);
        let armed = self.armed.load(Ordering::Relaxed);
        let taken = armed.saturating_sub(u32::try_from(count).unwrap_or(0));
        self.left.load(Ordering::Relaxed).saturating_sub(u64::from(taken))
    }

    /// Returns the count. For another thread, while the state exists.
    pub(super) fn counted(&self) -> Counted {
        // SAFETY: the caller ensures that the state exists. LuaJIT writes this word atomically.
        let count = unsafe { AtomicI32::from_ptr(self.count.load(Ordering::Relaxed)) }.load(Ordering::Relaxed);
        Counted { left: self.left.load(Ordering::Relaxed), count }
    }

    /// Handles a call of the hook when the count reached 0.
    pub(super) fn step(&self) -> Step {
        let left = self.left.load(Ordering::Relaxed).saturating_sub(u64::from(self.armed.load(Ordering::Relaxed)));
        self.left.store(left, Ordering::Relaxed);
        if left == 0 {
            self.armed.store(0, Ordering::Relaxed);
            return Step::Over;
        }
        self.arm(left);
        let is_slow = || now_ns().saturating_sub(self.began_ns.load(Ordering::Relaxed)) > SLOW.as_nanos() as u64;
        if !self.is_slow.load(Ordering::Relaxed) && is_slow() {
            self.is_slow.store(true, Ordering::Relaxed);
            return Step::Slow;
        }
        Step::On
    }

    fn arm(&self, left: u64) {
        let count = u32::try_from(left).unwrap_or(STEP).clamp(1, STEP);
        self.armed.store(count, Ordering::Relaxed);
        let state = self.state.load(Ordering::Relaxed);
        // SAFETY: the state exists: it is about to be called, or has called the hook.
        unsafe { ffi::lua_sethook(state, Some(hook), ffi::LUA_MASKCOUNT, count.cast_signed()) };
    }
}

/// Finds the address of a state's countdown.
///
/// The count and its start value precede the address of the hook (lj_obj.h, `global_State`). This sets two unusual
/// counts, and must find them there one after the other, and nowhere else.
///
/// # Safety
/// For a state's main thread.
unsafe fn countdown(state: *mut ffi::lua_State) -> Option<*mut i32> {
    const COUNTS: [i32; 2] = [0x0573_1ab7, 0x2e91_c064];
    /// The main thread, the global state and the compiler's state are one allocation of more than this
    /// (lj_dispatch.h, `GG_State`).
    const BYTES: usize = 2048;
    let find = |count: i32| {
        // SAFETY: no Lua runs meanwhile, so LuaJIT does not call the hook.
        unsafe { ffi::lua_sethook(state, Some(hook), ffi::LUA_MASKCOUNT, count) };
        let place = |offset: usize| {
            // SAFETY: it is in the allocation, and has its alignment.
            let word = |at: usize| unsafe { state.byte_add(offset + at).cast::<i32>().read_volatile() };
            // SAFETY: as above.
            let address = || unsafe { state.byte_add(offset + 8).cast::<usize>().read_volatile() };
            word(0) == count && word(4) == count && address() == hook as *const () as usize
        };
        let mut places = (0..BYTES - 16).step_by(8).filter(|&offset| place(offset));
        let found = places.next();
        if places.next().is_some() { None } else { found }
    };
    let found = COUNTS.map(find);
    // SAFETY: as above.
    unsafe { ffi::lua_sethook(state, None, 0, 0) };
    // SAFETY: it is in the allocation.
    (found[0].is_some() && found[0] == found[1]).then(|| unsafe { state.byte_add(found[0].unwrap_or(0)).cast() })
}

/// A part of a call that runs without waiting.
#[derive(Debug)]
pub(crate) struct Slice<'a> {
    pub(super) call: super::Call<'a>,
    /// Whether it is within another slice, which counts it.
    pub(super) is_inner: bool,
    pub(super) what: &'static str,
    pub(super) began_ns: u64,
    pub(super) allowed: u64,
}

/// The result of a slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent {
    /// Instructions left.
    pub(crate) left: u64,
    pub(crate) ns: u64,
}

impl Slice<'_> {
    /// Whether the slice must not run.
    pub(crate) fn is_refused(&self) -> bool {
        self.call.is_refused()
    }

    /// Whether the slice was interrupted, even if the script hid it.
    pub(crate) fn was_interrupted(&self) -> bool {
        self.call.was_interrupted()
    }

    /// Ends the slice.
    pub(crate) fn end(&self) -> Spent {
        let watched: &Watched = self.call.watched;
        if self.is_inner {
            return Spent { left: self.allowed, ns: 0 };
        }
        let ended_ns = now_ns();
        let ns = ended_ns.saturating_sub(self.began_ns);
        if ns > SLOW.as_nanos() as u64 {
            watched.tell_slow(self.what, ns, ended_ns);
        }
        Spent { left: watched.budget.as_ref().map_or(self.allowed, Budget::end), ns }
    }
}
