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
    /// Rung when a seat becomes free, or can be made free.
    pub(crate) seat_freed: Notify,
    seats: RefCell<Vec<Rc<Seat>>>,
    /// How many connections there have been.
    seated: Cell<u64>,
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
            seated: Cell::new(0),
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

    /// Ends connections, as others wait for their places. Where handlers vouch for connections that is the oldest one that nobody has vouched
    /// for. Elsewhere, and if there is none on any core, it is an eighth of those that have waited without a request for too long, those that
    /// have waited for longest. Returns how many; their places are free once their tasks have ended.
    pub(crate) fn make_room(&self) -> usize {
        let room = self.settings.room.as_ref();
        let seats = self.seats.borrow();
        let unproven = seats.iter().filter(|seat| seat.standing.get() == Standing::Unproven);
        let going: Vec<&Rc<Seat>> = match unproven.min_by_key(|seat| seat.number) {
            Some(oldest) => vec![oldest],
            None if room.is_some_and(|room| room.has_unproven()) => Vec::new(),
            None => self.longest_waiting(&seats),
        };
        for seat in &going {
            seat.works();
            self.settle(seat);
            if let Some(task) = seat.task.take() {
                task.abort();
            }
            self.counters.count_error(ErrorKind::Crowded);
        }
        if let Some(room) = room {
            room.tell_crowding(going.len());
        }
        going.len()
    }

    /// An eighth of the connections that have waited without a request for too long: those that have waited for longest.
    fn longest_waiting<'s>(&self, seats: &'s [Rc<Seat>]) -> Vec<&'s Rc<Seat>> {
        let now = self.now.get();
        let is_long = |seat: &&Rc<Seat>| seat.waits_since.get().saturating_add(self.ticks.crowded) <= now;
        let mut waiting: Vec<&Rc<Seat>> = seats.iter().filter(is_long).collect();
        let count = waiting.len().div_ceil(8);
        if count > 0 {
            waiting.select_nth_unstable_by_key(count - 1, |seat| seat.waits_since.get());
        }
        waiting.truncate(count);
        waiting
    }

    /// Takes a connection in, unless the room that it shares with other cores is full; it leaves when the guard is dropped.
    pub(crate) fn try_seat(self: &Rc<Self>) -> Option<Seated> {
        let place = match &self.settings.room {
            Some(room) => Some(room.try_enter()?),
            None => None,
        };
        Some(self.seat_at(place))
    }

    /// As [`try_seat`](Self::try_seat), however full the room is.
    pub(crate) fn seat(self: &Rc<Self>) -> Seated {
        self.seat_at(self.settings.room.as_ref().map(Room::enter))
    }

    fn seat_at(self: &Rc<Self>, place: Option<Place>) -> Seated {
        let number = self.seated.get();
        self.seated.set(number + 1);
        let seat = Rc::new(Seat { number, ..Seat::default() });
        seat.waits(self.now.get());
        let mut seats = self.seats.borrow_mut();
        seat.place.set(seats.len());
        seats.push(Rc::clone(&seat));
        self.counters.count_accepted();
        if let Some(room) = self.settings.room.as_ref().filter(|_| self.settings.vouching) {
            room.add_unproven();
        }
        Seated { core: Rc::clone(self), seat, place: RefCell::new(place) }
    }

    /// From here on a connection is not ended for being one that nobody has vouched for.
    fn settle(&self, seat: &Seat) {
        let was_settled = seat.standing.replace(Standing::Settled) == Standing::Settled;
        if let Some(room) = self.settings.room.as_ref().filter(|_| self.settings.vouching && !was_settled) {
            room.remove_unproven();
        }
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
    standing: Cell<Standing>,
    /// How many connections of this core came before it.
    number: u64,
    /// The connection's task, to cut it off.
    task: RefCell<Option<AbortHandle>>,
    place: Cell<usize>,
}

/// Whether a connection may be ended because nobody has vouched for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Standing {
    /// Not yet: whether its request has come with it was not looked at.
    #[default]
    Fresh,
    /// It may.
    Unproven,
    /// It may not: the handler has vouched for it, or it ends already.
    Settled,
}

impl Default for Seat {
    fn default() -> Self {
        Seat {
            read: Limit::default(),
            write: Limit::default(),
            waits_since: Cell::new(u64::MAX),
            standing: Cell::default(),
            number: 0,
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
    place: RefCell<Option<Place>>,
}

impl Seated {
    /// The connection may be ended for others from here on, unless the handler vouches for it: what came with it is at hand.
    pub(crate) fn doubt(&self) {
        if self.core.settings.vouching && self.seat.standing.get() == Standing::Fresh {
            self.seat.standing.set(Standing::Unproven);
            // Whoever waits for a place may take this one.
            self.core.seat_freed.notify_waiters();
        }
    }

    /// The handler vouches for the connection.
    pub(crate) fn vouch(&self) {
        self.core.settle(&self.seat);
    }

    /// The place in the room, for whoever has the connection from here on.
    pub(crate) fn take_place(&self) -> Option<Place> {
        self.place.take()
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        self.core.settle(&self.seat);
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
    fn the_oldest_that_nobody_has_vouched_for_makes_room_first() {
        let room = Room::new(10);
        let vouching = || Settings { room: Some(Arc::clone(&room)), vouching: true, ..Settings::default() };
        let (core, other) = (Rc::new(Core::new(vouching())), Rc::new(Core::new(vouching())));
        let seats: Vec<Seated> = (0..5).map(|_| core.try_seat().unwrap()).collect();
        let ended = || -> Vec<usize> {
            core.make_room();
            let is_ended = |seat: &Seat| seat.standing.get() == Standing::Settled && seat.waits_since.get() == u64::MAX;
            (0..5).filter(|&at| is_ended(&seats[at].seat)).collect()
        };
        // Nobody has looked at what came with the first. The second is known. Of the others the oldest goes, though it is busy.
        seats[1..].iter().for_each(Seated::doubt);
        seats[1].vouch();
        seats[2].seat.works();
        assert_eq!(ended(), [2]);
        assert_eq!(ended(), [2, 3]);
        assert_eq!(ended(), [2, 3, 4]);
        // As long as there is one, be it too fresh, or on another core, no other goes, however long it has waited.
        core.now.set(1000);
        assert_eq!(ended(), [2, 3, 4]);
        let stranger = other.try_seat().unwrap();
        seats[0].doubt();
        seats[0].vouch();
        seats[0].seat.waits(999);
        assert_eq!(ended(), [2, 3, 4]);
        drop(stranger);
        assert!(!room.has_unproven());
        assert_eq!(ended(), [1, 2, 3, 4], "it has waited since the start");
        assert_eq!(core.counters.counts().error(ErrorKind::Crowded), 4);
        drop(seats);
        assert_eq!((room.held(), room.has_unproven()), (0, false));
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
