//! The latency histogram of a run.
//!
//! It holds two kinds of values. A *recorded* value is the latency of an answered request. A *censored* value is the
//! time that an unanswered request had waited when the run ended, or when it was given up: a lower bound of its
//! latency. Dropping censored values would make a server that stops answering look fast. Estimating them from
//! recorded ones (the product-limit method) would assume that requests are cut off at random, but slow ones are cut
//! off. Therefore quantiles assume nothing. A quantile is exact if it is the same for any latency of the censored
//! requests; otherwise it is a bound that always holds.
//!
//! Resolution: counts are kept in HdrHistogram buckets of three significant digits (a bucket is narrower than 0.1 %
//! of its values; below 2048 ns it is one nanosecond). Minimum, maximum, mean and standard deviation are exact: they
//! do not come from the buckets.

use std::fmt;

use hdrhistogram::Histogram;

use crate::quantile::Quantile;
use crate::summary::LatencySummary;

/// Latencies in nanoseconds, from 0 to [`Latency::MAX_NS`] (one hour); greater ones count as that.
///
/// Takes about 270 KiB when made, the same again with the first censored value, and nothing afterwards:
/// [`record`](Self::record) never allocates.
///
/// Serialisation keeps everything. In human-readable formats: blobs that HdrHistogram tools read, and the exact figures
/// beside them. In binary formats: the buckets in use, and the exact figures.
#[derive(Clone)]
pub struct Latency {
    pub(crate) recorded: Histogram<u64>,
    /// Allocated with the first censored value: most runs have none.
    pub(crate) censored: Option<Histogram<u64>>,
    pub(crate) min: u64,
    pub(crate) max: u64,
    pub(crate) sum: u128,
    /// Sum of squares, modulo 2^128; see [`stdev`](Self::stdev) for why that is enough.
    pub(crate) squares: u128,
    pub(crate) censored_min: u64,
    pub(crate) censored_max: u64,
}

impl Latency {
    /// The greatest latency that the histogram distinguishes: one hour, in nanoseconds.
    pub const MAX_NS: u64 = 3_600_000_000_000;

    /// An empty histogram.
    pub fn new() -> Self {
        Self {
            recorded: empty_histogram(),
            censored: None,
            min: u64::MAX,
            max: 0,
            sum: 0,
            squares: 0,
            censored_min: u64::MAX,
            censored_max: 0,
        }
    }

    /// Counts the latency of an answered request. Never fails and never allocates.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.record_n(ns, 1);
    }

    /// Counts a request that was not answered within `ns`: its latency is that or more.
    pub fn record_censored(&mut self, ns: u64) {
        let ns = ns.min(Self::MAX_NS);
        self.censored.get_or_insert_with(empty_histogram).saturating_record(ns);
        self.censored_min = self.censored_min.min(ns);
        self.censored_max = self.censored_max.max(ns);
    }

    /// Adds the values of `other`; the order of merges makes no difference.
    pub fn merge(&mut self, other: &Self) {
        add(&mut self.recorded, &other.recorded);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.sum += other.sum;
        self.squares = self.squares.wrapping_add(other.squares);
        self.merge_censored(other);
    }

    /// Adds only the censored values of `other`: times of another clock that are lower bounds of these too.
    pub fn merge_censored(&mut self, other: &Self) {
        if let Some(censored) = &other.censored {
            add(self.censored.get_or_insert_with(empty_histogram), censored);
        }
        self.censored_min = self.censored_min.min(other.censored_min);
        self.censored_max = self.censored_max.max(other.censored_max);
    }

    /// Removes every value and keeps the memory.
    pub fn clear(&mut self) {
        self.recorded.reset();
        if let Some(censored) = &mut self.censored {
            censored.reset();
        }
        (self.min, self.max, self.sum, self.squares) = (u64::MAX, 0, 0, 0);
        (self.censored_min, self.censored_max) = (u64::MAX, 0);
    }

    /// Number of recorded values, without censored ones.
    pub fn len(&self) -> u64 {
        self.recorded.len()
    }

    /// Number of censored values.
    pub fn censored(&self) -> u64 {
        self.censored.as_ref().map_or(0, Histogram::len)
    }

    /// Whether the histogram has neither recorded nor censored values.
    pub fn is_empty(&self) -> bool {
        self.recorded.is_empty() && self.censored() == 0
    }

    /// The least recorded value, exactly; 0 when there is none.
    pub fn min(&self) -> u64 {
        if self.recorded.is_empty() { 0 } else { self.min }
    }

    /// The greatest recorded value, exactly; 0 when there is none.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The least censored value, exactly; 0 when there is none.
    pub fn censored_min(&self) -> u64 {
        if self.censored() == 0 { 0 } else { self.censored_min }
    }

    /// The greatest censored value, exactly; 0 when there is none.
    pub fn censored_max(&self) -> u64 {
        self.censored_max
    }

    /// The sum of the recorded values, exactly, in nanoseconds.
    pub fn sum(&self) -> u128 {
        self.sum
    }

    /// The mean of the recorded values in nanoseconds; 0 when there is none.
    pub fn mean(&self) -> f64 {
        if self.recorded.is_empty() { 0.0 } else { self.sum as f64 / self.len() as f64 }
    }

    /// The sample standard deviation (n - 1) of the recorded values in nanoseconds; 0 when there are fewer than two.
    pub fn stdev(&self) -> f64 {
        let count = self.len();
        if count < 2 {
            return 0.0;
        }
        // Near the whole part of the mean, the sum of squared differences is small. Integer arithmetic finds it
        // exactly even if terms wrap: the result is right modulo 2^128 and far below that.
        let (n, whole) = (u128::from(count), self.sum / u128::from(count));
        let cross = whole.wrapping_mul(self.sum).wrapping_mul(2);
        let around_whole = self.squares.wrapping_sub(cross).wrapping_add(n.wrapping_mul(whole).wrapping_mul(whole));
        let rest = (self.sum % n) as f64 / count as f64;
        ((around_whole as f64 - rest * rest * count as f64).max(0.0) / (count - 1) as f64).sqrt()
    }

    /// Returns the `q`-quantile of recorded and censored values together: the value of rank `ceil(q * n)`, as far as
    /// it is known. `q` is clamped to 0..=1.
    ///
    /// [`Quantile::Exact`] where the best case (every censored request ends at its bound) and the worst case (none
    /// ever ends) agree to the resolution of the buckets. The value is then the upper end of its bucket, as in
    /// HdrHistogram tools, clamped to the exact minimum and maximum. Otherwise [`Quantile::AtLeast`] the best case,
    /// which never exceeds the true quantile and is at most a bucket (0.1 %) below the exact best case.
    ///
    /// `None` when the histogram is empty or `q` is not a number.
    pub fn quantile(&self, q: f64) -> Option<Quantile> {
        let rank = self.rank(q)?;
        let least = self.best_case(rank);
        Some(match self.worst_case(rank) {
            // If the rank's value is among the smallest known, its bucket has no room for another value.
            Some(most) if self.recorded.equivalent(least, most) => Quantile::Exact(most),
            _ => Quantile::AtLeast(least),
        })
    }

    /// Returns the bounds of the `q`-quantile for any latency of the censored requests, in nanoseconds.
    ///
    /// The lower bound is the best case, rounded down to its bucket; the upper one is the worst case, rounded up. The
    /// upper bound is `None` where the rank falls among requests that may never have ended.
    ///
    /// `None` when the histogram is empty or `q` is not a number.
    pub fn quantile_range(&self, q: f64) -> Option<(u64, Option<u64>)> {
        let rank = self.rank(q)?;
        Some((self.best_case(rank), self.worst_case(rank)))
    }

    /// Returns the least possible mean of recorded and censored values, in nanoseconds; 0 when there is none.
    ///
    /// Equals [`mean`](Self::mean) where nothing is censored; otherwise it is at most a bucket (0.1 %) too small.
    pub fn least_mean(&self) -> f64 {
        let censored = self.censored.iter().flat_map(buckets);
        let waited: u128 =
            censored.map(|(value, count)| u128::from(self.recorded.lowest_equivalent(value)) * u128::from(count)).sum();
        let all = self.len() + self.censored();
        if all == 0 { 0.0 } else { (self.sum + waited) as f64 / all as f64 }
    }

    /// Returns the share (0 to 1) of recorded values from `lo` to `hi` inclusive; 0 when there is none. The buckets
    /// at the two ends count whole.
    pub fn fraction_within(&self, lo: u64, hi: u64) -> f64 {
        if self.recorded.is_empty() || lo > hi {
            return 0.0;
        }
        self.recorded.count_between(lo, hi) as f64 / self.len() as f64
    }

    /// Returns the share (0 to 1) of recorded values within `k` standard deviations of the mean: wrk's `+/- Stdev`
    /// column with `k` = 1.
    pub fn fraction_within_stdev(&self, k: f64) -> f64 {
        let (mean, reach) = (self.mean(), self.stdev() * k);
        if reach.is_nan() || reach < 0.0 {
            return 0.0;
        }
        // The mean is rounded: without some slack, equal values could miss it.
        let reach = reach + mean * 1e-12;
        // Conversion from float to integer saturates, so a lower end below zero becomes zero.
        self.fraction_within((mean - reach).ceil() as u64, (mean + reach).floor() as u64)
    }

    /// Returns the recorded values with wrk's correction for coordinated omission, which wrk always applies.
    ///
    /// wrk takes `expected_interval_ns` = run time / (requests / connections). For each value of at least twice that,
    /// it adds made-up values: value - interval, value - 2 * interval, and so on while they exceed the interval.
    /// (HdrHistogram's own correction also adds a value that equals the interval.) The resulting figures were not
    /// measured; they exist for comparison with wrk. Censored values are omitted: wrk has none.
    ///
    /// An interval of 0 adds nothing.
    pub fn backfilled(&self, expected_interval_ns: u64) -> Self {
        let mut filled = Self { censored: None, censored_min: u64::MAX, censored_max: 0, ..self.clone() };
        if expected_interval_ns == 0 {
            return filled;
        }
        for (value, count) in buckets(&self.recorded) {
            let value = self.recorded.median_equivalent(value).clamp(self.min, self.max);
            filled.backfill(value, count, expected_interval_ns);
        }
        filled
    }

    /// The recorded values as an HdrHistogram, for its iterators and other formats. The unit is the nanosecond.
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.recorded
    }

    /// Returns the figures that a report has.
    pub fn summary(&self) -> LatencySummary {
        LatencySummary::of(self)
    }

    #[inline]
    pub(crate) fn record_n(&mut self, ns: u64, count: u64) {
        let ns = ns.min(Self::MAX_NS);
        self.recorded.saturating_record_n(ns, count);
        self.min = self.min.min(ns);
        self.max = self.max.max(ns);
        let (value, count) = (u128::from(ns), u128::from(count));
        self.sum += value * count;
        self.squares = self.squares.wrapping_add((value * value).wrapping_mul(count));
    }

    /// Adds `count` times the made-up values that wrk derives from `value`.
    ///
    /// They are equally spaced, so all values in one bucket are added at once. The number of buckets bounds the work,
    /// however small the interval.
    fn backfill(&mut self, value: u64, count: u64, interval: u64) {
        let mut next = value.saturating_sub(interval);
        while next > interval {
            // Where a bucket is wider than the interval, its values are a thousand times greater: none falls below.
            let terms = (next - self.recorded.lowest_equivalent(next)) / interval + 1;
            let last = next - (terms - 1) * interval;
            self.add_progression(last, next, terms, count);
            next = last.saturating_sub(interval);
        }
    }

    /// Adds `count` times each of `terms` equally spaced values from `first` to `last`, which share a bucket.
    fn add_progression(&mut self, first: u64, last: u64, terms: u64, count: u64) {
        self.recorded.saturating_record_n(last, terms.saturating_mul(count));
        self.min = self.min.min(first);
        let step = if terms > 1 { u128::from((last - first) / (terms - 1)) } else { 0 };
        let (first, last, n, times) = (u128::from(first), u128::from(last), u128::from(terms), u128::from(count));
        let sum = n * (first + last) / 2;
        // The squares of first, first + step, first + 2 * step, ...
        let squares = n * first * first + first * step * n * (n - 1) + step * step * (n * (n - 1) * (2 * n - 1) / 6);
        self.sum = self.sum.saturating_add(sum.saturating_mul(times));
        self.squares = self.squares.wrapping_add(squares.wrapping_mul(times));
    }

    /// The rank of the `q`-quantile among recorded and censored values, from 1.
    fn rank(&self, q: f64) -> Option<u64> {
        if self.is_empty() || q.is_nan() {
            return None;
        }
        let all = self.len() + self.censored();
        Some((((q.clamp(0.0, 1.0) - ROUNDING) * all as f64).ceil().max(1.0) as u64).min(all))
    }

    /// Returns the value of rank `rank` if every censored request ended at its bound, or up to a bucket less.
    fn best_case(&self, rank: u64) -> u64 {
        if rank >= self.len() + self.censored() {
            return self.max.max(self.censored_max);
        }
        let (mut recorded, mut censored) =
            (buckets(&self.recorded).peekable(), self.censored.iter().flat_map(buckets).peekable());
        let mut passed = 0;
        loop {
            let (answered, cut) = (recorded.peek().copied(), censored.peek().copied());
            let Some(value) = answered.into_iter().chain(cut).map(|(value, _)| value).min() else {
                return self.max.max(self.censored_max);
            };
            let (answered, cut) = (recorded.next_if(|b| b.0 == value), censored.next_if(|b| b.0 == value));
            passed += answered.map_or(0, |(_, count)| count) + cut.map_or(0, |(_, count)| count);
            if passed >= rank {
                // No value is less than the exact minimum of its kind.
                let least = [answered.map(|_| self.min), cut.map(|_| self.censored_min)].into_iter().flatten().min();
                return self.recorded.lowest_equivalent(value).max(least.unwrap_or(0));
            }
        }
    }

    /// Returns the value of rank `rank` if no censored request ever ended, or up to a bucket more; `None` if it is
    /// one of those.
    fn worst_case(&self, rank: u64) -> Option<u64> {
        if rank > self.len() {
            return None;
        }
        if rank == 1 {
            return Some(self.min);
        }
        let mut passed = 0;
        let found = buckets(&self.recorded).find(|(_, count)| {
            passed += count;
            passed >= rank
        });
        Some(found.map_or(self.max, |(value, _)| value.clamp(self.min, self.max)))
    }
}

/// The share of a rank by which a product such as 0.1 * 30 = 3.0000000000000004 may miss it. The effect on a quantile
/// is less than one rank below 10^12 values.
const ROUNDING: f64 = 1e-12;

/// Returns the buckets in use, ascending: (upper end of the bucket, count).
pub(crate) fn buckets(histogram: &Histogram<u64>) -> impl Iterator<Item = (u64, u64)> + '_ {
    histogram.iter_recorded().map(|bucket| (bucket.value_iterated_to(), bucket.count_at_value()))
}

/// Returns an empty histogram. All have the same bounds, so they merge bucket by bucket and never resize.
pub(crate) fn empty_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, Latency::MAX_NS, 3).expect("the bounds are valid")
}

fn add(to: &mut Histogram<u64>, from: &Histogram<u64>) {
    to.add(from).expect("both have the same bounds");
}

impl Default for Latency {
    fn default() -> Self {
        Self::new()
    }
}

/// Prints counts and ends only: there are tens of thousands of buckets.
impl fmt::Debug for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latency")
            .field("len", &self.len())
            .field("censored", &self.censored())
            .field("min", &self.min())
            .field("max", &self.max())
            .finish_non_exhaustive()
    }
}
