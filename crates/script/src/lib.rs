//! A LuaJIT state for one thread: files, calls with limits, errors with their lines, values copied between states. It knows
//! Lua and no more: what the functions of a script are for is the business of the crates that stand on this one.
//!
//! Read it in this order:
//!
//! 1. [`engine`](Engine): one state, from its file to its calls.
//! 2. [`confined`](Confines): states whose scripts get no more than they need. [`coroutine`](Coroutine): calls in them, which may wait.
//!    `contained`: a panic ends a call alone. `strings`, on `pattern`: functions of LuaJIT's libraries that may run for long, with a bound.
//! 3. [`guard`](Handle): how a call that does not return is ended, or told to be stuck, and how instructions are counted; all `unsafe` of this
//!    crate is there. `watchdog` is the thread that looks.
//! 4. [`error`](Error): what a script did wrong, and where.
//! 5. [`data`](Data): values on their way from one state to another.
//!
//! A script is a program that its user trusts: it has all of LuaJIT's libraries, `ffi` among them. What is promised is that its
//! mistakes are told as such, and that none of them makes this process hang. In a confined state many calls take turns on one thread, so
//! each has a budget, and nothing in it reaches outside: that holds off mistakes. It is no wall against whoever writes the script.

mod confined;
mod contained;
mod coroutine;
mod data;
mod engine;
mod error;
mod guard;
mod pattern;
mod strings;
mod watchdog;

pub use confined::{Confines, Read};
pub use contained::panics_are_contained;
pub use coroutine::{Coroutine, Progress};
pub use data::{Data, DataError};
pub use engine::{Engine, Parameters};
pub use error::{Error, Kind};
pub use guard::{Handle, Report};

/// How much stack a thread that calls into a state should have, bytes. Functions of Lua's libraries that call functions of the script
/// (`string.gsub`, `table.sort`) use the thread's stack, and Lua ends a recursion through them only by its own measure. What is not used costs
/// nothing.
pub const STACK_BYTES: usize = 128 * 1024 * 1024;
