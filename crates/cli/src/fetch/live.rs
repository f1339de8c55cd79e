//! The progress line on the terminal.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use oroshi_fetch::Progress;
use oroshi_words::units;

/// The shortest time between two updates of the line.
const EVERY: Duration = Duration::from_millis(100);

/// A progress bar on standard error, if that is a terminal without other output.
#[derive(Debug)]
pub(super) struct Live {
    bar: ProgressBar,
    began: Instant,
    shown: Option<(Instant, u64)>,
    rate: f64,
}

impl Live {
    pub(super) fn new(quiet: bool, uses_stdout: bool) -> Self {
        let mixed = uses_stdout && io::stdout().is_terminal();
        let shown = io::stderr().is_terminal() && !quiet && !mixed;
        let bar = if shown { ProgressBar::new(1000) } else { ProgressBar::hidden() };
        Self { bar, began: Instant::now(), shown: None, rate: 0.0 }
    }

    /// Whether an update is due.
    pub(super) fn is_due(&self) -> bool {
        !self.bar.is_hidden() && self.shown.is_none_or(|(at, _)| at.elapsed() >= EVERY)
    }

    /// Updates the line now.
    pub(super) fn show(&mut self, progress: Progress) {
        let now = Instant::now();
        if let Some((at, done)) = self.shown {
            let rate = (progress.done - done) as f64 / (now - at).as_secs_f64();
            // Smoothed for reading.
            self.rate += (rate - self.rate) * 0.2;
        }
        self.shown = Some((now, progress.done));
        let template = if progress.share.is_some() { "{bar:20} {percent:>3} %  {wide_msg}" } else { "{wide_msg}" };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style.progress_chars("=> "));
        }
        self.bar.set_position((progress.share.unwrap_or(0.0) * 1000.0) as u64);
        self.bar.set_message(describe(&progress, self.began.elapsed(), self.rate));
    }

    /// Prints a line that stays, above the progress line.
    pub(super) fn say(&self, text: &str) {
        if self.bar.is_hidden() {
            crate::say(text);
        } else {
            self.bar.println(text);
        }
    }

    /// Removes the line.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// `12s  1,234 done, 3 failed, 450/s, 16 under way`.
fn describe(progress: &Progress, elapsed: Duration, rate: f64) -> String {
    let failed = match progress.failed {
        0 => String::new(),
        n => format!(", {} failed", units::count(n)),
    };
    let left = match progress.share {
        Some(share) if share > 0.02 && share < 1.0 && !progress.stopping => {
            let left = elapsed.as_secs_f64() * (1.0 - share) / share;
            format!(", {} left", units::length(left.ceil()))
        }
        _ => String::new(),
    };
    let stopping = if progress.stopping { "ending; " } else { "" };
    format!(
        "{stopping}{}  {} done{failed}, {}/s, {} under way{left}",
        units::length(elapsed.as_secs_f64().floor()),
        units::count(progress.done),
        units::number(rate.round()),
        units::count(progress.under_way as u64),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_what_happens_and_how_long_it_will() {
        let progress = Progress { done: 1234, failed: 3, under_way: 16, share: None, stopping: false };
        let told = |progress| describe(&progress, Duration::from_millis(10_900), 450.4);
        assert_eq!(told(progress), "10s  1,234 done, 3 failed, 450/s, 16 under way");
        let half = Progress { share: Some(0.5), failed: 0, ..progress };
        assert_eq!(told(half), "10s  1,234 done, 450/s, 16 under way, 11s left");
        assert_eq!(told(Progress { stopping: true, ..half }), "ending; 10s  1,234 done, 450/s, 16 under way");
    }

    #[test]
    fn without_a_terminal_nothing_is_due() {
        assert!(!Live::new(true, false).is_due());
    }
}
