//! The address to connect to: TCP over IPv4, or a unix socket by its path.

use std::fmt;
use std::net::SocketAddrV4;
use std::str::FromStr;

use rustix::net::{AddressFamily, SocketAddrUnix};

/// An address in the form for `connect`, so that connecting converts nothing.
pub enum Address {
    /// `127.0.0.1:8080`
    Tcp(SocketAddrV4),
    /// Anything else: a path.
    Unix(SocketAddrUnix),
}

impl Address {
    /// Returns the address family.
    pub fn family(&self) -> AddressFamily {
        match self {
            Self::Tcp(_) => AddressFamily::INET,
            Self::Unix(_) => AddressFamily::UNIX,
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(tcp) = text.parse() {
            return Ok(Self::Tcp(tcp));
        }
        if text.contains(':') {
            return Err(format!("ADDRESS: {text:?} is not an IPv4 address with a port"));
        }
        SocketAddrUnix::new(text).map(Self::Unix).map_err(|e| format!("ADDRESS: {text:?} as a socket's path: {e}"))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(address) => f.write_str(&address.path().unwrap_or_default().to_string_lossy()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_tcp_from_a_path() {
        assert!(matches!("127.0.0.1:80".parse(), Ok(Address::Tcp(_))));
        assert!(matches!("/run/app.sock".parse(), Ok(Address::Unix(_))));
    }

    #[test]
    fn a_host_name_is_no_path() {
        assert!("localhost:80".parse::<Address>().is_err());
    }

    #[test]
    fn refuses_a_path_that_does_not_fit() {
        assert!("x".repeat(200).parse::<Address>().is_err());
    }

    #[test]
    fn shows_itself_as_it_was_typed() {
        for text in ["127.0.0.1:80", "/run/app.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }
}
