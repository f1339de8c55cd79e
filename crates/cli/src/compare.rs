//! `oroshi compare`: from flags to an experiment with one cell, to a report and an exit code.
//!
//! `args` has the flags; `variants` splits the set-ups, `against` makes an earlier tree, `read` makes the experiment.
//! `oroshi_lab` runs and analyses it,
//! `oroshi_report` writes the report for people, [`verdicts`] gives the exit code.

mod against;
mod args;
mod read;
mod variants;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Command;
use oroshi_lab::baseline::{self, SavedResult};
use oroshi_lab::{Experiment, LabResult};
use oroshi_report::paint::Paint;

pub(crate) use args::Args;

use crate::CommandError;
use crate::bench::without_secrets;
use crate::formats::{Also, Format, Subject};
use crate::interrupt::Temporary;
use crate::lab::{ResultsError, measure};
use crate::{bench, interrupt, saved, say, terminal, verdicts};

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Correct the flags: each line names one.
    #[error("{}", .0.join("\n"))]
    Usage(Vec<String>),
    /// The experiment failed: the source says why.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// A report could not be written, or signal handlers could not be installed.
    #[error(transparent)]
    Bench(#[from] bench::Error),
    /// Name a file that `compare`, `lab` or `bench` wrote with `--format json`.
    #[error("--baseline {}: {what}", path.display())]
    Baseline {
        /// The file.
        path: PathBuf,
        /// The error.
        what: String,
    },
    /// Free space in the folder for temporary files, or set TMPDIR to another.
    #[error("cannot make {}, for the output of servers", path.display())]
    Folder {
        /// The path to create.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The earlier tree could not be made.
    #[error(transparent)]
    Against(#[from] against::AgainstError),
    /// The program's own file is gone: start oroshi again.
    #[error("cannot find the program that this is")]
    Program(#[source] io::Error),
}

impl CommandError for Error {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Baseline { .. } => 2,
            Self::Results(error) => error.exit_code(),
            Self::Bench(error) => error.exit_code(),
            _ => 1,
        }
    }

    fn next_step(&self) -> Option<&'static str> {
        match self {
            Self::Usage(_) => Some("`oroshi compare --help` lists all flags, with examples"),
            Self::Baseline { .. } => Some("`oroshi compare --format json -o FILE ...` makes one"),
            Self::Against(against::AgainstError::Cache { .. }) => {
                Some("set XDG_CACHE_HOME to a folder that can be written to")
            }
            Self::Folder { .. } => Some("set TMPDIR to a folder that can be written to"),
            Self::Bench(error) => error.next_step(),
            _ => None,
        }
    }
}

/// Runs the comparison.
///
/// # Errors
/// There is no result.
pub(crate) fn run(args: Args) -> Result<ExitCode, Error> {
    let oroshi = std::env::current_exe().map_err(Error::Program)?;
    // The program's path is private, and differs on other machines.
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let words = std::iter::once("oroshi".to_owned()).chain(words);
    let flags = <Args as clap::Args>::augment_args(Command::new("compare"));
    let rerun = without_secrets(&flags, words);
    let matches = flags.try_get_matches_from(std::env::args_os().skip(1));
    let matches = matches.map_err(|error| Error::Usage(vec![error.to_string()]))?;
    let (experiment, output) =
        args.read(&oroshi.to_string_lossy(), rerun, crate::script_load::load, &matches).map_err(Error::Usage)?;
    // Report unreadable and unwritable files before the runs, not after them.
    let saved = output.baseline.as_deref().map(read_saved).transpose()?;
    if let Some(SavedResult::Lab(then)) = &saved {
        share_a_name(then, &experiment).map_err(|what| Error::Usage(vec![what]))?;
    }
    let file = output.file.as_deref().map(bench::open).transpose()?;
    let html = output.html.as_deref().map(bench::open).transpose()?;

    let also = output.also.iter().map(Also::open).collect::<Result<Vec<_>, _>>()?;
    let _lock = output.trees.as_ref().map(against::Trees::make).transpose()?;

    let result = carry_out(experiment, output.note.as_deref())?;
    let against = saved.map(|saved| baseline::against(&saved, &result));
    let findings = verdicts::findings(&result, against.as_ref(), &output.fail_if);
    let subject =
        Subject { result: &result, findings: &findings, against: against.as_ref().zip(output.baseline.as_deref()) };

    let is_terminal = file.is_none() && output.format == Format::Text;
    let paint = if is_terminal { terminal::paint(&io::stdout()) } else { Paint::PLAIN };
    bench::write(&subject.report(output.format, paint)?, file, output.file.as_deref())?;
    for (wanted, file) in output.also.iter().zip(also) {
        file.write(&subject.report(wanted.format, Paint::PLAIN)?)?;
    }
    if let (Some(html), Some(path)) = (html, output.html.as_deref()) {
        bench::write_beside(&oroshi_report::lab_page(&result), html, path)?;
    }
    Ok(ExitCode::from(verdicts::judge(&result, against.as_ref(), &findings, &output.fail_if)))
}

fn carry_out(experiment: Experiment, note: Option<&str>) -> Result<LabResult, Error> {
    let shutdown = interrupt::shutdown().map_err(bench::Error::Signals)?;
    if let Some(note) = note {
        say(&terminal::paint(&io::stderr()).dim(note));
    }
    let started = experiment.cells.iter().any(|cell| !cell.servers.is_empty());
    let folder = OutputFolder::make()?;
    let result = measure(experiment, &folder.output, shutdown);
    let failed = |result: &LabResult| {
        result.cells.iter().flat_map(|cell| &cell.variants).any(|variant| variant.failed.is_some())
    };
    // The servers' output matters after a failure, and is clutter otherwise.
    if started && result.as_ref().map_or(true, failed) {
        folder.keep();
    }
    Ok(result?)
}

/// A folder for the servers' output, removed at the end unless it is kept.
struct OutputFolder {
    folder: Temporary,
    output: PathBuf,
}

impl OutputFolder {
    fn make() -> Result<Self, Error> {
        let folder = Temporary::folder("compare").map_err(|(path, source)| Error::Folder { path, source })?;
        let output = folder.path().join("output");
        match fs::create_dir(&output) {
            Ok(()) => Ok(Self { folder, output }),
            Err(source) => Err(Error::Folder { path: output, source }),
        }
    }

    fn keep(self) {
        if fs::read_dir(&self.output).is_ok_and(|mut files| files.next().is_some()) {
            say(&format!("what the servers wrote is in {}", self.output.display()));
            self.folder.keep();
        }
    }
}

/// Rejects a saved result that shares no name with today's set-ups, because nothing would be compared.
fn share_a_name(then: &LabResult, today: &Experiment) -> Result<(), String> {
    let then: BTreeSet<&str> = then.cells.iter().flat_map(|cell| &cell.variants).map(|v| v.name.as_str()).collect();
    let today: Vec<&str> = today.cells.iter().flat_map(|cell| &cell.variants).map(|v| v.name.as_str()).collect();
    if today.iter().any(|name| then.contains(name)) {
        return Ok(());
    }
    let saved = then.iter().copied().collect::<Vec<_>>().join(", ");
    let first = then.first().copied().unwrap_or("NAME");
    Err(format!(
        "--baseline: {} is not among what is saved there ({saved}): expected one of those names, as in {first}=URL",
        today.join(", ")
    ))
}

/// Reads a saved result.
fn read_saved(path: &Path) -> Result<SavedResult, Error> {
    let wrong = |what: String| Error::Baseline { path: path.to_owned(), what };
    let text = saved::read_text(path).map_err(|error| wrong(format!("it cannot be read: {error}")))?;
    saved::parse(&text).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_result_that_cannot_be_read_is_named() {
        let error = read_saved(Path::new("/nonexistent/x.json")).err().unwrap();
        assert!(error.to_string().contains("/nonexistent/x.json"));
    }

    #[test]
    fn the_folder_for_output_is_removed_unless_there_is_something_to_keep() {
        let folder = OutputFolder::make().unwrap();
        let path = folder.folder.path().to_owned();
        assert!(path.is_dir());
        folder.keep();
        assert!(!path.exists(), "it was empty");
        let folder = OutputFolder::make().unwrap();
        let path = folder.folder.path().to_owned();
        fs::write(path.join("output/old.log"), "a line").unwrap();
        folder.keep();
        assert!(path.join("output/old.log").is_file());
        fs::remove_dir_all(path).unwrap();
    }
}
