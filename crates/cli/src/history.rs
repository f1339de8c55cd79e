//! `oroshi history`: results over commits, kept as files in a folder.
//!
//! `folder` reads and writes the files; `commit` asks git what was measured. `oroshi_history` makes entries of results
//! and finds steps; `oroshi_report` shows them.

mod commit;
mod folder;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ValueEnum, ValueHint};
use oroshi_history::check::CheckError;
use oroshi_history::entry::{EntryError, digest};
use oroshi_history::known::{Known, known};
use oroshi_history::otava::{self, Import, OtavaError};
use oroshi_history::series::{mixed, short, unclear_order, undivided};
use oroshi_history::{Against, Entry, Series, check};
use oroshi_report::ci::Finding;
use oroshi_stats::compare::Verdict;
use oroshi_words::{printable, units};

use self::commit::{commit, resolved};
use self::folder::{Folder, Held, MOST_FILES};
use crate::CommandError;
use crate::problems::Problems;
use crate::verdicts::{self, Condition, EXIT_DISTURBED};
use crate::{bench, report, saved, say, terminal};

const EXAMPLES: &str = "\
Examples:
  oroshi bench --format json -o run.json http://localhost:8080/
  oroshi history add perf run.json
      keeps the run's figures in the folder perf, with the commit that is checked out here
  oroshi history show perf --report perf.html
      where did the level of a figure change, and by how much?
  oroshi history check perf
      for CI: exit code 3 if the last commit is worse than the level before it
  oroshi history check perf --against v1.2
      beside the level at v1.2: small changes add up
  oroshi history export perf otava
      writes CSV and a configuration for Apache Otava

Exit codes: 0 done; 1 a file could not be written; 2 wrong usage, or a file cannot be read; of `check`:
3 a --fail-if verdict occurred; 4 only `undecided` occurred; 5 a figure of the commit has no verdict,
because the machine was disturbed.";

/// Keep results over commits, find where figures changed, and judge the newest commit
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Add results of bench, compare and lab
    #[command(display_name = "oroshi")]
    Add(AddArgs),
    /// Show where levels changed, and the present levels
    #[command(display_name = "oroshi")]
    Show(ShowArgs),
    /// Judge a commit: is it worse than the level before it?
    #[command(display_name = "oroshi")]
    Check(CheckArgs),
    /// Add the rows of a CSV file, as Apache Otava reads it
    #[command(display_name = "oroshi")]
    Import(ImportArgs),
    /// Write CSV files and a configuration for Apache Otava
    #[command(display_name = "oroshi")]
    Export(ExportArgs),
}

#[derive(Debug, clap::Args)]
struct AddArgs {
    /// Keep the history in this folder; it is created if needed
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: PathBuf,

    /// Add these results of `bench`, `compare` or `lab` in JSON, or folders with a result.json
    #[arg(value_name = "RESULT", required = true, value_hint = ValueHint::AnyPath)]
    results: Vec<PathBuf>,

    /// Say that this commit was measured [default: the one that is checked out in the git repository here]
    #[arg(long, value_name = "COMMIT")]
    commit: Option<String>,

    /// Order the commit by this date: 2026-03-01, with or without a time, or Unix seconds [default: the commit's]
    #[arg(long, value_name = "DATE")]
    date: Option<String>,

    /// Call what a run of `bench` measured like this [default: its first request]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

#[derive(Debug, clap::Args)]
struct ChosenArgs {
    /// Read the history in this folder
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: PathBuf,

    /// Take only subjects whose name contains this text; repeatable
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,

    /// Take only these figures: rps,cpu [default: all]
    #[arg(long, value_name = "METRIC,...", value_delimiter = ',')]
    metrics: Vec<String>,

    /// Take only this machine: its fingerprint, or the beginning of it [default: all]
    #[arg(long, value_name = "FINGERPRINT")]
    machine: Option<String>,
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    #[command(flatten)]
    chosen: ChosenArgs,

    /// Leave out steps smaller than this [default: 1%]
    #[arg(long, value_name = "PERCENT")]
    smallest_effect: Option<String>,

    /// Also write an HTML page, with a chart of each figure by commit
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    report: Option<PathBuf>,
}

/// The format of what `check` prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    #[default]
    Text,
    /// All data.
    Json,
}

#[derive(Debug, clap::Args)]
struct CheckArgs {
    #[command(flatten)]
    chosen: ChosenArgs,

    /// Judge this commit: its name, or the beginning of it [default: the last one of the history]
    #[arg(long, value_name = "COMMIT")]
    commit: Option<String>,

    /// Compare with the level at this commit of the history [default: the level right before]
    #[arg(long, value_name = "COMMIT")]
    against: Option<String>,

    /// Treat differences smaller than this as none [default: 3%]
    #[arg(long, value_name = "PERCENT")]
    smallest_effect: Option<String>,

    /// Exit with code 3 if a figure is slower (worse), faster or different, or with 4 if one is undecided [default:
    /// slower]
    #[arg(long, value_name = "VERDICT,...", value_delimiter = ',')]
    fail_if: Vec<String>,

    /// Choose the format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct ImportArgs {
    /// Keep the history in this folder; it is created if needed
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: PathBuf,

    /// Read this CSV file; its first line names the columns
    #[arg(value_name = "FILE.csv", value_hint = ValueHint::FilePath)]
    file: PathBuf,

    /// Call what was measured like this [default: the file's name without its ending]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Call the machine like this [default: imported]
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,

    /// Take the time from this column [default: time]
    #[arg(long, value_name = "COLUMN")]
    time_column: Option<String>,

    /// Take the commit from this column [default: commit]
    #[arg(long, value_name = "COLUMN")]
    commit_column: Option<String>,

    /// In these columns less is better; in the others more [default: none]
    #[arg(long, value_name = "COLUMN,...", value_delimiter = ',')]
    lower: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct ExportArgs {
    #[command(flatten)]
    chosen: ChosenArgs,

    /// Write the files into this folder; it is created if needed
    #[arg(value_name = "OUT", value_hint = ValueHint::DirPath)]
    out: PathBuf,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Correct the flags: each line names one.
    #[error("{}", .0.join("\n"))]
    Usage(Vec<String>),
    /// Name a file or folder that there is.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Remove or restore the file.
    #[error("{}", path.display())]
    Entry {
        /// The file.
        path: PathBuf,
        /// The defect.
        source: EntryError,
    },
    /// Remove the file if it is wrong.
    #[error("{} holds this result {what}", path.display())]
    Held {
        /// The file.
        path: PathBuf,
        /// What it says of it.
        what: String,
    },
    /// Remove the wrong one.
    #[error("{} and {} have different {what}s of {name}", one.display(), other.display())]
    Mixed {
        /// A file.
        one: PathBuf,
        /// Another file.
        other: PathBuf,
        /// Subject and metric.
        name: String,
        /// `unit` or `direction`.
        what: &'static str,
    },
    /// Correct the CSV, or name other columns.
    #[error("{}", path.display())]
    Otava {
        /// The file.
        path: PathBuf,
        /// The defect.
        source: OtavaError,
    },
    /// Name a result.
    #[error(transparent)]
    Result(#[from] report::Error),
    /// Name a commit that is in the history.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// Choose another place, or make room.
    #[error("{} cannot be written", path.display())]
    Write {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The report could not be written.
    #[error(transparent)]
    Bench(#[from] bench::Error),
}

impl CommandError for Error {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Bench(error) => error.exit_code(),
            Self::Result(error) => error.exit_code(),
            Self::Write { .. } => 1,
            _ => 2,
        }
    }

    fn next_step(&self) -> Option<&'static str> {
        match self {
            Self::Usage(_) => Some("`oroshi history --help` has examples"),
            Self::Entry { source: EntryError::CutShort | EntryError::NoFigure | EntryError::Gone(_), .. } => {
                Some("measure again, and add that result")
            }
            Self::Entry { .. } => Some("remove the file, or restore it: entries are never edited"),
            Self::Held { .. } => Some("remove that file if it is wrong, and add the result again"),
            Self::Mixed { .. } => Some("remove the file that is wrong, or give what was measured another --name"),
            Self::Check(_) => Some("`oroshi history show DIR` lists what there is"),
            Self::Result(error) => error.next_step(),
            _ => None,
        }
    }
}

/// Runs the subcommand.
///
/// # Errors
/// There is no result.
pub(crate) fn run(args: Args) -> Result<ExitCode, Error> {
    match args.command {
        Command::Add(args) => add(&args),
        Command::Show(args) => show(&args),
        Command::Check(args) => judge(&args),
        Command::Import(args) => import(&args),
        Command::Export(args) => export(&args),
    }
}

fn add(args: &AddArgs) -> Result<ExitCode, Error> {
    // Neither the history nor the results are a change of what was measured.
    let own: Vec<&Path> = std::iter::once(&args.dir).chain(&args.results).map(PathBuf::as_path).collect();
    let commit = commit(args.commit.as_deref(), args.date.as_deref(), Path::new("."), &own).map_err(Error::Usage)?;
    let mut entries = Vec::new();
    for path in &args.results {
        let path = if path.is_dir() { path.join("result.json") } else { path.clone() };
        let text = saved::read_text(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
        let result = saved::parse(&text).map_err(|what| report::Error::Content { path: path.clone(), what })?;
        let entry = Entry::of(&result, &digest(&text), commit.clone(), args.name.as_deref());
        let entry = entry.map_err(|source| Error::Entry { path: path.clone(), source })?;
        entries.push(Held { path, entry });
    }
    keep(&args.dir, entries)
}

fn import(args: &ImportArgs) -> Result<ExitCode, Error> {
    let path = || args.file.clone();
    let text = saved::read_text(&args.file).map_err(|source| Error::Read { path: path(), source })?;
    let stem = args.file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let how = Import {
        name: args.name.clone().unwrap_or(stem),
        machine: args.machine.clone().unwrap_or_else(|| "imported".into()),
        time_column: args.time_column.clone().unwrap_or_else(|| "time".into()),
        commit_column: args.commit_column.clone().unwrap_or_else(|| "commit".into()),
        lower: args.lower.clone(),
    };
    let imported = otava::import(&text, &how).map_err(|source| Error::Otava { path: path(), source })?;
    if !imported.left_out.is_empty() {
        say(&format!("left out, because they have no number: {}", printable(&imported.left_out.join(", "))));
    }
    if imported.empty_rows > 0 {
        say(&format!(
            "left out, because all their cells are empty: {}",
            units::plural(imported.empty_rows as u64, "row")
        ));
    }
    let entries = imported.entries.into_iter().map(|entry| Held { path: path(), entry });
    keep(&args.dir, entries.collect())
}

/// Writes entries, each with the path that it came from, and says what is new. Writes nothing if one of them
/// contradicts the history.
fn keep(dir: &Path, added: Vec<Held>) -> Result<ExitCode, Error> {
    let folder = Folder::make(dir)?;
    let mut held = folder.read()?;
    let (before, all) = (held.len(), added.len());
    let mut by_source: HashMap<String, Vec<usize>> = HashMap::new();
    for (index, one) in held.iter().enumerate() {
        by_source.entry(one.entry.source.clone()).or_default().push(index);
    }
    for new in added {
        let same_source = by_source.entry(new.entry.source.clone()).or_default();
        let mut different = None;
        let is_held = same_source.iter().any(|index| match known(&new.entry, &held[*index].entry) {
            Known::Same => true,
            Known::New => false,
            Known::Different(what) => {
                different.get_or_insert(Error::Held { path: held[*index].path.clone(), what });
                false
            }
        });
        if is_held {
            continue;
        }
        if let Some(error) = different {
            return Err(error);
        }
        same_source.push(held.len());
        held.push(new);
    }
    if held.len() > MOST_FILES {
        let what = format!("{}: a history has at most {MOST_FILES} entries", dir.display());
        return Err(Error::Usage(vec![what]));
    }
    let held = unmixed(held)?;
    let fresh = &held[before..];
    for one in fresh {
        let path = folder.add(&one.entry)?;
        if fresh.len() <= MOST_NAMED {
            say(&format!("wrote {}", path.display()));
        }
    }
    if fresh.len() > MOST_NAMED {
        say(&format!("wrote {} to {}", units::plural(fresh.len() as u64, "file"), dir.display()));
    }
    let old = all - fresh.len();
    if old > 0 {
        say(&format!("{} already in the history", if old == 1 { "1 is".into() } else { format!("{old} are") }));
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks that each series has one unit and one direction.
fn unmixed(held: Vec<Held>) -> Result<Vec<Held>, Error> {
    let (paths, entries): (Vec<PathBuf>, Vec<Entry>) = held.into_iter().map(|held| (held.path, held.entry)).unzip();
    if let Some(found) = mixed(&entries) {
        let [one, other] = [found.one, found.other].map(|index| paths[index].clone());
        return Err(Error::Mixed { one, other, name: found.name, what: found.what });
    }
    Ok(paths.into_iter().zip(entries).map(|(path, entry)| Held { path, entry }).collect())
}

/// Reads a history.
fn entries(dir: &Path) -> Result<Vec<Entry>, Error> {
    Ok(unmixed(Folder::open(dir)?.read()?)?.into_iter().map(|held| held.entry).collect())
}

/// Says which commits stand in an order that only the time of measurement gave.
fn tell_unclear_order(entries: &[Entry]) {
    let unclear = unclear_order(entries);
    let Some((one, other)) = unclear.first() else { return };
    let more = match unclear.len() - 1 {
        0 => String::new(),
        more => format!("; so do {}", units::plural(more as u64, "other pair")),
    };
    say(&format!(
        "commits {} and {} have the same date: they stand in the order of their first measurements{more}",
        printable(&short(one)),
        printable(&short(other))
    ));
}

/// Up to so many new files are named one by one.
const MOST_NAMED: usize = 20;

fn show(args: &ShowArgs) -> Result<ExitCode, Error> {
    let mut problems = Problems::of_flags();
    let least = share(args.smallest_effect.as_deref(), 0.01, &mut problems);
    finished(problems)?;
    let page = args.report.as_deref().map(bench::open).transpose()?;
    let entries = entries(&args.chosen.dir)?;
    tell_unclear_order(&entries);
    let series = args.chosen.of(oroshi_history::all(&entries, least))?;
    if let (Some(file), Some(path)) = (page, args.report.as_deref()) {
        let title = args.chosen.dir.canonicalize().ok();
        let title = title.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let page = oroshi_report::history_page(&title.unwrap_or_else(|| "history".into()), &series);
        bench::write_beside(&page, file, path)?;
        say(&format!("wrote {}", path.display()));
    }
    print(&oroshi_report::text::history(&series, terminal::paint(&io::stdout())))?;
    Ok(ExitCode::SUCCESS)
}

fn judge(args: &CheckArgs) -> Result<ExitCode, Error> {
    let mut problems = Problems::of_flags();
    let least = share(args.smallest_effect.as_deref(), 0.03, &mut problems);
    let mut conditions = problems.all("--fail-if", &args.fail_if, str::parse::<Condition>);
    finished(problems)?;
    if args.fail_if.is_empty() {
        conditions = vec![Condition::Slower];
    }
    let entries = entries(&args.chosen.dir)?;
    tell_unclear_order(&entries);
    let chosen = args.chosen.of(undivided(&entries))?;
    let against = args.against.clone().map_or(Against::Before, |name| Against::Commit(resolved(name)));
    let commit = args.commit.clone().map(resolved);
    let judged = check(&entries, &chosen, commit.as_deref(), &against, least)?;
    match args.format {
        Format::Text => print(&oroshi_report::text::checked(&judged, terminal::paint(&io::stdout())))?,
        Format::Json => {
            say(&format!("judged commit {}", printable(&short(&judged.commit))));
            print(&(serde_json::to_string_pretty(&judged.figures).map_err(bench::Error::Json)? + "\n"))?;
        }
    }
    let findings: Vec<Finding> = judged
        .figures
        .iter()
        .map(|one| Finding {
            place: one.subject.clone(),
            pair: one.metric.clone(),
            verdict: one.verdict,
            words: format!("{}: {}", one.metric, one.words),
            fails: false,
        })
        .collect();
    let is_disturbed = findings.iter().any(|finding| finding.verdict == Verdict::Disturbed);
    let unknown = match judged.has_verdict() {
        false => Some("nothing could be judged"),
        true => is_disturbed.then_some(verdicts::PARTIAL),
    };
    let code = verdicts::tell(&findings, &conditions, unknown);
    Ok(ExitCode::from(if is_disturbed && code != verdicts::EXIT_CONDITION { EXIT_DISTURBED } else { code }))
}

fn export(args: &ExportArgs) -> Result<ExitCode, Error> {
    let entries = entries(&args.chosen.dir)?;
    let series = args.chosen.of(undivided(&entries))?;
    let files = otava::export(&series).map_err(|source| Error::Otava { path: args.out.clone(), source })?;
    let out = Folder::make(&args.out)?;
    let mut yaml = String::from("tests:\n");
    for file in &files {
        out.write(&file.file, &file.csv)?;
        let _ = write!(yaml, "{}", file.yaml);
    }
    out.write("otava.yaml", &yaml)?;
    say(&format!("wrote otava.yaml and {} to {}", units::plural(files.len() as u64, "test"), args.out.display()));
    Ok(ExitCode::SUCCESS)
}

impl ChosenArgs {
    /// Leaves the wanted series.
    fn of<'h>(&self, series: Vec<Series<'h>>) -> Result<Vec<Series<'h>>, Error> {
        let known: Vec<&str> = series.iter().map(|series| series.metric).collect();
        if let Some(wrong) = self.metrics.iter().find(|metric| !known.contains(&metric.as_str())) {
            let near = oroshi_words::nearest(wrong, known.iter().copied());
            let near = near.map(|near| format!(" (did you mean {near}?)")).unwrap_or_default();
            return Err(Error::Usage(vec![format!("--metrics: the history has no figure `{wrong}`{near}")]));
        }
        let wanted = |series: &Series<'h>| {
            (self.only.is_empty() || self.only.iter().any(|text| series.subject.contains(text)))
                && (self.metrics.is_empty() || self.metrics.iter().any(|metric| metric == series.metric))
                && self.machine.as_ref().is_none_or(|machine| series.machine.fingerprint.starts_with(machine))
        };
        let chosen: Vec<Series<'h>> = series.into_iter().filter(wanted).collect();
        if chosen.is_empty() {
            let what =
                "nothing in it has these names: expected other values of --only and --machine, or a result first";
            return Err(Error::Usage(vec![format!("{}: {what}", self.dir.display())]));
        }
        Ok(chosen)
    }
}

fn finished(problems: Problems) -> Result<(), Error> {
    if problems.found.is_empty() {
        return Ok(());
    }
    Err(Error::Usage(problems.found.iter().map(ToString::to_string).collect()))
}

/// Reads a share in per cent.
fn share(text: Option<&str>, usual: f64, problems: &mut Problems) -> f64 {
    let read = text.map(units::parse_percent).transpose();
    read.unwrap_or_else(|why| {
        problems.add("--smallest-effect", &why);
        None
    })
    .unwrap_or(usual)
}

fn print(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // `oroshi history show ... | head` closes the pipe early.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::Write { path: "standard output".into(), source: error })
        }
        _ => Ok(()),
    }
}
