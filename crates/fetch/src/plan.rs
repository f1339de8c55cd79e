//! What is to be done, with nothing left to doubt.

use std::path::PathBuf;

use oroshi_client::{Builder, Bytes};
use oroshi_net::UnixAddress;

use crate::list::Source;
use crate::retry::Retries;

/// The largest burst; all of it is in memory.
pub const LARGEST_BURST: usize = 1_000_000;

/// What is to be done, with nothing left to doubt.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where the list comes from.
    pub sources: Vec<Source>,
    /// How many at a time.
    pub pace: Pace,
    /// What is tried again.
    pub retries: Retries,
    /// What is sent, where a line does not say otherwise.
    pub defaults: Defaults,
    /// The unix socket to connect to, whatever the URLs say.
    pub unix: Option<UnixAddress>,
    /// The client's settings but for the number of its connections.
    pub client: Builder,
    /// The file that records go to; `None`: standard output, unless bodies are printed there.
    pub output: Option<PathBuf>,
    /// Whether the output of an earlier run is gone on with.
    pub resume: bool,
    /// What becomes of the bodies.
    pub bodies: Bodies,
    /// Whether the records carry the header fields.
    pub headers: bool,
}

/// How many at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As many as this at any time.
    Steady {
        /// Requests under way at a time.
        concurrency: usize,
        /// Of them, to one host and port or unix socket; `None`: no limit of its own.
        per_host: Option<usize>,
    },
    /// All at once; with a number, so many with the URLs in turn.
    Burst(Option<usize>),
}

/// What is sent, where a line does not say otherwise.
#[derive(Clone, Debug, Default)]
pub struct Defaults {
    /// The method; `None`: GET, or POST with a body.
    pub method: Option<String>,
    /// Header fields.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Option<Bytes>,
}

/// What becomes of the bodies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bodies {
    /// Its bytes are counted.
    Counted,
    /// It goes to standard output.
    Printed,
    /// It becomes a file in this folder.
    Folder(PathBuf),
}

impl Defaults {
    /// The method of a request that names this one, or none, and has a body or not.
    #[must_use]
    pub fn method<'a>(&'a self, named: Option<&'a str>, has_body: bool) -> &'a str {
        named.or(self.method.as_deref()).unwrap_or(if has_body { "POST" } else { "GET" })
    }
}
