//! A histogram small enough for every second of a run.

use std::fmt;
use std::ops::Range;

use crate::series::Point;

/// Bits of a value kept below its leading one: 16 buckets per doubling.
const SUB_BITS: u32 = 4;
/// The unit of values: 2^6 = 64 ns.
const UNIT_BITS: u32 = 6;
/// 16 buckets of 64 ns up to 1024 ns, then 16 per doubling for 30 doublings up to 2^40 ns.
pub(crate) const BUCKETS: usize = 31 << SUB_BITS;

/// Latencies of one interval, in nanoseconds, in just under 2 KiB without any allocation.
///
/// Buckets are 64 ns wide up to 2048 ns, and 3.1 % to 6.25 % of their value above. A quantile is the middle of its
/// bucket, so its error is at most 32 ns or 3.2 %, whichever is greater. Values from 2^40 ns (18 minutes) on share
/// the last bucket. Count, minimum, maximum and mean are exact. For a whole run use [`Latency`](crate::Latency).
#[derive(Clone)]
pub struct Sketch {
    pub(crate) counts: [u32; BUCKETS],
    pub(crate) count: u64,
    pub(crate) sum: u64,
    pub(crate) min: u64,
    pub(crate) max: u64,
}

impl Sketch {
    /// An empty sketch.
    pub const fn new() -> Self {
        Self { counts: [0; BUCKETS], count: 0, sum: 0, min: u64::MAX, max: 0 }
    }

    /// Counts a value.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        let slot = &mut self.counts[bucket_of(ns)];
        *slot = slot.saturating_add(1);
        self.count += 1;
        self.sum = self.sum.saturating_add(ns);
        self.min = self.min.min(ns);
        self.max = self.max.max(ns);
    }

    /// Adds the recorded values of a [`Latency`](crate::Latency), each by its bucket.
    pub fn record_all(&mut self, latency: &crate::Latency) {
        for (value, count) in crate::latency::buckets(latency.histogram()) {
            let slot = &mut self.counts[bucket_of(value)];
            *slot = slot.saturating_add(count.min(u64::from(u32::MAX)) as u32);
            self.count += count;
            self.sum = self.sum.saturating_add(value.saturating_mul(count));
        }
        if !latency.histogram().is_empty() {
            self.min = self.min.min(latency.min());
            self.max = self.max.max(latency.max());
        }
    }

    /// Adds the values of `other`. A bucket saturates at `u32::MAX`.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.saturating_add(*theirs);
        }
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Removes every value.
    pub fn clear(&mut self) {
        *self = Self::new();
    }

    /// Number of values.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The least value, exactly; 0 when there is none.
    pub fn min(&self) -> u64 {
        if self.is_empty() { 0 } else { self.min }
    }

    /// The greatest value, exactly; 0 when there is none.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The mean, exactly; 0 when there is no value.
    pub fn mean(&self) -> f64 {
        if self.is_empty() { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// Returns the non-empty buckets in order: range of values and count. The last one also holds all greater values.
    pub fn buckets(&self) -> impl Iterator<Item = (Range<u64>, u32)> {
        let occupied = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        occupied.map(|(bucket, count)| {
            let (low, width) = bounds_of(bucket);
            (low..low + width, *count)
        })
    }

    /// Returns the `q`-quantile: the value of rank `ceil(q * n)`, with the error stated above. `q` is clamped to
    /// 0..=1. `None` when the sketch is empty or `q` is not a number.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        if self.is_empty() || q.is_nan() {
            return None;
        }
        // The deduction keeps a product such as 0.1 * 30 = 3.0000000000000004 from selecting the next rank.
        let rank = (q.clamp(0.0, 1.0) * self.count as f64 * (1.0 - 1e-12)).ceil() as u64;
        if rank <= 1 {
            return Some(self.min);
        }
        if rank >= self.count {
            return Some(self.max);
        }
        let mut below = 0;
        let bucket = self.counts.iter().position(|count| {
            below += u64::from(*count);
            below >= rank
        });
        // Only a sketch with a saturated bucket lacks such a bucket.
        let middle = |bucket| {
            let (low, width) = bounds_of(bucket);
            low + width / 2
        };
        Some(bucket.map_or(self.max, middle).clamp(self.min, self.max))
    }
}

impl Default for Sketch {
    fn default() -> Self {
        Self::new()
    }
}

impl Point for Sketch {
    fn absorb(&mut self, other: &Self) {
        self.merge(other);
    }
}

/// Prints count and ends only.
impl fmt::Debug for Sketch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sketch")
            .field("len", &self.len())
            .field("min", &self.min())
            .field("max", &self.max())
            .finish_non_exhaustive()
    }
}

#[inline]
fn bucket_of(ns: u64) -> usize {
    let units = ns >> UNIT_BITS;
    // Position of the leading one above the linear part; 0 within it.
    let doublings = (units >> SUB_BITS | 1).ilog2() + u32::from(units >> SUB_BITS != 0);
    let shift = doublings.saturating_sub(1);
    let sub = (units >> shift) as usize & ((1 << SUB_BITS) - 1);
    (((doublings as usize) << SUB_BITS) | sub).min(BUCKETS - 1)
}

/// Returns the least value of a bucket, and its width.
fn bounds_of(bucket: usize) -> (u64, u64) {
    let (doublings, sub) = (bucket as u32 >> SUB_BITS, bucket as u64 & ((1 << SUB_BITS) - 1));
    let shift = doublings.saturating_sub(1) + UNIT_BITS;
    let leading = if doublings == 0 { 0 } else { 1 << SUB_BITS };
    ((leading + sub) << shift, 1 << shift)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sketch_of(values: &[u64]) -> Sketch {
        let mut sketch = Sketch::new();
        values.iter().for_each(|ns| sketch.record(*ns));
        sketch
    }

    #[test]
    fn it_is_as_small_as_it_says() {
        assert!(size_of::<Sketch>() <= 2048);
    }

    #[test]
    fn buckets_adjoin() {
        for bucket in 1..BUCKETS {
            let (low, width) = bounds_of(bucket);
            assert_eq!((bucket_of(low - 1), bucket_of(low), bucket_of(low + width - 1)), (bucket - 1, bucket, bucket));
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, BUCKETS - 1));
        assert_eq!((bucket_of((1 << 40) - 1), bucket_of(1 << 40)), (BUCKETS - 1, BUCKETS - 1));
    }

    #[test]
    fn occupied_buckets_are_told_with_their_bounds() {
        let sketch = sketch_of(&[70, 127, 5000, u64::MAX]);
        let found: Vec<_> = sketch.buckets().collect();
        let last = (1 << 40) - (1 << 35)..1 << 40;
        assert_eq!(found, [(64..128, 2), (4864..5120, 1), (last, 1)]);
    }

    #[test]
    fn an_empty_one_says_nothing() {
        let mut sketch = sketch_of(&[5]);
        sketch.clear();
        assert!(sketch.is_empty());
        assert_eq!((sketch.quantile(0.5), sketch.min(), sketch.max(), sketch.mean()), (None, 0, 0, 0.0));
    }

    #[test]
    fn quantiles_at_a_rank_are_not_moved_by_rounding() {
        for n in 1..=200 {
            let sketch = sketch_of(&(1..=n).map(|rank| rank * 64).collect::<Vec<_>>());
            for rank in 1..=n.min(30) {
                let found = sketch.quantile(rank as f64 / n as f64).unwrap();
                assert!(found.abs_diff(rank * 64) <= 32, "{found} at {rank} of {n}");
            }
        }
    }

    fn values() -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec(prop_oneof![0_u64..3000, 0_u64..50_000_000, 0_u64..1 << 40], 1..100)
    }

    proptest! {
        #[test]
        fn quantiles_are_within_the_stated_error(mut exact in values(), per_mille in 1_usize..=1000) {
            exact.sort_unstable();
            let naive = exact[(per_mille * exact.len()).div_ceil(1000) - 1];
            let found = sketch_of(&exact).quantile(per_mille as f64 / 1000.0).unwrap();
            let error = (naive as f64 * 0.032).max(32.0);
            prop_assert!(found.abs_diff(naive) as f64 <= error, "{found} for {naive}");
        }

        #[test]
        fn merging_is_recording_all(a in values(), b in values()) {
            let mut merged = sketch_of(&a);
            merged.absorb(&sketch_of(&b));
            let all = sketch_of(&[a, b].concat());
            prop_assert_eq!(merged.counts, all.counts);
            prop_assert_eq!((merged.len(), merged.min(), merged.max()), (all.len(), all.min(), all.max()));
            prop_assert_eq!(merged.mean(), all.mean());
        }
    }
}
