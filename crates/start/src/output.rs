//! The log: a file, or a command that reads the output of the superdaemon and the command.
//!
//! The pipe to a log command outlives it, as in daemontools and runit: the superdaemon holds both ends, so no writer
//! gets EPIPE. While the log command is down, lines wait in the pipe; writers block once it is full.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use oroshi_net::process::how_it_ended;
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use crate::machine::{STABLE, pause};

/// The longest wait for a log command to read its first line; then the start continues.
const FIRST_READ: Duration = Duration::from_secs(5);
/// Interval for checking whether it has read its first line.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The destination of standard output and error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogDestination {
    /// The end of a file.
    File(PathBuf),
    /// A command, run by a shell.
    Command(String),
}

/// The reason why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The folder does not exist, or this user may not write to it.
    #[error("cannot open the log file {}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// There is no shell, or no process can be made.
    #[error("cannot start the log command `{command}`")]
    Command {
        /// The command.
        command: String,
        /// The system's error.
        source: io::Error,
    },
    /// The shell cannot run the command, or the command does not read. The reason is on standard error.
    #[error(
        "the log command `{command}` ended before it had read a line: {how}: expected one that reads all of standard \
         input"
    )]
    Ended {
        /// The command.
        command: String,
        /// A description of its end.
        how: String,
    },
    /// An unexpected error of the kernel.
    #[error("cannot redirect standard output and error")]
    Redirect(#[source] io::Error),
}

impl LogDestination {
    /// Parses the value of `--log-file`: `| command`, or a path.
    pub fn parse(text: &str) -> Self {
        match text.trim_start().strip_prefix('|') {
            Some(command) => LogDestination::Command(command.trim_start().to_owned()),
            None => LogDestination::File(PathBuf::from(text)),
        }
    }

    /// Opens the log; starts any command.
    pub(crate) fn open(&self) -> Result<Log, LogError> {
        match self {
            LogDestination::File(path) => {
                let failed = |source| LogError::File { path: path.clone(), source };
                // An absolute path still works when the file is reopened from another folder.
                let path = std::path::absolute(path).map_err(failed)?;
                let end = append(&path).map_err(failed)?.into();
                Ok(Log { end, to: Destination::File(path) })
            }
            LogDestination::Command(command) => {
                let failed = |source| LogError::Command { command: command.clone(), source };
                let (input, end) = io::pipe().map_err(failed)?;
                let reader = Reader::start(command, input.into()).map_err(failed)?;
                Ok(Log { end: end.into(), to: Destination::Reader(reader) })
            }
        }
    }
}

/// An open log.
#[derive(Debug)]
pub(crate) struct Log {
    /// The writing end.
    end: OwnedFd,
    to: Destination,
}

/// The destination of the writing end.
#[derive(Debug)]
enum Destination {
    File(PathBuf),
    Reader(Reader),
}

impl Log {
    /// Redirects standard output and error of this process and its future children to the log.
    pub(crate) fn redirect(&self) -> Result<(), LogError> {
        redirect(&self.end, &self.end).map_err(LogError::Redirect)
    }

    /// Reopens the file, which may have been moved away; a command continues.
    pub(crate) fn reopen(&mut self) -> Result<(), LogError> {
        let Destination::File(path) = &self.to else { return Ok(()) };
        let file = append(path).map_err(|source| LogError::File { path: path.clone(), source })?;
        self.end = file.into();
        self.redirect()
    }

    /// The log command, if there is one.
    pub(crate) fn reader(&self) -> Option<&Reader> {
        match &self.to {
            Destination::Reader(reader) => Some(reader),
            Destination::File(_) => None,
        }
    }

    pub(crate) fn reader_mut(&mut self) -> Option<&mut Reader> {
        match &mut self.to {
            Destination::Reader(reader) => Some(reader),
            Destination::File(_) => None,
        }
    }

    /// Closes the log: the command sees the end of its input. Discards later standard output and error.
    pub(crate) fn close(self) -> Option<u32> {
        if let Ok(nothing) = OpenOptions::new().write(true).open("/dev/null") {
            let _ = redirect(&nothing, &nothing);
        }
        self.reader().and_then(|reader| reader.pid)
    }
}

/// The log command, across its restarts.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) command: String,
    /// The reading end of the pipe. Also open here, so that the pipe outlives the command.
    input: OwnedFd,
    /// The standard output and error of this process, which the command inherits. `None`: it gets none.
    outputs: Option<[OwnedFd; 2]>,
    /// Its process, while it runs.
    pub(crate) pid: Option<u32>,
    started: Instant,
    /// Ends in a row: a run of at least [`STABLE`] ends the row.
    row: u32,
    /// Number of its ends.
    pub(crate) ends: u64,
    /// Description and time of its last end.
    pub(crate) last_end: Option<(String, Instant)>,
    /// Time of its next start.
    pub(crate) next_start: Option<Instant>,
}

impl Reader {
    /// Starts the command for the first time.
    fn start(command: &str, input: OwnedFd) -> io::Result<Self> {
        let outputs = [io::stdout().as_fd().try_clone_to_owned()?, io::stderr().as_fd().try_clone_to_owned()?];
        let mut reader = Self {
            command: command.to_owned(),
            input,
            outputs: Some(outputs),
            pid: None,
            started: Instant::now(),
            row: 0,
            ends: 0,
            last_end: None,
            next_start: None,
        };
        reader.spawn()?;
        Ok(reader)
    }

    fn spawn(&mut self) -> io::Result<u32> {
        let mut command = Command::new("/bin/sh");
        // Its own group: Ctrl-C is for the others, whose last lines it must write.
        command.args(["-c", &self.command]).stdin(self.input.try_clone()?).process_group(0);
        match &self.outputs {
            Some([out, err]) => command.stdout(out.try_clone()?).stderr(err.try_clone()?),
            None => command.stdout(Stdio::null()).stderr(Stdio::null()),
        };
        let pid = command.spawn()?.id();
        (self.pid, self.started, self.next_start) = (Some(pid), Instant::now(), None);
        Ok(pid)
    }

    /// Waits until the command has read the lines so far. On failure, restores this process's output.
    ///
    /// # Errors
    /// [`LogError::Ended`]: it has ended.
    pub(crate) async fn until_it_reads(&mut self) -> Result<(), LogError> {
        let over = Instant::now() + FIRST_READ;
        loop {
            let pid = self.pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
            if let Ok(Some((_, status))) = waitpid(pid, WaitOptions::NOHANG) {
                if let Some([out, err]) = &self.outputs {
                    redirect(out, err).map_err(LogError::Redirect)?;
                }
                return Err(LogError::Ended { command: self.command.clone(), how: how_it_ended(status) });
            }
            if rustix::io::ioctl_fionread(&self.input) == Ok(0) || Instant::now() >= over {
                return Ok(());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Detaches future starts from the outputs of this process, because its parent has gone: they write only to their
    /// log.
    pub(crate) fn leave_outputs(&mut self) {
        self.outputs = None;
    }

    /// Handles the end of its process: returns how long it ran, and schedules the next start.
    pub(crate) fn has_ended(&mut self, now: Instant, how: String) -> Duration {
        let lived = now.saturating_duration_since(self.started);
        self.row = if lived >= STABLE { 1 } else { self.row.saturating_add(1) };
        (self.pid, self.last_end) = (None, Some((how, now)));
        self.ends += 1;
        // From start to start, as for generations.
        self.next_start = Some((self.started + pause(self.row)).max(now));
        lived
    }

    /// Restarts the command, and returns its process number.
    pub(crate) fn restart(&mut self) -> Result<u32, LogError> {
        self.spawn().map_err(|source| {
            self.row = self.row.saturating_add(1);
            self.next_start = Some(Instant::now() + pause(self.row));
            LogError::Command { command: self.command.clone(), source }
        })
    }
}

/// Redirects standard output and error of this process.
fn redirect(out: &impl AsFd, err: &impl AsFd) -> io::Result<()> {
    Ok(dup2_stdout(out).and_then(|()| dup2_stderr(err))?)
}

/// Replaces standard input by an empty one.
pub(crate) fn no_input() -> io::Result<()> {
    Ok(dup2_stdin(File::open("/dev/null")?)?)
}

fn append(path: &PathBuf) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_makes_it_a_command() {
        assert_eq!(LogDestination::parse("a.log"), LogDestination::File("a.log".into()));
        for text in ["|cat > a", "| cat > a", " |  cat > a"] {
            assert_eq!(LogDestination::parse(text), LogDestination::Command("cat > a".into()), "{text}");
        }
    }

    /// Makes one without a process, as if just started.
    fn reader() -> Reader {
        let (input, _) = io::pipe().unwrap();
        let (ends, row) = (0, 0);
        let (command, pid, started) = ("cat".to_owned(), None, Instant::now());
        Reader {
            command,
            input: input.into(),
            outputs: None,
            pid,
            started,
            row,
            ends,
            last_end: None,
            next_start: None,
        }
    }

    #[test]
    fn a_log_command_that_ends_soon_is_started_later_and_later() {
        let mut reader = reader();
        let mut pauses = Vec::new();
        for _ in 0..11 {
            reader.has_ended(reader.started, "exit code 1".to_owned());
            pauses.push((reader.next_start.unwrap() - reader.started).as_millis());
            reader.started = reader.next_start.unwrap();
        }
        assert_eq!(pauses[..9], [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600]);
        assert_eq!(pauses[9..], [30_000, 30_000]);
        // After a long run it restarts at once.
        let now = reader.started + STABLE;
        assert_eq!(reader.has_ended(now, "exit code 1".to_owned()), STABLE);
        assert_eq!((reader.next_start, reader.row, reader.ends), (Some(now), 1, 12));
    }
}
