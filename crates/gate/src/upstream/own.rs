//! Where the gateway itself listens: no place to which a row of a store, or a script, may send requests. They would come in again, and again; or
//! reach the door of operators.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use oroshi_net::{Peer, UnixAddress};

/// The sockets on which this process listens. Clones are the same; a reload changes them for all cores.
#[derive(Clone, Debug, Default)]
pub struct OwnSockets(Arc<RwLock<Vec<Peer>>>);

impl OwnSockets {
    /// From now on these are the sockets, each as the kernel calls it.
    pub fn set(&self, sockets: Vec<Peer>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = sockets;
    }

    /// Those that there are.
    pub fn all(&self) -> Vec<Peer> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a connection to this place would be taken by this process. To be asked once for each connection: it may look at the file system.
    pub fn hold(&self, place: &Peer) -> bool {
        let sockets = self.0.read().unwrap_or_else(PoisonError::into_inner);
        sockets.iter().any(|own| match (own, place) {
            (Peer::Tcp(own), Peer::Tcp(place)) => is_same_port(*own, *place),
            (Peer::Unix(own), Peer::Unix(place)) => is_same_socket(own, place),
            _ => false,
        })
    }
}

/// Whether a listener takes what is sent to an address.
fn is_same_port(own: SocketAddr, place: SocketAddr) -> bool {
    if own.port() != place.port() {
        return false;
    }
    let (own, place) = (own.ip().to_canonical(), place.ip().to_canonical());
    // Linux takes the unspecified address for the loopback one.
    let place = match place {
        IpAddr::V4(address) if address.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
        IpAddr::V6(address) if address.is_unspecified() => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
        address => address,
    };
    match own.is_unspecified() {
        false => own == place,
        // One of IPv6 takes IPv4 as well.
        true => (own.is_ipv6() || place.is_ipv4()) && is_of_this_machine(place),
    }
}

/// Whether an address is one of this machine's.
fn is_of_this_machine(address: IpAddr) -> bool {
    if address.is_loopback() {
        return true;
    }
    // What is sent to an address of one's own comes from that address, or from a loopback one. Nothing is sent here: the kernel only chooses.
    let unspecified: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let chosen = UdpSocket::bind((unspecified, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    chosen.is_ok_and(|chosen| chosen.ip() == address || chosen.ip().is_loopback())
}

/// Whether two names lead to one socket, by whatever links and folders.
fn is_same_socket(own: &UnixAddress, place: &UnixAddress) -> bool {
    if own == place {
        return true;
    }
    let file = |path: &Path| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    match (own.as_path(), place.as_path()) {
        (Some(own), Some(place)) => file(own).is_some_and(|own| file(place) == Some(own)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
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
            sockets.set(vec![tcp("10.0.0.1:1"), tcp(own)]);
            assert_eq!(sockets.hold(&tcp(place)), holds, "{own} takes {place}");
        }
        assert!(!OwnSockets::default().hold(&tcp("127.0.0.1:80")));
    }

    #[test]
    fn a_unix_socket_is_known_by_whatever_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let _listeners = ["own", "other"].map(|name| std::os::unix::net::UnixListener::bind(at(name)).unwrap());
        std::os::unix::fs::symlink(at("own"), at("link")).unwrap();
        std::os::unix::fs::symlink(folder.path(), at("folder")).unwrap();
        let sockets = OwnSockets::default();
        let unix = |path| Peer::Unix(UnixAddress::path(path).unwrap());
        sockets.set(vec![unix(at("own")), Peer::Unix(UnixAddress::abstract_name("oroshi-own").unwrap())]);
        for (name, holds) in [("own", true), ("link", true), ("folder/own", true), ("other", false), ("none", false)] {
            assert_eq!(sockets.hold(&unix(at(name))), holds, "{name}");
        }
        assert!(sockets.hold(&Peer::Unix(UnixAddress::abstract_name("oroshi-own").unwrap())));
    }
}
