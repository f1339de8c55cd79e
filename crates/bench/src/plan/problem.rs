//! What can be wrong with a draft.

use oroshi_net::tls::TlsConfigError;

use crate::request::RequestError;

/// Everything that is wrong with a draft.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Problems(pub Vec<Problem>);

/// One mistake in a draft. The text names the value, what was expected and the next step.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// Name a URL.
    #[error("no URL to send requests to: give one, as in http://localhost:8080/ or unix:/run/app.sock")]
    NoUrl,
    /// Give a number of at least 1.
    #[error("{0} is 0: expected at least 1")]
    Zero(&'static str),
    /// Give more connections or fewer threads, as in wrk.
    #[error("{connections} connections on {threads} threads: each thread needs at least one connection")]
    TooFewConnections {
        /// Connections asked for.
        connections: usize,
        /// Threads asked for.
        threads: usize,
    },
    /// Give more connections or fewer hosts.
    #[error("{connections} connections for {origins} different servers: each needs at least one connection")]
    TooManyOrigins {
        /// Connections asked for.
        connections: usize,
        /// Distinct places to connect to.
        origins: usize,
    },
    /// A script makes requests for one URL: leave out the others.
    #[error(
        "a script makes the requests for one URL, and there are {0}: give one, and set wrk.path in the script for \
         others"
    )]
    ScriptUrls(usize),
    /// Fewer requests in flight, or more on each connection.
    #[error(
        "--pipeline {pipeline} wants {pipeline} requests in flight on each connection, and each carries {} (--close, \
         --requests-per-connection): give a --pipeline of at most that, or leave it out",
        if *requests == 1 { "only one".to_owned() } else { requests.to_string() }
    )]
    Pipeline {
        /// Requests in flight asked for.
        pipeline: usize,
        /// Requests on each connection.
        requests: u64,
    },
    /// Choose one of the two.
    #[error("{0} and {1} exclude each other")]
    Exclusive(&'static str, &'static str),
    /// Correct the rate.
    #[error("a rate of {0} requests per second: expected a number above 0 and up to 10 million")]
    Rate(f64),
    /// Source addresses are for TCP.
    #[error("source addresses are for TCP, and {0} is a unix socket: leave out --source")]
    SourceWithUnix(String),
    /// Correct the method, header or target.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Correct the certificate files or the name.
    #[error("TLS settings: {0}")]
    Tls(#[from] TlsConfigError),
}
