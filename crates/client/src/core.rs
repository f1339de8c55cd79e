//! What the requests of one core share: connections, names, buffers, and one look at all their deadlines.
//!
//! No request has a timer. Deadlines stand in seats, side by side; one task sleeps until the earliest of them, then wakes those
//! whose time has come. It is started with the first request and ends with the client.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::task::{Context, Waker};
use std::time::Duration;

use oroshi_net::tls::TlsConfigError;
use oroshi_net::{Address, ClientTls, Connector, ConnectorOptions, Endpoint, Scheme, Stream, monotonic_ns};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::deadline::after;
use crate::dns::Names;
use crate::pool::{HostId, Pool};
use crate::settings::Builder;

/// How much one read takes in at most, bytes.
const SCRATCH_BYTES: usize = 64 * 1024;

/// How much of a request's body is read at once, bytes.
const COPY_BYTES: usize = 16 * 1024;

/// The shortest time between two looks at the deadlines.
const SWEEP: Duration = Duration::from_millis(2);

/// The shortest and the longest pause between two looks at the idle connections; an eighth of their time otherwise.
const IDLE_SWEEP: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// What connections can be shared between: the same server, reached in the same way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Origin {
    scheme: Scheme,
    address: Address,
    /// The name that the certificate must carry, where the address does not say it.
    name: Option<Box<str>>,
}

impl Origin {
    /// Shared, as a request under way is as large as what it holds.
    pub(crate) fn of(endpoint: &Endpoint) -> Rc<Self> {
        let behind_unix = endpoint.scheme == Scheme::Https && matches!(endpoint.address, Address::Unix(_));
        let name = behind_unix.then(|| endpoint.host().into());
        Rc::new(Origin { scheme: endpoint.scheme, address: endpoint.address.clone(), name })
    }
}

/// A connection that can carry a request.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    /// When it was made.
    born: u64,
    /// Where it leads; `None` for a unix socket.
    pub(crate) remote: Option<SocketAddr>,
}

impl Connection {
    pub(crate) fn new(stream: Stream, born: u64, remote: Option<SocketAddr>) -> Self {
        Connection { stream, born, remote }
    }
}

/// What the requests of one core share.
pub(crate) struct Core {
    pub(crate) settings: Builder,
    pub(crate) pool: RefCell<Pool<Rc<Origin>, Connection>>,
    pub(crate) names: RefCell<Names>,
    pub(crate) connector: Connector,
    /// What every read of the core reads into. Borrowed within one poll only.
    pub(crate) scratch: RefCell<Box<[u8]>>,
    pub(crate) counts: Counters,
    tls: RefCell<Option<ClientTls>>,
    spares: RefCell<Vec<Vec<u8>>>,
    /// What bodies are read into on their way out.
    buffers: RefCell<Vec<Box<[u8]>>>,
    seats: RefCell<Vec<Rc<Seat>>>,
    /// When the deadlines are next looked at; the sweeper is told when that moves forward.
    sweep_at: Cell<u64>,
    /// When the idle connections are next looked at, and before when they are not: all of them are walked over for it.
    idle_at: Cell<u64>,
    idle_not_before: Cell<u64>,
    bell: Rc<Notify>,
    sweeper: RefCell<Option<AbortHandle>>,
}

/// What a client has done since it was made.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: Cell<u64>,
    pub(crate) connects: Cell<u64>,
    pub(crate) retries: Cell<u64>,
    pub(crate) redirects: Cell<u64>,
    pub(crate) failures: Cell<u64>,
}

/// What a client holds at a moment, and what it has done since it was made. (Should a `Client`'s thread ever end by a defect, the one
/// that follows counts from zero.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Connections that are open or being made, idle ones included.
    pub open: usize,
    /// Connections that wait for a request.
    pub idle: usize,
    /// Requests that wait for a connection.
    pub waiting: usize,
    /// Requests under way, their bodies included.
    pub in_flight: usize,
    /// The most connections that may be open: as set, or less where descriptors are few.
    pub connections: usize,
    /// Requests begun, redirects and retries not counted.
    pub requests: u64,
    /// Connections made.
    pub connects: u64,
    /// Requests sent again because a connection broke.
    pub retries: u64,
    /// Redirects followed.
    pub redirects: u64,
    /// Requests that failed before the head of their response was handed over, redirects that were not followed included; not those that
    /// failed in their response's body, could not be put together, or were dropped.
    pub failures: u64,
}

pub(crate) fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

impl Core {
    pub(crate) fn new(mut settings: Builder) -> Self {
        // One descriptor more than connections is for a moment that closes one and opens another.
        if let Err(few) = oroshi_net::ensure_descriptors(settings.caps.total as u64 + 1) {
            let room = few.hard.saturating_sub(few.open + SPARE_DESCRIPTORS);
            settings.caps.total = settings.caps.total.min(usize::try_from(room).unwrap_or(usize::MAX)).max(1);
            // It raises the limit as far as it goes; that may fail for reasons of its own, and connects then say so.
            let _ = oroshi_net::ensure_descriptors(settings.caps.total as u64);
        }
        Core {
            pool: RefCell::new(Pool::new(settings.caps)),
            names: RefCell::new(Names::new(settings.lookup.clone(), settings.dns)),
            connector: Connector::new(ConnectorOptions::default()),
            settings,
            scratch: RefCell::new(vec![0; SCRATCH_BYTES].into()),
            counts: Counters::default(),
            tls: RefCell::default(),
            spares: RefCell::default(),
            buffers: RefCell::default(),
            seats: RefCell::default(),
            sweep_at: Cell::new(u64::MAX),
            idle_at: Cell::new(u64::MAX),
            idle_not_before: Cell::new(0),
            bell: Rc::default(),
            sweeper: RefCell::default(),
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        let pool = self.pool.borrow();
        Counts {
            open: pool.open(),
            idle: pool.idle(),
            waiting: pool.waiting(),
            in_flight: self.seats.borrow().len(),
            connections: pool.total(),
            requests: self.counts.requests.get(),
            connects: self.counts.connects.get(),
            retries: self.counts.retries.get(),
            redirects: self.counts.redirects.get(),
            failures: self.counts.failures.get(),
        }
    }

    /// TLS towards a host. The first call reads the machine's roots.
    pub(crate) fn tls(&self, host: &str) -> Result<ClientTls, TlsConfigError> {
        let mut tls = self.tls.borrow_mut();
        match &*tls {
            Some(known) => known.with_host(host),
            None => {
                let made = ClientTls::new(&self.settings.tls, host)?;
                *tls = Some(made.clone());
                Ok(made)
            }
        }
    }

    /// An empty buffer, of whatever capacity. Nothing is allocated for it here.
    pub(crate) fn spare(&self) -> Vec<u8> {
        self.spares.borrow_mut().pop().unwrap_or_default()
    }

    /// Takes a buffer back, whatever it holds.
    pub(crate) fn give_spare(&self, mut buffer: Vec<u8>) {
        // At most 64 of at most 128 KiB.
        let mut spares = self.spares.borrow_mut();
        if (1..=2 * SCRATCH_BYTES).contains(&buffer.capacity()) && spares.len() < 64 {
            buffer.clear();
            spares.push(buffer);
        }
    }

    /// A buffer for the length of one poll; one in another, where polls stand within each other.
    pub(crate) fn take_buffer(&self) -> Box<[u8]> {
        self.buffers.borrow_mut().pop().unwrap_or_else(|| vec![0; COPY_BYTES].into())
    }

    pub(crate) fn put_buffer(&self, buffer: Box<[u8]>) {
        self.buffers.borrow_mut().push(buffer);
    }

    /// Takes a request in; it leaves when the guard is dropped.
    ///
    /// # Panics
    /// Outside a runtime whose tasks stay on their thread.
    pub(crate) fn seat(self: &Rc<Self>) -> Seated {
        let mut sweeper = self.sweeper.borrow_mut();
        if sweeper.as_ref().is_none_or(AbortHandle::is_finished) {
            let task = tokio::task::spawn_local(sweep(Rc::downgrade(self), Rc::clone(&self.bell)));
            *sweeper = Some(task.abort_handle());
        }
        let seat = Rc::new(Seat {
            due: Cell::new(u64::MAX),
            over: Cell::new(false),
            waker: RefCell::new(None),
            place: Cell::new(self.seats.borrow().len()),
        });
        self.seats.borrow_mut().push(Rc::clone(&seat));
        Seated { core: Rc::clone(self), seat }
    }

    /// Has the sweeper look at this time, at the latest.
    pub(crate) fn look_at(&self, due: u64) {
        if due < self.sweep_at.get() {
            self.sweep_at.set(due);
            self.bell.notify_one();
        }
    }

    /// Has the sweeper close a connection that is idle until then, or not much later.
    pub(crate) fn look_at_idle(&self, until: u64) {
        let at = until.max(self.idle_not_before.get());
        if at < self.idle_at.get() {
            self.idle_at.set(at);
            self.look_at(at);
        }
    }

    /// Wakes those whose time has come, closes connections that were idle for too long, raises a lowered cap, and says when to look again.
    fn sweep(&self, now: u64) {
        if self.idle_at.get() <= now {
            let pause = (self.settings.idle / 8).clamp(IDLE_SWEEP.0, IDLE_SWEEP.1);
            self.idle_not_before.set(after(now, pause));
            let next = self.pool.borrow_mut().sweep(now);
            self.idle_at.set(next.map_or(u64::MAX, |next| next.max(self.idle_not_before.get())));
        }
        let raise_at = self.pool.borrow_mut().raise(now).unwrap_or(u64::MAX);
        let mut next = self.idle_at.get().min(raise_at);
        for seat in self.seats.borrow().iter() {
            if seat.due.get() > now {
                next = next.min(seat.due.get());
            } else if !seat.over.replace(true)
                && let Some(waker) = seat.waker.borrow_mut().take()
            {
                waker.wake();
            }
        }
        self.sweep_at.set(next);
    }
}

/// Descriptors that are left for others when there are few: the runtime, look-ups, logs.
const SPARE_DESCRIPTORS: u64 = 64;

impl Drop for Core {
    fn drop(&mut self) {
        if let Some(sweeper) = self.sweeper.take() {
            sweeper.abort();
        }
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("settings", &self.settings).field("counts", &self.counts()).finish_non_exhaustive()
    }
}

/// Looks at the deadlines when the earliest has come. Ends with the core.
async fn sweep(core: Weak<Core>, bell: Rc<Notify>) {
    let mut last = 0;
    loop {
        let at = match core.upgrade() {
            Some(core) => core.sweep_at.get(),
            None => return,
        };
        let now = monotonic_ns();
        // However many deadlines there are, and however close, most of the time is for requests.
        let at = at.max(after(last, SWEEP));
        if at <= now {
            last = now;
            if let Some(core) = core.upgrade() {
                core.sweep(now);
            }
        } else if at == u64::MAX {
            bell.notified().await;
        } else {
            // Whether the time has come or an earlier deadline was set, the next round sees.
            let _ = tokio::time::timeout(Duration::from_nanos(at - now), bell.notified()).await;
        }
    }
}

/// A request's place among those of its core: what the sweep needs to know of it.
pub(crate) struct Seat {
    due: Cell<u64>,
    over: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    place: Cell<usize>,
}

/// Holds a seat; gives it back when dropped, however the request ended.
pub(crate) struct Seated {
    pub(crate) core: Rc<Core>,
    seat: Rc<Seat>,
}

impl Seated {
    /// Sets the time at which the wait is over; nanoseconds, [`u64::MAX`] for never.
    pub(crate) fn set_due(&self, due: u64) {
        self.seat.due.set(due);
        self.seat.over.set(false);
        self.core.look_at(due);
    }

    /// Whether the time that was set has passed.
    pub(crate) fn is_over(&self) -> bool {
        self.seat.over.get()
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
}

impl Seated {
    /// Gives the seat back before the guard is dropped: nothing more is waited for.
    pub(crate) fn leave(&self) {
        let place = self.seat.place.replace(usize::MAX);
        if place == usize::MAX {
            return;
        }
        let mut seats = self.core.seats.borrow_mut();
        seats.swap_remove(place);
        if let Some(moved) = seats.get(place) {
            moved.place.set(place);
        }
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Holds a connection, or the right to make one. When dropped, the connection is closed and somebody else may make one.
pub(crate) struct Lease {
    core: Rc<Core>,
    host: HostId,
    connection: Option<Connection>,
    /// Whether the pool still counts on hearing of it.
    held: bool,
}

impl Lease {
    pub(crate) fn new(core: &Rc<Core>, host: HostId, connection: Option<Connection>) -> Self {
        Lease { core: Rc::clone(core), host, connection, held: true }
    }

    pub(crate) fn connection(&mut self) -> Option<&mut Connection> {
        self.connection.as_mut()
    }

    pub(crate) fn put(&mut self, connection: Connection) {
        self.connection = Some(connection);
    }

    /// Closes the connection, and keeps the right to make another.
    pub(crate) fn close(&mut self) {
        self.connection = None;
    }

    /// Gives a connection back for the next request; `hint` is how long the server keeps it.
    pub(crate) fn give_back(mut self, now: u64, hint: Option<Duration>) {
        let Some(connection) = self.connection.take() else { return };
        let settings = &self.core.settings;
        let idle = hint.map_or(settings.idle, |hint| settings.idle.min(hint));
        let until = after(now, idle).min(after(connection.born, settings.age));
        if until <= now {
            return;
        }
        self.held = false;
        self.core.pool.borrow_mut().give_back(self.host, connection, until);
        self.core.look_at_idle(until);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        drop(self.connection.take());
        if self.held {
            self.core.pool.borrow_mut().forget(self.host);
        }
    }
}
