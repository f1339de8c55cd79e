//! Into the background: away from the terminal, its session and its process group.
//!
//! The user is told everything that goes wrong until the sockets are there and the command runs, and then gets the prompt
//! back (`start_server` does not wait for the command). There are three processes: the one that was called waits at a pipe; the second begins a session, of which the third
//! is not the leader, so that it can never come by a terminal again. Each starts this program anew, for no process with
//! threads may go on after a fork.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use super::Error;

const SETTLED: &str = "settled\n";

/// In the process that was called: waits until the one in the background is set up, or has said why it is not.
pub(super) fn leave() -> Result<ExitCode, Error> {
    let failed = |source| Error::System { what: "cannot start the process for the background", source };
    let mut command = next_stage(1);
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(failed)?;
    let mut said = String::new();
    if let Some(mut out) = child.stdout.take() {
        // It ends with the first line: the log command may have the other end as well.
        let mut byte = [0];
        while !said.ends_with('\n') && out.read(&mut byte).map_err(failed)? == 1 {
            said.push(char::from(byte[0]));
        }
    }
    let _ = child.wait();
    let outcome = said.trim_end().strip_prefix("exit ").map(|said| said.split_once(' ').unwrap_or((said, "")));
    match outcome.map(|(code, why)| (code.parse::<u8>(), why)) {
        // It has said why.
        Some((Ok(code), "")) => Ok(ExitCode::from(code)),
        // What it says goes to the log by now.
        Some((Ok(_), why)) => Err(Error::Asked(format!("{why}; the log says more"))),
        _ if said == SETTLED => Ok(ExitCode::SUCCESS),
        _ => Err(Error::Asked("the process in the background has ended before it was set up".to_owned())),
    }
}

/// In the second process: begins a session, and starts the third.
pub(super) fn detach() -> Result<ExitCode, Error> {
    rustix::process::setsid()
        .map_err(|errno| Error::System { what: "cannot leave the terminal's session", source: errno.into() })?;
    let failed = |source| Error::System { what: "cannot start the process for the background", source };
    next_stage(2).spawn().map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

/// In the third: the way to the process that was called, which waits. Standard output, which leads there, becomes the log's.
#[derive(Debug)]
pub(super) struct Caller(File);

impl Caller {
    /// To be made before anything changes where standard output leads.
    pub(super) fn find() -> Result<Self, Error> {
        let what = "cannot keep the way to the process that was called";
        let kept = io::stdout().as_fd().try_clone_to_owned().map_err(|source| Error::System { what, source })?;
        Ok(Self(kept.into()))
    }

    /// All is well: the caller gets the prompt back.
    pub(super) fn settled(self) {
        self.report(SETTLED);
    }

    /// It has come to nothing. `why` is what the caller's user has not been told yet, in one line; empty where all was told.
    pub(super) fn failed(self, code: u8, why: &str) {
        let told = format!("exit {code} {}", why.replace('\n', " "));
        self.report(&format!("{}\n", told.trim_end()));
    }

    fn report(&self, text: &str) {
        // Whoever waits for it may have been interrupted.
        let _ = (&self.0).write_all(text.as_bytes());
    }
}

/// This command line once more.
fn next_stage(stage: u8) -> Command {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    let place = words.iter().position(|word| word == "start").unwrap_or(0);
    words.retain(|word| !word.to_string_lossy().starts_with("--oroshi-stage="));
    words.insert(place + 1, format!("--oroshi-stage={stage}").into());
    let mut command = Command::new("/proc/self/exe");
    command.arg0(&words[0]).args(&words[1..]);
    command
}
