//! The validated configuration of a run.

use std::path::PathBuf;

use oroshi_client::{Builder, Bytes, Retries};
use oroshi_net::UnixAddress;

use crate::list::Source;

/// The largest burst; memory holds all of it.
pub const LARGEST_BURST: usize = 1_000_000;

/// The validated configuration of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The sources of the list.
    pub sources: Vec<Source>,
    /// How many requests run concurrently.
    pub pace: Pace,
    /// The rules for retries.
    pub retries: Retries,
    /// The request's parts that a line may override.
    pub defaults: Defaults,
    /// The unix socket to connect to, instead of the URLs' hosts.
    pub unix: Option<UnixAddress>,
    /// The client's settings without the number of its connections.
    pub client: Builder,
    /// The file for records; `None`: standard output, unless bodies are printed there.
    pub output: Option<PathBuf>,
    /// Whether to resume the output of an earlier run.
    pub resume: bool,
    /// The destination of bodies.
    pub bodies: Bodies,
    /// Whether records have the header fields.
    pub headers: bool,
}

/// How many requests run concurrently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// A constant number.
    Steady {
        /// The number of concurrent requests.
        concurrency: usize,
        /// Its maximum per host and port or unix socket; `None`: no separate limit.
        per_host: Option<usize>,
    },
    /// All at once; with a number, that many requests that cycle through the URLs.
    Burst(Option<usize>),
}

/// The request's parts that a line may override.
#[derive(Clone, Debug, Default)]
pub struct Defaults {
    /// The method; `None`: GET, or POST with a body.
    pub method: Option<String>,
    /// Header fields.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Option<Bytes>,
}

/// The destination of bodies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bodies {
    /// Bytes are counted and discarded.
    Counted,
    /// Bodies go to standard output.
    Printed,
    /// Each body becomes a file in this folder.
    Folder(PathBuf),
}

impl Defaults {
    /// Returns the method of a request: its own, the flags', or by whether it has a body.
    #[must_use]
    pub fn method<'a>(&'a self, named: Option<&'a str>, has_body: bool) -> &'a str {
        named.or(self.method.as_deref()).unwrap_or(if has_body { "POST" } else { "GET" })
    }
}
