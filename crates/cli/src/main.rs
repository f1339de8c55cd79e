//! The `oroshi` command: flags in, reports and exit codes out. What it does is done by the crates beside this one.
//!
//! Read it in this order:
//!
//! 1. This file: the subcommands, how errors are told, the exit codes.
//! 2. [`mod@bench`]: `oroshi bench`, from its flags to its reports. [`target`]: the server that answers as told.
//! 3. [`compare`]: `oroshi compare`. [`lab`]: `oroshi lab`, experiments from files. What both need: [`lab_live`]: the
//!    live line, [`verdicts`]: the exit code.
//! 4. [`mod@report`]: saved results as a page. [`saved`]: how they are read.
//! 5. [`fetch`]: `oroshi fetch`, many URLs at a time.
//! 6. [`push`]: `oroshi push`, the push hub. [`gate`]: `oroshi gate`, the gateway. [`start`]: `oroshi start`, the
//!    superdaemon and how it is spoken to. What servers tell their operator: [`log`].
//! 7. [`child`]: a target as a child process. [`keep`]: the process above an experiment's servers. [`interrupt`]:
//!    Ctrl-C.
//! 8. [`problems`]: what is wrong with flags. [`negative`]: values that the parser would take for flags. [`terminal`]:
//!    what the terminal shows. [`absent`]: what a build without all features says.
//!
//! Exit codes: 0 done; 1 the work failed; 2 wrong usage; 3 a threshold came out against the user; 130 ended by Ctrl-C
//! before there was a result, or by a second one.

#[cfg(not(feature = "full"))]
mod absent;
mod bench;
mod child;
mod compare;
#[cfg(feature = "fetch")]
mod fetch;
#[cfg(feature = "gate")]
mod gate;
mod interrupt;
mod keep;
mod lab;
mod lab_live;
#[cfg(any(feature = "gate", feature = "push"))]
mod log;
mod negative;
mod output;
mod problems;
#[cfg(feature = "push")]
mod push;
mod report;
mod saved;
#[cfg(feature = "start")]
mod start;
mod target;
mod terminal;
mod verdicts;

use std::error::Error;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::{ArgAction, Parser, Subcommand};
use oroshi_words::printable;

/// The HTTP performance toolkit: measures HTTP servers, and proves which of two is faster.
#[derive(Debug, Parser)]
#[command(
    name = "oroshi",
    version,
    disable_version_flag = true,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Print the version
    #[arg(short = 'v', short_alias = 'V', long, action = ArgAction::Version, global = true)]
    version: Option<bool>,
}

#[derive(Debug, Subcommand)]
enum Command {
    // Each gives the version of the whole.
    #[command(display_name = "oroshi")]
    Bench(Box<bench::Args>),
    #[command(display_name = "oroshi")]
    Compare(Box<compare::Args>),
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
    Lab(lab::Args),
    #[cfg(feature = "push")]
    #[command(display_name = "oroshi")]
    Push(push::Args),
    #[cfg(not(feature = "push"))]
    Push(absent::Args),
    #[command(display_name = "oroshi")]
    Report(report::Args),
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
        Command::Bench(args) => {
            bench::run(*args).unwrap_or_else(|error| failed(&error, error.exit_code(), error.next_step()))
        }
        Command::Compare(args) => {
            compare::run(*args).unwrap_or_else(|error| failed(&error, error.exit_code(), error.next_step()))
        }
        #[cfg(feature = "fetch")]
        Command::Fetch(args) => {
            fetch::run(*args).unwrap_or_else(|error| failed(&error, error.exit_code(), error.next_step()))
        }
        #[cfg(not(feature = "fetch"))]
        Command::Fetch(_) => absent::subcommand("fetch"),
        Command::Lab(args) => {
            lab::run(args).unwrap_or_else(|error| failed(&error, error.exit_code(), error.next_step()))
        }
        #[cfg(feature = "gate")]
        Command::Gate(args) => {
            gate::run(&args).unwrap_or_else(|error| failed(&error, error.exit_code(), error.next_step()))
        }
        #[cfg(not(feature = "gate"))]
        Command::Gate(_) => absent::subcommand("gate"),
        #[cfg(feature = "push")]
        Command::Push(args) => {
            push::run(&args).unwrap_or_else(|error| failed(&error, error.exit_code(), error.next_step()))
        }
        #[cfg(not(feature = "push"))]
        Command::Push(_) => absent::subcommand("push"),
        Command::Report(args) => {
            report::run(&args).unwrap_or_else(|error| failed(&error, error.exit_code(), error.next_step()))
        }
        #[cfg(feature = "start")]
        Command::Start(args) => {
            start::run(*args).unwrap_or_else(|error| failed(&error, error.exit_code(), error.next_step()))
        }
        #[cfg(not(feature = "start"))]
        Command::Start(_) => absent::subcommand("start"),
        Command::Target(args) => {
            child::end_with_parent();
            target::run(*args).unwrap_or_else(|error| failed(&error, error.exit_code(), None))
        }
        Command::Keep(args) => keep::run(args),
        #[cfg(feature = "start")]
        Command::StartChild(args) => start::run_child(args),
        #[cfg(feature = "start")]
        Command::StartGuard(args) => start::run_guard(&args),
    }
}

/// What is said of a load's flags that the parser would misread: values below zero, and flags of another load
/// generator.
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

/// A panic is a defect. It ends the process at once, on whichever thread it is, rather than to leave others waiting for
/// that one.
fn end_with_a_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // A database that sends garbage makes the client for it panic; the look-up takes that for what it is.
        // A call into a script that comes upon one of mlua's panics fails alone.
        #[cfg(feature = "gate")]
        if oroshi_lookup::panics_are_contained() || oroshi_gate::panics_are_contained() {
            return;
        }
        tell(panic);
        std::process::abort()
    }));
}

/// Says something to the user, beside the report.
#[cfg(not(test))]
fn say(text: &str) {
    use std::io::Write;
    // Nobody may be there to hear it.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// The same within a test of this crate, whose words belong to that test: a "FAILED" that it wants must not look like
/// its own.
#[cfg(test)]
#[expect(clippy::print_stderr, reason = "it is what the test harness keeps to itself")]
fn say(text: &str) {
    eprintln!("{text}");
}

/// What went wrong, why, and what to do next.
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
    // It may repeat what a file or a server said.
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
