//! `oroshi fetch`: many URLs at a time, a record for each.
//!
//! `args` is what can be typed, `read` makes sense of it. Three threads share the work. One reads the `list`; one does the `work`, with
//! an event loop and a client of its own; this one writes the `record`s, shows how far it is (`live`), and tells at the end what came of
//! it (`summary`). Between them are queues of some hundred entries, so nothing grows with the list. `retry` says what is tried again,
//! `resume` what an earlier run has done, `sink` and `body_files` where bodies go.

mod args;
mod body_files;
mod list;
mod live;
mod read;
mod record;
mod resume;
mod retry;
mod sink;
mod summary;
mod work;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use oroshi_client::Counts;
use oroshi_net::cores::CoresError;
use oroshi_net::ports::LocalPorts;
use oroshi_net::{Cores, CoresOptions, Shutdown, ensure_descriptors};
use oroshi_words::units;
use tokio::sync::mpsc;

pub(crate) use args::Args;
use body_files::Folder;
use list::{Item, ListError, Reading, Source};
use live::{Live, Standing};
use read::{Bodies, LARGEST_BURST, Pace, Plan};
use record::Record;
use resume::{Known, Ledger, Lock, Opened, ResumeError};
use summary::{Frame, Tally};
use work::{Job, WorkError};

use crate::{interrupt, say};
use crate::terminal;

/// Batches of items that wait to be taken, and records that wait to be written.
const WAITING: (usize, usize) = (4, 1024);

/// Descriptors that are left for others when there are few: files, look-ups, the runtimes.
const SPARE_DESCRIPTORS: u64 = 100;

/// How often the line on the terminal is looked at while no record comes.
const TICK: Duration = Duration::from_millis(200);

/// Why the work was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Correct the flags: each line names one.
    #[error("{}", .0.join("\n"))]
    Usage(Vec<String>),
    /// The results of an earlier run would be lost.
    #[error("--output: {} holds something already", .0.display())]
    Exists(PathBuf),
    /// Two runs would fetch the same lines.
    #[error("--output: another run of oroshi fetch writes {}", .0.display())]
    InUse(PathBuf),
    /// The output of an earlier run cannot be used.
    #[error("--resume: {} cannot be gone on with", path.display())]
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
    /// Signals could not be taken.
    #[error("cannot take signals")]
    Signals(#[source] io::Error),
    /// A record could not be put into JSON: a defect.
    #[error("a record cannot be written as JSON")]
    Json(#[from] serde_json::Error),
    /// The work ended before its end, when some records had been written.
    #[error(transparent)]
    Halfway(Box<Error>),
}

impl Error {
    /// 2 when the command line was wrong, 1 when the work failed.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Exists(_) | Self::InUse(_) | Self::Work(WorkError::Burst { .. }) => 2,
            Self::Resume { source: ResumeError::NoRecord { .. } | ResumeError::NoFile, .. } => 2,
            Self::Halfway(error) => error.exit_code(),
            _ => 1,
        }
    }

    /// What to do about it, where the message does not say so itself.
    pub(crate) fn next_step(&self) -> Option<&'static str> {
        match self {
            Self::Usage(_) => Some("`oroshi fetch --help` lists all flags, with examples"),
            Self::Exists(_) => Some("add --resume to go on with it, name another file, or remove it"),
            Self::InUse(_) => Some("wait until that run has ended, or name another file"),
            Self::Resume { source: ResumeError::NoRecord { .. } | ResumeError::NoFile, .. } => {
                Some("name the output of an earlier run, or a new file")
            }
            Self::Work(WorkError::Burst { .. }) => {
                Some("raise -c, leave it out to send the whole list, or leave --burst out")
            }
            Self::Halfway(_) => {
                Some("what has a record is done: with --output and --resume the next run goes on from there")
            }
            Self::Output { .. } | Self::Work(WorkError::Body { .. }) => Some("name another place, or make room there"),
            _ => None,
        }
    }
}

/// The first variable that names a proxy, which curl would use. `HTTP_PROXY` in capitals is left alone, as curl does: in CGI it is a header
/// of a request.
fn proxy_variable(value: impl Fn(&str) -> Option<OsString>) -> Option<&'static str> {
    let names = ["http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
    names.into_iter().find(|name| value(name).is_some_and(|value| !value.is_empty()))
}

/// Does what the flags say.
///
/// # Errors
/// The work could not be done. That some requests failed is none.
pub(crate) fn run(args: Args) -> Result<ExitCode, Error> {
    let plan = args.read().map_err(Error::Usage)?;
    if let Some(variable) = proxy_variable(|name| std::env::var_os(name)).filter(|_| !plan.quiet) {
        say(&format!("note: {variable} is set; `oroshi fetch` uses no proxies and connects to each URL's host itself"));
    }
    let (output, ledger) = Output::open(&plan)?;
    let folder = match &plan.bodies {
        Bodies::Folder(path) => {
            Some(Folder::open(path).map_err(|source| Error::Output { path: path.clone(), source })?)
        }
        _ => None,
    };
    let stop = interrupt::shutdown().map_err(Error::Signals)?;
    let connections = connections(&plan);
    let began = Instant::now();
    let (batches, items) = mpsc::channel(WAITING.0);
    let (record_sender, mut records) = mpsc::channel(WAITING.1);
    let reader = Reader::start(&plan, ledger, batches).map_err(Error::Threads)?;
    let under_way = Arc::new(AtomicUsize::new(0));
    let job = Job {
        plan: plan.clone(),
        connections,
        items,
        records: record_sender,
        folder,
        stop: stop.clone(),
        under_way: Arc::clone(&under_way),
    };
    let worker = start(job)?;
    let mut live = Live::new(plan.quiet, matches!(output, Output::Stdout) || plan.bodies == Bodies::Printed);
    let mut written = Writing { output, tally: Tally::default(), count: 0, live: &mut live, stop: &stop };
    let wrote = written.all(&mut records, &reader, &under_way);
    let (tally, count) = (written.tally, written.count);
    let halfway = |error: Error| if count > 0 { Error::Halfway(Box::new(error)) } else { error };
    // With nobody to take them, no more records are made.
    drop(records);
    let counts = worker.join()?.pop();
    live.finish();
    let to_the_end = wrote.map_err(halfway)?;
    let (counts, to_the_end) = match counts.transpose() {
        // `oroshi fetch --bodies - ... | head` has read what it wanted.
        Err(WorkError::Body { source, .. }) if is_closed(&source) && plan.bodies == Bodies::Printed => (None, false),
        counts => (counts.map_err(|error| halfway(error.into()))?, to_the_end),
    };
    let interrupted = stop.count() > 0;
    let frame = Frame {
        elapsed: began.elapsed(),
        connects: counts.map(|counts| counts.connects),
        interrupted,
        skipped: reader.skipped.ok.load(Ordering::Relaxed) + reader.skipped.failed.load(Ordering::Relaxed),
        skipped_failed: reader.skipped.failed.load(Ordering::Relaxed),
        changed: reader.skipped.changed.load(Ordering::Relaxed),
    };
    if !plan.quiet && plan.bodies != Bodies::Printed {
        let text = tally.text(&frame, terminal::paint(&io::stderr()));
        say(text.trim_end());
    }
    let failed = tally.failed() + frame.skipped_failed > 0;
    // Otherwise it may wait for ever for a line that nobody wants.
    if to_the_end && !interrupted {
        reader.end().map_err(|error| halfway(error.into()))?;
    }
    Ok(ExitCode::from(match (interrupted, failed) {
        (true, _) => interrupt::EXIT_CODE,
        (false, true) => 1,
        (false, false) => 0,
    }))
}

/// How many connections there may be. What does not fit is told, and waits.
fn connections(plan: &Plan) -> usize {
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
    if fit < wanted && given && !plan.quiet {
        say(&format!(
            "warning: {} connections fit within the limit of file descriptors (`ulimit -Hn`); of {} requests at a time the others wait",
            units::count(fit as u64),
            units::count(wanted as u64),
        ));
    }
    let ports = LocalPorts::read_or_default().count();
    if fit > ports && given && plan.unix.is_none() && !plan.quiet {
        say(&format!(
            "warning: this machine has {} local ports for connections to one address and port, and {} are asked for: \
             those beyond will fail with ports-exhausted",
            units::count(ports as u64),
            units::count(fit as u64),
        ));
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

/// The thread that reads the list.
struct Reader {
    reading: Arc<Reading>,
    skipped: Arc<Skipped>,
    /// How many bytes there are to be read, where that is known.
    bytes: Option<u64>,
    urls: u64,
    /// The size of a burst that does not depend on the list.
    burst: Option<usize>,
    thread: JoinHandle<Result<(), ListError>>,
}

/// Lines that were left out, or would have been.
#[derive(Debug, Default)]
struct Skipped {
    ok: AtomicU64,
    failed: AtomicU64,
    changed: AtomicU64,
}

impl Reader {
    fn start(plan: &Plan, ledger: Option<Ledger>, batches: mpsc::Sender<Vec<Item>>) -> io::Result<Self> {
        let (reading, skipped) = (Arc::new(Reading::default()), Arc::new(Skipped::default()));
        let thread = {
            let (plan, reading, skipped) = (plan.clone(), Arc::clone(&reading), Arc::clone(&skipped));
            thread::Builder::new().name("list".to_owned()).spawn(move || {
                list::read_all(&plan.sources, &reading, |mut batch| {
                    if let Some(ledger) = &ledger {
                        batch.retain(|item| skipped.wants(item, &plan, ledger));
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

    /// How much of the list is done, 0 to 1, when so many of its items are.
    fn share(&self, done: u64) -> Option<f64> {
        if let Some(all) = self.burst {
            return Some(done as f64 / all as f64);
        }
        let (read, of) = (self.reading.bytes.load(Ordering::Relaxed), self.bytes?);
        let items = self.reading.items.load(Ordering::Relaxed);
        let skipped = self.skipped.ok.load(Ordering::Relaxed) + self.skipped.failed.load(Ordering::Relaxed);
        // The items that there will be: those of the part that is read, as if the rest were like it.
        let all = if of == 0 { self.urls as f64 } else { items as f64 * of as f64 / (read.max(1)) as f64 };
        Some(((done + skipped) as f64 / all.max(1.0)).min(1.0))
    }

    /// Waits for the end of the list.
    fn end(self) -> Result<(), ListError> {
        self.thread.join().unwrap_or(Ok(()))
    }
}

impl Skipped {
    /// Whether an item is to be fetched, by what the output says of it.
    fn wants(&self, item: &Item, plan: &Plan, ledger: &Ledger) -> bool {
        let Ok(asked) = &item.asked else { return true };
        let has_body = asked.body.is_some() || plan.defaults.body.is_some();
        let method = plan.defaults.method(asked.method.as_deref(), has_body);
        let known = ledger.known(item.n, method, &asked.url, asked.id.as_ref());
        match known {
            Known::Nothing => {}
            Known::Changed => _ = self.changed.fetch_add(1, Ordering::Relaxed),
            Known::Done { ok: true } => _ = self.ok.fetch_add(1, Ordering::Relaxed),
            Known::Done { ok: false } => _ = self.failed.fetch_add(1, Ordering::Relaxed),
        }
        !matches!(known, Known::Done { .. })
    }
}

/// Where the records go.
enum Output {
    Stdout,
    File(File, PathBuf),
    /// The bodies have standard output.
    Nowhere,
}

impl Output {
    fn open(plan: &Plan) -> Result<(Self, Option<Ledger>), Error> {
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
            return Ok((Output::file(opened, plan, path), Some(ledger)));
        }
        match resume::open_new(path) {
            Ok(opened) => Ok((Output::file(opened, plan, path), None)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(Error::Exists(path.clone())),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(Error::InUse(path.clone())),
            Err(source) => Err(Error::Output { path: path.clone(), source }),
        }
    }

    fn file(opened: Opened, plan: &Plan, path: &Path) -> Self {
        if opened.lock == Lock::Missing && !plan.quiet {
            say(&format!(
                "warning: --output: {} is on a file system without locks: see to it that no other run writes it",
                path.display()
            ));
        }
        Output::File(opened.file, path.to_owned())
    }

    fn write(&mut self, lines: &[u8]) -> Result<(), Error> {
        let (result, path) = match self {
            Output::Nowhere => return Ok(()),
            Output::Stdout => {
                let mut out = io::stdout().lock();
                (out.write_all(lines).and_then(|()| out.flush()), Path::new("standard output"))
            }
            Output::File(file, path) => (file.write_all(lines), path.as_path()),
        };
        result.map_err(|source| Error::Output { path: path.to_owned(), source })
    }
}

/// Writes the records while they come.
struct Writing<'a> {
    output: Output,
    tally: Tally,
    /// Records that have been written.
    count: usize,
    live: &'a mut Live,
    stop: &'a Shutdown,
}

impl Writing<'_> {
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
            let count = batch.len();
            for record in batch.drain(..) {
                self.tally.note(&record);
                if let (Output::Nowhere, Some(failure)) = (&self.output, record.failure()) {
                    let why = record.error.as_ref().map_or(failure, |error| error.message.clone());
                    let what = match &*record.url {
                        "" => format!("line {}", record.n),
                        url => format!("{} {url}", record.method),
                    };
                    self.live.say(&format!("error: {what}: {why}"));
                }
                serde_json::to_writer(&mut lines, &record)?;
                lines.push(b'\n');
            }
            let wrote = self.output.write(&lines);
            lines.clear();
            match wrote {
                // `oroshi fetch ... | head` has read what it wanted.
                Err(Error::Output { source, .. }) if is_closed(&source) && matches!(self.output, Output::Stdout) => {
                    return Ok(false);
                }
                wrote => wrote?,
            }
            self.count += count;
            let (stopping, under_way) = (self.stop.count() > 0, under_way.load(Ordering::Relaxed));
            if stopping && !told {
                told = true;
                let waits = units::plural(under_way as u64, "request");
                self.live.say(&format!("ending when {waits} under way are done; once more ends it at once"));
            }
            if self.live.is_due() {
                let (done, failed) = (self.tally.done(), self.tally.failed());
                let share = reader.share(done);
                self.live.show(Standing { done, failed, under_way, share, stopping });
            }
        }
    }
}

fn is_closed(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}
