//! One core's connections to one target: idle and new ones, the queue, health, and counters. Those of HTTP/2 are in
//! `multiplexed`.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use oroshi_core::{Registration, after};
use oroshi_lookup::Protocol;
use oroshi_net::proxy_protocol::ProxyHeader;
use oroshi_net::{Stream, monotonic_ns};

use super::check::Checked;
use super::counters::Counters;
use super::dial::Dialled;
use super::engine::Engine;
use super::health::Health;
use super::multiplexed::{Multiplexed, OpenFailure, counted};
use super::secure::TlsProtocol;
use super::slots::{Grant, Slots, Take};
use super::streams::Streams;
use super::target::Target;
use crate::failure::{Failure, ForwardError};

mod settings;

pub use settings::{Allow, PoolSettings};

/// One core's connections to one target. [`Pools`](super::Pools) makes them.
pub struct Pool {
    target: Target,
    authority: Box<str>,
    pub(super) settings: RefCell<Rc<PoolSettings>>,
    engine: Rc<Engine>,
    /// The connections of HTTP/1.
    slots: RefCell<Slots<Connection>>,
    /// The connections of HTTP/2. A target uses these or `slots`; over TLS possibly both.
    pub(super) streams: RefCell<Streams<Multiplexed, OpenFailure>>,
    /// Whether the target speaks HTTP/2. Over TLS, the last handshake's ALPN decides.
    pub(super) http2: Cell<bool>,
    /// Requests on them.
    pub(super) streaming: Cell<usize>,
    health: Cell<Health>,
    /// The result of active checks, if there are any.
    checked: RefCell<Option<Arc<Checked>>>,
    /// The address of the target's name that accepted the last connection.
    pub(super) address: Cell<Option<IpAddr>>,
    /// The time of the last request for this pool.
    pub(super) used: Cell<u64>,
    /// The index in the list of pools by use.
    pub(super) place: Cell<u32>,
    pub(crate) counters: Arc<Counters>,
}

/// A connection that can carry a request. It holds no buffer.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Borrowed within one poll only.
    pub(crate) stream: RefCell<Stream>,
    born: u64,
    requests: u64,
    /// The remote address; `None` for a unix socket.
    address: Option<SocketAddr>,
    /// The version of the settings that allowed the address.
    version: u64,
    /// The header of the PROXY protocol that it began with. Boxed, because most have none.
    origin: Origin,
    /// [`UpstreamTls::id`] of the settings with which the connection was secured; 0 without TLS.
    tls: u64,
    /// Whether a part of what was written is still in a buffer of TLS.
    pub(crate) unflushed: Cell<bool>,
}

/// The header of the PROXY protocol for a client's connection, as bytes; `None` without the protocol.
pub(crate) type Origin = Option<Box<[u8]>>;

impl Connection {
    fn new(dialled: Dialled) -> Self {
        let Dialled { stream, at, address, version, tls, .. } = dialled;
        let (stream, unflushed) = (RefCell::new(stream), Cell::new(false));
        Connection { stream, born: at, requests: 0, address, version, origin: None, tls, unflushed }
    }

    /// Returns whether the connection is open and silent: any byte would answer no request. With `surely`, asks the
    /// kernel.
    fn is_alive(&self, surely: bool) -> bool {
        let mut stream = self.stream.borrow_mut();
        stream.seems_quiet() && (!surely || stream.is_quiet())
    }
}

/// A connection for a request.
pub(crate) struct Acquired {
    pub(crate) lease: Lease,
    /// How many of the first bytes the connect sent.
    pub(crate) sent: usize,
    /// Nanoseconds in the queue.
    pub(crate) queued: u64,
    /// Nanoseconds for resolving the name and connecting.
    pub(crate) connecting: u64,
}

/// Which connection a request wants.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted {
    /// A new one, never an idle one.
    pub(crate) fresh: bool,
    /// One of HTTP/1.1, because the request may become a tunnel.
    pub(crate) tunnel: bool,
}

/// Time limits for getting a connection: timeouts of queue and connect, and the deadline of the whole exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcquireLimits {
    pub(crate) queue: Duration,
    pub(crate) connect: Duration,
    pub(crate) total: u64,
}

impl Pool {
    pub(super) fn new(target: Target, settings: Rc<PoolSettings>, engine: Rc<Engine>) -> Self {
        Pool {
            authority: target.authority().into(),
            slots: RefCell::new(Slots::new(settings.caps())),
            streams: RefCell::new(Streams::new(settings.caps())),
            http2: Cell::new(match target.protocol {
                Protocol::Http1 => false,
                Protocol::H2c => true,
                Protocol::Https => settings.tls.protocol != TlsProtocol::Http1,
            }),
            streaming: Cell::new(0),
            settings: RefCell::new(settings),
            engine,
            health: Cell::default(),
            checked: RefCell::default(),
            address: Cell::new(None),
            used: Cell::new(monotonic_ns()),
            place: Cell::new(u32::MAX),
            counters: Arc::default(),
            target,
        }
    }

    /// The target of these connections.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Returns whether the target speaks HTTP/2. Over TLS that may be a guess until the handshake.
    #[inline]
    pub(crate) fn is_http2(&self) -> bool {
        self.http2.get()
    }

    /// Returns whether a request goes to the target over HTTP/2. One that may become a tunnel does not where ALPN
    /// decides: few servers take WebSocket over HTTP/2.
    #[inline]
    pub(crate) fn takes_http2(&self, tunnel: bool) -> bool {
        self.http2.get() && !(tunnel && self.is_negotiated())
    }

    /// Returns whether ALPN decides on the protocol.
    pub(super) fn is_negotiated(&self) -> bool {
        self.is_secure() && self.settings.borrow().tls.protocol == TlsProtocol::Auto
    }

    /// Returns whether the target is reached by TLS.
    #[inline]
    pub(crate) fn is_secure(&self) -> bool {
        self.target.protocol == Protocol::Https
    }

    /// The target's name for a `Host` header.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Returns the requests in progress and in the queue, which balancing by load compares.
    pub fn load(&self) -> usize {
        let slots = self.slots.borrow();
        let load = slots.open() - slots.idle() + slots.waiting();
        match self.is_http2() || self.is_secure() {
            true => load + self.streaming.get() + self.streams.borrow().waiting(),
            false => load,
        }
    }

    /// Returns whether the target is ejected because its requests kept failing.
    pub(crate) fn is_ejected(&self, now: u64) -> bool {
        self.health.get().is_ejected(now) || self.checked.borrow().as_ref().is_some_and(|checked| checked.is_down())
    }

    /// Sets whose active checks count from now on.
    pub(crate) fn set_checked(&self, checked: Option<Arc<Checked>>) {
        *self.checked.borrow_mut() = checked;
    }

    pub(crate) fn engine(&self) -> &Rc<Engine> {
        &self.engine
    }

    /// Takes an idle connection that is still alive. With `surely`, asks the kernel, for requests that cannot be
    /// retried.
    #[inline]
    pub(crate) fn take_idle(self: &Rc<Self>, origin: &Origin, surely: bool, now: u64) -> Option<Lease> {
        let mut slots = self.slots.borrow_mut();
        let mut found = None;
        while let Some(connection) = take_idle_of(&mut slots, origin, now) {
            if connection.is_alive(surely) {
                found = Some(connection);
                break;
            }
            slots.forget();
            self.counters.stale.add(1);
        }
        self.show(&slots);
        let connection = found?;
        // One that a request of HTTP/2 has opened may have carried none.
        self.counters.reuses.add(u64::from(connection.requests > 0));
        Some(Lease { pool: Rc::clone(self), connection: Some(connection), held: true })
    }

    /// Gets an idle connection or makes a new one, after waiting in the queue if the limit is reached. The connect may
    /// send part of `first`. With an `origin`, a new connection begins with it, and idle connections of other clients
    /// do
    /// not count.
    pub(crate) async fn acquire(
        self: &Rc<Self>,
        Wanted { fresh, tunnel }: Wanted,
        origin: &Origin,
        registration: &Registration<Engine>,
        limits: AcquireLimits,
        first: &[u8],
    ) -> Result<Acquired, ForwardError> {
        let began = monotonic_ns();
        let lease = self.lease(fresh, origin, registration, limits, began).await?;
        let leased = monotonic_ns();
        let queued = leased - began;
        if let Some(connection) = &lease.connection {
            self.counters.reuses.add(u64::from(connection.requests > 0));
            return Ok(Acquired { lease, sent: 0, queued, connecting: 0 });
        }
        let mut lease = lease;
        let sent = match origin {
            None => self.connect(&mut lease, tunnel, registration, limits, first).await?,
            Some(origin) => Box::pin(self.connect_as(origin, &mut lease, registration, limits)).await?,
        };
        Ok(Acquired { lease, sent, queued, connecting: monotonic_ns() - leased })
    }

    /// Takes the right to a connection, with the connection itself if one is idle.
    async fn lease(
        self: &Rc<Self>,
        fresh: bool,
        origin: &Origin,
        registration: &Registration<Engine>,
        limits: AcquireLimits,
        now: u64,
    ) -> Result<Lease, ForwardError> {
        // Without a connection of this client's, the request needs a new one, if need be in place of an idle one.
        let fresh = fresh || origin.is_some();
        let lease = |connection| Lease { pool: Rc::clone(self), connection, held: true };
        loop {
            let take = self.slots.borrow_mut().take(fresh, now);
            self.show(&self.slots.borrow());
            let turn = match take {
                Take::Idle(connection) if connection.is_alive(true) => return Ok(lease(Some(connection))),
                Take::Idle(_) => {
                    self.counters.stale.add(1);
                    drop(lease(None));
                    continue;
                }
                Take::Connect => return Ok(lease(None)),
                Take::Full => return Err(ForwardError::unsent(Failure::QueueFull, || self.target.to_string())),
                Take::Wait(turn) => turn,
            };
            let due = after(now, limits.queue).min(limits.total);
            registration.set(due);
            let place = InLine { pool: self, turn };
            let granted = poll_fn(|context| self.slots.borrow_mut().poll_wait(place.turn, context));
            let grant = registration.bound(granted).await;
            drop(place);
            self.show(&self.slots.borrow());
            return match grant {
                None if due == limits.total => Err(ForwardError::unsent(Failure::TotalTimeout, String::new)),
                None => Err(ForwardError::unsent(Failure::QueueTimeout, || self.target.to_string())),
                Some(Grant::Connect) => Ok(lease(None)),
                // A request that has waited keeps its turn: a new connection replaces a dead one.
                Some(Grant::Idle(connection)) if connection.is_alive(true) && !fresh => Ok(lease(Some(connection))),
                Some(Grant::Idle(_)) => Ok(lease(None)),
            };
        }
    }

    /// Opens the connection for a lease that has none.
    async fn connect(
        self: &Rc<Self>,
        lease: &mut Lease,
        tunnel: bool,
        registration: &Registration<Engine>,
        limits: AcquireLimits,
        first: &[u8],
    ) -> Result<usize, ForwardError> {
        // While the request waited, another connection found out that the target speaks HTTP/2.
        if self.takes_http2(tunnel) {
            return Err(self.other_protocol());
        }
        let offer = if tunnel { TlsProtocol::Http1 } else { TlsProtocol::Auto };
        let dialled = self.dial(offer, registration, limits, first).await?;
        if dialled.stream.alpn() == Some(b"h2") {
            self.adopt_multiplexed(dialled);
            return Err(self.other_protocol());
        }
        let sent = dialled.sent;
        lease.connection = Some(Connection::new(dialled));
        Ok(sent)
    }

    /// Takes in a connection of HTTP/1.1 of a target that was expected to speak HTTP/2.
    pub(super) fn adopt(self: &Rc<Self>, dialled: Dialled) {
        self.http2.set(false);
        let idle = self.settings.borrow().idle_timeout;
        let mut slots = self.slots.borrow_mut();
        slots.adopt(Connection::new(dialled), after(monotonic_ns(), idle));
        self.show(&slots);
    }

    /// Makes the error that sends the request to the target once more, in the other protocol.
    #[cold]
    pub(super) fn other_protocol(&self) -> ForwardError {
        ForwardError::unsent(Failure::Protocol, || format!("{} agreed to another protocol each time", self.target))
    }

    /// As [`connect`](Self::connect), and sends the header of a client's connection. Nothing of a request is sent.
    async fn connect_as(
        self: &Rc<Self>,
        origin: &[u8],
        lease: &mut Lease,
        registration: &Registration<Engine>,
        limits: AcquireLimits,
    ) -> Result<usize, ForwardError> {
        let connected = self.connect(lease, false, registration, limits, origin).await;
        let mut sent = connected.map_err(|error| ForwardError { sent: false, ..error })?;
        let Some(connection) = &mut lease.connection else { return Ok(0) };
        connection.origin = Some(origin.into());
        let connection = &*connection;
        let written = poll_fn(|context| {
            while sent < origin.len() {
                sent += ready!(connection.poll_write(context, &origin[sent..]))?;
            }
            Poll::Ready(Ok::<_, io::Error>(()))
        });
        match registration.bound(written).await {
            Some(Ok(())) => Ok(0),
            Some(Err(error)) => Err(ForwardError::unsent(Failure::Closed, || error.to_string())),
            None => Err(ForwardError::unsent(Failure::ConnectTimeout, || self.target.to_string())),
        }
    }

    /// Returns the header of the PROXY protocol for a client, if the settings want one.
    #[inline]
    pub(crate) fn origin_of(&self, client: impl FnOnce() -> ProxyHeader) -> Origin {
        let version = self.settings.borrow().proxy_protocol?;
        let mut header = Vec::new();
        client().write(version, &mut header);
        Some(header.into())
    }

    /// Returns whether the current settings allow a connection from earlier settings.
    fn may_keep(&self, connection: &mut Connection) -> bool {
        let settings = self.settings.borrow();
        if settings.proxy_protocol.is_some() != connection.origin.is_some() {
            return false;
        }
        let version = settings.version;
        drop(settings);
        let before = std::mem::replace(&mut connection.version, version);
        before == version || self.may_stay(connection.address, connection.tls)
    }

    /// Returns whether the current settings allow the address of a connection, and would secure it in the same way.
    pub(super) fn may_stay(&self, address: Option<SocketAddr>, tls: u64) -> bool {
        address.is_none_or(|address| self.allows(address)) && tls == self.tls_id()
    }

    /// Records a success or a failure for the target's health.
    pub(crate) fn note(&self, failed: bool, now: u64) {
        let mut health = self.health.get();
        if failed {
            if health.failed(&self.settings.borrow().ejection, now) {
                self.counters.ejections.add(1);
            }
        } else {
            health.succeeded(now);
        }
        self.health.set(health);
        self.counters.ejected.set(u64::from(health.is_ejected(now)));
    }

    /// Returns whether a response with this status counts as a failure.
    pub(crate) fn is_failure(&self, status: u16) -> bool {
        status >= 500 && self.settings.borrow().ejection.server_errors
    }

    /// Applies new settings.
    pub(super) fn configure(&self, settings: &Rc<PoolSettings>) {
        let is_newer = {
            let known = self.settings.borrow();
            !Rc::ptr_eq(&known, settings) && settings.version >= known.version
        };
        if is_newer {
            *self.settings.borrow_mut() = Rc::clone(settings);
            if self.is_secure() {
                match settings.tls.protocol {
                    TlsProtocol::Auto => {}
                    TlsProtocol::Http1 => self.http2.set(false),
                    TlsProtocol::Http2 => self.http2.set(true),
                }
            }
            if self.is_http2() || self.is_secure() {
                self.configure_streams();
            }
            let mut slots = self.slots.borrow_mut();
            slots.set_caps(settings.caps());
            slots.sweep(monotonic_ns(), |connection| self.may_keep(connection));
            self.show(&slots);
        }
    }

    /// Returns whether all connections are idle and the queue is empty.
    pub(super) fn is_at_rest(&self) -> bool {
        self.slots.borrow().is_at_rest() && self.streaming.get() == 0 && self.streams.borrow().is_quiet()
    }

    /// Returns the class of the settings.
    pub(super) fn class(&self) -> u32 {
        self.settings.borrow().class
    }

    /// Closes expired idle connections and those that the server closed. Returns whether any are left.
    pub(super) fn sweep(&self, now: u64) -> bool {
        self.counters.ejected.set(u64::from(self.health.get().is_ejected(now)));
        let has_streams = (self.is_http2() || self.is_secure()) && self.sweep_streams(now);
        let mut slots = self.slots.borrow_mut();
        if slots.idle() > 0 {
            let stale = Cell::new(0);
            slots.sweep(now, |connection| {
                let alive = connection.is_alive(false);
                stale.set(stale.get() + u64::from(!alive));
                alive
            });
            self.counters.stale.add(stale.get());
            self.show(&slots);
        }
        !slots.is_empty() || has_streams
    }

    /// Publishes the numbers of connections.
    fn show(&self, slots: &Slots<Connection>) {
        let (open, idle, waiting) = match self.is_secure() {
            true => counted(&self.streams.borrow()),
            false => (0, 0, 0),
        };
        self.show_counts(slots.open() + open, slots.idle() + idle, slots.waiting() + waiting);
    }

    /// As `show`, for the connections of HTTP/2.
    pub(super) fn show_streams(&self, streams: &Streams<Multiplexed, OpenFailure>) {
        let (open, idle, waiting) = counted(streams);
        let slots = self.slots.borrow();
        self.show_counts(slots.open() + open, slots.idle() + idle, slots.waiting() + waiting);
    }

    fn show_counts(&self, open: usize, idle: usize, waiting: usize) {
        self.counters.open.set(open as u64);
        self.counters.idle.set(idle as u64);
        self.counters.queued.set(waiting as u64);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("target", &self.target).field("load", &self.load()).finish_non_exhaustive()
    }
}

/// Takes an idle connection that began with this origin.
#[inline]
fn take_idle_of(slots: &mut Slots<Connection>, origin: &Origin, now: u64) -> Option<Connection> {
    match origin {
        None => slots.take_idle(now),
        Some(_) => slots.take_idle_where(now, |connection| connection.origin == *origin),
    }
}

/// A place in the queue. Dropping it leaves the queue.
struct InLine<'p> {
    pool: &'p Pool,
    turn: u64,
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        let until = after(monotonic_ns(), self.pool.settings.borrow().idle_timeout);
        let mut slots = self.pool.slots.borrow_mut();
        slots.leave(self.turn, until);
        self.pool.show(&slots);
    }
}

/// A connection, or the right to make one. Dropping it closes the connection and frees its slot.
#[derive(Debug)]
pub(crate) struct Lease {
    pool: Rc<Pool>,
    connection: Option<Connection>,
    /// Whether the pool still counts this lease.
    held: bool,
}

impl Lease {
    /// Returns the connection. Every lease outside this module has one.
    pub(crate) fn connection(&self) -> Option<&Connection> {
        self.connection.as_ref()
    }

    /// Returns the connection for exclusive use.
    pub(crate) fn connection_mut(&mut self) -> Option<&mut Connection> {
        self.connection.as_mut()
    }

    /// Returns whether the connection has carried a request before.
    pub(crate) fn is_used(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.requests > 0)
    }

    /// Returns the connection to the pool. `hint` is the keep-alive time that the server announced.
    #[inline]
    pub(crate) fn give_back(mut self, hint: Option<Duration>, now: u64) {
        let Some(mut connection) = self.connection.take() else { return };
        connection.requests += 1;
        if !self.pool.may_keep(&mut connection) {
            return;
        }
        let until = {
            let settings = self.pool.settings.borrow();
            if connection.requests >= settings.max_requests {
                return;
            }
            let idle = hint.map_or(settings.idle_timeout, |hint| settings.idle_timeout.min(hint));
            after(now, idle).min(after(connection.born, settings.max_age))
        };
        if until <= now {
            return;
        }
        self.held = false;
        let mut slots = self.pool.slots.borrow_mut();
        slots.give_back(connection, until);
        self.pool.show(&slots);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.held {
            self.connection = None;
            let mut slots = self.pool.slots.borrow_mut();
            slots.forget();
            self.pool.show(&slots);
        }
    }
}
