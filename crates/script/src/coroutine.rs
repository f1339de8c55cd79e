//! Calls that may wait: each is a coroutine, suspended while it waits for something outside Lua.

use std::time::Duration;

use mlua::thread::ThreadStatus;
use mlua::{Function, IntoLuaMulti, MultiValue, RegistryKey, Thread};

use crate::contained::contained;
use crate::error::{Error, Kind};
use crate::{Engine, guard};

/// The most finished coroutines kept for reuse.
const MOST_KEPT: usize = 64;

/// A call in a confined state, from beginning to end. Dropping it ends the call.
#[derive(Debug)]
pub struct Coroutine {
    /// None after the end, and while the call is parked.
    thread: Option<Thread>,
    parked: Option<RegistryKey>,
    function: Function,
    what: &'static str,
    /// Instruction limit, and the instructions left.
    allowed: u64,
    left: u64,
    busy: Duration,
}

/// The state of a call after a resume.
#[derive(Debug)]
pub enum Progress {
    /// The call waits: continue it with [`Engine::resume`] and the awaited values.
    Waits,
    /// The call has returned these values.
    Returned(MultiValue),
}

impl Coroutine {
    /// Instructions used so far, where they are counted.
    pub fn instructions(&self) -> u64 {
        self.allowed - self.left
    }

    /// The script's line where the call waits.
    pub fn place(&self) -> Option<String> {
        self.thread.as_ref().and_then(guard::place_in)
    }

    /// Time that Lua ran in the call.
    pub fn busy(&self) -> Duration {
        self.busy
    }
}

impl Engine {
    /// Prepares a call of a function, with an instruction limit. The first resume starts it.
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
        Ok(Coroutine { thread: Some(thread), parked: None, function, what, allowed, left, busy: Duration::ZERO })
    }

    /// Keeps a waiting call in the state's registry until it is resumed.
    ///
    /// Rust can hold some 8,000 values of a state (LUAI_MAXCSTACK); the registry holds any number. Parking costs about
    /// 100 ns.
    ///
    /// # Errors
    /// When there is no memory for it; the call can still be resumed.
    pub fn park(&self, call: &mut Coroutine) -> Result<(), Error> {
        let Some(thread) = call.thread.as_ref().filter(|_| call.parked.is_none()) else { return Ok(()) };
        let key = self.with_room(|lua| lua.create_registry_value(thread));
        let key = key.map_err(|error| self.explain(call.what, &error, || self.place(&call.function)))?;
        call.parked = Some(key);
        call.thread = None;
        Ok(())
    }

    /// Starts a call with its arguments, or continues it with the awaited values, until it waits again or returns.
    ///
    /// # Errors
    /// When it fails, exceeds its instructions, or yields anything but `own.wait`. The call is then over.
    pub fn resume(&self, call: &mut Coroutine, args: impl IntoLuaMulti) -> Result<Progress, Error> {
        let parked = call.parked.take().and_then(|key| self.lua().registry_value::<Thread>(&key).ok());
        let Some(thread) = call.thread.take().or(parked) else {
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
