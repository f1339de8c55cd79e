//! The arrival times of a limit's keys, in bounded memory that all threads share.
//!
//! The table has shards, each behind a lock that a thread holds for one decision: some ten nanoseconds. A shard is an
//! array of buckets, each of two cache lines with eight keys. A key whose time has passed is as good as unknown, so
//! that its place is free: nothing has to be cleaned up.

use std::fmt;
use std::sync::{Mutex, PoisonError};

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
        let hash = hash.max(1);
        let mut shard = self.0[hash as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner);
        let Shard { buckets, counts } = &mut *shard;
        // The upper bits, because the lower ones are the same within a shard.
        let place = ((hash >> 32) as usize) % buckets.len();
        let (keys, arrivals) = buckets[place].split_at_mut(WAYS);
        let known = keys.iter().position(|&key| key == hash);
        let arrival = known.map_or(0, |way| arrivals[way]);
        match rule.decide_cost(arrival, now, cost) {
            Decision::Refused(wait) => {
                counts.refused += 1;
                Err(wait)
            }
            Decision::Passes(next) => {
                counts.passed += 1;
                let way = known.unwrap_or_else(|| {
                    // Empty places have the time 0.
                    let (way, earliest) =
                        (0..WAYS).map(|way| (way, arrivals[way])).min_by_key(|&(_, at)| at).unwrap_or_default();
                    counts.forgotten += u64::from(earliest > now);
                    way
                });
                (keys[way], arrivals[way]) = (hash, next);
                Ok(())
            }
        }
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
