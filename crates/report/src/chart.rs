//! SVG charts that fit any width without a script.
//!
//! Data lies in a coordinate system that stretches with the page; text, strokes and marks keep their size. So one
//! drawing suits a wide screen, a phone and paper. Positions are percentages of the plot, or thousandths within a
//! nested `svg` whose strokes do not scale. Labels around the plot use the padding of `.plot` in the style sheet.
//!
//! [`scale`]: from values to positions. [`Plot`]: two axes and marks between them. [`strip`]: an interval in a row of
//! a table. [`heat`]: counts by time and latency. [`Figure`]: a chart with its caption, its key and its numbers.

pub(crate) mod heat;
pub(crate) mod scale;
pub(crate) mod strip;

use std::fmt::Write as _;

use maud::{Markup, html};

use crate::figure::Unit;
use crate::page::folded;
use scale::Scale;

/// Number of colours; further series start over. The style sheet has each for light and dark.
const COLOURS: usize = 8;
/// Marks differ in shape too: for colour-blind readers and for paper.
const SHAPES: [&str; 6] = [
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "M-3.5-3.5h7v7h-7z",
    "M0-4.8L4.6 3.4H-4.6z",
    "M0-5L5 0L0 5L-5 0z",
    "M0 4.8L4.6-3.4H-4.6z",
    "M-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
];

/// A chart with its caption.
pub(crate) struct Figure<'a> {
    /// The subject.
    pub(crate) title: &'a str,
    /// Reading instructions, or notable features.
    pub(crate) note: Markup,
    /// The meaning of each colour; empty for a single series.
    pub(crate) key: Vec<(Swatch, String)>,
    /// The drawing.
    pub(crate) chart: Markup,
    /// The same as a table; `None` if there is one beside it anyway.
    pub(crate) numbers: Option<Markup>,
}

/// A sample of a series in the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Swatch {
    /// A line with its mark.
    Mark(usize),
    /// A bar with its mark.
    Bar(usize),
    /// A line.
    Line(usize),
    /// A line in the colour of the text.
    Ink,
    /// A line for lower bounds.
    AtLeast,
    /// A ring around a mark.
    Ring,
    /// An area.
    Zone,
}

/// An axis of a plot.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    /// The measured quantity.
    pub(crate) name: String,
    /// Range and type of the scale.
    pub(crate) scale: Scale,
    /// The unit of its numbers.
    pub(crate) unit: Unit,
    /// Labels at these values, instead of round numbers.
    names: Vec<(f64, String)>,
}

/// Marks between two axes.
pub(crate) struct Plot {
    /// The horizontal axis.
    pub(crate) x: Axis,
    /// The vertical axis.
    pub(crate) y: Axis,
    height: u32,
    marks: Vec<Markup>,
}

impl Figure<'_> {
    /// Renders the figure.
    pub(crate) fn draw(&self) -> Markup {
        html! {
            figure {
                figcaption { h3 { (self.title) } p { (self.note) } }
                (key(&self.key))
                (self.chart)
                @if let Some(numbers) = &self.numbers { (folded("Numbers", numbers)) }
            }
        }
    }
}

impl Axis {
    /// Makes an axis with numbers.
    pub(crate) fn new(name: impl Into<String>, scale: Scale, unit: Unit) -> Self {
        Self { name: name.into(), scale, unit, names: Vec::new() }
    }

    /// Makes an axis for the time since the run began.
    pub(crate) fn time(elapsed_s: f64) -> Self {
        Self::new("", Scale::Linear { low: 0.0, high: elapsed_s.max(1e-3) }, Unit::Seconds)
    }

    /// Makes an axis with a name for each position.
    pub(crate) fn categories(name: impl Into<String>, names: Vec<String>) -> Self {
        let mut axis = Self::new(name, Scale::Categories { count: names.len() }, Unit::Plain);
        axis.named(names.into_iter().enumerate().map(|(place, name)| (place as f64, name)));
        axis
    }

    /// Labels only these values, with these names.
    pub(crate) fn named(&mut self, names: impl IntoIterator<Item = (f64, String)>) {
        self.names = names.into_iter().collect();
        self.names.sort_by(|one, other| one.0.total_cmp(&other.0));
    }

    /// Returns labels with their positions from 0 to 1, without names that would overlap.
    fn labels(&self, most: usize) -> Vec<(f64, String)> {
        if self.names.is_empty() {
            let labelled = |value: f64| (self.scale.at(value), self.unit.tick(value));
            return self.unit.ticks(self.scale, most).into_iter().map(labelled).collect();
        }
        let mut labels: Vec<(f64, String)> = Vec::new();
        for (value, name) in &self.names {
            let at = self.scale.at(*value);
            // In the narrowest chart, one character takes about a fortieth.
            let room = |(left, before): &(f64, String)| {
                at - left > (before.chars().count() + name.chars().count() + 2) as f64 / 75.0
            };
            if labels.last().is_none_or(room) {
                labels.push((at, name.clone()));
            }
        }
        labels
    }
}

impl Plot {
    /// Makes an empty plot, with its height in pixels.
    pub(crate) fn new(x: Axis, y: Axis, height: u32) -> Self {
        Self { x, y, height, marks: Vec::new() }
    }

    /// Draws a line through points, with gaps at missing values.
    pub(crate) fn line(&mut self, series: usize, kind: &str, points: impl IntoIterator<Item = (f64, Option<f64>)>) {
        let mut path = String::new();
        let mut pen_down = false;
        for (x, y) in points {
            match y {
                Some(y) => {
                    let command = if pen_down { 'L' } else { 'M' };
                    let _ = write!(
                        path,
                        "{command}{} {}",
                        thousandth(self.x.scale.at(x)),
                        thousandth(1.0 - self.y.scale.at(y))
                    );
                    pen_down = true;
                }
                None => pen_down = false,
            }
        }
        if !path.is_empty() {
            self.stretched(&format!("line {kind} {}", colour(series)), &path);
        }
    }

    /// Draws the area between two values at each position.
    pub(crate) fn band(&mut self, series: usize, points: &[(f64, f64, f64)]) {
        if points.len() < 2 {
            return;
        }
        let place =
            |x: f64, y: f64| format!("{} {}", thousandth(self.x.scale.at(x)), thousandth(1.0 - self.y.scale.at(y)));
        let there = points.iter().map(|(x, _, high)| place(*x, *high));
        let back = points.iter().rev().map(|(x, low, _)| place(*x, *low));
        let path = format!("M{}z", there.chain(back).collect::<Vec<_>>().join("L"));
        self.stretched(&format!("band {}", colour(series)), &path);
    }

    /// Draws a point with a mark; `title` is its tooltip.
    pub(crate) fn mark(&mut self, series: usize, kind: &str, (x, y): (f64, f64), title: &str) {
        let (left, top) = (percent(self.x.scale.at(x)), percent(1.0 - self.y.scale.at(y)));
        self.marks.push(html! {
            svg x=(left) y=(top) {
                path class={ "mark " (kind) " " (colour(series)) } d=(shape(series)) { title { (title) } }
            }
        });
    }

    /// Highlights a point with a ring.
    pub(crate) fn ring(&mut self, (x, y): (f64, f64)) {
        let (left, top) = (percent(self.x.scale.at(x)), percent(1.0 - self.y.scale.at(y)));
        self.marks.push(html! { circle.ring cx=(left) cy=(top) r="8" {} });
    }

    /// Draws a vertical interval.
    pub(crate) fn whisker(&mut self, series: usize, x: f64, low: f64, high: f64) {
        let left = percent(self.x.scale.at(x));
        let (from, to) = (percent(1.0 - self.y.scale.at(low)), percent(1.0 - self.y.scale.at(high)));
        self.marks.push(html! { line class={ "whisker " (colour(series)) } x1=(left) x2=(left) y1=(from) y2=(to) {} });
    }

    /// Draws a column from the axis up.
    pub(crate) fn column(&mut self, kind: &str, (from, to): (f64, f64), value: f64) {
        let (left, right) = (self.x.scale.at(from), self.x.scale.at(to));
        let height = self.y.scale.at(value);
        self.marks.push(html! {
            rect class=(kind) x=(percent(left)) y=(percent(1.0 - height))
                width=(percent((right - left).max(0.001))) height=(percent(height)) {}
        });
    }

    /// Draws a vertical line across the plot.
    pub(crate) fn divide(&mut self, x: f64) {
        let left = percent(self.x.scale.at(x));
        self.marks.push(html! { line.divide x1=(left) x2=(left) y1="0" y2="100%" {} });
    }

    /// Adds a tooltip between two positions.
    pub(crate) fn hit(&mut self, (from, to): (f64, f64), title: &str) {
        let (left, right) = (self.x.scale.at(from), self.x.scale.at(to));
        self.marks.push(html! {
            rect.hit x=(percent(left)) y="0" width=(percent(right - left)) height="100%" { title { (title) } }
        });
    }

    /// Draws a path in thousandths of the plot.
    pub(crate) fn stretched(&mut self, class: &str, path: &str) {
        self.marks.push(html! {
            svg viewBox="0 0 1000 1000" preserveAspectRatio="none" width="100%" height="100%" {
                path class=(class) d=(path) {}
            }
        });
    }

    /// Renders the drawing with its axes. `label` describes it in words.
    pub(crate) fn draw(&self, label: &str) -> Markup {
        let (x, y) = (self.x.labels(6), self.y.labels(if self.height < 180 { 3 } else { 5 }));
        // The height excludes labels.
        let style = format!("height:{}px", self.height);
        html! {
            div.plot.named[!self.x.name.is_empty()] style=(style) {
                svg.frame role="img" aria-label=(label) {
                    g.grid {
                        @for (at, _) in &y { line x1="0" x2="100%" y1=(percent(1.0 - at)) y2=(percent(1.0 - at)) {} }
                        line.ground x1="0" x2="100%" y1="100%" y2="100%" {}
                        @for (at, _) in &x { line.tip x1=(percent(*at)) x2=(percent(*at)) y1="100%" y2="100%" {} }
                    }
                    g.labels {
                        @for (at, text) in &y { text.y x="-8" y=(percent(1.0 - at)) dy=".32em" { (text) } }
                        @for (at, text) in &x {
                            text.x.last[*at > 0.96] x=(percent(*at)) y="100%" dy="1.6em" { (text) }
                        }
                        @if !self.y.name.is_empty() { text.name x="-54" y="0" dy="-1em" { (self.y.name) } }
                        @if !self.x.name.is_empty() { text.x.name x="50%" y="100%" dy="3.1em" { (self.x.name) } }
                    }
                    @for mark in &self.marks { (mark) }
                }
            }
        }
    }
}

/// Returns the CSS class with a series' colour.
pub(crate) fn colour(series: usize) -> String {
    format!("s{}", series % COLOURS)
}

/// Returns the outline of a series' marks, around 0, in pixels.
pub(crate) fn shape(series: usize) -> &'static str {
    SHAPES[series % SHAPES.len()]
}

/// Formats a part of the whole as an attribute: `37.5%`.
pub(crate) fn percent(part: f64) -> String {
    let text = format!("{:.2}", part * 100.0);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Formats a part of the whole in the stretched coordinate system.
pub(crate) fn thousandth(part: f64) -> String {
    let text = format!("{:.1}", part * 1000.0);
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}

/// Renders the meaning of each colour.
pub(crate) fn key(entries: &[(Swatch, String)]) -> Markup {
    html! {
        @if !entries.is_empty() {
            ul.key { @for (swatch, name) in entries { li { (swatch.draw()) (name) } } }
        }
    }
}

impl Swatch {
    fn draw(self) -> Markup {
        let inside = match self {
            Self::Mark(series) => html! {
                line class={ "line " (colour(series)) } x1="0" x2="24" y1="7" y2="7" {}
                svg x="12" y="7" { path class={ "mark " (colour(series)) } d=(shape(series)) {} }
            },
            Self::Bar(series) => html! {
                rect class={ "bar " (colour(series)) } x="4" y="0" width="16" height="14" {}
                svg x="12" y="7" { path class={ "mark " (colour(series)) } d=(shape(series)) {} }
            },
            Self::Line(series) => html! { line class={ "line " (colour(series)) } x1="0" x2="24" y1="7" y2="7" {} },
            Self::Ink => html! { line.line.ink x1="0" x2="24" y1="7" y2="7" {} },
            Self::AtLeast => html! { line.line.atleast.ink x1="0" x2="24" y1="7" y2="7" {} },
            Self::Ring => html! { circle.ring cx="12" cy="7" r="6" {} },
            Self::Zone => html! { rect.zone x="0" y="1" width="24" height="12" {} },
        };
        html! { svg.swatch width="24" height="14" aria-hidden="true" { (inside) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot() -> Plot {
        let x = Axis::time(10.0);
        Plot::new(x, Axis::new("requests/s", Scale::from_zero([100.0]), Unit::PerSecond), 200)
    }

    #[test]
    fn a_line_is_broken_where_nothing_was_measured() {
        let mut plot = plot();
        plot.line(0, "thin", [(0.0, Some(0.0)), (1.0, Some(100.0)), (2.0, None), (5.0, Some(50.0)), (20.0, Some(1e9))]);
        let text = plot.draw("x").into_string();
        let path = text.split("d=\"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!(path.matches('M').count(), 2, "{path}");
        assert_eq!(path.matches('L').count(), 2, "{path}");
        assert!(path.starts_with("M0 1000L100 "), "{path}");
        assert!(path.ends_with("L1000 0"), "what is outside stays within the frame: {path}");
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        let mut plot = plot();
        plot.line(0, "", [(1.0, None)]);
        plot.band(0, &[(1.0, 2.0, 3.0)]);
        assert!(plot.marks.is_empty());
        assert!(!plot.draw("x").into_string().contains("NaN"));
    }

    #[test]
    fn labels_and_titles_are_text() {
        let mut plot = plot();
        plot.mark(0, "", (1.0, 1.0), "</title><script>");
        plot.x.name = "<b>".into();
        let text = plot.draw("\"><script>").into_string();
        assert!(!text.contains("<script") && !text.contains("<b>"), "{text}");
    }

    #[test]
    fn names_stand_at_their_places() {
        let axis = Axis::categories("", vec!["a".into(), "b".into()]);
        assert_eq!(axis.labels(6), [(0.25, "a".to_owned()), (0.75, "b".to_owned())]);
    }
}
