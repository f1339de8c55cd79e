//! The points of a run as rows of latency and columns of time.

use oroshi_bench::PointData;
use oroshi_stats::Sketch;

/// Buckets of a sketch per doubling, and the width of its narrowest ones as a power of two, nanoseconds.
const SUB_BITS: u32 = 4;
const UNIT_BITS: u32 = 6;

/// A stretch of the run that one column shows.
#[derive(Clone, Debug, Default)]
pub(super) struct Column {
    pub(super) requests: u64,
    /// How many points it has.
    pub(super) points: usize,
    pub(super) service: Sketch,
}

/// Merges neighbours until there are at most `most` columns.
pub(super) fn columns(points: &[PointData], most: usize) -> Vec<Column> {
    let each = points.len().div_ceil(most.max(1)).max(1);
    let column = |points: &[PointData]| {
        let mut column = Column { points: points.len(), ..Column::default() };
        for point in points {
            column.requests += point.requests;
            column.service.merge(&point.service);
        }
        column
    };
    points.chunks(each).map(column).collect()
}

/// Rows of latency, as wide as each other on a logarithmic scale; together they hold all values of a sketch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    /// The first bucket, and the buckets of a row.
    first: usize,
    each: usize,
    pub(super) count: usize,
}

impl Rows {
    /// Divides the values of a sketch into `count` rows.
    pub(super) fn of(all: &Sketch, count: usize) -> Self {
        let count = count.max(1);
        let (first, last) = (index(all.min()), index(all.max()));
        let span = last + 1 - first;
        let each = span.div_ceil(count);
        // What is left over is shared by both ends.
        let first = first.saturating_sub((each * count - span) / 2);
        Self { first, each, count }
    }

    /// Returns the least value of a row, nanoseconds. Row 0 has the shortest times.
    pub(super) fn low(&self, row: usize) -> u64 {
        low(self.first + row * self.each)
    }

    /// Returns how many values of a sketch each row has.
    pub(super) fn counts(&self, sketch: &Sketch) -> Vec<u64> {
        let mut counts = vec![0; self.count];
        for (range, count) in sketch.buckets() {
            let row = index(range.start).saturating_sub(self.first) / self.each;
            counts[row.min(self.count - 1)] += u64::from(count);
        }
        counts
    }
}

/// Returns the number of the sketch's bucket in which a value is, or would be if its range were larger.
fn index(ns: u64) -> usize {
    let units = ns >> UNIT_BITS;
    match (units >> SUB_BITS).checked_ilog2() {
        None => units as usize,
        Some(doublings) => {
            ((doublings as usize + 1) << SUB_BITS) + ((units >> doublings) as usize & ((1 << SUB_BITS) - 1))
        }
    }
}

/// Returns the least value of a bucket.
fn low(index: usize) -> u64 {
    let (doublings, sub) = (index >> SUB_BITS, index as u64 & ((1 << SUB_BITS) - 1));
    match doublings.checked_sub(1) {
        None => sub << UNIT_BITS,
        Some(shift) => ((1 << SUB_BITS) + sub) << (shift as u32 + UNIT_BITS).min(63 - SUB_BITS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sketch(values: &[u64]) -> Sketch {
        let mut sketch = Sketch::new();
        values.iter().for_each(|ns| sketch.record(*ns));
        sketch
    }

    fn point(values: &[u64]) -> PointData {
        PointData { requests: values.len() as u64, service: sketch(values), ..PointData::default() }
    }

    #[test]
    fn buckets_are_those_of_sketches() {
        for bits in 0..40 {
            for ns in [1 << bits, (1 << bits) + (1 << bits >> 1), (2 << bits) - 1] {
                let (range, _) = sketch(&[ns]).buckets().next().unwrap();
                assert_eq!((index(range.start), index(range.end - 1)), (index(ns), index(ns)), "{range:?}");
                assert_eq!(low(index(ns)), range.start, "{ns}");
            }
        }
    }

    #[test]
    fn rows_hold_every_value_once_whatever_their_number() {
        let values = [0, 70, 5_000, 5_100, 90_000, 1_000_000, 30_000_000_000, u64::MAX];
        for count in [1, 2, 3, 4, 10, 50, 2000] {
            let all = sketch(&values);
            let rows = Rows::of(&all, count);
            let counts = rows.counts(&all);
            assert_eq!((counts.len(), counts.iter().sum::<u64>()), (count, values.len() as u64), "{count}");
            let lows: Vec<u64> = (0..count).map(|row| rows.low(row)).collect();
            assert!(count > 1000 || lows.is_sorted_by(|low, next| low < next), "{count}: {lows:?}");
        }
        let alike = sketch(&[1_000_000; 5]);
        let rows = Rows::of(&alike, 5);
        assert_eq!(rows.counts(&alike), [0, 0, 5, 0, 0], "in the middle");
        assert!(rows.low(2) <= 1_000_000 && rows.low(3) > 1_000_000);
        assert_eq!(Rows::of(&Sketch::new(), 3).counts(&Sketch::new()), [0; 3]);
    }

    #[test]
    fn neighbours_in_time_are_merged_until_they_fit() {
        let points = vec![point(&[1_000, 2_000]); 21];
        for (most, wanted) in [(40, 21), (21, 21), (20, 11), (5, 5), (1, 1), (0, 1)] {
            let columns = columns(&points, most);
            assert_eq!(columns.len(), wanted, "{most}");
            assert_eq!(columns.iter().map(|column| column.requests).sum::<u64>(), 42);
            assert_eq!(columns.iter().map(|column| column.service.len()).sum::<u64>(), 42);
            assert_eq!(columns.iter().map(|column| column.points).sum::<usize>(), 21);
        }
        assert!(columns(&[], 10).is_empty());
    }
}
