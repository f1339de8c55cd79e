//! What the requests of one core share: connections, names, deadlines.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use oroshi_core::{Deadline, Deadlines, HasDeadlines, Names, Registration, after, sweep_pause};
use oroshi_net::tls::TlsConfigError;
use oroshi_net::{Address, ClientTls, Connector, ConnectorOptions, Endpoint, Scheme, Stream};

use crate::pool::{HostId, Pool};
use crate::settings::Builder;

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
    pub(crate) counts: Counters,
    deadlines: Deadlines,
    tls: RefCell<Option<ClientTls>>,
    /// When the idle connections are next looked at, and before when they are not: all of them are walked over for it.
    idle_at: Cell<u64>,
    idle_not_before: Cell<u64>,
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
            counts: Counters::default(),
            deadlines: Deadlines::default(),
            tls: RefCell::default(),
            idle_at: Cell::new(u64::MAX),
            idle_not_before: Cell::new(0),
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        let pool = self.pool.borrow();
        Counts {
            open: pool.open(),
            idle: pool.idle(),
            waiting: pool.waiting(),
            in_flight: self.deadlines.count(),
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

    /// Registers a request until the guard is dropped.
    ///
    /// # Panics
    /// Outside a runtime whose tasks stay on their thread.
    pub(crate) fn register(self: &Rc<Self>) -> Registration<Self> {
        Deadlines::watch(self);
        Deadlines::register(self)
    }

    /// Has the sweeper close a connection that is idle until then, or not much later.
    pub(crate) fn look_at_idle(&self, until: u64) {
        let at = until.max(self.idle_not_before.get());
        if at < self.idle_at.get() {
            self.idle_at.set(at);
            self.deadlines.sweep_by(at);
        }
    }
}

impl HasDeadlines for Core {
    type Value = Deadline;

    fn deadlines(&self) -> &Deadlines {
        &self.deadlines
    }

    /// Closes connections that were idle for too long, and raises a lowered cap.
    fn sweep(&self, now: u64) -> u64 {
        if self.idle_at.get() <= now {
            self.idle_not_before.set(after(now, sweep_pause(self.settings.idle, IDLE_SWEEP)));
            let next = self.pool.borrow_mut().sweep(now);
            self.idle_at.set(next.map_or(u64::MAX, |next| next.max(self.idle_not_before.get())));
        }
        let raise_at = self.pool.borrow_mut().raise(now).unwrap_or(u64::MAX);
        self.idle_at.get().min(raise_at)
    }
}

/// Descriptors that are left for others when there are few: the runtime, look-ups, logs.
const SPARE_DESCRIPTORS: u64 = 64;

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("settings", &self.settings).field("counts", &self.counts()).finish_non_exhaustive()
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
