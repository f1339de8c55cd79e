//! Deadlines without a timer each: they are registered in one place, and one sweep wakes the tasks whose time has come.
//!
//! Time is a number that only grows, in a unit that the owner chooses: nanoseconds of [`oroshi_net::monotonic_ns`]
//! where a task sleeps until the earliest deadline ([`Deadlines::watch`]), or ticks of a loop of the owner's, which
//! saves reading the clock. A deadline passes when a sweep sees that its time has come: it may be late, but is never
//! early.

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

/// Entries that are kept for the next registrations, at most.
const SPARE_ENTRIES: usize = 1024;

/// Returns `now` and a while, in nanoseconds; [`u64::MAX`], which is never, if that is beyond counting.
pub fn after(now: u64, limit: Duration) -> u64 {
    u64::try_from(limit.as_nanos()).map_or(u64::MAX, |limit| now.saturating_add(limit))
}

/// Returns a time in ticks of this length, rounded up; [`u64::MAX`], which is never, if that is beyond counting.
pub fn ticks(time: Duration, tick: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(tick.as_nanos().max(1))).unwrap_or(u64::MAX)
}

/// Returns how often to look at waits of which the shortest is this long: an eighth of it, within these bounds.
pub fn sweep_pause(shortest: Duration, (least, most): (Duration, Duration)) -> Duration {
    (shortest / 8).clamp(least, most)
}

/// The end of one wait, and the task to wake then.
///
/// A registered deadline is set through [`Deadlines::set`] or [`Registration::set`], so that the next sweep is early
/// enough.
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

    /// Takes the limit away.
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

    /// Returns whether the wait is over at `now`. If not, the task is woken when it is.
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

/// What can be registered in [`Deadlines`]: one deadline, or several that belong together, with whatever else the owner
/// keeps of them.
pub trait Expire: Default {
    /// Wakes the tasks whose wait is over at `now`, each once. Returns the earliest deadline that is left, or
    /// [`u64::MAX`].
    fn expire(&self, now: u64) -> u64;

    /// Makes it as new, for the next registration.
    fn reset(&self);
}

/// The owner of [`Deadlines`]: usually what all requests or connections of a thread share.
pub trait HasDeadlines: 'static {
    /// What is registered.
    type Value: Expire;

    /// Returns the deadlines.
    fn deadlines(&self) -> &Deadlines<Self::Value>;

    /// Does what else is due, for [`Deadlines::watch`]. Returns when something is due again; [`u64::MAX`] for never.
    fn sweep(&self, now: u64) -> u64 {
        let _ = now;
        u64::MAX
    }
}

/// Deadlines that one sweep looks at.
pub struct Deadlines<T = Deadline> {
    entries: RefCell<Vec<Rc<Entry<T>>>>,
    spares: RefCell<Vec<Rc<Entry<T>>>>,
    /// The time of the last sweep.
    now: Cell<u64>,
    /// No deadline is earlier than this.
    earliest: Cell<u64>,
    /// When else the sweeper is to wake.
    other: Cell<u64>,
    /// Notified when one of these two is moved forward.
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

/// The place of an entry that has left.
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
    /// Registers a value, as new, until the guard is dropped.
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

    /// Returns how many are registered.
    pub fn len(&self) -> usize {
        self.entries.borrow().len()
    }

    /// Returns whether none is registered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all that are registered, in no order. None may come or go while this is held.
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

    /// Sets a registered deadline. One that is earlier than the last sweep is over at once.
    #[inline]
    pub fn set(&self, deadline: &Deadline, due: u64) {
        deadline.set(due);
        if due < self.earliest.get() {
            self.earliest.set(due);
            self.earlier.notify_one();
        }
    }

    /// Has the sweeper call [`HasDeadlines::sweep`] no later than `due`.
    pub fn sweep_by(&self, due: u64) {
        if due < self.other.get() {
            self.other.set(due);
            self.earlier.notify_one();
        }
    }

    /// Moves time on to `now`, and wakes the tasks whose wait is over.
    pub fn sweep(&self, now: u64) {
        self.now.set(now);
        if self.earliest.get() > now {
            return;
        }
        let earliest = self.entries.borrow().iter().map(|entry| entry.expire(now)).min();
        self.earliest.set(earliest.unwrap_or(u64::MAX));
    }

    /// Sets when [`HasDeadlines::sweep`] is due again.
    pub(crate) fn set_other(&self, due: u64) {
        self.other.set(due);
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

impl<T> fmt::Debug for Deadlines<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deadlines")
            .field("registered", &self.entries.borrow().len())
            .field("now", &self.now)
            .field("earliest", &self.earliest)
            .finish_non_exhaustive()
    }
}

/// A place among the deadlines of an owner; given back when dropped.
pub struct Registration<O: HasDeadlines> {
    owner: Rc<O>,
    entry: Rc<Entry<O::Value>>,
}

impl<O: HasDeadlines> Registration<O> {
    /// Returns who has the deadlines.
    #[inline]
    pub fn owner(&self) -> &Rc<O> {
        &self.owner
    }

    /// Returns what is registered.
    #[inline]
    pub fn entry(&self) -> &Rc<Entry<O::Value>> {
        &self.entry
    }

    /// Gives the place back before the guard is dropped: nothing more is waited for.
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

    /// Returns whether the wait is over. If not, the task is woken when it is.
    #[inline]
    pub fn poll_over(&self, context: &Context<'_>) -> bool {
        self.entry.poll_over(self.owner.deadlines().now(), context)
    }

    /// Returns the future's output, or `None` when the wait is over first.
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
        // Somebody else may still look at the entry; then it is not used again.
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
