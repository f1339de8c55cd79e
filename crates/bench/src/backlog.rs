//! TCP listen queues that overflow during a run, and whether they belong to the measured servers.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use oroshi_net::{Peer, diag};
use oroshi_words::units::{count, plural};

/// The kernel's counts when the measured part began.
pub(crate) struct Backlogs {
    /// Overflows of all listeners of this network namespace.
    overflows: Option<u64>,
    servers: Vec<(SocketAddr, Option<Drops>)>,
}

/// Packets that the listeners at an address have dropped, each listener by its inode.
type Drops = BTreeMap<u64, u32>;

/// The listeners at a server's address, as far as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// There are none here: the server is on another machine, or in another network namespace.
    Elsewhere,
    /// The kernel does not say.
    Unknown,
    /// They dropped so many handshake packets; the shortest of their queues has room for so many connections.
    Here { dropped: u32, room: u32 },
}

impl Backlogs {
    /// Reads the counts of the listeners at these addresses.
    pub(crate) fn begin(peers: &[Vec<Peer>]) -> Self {
        let tcp = |peer: &Peer| if let Peer::Tcp(address) = peer { Some(*address) } else { None };
        let mut addresses: Vec<SocketAddr> = peers.iter().flatten().filter_map(tcp).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let drops = |address| Some(drops(&diag::listeners(address).ok()?));
        let servers = addresses.into_iter().map(|address| (address, drops(address)));
        Self { servers: servers.collect(), overflows: diag::listen_overflows() }
    }

    /// Returns warnings about overflows.
    pub(crate) fn finish(self) -> Vec<String> {
        let Some((before, after)) = self.overflows.zip(diag::listen_overflows()) else { return Vec::new() };
        let overflows = after.saturating_sub(before);
        if overflows == 0 {
            return Vec::new();
        }
        let seen = |(address, before): (SocketAddr, Option<Drops>)| (address, seen(address, before.as_ref()));
        said(overflows, &self.servers.into_iter().map(seen).collect::<Vec<_>>())
    }
}

fn drops(listeners: &[diag::Listener]) -> Drops {
    listeners.iter().map(|listener| (listener.inode, listener.dropped.unwrap_or(0))).collect()
}

fn seen(address: SocketAddr, before: Option<&Drops>) -> Seen {
    let (Some(before), Ok(now)) = (before, diag::listeners(address)) else { return Seen::Unknown };
    if now.iter().any(|listener| listener.dropped.is_none()) {
        return Seen::Unknown;
    }
    let Some(room) = now.iter().map(|listener| listener.queue.limit).min() else { return Seen::Elsewhere };
    // A listener that is new began at 0.
    let since = |(inode, dropped): (u64, u32)| dropped.saturating_sub(before.get(&inode).copied().unwrap_or(0));
    Seen::Here { dropped: drops(&now).into_iter().map(since).sum(), room }
}

/// `overflows`: of all listeners together.
fn said(overflows: u64, servers: &[(SocketAddr, Seen)]) -> Vec<String> {
    let of_theirs = |(address, seen): &(SocketAddr, Seen)| match seen {
        Seen::Here { dropped, room } if *dropped > 0 => Some(format!(
            "the backlog of the server at {address} was full (it holds {}), and {} of handshakes were dropped: the \
             server accepts too slowly, or its backlog is too short",
            plural(u64::from(*room), "connection"),
            plural(u64::from(*dropped), "packet")
        )),
        _ => None,
    };
    let known: Vec<String> = servers.iter().filter_map(of_theirs).collect();
    if known.is_empty() && servers.iter().any(|(_, seen)| *seen == Seen::Unknown) {
        return vec![format!(
            "{} connections found a listen backlog full, of whatever program on this machine (ListenOverflows, which \
             the kernel counts for all listeners of the network namespace together): if it is the server's, it \
             accepts too slowly, or its backlog is too short",
            count(overflows)
        )];
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overflow_is_the_server_s_only_where_its_listener_dropped_something() {
        let address: SocketAddr = "127.0.0.1:8080".parse().unwrap();
        let of = |seen: &[Seen]| said(7, &seen.iter().map(|seen| (address, *seen)).collect::<Vec<_>>());
        let (idle, full) = (Seen::Here { dropped: 0, room: 128 }, Seen::Here { dropped: 3, room: 128 });
        for quiet in [&[][..], &[idle], &[Seen::Elsewhere], &[idle, Seen::Elsewhere]] {
            assert_eq!(of(quiet), [""; 0], "{quiet:?}");
        }
        let said = of(&[full, Seen::Unknown]);
        assert_eq!(said.len(), 1);
        let expected = "the backlog of the server at 127.0.0.1:8080 was full (it holds 128 connections), and 3 packets";
        assert!(said[0].starts_with(expected), "{said:?}");
        let unknown = of(&[Seen::Unknown]);
        assert!(unknown[0].starts_with("7 connections") && unknown[0].contains("of whatever program"), "{unknown:?}");
    }
}
