//! Opens connections, at little more than the kernel's own cost for each.

mod error;

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, bind, connect, send, socket_with, sockopt};
use tokio::io::Interest;
use tokio::net::TcpStream;

pub use error::ConnectError;

use crate::address::{Peer, UnixAddress};
use crate::clock::monotonic_ns;
use crate::permit::Permitted;
use crate::ports::LocalPorts;
use crate::stream::{Stream, UnixStream};
use crate::sys;
use crate::tls::{ClientTls, TlsError};

/// Options of a connector.
#[derive(Debug, Clone)]
pub struct ConnectorOptions {
    /// Source addresses of TCP connections, used in rotation; empty lets the kernel choose.
    ///
    /// Addresses of another family than the peer's are skipped. On loopback every address in 127.0.0.0/8 works, and
    /// each has its own port range.
    pub sources: Vec<IpAddr>,
    /// TCP_NODELAY: on by default. A connection for a single small request does not need it, because nothing is
    /// unacknowledged before that request; switching it off there saves a system call.
    pub nodelay: bool,
    /// SO_RCVBUF in bytes; None leaves the kernel's automatic sizing on.
    pub recv_buffer: Option<usize>,
    /// SO_SNDBUF in bytes; None leaves the kernel's automatic sizing on.
    pub send_buffer: Option<usize>,
    /// TLS for every connection, over TCP and unix.
    pub tls: Option<ClientTls>,
    /// Rules for where connections may go; None permits everything.
    pub permitted: Option<Arc<Permitted>>,
}

impl Default for ConnectorOptions {
    fn default() -> Self {
        ConnectorOptions {
            sources: Vec::new(),
            nodelay: true,
            recv_buffer: None,
            send_buffer: None,
            tls: None,
            permitted: None,
        }
    }
}

/// Opens connections for one thread.
///
/// A TCP connection costs `socket`, `setsockopt(TCP_NODELAY)` unless switched off, `connect`, one `epoll_ctl` and a
/// wait for the handshake; with sources also `setsockopt(IP_BIND_ADDRESS_NO_PORT)` and `bind`. A unix connection
/// costs `socket`, `connect`, `epoll_ctl`, and no wait. Closing costs `epoll_ctl` and `close`.
#[derive(Debug)]
pub struct Connector {
    options: ConnectorOptions,
    sources_v4: Vec<IpAddr>,
    sources_v6: Vec<IpAddr>,
    turn: Cell<usize>,
    ephemeral: RangeInclusive<u16>,
}

/// A new connection with its timings.
#[derive(Debug)]
pub struct Connected {
    /// The connection, after any TLS handshake.
    pub stream: Stream,
    /// Time from the call to the connected socket.
    pub connect: Duration,
    /// Time from the connected socket to the end of the TLS handshake; None without TLS.
    pub tls: Option<Duration>,
    /// The moment when the connection was ready, by [`monotonic_ns`]: after the handshake, before anything was sent.
    pub at: u64,
    /// Bytes already sent: see [`Connector::connect_sending`].
    pub sent: usize,
}

/// A connected socket, before TLS.
struct Opened {
    stream: Stream,
    at: u64,
    sent: usize,
}

impl Connector {
    /// Makes a connector. Reads the machine's port range once.
    pub fn new(options: ConnectorOptions) -> Self {
        let (sources_v4, sources_v6) = options.sources.iter().copied().partition(IpAddr::is_ipv4);
        Connector {
            options,
            sources_v4,
            sources_v6,
            turn: Cell::new(0),
            ephemeral: LocalPorts::read_or_default().range,
        }
    }

    /// The options of this connector.
    pub fn options(&self) -> &ConnectorOptions {
        &self.options
    }

    /// Connects, with any TLS handshake, before `deadline` (std's clock).
    ///
    /// Without a deadline it waits as long as the kernel does and sets no timer. A caller can then end a slow connect
    /// by dropping the future, which closes the socket; [`ConnectError::overdue`] names that failure. With a
    /// deadline, it sets a timer only if the connection is not ready after one poll of the runtime.
    ///
    /// If the backlog of a unix socket is full, it retries after 1 ms, then 2 ms, up to every 20 ms, until the
    /// deadline: the kernel does not signal when there is room (connect(2), EAGAIN).
    ///
    /// # Errors
    /// [`ConnectError`]; each names one cause. The connector stays usable.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O (and time) enabled.
    pub async fn connect(&self, peer: &Peer, deadline: Option<Instant>) -> Result<Connected, ConnectError> {
        self.connect_sending(peer, deadline, &[]).await
    }

    /// Connects like [`Connector::connect`], and sends as much of `first` as the kernel takes at once.
    ///
    /// The send does not wait for epoll. On loopback a TCP connection exists when connect(2) returns, whatever it
    /// returns, so this saves a wake-up per connection. [`Connected::sent`] has the number of bytes sent: 0 with TLS,
    /// or if the connection was not ready at once.
    ///
    /// # Errors
    /// As [`Connector::connect`]. If the connection broke after it was made, the next write fails instead.
    ///
    /// # Panics
    /// As [`Connector::connect`].
    pub async fn connect_sending(
        &self,
        peer: &Peer,
        deadline: Option<Instant>,
        first: &[u8],
    ) -> Result<Connected, ConnectError> {
        if self.options.permitted.as_ref().is_some_and(|permitted| !permitted.peer(peer)) {
            return Err(ConnectError::NotPermitted { peer: peer.to_string() });
        }
        let started = monotonic_ns();
        let first = if self.options.tls.is_some() { &[] } else { first };
        let Opened { stream, at, sent } = match peer {
            Peer::Tcp(address) => self.tcp(*address, deadline, first).await?,
            Peer::Unix(address) => self.unix(address, deadline, first).await?,
        };
        let connect = Duration::from_nanos(at - started);
        match &self.options.tls {
            None => Ok(Connected { stream, connect, tls: None, at, sent }),
            // Boxed, so that connections without TLS do not reserve memory for its handshake.
            Some(tls) => {
                let handshake = Box::pin(within(deadline, tls.connect(stream)));
                let stream = handshake.await.unwrap_or(Err(TlsError::Timeout))?;
                let ready = monotonic_ns();
                Ok(Connected { stream, connect, tls: Some(Duration::from_nanos(ready - at)), at: ready, sent })
            }
        }
    }

    async fn tcp(&self, address: SocketAddr, deadline: Option<Instant>, first: &[u8]) -> Result<Opened, ConnectError> {
        let socket = self.begin_tcp(address)?;
        let mut at = monotonic_ns();
        let sent = match send_first(&socket, first) {
            Ok(sent) => sent,
            // Not connected yet, or the peer has already closed the connection.
            Err(Errno::AGAIN | Errno::PIPE | Errno::CONNRESET) => 0,
            // The result of the connect. The kernel reports it once, so SO_ERROR below would not have it.
            Err(errno) => return Err(ConnectError::from_tcp(errno.into(), address)),
        };
        let stream = TcpStream::from_std(socket.into()).map_err(ConnectError::from_io)?;
        if sent == 0 {
            within(deadline, poll_fn(|cx| stream.poll_write_ready(cx)))
                .await
                .ok_or(ConnectError::Timeout)?
                .map_err(ConnectError::from_io)?;
            // Asks the socket only when epoll reported an error: a successful connection makes no system call here.
            match stream.try_io(Interest::ERROR, || stream.take_error()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) | Ok(Some(error)) => return Err(ConnectError::from_tcp(error, address)),
                Ok(None) => {}
            }
            at = monotonic_ns();
        }
        // Without a listener on a port of the ephemeral range, the kernel can choose that very port as the source,
        // and the connection meets itself (RFC 9293, section 3.5, simultaneous open).
        if self.ephemeral.contains(&address.port()) && stream.local_addr().is_ok_and(|local| local == address) {
            return Err(ConnectError::Refused);
        }
        Ok(Opened { stream: Stream::Tcp(stream), at, sent })
    }

    /// Makes a socket and starts its connect.
    fn begin_tcp(&self, address: SocketAddr) -> Result<OwnedFd, ConnectError> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = new_socket(family)?;
        if self.options.nodelay {
            sockopt::set_tcp_nodelay(&socket, true).map_err(ConnectError::from_errno)?;
        }
        self.set_buffers(&socket)?;
        if !self.options.sources.is_empty() {
            self.bind_source(&socket, address)?;
        }
        loop {
            match connect(&socket, &address) {
                Ok(()) | Err(Errno::INPROGRESS) => return Ok(socket),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(ConnectError::from_tcp(errno.into(), address)),
            }
        }
    }

    fn set_buffers(&self, socket: &OwnedFd) -> Result<(), ConnectError> {
        if let Some(bytes) = self.options.recv_buffer {
            sockopt::set_socket_recv_buffer_size(socket, bytes).map_err(ConnectError::from_errno)?;
        }
        if let Some(bytes) = self.options.send_buffer {
            sockopt::set_socket_send_buffer_size(socket, bytes).map_err(ConnectError::from_errno)?;
        }
        Ok(())
    }

    fn bind_source(&self, socket: &OwnedFd, address: SocketAddr) -> Result<(), ConnectError> {
        let sources = if address.is_ipv4() { &self.sources_v4 } else { &self.sources_v6 };
        let Some(turn) = self.turn.get().checked_rem(sources.len()) else {
            return Err(ConnectError::NoSource { peer: address });
        };
        self.turn.set(turn + 1);
        let source = sources[turn];
        sys::set_bind_address_no_port(socket).map_err(ConnectError::from_io)?;
        bind(socket, &SocketAddr::new(source, 0))
            .map_err(|errno| ConnectError::Source { address: source, source: errno.into() })
    }

    async fn unix(
        &self,
        address: &UnixAddress,
        deadline: Option<Instant>,
        first: &[u8],
    ) -> Result<Opened, ConnectError> {
        const FIRST_PAUSE: Duration = Duration::from_millis(1);
        const LONGEST_PAUSE: Duration = Duration::from_millis(20);
        let socket = new_socket(AddressFamily::UNIX)?;
        self.set_buffers(&socket)?;
        let mut pause = FIRST_PAUSE;
        loop {
            match connect(&socket, address.kernel()) {
                Ok(()) => break,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {}
                Err(errno) => return Err(ConnectError::from_unix(errno, address)),
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(ConnectError::Backlog);
            }
            let again = deadline.map_or(now + pause, |deadline| deadline.min(now + pause));
            tokio::time::sleep_until(again.into()).await;
            pause = LONGEST_PAUSE.min(pause * 2);
        }
        let at = monotonic_ns();
        let sent = send_first(&socket, first).unwrap_or(0);
        let stream = UnixStream::new(socket).map_err(ConnectError::from_io)?;
        Ok(Opened { stream: Stream::Unix(stream), at, sent })
    }
}

/// Sends as much of the first bytes as the kernel takes on a new socket.
fn send_first(socket: &OwnedFd, first: &[u8]) -> Result<usize, Errno> {
    if first.is_empty() { Ok(0) } else { send(socket, first, SendFlags::NOSIGNAL) }
}

fn new_socket(family: AddressFamily) -> Result<OwnedFd, ConnectError> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socket_with(family, SocketType::STREAM, flags, None).map_err(ConnectError::from_errno)
}

/// Returns the future's value, or None when the deadline passes first.
async fn within<F: Future>(deadline: Option<Instant>, future: F) -> Option<F::Output> {
    let Some(deadline) = deadline else { return Some(future.await) };
    let mut future = std::pin::pin!(future);
    // On loopback the connection is ready at the runtime's next poll: poll once before setting a timer.
    if let Some(value) = poll_fn(|cx| std::task::Poll::Ready(ready(future.as_mut().poll(cx)))).await {
        return Some(value);
    }
    tokio::task::yield_now().await;
    tokio::time::timeout_at(deadline.into(), future).await.ok()
}

fn ready<T>(poll: std::task::Poll<T>) -> Option<T> {
    match poll {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tens of thousands of connections hold one each.
    #[test]
    fn streams_and_connects_stay_small() {
        assert!(size_of::<Stream>() <= 40, "{}", size_of::<Stream>());
        let connector = Connector::new(ConnectorOptions::default());
        let peer = Peer::Tcp(([127, 0, 0, 1], 80).into());
        let connect = connector.connect(&peer, None);
        assert!(size_of_val(&connect) <= 640, "{}", size_of_val(&connect));
        assert!(size_of::<ConnectError>() <= 80, "{}", size_of::<ConnectError>());
    }
}
