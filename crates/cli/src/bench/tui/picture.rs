//! Draws a run on an area of any size.

use std::time::Duration;

use oroshi_bench::follow::Stage;
use oroshi_bench::{PointData, Progress};
use oroshi_stats::Sketch;
use oroshi_words::{printable, units};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};

use super::super::view::{cut, ends_by_requests, errors, sparkline};
use super::map::{Rows, columns};

/// The smallest area with a view.
const NARROWEST: u16 = 50;
const LOWEST: u16 = 11;
/// The least rows of the map, with its axis.
const LEAST_MAP: u16 = 4;
/// From this height on, blank rows separate the parts.
const AIRY: u16 = 20;
/// The widths of names, of each figure, and of the times beside the map.
const NAME: u16 = 11;
const FIGURE: u16 = 10;
const TIME: u16 = 8;
/// From this width on, the histogram has counts beside the shares.
const COUNTED: u16 = 36;

/// From sparse to dense.
const SHADES: [&str; 5] = [" ", "░", "▒", "▓", "█"];
/// Eighths of a character's width.
const EIGHTHS: [&str; 8] = ["▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"];

const PLAIN: Style = Style::new();
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const DRAWN: Style = Style::new().fg(Color::Cyan);
const ERROR: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
const WARNING: Style = Style::new().fg(Color::Yellow);

/// What a run does at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// There are no figures yet.
    #[default]
    Opening,
    WarmUp,
    Measuring,
    /// The user has asked for the end.
    Ending,
    /// The measured part is over.
    Awaiting,
}

impl Phase {
    fn words(self) -> &'static str {
        match self {
            Self::Opening => "opening connections",
            Self::WarmUp => "warm-up",
            Self::Measuring => "measuring",
            Self::Ending => "ending",
            Self::Awaiting => "awaiting the last responses",
        }
    }
}

/// A run as the view knows it.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// The URL, as typed.
    pub(super) title: String,
    pub(super) connections: usize,
    /// The number of requests, if it is fixed.
    pub(super) requests: Option<u64>,
    pub(super) phase: Phase,
    pub(super) progress: Option<Progress>,
    /// The measured part so far: its points, their width, and how many of them are complete.
    pub(super) points: Vec<PointData>,
    pub(super) width: Duration,
    pub(super) complete: usize,
    /// CPUs that the server used, over time.
    pub(super) server: Vec<f64>,
    /// A line for each agent.
    pub(super) agents: Vec<String>,
    /// The latest warning or message.
    pub(super) note: Option<String>,
}

/// A pen on a row of an area: each text begins where the last one ended.
struct Row<'b> {
    buffer: &'b mut Buffer,
    x: u16,
    y: u16,
    end: u16,
}

impl Row<'_> {
    fn text(&mut self, text: &str, style: Style) -> &mut Self {
        let room = self.room();
        self.x = self.buffer.set_stringn(self.x, self.y, cut(text, room), room, style).0;
        self
    }

    /// Writes a text into the last `width` columns of the next `width`.
    fn right(&mut self, text: &str, width: u16, style: Style) -> &mut Self {
        let pad = usize::from(width).saturating_sub(text.chars().count());
        self.text(&" ".repeat(pad), PLAIN).text(text, style)
    }

    fn room(&self) -> usize {
        usize::from(self.end.saturating_sub(self.x))
    }
}

/// The rows of an area, from the top.
struct Rest {
    area: Rect,
}

impl Rest {
    fn row<'b>(&mut self, buffer: &'b mut Buffer) -> Option<Row<'b>> {
        if self.area.height == 0 {
            return None;
        }
        let Rect { x, y, width, .. } = self.area;
        self.skip();
        Some(Row { buffer, x, y, end: x + width })
    }

    fn skip(&mut self) {
        self.area.y += 1;
        self.area.height = self.area.height.saturating_sub(1);
    }
}

/// Draws the run.
pub(super) fn draw(known: &Known, area: Rect, buffer: &mut Buffer) {
    if area.width < NARROWEST || area.height < LOWEST {
        let text = format!("{} x {}: the view needs {NARROWEST} x {LOWEST}", area.width, area.height);
        if let Some(mut row) = (Rest { area }).row(buffer) {
            row.text(&text, PLAIN);
        }
        return;
    }
    // A column stays free on each side.
    let mut rest = Rest { area: Rect { x: area.x + 1, width: area.width - 2, ..area } };
    let airy = area.height >= AIRY;
    head(known, &mut rest, buffer);
    if airy {
        rest.skip();
    }
    figures(known, &mut rest, buffer);
    if airy {
        // What remains below the map.
        rest.area.height -= 1;
        let row = Row { buffer, x: rest.area.x, y: rest.area.bottom(), end: rest.area.right() };
        foot(known, row);
        agents(known, &mut rest, buffer);
        rest.skip();
    }
    if rest.area.height < LEAST_MAP {
        let more = LEAST_MAP - rest.area.height;
        if let Some(mut row) = rest.row(buffer) {
            row.text(&format!("histogram and heat map: {} needed", units::plural(more.into(), "more row")), DIM);
        }
        return;
    }
    map(known, rest.area, buffer);
}

/// The URL, and how far the run is.
fn head(known: &Known, rest: &mut Rest, buffer: &mut Buffer) {
    let alive = known.progress.as_ref().map_or(0, |progress| progress.alive);
    let connections = format!("{}/{} connections", units::count(alive as u64), units::count(known.connections as u64));
    if let Some(mut row) = rest.row(buffer) {
        let room = row.room().saturating_sub(connections.chars().count() + 2);
        let title = cut(&printable(&known.title), room);
        let gap = row.room() - title.chars().count();
        row.text(&title, BOLD).right(&connections, gap as u16, PLAIN);
    }
    let (share, left) = match &known.progress {
        Some(progress) => far(progress, known.requests),
        None => (None, String::new()),
    };
    if let Some(mut row) = rest.row(buffer) {
        let left = if matches!(known.phase, Phase::Ending | Phase::Awaiting) { "" } else { &left };
        let style = if known.phase == Phase::Ending { WARNING } else { BOLD };
        row.text(known.phase.words(), style).text("  ", PLAIN);
        let bar = row.room().saturating_sub(left.chars().count() + 2);
        let full = (share.unwrap_or(0.0) * bar as f64).round() as usize;
        if share.is_some() {
            row.text(&"━".repeat(full.min(bar)), DRAWN).text(&"─".repeat(bar.saturating_sub(full)), DIM);
            row.text("  ", PLAIN);
        }
        row.text(left, PLAIN);
    }
}

/// Returns how far a stage is, from 0 to 1, and in words.
fn far(progress: &Progress, requests: Option<u64>) -> (Option<f64>, String) {
    let elapsed = progress.elapsed.as_secs_f64();
    match (progress.left, requests) {
        (Some(left), requests) if requests.is_none_or(|all| !ends_by_requests(progress, left, all)) => {
            let left = left.as_secs_f64();
            let all = elapsed + left;
            (
                Some(elapsed / all.max(1e-9)),
                format!("{} left of {}", span(left.ceil()), span((all * 10.0).round() / 10.0)),
            )
        }
        (_, Some(all)) => {
            let share = progress.done as f64 / all.max(1) as f64;
            (Some(share.min(1.0)), format!("{} of {} answered", units::count(progress.done), units::count(all)))
        }
        (_, None) => (None, format!("{} so far", span(elapsed.floor()))),
    }
}

/// Formats a time: `9.5s`, `2m 05s`, `3h 07m`.
pub(super) fn span(seconds: f64) -> String {
    let whole = seconds as u64;
    match whole {
        0..120 => units::length(seconds),
        120..3600 => format!("{}m {:02}s", whole / 60, whole % 60),
        _ => format!("{}h {:02}m", whole / 3600, whole % 3600 / 60),
    }
}

/// Rate, percentiles, the server's CPU time and errors.
fn figures(known: &Known, rest: &mut Rest, buffer: &mut Buffer) {
    let complete = &known.points[..known.complete.min(known.points.len())];
    let room = rest.area.width.saturating_sub(NAME + 2 * FIGURE + 2);
    let columns = columns(complete, room.into());
    let mut all = Sketch::new();
    known.points.iter().for_each(|point| all.merge(&point.service));
    if let Some(mut row) = rest.row(buffer) {
        row.right("", NAME, DIM).right("now", FIGURE, DIM).right("run", FIGURE, DIM);
        if let Some(first) = columns.first() {
            let each = known.width.as_secs_f64() * first.points as f64;
            row.text(&format!("  each {}", units::length(each)), DIM);
        }
    }
    let mut line = |name: &str, now: Option<String>, run: Option<String>, course: String| {
        let Some(mut row) = rest.row(buffer) else { return };
        row.text(name, DIM).right("", NAME - name.len() as u16, PLAIN);
        row.right(now.as_deref().unwrap_or("-"), FIGURE, BOLD).right(run.as_deref().unwrap_or("-"), FIGURE, PLAIN);
        row.text("  ", PLAIN).text(&course, DRAWN);
    };
    let progress = known.progress.as_ref();
    let seconds = |points: usize| known.width.as_secs_f64() * points as f64;
    let rate = |requests: u64, points: usize| (points > 0).then(|| requests as f64 / seconds(points));
    let per_second = |rate: f64| format!("{}/s", units::number(rate));
    let (requests, points) = columns.iter().fold((0, 0), |sum, c| (sum.0 + c.requests, sum.1 + c.points));
    let rates = columns.iter().map(|column| rate(column.requests, column.points));
    line(
        "rate",
        progress.map(|progress| per_second(progress.rate)),
        rate(requests, points).map(per_second),
        sparkline(rates, room.into()),
    );
    for (name, quantile) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)] {
        let time = |sketch: &Sketch| Some(units::time(sketch.quantile(quantile)? as f64));
        let times = columns.iter().map(|column| column.service.quantile(quantile).map(|ns| ns as f64));
        line(name, progress.and_then(|progress| time(&progress.service)), time(&all), sparkline(times, room.into()));
    }
    if let Some(cpus) = progress.and_then(|progress| progress.server_cpu) {
        let percent = |cpus: f64| units::percent((cpus * 100.0).round() / 100.0);
        let mean = (!known.server.is_empty()).then(|| known.server.iter().sum::<f64>() / known.server.len() as f64);
        let course = spread(&known.server, columns.len());
        line("server CPU", Some(percent(cpus)), mean.map(percent), sparkline(course.into_iter(), room.into()));
    }
    if let (Some(progress), Some(mut row)) = (progress, rest.row(buffer)) {
        counted(progress, &mut row);
    }
}

/// Returns the means of values over so many equal stretches of the time that they cover.
fn spread(values: &[f64], stretches: usize) -> Vec<Option<f64>> {
    let place = |stretch: usize| stretch * values.len() / stretches.max(1);
    let mean = |stretch| {
        // With fewer values than stretches, neighbours share one.
        let from = place(stretch).min(values.len().saturating_sub(1));
        let part = values.get(from..place(stretch + 1).max(from + 1))?;
        Some(part.iter().sum::<f64>() / part.len() as f64)
    };
    (0..stretches).map(mean).collect()
}

/// Answers, and errors by name: as many names as fit.
fn counted(progress: &Progress, row: &mut Row<'_>) {
    row.text(&format!("{} answered  ", units::count(progress.done)), PLAIN);
    let style = if progress.errors > 0 { ERROR } else { PLAIN };
    row.text(&units::plural(progress.errors, "error"), style);
    let names = errors(&progress.failures);
    for (at, (name, count)) in names.iter().enumerate() {
        let text = format!("  {} x {name}", units::count(*count));
        let others = names.len() - at;
        let more = format!("  +{}", units::plural(others as u64, "other name"));
        let needed = text.chars().count() + if others > 1 { more.chars().count() } else { 0 };
        if needed > row.room() {
            row.text(&more, ERROR);
            return;
        }
        row.text(&text, ERROR);
    }
}

/// A line for each agent, as many as leave room for a map.
fn agents(known: &Known, rest: &mut Rest, buffer: &mut Buffer) {
    let room = usize::from((rest.area.height / 3).saturating_sub(1));
    let shown = if known.agents.len() > room { room.saturating_sub(1) } else { known.agents.len() };
    for line in &known.agents[..shown] {
        if let Some(mut row) = rest.row(buffer) {
            row.text(&printable(line), PLAIN);
        }
    }
    let more = known.agents.len() - shown;
    if more > 0
        && let Some(mut row) = rest.row(buffer)
    {
        row.text(&format!("{} not shown", units::plural(more as u64, "more agent")), DIM);
    }
}

/// The latest message, or how to end the run.
fn foot(known: &Known, mut row: Row<'_>) {
    match &known.note {
        _ if known.phase == Phase::Ending => row.text("q or Ctrl-C again ends it at once, without a report", DIM),
        Some(note) => row.text(&printable(note), WARNING),
        None => row.text("q or Ctrl-C ends the run and reports", DIM),
    };
}

/// The heat map (time to the right, latency upwards), and beside it the histogram of the same latencies.
fn map(known: &Known, area: Rect, buffer: &mut Buffer) {
    let room = area.width - TIME - 2;
    let bars = (room * 3 / 10).clamp(16, 44);
    let heat = room - bars - 1;
    let count = usize::from(area.height - 1);
    let (left, right) = (area.x + TIME, area.right() - bars);
    let axis = area.bottom() - 1;
    let columns = columns(&known.points, heat.into());
    let mut all = Sketch::new();
    columns.iter().for_each(|column| all.merge(&column.service));
    if all.is_empty() {
        let text = match known.phase {
            Phase::WarmUp => "The map begins with the measured part.",
            _ => "The map begins with the first responses.",
        };
        buffer.set_stringn(area.x, area.y + (area.height - 1) / 2, text, area.width.into(), DIM);
        return;
    }
    let rows = Rows::of(&all, count);
    let cells: Vec<Vec<u64>> = columns.iter().map(|column| rows.counts(&column.service)).collect();
    let densest = cells.iter().flatten().copied().max().unwrap_or(1);
    let totals = rows.counts(&all);
    let longest = totals.iter().copied().max().unwrap_or(1);
    for row in 0..count {
        let y = axis - 1 - row as u16;
        Row { buffer, x: area.x, y, end: left }.right(&units::time(rows.low(row) as f64), TIME - 1, DIM).text("│", DIM);
        for (x, column) in (left..).zip(&cells) {
            buffer.set_string(x, y, shade(column[row], densest), DRAWN);
        }
        let pen = Row { buffer, x: right, y, end: area.right() };
        bar(totals[row], longest, all.len(), bars, pen);
    }
    let seconds = known.width.as_secs_f64() * known.points.len() as f64;
    let end = span(if seconds < 10.0 { (seconds * 10.0).round() / 10.0 } else { seconds.round() });
    let mut row = Row { buffer, x: area.x, y: axis, end: right - 1 };
    row.right("0s", TIME - 1, DIM).text("└", DIM);
    // The time stands below the last column.
    let drawn = (columns.len() as u16).max(end.chars().count() as u16 + 1);
    row.text(&"─".repeat(usize::from(drawn) - end.chars().count() - 1), DIM).text(" ", DIM).text(&end, DIM);
    Row { buffer, x: right, y: axis, end: area.right() }.text(&format!("of {}", units::count(all.len())), DIM);
}

/// Returns how dense a cell is, on a logarithmic scale: one request is visible among many thousands.
fn shade(count: u64, densest: u64) -> &'static str {
    let level = (1.0 + count as f64).ln() / (1.0 + densest as f64).ln() * (SHADES.len() - 1) as f64;
    SHADES[(level.ceil() as usize).min(SHADES.len() - 1)]
}

/// Draws a bar of the histogram, with its share and, if there is room, its count.
fn bar(count: u64, longest: u64, all: u64, width: u16, mut row: Row<'_>) {
    if count == 0 {
        return;
    }
    let share = count as f64 / all.max(1) as f64;
    let share = if share < 0.0005 { "<0.1 %".to_owned() } else { units::percent(share) };
    let label =
        if width >= COUNTED { format!("{:>12} {share:>7}", units::count(count)) } else { format!("{share:>7}") };
    let room = usize::from(width) - label.chars().count();
    let eighths = ((count as f64 / longest as f64 * (room * 8) as f64).round() as usize).max(1);
    let mut drawn = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        drawn.push_str(EIGHTHS[eighths % 8 - 1]);
    }
    let gap = room - drawn.chars().count();
    row.text(&drawn, DRAWN).text(&" ".repeat(gap), PLAIN).text(&label, PLAIN);
}

/// Returns the phase of a run with this progress.
pub(super) fn phase_of(progress: Option<&Progress>, is_ending: bool, is_over: bool) -> Phase {
    match progress {
        _ if is_ending => Phase::Ending,
        None => Phase::Opening,
        Some(_) if is_over => Phase::Awaiting,
        Some(progress) if progress.stage == Stage::WarmUp => Phase::WarmUp,
        Some(_) => Phase::Measuring,
    }
}
