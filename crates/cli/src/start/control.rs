//! Talks to a running superdaemon: by its control socket, or by its files and signals as `start_server` does.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use oroshi_net::process::signal_to;
use oroshi_start::{ControlError, FileError, Outcome, Running, ask_restart, ask_status, listed_generations};
use rustix::process::Signal;

use super::args::Args;
use super::read::control_path;
use super::{Error, text};
use crate::say;

/// Interval between two looks at the status file.
const LOOK: Duration = Duration::from_millis(100);

/// Carries out `--restart`, `--stop` or `--status`.
pub(super) fn run(args: &Args) -> Result<ExitCode, Error> {
    if !args.command.is_empty() {
        let problem = "--restart, --stop, --status: expected no command, as one runs already";
        return Err(Error::Usage(vec![problem.to_owned()]));
    }
    match () {
        () if args.stop => stop(args),
        () if args.restart => restart(args),
        () => status(args),
    }
}

fn stop(args: &Args) -> Result<ExitCode, Error> {
    let problem = "--stop: expected --pid-file FILE too, to find the process";
    let path = args.pid_file.as_deref().ok_or_else(|| Error::Usage(vec![problem.to_owned()]))?;
    let running = Running::find(path)?;
    say(&format!("stopping the superdaemon (pid {})", running.pid));
    signal(&running, Signal::TERM)?;
    running.wait()?;
    Ok(ExitCode::SUCCESS)
}

fn status(args: &Args) -> Result<ExitCode, Error> {
    let problem = "--status: expected --pid-file FILE, --status-file FILE or --control PATH too, to find the process";
    let path = control_path(args).ok_or_else(|| Error::Usage(vec![problem.to_owned()]))?;
    let status = match (ask_status(&path), &args.pid_file) {
        (Err(ControlError::Connect { path, source }), Some(pid_file)) => {
            // The pid file may tell why the socket is gone.
            if let Err(error @ (FileError::Ended { .. } | FileError::NoPid { .. })) = Running::find(pid_file) {
                return Err(error.into());
            }
            return Err(ControlError::Connect { path, source }.into());
        }
        (status, _) => status?,
    };
    let text = if args.json {
        serde_json::to_string_pretty(&status).map_err(|error| Error::Asked(error.to_string()))? + "\n"
    } else {
        text::status(&status)
    };
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|source| Error::System { what: "cannot write to standard output", source })?;
    Ok(ExitCode::SUCCESS)
}

fn restart(args: &Args) -> Result<ExitCode, Error> {
    if let Some(path) = control_path(args) {
        match ask_restart(&path, args.wait) {
            Ok(outcome) => return come_out(outcome),
            // A superdaemon of Server::Starter, or one without a control socket.
            Err(ControlError::Connect { .. } | ControlError::Path { .. }) if !args.wait && args.control.is_none() => {}
            Err(error) => return Err(error.into()),
        }
    }
    let running = args.pid_file.as_deref().map(Running::find).transpose()?;
    let (Some(running), Some(status_file)) = (running, &args.status_file) else {
        let problem = "--restart: expected --pid-file FILE and --status-file FILE too, or --control PATH, to find \
                       the process";
        return Err(Error::Usage(vec![problem.to_owned()]));
    };
    restart_by_files(&running, status_file)
}

fn come_out(outcome: Outcome) -> Result<ExitCode, Error> {
    match outcome {
        Outcome::Replaced { generation, pid } => {
            say(&format!("generation {generation} (pid {pid}) serves; the older ones have ended"));
            Ok(ExitCode::SUCCESS)
        }
        Outcome::Failed { generation, why, stays, again } => Err(Error::Failed { generation, why, stays, again }),
        Outcome::Ending => Err(Error::Asked("the superdaemon is ending, and starts no generation any more".to_owned())),
    }
}

/// Restarts by HUP, and reads the status file until it lists only a new generation.
fn restart_by_files(running: &Running, status_file: &Path) -> Result<ExitCode, Error> {
    let newest = listed_generations(status_file)?.last().copied().unwrap_or(0);
    signal(running, Signal::HUP)?;
    loop {
        let listed = match listed_generations(status_file) {
            Ok(listed) => listed,
            // If the superdaemon has ended, that is the better explanation.
            Err(FileError::Read { .. }) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        if matches!(listed[..], [only] if only > newest) {
            return Ok(ExitCode::SUCCESS);
        }
        Running::find(running.path())?;
        sleep(LOOK);
    }
}

fn signal(running: &Running, signal: Signal) -> Result<(), Error> {
    if signal_to(running.pid, signal) {
        return Ok(());
    }
    let pid = running.pid;
    Err(Error::Asked(format!("cannot signal process {pid}: it belongs to another user, or has just ended")))
}
