//! State that the connections of one core share: time in ticks, deadlines, the date.
//!
//! Everything here belongs to one thread. Time is counted in ticks of the sweep (see [`Ticks`]): setting a deadline
//! costs one addition and one store, and reads no clock.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oroshi_core::{Deadline, Deadlines, Entry, Expire, HasDeadlines, Registration};
use oroshi_words::date::{HTTP_DATE_BYTES, http_date};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::capacity::{Capacity, Permit};
use crate::counters::{Counters, ErrorKind};
use crate::http2;
use crate::settings::{Settings, Ticks};

/// State that the connections of one core share.
pub(crate) struct Core {
    pub(crate) settings: Settings,
    pub(crate) ticks: Ticks,
    pub(crate) counters: Arc<Counters>,
    /// The settings and limits of all HTTP/2 connections.
    pub(crate) http2: Arc<oroshi_http2::Config>,
    /// The buffer for decoded heads of HTTP/2.
    pub(crate) heads: RefCell<oroshi_http2::HeadBuffer>,
    /// Whether a shutdown has begun.
    pub(crate) closing: Cell<bool>,
    /// Notified when the shutdown begins.
    pub(crate) closing_began: Notify,
    /// Notified when a connection has ended, or can be ended to make room.
    pub(crate) permit_freed: Notify,
    deadlines: Deadlines<Connection>,
    /// The number of connections within their TLS handshake, or before it.
    handshakes: Cell<usize>,
    /// The number of connections so far.
    registered: Cell<u64>,
    date: Cell<[u8; HTTP_DATE_BYTES]>,
}

impl Core {
    pub(crate) fn new(settings: Settings) -> Self {
        let core = Core {
            ticks: Ticks::new(&settings),
            http2: http2::config(&settings),
            heads: RefCell::default(),
            settings,
            counters: Arc::default(),
            closing: Cell::new(false),
            closing_began: Notify::new(),
            permit_freed: Notify::new(),
            deadlines: Deadlines::default(),
            handshakes: Cell::new(0),
            registered: Cell::new(0),
            date: Cell::new([0; HTTP_DATE_BYTES]),
        };
        core.read_clock();
        core
    }

    /// Returns the current tick.
    pub(crate) fn now(&self) -> u64 {
        self.deadlines.now()
    }

    /// Returns the current date, at most a tick old.
    pub(crate) fn date(&self) -> [u8; HTTP_DATE_BYTES] {
        self.date.get()
    }

    /// Returns the number of connections.
    pub(crate) fn connections(&self) -> usize {
        self.deadlines.count()
    }

    /// Whether the cap on connections is reached.
    pub(crate) fn is_full(&self) -> bool {
        self.connections() >= self.settings.connections
            || self.settings.capacity.as_ref().is_some_and(|capacity| capacity.is_full())
    }

    /// Whether the cap on TLS handshakes under way is reached.
    pub(crate) fn has_all_handshakes(&self) -> bool {
        self.handshakes.get() >= self.settings.handshakes
    }

    /// Ends an eighth of the handshakes that have taken too long, the longest first. Returns how many; their places are
    /// free once their tasks have ended.
    pub(crate) fn end_handshakes(&self) -> usize {
        let connections = self.deadlines.entries();
        let going = self.longest_waiting(&connections, |connection| connection.is_in_handshake.get());
        self.end(&going);
        going.len()
    }

    /// Ends connections to make room. With vouching handlers it ends the oldest unproven connection. Otherwise, or
    /// without such a connection on any core, it ends an eighth of those without a request for too long, the longest
    /// waiting first. Returns how many; their places are free once their tasks have ended.
    pub(crate) fn make_room(&self) -> usize {
        let capacity = self.settings.capacity.as_ref();
        let connections = self.deadlines.entries();
        let unproven = connections.iter().filter(|connection| connection.vouch_state.get() == VouchState::Unproven);
        let going: Vec<&Rc<Entry<Connection>>> = match unproven.min_by_key(|connection| connection.number.get()) {
            Some(oldest) => vec![oldest],
            None if capacity.is_some_and(|capacity| capacity.has_unproven()) => Vec::new(),
            None => self.longest_waiting(&connections, |_| true),
        };
        self.end(&going);
        if let Some(capacity) = capacity {
            capacity.report_full(going.len());
        }
        going.len()
    }

    /// Ends connections because others wait for their places.
    fn end(&self, going: &[&Rc<Entry<Connection>>]) {
        for connection in going {
            connection.works();
            self.settle(connection);
            if let Some(task) = connection.task.take() {
                task.abort();
            }
            self.counters.count_error(ErrorKind::Crowded);
        }
    }

    /// Returns an eighth of these connections that have waited without a request for too long: the longest waiting
    /// ones.
    fn longest_waiting<'c>(
        &self,
        connections: &'c [Rc<Entry<Connection>>],
        is_asked: impl Fn(&Connection) -> bool,
    ) -> Vec<&'c Rc<Entry<Connection>>> {
        let now = self.now();
        let is_long = |one: &&Rc<Entry<Connection>>| {
            one.waits_since.get().saturating_add(self.ticks.crowded) <= now && is_asked(one)
        };
        let mut waiting: Vec<&Rc<Entry<Connection>>> = connections.iter().filter(is_long).collect();
        let count = waiting.len().div_ceil(8);
        if count > 0 {
            waiting.select_nth_unstable_by_key(count - 1, |connection| connection.waits_since.get());
        }
        waiting.truncate(count);
        waiting
    }

    /// Registers a connection until the guard is dropped, unless the shared capacity is full.
    pub(crate) fn try_register(self: &Rc<Self>) -> Option<ConnectionGuard> {
        let permit = match &self.settings.capacity {
            Some(capacity) => Some(capacity.try_acquire()?),
            None => None,
        };
        Some(self.register_at(permit))
    }

    /// As [`try_register`](Self::try_register), even if the capacity is full.
    pub(crate) fn register(self: &Rc<Self>) -> ConnectionGuard {
        self.register_at(self.settings.capacity.as_ref().map(Capacity::acquire_beyond))
    }

    fn register_at(self: &Rc<Self>, permit: Option<Permit>) -> ConnectionGuard {
        let number = self.registered.get();
        self.registered.set(number + 1);
        let registration = Deadlines::register(self);
        registration.entry().number.set(number);
        registration.entry().waits(self.now());
        self.counters.count_accepted();
        if let Some(capacity) = self.settings.capacity.as_ref().filter(|_| self.settings.vouching) {
            capacity.add_unproven();
        }
        ConnectionGuard { registration, permit: Cell::new(permit) }
    }

    /// Protects a connection from being ended as unproven.
    fn settle(&self, connection: &Connection) {
        let was_settled = connection.vouch_state.replace(VouchState::Settled) == VouchState::Settled;
        if let Some(capacity) = self.settings.capacity.as_ref().filter(|_| self.settings.vouching && !was_settled) {
            capacity.remove_unproven();
        }
    }

    /// Resolves once a shutdown has begun.
    pub(crate) async fn until_closing(&self) {
        while !self.closing.get() {
            self.closing_began.notified().await;
        }
    }

    /// Begins the shutdown: connections no longer wait for another request.
    pub(crate) fn close(&self) {
        self.closing.set(true);
        self.closing_began.notify_waiters();
        self.permit_freed.notify_waiters();
    }

    /// Makes waiting connections notice the shutdown.
    pub(crate) fn wake_idle(&self) {
        for connection in self.deadlines.entries().iter() {
            connection.read.wake();
        }
    }

    /// Cuts every connection off. Returns how many there were.
    pub(crate) fn abort(&self) -> usize {
        let connections = self.deadlines.entries();
        for task in connections.iter().filter_map(|connection| connection.task.take()) {
            task.abort();
        }
        connections.len()
    }

    /// Advances time tick by tick, and wakes waits whose deadline has passed. Never ends.
    pub(crate) async fn sweep(&self) {
        let mut since_date = Duration::ZERO;
        loop {
            tokio::time::sleep(self.ticks.length).await;
            // One tick per round, even after a late round: deadlines may fire late, but never early.
            self.deadlines.sweep(self.now() + 1);
            since_date += self.ticks.length;
            if since_date >= Duration::from_millis(500) {
                since_date = Duration::ZERO;
                self.read_clock();
            }
            // Another core's listener may be waiting.
            if self.settings.capacity.as_ref().is_some_and(|capacity| capacity.has_waiting() && capacity.is_full()) {
                self.make_room();
            }
        }
    }

    fn read_clock(&self) {
        // A clock before 1970 has no valid date: the machine has not set it yet.
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

impl HasDeadlines for Core {
    type Value = Connection;

    fn deadlines(&self) -> &Deadlines<Connection> {
        &self.deadlines
    }
}

/// The state of a connection that its core uses.
#[derive(Default)]
pub(crate) struct Connection {
    /// The deadline for bytes from the peer.
    pub(crate) read: Deadline,
    /// The deadline for the peer to take bytes.
    pub(crate) write: Deadline,
    /// The tick since which it has waited for a request, or for the rest of its head.
    waits_since: Cell<u64>,
    vouch_state: Cell<VouchState>,
    /// Whether it is within its TLS handshake, or before it.
    is_in_handshake: Cell<bool>,
    /// How many connections of this core came before it.
    number: Cell<u64>,
    /// The connection's task, for cutting it off.
    task: Cell<Option<AbortHandle>>,
}

/// Whether a connection may be ended because no handler has vouched for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum VouchState {
    /// Not yet: its first bytes were not read.
    #[default]
    Fresh,
    /// It may be ended.
    Unproven,
    /// It may not: the handler has vouched for it, or it is ending.
    Settled,
}

impl Connection {
    /// Notes that it waits for a request from this tick on.
    pub(crate) fn waits(&self, now: u64) {
        self.waits_since.set(now);
    }

    /// Notes that it has a request, so it is not ended for waiting.
    pub(crate) fn works(&self) {
        self.waits_since.set(u64::MAX);
    }

    pub(crate) fn set_task(&self, task: AbortHandle) {
        self.task.set(Some(task));
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Connection")
            .field("read", &self.read)
            .field("write", &self.write)
            .finish_non_exhaustive()
    }
}

impl Expire for Connection {
    fn expire(&self, now: u64) -> u64 {
        self.read.expire(now).min(self.write.expire(now))
    }

    fn reset(&self) {
        self.read.reset();
        self.write.reset();
        self.vouch_state.take();
        self.is_in_handshake.take();
        self.task.take();
    }
}

/// A connection's registration at its core; dropping it frees its permit, however the connection ended.
pub(crate) struct ConnectionGuard {
    registration: Registration<Core>,
    permit: Cell<Option<Permit>>,
}

impl fmt::Debug for ConnectionGuard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ConnectionGuard").field("registration", &self.registration).finish_non_exhaustive()
    }
}

impl ConnectionGuard {
    pub(crate) fn core(&self) -> &Rc<Core> {
        self.registration.owner()
    }

    pub(crate) fn connection(&self) -> &Rc<Entry<Connection>> {
        self.registration.entry()
    }

    /// Allows ending the connection to make room, unless the handler vouches for it: its first bytes are here.
    pub(crate) fn doubt(&self) {
        if self.core().settings.vouching && self.connection().vouch_state.get() == VouchState::Fresh {
            self.connection().vouch_state.set(VouchState::Unproven);
            // A waiting client may take this permit.
            self.core().permit_freed.notify_waiters();
        }
    }

    /// Records that the handler vouches for the connection.
    pub(crate) fn vouch(&self) {
        self.core().settle(self.connection());
    }

    /// Records that the connection begins with a TLS handshake.
    pub(crate) fn begin_handshake(&self) {
        if !self.connection().is_in_handshake.replace(true) {
            self.core().handshakes.set(self.core().handshakes.get() + 1);
        }
    }

    /// Records that the handshake is over, if there was one.
    pub(crate) fn end_handshake(&self) {
        if self.connection().is_in_handshake.take() {
            let core = self.core();
            let was_full = core.has_all_handshakes();
            core.handshakes.set(core.handshakes.get() - 1);
            if was_full {
                core.permit_freed.notify_waiters();
            }
        }
    }

    /// Takes the permit from the capacity, for the next owner of the connection.
    pub(crate) fn take_permit(&self) -> Option<Permit> {
        self.permit.take()
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.core().settle(self.connection());
        self.end_handshake();
        self.registration.leave();
        self.core().counters.count_closed();
        self.core().permit_freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_in_any_order() {
        let core = Rc::new(Core::new(Settings::default()));
        let first = core.register();
        let second = core.register();
        let third = core.register();
        drop(first);
        drop(third);
        assert_eq!(core.connections(), 1);
        assert!(Rc::ptr_eq(&core.deadlines.entries()[0], second.connection()));
        drop(second);
        assert_eq!(core.connections(), 0);
        let counts = core.counters.counts();
        assert_eq!((counts.accepted, counts.alive), (3, 0));
    }

    #[test]
    fn who_has_waited_for_longest_makes_room_and_who_works_does_not() {
        let core = Rc::new(Core::new(Settings { crowded_timeout: Duration::ZERO, ..Settings::default() }));
        let guards: Vec<ConnectionGuard> = (0..20).map(|_| core.register()).collect();
        for (at, guard) in guards.iter().enumerate() {
            // The first have waited for the shortest time.
            guard.connection().waits(100 - at as u64);
        }
        guards[19].connection().works();
        core.deadlines.sweep(90 + core.ticks.crowded);
        assert_eq!(core.make_room(), 2, "an eighth of those that have waited since tick 90 or before, 9");
        let left: Vec<usize> = (0..20).filter(|&at| guards[at].connection().waits_since.get() == u64::MAX).collect();
        assert_eq!(left, [17, 18, 19]);
        assert_eq!(core.counters.counts().error(ErrorKind::Crowded), 2);
    }

    #[test]
    fn handshakes_make_room_for_handshakes_and_other_connections_do_not() {
        let core = Rc::new(Core::new(Settings { handshakes: 16, ..Settings::default() }));
        let guards: Vec<ConnectionGuard> = (0..20).map(|_| core.register()).collect();
        guards[4..].iter().for_each(ConnectionGuard::begin_handshake);
        assert!(core.has_all_handshakes());
        assert_eq!(core.end_handshakes(), 0, "none has taken a second");
        core.deadlines.sweep(core.ticks.crowded);
        assert_eq!(core.end_handshakes(), 2, "an eighth of 16");
        let ended = |at: &usize| guards[*at].connection().waits_since.get() == u64::MAX;
        assert!((0..20).filter(ended).all(|at| at >= 4));
        guards[4].end_handshake();
        guards[4].end_handshake();
        assert!(!core.has_all_handshakes());
        guards[4].begin_handshake();
        assert!(core.has_all_handshakes());
        drop(guards);
        assert_eq!(core.handshakes.get(), 0);
    }

    #[test]
    fn the_oldest_that_nobody_has_vouched_for_makes_room_first() {
        let capacity = Capacity::new(10);
        let vouching = || Settings { capacity: Some(Arc::clone(&capacity)), vouching: true, ..Settings::default() };
        let (core, other) = (Rc::new(Core::new(vouching())), Rc::new(Core::new(vouching())));
        let guards: Vec<ConnectionGuard> = (0..5).map(|_| core.try_register().unwrap()).collect();
        let ended = || -> Vec<usize> {
            core.make_room();
            let is_ended =
                |one: &Connection| one.vouch_state.get() == VouchState::Settled && one.waits_since.get() == u64::MAX;
            (0..5).filter(|&at| is_ended(guards[at].connection())).collect()
        };
        // The bytes of the first were not read yet. The handler vouched for the second. Of the others the oldest is
        // ended, even though it is busy.
        guards[1..].iter().for_each(ConnectionGuard::doubt);
        guards[1].vouch();
        guards[2].connection().works();
        assert_eq!(ended(), [2]);
        assert_eq!(ended(), [2, 3]);
        assert_eq!(ended(), [2, 3, 4]);
        // While there is such a connection, even one too fresh or on another core, no other is ended, however long it
        // has waited.
        core.deadlines.sweep(1000);
        assert_eq!(ended(), [2, 3, 4]);
        let stranger = other.try_register().unwrap();
        guards[0].doubt();
        guards[0].vouch();
        guards[0].connection().waits(999);
        assert_eq!(ended(), [2, 3, 4]);
        drop(stranger);
        assert!(!capacity.has_unproven());
        assert_eq!(ended(), [1, 2, 3, 4], "it has waited since the start");
        assert_eq!(core.counters.counts().error(ErrorKind::Crowded), 4);
        drop(guards);
        assert_eq!((capacity.held(), capacity.has_unproven()), (0, false));
    }
}
