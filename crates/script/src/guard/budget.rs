//! How many instructions a call may take, and how long it holds its thread.
//!
//! LuaJIT counts down, and calls the hook at 0. That is armed anew for each slice of a call (from one wait to the next), so that calls which
//! take turns in one state are counted apart. How far it is when a slice ends, LuaJIT does not tell; so the place in the state where it counts
//! is found when the state is made.

mod charge;

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use mlua::{Lua, ffi};

use super::{Watched, hook::hook};
use crate::watchdog::now_ns;

/// After so many instructions at most the hook looks at the time.
const STEP: u32 = 1000;

/// So many steps may be taken outside of any call: there is nothing for a script to do there.
const MOST_OUTSIDE: u32 = 100;

/// A slice that holds its thread for longer is told.
const SLOW: Duration = Duration::from_millis(5);

/// What is counted of the slice that is running. Written by the state's own thread.
#[derive(Debug)]
pub(crate) struct Budget {
    state: AtomicPtr<ffi::lua_State>,
    /// Where LuaJIT counts down.
    count: AtomicPtr<i32>,
    /// From where it counts down.
    armed: AtomicU32,
    /// Instructions that were left to the call when it was armed.
    left: AtomicU64,
    began_ns: AtomicU64,
    /// Steps since the last slice.
    outside: AtomicU32,
    /// The slice was found to be slow, and where it was then.
    is_slow: AtomicBool,
}

/// What the hook is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Go on.
    On,
    /// Go on, and note where that is.
    Slow,
    /// End the call.
    Over,
}

/// How far a slice is counted, as another thread sees it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    left: u64,
    count: i32,
}

impl Counted {
    /// Whether LuaJIT has counted to its end since, and the hook was not called.
    pub(super) fn began_anew_since(self, before: Counted) -> bool {
        self.left == before.left && self.count > before.count
    }
}

impl Budget {
    /// For a state in which LuaJIT does not compile.
    pub(super) fn new(lua: &Lua) -> mlua::Result<Self> {
        let mut found = None;
        let mut state = ptr::null_mut();
        // SAFETY: `lua` is the whole state, whose main thread is at the beginning of what LuaJIT has allocated for it.
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

    /// A slice of a call begins that may take so many instructions more.
    pub(super) fn begin(&self, left: u64, now_ns: u64) {
        self.began_ns.store(now_ns, Ordering::Relaxed);
        self.is_slow.store(false, Ordering::Relaxed);
        self.outside.store(0, Ordering::Relaxed);
        self.left.store(left, Ordering::Relaxed);
        self.arm(left);
    }

    /// Nothing is to run until the next slice begins.
    pub(super) fn rest(&self) {
        self.outside.store(0, Ordering::Relaxed);
        self.arm(u64::from(STEP));
    }

    /// The hook was called in no call; whether that has gone too far.
    pub(super) fn step_outside(&self) -> bool {
        self.outside.fetch_add(1, Ordering::Relaxed) >= MOST_OUTSIDE
    }

    /// It has ended; how many instructions are left.
    pub(super) fn end(&self) -> u64 {
        // SAFETY: the state is there, as a call into it has just returned. LuaJIT's own code is not running, so nobody writes there.
        let count = unsafe { AtomicI32::from_ptr(self.count.load(Ordering::Relaxed)) }.load(Ordering::Relaxed);
        let armed = self.armed.load(Ordering::Relaxed);
        let taken = armed.saturating_sub(u32::try_from(count).unwrap_or(0));
        self.left.load(Ordering::Relaxed).saturating_sub(u64::from(taken))
    }

    /// How far it is. For another thread, while the state is there.
    pub(super) fn counted(&self) -> Counted {
        // SAFETY: whoever asks sees to it that the state is there. It is one word, which LuaJIT writes as one.
        let count = unsafe { AtomicI32::from_ptr(self.count.load(Ordering::Relaxed)) }.load(Ordering::Relaxed);
        Counted { left: self.left.load(Ordering::Relaxed), count }
    }

    /// The hook was called as the count came to 0.
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
        // SAFETY: the state is there: it is about to be called, or has called the hook.
        unsafe { ffi::lua_sethook(state, Some(hook), ffi::LUA_MASKCOUNT, count.cast_signed()) };
    }
}

/// Where a state counts down to its hook: in front of the hook's own address stand the count, and what it begins from (lj_obj.h,
/// `global_State`). Two counts that nobody else would have are set, and must be found there one after the other, and nowhere else.
///
/// # Safety
/// For a state's main thread.
unsafe fn countdown(state: *mut ffi::lua_State) -> Option<*mut i32> {
    const COUNTS: [i32; 2] = [0x0573_1ab7, 0x2e91_c064];
    /// The main thread, the global state and the compiler's are one allocation of more than this (lj_dispatch.h, `GG_State`).
    const BYTES: usize = 2048;
    let find = |count: i32| {
        // SAFETY: no Lua runs meanwhile, so no hook is called.
        unsafe { ffi::lua_sethook(state, Some(hook), ffi::LUA_MASKCOUNT, count) };
        let place = |offset: usize| {
            // SAFETY: it is in the allocation, and aligned as that is.
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

/// A part of a call that runs without a stop.
#[derive(Debug)]
pub(crate) struct Slice<'a> {
    pub(super) call: super::Call<'a>,
    /// Whether it is a part of another one, which counts it.
    pub(super) is_inner: bool,
    pub(super) what: &'static str,
    pub(super) began_ns: u64,
    pub(super) allowed: u64,
}

/// What a slice has taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent {
    /// Instructions that are left.
    pub(crate) left: u64,
    pub(crate) ns: u64,
}

impl Slice<'_> {
    /// Whether it must not run.
    pub(crate) fn is_refused(&self) -> bool {
        self.call.is_refused()
    }

    /// Whether it was interrupted, even if the script did not let that be seen.
    pub(crate) fn was_interrupted(&self) -> bool {
        self.call.was_interrupted()
    }

    /// It has come back.
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
