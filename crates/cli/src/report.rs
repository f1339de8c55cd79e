//! `oroshi report`: draws saved results as an HTML page.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueHint;
use oroshi_bench::Record;
use oroshi_lab::baseline::SavedResult;
use oroshi_report::Named;

use crate::CommandError;
use crate::bench;
use crate::{saved, say};

const EXAMPLES: &str = "\
Examples:
  oroshi bench --format json -o before.json http://localhost:8080/
  oroshi report before.json
      draws before.html
  oroshi report before.json after.json
      draws before-after.html, with both runs in the same charts; only `oroshi compare` proves a difference

Exit codes: 0 done; 1 the page could not be written; 2 a file cannot be read, or is no result.";

/// Draw saved results as an HTML page; several runs of `oroshi bench` share the charts
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Draw these results of `oroshi bench --format json`, or one result of `oroshi compare --format json` or `oroshi
    /// lab`
    #[arg(value_name = "FILE.json", required = true, value_hint = ValueHint::FilePath)]
    files: Vec<PathBuf>,

    /// Write the page to this file [default: beside the first file: a.html of a.json, a-b.html of a.json and b.json]
    ///
    /// The default name replaces an earlier page of oroshi, and no other file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    html: Option<PathBuf>,
}

/// The reasons why there is no page.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Name a file that there is.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Name a file that `bench`, `compare` or `lab` wrote.
    #[error("{}: {what}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what was expected.
        what: String,
    },
    /// Draw it alone.
    #[error("{} is an experiment: expected this file alone, or only results of `oroshi bench`", path.display())]
    Experiment {
        /// The file.
        path: PathBuf,
    },
    /// Choose another place for the page.
    #[error("the page would replace {}, from which it is drawn", path.display())]
    Overwrites {
        /// The file.
        path: PathBuf,
    },
    /// Choose another place for the page.
    #[error("{} exists and is no page of oroshi: expected a new file, or an earlier page", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The page cannot be written.
    #[error(transparent)]
    Write(#[from] bench::Error),
}

impl CommandError for Error {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Write(error) => error.exit_code(),
            _ => 2,
        }
    }

    fn next_step(&self) -> Option<&'static str> {
        match self {
            Self::Content { .. } => Some("`oroshi bench --format json -o FILE ...` writes a result"),
            Self::Overwrites { .. } | Self::Foreign { .. } => Some("name the page with --html FILE"),
            _ => None,
        }
    }
}

/// Reads the files and draws the page.
///
/// # Errors
/// If there is no page.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    let page = match args.files.as_slice() {
        [only] if let Some(record) = subscriptions(only)? => oroshi_report::subscribe_page(&record),
        files => {
            let saved = files.iter().map(|path| Ok((path, read(path)?))).collect::<Result<Vec<_>, Error>>()?;
            draw(&saved)?
        }
    };
    let path = match &args.html {
        Some(path) => path.clone(),
        None => usual_place(&args.files)?,
    };
    write(&page, &args.files, &path)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the default path of a page: beside the first file, named after all files. Replaces an earlier page of
/// oroshi.
///
/// # Errors
/// If another file has that path.
fn usual_place(files: &[PathBuf]) -> Result<PathBuf, Error> {
    let stem = |path: &PathBuf| path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let name = match files {
        [] | [_] => return ours(files.first().map_or_else(PathBuf::new, |file| file.with_extension("html")), files),
        [first, second] => format!("{}-{}.html", stem(first), stem(second)),
        [first, rest @ ..] => format!("{}-and-{}-more.html", stem(first), rest.len()),
    };
    ours(files[0].with_file_name(name), files)
}

/// Returns the path, unless it is a file other than a page of oroshi.
fn ours(path: PathBuf, files: &[PathBuf]) -> Result<PathBuf, Error> {
    match saved::beginning(&path, HEAD_BYTES) {
        // `write` reports a page that would replace one of its sources.
        Ok(_) if files.contains(&path) => Ok(path),
        Ok(text) if !text.is_empty() && !String::from_utf8_lossy(&text).contains(GENERATOR) => {
            Err(Error::Foreign { path })
        }
        _ => Ok(path),
    }
}

/// The beginning of a page, in bytes, that contains `GENERATOR`.
const HEAD_BYTES: u64 = 64 * 1024;
/// The mark in the head of each page of oroshi.
const GENERATOR: &str = "<meta name=\"generator\" content=\"oroshi ";

/// Reads a run of subscriptions, if the file holds one.
fn subscriptions(path: &Path) -> Result<Option<oroshi_bench::push::Record>, Error> {
    saved::parse_subscriptions(&text(path)?).map_err(|what| Error::Content { path: path.to_owned(), what })
}

/// Writes a page, but not over the files `from` which it is drawn.
///
/// # Errors
/// If the page cannot be written.
pub(crate) fn write(page: &str, from: &[PathBuf], path: &Path) -> Result<(), Error> {
    if let Some(from) = from.iter().find(|from| same(from, path)) {
        return Err(Error::Overwrites { path: from.clone() });
    }
    bench::write_beside(page, bench::open(path)?, path)?;
    say(&format!("wrote {}", path.display()));
    Ok(())
}

/// Reads what `bench`, `compare` or `lab` wrote as JSON.
///
/// # Errors
/// If there is no such file, or it is something else.
pub(crate) fn read(path: &Path) -> Result<SavedResult, Error> {
    saved::parse(&text(path)?).map_err(|what| Error::Content { path: path.to_owned(), what })
}

fn text(path: &Path) -> Result<String, Error> {
    saved::read_text(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}

fn draw(saved: &[(&PathBuf, SavedResult)]) -> Result<String, Error> {
    if let [(_, SavedResult::Lab(result))] = saved {
        return Ok(oroshi_report::lab_page(result));
    }
    let mut runs = Vec::new();
    for (path, saved) in saved {
        match saved {
            SavedResult::Bench(records) => runs.extend(records.iter().map(|record| (*path, record))),
            SavedResult::Lab(_) => return Err(Error::Experiment { path: (*path).clone() }),
        }
    }
    let named = names(&runs).into_iter().zip(&runs).map(|(name, (_, record))| Named { name, record });
    Ok(oroshi_report::bench_page(&named.collect::<Vec<_>>()))
}

/// Returns the names of runs: the file's stem; its path if two stems are equal; with a number if a file has several
/// runs.
fn names(runs: &[(&PathBuf, &Record)]) -> Vec<String> {
    let stem = |path: &Path| path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let name = |(place, (path, _)): (usize, &(&PathBuf, &Record))| {
        let ambiguous = runs.iter().any(|(other, _)| other != path && stem(other) == stem(path));
        let name = if ambiguous { path.display().to_string() } else { stem(path) };
        let same_file = |run: &&(&PathBuf, &Record)| run.0 == *path;
        match runs.iter().filter(same_file).count() {
            1 => name,
            _ => format!("{name} {}", runs[..place].iter().filter(same_file).count() + 1),
        }
    };
    runs.iter().enumerate().map(name).collect()
}

/// Whether two paths lead to the same file.
fn same(one: &Path, other: &Path) -> bool {
    one == other || matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oroshi_report::sample::bench as sample;

    #[test]
    fn runs_are_told_apart_by_their_names() {
        let record = sample::closed();
        let named = |paths: &[&str]| {
            let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
            names(&paths.iter().map(|path| (path, &record)).collect::<Vec<_>>())
        };
        assert_eq!(named(&["before.json", "x/after.json"]), ["before", "after"]);
        assert_eq!(named(&["a/run.json", "b/run.json", "c.json"]), ["a/run.json", "b/run.json", "c"]);
        assert_eq!(named(&["runs.json", "runs.json"]), ["runs 1", "runs 2"]);
    }

    #[test]
    fn a_page_is_named_after_all_files_and_takes_the_place_of_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let place = |names: &[&str]| usual_place(&names.iter().map(|name| path(name)).collect::<Vec<_>>());
        assert_eq!(place(&["a.json"]).unwrap(), path("a.html"));
        assert_eq!(place(&["a.json", "b.json"]).unwrap(), path("a-b.html"));
        assert_eq!(place(&["a.json", "b.json", "c.json"]).unwrap(), path("a-and-2-more.html"));
        std::fs::write(path("a.html"), "<p>notes").unwrap();
        let error = place(&["a.json"]).unwrap_err();
        assert!(error.to_string().contains("a.html exists") && error.exit_code() == 2, "{error}");
        let page = oroshi_report::bench_page(&[]);
        std::fs::write(path("a.html"), page).unwrap();
        assert_eq!(place(&["a.json"]).unwrap(), path("a.html"), "one of ours is drawn anew");
    }

    #[test]
    fn an_experiment_is_drawn_alone() {
        let path = PathBuf::from("lab.json");
        let lab = || SavedResult::Lab(oroshi_report::sample::lab::two());
        assert!(draw(&[(&path, lab())]).unwrap().contains("oroshi lab"));
        let error = draw(&[(&path, SavedResult::Bench(vec![sample::closed()])), (&path, lab())]).unwrap_err();
        assert_eq!((error.exit_code(), error.to_string().contains("lab.json is an experiment")), (2, true));
    }
}
