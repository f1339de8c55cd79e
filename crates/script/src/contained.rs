//! Panics in calls into confined states: some of mlua's functions panic where a state can hold no more of Rust's values.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic on this thread is caught and becomes the error of a call. A panic hook that ends the process asks this first.
pub fn panics_are_contained() -> bool {
    CONTAINED.get()
}

/// Does what enters a state; a panic becomes an error. No error of Lua's own comes by here, which leaves by unwinding as well: what enters a
/// state is a protected call. What a panic of ours passes in the state, mlua carries it through as an error.
pub(crate) fn contained<T>(work: impl FnOnce() -> mlua::Result<T>) -> mlua::Result<T> {
    let outer = CONTAINED.replace(true);
    // Safe to go on after: mlua leaves a state as it was; what was under way in it is over.
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
