//! Targets: an address, a name or a unix socket, and the protocol that is spoken there.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use oroshi_lookup::Protocol;
use oroshi_net::{Peer, UnixAddress};

/// The longest host name, in bytes (RFC 1035, section 2.3.4, without the root's dot).
const NAME_BYTES: usize = 253;

/// A server: its address or name, and its protocol. Cheap to compare; the key of its pool.
///
/// Parsed from text: `10.0.0.7:8080`, `[::1]:8080`, `app.internal:8080` (default port 80), `unix:/run/app.sock`,
/// `unix:@name`; for TLS `https://app.internal` (default port 443); for HTTP/2 in cleartext `h2c://10.0.0.7:8080` and
/// `h2c+unix:/run/app.sock`. Other URLs are refused: the configuration's reader handles what surrounds the address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Where the server is.
    pub place: Place,
    /// How to speak with it.
    pub protocol: Protocol,
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// An address that needs no resolution.
    Peer(Peer),
    /// A name, resolved for each new connection.
    Name {
        /// In lower case, without a trailing dot.
        host: Box<str>,
        /// 1 to 65535.
        port: u16,
    },
}

impl Target {
    /// Returns the target's name for a `Host` header; `localhost` for a unix socket.
    pub fn authority(&self) -> String {
        match &self.place {
            Place::Peer(Peer::Unix(_)) => "localhost".to_owned(),
            Place::Peer(Peer::Tcp(address)) if address.port() == self.usual_port() => match address {
                SocketAddr::V4(address) => address.ip().to_string(),
                SocketAddr::V6(address) => format!("[{}]", address.ip()),
            },
            Place::Name { host, port } if *port == self.usual_port() => host.to_string(),
            other => other.to_string(),
        }
    }

    /// Returns the port that a URL of this protocol leaves out.
    fn usual_port(&self) -> u16 {
        if self.protocol == Protocol::Https { 443 } else { 80 }
    }
}

/// A server of HTTP/1.1 there.
impl From<Peer> for Target {
    fn from(peer: Peer) -> Self {
        Place::Peer(peer).into()
    }
}

/// A server of HTTP/1.1 there.
impl From<Place> for Target {
    fn from(place: Place) -> Self {
        Target { place, protocol: Protocol::Http1 }
    }
}

/// Writes the text that parses as the same target.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.protocol, &self.place) {
            (Protocol::Http1, _) => {}
            (Protocol::H2c, Place::Peer(Peer::Unix(_))) => f.write_str("h2c+")?,
            (Protocol::H2c, _) => f.write_str("h2c://")?,
            (Protocol::Https, _) => f.write_str("https://")?,
        }
        self.place.fmt(f)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Peer(peer) => peer.fmt(f),
            Place::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// Why a text is no target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The text after `unix:` names no socket.
    #[error("{text:?} names no unix socket: {why}")]
    Unix {
        /// The text as given.
        text: String,
        /// The reason.
        why: String,
    },
    /// The text is a URL. Write the address alone.
    #[error(
        "{text:?} is a URL: expected an address alone such as {address:?}; for TLS https:// before the host, without a \
         path"
    )]
    Url {
        /// The text as given.
        text: String,
        /// The URL's address.
        address: String,
    },
    /// The port is not a number from 1 to 65535.
    #[error("{text:?} has a port that is not a number from 1 to 65535")]
    Port {
        /// The text as given.
        text: String,
    },
    /// The host is neither an address nor a name. An IPv6 address needs brackets.
    #[error(
        "{text:?} names no host: give a name, an IPv4 address, an IPv6 address in brackets, or unix:/path; for TLS \
         https:// before the host; for HTTP/2 in cleartext h2c:// before it, or h2c+unix:/path"
    )]
    Host {
        /// The text as given.
        text: String,
    },
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        if let Some(place) = text.strip_prefix("h2c+").filter(|place| place.starts_with("unix:")) {
            return Ok(Target { place: place.parse()?, protocol: Protocol::H2c });
        }
        match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("h2c") && !rest.starts_with("unix:") => {
                let place = rest.strip_suffix('/').unwrap_or(rest);
                Ok(Target { place: place.parse()?, protocol: Protocol::H2c })
            }
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") && !rest.starts_with("unix:") => {
                let place = rest.strip_suffix('/').unwrap_or(rest);
                if let Some((address, _)) = place.split_once(['/', '?', '#']) {
                    return Err(TargetError::Url { text: text.to_owned(), address: format!("https://{address}") });
                }
                Ok(Target { place: Place::parse(place, 443)?, protocol: Protocol::Https })
            }
            _ => Ok(text.parse::<Place>()?.into()),
        }
    }
}

impl FromStr for Place {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        Place::parse(text, 80)
    }
}

impl Place {
    /// Parses a place whose port may be missing.
    fn parse(text: &str, usual: u16) -> Result<Self, TargetError> {
        if let Some(name) = text.strip_prefix("unix:") {
            let address = UnixAddress::parse(name)
                .map_err(|error| TargetError::Unix { text: text.to_owned(), why: error.to_string() })?;
            return Ok(Place::Peer(Peer::Unix(address)));
        }
        if let Some((_, rest)) = text.split_once("://") {
            let address = rest.split(['/', '?', '#']).next().unwrap_or_default().to_owned();
            return Err(TargetError::Url { text: text.to_owned(), address });
        }
        let bad_host = || TargetError::Host { text: text.to_owned() };
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or_else(bad_host)?,
            None => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => usual,
            None => return Err(bad_host()),
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().unwrap_or(0),
            Some(_) => 0,
        };
        if port == 0 {
            return Err(TargetError::Port { text: text.to_owned() });
        }
        if text.starts_with('[') {
            let address = host.parse().map_err(|_| bad_host())?;
            return Ok(Place::Peer(Peer::Tcp(SocketAddr::new(IpAddr::V6(address), port))));
        }
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(Place::Peer(Peer::Tcp(SocketAddr::new(address, port))));
        }
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        if !is_name(&host) {
            return Err(bad_host());
        }
        Ok(Place::Name { host: host.into(), port })
    }
}

/// Accepts letters, digits, hyphens and underscores in labels of 1 to 63. Refuses a name that ends in a number:
/// resolvers read it as an IPv4 address in their own ways (`127.1`, `0x7f.1`).
fn is_name(host: &str) -> bool {
    let label = |label: &str| {
        let sound = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(sound)
    };
    let last = host.rsplit('.').next().unwrap_or_default();
    let numeric = last.starts_with("0x") || last.bytes().all(|byte| byte.is_ascii_digit());
    host.len() <= NAME_BYTES && host.split('.').all(label) && !numeric
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_read_back_as_they_are_written() {
        for (text, shown, authority) in [
            ("10.0.0.7:8080", "10.0.0.7:8080", "10.0.0.7:8080"),
            ("10.0.0.7", "10.0.0.7:80", "10.0.0.7"),
            ("[::1]:81", "[::1]:81", "[::1]:81"),
            ("[::1]", "[::1]:80", "[::1]"),
            ("App.Internal.:8080", "app.internal:8080", "app.internal:8080"),
            ("app", "app:80", "app"),
            ("unix:/run/app.sock", "unix:/run/app.sock", "localhost"),
            ("unix:@app", "unix:@app", "localhost"),
            ("h2c://10.0.0.7:8080", "h2c://10.0.0.7:8080", "10.0.0.7:8080"),
            ("H2C://App/", "h2c://app:80", "app"),
            ("h2c://[::1]:81", "h2c://[::1]:81", "[::1]:81"),
            ("h2c+unix:/run/app.sock", "h2c+unix:/run/app.sock", "localhost"),
            ("HTTPS://App/", "https://app:443", "app"),
            ("https://app:8443", "https://app:8443", "app:8443"),
            ("https://10.0.0.7", "https://10.0.0.7:443", "10.0.0.7"),
            ("https://[::1]:80", "https://[::1]:80", "[::1]:80"),
        ] {
            let target: Target = text.parse().unwrap();
            assert_eq!((target.to_string().as_str(), target.authority().as_str()), (shown, authority));
            assert_eq!(shown.parse(), Ok(target));
        }
    }

    #[test]
    fn what_is_no_target_is_refused() {
        for text in [
            "",
            ":80",
            "a:0",
            "a:65536",
            "a:+80",
            "a:",
            "a b",
            "a/b",
            "http://a",
            "https://",
            "https://a/b",
            "https://unix:/a",
            "https://h2c://a",
            "https+unix:/a",
            "h2c://",
            "h2c://a/b",
            "h2c://unix:/a",
            "h2c://h2c://a",
            "h2c+a",
            "h2c+unix:",
            "h2c:a",
            "a:80:80",
            "::1",
            "[::1",
            "[::1]x",
            "[1.2.3.4]",
            "127.1",
            "0x7f.1",
            "1",
            "a.0x1",
            "a..b",
            "unix:",
            "user@a",
            "[fe80::1%eth0]:80",
        ] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }
}
