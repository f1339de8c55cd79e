//! Why a connection could not be made: one name per cause.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use rustix::io::Errno;
use thiserror::Error;

use crate::address::{Peer, UnixAddress};
use crate::tls::TlsError;

/// Why a connection could not be made.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// Nobody listens there: start the server, or correct the address. A unix socket's file can outlive its server.
    #[error("connection refused: nobody listens there")]
    Refused,
    /// No answer before the deadline, or the kernel gave up asking: the server's backlog is full or a firewall drops
    /// the packets. Look at the server's accept rate and its listen backlog (net.core.somaxconn).
    #[error("no answer to the connect in time: the server's listen backlog is full, or packets are dropped")]
    Timeout,
    /// The unix socket's backlog was full until the deadline: the server accepts too slowly. Raise its listen backlog
    /// (and net.core.somaxconn) or connect less often.
    #[error("the unix socket's listen backlog stayed full: the server accepts too slowly, or its backlog is too small")]
    Backlog,
    /// Every local port is in use for this destination (EADDRNOTAVAIL), most of them in TIME_WAIT: spread over
    /// several source addresses, widen net.ipv4.ip_local_port_range, let the server close first, keep connections
    /// alive, or use a unix socket.
    #[error(
        "no local port is left for this destination: use several source addresses, a wider \
         net.ipv4.ip_local_port_range, or a unix socket"
    )]
    PortsExhausted,
    /// The process or the system has no file descriptor left: raise `ulimit -n` (see `limits::ensure_descriptors`).
    #[error("no file descriptor is left: raise the limit (ulimit -n)")]
    Descriptors(#[source] io::Error),
    /// The TLS handshake failed; the cause says how.
    #[error("the TLS handshake failed")]
    Tls(#[from] TlsError),
    /// Not allowed: the unix socket's mode or a folder above it excludes this user, or a packet filter rejects.
    #[error("permission denied")]
    Permission(#[source] io::Error),
    /// There is no file at the unix socket's path: start the server, or correct the path.
    #[error("there is no unix socket {address}")]
    NotFound {
        /// The name that was asked for.
        address: String,
    },
    /// What stands at the path is no stream socket: correct the path.
    #[error("{what}")]
    NotASocket {
        /// A sentence that says what it is.
        what: String,
    },
    /// The network says that no way leads there: check the address and the routes.
    #[error("the destination cannot be reached")]
    Unreachable(#[source] io::Error),
    /// The source address is not one of this machine's: give one that `ip address` lists.
    #[error("cannot connect from {address}")]
    Source {
        /// The source that was to be used.
        address: IpAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// Sources are given, but none of the destination's family: add one, or connect to an address of their family.
    #[error("no source address has the family of {peer}")]
    NoSource {
        /// The destination.
        peer: SocketAddr,
    },
    /// Anything else that the kernel can say.
    #[error("could not connect")]
    Io(#[source] io::Error),
}

impl ConnectError {
    /// The failure's stable name, for counts and reports.
    pub fn name(&self) -> &'static str {
        match self {
            ConnectError::Refused => "connect-refused",
            ConnectError::Timeout => "connect-timeout",
            ConnectError::Backlog => "connect-backlog",
            ConnectError::PortsExhausted => "ports-exhausted",
            ConnectError::Descriptors(_) => "descriptors-exhausted",
            ConnectError::Tls(_) => "tls",
            ConnectError::Permission(_) => "connect-permission",
            ConnectError::NotFound { .. } => "connect-not-found",
            ConnectError::NotASocket { .. } => "connect-not-a-socket",
            ConnectError::Unreachable(_) => "connect-unreachable",
            ConnectError::Source { .. } | ConnectError::NoSource { .. } => "connect-source",
            ConnectError::Io(_) => "connect-other",
        }
    }

    /// Every name that [`ConnectError::name`] gives, in the order of the variants.
    pub const NAMES: [&'static str; 12] = [
        "connect-refused",
        "connect-timeout",
        "connect-backlog",
        "ports-exhausted",
        "descriptors-exhausted",
        "tls",
        "connect-permission",
        "connect-not-found",
        "connect-not-a-socket",
        "connect-unreachable",
        "connect-source",
        "connect-other",
    ];

    /// What a connect that its caller ended after too long a wait has failed of: TCP waits for the peer's answer, a
    /// unix socket for nothing but room in the backlog.
    pub fn overdue(peer: &Peer) -> Self {
        match peer {
            Peer::Tcp(_) => ConnectError::Timeout,
            Peer::Unix(_) => ConnectError::Backlog,
        }
    }

    pub(super) fn from_errno(errno: Errno) -> Self {
        Self::from_io(errno.into())
    }

    pub(super) fn from_io(error: io::Error) -> Self {
        match Errno::from_io_error(&error) {
            Some(Errno::CONNREFUSED) => ConnectError::Refused,
            Some(Errno::TIMEDOUT) => ConnectError::Timeout,
            Some(Errno::MFILE | Errno::NFILE) => ConnectError::Descriptors(error),
            Some(Errno::ACCESS | Errno::PERM) => ConnectError::Permission(error),
            Some(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::NETDOWN | Errno::HOSTDOWN | Errno::AFNOSUPPORT) => {
                ConnectError::Unreachable(error)
            }
            _ => ConnectError::Io(error),
        }
    }

    pub(super) fn from_tcp(error: io::Error, peer: SocketAddr) -> Self {
        match Errno::from_io_error(&error) {
            Some(Errno::ADDRNOTAVAIL) if has_source(peer) => ConnectError::PortsExhausted,
            Some(Errno::ADDRNOTAVAIL) => ConnectError::Unreachable(error),
            _ => Self::from_io(error),
        }
    }

    pub(super) fn from_unix(errno: Errno, address: &UnixAddress) -> Self {
        match errno {
            Errno::NOENT => ConnectError::NotFound { address: address.to_string() },
            // Linux answers ECONNREFUSED alike for a dead socket, an abstract name that nobody has, and any other file;
            // and EACCES before it looks what the file is.
            Errno::CONNREFUSED | Errno::NOTSOCK | Errno::ACCESS => match address.explain() {
                Some(what) => ConnectError::NotASocket { what },
                None => Self::from_errno(errno),
            },
            Errno::PROTOTYPE => ConnectError::NotASocket {
                what: format!("{address} is a datagram or sequenced-packet socket, not a stream socket"),
            },
            _ => Self::from_errno(errno),
        }
    }
}

/// Whether this machine has any address to reach the peer from. EADDRNOTAVAIL also says that there is none, for example
/// with IPv6 switched off; a UDP socket, whose ports are its own, tells the two apart without sending anything.
fn has_source(peer: SocketAddr) -> bool {
    let any: IpAddr = if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    UdpSocket::bind((any, 0)).is_ok_and(|socket| socket.connect(peer).is_ok())
}
