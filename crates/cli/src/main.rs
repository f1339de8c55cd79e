//! The `oroshi` command: flags in, reports and exit codes out. The crates beside this one do the work.
//!
//! Read it in this order:
//!
//! 1. This file: the subcommands, error messages, exit codes.
//! 2. [`mod@bench`]: `oroshi bench`, from its flags to its reports. `agent`: `oroshi agent`, a load machine.
//!    [`target`]: the test server.
//! 3. [`compare`]: `oroshi compare`. [`lab`]: `oroshi lab`, experiments from files. Both use
//!    [`lab_live`] (the live line), [`verdicts`] (the exit code) and [`script_load`] (users of a script as load).
//!    [`history`]: `oroshi history`, results over commits. [`git`]: questions to git.
//! 4. [`mod@report`]: saved results as a page. [`saved`] reads them. [`scenario`]: `oroshi scenario`, scripts from
//!    recordings.
//! 5. [`fetch`]: `oroshi fetch`, many URLs concurrently.
//! 6. [`push`]: `oroshi push`, the push hub. [`gate`]: `oroshi gate`, the gateway. [`start`]: `oroshi start`, the
//!    superdaemon. The servers share [`log`] and [`service`].
//! 7. [`child`]: a target as a child process. [`keep`]: the process above an experiment's servers. [`interrupt`]:
//!    Ctrl-C.
//! 8. `manual`: completions for shells, and manual pages.
//! 9. [`problems`]: mistakes in flags. [`negative`]: values that the parser would take for flags. [`terminal`]: the
//!    width and the colours of the terminal. `screen`: all of the terminal, for `bench --tui`. [`tls`]: flags about
//!    TLS. `absent`: messages of a build without all features.
//!
//! Circles: the files of `bench` share its error and the opening of kept files. Its `ab/files` and `observer` call each
//! other, because a log of requests is an observer; `args` holds the flags of subscriptions, and their reader those of
//! the load. `push/native` names the habits that `push/kuiperbelt` sets. `start` and `start/background` share the
//! error.
//!
//! Each command's `Error::exit_code` chooses the exit code: 0 done; 1 the work failed; 2 wrong usage; 3 a threshold or
//! comparison failed the user's condition; 130 ended by Ctrl-C before there was a result, or by a second Ctrl-C.

#[cfg(not(feature = "full"))]
mod absent;
#[cfg(feature = "agents")]
mod agent;
mod agents_load;
mod bench;
mod child;
mod compare;
#[cfg(feature = "fetch")]
mod fetch;
#[cfg(all(test, feature = "full"))]
mod flag_tables;
mod formats;
#[cfg(feature = "gate")]
mod gate;
mod git;
mod history;
mod interrupt;
mod keep;
mod lab;
mod lab_live;
#[cfg(any(feature = "gate", feature = "push"))]
mod listener_keys;
#[cfg(any(feature = "gate", feature = "push"))]
mod log;
#[cfg(feature = "manual")]
mod manual;
mod negative;
mod output;
mod problems;
#[cfg(feature = "push")]
mod push;
mod report;
mod saved;
#[cfg(feature = "script")]
mod scenario;
#[cfg(feature = "tui")]
mod screen;
mod script_load;
mod service;
#[cfg(feature = "start")]
mod start;
mod target;
mod terminal;
mod tls;
mod verdicts;

use std::error::Error;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::{ArgAction, Parser, Subcommand};
use oroshi_words::printable;

/// Static binaries allocate with mimalloc: musl's allocator takes one lock for all threads.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measure HTTP servers, prove which of two is faster, and replace the slow parts
#[derive(Debug, Parser)]
#[command(
    name = "oroshi",
    version,
    disable_help_flag = true,
    disable_version_flag = true,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    // With a heading of their own these two stand last, behind each command's own flags.
    /// Print help: -h in short, --help in full
    #[arg(short, long, action = ArgAction::Help, global = true, help_heading = "Help")]
    help: Option<bool>,

    /// Print the version
    #[arg(short = 'v', short_alias = 'V', long, action = ArgAction::Version, global = true, help_heading = "Help")]
    version: Option<bool>,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[cfg(feature = "agents")]
    #[command(display_name = "oroshi")]
    Agent(agent::Args),
    #[cfg(not(feature = "agents"))]
    Agent(absent::Args),
    // `--version` of a subcommand prints the version of oroshi.
    #[command(display_name = "oroshi")]
    Bench(Box<bench::Args>),
    #[command(display_name = "oroshi")]
    Compare(Box<compare::Args>),
    #[cfg(feature = "manual")]
    #[command(display_name = "oroshi")]
    Completions(manual::CompletionsArgs),
    #[cfg(not(feature = "manual"))]
    Completions(absent::Args),
    #[cfg(feature = "fetch")]
    #[command(display_name = "oroshi")]
    Fetch(Box<fetch::Args>),
    #[cfg(not(feature = "fetch"))]
    Fetch(absent::Args),
    #[cfg(feature = "gate")]
    #[command(display_name = "oroshi")]
    Gate(gate::Args),
    #[cfg(not(feature = "gate"))]
    Gate(absent::Args),
    #[command(display_name = "oroshi")]
    History(history::Args),
    #[command(display_name = "oroshi")]
    Lab(lab::Args),
    #[cfg(feature = "manual")]
    #[command(display_name = "oroshi")]
    Man(manual::ManArgs),
    #[cfg(not(feature = "manual"))]
    Man(absent::Args),
    #[cfg(feature = "push")]
    #[command(display_name = "oroshi")]
    Push(push::Args),
    #[cfg(not(feature = "push"))]
    Push(absent::Args),
    #[command(display_name = "oroshi")]
    Report(report::Args),
    #[cfg(feature = "script")]
    #[command(display_name = "oroshi")]
    Scenario(scenario::Args),
    #[cfg(not(feature = "script"))]
    Scenario(absent::Args),
    #[cfg(feature = "start")]
    #[command(display_name = "oroshi")]
    Start(Box<start::Args>),
    #[cfg(not(feature = "start"))]
    Start(absent::Args),
    #[command(display_name = "oroshi")]
    Target(Box<target::Args>),
    #[command(display_name = "oroshi", hide = true)]
    Keep(keep::Args),
    #[cfg(feature = "start")]
    #[command(display_name = "oroshi", hide = true)]
    StartChild(start::ChildArgs),
    #[cfg(feature = "start")]
    #[command(display_name = "oroshi", hide = true)]
    StartGuard(start::GuardArgs),
}

fn main() -> ExitCode {
    end_with_a_panic();
    let words: Vec<OsString> = std::env::args_os().collect();
    #[cfg(feature = "push")]
    let words = push::two_dashes(words);
    if let Some(said) = misread(&words) {
        say(&said);
        return ExitCode::from(2);
    }
    let cli = Cli::parse_from(words);
    match cli.command {
        #[cfg(feature = "agents")]
        Command::Agent(args) => ended(agent::run(&args)),
        #[cfg(not(feature = "agents"))]
        Command::Agent(_) => absent::subcommand_of("agent", "agents"),
        Command::Bench(args) => ended(bench::run(*args)),
        Command::Compare(args) => ended(compare::run(*args)),
        #[cfg(feature = "manual")]
        Command::Completions(args) => ended(manual::completions(&args)),
        #[cfg(not(feature = "manual"))]
        Command::Completions(_) => absent::subcommand_of("completions", "manual"),
        #[cfg(feature = "fetch")]
        Command::Fetch(args) => ended(fetch::run(*args)),
        #[cfg(not(feature = "fetch"))]
        Command::Fetch(_) => absent::subcommand("fetch"),
        Command::History(args) => ended(history::run(args)),
        Command::Lab(args) => ended(lab::run(args)),
        #[cfg(feature = "manual")]
        Command::Man(args) => ended(manual::man(&args)),
        #[cfg(not(feature = "manual"))]
        Command::Man(_) => absent::subcommand_of("man", "manual"),
        #[cfg(feature = "gate")]
        Command::Gate(args) => ended(gate::run(&args)),
        #[cfg(not(feature = "gate"))]
        Command::Gate(_) => absent::subcommand("gate"),
        #[cfg(feature = "push")]
        Command::Push(args) => ended(push::run(&args)),
        #[cfg(not(feature = "push"))]
        Command::Push(_) => absent::subcommand("push"),
        Command::Report(args) => ended(report::run(&args)),
        #[cfg(feature = "script")]
        Command::Scenario(args) => ended(scenario::run(args)),
        #[cfg(not(feature = "script"))]
        Command::Scenario(_) => absent::subcommand_of("scenario", "script"),
        #[cfg(feature = "start")]
        Command::Start(args) => ended(start::run(*args)),
        #[cfg(not(feature = "start"))]
        Command::Start(_) => absent::subcommand("start"),
        Command::Target(args) => {
            child::end_with_parent();
            ended(target::run(*args))
        }
        Command::Keep(args) => keep::run(args),
        #[cfg(feature = "start")]
        Command::StartChild(args) => start::run_child(args),
        #[cfg(feature = "start")]
        Command::StartGuard(args) => start::run_guard(&args),
    }
}

/// Explains load flags that the parser would misread: values below zero, and flags of another load generator.
fn misread(words: &[OsString]) -> Option<String> {
    let [_, subcommand, rest @ ..] = words else { return None };
    match subcommand.to_str()? {
        "bench" => {
            let bench = <bench::Args as clap::Args>::augment_args(clap::Command::new("bench"));
            let unknown = || bench::foreign::unknown(&bench, &Cli::try_parse_from(words).err()?);
            let theirs = || bench::foreign::single_dash(&bench, rest);
            negative::value(&bench, rest).or_else(theirs).or_else(unknown)
        }
        "compare" => {
            let compare = <compare::Args as clap::Args>::augment_args(clap::Command::new("compare"));
            negative::value(&compare, rest)
        }
        _ => None,
    }
}

/// Makes a panic on any thread end the process, because other threads would wait for that one forever.
fn end_with_a_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // A database client panics on garbage from its database; the look-up turns that into an error.
        // mlua panics within a call into a script; only that call fails.
        #[cfg(feature = "gate")]
        if oroshi_lookup::panics_are_contained() || oroshi_gate::panics_are_contained() {
            return;
        }
        #[cfg(feature = "tui")]
        screen::restore_at_once();
        tell(panic);
        std::process::abort()
    }));
}

/// Prints a message on standard error, beside the report.
#[cfg(not(test))]
fn say(text: &str) {
    use std::io::Write;
    // Standard error may be closed.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Prints a message into the output that the test harness captures: a wanted "FAILED" must not look like the test's
/// own.
#[cfg(test)]
#[expect(clippy::print_stderr, reason = "it is what the test harness keeps to itself")]
fn say(text: &str) {
    eprintln!("{text}");
}

/// The error of a command.
trait CommandError: Error {
    /// Returns the exit code: 2 for a wrong command line or configuration, 130 if Ctrl-C came before there was a
    /// result, 1 if the work failed.
    fn exit_code(&self) -> u8;

    /// Returns the next step, if the message does not name it.
    fn next_step(&self) -> Option<&'static str>;
}

fn ended(result: Result<ExitCode, impl CommandError>) -> ExitCode {
    result.unwrap_or_else(|error| failed(&error, error.exit_code(), error.next_step()))
}

/// Prints the error, its causes and the next step; returns the exit code.
fn failed(error: &dyn Error, code: u8, next_step: Option<&str>) -> ExitCode {
    say(&explanation(error, next_step));
    ExitCode::from(code)
}

fn explanation(error: &dyn Error, next_step: Option<&str>) -> String {
    let mut last = error.to_string();
    // Each line is an error, or belongs to the one before.
    let line = |line: &str| if line.starts_with(' ') { line.to_owned() } else { format!("error: {line}") };
    let mut text = last.lines().map(line).collect::<Vec<_>>().join("\n");
    let mut cause = error.source();
    while let Some(error) = cause {
        let this = error.to_string();
        // Some errors repeat their cause.
        if !last.ends_with(&this) {
            text += &format!("\n  caused by: {this}");
        }
        last = this;
        cause = error.source();
    }
    if let Some(step) = next_step {
        text += &format!("\n  next: {step}");
    }
    // The text may contain bytes of a file or a server.
    printable(&text)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_flags_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Chain {
        text: &'static str,
        source: Option<Box<Chain>>,
    }

    #[test]
    fn causes_are_told_once_each() {
        let chain = |texts: &[&'static str]| {
            texts.iter().rev().fold(None, |source, &text| Some(Box::new(Chain { text, source }))).unwrap()
        };
        let told = explanation(&*chain(&["a: b", "b", "c"]), Some("do this"));
        assert_eq!(told, "error: a: b\n  caused by: c\n  next: do this");
        assert_eq!(explanation(&*chain(&["a\nb\n  more"]), None), "error: a\nerror: b\n  more");
        assert_eq!(explanation(&*chain(&["a\x1b[2J"]), None), "error: a\\u{1b}[2J", "a terminal shows it");
    }
}
