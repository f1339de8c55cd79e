//! A whole run: opens the plan's files, and divides the work among three threads.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use oroshi_client::Counts;
use oroshi_net::ports::LocalPorts;
use oroshi_net::threads::ThreadsError;
use oroshi_net::{Shutdown, Threads, ThreadsOptions, ensure_descriptors};
use oroshi_words::units;
use tokio::sync::mpsc;

use crate::body_files::Folder;
use crate::list::ListError;
use crate::out::SharedWriter;
use crate::plan::{Bodies, LARGEST_BURST, Pace, Plan};
use crate::reader::Reader;
use crate::record::Record;
use crate::resume::{self, DoneLines, Lock, Opened, ResumeError};
use crate::work::{self, Job, WorkError};

/// The capacity of the queues: batches of items, and records.
const WAITING: (usize, usize) = (4, 1024);

/// Descriptors reserved for other uses when there are few: files, look-ups, the runtimes.
const SPARE_DESCRIPTORS: u64 = 100;

/// How often to ask the follower whether to show progress, while no record comes.
const TICK: Duration = Duration::from_millis(200);

/// Why the run failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Resume it, or name another file: the results of an earlier run would be lost.
    #[error("{} is not empty", .0.display())]
    Exists(PathBuf),
    /// Wait for the other run, or name another file: both would fetch the same lines.
    #[error("another run of oroshi fetch writes {}", .0.display())]
    InUse(PathBuf),
    /// Name the output of an earlier run.
    #[error("{} cannot be resumed", path.display())]
    Resume {
        /// The file.
        path: PathBuf,
        /// The error.
        source: ResumeError,
    },
    /// Choose another path, or free disk space.
    #[error("{} cannot be written", path.display())]
    Output {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The list could not be read to its end.
    #[error(transparent)]
    List(#[from] ListError),
    /// The work failed before its end.
    #[error(transparent)]
    Work(#[from] WorkError),
    /// The system refused a thread.
    #[error("cannot start the threads that this takes")]
    Threads(#[source] io::Error),
    /// The thread of the event loop could not be started, or panicked.
    #[error(transparent)]
    EventLoop(#[from] ThreadsError),
    /// A record cannot be written as JSON: a defect.
    #[error("a record cannot be written as JSON")]
    Json(#[from] serde_json::Error),
    /// The run failed after some records were written.
    #[error(transparent)]
    Halfway(Box<Error>),
}

/// A warning for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// The file system of this output has no locks.
    NoLocks(PathBuf),
    /// Fewer connections fit within the limit of file descriptors.
    Descriptors {
        /// The number that fits.
        fit: usize,
        /// The number that was requested.
        wanted: usize,
    },
    /// There are fewer local ports than connections.
    Ports {
        /// The number of ports.
        ports: usize,
        /// The number of connections that were requested.
        wanted: usize,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |n: &usize| units::count(*n as u64);
        match self {
            Warning::NoLocks(path) => {
                write!(f, "{} is on a file system without locks: see to it that no other run writes it", path.display())
            }
            Warning::Descriptors { fit, wanted } => write!(
                f,
                "{} connections fit within the limit of file descriptors (`ulimit -Hn`); of {} requests at a time the \
                 others wait",
                count(fit),
                count(wanted)
            ),
            Warning::Ports { ports, wanted } => write!(
                f,
                "this machine has {} local ports for connections to one address and port, and {} are asked for: \
                 those beyond will fail with ports-exhausted",
                count(ports),
                count(wanted)
            ),
        }
    }
}

/// An observer of a run. All methods are called on the thread that runs it.
pub trait Observer {
    /// Receives a warning.
    fn warn(&mut self, warning: &Warning);

    /// Receives a record before it is written.
    fn record(&mut self, record: &Record);

    /// The run was asked to stop, and ends after this many requests under way.
    fn ending(&mut self, under_way: usize);

    /// Whether it is time to show progress.
    fn is_due(&self) -> bool;

    /// Shows the progress.
    fn show(&mut self, progress: Progress);
}

/// The progress of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Records of this run.
    pub done: u64,
    /// Records of failures among them.
    pub failed: u64,
    /// Requests under way.
    pub under_way: usize,
    /// The done share of the list, 0 to 1, if its length is known.
    pub share: Option<f64>,
    /// Whether the run was asked to stop.
    pub stopping: bool,
}

/// The result of a run.
#[derive(Debug, Default)]
pub struct RunSummary {
    /// The duration.
    pub elapsed: Duration,
    /// Connections opened, if known.
    pub connects: Option<u64>,
    /// Whether the run was asked to stop.
    pub interrupted: bool,
    /// Lines that an earlier run had done.
    pub skipped: u64,
    /// Lines among them that were not ok.
    pub skipped_failed: u64,
    /// Lines with another request than in the earlier run.
    pub changed: u64,
    /// Records of failures in this run.
    pub failed: u64,
    /// Why the list was not read to its end, if so.
    pub unread: Option<Error>,
}

/// A run whose files are open.
pub struct Fetch {
    plan: Plan,
    output: Output,
    done_lines: Option<DoneLines>,
    folder: Option<Folder>,
}

impl fmt::Debug for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetch").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl Fetch {
    /// Opens the output, possibly an earlier run's, and the folder for bodies.
    ///
    /// # Errors
    /// A file that cannot be opened, or must not be written.
    pub fn open(plan: Plan, follow: &mut impl Observer) -> Result<Self, Error> {
        let (output, done_lines) = Output::open(&plan, follow)?;
        let folder = match &plan.bodies {
            Bodies::Folder(path) => {
                Some(Folder::open(path).map_err(|source| Error::Output { path: path.clone(), source })?)
            }
            _ => None,
        };
        Ok(Self { plan, output, done_lines, folder })
    }

    /// Runs the plan. Records, or printed bodies, go to `out` if they have no file. The first request to `stop` lets
    /// requests under way end.
    ///
    /// # Errors
    /// The run failed. Failed requests alone are no error.
    pub fn run(self, out: SharedWriter, stop: &Shutdown, follow: &mut impl Observer) -> Result<RunSummary, Error> {
        let Fetch { plan, output, done_lines, folder } = self;
        let connections = connections(&plan, follow);
        let began = Instant::now();
        let (batches, items) = mpsc::channel(WAITING.0);
        let (record_sender, mut records) = mpsc::channel(WAITING.1);
        let reader = Reader::start(&plan, done_lines, batches).map_err(Error::Threads)?;
        let under_way = Arc::new(AtomicUsize::new(0));
        let prints = plan.bodies == Bodies::Printed;
        let job = Job {
            plan,
            connections,
            items,
            records: record_sender,
            folder,
            out: out.clone(),
            stop: stop.clone(),
            under_way: Arc::clone(&under_way),
        };
        let worker = start(job)?;
        let mut written = Writing { output, out, follow, stop, count: 0, failed: 0 };
        let wrote = written.all(&mut records, &reader, &under_way);
        let (count, failed) = (written.count, written.failed);
        let halfway = |error: Error| if count > 0 { Error::Halfway(Box::new(error)) } else { error };
        // Closing the channel ends the production of records.
        drop(records);
        let counts = worker.join()?.pop();
        let to_the_end = wrote.map_err(halfway)?;
        let (counts, to_the_end) = match counts.transpose() {
            // A reader of bodies such as `head` has read enough.
            Err(WorkError::Body { source, .. }) if is_closed(&source) && prints => (None, false),
            counts => (counts.map_err(|error| halfway(error.into()))?, to_the_end),
        };
        let interrupted = stop.count() > 0;
        let skipped = &reader.skipped;
        let skipped_failed = skipped.failed.load(Ordering::Relaxed);
        let mut done = RunSummary {
            elapsed: began.elapsed(),
            connects: counts.map(|counts| counts.connects),
            interrupted,
            skipped: skipped.ok.load(Ordering::Relaxed) + skipped_failed,
            skipped_failed,
            changed: skipped.changed.load(Ordering::Relaxed),
            failed,
            unread: None,
        };
        // Otherwise it may wait for ever for an unneeded line.
        if to_the_end && !interrupted {
            done.unread = reader.end().err().map(|error| halfway(error.into()));
        }
        Ok(done)
    }
}

/// Returns the maximum of connections. Warns if they do not fit; further requests wait.
fn connections(plan: &Plan, follow: &mut impl Observer) -> usize {
    let wanted = match plan.pace {
        Pace::Steady { concurrency, .. } => concurrency,
        // One per line of the list, which is not read yet.
        Pace::Burst(most) => most.unwrap_or(LARGEST_BURST),
    };
    // A body being received needs its file too.
    let each = if matches!(plan.bodies, Bodies::Folder(_)) { 2 } else { 1 };
    let given = !matches!(plan.pace, Pace::Burst(None));
    let fit = match ensure_descriptors(wanted as u64 * each + 1) {
        Ok(_) => wanted,
        Err(few) => {
            let room = few.hard.saturating_sub(few.open + SPARE_DESCRIPTORS) / each;
            let fit = usize::try_from(room).unwrap_or(wanted).clamp(1, wanted);
            // Raises the limit as far as possible.
            let _ = ensure_descriptors(fit as u64 * each);
            fit
        }
    };
    if fit < wanted && given {
        follow.warn(&Warning::Descriptors { fit, wanted });
    }
    let ports = LocalPorts::read_or_default().count();
    if fit > ports && given && plan.unix.is_none() {
        follow.warn(&Warning::Ports { ports, wanted: fit });
    }
    fit
}

/// Starts the working thread.
fn start(job: Job) -> Result<Threads<Result<Counts, WorkError>>, ThreadsError> {
    let job = Mutex::new(Some(job));
    Threads::start(&ThreadsOptions::new("fetch", 1), move |_| {
        let job = job.lock().unwrap_or_else(PoisonError::into_inner).take();
        async move {
            match job {
                Some(job) => work::work(job).await,
                // There is one thread, which takes the job.
                None => Ok(Counts::default()),
            }
        }
    })
}

/// The destination of records.
enum Output {
    Stdout,
    File(File, PathBuf),
    /// No records, because bodies use standard output.
    Nowhere,
}

impl Output {
    fn open(plan: &Plan, follow: &mut impl Observer) -> Result<(Self, Option<DoneLines>), Error> {
        let Some(path) = &plan.output else {
            return Ok((if plan.bodies == Bodies::Printed { Output::Nowhere } else { Output::Stdout }, None));
        };
        if plan.resume {
            let bodies = match &plan.bodies {
                Bodies::Folder(folder) => Some(folder.as_path()),
                _ => None,
            };
            let (opened, done_lines) = resume::open(path, bodies).map_err(|error| match error {
                ResumeError::Io(error) if error.kind() == io::ErrorKind::WouldBlock => Error::InUse(path.clone()),
                source => Error::Resume { path: path.clone(), source },
            })?;
            return Ok((Output::file(opened, path, follow), Some(done_lines)));
        }
        match resume::open_new(path) {
            Ok(opened) => Ok((Output::file(opened, path, follow), None)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(Error::Exists(path.clone())),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(Error::InUse(path.clone())),
            Err(source) => Err(Error::Output { path: path.clone(), source }),
        }
    }

    fn file(opened: Opened, path: &Path, follow: &mut impl Observer) -> Self {
        if opened.lock == Lock::Missing {
            follow.warn(&Warning::NoLocks(path.to_owned()));
        }
        Output::File(opened.file, path.to_owned())
    }

    fn write(&mut self, lines: &[u8], out: &SharedWriter) -> Result<(), Error> {
        let (result, path) = match self {
            Output::Nowhere => return Ok(()),
            Output::Stdout => (out.write(lines).and_then(|()| out.flush()), Path::new("standard output")),
            Output::File(file, path) => (file.write_all(lines), path.as_path()),
        };
        result.map_err(|source| Error::Output { path: path.to_owned(), source })
    }
}

/// Writes records as they come.
struct Writing<'a, F> {
    output: Output,
    out: SharedWriter,
    follow: &'a mut F,
    stop: &'a Shutdown,
    /// Records written.
    count: u64,
    /// Records of failures.
    failed: u64,
}

impl<F: Observer> Writing<'_, F> {
    /// Writes all records; returns false if nobody reads them.
    fn all(
        &mut self,
        records: &mut mpsc::Receiver<Record>,
        reader: &Reader,
        under_way: &AtomicUsize,
    ) -> Result<bool, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(Error::Threads)?;
        let (mut batch, mut lines, mut told) = (Vec::new(), Vec::new(), false);
        loop {
            let received =
                runtime.block_on(async { tokio::time::timeout(TICK, records.recv_many(&mut batch, WAITING.1)).await });
            if received == Ok(0) {
                return Ok(true);
            }
            let mut count = 0;
            for record in batch.drain(..) {
                self.follow.record(&record);
                count += 1;
                self.failed += u64::from(record.failure().is_some());
                serde_json::to_writer(&mut lines, &record)?;
                lines.push(b'\n');
            }
            let wrote = self.output.write(&lines, &self.out);
            lines.clear();
            match wrote {
                // A reader such as `head` has read enough.
                Err(Error::Output { source, .. }) if is_closed(&source) && matches!(self.output, Output::Stdout) => {
                    return Ok(false);
                }
                wrote => wrote?,
            }
            self.count += count;
            let (stopping, under_way) = (self.stop.count() > 0, under_way.load(Ordering::Relaxed));
            if stopping && !told {
                told = true;
                self.follow.ending(under_way);
            }
            if self.follow.is_due() {
                let (done, failed) = (self.count, self.failed);
                let share = reader.share(done);
                self.follow.show(Progress { done, failed, under_way, share, stopping });
            }
        }
    }
}

fn is_closed(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}
