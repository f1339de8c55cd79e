//! The lines that a terminal shows during a run: the present figures, their course, errors by name.

use std::collections::VecDeque;
use std::time::Duration;

use oroshi_bench::follow::Stage;
use oroshi_bench::{FailureCounts, Progress};
use oroshi_words::units;

/// The most points of a sparkline that are kept: more than a terminal is wide.
const MOST_POINTS: usize = 400;
/// Progress comes ten times per second; a point of a sparkline is the last of so many.
const EACH: usize = 5;
/// Below this width there is no room for sparklines.
const NARROWEST: usize = 50;
/// Eighths of a character's height.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The course of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    rates: VecDeque<f64>,
    p99s: VecDeque<Option<f64>>,
    seen: usize,
    stage: Option<Stage>,
}

impl View {
    /// Takes the present figures. A new stage begins a new course.
    pub(super) fn add(&mut self, progress: &Progress) {
        if self.stage != Some(progress.stage) {
            *self = Self { stage: Some(progress.stage), ..Self::default() };
        }
        if self.seen.is_multiple_of(EACH) {
            self.rates.push_back(progress.rate);
            self.p99s.push_back(progress.service.quantile(0.99).map(|ns| ns as f64));
            while self.rates.len() > MOST_POINTS {
                self.rates.pop_front();
                self.p99s.pop_front();
            }
        }
        self.seen += 1;
    }

    /// Returns the lines below the first one, each of at most `width` characters.
    pub(super) fn below(&self, progress: &Progress, width: usize) -> Vec<String> {
        let mut lines = Vec::new();
        if width >= NARROWEST && self.rates.len() > 1 {
            let room = (width - "rate   p99 ".len()) / 2;
            let rates = sparkline(self.rates.iter().map(|rate| Some(*rate)), room);
            let p99s = sparkline(self.p99s.iter().copied(), room);
            lines.push(format!("rate {rates}  p99 {p99s}"));
        }
        let server = progress.server_cpu.map(|cpus| {
            let cpus = (cpus * 100.0).round() / 100.0;
            format!("server {} of a CPU", units::percent(cpus))
        });
        let failures = errors(&progress.failures).into_iter();
        let failures = failures.map(|(name, n)| format!("{} x {name}", units::count(n)));
        let parts: Vec<String> = server.into_iter().chain(failures).collect();
        if !parts.is_empty() {
            lines.push(cut(&parts.join("  "), width));
        }
        lines
    }
}

/// Returns the errors by name, the most frequent first.
pub(super) fn errors(failures: &FailureCounts) -> Vec<(&'static str, u64)> {
    let errors = failures.iter().filter(|(failure, _)| failure.is_error());
    let mut errors: Vec<_> = errors.map(|(failure, n)| (failure.name(), n)).collect();
    errors.sort_by_key(|error| std::cmp::Reverse(error.1));
    errors
}

/// Draws values from zero to the greatest one, the last ones if there are too many. A gap is a space.
pub(crate) fn sparkline(values: impl ExactSizeIterator<Item = Option<f64>> + Clone, room: usize) -> String {
    let shown = values.clone().skip(values.len().saturating_sub(room));
    let most = shown.clone().flatten().fold(0.0, f64::max);
    let bar = |value: Option<f64>| match value {
        Some(value) if most > 0.0 => {
            let height = (value / most * (BARS.len() - 1) as f64).round();
            BARS[(height.max(0.0) as usize).min(BARS.len() - 1)]
        }
        Some(_) => BARS[0],
        None => ' ',
    };
    shown.map(bar).collect()
}

/// Cuts a line to a width, with a sign that something is missing.
pub(super) fn cut(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_owned();
    }
    line.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Whether a run that both a number of requests and a time may end has done more of the former.
pub(super) fn ends_by_requests(progress: &Progress, left: Duration, requests: u64) -> bool {
    let elapsed = progress.elapsed.as_secs_f64();
    let of_time = elapsed / (elapsed + left.as_secs_f64()).max(1e-9);
    progress.stage != Stage::WarmUp && progress.done as f64 / requests.max(1) as f64 > of_time
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use oroshi_bench::Failure;
    use oroshi_stats::Sketch;

    use super::*;

    fn progress(rate: f64, stage: Stage) -> Progress {
        let mut failures = FailureCounts::default();
        failures.add_many(Failure::Timeout, 3);
        failures.add_many(Failure::Status, 1200);
        let mut service = Sketch::new();
        service.record(rate as u64);
        Progress {
            stage,
            elapsed: Duration::from_secs(1),
            left: Some(Duration::from_secs(9)),
            done: 10,
            rate,
            service,
            errors: 1203,
            failures,
            server_cpu: Some(0.934),
            alive: 10,
        }
    }

    #[test]
    fn a_sparkline_has_the_heights_of_its_values() {
        let values = [Some(0.0), Some(50.0), None, Some(100.0)];
        assert_eq!(sparkline(values.iter().copied(), 10), "▁▅ █");
        assert_eq!(sparkline(values.iter().copied(), 2), " █", "the last ones");
        assert_eq!(sparkline([Some(0.0)].iter().copied(), 5), "▁");
        assert_eq!(sparkline([Some(f64::NAN), Some(1.0)].iter().copied(), 5), "▁█");
    }

    #[test]
    fn lines_fit_into_every_width() {
        let mut view = View::default();
        (0..2000).for_each(|n| view.add(&progress(1000.0 + f64::from(n % 700), Stage::Measuring)));
        for width in [20, 40, 60, 80, 160, 300] {
            let lines = view.below(&progress(1.0, Stage::Measuring), width);
            assert_eq!(lines.len(), if width < NARROWEST { 1 } else { 2 }, "{width}: {lines:?}");
            assert!(lines.iter().all(|line| line.chars().count() <= width), "{width}: {lines:?}");
        }
        let lines = view.below(&progress(1.0, Stage::Measuring), 80);
        assert_eq!(lines[1], "server 93 % of a CPU  1,200 x status  3 x timeout");
        assert!(lines[0].starts_with("rate ") && lines[0].contains("  p99 "), "{lines:?}");
    }

    #[test]
    fn a_new_stage_begins_a_new_course() {
        let mut view = View::default();
        (0..50).for_each(|_| view.add(&progress(5.0, Stage::WarmUp)));
        assert_eq!(view.rates.len(), 10);
        view.add(&progress(7.0, Stage::Measuring));
        assert_eq!(view.rates, [7.0]);
    }

    #[test]
    fn a_long_line_is_cut() {
        assert_eq!((cut("abcdef", 4), cut("abcd", 4)), ("abc…".into(), "abcd".into()));
    }
}
