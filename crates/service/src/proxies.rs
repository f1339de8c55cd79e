//! The load balancers in front of a service that send a header of the PROXY protocol.

use oroshi_net::{Peer, Stream};
use oroshi_server::Proxied;

use crate::network::Network;

/// The proxies in front of public listeners. Each of their connections must begin with a header of the PROXY protocol,
/// which names the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxies {
    /// Their addresses.
    pub trusted: Vec<Network>,
    /// Whether peers on a unix socket are proxies.
    pub trust_unix: bool,
}

impl Proxies {
    /// Returns whether the peer of a new connection is a proxy. Costs a system call if there are proxies.
    #[must_use]
    pub fn contain(&self, stream: &Stream) -> bool {
        if self.is_empty() {
            return false;
        }
        match stream.peer_address() {
            Ok(Some(Peer::Tcp(address))) => self.trusted.iter().any(|network| network.contains(address.ip())),
            Ok(_) => self.trust_unix,
            // The peer has reset the connection.
            Err(_) => false,
        }
    }

    /// Returns whether no peer is a proxy.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.trusted.is_empty() && !self.trust_unix
    }

    /// Returns the decision for a listener; `None`: no peer is a proxy.
    #[must_use]
    pub fn proxied(&self) -> Option<Proxied> {
        let proxies = self.clone();
        (!self.is_empty()).then(|| Proxied::new(move |stream| proxies.contain(stream)))
    }
}
