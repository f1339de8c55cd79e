//! Tests of the pool alone: connections are numbers, time is an argument.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use proptest::prelude::*;

use super::*;

const ROOMY: Caps = Caps { total: 100, per_host: 100, idle_per_host: 100, waiting: 100 };

/// `a` is in the default partition, `a#7` in partition 7.
impl Key for &str {
    fn partition(&self) -> u64 {
        self.split_once('#').map_or(0, |(_, partition)| partition.parse().unwrap())
    }
}

fn pool(total: usize, per_host: usize) -> Pool<&'static str, u32> {
    Pool::new(Caps { total, per_host, ..ROOMY })
}

fn connect<C: std::fmt::Debug>(take: Take<C>) -> HostId {
    match take {
        Take::Connect(host) => host,
        other => panic!("{other:?}"),
    }
}

fn wait<C: std::fmt::Debug>(take: Take<C>) -> u64 {
    match take {
        Take::Wait(turn) => turn,
        other => panic!("{other:?}"),
    }
}

#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn claim<C>(pool: &mut Pool<&'static str, C>, turn: u64) -> Poll<Option<Grant<C>>> {
    pool.poll_wait(turn, &Context::from_waker(Waker::noop()))
}

#[test]
fn the_last_to_come_back_is_the_first_to_be_used() {
    let mut pool = pool(10, 10);
    let host = connect(pool.take(&"a", false, 0));
    assert_eq!(connect(pool.take(&"a", false, 0)), host);
    pool.give_back(host, 1, 100);
    pool.give_back(host, 2, 100);
    assert_eq!((pool.open(), pool.idle()), (2, 2));
    assert_eq!(pool.take(&"a", false, 0), Take::Idle(host, 2));
    assert_eq!(pool.take(&"a", false, 0), Take::Idle(host, 1));
    assert_eq!(pool.take(&"a", false, 0), Take::Connect(host));
}

#[test]
fn what_is_too_old_is_not_used_and_is_swept() {
    let mut pool = pool(10, 10);
    let host = connect(pool.take(&"a", false, 0));
    connect(pool.take(&"a", false, 0));
    connect(pool.take(&"a", false, 0));
    pool.give_back(host, 1, 10);
    pool.give_back(host, 2, 30);
    pool.give_back(host, 3, 20);
    assert_eq!(pool.sweep(9), Some(10));
    assert_eq!(pool.sweep(10), Some(20));
    assert_eq!((pool.open(), pool.idle()), (2, 2));
    // 3 is on top and expired; 2 below it is good.
    assert_eq!(pool.take(&"a", false, 20), Take::Idle(host, 2));
    pool.forget(host);
    assert_eq!((pool.open(), pool.idle(), pool.sweep(50)), (0, 0, None));
    assert!(pool.index.is_empty(), "an origin without connections is forgotten");
}

#[test]
fn who_waits_is_served_in_order_and_woken() {
    let mut pool = pool(10, 1);
    let host = connect(pool.take(&"a", false, 0));
    let (first, second) = (wait(pool.take(&"a", false, 0)), wait(pool.take(&"a", false, 0)));
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    assert_eq!(pool.poll_wait(first, &Context::from_waker(&waker)), Poll::Pending);
    assert_eq!(pool.waiting(), 2);
    pool.give_back(host, 7, 100);
    assert_eq!((bell.0.load(Ordering::Relaxed), pool.waiting(), pool.idle()), (1, 1, 0));
    // Granted to the first: later requests do not get it.
    assert_eq!(claim(&mut pool, second), Poll::Pending);
    let third = wait(pool.take(&"a", false, 0));
    assert_eq!(claim(&mut pool, first), Poll::Ready(Some(Grant::Idle(host, 7, 100))));
    // The connection breaks: the next may open one.
    pool.forget(host);
    assert_eq!(claim(&mut pool, second), Poll::Ready(Some(Grant::Connect(host))));
    assert_eq!(claim(&mut pool, third), Poll::Pending);
    assert_eq!((pool.open(), pool.waiting()), (1, 1));
}

#[test]
fn who_leaves_passes_on_what_was_given() {
    let mut pool = pool(10, 1);
    let host = connect(pool.take(&"a", false, 0));
    let turns: Vec<u64> = (0..4).map(|_| wait(pool.take(&"a", false, 0))).collect();
    pool.leave(turns[1]);
    pool.give_back(host, 7, 100);
    pool.leave(turns[0]);
    assert_eq!(pool.waiters[&turns[2]].grant, Some(Grant::Idle(host, 7, 100)), "the second has left before");
    pool.leave(turns[2]);
    pool.leave(turns[3]);
    assert_eq!((pool.open(), pool.idle(), pool.waiting()), (1, 1, 0));
    assert_eq!(pool.take(&"a", false, 0), Take::Idle(host, 7));
    let turn = wait(pool.take(&"a", false, 0));
    pool.forget(host);
    pool.leave(turn);
    assert_eq!((pool.open(), pool.waiting(), pool.index.len()), (0, 0, 0));
}

#[test]
fn the_longest_idle_one_makes_room_for_another_origin() {
    let mut pool = pool(2, 2);
    let a = connect(pool.take(&"a", false, 0));
    let b = connect(pool.take(&"b", false, 0));
    pool.give_back(b, 2, 100);
    pool.give_back(a, 1, 100);
    let c = connect(pool.take(&"c", false, 0));
    assert_eq!((pool.open(), pool.idle()), (2, 1));
    assert_eq!(pool.take(&"a", false, 0), Take::Idle(a, 1));
    // No connection is idle any more: b waits, and gets the next that comes back.
    let turn = wait(pool.take(&"b", false, 0));
    pool.give_back(c, 3, 100);
    assert!(matches!(claim(&mut pool, turn), Poll::Ready(Some(Grant::Connect(_)))));
    assert_eq!((pool.open(), pool.idle()), (2, 0));
}

#[test]
fn a_full_origin_holds_nobody_else_up() {
    let mut pool = pool(3, 1);
    connect(pool.take(&"a", false, 0));
    wait(pool.take(&"a", false, 0));
    connect(pool.take(&"b", false, 0));
    connect(pool.take(&"c", false, 0));
    let d = wait(pool.take(&"d", false, 0));
    let b = pool.index["b"];
    pool.forget(b);
    assert!(matches!(claim(&mut pool, d), Poll::Ready(Some(Grant::Connect(_)))), "a came before, and cannot use it");
}

/// Returns a pool of `total` with all connections of `a`, and as many requests for `a` waiting.
fn busy_with_a(total: usize) -> (Pool<&'static str, u32>, HostId, Vec<u64>) {
    let mut pool = pool(total, total);
    let a = connect(pool.take(&"a", false, 0));
    (1..total).for_each(|_| assert_eq!(connect(pool.take(&"a", false, 0)), a));
    let turns = (0..total).map(|_| wait(pool.take(&"a", false, 0))).collect();
    (pool, a, turns)
}

#[test]
fn an_origin_whose_requests_never_stop_does_not_starve_another() {
    let (mut pool, a, turns) = busy_with_a(4);
    let b = [wait(pool.take(&"b", false, 0)), wait(pool.take(&"b", false, 0)), wait(pool.take(&"b", false, 0))];
    pool.give_back(a, 1, 100);
    assert!(matches!(claim(&mut pool, b[0]), Poll::Ready(Some(Grant::Connect(_)))), "4 to 0 becomes 3 to 1");
    pool.give_back(a, 2, 100);
    assert!(matches!(claim(&mut pool, b[1]), Poll::Ready(Some(Grant::Connect(_)))), "3 to 1 becomes 2 to 2");
    // This is fair, and connections are not opened anew without need.
    pool.give_back(a, 3, 100);
    assert_eq!(claim(&mut pool, b[2]), Poll::Pending);
    assert_eq!(claim(&mut pool, turns[0]), Poll::Ready(Some(Grant::Idle(a, 3, 100))));
}

#[test]
fn with_a_single_connection_origins_take_turns() {
    let (mut pool, a, turns) = busy_with_a(1);
    let b = wait(pool.take(&"b", false, 0));
    let a_later = wait(pool.take(&"a", false, 0));
    pool.give_back(a, 1, 100);
    assert_eq!(claim(&mut pool, turns[0]), Poll::Ready(Some(Grant::Idle(a, 1, 100))), "it has waited longer than b");
    pool.give_back(a, 1, 100);
    let Poll::Ready(Some(Grant::Connect(host))) = claim(&mut pool, b) else { panic!("b has waited longer than a") };
    pool.give_back(host, 2, 100);
    assert_eq!(claim(&mut pool, a_later), Poll::Ready(Some(Grant::Connect(a))));
    assert_eq!((pool.open(), pool.idle(), pool.waiting()), (1, 0, 0));
}

#[test]
fn a_stuck_origin_gets_no_more_while_another_has_less() {
    let (mut pool, a, _) = busy_with_a(3);
    let b = wait(pool.take(&"b", false, 0));
    // One of the stuck requests reaches its deadline. Three have waited for its place longer than b.
    pool.forget(a);
    assert!(matches!(claim(&mut pool, b), Poll::Ready(Some(Grant::Connect(_)))));
}

#[test]
fn what_was_given_and_not_fetched_is_idle_for_no_longer_than_before() {
    let mut pool = pool(1, 1);
    let host = connect(pool.take(&"a", false, 0));
    let turn = wait(pool.take(&"a", false, 0));
    pool.give_back(host, 7, 10);
    assert_eq!(pool.leave(turn), Some(10));
    assert_eq!(pool.take(&"a", false, 10), Take::Connect(host), "the server has said that it keeps it until 10");
}

#[test]
fn a_fresh_one_takes_an_idle_ones_place() {
    let mut pool = pool(10, 1);
    let host = connect(pool.take(&"a", false, 0));
    pool.give_back(host, 1, 100);
    assert_eq!(pool.take(&"a", true, 0), Take::Connect(host));
    assert_eq!((pool.open(), pool.idle()), (1, 0));
}

#[test]
fn the_line_is_bounded() {
    let mut pool: Pool<&str, u32> = Pool::new(Caps { total: 1, waiting: 1, ..ROOMY });
    connect(pool.take(&"a", false, 0));
    let turn = wait(pool.take(&"b", false, 0));
    assert_eq!(pool.take(&"c", false, 0), Take::Full);
    assert_eq!(pool.index.len(), 2, "c is forgotten");
    pool.leave(turn);
    wait(pool.take(&"c", false, 0));
}

#[test]
fn idle_connections_per_origin_are_bounded() {
    let mut pool: Pool<&str, u32> = Pool::new(Caps { idle_per_host: 1, ..ROOMY });
    let host = connect(pool.take(&"a", false, 0));
    connect(pool.take(&"a", false, 0));
    pool.give_back(host, 1, 100);
    pool.give_back(host, 2, 100);
    assert_eq!((pool.open(), pool.take(&"a", false, 0)), (1, Take::Idle(host, 2)));

    let mut none: Pool<&str, u32> = Pool::new(Caps { idle_per_host: 0, ..ROOMY });
    let host = connect(none.take(&"a", false, 0));
    none.give_back(host, 1, 100);
    assert_eq!((none.open(), none.idle(), none.index.len()), (0, 0, 0));
}

#[test]
fn a_cap_that_was_lowered_comes_back() {
    let mut pool = pool(3, 3);
    let host = connect(pool.take(&"a", false, 0));
    connect(pool.take(&"a", false, 0));
    // No descriptor was left for the second.
    pool.lower(1, 100);
    pool.forget(host);
    assert_eq!(pool.total(), 1);
    let turn = wait(pool.take(&"a", false, 99));
    let second = wait(pool.take(&"b", false, 99));
    // Later there are more, and the longest waiting requests come first.
    wait(pool.take(&"c", false, 100));
    assert_eq!((pool.total(), pool.open()), (3, 3));
    assert_eq!(claim(&mut pool, turn), Poll::Ready(Some(Grant::Connect(host))));
    assert!(matches!(claim(&mut pool, second), Poll::Ready(Some(Grant::Connect(_)))));
}

#[test]
fn a_cap_that_comes_back_serves_those_in_line() {
    let mut pool = pool(3, 3);
    let host = connect(pool.take(&"a", false, 0));
    pool.lower(1, 100);
    let turn = wait(pool.take(&"a", false, 1));
    assert_eq!((pool.raise(99), claim(&mut pool, turn)), (Some(100), Poll::Pending));
    assert_eq!((pool.raise(100), claim(&mut pool, turn)), (None, Poll::Ready(Some(Grant::Connect(host)))));
}

#[test]
fn who_could_not_connect_keeps_their_turn_and_finds_a_place() {
    let mut pool: Pool<&str, u32> = Pool::new(Caps { waiting: 2, ..ROOMY });
    let host = connect(pool.take(&"a", false, 0));
    let failing: Vec<u64> = (0..2)
        .map(|_| {
            connect(pool.take(&"a", false, 0));
            pool.turn()
        })
        .collect();
    pool.lower(1, 100);
    let later = [wait(pool.take(&"a", false, 0)), wait(pool.take(&"a", false, 0))];
    for &turn in &failing {
        pool.forget(host);
        assert_eq!(pool.take_again(&"a", false, 0, turn), Take::Wait(turn));
    }
    assert_eq!(pool.take(&"a", false, 0), Take::Full);
    for turn in failing.into_iter().chain(later) {
        pool.give_back(host, 7, 100);
        assert_eq!(claim(&mut pool, turn), Poll::Ready(Some(Grant::Idle(host, 7, 100))));
    }
}

/// State outside the pool, for the test of its sums.
#[derive(Debug, Default)]
struct Outside {
    held: Vec<HostId>,
    waiting: Vec<u64>,
}

#[test]
fn the_idle_connections_of_a_partition_are_closed_together() {
    let mut pool = pool(10, 10);
    let hosts = ["a", "a#1", "b#1", "a#2", "b#1"].map(|key| connect(pool.take(&key, false, 0)));
    for (host, connection) in hosts.into_iter().zip(0..) {
        pool.give_back(host, connection, 100);
    }
    let busy = connect(pool.take(&"a#1", true, 0));
    pool.close_partition(1);
    assert_eq!((pool.open(), pool.idle()), (3, 2), "the busy one of partition 1 stays");
    assert_eq!(pool.take(&"a#2", false, 0), Take::Idle(hosts[3], 3));
    assert!(matches!(pool.take(&"b#1", false, 0), Take::Connect(_)));
    pool.give_back(busy, 9, 100);
    assert_eq!(pool.take(&"a#1", false, 0), Take::Idle(busy, 9));
    pool.close_partition(3);
    assert_eq!(pool.idle(), 1);
    pool.close_partition(0);
    assert_eq!((pool.open(), pool.idle()), (3, 0));
}

#[test]
fn a_closed_partition_makes_room_for_who_waits() {
    let mut pool = pool(2, 2);
    let (a, b) = (connect(pool.take(&"a#1", false, 0)), connect(pool.take(&"b#2", false, 0)));
    let turn = wait(pool.take(&"a#2", false, 0));
    pool.give_back(b, 7, 100);
    assert_eq!(pool.idle(), 0, "its connection gave way to the one that waits");
    let granted = claim(&mut pool, turn);
    let Poll::Ready(Some(Grant::Connect(host))) = granted else { panic!("{granted:?}") };
    pool.give_back(a, 8, 100);
    pool.give_back(host, 9, 100);
    pool.close_partition(1);
    pool.close_partition(2);
    assert_eq!((pool.open(), pool.index.len(), pool.partitions.len()), (0, 0, 0));
}

proptest! {
    /// After any calls in any order: the sums are right, the caps hold, and no request waits without a reason.
    #[test]
    fn sums_and_caps_hold(
        caps in (1usize..4, 1usize..4, 0usize..3, 0usize..5),
        steps in proptest::collection::vec((0u8..8, 0usize..8), 0..200),
    ) {
        let (total, per_host, idle_per_host, waiting) = caps;
        let mut pool: Pool<&'static str, u32> = Pool::new(Caps { total, per_host, idle_per_host, waiting });
        let mut outside = Outside::default();
        for (now, (step, which)) in steps.into_iter().enumerate() {
            let now = now as u64;
            let pick = |list: &Vec<HostId>| (!list.is_empty()).then(|| which % list.len());
            match step {
                0..=2 => match pool.take(&["a", "b#1", "a#1"][which % 3], step == 2, now) {
                    Take::Idle(host, _) | Take::Connect(host) => outside.held.push(host),
                    Take::Wait(turn) => outside.waiting.push(turn),
                    Take::Full => prop_assert_eq!(pool.waiting(), waiting),
                },
                3 => if let Some(place) = pick(&outside.held) {
                    pool.give_back(outside.held.swap_remove(place), 0, now + 10);
                },
                4 => if let Some(place) = pick(&outside.held) {
                    pool.forget(outside.held.swap_remove(place));
                },
                5 if !outside.waiting.is_empty() => {
                    let turn = outside.waiting.swap_remove(which % outside.waiting.len());
                    pool.leave(turn);
                }
                6 => pool.close_partition(which as u64 % 2),
                _ => {
                    pool.sweep(now);
                }
            }
            outside.waiting.retain(|&turn| match claim(&mut pool, turn) {
                Poll::Ready(Some(Grant::Idle(host, ..) | Grant::Connect(host))) => { outside.held.push(host); false }
                Poll::Ready(None) => panic!("a place in line was lost"),
                Poll::Pending => true,
            });
            prop_assert_eq!(pool.open(), outside.held.len() + pool.idle());
            prop_assert_eq!(pool.waiting(), outside.waiting.len());
            prop_assert!(pool.open() <= total);
            prop_assert!(pool.hosts.iter().all(|host| host.open <= per_host && host.idle.len() <= idle_per_host));
            for host in pool.hosts.iter().filter(|host| !host.queue.is_empty()) {
                prop_assert!(host.idle.is_empty(), "one waits while one is idle");
                let full = host.open == per_host || (pool.open() == total && pool.idle() == 0);
                prop_assert!(full, "one waits although there is room");
            }
        }
        for host in outside.held.drain(..) { pool.forget(host) }
        for turn in outside.waiting.drain(..) {
            // Each gets its turn, because everything is free, and leaves.
            pool.leave(turn);
        }
        pool.close_idle();
        prop_assert_eq!((pool.open(), pool.idle(), pool.waiting(), pool.index.len()), (0, 0, 0, 0));
        prop_assert!(pool.partitions.is_empty());
    }
}
