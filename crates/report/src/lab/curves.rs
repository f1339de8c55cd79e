//! Each metric against the swept value: curves for numbers; bars side by side for names, because there is nothing
//! between two names.

use maud::{Markup, html};
use oroshi_lab::result::{CellResult, MetricRecord, SweepRecord};
use oroshi_stats::compare::Interval;
use oroshi_words::units;

use super::View;
use crate::chart::scale::Scale;
use crate::chart::{Axis, Figure, Plot, Swatch, colour};
use crate::figure::{self, Unit};
use crate::page::{Cell, cell, table};

/// From this factor between the ends, the scale is logarithmic.
const WIDE: f64 = 8.0;
/// Share of its position that a group of bars takes.
const BARS: f64 = 0.72;

/// Renders a figure per group and metric.
pub(super) fn section(view: &View<'_>, sweep: &SweepRecord) -> Markup {
    html! {
        @for group in &view.groups {
            @if view.groups.len() > 1 { h3.group { (group) } }
            div.pairs {
                @for metric in &view.result.metrics { (curve(view, sweep, &view.cells(group), metric)) }
            }
        }
    }
}

fn curve(view: &View<'_>, sweep: &SweepRecord, cells: &[&CellResult], metric: &MetricRecord) -> Markup {
    let lines: Vec<(&str, Vec<(usize, Interval)>)> = view
        .names
        .iter()
        .map(|name| (*name, points(cells, name, metric)))
        .filter(|(_, points)| !points.is_empty())
        .collect();
    if lines.is_empty() {
        return html! {};
    }
    let places = SweepAxis::of(sweep);
    let unit = Unit::from(metric.unit);
    let is_named = places.is_named();
    let up = if is_named { from_zero(&lines, unit) } else { scale(&lines) };
    let mut plot = Plot::new(places.axis.clone(), Axis::new(metric.label.as_str(), up, unit), 260);
    let width = BARS / lines.len() as f64;
    for (place, (name, points)) in lines.iter().enumerate() {
        let series = view.series(name);
        // Bars stand side by side.
        let beside = if is_named { (place as f64 - (lines.len() - 1) as f64 / 2.0) * width } else { 0.0 };
        let at = |point: usize| places.at[point] + beside;
        if is_named {
            for (point, interval) in points {
                let ends = (at(*point) - width * 0.44, at(*point) + width * 0.44);
                plot.column(&format!("bar {}", colour(series)), ends, interval.estimate);
            }
        } else {
            plot.band(series, &points.iter().map(|(point, i)| (at(*point), i.low, i.high)).collect::<Vec<_>>());
            plot.line(series, "", points.iter().map(|(point, i)| (at(*point), Some(i.estimate))));
        }
        for (point, interval) in points {
            plot.whisker(series, at(*point), interval.low, interval.high);
            let range = figure::range(interval, unit);
            let title =
                format!("{name}, {} {}: {} ({range})", sweep.label, sweep.values[*point], unit.text(interval.estimate));
            plot.mark(series, "", (at(*point), interval.estimate), &title);
        }
    }
    let ends = lines.iter().map(|(name, points)| {
        let words = |(point, interval): &(usize, Interval)| {
            format!("{} at {}", unit.text(interval.estimate), sweep.values[*point])
        };
        let (first, last) = (points.first().map(words), points.last().map(words));
        format!("{name} from {} to {}", first.unwrap_or_default(), last.unwrap_or_default())
    });
    let label = format!("{} against {}: {}", metric.label, sweep.label, ends.collect::<Vec<_>>().join("; "));
    let rows = sweep.values.iter().enumerate().map(|(point, value)| {
        let of = |(_, points): &(&str, Vec<(usize, Interval)>)| match points.iter().find(|(at, _)| *at == point) {
            Some((_, interval)) => {
                html! { (unit.text(interval.estimate)) " " span.small { (figure::range(interval, unit)) } }
            }
            None => cell("–"),
        };
        std::iter::once(cell(value)).chain(lines.iter().map(of)).collect::<Vec<Cell>>()
    });
    let head: Vec<&str> = std::iter::once(sweep.label.as_str()).chain(lines.iter().map(|(name, _)| *name)).collect();
    let numbers = table(&metric.label, &head, rows.collect::<Vec<_>>());
    let note = html! { "Median over the runs, with its " (figure::percent(view.result.rules.confidence)) " interval." };
    let key = view.key(cells).into_iter().map(|(swatch, name)| match swatch {
        Swatch::Mark(series) if is_named => (Swatch::Bar(series), name),
        _ => (swatch, name),
    });
    Figure { title: &metric.label, note, key: key.collect(), chart: plot.draw(&label), numbers: Some(numbers) }.draw()
}

/// Returns a variant's figures in the order of the sweep.
fn points(cells: &[&CellResult], name: &str, metric: &MetricRecord) -> Vec<(usize, Interval)> {
    let figure = |cell: &&CellResult| {
        let variant = cell.variants.iter().find(|variant| variant.name == name)?;
        Some((cell.point?, *variant.figures.get(&metric.metric)?))
    };
    let mut points: Vec<_> = cells.iter().filter_map(figure).collect();
    points.sort_by_key(|(point, _)| *point);
    points
}

fn scale(lines: &[(&str, Vec<(usize, Interval)>)]) -> Scale {
    let all = || lines.iter().flat_map(|(_, points)| points);
    let least = all().map(|(_, i)| i.estimate).fold(f64::INFINITY, f64::min);
    let most = all().map(|(_, i)| i.estimate).fold(0.0, f64::max);
    let ends = all().flat_map(|(_, i)| [i.low, i.high]).collect::<Vec<_>>();
    if least > 0.0 && most / least >= WIDE { Scale::log(ends) } else { Scale::from_zero(ends) }
}

/// Makes a scale from zero, so that lengths of bars are comparable.
fn from_zero(lines: &[(&str, Vec<(usize, Interval)>)], unit: Unit) -> Scale {
    // Clips an interval without information, so that it does not flatten all bars.
    let ends =
        lines.iter().flat_map(|(_, points)| points).map(|(_, i)| i.high.min(i.estimate * 2.0)).collect::<Vec<_>>();
    if unit == Unit::Bytes { Scale::bytes_from_zero(ends) } else { Scale::from_zero(ends) }
}

/// The positions of the swept values.
struct SweepAxis {
    axis: Axis,
    at: Vec<f64>,
}

impl SweepAxis {
    /// Whether the values are names, with nothing between them.
    fn is_named(&self) -> bool {
        matches!(self.axis.scale, Scale::Categories { .. })
    }

    /// Uses numbers or times if all values are, and names otherwise.
    fn of(sweep: &SweepRecord) -> Self {
        let values = &sweep.values;
        let numbers: Option<Vec<f64>> = values.iter().map(|value| units::parse_number(value).ok()).collect();
        let times = || -> Option<Vec<f64>> {
            values.iter().map(|value| units::parse_time(value).ok().map(|time| time.as_nanos() as f64)).collect()
        };
        let known = numbers.map(|at| (at, Unit::Plain)).or_else(|| times().map(|at| (at, Unit::Nanoseconds)));
        let Some((at, unit)) = known.filter(|(at, _)| distinct(at)) else {
            let axis = Axis::categories(sweep.label.as_str(), values.clone());
            return Self { axis, at: (0..values.len()).map(|place| place as f64).collect() };
        };
        let (least, most) = at.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), v| (low.min(*v), high.max(*v)));
        let scale =
            if least > 0.0 && most / least >= WIDE { Scale::log(at.clone()) } else { Scale::close_to(at.clone()) };
        let mut axis = Axis::new(sweep.label.as_str(), scale, unit);
        axis.named(at.iter().copied().zip(values.iter().cloned()));
        Self { axis, at }
    }
}

fn distinct(values: &[f64]) -> bool {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.len() > 1 && sorted.windows(2).all(|pair| pair[0] < pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep_axis(values: &[&str]) -> SweepAxis {
        let values = values.iter().map(|&value| value.to_owned()).collect();
        SweepAxis::of(&SweepRecord { name: "n".into(), label: "n".into(), values })
    }

    #[test]
    fn swept_numbers_stand_at_their_value_and_names_beside_each_other() {
        assert!(matches!(sweep_axis(&["10", "100", "1k"]).axis.scale, Scale::Log { .. }));
        assert!(matches!(sweep_axis(&["1", "2", "3"]).axis.scale, Scale::Linear { .. }));
        assert!(matches!(sweep_axis(&["0", "2", "300"]).axis.scale, Scale::Linear { .. }), "zero has no logarithm");
        assert!(matches!(sweep_axis(&["1ms", "10ms", "100ms"]).axis.scale, Scale::Log { .. }));
        assert!(matches!(sweep_axis(&["nginx", "puma"]).axis.scale, Scale::Categories { count: 2 }));
        assert!(matches!(sweep_axis(&["10", "unlimited"]).axis.scale, Scale::Categories { count: 2 }));
        assert!(matches!(sweep_axis(&["1", "1"]).axis.scale, Scale::Categories { count: 2 }));
        assert_eq!(sweep_axis(&["10", "100", "1k"]).at, [10.0, 100.0, 1000.0]);
    }
}
