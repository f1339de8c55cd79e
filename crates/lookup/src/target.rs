//! A target of requests: an address, a name, or a unix socket.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// The protocol that a target speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.1, in cleartext.
    #[default]
    Http1,
    /// HTTP/2 in cleartext, with prior knowledge (RFC 9113, section 3.3).
    H2c,
    /// HTTP/2 or HTTP/1.1 over TLS, as agreed by ALPN (RFC 9113, section 3.2). Not over a unix socket.
    Https,
}

/// A target of requests, before names are resolved. Cloning one allocates nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// An IPv4 address.
    V4 {
        /// The address.
        address: Ipv4Addr,
        /// 1 to 65535.
        port: u16,
        /// Its protocol.
        protocol: Protocol,
    },
    /// An IPv6 address.
    V6 {
        /// The address.
        address: Ipv6Addr,
        /// 1 to 65535.
        port: u16,
        /// Its protocol.
        protocol: Protocol,
    },
    /// A name.
    Name {
        /// In canonical form: [`key::host`](crate::key::host).
        name: Arc<str>,
        /// 1 to 65535.
        port: u16,
        /// Its protocol.
        protocol: Protocol,
    },
    /// A unix stream socket.
    Unix {
        /// An absolute path.
        path: Arc<str>,
        /// Its protocol.
        protocol: Protocol,
    },
}

impl Target {
    /// The protocol that the target speaks.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        match self {
            Target::V4 { protocol, .. }
            | Target::V6 { protocol, .. }
            | Target::Name { protocol, .. }
            | Target::Unix { protocol, .. } => *protocol,
        }
    }

    /// Returns the same place with another protocol.
    pub(crate) fn speaking(mut self, new: Protocol) -> Self {
        match &mut self {
            Target::V4 { protocol, .. }
            | Target::V6 { protocol, .. }
            | Target::Name { protocol, .. }
            | Target::Unix { protocol, .. } => *protocol = new,
        }
        self
    }
}

/// `10.0.0.1:80`, `[::1]:80`, `app.internal:80`, `unix:/run/app.sock`; with HTTP/2 `h2c://10.0.0.1:80`,
/// `h2c+unix:/run/app.sock`; with TLS `https://app.internal:443`.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.protocol(), self) {
            (Protocol::Http1, _) => {}
            (Protocol::H2c, Target::Unix { .. }) => f.write_str("h2c+")?,
            (Protocol::H2c, _) => f.write_str("h2c://")?,
            (Protocol::Https, _) => f.write_str("https://")?,
        }
        match self {
            Target::V4 { address, port, .. } => write!(f, "{address}:{port}"),
            Target::V6 { address, port, .. } => write!(f, "[{address}]:{port}"),
            Target::Name { name, port, .. } => write!(f, "{name}:{port}"),
            Target::Unix { path, .. } => write!(f, "unix:{path}"),
        }
    }
}
