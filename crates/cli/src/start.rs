//! `oroshi start`: runs a command behind sockets that outlive it. `args` has the flags, `read` turns them into a plan,
//! `owner` looks up users, `background` leaves the terminal, `control` talks to a running superdaemon, and `text`
//! prints its state.
//!
//! The crate `oroshi-start` is the superdaemon itself. Two hidden subcommands turn this process into the command of a
//! generation (`start-child`), or into the process that ends the generations of a dead superdaemon (`start-guard`).

mod args;
mod background;
mod control;
mod owner;
mod read;
mod text;

use std::cell::Cell;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oroshi_net::handover::HandoverError;
use oroshi_net::inherit::has_sockets_from_systemd;
use oroshi_net::listen::ListenError;
use oroshi_net::process::signal_named;
use oroshi_start::{Child, ChildError, ControlError, FileError, LogError, SocketError, StartError};
use oroshi_words::{Date, with_causes};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub(crate) use args::{Args, ChildArgs, GuardArgs};
use background::Caller;

use crate::CommandError;
use crate::failed;

/// The reasons why the superdaemon did not start, or did not obey.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Some options are wrong: each line names one, its value, and what was expected. Correct them.
    #[error("{}", .0.join("\n"))]
    Usage(Vec<String>),
    /// It could not begin; the cause says why.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The running superdaemon could not be found; the cause says why.
    #[error(transparent)]
    File(#[from] FileError),
    /// The system refused what every process needs.
    #[error("{what}")]
    System {
        /// What could not be done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The superdaemon cannot be asked; the cause says why.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The new generation failed. Its output, in the log, says why.
    #[error("generation {generation} failed: {why}")]
    Failed {
        /// Its number.
        generation: u64,
        /// The reason, in words.
        why: String,
        /// The generation that keeps serving, if any.
        stays: Option<u64>,
        /// Whether another attempt follows by itself.
        again: bool,
    },
    /// The running superdaemon did not do it; the message says why.
    #[error("{0}")]
    Asked(String),
}

impl CommandError for Error {
    fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) => 2,
            _ => 1,
        }
    }

    fn next_step(&self) -> Option<&'static str> {
        match self {
            Error::Failed { stays: Some(_), again: false, .. } => {
                Some("the old generation keeps serving; read the new one's output in the log, and restart again")
            }
            Error::Failed { stays: Some(_), again: true, .. } => {
                Some("the old generation keeps serving, and another attempt follows; read this one's output in the log")
            }
            Error::Failed { stays: None, again: true, .. } => {
                Some("no generation serves now, and another attempt follows; read this one's output in the log")
            }
            Error::Failed { stays: None, again: false, .. } | Error::Start(StartError::Command { .. }) => {
                Some("read the command's output above, or in the log; correct the command, and start again")
            }
            Error::Start(StartError::Socket(SocketError::Listen { source: ListenError::InUse { .. }, .. })) => {
                Some("find the process (ss -ltnp, ss -lxp), and end it or listen elsewhere")
            }
            Error::Start(StartError::Log(LogError::Ended { .. })) => {
                Some("read the log command's output above; correct --log-file, and start again")
            }
            Error::File(FileError::Ended { .. }) => Some("start it again; it takes over the file"),
            Error::Control(ControlError::Connect { .. }) => {
                Some("check that it runs, and with which --control; the first lines of its log say if it has none")
            }
            Error::Start(StartError::File(FileError::InUse { .. })) => {
                Some("stop that one (oroshi start --stop --pid-file FILE), or give this one a file of its own")
            }
            _ => None,
        }
    }
}

/// Becomes the superdaemon until a signal ends it, or talks to a running one.
pub(crate) fn run(args: Args) -> Result<ExitCode, Error> {
    if args.restart || args.stop || args.status {
        return control::run(&args);
    }
    let stage = args.stage;
    let plan = read::plan(args).map_err(Error::Usage)?;
    let caller = match (plan.is_daemon(), stage) {
        // LISTEN_PID names the calling process, and the process in the background has another number.
        (true, None) if has_sockets_from_systemd() => {
            let why = "--daemonize: systemd hands down sockets (LISTEN_FDS) to this process alone: expected no \
                       --daemonize; systemd runs a service in the background by itself";
            return Err(Error::Usage(vec![why.to_owned()]));
        }
        (true, None) => return background::leave(),
        (true, Some(1)) => return background::detach(),
        (true, _) => Some(Rc::new(Cell::new(Some(Caller::find()?)))),
        (false, _) => None,
    };
    let mut say = |text: &str| log(text);
    let to_settle = caller.clone();
    let settled = move || {
        if let Some(caller) = to_settle.and_then(|caller| caller.take()) {
            caller.settled();
        }
    };
    let ran = oroshi_start::run(&plan, &mut say, settled);
    let ran = ran.map(|()| ExitCode::SUCCESS).map_err(Error::Start);
    match (ran, caller.and_then(|caller| caller.take())) {
        (Err(error @ Error::Start(StartError::Command { .. })), Some(caller)) => {
            caller.failed(error.exit_code(), &error.to_string());
            Err(error)
        }
        (Err(error), Some(caller)) => {
            // Standard error still belongs to the caller, which therefore reads the reason before the end.
            let exit_code = failed(&error, error.exit_code(), error.next_step());
            caller.failed(error.exit_code(), "");
            Ok(exit_code)
        }
        (ran, _) => ran,
    }
}

/// Becomes the command of a generation.
pub(crate) fn run_child(args: ChildArgs) -> ExitCode {
    let error = match read::child(args).map(Child::become_it) {
        Ok(Ok(never)) => match never {},
        Ok(Err(error)) => error,
        Err(problem) => {
            log(&problem);
            return ExitCode::from(2);
        }
    };
    log(&with_causes(&error));
    // As in a shell: 127 not found, 126 found but not executable.
    match &error {
        ChildError::Start { error: HandoverError::Exec(error), .. } if error.kind() == io::ErrorKind::NotFound => {
            ExitCode::from(127)
        }
        _ => ExitCode::from(126),
    }
}

/// Waits for the superdaemon's end, and ends the generations that it has left.
pub(crate) fn run_guard(args: &GuardArgs) -> ExitCode {
    let Some(signal) = signal_named(&args.signal) else { return ExitCode::from(2) };
    match oroshi_start::guard(signal, Duration::from_millis(args.patience_ms)) {
        Ok(ended) => {
            if !ended.is_empty() {
                let ended: Vec<String> = ended.iter().map(u32::to_string).collect();
                log(&format!("the superdaemon has died: ended its generations (pid {})", ended.join(", ")));
            }
            ExitCode::SUCCESS
        }
        Err(_) => ExitCode::FAILURE,
    }
}

/// Maximum time that a line waits for a slow reader of the log, so that a stuck reader does not stop the superdaemon.
const LOG_PATIENCE: Duration = Duration::from_millis(100);

/// Writes a line of the log in one write, because the command's output goes to the same file.
///
/// A line that cannot be written in time is lost, and counted.
fn log(text: &str) {
    static LOST: AtomicU64 = AtomicU64::new(0);
    if !takes_more(&io::stderr()) {
        LOST.fetch_add(1, Ordering::Relaxed);
        return;
    }
    match LOST.swap(0, Ordering::Relaxed) {
        0 => {}
        1 => write_line("a line of this log is missing here: nobody read it for a while"),
        lost => write_line(&format!("{lost} lines of this log are missing here: nobody read it for a while")),
    }
    write_line(text);
}

/// Whether a line can be written without waiting: only a full pipe would block.
fn takes_more(output: &impl AsFd) -> bool {
    let mut watched = [PollFd::new(output, PollFlags::OUT)];
    let patience = Timespec::try_from(LOG_PATIENCE).ok();
    !matches!(poll(&mut watched, patience.as_ref()), Ok(0))
}

fn write_line(text: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let Date { year, month, day, hour, minute, second } = Date::at(now.as_secs());
    let millisecond = now.subsec_millis();
    let line = format!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z oroshi start[{}]: {text}\n",
        std::process::id()
    );
    // Standard error may be closed.
    let _ = io::stderr().write_all(line.as_bytes());
}
