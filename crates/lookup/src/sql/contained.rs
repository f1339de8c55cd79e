//! Contains panics of sqlx: it panics over some bytes that no server should send, such as a message that is shorter
//! than it says.

use std::cell::Cell;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use crate::answer::Failure;

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic on this thread is caught and becomes a failure of a store, as a panic in a database's protocol does.
/// A panic hook that ends the process calls this first.
pub fn panics_are_contained() -> bool {
    CONTAINED.get()
}

/// Runs work that may panic over bytes from the network. After a panic, discard the connection.
pub(super) async fn contained<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let mut work = pin!(work);
    poll_fn(|cx| {
        CONTAINED.set(true);
        // Safe to continue after: all that the future has touched is dropped with the connection.
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx)));
        CONTAINED.set(false);
        polled.unwrap_or_else(|_| {
            Poll::Ready(Err(Failure::InvalidReply("a message that is shorter than it says".into())))
        })
    })
    .await
}
