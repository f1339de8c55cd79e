//! One core's connections of HTTP/2 to one target: each carries several requests at once.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use oroshi_core::{Registration, after};
use oroshi_http2 as codec;
use oroshi_multiplex as multiplex;
use oroshi_net::monotonic_ns;

use super::dial::Dialled;
use super::engine::Engine;
use super::pool::{AcquireLimits, Pool, PoolSettings};
use super::secure::TlsProtocol;
use super::streams::{Multiplex, StreamGrant, Streams, TakeStream};
use crate::failure::{Failure, ForwardError};

/// A connection of HTTP/2.
pub(crate) struct Multiplexed {
    connection: multiplex::Connection,
    born: u64,
    /// Requests so far, and the most of them.
    requests: Cell<u64>,
    max_requests: u64,
    /// The remote address; `None` for a unix socket.
    address: Option<SocketAddr>,
    /// The version of the settings that allowed the address.
    version: Cell<u64>,
    /// [`UpstreamTls::id`](super::UpstreamTls::id) of the settings with which it was secured; 0 without TLS.
    tls: u64,
    /// Whether the pool has closed it.
    is_closed: Cell<bool>,
    /// Tasks that wait for the server's settings.
    waiting: RefCell<Vec<Waker>>,
}

impl Multiplexed {
    /// Ends the connection in good order.
    fn close(&self) {
        if !self.is_closed.replace(true) {
            self.connection.close();
        }
    }
}

impl Multiplex for Multiplexed {
    fn room(&self) -> usize {
        match self.is_closed.get() {
            true => 0,
            false => self.connection.room(),
        }
    }

    fn is_settled(&self) -> bool {
        self.connection.limit().is_some() || !self.connection.is_open()
    }

    fn is_draining(&self) -> bool {
        self.is_closed.get() || !self.connection.is_open()
    }

    fn refuses_all(&self) -> bool {
        self.connection.limit() == Some(0) && !self.is_draining()
    }
}

/// Why a connection could not be opened, for those who waited for it.
#[derive(Clone, Debug)]
pub(crate) struct OpenFailure {
    failure: Failure,
    detail: Rc<str>,
}

/// Room for a request.
pub(crate) struct AcquiredStream {
    pub(crate) lease: StreamLease,
    pub(crate) place: multiplex::Place,
    /// Nanoseconds in the queue.
    pub(crate) queued: u64,
    /// Nanoseconds for resolving the name and connecting.
    pub(crate) connecting: u64,
}

/// A request's share of a connection. Drop it after its stream.
pub(crate) struct StreamLease {
    pool: Rc<Pool>,
    connection: Rc<Multiplexed>,
    is_used: bool,
}

impl StreamLease {
    /// Returns whether the connection has carried a request before.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used
    }

    /// Returns whether the server allows extended CONNECT (RFC 8441), once its settings have come or it has gone.
    pub(crate) fn poll_allows_tunnels(&self, context: &Context<'_>) -> Poll<bool> {
        let connection = &self.connection;
        if connection.is_settled() {
            return Poll::Ready(connection.connection.peer().extended_connect);
        }
        let mut waiting = connection.waiting.borrow_mut();
        if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            waiting.push(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for StreamLease {
    fn drop(&mut self) {
        self.pool.streaming.set(self.pool.streaming.get() - 1);
        if self.connection.requests.get() >= self.connection.max_requests {
            self.connection.close();
        }
        self.pool.streams_changed();
    }
}

/// Tells the pool of changes.
struct Watch(Weak<Pool>);

impl multiplex::Watch for Watch {
    fn changed(&self) {
        if let Some(pool) = self.0.upgrade() {
            pool.streams_changed();
        }
    }
}

impl Pool {
    /// Takes a stream on an open connection with room. With `surely`, an idle connection asks the kernel first whether
    /// the server has closed it, for requests that cannot be retried.
    pub(crate) fn take_stream(self: &Rc<Self>, surely: bool) -> Option<(StreamLease, multiplex::Place)> {
        let connection = self.streams.borrow().with_room()?;
        let lease = self.lease_stream(connection, surely);
        self.show_streams(&self.streams.borrow());
        lease
    }

    /// As [`take_stream`](Self::take_stream), or opens a connection, or waits in the queue.
    pub(crate) async fn acquire_stream(
        self: &Rc<Self>,
        surely: bool,
        registration: &Registration<Engine>,
        limits: AcquireLimits,
    ) -> Result<AcquiredStream, ForwardError> {
        let began = monotonic_ns();
        loop {
            let grant = self.wait_for_stream(registration, limits, began).await?;
            let granted = monotonic_ns();
            let (connection, connecting) = match grant {
                StreamGrant::Stream(connection) => (connection, 0),
                StreamGrant::Connect => {
                    let connection = self.open_multiplexed(registration, limits).await?;
                    (connection, monotonic_ns() - granted)
                }
                StreamGrant::Failed(error) => {
                    return Err(ForwardError::unsent(error.failure, || error.detail.to_string()));
                }
            };
            let leased = self.lease_stream(connection, surely);
            let streams = self.streams.borrow();
            self.show_streams(&streams);
            drop(streams);
            // A server can end the connection that it has just accepted.
            if let Some((lease, place)) = leased {
                return Ok(AcquiredStream { lease, place, queued: granted - began, connecting });
            }
            if connecting > 0 {
                return Err(ForwardError::unsent(Failure::Closed, || "the new connection takes no stream".to_owned()));
            }
        }
    }

    /// Takes the right to a stream or to a connection.
    async fn wait_for_stream(
        self: &Rc<Self>,
        registration: &Registration<Engine>,
        limits: AcquireLimits,
        began: u64,
    ) -> Result<StreamGrant<Multiplexed, OpenFailure>, ForwardError> {
        // While the request came here, another connection found out that the target speaks HTTP/1.1.
        if !self.is_http2() {
            return Err(self.other_protocol());
        }
        let take = self.streams.borrow_mut().take();
        let turn = match take {
            TakeStream::Stream(connection) => return Ok(StreamGrant::Stream(connection)),
            TakeStream::Connect => return Ok(StreamGrant::Connect),
            TakeStream::Full => return Err(ForwardError::unsent(Failure::QueueFull, || self.target().to_string())),
            TakeStream::Wait(turn) => turn,
        };
        self.show_streams(&self.streams.borrow());
        let due = after(began, limits.queue).min(limits.total);
        registration.set(due);
        let place = InLine { pool: self, turn };
        let granted = poll_fn(|context| self.streams.borrow_mut().poll_wait(place.turn, context));
        match registration.bound(granted).await {
            Some(grant) => Ok(grant),
            None if due == limits.total => Err(ForwardError::unsent(Failure::TotalTimeout, String::new)),
            None => Err(ForwardError::unsent(Failure::QueueTimeout, || self.target().to_string())),
        }
    }

    /// Opens a connection, with the right to do so.
    async fn open_multiplexed(
        self: &Rc<Self>,
        registration: &Registration<Engine>,
        limits: AcquireLimits,
    ) -> Result<Rc<Multiplexed>, ForwardError> {
        let mut opening = Opening { pool: self, error: None, is_over: false };
        let dialled = self.dial(TlsProtocol::Auto, registration, limits, b"").await.and_then(|dialled| {
            if !self.is_secure() || dialled.stream.alpn() == Some(b"h2") {
                return Ok(dialled);
            }
            if self.is_negotiated() {
                self.adopt(dialled);
                return Err(self.other_protocol());
            }
            let why = || format!("{} does not agree to h2 by ALPN, and `tls.protocol` is h2", self.target());
            Err(ForwardError::unsent(Failure::Tls, why))
        });
        let dialled = dialled.inspect_err(|error| {
            // A deadline of one request says nothing about the others.
            if error.failure != Failure::TotalTimeout {
                opening.error = Some(OpenFailure { failure: error.failure, detail: (&*error.detail).into() });
            }
        })?;
        let connection = self.multiplexed(dialled);
        opening.is_over = true;
        self.streams.borrow_mut().opened(Rc::clone(&connection));
        Ok(connection)
    }

    /// Takes in a connection of HTTP/2 of a target that was expected to speak HTTP/1.1.
    pub(super) fn adopt_multiplexed(self: &Rc<Self>, dialled: Dialled) {
        // Of several connections that find out at once, one is enough.
        if self.http2.replace(true) {
            return;
        }
        let connection = self.multiplexed(dialled);
        let mut streams = self.streams.borrow_mut();
        streams.adopt(connection);
        self.show_streams(&streams);
    }

    fn multiplexed(self: &Rc<Self>, dialled: Dialled) -> Rc<Multiplexed> {
        let Dialled { stream, at, address, version, tls, .. } = dialled;
        let settings = self.settings.borrow().clone();
        let watch = Watch(Rc::downgrade(self));
        Rc::new(Multiplexed {
            connection: multiplex::Connection::start(stream, &config(&settings), watch),
            born: at,
            requests: Cell::new(0),
            max_requests: settings.max_requests,
            address,
            version: Cell::new(version),
            tls,
            is_closed: Cell::new(false),
            waiting: RefCell::default(),
        })
    }

    /// Counts a request on a connection; `None` if there is no room.
    fn lease_stream(
        self: &Rc<Self>,
        connection: Rc<Multiplexed>,
        surely: bool,
    ) -> Option<(StreamLease, multiplex::Place)> {
        if surely && connection.connection.under_way() == 0 {
            connection.connection.check();
        }
        let place = connection.connection.reserve()?;
        let earlier = connection.requests.get();
        connection.requests.set(earlier + 1);
        self.streaming.set(self.streaming.get() + 1);
        self.counters.reuses.add(u64::from(earlier > 0));
        Some((StreamLease { pool: Rc::clone(self), connection, is_used: earlier > 0 }, place))
    }

    /// Removes connections that have ended, and calls those who wait for streams.
    fn streams_changed(&self) {
        let mut streams = self.streams.borrow_mut();
        let mut stale = 0;
        streams.retain(|one| {
            if one.is_settled() {
                one.waiting.borrow_mut().drain(..).for_each(Waker::wake);
            }
            let is_over = one.connection.is_ended();
            stale += u64::from(is_over && !one.is_closed.get() && one.connection.idle_since().is_some());
            !is_over
        });
        self.counters.stale.add(stale);
        streams.call();
        self.show_streams(&streams);
    }

    /// Applies new settings to the connections.
    pub(super) fn configure_streams(&self) {
        let settings = self.settings.borrow().clone();
        let mut streams = self.streams.borrow_mut();
        for one in streams.connections() {
            let before = one.version.replace(settings.version);
            if before != settings.version && !self.may_stay(one.address, one.tls) {
                one.close();
            }
        }
        streams.set_caps(settings.caps());
        self.show_streams(&streams);
    }

    /// Closes connections that are idle for too long or too old. Returns whether any are left.
    pub(super) fn sweep_streams(&self, now: u64) -> bool {
        let settings = self.settings.borrow().clone();
        let mut idle = 0;
        // The youngest last: of too many idle ones the oldest go.
        for one in self.streams.borrow().connections().iter().rev() {
            let mut expires = after(one.born, settings.max_age);
            if let Some(since) = one.connection.idle_since() {
                expires = expires.min(after(since, settings.idle_timeout));
                idle += usize::from(now < expires);
            }
            if now >= expires || idle > settings.idle_connections {
                one.close();
            }
        }
        self.streams_changed();
        let streams = self.streams.borrow();
        streams.open() > 0 || !streams.is_quiet()
    }
}

/// Returns the numbers of open and of idle connections, and of requests in the queue.
pub(super) fn counted(streams: &Streams<Multiplexed, OpenFailure>) -> (usize, usize, usize) {
    let idle = streams.connections().iter().filter(|one| one.connection.under_way() == 0).count();
    (streams.open(), idle, streams.waiting())
}

/// Bytes of a response that a stream keeps while its client does not read.
const STREAM_WINDOW: u32 = 128 * 1024;

/// Returns the settings of a connection.
fn config(settings: &PoolSettings) -> multiplex::Config {
    let own = multiplex::Config::default();
    // A reply may hold as much again as the stream does.
    let codec =
        codec::Config { limits: (&settings.limits).into(), stream_window: STREAM_WINDOW, ..(*own.codec).clone() };
    multiplex::Config { codec: Arc::new(codec), interim: true, ..own }
}

/// A place in the queue. Dropping it leaves the queue.
struct InLine<'p> {
    pool: &'p Pool,
    turn: u64,
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        let mut streams = self.pool.streams.borrow_mut();
        streams.leave(self.turn);
        self.pool.show_streams(&streams);
    }
}

/// The opening of a connection. Dropping it before its end gives the right to open one back.
struct Opening<'p> {
    pool: &'p Pool,
    error: Option<OpenFailure>,
    is_over: bool,
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let mut streams = self.pool.streams.borrow_mut();
            streams.not_opened(self.error.as_ref());
            self.pool.show_streams(&streams);
        }
    }
}
