//! `oroshi bench`: from flags to a run to a report.
//!
//! `args` has the flags, `foreign` those of other tools. `read` turns the flags into a plan; `load`, `sources` and
//! `fail_if` read parts of them. `observer` shows a run while it lasts. `script` runs wrk's scripts, `scenario` those
//! of scenarios. `subscribe` is the other kind of load (`--mode`), from its flags to its report. `wrk` and `ab`
//! write the report, `remote` sends it to Prometheus, and `command_line` writes the command line in it. `view` has the
//! lines that a terminal shows during the run, `tui` draws `--tui`. `agents` leads load machines,
//! and `travel` makes words of a load for them. `self_test` measures oroshi itself.

mod ab;
#[cfg(feature = "agents")]
mod agents;
mod args;
mod command_line;
mod fail_if;
pub(crate) mod foreign;
mod load;
mod observer;
mod read;
#[cfg(feature = "remote-write")]
mod remote;
#[cfg(not(feature = "remote-write"))]
#[path = "bench/no_remote.rs"]
mod remote;
#[cfg(feature = "script")]
mod scenario;
#[cfg(feature = "script")]
mod script;
#[cfg(not(feature = "script"))]
#[path = "bench/no_script.rs"]
mod script;
mod self_test;
mod sources;
mod subscribe;
#[cfg(feature = "agents")]
mod travel;
#[cfg(feature = "tui")]
mod tui;
#[cfg(not(feature = "tui"))]
#[path = "bench/no_tui.rs"]
mod tui;
mod view;
mod wrk;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use oroshi_bench::plan::Problem;
use oroshi_bench::record::{Condition, ConditionOutcome};
use oroshi_bench::{Draft, Plan, Record, RunError, ScriptError};
use oroshi_net::{ConnectError, Shutdown};
use oroshi_report::paint::Paint;
use oroshi_report::{Named, table};
use oroshi_words::Naming;
use oroshi_words::{printable, units};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::stdio::dup2_stdout;

use ab::RequestLog;
#[cfg(feature = "agents")]
pub(crate) use agents::{Agents, Meeting, meeting, opening};
use args::Format;
pub(crate) use args::{AgentsArgs, Args, LoadArgs};
pub(crate) use command_line::{awaited, without_secrets};
#[cfg(feature = "fetch")]
pub(crate) use load::parse_header;
pub(crate) use load::parse_size;
pub(crate) use load::read_load;
pub(crate) use observer::Live;
use observer::{Display, HdrLog, LogError};
use read::Output;
use script::Scripted;
pub(crate) use subscribe::{SubscribeArgs, meaningless};
#[cfg(feature = "agents")]
pub(crate) use travel::{
    Unpacked, UnpackedLoad, pack_flags, pack_journeys, pack_stamps, unpack, with_journeys, with_run, with_subscriptions,
};
pub(crate) use view::sparkline;

use crate::CommandError;
use crate::child::TargetError;
use crate::formats::{Also, AlsoFile};
use crate::interrupt;
use crate::output::Output as OutputFile;
use crate::say;
use crate::terminal;

/// The exit code of a threshold that failed.
const EXIT_THRESHOLD: u8 = 3;

/// The reasons why there is no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Correct the flags: each line names one.
    #[error("{}", .0.join("\n"))]
    Usage(Vec<String>),
    /// The run could not begin.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Correct the script: the text has its file and line.
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// The same of a script of scenarios.
    #[cfg(feature = "script")]
    #[error(transparent)]
    Scenario(ScriptError),
    /// Choose another place for the report.
    #[error("the report cannot be written to {}", path.display())]
    Output {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Choose another place for the log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The report could not be put into JSON: a defect.
    #[error("the report cannot be written as JSON")]
    Json(#[from] serde_json::Error),
    /// Signal handlers could not be installed.
    #[error("cannot take signals")]
    Signals(#[source] io::Error),
    /// The server for a self-test could not be started.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// Free space in the folder for temporary files, or set TMPDIR to another.
    #[error("no certificate can be made for the server of a self-test")]
    Identity(#[source] io::Error),
    /// The series could not be sent: correct the URL, or look at the receiver.
    #[cfg(feature = "remote-write")]
    #[error(transparent)]
    Remote(#[from] remote::SendError),
    /// This build has no agents.
    #[cfg(not(feature = "agents"))]
    #[error(transparent)]
    Absent(crate::absent::Absent),
    /// NATS, or the agents: the text says what.
    #[cfg(feature = "agents")]
    #[error("{0}")]
    Agents(String),
    /// Correct what the agents refuse: each line names one.
    #[cfg(feature = "agents")]
    #[error("{}", .0.join("\n"))]
    Refused(Vec<String>),
    /// Ctrl-C ended it before there was a result.
    #[error("ended early: there is no result")]
    Interrupted,
}

impl CommandError for Error {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            #[cfg(not(feature = "agents"))]
            Self::Absent(_) => 2,
            Self::Interrupted | Self::Run(RunError::Cancelled | RunError::EndedInWarmUp) => interrupt::EXIT_CODE,
            _ => 1,
        }
    }

    fn next_step(&self) -> Option<&'static str> {
        match self {
            Self::Usage(_) => Some("`oroshi bench --help` lists all flags, with examples"),
            Self::Run(RunError::Dns(_)) => {
                Some("check the spelling, /etc/hosts and the name server; --connect-to connects elsewhere")
            }
            Self::Run(RunError::Connect { source, .. }) => connect_step(source),
            Self::Script(error) | Self::Run(RunError::Script(error)) => Some(script_step(error, WRK_API)),
            #[cfg(feature = "script")]
            Self::Scenario(error) => Some(script_step(error, SCENARIO_API)),
            Self::Run(RunError::Watch { .. }) => {
                Some("--watch auto finds the process that listens; --watch none measures no process")
            }
            _ => None,
        }
    }
}

/// The next step after a mistake in a script for wrk, and in one of scenarios.
const WRK_API: &str = "correct the script; docs/bench-lua.md describes its API";
#[cfg(feature = "script")]
const SCENARIO_API: &str = "correct the script; docs/scenarios.md describes its API";

fn script_step(error: &ScriptError, correct: &'static str) -> &'static str {
    if error.what.contains("did not return within") {
        "look for a loop that does not end; --script-limit TIME lets a call take longer"
    } else {
        correct
    }
}

fn connect_step(error: &ConnectError) -> Option<&'static str> {
    match error {
        ConnectError::Refused => Some("start the server, or correct the address; `ss -ltnx` lists all listeners"),
        ConnectError::NotFound { .. } => Some("start the server, or correct the path; `ss -lx` lists the unix sockets"),
        ConnectError::NotASocket { .. } => Some("give the path of a listening stream socket; `ss -lx` lists them"),
        ConnectError::Timeout => {
            Some("check the address, firewalls, and whether the server accepts; --timeout waits longer")
        }
        ConnectError::Tls(_) => Some(
            "check that the server speaks TLS there; --cacert FILE trusts another authority, --insecure any \
             certificate",
        ),
        ConnectError::Permission(_) => Some("connect as a user who may write to the socket"),
        ConnectError::Unreachable(_) => Some("check the address and the routes (`ip route get ADDRESS`)"),
        ConnectError::Source { .. } | ConnectError::NoSource { .. } => {
            Some("`ip address` lists the addresses for --source")
        }
        _ => None,
    }
}

/// Runs what the flags ask for, and writes the report.
///
/// # Errors
/// If there is no result.
pub(crate) fn run(args: Args) -> Result<ExitCode, Error> {
    if args.self_test {
        let (base, format, file) = args.read_for_self_test().map_err(Error::Usage)?;
        return self_test::run(base, format, file.as_deref());
    }
    #[cfg(feature = "agents")]
    if agents::is_asked_for(&args) {
        return agents::run(args);
    }
    #[cfg(not(feature = "agents"))]
    if args.agents != AgentsArgs::default() || args.collect != args::CollectArgs::default() {
        return Err(Error::Absent(crate::absent::Absent { what: "`--agents`".to_owned(), feature: "agents" }));
    }
    if args.subscribe.is_asked_for() {
        return subscribe::run(args);
    }
    #[cfg(feature = "script")]
    if scenario::is_asked_for(&args) {
        return scenario::run(args);
    }
    let (draft, script, output, problems) = args.read();
    carry_out_draft(draft, script, &output, problems, None)
}

/// Carries out a draft without mistakes.
fn carry_out_draft(
    draft: Draft,
    script: Option<Scripted>,
    output: &Output,
    mut problems: Vec<String>,
    teller: Option<&Teller>,
) -> Result<ExitCode, Error> {
    let plan = match draft.plan() {
        Ok(plan) => Some(plan),
        Err(found) => {
            // The problems already name a URL that does not parse.
            let new = found.0.iter().filter(|p| !matches!(p, Problem::NoUrl) || output.url.is_empty());
            problems.extend(new.map(|problem| problem.told(Naming::Flags)));
            None
        }
    };
    match plan {
        Some(plan) if problems.is_empty() => carry_out(plan, script, output, teller),
        _ => Err(Error::Usage(problems)),
    }
}

/// Prints lines of a run's script above the live line.
#[derive(Clone, Debug, Default)]
struct Teller(Arc<Mutex<Option<(Display, Shutdown)>>>);

impl Teller {
    /// Prints a line.
    #[cfg(feature = "script")]
    fn tell(&self, text: &str) {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some((display, _)) => display.say(text),
            None => say(text),
        }
    }

    /// Whether the user wants the run to end.
    #[cfg(feature = "script")]
    fn is_cancelled(&self) -> bool {
        let begun = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        begun.as_ref().is_some_and(|(_, shutdown)| shutdown.count() > 0)
    }

    fn begin(&self, display: Display, shutdown: Shutdown) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((display, shutdown));
    }
}

fn carry_out(
    mut plan: Plan,
    script: Option<Scripted>,
    output: &Output,
    teller: Option<&Teller>,
) -> Result<ExitCode, Error> {
    // A file that cannot be written ends the run before it begins.
    let mut made = Made::of([&output.file, &output.page, &output.hdr, &output.gnuplot, &output.percentiles]);
    let log = output.hdr.as_deref().map(HdrLog::create).transpose()?;
    let each = output.gnuplot.as_deref().map(|path| RequestLog::create(path, output.ab.decimals)).transpose()?;
    let mut reports = Reports::open(output)?;
    let shutdown = interrupt::shutdown().map_err(Error::Signals)?;
    if script.is_some() && output.format == Format::Json {
        let kept = keep_stdout_for_the_report();
        reports.stdout = Some(kept.map_err(|source| Error::Output { path: STDOUT.into(), source })?);
    }
    let script = script.map(|script| script.load(&mut plan, &shutdown)).transpose();
    let script = script.map_err(|error| if shutdown.count() > 0 { Error::Interrupted } else { Error::from(error) })?;
    let live = Live::new(shutdown.clone(), plan.connections, plan.requests, log).listing(each);
    let mut live = if output.tui { live.with_tui(&output.title) } else { live };
    let display = live.display();
    if let Some(teller) = teller {
        teller.begin(display.clone(), shutdown);
    }
    let mut written = Ok(());
    let mut code = 0;
    // The report comes before the output of a script's `done`, as in wrk.
    let result = oroshi_bench::run_then(plan, &mut live, |record| {
        display.clear();
        made.0.clear();
        // The output during the run comes before the report.
        if let Some(script) = &script {
            script.flush();
        }
        let mut told = record.clone();
        told.fail_if = output.thresholds.iter().map(|threshold| threshold.judge(record)).collect();
        told.warnings.extend(output.remarks.iter().cloned());
        written =
            reports.write(told.clone(), output).and_then(|()| Ok(script.map_or(Ok(()), |script| script.done(record))?));
        code = judge(&told, output);
    });
    let logged = live.finish(result.is_ok());
    result?;
    written?;
    logged?;
    Ok(ExitCode::from(code))
}

/// Gives standard output away, for the report alone: what a script prints goes to standard error from now on.
///
/// # Errors
/// When there is no descriptor left.
fn keep_stdout_for_the_report() -> io::Result<File> {
    let stdout = fcntl_dupfd_cloexec(io::stdout(), 3)?;
    dup2_stdout(io::stderr())?;
    Ok(stdout.into())
}

/// The name of standard output in messages.
const STDOUT: &str = "standard output";

/// The destinations of a run's report.
struct Reports {
    file: Option<OutputFile>,
    page: Option<OutputFile>,
    percentiles: Option<OutputFile>,
    also: Vec<AlsoFile>,
    /// Standard output, if scripts no longer print to it.
    stdout: Option<File>,
}

impl Reports {
    fn open(output: &Output) -> Result<Self, Error> {
        let opened = |path: &Option<PathBuf>| path.as_deref().map(open).transpose();
        let (file, page, percentiles) = (opened(&output.file)?, opened(&output.page)?, opened(&output.percentiles)?);
        let also = output.also.iter().map(Also::open).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { file, page, percentiles, also, stdout: None })
    }

    fn write(self, mut record: Record, output: &Output) -> Result<(), Error> {
        let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        let flags = <Args as clap::Args>::augment_args(clap::Command::new("bench"));
        record.environment.command = without_secrets(&flags, words);

        let (paint, width) = match self.file {
            None => (terminal::paint(&io::stdout()), terminal::width(&io::stdout())),
            Some(_) => (Paint::PLAIN, table::WIDTH),
        };
        let report = in_format(output.format, &record, output, paint, width)?;
        match (self.file, self.stdout) {
            (None, Some(mut stdout)) => written(stdout.write_all(report.as_bytes()), None)?,
            (file, _) => write(&report, file, output.file.as_deref())?,
        }
        if let (Some(file), Some(path)) = (self.page, output.page.as_deref()) {
            let run = Named { name: output.url.clone(), record: &record };
            write_beside(&oroshi_report::bench_page(&[run]), file, path)?;
        }
        if let (Some(file), Some(path)) = (self.percentiles, output.percentiles.as_deref()) {
            write_beside(&ab::percentiles(&record), file, path)?;
        }
        for (also, file) in output.also.iter().zip(self.also) {
            file.write(&in_format(also.format, &record, output, Paint::PLAIN, table::WIDTH)?)?;
        }
        if let Some(receiver) = &output.remote_write {
            receiver.send(&record, &output.url)?;
        }
        Ok(())
    }
}

/// Writes a run in a format.
fn in_format(format: Format, record: &Record, output: &Output, paint: Paint, width: usize) -> Result<String, Error> {
    Ok(match format {
        Format::Text => oroshi_report::text::bench(record, output.spectrum, paint, width),
        Format::Json => serde_json::to_string_pretty(record)? + "\n",
        Format::Wrk => wrk::report(record, &output.url, output.spectrum, output.backfill),
        Format::Ab => ab::report(record, &output.url, output.ab),
        Format::Csv => oroshi_report::over_time::csv(record),
        Format::Prometheus => oroshi_report::over_time::openmetrics(record, &output.url),
        Format::Junit => oroshi_report::ci::junit_of_run(record),
    })
}

/// Files that are created for a run, and removed again if there is no report.
struct Made<'p>(Vec<&'p Path>);

impl<'p> Made<'p> {
    /// Keeps those of the paths at which no file exists yet.
    fn of<const N: usize>(paths: [&'p Option<PathBuf>; N]) -> Self {
        Self(paths.into_iter().filter_map(|path| path.as_deref()).filter(|path| !path.exists()).collect())
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|path| drop(fs::remove_file(path)));
    }
}

/// Judges the thresholds, whether the server answered and stayed to the end, and whether the score is valid; returns
/// the exit code.
///
/// Prints on standard error, so that thresholds do not change the report.
fn judge(record: &Record, output: &Output) -> u8 {
    let mut code = tell_conditions(&record.fail_if);
    if output.format == Format::Wrk && output.spectrum && wrk::has_bounds(record) {
        say(
            "warning: requests without an answer may have been the slowest: latencies of this report are lower bounds, \
             for which wrk's format has no sign; the other formats have",
        );
    }
    if let Some(why) = oroshi_report::words::scenario::void(record) {
        say(&format!("error: the score is void: {}", printable(why)));
        code = 1;
    }
    if record.requests.completed == 0 {
        say(&format!("error: not one request was answered{}", reasons(record)));
        code = 1;
    } else if let Some(gone) = &record.gone {
        say(&format!("error: {}{}", gone.words(), reasons(record)));
        code = 1;
    }
    code
}

/// Prints the outcome of each condition, and returns the exit code.
fn tell_conditions(conditions: &[Condition]) -> u8 {
    let paint = terminal::paint(&io::stderr());
    let mut code = 0;
    for Condition { condition, outcome, measured, .. } in conditions {
        let word = match outcome {
            ConditionOutcome::Passed => paint.green("passed"),
            ConditionOutcome::Failed => paint.red("FAILED"),
            ConditionOutcome::Undecided => paint.red("UNDECIDED"),
        };
        say(&format!("{word}  --fail-if {condition}: {measured}"));
        if *outcome != ConditionOutcome::Passed {
            code = EXIT_THRESHOLD;
        }
    }
    code
}

/// Returns the failures of a run: `: 40 x connect-refused, 2 x timeout`.
fn reasons(record: &Record) -> String {
    let each: Vec<String> = record.failures.iter().map(|(f, n)| format!("{} x {f}", units::count(*n))).collect();
    match (each.is_empty(), record.cut_short) {
        (false, _) => format!(": {}", each.join(", ")),
        (true, true) => ": the run was ended before".into(),
        (true, false) => String::new(),
    }
}

/// Checks that a report can be written to a file.
pub(crate) fn open(path: &Path) -> Result<OutputFile, Error> {
    OutputFile::open(path).map_err(|source| Error::Output { path: path.to_owned(), source })
}

/// Opens a file for writing and keeps its content, because the run may still fail.
fn open_kept(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).write(true).truncate(false).open(path)
}

/// Writes a report to its file, or to standard output.
///
/// If the file cannot be written, the report goes to standard output too, so that no result is lost.
pub(crate) fn write(report: &str, file: Option<OutputFile>, path: Option<&Path>) -> Result<(), Error> {
    let out = || {
        let mut out = io::stdout().lock();
        out.write_all(report.as_bytes()).and_then(|()| out.flush())
    };
    let Some(file) = file else { return written(out(), path) };
    let result = written(file.write(report.as_bytes()), path);
    if result.is_err() {
        say("the report could not be written to its file: it goes to standard output");
        let _ = out();
    }
    result
}

/// Writes a page, or another file beside the report.
pub(crate) fn write_beside(text: &str, file: OutputFile, path: &Path) -> Result<(), Error> {
    written(file.write(text.as_bytes()), Some(path))
}

/// Names the file in a failed write; a closed pipe is no failure. `path`: the file, if it is not standard output.
fn written(result: io::Result<()>, path: Option<&Path>) -> Result<(), Error> {
    match result {
        // `oroshi bench ... | head` closes the pipe early.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(source) => Err(Error::Output { path: path.map_or_else(|| STDOUT.into(), Path::to_owned), source }),
        Ok(()) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use oroshi_report::sample::bench as sample;

    use super::*;

    #[test]
    fn a_run_without_an_answer_says_why() {
        assert_eq!(reasons(&sample::nothing()), ": 40 x connect-refused");
        let mut record = sample::nothing();
        record.failures.clear();
        assert_eq!(reasons(&record), "");
        record.cut_short = true;
        assert!(reasons(&record).contains("ended before"));
    }

    #[test]
    fn what_ctrl_c_ended_before_there_was_a_result_has_its_own_code() {
        let early = Error::Run(RunError::Cancelled);
        assert_eq!((early.exit_code(), &*early.to_string()), (130, "ended before the run began"));
        assert_eq!(Error::Run(RunError::EndedInWarmUp).exit_code(), 130);
        assert_eq!((Error::Interrupted.exit_code(), Error::Usage(Vec::new()).exit_code()), (130, 2));
    }

    #[test]
    fn a_report_takes_the_place_of_an_earlier_one_and_of_nothing_else() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "a longer report than the next one").unwrap();
        let opened = open(file.path()).unwrap();
        assert_eq!(fs::read_to_string(file.path()).unwrap().len(), 33);
        write("short\n", Some(opened), Some(file.path())).unwrap();
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "short\n");
        assert!(open(Path::new("/nonexistent/report")).unwrap_err().to_string().contains("/nonexistent/report"));
    }
}
