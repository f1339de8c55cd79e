//! Errors of starting and ending servers and commands.

use std::io;
use std::time::Duration;

use oroshi_net::endpoint::EndpointError;

use crate::keeper::KeeperError;
use crate::template::TemplateError;
use crate::workspace::WorkspaceError;

/// Why a server cannot be measured. Everything that began has been ended again.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The user ended it before the server was ready.
    #[error("ended before the server was ready")]
    Cancelled,
    /// Correct the template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// No port is free, or a socket's path is too long.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// Correct the URL.
    #[error("`{url}` cannot be asked whether the server is ready")]
    Url {
        /// The URL, filled in.
        url: String,
        /// The defect.
        source: EndpointError,
    },
    /// Give a path below the server's folder, and see the cause.
    #[error("could not write the server's file `{path}`: expected a relative path without `..`")]
    File {
        /// The path as given.
        path: String,
        /// The system's error, if any.
        source: Option<io::Error>,
    },
    /// See the cause: the output folder must exist and have room.
    #[error("could not open {path} for the server's output")]
    Output {
        /// The file.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// Install the program, or correct its name or the working folder, as the text says.
    #[error("{0}")]
    Program(String),
    /// The step's output says why.
    #[error("setup `{command}`: {how}")]
    Setup {
        /// The step.
        command: String,
        /// How it ended.
        how: String,
        /// The last lines of its output.
        output: Vec<String>,
    },
    /// End the server that answers there, or use another address: `{{port}}` is a free one.
    #[error("{url} answers before the server was started: that is another server")]
    Taken {
        /// The URL, filled in.
        url: String,
    },
    /// The server's output says why.
    #[error("the server ended before it was ready: {how}")]
    Ended {
        /// How it ended.
        how: String,
        /// The last lines of its output.
        output: Vec<String>,
    },
    /// See its output. Give it more time, or correct the URL or line that shows when it is ready.
    #[error("the server was not ready within {} s: {why}", .waited.as_secs_f64())]
    NotReady {
        /// The time waited.
        waited: Duration,
        /// The last obstacle, as far as known.
        why: String,
        /// The last lines of its output.
        output: Vec<String>,
    },
    /// The keeper did not work.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
    /// Correct the first. The end failed too, so look for leftovers.
    #[error("{start}; {end}")]
    AndEnd {
        /// Why it was not started.
        start: Box<Self>,
        /// The failures of the end.
        end: StopError,
    },
}

impl StartError {
    /// Returns the last lines of the server's output, or of the failed step's.
    #[must_use]
    pub fn output(&self) -> &[String] {
        match self {
            Self::Setup { output, .. } | Self::Ended { output, .. } | Self::NotReady { output, .. } => output,
            Self::AndEnd { start, .. } => start.output(),
            _ => &[],
        }
    }

    /// Splits into why it was not started, and the failures of the end.
    #[must_use]
    pub fn split(self) -> (Self, Option<StopError>) {
        match self {
            Self::AndEnd { start, end } => (*start, Some(end)),
            start => (start, None),
        }
    }
}

/// Failures at the end of a server, to look into by hand.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// Failed teardown steps, processes that cannot be killed, a folder that remains.
    #[error("after the server's end: {}", .0.join("; "))]
    Troubles(Vec<String>),
    /// The keeper was gone; known processes were killed.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
}

/// Why a command did not reach its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The user ended it.
    #[error("ended before the command was done")]
    Cancelled,
    /// Give it more time, or less work.
    #[error("`{command}` was not done within {} s", .after.as_secs_f64())]
    Timeout {
        /// The command.
        command: String,
        /// The time waited.
        after: Duration,
        /// The last lines of its output.
        output: Vec<String>,
    },
    /// Install the program, or correct its name or the working folder, as the text says.
    #[error("{0}")]
    Program(String),
    /// See the cause: the output folder must exist and have room.
    #[error("could not open {path} for the command's output")]
    Output {
        /// The file.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// The keeper did not work.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
}
