//! From a target's name to its addresses: asked off the thread, one look-up for all who want it at once, kept for a while.
//!
//! getaddrinfo(3) tells no TTL, so an answer is kept for as long as the settings say.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use oroshi_net::{Peer, monotonic_ns};
use tokio::sync::Mutex;

use super::clock::after;
use super::pool::{PoolSettings, canonical};

/// What is known of one name.
#[derive(Debug, Default)]
pub(crate) struct Name {
    /// Held while it is looked up, so that whoever else wants it waits for the same answer; given back when its holder is dropped.
    known: Mutex<Option<Known>>,
}

#[derive(Debug)]
struct Known {
    answer: Result<Rc<[IpAddr]>, Rc<str>>,
    until: u64,
}

impl Name {
    /// The addresses of `host`, in the resolver's order, or why there are none.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(crate) async fn addresses(&self, host: &str, settings: &PoolSettings) -> Result<Rc<[IpAddr]>, Rc<str>> {
        let mut known = self.known.lock().await;
        if let Some(Known { answer, until }) = &*known
            && monotonic_ns() < *until
        {
            return answer.clone();
        }
        let answer = look_up(host).await.map_err(|error| Rc::from(error.to_string()));
        let ttl = if answer.is_ok() { settings.name_ttl } else { settings.name_negative_ttl };
        *known = Some(Known { answer: answer.clone(), until: after(monotonic_ns(), ttl) });
        answer
    }
}

async fn look_up(host: &str) -> io::Result<Rc<[IpAddr]>> {
    let mut addresses = Vec::new();
    for address in tokio::net::lookup_host((host, 0)).await? {
        if !addresses.contains(&address.ip()) {
            addresses.push(address.ip());
        }
    }
    match addresses.is_empty() {
        true => Err(io::Error::other("the name has no address")),
        false => Ok(addresses.into()),
    }
}

/// The places that a look-up's answer leads to, as far as they are allowed.
pub(crate) fn allowed(addresses: &[IpAddr], port: u16, settings: &PoolSettings) -> Vec<Peer> {
    let allow = |address: &SocketAddr| settings.allow.as_ref().is_none_or(|allow| allow(canonical(*address)));
    addresses.iter().map(|&address| SocketAddr::new(address, port)).filter(allow).map(Peer::Tcp).collect()
}
