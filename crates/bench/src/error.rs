//! Why a run did not take place.

use std::io;

use oroshi_net::connect::ConnectError;
use oroshi_net::endpoint::ResolveError;
use oroshi_net::limits::DescriptorError;
use oroshi_net::threads::ThreadsError;

use crate::script::ScriptError;

/// Why a run did not take place.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A name does not resolve: correct the URL, or use --connect-to.
    #[error("dns: {0}")]
    Dns(#[source] ResolveError),
    /// The first connection failed: check that the server runs and listens there.
    #[error("{}: cannot connect to {origin}", source.name())]
    Connect {
        /// The origin's address.
        origin: String,
        /// Why connecting failed.
        source: ConnectError,
    },
    /// The server does not choose HTTP/2: turn it on there, or leave out --http2.
    #[error("{origin} does not speak HTTP/2: of the offered h2 it chose {chose} (ALPN); leave out --http2")]
    NoHttp2 {
        /// The origin's address.
        origin: String,
        /// The chosen protocol.
        chose: String,
    },
    /// Too few file descriptors for the connections asked for: the text says how to get more.
    #[error(transparent)]
    Descriptors(#[from] DescriptorError),
    /// Threads could not be started, pinned or joined.
    #[error(transparent)]
    Threads(#[from] ThreadsError),
    /// The observer ended the run before it began.
    #[error("ended before the run began")]
    Cancelled,
    /// The observer ended the run in its warm-up.
    #[error("ended in the warm-up: nothing was measured")]
    EndedInWarmUp,
    /// The kernel gave no timer.
    #[error("a timer could not be made")]
    Timer(#[source] io::Error),
    /// The script is wrong, or failed while requests flowed: the text has its file and line.
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// `--watch PID` names no process that can be watched.
    #[error("cannot watch process {pid}: {why}")]
    Watch {
        /// The process.
        pid: u32,
        /// Why it cannot be watched.
        why: String,
    },
}
