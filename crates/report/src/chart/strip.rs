//! An interval as one row: the estimate, its range, and the reference.

use maud::{Markup, html};
use oroshi_stats::compare::Interval;

use super::scale::Scale;
use super::{colour, percent, shape};
use crate::figure::Unit;

/// The common scale of stacked rows.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    scale: Scale,
    unit: Unit,
    /// The reference value, and the range around it that does not matter.
    reference: Option<(f64, f64, f64)>,
    /// Whether bars start from zero, so that lengths are comparable.
    bars: bool,
}

impl Rows {
    /// Makes rows for ratios, around 1; effects up to `smallest_effect` do not matter. At least ten per cent to
    /// either side.
    pub(crate) fn of_ratios<'a>(ratios: impl IntoIterator<Item = &'a Interval>, smallest_effect: f64) -> Self {
        let within = (1.0 / (1.0 + smallest_effect), 1.0 + smallest_effect);
        let usual = [1.0 / 1.1, 1.1, within.0 / 1.05, within.1 * 1.05];
        // Clips very wide intervals: one of a factor of a hundred would hide all others.
        let ends = ratios
            .into_iter()
            .flat_map(|ratio| [ratio.low.max(ratio.estimate / 4.0), ratio.high.min(ratio.estimate * 4.0)]);
        let scale = Scale::log(ends.chain(usual));
        Self { scale, unit: Unit::Ratio, reference: Some((1.0, within.0, within.1)), bars: false }
    }

    /// Makes rows for figures of one unit, from zero.
    pub(crate) fn of_figures<'a>(figures: impl IntoIterator<Item = &'a Interval>, unit: Unit) -> Self {
        let most = figures.into_iter().map(|figure| figure.high.min(figure.estimate * 4.0));
        let scale = if unit == Unit::Bytes { Scale::bytes_from_zero(most) } else { Scale::from_zero(most) };
        Self { scale, unit, reference: None, bars: true }
    }

    /// Makes rows for nanoseconds over several orders of magnitude.
    pub(crate) fn of_times(values: impl IntoIterator<Item = f64>) -> Self {
        Self { scale: Scale::log(values), unit: Unit::Nanoseconds, reference: None, bars: false }
    }

    /// Renders a row. `label` describes it in words.
    pub(crate) fn row(&self, series: usize, interval: &Interval, label: &str) -> Markup {
        let at = |value: f64| self.scale.at(value);
        html! {
            div.lane {
                svg.frame.strip role="img" aria-label=(label) {
                    (self.background())
                    @if self.bars {
                        rect class={ "bar " (colour(series)) } x="0" y="28%"
                            width=(percent(at(interval.estimate))) height="44%" {}
                    }
                    line class={ "range " (colour(series)) }
                        x1=(percent(at(interval.low))) x2=(percent(at(interval.high))) y1="50%" y2="50%" {}
                    svg x=(percent(at(interval.estimate))) y="50%" {
                        path class={ "mark " (colour(series)) } d=(shape(series)) { title { (label) } }
                    }
                }
            }
        }
    }

    /// Renders a row without data.
    pub(crate) fn empty(&self) -> Markup {
        html! { div.lane { svg.frame.strip aria-hidden="true" { (self.background()) } } }
    }

    /// Renders the labels below all rows.
    pub(crate) fn axis(&self) -> Markup {
        html! {
            svg.frame.axis aria-hidden="true" {
                g.labels {
                    @for value in self.ticks() {
                        @let at = self.scale.at(value);
                        text.x.last[at > 0.96] x=(percent(at)) y="0" dy="1.1em" { (self.unit.tick(value)) }
                    }
                }
            }
        }
    }

    fn background(&self) -> Markup {
        html! {
            @if let Some((_, low, high)) = self.reference {
                @let (low, high) = (self.scale.at(low), self.scale.at(high));
                rect.zone x=(percent(low)) width=(percent(high - low)) y="0" height="100%" {}
            }
            g.grid {
                @for value in self.ticks() {
                    @let at = percent(self.scale.at(value));
                    line x1=(at) x2=(at) y1="0" y2="100%" {}
                }
                @if let Some((value, ..)) = self.reference {
                    @let at = percent(self.scale.at(value));
                    line.ground x1=(at) x2=(at) y1="0" y2="100%" {}
                }
            }
        }
    }

    fn ticks(&self) -> Vec<f64> {
        self.unit.ticks(self.scale, 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(low: f64, estimate: f64, high: f64) -> Interval {
        Interval { estimate, low, high }
    }

    #[test]
    fn one_is_always_in_sight() {
        for ratios in
            [vec![], vec![ratio(1.2, 1.3, 1.4)], vec![ratio(0.1, 0.2, 0.9)], vec![ratio(0.0, 1.0, f64::INFINITY)]]
        {
            let rows = Rows::of_ratios(&ratios, 0.03);
            let at = rows.scale.at(1.0);
            assert!(at > 0.0 && at < 1.0, "{ratios:?}: {at}");
            assert!(rows.ticks().len() >= 2, "{ratios:?}: {:?}", rows.scale);
            for ratio in &ratios {
                let text = rows.row(0, ratio, "<").into_string();
                assert!(!text.contains("NaN") && !text.contains("inf") && text.contains("&lt;"), "{text}");
            }
        }
    }
}
