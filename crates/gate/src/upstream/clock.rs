//! Deadlines without a timer per request: they stand side by side, and one task sleeps until the earliest.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::Notify;

/// The shortest time between two looks at the deadlines: however many there are, most of the time is for requests.
pub(crate) const SHORTEST: Duration = Duration::from_millis(2);

/// So many seats are kept for the next requests.
const SPARE_SEATS: usize = 1024;

/// The deadlines of one core, in nanoseconds of [`oroshi_net::monotonic_ns`].
#[derive(Debug)]
pub(crate) struct Clock {
    seats: RefCell<Vec<Rc<Seat>>>,
    spares: RefCell<Vec<Rc<Seat>>>,
    /// When they are next looked at; the sweeper is told when that moves forward.
    look_at: Cell<u64>,
    bell: Notify,
}

/// A request's place among those of its core: what the sweep needs to know of it.
#[derive(Debug)]
struct Seat {
    due: Cell<u64>,
    over: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    place: Cell<usize>,
}

/// `time` later than `now`; never, where that is beyond what can be counted.
pub(crate) fn after(now: u64, time: Duration) -> u64 {
    now.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

impl Clock {
    pub(crate) fn new() -> Self {
        Clock {
            seats: RefCell::default(),
            spares: RefCell::default(),
            look_at: Cell::new(u64::MAX),
            bell: Notify::new(),
        }
    }

    /// Takes a request in; it leaves when the guard is dropped.
    pub(crate) fn seat(self: &Rc<Self>) -> Seated {
        let mut seats = self.seats.borrow_mut();
        let seat = self.spares.borrow_mut().pop().unwrap_or_else(|| {
            let waker = RefCell::new(None);
            Rc::new(Seat { due: Cell::new(u64::MAX), over: Cell::new(false), waker, place: Cell::new(0) })
        });
        seat.place.set(seats.len());
        seats.push(Rc::clone(&seat));
        Seated { clock: Rc::clone(self), seat }
    }

    /// How many requests are under way.
    pub(crate) fn seats(&self) -> usize {
        self.seats.borrow().len()
    }

    /// Has the sweeper look at this time, at the latest.
    pub(crate) fn look_at(&self, due: u64) {
        if due < self.look_at.get() {
            self.look_at.set(due);
            self.bell.notify_one();
        }
    }

    /// When to look next.
    pub(crate) fn next_look(&self) -> u64 {
        self.look_at.get()
    }

    /// Resolves when the next look has been moved forward.
    pub(crate) async fn moved_forward(&self) {
        self.bell.notified().await;
    }

    /// Wakes those whose time has come. The next look is at the earliest of the others, or at `otherwise`.
    pub(crate) fn sweep(&self, now: u64, otherwise: u64) {
        let mut next = otherwise;
        for seat in self.seats.borrow().iter() {
            if seat.due.get() > now {
                next = next.min(seat.due.get());
            } else if !seat.over.replace(true)
                && let Some(waker) = seat.waker.borrow_mut().take()
            {
                waker.wake();
            }
        }
        self.look_at.set(next);
    }
}

/// Holds a seat; gives it back when dropped, however the request ended.
#[derive(Debug)]
pub(crate) struct Seated {
    clock: Rc<Clock>,
    seat: Rc<Seat>,
}

impl Seated {
    /// Sets the time at which the wait is over; [`u64::MAX`] for never.
    pub(crate) fn set_due(&self, due: u64) {
        self.seat.due.set(due);
        self.seat.over.set(false);
        self.clock.look_at(due);
    }

    /// Whether the wait is over; if not, the task will be woken when it is.
    pub(crate) fn poll_over(&self, context: &Context<'_>) -> bool {
        if self.seat.over.get() {
            return true;
        }
        let mut waker = self.seat.waker.borrow_mut();
        match &mut *waker {
            Some(waker) => waker.clone_from(context.waker()), // clones only when it is another one
            None => *waker = Some(context.waker().clone()),
        }
        false
    }

    /// The future's output, or `None` when the wait is over first.
    pub(crate) async fn bound<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.poll_over(context) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        let mut seats = self.clock.seats.borrow_mut();
        let place = self.seat.place.get();
        let seat = seats.swap_remove(place);
        if let Some(moved) = seats.get(place) {
            moved.place.set(place);
        }
        // A waker keeps its task in memory.
        *seat.waker.borrow_mut() = None;
        seat.due.set(u64::MAX);
        seat.over.set(false);
        let mut spares = self.clock.spares.borrow_mut();
        if spares.len() < SPARE_SEATS {
            spares.push(seat);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_whose_time_has_come_are_over() {
        let clock = Rc::new(Clock::new());
        let (early, late, never) = (clock.seat(), clock.seat(), clock.seat());
        early.set_due(10);
        late.set_due(20);
        let context = &Context::from_waker(Waker::noop());
        assert_eq!(clock.next_look(), 10);
        clock.sweep(10, 1000);
        assert!(early.poll_over(context) && !late.poll_over(context) && !never.poll_over(context));
        assert_eq!(clock.next_look(), 20);
        // A new wait is not over because the last one was.
        early.set_due(30);
        assert!(!early.poll_over(context));
        drop(late);
        clock.sweep(25, 1000);
        assert_eq!((clock.next_look(), clock.seats()), (30, 2));
        drop(early);
        let again = clock.seat();
        clock.sweep(40, 1000);
        assert!(!again.poll_over(context), "a seat that was given back starts anew");
        assert_eq!(clock.next_look(), 1000);
    }
}
