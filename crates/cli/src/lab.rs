//! `oroshi lab`: runs experiments from files.
//!
//! `oroshi-experiment` finds and reads them; `flags` lends it the parser of load flags. `results` runs an experiment
//! and keeps its result. `calibrate` checks the intervals on servers whose true ratio is known.

mod calibrate;
mod flags;
mod results;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueHint;
use oroshi_experiment::find::{FindError, Found};
use oroshi_experiment::{ExperimentError, Machine, ParsedExperiment, RunOptions, Source, find, text};
use oroshi_lab::baseline::SavedResult;
use oroshi_lab::result::Skipped;
use oroshi_lab::{LabError, LabResult};
use oroshi_report::paint::Paint;
use oroshi_words::Mistake;
use oroshi_words::units;

use self::flags::Flags;
use self::results::ResultFolder;
pub(crate) use self::results::{FOLDER, ResultsError, measure};
use crate::CommandError;
use crate::formats::{Also, Format, Subject};
use crate::problems::Problems;
use crate::verdicts::{self, Condition};
use crate::{interrupt, report, say, terminal};

/// A note about this build, set at compile time; `make demo` sets it.
const BUILD: Option<&str> = option_env!("OROSHI_BUILD");

const EXAMPLES: &str = "\
Examples:
  oroshi lab list
      lists the experiments in ./experiments, and the built-in ones
  oroshi lab run unix-or-tcp --quick
      a quick result in under a minute; without --quick it takes as long as a sure result needs
  oroshi lab check mine.toml
      reads a file and prints what it would do, or every mistake in it; runs nothing
  oroshi lab run mine.toml --only nginx --fail-if slower
      one group; for CI: exit code 3 if a variant is slower than the first of its group
  oroshi lab report oroshi-results/mine-20260521-101500/result.json --html page.html
      draws the page again

A file, in short:
  title = \"Does a second worker help?\"
  [load]                                  # the long flags of `oroshi bench`
  connections = 50
  [[variant]]
  name = \"one worker\"
  start = \"puma --bind unix://{{socket}} --workers 1 app.ru\"
  folder = \".\"
  url = \"unix:{{socket}}\"
  [[variant]]
  name = \"two workers\"
  ...
docs/lab.md explains every key.

Exit codes: 0 done; 1 something failed, or was not compared; 2 wrong usage, or mistakes in the file; 3
a --fail-if verdict occurred, and everything was compared; 4 the same, and only `undecided` occurred; 5
no verdict: the machine was disturbed; 130 ended by Ctrl-C before there was enough to compare, or by a
second Ctrl-C (the first one ends an experiment early and still reports).";

/// Run experiments from files: start servers, load them in alternation, and report which is faster
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Run an experiment, and keep the result as JSON and as an HTML page
    #[command(display_name = "oroshi")]
    Run(RunArgs),
    /// List experiments
    #[command(display_name = "oroshi")]
    List {
        /// List the experiments in this folder [default: ./experiments, and the built-in ones]
        #[arg(value_hint = ValueHint::DirPath)]
        dir: Option<PathBuf>,
    },
    /// Check an experiment: print what it would do, or every mistake in its file; run nothing
    #[command(display_name = "oroshi")]
    Check(CheckArgs),
    /// Report a kept result again, on the terminal or as an HTML page
    #[command(display_name = "oroshi")]
    Report {
        /// Read this result.json, or the one in this folder
        result: PathBuf,
        /// Write an HTML page to this file, instead of printing the report
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
    },
    /// Shrink a kept result for an archive: every figure, and one histogram per variant; reports read it as before
    #[command(display_name = "oroshi")]
    Compact {
        /// Read this result.json, or the one in this folder
        result: PathBuf,
        /// Write the small result to this file [default: standard output]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Calibrate the intervals: how often they contain the true ratio, simulated and with real servers
    #[command(display_name = "oroshi")]
    Calibrate(calibrate::CalibrateArgs),
}

#[derive(Debug, clap::Args)]
struct CheckArgs {
    /// Take this TOML file, or the experiment of this name
    #[arg(value_name = "FILE|NAME")]
    experiment: String,

    /// Get a quick result in under a minute: start servers once, and run 5 to 10 blocks of short runs
    ///
    /// The number of blocks depends on the time, and the length of a run, at least 300 ms, on the number of variants.
    #[arg(long)]
    quick: bool,

    /// Take only this variant: its name, its group, or GROUP/NAME; repeatable
    #[arg(long, value_name = "VARIANT")]
    only: Vec<String>,

    /// End after about this time [default: as in the file]
    #[arg(long, value_name = "TIME")]
    max_time: Option<String>,

    /// Draw the order of the runs from this seed [default: as in the file]
    #[arg(long, value_name = "N")]
    seed: Option<String>,
}

#[derive(Debug, clap::Args)]
struct RunArgs {
    #[command(flatten)]
    what: CheckArgs,

    /// Keep the result in this folder [default: oroshi-results/NAME-DATE-TIME]
    ///
    /// An earlier result in it stays until the new one is complete and replaces it; other files stay. If a
    /// result.json, report.html or output that is not part of a result is in the way, nothing runs.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Exit with code 3 if the primary verdict of any variant against the first of its group is slower, faster or
    /// different, or with 4 if it is undecided; repeatable
    #[arg(long, value_name = "VERDICT")]
    fail_if: Vec<String>,

    /// Also write the report in this format to a file: markdown=summary.md; repeatable. Formats: text, json, markdown,
    /// github, junit
    #[arg(long, value_name = "FORMAT=FILE")]
    also: Vec<String>,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Correct the flags: each line names one.
    #[error("{}", .0.join("\n"))]
    Usage(Vec<String>),
    /// Name an existing experiment.
    #[error(transparent)]
    Find(#[from] FindError),
    /// Correct the file: each line names a key.
    #[error("{}", located(.file, .mistakes))]
    File {
        /// The file.
        file: String,
        /// The mistakes.
        mistakes: Vec<Mistake>,
    },
    /// Install the missing programs.
    #[error("nothing is left to run:{}", .0.iter().map(|s| format!("\n  {}: {}", s.name, s.why)).collect::<String>())]
    Nothing(Vec<Skipped>),
    /// The experiment failed.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// A kept result could not be read or written as a report.
    #[error(transparent)]
    Report(#[from] report::Error),
    /// Name a result of an experiment.
    #[error("{} holds runs of `oroshi bench`: expected the result.json of an experiment", path.display())]
    NoExperiment {
        /// The file.
        path: PathBuf,
    },
    /// Signal handlers could not be installed.
    #[error("cannot take signals")]
    Signals(#[source] io::Error),
}

impl CommandError for Error {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Find(_) | Self::File { .. } | Self::NoExperiment { .. } => 2,
            Self::Results(error) => error.exit_code(),
            Self::Report(error) => error.exit_code(),
            Self::Nothing(_) | Self::Signals(_) => 1,
        }
    }

    fn next_step(&self) -> Option<&'static str> {
        match self {
            Self::Usage(_) => Some("`oroshi lab run --help` lists all flags, with examples"),
            Self::File { .. } => {
                Some("docs/lab.md explains every key; `oroshi lab check FILE` reads a file and runs nothing")
            }
            Self::NoExperiment { .. } => Some("`oroshi report` draws what `oroshi bench` wrote"),
            Self::Nothing(_) => Some("install what is missing, or take another experiment: `oroshi lab list`"),
            _ => None,
        }
    }
}

fn located(file: &str, mistakes: &[Mistake]) -> String {
    mistakes.iter().map(|mistake| format!("{file} {mistake}")).collect::<Vec<_>>().join("\n")
}

/// Runs the subcommand.
///
/// # Errors
/// There is no result.
pub(crate) fn run(args: Args) -> Result<ExitCode, Error> {
    match args.command {
        Command::Run(args) => carry_out(args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::List { dir } => {
            let machine = Machine::this();
            let entries = find::all(dir.as_deref())?.into_iter().map(|found| {
                let reading = read(&found, &RunOptions::default(), &machine);
                (found, reading)
            });
            print(&text::list(entries, terminal::paint(&io::stdout())))
        }
        Command::Check(args) => {
            let found = find::find(&args.experiment)?;
            let machine = Machine::this();
            let options = args.options(Vec::new(), Problems::of_flags())?;
            let reading = read(&found, &options, &machine).map_err(|error| refused(&found, error))?;
            print(&text::check(&found.shown(), &reading, &machine.untried(), terminal::paint(&io::stdout())))
        }
        Command::Compact { result, out } => {
            let (path, result) = kept(result)?;
            let json = result.compact().and_then(|json| serde_json::to_string(&json));
            let text = json.map_err(ResultsError::ToJson)? + "\n";
            match out {
                Some(out) => report::write(&text, &[path], &out)?,
                None => return print(&text),
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Report { result, html } => {
            let (path, result) = kept(result)?;
            match html {
                Some(html) => report::write(&oroshi_report::lab_page(&result), &[path], &html)?,
                None => return print(&oroshi_report::text::lab(&result, terminal::paint(&io::stdout()))),
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Reads a kept result: its file, or its folder.
fn kept(path: PathBuf) -> Result<(PathBuf, LabResult), Error> {
    let path = if path.is_dir() { path.join(results::DATA) } else { path };
    match report::read(&path)? {
        SavedResult::Lab(result) => Ok((path, result)),
        SavedResult::Bench(_) => Err(Error::NoExperiment { path }),
    }
}

fn carry_out(args: RunArgs) -> Result<ExitCode, Error> {
    let mut problems = Problems::of_flags();
    let conditions = problems.all("--fail-if", &args.fail_if, str::parse::<Condition>);
    let also = problems.all("--also", &args.also, str::parse::<Also<Format>>);
    let options = args.what.options(again(&args), problems)?;
    let found = find::find(&args.what.experiment)?;
    let shutdown = interrupt::shutdown().map_err(Error::Signals)?;
    let reading = read(&found, &options, &Machine::tried_out(shutdown.clone()));
    let experiment = reading.map_err(|error| refused(&found, error))?.experiment;
    if shutdown.count() > 0 {
        return Err(ResultsError::Lab(LabError::Cancelled).into());
    }
    if experiment.cells.is_empty() {
        return Err(Error::Nothing(experiment.skipped));
    }
    let opened = also.iter().map(Also::open).collect::<Result<Vec<_>, _>>().map_err(report::Error::from)?;
    let place = ResultFolder::make(args.out.unwrap_or_else(|| results::fresh_folder(&experiment.name)))?;
    let result = measure(experiment, place.output(), shutdown)?;
    print(&oroshi_report::text::lab(&result, terminal::paint(&io::stdout())))?;
    let kept = match place.store(&result) {
        Ok(kept) => kept,
        Err(error) => {
            // The measurements must not be lost.
            say("the result could not be kept: it goes to standard output, as JSON");
            let json = serde_json::to_string(&result).map_err(ResultsError::ToJson)?;
            print(&format!("{json}\n"))?;
            return Err(error.into());
        }
    };
    let findings = verdicts::findings(&result, None, &conditions);
    let subject = Subject { result: &result, findings: &findings, against: None };
    for (also, file) in also.iter().zip(opened) {
        let text = subject.report(also.format, Paint::PLAIN).map_err(report::Error::from)?;
        file.write(&text).map_err(report::Error::from)?;
    }
    print(&format!("\nResult    {}\nReport    {}\n", kept.data.display(), kept.page.display()))?;
    print(&BUILD.map_or(String::new(), |build| format!("Build     {build}\n")))?;
    Ok(ExitCode::from(verdicts::judge(&result, None, &findings, &conditions)))
}

fn read(found: &Found, options: &RunOptions, machine: &Machine) -> Result<ParsedExperiment, ExperimentError> {
    let folder = found.folder();
    let source = Source { name: &found.name, text: &found.text, folder: folder.as_deref() };
    oroshi_experiment::read(source, options, machine, &Flags { script: crate::script_load::load })
}

fn refused(found: &Found, error: ExperimentError) -> Error {
    match error {
        ExperimentError::File(mistakes) => Error::File { file: found.shown(), mistakes },
        ExperimentError::Only(problem) => Error::Usage(vec![problem]),
    }
}

impl CheckArgs {
    /// Returns the options beside the file. `problems`: mistakes in other flags.
    fn options(&self, rerun: Vec<String>, mut problems: Problems) -> Result<RunOptions, Error> {
        let max_time = problems.one("--max-time", self.max_time.as_deref(), |text| match units::parse_time(text)? {
            Duration::ZERO => Err("it is 0: expected a time such as 10m".to_owned()),
            time => Ok(time),
        });
        let seed = problems.one("--seed", self.seed.as_deref(), units::parse_count);
        if !problems.found.is_empty() {
            return Err(Error::Usage(problems.lines()));
        }
        Ok(RunOptions { quick: self.quick, only: self.only.clone(), max_time, seed, rerun })
    }
}

/// Returns the command that runs it again, without the folder.
fn again(args: &RunArgs) -> Vec<String> {
    let what = &args.what;
    let mut words = vec!["oroshi".to_owned(), "lab".into(), "run".into(), what.experiment.clone()];
    if what.quick {
        words.push("--quick".into());
    }
    let with_values = what.only.iter().map(|v| ("--only", v));
    let with_values = with_values.chain(what.max_time.iter().map(|v| ("--max-time", v)));
    let with_values = with_values.chain(what.seed.iter().map(|v| ("--seed", v)));
    let with_values = with_values.chain(args.fail_if.iter().map(|v| ("--fail-if", v)));
    words.extend(with_values.flat_map(|(flag, value)| [flag.to_owned(), value.clone()]));
    words
}

fn print(text: &str) -> Result<ExitCode, Error> {
    // A reader that stops early, such as `head`, is no error.
    let _ = io::stdout().lock().write_all(text.as_bytes());
    Ok(ExitCode::SUCCESS)
}
