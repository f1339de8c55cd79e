//! `oroshi fetch`: fetches many URLs concurrently, and writes a record for each.
//!
//! `args` has the flags, `read` makes a plan of them. `oroshi-fetch` does the work. `live` shows its progress;
//! `summary` reports the result.

mod args;
mod live;
mod read;
mod summary;

use std::io;
use std::process::ExitCode;

use oroshi_fetch::{Bodies, Fetch, Observer, Progress, Record, ResumeError, SharedWriter, Warning, WorkError};
use oroshi_words::units;

pub(crate) use args::Args;
use live::Live;
use summary::Tally;

use crate::CommandError;
use crate::{interrupt, say, terminal};

/// Why the run failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Correct the flags: each line names one.
    #[error("{}", .0.join("\n"))]
    Usage(Vec<String>),
    /// The run failed, possibly after some records.
    #[error("{}{}", flag_of(.0), .0)]
    Fetch(#[from] oroshi_fetch::Error),
    /// Signal handlers could not be installed.
    #[error("cannot take signals")]
    Signals(#[source] io::Error),
}

/// Returns the flag of an error, with which its message begins.
fn flag_of(error: &oroshi_fetch::Error) -> &'static str {
    match error {
        oroshi_fetch::Error::Exists(_) | oroshi_fetch::Error::InUse(_) => "--output: ",
        oroshi_fetch::Error::Resume { .. } => "--resume: ",
        _ => "",
    }
}

impl CommandError for Error {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Signals(_) => 1,
            Self::Fetch(error) => exit_code(error),
        }
    }

    fn next_step(&self) -> Option<&'static str> {
        match self {
            Self::Usage(_) => Some("`oroshi fetch --help` lists all flags, with examples"),
            Self::Signals(_) => None,
            Self::Fetch(error) => next_step(error),
        }
    }
}

fn exit_code(error: &oroshi_fetch::Error) -> u8 {
    use oroshi_fetch::Error;
    match error {
        Error::Exists(_) | Error::InUse(_) | Error::Work(WorkError::Burst { .. }) => 2,
        Error::Resume { source: ResumeError::NoRecord { .. } | ResumeError::NoFile, .. } => 2,
        Error::Halfway(error) => exit_code(error),
        _ => 1,
    }
}

fn next_step(error: &oroshi_fetch::Error) -> Option<&'static str> {
    use oroshi_fetch::Error;
    match error {
        Error::Exists(_) => Some("add --resume to resume it, name another file, or remove it"),
        Error::InUse(_) => Some("wait until that run has ended, or name another file"),
        Error::Resume { source: ResumeError::NoRecord { .. } | ResumeError::NoFile, .. } => {
            Some("name the output of an earlier run, or a new file")
        }
        Error::Work(WorkError::Burst { .. }) => {
            Some("raise -c, leave it out to send the whole list, or leave --burst out")
        }
        Error::Halfway(_) => {
            Some("what has a record is done: with --output and --resume the next run goes on from there")
        }
        Error::Output { .. } | Error::Work(WorkError::Body { .. }) => Some("name another place, or make room there"),
        _ => None,
    }
}

/// Runs the plan of the flags.
///
/// # Errors
/// The run failed. Failed requests alone are no error.
pub(crate) fn run(args: Args) -> Result<ExitCode, Error> {
    let quiet = args.output.quiet;
    let plan = args.read().map_err(Error::Usage)?;
    let prints = plan.bodies == Bodies::Printed;
    let live = Live::new(quiet, prints || plan.output.is_none());
    let mut shown = Shown { live, tally: Tally::default(), quiet, tells: prints && plan.output.is_none() };
    let fetch = Fetch::open(plan, &mut shown)?;
    let stop = interrupt::shutdown().map_err(Error::Signals)?;
    let done = fetch.run(SharedWriter::new(io::stdout()), &stop, &mut shown);
    shown.live.finish();
    let done = done?;
    if !quiet && !prints {
        say(shown.tally.text(&done, terminal::paint(&io::stderr())).trim_end());
    }
    if let Some(error) = done.unread {
        return Err(error.into());
    }
    Ok(ExitCode::from(match (done.interrupted, done.failed + done.skipped_failed > 0) {
        (true, _) => interrupt::EXIT_CODE,
        (false, true) => 1,
        (false, false) => 0,
    }))
}

/// The display during a run.
struct Shown {
    live: Live,
    tally: Tally,
    quiet: bool,
    /// Whether to print failures, because bodies take the place of records on standard output.
    tells: bool,
}

impl Observer for Shown {
    fn warn(&mut self, warning: &Warning) {
        let flag = if matches!(warning, Warning::NoLocks(_)) { "--output: " } else { "" };
        if !self.quiet {
            say(&format!("warning: {flag}{warning}"));
        }
    }

    fn record(&mut self, record: &Record) {
        self.tally.note(record);
        if let Some(failure) = record.failure().filter(|_| self.tells) {
            let why = record.error.as_ref().map_or(failure, |error| error.message.clone());
            let what = match &*record.url {
                "" => format!("line {}", record.n),
                url => format!("{} {url}", record.method),
            };
            self.live.say(&format!("error: {what}: {why}"));
        }
    }

    fn ending(&mut self, under_way: usize) {
        let waits = units::plural(under_way as u64, "request");
        self.live.say(&format!("ending when {waits} under way are done; once more ends it at once"));
    }

    fn is_due(&self) -> bool {
        self.live.is_due()
    }

    fn show(&mut self, progress: Progress) {
        self.live.show(progress);
    }
}
