//! How a call that does not return is ended, or told to be stuck.
//!
//! A call notes that it began, in one number. One thread of this process looks at those numbers some times a second: a number
//! that stays as long as a call may take is a call that does not return. Only then does it set a hook in the state, which LuaJIT
//! calls before the next instruction, also in loops that are compiled (`.cargo/config.toml` sees to that), and which raises an error.
//! The hook stays, so code that catches the error is interrupted again, until none is left.
//!
//! What is not Lua has no instructions: a call that does not return from there is told to be stuck.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mlua::{Lua, LuaOptions, StdLib, ffi};

use crate::error::{Error, Kind, TOP_LEVEL, subject};
use crate::watchdog;

/// How long a call may go on after the end of all calls: a slow one is no mistake.
const GRACE: Duration = Duration::from_millis(500);

/// How long after it was interrupted a call is taken to be stuck.
const STUCK: Duration = Duration::from_secs(1);

/// A number that is no call's.
const NONE: u64 = 0;

/// The lowest bits of a call's number say what is called.
const NAME_BITS: u32 = 6;

/// Its address is the key in Lua's registry under which a state's `Watched` is found.
static KEY: u8 = 0;

/// How many states there are.
static STATES: AtomicUsize = AtomicUsize::new(0);

/// A state with all of LuaJIT's libraries.
pub(crate) fn new_state() -> mlua::Result<Lua> {
    // SAFETY: with `ffi` and `debug` a script may do whatever a program may. It is one, and the user has asked for it to be run.
    let lua = unsafe { Lua::unsafe_new_with(StdLib::ALL, LuaOptions::default()) };
    let wrapper: unsafe extern "C-unwind" fn(*mut ffi::lua_State, ffi::lua_CFunction) -> u64 = call_c_function;
    // SAFETY: the wrapper is what LuaJIT wants of one, its result being wider by a half that is 0. It is taken off the stack again.
    let wraps = unsafe {
        lua.exec_raw::<bool>((), |state| {
            ffi::lua_pushlightuserdata(state, wrapper as *mut c_void);
            let done = luaJIT_setmode(state, -1, MODE_WRAPCFUNC | MODE_ON);
            ffi::lua_pop(state, 1);
            ffi::lua_pushboolean(state, done);
        })?
    };
    if wraps { Ok(lua) } else { Err(mlua::Error::runtime("LuaJIT does not call C functions through another")) }
}

/// Calls a C function for LuaJIT, which takes all 64 bits of the register for the result although it is 32 of them: what stands in the
/// others is for compilers to choose, and rustc's choice for mlua's finalisers is not 0. Without this, memory is corrupted.
unsafe extern "C-unwind" fn call_c_function(state: *mut ffi::lua_State, function: ffi::lua_CFunction) -> u64 {
    // SAFETY: LuaJIT would call it in the same way.
    u64::from(unsafe { function(state) }.cast_unsigned())
}

// luajit.h
const MODE_WRAPCFUNC: c_int = 0x10;
const MODE_ON: c_int = 0x100;

unsafe extern "C-unwind" {
    fn luaJIT_setmode(state: *mut ffi::lua_State, index: c_int, mode: c_int) -> c_int;
}

/// A chunk's name without the sign that says what kind it is.
pub(crate) fn chunk(source: &str) -> &str {
    source.strip_prefix(['@', '=']).unwrap_or(source)
}

/// The name of a chunk that is not the script's, which no message shows: in brackets, as LuaJIT writes `[C]`.
pub(crate) fn own_chunk(name: &str) -> String {
    format!("=[{name}]")
}

/// Whether it is such a one.
pub(crate) fn is_own(source: &str) -> bool {
    source.starts_with("=[")
}

/// A state's side of the watch.
#[derive(Debug)]
pub(crate) struct Guard {
    watched: Arc<Watched>,
    calls: Cell<u64>,
    /// What has been called so far. A call's number says which of these it is.
    names: RefCell<Vec<&'static str>>,
}

/// A call that is under way.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    watched: &'a Watched,
    number: u64,
    /// What was under way before: this call is made from within it.
    outer: u64,
}

/// Reaches the calls of a state from other threads.
#[derive(Clone, Debug)]
pub struct Handle {
    watched: Arc<Watched>,
}

/// What the state's thread and the watching thread both see.
#[derive(Debug)]
pub(crate) struct Watched {
    /// The number of the call that is under way.
    running: AtomicU64,
    /// The call that is to be interrupted.
    ordered: AtomicU64,
    /// The call that was interrupted.
    fired: AtomicU64,
    /// All calls are to end.
    ended: AtomicBool,
    /// When calls are to end, nanoseconds of CLOCK_MONOTONIC.
    until: AtomicU64,
    /// Whether this process uses more memory than it should, by the last look.
    crowded: AtomicBool,
    /// The script.
    file: String,
    /// The longest that a call may take.
    pub(crate) limit: Duration,
    /// What this process may use before its states are asked how much is theirs, bytes.
    memory: u64,
    seen: Mutex<Seen>,
}

/// What is touched now and then.
#[derive(Debug)]
struct Seen {
    state: State,
    names: Vec<&'static str>,
    /// The call that was under way at the last look, and for how long it has been seen.
    call: u64,
    held: Duration,
    /// When it was first to be interrupted, and why.
    order: Option<(Instant, Why)>,
    /// Where it was then.
    place: Option<String>,
}

/// A state; null once it is closed.
#[derive(Debug)]
struct State(*mut ffi::lua_State);

// SAFETY: other threads use it only to set a hook, which LuaJIT is built to bear at any moment, and only under the lock under which
// it is taken away before the state is closed.
unsafe impl Send for State {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Limit,
    Until,
    Ended,
    Memory(u64),
}

/// What the watching thread knows at a look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    /// Since the last one.
    pub(crate) passed: Duration,
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub(crate) now_ns: u64,
    /// What this process uses, bytes.
    pub(crate) memory: u64,
}

impl Guard {
    pub(crate) fn new(lua: &Lua, file: &str, limit: Duration, memory: u64) -> mlua::Result<Self> {
        let watched = Arc::new(Watched {
            running: AtomicU64::new(NONE),
            ordered: AtomicU64::new(NONE),
            fired: AtomicU64::new(NONE),
            ended: AtomicBool::new(false),
            until: AtomicU64::new(u64::MAX),
            crowded: AtomicBool::new(false),
            file: file.to_owned(),
            limit,
            memory,
            seen: Mutex::new(Seen {
                state: State(ptr::null_mut()),
                names: Vec::new(),
                call: NONE,
                held: Duration::ZERO,
                order: None,
                place: None,
            }),
        });
        let pointer = Arc::as_ptr(&watched);
        let mut state = ptr::null_mut();
        // SAFETY: `lua_rawset` takes off what was pushed. The pointer is read by the hook alone, which is taken away for good before
        // what it points to goes.
        unsafe {
            lua.exec_raw::<()>((), |this| {
                ffi::lua_pushlightuserdata(this, (&raw const KEY).cast_mut().cast());
                ffi::lua_pushlightuserdata(this, pointer.cast_mut().cast());
                ffi::lua_rawset(this, ffi::LUA_REGISTRYINDEX);
                state = this;
            })?;
        }
        watched.seen().state = State(state);
        STATES.fetch_add(1, Ordering::Relaxed);
        watchdog::watch(&watched);
        Ok(Self { watched, calls: Cell::new(0), names: RefCell::default() })
    }

    /// Notes that a call begins.
    #[inline]
    pub(crate) fn enter(&self, what: &'static str) -> Call<'_> {
        let outer = self.watched.running.load(Ordering::Relaxed);
        // What is called from within a call is part of it.
        let number = if outer == NONE { self.number(what) } else { outer };
        self.watched.running.store(number, Ordering::Relaxed);
        Call { watched: &self.watched, number, outer }
    }

    pub(crate) fn until(&self, end: Option<u64>) {
        self.watched.until.store(end.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn handle(&self) -> Handle {
        Handle { watched: Arc::clone(&self.watched) }
    }

    /// After a call that failed: if that was our doing, why. The state can be called again afterwards.
    pub(crate) fn interrupted(&self, what: &str, place: impl FnOnce() -> String) -> Option<Error> {
        let mut seen = self.watched.seen();
        seen.unhook();
        let (order, found) = (seen.order.take(), seen.place.take());
        drop(seen);
        let fired = self.watched.fired.swap(NONE, Ordering::Relaxed) != NONE;
        let why = match order {
            Some((_, why)) if fired => why,
            _ if self.watched.ended.load(Ordering::Relaxed) => Why::Ended,
            _ => return None,
        };
        let kind = if matches!(why, Why::Memory(_)) { Kind::Memory } else { Kind::Interrupted };
        Some(Error { place: found.unwrap_or_else(place), what: why.tell(what, self.watched.limit), kind })
    }

    /// The state is about to be closed, which may call functions of the script. Nothing can interrupt those.
    pub(crate) fn close(&self) {
        self.watched.part();
        self.watched.running.store(self.number("__gc"), Ordering::Relaxed);
    }

    /// A call's number: how many there were, and what it is called.
    #[inline]
    fn number(&self, what: &'static str) -> u64 {
        let known = self.names.borrow().iter().position(|name| ptr::eq(*name, what));
        let name = known.unwrap_or_else(|| self.name(what));
        let count = self.calls.get() + 1;
        self.calls.set(count);
        (count << NAME_BITS) | name as u64
    }

    #[cold]
    fn name(&self, what: &'static str) -> usize {
        let mut names = self.names.borrow_mut();
        if names.len() < 1 << NAME_BITS {
            names.push(what);
            self.watched.seen().names.clone_from(&names);
        }
        names.len() - 1
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.watched.part();
        self.watched.running.store(NONE, Ordering::Relaxed);
        STATES.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Call<'_> {
    /// Whether it must not be made.
    #[inline]
    pub(crate) fn is_refused(&self) -> bool {
        self.watched.ended.load(Ordering::Relaxed)
    }

    /// Whether it was interrupted, even if the script did not let that be seen.
    #[inline]
    pub(crate) fn was_interrupted(&self) -> bool {
        self.watched.fired.load(Ordering::Relaxed) == self.number
    }
}

impl Drop for Call<'_> {
    #[inline]
    fn drop(&mut self) {
        self.watched.running.store(self.outer, Ordering::Relaxed);
    }
}

impl Handle {
    /// Ends the call that is under way, and all later ones: each returns an error.
    pub fn interrupt(&self) {
        self.watched.ended.store(true, Ordering::Relaxed);
        self.watched.look(&Look { passed: Duration::ZERO, now_ns: 0, memory: 0 });
    }

    /// A call that should have ended and cannot be ended, as it does not return to Lua. Its thread is lost.
    pub fn stuck(&self) -> Option<Error> {
        let seen = self.watched.seen();
        let (at, why) = seen.order?;
        let running = self.watched.running.load(Ordering::Relaxed);
        if running == NONE || running != seen.call || at.elapsed() < STUCK {
            return None;
        }
        let name = seen.names.get((running & ((1 << NAME_BITS) - 1)) as usize).copied().unwrap_or(TOP_LEVEL);
        let what = format!(
            "{}, and cannot be interrupted: it is in a system call, in a function written in C or in an error handler",
            why.tell(name, self.watched.limit)
        );
        Some(Error { place: self.watched.file.clone(), what, kind: Kind::Stuck })
    }
}

impl Watched {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on nobody else touches the state.
    fn part(&self) {
        let mut seen = self.seen();
        seen.unhook();
        seen.state = State(ptr::null_mut());
    }

    /// Looks whether the call that is under way, if any, is to be interrupted.
    pub(crate) fn look(&self, look: &Look) {
        let mut seen = self.seen();
        let crowded = look.memory > self.memory;
        self.crowded.store(crowded, Ordering::Relaxed);
        let running = self.running.load(Ordering::Relaxed);
        if running == seen.call {
            seen.held += look.passed;
        } else {
            (seen.call, seen.held, seen.order) = (running, Duration::ZERO, None);
        }
        let over = Duration::from_nanos(look.now_ns.saturating_sub(self.until.load(Ordering::Relaxed)));
        let why = if running == NONE {
            None
        } else if self.ended.load(Ordering::Relaxed) {
            Some(Why::Ended)
        } else if over >= GRACE && seen.held > Duration::ZERO {
            Some(Why::Until)
        } else {
            (seen.held >= self.limit).then_some(Why::Limit)
        };
        if let Some(why) = why {
            seen.order.get_or_insert((Instant::now(), why));
            self.ordered.store(running, Ordering::Relaxed);
        }
        // At each look anew: the script may have set a hook of its own.
        if why.is_some() || crowded {
            seen.hook();
        }
    }
}

impl Seen {
    fn hook(&self) {
        if !self.state.0.is_null() {
            // SAFETY: the state is not closed while it stands here, and this lock is held. LuaJIT bears that a hook is set at any moment, for
            // signal handlers; what it writes are words that the state's thread reads anew each time.
            unsafe { ffi::lua_sethook(self.state.0, Some(hook), ffi::LUA_MASKCOUNT | ffi::LUA_MASKLINE, 1) };
        }
    }

    fn unhook(&self) {
        if !self.state.0.is_null() {
            // SAFETY: as above.
            unsafe { ffi::lua_sethook(self.state.0, None, 0, 0) };
        }
    }
}

impl Why {
    fn tell(self, what: &str, limit: Duration) -> String {
        let subject = subject(what);
        match self {
            Self::Limit => format!("{subject} did not return within {limit:?}"),
            Self::Until => format!("{subject} had not returned {GRACE:?} after the end"),
            Self::Ended => format!("{subject} was interrupted"),
            Self::Memory(bytes) => {
                format!("{subject} takes too much memory: {} MiB so far are this script's", bytes / (1024 * 1024))
            }
        }
    }
}

/// Called by LuaJIT before the next instruction.
unsafe extern "C-unwind" fn hook(state: *mut ffi::lua_State, _: *mut ffi::lua_Debug) {
    // SAFETY: LuaJIT calls a hook with a state that has room for some values. Nothing that has a destructor is alive when `lua_error`
    // leaves this function.
    unsafe {
        if interrupts(state) {
            ffi::lua_pushstring(state, c"interrupted".as_ptr());
            ffi::lua_error(state);
        }
    }
}

/// Whether the call that is under way is to be interrupted here and now. If so, the place is noted; else the hook is taken away.
///
/// # Safety
/// For a hook, with its state.
unsafe fn interrupts(state: *mut ffi::lua_State) -> bool {
    // SAFETY: under the key is a `Watched` that lives at least as long as this hook is set.
    let (watched, bytes) = unsafe {
        ffi::lua_pushlightuserdata(state, (&raw const KEY).cast_mut().cast());
        ffi::lua_rawget(state, ffi::LUA_REGISTRYINDEX);
        let pointer = ffi::lua_touserdata(state, -1).cast::<Watched>();
        ffi::lua_pop(state, 1);
        let Some(watched) = pointer.as_ref() else { return false };
        (watched, ffi::lua_gc(state, ffi::LUA_GCCOUNT, 0) as u64 * 1024)
    };
    let running = watched.running.load(Ordering::Relaxed);
    let mut seen = watched.seen();
    let share = watched.memory / (2 * STATES.load(Ordering::Relaxed).max(1) as u64);
    if watched.crowded.load(Ordering::Relaxed) && bytes > share && running != NONE {
        seen.order.get_or_insert((Instant::now(), Why::Memory(bytes)));
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

/// The line of the script that is running.
///
/// # Safety
/// For a hook, with its state.
unsafe fn place(state: *mut ffi::lua_State) -> Option<String> {
    // SAFETY: `lua_getstack` fills in a level, of which `lua_getinfo` fills in what it is asked for. The source is a string that lives
    // as long as its function.
    unsafe {
        let mut level: ffi::lua_Debug = std::mem::zeroed();
        for depth in 0.. {
            if ffi::lua_getstack(state, depth, &raw mut level) == 0 {
                break;
            }
            if ffi::lua_getinfo(state, c"Sl".as_ptr(), &raw mut level) != 0 && level.currentline > 0 {
                let source = CStr::from_ptr(level.source).to_string_lossy();
                if !is_own(&source) {
                    return Some(format!("{}:{}", chunk(&source), level.currentline));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One result, and something in the half of the register that is not the result's.
    unsafe extern "C-unwind" fn one(state: *mut ffi::lua_State) -> u64 {
        // SAFETY: a C function has room for some values.
        unsafe { ffi::lua_pushinteger(state, 7) };
        0xdead_beef_0000_0001
    }

    #[test]
    fn a_c_function_s_result_is_its_lower_half() {
        let lua = new_state().unwrap();
        // SAFETY: as C has it, these are one kind of function: the upper half of a register that holds 32 bits is anything.
        let one = unsafe {
            type Wide = unsafe extern "C-unwind" fn(*mut ffi::lua_State) -> u64;
            lua.create_c_function(std::mem::transmute::<Wide, ffi::lua_CFunction>(one)).unwrap()
        };
        lua.globals().set("one", one).unwrap();
        let code = "local sum = 0 for i = 1, 1000 do sum = sum + one() end assert(select('#', one()) == 1) return sum";
        assert_eq!(lua.load(code).eval::<u32>().unwrap(), 7000);
    }

    #[test]
    fn only_a_call_that_stays_is_interrupted() {
        let lua = new_state().unwrap();
        let guard = Guard::new(&lua, "a.lua", Duration::from_secs(3600), u64::MAX).unwrap();
        // The watching thread looks as well, and sees next to nothing pass.
        let most_of_the_limit = Look { passed: Duration::from_secs(3000), now_ns: 0, memory: 0 };
        let is_ordered = || guard.watched.seen().order.is_some();
        for _ in 0..10 {
            let _short = guard.enter("f");
            guard.watched.look(&most_of_the_limit);
            assert!(!is_ordered());
        }
        guard.watched.look(&most_of_the_limit);
        let _long = guard.enter("f");
        for _ in 0..3 {
            let _within = guard.enter("g");
            guard.watched.look(&most_of_the_limit);
        }
        assert!(is_ordered());
    }
}
