//! Tests of shared connections in the pool, without sockets.

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;

use super::Shared;
use crate::pool::{Caps, Grant, HostId, Key, Pool, Take};

#[derive(Debug, Default)]
struct State {
    limit: Cell<Option<usize>>,
    taken: Cell<usize>,
    closed: Cell<bool>,
    ended: Cell<bool>,
}

/// A connection that the test controls.
#[derive(Clone, Debug, Default)]
struct Fake(Rc<State>);

#[derive(Debug)]
struct Place(Fake);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.0.taken.set(self.0.0.taken.get() - 1);
    }
}

impl Fake {
    fn with(limit: usize) -> Fake {
        let fake = Fake::default();
        fake.0.limit.set(Some(limit));
        fake
    }
}

impl Shared for Fake {
    type Place = Place;

    fn reserve(&self) -> Option<Place> {
        let has_room = self.is_open() && self.0.taken.get() < self.limit().unwrap_or(1);
        has_room.then(|| {
            self.0.taken.set(self.0.taken.get() + 1);
            Place(self.clone())
        })
    }

    fn limit(&self) -> Option<usize> {
        self.0.limit.get()
    }

    fn is_open(&self) -> bool {
        !self.0.closed.get() && !self.0.ended.get()
    }

    fn is_ended(&self) -> bool {
        self.0.ended.get()
    }

    fn is_idle(&self) -> bool {
        self.0.taken.get() == 0
    }

    fn close(&self) {
        self.0.closed.set(true);
    }
}

/// An origin that may share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Origin(&'static str);

impl Key for Origin {
    fn partition(&self) -> u64 {
        0
    }

    fn may_share(&self) -> bool {
        true
    }
}

type Tested = Pool<Origin, u32, Fake>;

const A: Origin = Origin("a");
const B: Origin = Origin("b");

fn pool(total: usize, per_host: usize) -> Tested {
    Pool::new(Caps { total, per_host, idle_per_host: 100, waiting: 1000 })
}

fn connect(take: Take<u32, Place>) -> HostId {
    let Take::Connect(host) = take else { panic!("{take:?}") };
    host
}

fn wait(take: Take<u32, Place>) -> u64 {
    let Take::Wait(turn) = take else { panic!("{take:?}") };
    turn
}

fn claim(pool: &mut Tested, turn: u64) -> Option<Grant<u32, Place>> {
    match pool.poll_wait(turn, &Context::from_waker(Waker::noop())) {
        Poll::Ready(grant) => Some(grant.expect("the place in line was lost")),
        Poll::Pending => None,
    }
}

#[test]
fn the_first_connection_decides_for_those_that_wait() {
    // HTTP/2: they get places.
    let mut pool = pool(100, 100);
    let host = connect(pool.take(&A, false, 0));
    let turns: Vec<u64> = (0..5).map(|_| wait(pool.take(&A, false, 0))).collect();
    assert!(turns.iter().all(|&turn| claim(&mut pool, turn).is_none()));
    let fake = Fake::default();
    let own = fake.reserve().unwrap();
    pool.share(host, fake.clone(), 1000);
    assert!(turns.iter().all(|&turn| claim(&mut pool, turn).is_none()), "one stream until the settings have come");
    fake.0.limit.set(Some(4));
    pool.changed(host, 10);
    let granted: Vec<_> = turns.iter().map(|&turn| claim(&mut pool, turn)).collect();
    assert!(granted[..3].iter().all(|grant| matches!(grant, Some(Grant::Place(_)))), "{granted:?}");
    // The others wait for a second connection, which the next of them opens.
    assert!(matches!(granted[3], Some(Grant::Connect(_))) && granted[4].is_none(), "{granted:?}");
    drop((granted, own));
    pool.changed(host, 10);
    assert!(matches!(claim(&mut pool, turns[4]), Some(Grant::Place(_))));

    // HTTP/1: each opens one.
    let mut pool = self::pool(3, 100);
    let host = connect(pool.take(&A, false, 0));
    let turns: Vec<u64> = (0..3).map(|_| wait(pool.take(&A, false, 0))).collect();
    pool.connected(host);
    assert!(matches!(claim(&mut pool, turns[0]), Some(Grant::Connect(_))));
    assert!(matches!(claim(&mut pool, turns[1]), Some(Grant::Connect(_))));
    assert!(claim(&mut pool, turns[2]).is_none(), "the cap");
    pool.give_back(host, 7, 100);
    assert!(matches!(claim(&mut pool, turns[2]), Some(Grant::Idle(_, 7, 100))));

    // No connection: each tries for itself. One that was given up: the next asks.
    for failed in [true, false] {
        let mut pool = self::pool(100, 100);
        let host = connect(pool.take(&A, false, 0));
        let turns: Vec<u64> = (0..3).map(|_| wait(pool.take(&A, false, 0))).collect();
        if failed {
            pool.unreachable(host);
        }
        pool.give_up(host);
        let granted = turns.iter().filter(|&&turn| claim(&mut pool, turn).is_some()).count();
        assert_eq!(granted, if failed { 3 } else { 1 });
    }
}

#[test]
fn as_many_connections_are_opened_as_the_waiting_requests_need() {
    let mut pool = pool(100, 100);
    let host = connect(pool.take(&A, false, 0));
    let fake = Fake::with(10);
    let _own = fake.reserve();
    pool.share(host, fake.clone(), 1000);
    pool.changed(host, 10);
    let mut held = Vec::new();
    let mut turns = Vec::new();
    let mut connects = 0;
    for _ in 0..109 {
        match pool.take(&A, false, 0) {
            Take::Place(place) => held.push(place),
            Take::Connect(_) => connects += 1,
            Take::Wait(turn) => turns.push(turn),
            other => panic!("{other:?}"),
        }
    }
    connects += turns.iter().filter(|&&turn| matches!(claim(&mut pool, turn), Some(Grant::Connect(_)))).count();
    assert_eq!(held.len(), 9);
    assert_eq!(connects, 10, "for a hundred requests, ten at a time");
}

#[test]
fn idle_ones_make_room_and_busy_ones_give_way_to_an_origin_without_any() {
    let mut pool = pool(1, 1);
    let host = connect(pool.take(&A, false, 0));
    let fake = Fake::with(2);
    pool.share(host, fake.clone(), 1000);
    assert_eq!(pool.changed(host, 10), Some(10));
    assert_eq!((pool.open(), pool.idle()), (1, 1));
    let Take::Place(place) = pool.take(&A, false, 0) else { panic!("no place") };
    assert_eq!(pool.idle(), 0);
    // Busy: another origin waits, and the next request sees it.
    let other = wait(pool.take(&B, false, 0));
    let own = wait(pool.take(&A, false, 0));
    assert!(!fake.is_open(), "it takes no more requests");
    drop(place);
    fake.0.ended.set(true);
    pool.changed(host, 10);
    let Some(Grant::Connect(second)) = claim(&mut pool, other) else { panic!("B has no connection") };
    assert!(claim(&mut pool, own).is_none());
    // Idle: it makes room at once.
    let fake = Fake::with(2);
    pool.share(second, fake.clone(), 1000);
    pool.changed(second, 10);
    assert!(!fake.is_open(), "closed for A");
    assert!(matches!(claim(&mut pool, own), Some(Grant::Connect(_))));
}

#[test]
fn old_and_ended_ones_are_not_used() {
    let mut pool = pool(10, 10);
    let host = connect(pool.take(&A, false, 0));
    let fake = Fake::with(2);
    pool.share(host, fake.clone(), 50);
    assert_eq!(pool.changed(host, 100), Some(50), "not beyond its age");
    assert!(matches!(pool.take(&A, false, 49), Take::Place(_)));
    assert_eq!(connect(pool.take(&A, false, 50)), host);
    assert!(!fake.is_open());
    fake.0.ended.set(true);
    pool.changed(host, 100);
    assert_eq!((pool.open(), pool.idle()), (1, 0));
    let fresh = Fake::with(2);
    pool.share(host, fresh.clone(), 500);
    pool.changed(host, 100);
    assert_eq!(pool.sweep(99), Some(100));
    assert_eq!(pool.sweep(100), None);
    assert_eq!((pool.open(), fresh.is_open(), pool.index.len()), (0, false, 0));
}

proptest! {
    /// After any calls in any order: the sums are right, the caps hold, and no request waits without a reason.
    #[test]
    fn sums_and_caps_hold(
        caps in (1usize..4, 1usize..4),
        steps in proptest::collection::vec((0u8..9, 0usize..8), 0..200),
    ) {
        let mut pool = pool(caps.0, caps.1);
        let (mut permits, mut places, mut waiting) = (Vec::<HostId>::new(), Vec::<Place>::new(), Vec::<u64>::new());
        let mut alive: Vec<(HostId, Fake)> = Vec::new();
        for (now, (step, which)) in steps.into_iter().enumerate() {
            let now = now as u64;
            match step {
                0..=2 => match pool.take(&[A, B][which % 2], false, now) {
                    Take::Connect(host) => permits.push(host),
                    Take::Place(place) => places.push(place),
                    Take::Wait(turn) => waiting.push(turn),
                    other => panic!("{other:?}"),
                },
                3 if !permits.is_empty() => {
                    let host = permits.swap_remove(which % permits.len());
                    let fake = Fake::with(1 + which % 3);
                    alive.push((host, fake.clone()));
                    places.extend(fake.reserve());
                    pool.share(host, fake, now + 20);
                    pool.changed(host, now + 10);
                }
                4 if !permits.is_empty() => {
                    let host = permits.swap_remove(which % permits.len());
                    if which % 2 == 0 {
                        pool.unreachable(host);
                    }
                    pool.give_up(host);
                }
                5 if !places.is_empty() => drop(places.swap_remove(which % places.len())),
                6 if !waiting.is_empty() => {
                    let turn = waiting.swap_remove(which % waiting.len());
                    pool.leave(turn);
                }
                7 if !alive.is_empty() => alive[which % alive.len()].1.0.ended.set(true),
                _ => {
                    pool.sweep(now);
                }
            }
            // A connection tells of each change; one that takes no more requests ends when it is idle.
            for (host, fake) in &alive {
                let done = !fake.is_open() && fake.is_idle();
                fake.0.ended.set(fake.is_ended() || done);
                pool.changed(*host, now + 10);
            }
            alive.retain(|(_, fake)| !fake.is_ended());
            waiting.retain(|&turn| match claim(&mut pool, turn) {
                Some(Grant::Connect(host)) => { permits.push(host); false }
                Some(Grant::Place(place)) => { places.push(place); false }
                Some(other) => panic!("{other:?}"),
                None => true,
            });
            prop_assert_eq!(pool.waiting(), waiting.len());
            prop_assert!(pool.open() <= caps.0);
            // Those that the pool has closed may still have to end.
            prop_assert!(pool.open() >= permits.len() && pool.open() <= permits.len() + alive.len());
            for host in pool.hosts.iter().filter(|host| !host.queue.is_empty()) {
                let may_open = host.open < caps.1 && pool.open() < caps.0 && host.shared.may_connect(host.queue.len());
                prop_assert!(!may_open, "one waits although it may open a connection");
                let has_room = host.shared.connections.iter().any(|entry| entry.connection.reserve().is_some());
                prop_assert!(!has_room, "one waits although a connection has room");
            }
        }
        permits.drain(..).for_each(|host| pool.give_up(host));
        places.clear();
        waiting.drain(..).for_each(|turn| assert_eq!(pool.leave(turn), None));
        for (host, fake) in &alive {
            fake.0.ended.set(true);
            pool.changed(*host, 0);
        }
        pool.close_idle();
        prop_assert_eq!((pool.open(), pool.idle(), pool.waiting(), pool.index.len()), (0, 0, 0, 0));
    }
}
