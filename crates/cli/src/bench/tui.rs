//! `oroshi bench --tui`: the run as a picture on the whole terminal.
//!
//! `map` arranges the points of a run in rows and columns, `picture` draws them. The view draws on the thread that
//! observes the run, which measures nothing, at most four times per second.

mod map;
mod picture;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use oroshi_bench::follow::Stage;
use oroshi_bench::{Course, Progress};
use oroshi_net::Shutdown;
use ratatui_core::terminal::Terminal;

use self::picture::{Known, draw, phase_of};
use crate::screen::{NoScreen, Screen};

/// How often the view is drawn at most, and how often keys are read.
const DRAWING: Duration = Duration::from_millis(250);
const KEYS: Duration = Duration::from_millis(50);
/// A `q` that comes so soon after another one is the same key, still held down.
const REPEAT: Duration = Duration::from_secs(1);
/// When no progress came for so long, the measured part is over.
const SILENCE: Duration = Duration::from_millis(400);
/// The most values of the server's CPU time that are kept. Then neighbours are merged.
const MOST_VALUES: usize = 512;

/// The view of a run, until it is dropped.
#[derive(Debug)]
pub(super) struct Tui {
    terminal: Terminal<Screen>,
    shutdown: Shutdown,
    known: Known,
    server: Means,
    drawn: Option<Instant>,
    keys: Option<Instant>,
    quit: Option<Instant>,
    told: Instant,
}

impl Tui {
    /// Takes the terminal.
    ///
    /// # Errors
    /// There is none, or it cannot be a screen.
    pub(super) fn open(title: &str, shutdown: Shutdown) -> Result<Self, NoScreen> {
        crate::interrupt::end_on_hangup();
        let terminal = Terminal::new(Screen::open()?).map_err(|_| NoScreen::Failed)?;
        let known = Known { title: title.to_owned(), ..Known::default() };
        let told = Instant::now();
        Ok(Self { terminal, shutdown, known, server: Means::default(), drawn: None, keys: None, quit: None, told })
    }

    /// Says how many connections and requests the run has.
    pub(super) fn plan(&mut self, connections: usize, requests: Option<u64>) {
        (self.known.connections, self.known.requests) = (connections, requests);
    }

    /// Takes the present figures.
    pub(super) fn progress(&mut self, progress: &Progress) {
        let before = self.known.progress.as_ref().map(|before| before.stage);
        if before != Some(progress.stage) {
            self.server = Means::default();
        }
        if let Some(cpus) = progress.server_cpu {
            self.server.add(cpus);
        }
        self.known.progress = Some(progress.clone());
        self.told = Instant::now();
        if progress.stage == Stage::WarmUp {
            self.draw_if_due();
        }
    }

    /// Takes the measured part so far.
    pub(super) fn course(&mut self, course: &Course<'_>) {
        if self.is_due() {
            self.known.take(course);
            self.draw_if_due();
        }
    }

    /// Takes a line for each agent.
    #[cfg(feature = "agents")]
    pub(super) fn agents(&mut self, lines: &[String]) {
        self.known.agents = lines.to_vec();
    }

    /// Shows a message until the next one.
    pub(super) fn note(&mut self, text: &str) {
        self.known.note = Some(text.to_owned());
    }

    /// Reads keys, and draws what changes while no progress comes.
    pub(super) fn look(&mut self) {
        let since = self.keys.map(|at| at.elapsed());
        if since.is_some_and(|since| since < KEYS) {
            return;
        }
        self.keys = Some(Instant::now());
        if since.is_some_and(|since| since >= SILENCE / 2) {
            // This thread got no CPU: that no progress came says nothing.
            self.told = Instant::now();
        }
        let pressed = self.terminal.backend_mut().pressed();
        if pressed.quit && self.quit.replace(Instant::now()).is_none_or(|before| before.elapsed() >= REPEAT) {
            self.shutdown.request();
        }
        if pressed.redraw {
            // A terminal that is gone shows nothing.
            let _ = self.terminal.clear();
        }
        if self.known.progress.is_none() || self.told.elapsed() >= SILENCE {
            self.draw_if_due();
        }
    }

    fn is_due(&self) -> bool {
        self.drawn.is_none_or(|at| at.elapsed() >= DRAWING)
    }

    fn draw_if_due(&mut self) {
        if !self.is_due() {
            return;
        }
        self.drawn = Some(Instant::now());
        // A terminal that is slower than this misses pictures.
        if self.terminal.backend_mut().is_behind() {
            return;
        }
        let is_over = self.told.elapsed() >= SILENCE;
        self.known.phase = phase_of(self.known.progress.as_ref(), self.shutdown.count() > 0, is_over);
        self.known.server.clone_from(&self.server.values);
        let known = &self.known;
        // A terminal that is gone shows nothing; the run goes on.
        let _ = self.terminal.draw(|frame| draw(known, frame.area(), frame.buffer_mut()));
    }
}

impl Known {
    /// Copies the points, also the oldest: an agent that was silent may add to them.
    fn take(&mut self, course: &Course<'_>) {
        self.points.clear();
        self.points.extend_from_slice(course.points);
        (self.width, self.complete) = (course.width, course.complete);
    }
}

/// Values over time, as many as fit; each is the mean of as many as the others.
#[derive(Clone, Debug, Default)]
struct Means {
    values: Vec<f64>,
    /// The values of each mean, as a power of two, and those since the last one.
    doublings: u32,
    sum: f64,
    count: usize,
}

impl Means {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
        if self.count < 1 << self.doublings {
            return;
        }
        self.values.push(self.sum / self.count as f64);
        (self.sum, self.count) = (0.0, 0);
        if self.values.len() == MOST_VALUES {
            self.values = self.values.chunks(2).map(|pair| pair.iter().sum::<f64>() / pair.len() as f64).collect();
            self.doublings += 1;
        }
    }
}
