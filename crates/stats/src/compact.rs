//! Histograms in few bytes, for messages: only buckets in use, each by its distance from the one before.
//!
//! Binary formats of serde (those that are not human-readable) use this form; JSON uses [`stored`](crate::stored).
//! Reading checks every figure against the buckets, so bytes of another machine cannot make a histogram that
//! contradicts itself.

use serde::de::{Deserializer, Error as _};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use crate::latency::{Latency, buckets, empty_histogram};
use crate::sketch::{BUCKETS, Sketch};
use crate::stored::Stored;

/// The most values in one histogram of a message.
const MOST_VALUES: u64 = 1 << 40;
/// Buckets of a [`Latency`] below 2048 ns are one nanosecond wide; from there on, 1024 share each doubling.
const PER_DOUBLING: u64 = 1024;

/// Counts by bucket: the distance from the bucket before, and the count.
type Gaps = Vec<(u32, u64)>;

#[derive(Serialize, Deserialize)]
struct CompactLatency {
    recorded: Gaps,
    censored: Gaps,
    min: u64,
    max: u64,
    censored_min: u64,
    censored_max: u64,
    sum: u128,
    squares: u128,
}

impl Serialize for Latency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return Stored::from(self).serialize(serializer);
        }
        let gaps = |values: &mut dyn Iterator<Item = (u64, u64)>| {
            let mut before = 0;
            let gap = |(value, count)| {
                let index = index_of(value);
                let gap = index - before;
                before = index;
                (gap as u32, count)
            };
            values.map(gap).collect()
        };
        CompactLatency {
            recorded: gaps(&mut buckets(&self.recorded)),
            censored: gaps(&mut self.censored.iter().flat_map(buckets)),
            min: self.min(),
            max: self.max(),
            censored_min: self.censored_min(),
            censored_max: self.censored_max(),
            sum: self.sum,
            squares: self.squares,
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Latency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return Self::try_from(Stored::deserialize(deserializer)?).map_err(D::Error::custom);
        }
        let compact = CompactLatency::deserialize(deserializer)?;
        compact.latency().ok_or_else(|| D::Error::custom("a histogram contradicts itself"))
    }
}

impl CompactLatency {
    fn latency(self) -> Option<Latency> {
        let mut latency = Latency::new();
        let fill = |gaps: &Gaps, ends: (u64, u64), to: &mut hdrhistogram::Histogram<u64>| {
            let (mut index, mut total, mut first) = (0_u64, 0_u64, None);
            for (gap, count) in gaps {
                index += u64::from(*gap);
                total = total.checked_add(*count).filter(|total| *total <= MOST_VALUES)?;
                if index > index_of(Latency::MAX_NS) || *count == 0 || first.is_some() && *gap == 0 {
                    return None;
                }
                to.saturating_record_n(value_of(index), *count);
                first = first.or(Some(index));
            }
            let fits = match first {
                None => ends == (0, 0),
                Some(first) => ends.1 <= Latency::MAX_NS && (index_of(ends.0), index_of(ends.1)) == (first, index),
            };
            fits.then_some(())
        };
        fill(&self.recorded, (self.min, self.max), &mut latency.recorded)?;
        if !latency.recorded.is_empty() {
            (latency.min, latency.max) = (self.min, self.max);
        }
        if !self.censored.is_empty() {
            let mut censored = empty_histogram();
            fill(&self.censored, (self.censored_min, self.censored_max), &mut censored)?;
            latency.censored = Some(censored);
            (latency.censored_min, latency.censored_max) = (self.censored_min, self.censored_max);
        }
        let most = u128::from(latency.len()) * u128::from(Latency::MAX_NS);
        (latency.sum, latency.squares) = (self.sum, self.squares);
        (self.sum <= most).then_some(latency)
    }
}

/// The number of a value's bucket, from 0.
fn index_of(value: u64) -> u64 {
    let doublings = u64::from((value / PER_DOUBLING).checked_ilog2().unwrap_or(0));
    doublings * PER_DOUBLING + (value >> doublings)
}

/// The least value of a bucket.
fn value_of(index: u64) -> u64 {
    let doublings = (index / PER_DOUBLING).saturating_sub(1);
    (index - doublings * PER_DOUBLING) << doublings
}

#[derive(Serialize, Deserialize)]
struct CompactSketch {
    counts: Vec<(u16, u32)>,
    sum: u64,
    min: u64,
    max: u64,
}

impl Serialize for Sketch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut before = 0;
        let occupied = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        let gap =
            |(bucket, count): (usize, &u32)| (bucket as u16 - std::mem::replace(&mut before, bucket as u16), *count);
        let counts = occupied.map(gap).collect();
        CompactSketch { counts, sum: self.sum, min: self.min(), max: self.max }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Sketch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let compact = CompactSketch::deserialize(deserializer)?;
        let mut sketch = Self::new();
        let mut bucket = 0;
        for (gap, count) in compact.counts {
            bucket += usize::from(gap);
            let slot = sketch.counts.get_mut(bucket).ok_or_else(|| D::Error::custom("a sketch has no such bucket"))?;
            *slot = slot.saturating_add(count);
            sketch.count += u64::from(count);
        }
        debug_assert!(bucket < BUCKETS);
        if sketch.count > 0 {
            (sketch.sum, sketch.min, sketch.max) = (compact.sum, compact.min, compact.max);
        }
        if sketch.min > sketch.max && sketch.count > 0 {
            return Err(D::Error::custom("a sketch contradicts itself"));
        }
        Ok(sketch)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round<T: Serialize + serde::de::DeserializeOwned>(value: &T) -> (T, usize) {
        let bytes = postcard::to_stdvec(value).unwrap();
        (postcard::from_bytes(&bytes).unwrap(), bytes.len())
    }

    #[test]
    fn buckets_are_numbered_as_hdrhistogram_has_them() {
        let histogram = empty_histogram();
        for index in 0..=index_of(Latency::MAX_NS) {
            let value = value_of(index);
            assert_eq!((index_of(value), histogram.lowest_equivalent(value)), (index, value));
        }
    }

    #[test]
    fn contradictions_are_refused() {
        let fine = || CompactLatency {
            recorded: vec![(5, 1), (2, 1)],
            censored: Vec::new(),
            min: 5,
            max: 7,
            censored_min: 0,
            censored_max: 0,
            sum: 12,
            squares: 74,
        };
        assert!(fine().latency().is_some());
        for wrong in [
            CompactLatency { min: 4, ..fine() },
            CompactLatency { max: u64::MAX, ..fine() },
            CompactLatency { recorded: vec![(5, 1), (0, 1)], max: 5, ..fine() },
            CompactLatency { recorded: vec![(5, 0), (2, 1)], ..fine() },
            CompactLatency { recorded: vec![(5, u64::MAX), (2, u64::MAX)], ..fine() },
            CompactLatency { recorded: vec![(5, 1), (u32::MAX, 1)], ..fine() },
            CompactLatency { censored: vec![(1, 1)], censored_max: 3, ..fine() },
            CompactLatency { sum: u128::MAX, ..fine() },
        ] {
            let described = format!("{:?} from {} to {}", wrong.recorded, wrong.min, wrong.max);
            assert!(wrong.latency().is_none(), "{described}");
        }
    }

    proptest! {
        /// Parts that travel and are merged are the union of all values.
        #[test]
        fn merged_messages_are_the_union(
            one in prop::collection::vec((0_u64..Latency::MAX_NS, any::<bool>()), 0..60),
            other in prop::collection::vec((0_u64..5_000_000, any::<bool>()), 0..60),
        ) {
            let of = |values: &[(u64, bool)]| {
                let mut latency = Latency::new();
                for (ns, answered) in values {
                    if *answered { latency.record(*ns) } else { latency.record_censored(*ns) }
                }
                latency
            };
            let mut merged = Latency::new();
            for part in [&one, &other] {
                merged.merge(&round(&of(part)).0);
            }
            let whole = of(&[one, other].concat());
            prop_assert_eq!(serde_json::to_string(&merged).unwrap(), serde_json::to_string(&whole).unwrap());
        }

        #[test]
        fn sketches_travel_whole(values in prop::collection::vec(0_u64..1 << 42, 0..100)) {
            let mut sketch = Sketch::new();
            values.iter().for_each(|ns| sketch.record(*ns));
            let (read, _) = round(&sketch);
            prop_assert_eq!(read.counts, sketch.counts);
            prop_assert_eq!((read.count, read.sum, read.min, read.max), (sketch.count, sketch.sum, sketch.min, sketch.max));
        }
    }
}
