//! Where everything is written that the superdaemon and the command say: a file, or a command's standard input.
//!
//! The pipe to a log command outlives it, as with daemontools and runit: the superdaemon holds both ends. So no writer gets
//! EPIPE. While the log command is down, lines wait in the pipe; writers wait once the pipe is full.

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

/// A log command has so long to read its first line. One that takes longer is left to it.
const FIRST_READ: Duration = Duration::from_secs(5);
/// How often to look whether it has.
const LOOK: Duration = Duration::from_millis(5);

/// Where standard output and error go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTo {
    /// To the end of a file.
    File(PathBuf),
    /// Into a command, which a shell runs.
    Command(String),
}

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The folder is not there, or this user may not write to it.
    #[error("cannot open the log file {}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no shell, or no process can be made.
    #[error("cannot start the log command `{command}`")]
    Command {
        /// The command.
        command: String,
        /// What the system said.
        source: io::Error,
    },
    /// The shell cannot run it, or it does not read: the shell, or the command, has said why on standard error.
    #[error(
        "the log command `{command}` ended before it had read a line: {how}: expected one that reads all of standard input"
    )]
    Ended {
        /// The command.
        command: String,
        /// How it ended, in words.
        how: String,
    },
    /// The kernel refused what it refuses nobody.
    #[error("cannot redirect standard output and error")]
    Redirect(#[source] io::Error),
}

impl LogTo {
    /// Reads what `--log-file` takes: `| command`, or a path.
    pub fn parse(text: &str) -> Self {
        match text.trim_start().strip_prefix('|') {
            Some(command) => LogTo::Command(command.trim_start().to_owned()),
            None => LogTo::File(PathBuf::from(text)),
        }
    }

    /// Opens it; for a command, also its process.
    pub(crate) fn open(&self) -> Result<Log, LogError> {
        match self {
            LogTo::File(path) => {
                let failed = |source| LogError::File { path: path.clone(), source };
                // Found again when it is opened anew, wherever this process is by then.
                let path = std::path::absolute(path).map_err(failed)?;
                let end = append(&path).map_err(failed)?.into();
                Ok(Log { end, to: To::File(path) })
            }
            LogTo::Command(command) => {
                let failed = |source| LogError::Command { command: command.clone(), source };
                let (input, end) = io::pipe().map_err(failed)?;
                let reader = Reader::start(command, input.into()).map_err(failed)?;
                Ok(Log { end: end.into(), to: To::Reader(reader) })
            }
        }
    }
}

/// An open log.
#[derive(Debug)]
pub(crate) struct Log {
    /// What is written to.
    end: OwnedFd,
    to: To,
}

/// Where the end leads.
#[derive(Debug)]
enum To {
    File(PathBuf),
    Reader(Reader),
}

impl Log {
    /// From here on, standard output and error go there: of this process, and of those that it starts.
    pub(crate) fn redirect(&self) -> Result<(), LogError> {
        redirect(&self.end, &self.end).map_err(LogError::Redirect)
    }

    /// Opens the file anew, which may have been moved away; a command goes on.
    pub(crate) fn reopen(&mut self) -> Result<(), LogError> {
        let To::File(path) = &self.to else { return Ok(()) };
        let file = append(path).map_err(|source| LogError::File { path: path.clone(), source })?;
        self.end = file.into();
        self.redirect()
    }

    /// The log command, if there is one.
    pub(crate) fn reader(&self) -> Option<&Reader> {
        match &self.to {
            To::Reader(reader) => Some(reader),
            To::File(_) => None,
        }
    }

    pub(crate) fn reader_mut(&mut self) -> Option<&mut Reader> {
        match &mut self.to {
            To::Reader(reader) => Some(reader),
            To::File(_) => None,
        }
    }

    /// Leaves it: the command sees the end of what it is to write. Standard output and error go nowhere from here on.
    pub(crate) fn close(self) -> Option<u32> {
        if let Ok(nothing) = OpenOptions::new().write(true).open("/dev/null") {
            let _ = redirect(&nothing, &nothing);
        }
        self.reader().and_then(|reader| reader.pid)
    }
}

/// The log command, through all of its starts.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) command: String,
    /// The end of the pipe that it reads from. Open here as well: the pipe outlives the command.
    input: OwnedFd,
    /// This process's own standard output and error, which are the command's too. `None`: it gets none.
    outputs: Option<[OwnedFd; 2]>,
    /// Its process, while it runs.
    pub(crate) pid: Option<u32>,
    started: Instant,
    /// Ends in a row: a start that lived for [`STABLE`] ends the row.
    row: u32,
    /// How often it has ended.
    pub(crate) ends: u64,
    /// How it ended last, in words, and when.
    pub(crate) last_end: Option<(String, Instant)>,
    /// When it is started again.
    pub(crate) next_start: Option<Instant>,
}

impl Reader {
    /// Starts it for the first time.
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
        // A group of its own: Ctrl-C is for the others, whose last words it shall write.
        command.args(["-c", &self.command]).stdin(self.input.try_clone()?).process_group(0);
        match &self.outputs {
            Some([out, err]) => command.stdout(out.try_clone()?).stderr(err.try_clone()?),
            None => command.stdout(Stdio::null()).stderr(Stdio::null()),
        };
        let pid = command.spawn()?.id();
        (self.pid, self.started, self.next_start) = (Some(pid), Instant::now(), None);
        Ok(pid)
    }

    /// Waits until it has read what was written so far. This process's output leads where it led before if it fails.
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
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Whoever has started this process has gone: what is started from here on writes nowhere but to its log.
    pub(crate) fn leave_outputs(&mut self) {
        self.outputs = None;
    }

    /// Its process has ended. Gives how long it had run, and plans the next start.
    pub(crate) fn has_ended(&mut self, now: Instant, how: String) -> Duration {
        let lived = now.saturating_duration_since(self.started);
        self.row = if lived >= STABLE { 1 } else { self.row.saturating_add(1) };
        (self.pid, self.last_end) = (None, Some((how, now)));
        self.ends += 1;
        // From start to start, as for generations.
        self.next_start = Some((self.started + pause(self.row)).max(now));
        lived
    }

    /// Starts it again. Gives its process.
    pub(crate) fn restart(&mut self) -> Result<u32, LogError> {
        self.spawn().map_err(|source| {
            self.row = self.row.saturating_add(1);
            self.next_start = Some(Instant::now() + pause(self.row));
            LogError::Command { command: self.command.clone(), source }
        })
    }
}

/// Where standard output and error of this process go from here on.
fn redirect(out: &impl AsFd, err: &impl AsFd) -> io::Result<()> {
    Ok(dup2_stdout(out).and_then(|()| dup2_stderr(err))?)
}

/// From here on there is nothing on standard input.
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
        assert_eq!(LogTo::parse("a.log"), LogTo::File("a.log".into()));
        for text in ["|cat > a", "| cat > a", " |  cat > a"] {
            assert_eq!(LogTo::parse(text), LogTo::Command("cat > a".into()), "{text}");
        }
    }

    /// One without a process: as if it had just been started.
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
        // One that has run for a while is started again at once.
        let now = reader.started + STABLE;
        assert_eq!(reader.has_ended(now, "exit code 1".to_owned()), STABLE);
        assert_eq!((reader.next_start, reader.row, reader.ends), (Some(now), 1, 12));
    }
}
