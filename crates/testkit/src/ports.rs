//! Addresses that no other test gets.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, listen, socket_with, sockopt};

/// A port of 127.0.0.1, reserved for as long as the value lives. Only programs that get its number listen there.
#[derive(Debug)]
pub struct Port {
    reserved: OwnedFd,
}

impl Port {
    /// Reserves a free port.
    #[must_use]
    pub fn reserve() -> Self {
        // Two sockets may share a port as long as neither listens when the second is bound, if both set SO_REUSEADDR.
        Self { reserved: bound(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))) }
    }

    /// The address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::try_from(getsockname(&self.reserved).unwrap()).unwrap()
    }

    /// The address as a URL: `http://127.0.0.1:PORT/`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/", self.address())
    }

    /// Listens at the port, with room for `backlog` connections.
    #[must_use]
    pub fn listen(&self, backlog: i32) -> TcpListener {
        let socket = bound(self.address());
        listen(&socket, backlog).unwrap();
        socket.into()
    }
}

fn bound(address: SocketAddr) -> OwnedFd {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    bind(&socket, &address).unwrap();
    socket
}

/// Listens at a unix socket, with room for `backlog` connections and one.
#[must_use]
pub fn unix_listener(path: &Path, backlog: i32) -> UnixListener {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &rustix::net::SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&socket, backlog).unwrap();
    socket.into()
}

/// Returns a name for a socket in the abstract namespace that no other test has. The name has no `@` before it.
#[must_use]
pub fn abstract_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("oroshi-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}
