//! Opens connections to a target: resolves its name, and refuses addresses that are not allowed.

use std::net::{IpAddr, SocketAddr};

use oroshi_core::{Names, Registration, Ttl, after};
use oroshi_lookup::Protocol;
use oroshi_net::tls::TlsError;
use oroshi_net::{ConnectError, Peer, Stream, monotonic_ns};

use super::engine::Engine;
use super::pool::{AcquireLimits, Pool, PoolSettings};
use super::secure::TlsProtocol;
use super::target::Place;
use crate::failure::{Failure, ForwardError};

/// An opened connection.
pub(super) struct Dialled {
    pub(super) stream: Stream,
    /// How many of the first bytes were sent.
    pub(super) sent: usize,
    /// When the connection was opened.
    pub(super) at: u64,
    /// The remote address; `None` for a unix socket.
    pub(super) address: Option<SocketAddr>,
    /// The version of the settings that allowed the address.
    pub(super) version: u64,
    /// [`UpstreamTls::id`](super::UpstreamTls::id); 0 without TLS.
    pub(super) tls: u64,
}

impl Pool {
    /// Opens a connection, and secures it. Without TLS, the connect may send part of `first`. `offer`: the protocols to
    /// offer by ALPN, where the settings leave the choice.
    pub(super) async fn dial(
        &self,
        offer: TlsProtocol,
        registration: &Registration<Engine>,
        limits: AcquireLimits,
        first: &[u8],
    ) -> Result<Dialled, ForwardError> {
        if self.target().protocol != Protocol::Http1 && self.settings.borrow().proxy_protocol.is_some() {
            let why = || "the PROXY protocol is sent to targets of HTTP/1.1 in cleartext alone".to_owned();
            return Err(ForwardError::unsent(Failure::NotAllowed, why));
        }
        let mut now = monotonic_ns();
        let due = after(now, limits.connect).min(limits.total);
        let overdue = || match due == limits.total {
            true => ForwardError::unsent(Failure::TotalTimeout, String::new),
            false => ForwardError::unsent(Failure::ConnectTimeout, || self.target().to_string()),
        };
        registration.set(due);
        let (secure, first) = match self.is_secure() {
            true => (Some(self.tls()?), &b""[..]),
            false => (None, first),
        };
        // The version before connecting: later settings may not allow the address.
        let version = self.settings.borrow().version;
        let peers = match &self.target().place {
            Place::Peer(peer) => {
                let refused = |address: SocketAddr| ForwardError::unsent(Failure::NotAllowed, || address.to_string());
                match peer {
                    Peer::Tcp(address) if !self.allows(*address) => return Err(refused(*address)),
                    peer => vec![peer.clone()],
                }
            }
            Place::Name { host, port } => {
                registration.bound(self.resolve(host, *port)).await.unwrap_or_else(|| Err(overdue()))?
            }
        };
        if let Some(own) = peers.iter().find(|peer| self.is_own(peer)) {
            return Err(self.refuse_own(own));
        }
        let mut last = None;
        for (place, peer) in peers.iter().enumerate() {
            // Each address gets an equal share of the remaining time.
            now = monotonic_ns();
            let share = due.saturating_sub(now) / (peers.len() - place) as u64;
            registration.set(if place + 1 == peers.len() { due } else { now + share });
            let connecting = self.engine().connector.connect_sending(peer, None, first);
            match registration.bound(connecting).await {
                Some(Ok(connected)) => {
                    self.counters.connects.add(1);
                    let address = match peer {
                        Peer::Tcp(address) => Some(*address),
                        Peer::Unix(_) => None,
                    };
                    self.address.set(address.map(|address| address.ip()).or(self.address.get()));
                    let (mut stream, sent, at) = (connected.stream, connected.sent, connected.at);
                    let Some((tls, host)) = &secure else {
                        return Ok(Dialled { stream, sent, at, address, version, tls: 0 });
                    };
                    match registration.bound(tls.connect(host, offer, stream)).await {
                        Some(Ok(secured)) => stream = secured,
                        Some(Err(error)) => {
                            last = Some(ForwardError::tls(peer, &error));
                            continue;
                        }
                        None => {
                            last = Some(match due == limits.total && monotonic_ns() >= due {
                                true => overdue(),
                                false => ForwardError::tls(peer, &TlsError::Timeout),
                            });
                            continue;
                        }
                    }
                    self.counters.handshakes.add(1);
                    self.counters.resumed.add(u64::from(stream.is_resumed()));
                    return Ok(Dialled { stream, sent: 0, at: monotonic_ns(), address, version, tls: tls.id() });
                }
                // Registering an already connected socket can fail too, and has no error kind of its own.
                Some(Err(error @ ConnectError::Io(_))) if !first.is_empty() => {
                    return Err(ForwardError { sent: true, ..ForwardError::connect(peer, &error) });
                }
                Some(Err(error)) => last = Some(ForwardError::connect(peer, &error)),
                None => last = Some(overdue()),
            }
        }
        Err(last.unwrap_or_else(overdue))
    }

    async fn resolve(&self, host: &str, port: u16) -> Result<Vec<Peer>, ForwardError> {
        let settings = self.settings.borrow().clone();
        let names = self.engine().names(Ttl { positive: settings.name_ttl, negative: settings.name_negative_ttl });
        let addresses = Names::resolve(&names, host)
            .await
            .map_err(|error| ForwardError::unsent(Failure::Resolve, || format!("{host}: {error}")))?;
        let mut peers = allowed(&addresses, port, &settings);
        if peers.is_empty() {
            return Err(ForwardError::unsent(Failure::NotAllowed, || format!("{host} is {addresses:?}")));
        }
        let answered_last =
            |peer: &Peer| matches!(peer, Peer::Tcp(address) if Some(address.ip()) == self.address.get());
        if let Some(place) = peers.iter().position(answered_last) {
            peers[..=place].rotate_right(1);
        }
        Ok(peers)
    }

    /// Returns whether the settings allow an address.
    pub(super) fn allows(&self, address: SocketAddr) -> bool {
        self.settings.borrow().allow.as_ref().is_none_or(|allow| allow(canonical(address)))
    }

    /// Returns whether the peer is a listener of this gateway.
    fn is_own(&self, peer: &Peer) -> bool {
        self.settings.borrow().own.as_ref().is_some_and(|own| own.hold(peer))
    }

    /// Refuses a listener of this gateway as a target, and warns in the log, at a limited rate.
    #[cold]
    fn refuse_own(&self, own: &Peer) -> ForwardError {
        let mut told = self.engine().own_told.get();
        if let Some(count) = told.next(std::time::Instant::now()) {
            let target = self.target();
            tracing::warn!(
                count,
                "a row or a script names `{target}` for a server, which is {own}, where this gateway itself listens: \
                 answered 502"
            );
        }
        self.engine().own_told.set(told);
        ForwardError::unsent(Failure::OwnAddress, || format!("{own} is where this gateway itself listens"))
    }
}

/// Returns the allowed addresses of a name.
fn allowed(addresses: &[IpAddr], port: u16, settings: &PoolSettings) -> Vec<Peer> {
    let allow = |address: &SocketAddr| settings.allow.as_ref().is_none_or(|allow| allow(canonical(*address)));
    addresses.iter().map(|&address| SocketAddr::new(address, port)).filter(allow).map(Peer::Tcp).collect()
}

/// Converts an IPv4-mapped address to IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
