//! The gateway's own listeners. Rows and scripts may not name them as targets, because requests would loop, or reach
//! the admin listener.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, PoisonError, RwLock};

use oroshi_net::diag::FileId;
use oroshi_net::{BoundListener, Peer, UnixAddress};

/// The sockets on which this process listens. Clones share them; a reload replaces them for all cores.
#[derive(Clone, Debug, Default)]
pub struct OwnSockets(Arc<RwLock<Vec<OwnSocket>>>);

/// A socket on which this process listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnSocket {
    /// The kernel's address of the socket.
    address: Peer,
    /// The socket's file, if any. The address may be relative to a former working directory, and the file may be moved.
    file: Option<FileId>,
}

impl From<&BoundListener> for OwnSocket {
    fn from(listener: &BoundListener) -> Self {
        let address = listener.address().clone();
        let file = match &address {
            Peer::Tcp(_) => None,
            Peer::Unix(name) => FileId::of_socket(listener).or_else(|| file(name)),
        };
        OwnSocket { address, file }
    }
}

impl OwnSockets {
    /// Replaces the sockets.
    pub fn set(&self, sockets: Vec<OwnSocket>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = sockets;
    }

    /// Returns whether a connection to `place` would reach this process. May read the file system; call it once per
    /// connection.
    pub fn hold(&self, place: &Peer) -> bool {
        let sockets = self.0.read().unwrap_or_else(PoisonError::into_inner);
        sockets.iter().any(|own| match (&own.address, place) {
            (Peer::Tcp(own), Peer::Tcp(place)) => is_same_port(*own, *place),
            (Peer::Unix(address), Peer::Unix(place)) => address == place || is_same_file(own, address, place),
            _ => false,
        })
    }
}

/// Returns whether a listener receives connections to an address.
fn is_same_port(own: SocketAddr, place: SocketAddr) -> bool {
    if own.port() != place.port() {
        return false;
    }
    let (own, place) = (own.ip().to_canonical(), place.ip().to_canonical());
    // Linux treats a connection to the unspecified address as one to loopback.
    let place = match place {
        IpAddr::V4(address) if address.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
        IpAddr::V6(address) if address.is_unspecified() => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
        address => address,
    };
    match own.is_unspecified() {
        false => own == place,
        // An IPv6 listener accepts IPv4 as well.
        true => (own.is_ipv6() || place.is_ipv4()) && is_of_this_machine(place),
    }
}

/// Returns whether an address belongs to this machine.
fn is_of_this_machine(address: IpAddr) -> bool {
    if address.is_loopback() {
        return true;
    }
    // Connecting a datagram socket sends nothing; the kernel only chooses the source address. For an address of this
    // machine, the kernel chooses that address or a loopback address.
    let unspecified: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let chosen = UdpSocket::bind((unspecified, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    chosen.is_ok_and(|chosen| chosen.ip() == address || chosen.ip().is_loopback())
}

/// Returns whether two paths name one socket, through any links and directories.
fn is_same_file(own: &OwnSocket, address: &UnixAddress, place: &UnixAddress) -> bool {
    // On overlay file systems the kernel's file number may differ: there the two paths lead to one file.
    file(place).is_some_and(|place| own.file == Some(place) || file(address) == Some(place))
}

fn file(address: &UnixAddress) -> Option<FileId> {
    address.as_path().and_then(|path| FileId::at(path).ok())
}

#[cfg(test)]
mod tests {
    use oroshi_net::ListenOptions;

    use super::*;

    fn tcp(text: &str) -> Peer {
        Peer::Tcp(text.parse().unwrap())
    }

    #[test]
    fn a_listener_takes_what_is_sent_to_its_addresses() {
        for (own, place, holds) in [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("127.0.0.1:80", "127.0.0.1:81", false),
            ("127.0.0.1:80", "127.0.0.2:80", false),
            ("127.0.0.1:80", "[::ffff:127.0.0.1]:80", true),
            ("127.0.0.1:80", "0.0.0.0:80", true),
            ("[::1]:80", "[::]:80", true),
            ("0.0.0.0:80", "127.0.0.1:80", true),
            ("0.0.0.0:80", "127.9.9.9:80", true),
            ("0.0.0.0:80", "[::1]:80", false),
            ("[::]:80", "127.0.0.1:80", true),
            ("[::]:80", "[::1]:80", true),
            ("[::]:80", "0.0.0.0:80", true),
            ("[::]:80", "127.0.0.1:8080", false),
        ] {
            let sockets = OwnSockets::default();
            sockets.set(["10.0.0.1:1", own].map(|own| OwnSocket { address: tcp(own), file: None }).into());
            assert_eq!(sockets.hold(&tcp(place)), holds, "{own} takes {place}");
        }
        assert!(!OwnSockets::default().hold(&tcp("127.0.0.1:80")));
    }

    #[test]
    fn a_unix_socket_is_known_by_whatever_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let bind = |address: UnixAddress| BoundListener::bind_unix(address, &ListenOptions::default()).unwrap();
        let unix = |path| UnixAddress::path(path).unwrap();
        let abstracted = format!("oroshi-own-{}", std::process::id());
        let listeners = [bind(unix(at("own"))), bind(UnixAddress::abstract_name(abstracted.as_str()).unwrap())];
        let _other = bind(unix(at("other")));
        std::os::unix::fs::symlink(at("own"), at("link")).unwrap();
        std::os::unix::fs::symlink(folder.path(), at("folder")).unwrap();
        let sockets = OwnSockets::default();
        sockets.set(listeners.iter().map(OwnSocket::from).collect());
        let holds = |name: &str| sockets.hold(&Peer::Unix(unix(at(name))));
        for (name, held) in [("own", true), ("link", true), ("folder/own", true), ("other", false), ("none", false)] {
            assert_eq!(holds(name), held, "{name}");
        }
        assert!(sockets.hold(&Peer::Unix(UnixAddress::abstract_name(abstracted.as_str()).unwrap())));
        // The file is moved, and its path belongs to another server.
        std::fs::rename(at("own"), at("moved")).unwrap();
        assert!(holds("moved") && !holds("none"));
        let _next = bind(unix(at("next")));
        assert!(!holds("next"));
    }
}
