//! The task that sleeps until the earliest deadline.

use std::rc::{Rc, Weak};
use std::time::Duration;

use oroshi_net::monotonic_ns;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::deadlines::{Deadlines, Expire, HasDeadlines, after};

/// The shortest time between two sweeps, so that many close deadlines leave most of the time to requests.
const SHORTEST: Duration = Duration::from_millis(2);

impl<T: Expire> Deadlines<T> {
    /// Starts the task that sweeps when a deadline has passed, unless it runs. Deadlines are then nanoseconds of
    /// [`monotonic_ns`]. The task ends with its owner or its runtime; in a new runtime, the next call starts it again.
    ///
    /// # Panics
    /// Outside a runtime whose tasks stay on their thread.
    pub fn watch<O: HasDeadlines<Value = T>>(owner: &Rc<O>) {
        let deadlines = owner.deadlines();
        let mut sweeper = deadlines.sweeper.borrow_mut();
        if sweeper.as_ref().is_none_or(AbortHandle::is_finished) {
            let task = tokio::task::spawn_local(watch(Rc::downgrade(owner), Rc::clone(&deadlines.earlier)));
            *sweeper = Some(task.abort_handle());
        }
    }
}

impl<T> Drop for Deadlines<T> {
    fn drop(&mut self) {
        if let Some(sweeper) = self.sweeper.take() {
            sweeper.abort();
        }
    }
}

async fn watch<O: HasDeadlines>(owner: Weak<O>, earlier: Rc<Notify>) {
    let mut last = 0;
    loop {
        let Some(next) = owner.upgrade().map(|owner| owner.deadlines().next()) else { return };
        let now = monotonic_ns();
        let at = next.max(after(last, SHORTEST));
        if at <= now {
            last = now;
            let Some(owner) = owner.upgrade() else { return };
            let other = owner.sweep(now);
            owner.deadlines().other.set(other);
            owner.deadlines().sweep(now);
        } else if next == u64::MAX {
            earlier.notified().await;
        } else {
            // The next round sees whether the time has come or an earlier deadline was set.
            let _ = tokio::time::timeout(Duration::from_nanos(at - now), earlier.notified()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::future::pending;

    use super::*;
    use crate::deadlines::Registration;

    /// An owner with other work at these times.
    #[derive(Default)]
    struct Owner {
        deadlines: Deadlines,
        times: RefCell<Vec<u64>>,
        done: Cell<usize>,
        all_done: Notify,
    }

    impl HasDeadlines for Owner {
        type Value = crate::Deadline;

        fn deadlines(&self) -> &Deadlines {
            &self.deadlines
        }

        fn sweep(&self, now: u64) -> u64 {
            let mut times = self.times.borrow_mut();
            let before = times.len();
            times.retain(|time| *time > now);
            self.done.set(self.done.get() + before - times.len());
            if times.is_empty() {
                self.all_done.notify_one();
            }
            times.iter().copied().min().unwrap_or(u64::MAX)
        }
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build_local(Default::default());
        runtime.unwrap().block_on(future)
    }

    fn register(owner: &Rc<Owner>) -> Registration<Owner> {
        Deadlines::watch(owner);
        Deadlines::register(owner)
    }

    #[test]
    fn waits_end_at_their_times_and_not_before_in_one_runtime_after_another() {
        let owner = Rc::new(Owner::default());
        for _ in 0..2 {
            block_on(async {
                let began = monotonic_ns();
                let waits: Vec<_> = [30_000_000, 1, 10_000_000]
                    .into_iter()
                    .map(|time| {
                        let registration = register(&owner);
                        tokio::task::spawn_local(async move {
                            registration.set(began + time);
                            assert_eq!(registration.bound(pending::<()>()).await, None);
                            assert!(monotonic_ns() >= began + time, "{time} ns");
                        })
                    })
                    .collect();
                let forever = register(&owner);
                for wait in waits {
                    wait.await.unwrap();
                }
                assert!(!forever.is_over());
            });
            assert!(owner.deadlines.count() == 0);
        }
    }

    #[test]
    fn a_future_that_is_ready_first_gives_its_output() {
        let owner = Rc::new(Owner::default());
        block_on(async {
            let registration = register(&owner);
            registration.set(u64::MAX);
            assert_eq!(registration.bound(async { 7 }).await, Some(7));
        });
    }

    #[test]
    fn what_else_is_due_is_done_without_any_deadline() {
        let owner = Rc::new(Owner::default());
        block_on(async {
            Deadlines::watch(&owner);
            let now = monotonic_ns();
            *owner.times.borrow_mut() = vec![now, now + 8_000_000];
            owner.deadlines.sweep_by(now);
            owner.all_done.notified().await;
        });
        assert_eq!(owner.done.get(), 2);
    }

    #[test]
    fn it_keeps_nobody_alive() {
        let owner = Rc::new(Owner::default());
        block_on(async {
            let registration = register(&owner);
            registration.set(monotonic_ns() + 1_000_000_000_000);
            tokio::task::yield_now().await;
            drop(registration);
            assert_eq!(Rc::strong_count(&owner), 1);
            let sweeper = owner.deadlines.sweeper.borrow().clone().unwrap();
            assert!(!sweeper.is_finished());
            drop(owner);
            while !sweeper.is_finished() {
                tokio::task::yield_now().await;
            }
        });
    }
}
