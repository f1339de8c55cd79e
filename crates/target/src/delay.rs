//! Delays responses: a queue ordered by due time, and one timer.
//!
//! tokio's timer rounds up to whole milliseconds; this one is as exact as the kernel's wake-up. One expiry serves all
//! that are due, so ten thousand waits need one timer.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, Waker, ready};

use fastrand::Rng;
use oroshi_net::{Timer, monotonic_ns};
use oroshi_stats::Shape;

/// The waits of one thread.
#[derive(Debug)]
pub(crate) struct Delay {
    /// Mean length of a wait, nanoseconds.
    length: u64,
    shape: Shape,
    random: RefCell<Rng>,
    /// Wakers by due time and order of arrival.
    waiting: RefCell<BTreeMap<(u64, u64), Waker>>,
    /// Number of waits so far.
    count: Cell<u64>,
    /// All waits due until this instant were woken.
    passed: Cell<u64>,
    timekeeper: RefCell<Option<Waker>>,
}

impl Delay {
    /// Makes waits of `length` nanoseconds on average, distributed by `shape`.
    pub(crate) fn new(length: u64, shape: Shape) -> Delay {
        Delay {
            length,
            shape,
            random: RefCell::new(Rng::new()),
            waiting: RefCell::default(),
            count: Cell::new(0),
            passed: Cell::new(0),
            timekeeper: RefCell::default(),
        }
    }

    /// Waits for one delay from now on.
    pub(crate) async fn wait(&self) {
        let length = match self.shape {
            Shape::Constant => self.length,
            shape => (self.length as f64 * shape.draw(&mut self.random.borrow_mut())) as u64,
        };
        self.wait_until(monotonic_ns().saturating_add(length)).await;
    }

    fn wait_until(&self, due: u64) -> impl Future<Output = ()> {
        let mut queued = false;
        poll_fn(move |context| {
            if self.passed.get() >= due {
                return Poll::Ready(());
            }
            if !queued {
                queued = true;
                self.queue(due, context.waker().clone());
            }
            Poll::Pending
        })
    }

    fn queue(&self, due: u64, waker: Waker) {
        let mut waiting = self.waiting.borrow_mut();
        let number = self.count.replace(self.count.get() + 1);
        waiting.insert((due, number), waker);
        // The timekeeper sleeps until the first due time. It must wake only if that has changed.
        if waiting.first_key_value().is_some_and(|(first, _)| *first == (due, number))
            && let Some(timekeeper) = &*self.timekeeper.borrow()
        {
            timekeeper.wake_by_ref();
        }
    }

    /// Wakes all waits in time. Ends only if the kernel refuses to set the timer.
    pub(crate) async fn keep_time(&self, timer: &mut Timer) -> io::Result<()> {
        poll_fn(|context| self.poll(context, |context, due| timer.poll_until(context, due))).await
    }

    fn poll(
        &self,
        context: &mut Context<'_>,
        mut poll_until: impl FnMut(&mut Context<'_>, u64) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        loop {
            // A wait with an earlier due time wakes it.
            *self.timekeeper.borrow_mut() = Some(context.waker().clone());
            let Some(due) = self.waiting.borrow().first_key_value().map(|(&(due, _), _)| due) else {
                return Poll::Pending;
            };
            ready!(poll_until(context, due))?;
            self.wake(monotonic_ns().max(due));
        }
    }

    /// Wakes all waits due until now.
    fn wake(&self, now: u64) {
        self.passed.set(now);
        let mut waiting = self.waiting.borrow_mut();
        while let Some(first) = waiting.first_entry().filter(|first| first.key().0 <= now) {
            first.remove().wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn counting() -> (Arc<Count>, Waker) {
        let count = Arc::new(Count::default());
        (Arc::clone(&count), count.into())
    }

    fn poll(future: Pin<&mut impl Future<Output = ()>>, waker: &Waker) -> bool {
        future.poll(&mut Context::from_waker(waker)).is_ready()
    }

    #[test]
    fn whoever_is_due_is_woken_and_nobody_else() {
        let delay = Delay::new(0, Shape::Constant);
        let (count, waker) = counting();
        let (mut first, mut second) = (pin!(delay.wait_until(100)), pin!(delay.wait_until(200)));
        assert!(!poll(first.as_mut(), &waker) && !poll(second.as_mut(), &waker));
        delay.wake(199);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(poll(first, &waker) && !poll(second.as_mut(), &waker));
        // A poll for another reason neither ends the wait nor queues it again.
        assert_eq!(delay.waiting.borrow().len(), 1);
        delay.wake(200);
        assert!(poll(second, &waker));
    }

    #[test]
    fn the_timekeeper_learns_of_the_first_wait_only() {
        let delay = Delay::new(0, Shape::Constant);
        let (noticed, timekeeper) = counting();
        let (_, waker) = counting();
        let mut context = Context::from_waker(&timekeeper);
        assert!(delay.poll(&mut context, |_, _| panic!("nobody waits")).is_pending());
        let (mut first, mut second) = (pin!(delay.wait_until(100)), pin!(delay.wait_until(200)));
        assert!(!poll(first.as_mut(), &waker));
        assert!(!poll(second.as_mut(), &waker));
        assert_eq!(noticed.0.load(Ordering::Relaxed), 1);
        // It sets the timer for the first, and after that for the next that has not passed.
        let mut set = Vec::new();
        let polled = delay.poll(&mut context, |_, due| {
            set.push(due);
            if due == 100 { Poll::Ready(Ok(())) } else { Poll::Pending }
        });
        assert!(polled.is_pending());
        // This machine's clock is far beyond both, so one expiry served both.
        assert_eq!(set, [100]);
        assert!(poll(first, &waker) && poll(second, &waker));
    }

    #[test]
    fn who_is_due_sooner_is_woken_sooner_whoever_came_first() {
        let delay = Delay::new(0, Shape::Exponential);
        let (noticed, timekeeper) = counting();
        let (_, waker) = counting();
        let mut context = Context::from_waker(&timekeeper);
        assert!(delay.poll(&mut context, |_, _| panic!("nobody waits")).is_pending());
        let (mut late, mut soon) = (pin!(delay.wait_until(300)), pin!(delay.wait_until(100)));
        assert!(!poll(late.as_mut(), &waker) && !poll(soon.as_mut(), &waker));
        assert_eq!(noticed.0.load(Ordering::Relaxed), 2, "of each that was the first to be due");
        delay.wake(100);
        assert!(poll(soon, &waker) && !poll(late.as_mut(), &waker));
    }

    #[test]
    fn a_wait_that_was_given_up_harms_nobody() {
        let delay = Delay::new(0, Shape::Constant);
        let (_, waker) = counting();
        let mut given_up = Box::pin(delay.wait_until(100));
        assert!(!poll(given_up.as_mut(), &waker));
        drop(given_up);
        let mut other = pin!(delay.wait_until(150));
        assert!(!poll(other.as_mut(), &waker));
        delay.wake(150);
        assert!(poll(other, &waker) && delay.waiting.borrow().is_empty());
    }

    #[test]
    fn waits_are_not_shorter_than_asked() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let delay = Delay::new(3_000_000, Shape::Constant);
            let mut timer = Timer::new().unwrap();
            let mut keeping = pin!(delay.keep_time(&mut timer));
            let started = monotonic_ns();
            let mut waits: Vec<_> = (0..100).map(|_| Box::pin(delay.wait())).collect();
            poll_fn(|context| {
                assert!(keeping.as_mut().poll(context).is_pending());
                waits.retain_mut(|wait| wait.as_mut().poll(context).is_pending());
                if waits.is_empty() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            assert!(monotonic_ns() - started >= 3_000_000);
        });
    }
}
