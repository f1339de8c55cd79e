//! Ends calls that do not return, or reports them as stuck.
//!
//! A call records its number when it begins. One thread of this process checks these numbers several times a second:
//! a number that stays longer than the limit belongs to a call that does not return. Only then does the thread have a
//! hook set in the state (`own_thread`). LuaJIT calls the hook before the next instruction, also in compiled loops
//! (enabled in `.cargo/config.toml`), and the hook raises an error. The hook stays, so code that catches the error is
//! interrupted again, until none is left.
//!
//! Code outside Lua has no instructions: a call that does not return from there is reported as stuck.
//!
//! A confined state always has the hook, which also counts the instructions of its calls (`budget`). `state` makes
//! states whose calls end before the thread's stack does (`stack`).
#![allow(unsafe_code)]

mod budget;
mod hook;
mod own_thread;
mod stack;
mod state;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use budget::{Budget, Counted};
use mlua::{Lua, ffi};

pub(crate) use budget::Slice;
pub(crate) use hook::place_in;
pub(crate) use state::{new_confined_state, new_state, stack_ends};

use crate::error::{Error, Kind, TOP_LEVEL, subject};
use crate::watchdog;

/// Grace period for a call after the end of all calls: a slow call is not an error.
const GRACE: Duration = Duration::from_millis(500);

/// Minimum time between reports of slow slices.
const BETWEEN_REPORTS: Duration = Duration::from_secs(1);

/// Time after an interruption when a call counts as stuck.
const STUCK: Duration = Duration::from_secs(1);

/// A call seen this often running uncounted is ended. Once may be the moment between two counts.
const MOST_UNCOUNTED: u32 = 2;

/// A number that no call has.
const NONE: u64 = 0;

/// The lowest bits of a call's number identify the function.
const NAME_BITS: u32 = 6;

/// Its address is the registry key of a state's `Watched`.
static KEY: u8 = 0;

/// Number of states.
static STATES: AtomicUsize = AtomicUsize::new(0);

/// Returns a chunk's name without the sign for its kind.
pub(crate) fn chunk(source: &str) -> &str {
    source.strip_prefix(['@', '=']).unwrap_or(source)
}

/// Returns the name of a chunk outside the script, hidden in messages: in brackets, as LuaJIT writes `[C]`.
pub(crate) fn own_chunk(name: &str) -> String {
    format!("=[{name}]")
}

/// Whether a chunk's name is in brackets.
pub(crate) fn is_own(source: &str) -> bool {
    source.starts_with("=[")
}

/// The state's side of the watchdog.
#[derive(Debug)]
pub(crate) struct Guard {
    watched: Arc<Watched>,
    state: *mut ffi::lua_State,
    calls: Cell<u64>,
    /// The functions called so far. A call's number refers to one of them.
    names: RefCell<Vec<&'static str>>,
}

/// A call in progress.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    watched: &'a Watched,
    number: u64,
    /// The outer call, if this one is made from within it.
    outer: u64,
    /// The state that this thread called before.
    before: *mut ffi::lua_State,
}

/// Controls the calls of a state from other threads.
#[derive(Clone, Debug)]
pub struct Handle {
    watched: Arc<Watched>,
}

/// Data shared by the state's thread and the watchdog thread.
#[derive(Debug)]
pub(crate) struct Watched {
    /// The number of the call in progress.
    running: AtomicU64,
    /// The number of the call to interrupt.
    ordered: AtomicU64,
    /// The number of the interrupted call.
    fired: AtomicU64,
    /// Whether all calls must end.
    ended: AtomicBool,
    /// End of all calls, nanoseconds of CLOCK_MONOTONIC.
    until: AtomicU64,
    /// Whether this process exceeded its memory at the last check.
    crowded: AtomicBool,
    /// The script's file.
    file: String,
    /// The longest time for a call.
    pub(crate) limit: Duration,
    /// Memory of this process, bytes, beyond which its states check their shares.
    memory: u64,
    /// Counts instructions, in a confined state without compilation.
    budget: Option<Budget>,
    /// Receives reports that no call returns.
    tell: Option<Reporter>,
    seen: Mutex<History>,
}

/// A report on calls in progress in a confined state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// A call held its thread for longer than 5 ms, and blocked everything else there. At most one report per second.
    Slow {
        /// Name of the called function.
        what: &'static str,
        /// A line that was running after 5 ms; otherwise the position of the function.
        place: String,
        /// Time until the call waited or ended.
        held: Duration,
    },
    /// A call that should have ended and cannot be ended, because it does not return to Lua. Its thread is lost.
    Stuck(Error),
}

/// Receives reports, from any thread.
pub(crate) struct Reporter(pub(crate) Box<dyn Fn(Report) + Send + Sync>);

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reporter")
    }
}

/// The record of the checks on the current call.
#[derive(Debug)]
struct History {
    state: State,
    names: Vec<&'static str>,
    /// The call in progress at the last check, and how long it has been seen.
    call: u64,
    held: Duration,
    /// Time and reason of the first order to interrupt.
    order: Option<(Instant, Reason)>,
    /// Position at that time.
    place: Option<String>,
    /// Call and position of a slow slice.
    slow: Option<(u64, String)>,
    /// Positions of functions, by name.
    places: Vec<(&'static str, String)>,
    /// The last call reported as stuck.
    stuck: u64,
    /// Time of the last report of a slow slice.
    told_slow_ns: Option<u64>,
    /// The count at the last check, and how often the call ran uncounted.
    counted: Counted,
    uncounted: u32,
}

/// A state; null after it is closed.
#[derive(Debug)]
struct State {
    pointer: *mut ffi::lua_State,
    /// The state's thread.
    thread: libc::pid_t,
}

// SAFETY: the pointer is used only on the state's own thread, and under the lock under which it is removed before the
// state is closed.
unsafe impl Send for State {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Limit,
    Until,
    Ended,
    Memory(u64),
    Instructions,
    Stack,
}

/// The watchdog's input to a check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Check {
    /// Time since the last check.
    pub(crate) passed: Duration,
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub(crate) now_ns: u64,
    /// Memory use of this process, bytes.
    pub(crate) memory: u64,
}

impl Guard {
    pub(crate) fn new(lua: &Lua, file: &str, limit: Duration, memory: u64) -> mlua::Result<Self> {
        Self::with(lua, file, limit, memory, None, None)
    }

    /// Makes the guard of a confined state: counts instructions, unless its code is `compiled`.
    pub(crate) fn confined(
        lua: &Lua,
        file: &str,
        limit: Duration,
        compiled: bool,
        tell: Reporter,
    ) -> mlua::Result<Self> {
        let budget = if compiled { None } else { Some(Budget::new(lua)?) };
        // The allocator limits its memory.
        Self::with(lua, file, limit, u64::MAX, budget, Some(tell))
    }

    fn with(
        lua: &Lua,
        file: &str,
        limit: Duration,
        memory: u64,
        budget: Option<Budget>,
        tell: Option<Reporter>,
    ) -> mlua::Result<Self> {
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
            budget,
            tell,
            seen: Mutex::new(History {
                state: State { pointer: ptr::null_mut(), thread: own_thread::current() },
                names: Vec::new(),
                call: NONE,
                held: Duration::ZERO,
                order: None,
                place: None,
                slow: None,
                places: Vec::new(),
                stuck: NONE,
                told_slow_ns: None,
                counted: Counted::default(),
                uncounted: 0,
            }),
        });
        let pointer = Arc::as_ptr(&watched);
        let mut state = ptr::null_mut();
        // SAFETY: `lua_rawset` removes the pushed values. Only the hook reads the pointer, and the hook is removed
        // for good before its target is dropped.
        unsafe {
            lua.exec_raw::<()>((), |this| {
                ffi::lua_pushlightuserdata(this, (&raw const KEY).cast_mut().cast());
                ffi::lua_pushlightuserdata(this, pointer.cast_mut().cast());
                ffi::lua_rawset(this, ffi::LUA_REGISTRYINDEX);
                state = this;
            })?;
        }
        watched.seen().state.pointer = state;
        STATES.fetch_add(1, Ordering::Relaxed);
        watchdog::watch(&watched);
        Ok(Self { watched, state, calls: Cell::new(0), names: RefCell::default() })
    }

    /// Records the begin of a call.
    #[inline]
    pub(crate) fn enter(&self, what: &'static str) -> Call<'_> {
        self.begin(what, false)
    }

    #[inline]
    fn begin(&self, what: &'static str, is_confined: bool) -> Call<'_> {
        let outer = self.watched.running.load(Ordering::Relaxed);
        // A call from within another is part of it.
        let number = if outer == NONE {
            stack::begin(is_confined);
            self.number(what)
        } else {
            outer
        };
        let before = own_thread::calls(self.state);
        self.watched.running.store(number, Ordering::Relaxed);
        Call { watched: &self.watched, number, outer, before }
    }

    /// Records that a call in a confined state begins or continues, with `left` instructions left.
    #[inline]
    pub(crate) fn slice(&self, what: &'static str, left: u64) -> Slice<'_> {
        let call = self.begin(what, true);
        let is_inner = call.outer != NONE;
        let began_ns = if is_inner { 0 } else { watchdog::now_ns() };
        if !is_inner && let Some(budget) = &self.watched.budget {
            budget.begin(left, began_ns);
        }
        Slice { call, is_inner, what, began_ns, allowed: left }
    }

    /// Records the position of a function, for reports while it runs.
    pub(crate) fn introduce(&self, what: &'static str, place: String) {
        let mut seen = self.watched.seen();
        seen.places.retain(|(known, _)| *known != what);
        seen.places.push((what, place));
    }

    pub(crate) fn until(&self, end: Option<u64>) {
        self.watched.until.store(end.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn handle(&self) -> Handle {
        Handle { watched: Arc::clone(&self.watched) }
    }

    /// Returns the reason if we ended the call that failed. The state can be called again afterwards.
    pub(crate) fn interrupted(&self, what: &str, allowed: u64, place: impl FnOnce() -> String) -> Option<Error> {
        let mut seen = self.watched.seen();
        seen.unhook();
        let (order, found) = (seen.order.take(), seen.place.take());
        drop(seen);
        if let Some(budget) = &self.watched.budget {
            budget.rest();
        }
        let fired = self.watched.fired.swap(NONE, Ordering::Relaxed) != NONE;
        let why = match order {
            Some((_, why)) if fired => why,
            _ if self.watched.ended.load(Ordering::Relaxed) => Reason::Ended,
            _ => return None,
        };
        let kind = match why {
            Reason::Memory(_) => Kind::Memory,
            Reason::Instructions | Reason::Stack => Kind::Instructions,
            Reason::Limit | Reason::Until | Reason::Ended => Kind::Interrupted,
        };
        Some(Error { place: found.unwrap_or_else(place), what: why.tell(what, self.watched.limit, allowed), kind })
    }

    /// Prepares to close the state, which may call functions of the script. Nothing can interrupt those.
    pub(crate) fn close(&self) {
        self.watched.detach();
        self.watched.running.store(self.number("__gc"), Ordering::Relaxed);
    }

    /// Returns a call's number: a counter, and the index of the function.
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
        self.watched.detach();
        self.watched.running.store(NONE, Ordering::Relaxed);
        STATES.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Call<'_> {
    /// Whether the call must not start.
    #[inline]
    pub(crate) fn is_refused(&self) -> bool {
        self.watched.ended.load(Ordering::Relaxed)
    }

    /// Whether the call was interrupted, even if the script hid it.
    #[inline]
    pub(crate) fn was_interrupted(&self) -> bool {
        self.watched.fired.load(Ordering::Relaxed) == self.number
    }
}

impl Drop for Call<'_> {
    #[inline]
    fn drop(&mut self) {
        self.watched.running.store(self.outer, Ordering::Relaxed);
        own_thread::calls(self.before);
    }
}

impl Handle {
    /// Ends the call in progress, and all later ones: each returns an error.
    pub fn interrupt(&self) {
        self.watched.ended.store(true, Ordering::Relaxed);
        self.watched.check(&Check { passed: Duration::ZERO, now_ns: 0, memory: 0 });
    }

    /// Whether the call in progress is being ended.
    pub(crate) fn is_ending(&self) -> bool {
        let running = self.watched.running.load(Ordering::Relaxed);
        running != NONE && self.watched.fired.load(Ordering::Relaxed) == running
    }

    /// Returns a call that should have ended and cannot be ended, because it does not return to Lua. Its thread is
    /// lost.
    pub fn stuck(&self) -> Option<Error> {
        self.watched.stuck(&self.watched.seen())
    }
}

impl Watched {
    fn seen(&self) -> MutexGuard<'_, History> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stuck(&self, seen: &History) -> Option<Error> {
        let (at, why) = seen.order?;
        let running = self.running.load(Ordering::Relaxed);
        if running == NONE || running != seen.call || at.elapsed() < STUCK {
            return None;
        }
        let name = seen.names.get((running & ((1 << NAME_BITS) - 1)) as usize).copied().unwrap_or(TOP_LEVEL);
        let what = format!(
            "{}, and cannot be interrupted: it is in a system call, in a function written in C or in an error handler",
            why.tell(name, self.limit, 0)
        );
        Some(Error { place: seen.place_of(name).unwrap_or(&self.file).to_owned(), what, kind: Kind::Stuck })
    }

    /// Reports a slice that held its thread for long.
    #[cold]
    fn tell_slow(&self, what: &'static str, ns: u64, now_ns: u64) {
        let Some(Reporter(tell)) = &self.tell else { return };
        let mut seen = self.seen();
        let found = seen.slow.take().filter(|(call, _)| *call == self.running.load(Ordering::Relaxed));
        if now_ns.saturating_sub(seen.told_slow_ns.unwrap_or(0)) < BETWEEN_REPORTS.as_nanos() as u64 {
            return;
        }
        seen.told_slow_ns = Some(now_ns);
        let place = found.map(|(_, place)| place);
        let place = place.unwrap_or_else(|| seen.place_of(what).unwrap_or(&self.file).to_owned());
        drop(seen);
        tell(Report::Slow { what, place, held: Duration::from_nanos(ns) });
    }

    /// Ends access to the state by other threads.
    fn detach(&self) {
        let mut seen = self.seen();
        seen.unhook();
        seen.state.pointer = ptr::null_mut();
    }

    /// Decides whether to interrupt the call in progress, if any.
    pub(crate) fn check(&self, check: &Check) {
        let mut seen = self.seen();
        let crowded = check.memory > self.memory;
        self.crowded.store(crowded, Ordering::Relaxed);
        let running = self.running.load(Ordering::Relaxed);
        let is_same = running == seen.call;
        if is_same {
            seen.held += check.passed;
        } else {
            (seen.call, seen.held, seen.order) = (running, Duration::ZERO, None);
            seen.uncounted = 0;
        }
        if let Some(budget) = &self.budget
            && !seen.state.pointer.is_null()
        {
            // At the end of the stack there is no room for a hook: LuaJIT raises an error instead, and restarts the
            // count.
            let counted = budget.counted();
            seen.uncounted += u32::from(is_same && counted.began_anew_since(seen.counted));
            seen.counted = counted;
        }
        let over = Duration::from_nanos(check.now_ns.saturating_sub(self.until.load(Ordering::Relaxed)));
        let why = if running == NONE {
            None
        } else if self.ended.load(Ordering::Relaxed) {
            Some(Reason::Ended)
        } else if over >= GRACE && seen.held > Duration::ZERO {
            Some(Reason::Until)
        } else if seen.uncounted >= MOST_UNCOUNTED {
            Some(Reason::Stack)
        } else {
            (seen.held >= self.limit).then_some(Reason::Limit)
        };
        if let Some(why) = why {
            seen.order.get_or_insert((Instant::now(), why));
            self.ordered.store(running, Ordering::Relaxed);
        }
        // At each check again: the script may have set a hook of its own.
        if why.is_some() || crowded {
            seen.hook();
        }
        if let Some(Reporter(tell)) = &self.tell
            && seen.stuck != running
            && let Some(error) = self.stuck(&seen)
        {
            seen.stuck = running;
            drop(seen);
            tell(Report::Stuck(error));
        }
    }
}

impl History {
    fn place_of(&self, what: &str) -> Option<&str> {
        self.places.iter().find(|(known, _)| *known == what).map(|(_, place)| &**place)
    }

    /// Has the hook set; from any thread.
    fn hook(&self) {
        if self.state.pointer.is_null() {
            return;
        }
        if self.state.thread == own_thread::current() {
            // SAFETY: the state is not closed while its pointer is here, and this is its thread.
            unsafe { own_thread::set_hook(self.state.pointer) };
        } else {
            own_thread::order_hook(self.state.thread);
        }
    }

    /// Removes the hook; on the state's own thread.
    fn unhook(&self) {
        if !self.state.pointer.is_null() {
            // SAFETY: as above.
            unsafe { ffi::lua_sethook(self.state.pointer, None, 0, 0) };
        }
    }
}

impl Reason {
    fn tell(self, what: &str, limit: Duration, allowed: u64) -> String {
        let subject = subject(what);
        match self {
            Self::Limit => format!("{subject} did not return within {limit:?}"),
            Self::Until => format!("{subject} had not returned {GRACE:?} after the end"),
            Self::Ended => format!("{subject} was interrupted"),
            Self::Memory(bytes) => {
                format!("{subject} takes too much memory: {} MiB so far are this script's", bytes / (1024 * 1024))
            }
            Self::Stack => format!("{subject} calls itself to the end of its stack, again and again"),
            Self::Instructions => format!("{subject} took more than {allowed} instructions"),
        }
    }
}

#[cfg(test)]
mod tests;
