//! A connection pool: open and idle connections, and the queue of requests. A state machine without sockets and without
//! a clock.
//!
//! - Two caps: on connections per origin and in total. A connection counts from the permit to open it until it is
//!   closed, idle or not.
//! - Idle connections are reused last in, first out: as few as possible stay warm, the others age and are closed.
//! - Requests without a connection queue, first in, first out per origin; a full origin does not hold up requests to
//!   another. At the total cap, the longest idle connection is closed to make room.
//! - Room goes to the origin with the fewest connections, and among equals to the longest waiting request. A busy
//!   origin gives connections up for an origin with fewer, so it cannot starve others. An origin that never responds
//!   cannot either, once one of its connections ends.
//! - Origins of different partitions are different origins: a key knows its partition, whose idle connections can be
//!   closed together.
//! - The pool wakes a waiting request with either a connection or a permit to open one, so later requests cannot
//!   overtake it.
//!
//! - Connections of HTTP/2 carry many requests at a time: see `shared`.
//!
//! Invariants after every call: an origin with idle connections has no waiting requests; a request waits only because
//! its origin's cap is reached, or the total cap with no idle connection anywhere, or because a connection that may
//! carry many requests is on its way.

mod shared;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::convert::Infallible;
use std::hash::Hash;
use std::task::{Context, Poll, Waker};

pub(crate) use shared::Shared;
use shared::SharedOf;

/// The limits of a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caps {
    pub(crate) total: usize,
    pub(crate) per_host: usize,
    pub(crate) idle_per_host: usize,
    pub(crate) waiting: usize,
}

/// The key of an origin.
pub(crate) trait Key: Clone + Eq + Hash {
    /// Returns the partition that the origin belongs to; 0 is the default.
    fn partition(&self) -> u64;

    /// Whether a connection of the origin may carry many requests at a time, so that the first one decides how many are
    /// opened.
    fn may_share(&self) -> bool {
        false
    }
}

/// An origin's index in the pool; valid while the caller holds a connection or a permit of the origin.
pub(crate) type HostId = usize;

/// The answer to a request for a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Take<C, P = Infallible> {
    /// An idle connection.
    Idle(HostId, C),
    /// A place on a shared connection.
    Place(P),
    /// A permit to open a connection. The caller must call `connected` or `share` once it is open, or `give_up`.
    Connect(HostId),
    /// A turn in the queue.
    Wait(u64),
    /// The queue is full.
    Full,
}

/// A grant to a waiting request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Grant<C, P = Infallible> {
    /// A connection that has just come back; without the request it would be idle until this time.
    Idle(HostId, C, u64),
    Place(P),
    Connect(HostId),
}

/// The connections `C` of origins `K`, and the shared ones `S`.
pub(crate) struct Pool<K, C, S: Shared = Infallible> {
    caps: Caps,
    /// The current total cap, and until when it is below the settings' cap.
    total: usize,
    lowered_until: u64,
    hosts: Vec<Host<K, C, S>>,
    free: Vec<HostId>,
    index: HashMap<K, HostId>,
    /// The origins of all partitions but the default one, which so costs nothing.
    partitions: BTreeSet<(u64, HostId)>,
    open: usize,
    /// All idle connections, in the order in which they became idle.
    idle: BTreeMap<u64, HostId>,
    waiters: HashMap<u64, Waiter<C, S::Place>>,
    /// Origins with waiting requests and room below their own cap: ordered by open connections, then by the longest
    /// wait.
    ready: BTreeSet<(usize, u64, HostId)>,
    /// The number of grants that were not fetched yet.
    granted: usize,
    turn: u64,
}

struct Host<K, C, S> {
    key: Option<K>,
    open: usize,
    /// Idle connections, the longest idle first.
    idle: VecDeque<Idle<C>>,
    shared: SharedOf<S>,
    /// The turns of waiting requests; ascending.
    queue: VecDeque<u64>,
    /// The origin's entry in `ready`: its open connections and its first turn.
    ready: Option<(usize, u64)>,
}

#[derive(Debug)]
struct Idle<C> {
    turn: u64,
    until: u64,
    connection: C,
}

struct Waiter<C, P> {
    host: HostId,
    waker: Option<Waker>,
    grant: Option<Grant<C, P>>,
}

impl<K: Key, C, S: Shared> Pool<K, C, S> {
    pub(crate) fn new(caps: Caps) -> Self {
        Pool {
            caps,
            total: caps.total,
            lowered_until: 0,
            hosts: Vec::new(),
            free: Vec::new(),
            index: HashMap::new(),
            partitions: BTreeSet::new(),
            open: 0,
            idle: BTreeMap::new(),
            waiters: HashMap::new(),
            ready: BTreeSet::new(),
            granted: 0,
            turn: 0,
        }
    }

    /// Returns the number of connections that are open or being opened, including idle ones.
    pub(crate) fn open(&self) -> usize {
        self.open
    }

    pub(crate) fn idle(&self) -> usize {
        self.idle.len()
    }

    /// Returns the number of waiting requests.
    pub(crate) fn waiting(&self) -> usize {
        self.waiters.len() - self.granted
    }

    /// Returns the total cap; see [`Pool::lower`].
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// Lowers the total cap, to no less than one, until [`Pool::raise`] is called at `until` or later.
    pub(crate) fn lower(&mut self, total: usize, until: u64) {
        self.total = self.total.min(total.max(1));
        self.lowered_until = until;
    }

    /// Restores the total cap once its time has come, and grants the room to waiting requests. Returns until when the
    /// cap stays lowered, if it does.
    pub(crate) fn raise(&mut self, now: u64) -> Option<u64> {
        if self.total >= self.caps.total {
            return None;
        }
        if now < self.lowered_until {
            return Some(self.lowered_until);
        }
        self.total = self.caps.total;
        self.grant_room();
        None
    }

    /// Returns the turn of the last [`Pool::take`]: earlier ones are lower, and none is 0.
    pub(crate) fn turn(&self) -> u64 {
        self.turn
    }

    /// Asks for a connection of an origin; with `fresh` for an unused one.
    pub(crate) fn take(&mut self, key: &K, fresh: bool, now: u64) -> Take<C, S::Place> {
        self.raise(now);
        self.turn += 1;
        let full = self.waiting() >= self.caps.waiting;
        self.ask(key, fresh, now, (!full).then_some(self.turn))
    }

    /// Asks again after a granted connect failed for lack of descriptors. The request keeps its turn, and a full queue
    /// does not refuse it.
    pub(crate) fn take_again(&mut self, key: &K, fresh: bool, now: u64, turn: u64) -> Take<C, S::Place> {
        self.raise(now);
        self.ask(key, fresh, now, Some(turn))
    }

    /// Asks for a connection. Without a turn, the request cannot queue.
    fn ask(&mut self, key: &K, fresh: bool, now: u64, turn: Option<u64>) -> Take<C, S::Place> {
        let host = self.host(key);
        if let Some(place) = self.place(host, now) {
            return Take::Place(place);
        }
        if fresh {
            if self.hosts[host].open >= self.caps.per_host {
                self.close_oldest_of(host);
            }
        } else {
            while let Some(idle) = self.hosts[host].idle.pop_back() {
                self.idle.remove(&idle.turn);
                if now < idle.until {
                    return Take::Idle(host, idle.connection);
                }
                self.count_closed(host);
            }
        }
        if self.hosts[host].open < self.caps.per_host && self.may_connect(host, 1) && self.has_room(host) {
            self.count_permit(host);
            return Take::Connect(host);
        }
        let Some(turn) = turn else {
            self.reap(host);
            return Take::Full;
        };
        self.waiters.insert(turn, Waiter { host, waker: None, grant: None });
        let queue = &mut self.hosts[host].queue;
        queue.insert(queue.partition_point(|&earlier| earlier < turn), turn);
        self.refresh(host);
        Take::Wait(turn)
    }

    /// Ready with the grant of a turn; until then it keeps the waker.
    pub(crate) fn poll_wait(&mut self, turn: u64, context: &Context<'_>) -> Poll<Option<Grant<C, S::Place>>> {
        let Some(waiter) = self.waiters.get_mut(&turn) else { return Poll::Ready(None) };
        if waiter.grant.is_none() {
            match &mut waiter.waker {
                Some(waker) => waker.clone_from(context.waker()),
                None => waiter.waker = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        self.granted -= 1;
        Poll::Ready(self.waiters.remove(&turn).and_then(|waiter| waiter.grant))
    }

    /// Leaves the queue, and passes a grant on to the next. Returns until when a connection is then idle, if so.
    pub(crate) fn leave(&mut self, turn: u64) -> Option<u64> {
        let waiter = self.waiters.remove(&turn)?;
        if waiter.grant.is_some() {
            self.granted -= 1;
        }
        match waiter.grant {
            Some(Grant::Idle(host, connection, until)) => {
                self.give_back(host, connection, until);
                return Some(until);
            }
            Some(Grant::Connect(host)) => self.give_up(host),
            // The connection tells of its room.
            Some(Grant::Place(place)) => drop(place),
            None => {
                let queue = &mut self.hosts[waiter.host].queue;
                if let Ok(place) = queue.binary_search(&turn) {
                    queue.remove(place);
                }
                self.refresh(waiter.host);
                self.reap(waiter.host);
            }
        }
        None
    }

    /// Takes a reusable connection back. Without a request for it, it is closed at `until`.
    pub(crate) fn give_back(&mut self, host: HostId, connection: C, until: u64) {
        if self.gives_way(host) {
            drop(connection);
            return self.forget(host);
        }
        if let Some(turn) = self.hosts[host].queue.pop_front() {
            self.refresh(host);
            self.grant(turn, Grant::Idle(host, connection, until));
            return;
        }
        if self.caps.idle_per_host == 0 {
            drop(connection);
            return self.forget(host);
        }
        if self.hosts[host].idle.len() >= self.caps.idle_per_host {
            self.close_oldest_of(host);
        }
        self.turn += 1;
        self.idle.insert(self.turn, host);
        self.hosts[host].idle.push_back(Idle { turn: self.turn, until, connection });
        self.grant_room();
    }

    /// Removes a connection that was closed, or never opened.
    pub(crate) fn forget(&mut self, host: HostId) {
        self.count_closed(host);
        self.grant_room();
        self.reap(host);
    }

    /// Closes connections that were idle for too long. Returns when to call it again.
    pub(crate) fn sweep(&mut self, now: u64) -> Option<u64> {
        let mut next = None;
        let idle: Vec<(u64, HostId)> = self.idle.iter().map(|(&turn, &host)| (turn, host)).collect();
        for (turn, host) in idle {
            let list = &mut self.hosts[host].idle;
            let place = list.binary_search_by_key(&turn, |idle| idle.turn);
            let until = match place {
                Ok(place) => list[place].until,
                Err(_) => self.idle_until(host, turn),
            };
            if until <= now {
                match place {
                    Ok(place) => {
                        self.hosts[host].idle.remove(place);
                        self.idle.remove(&turn);
                        self.forget(host);
                    }
                    Err(_) => self.forget_shared(host, turn),
                }
            } else {
                next = Some(next.map_or(until, |next: u64| next.min(until)));
            }
        }
        next
    }

    /// Closes all idle connections.
    pub(crate) fn close_idle(&mut self) {
        self.sweep(u64::MAX);
    }

    /// Closes the idle connections of a partition: in time that grows with the partition, or for the default one with
    /// the number of all idle connections.
    pub(crate) fn close_partition(&mut self, partition: u64) {
        let hosts: Vec<HostId> = if partition == 0 {
            let is_default = |host: &HostId| self.hosts[*host].key.as_ref().is_some_and(|key| key.partition() == 0);
            self.idle.values().copied().filter(is_default).collect()
        } else {
            self.partitions.range((partition, 0)..=(partition, HostId::MAX)).map(|&(_, host)| host).collect()
        };
        for host in hosts {
            while let Some(idle) = self.hosts[host].idle.pop_front() {
                self.idle.remove(&idle.turn);
                drop(idle);
                self.forget(host);
            }
            while let Some((turn, _)) = self.idle_shared(host) {
                self.forget_shared(host, turn);
            }
        }
    }

    /// Whether an origin with waiting requests must give up a reusable connection: for an origin that would still have
    /// fewer, or that has none and waited longer. Otherwise connections stay, or equal origins would close and open
    /// them without end.
    fn gives_way(&self, host: HostId) -> bool {
        let Some(&own) = self.hosts[host].queue.front() else { return false };
        let Some(&(open, turn, _)) = self.ready.first() else { return false };
        open + 1 < self.hosts[host].open || (open == 0 && turn < own)
    }

    /// Whether one more connection may be open, if necessary in place of an idle one. `asking` keeps its entry,
    /// whatever is closed.
    fn has_room(&mut self, asking: HostId) -> bool {
        while self.open >= self.total {
            let Some((_, &host)) = self.idle.first_key_value() else { return false };
            self.close_oldest_of(host);
            if host != asking {
                self.reap(host);
            }
        }
        true
    }

    /// Closes an origin's longest idle connection, if there is one.
    fn close_oldest_of(&mut self, host: HostId) {
        let single = self.hosts[host].idle.front().map(|idle| idle.turn);
        if let Some((turn, _)) = self.idle_shared(host)
            && single.is_none_or(|single| turn < single)
        {
            self.close_shared(host, turn);
        } else if let Some(idle) = self.hosts[host].idle.pop_front() {
            self.idle.remove(&idle.turn);
            self.count_closed(host);
        }
    }

    /// Closes an idle shared connection.
    fn forget_shared(&mut self, host: HostId, turn: u64) {
        if self.close_shared(host, turn) {
            self.grant_room();
            self.reap(host);
        }
    }

    /// Whether another connection may be opened for `more` requests besides the waiting ones.
    fn may_connect(&self, host: HostId, more: usize) -> bool {
        let place = &self.hosts[host];
        let may_share = place.key.as_ref().is_some_and(Key::may_share);
        !may_share || place.shared.may_connect(place.queue.len() + more)
    }

    /// Grants permits to connect, in order, while there is room.
    fn grant_room(&mut self) {
        while let Some(&(_, turn, host)) = self.ready.first() {
            if !self.has_room(host) {
                return;
            }
            self.hosts[host].queue.pop_front();
            self.count_permit(host);
            self.grant(turn, Grant::Connect(host));
        }
    }

    fn grant(&mut self, turn: u64, grant: Grant<C, S::Place>) {
        let Some(waiter) = self.waiters.get_mut(&turn) else { return };
        waiter.grant = Some(grant);
        self.granted += 1;
        if let Some(waker) = waiter.waker.take() {
            waker.wake();
        }
    }

    fn count_permit(&mut self, host: HostId) {
        self.open += 1;
        self.hosts[host].open += 1;
        self.hosts[host].shared.connecting += 1;
        self.refresh(host);
    }

    fn count_closed(&mut self, host: HostId) {
        self.open -= 1;
        self.hosts[host].open -= 1;
        self.refresh(host);
    }

    /// Updates an origin's entry in `ready`.
    fn refresh(&mut self, host: HostId) {
        let may_open = self.hosts[host].open < self.caps.per_host && self.may_connect(host, 0);
        let place = &mut self.hosts[host];
        let open = place.open;
        let wanted = place.queue.front().filter(|_| may_open).map(|&turn| (open, turn));
        if place.ready == wanted {
            return;
        }
        if let Some((open, turn)) = std::mem::replace(&mut place.ready, wanted) {
            self.ready.remove(&(open, turn, host));
        }
        if let Some((open, turn)) = wanted {
            self.ready.insert((open, turn, host));
        }
    }

    fn host(&mut self, key: &K) -> HostId {
        if let Some(&host) = self.index.get(key) {
            return host;
        }
        let new = Host {
            key: Some(key.clone()),
            open: 0,
            idle: VecDeque::new(),
            shared: SharedOf::default(),
            queue: VecDeque::new(),
            ready: None,
        };
        let host = match self.free.pop() {
            Some(host) => {
                self.hosts[host] = new;
                host
            }
            None => {
                self.hosts.push(new);
                self.hosts.len() - 1
            }
        };
        self.index.insert(key.clone(), host);
        if key.partition() != 0 {
            self.partitions.insert((key.partition(), host));
        }
        host
    }

    /// Removes an origin without connections and requests.
    fn reap(&mut self, host: HostId) {
        let place = &mut self.hosts[host];
        if place.open == 0
            && place.queue.is_empty()
            && let Some(key) = place.key.take()
        {
            self.index.remove(&key);
            if key.partition() != 0 {
                self.partitions.remove(&(key.partition(), host));
            }
            self.free.push(host);
        }
    }
}

#[cfg(test)]
mod tests;
