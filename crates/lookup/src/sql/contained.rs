//! What sqlx makes of bytes that no server should send: it panics over some, where a message is shorter than it says.

use std::cell::Cell;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use crate::answer::Failure;

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic on this thread is caught and becomes a failure of a store, as one in a database's protocol does. A
/// panic hook that ends the process asks this first.
pub fn panics_are_contained() -> bool {
    CONTAINED.get()
}

/// Carries out what may panic over what the network brings. The connection is of no use after that, as after other
/// garbage.
pub(super) async fn contained<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let mut work = pin!(work);
    poll_fn(|cx| {
        CONTAINED.set(true);
        // Safe to go on after: what the future has touched is dropped with the connection.
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx)));
        CONTAINED.set(false);
        polled.unwrap_or_else(|_| Poll::Ready(Err(Failure::Garbage("a message that is shorter than it says".into()))))
    })
    .await
}
