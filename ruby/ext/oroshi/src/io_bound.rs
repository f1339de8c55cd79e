//! `oroshi.io_bound`: a request that is about to wait for long leaves its thread's place to another thread, as
//! `puma.mark_as_io_bound` does. The worker then has one thread more, until the request is over.
//!
//! The object in the environment is new for each request and has no state; it works only during that request.

use magnus::{Error, Ruby, Value, value::ReprValue as _};

use crate::present::{find, too_late};
use crate::rb;

/// `Oroshi::Native::IoBound#call`: whether another thread has taken the place. False: all threads are in use, and the
/// request keeps its place.
pub(crate) fn call(ruby: &Ruby, object: Value) -> Result<bool, Error> {
    let late = || too_late(ruby, "oroshi.io_bound cannot be called any more");
    let worker = find(|present| present.io_bound == rb::raw(object)).ok_or_else(late)?;
    let Some(hook) = worker.settings.on_io_bound else { return Ok(false) };
    if worker.aside.replace(true) {
        return Ok(true);
    }
    let found = hook.funcall::<_, _, bool>("call", ());
    if matches!(found, Ok(true)) {
        // Nothing else that this thread keeps should wait for the request.
        if let Some(watch) = worker.watch.get() {
            watch.pass_on_within_call();
        }
    } else if !worker.aside.replace(false) {
        // The request has ended meanwhile, and its thread rests.
        worker.resume();
    }
    found
}
