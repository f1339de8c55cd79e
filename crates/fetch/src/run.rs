//! The work as a whole: what the plan names is opened, three threads share the work.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use oroshi_client::Counts;
use oroshi_net::cores::CoresError;
use oroshi_net::ports::LocalPorts;
use oroshi_net::{Cores, CoresOptions, Shutdown, ensure_descriptors};
use oroshi_words::units;
use tokio::sync::mpsc;

use crate::body_files::Folder;
use crate::list::ListError;
use crate::out::Out;
use crate::plan::{Bodies, LARGEST_BURST, Pace, Plan};
use crate::reader::Reader;
use crate::record::Record;
use crate::resume::{self, Ledger, Lock, Opened, ResumeError};
use crate::work::{self, Job, WorkError};

/// Batches of items that wait to be taken, and records that wait to be written.
const WAITING: (usize, usize) = (4, 1024);

/// Descriptors that are left for others when there are few: files, look-ups, the runtimes.
const SPARE_DESCRIPTORS: u64 = 100;

/// How often the follower is asked whether it wants to show how far it is, while no record comes.
const TICK: Duration = Duration::from_millis(200);

/// Why the work was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Go on with it, or name another file: the results of an earlier run would be lost.
    #[error("{} holds something already", .0.display())]
    Exists(PathBuf),
    /// Wait for the other run, or name another file: both would fetch the same lines.
    #[error("another run of oroshi fetch writes {}", .0.display())]
    InUse(PathBuf),
    /// Name the output of an earlier run.
    #[error("{} cannot be gone on with", path.display())]
    Resume {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ResumeError,
    },
    /// Choose another place, or make room.
    #[error("{} cannot be written", path.display())]
    Output {
        /// Where to.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The list could not be read to its end.
    #[error(transparent)]
    List(#[from] ListError),
    /// The work ended before its end.
    #[error(transparent)]
    Work(#[from] WorkError),
    /// The system refused a thread.
    #[error("cannot start the threads that this takes")]
    Threads(#[source] io::Error),
    /// The thread of the event loop could not be started, or panicked.
    #[error(transparent)]
    Cores(#[from] CoresError),
    /// A record could not be put into JSON: a defect.
    #[error("a record cannot be written as JSON")]
    Json(#[from] serde_json::Error),
    /// The work ended before its end, when some records had been written.
    #[error(transparent)]
    Halfway(Box<Error>),
}

/// What may matter to whoever runs this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// The file system of this output has no locks.
    NoLocks(PathBuf),
    /// Fewer connections fit within the limit of file descriptors.
    Descriptors {
        /// Those that fit.
        fit: usize,
        /// Those that are wanted.
        wanted: usize,
    },
    /// There are fewer local ports than connections.
    Ports {
        /// Ports that there are.
        ports: usize,
        /// Connections that are wanted.
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
                "{} connections fit within the limit of file descriptors (`ulimit -Hn`); of {} requests at a time the others wait",
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

/// Whoever watches the work. Everything is called on the thread that runs it.
pub trait Follow {
    /// Something may matter.
    fn warn(&mut self, warning: &Warning);

    /// A record is about to be written.
    fn record(&mut self, record: &Record);

    /// The work was told to stop, and ends when so many requests are done.
    fn ending(&mut self, under_way: usize);

    /// Whether it is time to show how far the work is.
    fn is_due(&self) -> bool;

    /// Shows how far the work is.
    fn show(&mut self, standing: Standing);
}

/// How far the work is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standing {
    /// Records of this run.
    pub done: u64,
    /// Those of them that tell of a failure.
    pub failed: u64,
    /// Requests under way.
    pub under_way: usize,
    /// How much of the list is done, 0 to 1, where its length is known.
    pub share: Option<f64>,
    /// It was told to stop.
    pub stopping: bool,
}

/// What came of the work.
#[derive(Debug, Default)]
pub struct Done {
    /// How long it took.
    pub elapsed: Duration,
    /// Connections opened, where it is known.
    pub connects: Option<u64>,
    /// It was told to stop.
    pub interrupted: bool,
    /// Lines that an earlier run had done.
    pub skipped: u64,
    /// Those of them that were not ok.
    pub skipped_failed: u64,
    /// Lines that ask for something else than they did then.
    pub changed: u64,
    /// Records of this run that tell of a failure.
    pub failed: u64,
    /// Why the list was not read to its end, if it was not.
    pub unread: Option<Error>,
}

/// The work, with everything open that the plan names.
pub struct Fetch {
    plan: Plan,
    output: Output,
    ledger: Option<Ledger>,
    folder: Option<Folder>,
}

impl fmt::Debug for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetch").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl Fetch {
    /// Opens the output, which may be one of an earlier run, and the folder for bodies.
    ///
    /// # Errors
    /// What cannot be opened, or must not be written.
    pub fn open(plan: Plan, follow: &mut impl Follow) -> Result<Self, Error> {
        let (output, ledger) = Output::open(&plan, follow)?;
        let folder = match &plan.bodies {
            Bodies::Folder(path) => {
                Some(Folder::open(path).map_err(|source| Error::Output { path: path.clone(), source })?)
            }
            _ => None,
        };
        Ok(Self { plan, output, ledger, folder })
    }

    /// Does the work. Records, or bodies that are printed, go to `out` where they have no file. `stop` asked for once
    /// lets the requests under way end.
    ///
    /// # Errors
    /// The work could not be done. That some requests failed is none.
    pub fn run(self, out: Out, stop: &Shutdown, follow: &mut impl Follow) -> Result<Done, Error> {
        let Fetch { plan, output, ledger, folder } = self;
        let connections = connections(&plan, follow);
        let began = Instant::now();
        let (batches, items) = mpsc::channel(WAITING.0);
        let (record_sender, mut records) = mpsc::channel(WAITING.1);
        let reader = Reader::start(&plan, ledger, batches).map_err(Error::Threads)?;
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
        // With nobody to take them, no more records are made.
        drop(records);
        let counts = worker.join()?.pop();
        let to_the_end = wrote.map_err(halfway)?;
        let (counts, to_the_end) = match counts.transpose() {
            // A reader of bodies such as `head` has read what it wanted.
            Err(WorkError::Body { source, .. }) if is_closed(&source) && prints => (None, false),
            counts => (counts.map_err(|error| halfway(error.into()))?, to_the_end),
        };
        let interrupted = stop.count() > 0;
        let skipped = &reader.skipped;
        let skipped_failed = skipped.failed.load(Ordering::Relaxed);
        let mut done = Done {
            elapsed: began.elapsed(),
            connects: counts.map(|counts| counts.connects),
            interrupted,
            skipped: skipped.ok.load(Ordering::Relaxed) + skipped_failed,
            skipped_failed,
            changed: skipped.changed.load(Ordering::Relaxed),
            failed,
            unread: None,
        };
        // Otherwise it may wait for ever for a line that nobody wants.
        if to_the_end && !interrupted {
            done.unread = reader.end().err().map(|error| halfway(error.into()));
        }
        Ok(done)
    }
}

/// How many connections there may be. What does not fit is told, and waits.
fn connections(plan: &Plan, follow: &mut impl Follow) -> usize {
    let wanted = match plan.pace {
        Pace::Steady { concurrency, .. } => concurrency,
        // As many as the list has, which is not read yet.
        Pace::Burst(most) => most.unwrap_or(LARGEST_BURST),
    };
    // A body on its way has its file.
    let each = if matches!(plan.bodies, Bodies::Folder(_)) { 2 } else { 1 };
    let given = !matches!(plan.pace, Pace::Burst(None));
    let fit = match ensure_descriptors(wanted as u64 * each + 1) {
        Ok(_) => wanted,
        Err(few) => {
            let room = few.hard.saturating_sub(few.open + SPARE_DESCRIPTORS) / each;
            let fit = usize::try_from(room).unwrap_or(wanted).clamp(1, wanted);
            // As far as it goes.
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

/// Starts the thread that does the work.
fn start(job: Job) -> Result<Cores<Result<Counts, WorkError>>, CoresError> {
    let job = Mutex::new(Some(job));
    Cores::start(&CoresOptions::new("fetch", 1), move |_| {
        let job = job.lock().unwrap_or_else(PoisonError::into_inner).take();
        async move {
            match job {
                Some(job) => work::work(job).await,
                // There is one thread, which has it.
                None => Ok(Counts::default()),
            }
        }
    })
}

/// Where the records go.
enum Output {
    Stdout,
    File(File, PathBuf),
    /// The bodies have standard output.
    Nowhere,
}

impl Output {
    fn open(plan: &Plan, follow: &mut impl Follow) -> Result<(Self, Option<Ledger>), Error> {
        let Some(path) = &plan.output else {
            return Ok((if plan.bodies == Bodies::Printed { Output::Nowhere } else { Output::Stdout }, None));
        };
        if plan.resume {
            let bodies = match &plan.bodies {
                Bodies::Folder(folder) => Some(folder.as_path()),
                _ => None,
            };
            let (opened, ledger) = resume::open(path, bodies).map_err(|error| match error {
                ResumeError::Io(error) if error.kind() == io::ErrorKind::WouldBlock => Error::InUse(path.clone()),
                source => Error::Resume { path: path.clone(), source },
            })?;
            return Ok((Output::file(opened, path, follow), Some(ledger)));
        }
        match resume::open_new(path) {
            Ok(opened) => Ok((Output::file(opened, path, follow), None)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(Error::Exists(path.clone())),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(Error::InUse(path.clone())),
            Err(source) => Err(Error::Output { path: path.clone(), source }),
        }
    }

    fn file(opened: Opened, path: &Path, follow: &mut impl Follow) -> Self {
        if opened.lock == Lock::Missing {
            follow.warn(&Warning::NoLocks(path.to_owned()));
        }
        Output::File(opened.file, path.to_owned())
    }

    fn write(&mut self, lines: &[u8], out: &Out) -> Result<(), Error> {
        let (result, path) = match self {
            Output::Nowhere => return Ok(()),
            Output::Stdout => (out.write(lines).and_then(|()| out.flush()), Path::new("standard output")),
            Output::File(file, path) => (file.write_all(lines), path.as_path()),
        };
        result.map_err(|source| Error::Output { path: path.to_owned(), source })
    }
}

/// Writes the records while they come.
struct Writing<'a, F> {
    output: Output,
    out: Out,
    follow: &'a mut F,
    stop: &'a Shutdown,
    /// Records that have been written.
    count: u64,
    /// Records that tell of a failure.
    failed: u64,
}

impl<F: Follow> Writing<'_, F> {
    /// Until there are no more; false if nobody reads them.
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
                // A reader such as `head` has read what it wanted.
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
                self.follow.show(Standing { done, failed, under_way, share, stopping });
            }
        }
    }
}

fn is_closed(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}
