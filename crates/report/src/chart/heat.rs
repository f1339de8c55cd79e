//! A heat map of counts by time and latency: shows most responses, and the few outliers.

use std::fmt::Write as _;

use maud::{Markup, html};
use oroshi_bench::record::HeatMapRecord;
use oroshi_words::units;

use super::scale::Scale;
use super::{Plot, thousandth};

/// Number of shades.
const SHADES: usize = 9;

/// A heat map of a run's responses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeatMap<'a> {
    record: &'a HeatMapRecord,
    most: u64,
}

/// Adjacent cells of the same shade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CellSpan {
    row: usize,
    column: usize,
    columns: usize,
    shade: usize,
}

impl<'a> HeatMap<'a> {
    /// Makes a heat map relative to the fullest cell; `None` if all are empty.
    pub(crate) fn new(record: &'a HeatMapRecord) -> Option<Self> {
        let most = record.counts.iter().flatten().copied().max().filter(|most| *most > 0)?;
        (record.bounds_ns.len() > 1).then_some(Self { record, most })
    }

    /// Returns the ends of the rows with responses, nanoseconds.
    pub(crate) fn ends(&self) -> (f64, f64) {
        let bounds = &self.record.bounds_ns;
        let used =
            |row: &usize| self.record.counts.iter().any(|column| column.get(*row).is_some_and(|count| *count > 0));
        let rows = bounds.len() - 1;
        let (first, last) = ((0..rows).find(used).unwrap_or(0), (0..rows).rfind(used).unwrap_or(rows - 1));
        // The lowest row begins at zero, which a logarithmic scale lacks.
        let low = bounds[first].max(bounds[first + 1] / 2).max(1) as f64;
        (low, (bounds[last + 1] as f64).max(low * 2.0))
    }

    /// Draws the shades into a plot whose x axis is the time.
    pub(crate) fn draw(&self, plot: &mut Plot) {
        let mut paths = vec![String::new(); SHADES];
        for stretch in self.spans() {
            let x = |column: usize| plot.x.scale.at(column as f64 * self.record.column_s);
            let y = |bound: usize| 1.0 - plot.y.scale.at(self.record.bounds_ns[bound] as f64);
            let (left, right) = (x(stretch.column), x(stretch.column + stretch.columns));
            let (top, bottom) = (y(stretch.row + 1), y(stretch.row));
            let [left, top, width, height] = [left, top, right - left, bottom - top].map(thousandth);
            let _ = write!(paths[stretch.shade], "M{left} {top}h{width}v{height}h-{width}z");
        }
        for (shade, path) in paths.iter().enumerate().filter(|(_, path)| !path.is_empty()) {
            plot.stretched(&format!("heat h{shade}"), path);
        }
    }

    /// Renders the shades from few to many.
    pub(crate) fn key(&self) -> Markup {
        html! {
            p.key.shades {
                "few"
                svg width=(SHADES * 14) height="14" aria-hidden="true" {
                    @for shade in 0..SHADES {
                        rect class=(format!("heat h{shade}")) x=(shade * 14) width="14" height="14" {}
                    }
                }
                "many answers: at most " (units::count(self.most)) " in a cell"
            }
        }
    }

    /// Returns the runs of cells with responses, row by row.
    fn spans(&self) -> Vec<CellSpan> {
        let mut spans: Vec<CellSpan> = Vec::new();
        for row in 0..self.record.bounds_ns.len() - 1 {
            for (column, counts) in self.record.counts.iter().enumerate() {
                let Some(shade) = self.shade(counts.get(row).copied().unwrap_or(0)) else { continue };
                match spans.last_mut() {
                    Some(last) if (last.row, last.shade, last.column + last.columns) == (row, shade, column) => {
                        last.columns += 1;
                    }
                    _ => spans.push(CellSpan { row, column, columns: 1, shade }),
                }
            }
        }
        spans
    }

    /// Returns the shade by order of magnitude, so that a single distant response is visible.
    fn shade(&self, count: u64) -> Option<usize> {
        let part = match (count, self.most) {
            (0, _) => return None,
            (_, 1) => 1.0,
            (count, most) => (count as f64).ln() / (most as f64).ln(),
        };
        Some(((part * SHADES as f64) as usize).min(SHADES - 1))
    }
}

/// Returns a scale that covers several heat maps.
pub(crate) fn common_scale<'a>(heats: impl IntoIterator<Item = &'a HeatMap<'a>>) -> Scale {
    let ends = heats.into_iter().map(HeatMap::ends).reduce(|(low, high), (l, h)| (low.min(l), high.max(h)));
    ends.map_or(Scale::Log { low: 1.0, high: 10.0 }, |(low, high)| Scale::Log { low, high })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::Axis;
    use crate::figure::Unit;

    fn record(counts: &[&[u64]]) -> HeatMapRecord {
        let counts = counts.iter().map(|column| column.to_vec()).collect();
        HeatMapRecord { column_s: 0.5, bounds_ns: vec![1000, 2000, 4000, 8000], counts }
    }

    #[test]
    fn neighbours_of_the_same_shade_are_one_rectangle() {
        let record = record(&[&[0, 100], &[0, 100], &[1, 1], &[0, 100, 7]]);
        let heat = HeatMap::new(&record).unwrap();
        let found: Vec<_> = heat.spans().into_iter().map(|s| (s.row, s.column, s.columns, s.shade)).collect();
        assert_eq!(found, [(0, 2, 1, 0), (1, 0, 2, 8), (1, 2, 1, 0), (1, 3, 1, 8), (2, 3, 1, 3)]);
    }

    #[test]
    fn each_lies_at_its_time_and_its_latency() {
        let record = record(&[&[9], &[0, 5], &[0, 0, 1]]);
        let heat = HeatMap::new(&record).unwrap();
        let mut plot = Plot::new(Axis::time(2.0), Axis::new("", common_scale([&heat]), Unit::Nanoseconds), 200);
        heat.draw(&mut plot);
        let text = plot.draw("x").into_string();
        assert!(text.contains("d=\"M250 333.3h250v333.3h-250z\""), "{text}");
    }

    #[test]
    fn nothing_has_no_shades_and_a_damaged_record_does_no_harm() {
        assert!(HeatMap::new(&record(&[])).is_none() && HeatMap::new(&record(&[&[0, 0]])).is_none());
        let mut damaged = record(&[&[1, 2, 3, 4, 5, 6]]);
        assert_eq!(HeatMap::new(&damaged).unwrap().spans().len(), 3, "what has no row is left out");
        damaged.bounds_ns.truncate(1);
        assert!(HeatMap::new(&damaged).is_none());
        damaged.bounds_ns = vec![0, 256];
        assert_eq!(HeatMap::new(&damaged).unwrap().ends(), (128.0, 256.0));
    }
}
