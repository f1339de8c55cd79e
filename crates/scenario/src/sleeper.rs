//! Sleep of many users on one timer, as exact as the pacing of the load's own requests.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::future::poll_fn;
use std::task::{Poll, Waker};

use oroshi_net::{Timer, monotonic_ns};
use tokio::sync::Notify;

/// The driver looks up at least this often, nanoseconds.
const LONG_SLEEP: u64 = 1_000_000_000;

/// Sleepers of one thread. All times are nanoseconds of the monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct Sleeper {
    /// When each sleeper wakes, and its number.
    due: RefCell<BinaryHeap<Reverse<(u64, u64)>>>,
    /// Those that still wait.
    wakers: RefCell<HashMap<u64, Waker>>,
    next: Cell<u64>,
    /// Somebody wakes earlier than all others.
    earlier: Notify,
}

impl Sleeper {
    /// Sleeps until `instant`. Needs [`drive`](Self::drive) to run in a task of the same thread.
    pub(crate) async fn sleep_until(&self, instant: u64) {
        if monotonic_ns() >= instant {
            return;
        }
        let number = self.next.replace(self.next.get() + 1);
        let guard = Sleeping { sleeper: self, number };
        let mut is_new = true;
        poll_fn(|cx| {
            if monotonic_ns() >= instant {
                return Poll::Ready(());
            }
            self.wakers.borrow_mut().insert(number, cx.waker().clone());
            if std::mem::take(&mut is_new) {
                let mut due = self.due.borrow_mut();
                let is_first = due.peek().is_none_or(|Reverse((first, _))| instant < *first);
                due.push(Reverse((instant, number)));
                if is_first {
                    self.earlier.notify_one();
                }
            }
            Poll::Pending
        })
        .await;
        drop(guard);
    }

    /// Wakes sleepers for ever.
    pub(crate) async fn drive(&self, mut timer: Timer) {
        loop {
            let next = self.wake(monotonic_ns());
            let until = next.unwrap_or(u64::MAX).min(monotonic_ns() + LONG_SLEEP);
            tokio::select! {
                // Only a defect can make the kernel refuse; then nobody sleeps any longer.
                _ = timer.sleep_until(until) => {}
                () = self.earlier.notified() => {}
            }
        }
    }

    /// Wakes those whose time has come, and returns when the next one is due.
    fn wake(&self, now: u64) -> Option<u64> {
        let mut due = self.due.borrow_mut();
        while let Some(Reverse((instant, number))) = due.peek().copied() {
            let waits = self.wakers.borrow().contains_key(&number);
            if instant > now && waits {
                return Some(instant);
            }
            due.pop();
            if let Some(waker) = self.wakers.borrow_mut().remove(&number) {
                waker.wake();
            }
        }
        None
    }
}

/// A sleeper, until it wakes or is dropped.
struct Sleeping<'s> {
    sleeper: &'s Sleeper,
    number: u64,
}

impl Drop for Sleeping<'_> {
    fn drop(&mut self) {
        self.sleeper.wakers.borrow_mut().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use tokio::runtime::Builder;
    use tokio::task::{LocalSet, spawn_local};

    use super::*;

    #[test]
    fn sleepers_wake_in_order_and_never_early() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let woken = Rc::new(RefCell::new(Vec::new()));
        LocalSet::new().block_on(&runtime, async {
            let sleeper = Rc::new(Sleeper::default());
            let driver = Rc::clone(&sleeper);
            spawn_local(async move { driver.drive(Timer::new().unwrap()).await });
            let start = monotonic_ns();
            // The first is given up, and keeps nobody from waking.
            let gone = Rc::clone(&sleeper);
            let given_up = spawn_local(async move { gone.sleep_until(start + 1_000_000).await });
            let users: Vec<_> = [30u64, 10, 20, 0]
                .into_iter()
                .map(|ms| {
                    let (sleeper, woken) = (Rc::clone(&sleeper), Rc::clone(&woken));
                    spawn_local(async move {
                        sleeper.sleep_until(start + ms * 1_000_000).await;
                        assert!(monotonic_ns() >= start + ms * 1_000_000);
                        woken.borrow_mut().push(ms);
                    })
                })
                .collect();
            given_up.abort();
            for user in users {
                user.await.unwrap();
            }
            assert!(sleeper.wakers.borrow().is_empty());
        });
        assert_eq!(*woken.borrow(), [0, 10, 20, 30]);
    }
}
