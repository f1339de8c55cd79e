//! Latency over time as a heat map: the series' sketches, with coarser buckets.

use oroshi_stats::Sketch;

use crate::record::HeatMapRecord;

/// The most columns: one for each three pixels of a phone.
const COLUMNS: usize = 120;
/// Times below this share a row. No response is that fast.
const FLOOR_BITS: u32 = 8;

/// The heat map of a series of sketches, each `width_ns` of time wide. `None` when all are empty.
pub(crate) fn heat<'a>(sketches: impl ExactSizeIterator<Item = &'a Sketch>, width_ns: u64) -> Option<HeatMapRecord> {
    let each = sketches.len().div_ceil(COLUMNS).max(1);
    let mut columns = vec![Vec::new(); sketches.len().div_ceil(each)];
    let mut first = usize::MAX;
    for (index, sketch) in sketches.enumerate() {
        let column: &mut Vec<u64> = &mut columns[index / each];
        for (range, count) in sketch.buckets() {
            let row = row_of(range.start);
            first = first.min(row);
            column.resize(column.len().max(row + 1), 0);
            column[row] += u64::from(count);
        }
    }
    let rows = columns.iter().map(Vec::len).max().filter(|rows| *rows > 0)?;
    Some(HeatMapRecord {
        column_s: width_ns as f64 * each as f64 / 1e9,
        bounds_ns: (first..=rows).map(low_of).collect(),
        counts: columns.into_iter().map(|column| column.into_iter().skip(first).collect()).collect(),
    })
}

/// The row of a time: four to each doubling, as wide as each other. A sketch's buckets lie within one.
fn row_of(ns: u64) -> usize {
    let Some(doublings) = ns.checked_ilog2().and_then(|bits| bits.checked_sub(FLOOR_BITS)) else { return 0 };
    let quarter = ns >> (doublings + FLOOR_BITS - 2) & 3;
    1 + 4 * doublings as usize + quarter as usize
}

/// The least time of a row.
fn low_of(row: usize) -> u64 {
    let Some(above) = row.checked_sub(1) else { return 0 };
    (4 + above as u64 % 4) << (FLOOR_BITS as usize - 2 + above / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sketch_of(values: &[u64]) -> Sketch {
        let mut sketch = Sketch::new();
        values.iter().for_each(|ns| sketch.record(*ns));
        sketch
    }

    #[test]
    fn rows_adjoin_and_hold_whole_buckets() {
        for row in 1..140 {
            assert_eq!((row_of(low_of(row) - 1), row_of(low_of(row))), (row - 1, row));
        }
        for bits in 0..40 {
            for ns in [1 << bits, (1 << bits) + (1 << bits >> 1), (2 << bits) - 1] {
                let (range, _) = sketch_of(&[ns]).buckets().next().unwrap();
                assert_eq!(row_of(range.start), row_of(range.end - 1), "{range:?}");
                assert_eq!(row_of(range.start), row_of(ns));
            }
        }
    }

    #[test]
    fn each_time_is_in_its_column_and_row() {
        let sketches =
            [sketch_of(&[1_000_000, 1_050_000]), Sketch::new(), sketch_of(&[1_000_000, 1_500_000, 2_000_000])];
        let map = heat(sketches.iter(), 100_000_000).unwrap();
        // A quarter of 2^19 ns and of 2^20 ns.
        let (narrow, wide) = (1 << 17, 1 << 18);
        let bounds: Vec<u64> = (7..=8).map(|n| n * narrow).chain((5..=8).map(|n| n * wide)).collect();
        assert_eq!((map.column_s, &map.bounds_ns), (0.1, &bounds));
        assert_eq!(map.counts, [vec![1, 1], vec![], vec![1, 0, 1, 0, 1]]);
        let row = |ns: u64| map.bounds_ns.iter().take_while(|low| **low <= ns).count() - 1;
        assert_eq!((row(1_000_000), row(1_050_000), row(1_500_000), row(2_000_000)), (0, 1, 2, 4));
    }

    #[test]
    fn nothing_makes_no_map() {
        assert_eq!(heat([].iter(), 1), None);
        assert_eq!(heat([Sketch::new(), Sketch::new()].iter(), 1), None);
        assert_eq!(heat([sketch_of(&[0])].iter(), 1).unwrap().bounds_ns, [0, 256]);
    }

    #[test]
    fn neighbours_are_merged_until_it_is_narrow_enough() {
        for (points, columns) in [(1, 1), (120, 120), (121, 61), (240, 120), (599, 120), (600, 120)] {
            let sketches = vec![sketch_of(&[700_000]); points];
            let map = heat(sketches.iter(), 100_000_000).unwrap();
            assert_eq!(map.counts.len(), columns);
            assert_eq!(map.counts.iter().flatten().sum::<u64>(), points as u64);
            assert!(map.column_s * columns as f64 >= points as f64 * 0.1 - 1e-9);
        }
    }

    /// Whatever the times: each column has at most all rows, and the longest has its place.
    #[test]
    fn the_longest_times_have_a_row() {
        let map = heat([sketch_of(&[0, 1 << 39, u64::MAX])].iter(), 1).unwrap();
        assert_eq!((map.bounds_ns.len(), *map.bounds_ns.last().unwrap()), (130, 1 << 40));
        assert_eq!(map.counts[0].iter().sum::<u64>(), 3);
        assert_eq!(map.counts[0].len(), map.bounds_ns.len() - 1);
    }
}
