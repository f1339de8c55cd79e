//! Addresses for scripts: `wrk.lookup` and `wrk.connect`.

use std::ffi::OsStr;
use std::fs;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use oroshi_net::{Peer, UnixAddress};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

/// Timeout of `wrk.connect`: the default timeout of a request.
const CONNECT: Duration = Duration::from_secs(2);

/// Prefix of hosts that are unix sockets.
const UNIX: &[u8] = b"unix:";

/// Formats an address for scripts: `127.0.0.1:80`, `[::1]:80`, `unix:/run/app.sock` or `unix:@name`.
pub(crate) fn text(peer: &Peer) -> Vec<u8> {
    let Peer::Unix(address) = peer else { return peer.to_string().into_bytes() };
    let (mark, name): (&[u8], &[u8]) = match address.as_path() {
        Some(path) => (b"", path.as_os_str().as_bytes()),
        None => (b"@", address.as_abstract().unwrap_or_default()),
    };
    [UNIX, mark, name].concat()
}

/// Parses that text.
pub(crate) fn from_text(text: &[u8]) -> Result<Peer, String> {
    let Some(name) = text.strip_prefix(UNIX) else {
        let address = String::from_utf8_lossy(text);
        return address.parse::<SocketAddr>().map(Peer::Tcp).map_err(|error| format!("`{address}`: {error}"));
    };
    let address = match name.strip_prefix(b"@") {
        Some(name) => UnixAddress::abstract_name(name),
        None => UnixAddress::path(OsStr::from_bytes(name)),
    };
    address.map(Peer::Unix).map_err(|error| error.to_string())
}

/// Returns all addresses of a host and a service (a port, or a name such as `http`). `unix:/run/app.sock` and
/// `unix:@name` are hosts too.
///
/// # Errors
/// The reason why there is none.
pub(crate) fn lookup(host: &[u8], service: Option<&str>) -> Result<Vec<Peer>, String> {
    if host.starts_with(UNIX) {
        return from_text(host).map(|peer| vec![peer]);
    }
    let host = &*String::from_utf8_lossy(host);
    let shown = service.map_or_else(|| host.to_owned(), |service| format!("{host}:{service}"));
    let port = service.map_or(Ok(0), port).map_err(|why| format!("unable to resolve {shown}: {why}"))?;
    let found = (host, port).to_socket_addrs().map_err(|error| format!("unable to resolve {shown}: {error}"))?;
    Ok(found.map(Peer::Tcp).collect())
}

/// Whether something listens at the address.
pub(crate) fn connect(peer: &Peer) -> bool {
    match peer {
        Peer::Tcp(address) => TcpStream::connect_timeout(address, CONNECT).is_ok(),
        Peer::Unix(address) => unix(address),
    }
}

fn unix(address: &UnixAddress) -> bool {
    let address = match address.as_path() {
        Some(path) => SocketAddrUnix::new(path.as_os_str().as_bytes()),
        None => SocketAddrUnix::new_abstract_name(address.as_abstract().unwrap_or_default()),
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let connected = address.and_then(|address| {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &address)
    });
    // EAGAIN: the listener's backlog is full.
    matches!(connected, Ok(()) | Err(Errno::AGAIN))
}

/// Returns the port of a service, given as a number or a name.
fn port(service: &str) -> Result<u16, String> {
    match service {
        "http" => Ok(80),
        "https" => Ok(443),
        _ if service.bytes().all(|byte| byte.is_ascii_digit()) => {
            service.parse().map_err(|_| format!("`{service}` is no port: expected a number up to 65535"))
        }
        _ => fs::read_to_string("/etc/services")
            .ok()
            .and_then(|services| port_in(&services, service))
            .ok_or_else(|| format!("the service `{service}` is not known: expected a port")),
    }
}

/// Finds a TCP service in the text of services(5).
fn port_in(services: &str, name: &str) -> Option<u16> {
    services.lines().find_map(|line| {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let (first, port) = (words.next()?, words.next()?);
        let port = port.strip_suffix("/tcp")?;
        (first == name || words.any(|alias| alias == name)).then(|| port.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_as_text() {
        for address in ["127.0.0.1:80", "[::1]:8080", "unix:/run/app.sock", "unix:relative", "unix:@name"] {
            assert_eq!(text(&from_text(address.as_bytes()).unwrap()), address.as_bytes());
        }
        let odd = b"unix:/a\xff\n";
        assert_eq!(text(&from_text(odd).unwrap()), odd);
        let abstract_name = Peer::Unix(UnixAddress::abstract_name(b"a\0b".as_slice()).unwrap());
        assert_eq!(from_text(&text(&abstract_name)), Ok(abstract_name));
        for wrong in ["", "127.0.0.1", "localhost:80", "unix:", "unix:@"] {
            assert!(from_text(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn services_are_found_by_name_and_by_alias() {
        let services =
            "# a comment\n\nhttp-alt\t8080/tcp  webcache # more\nntp 123/udp\nntp 124/tcp\nbad\nworse x/tcp\n";
        let found = ["http-alt", "webcache", "ntp", "more", "bad", "worse", "#"].map(|name| port_in(services, name));
        assert_eq!(found, [Some(8080), Some(8080), Some(124), None, None, None, None]);
        assert_eq!((port("http"), port("https"), port("0081")), (Ok(80), Ok(443), Ok(81)));
    }
}
