//! Starts a generation: a process that arranges the sockets and becomes the command.
//!
//! [`Launch`] starts this program again with a few arguments, and [`Child`] reads them in the new process. The
//! process number stays the same, so the command finds its own in LISTEN_PID. Nothing unsafe happens between fork and
//! exec.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use oroshi_net::handover::{DescriptorMove, HandoverError, become_program};

use crate::guard::OWN_NAME;
use crate::sockets::{Inheritable, Socket, moves};

/// The inputs of a new generation.
pub(crate) struct Launch<'a> {
    /// This program, and the arguments that make it a [`Child`].
    pub(crate) helper: &'a [OsString],
    pub(crate) command: &'a [OsString],
    pub(crate) sockets: &'a [Socket],
    pub(crate) folder: Option<&'a Path>,
    /// Whether it gets its own process group.
    pub(crate) own_group: bool,
    pub(crate) variables: Vec<(OsString, OsString)>,
    pub(crate) no_input: bool,
}

impl Launch<'_> {
    /// Starts the process. The caller reaps it with all other processes, not through a handle.
    pub(crate) fn start(self) -> io::Result<u32> {
        let (program, words) = self.helper.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.arg0(OWN_NAME).args(words);
        for DescriptorMove { from, to } in moves(self.sockets) {
            command.arg("--socket").arg(format!("{from}={to}"));
        }
        if let Some(folder) = self.folder {
            command.arg("--dir").arg(folder);
        }
        command.arg("--").args(self.command);
        command.env_clear().envs(self.variables);
        if self.no_input {
            command.stdin(Stdio::null());
        }
        if self.own_group {
            command.process_group(0);
        }
        let _open = Inheritable::new(self.sockets)?;
        Ok(command.spawn()?.id())
    }
}

/// The new process, before it becomes the command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Child {
    /// The sockets: present numbers, and numbers in the command.
    pub sockets: Vec<DescriptorMove>,
    /// The folder to run in.
    pub folder: Option<PathBuf>,
    /// The command with its arguments.
    pub command: Vec<OsString>,
}

/// The reason why the process did not become the command.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// The folder does not exist, or this user may not enter it.
    #[error("cannot change to the folder {}", .folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The program is not in PATH, is not executable, or is not a program.
    #[error("cannot start `{program}`: {}", why(.error, .program))]
    Start {
        /// Its name.
        program: String,
        /// The cause, with its message.
        error: HandoverError,
    },
}

impl Child {
    /// Becomes the command.
    ///
    /// # Errors
    /// It returns only on failure; the process should then end.
    pub fn become_it(self) -> Result<Infallible, ChildError> {
        if let Some(folder) = self.folder {
            std::env::set_current_dir(&folder).map_err(|source| ChildError::Folder { folder, source })?;
        }
        let (program, args) =
            self.command.split_first().map_or((OsStr::new(""), &[][..]), |(first, rest)| (first, rest));
        let mut variables = Vec::new();
        if std::env::var_os("LISTEN_FDS").is_some() {
            variables.push((OsString::from("LISTEN_PID"), OsString::from(std::process::id().to_string())));
        }
        become_program(program, args, &variables, &self.sockets)
            .map_err(|error| ChildError::Start { program: program.to_string_lossy().into_owned(), error })
    }

    /// Parses `7=3`: a descriptor's number here and in the command.
    ///
    /// # Errors
    /// A message for the user.
    pub fn socket(text: &str) -> Result<DescriptorMove, String> {
        let number = |text: &str| text.parse::<RawFd>().ok().filter(|number| *number >= 0);
        let read =
            text.split_once('=').and_then(|(from, to)| Some(DescriptorMove { from: number(from)?, to: number(to)? }));
        read.ok_or_else(|| format!("`{text}`: expected two descriptors such as 7=3"))
    }
}

/// Explains why a program cannot run.
fn why(error: &HandoverError, program: &str) -> String {
    let HandoverError::Exec(error) = error else { return error.to_string() };
    match error.kind() {
        io::ErrorKind::NotFound if !program.contains('/') => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            format!("it is in none of the folders of PATH ({})", path.to_string_lossy())
        }
        io::ErrorKind::NotFound if Path::new(program).exists() => {
            "the interpreter that its first line names is not there".to_owned()
        }
        io::ErrorKind::NotFound => "there is no such file".to_owned(),
        io::ErrorKind::PermissionDenied => "its file may not be executed".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_cannot_be_run_is_told_with_the_reason() {
        let told = |error: io::Error, program: &str| {
            ChildError::Start { program: program.into(), error: HandoverError::Exec(error) }.to_string()
        };
        let not_found = || io::Error::from(io::ErrorKind::NotFound);
        assert!(told(not_found(), "nginks").contains("none of the folders of PATH"));
        assert_eq!(told(not_found(), "./no/such"), "cannot start `./no/such`: there is no such file");
        assert!(told(not_found(), "/dev/null").contains("interpreter"));
        assert!(told(io::ErrorKind::PermissionDenied.into(), "./a").ends_with("its file may not be executed"));
    }

    #[test]
    fn the_words_between_the_two_sides_are_read_back() {
        assert_eq!(Child::socket("7=3"), Ok(DescriptorMove { from: 7, to: 3 }));
        for bad in ["", "7", "7=", "=3", "-1=3", "7=-3", "7=x"] {
            assert!(Child::socket(bad).unwrap_err().contains(bad));
        }
    }
}
