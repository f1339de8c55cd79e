//! Waits for events without a notification.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::HANG;

/// The pause between two checks. A loop without a pause would take CPU time from the process that it waits for.
const PAUSE: Duration = Duration::from_millis(1);

/// Waits until `happened` returns true. Panics after [`HANG`] with `what`, the event in words.
#[track_caller]
pub fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    wait_for(|| what.to_owned(), || happened().then_some(()));
}

/// Waits until `look` returns a value, and returns it. Panics after [`HANG`] with the text of `what`, which can hold
/// the last state.
#[track_caller]
pub fn wait_for<T>(what: impl Fn() -> String, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < HANG, "still not so after {HANG:?}: {}", what());
        thread::sleep(PAUSE);
    }
}

/// Does the work on a thread with this much stack, and returns the result. Panics after [`HANG`], so that work that
/// hangs fails its test, and passes on a panic of the work.
pub fn bounded<R: Send + 'static>(stack_bytes: usize, work: impl FnOnce() -> R + Send + 'static) -> R {
    let (results, result) = mpsc::channel();
    let worker = thread::Builder::new().stack_size(stack_bytes);
    let worker = worker.spawn(move || drop(results.send(work()))).unwrap();
    match result.recv_timeout(HANG) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => panic!("it hangs"),
        Err(RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(worker.join().expect_err("it ended without a result"))
        }
    }
}
