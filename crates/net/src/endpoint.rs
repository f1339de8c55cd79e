//! The grammar of endpoints: `http://host:port/path`, `https://...`, `unix:/run/app.sock`,
//! `unix:/run/app.sock:/path?query`, `unix:@abstract-name:/path`, `http+unix://%2Frun%2Fapp.sock/path`,
//! `https+unix://...`.

mod join;
mod parse;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;

use crate::address::{Peer, UnixAddress, UnixAddressError};
pub use join::JoinError;
pub use parse::percent_decoded;

/// The protocol of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Plain HTTP.
    Http,
    /// HTTP inside TLS.
    Https,
}

impl Scheme {
    /// `http` or `https`.
    pub fn as_str(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    /// The port when a URL names none: 80 or 443.
    pub fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

/// The address of an endpoint, before name resolution.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A host, as a name or an IP address (IPv6 without its brackets), and a port.
    Tcp {
        /// In lower case. Shared, because requests copy their endpoint.
        host: Arc<str>,
        /// 1 to 65535.
        port: u16,
    },
    /// A unix stream socket.
    Unix(UnixAddress),
}

/// An address with the Host and the target of requests to it.
///
/// [`FromStr`] parses the grammar above and refuses characters that would break a request line; [`fmt::Display`]
/// prints the canonical text. It also accepts `unix:///run/app.sock` and nginx's `http://unix:/run/app.sock:/path`.
/// In the `unix:` form the socket's name ends at the first `:/`; use the percent-encoded `http+unix://` form for a
/// name that contains it. A fragment (`#...`) is dropped, because clients never send it (RFC 9110, section 7.1).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Plain or TLS.
    pub scheme: Scheme,
    /// Address to connect to.
    pub address: Address,
    /// The Host header, for example `localhost:8080`: the port only if it is not the scheme's default (RFC 9110,
    /// section 7.2); `localhost` for a unix socket.
    pub authority: Arc<str>,
    /// The request target in origin form: path and query, `/` when absent.
    pub target: String,
}

impl Endpoint {
    /// Returns the same request over a unix socket (wrk's `-P`): scheme, Host and target stay. The [`fmt::Display`]
    /// text then lacks the Host.
    #[must_use]
    pub fn with_unix(self, address: UnixAddress) -> Self {
        Endpoint { address: Address::Unix(address), ..self }
    }

    /// The host without port and brackets: the name that a TLS certificate must have.
    pub fn host(&self) -> &str {
        let authority = &*self.authority;
        if let Some(bracketed) = authority.strip_prefix('[') {
            return bracketed.split(']').next().unwrap_or(bracketed);
        }
        authority.split(':').next().unwrap_or(authority)
    }

    /// Resolves the endpoint to all its addresses, in the resolver's order, without repetition.
    ///
    /// Names are looked up with getaddrinfo on tokio's blocking pool; an IP address or a unix socket costs nothing.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn peers(&self) -> Result<Vec<Peer>, ResolveError> {
        let (host, port) = match &self.address {
            Address::Unix(address) => return Ok(vec![Peer::Unix(address.clone())]),
            Address::Tcp { host, port } => (host, *port),
        };
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(vec![Peer::Tcp(SocketAddr::new(ip, port))]);
        }
        let found = tokio::net::lookup_host((&**host, port))
            .await
            .map_err(|source| ResolveError::Failed { host: host.to_string(), source })?;
        let mut peers = Vec::new();
        for address in found {
            let peer = Peer::Tcp(address);
            if !peers.contains(&peer) {
                peers.push(peer);
            }
        }
        if peers.is_empty() {
            return Err(ResolveError::NoAddress { host: host.to_string() });
        }
        Ok(peers)
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        parse::endpoint(text)
    }
}

/// Prints the canonical text, which parses to the same endpoint.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Endpoint { scheme, address, authority, target } = self;
        let address = match address {
            Address::Tcp { .. } => return write!(f, "{}://{authority}{target}", scheme.as_str()),
            Address::Unix(address) => address,
        };
        let name = address.text_bytes();
        if *scheme == Scheme::Http && parse::reads_back(&name) {
            write!(f, "unix:{address}")?;
            return if target == "/" { Ok(()) } else { write!(f, ":{target}") };
        }
        write!(f, "{}+unix://{}{target}", scheme.as_str(), parse::percent_encoded(&name))
    }
}

/// The reason why a text is not an endpoint. Every message has the value, what was expected and what to write
/// instead.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EndpointError {
    /// Give a URL.
    #[error("the URL is empty: expected for example http://localhost:8080/ or unix:/run/app.sock")]
    Empty,
    /// Add the scheme, as the message suggests.
    #[error("`{value}` has no scheme: did you mean {suggestion} ?")]
    NoScheme {
        /// The given text.
        value: String,
        /// The same with a scheme.
        suggestion: String,
    },
    /// Use one of the known schemes.
    #[error(
        "`{value}`: unknown scheme `{scheme}`: expected http, https, unix, http+unix or https+unix; \
         did you mean {nearest}?"
    )]
    UnknownScheme {
        /// The given text.
        value: String,
        /// The part before the colon.
        scheme: String,
        /// The most similar known scheme.
        nearest: &'static str,
    },
    /// Write a host after `//`.
    #[error("`{value}` names no host: expected for example {example}")]
    NoHost {
        /// The given text.
        value: String,
        /// A valid URL of that scheme.
        example: &'static str,
    },
    /// Correct the host; write names outside ASCII in their `xn--` form.
    #[error("`{value}`: `{host}` is no host: {why}")]
    Host {
        /// The given text.
        value: String,
        /// The invalid host.
        host: String,
        /// The expected form.
        why: &'static str,
    },
    /// Write a port from 1 to 65535, or none.
    #[error(
        "`{value}`: `{port}` is no port: expected a number from 1 to 65535, or no colon for the default, {default}"
    )]
    Port {
        /// The given text.
        value: String,
        /// The invalid port.
        port: String,
        /// The scheme's default port.
        default: u16,
    },
    /// Remove `user:password@` and send an Authorization header instead. The message does not repeat the URL, because
    /// it contains a secret.
    #[error(
        "the URL for `{host}` holds a user name or password before the `@`, which is never sent: \
         take it out and send an Authorization header"
    )]
    Userinfo {
        /// The part after the `@`.
        host: String,
    },
    /// Percent-encode the character.
    #[error("`{value}`: {character} at byte {position} cannot stand in a request line: write it as {instead}")]
    Character {
        /// The given text.
        value: String,
        /// The character, named or quoted.
        character: String,
        /// Its offset in the text, in bytes, from 0.
        position: usize,
        /// The replacement for it.
        instead: String,
    },
    /// Write `%` and two hexadecimal digits; a `%` itself is `%25`.
    #[error(
        "`{value}`: the percent-encoding at byte {position} of the socket's name is broken: \
         expected % and two hexadecimal digits"
    )]
    PercentEncoding {
        /// The given text.
        value: String,
        /// The offset of the `%` in the socket's name, in bytes, from 0.
        position: usize,
    },
    /// Correct the socket's name; the cause says what is wrong with it.
    #[error("`{value}` names no unix socket")]
    Unix {
        /// The given text.
        value: String,
        /// The defect of the name.
        source: UnixAddressError,
    },
}

/// The reason why a host name has no address.
#[derive(Debug, Error)]
pub enum ResolveError {
    /// Check the spelling, /etc/hosts and the name server.
    #[error("could not resolve the host name {host}")]
    Failed {
        /// The name.
        host: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// The name exists but has no address: check its A and AAAA records.
    #[error("the host name {host} has no address")]
    NoAddress {
        /// The name.
        host: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Endpoint {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn peers_of_addresses_need_no_resolver() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let peers = |text: &str| runtime.block_on(read(text).peers()).unwrap();
        assert_eq!(peers("http://127.0.0.2:81/"), [Peer::Tcp("127.0.0.2:81".parse().unwrap())]);
        assert_eq!(peers("https://[::1]/"), [Peer::Tcp("[::1]:443".parse().unwrap())]);
        assert_eq!(peers("unix:@a:/x"), [Peer::Unix(UnixAddress::parse("@a").unwrap())]);
    }

    #[test]
    fn a_name_resolves_and_a_missing_one_says_so() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let peers = runtime.block_on(read("http://localhost:8080/").peers()).unwrap();
        assert!(peers.iter().all(|peer| matches!(peer, Peer::Tcp(address) if address.ip().is_loopback())), "{peers:?}");
        let error = runtime.block_on(read("http://no-such-host.invalid/").peers()).unwrap_err();
        assert!(error.to_string().contains("no-such-host.invalid"), "{error}");
    }

    #[test]
    fn with_unix_keeps_the_host_and_the_target() {
        let endpoint = read("http://example.com:81/a?b").with_unix(UnixAddress::parse("/run/app.sock").unwrap());
        assert_eq!(&*endpoint.authority, "example.com:81");
        assert_eq!(endpoint.host(), "example.com");
        assert_eq!(endpoint.target, "/a?b");
        assert_eq!(endpoint.to_string(), "unix:/run/app.sock:/a?b");
    }

    #[test]
    fn host_is_the_name_of_the_certificate() {
        for (text, host) in [
            ("https://Example.com/", "example.com"),
            ("https://example.com:8443/", "example.com"),
            ("https://[::1]:8443/", "::1"),
            ("https+unix://%2Fa/", "localhost"),
        ] {
            assert_eq!(read(text).host(), host, "{text}");
        }
    }
}
