//! The live line of a run, Ctrl-C, and the logs that are written during a run.

use std::fs::File;
use std::io::{BufWriter, IsTerminal};
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use oroshi_bench::follow::Stage;
use oroshi_bench::{Course, Observer, Progress, RequestTimes, SecondHistograms};
use oroshi_net::Shutdown;
use oroshi_stats::IntervalLog;

use super::ab::RequestLog;
use super::open_kept;
use super::tui::Tui;
use super::view::{View, cut, ends_by_requests};
use crate::terminal::live_width;
use oroshi_words::units;

/// The log's name in messages.
const HDR_LOG: &str = "the HdrHistogram log";

/// How often figures appear as a line where `--tui` finds no terminal, seconds.
const PLAIN: u64 = 10;

/// Follows a run on the terminal.
#[derive(Debug)]
pub(crate) struct Live {
    display: Display,
    shutdown: Shutdown,
    connections: usize,
    /// The number of requests, if it is fixed.
    requests: Option<u64>,
    log: Option<HdrLog>,
    each: Option<RequestLog>,
    /// Words before the figures, if the run is part of a series.
    label: String,
    view: View,
    tui: Option<Tui>,
    /// How many plain lines were printed, if there are to be any.
    plain: Option<u64>,
    /// A line for each agent.
    agents: Vec<String>,
}

/// What shows a run on the terminal. Clones are the same display.
#[derive(Clone, Debug)]
pub(crate) struct Display(ProgressBar);

impl Display {
    /// Removes it from the terminal, for good.
    pub(crate) fn clear(&self) {
        self.0.finish_and_clear();
        #[cfg(feature = "tui")]
        crate::screen::restore();
    }

    /// Prints a line on standard error that stays. Beneath a view it appears when the view is gone.
    #[cfg(feature = "script")]
    pub(crate) fn say(&self, text: &str) {
        self.0.suspend(|| crate::say(text));
    }
}

impl Live {
    /// Returns a live line on standard error, if that is a terminal.
    pub(crate) fn new(shutdown: Shutdown, connections: usize, requests: Option<u64>, log: Option<HdrLog>) -> Self {
        let line = if std::io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{msg}") {
            line.set_style(style);
        }
        Self {
            display: Display(line),
            shutdown,
            connections,
            requests,
            log,
            each: None,
            label: String::new(),
            view: View::default(),
            tui: None,
            plain: None,
            agents: Vec::new(),
        }
    }

    /// Shows a view on the whole terminal in place of the line. Without a terminal, plain lines are printed now and
    /// then. `title`: what is measured.
    pub(crate) fn with_tui(mut self, title: &str) -> Self {
        match Tui::open(title, self.shutdown.clone()) {
            Ok(mut tui) => {
                tui.plan(self.connections, self.requests);
                self.tui = Some(tui);
                self.display = Display(ProgressBar::hidden());
            }
            Err(why) if self.display.0.is_hidden() => {
                crate::say(&format!("note: --tui: {why}: figures follow as a line each {PLAIN} s"));
                self.plain = Some(0);
            }
            Err(why) => crate::say(&format!("note: --tui: {why}: figures follow as a line")),
        }
        self
    }

    /// Adds a log of all requests.
    pub(crate) fn listing(self, each: Option<RequestLog>) -> Self {
        Self { each, ..self }
    }

    /// Puts words before the figures, and omits warnings, because the caller prints the warnings of all parts once.
    pub(crate) fn labelled(self, label: String) -> Self {
        Self { label, ..self }
    }

    /// Switches to another part of a series: other words before the figures, other connections.
    pub(crate) fn part(&mut self, label: String, connections: usize) {
        self.note(&label);
        (self.label, self.connections) = (label, connections);
    }

    /// Shows a text until the next figures arrive.
    pub(crate) fn note(&self, text: &str) {
        if !self.display.0.is_hidden() {
            self.display.0.set_message(cut(text, live_width(&std::io::stderr())));
        }
    }

    /// Prints a line that stays, above the live line. A view shows it too.
    pub(crate) fn say(&mut self, text: &str) {
        if let Some(tui) = &mut self.tui {
            tui.note(text);
        }
        if self.display.0.is_hidden() {
            crate::say(text);
        } else {
            self.display.0.println(text);
        }
    }

    /// Shows these lines, one for each agent, with the next figures.
    #[cfg(feature = "agents")]
    pub(crate) fn agents(&mut self, lines: Vec<String>) {
        if let Some(tui) = &mut self.tui {
            tui.agents(&lines);
        }
        self.agents = lines;
    }

    /// Returns a handle that can clear the display from elsewhere.
    pub(crate) fn display(&self) -> Display {
        self.display.clone()
    }

    /// Clears the display and completes the logs; `ran`: whether the run took place.
    ///
    /// # Errors
    /// If a log could not be written, now or earlier.
    pub(crate) fn finish(self, ran: bool) -> Result<(), LogError> {
        self.display.clear();
        let each = self.each.map_or(Ok(()), |each| each.finish(ran));
        self.log.map_or(Ok(()), |log| log.finish(ran)).and(each)
    }
}

impl Observer for Live {
    fn progress(&mut self, progress: &Progress) {
        if let Some(tui) = &mut self.tui {
            return tui.progress(progress);
        }
        if is_due(&mut self.plain, progress) {
            crate::say(&describe(progress, self.connections, self.requests));
        }
        if self.display.0.is_hidden() {
            return;
        }
        let width = live_width(&std::io::stderr());
        let figures = cut(&describe(progress, self.connections, self.requests), width);
        let mut lines = match self.label.trim_end() {
            "" => {
                self.view.add(progress);
                [vec![figures], self.view.below(progress, width)].concat()
            }
            // Runs of a series are too short for a course of their own.
            label => vec![cut(label, width), figures],
        };
        lines.extend(self.agents.iter().map(|line| cut(line, width)));
        self.display.0.set_message(lines.join("\n"));
    }

    fn course(&mut self, course: &Course<'_>) {
        if let Some(tui) = &mut self.tui {
            tui.course(course);
        }
    }

    fn second(&mut self, histograms: &SecondHistograms) {
        if let Some(log) = &mut self.log {
            log.write(histograms);
        }
    }

    fn requests(&mut self, times: &[RequestTimes]) {
        if let Some(each) = &mut self.each {
            each.write(times);
        }
    }

    fn cancelled(&mut self) -> bool {
        if let Some(tui) = &mut self.tui {
            tui.look();
        }
        self.shutdown.count() > 0
    }

    fn warning(&mut self, text: &str) {
        let text = format!("warning: {text}");
        if let Some(tui) = &mut self.tui {
            tui.note(&text);
        } else if !self.display.0.is_hidden() && self.label.is_empty() {
            self.display.0.println(text);
        }
    }
}

/// Whether the next plain line is due; counts it.
fn is_due(plain: &mut Option<u64>, progress: &Progress) -> bool {
    let Some(printed) = plain else { return false };
    if progress.stage == Stage::WarmUp {
        return false;
    }
    let due = progress.elapsed.as_secs() / PLAIN > *printed;
    if due {
        *printed = progress.elapsed.as_secs() / PLAIN;
    }
    due
}

/// `[7s left] 61,234/s  p50 94.1us  p99 1.20ms  0 errors  100/100 connections`.
fn describe(progress: &Progress, connections: usize, requests: Option<u64>) -> String {
    let time = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), |ns| units::time(ns as f64));
    let left = match (progress.left, requests) {
        (Some(left), None) => format!("{}s left", left.as_secs_f64().ceil()),
        (Some(left), Some(all)) if !ends_by_requests(progress, left, all) => {
            format!("{}s left", left.as_secs_f64().ceil())
        }
        (_, Some(all)) => format!("{} of {} answered", units::count(progress.done), units::count(all)),
        (None, None) => units::length(progress.elapsed.as_secs_f64().floor()),
    };
    let stage = if progress.stage == Stage::WarmUp { "warm-up, " } else { "" };
    format!(
        "[{stage}{left}] {}/s  p50 {}  p99 {}  {}  {}/{connections} connections",
        units::number(progress.rate),
        time(progress.service.quantile(0.5)),
        time(progress.service.quantile(0.99)),
        units::plural(progress.errors, "error"),
        progress.alive,
    )
}

/// An HdrHistogram log that is written while the run lasts.
#[derive(Debug)]
pub(crate) struct HdrLog {
    path: PathBuf,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Nothing is written yet: an earlier file keeps its content until the run has begun.
    Waiting(File),
    Writing(IntervalLog<BufWriter<File>>),
    Failed(Box<dyn std::error::Error + Send + Sync>),
}

/// The error of a log that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{what} {} could not be written", path.display())]
pub(crate) struct LogError {
    what: &'static str,
    path: PathBuf,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl LogError {
    pub(super) fn new(
        what: &'static str,
        path: &Path,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { what, path: path.to_owned(), source: source.into() }
    }
}

impl HdrLog {
    /// Opens the file, so that a wrong path is noticed before the run.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub(crate) fn create(path: &Path) -> Result<Self, LogError> {
        let file = open_kept(path).map_err(|error| LogError::new(HDR_LOG, path, error))?;
        Ok(Self { path: path.to_owned(), state: State::Waiting(file) })
    }

    fn write(&mut self, second: &SecondHistograms) {
        self.state = match std::mem::replace(&mut self.state, State::Failed("interrupted".into())) {
            State::Failed(error) => State::Failed(error),
            State::Waiting(file) => {
                empty(&file);
                let comment = concat!("oroshi ", env!("CARGO_PKG_VERSION"), ": tags are service and response time");
                IntervalLog::new(BufWriter::new(file), second.began, comment)
                    .map_or_else(|e| State::Failed(e.into()), |log| append(log, second))
            }
            State::Writing(log) => append(log, second),
        };
    }

    fn finish(self, ran: bool) -> Result<(), LogError> {
        let result = match self.state {
            State::Failed(error) => Err(error),
            State::Waiting(file) => {
                // An earlier log does not belong to this run, even if nothing was answered.
                if ran {
                    empty(&file);
                }
                Ok(())
            }
            State::Writing(log) => log.finish().map(drop).map_err(Into::into),
        };
        result.map_err(|source| LogError::new(HDR_LOG, &self.path, source))
    }
}

/// Empties a file.
pub(super) fn empty(file: &File) {
    // A pipe or a terminal cannot be truncated.
    let _ = file.set_len(0);
}

fn append(mut log: IntervalLog<BufWriter<File>>, second: &SecondHistograms) -> State {
    for (tag, histogram) in [("service", &second.service), ("response", &second.response)] {
        if let Err(error) = log.write(Some(tag), second.offset, second.length, histogram) {
            return State::Failed(error.into());
        }
    }
    State::Writing(log)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use oroshi_bench::FailureCounts;
    use oroshi_stats::{Latency, Sketch};

    use super::*;

    fn progress() -> Progress {
        Progress {
            stage: Stage::Measuring,
            elapsed: Duration::from_millis(2900),
            left: Some(Duration::from_millis(7100)),
            done: 1234,
            rate: 61_234.4,
            service: Sketch::new(),
            errors: 1,
            failures: FailureCounts::default(),
            server_cpu: None,
            alive: 99,
        }
    }

    #[test]
    fn the_line_says_what_happens_and_how_long_it_will() {
        let mut service = Sketch::new();
        service.record(94_100);
        let text = describe(&Progress { service, ..progress() }, 100, None);
        assert_eq!(text, "[8s left] 61,234/s  p50 94.1us  p99 94.1us  1 error  99/100 connections");
        assert!(describe(&progress(), 100, None).contains("  p50 -  p99 -  "));
        let counted = Progress { left: None, stage: Stage::WarmUp, ..progress() };
        assert!(describe(&counted, 100, Some(5000)).starts_with("[warm-up, 1,234 of 5,000 answered] "));
        assert!(describe(&counted, 100, None).starts_with("[warm-up, 2s] "));
    }

    #[test]
    fn without_a_terminal_a_line_follows_each_ten_seconds() {
        let mut plain = Some(0);
        let seconds = [(0, false), (9, false), (10, true), (11, false), (19, false), (35, true), (39, false)];
        for (elapsed, wanted) in seconds {
            let progress = Progress { elapsed: Duration::from_secs(elapsed), ..progress() };
            assert_eq!(is_due(&mut plain, &progress), wanted, "{elapsed}");
            assert!(!is_due(&mut None, &progress));
        }
        let warm_up = Progress { stage: Stage::WarmUp, elapsed: Duration::from_secs(99), ..progress() };
        assert!(!is_due(&mut plain, &warm_up));
    }

    fn second(s: u64) -> SecondHistograms {
        let (mut service, mut response) = (Latency::new(), Latency::new());
        service.record(1_000_000);
        response.record(2_000_000);
        let began = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        SecondHistograms { began, offset: Duration::from_secs(s), length: Duration::from_secs(1), service, response }
    }

    #[test]
    fn an_earlier_log_goes_when_the_run_takes_place_and_not_before() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let after = |ran| {
            std::fs::write(file.path(), "an earlier log").unwrap();
            HdrLog::create(file.path()).unwrap().finish(ran).unwrap();
            std::fs::read_to_string(file.path()).unwrap()
        };
        assert_eq!((after(false), after(true)), ("an earlier log".to_owned(), String::new()));
    }

    #[test]
    fn the_log_has_a_line_per_second_and_tag() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "an earlier log").unwrap();
        let mut log = HdrLog::create(file.path()).unwrap();
        (0..2).for_each(|s| log.write(&second(s)));
        log.finish(true).unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        let tags: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("Tag=")?.split(',').next()).collect();
        assert_eq!(tags, ["service", "response", "service", "response"], "{text}");
        assert!(text.starts_with("#[Histogram log format version 1.3]\n"), "{text}");
        // However long after it the first second is told.
        assert!(
            text.contains("#[StartTime: 1700000000.000 ") && text.contains("#[BaseTime: 1700000000.000 "),
            "{text}"
        );
    }

    #[test]
    fn a_log_that_cannot_be_made_is_named() {
        let error = HdrLog::create(Path::new("/nonexistent/x.hlog")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/x.hlog"));
        let mut full = HdrLog::create(Path::new("/dev/full")).unwrap();
        full.write(&second(0));
        assert!(full.finish(true).is_err());
    }
}
