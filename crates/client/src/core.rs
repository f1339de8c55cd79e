//! State that the requests of one core share: connections, names, deadlines.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use oroshi_core::{Deadline, Deadlines, HasDeadlines, Names, Registration, after, sweep_pause};
use oroshi_multiplex as multiplex;
use oroshi_net::tls::TlsConfigError;
use oroshi_net::{
    Address, ClientTls, ClientTlsOptions, Connector, ConnectorOptions, Endpoint, Scheme, Stream, monotonic_ns,
};

use crate::pool::{HostId, Key, Pool, Shared};
use crate::settings::{Builder, Http2};

/// The shortest and the longest pause between two sweeps of idle connections; between them, an eighth of the idle
/// timeout.
const IDLE_SWEEP: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// The key of the pool: connections to the same server, by the same scheme, are interchangeable within a partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Origin {
    scheme: Scheme,
    address: Address,
    /// The name that the certificate must carry, if the address does not contain it.
    name: Option<Box<str>>,
    /// See [`RequestBuilder::partition`](crate::RequestBuilder::partition).
    partition: u64,
    may_share: bool,
}

impl Origin {
    /// Shared, to keep requests under way small.
    pub(crate) fn of(endpoint: &Endpoint, partition: u64, settings: &Builder) -> Rc<Self> {
        let may_share = settings.keep_alive
            && match settings.http2 {
                Http2::Off => false,
                Http2::Negotiated => endpoint.scheme == Scheme::Https,
                Http2::PriorKnowledge => true,
            };
        let behind_unix = endpoint.scheme == Scheme::Https && matches!(endpoint.address, Address::Unix(_));
        let name = behind_unix.then(|| endpoint.host().into());
        Rc::new(Origin { scheme: endpoint.scheme, address: endpoint.address.clone(), name, partition, may_share })
    }
}

impl Key for Rc<Origin> {
    fn partition(&self) -> u64 {
        self.partition
    }

    fn may_share(&self) -> bool {
        self.may_share
    }
}

impl Shared for multiplex::Connection {
    type Place = multiplex::Place;

    fn reserve(&self) -> Option<multiplex::Place> {
        self.reserve()
    }

    fn limit(&self) -> Option<usize> {
        self.limit()
    }

    fn is_open(&self) -> bool {
        self.is_open()
    }

    fn is_ended(&self) -> bool {
        self.is_ended()
    }

    fn is_idle(&self) -> bool {
        self.under_way() == 0
    }

    fn close(&self) {
        self.close();
    }
}

/// A connection that can carry a request.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    /// The time when it was opened.
    born: u64,
    /// The remote address; `None` for a unix socket.
    pub(crate) remote: Option<SocketAddr>,
}

impl Connection {
    pub(crate) fn new(stream: Stream, born: u64, remote: Option<SocketAddr>) -> Self {
        Connection { stream, born, remote }
    }
}

/// State that the requests of one core share.
pub(crate) struct Core {
    pub(crate) settings: Builder,
    pub(crate) pool: RefCell<Pool<Rc<Origin>, Connection, multiplex::Connection>>,
    pub(crate) http2: multiplex::Config,
    pub(crate) names: RefCell<Names>,
    pub(crate) connector: Connector,
    pub(crate) counts: Counters,
    deadlines: Deadlines,
    tls: RefCell<Option<ClientTls>>,
    proxy_tls: RefCell<Option<ClientTls>>,
    /// The time of the next sweep of idle connections, which visits all of them.
    idle_at: Cell<u64>,
    idle_not_before: Cell<u64>,
}

/// Counters since the client was created.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: Cell<u64>,
    pub(crate) connects: Cell<u64>,
    pub(crate) retries: Cell<u64>,
    pub(crate) redirects: Cell<u64>,
    pub(crate) failures: Cell<u64>,
    pub(crate) bytes_read: Cell<u64>,
    pub(crate) bytes_written: Cell<u64>,
}

/// Gauges and counters of a client. (If a defect ends a `Client`'s thread, the next thread counts from zero.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Connections that are open or being made, idle ones included.
    pub open: usize,
    /// Idle connections.
    pub idle: usize,
    /// Requests that wait for a connection.
    pub waiting: usize,
    /// Requests under way, their bodies included.
    pub in_flight: usize,
    /// The maximum of open connections: as set, or less if descriptors are few.
    pub connections: usize,
    /// Requests begun, without redirects and retries.
    pub requests: u64,
    /// Connections opened.
    pub connects: u64,
    /// Requests sent again after a connection broke.
    pub retries: u64,
    /// Redirects followed.
    pub redirects: u64,
    /// Requests that failed before the caller got the response's head, including redirects that could not be followed.
    /// Excludes failed bodies, invalid requests and dropped ones.
    pub failures: u64,
    /// Bytes received: heads and bodies as on the wire, without TLS records.
    pub bytes_read: u64,
    /// Bytes that the kernel, or TLS, took: heads and bodies, without TLS records.
    pub bytes_written: u64,
}

pub(crate) fn count(counter: &Cell<u64>) {
    add(counter, 1);
}

pub(crate) fn add(counter: &Cell<u64>, more: usize) {
    counter.set(counter.get() + more as u64);
}

impl Core {
    pub(crate) fn new(mut settings: Builder) -> Self {
        // One extra descriptor covers the moment in which one connection closes and another opens.
        if let Err(few) = oroshi_net::ensure_descriptors(settings.caps.total as u64 + 1) {
            let room = few.hard.saturating_sub(few.open + SPARE_DESCRIPTORS);
            settings.caps.total = settings.caps.total.min(usize::try_from(room).unwrap_or(usize::MAX)).max(1);
            // Raises the limit as far as possible. If this fails, connects report it.
            let _ = oroshi_net::ensure_descriptors(settings.caps.total as u64);
        }
        Core {
            pool: RefCell::new(Pool::new(settings.caps)),
            http2: http2_config(&settings),
            names: RefCell::new(Names::new(settings.lookup.clone(), settings.dns)),
            connector: Connector::new(ConnectorOptions {
                permitted: settings.permitted.clone(),
                ..ConnectorOptions::default()
            }),
            settings,
            counts: Counters::default(),
            deadlines: Deadlines::default(),
            tls: RefCell::default(),
            proxy_tls: RefCell::default(),
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
            bytes_read: self.counts.bytes_read.get(),
            bytes_written: self.counts.bytes_written.get(),
        }
    }

    /// Returns TLS settings for a host. The first call reads the machine's root certificates.
    pub(crate) fn tls(&self, host: &str) -> Result<ClientTls, TlsConfigError> {
        tls_towards(host, &self.settings.tls, &self.tls)
    }

    /// Returns TLS settings for a proxy's host, likewise.
    pub(crate) fn proxy_tls(&self, host: &str) -> Result<ClientTls, TlsConfigError> {
        tls_towards(host, &self.settings.proxy_tls, &self.proxy_tls)
    }

    /// Registers a request until the guard is dropped.
    ///
    /// # Panics
    /// Outside a runtime whose tasks stay on their thread.
    pub(crate) fn register(self: &Rc<Self>) -> Registration<Self> {
        Deadlines::watch(self);
        Deadlines::register(self)
    }

    /// Makes the sweeper close an idle connection at `until` or a little later.
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

    /// Closes connections that were idle for too long, and restores a lowered cap.
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

/// Returns TLS settings for a host. `made`: those of the first one, whose files, roots and sessions all share.
fn tls_towards(
    host: &str,
    options: &ClientTlsOptions,
    made: &RefCell<Option<ClientTls>>,
) -> Result<ClientTls, TlsConfigError> {
    let mut made = made.borrow_mut();
    match &*made {
        Some(known) => known.with_host(host),
        None => Ok(made.insert(ClientTls::new(options, host)?).clone()),
    }
}

/// Descriptors reserved for other uses when there are few: the runtime, look-ups, logs.
const SPARE_DESCRIPTORS: u64 = 64;

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("settings", &self.settings).field("counts", &self.counts()).finish_non_exhaustive()
    }
}

/// A connection, a place on a shared one, or the permit to open one. Dropping it closes the connection, or resets the
/// stream, and frees its place.
pub(crate) struct Lease {
    core: Rc<Core>,
    host: HostId,
    line: Line,
    /// What the pool still counts.
    held: Held,
}

/// What carries the request.
enum Line {
    None,
    Own(Connection),
    Place(multiplex::Place),
    Stream(multiplex::Stream),
}

/// What the pool counts for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Nothing,
    /// A permit to connect.
    Permit,
    Connection,
}

impl Lease {
    /// Returns the lease of an idle connection.
    pub(crate) fn of(core: &Rc<Core>, host: HostId, connection: Connection) -> Self {
        Lease { core: Rc::clone(core), host, line: Line::Own(connection), held: Held::Connection }
    }

    /// Returns the lease of a permit to connect.
    pub(crate) fn permit(core: &Rc<Core>, host: HostId) -> Self {
        Lease { core: Rc::clone(core), host, line: Line::None, held: Held::Permit }
    }

    /// Returns the lease of a place on a shared connection.
    pub(crate) fn place(core: &Rc<Core>, place: multiplex::Place) -> Self {
        Lease { core: Rc::clone(core), host: 0, line: Line::Place(place), held: Held::Nothing }
    }

    pub(crate) fn connection(&mut self) -> Option<&mut Connection> {
        if let Line::Own(connection) = &mut self.line { Some(connection) } else { None }
    }

    pub(crate) fn stream(&mut self) -> Option<&mut multiplex::Stream> {
        if let Line::Stream(stream) = &mut self.line { Some(stream) } else { None }
    }

    pub(crate) fn is_connected(&self) -> bool {
        !matches!(self.line, Line::None)
    }

    pub(crate) fn is_http2(&self) -> bool {
        matches!(self.line, Line::Stream(_))
    }

    /// Puts the connection of a permit.
    pub(crate) fn put(&mut self, connection: Connection) {
        self.line = Line::Own(connection);
        if self.held == Held::Permit {
            self.held = Held::Connection;
            self.core.pool.borrow_mut().connected(self.host);
        }
    }

    /// Starts a shared connection with the socket of a permit, and takes its first place.
    pub(crate) fn share(&mut self, connection: Connection) {
        let Connection { stream, born, .. } = connection;
        let watch = Watcher { core: Rc::downgrade(&self.core), host: self.host };
        let connection = multiplex::Connection::start(stream, &self.core.http2, watch);
        let place = connection.reserve();
        self.line = place.map_or(Line::None, Line::Place);
        self.held = Held::Nothing;
        let retire_at = after(born, self.core.settings.age);
        self.core.pool.borrow_mut().share(self.host, connection, retire_at);
    }

    /// Takes the place, to begin a stream there.
    pub(crate) fn take_place(&mut self) -> Option<multiplex::Place> {
        if !matches!(self.line, Line::Place(_)) {
            return None;
        }
        let line = std::mem::replace(&mut self.line, Line::None);
        if let Line::Place(place) = line { Some(place) } else { None }
    }

    /// Puts the stream that has begun.
    pub(crate) fn put_stream(&mut self, stream: multiplex::Stream) {
        if !self.core.settings.keep_alive {
            stream.connection().close();
        }
        self.line = Line::Stream(stream);
    }

    /// Closes an idle connection, and keeps the permit to open another.
    pub(crate) fn close(&mut self) {
        self.line = Line::None;
        self.held = Held::Permit;
        self.core.pool.borrow_mut().reopen(self.host);
    }

    /// Notes that the attempt to connect has failed.
    pub(crate) fn unreachable(&self) {
        if self.held == Held::Permit {
            self.core.pool.borrow_mut().unreachable(self.host);
        }
    }

    /// Returns a connection to the pool; `hint` is how long the server keeps it.
    pub(crate) fn give_back(mut self, now: u64, hint: Option<Duration>) {
        let connection = match std::mem::replace(&mut self.line, Line::None) {
            Line::Own(connection) => connection,
            _ => return,
        };
        let settings = &self.core.settings;
        let idle = hint.map_or(settings.idle, |hint| settings.idle.min(hint));
        let until = after(now, idle).min(after(connection.born, settings.age));
        if until <= now {
            return;
        }
        self.held = Held::Nothing;
        self.core.pool.borrow_mut().give_back(self.host, connection, until);
        self.core.look_at_idle(until);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        drop(std::mem::replace(&mut self.line, Line::None));
        match self.held {
            Held::Nothing => {}
            Held::Permit => self.core.pool.borrow_mut().give_up(self.host),
            Held::Connection => self.core.pool.borrow_mut().forget(self.host),
        }
    }
}

/// Tells the pool about a shared connection.
struct Watcher {
    core: Weak<Core>,
    host: HostId,
}

impl multiplex::Watch for Watcher {
    fn changed(&self) {
        let Some(core) = self.core.upgrade() else { return };
        let until = after(monotonic_ns(), core.settings.idle);
        let next = core.pool.borrow_mut().changed(self.host, until);
        if let Some(until) = next {
            core.look_at_idle(until);
        }
    }

    fn received(&self, bytes: usize) {
        if let Some(core) = self.core.upgrade() {
            add(&core.counts.bytes_read, bytes);
        }
    }

    fn sent(&self, bytes: usize) {
        if let Some(core) = self.core.upgrade() {
            add(&core.counts.bytes_written, bytes);
        }
    }
}

/// Returns the settings of connections of HTTP/2: the limits are those on a response of HTTP/1.
fn http2_config(settings: &Builder) -> multiplex::Config {
    let mut config = multiplex::Config::default();
    Arc::make_mut(&mut config.codec).limits = (&settings.limits).into();
    config
}
