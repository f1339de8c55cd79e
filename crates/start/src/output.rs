//! Where everything is written that the superdaemon and the command say: a file, or a command's standard input.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

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
                let file = append(&path).map_err(failed)?;
                Ok(Log { to: LogTo::File(path), end: file.into(), pid: None })
            }
            LogTo::Command(text) => {
                let failed = |source| LogError::Command { command: text.clone(), source };
                let (reader, writer) = io::pipe().map_err(failed)?;
                // A group of its own: Ctrl-C is for the others, whose last words it shall write.
                let mut command = Command::new("/bin/sh");
                command.args(["-c", text]).stdin(Stdio::from(OwnedFd::from(reader))).process_group(0);
                let pid = command.spawn().map_err(failed)?.id();
                Ok(Log { to: self.clone(), end: writer.into(), pid: Some(pid) })
            }
        }
    }
}

/// An open log.
#[derive(Debug)]
pub(crate) struct Log {
    to: LogTo,
    end: OwnedFd,
    /// The process that reads it.
    pub(crate) pid: Option<u32>,
}

impl Log {
    /// From here on, standard output and error go there: of this process, and of those that it starts.
    pub(crate) fn redirect(&self) -> Result<(), LogError> {
        let redirected = dup2_stdout(&self.end).and_then(|()| dup2_stderr(&self.end));
        redirected.map_err(|errno| LogError::Redirect(errno.into()))
    }

    /// Opens the file anew, which may have been moved away; a command goes on.
    pub(crate) fn reopen(&mut self) -> Result<(), LogError> {
        let LogTo::File(path) = &self.to else { return Ok(()) };
        let file = append(path).map_err(|source| LogError::File { path: path.clone(), source })?;
        self.end = file.into();
        self.redirect()
    }

    /// Starts the command again, which has ended.
    pub(crate) fn restart(&mut self) -> Result<(), LogError> {
        *self = self.to.open()?;
        self.redirect()
    }

    /// Leaves it: the command sees the end of what it is to write. Standard output and error go nowhere from here on.
    pub(crate) fn close(self) -> Option<u32> {
        if let Ok(nothing) = OpenOptions::new().write(true).open("/dev/null") {
            let _ = dup2_stdout(&nothing).and_then(|()| dup2_stderr(&nothing));
        }
        self.pid
    }
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
}
