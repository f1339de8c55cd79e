//! The arrival times of a limit's keys, in bounded memory that all threads share.
//!
//! The table has shards, each behind a lock that a thread holds for one decision: some ten nanoseconds. A shard is an
//! array of buckets, each of two cache lines with eight keys. A key whose time has passed is as good as unknown, so
//! that its place is free: nothing has to be cleaned up.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Decision, Rule};

/// Many more than threads, so that two of them seldom want the same one.
const SHARDS: usize = 64;

/// The keys of a bucket.
const WAYS: usize = 8;

/// Eight keys, 0 for none, and then their arrival times.
type Bucket = [u64; 2 * WAYS];

/// The arrival times of many keys. All threads share it.
pub struct RateTable(Box<[Mutex<Shard>]>);

/// The counts of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateCounts {
    /// Requests that passed.
    pub passed: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Keys that were forgotten before their burst was full again, because the table had no room.
    pub forgotten: u64,
}

impl fmt::Debug for RateTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateTable").finish_non_exhaustive()
    }
}

struct Shard {
    buckets: Vec<Bucket>,
    counts: RateCounts,
}

impl RateTable {
    /// Makes room for so many keys, or a little more. The kernel provides memory as keys come.
    #[must_use]
    pub fn new(entries: usize) -> Self {
        let buckets = entries.div_ceil(SHARDS * WAYS).max(1);
        let shard = || Mutex::new(Shard { buckets: vec![[0; 2 * WAYS]; buckets], counts: RateCounts::default() });
        RateTable((0..SHARDS).map(|_| shard()).collect())
    }

    /// Decides about a request of this cost whose key has this hash, and keeps the outcome. Times are nanoseconds.
    ///
    /// # Errors
    /// The time to wait, if it does not pass.
    pub fn check(&self, hash: u64, rule: Rule, cost: u64, now: u64) -> Result<(), u64> {
        let mut shard = self.shard(hash);
        match rule.decide_cost(shard.arrival(hash), now, cost) {
            Decision::Refused(wait) => {
                shard.counts.refused += 1;
                Err(wait)
            }
            Decision::Passes(next) => {
                shard.counts.passed += 1;
                shard.keep(hash, next, now);
                Ok(())
            }
        }
    }

    /// Refuses a request that [`check`](Self::check) would refuse; otherwise keeps and counts nothing.
    ///
    /// # Errors
    /// The time to wait, if it does not pass.
    pub fn refuse(&self, hash: u64, rule: Rule, now: u64) -> Result<(), u64> {
        let mut shard = self.shard(hash);
        match rule.decide(shard.arrival(hash), now) {
            Decision::Refused(wait) => {
                shard.counts.refused += 1;
                Err(wait)
            }
            Decision::Passes(_) => Ok(()),
        }
    }

    /// Counts a request about which somebody else has decided, and keeps the key's arrival time if it is later than the
    /// known one.
    pub fn learn(&self, hash: u64, arrival: u64, passes: bool, now: u64) {
        let mut shard = self.shard(hash);
        *(if passes { &mut shard.counts.passed } else { &mut shard.counts.refused }) += 1;
        if arrival > shard.arrival(hash) {
            shard.keep(hash, arrival, now);
        }
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        self.0[hash.max(1) as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns its counts.
    #[must_use]
    pub fn counts(&self) -> RateCounts {
        let mut sum = RateCounts::default();
        for shard in &self.0 {
            let counts = shard.lock().unwrap_or_else(PoisonError::into_inner).counts;
            sum.passed += counts.passed;
            sum.refused += counts.refused;
            sum.forgotten += counts.forgotten;
        }
        sum
    }
}

impl Shard {
    /// Returns the bucket of a key: its keys, and their arrival times.
    fn bucket(&mut self, hash: u64) -> (&mut [u64], &mut [u64]) {
        // The upper bits, because the lower ones are the same within a shard.
        let place = ((hash.max(1) >> 32) as usize) % self.buckets.len();
        self.buckets[place].split_at_mut(WAYS)
    }

    /// Returns the arrival time of a key; 0 if it is unknown.
    fn arrival(&mut self, hash: u64) -> u64 {
        let (keys, arrivals) = self.bucket(hash);
        keys.iter().position(|&key| key == hash.max(1)).map_or(0, |way| arrivals[way])
    }

    /// Keeps the arrival time of a key. If there is no room, it replaces the key that is nearest to its full burst.
    fn keep(&mut self, hash: u64, arrival: u64, now: u64) {
        let (keys, arrivals) = self.bucket(hash);
        let known = keys.iter().position(|&key| key == hash.max(1));
        // Empty places have the time 0.
        let way = known.or_else(|| (0..WAYS).min_by_key(|&way| arrivals[way])).unwrap_or_default();
        let forgets = known.is_none() && arrivals[way] > now;
        (keys[way], arrivals[way]) = (hash.max(1), arrival);
        self.counts.forgotten += u64::from(forgets);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const RULE: Rule = Rule { interval: 10, tolerance: 20 };

    proptest! {
        /// With room for all keys, the table decides as a map would.
        #[test]
        fn each_key_has_its_own_count(requests in prop::collection::vec((0..6_u64, 0..15_u64), 1..300)) {
            let (table, mut map, mut now) = (RateTable::new(1), HashMap::<u64, u64>::new(), 1);
            for (key, pause) in requests {
                now += pause;
                // All in one bucket.
                let hash = 1 + key * SHARDS as u64;
                let expected = match RULE.decide(map.get(&hash).copied().unwrap_or_default(), now) {
                    Decision::Passes(next) => { map.insert(hash, next); Ok(()) }
                    Decision::Refused(wait) => Err(wait),
                };
                prop_assert_eq!(table.check(hash, RULE, 1, now), expected);
            }
            prop_assert_eq!(table.counts().forgotten, 0);
        }
    }

    #[test]
    fn a_key_too_many_replaces_the_one_nearest_to_its_full_burst() {
        let table = RateTable::new(1);
        let hash = |key: u64| 1 + key * SHARDS as u64;
        for key in 0..8 {
            for _ in 0..=u64::from(key != 3) {
                table.check(hash(key), RULE, 1, 100).unwrap();
            }
        }
        table.check(hash(8), RULE, 1, 100).unwrap();
        assert_eq!(table.counts(), RateCounts { passed: 16, refused: 0, forgotten: 1 });
        // Key 3 was forgotten, the others were not: they have one request left.
        for key in [0, 1, 2, 4, 5, 6, 7] {
            table.check(hash(key), RULE, 1, 100).unwrap();
            assert_eq!(table.check(hash(key), RULE, 1, 100), Err(10), "{key}");
        }
        // Later all places are free again, and nothing is forgotten.
        for key in 20..28 {
            table.check(hash(key), RULE, 1, 1000).unwrap();
        }
        assert_eq!(table.counts().forgotten, 1);
    }

    #[test]
    fn what_somebody_else_decides_is_learned() {
        let table = RateTable::new(1);
        assert_eq!(table.refuse(7, RULE, 100), Ok(()));
        // Elsewhere, three have passed.
        table.learn(7, 130, true, 100);
        assert_eq!(table.refuse(7, RULE, 100), Err(10));
        // An answer that comes late takes nothing back.
        table.learn(7, 110, false, 101);
        assert_eq!((table.refuse(7, RULE, 109), table.refuse(7, RULE, 110)), (Err(1), Ok(())));
        assert_eq!(table.counts(), RateCounts { passed: 1, refused: 3, forgotten: 0 });
        // If nobody else answers, the table decides.
        assert_eq!((table.check(7, RULE, 1, 110), table.check(7, RULE, 1, 110)), (Ok(()), Err(10)));
    }

    #[test]
    fn threads_together_pass_no_more_than_one_would() {
        let table = RateTable::new(1000);
        let rule = Rule { interval: 1_000, tolerance: 99_000 };
        let passed: usize = std::thread::scope(|scope| {
            let work = || (0..1000).filter(|_| table.check(7, rule, 1, 5).is_ok()).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(passed, 100);
        assert_eq!(table.counts(), RateCounts { passed: 100, refused: 3900, forgotten: 0 });
    }
}
