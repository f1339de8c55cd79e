//! Into the background: away from the terminal, its session and its process group.
//!
//! The user sees all errors until the sockets are open and the command runs, and then gets the prompt back
//! (`start_server` does not wait for the command). There are three processes. The calling process waits at a pipe.
//! The second one begins a session. The third one is not the leader of that session, so it can never acquire a
//! terminal. Each process starts this program again, because a process with threads must not continue after a fork.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use super::Error;

const SETTLED: &str = "settled\n";

/// Waits, in the calling process, until the process in the background is set up or reports an error.
pub(super) fn leave() -> Result<ExitCode, Error> {
    let failed = |source| Error::System { what: "cannot start the process for the background", source };
    let mut command = next_stage(1);
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(failed)?;
    let mut said = String::new();
    if let Some(mut out) = child.stdout.take() {
        // Reads one line and not to the end, because the log command may hold the other end too.
        let mut byte = [0];
        while !said.ends_with('\n') && out.read(&mut byte).map_err(failed)? == 1 {
            said.push(char::from(byte[0]));
        }
    }
    let _ = child.wait();
    let outcome = said.trim_end().strip_prefix("exit ").map(|said| said.split_once(' ').unwrap_or((said, "")));
    match outcome.map(|(code, why)| (code.parse::<u8>(), why)) {
        // The error is printed already.
        Some((Ok(code), "")) => Ok(ExitCode::from(code)),
        // Its output goes to the log by now.
        Some((Ok(_), why)) => Err(Error::Asked(format!("{why}; the log says more"))),
        _ if said == SETTLED => Ok(ExitCode::SUCCESS),
        _ => Err(Error::Asked("the process in the background has ended before it was set up".to_owned())),
    }
}

/// Begins a session, in the second process, and starts the third one.
pub(super) fn detach() -> Result<ExitCode, Error> {
    rustix::process::setsid()
        .map_err(|errno| Error::System { what: "cannot leave the terminal's session", source: errno.into() })?;
    let failed = |source| Error::System { what: "cannot start the process for the background", source };
    next_stage(2).spawn().map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

/// The pipe from the third process to the waiting calling process.
///
/// Standard output, which was that pipe, becomes the log.
#[derive(Debug)]
pub(super) struct Caller(File);

impl Caller {
    /// Takes the pipe from standard output; call this before anything replaces standard output.
    pub(super) fn find() -> Result<Self, Error> {
        let what = "cannot keep the pipe to the calling process";
        let kept = io::stdout().as_fd().try_clone_to_owned().map_err(|source| Error::System { what, source })?;
        Ok(Self(kept.into()))
    }

    /// Reports success: the user gets the prompt back.
    pub(super) fn settled(self) {
        self.report(SETTLED);
    }

    /// Reports a failure. `why` is a line that the user has not seen yet; empty if there is none.
    pub(super) fn failed(self, code: u8, why: &str) {
        let told = format!("exit {code} {}", why.replace('\n', " "));
        self.report(&format!("{}\n", told.trim_end()));
    }

    fn report(&self, text: &str) {
        // The calling process may have been interrupted.
        let _ = (&self.0).write_all(text.as_bytes());
    }
}

/// Returns a command that runs this command line again.
fn next_stage(stage: u8) -> Command {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    let place = words.iter().position(|word| word == "start").unwrap_or(0);
    words.retain(|word| !word.to_string_lossy().starts_with("--oroshi-stage="));
    words.insert(place + 1, format!("--oroshi-stage={stage}").into());
    let mut command = Command::new("/proc/self/exe");
    command.arg0(&words[0]).args(&words[1..]);
    command
}
