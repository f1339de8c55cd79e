//! The thread that reads the list, and its progress.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use tokio::sync::mpsc;

use crate::list::{self, Item, ListError, Reading, Source};
use crate::plan::{Pace, Plan};
use crate::resume::{DoneLines, LineState};

/// The thread that reads the list.
pub(crate) struct Reader {
    reading: Arc<Reading>,
    pub(crate) skipped: Arc<Skipped>,
    /// The total size of the sources in bytes, if known.
    bytes: Option<u64>,
    urls: u64,
    /// The size of a burst that does not depend on the list.
    burst: Option<usize>,
    thread: JoinHandle<Result<(), ListError>>,
}

/// Counts of lines that an earlier run has done, or done with another request.
#[derive(Debug, Default)]
pub(crate) struct Skipped {
    pub(crate) ok: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) changed: AtomicU64,
}

impl Reader {
    pub(crate) fn start(
        plan: &Plan,
        done_lines: Option<DoneLines>,
        batches: mpsc::Sender<Vec<Item>>,
    ) -> io::Result<Self> {
        let (reading, skipped) = (Arc::new(Reading::default()), Arc::new(Skipped::default()));
        let thread = {
            let (plan, reading, skipped) = (plan.clone(), Arc::clone(&reading), Arc::clone(&skipped));
            thread::Builder::new().name("list".to_owned()).spawn(move || {
                list::read_all(&plan.sources, &reading, |mut batch| {
                    if let Some(done_lines) = &done_lines {
                        batch.retain(|item| skipped.wants(item, &plan, done_lines));
                    }
                    batch.is_empty() || batches.blocking_send(batch).is_ok()
                })
            })?
        };
        let length = |source: &Source| match source {
            Source::Url(_) => Some(0),
            Source::File(path) => fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|file| file.len()),
            Source::Stdin => None,
        };
        let bytes = plan.sources.iter().map(length).sum();
        let urls = plan.sources.iter().filter(|source| matches!(source, Source::Url(_))).count() as u64;
        let burst = match plan.pace {
            Pace::Burst(most) => most,
            Pace::Steady { .. } => None,
        };
        Ok(Self { reading, skipped, bytes, urls, burst, thread })
    }

    /// Returns the done share of the list, 0 to 1, for this number of done items.
    pub(crate) fn share(&self, done: u64) -> Option<f64> {
        if let Some(all) = self.burst {
            return Some(done as f64 / all as f64);
        }
        let (read, of) = (self.reading.bytes.load(Ordering::Relaxed), self.bytes?);
        let items = self.reading.items.load(Ordering::Relaxed);
        let skipped = self.skipped.ok.load(Ordering::Relaxed) + self.skipped.failed.load(Ordering::Relaxed);
        // The estimated total: the rest of the list is assumed to be like the part read so far.
        let all = if of == 0 { self.urls as f64 } else { items as f64 * of as f64 / (read.max(1)) as f64 };
        Some(((done + skipped) as f64 / all.max(1.0)).min(1.0))
    }

    /// Waits for the end of the list.
    pub(crate) fn end(self) -> Result<(), ListError> {
        self.thread.join().unwrap_or(Ok(()))
    }
}

impl Skipped {
    /// Whether to fetch an item, by the output of the earlier run.
    fn wants(&self, item: &Item, plan: &Plan, done_lines: &DoneLines) -> bool {
        let Ok(asked) = &item.asked else { return true };
        let has_body = asked.body.is_some() || plan.defaults.body.is_some();
        let method = plan.defaults.method(asked.method.as_deref(), has_body);
        let known = done_lines.known(item.n, method, &asked.url, asked.id.as_ref());
        match known {
            LineState::Nothing => {}
            LineState::Changed => _ = self.changed.fetch_add(1, Ordering::Relaxed),
            LineState::Done { ok: true } => _ = self.ok.fetch_add(1, Ordering::Relaxed),
            LineState::Done { ok: false } => _ = self.failed.fetch_add(1, Ordering::Relaxed),
        }
        !matches!(known, LineState::Done { .. })
    }
}
