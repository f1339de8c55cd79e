//! Listening addresses in the form of `start_server`'s `--port` and `--path`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::RawFd;

use oroshi_net::UnixAddress;
use oroshi_net::address::UnixAddressError;

/// A configured socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketSpec {
    /// Its name in SERVER_STARTER_PORT: `8080`, `127.0.0.1:8080`, `[::1]:8080`, `/run/app.sock`, `@name`.
    pub name: String,
    /// Its kind and address.
    pub kind: Kind,
    /// Its descriptor in the command, if configured.
    pub descriptor: Option<RawFd>,
}

/// A socket's kind and address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A listening TCP socket.
    Tcp(Host, u16),
    /// A UDP socket.
    Udp(Host, u16),
    /// A listening unix socket.
    Unix(UnixAddress),
}

/// The part before the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// None: every IPv4 address of this machine, as in `start_server`.
    Any,
    /// An IPv6 address; the socket accepts only IPv6.
    V6(Ipv6Addr),
    /// An IPv4 address, or a name that is resolved when the socket is made.
    Named(String),
}

impl SocketSpec {
    /// Parses the value of `--port`: `8080`, `127.0.0.1:8080`, `name:8080`, `[::1]:8080`, with `u` before the port
    /// for UDP (`u5353`), and an optional descriptor (`8080=5`). Port 0 is a free one.
    ///
    /// # Errors
    /// A message with the expected form.
    pub fn port(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "`{text}` is no port: expected 8080, 127.0.0.1:8080 or [::1]:8080, perhaps with the number of a \
                 descriptor (8080=5); for UDP u5353, 127.0.0.1:u5353 or [::1]:u5353"
            )
        };
        let (address, descriptor) = match text.split_once('=') {
            Some((address, number)) => (address, Some(descriptor(number).ok_or_else(expected)?)),
            None => (text, None),
        };
        let address = address.trim();
        let (host, port) = match address.rsplit_once(':') {
            Some((host, port)) => (Some(host), port.trim_start()),
            None => (None, address),
        };
        let (is_udp, digits) = match port.strip_prefix('u') {
            Some(digits) => (true, digits),
            None => (false, port),
        };
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(expected());
        }
        let number: u16 =
            digits.parse().map_err(|_| format!("`{text}`: `{digits}` is no port: expected 0 to 65535"))?;
        let host = host.map(|host| host.trim().trim_start_matches('[').trim_end_matches(']').trim());
        let (host, name) = match host {
            None => (Host::Any, digits.to_owned()),
            Some("") => return Err(expected()),
            Some(host) if host.contains(':') => {
                let ip = host.parse().map_err(|_| expected())?;
                (Host::V6(ip), format!("[{host}]:{digits}"))
            }
            Some(host) if host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) => {
                (Host::Named(host.to_owned()), format!("{host}:{digits}"))
            }
            Some(_) => return Err(expected()),
        };
        let kind = if is_udp { Kind::Udp(host, number) } else { Kind::Tcp(host, number) };
        Ok(SocketSpec { name, kind, descriptor })
    }

    /// Parses the value of `--path`: a path, or `@` and a name in the abstract namespace.
    ///
    /// # Errors
    /// When it cannot name a unix socket.
    pub fn path(text: &str) -> Result<Self, UnixAddressError> {
        Ok(SocketSpec { name: text.to_owned(), kind: Kind::Unix(UnixAddress::parse(text)?), descriptor: None })
    }
}

impl Host {
    /// Returns the address to bind: for a name, its first IPv4 address, or its first address if it has none.
    ///
    /// # Errors
    /// The resolver's error.
    pub(crate) fn resolve(&self, port: u16) -> std::io::Result<SocketAddr> {
        match self {
            Host::Any => Ok((Ipv4Addr::UNSPECIFIED, port).into()),
            Host::V6(ip) => Ok((*ip, port).into()),
            Host::Named(name) => {
                if let Ok(ip) = name.parse::<Ipv4Addr>() {
                    return Ok((IpAddr::V4(ip), port).into());
                }
                let found: Vec<SocketAddr> = (name.as_str(), port).to_socket_addrs()?.collect();
                let best = found.iter().find(|address| address.is_ipv4()).or_else(|| found.first());
                best.copied().ok_or_else(|| std::io::ErrorKind::NotFound.into())
            }
        }
    }
}

fn descriptor(text: &str) -> Option<RawFd> {
    let text = text.trim();
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Assigns a descriptor to each socket: the configured one, or the lowest free one from 3 on, where systemd's
/// protocol expects them.
pub(crate) fn descriptors(specs: &[SocketSpec]) -> Vec<RawFd> {
    let pinned = |number: RawFd| specs.iter().any(|spec| spec.descriptor == Some(number));
    let mut free = (3..).filter(|number| !pinned(*number));
    specs.iter().filter_map(|spec| spec.descriptor.or_else(|| free.next())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_as_start_server_reads_them() {
        let named = |host: &str| Host::Named(host.into());
        for (text, name, kind, descriptor) in [
            ("8080", "8080", Kind::Tcp(Host::Any, 8080), None),
            (" 8080 ", "8080", Kind::Tcp(Host::Any, 8080), None),
            ("0", "0", Kind::Tcp(Host::Any, 0), None),
            ("8080=5", "8080", Kind::Tcp(Host::Any, 8080), Some(5)),
            ("8080=0", "8080", Kind::Tcp(Host::Any, 8080), Some(0)),
            ("u53", "53", Kind::Udp(Host::Any, 53), None),
            ("127.0.0.1:80", "127.0.0.1:80", Kind::Tcp(named("127.0.0.1"), 80), None),
            ("localhost:u80=7", "localhost:80", Kind::Udp(named("localhost"), 80), Some(7)),
            ("[::1]:80", "[::1]:80", Kind::Tcp(Host::V6(Ipv6Addr::LOCALHOST), 80), None),
            ("[::1]:80=4", "[::1]:80", Kind::Tcp(Host::V6(Ipv6Addr::LOCALHOST), 80), Some(4)),
            ("::1:80", "[::1]:80", Kind::Tcp(Host::V6(Ipv6Addr::LOCALHOST), 80), None),
        ] {
            assert_eq!(SocketSpec::port(text), Ok(SocketSpec { name: name.into(), kind, descriptor }), "{text}");
        }
        for bad in ["", "x", "80=", "80=x", "80=-1", ":80", "a b:80", "[::g]:80", "127.0.0.1:", "http://a:80", "65536"]
        {
            let error = SocketSpec::port(bad).unwrap_err();
            assert!(error.contains(bad) && error.contains("expected"), "{error}");
        }
    }

    #[test]
    fn paths_name_files_or_abstract_sockets() {
        assert_eq!(SocketSpec::path("/run/a=b.sock").unwrap().name, "/run/a=b.sock");
        let Kind::Unix(address) = SocketSpec::path("@a").unwrap().kind else { panic!() };
        assert_eq!(address.as_abstract(), Some(&b"a"[..]));
        assert!(SocketSpec::path("").is_err());
    }

    #[test]
    fn descriptors_fill_the_gaps_between_those_asked_for() {
        let numbers = |texts: &[&str]| {
            let specs: Vec<SocketSpec> = texts.iter().map(|text| SocketSpec::port(text).unwrap()).collect();
            descriptors(&specs)
        };
        assert_eq!(numbers(&["1", "2", "3"]), [3, 4, 5]);
        assert_eq!(numbers(&["1", "2=3", "3=5", "4", "5"]), [4, 3, 5, 6, 7]);
        assert_eq!(numbers(&["1=0", "2"]), [0, 3]);
    }
}
