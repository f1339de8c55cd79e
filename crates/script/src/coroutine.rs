//! Calls that may wait: each is a coroutine, which stops where it waits for something outside of Lua.

use std::time::Duration;

use mlua::thread::ThreadStatus;
use mlua::{Function, IntoLuaMulti, MultiValue, Thread};

use crate::contained::contained;
use crate::error::{Error, Kind};
use crate::{Engine, guard};

/// Coroutines that have ended are kept for other calls, so many at most.
const MOST_KEPT: usize = 64;

/// A call in a confined state, from its beginning to its end. Dropping it ends it, wherever it is.
#[derive(Debug)]
pub struct Coroutine {
    /// Until it has ended.
    thread: Option<Thread>,
    function: Function,
    what: &'static str,
    /// Instructions that it may take, and how many of them are left.
    allowed: u64,
    left: u64,
    busy: Duration,
}

/// Where a call has come to.
#[derive(Debug)]
pub enum Progress {
    /// It waits: go on with it by [`Engine::resume`], with what it waits for.
    Waits,
    /// It has returned these values.
    Returned(MultiValue),
}

impl Coroutine {
    /// How many instructions it has taken, where they are counted.
    pub fn instructions(&self) -> u64 {
        self.allowed - self.left
    }

    /// The line of the script at which it waits.
    pub fn place(&self) -> Option<String> {
        self.thread.as_ref().and_then(guard::place_in)
    }

    /// For how long Lua ran in it.
    pub fn busy(&self) -> Duration {
        self.busy
    }
}

impl Engine {
    /// A call of a function, which begins when it is first resumed, and may take so many instructions until it has returned.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn coroutine(&self, what: &'static str, function: &Function, instructions: u64) -> Result<Coroutine, Error> {
        let thread = self.with_room(|lua| {
            let kept = self.kept.borrow_mut().pop();
            match kept {
                Some(thread) => thread.reset(function.clone()).map(|()| thread),
                None => lua.create_thread(function.clone()),
            }
        });
        let thread = thread.map_err(|error| self.explain(what, &error, || self.place(function)))?;
        let (function, allowed, left) = (function.clone(), instructions, instructions);
        Ok(Coroutine { thread: Some(thread), function, what, allowed, left, busy: Duration::ZERO })
    }

    /// Begins a call with its arguments, or goes on with it with what it has waited for, until it waits again or returns.
    ///
    /// # Errors
    /// When it fails, takes more instructions than it may, or stops for anything but `own.wait`. It is over then.
    pub fn resume(&self, call: &mut Coroutine, args: impl IntoLuaMulti) -> Result<Progress, Error> {
        let Some(thread) = call.thread.take() else {
            let what = format!("{}() has ended already", call.what);
            return Err(Error { place: self.place(&call.function), what, kind: Kind::Runtime });
        };
        let place = || guard::place_in(&thread).unwrap_or_else(|| self.place(&call.function));
        let slice = self.guard.slice(call.what, call.left);
        if slice.is_refused() {
            return Err(self.failed_at(call.what, call.allowed, None, place));
        }
        let result = contained(|| thread.resume::<MultiValue>(args));
        let spent = slice.end();
        let was_interrupted = slice.was_interrupted();
        drop(slice);
        call.left = spent.left;
        call.busy += Duration::from_nanos(spent.ns);
        match result {
            Ok(values) if !was_interrupted => {
                if thread.status() == ThreadStatus::Finished {
                    let mut kept = self.kept.borrow_mut();
                    if kept.len() < MOST_KEPT {
                        kept.push(thread);
                    }
                    return Ok(Progress::Returned(values));
                }
                if self.is_waiting(&values) {
                    call.thread = Some(thread);
                    return Ok(Progress::Waits);
                }
                let what = "has yielded: coroutine.yield belongs in a coroutine of the script's own";
                Err(Error { place: place(), what: format!("{}() {what}", call.what), kind: Kind::Runtime })
            }
            result => {
                let error = self.failed_at(call.what, call.allowed, result.err(), place);
                drop(thread);
                self.clean_up(error.kind);
                Err(error)
            }
        }
    }
}
