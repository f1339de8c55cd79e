//! Which connections are open, which of them are idle, and who waits: a state machine without sockets and without a clock.
//!
//! - Two caps: on connections of one origin and on those of all. A connection counts from the moment that someone may make it until
//!   it is closed, be it idle or not.
//! - An idle connection is used again last in, first out: the fewest stay warm, the others grow old and are closed.
//! - Who finds nothing waits in line, first in, first out among those who ask for the same origin; a full origin holds up nobody who
//!   asks for another. With the cap on all reached, the connection that has been idle longest makes room.
//! - Room goes to the origin with the fewest connections, and among equals to whoever has waited longest. An origin whose requests
//!   never stop gives connections up for one that has fewer, so it cannot keep others waiting; nor can one that never answers,
//!   as soon as one of its connections ends.
//! - Whoever waits is given either a connection or the right to make one, by being woken; so nobody who comes later can be faster.
//!
//! Invariants, held after every call: an origin with idle connections has nobody waiting; who waits does so because the
//! origin's cap is reached, or the cap on all with nothing idle anywhere.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::task::{Context, Poll, Waker};

/// How much there may be at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caps {
    pub(crate) total: usize,
    pub(crate) per_host: usize,
    pub(crate) idle_per_host: usize,
    pub(crate) waiting: usize,
}

/// An origin's place in the pool; good for as long as one has a connection of it, or the right to make one.
pub(crate) type HostId = usize;

/// What somebody who asks for a connection gets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Take<C> {
    /// One that was idle.
    Idle(HostId, C),
    /// The right and the duty to make one, or to say that there will be none.
    Connect(HostId),
    /// A place in line.
    Wait(u64),
    /// The line is full.
    Full,
}

/// What somebody who waited is given.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Grant<C> {
    /// One that came back just now; it would otherwise be idle until then.
    Idle(HostId, C, u64),
    Connect(HostId),
}

/// The connections `C` of origins `K`.
#[derive(Debug)]
pub(crate) struct Pool<K, C> {
    caps: Caps,
    /// The cap on all connections for the time being, and until when it is lower than the settings have it.
    total: usize,
    lowered_until: u64,
    hosts: Vec<Host<K, C>>,
    free: Vec<HostId>,
    index: HashMap<K, HostId>,
    open: usize,
    /// Every idle connection, by the order in which they became so.
    idle: BTreeMap<u64, HostId>,
    waiters: HashMap<u64, Waiter<C>>,
    /// Origins for which somebody waits although their own cap is not reached: by their open connections, then by who has waited longest.
    ready: BTreeSet<(usize, u64, HostId)>,
    /// How many were given something and have not come for it yet.
    granted: usize,
    turn: u64,
}

#[derive(Debug)]
struct Host<K, C> {
    key: Option<K>,
    open: usize,
    /// The longest idle one first.
    idle: VecDeque<Idle<C>>,
    /// Who waits; ascending.
    queue: VecDeque<u64>,
    /// Its entry among the ready ones: its open connections, and whose turn it is.
    ready: Option<(usize, u64)>,
}

#[derive(Debug)]
struct Idle<C> {
    turn: u64,
    until: u64,
    connection: C,
}

#[derive(Debug)]
struct Waiter<C> {
    host: HostId,
    waker: Option<Waker>,
    grant: Option<Grant<C>>,
}

impl<K: Clone + Eq + Hash, C> Pool<K, C> {
    pub(crate) fn new(caps: Caps) -> Self {
        Pool {
            caps,
            total: caps.total,
            lowered_until: 0,
            hosts: Vec::new(),
            free: Vec::new(),
            index: HashMap::new(),
            open: 0,
            idle: BTreeMap::new(),
            waiters: HashMap::new(),
            ready: BTreeSet::new(),
            granted: 0,
            turn: 0,
        }
    }

    /// Connections that are open or being made, idle ones included.
    pub(crate) fn open(&self) -> usize {
        self.open
    }

    pub(crate) fn idle(&self) -> usize {
        self.idle.len()
    }

    /// Requests that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiters.len() - self.granted
    }

    /// The cap on all connections; see [`Pool::lower`].
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// Lowers the cap on all connections until [`Pool::raise`] is called at that time or later; to no less than one.
    pub(crate) fn lower(&mut self, total: usize, until: u64) {
        self.total = self.total.min(total.max(1));
        self.lowered_until = until;
    }

    /// Takes the cap on all connections back up once its time has come: those in line get what room there is. Returns until when it stays
    /// lowered, if it does.
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

    /// The turn of whoever has asked last by [`Pool::take`]: the earlier, the lower, and never 0.
    pub(crate) fn turn(&self) -> u64 {
        self.turn
    }

    /// Asks for a connection of an origin; with `fresh` for none that was used before.
    pub(crate) fn take(&mut self, key: &K, fresh: bool, now: u64) -> Take<C> {
        self.raise(now);
        self.turn += 1;
        let full = self.waiting() >= self.caps.waiting;
        self.ask(key, fresh, now, (!full).then_some(self.turn))
    }

    /// As [`Pool::take`], for somebody who could not make the connection that it was their turn to make: they keep their turn, before all
    /// who came later, and the line always has a place for them.
    pub(crate) fn take_again(&mut self, key: &K, fresh: bool, now: u64, turn: u64) -> Take<C> {
        self.raise(now);
        self.ask(key, fresh, now, Some(turn))
    }

    /// Without a turn there is no place in line.
    fn ask(&mut self, key: &K, fresh: bool, now: u64, turn: Option<u64>) -> Take<C> {
        let host = self.host(key);
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
        if self.hosts[host].open < self.caps.per_host && self.has_room(host) {
            self.count_open(host);
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

    /// Whether somebody's turn has come; until then the waker is kept.
    pub(crate) fn poll_wait(&mut self, turn: u64, context: &Context<'_>) -> Poll<Option<Grant<C>>> {
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

    /// Leaves the line; what was given in the meantime goes to the next. Returns until when a connection is idle by that.
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
            Some(Grant::Connect(host)) => self.forget(host),
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

    /// A connection that can be used again comes back. Unless somebody takes it, it is closed at `until`.
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

    /// A connection is closed, or was never made.
    pub(crate) fn forget(&mut self, host: HostId) {
        self.count_closed(host);
        self.grant_room();
        self.reap(host);
    }

    /// Closes what has been idle for too long. Returns when to look again.
    pub(crate) fn sweep(&mut self, now: u64) -> Option<u64> {
        let mut next = None;
        let idle: Vec<(u64, HostId)> = self.idle.iter().map(|(&turn, &host)| (turn, host)).collect();
        for (turn, host) in idle {
            let list = &mut self.hosts[host].idle;
            let Ok(place) = list.binary_search_by_key(&turn, |idle| idle.turn) else { continue };
            let until = list[place].until;
            if until <= now {
                list.remove(place);
                self.idle.remove(&turn);
                self.forget(host);
            } else {
                next = Some(next.map_or(until, |next: u64| next.min(until)));
            }
        }
        next
    }

    /// Closes every idle connection.
    pub(crate) fn close_idle(&mut self) {
        self.sweep(u64::MAX);
    }

    /// Whether an origin for which somebody waits is to give up a connection that comes back, although it could use it again: for one that
    /// would still have fewer, or for one that has none and whose turn came before. Among equals connections stay where they
    /// are; they would be closed and made without end.
    fn gives_way(&self, host: HostId) -> bool {
        let Some(&own) = self.hosts[host].queue.front() else { return false };
        let Some(&(open, turn, _)) = self.ready.first() else { return false };
        open + 1 < self.hosts[host].open || (open == 0 && turn < own)
    }

    /// Whether one more connection may be open, if need be in an idle one's place. `asking` stays known, whatever is closed.
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

    /// Closes the connection of an origin that has been idle longest, if there is one.
    fn close_oldest_of(&mut self, host: HostId) {
        if let Some(idle) = self.hosts[host].idle.pop_front() {
            self.idle.remove(&idle.turn);
            self.count_closed(host);
        }
    }

    /// Gives the right to connect to those whose turn it is, for as long as there is room.
    fn grant_room(&mut self) {
        while let Some(&(_, turn, host)) = self.ready.first() {
            if !self.has_room(host) {
                return;
            }
            self.hosts[host].queue.pop_front();
            self.count_open(host);
            self.grant(turn, Grant::Connect(host));
        }
    }

    fn grant(&mut self, turn: u64, grant: Grant<C>) {
        let Some(waiter) = self.waiters.get_mut(&turn) else { return };
        waiter.grant = Some(grant);
        self.granted += 1;
        if let Some(waker) = waiter.waker.take() {
            waker.wake();
        }
    }

    fn count_open(&mut self, host: HostId) {
        self.open += 1;
        self.hosts[host].open += 1;
        self.refresh(host);
    }

    fn count_closed(&mut self, host: HostId) {
        self.open -= 1;
        self.hosts[host].open -= 1;
        self.refresh(host);
    }

    /// Notes whether an origin is among those that would use a free place, and how much before others.
    fn refresh(&mut self, host: HostId) {
        let place = &mut self.hosts[host];
        let open = place.open;
        let wanted = place.queue.front().filter(|_| open < self.caps.per_host).map(|&turn| (open, turn));
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
        let new = Host { key: Some(key.clone()), open: 0, idle: VecDeque::new(), queue: VecDeque::new(), ready: None };
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
        host
    }

    /// Forgets an origin of which nothing is left.
    fn reap(&mut self, host: HostId) {
        let place = &mut self.hosts[host];
        if place.open == 0
            && place.queue.is_empty()
            && let Some(key) = place.key.take()
        {
            self.index.remove(&key);
            self.free.push(host);
        }
    }
}

#[cfg(test)]
mod tests;
