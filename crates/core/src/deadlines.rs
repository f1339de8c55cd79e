//! Deadlines without a timer for each: one sweep over all of them wakes the tasks whose deadline has passed.
//!
//! Time is a growing number whose unit the owner chooses. With [`Deadlines::watch`] it is nanoseconds of
//! [`oroshi_net::monotonic_ns`], and a task sleeps until the earliest deadline. An owner with a loop of its own may
//! count ticks instead, which reads no clock. Only a sweep ends a wait: it may be late, but is never early.

use std::cell::{Cell, Ref, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::ops::Deref;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// The most entries that are kept for later registrations.
const SPARE_ENTRIES: usize = 1024;

/// Returns `now` plus a duration, in nanoseconds; [`u64::MAX`] (never) on overflow.
pub fn after(now: u64, limit: Duration) -> u64 {
    u64::try_from(limit.as_nanos()).map_or(u64::MAX, |limit| now.saturating_add(limit))
}

/// Returns a duration in ticks of this length, rounded up; [`u64::MAX`] (never) on overflow.
pub fn ticks(time: Duration, tick: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(tick.as_nanos().max(1))).unwrap_or(u64::MAX)
}

/// Returns the pause between sweeps for waits of at least `shortest`: an eighth of it, within the bounds.
pub fn sweep_pause(shortest: Duration, (least, most): (Duration, Duration)) -> Duration {
    (shortest / 8).clamp(least, most)
}

/// The end of one wait, and the task to wake then.
///
/// Set a registered deadline through [`Deadlines::set`] or [`Registration::set`]: they make the next sweep earlier if
/// needed.
pub struct Deadline {
    due: Cell<u64>,
    waker: Cell<Option<Waker>>,
}

impl Default for Deadline {
    fn default() -> Self {
        Deadline { due: Cell::new(u64::MAX), waker: Cell::new(None) }
    }
}

impl Deadline {
    /// Returns when the wait is over; [`u64::MAX`] for never.
    #[inline]
    pub fn due(&self) -> u64 {
        self.due.get()
    }

    /// Sets when the wait is over; [`u64::MAX`] for never.
    #[inline]
    pub fn set(&self, due: u64) {
        self.due.set(due);
    }

    /// Removes the limit.
    #[inline]
    pub fn clear(&self) {
        self.due.set(u64::MAX);
    }

    /// Returns whether there is a limit.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.due.get() != u64::MAX
    }

    /// Returns whether the wait is over at `now`.
    #[inline]
    pub fn is_over(&self, now: u64) -> bool {
        self.due.get() <= now
    }

    /// Returns whether the wait is over at `now`. If not, the sweep that ends it wakes the task.
    #[inline]
    pub fn poll_over(&self, now: u64, context: &Context<'_>) -> bool {
        let is_over = self.is_over(now);
        if !is_over {
            self.enrol(context);
        }
        is_over
    }

    /// Remembers which task to wake.
    #[inline]
    pub fn enrol(&self, context: &Context<'_>) {
        let waker = match self.waker.take() {
            Some(waker) if waker.will_wake(context.waker()) => waker,
            _ => context.waker().clone(),
        };
        self.waker.set(Some(waker));
    }

    /// Wakes the task now, if one waits.
    pub fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake_by_ref();
            self.waker.set(Some(waker));
        }
    }
}

impl Expire for Deadline {
    #[inline]
    fn expire(&self, now: u64) -> u64 {
        if !self.is_over(now) {
            return self.due.get();
        }
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
        u64::MAX
    }

    fn reset(&self) {
        self.clear();
        // A waker keeps its task in memory.
        self.waker.take();
    }
}

impl fmt::Debug for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deadline").field("due", &self.due).finish_non_exhaustive()
    }
}

/// A value that can be registered in [`Deadlines`]: one deadline, or several with other data of the owner.
pub trait Expire: Default {
    /// Wakes the tasks whose wait is over at `now`, each once. Returns the earliest deadline after `now`, or
    /// [`u64::MAX`].
    fn expire(&self, now: u64) -> u64;

    /// Resets the value for the next registration.
    fn reset(&self);
}

/// The owner of [`Deadlines`]: usually the state that all requests or connections of a thread share.
pub trait HasDeadlines: 'static {
    /// The registered type.
    type Value: Expire;

    /// Returns the deadlines.
    fn deadlines(&self) -> &Deadlines<Self::Value>;

    /// Does other work that is due, for [`Deadlines::watch`]. Returns when more is due; [`u64::MAX`] for never.
    fn sweep(&self, now: u64) -> u64 {
        let _ = now;
        u64::MAX
    }
}

/// The deadlines of one sweep.
#[derive(Debug)]
pub struct Deadlines<T = Deadline> {
    entries: RefCell<Vec<Rc<Entry<T>>>>,
    spares: RefCell<Vec<Rc<Entry<T>>>>,
    /// The time of the last sweep.
    now: Cell<u64>,
    /// No deadline is earlier than this.
    earliest: Cell<u64>,
    /// When [`HasDeadlines::sweep`] is due.
    pub(crate) other: Cell<u64>,
    /// Notified when one of these two becomes earlier.
    pub(crate) earlier: Rc<Notify>,
    pub(crate) sweeper: RefCell<Option<AbortHandle>>,
}

/// One registered value.
#[derive(Debug)]
pub struct Entry<T> {
    value: T,
    place: Cell<usize>,
}

impl<T> Deref for Entry<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

/// The place of an entry that is no longer registered.
const GONE: usize = usize::MAX;

impl<T> Default for Deadlines<T> {
    fn default() -> Self {
        Deadlines {
            entries: RefCell::default(),
            spares: RefCell::default(),
            now: Cell::new(0),
            earliest: Cell::new(u64::MAX),
            other: Cell::new(u64::MAX),
            earlier: Rc::default(),
            sweeper: RefCell::default(),
        }
    }
}

impl<T: Expire> Deadlines<T> {
    /// Registers a new value until the guard is dropped.
    pub fn register<O: HasDeadlines<Value = T>>(owner: &Rc<O>) -> Registration<O> {
        let deadlines = owner.deadlines();
        let spare = deadlines.spares.borrow_mut().pop();
        let entry = spare.unwrap_or_else(|| Rc::new(Entry { value: T::default(), place: Cell::new(GONE) }));
        let mut entries = deadlines.entries.borrow_mut();
        entry.place.set(entries.len());
        entries.push(Rc::clone(&entry));
        drop(entries);
        Registration { owner: Rc::clone(owner), entry }
    }

    /// Returns the number of registered values.
    pub fn count(&self) -> usize {
        self.entries.borrow().len()
    }

    /// Returns all registered values, in no order. While this is held, none may register or leave.
    pub fn entries(&self) -> Ref<'_, [Rc<Entry<T>>]> {
        Ref::map(self.entries.borrow(), Vec::as_slice)
    }

    /// Returns the time of the last sweep.
    #[inline]
    pub fn now(&self) -> u64 {
        self.now.get()
    }

    /// Returns when the next sweep is due; [`u64::MAX`] for never.
    #[inline]
    pub fn next(&self) -> u64 {
        self.earliest.get().min(self.other.get())
    }

    /// Sets a registered deadline. It is over at once if the last sweep was at `due` or later.
    #[inline]
    pub fn set(&self, deadline: &Deadline, due: u64) {
        deadline.set(due);
        if due < self.earliest.get() {
            self.earliest.set(due);
            self.earlier.notify_one();
        }
    }

    /// Makes the sweeper call [`HasDeadlines::sweep`] no later than `due`.
    pub fn sweep_by(&self, due: u64) {
        if due < self.other.get() {
            self.other.set(due);
            self.earlier.notify_one();
        }
    }

    /// Advances time to `now`, and wakes the tasks whose wait is over.
    pub fn sweep(&self, now: u64) {
        self.now.set(now);
        if self.earliest.get() > now {
            return;
        }
        let earliest = self.entries.borrow().iter().map(|entry| entry.expire(now)).min();
        self.earliest.set(earliest.unwrap_or(u64::MAX));
    }

    fn leave(&self, entry: &Entry<T>) {
        let place = entry.place.replace(GONE);
        if place == GONE {
            return;
        }
        let mut entries = self.entries.borrow_mut();
        entries.swap_remove(place);
        if let Some(moved) = entries.get(place) {
            moved.place.set(place);
        }
    }
}

/// A registered value of an owner; dropping it ends the registration.
pub struct Registration<O: HasDeadlines> {
    owner: Rc<O>,
    entry: Rc<Entry<O::Value>>,
}

impl<O: HasDeadlines> Registration<O> {
    /// Returns the owner of the deadlines.
    #[inline]
    pub fn owner(&self) -> &Rc<O> {
        &self.owner
    }

    /// Returns the registered value.
    #[inline]
    pub fn entry(&self) -> &Rc<Entry<O::Value>> {
        &self.entry
    }

    /// Ends the registration before the guard is dropped.
    pub fn leave(&self) {
        self.owner.deadlines().leave(&self.entry);
    }
}

impl<O: HasDeadlines<Value = Deadline>> Registration<O> {
    /// Sets when the wait is over; [`u64::MAX`] for never.
    #[inline]
    pub fn set(&self, due: u64) {
        self.owner.deadlines().set(&self.entry, due);
    }

    /// Returns whether a sweep has seen that the wait is over.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.entry.is_over(self.owner.deadlines().now())
    }

    /// Returns whether the wait is over. If not, the sweep that ends it wakes the task.
    #[inline]
    pub fn poll_over(&self, context: &Context<'_>) -> bool {
        self.entry.poll_over(self.owner.deadlines().now(), context)
    }

    /// Returns the future's output, or `None` if the wait is over first.
    pub async fn bound<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.poll_over(context) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }
}

impl<O: HasDeadlines> Drop for Registration<O> {
    fn drop(&mut self) {
        self.leave();
        // An entry that is shared elsewhere is not used again.
        if Rc::strong_count(&self.entry) == 1 {
            self.entry.reset();
            let mut spares = self.owner.deadlines().spares.borrow_mut();
            if spares.len() < SPARE_ENTRIES {
                spares.push(Rc::clone(&self.entry));
            }
        }
    }
}

impl<O: HasDeadlines> fmt::Debug for Registration<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("place", &self.entry.place).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
