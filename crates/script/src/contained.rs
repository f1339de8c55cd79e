//! Contains panics in calls into confined states: some of mlua's functions panic when a state cannot hold more Rust
//! values.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic on this thread is caught and becomes the error of a call. A panic hook that ends the process
/// checks this first.
pub fn panics_are_contained() -> bool {
    CONTAINED.get()
}

/// Runs `work`, which enters a state; converts a panic to an error.
///
/// Lua's own errors also unwind, but never reach this: every entry to a state is a protected call. mlua carries our
/// panics through the state as errors.
pub(crate) fn contained<T>(work: impl FnOnce() -> mlua::Result<T>) -> mlua::Result<T> {
    let outer = CONTAINED.replace(true);
    // Safe to continue afterwards: mlua leaves the state intact, and the interrupted work is over.
    let done = catch_unwind(AssertUnwindSafe(work));
    CONTAINED.set(outer);
    done.unwrap_or_else(|panic| {
        Err(mlua::Error::runtime(format!("a defect of this program, not of the script: {}", words(&*panic))))
    })
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked")
}
