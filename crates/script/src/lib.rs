//! A LuaJIT state for one thread: files, calls with limits, errors with their lines, values copied between states.
//!
//! Knows Lua and nothing more: the crates that use this one give a script's functions their meaning.
//!
//! Read it in this order:
//!
//! 1. [`engine`](Engine): loads a file, and calls its functions.
//! 2. [`confined`](ConfinedOptions): states with limited rights. [`coroutine`](Coroutine): their calls, which may wait.
//!    `contained`: a panic ends only its call. `strings`, on `pattern`: bounded replacements for library functions
//!    that may run for long.
//! 3. [`guard`](Handle): ends calls that do not return, and counts instructions; all `unsafe` of this crate is there.
//!    `watchdog`: the thread that checks.
//! 4. [`error`](Error): errors of scripts, with their positions.
//! 5. [`data`](Data): values copied from one state to another.
//! 6. [`library`]: functions that several APIs offer to their scripts.
//!
//! A script is a program that its user trusts: it has all of LuaJIT's libraries, including `ffi`. This crate reports
//! its mistakes, and ensures that none makes the process hang. In a confined state many calls alternate on one
//! thread, so each has a budget, and nothing in it reaches outside. That protects against mistakes, not against a
//! malicious author of the script.
//!
//! **Circles.** `guard`, its `budget` and `hook`, and `watchdog`: LuaJIT calls the hook back, which reads the budget of
//! the guard that set it, and the watchdog asks the guard to set it. `engine` and `confined`: an engine owns its
//! confined state, and its methods for that stand in `confined`.

mod confined;
mod contained;
mod coroutine;
mod data;
mod engine;
mod error;
mod guard;
pub mod library;
mod pattern;
mod strings;
mod watchdog;

pub use confined::{ConfinedOptions, Read};
pub use contained::panics_are_contained;
pub use coroutine::{Coroutine, Progress};
pub use data::{Data, DataError};
pub use engine::{Engine, Parameters};
pub use error::{Error, Kind};
pub use guard::{Handle, Report};

/// Recommended stack size of a thread that calls into a state, bytes.
///
/// Library functions that call the script (`string.gsub`, `table.sort`) use the thread's stack, and Lua limits a
/// recursion through them only by its own measure. Unused stack costs nothing.
pub const STACK_BYTES: usize = 128 * 1024 * 1024;
