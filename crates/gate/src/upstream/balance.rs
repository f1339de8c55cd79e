//! Chooses among several targets: skips ejected and tried ones, then applies one of four policies.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use super::pool::Pool;

/// A balancing policy. All policies respect weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Smooth weighted round robin.
    #[default]
    RoundRobin,
    /// The target with the fewest requests in progress for its weight, on this core. Round robin among equals.
    LeastConnections,
    /// Two targets at random; of these, the one with fewer requests in progress for its weight.
    RandomTwo,
    /// The same target for the same key. Adding or removing a target moves only that target's share of keys.
    ConsistentHash,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Policy; 4] =
        [Policy::RoundRobin, Policy::LeastConnections, Policy::RandomTwo, Policy::ConsistentHash];

    /// Returns the stable name.
    pub fn name(self) -> &'static str {
        match self {
            Policy::RoundRobin => "round-robin",
            Policy::LeastConnections => "least-connections",
            Policy::RandomTwo => "random-two",
            Policy::ConsistentHash => "consistent-hash",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The most points of a ring. Targets and weights may come from a database, and a request waits while the ring is
/// built.
const MOST_POINTS: u32 = 16_384;

/// Points on the ring per unit of weight. More points spread keys more evenly and use more memory.
const POINTS: u32 = 160;

/// One core's choice among targets.
///
/// The balancer chooses ejected targets ([`Ejection`](super::Ejection)) only if all targets are ejected: a target that
/// may be down is better than none.
pub struct Balancer {
    members: Vec<Member>,
    policy: Policy,
    /// For the consistent hash: points in ascending order, each with its member's index.
    ring: Vec<(u64, u16)>,
}

struct Member {
    pool: Rc<Pool>,
    weight: u32,
    /// The member's current weight in the smooth round robin.
    credit: Cell<i64>,
}

impl Balancer {
    /// Makes a balancer of pools and weights. A weight of 0 counts as 1. Ignores pools beyond 65,535.
    pub fn new(members: impl IntoIterator<Item = (Rc<Pool>, u32)>, policy: Policy) -> Self {
        let members: Vec<Member> = members
            .into_iter()
            .take(usize::from(u16::MAX))
            .map(|(pool, weight)| Member { pool, weight: weight.max(1), credit: Cell::new(0) })
            .collect();
        let ring = match policy {
            Policy::ConsistentHash => {
                ring(members.iter().map(|member| (member.pool.target().to_string(), member.weight)))
            }
            _ => Vec::new(),
        };
        Balancer { members, policy, ring }
    }

    /// Returns the pools, in the given order.
    pub fn pools(&self) -> impl Iterator<Item = &Rc<Pool>> {
        self.members.iter().map(|member| &member.pool)
    }

    /// Returns the index of the member for a request whose [`hash`] is `key`, except those in `tried`. `None` if all
    /// were tried.
    pub(crate) fn pick(&self, key: u64, tried: &[u16], now: u64) -> Option<u16> {
        if let ([_], []) = (&*self.members, tried) {
            return Some(0);
        }
        let healthy = |place: &u16| !tried.contains(place) && !self.member(*place).pool.is_ejected(now);
        let any = |place: &u16| !tried.contains(place);
        self.choose(key, healthy).or_else(|| self.choose(key, any))
    }

    pub(crate) fn at(&self, place: u16) -> &Rc<Pool> {
        &self.member(place).pool
    }

    fn member(&self, place: u16) -> &Member {
        &self.members[usize::from(place)]
    }

    fn choose(&self, key: u64, able: impl Fn(&u16) -> bool) -> Option<u16> {
        match self.policy {
            Policy::RoundRobin => self.in_turn(able),
            Policy::LeastConnections => {
                let least = self.places().filter(&able).min_by(|&one, &other| self.compare(one, other))?;
                self.in_turn(|place| able(place) && self.compare(*place, least).is_eq())
            }
            Policy::RandomTwo => {
                let (one, other) = (self.at_random(&able)?, self.at_random(&able)?);
                Some(if self.compare(one, other).is_le() { one } else { other })
            }
            Policy::ConsistentHash => {
                let start = self.ring.partition_point(|&(point, _)| point < key);
                let (before, behind) = self.ring.split_at(start);
                behind.iter().chain(before).map(|&(_, place)| place).find(|place| able(place))
            }
        }
    }

    fn places(&self) -> impl Iterator<Item = u16> {
        0..self.members.len() as u16
    }

    /// Smooth weighted round robin: each member gains its weight; the highest is chosen and loses the sum of all
    /// weights.
    fn in_turn(&self, able: impl Fn(&u16) -> bool) -> Option<u16> {
        let mut all = 0;
        let mut richest: Option<u16> = None;
        for place in self.places().filter(able) {
            let Member { weight, credit, .. } = self.member(place);
            credit.set(credit.get() + i64::from(*weight));
            all += i64::from(*weight);
            if richest.is_none_or(|richest| self.member(richest).credit.get() < credit.get()) {
                richest = Some(place);
            }
        }
        let credit = &self.member(richest?).credit;
        credit.set(credit.get() - all);
        richest
    }

    fn at_random(&self, able: impl Fn(&u16) -> bool) -> Option<u16> {
        let all: u64 = self.places().filter(&able).map(|place| u64::from(self.member(place).weight)).sum();
        let mut left = if all == 0 { return None } else { fastrand::u64(..all) };
        self.places().filter(able).find(|&place| {
            let weight = u64::from(self.member(place).weight);
            let here = left < weight;
            left = left.saturating_sub(weight);
            here
        })
    }

    /// Compares two members' loads for their weights, each with one request more.
    fn compare(&self, one: u16, other: u16) -> std::cmp::Ordering {
        let (one, other) = (self.member(one), self.member(other));
        let scaled = |this: &Member, that: &Member| (this.pool.load() as u64 + 1) * u64::from(that.weight);
        scaled(one, other).cmp(&scaled(other, one))
    }
}

impl fmt::Debug for Balancer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Balancer").field("policy", &self.policy).field("members", &self.members.len()).finish()
    }
}

/// Hashes a key for [`Policy::ConsistentHash`]: FNV-1a, mixed so that similar keys differ widely. All processes and
/// releases give the same result, so neighbouring gateways agree.
pub fn hash(key: &[u8]) -> u64 {
    let mixed = key
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

fn ring(members: impl Iterator<Item = (String, u32)>) -> Vec<(u64, u16)> {
    let members: Vec<(String, u32)> = members.collect();
    // Weights above 100 make no finer difference.
    let wanted: u32 = members.iter().map(|(_, weight)| POINTS * (*weight).min(100)).fold(0, u32::saturating_add);
    let share = wanted.div_ceil(MOST_POINTS).max(1);
    let points = |weight: u32| (POINTS * weight.min(100) / share).max(1);
    let mut ring: Vec<(u64, u16)> = members
        .into_iter()
        .enumerate()
        .flat_map(|(place, (name, weight))| {
            (0..points(weight)).map(move |point| (hash(format!("{name}#{point}").as_bytes()), place as u16))
        })
        .collect();
    ring.sort_unstable();
    ring
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_ring_is_bounded_whatever_its_members() {
        let members = |count: u32, weight: u32| (0..count).map(move |number| (number.to_string(), weight));
        assert_eq!(ring(members(3, 2)).len(), 3 * 2 * POINTS as usize);
        for (count, weight) in [(64, 1000), (1000, 1), (65_535, 100)] {
            let points = ring(members(count, weight)).len();
            assert!(points <= MOST_POINTS.max(count) as usize, "{count} members of {weight}: {points}");
            assert!(points >= count as usize);
        }
    }
    use crate::upstream::{Ejection, PoolSettings, Pools, Settings, Target};

    /// Runs inside a runtime, because pools spawn a sweeper task.
    fn with_balancer(weights: &[u32], policy: Policy, test: impl FnOnce(&Balancer)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default());
        runtime.unwrap().block_on(async {
            let pools = Pools::new(Settings::default(), Default::default());
            let ejection = Ejection { failures: 1, back_off: Duration::from_secs(3600), ..Ejection::default() };
            let settings = Rc::new(PoolSettings { ejection, ..PoolSettings::default() });
            let target = |place: usize| -> Target { format!("10.0.0.{place}:80").parse().unwrap() };
            let members =
                weights.iter().enumerate().map(|(place, &weight)| (pools.pool(&target(place), &settings), weight));
            test(&Balancer::new(members, policy));
        });
    }

    fn counted(balancer: &Balancer, keys: u64) -> Vec<u64> {
        let mut counts = vec![0; balancer.members.len()];
        for key in 0..keys {
            let picked = balancer.pick(hash(&key.to_le_bytes()), &[], 0).unwrap();
            counts[usize::from(picked)] += 1;
        }
        counts
    }

    #[test]
    fn turns_are_evenly_mixed_by_weight() {
        with_balancer(&[5, 1, 1], Policy::RoundRobin, |balancer| {
            let turns: Vec<u16> = (0..7).filter_map(|_| balancer.pick(0, &[], 0)).collect();
            assert_eq!(turns, [0, 0, 1, 0, 2, 0, 0]);
        });
        // With equal loads, the least loaded targets take turns too.
        with_balancer(&[1, 1, 1], Policy::LeastConnections, |balancer| assert_eq!(counted(balancer, 30), [10, 10, 10]));
    }

    #[test]
    fn chance_and_hashes_keep_to_the_weights() {
        with_balancer(&[1, 3], Policy::ConsistentHash, |balancer| {
            let counts = counted(balancer, 40_000);
            assert!((7_000..13_000).contains(&counts[0]), "{counts:?}");
        });
        with_balancer(&[1, 1, 1], Policy::RandomTwo, |balancer| {
            fastrand::seed(7);
            assert!(counted(balancer, 3_000).iter().all(|&count| count > 800));
        });
    }

    #[test]
    fn one_that_goes_moves_its_own_keys_alone() {
        with_balancer(&[1, 1, 1, 1], Policy::ConsistentHash, |balancer| {
            for key in (0..10_000_u64).map(|key| hash(&key.to_le_bytes())) {
                let (all, fewer) = (balancer.pick(key, &[], 0), balancer.pick(key, &[2], 0));
                assert!(all == fewer || all == Some(2), "{all:?} {fewer:?}");
                assert_ne!(fewer, Some(2));
            }
        });
    }

    #[test]
    fn who_failed_is_passed_over_until_all_have() {
        for policy in Policy::ALL {
            with_balancer(&[1, 1, 1], policy, |balancer| {
                let now = oroshi_net::monotonic_ns();
                for out in [0, 1] {
                    balancer.at(out).note(true, now);
                    assert!((0..=out).all(|out| balancer.at(out).is_ejected(now)));
                    assert!((0..50).all(|key| balancer.pick(hash(&[key]), &[], now).unwrap() > out), "{policy}");
                }
                // Tried targets are not tried again, healthy or not; then ejected targets get their chance.
                assert!(balancer.pick(3, &[2], now).unwrap() < 2);
                balancer.at(2).note(true, now);
                assert!(balancer.pick(3, &[], now).is_some(), "never all of them");
                assert_eq!(balancer.pick(3, &[0, 1, 2], now), None);
            });
        }
    }
}
