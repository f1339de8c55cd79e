//! Failures of a connect: one name per cause.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use rustix::io::Errno;
use thiserror::Error;

use crate::address::{Peer, UnixAddress};
use crate::tls::TlsError;

/// The cause of a failed connect.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// Nothing listens there: start the server, or correct the address. The file of a unix socket can outlive its
    /// server.
    #[error("connection refused: nobody listens there")]
    Refused,
    /// No answer before the deadline, or the kernel gave up: the server's backlog is full or a firewall drops
    /// packets. Check the server's accept rate and its listen backlog (net.core.somaxconn).
    #[error("no answer to the connect in time: the server's listen backlog is full, or packets are dropped")]
    Timeout,
    /// The unix socket's backlog was full until the deadline: the server accepts too slowly. Raise its listen backlog
    /// (and net.core.somaxconn) or connect less often.
    #[error("the unix socket's listen backlog stayed full: the server accepts too slowly, or its backlog is too small")]
    Backlog,
    /// Every local port is in use for this destination (EADDRNOTAVAIL), most of them in TIME_WAIT. Use several source
    /// addresses or a unix socket, widen net.ipv4.ip_local_port_range, let the server close first, or keep
    /// connections alive.
    #[error(
        "no local port is left for this destination: use several source addresses, a wider \
         net.ipv4.ip_local_port_range, or a unix socket"
    )]
    PortsExhausted,
    /// The process or the system has no file descriptor left: raise `ulimit -n` (see `limits::ensure_descriptors`).
    #[error("no file descriptor is left: raise the limit (ulimit -n)")]
    Descriptors(#[source] io::Error),
    /// The TLS handshake failed; see the cause.
    #[error("the TLS handshake failed")]
    Tls(#[from] TlsError),
    /// Permission denied: the mode of the unix socket or of a folder above it excludes this user, or a packet filter
    /// rejects.
    #[error("permission denied")]
    Permission(#[source] io::Error),
    /// The rules of this process do not permit connections there: `oroshi agent --allow` sets an agent's rules.
    #[error("connections to {peer} are not permitted here")]
    NotPermitted {
        /// The destination.
        peer: String,
    },
    /// There is no file at the unix socket's path: start the server, or correct the path.
    #[error("there is no unix socket {address}")]
    NotFound {
        /// The requested name.
        address: String,
    },
    /// The file at the path is not a stream socket: correct the path.
    #[error("{what}")]
    NotASocket {
        /// A sentence that describes the file.
        what: String,
    },
    /// The network is unreachable: check the address and the routes.
    #[error("the destination cannot be reached")]
    Unreachable(#[source] io::Error),
    /// The source address is not one of this machine's: give one that `ip address` lists.
    #[error("cannot connect from {address}")]
    Source {
        /// The configured source.
        address: IpAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// No configured source has the destination's family: add one, or connect to an address of their family.
    #[error("no source address has the family of {peer}")]
    NoSource {
        /// The destination.
        peer: SocketAddr,
    },
    /// Any other error of the kernel.
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
            ConnectError::Permission(_) | ConnectError::NotPermitted { .. } => "connect-permission",
            ConnectError::NotFound { .. } => "connect-not-found",
            ConnectError::NotASocket { .. } => "connect-not-a-socket",
            ConnectError::Unreachable(_) => "connect-unreachable",
            ConnectError::Source { .. } | ConnectError::NoSource { .. } => "connect-source",
            ConnectError::Io(_) => "connect-other",
        }
    }

    /// Every result of [`ConnectError::name`], in the order of the variants.
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

    /// Returns the error for a connect that the caller ended because it took too long.
    ///
    /// A TCP connect waits for the peer's answer, a unix connect only for room in the backlog.
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
            // Linux returns ECONNREFUSED for a dead socket, an unbound abstract name, and any other file; and EACCES
            // before it checks the type of the file.
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

/// Whether this machine has any address to reach the peer from.
///
/// EADDRNOTAVAIL also means that there is none, for example with IPv6 switched off. A UDP socket has ports of its
/// own, so it distinguishes the two without sending anything.
fn has_source(peer: SocketAddr) -> bool {
    let any: IpAddr = if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    UdpSocket::bind((any, 0)).is_ok_and(|socket| socket.connect(peer).is_ok())
}
