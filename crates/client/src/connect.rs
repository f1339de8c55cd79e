//! Gets a connection to an origin: from the pool, or a new one by name, address and TLS.

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use oroshi_core::{HasDeadlines, Names, Scratch, after};
use oroshi_multiplex::Place;
use oroshi_net::{Address, ConnectError, Connected, Endpoint, Peer, Scheme, Stream, monotonic_ns};
use tokio::io::{AsyncRead, ReadBuf};

use crate::core::{Connection, Core, Lease, Origin, count};
use crate::deadline::Phase;
use crate::error::{Cause, Error};
use crate::exchange::Exchange;
use crate::eyeballs::{interleaved, race};
use crate::pool::{Grant, Take};
use crate::proxy::{Proxy, ProxyCause};
use crate::settings::Http2;

/// How long a client that ran out of descriptors keeps its cap lowered.
const LOWERED: Duration = Duration::from_secs(1);

/// Which idle connections a request may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reuse {
    /// None: an earlier attempt met a broken one.
    None,
    /// Those that the kernel says are open, because the request cannot be sent again.
    Checked,
    /// Those of which epoll has said nothing: the request is sent again if the connection breaks.
    Any,
}

impl Exchange {
    /// Acquires a connection. A new connection may already have sent a part of the request.
    pub(crate) async fn acquire(&mut self, endpoint: &Endpoint, partition: u64, reuse: Reuse) -> Result<(), Error> {
        if let Some(error) = self.core().settings.proxies.mistake(endpoint) {
            self.enter(Phase::Connect);
            return Err(self.fail(Cause::Proxy(error)));
        }
        let origin = Origin::of(endpoint, partition, &self.core().settings);
        self.enter(Phase::Queue);
        loop {
            self.lease(&origin, reuse).await?;
            if self.is_connected() {
                self.stamps.ready = self.stamps.leased;
            } else {
                // Boxed, so that a request that waits for its response reserves no space for connecting.
                match Box::pin(self.connect(endpoint)).await {
                    Ok(()) => {}
                    Err(error) if self.may_queue(&error) => {
                        self.lower_the_cap();
                        continue;
                    }
                    Err(error) => {
                        // The request's own deadline says nothing about the server.
                        if error.phase() != Phase::Total {
                            self.unreachable();
                        }
                        return Err(error);
                    }
                }
            }
            if self.begin_stream(endpoint.scheme, reuse == Reuse::Checked)? {
                return Ok(());
            }
            // The connection of the place takes no more streams.
            self.drop_lease();
            self.enter(Phase::Queue);
        }
    }

    /// Waits for an idle connection, or for a permit to open one.
    async fn lease(&mut self, origin: &Rc<Origin>, reuse: Reuse) -> Result<(), Error> {
        let core = Rc::clone(self.core());
        loop {
            let take = self.take(&core, origin, reuse == Reuse::None);
            let (host, connection, waited) = match take {
                Take::Place(place) => {
                    self.leased(Lease::place(&core, place));
                    return Ok(());
                }
                Take::Idle(host, connection) => (host, Some(connection), false),
                Take::Connect(host) => (host, None, false),
                Take::Full => return Err(self.fail(Cause::QueueFull { waiting: core.pool.borrow().waiting() })),
                Take::Wait(turn) => {
                    let position = InLine { core: &core, turn };
                    let given = poll_fn(|context| match position.poll(context) {
                        Poll::Pending => self.bounded(Poll::Pending, context),
                        Poll::Ready(given) => Poll::Ready(Ok(given)),
                    });
                    match given.await? {
                        Grant::Place(place) => {
                            self.leased(Lease::place(&core, place));
                            return Ok(());
                        }
                        Grant::Idle(host, connection, _) => (host, Some(connection), true),
                        Grant::Connect(host) => (host, None, true),
                    }
                }
            };
            let mut lease = match connection {
                Some(connection) => Lease::of(&core, host, connection),
                None => Lease::permit(&core, host),
            };
            // Closes a connection that the server has closed meanwhile, and a used one where a fresh one is required.
            if let Some(connection) = lease.connection()
                && (reuse == Reuse::None || !is_alive(&mut connection.stream, reuse == Reuse::Checked))
            {
                if !waited {
                    continue; // There may be another.
                }
                // No other is idle, because a request waits; and a request that has waited keeps its turn.
                lease.close();
            }
            self.leased(lease);
            return Ok(());
        }
    }

    fn leased(&mut self, lease: Lease) {
        self.stamps.leased = monotonic_ns();
        self.set_lease(lease);
    }

    /// Asks the pool; the first call also gets a turn.
    fn take(&mut self, core: &Core, origin: &Rc<Origin>, fresh: bool) -> Take<Connection, Place> {
        let mut pool = core.pool.borrow_mut();
        if self.turn != 0 {
            return pool.take_again(origin, fresh, monotonic_ns(), self.turn);
        }
        let take = pool.take(origin, fresh, monotonic_ns());
        self.turn = pool.turn();
        take
    }

    async fn connect(&mut self, endpoint: &Endpoint) -> Result<(), Error> {
        let core = Rc::clone(self.core());
        let proxy = core.settings.proxies.of(endpoint);
        let (host, port) = match proxy.map_or(&endpoint.address, |proxy| &proxy.address) {
            Address::Unix(socket) => return self.reach(endpoint, Peer::Unix(socket.clone())).await,
            Address::Tcp { host, port } => (host, *port),
        };
        if let Ok(address) = host.parse::<IpAddr>() {
            return self.reach(endpoint, Peer::Tcp(SocketAddr::new(address, port))).await;
        }
        let addresses = self.resolve(host).await?;
        match *addresses {
            [only] => self.reach(endpoint, Peer::Tcp(SocketAddr::new(only, port))).await,
            _ => Box::pin(self.reach_any(endpoint, host, port, &addresses)).await,
        }
    }

    async fn resolve(&mut self, host: &str) -> Result<Rc<[IpAddr]>, Error> {
        self.enter(Phase::Dns);
        let core = Rc::clone(self.core());
        let addresses = {
            let mut resolving = pin!(Names::resolve(&core.names, host));
            poll_fn(|context| self.bounded(resolving.as_mut().poll(context), context)).await?
        };
        let addresses = addresses.map_err(|source| self.fail(Cause::Resolve { host: host.to_string(), source }))?;
        self.stamps.resolved = monotonic_ns();
        Ok(addresses)
    }

    /// Connects to a single address. The connect may carry a part of the request.
    async fn reach(&mut self, endpoint: &Endpoint, peer: Peer) -> Result<(), Error> {
        self.enter(Phase::Connect);
        let core = Rc::clone(self.core());
        let is_http1 = endpoint.scheme == Scheme::Http && core.settings.http2 != Http2::PriorKnowledge;
        let is_plain = |proxy: &Proxy| proxy.forwards() && proxy.tls_name().is_none();
        let is_direct = core.settings.proxies.of(endpoint).is_none_or(|proxy| is_plain(proxy));
        let first = if is_http1 && is_direct { self.take_first() } else { Vec::new() };
        let connected = {
            let mut connecting = pin!(core.connector.connect_sending(&peer, None, &first));
            poll_fn(|context| self.bounded(connecting.as_mut().poll(context), context)).await
        };
        match connected? {
            Ok(connected) => {
                self.put_first(first, connected.sent, connected.at);
                let remote = match peer {
                    Peer::Tcp(address) => Some(address),
                    Peer::Unix(_) => None,
                };
                self.connected(endpoint, connected, remote).await
            }
            Err(error) => {
                if may_have_sent(&error) && !first.is_empty() {
                    self.assume_sent();
                }
                self.put_first(first, 0, 0);
                Err(self.fail(self.unconnected(endpoint, error)))
            }
        }
    }

    /// Returns the cause of a failed connect, which says whether the proxy or the server cannot be reached.
    fn unconnected(&self, endpoint: &Endpoint, error: ConnectError) -> Cause {
        match self.core().settings.proxies.of(endpoint) {
            // The request queues for a descriptor.
            Some(proxy) if !matches!(error, ConnectError::Descriptors(_)) => Cause::Proxy(proxy.unreachable(error)),
            _ => Cause::Connect(error),
        }
    }

    /// Connects to the first of several addresses that answers.
    async fn reach_any(&mut self, endpoint: &Endpoint, host: &str, port: u16, all: &[IpAddr]) -> Result<(), Error> {
        self.enter(Phase::Connect);
        let core = Rc::clone(self.core());
        let connected = {
            let mut racing = pin!(race(interleaved(all), core.settings.attempt_delay, |address| {
                let core = &core;
                Box::pin(async move {
                    let peer = Peer::Tcp(SocketAddr::new(address, port));
                    core.connector.connect(&peer, None).await.map(|connected| (connected, address))
                })
            }));
            poll_fn(|context| self.bounded(racing.as_mut().poll(context), context)).await?
        };
        // The resolver's answers are never empty.
        let (connected, address) = connected
            .unwrap_or(Err(ConnectError::Refused))
            .map_err(|error| self.fail(self.unconnected(endpoint, error)))?;
        core.names.borrow_mut().prefer(host, address);
        self.connected(endpoint, connected, Some(SocketAddr::new(address, port))).await
    }

    async fn connected(
        &mut self,
        endpoint: &Endpoint,
        connected: Connected,
        remote: Option<SocketAddr>,
    ) -> Result<(), Error> {
        let Connected { mut stream, at, .. } = connected;
        count(&self.core().counts.connects);
        self.stamps.connected = at;
        let core = Rc::clone(self.core());
        if let Some(proxy) = core.settings.proxies.of(endpoint) {
            // Boxed, as are all rare steps.
            if let Some(host) = proxy.tls_name() {
                stream = Box::pin(self.secure_proxy(proxy, host, stream)).await?;
                self.stamps.connected = monotonic_ns();
            }
            if core.settings.forwarding_proxy(endpoint).is_none() {
                stream = Box::pin(self.tunnel(proxy, endpoint, stream)).await?;
                self.stamps.connected = monotonic_ns();
            }
        }
        let stream = match endpoint.scheme {
            Scheme::Http => stream,
            // Boxed, so that requests without TLS reserve no space for its handshake.
            Scheme::Https => Box::pin(self.secure(endpoint.host(), stream)).await?,
        };
        self.stamps.ready = self.stamps.connected.max(self.stamps.secured);
        let is_http2 = match self.core().settings.http2 {
            Http2::Off => false,
            Http2::Negotiated => stream.alpn() == Some(b"h2"),
            Http2::PriorKnowledge => true,
        };
        self.put_connection(Connection::new(stream, at, remote), is_http2);
        Ok(())
    }

    /// Begins TLS with a proxy, within the deadline of connecting.
    async fn secure_proxy(&mut self, proxy: &Proxy, host: &str, stream: Stream) -> Result<Stream, Error> {
        let tls = self.core().proxy_tls(host);
        let tls = tls.map_err(|error| self.fail(Cause::Proxy(proxy.failed(ProxyCause::TlsSetup(error)))))?;
        let stream = {
            let mut shaking = pin!(tls.connect(stream));
            poll_fn(|context| self.bounded(shaking.as_mut().poll(context), context)).await?
        };
        stream.map_err(|error| self.fail(Cause::Proxy(proxy.failed(ProxyCause::Tls(error)))))
    }

    /// Has a proxy connect to the server, within the deadline of connecting.
    async fn tunnel(&mut self, proxy: &Proxy, endpoint: &Endpoint, stream: Stream) -> Result<Stream, Error> {
        // Unix sockets have no proxy.
        let Address::Tcp { host, port } = &endpoint.address else { return Ok(stream) };
        let address = if proxy.wants_address() && host.parse::<IpAddr>().is_err() {
            let addresses = self.resolve(host).await?;
            self.enter(Phase::Connect);
            // The proxy may have no IPv6; only the proxy could try both.
            addresses.iter().find(|address| address.is_ipv4()).or(addresses.first()).map(ToString::to_string)
        } else {
            None
        };
        let opened = {
            let mut opening = pin!(proxy.open(stream, address.as_deref().unwrap_or(host), *port));
            poll_fn(|context| self.bounded(opening.as_mut().poll(context), context)).await?
        };
        opened.map_err(|error| self.fail(Cause::Proxy(error)))
    }

    async fn secure(&mut self, host: &str, stream: Stream) -> Result<Stream, Error> {
        self.enter(Phase::Tls);
        let tls = self.core().tls(host).map_err(|error| self.fail(Cause::TlsSetup(error)))?;
        let stream = {
            let mut shaking = pin!(tls.connect(stream));
            poll_fn(|context| self.bounded(shaking.as_mut().poll(context), context)).await?
        };
        let stream = stream.map_err(|error| self.fail(Cause::Tls(error)))?;
        self.stamps.secured = monotonic_ns();
        Ok(stream)
    }

    /// Whether to queue after a failed connect: no descriptor was free, and other connections of this client will free
    /// one.
    fn may_queue(&self, error: &Error) -> bool {
        let no_descriptor = matches!(error.cause(), Cause::Connect(ConnectError::Descriptors(_)));
        no_descriptor && self.core().pool.borrow().open() > 1
    }

    /// Lowers the cap to the current number of connections for a while, and returns the request to the queue.
    fn lower_the_cap(&mut self) {
        let until = after(monotonic_ns(), LOWERED);
        let mut pool = self.core().pool.borrow_mut();
        let others = pool.open() - 1;
        pool.lower(others, until);
        drop(pool);
        self.core().deadlines().sweep_by(until);
        self.drop_lease();
        self.enter(Phase::Queue);
    }
}

/// A place in the queue; dropping it leaves the queue.
struct InLine<'c> {
    core: &'c Rc<Core>,
    turn: u64,
}

impl InLine<'_> {
    fn poll(&self, context: &Context<'_>) -> Poll<Grant<Connection, Place>> {
        let polled = self.core.pool.borrow_mut().poll_wait(self.turn, context);
        // The place keeps the waker registered until the grant is taken.
        match polled {
            Poll::Ready(Some(grant)) => Poll::Ready(grant),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        let until = self.core.pool.borrow_mut().leave(self.turn);
        if let Some(until) = until {
            self.core.look_at_idle(until);
        }
    }
}

/// Whether a failed connect may have sent a part of the request. Other failures come before there is a connection, but
/// registering an open connection may fail too, without an error of its own.
fn may_have_sent(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Io(_))
}

/// Whether an idle connection is open and silent: unexpected bytes answer no request.
///
/// `surely`: asks the kernel, which costs a system call. Otherwise what epoll has said has to do: a request that may be
/// sent again is, if the connection breaks.
fn is_alive(stream: &mut Stream, surely: bool) -> bool {
    if !surely && !stream.is_tls() {
        return stream.seems_quiet();
    }
    if stream.is_quiet() {
        return true;
    }
    if !stream.is_tls() {
        return false;
    }
    // The bytes may be a TLS session ticket, and then the connection is still good.
    let mut scratch = Scratch::take();
    let mut buffer = ReadBuf::new(&mut scratch);
    // The poll that waits for the response brings its own waker.
    let context = &mut Context::from_waker(Waker::noop());
    std::pin::Pin::new(stream).poll_read(context, &mut buffer).is_pending()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_without_a_name_may_have_come_after_the_first_bytes() {
        let unknown = || std::io::Error::other("no more room in epoll");
        assert!(may_have_sent(&ConnectError::Io(unknown())));
        for before in [ConnectError::Refused, ConnectError::Descriptors(unknown()), ConnectError::Timeout] {
            assert!(!may_have_sent(&before), "{before}");
        }
    }
}
