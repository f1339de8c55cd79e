//! The connections of one core to one target: kept ones, new ones, who waits, how healthy it is, what was counted.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use oroshi_core::{Names, Registration, Ttl, after};
use oroshi_net::{ConnectError, Peer, Stream, monotonic_ns};

use super::counters::Counters;
use super::engine::Engine;
use super::health::{Ejection, Health};
use super::own::OwnSockets;
use super::slots::{Caps, Grant, Slots, Take};
use super::target::Target;
use crate::failure::{Failure, ForwardError};

/// Tells whether an address may be connected to. An IPv4 address inside an IPv6 one comes as the IPv4 one.
pub type Allow = Arc<dyn Fn(SocketAddr) -> bool + Send + Sync>;

/// How a target's connections are kept, on each core.
#[derive(Clone)]
pub struct PoolSettings {
    /// Targets with the same address but another number here have pools of their own: for routes whose settings differ.
    pub class: u32,
    /// Of two settings for one pool the one with the greater number counts, whichever is given later: a request that goes by an earlier
    /// configuration does not bring that back.
    pub version: u64,
    /// Connections at most, idle ones and upgraded ones included. Further requests wait in line. Default 1,024.
    pub connections: usize,
    /// Connections that are kept for further requests at most. Default 256.
    pub idle_connections: usize,
    /// Requests that wait in line at most; further ones fail at once. Default 1,024.
    pub queue: usize,
    /// How long a connection is kept without a request; shorter where the server says so (`Keep-Alive: timeout=`). Default 30 s.
    pub idle_timeout: Duration,
    /// How long a connection is used for further requests at most. Default one hour.
    pub max_age: Duration,
    /// Requests on one connection at most. Default no limit.
    pub max_requests: u64,
    /// When a target that fails is left out for a while.
    pub ejection: Ejection,
    /// How long the addresses of a name are used without asking again. Default 30 s.
    pub name_ttl: Duration,
    /// How long a name that could not be looked up is not asked for again. Default 1 s.
    pub name_negative_ttl: Duration,
    /// Which addresses may be connected to; all of them where this is `None`.
    pub allow: Option<Allow>,
    /// Sockets of this process that are no targets, whatever `allow` says; `None` where somebody who configures the gateway has named the
    /// targets.
    pub own: Option<OwnSockets>,
}

impl Default for PoolSettings {
    fn default() -> Self {
        PoolSettings {
            class: 0,
            version: 0,
            connections: 1024,
            idle_connections: 256,
            queue: 1024,
            idle_timeout: Duration::from_secs(30),
            max_age: Duration::from_secs(3600),
            max_requests: u64::MAX,
            ejection: Ejection::default(),
            name_ttl: Duration::from_secs(30),
            name_negative_ttl: Duration::from_secs(1),
            allow: None,
            own: None,
        }
    }
}

impl PoolSettings {
    fn caps(&self) -> Caps {
        // No connection at all would be a line that never moves.
        Caps { open: self.connections.max(1), idle: self.idle_connections, waiting: self.queue }
    }
}

impl fmt::Debug for PoolSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolSettings").field("class", &self.class).field("caps", &self.caps()).finish_non_exhaustive()
    }
}

/// The connections of one core to one target. Got from [`Pools`](super::Pools).
pub struct Pool {
    target: Target,
    authority: Box<str>,
    settings: RefCell<Rc<PoolSettings>>,
    engine: Rc<Engine>,
    slots: RefCell<Slots<Connection>>,
    health: Cell<Health>,
    /// Which of a name's addresses answered last.
    address: Cell<Option<IpAddr>>,
    /// When it was last asked for.
    pub(super) used: Cell<u64>,
    /// Where it stands among all pools.
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
    /// Where it leads; `None` for a unix socket.
    address: Option<SocketAddr>,
    /// The version of the settings by which that is allowed.
    version: u64,
}

impl Connection {
    /// Whether it is still open and has nothing to say: whatever it says answers no request. `surely` asks the kernel.
    fn is_alive(&self, surely: bool) -> bool {
        let mut stream = self.stream.borrow_mut();
        stream.seems_quiet() && (!surely || stream.is_quiet())
    }
}

/// What a request gets to be sent on.
pub(crate) struct Acquired {
    pub(crate) lease: Lease,
    /// How many of the first bytes went out with the connect.
    pub(crate) sent: usize,
    /// Nanoseconds in line.
    pub(crate) queued: u64,
    /// Nanoseconds to look the name up and to connect.
    pub(crate) connecting: u64,
}

/// How long a request may take to get there: the time in line and the time to connect, and the moment at which all is over.
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
            target,
            slots: RefCell::new(Slots::new(settings.caps())),
            settings: RefCell::new(settings),
            engine,
            health: Cell::default(),
            address: Cell::new(None),
            used: Cell::new(monotonic_ns()),
            place: Cell::new(u32::MAX),
            counters: Arc::default(),
        }
    }

    /// Where the connections lead.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// What a `Host` header names the target by.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Requests under way and in line: what balancing by load compares.
    pub fn load(&self) -> usize {
        let slots = self.slots.borrow();
        slots.open() - slots.idle() + slots.waiting()
    }

    /// Whether the target is left out at the moment, because requests to it kept failing.
    pub fn is_ejected(&self) -> bool {
        self.health.get().is_out(monotonic_ns())
    }

    pub(crate) fn is_out(&self, now: u64) -> bool {
        self.health.get().is_out(now)
    }

    pub(crate) fn engine(&self) -> &Rc<Engine> {
        &self.engine
    }

    /// An idle connection, if there is one that is still alive. `surely`: the kernel is asked, for a request that must not be lost.
    #[inline]
    pub(crate) fn take_idle(self: &Rc<Self>, surely: bool, now: u64) -> Option<Lease> {
        let mut slots = self.slots.borrow_mut();
        let mut found = None;
        while let Some(connection) = slots.take_idle(now) {
            if connection.is_alive(surely) {
                found = Some(connection);
                break;
            }
            slots.forget();
            self.counters.stale.add(1);
        }
        self.show(&slots);
        let connection = found?;
        self.counters.reuses.add(1);
        Some(Lease { pool: Rc::clone(self), connection: Some(connection), held: true })
    }

    /// A connection: an idle one, unless it has to be `fresh`, or a new one; after a wait in line where there are too many. What
    /// of `first` goes out with the connect is told.
    pub(crate) async fn acquire(
        self: &Rc<Self>,
        fresh: bool,
        registration: &Registration<Engine>,
        limits: AcquireLimits,
        first: &[u8],
    ) -> Result<Acquired, ForwardError> {
        let began = monotonic_ns();
        let lease = self.lease(fresh, registration, limits, began).await?;
        let leased = monotonic_ns();
        let queued = leased - began;
        if lease.connection.is_some() {
            self.counters.reuses.add(1);
            return Ok(Acquired { lease, sent: 0, queued, connecting: 0 });
        }
        let mut lease = lease;
        let sent = self.connect(&mut lease, registration, limits, first).await?;
        Ok(Acquired { lease, sent, queued, connecting: monotonic_ns() - leased })
    }

    /// The right to a connection, and the connection itself if there is one.
    async fn lease(
        self: &Rc<Self>,
        fresh: bool,
        registration: &Registration<Engine>,
        limits: AcquireLimits,
        now: u64,
    ) -> Result<Lease, ForwardError> {
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
                // Whoever has waited does not go back to the end of the line: a new one is made in a dead one's place.
                Some(Grant::Idle(connection)) if connection.is_alive(true) && !fresh => Ok(lease(Some(connection))),
                Some(Grant::Idle(_)) => Ok(lease(None)),
            };
        }
    }

    /// Makes the connection for a lease that has none.
    async fn connect(
        &self,
        lease: &mut Lease,
        registration: &Registration<Engine>,
        limits: AcquireLimits,
        first: &[u8],
    ) -> Result<usize, ForwardError> {
        let mut now = monotonic_ns();
        let due = after(now, limits.connect).min(limits.total);
        let overdue = || match due == limits.total {
            true => ForwardError::unsent(Failure::TotalTimeout, String::new),
            false => ForwardError::unsent(Failure::ConnectTimeout, || self.target.to_string()),
        };
        registration.set(due);
        // Those of now: by later ones it may not be allowed.
        let version = self.settings.borrow().version;
        let peers = match &self.target {
            Target::Peer(peer) => {
                let refused = |address: SocketAddr| ForwardError::unsent(Failure::NotAllowed, || address.to_string());
                match peer {
                    Peer::Tcp(address) if !self.allows(*address) => return Err(refused(*address)),
                    peer => vec![peer.clone()],
                }
            }
            Target::Name { host, port } => {
                registration.bound(self.resolve(host, *port)).await.unwrap_or_else(|| Err(overdue()))?
            }
        };
        if let Some(own) = peers.iter().find(|peer| self.is_own(peer)) {
            return Err(self.refuse_own(own));
        }
        let mut last = None;
        for (place, peer) in peers.iter().enumerate() {
            // Each address gets its share of the time that is left.
            now = monotonic_ns();
            let share = due.saturating_sub(now) / (peers.len() - place) as u64;
            registration.set(if place + 1 == peers.len() { due } else { now + share });
            let connecting = self.engine.connector.connect_sending(peer, None, first);
            match registration.bound(connecting).await {
                Some(Ok(connected)) => {
                    self.counters.connects.add(1);
                    let address = match peer {
                        Peer::Tcp(address) => Some(*address),
                        Peer::Unix(_) => None,
                    };
                    self.address.set(address.map(|address| address.ip()).or(self.address.get()));
                    let stream = RefCell::new(connected.stream);
                    lease.connection = Some(Connection { stream, born: connected.at, requests: 0, address, version });
                    return Ok(connected.sent);
                }
                // Registering a connection that is in use already may fail too, and has no name of its own.
                Some(Err(error @ ConnectError::Io(_))) if !first.is_empty() => {
                    return Err(ForwardError { sent: true, ..ForwardError::connect(peer, &error) });
                }
                Some(Err(error)) => last = Some(ForwardError::connect(peer, &error)),
                None => last = Some(overdue()),
            }
        }
        Err(last.unwrap_or_else(overdue))
    }

    async fn resolve(&self, host: &str, port: u16) -> Result<Vec<Peer>, ForwardError> {
        let settings = Rc::clone(&self.settings.borrow());
        let names = self.engine.names(Ttl { positive: settings.name_ttl, negative: settings.name_negative_ttl });
        let addresses = Names::resolve(&names, host)
            .await
            .map_err(|error| ForwardError::unsent(Failure::Resolve, || format!("{host}: {error}")))?;
        let mut peers = allowed(&addresses, port, &settings);
        if peers.is_empty() {
            return Err(ForwardError::unsent(Failure::NotAllowed, || format!("{host} is {addresses:?}")));
        }
        let answered_last =
            |peer: &Peer| matches!(peer, Peer::Tcp(address) if Some(address.ip()) == self.address.get());
        if let Some(place) = peers.iter().position(answered_last) {
            peers[..=place].rotate_right(1);
        }
        Ok(peers)
    }

    fn allows(&self, address: SocketAddr) -> bool {
        self.settings.borrow().allow.as_ref().is_none_or(|allow| allow(canonical(address)))
    }

    /// Whether the settings of now allow a connection that was made by earlier ones.
    fn may_keep(&self, connection: &mut Connection) -> bool {
        let version = self.settings.borrow().version;
        let before = std::mem::replace(&mut connection.version, version);
        before == version || connection.address.is_none_or(|address| self.allows(address))
    }

    /// Whether a connection there would come in at this gateway.
    fn is_own(&self, peer: &Peer) -> bool {
        self.settings.borrow().own.as_ref().is_some_and(|own| own.hold(peer))
    }

    /// Tells operators, now and then.
    #[cold]
    fn refuse_own(&self, own: &Peer) -> ForwardError {
        let mut told = self.engine.own_told.get();
        if let Some(count) = told.next(std::time::Instant::now()) {
            let target = &self.target;
            tracing::warn!(
                count,
                "a row or a script names `{target}` for a server, which is {own}, where this gateway itself listens: answered 502"
            );
        }
        self.engine.own_told.set(told);
        ForwardError::unsent(Failure::OwnAddress, || format!("{own} is where this gateway itself listens"))
    }

    /// Takes note of what a request came to, for the target's health.
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
        self.counters.ejected.set(u64::from(health.is_out(now)));
    }

    /// Whether an answer of this status is a failure of the target's.
    pub(crate) fn is_failure(&self, status: u16) -> bool {
        status >= 500 && self.settings.borrow().ejection.server_errors
    }

    /// Takes other settings from here on.
    pub(super) fn configure(&self, settings: &Rc<PoolSettings>) {
        let is_newer = {
            let known = self.settings.borrow();
            !Rc::ptr_eq(&known, settings) && settings.version >= known.version
        };
        if is_newer {
            *self.settings.borrow_mut() = Rc::clone(settings);
            let mut slots = self.slots.borrow_mut();
            slots.set_caps(settings.caps());
            slots.sweep(monotonic_ns(), |connection| self.may_keep(connection));
            self.show(&slots);
        }
    }

    /// Whether all its connections are idle and nobody waits: then nobody misses it.
    pub(super) fn is_at_rest(&self) -> bool {
        self.slots.borrow().is_at_rest()
    }

    /// What its settings are called.
    pub(super) fn class(&self) -> u32 {
        self.settings.borrow().class
    }

    /// Closes what has been idle for too long or was closed by the server. Whether anything is left.
    pub(super) fn sweep(&self, now: u64) -> bool {
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
        self.counters.ejected.set(u64::from(self.is_out(now)));
        !slots.is_empty()
    }

    /// Makes the numbers of connections readable.
    fn show(&self, slots: &Slots<Connection>) {
        self.counters.open.set(slots.open() as u64);
        self.counters.idle.set(slots.idle() as u64);
        self.counters.queued.set(slots.waiting() as u64);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("target", &self.target).field("load", &self.load()).finish_non_exhaustive()
    }
}

/// The places that a look-up's answer leads to, as far as they are allowed.
fn allowed(addresses: &[IpAddr], port: u16, settings: &PoolSettings) -> Vec<Peer> {
    let allow = |address: &SocketAddr| settings.allow.as_ref().is_none_or(|allow| allow(canonical(*address)));
    addresses.iter().map(|&address| SocketAddr::new(address, port)).filter(allow).map(Peer::Tcp).collect()
}

/// The same address, as IPv4 if it is one.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// A place in line; left when dropped.
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

/// Holds a connection, or the right to make one. When dropped, the connection is closed and somebody else may make one.
#[derive(Debug)]
pub(crate) struct Lease {
    pool: Rc<Pool>,
    connection: Option<Connection>,
    /// Whether the pool still counts on hearing of it.
    held: bool,
}

impl Lease {
    /// The connection. There is one in every lease that leaves this module.
    pub(crate) fn connection(&self) -> Option<&Connection> {
        self.connection.as_ref()
    }

    /// As [`connection`](Self::connection), for whoever has it alone.
    pub(crate) fn connection_mut(&mut self) -> Option<&mut Connection> {
        self.connection.as_mut()
    }

    /// Whether the connection has carried a request before.
    pub(crate) fn is_used(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.requests > 0)
    }

    /// Gives the connection back for further requests; `hint` is how long the server says that it keeps it.
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
