//! Why a server was not started, or not ended as it should be, or a command did not come to its end.

use std::io;
use std::time::Duration;

use oroshi_net::endpoint::EndpointError;

use crate::keeper::KeeperError;
use crate::place::PlaceError;
use crate::template::TemplateError;

/// Why a server cannot be measured. Everything that was begun has been ended again.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It was asked to end before the server was ready.
    #[error("ended before the server was ready")]
    Cancelled,
    /// Correct the text.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// There is no port, or no path for a socket.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// Correct the URL.
    #[error("`{url}` cannot be asked whether the server is ready")]
    Url {
        /// With everything filled in.
        url: String,
        /// What is wrong with it.
        source: EndpointError,
    },
    /// Give the file a path below the server's folder, and see the cause.
    #[error("could not write the server's file `{path}`: expected a relative path without `..`")]
    File {
        /// As it was given.
        path: String,
        /// What the system said, if it was asked.
        source: Option<io::Error>,
    },
    /// See the cause: the folder for output must be there, and have room.
    #[error("could not open {path} for the server's output")]
    Output {
        /// The file.
        path: String,
        /// What the system said.
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
    /// End whatever answers there, or take another address: `{{port}}` is a free one.
    #[error("{url} answers before the server was started: that is another server")]
    Taken {
        /// With everything filled in.
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
    /// See its output; give it more time, or correct the URL or line that tells when it is ready.
    #[error("the server was not ready within {} s: {why}", .waited.as_secs_f64())]
    NotReady {
        /// How long that was.
        waited: Duration,
        /// What kept it, as far as can be seen.
        why: String,
        /// The last lines of its output.
        output: Vec<String>,
    },
    /// The process above the server did not do its work.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
    /// Correct the first; what was begun did not end as it should either, so look for what it left behind.
    #[error("{start}; {end}")]
    AndEnd {
        /// Why it was not started.
        start: Box<Self>,
        /// What did not go well afterwards.
        end: StopError,
    },
}

impl StartError {
    /// The last lines of the server's output, or of the step that failed.
    #[must_use]
    pub fn output(&self) -> &[String] {
        match self {
            Self::Setup { output, .. } | Self::Ended { output, .. } | Self::NotReady { output, .. } => output,
            Self::AndEnd { start, .. } => start.output(),
            _ => &[],
        }
    }

    /// Why it was not started, and apart from that what did not go well afterwards.
    #[must_use]
    pub fn split(self) -> (Self, Option<StopError>) {
        match self {
            Self::AndEnd { start, end } => (*start, Some(end)),
            start => (start, None),
        }
    }
}

/// What did not go well at the end of a server. Nothing can be done about it but look.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// Steps after the end that failed, processes that cannot be killed, a folder that stays.
    #[error("after the server's end: {}", .0.join("; "))]
    Troubles(Vec<String>),
    /// The process above the server was gone; what was left was killed as far as it is known.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
}

/// Why a command did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It was asked to end.
    #[error("ended before the command was done")]
    Cancelled,
    /// Give it more time, or less to do.
    #[error("`{command}` was not done within {} s", .after.as_secs_f64())]
    Timeout {
        /// The command.
        command: String,
        /// How long that was.
        after: Duration,
        /// The last lines of its output.
        output: Vec<String>,
    },
    /// Install the program, or correct its name or the working folder, as the text says.
    #[error("{0}")]
    Program(String),
    /// See the cause: the folder for output must be there, and have room.
    #[error("could not open {path} for the command's output")]
    Output {
        /// The file.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The process above the command did not do its work.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
}
