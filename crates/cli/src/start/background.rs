//! Into the background: away from the terminal, its session and its process group.
//!
//! As `start_server` does it, the user is told everything that goes wrong until the sockets are there, and then gets the prompt
//! back. There are three processes: the one that was called waits at a pipe; the second begins a session, of which the third
//! is not the leader, so that it can never come by a terminal again. Each starts this program anew, for no process with
//! threads may go on after a fork.

use std::ffi::OsString;
use std::io::{self, Read, Write};
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
    match said.trim_end().strip_prefix("exit ").map(str::parse::<u8>) {
        // It has said why.
        Some(Ok(code)) => Ok(ExitCode::from(code)),
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

/// In the third: it is set up.
pub(super) fn settled() {
    report(SETTLED);
}

/// In the third: it has come to nothing.
pub(super) fn failed(code: u8) {
    report(&format!("exit {code}\n"));
}

fn report(text: &str) {
    // Whoever waits for it may have been interrupted.
    let _ = io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush());
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
