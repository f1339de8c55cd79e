//! Connections that carry many requests at a time, those of HTTP/2.
//!
//! - A request takes a place on an open connection of its origin, the oldest that has room. Without room it asks for a
//!   connection like any other request.
//! - An origin of unknown version opens one connection, and its other requests wait for the answer. If that is HTTP/1
//!   they go on as usual; if it failed, each tries for itself.
//! - An origin with such connections opens another when all are full, and several when more requests wait than fit.
//! - At the total cap, an origin gives up its connection for an origin that has none: it takes no more requests, and
//!   ends with its last one. Otherwise it could carry requests for ever.

use super::{Grant, HostId, Key, Pool};

/// A connection that carries many requests at a time. Cheap to clone.
pub(crate) trait Shared: Clone {
    /// The right to begin one request.
    type Place;
    /// Takes a place, if there is one.
    fn reserve(&self) -> Option<Self::Place>;
    /// Returns the most requests at once, once it is known.
    fn limit(&self) -> Option<usize>;
    /// Whether it takes new requests, now or later.
    fn is_open(&self) -> bool;
    /// Whether it has ended.
    fn is_ended(&self) -> bool;
    /// Whether it carries no request.
    fn is_idle(&self) -> bool;
    /// Makes it take no more requests, and end with its last one.
    fn close(&self);
}

/// For pools without such connections.
impl Shared for std::convert::Infallible {
    type Place = Self;

    fn reserve(&self) -> Option<Self> {
        match *self {}
    }

    fn limit(&self) -> Option<usize> {
        match *self {}
    }

    fn is_open(&self) -> bool {
        match *self {}
    }

    fn is_ended(&self) -> bool {
        match *self {}
    }

    fn is_idle(&self) -> bool {
        match *self {}
    }

    fn close(&self) {
        match *self {}
    }
}

/// The shared connections of an origin, and what is known about its version.
#[derive(Debug)]
pub(super) struct SharedOf<S> {
    pub(super) connections: Vec<Entry<S>>,
    /// Permits to connect, of which the outcome is not known.
    pub(super) connecting: usize,
    version: Version,
    /// The most requests at once on the last connection that has told; no limit before.
    limit: usize,
}

/// The version of an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// One connection finds out.
    Unknown,
    /// A connection was not made: each request tries for itself.
    Unreachable,
    /// Each connection carries one request at a time.
    Single,
    Shared,
}

/// A shared connection.
#[derive(Debug)]
pub(super) struct Entry<S> {
    pub(super) connection: S,
    /// From when on it takes no more requests.
    retire_at: u64,
    /// While idle: its turn, and when it is closed.
    pub(super) idle: Option<(u64, u64)>,
}

impl<S> Default for SharedOf<S> {
    fn default() -> Self {
        SharedOf { connections: Vec::new(), connecting: 0, version: Version::Unknown, limit: usize::MAX }
    }
}

impl<S: Shared> SharedOf<S> {
    /// Whether another connection may be opened for `waiting` requests.
    pub(super) fn may_connect(&self, waiting: usize) -> bool {
        match self.version {
            Version::Unknown => self.connecting == 0,
            Version::Unreachable | Version::Single => true,
            Version::Shared => {
                let is_pending = |entry: &&Entry<S>| {
                    // A server that allows none may allow some later.
                    entry.connection.is_open() && entry.connection.limit().is_none_or(|limit| limit == 0)
                };
                let pending = self.connecting + self.connections.iter().filter(is_pending).count();
                pending.saturating_mul(self.limit.max(1)) < waiting.max(1)
            }
        }
    }
}

impl<K: Key, C, S: Shared> Pool<K, C, S> {
    /// Notes the outcome of a permit to connect: a connection for one request at a time.
    pub(crate) fn connected(&mut self, host: HostId) {
        self.outcome(host, Version::Single);
    }

    /// Notes that an attempt to connect has failed. The permit is still to be given up.
    pub(crate) fn unreachable(&mut self, host: HostId) {
        let shared = &mut self.hosts[host].shared;
        let has_one = shared.connections.iter().any(|entry| entry.connection.is_open());
        if shared.version != Version::Single && !has_one {
            shared.version = Version::Unreachable;
            self.refresh(host);
        }
    }

    /// Turns a connection that was closed into a permit to open another.
    pub(crate) fn reopen(&mut self, host: HostId) {
        self.hosts[host].shared.connecting += 1;
        self.refresh(host);
    }

    /// Gives up a permit to connect.
    pub(crate) fn give_up(&mut self, host: HostId) {
        self.hosts[host].shared.connecting -= 1;
        self.forget(host);
    }

    /// Adds the connection of a permit. It takes no more requests from `retire_at` on.
    pub(crate) fn share(&mut self, host: HostId, connection: S, retire_at: u64) {
        self.hosts[host].shared.connections.push(Entry { connection, retire_at, idle: None });
        self.outcome(host, Version::Shared);
        self.serve(host);
    }

    fn outcome(&mut self, host: HostId, version: Version) {
        let shared = &mut self.hosts[host].shared;
        shared.connecting -= 1;
        shared.version = version;
        self.refresh(host);
        self.grant_room();
    }

    /// Takes a place on a connection of an origin, if there is one.
    pub(super) fn place(&mut self, host: HostId, now: u64) -> Option<S::Place> {
        if self.hosts[host].shared.connections.is_empty() {
            return None;
        }
        self.yield_to_others(host);
        for entry in &mut self.hosts[host].shared.connections {
            if entry.retire_at <= now {
                entry.connection.close();
            } else if let Some(place) = entry.connection.reserve() {
                if let Some((turn, _)) = entry.idle.take() {
                    self.idle.remove(&turn);
                }
                return Some(place);
            }
        }
        None
    }

    /// Updates an origin after a change of one of its connections: a connection has ended, has room, or is idle, which
    /// it may be until `until`. Returns until when a connection may be idle, if one is.
    pub(crate) fn changed(&mut self, host: HostId, until: u64) -> Option<u64> {
        self.remove_ended(host);
        self.serve(host);
        let mut next = None;
        let mut kept = self.hosts[host].idle.len();
        let place = &mut self.hosts[host];
        for entry in &mut place.shared.connections {
            place_limit(&mut place.shared.limit, &entry.connection);
            let is_idle = entry.connection.is_open() && entry.connection.is_idle();
            match (is_idle, entry.idle) {
                (true, None) if kept >= self.caps.idle_per_host => entry.connection.close(),
                (true, None) => {
                    self.turn += 1;
                    let until = until.min(entry.retire_at);
                    entry.idle = Some((self.turn, until));
                    self.idle.insert(self.turn, host);
                    next = Some(next.map_or(until, |next: u64| next.min(until)));
                    kept += 1;
                }
                (true, Some(_)) => kept += 1,
                (false, Some((turn, _))) => {
                    self.idle.remove(&turn);
                    entry.idle = None;
                }
                (false, None) => {}
            }
        }
        self.refresh(host);
        self.grant_room();
        self.reap(host);
        next
    }

    /// Grants places to waiting requests, in order, while there are any.
    fn serve(&mut self, host: HostId) {
        while !self.hosts[host].queue.is_empty() {
            // Waiting requests are served at any age of their connection: the next request sees it.
            let Some(place) = self.place(host, 0) else { break };
            let Some(turn) = self.hosts[host].queue.pop_front() else { break };
            self.grant(turn, Grant::Place(place));
        }
        self.refresh(host);
    }

    fn remove_ended(&mut self, host: HostId) {
        let connections = &mut self.hosts[host].shared.connections;
        let before = connections.len();
        let idle = &mut self.idle;
        connections.retain(|entry| {
            let is_ended = entry.connection.is_ended();
            if let Some((turn, _)) = entry.idle.filter(|_| is_ended) {
                idle.remove(&turn);
            }
            !is_ended
        });
        let ended = before - connections.len();
        (0..ended).for_each(|_| self.count_closed(host));
    }

    /// Gives up a connection for an origin that has none, if all connections are taken.
    fn yield_to_others(&mut self, host: HostId) {
        let Some(&(0, turn, other)) = self.ready.first() else { return };
        if self.hosts[host].queue.front().is_some_and(|&own| own < turn) {
            return; // waits longer
        }
        let connections = &self.hosts[host].shared.connections;
        let one_ends = connections.iter().any(|entry| !entry.connection.is_open());
        if other != host && self.open >= self.total && !one_ends {
            connections.iter().take(1).for_each(|entry| entry.connection.close());
        }
    }

    /// Closes an idle connection by its turn, and returns whether there was one.
    pub(super) fn close_shared(&mut self, host: HostId, turn: u64) -> bool {
        let connections = &mut self.hosts[host].shared.connections;
        let Some(place) = connections.iter().position(|entry| entry.idle.is_some_and(|idle| idle.0 == turn)) else {
            return false;
        };
        connections.remove(place).connection.close();
        self.idle.remove(&turn);
        self.count_closed(host);
        true
    }

    /// Returns until when a connection may be idle, by its turn.
    pub(super) fn idle_until(&self, host: HostId, turn: u64) -> u64 {
        let mut idle = self.hosts[host].shared.connections.iter().filter_map(|entry| entry.idle);
        idle.find(|idle| idle.0 == turn).map_or(0, |idle| idle.1)
    }

    /// Returns the turn and the time of the longest idle connection.
    pub(super) fn idle_shared(&self, host: HostId) -> Option<(u64, u64)> {
        self.hosts[host].shared.connections.iter().filter_map(|entry| entry.idle).min()
    }
}

/// Remembers how many requests a connection carries at once.
fn place_limit<S: Shared>(limit: &mut usize, connection: &S) {
    if let Some(most) = connection.limit() {
        *limit = most;
    }
}

#[cfg(test)]
mod tests;
