//! A target of requests: an address, a name, or a unix socket.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// A target of requests, before names are resolved. Cloning one allocates nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// An IPv4 address.
    V4 {
        /// The address.
        address: Ipv4Addr,
        /// 1 to 65535.
        port: u16,
    },
    /// An IPv6 address.
    V6 {
        /// The address.
        address: Ipv6Addr,
        /// 1 to 65535.
        port: u16,
    },
    /// A name.
    Name {
        /// In canonical form: [`key::host`](crate::key::host).
        name: Arc<str>,
        /// 1 to 65535.
        port: u16,
    },
    /// A unix stream socket, by an absolute path.
    Unix(Arc<str>),
}

/// `10.0.0.1:80`, `[::1]:80`, `app.internal:80`, `unix:/run/app.sock`.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::V4 { address, port } => write!(f, "{address}:{port}"),
            Target::V6 { address, port } => write!(f, "[{address}]:{port}"),
            Target::Name { name, port } => write!(f, "{name}:{port}"),
            Target::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}
