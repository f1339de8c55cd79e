//! What the connections of one core share: the scratch buffer, spare buffers, time in ticks, the seats.
//!
//! Everything here belongs to one thread. Time is counted in ticks of the sweep (see [`Ticks`]): setting a limit costs
//! one addition and one store, and no clock is read.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oroshi_words::date::{HTTP_DATE_BYTES, http_date};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::counters::{Counters, ErrorKind};
use crate::room::{Place, Room};
use crate::settings::{Settings, Ticks};

/// How much one read takes in at most, in bytes.
const SCRATCH_BYTES: usize = 64 * 1024;

/// What the connections of one core share.
pub(crate) struct Core {
    pub(crate) settings: Settings,
    pub(crate) ticks: Ticks,
    pub(crate) counters: Arc<Counters>,
    /// What every read of the core reads into. Borrowed within one poll only.
    pub(crate) scratch: RefCell<Vec<u8>>,
    pub(crate) spares: Spares,
    /// Whether a shutdown has begun.
    pub(crate) closing: Cell<bool>,
    /// Rung when the shutdown begins.
    pub(crate) closing_began: Notify,
    /// Rung when a seat becomes free.
    pub(crate) seat_freed: Notify,
    seats: RefCell<Vec<Rc<Seat>>>,
    now: Cell<u64>,
    date: Cell<[u8; HTTP_DATE_BYTES]>,
}

impl Core {
    pub(crate) fn new(settings: Settings) -> Self {
        let core = Core {
            ticks: Ticks::new(&settings),
            settings,
            counters: Arc::default(),
            scratch: RefCell::new(vec![0; SCRATCH_BYTES]),
            spares: Spares::default(),
            closing: Cell::new(false),
            closing_began: Notify::new(),
            seat_freed: Notify::new(),
            seats: RefCell::default(),
            now: Cell::new(0),
            date: Cell::new([0; HTTP_DATE_BYTES]),
        };
        core.read_clock();
        core
    }

    /// The current tick.
    pub(crate) fn now(&self) -> u64 {
        self.now.get()
    }

    /// The current date, as old as a tick at most.
    pub(crate) fn date(&self) -> [u8; HTTP_DATE_BYTES] {
        self.date.get()
    }

    /// How many connections there are.
    pub(crate) fn connections(&self) -> usize {
        self.seats.borrow().len()
    }

    /// Whether there are as many connections as there may be.
    pub(crate) fn is_full(&self) -> bool {
        self.connections() >= self.settings.connections
            || self.settings.room.as_ref().is_some_and(|room| room.is_full())
    }

    /// Ends connections that have waited without a request for too long, as others wait for their places: an eighth of them, those that have
    /// waited for longest. Returns how many; their places are free once their tasks have ended.
    pub(crate) fn make_room(&self) -> usize {
        let now = self.now.get();
        let is_long = |seat: &&Rc<Seat>| seat.waits_since.get().saturating_add(self.ticks.crowded) <= now;
        let seats = self.seats.borrow();
        let mut waiting: Vec<&Rc<Seat>> = seats.iter().filter(is_long).collect();
        let count = waiting.len().div_ceil(8);
        if count > 0 {
            waiting.select_nth_unstable_by_key(count - 1, |seat| seat.waits_since.get());
        }
        for seat in &waiting[..count] {
            seat.works();
            if let Some(task) = seat.task.take() {
                task.abort();
            }
            self.counters.count_error(ErrorKind::Crowded);
        }
        count
    }

    /// Takes a connection in; it leaves when the guard is dropped.
    pub(crate) fn seat(self: &Rc<Self>) -> Seated {
        let seat = Rc::new(Seat::default());
        seat.waits(self.now.get());
        let mut seats = self.seats.borrow_mut();
        seat.place.set(seats.len());
        seats.push(Rc::clone(&seat));
        self.counters.count_accepted();
        let place = self.settings.room.as_ref().map(Room::enter);
        Seated { core: Rc::clone(self), seat, _place: place }
    }

    /// Resolves once a shutdown has begun.
    pub(crate) async fn until_closing(&self) {
        while !self.closing.get() {
            self.closing_began.notified().await;
        }
    }

    /// Begins the shutdown: no connection waits for another request from here on.
    pub(crate) fn close(&self) {
        self.closing.set(true);
        self.closing_began.notify_waiters();
        self.seat_freed.notify_waiters();
    }

    /// Has the connections that wait already notice that a shutdown has begun.
    pub(crate) fn wake_idle(&self) {
        for seat in self.seats.borrow().iter() {
            seat.read.wake();
        }
    }

    /// Cuts every connection off. Returns how many there were.
    pub(crate) fn abort(&self) -> usize {
        let seats = self.seats.borrow();
        for task in seats.iter().filter_map(|seat| seat.task.take()) {
            task.abort();
        }
        seats.len()
    }

    /// Moves time on, tick by tick, and wakes the waits whose limit has come. Never ends.
    pub(crate) async fn sweep(&self) {
        let mut since_date = Duration::ZERO;
        loop {
            tokio::time::sleep(self.ticks.length).await;
            // One tick a round, even after a round that came late: limits may fire late, but never early.
            let now = self.now.get() + 1;
            self.now.set(now);
            since_date += self.ticks.length;
            if since_date >= Duration::from_millis(500) {
                since_date = Duration::ZERO;
                self.read_clock();
            }
            for seat in self.seats.borrow().iter() {
                seat.read.wake_if_due(now);
                seat.write.wake_if_due(now);
            }
            // It may be another core's listener that waits.
            if self.settings.room.as_ref().is_some_and(|room| room.is_wanted() && room.is_full()) {
                self.make_room();
            }
        }
    }

    fn read_clock(&self) {
        // A clock before 1970 has no date to give; it is a machine that has not set its clock yet.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.date.set(http_date(now.as_secs()));
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Core")
            .field("settings", &self.settings)
            .field("counts", &self.counters.counts())
            .field("closing", &self.closing)
            .finish_non_exhaustive()
    }
}

/// A connection's place among its core's connections: what the sweep needs to know of it.
#[derive(Debug)]
pub(crate) struct Seat {
    /// The wait for bytes from the peer.
    pub(crate) read: Limit,
    /// The wait for the peer to take bytes.
    pub(crate) write: Limit,
    /// Since which tick it has waited for a request, or for the rest of its head.
    waits_since: Cell<u64>,
    /// The connection's task, to cut it off.
    task: RefCell<Option<AbortHandle>>,
    place: Cell<usize>,
}

impl Default for Seat {
    fn default() -> Self {
        Seat {
            read: Limit::default(),
            write: Limit::default(),
            waits_since: Cell::new(u64::MAX),
            task: RefCell::default(),
            place: Cell::default(),
        }
    }
}

impl Seat {
    /// From this tick on it waits for a request.
    pub(crate) fn waits(&self, now: u64) {
        self.waits_since.set(now);
    }

    /// It has a request, and is not ended for being without one.
    pub(crate) fn works(&self) {
        self.waits_since.set(u64::MAX);
    }

    pub(crate) fn set_task(&self, task: AbortHandle) {
        *self.task.borrow_mut() = Some(task);
    }
}

/// A wait with a limit.
#[derive(Debug)]
pub(crate) struct Limit {
    due: Cell<u64>,
    waker: RefCell<Option<Waker>>,
}

impl Default for Limit {
    fn default() -> Self {
        Limit { due: Cell::new(u64::MAX), waker: RefCell::new(None) }
    }
}

impl Limit {
    /// Sets the tick at which the wait is over.
    pub(crate) fn set(&self, due: u64) {
        self.due.set(due);
    }

    /// Takes the limit away.
    pub(crate) fn clear(&self) {
        self.due.set(u64::MAX);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.due.get() != u64::MAX
    }

    /// Whether the wait is over; if not, its task will be woken when it is (or when a shutdown begins).
    pub(crate) fn poll_over(&self, now: u64, context: &Context<'_>) -> bool {
        if self.due.get() <= now {
            return true;
        }
        let mut waker = self.waker.borrow_mut();
        match &mut *waker {
            Some(waker) => waker.clone_from(context.waker()), // clones only when it is another one
            None => *waker = Some(context.waker().clone()),
        }
        false
    }

    /// Wakes the task that waits, if one does.
    pub(crate) fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    fn wake_if_due(&self, now: u64) {
        if self.due.get() <= now {
            self.wake();
        }
    }
}

/// Holds a connection's seat; gives it back when dropped, however the connection ended.
#[derive(Debug)]
pub(crate) struct Seated {
    pub(crate) core: Rc<Core>,
    pub(crate) seat: Rc<Seat>,
    _place: Option<Place>,
}

impl Drop for Seated {
    fn drop(&mut self) {
        let place = self.seat.place.get();
        let mut seats = self.core.seats.borrow_mut();
        seats.swap_remove(place);
        if let Some(moved) = seats.get(place) {
            moved.place.set(place);
        }
        self.core.counters.count_closed();
        self.core.seat_freed.notify_waiters();
    }
}

/// Buffers that nobody needs at the moment, kept so that a request allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Spares(RefCell<Vec<Vec<u8>>>);

impl Spares {
    /// At most this many are kept, of at most this size: 8 MiB at most.
    const BUFFERS: usize = 64;
    const BYTES: usize = 2 * SCRATCH_BYTES;

    /// An empty buffer, of whatever capacity. Nothing is allocated for it here.
    pub(crate) fn take(&self) -> Vec<u8> {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    /// Takes a buffer back, whatever it holds.
    pub(crate) fn give(&self, mut buffer: Vec<u8>) {
        let mut spares = self.0.borrow_mut();
        if (1..=Self::BYTES).contains(&buffer.capacity()) && spares.len() < Self::BUFFERS {
            buffer.clear();
            spares.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_given_back_in_any_order() {
        let core = Rc::new(Core::new(Settings::default()));
        let first = core.seat();
        let second = core.seat();
        let third = core.seat();
        drop(first);
        drop(third);
        assert_eq!(core.connections(), 1);
        assert_eq!(second.seat.place.get(), 0);
        drop(second);
        assert_eq!(core.connections(), 0);
        let counts = core.counters.counts();
        assert_eq!((counts.accepted, counts.alive), (3, 0));
    }

    #[test]
    fn who_has_waited_for_longest_makes_room_and_who_works_does_not() {
        let core = Rc::new(Core::new(Settings { crowded_timeout: Duration::ZERO, ..Settings::default() }));
        let seats: Vec<Seated> = (0..20).map(|_| core.seat()).collect();
        for (at, seated) in seats.iter().enumerate() {
            // The first have waited for the shortest time.
            seated.seat.waits(100 - at as u64);
        }
        seats[19].seat.works();
        core.now.set(90 + core.ticks.crowded);
        assert_eq!(core.make_room(), 2, "an eighth of those that have waited since tick 90 or before, 9");
        let left: Vec<usize> = (0..20).filter(|&at| seats[at].seat.waits_since.get() == u64::MAX).collect();
        assert_eq!(left, [17, 18, 19]);
        assert_eq!(core.counters.counts().error(ErrorKind::Crowded), 2);
    }

    #[test]
    fn spares_keep_neither_huge_buffers_nor_too_many() {
        let spares = Spares::default();
        spares.give(Vec::with_capacity(Spares::BYTES + 1));
        assert_eq!(spares.take().capacity(), 0);
        spares.give(b"old".to_vec());
        let spare = spares.take();
        assert!(spare.is_empty() && spare.capacity() >= 3);
        for _ in 0..Spares::BUFFERS + 1 {
            spares.give(vec![0]);
        }
        assert_eq!(spares.0.borrow().len(), Spares::BUFFERS);
    }
}
