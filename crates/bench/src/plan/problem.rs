//! Mistakes in a draft: a value for each kind, and the fields that it is about.

use std::time::Duration;

use oroshi_net::tls::TlsConfigError;
use oroshi_words::{Mistake, Naming, with_causes};

use super::LONGEST_GATHER;
use super::protocol::ProtocolProblem;
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
    #[error("{what} is 0: expected at least 1")]
    Zero {
        /// The field.
        field: &'static str,
        /// The field in words: `the number of connections`.
        what: &'static str,
    },
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
    #[error("{}", self.told(Naming::Flags))]
    Pipeline {
        /// Requests in flight asked for.
        pipeline: usize,
        /// Requests on each connection.
        requests: u64,
    },
    /// Choose one of the two: an open loop, or several requests in flight on each connection.
    #[error("{}", self.told(Naming::Flags))]
    OpenPipeline,
    /// Leave out the gathering: it would make requests of a timetable, or of users, late.
    #[error("{}", self.told(Naming::Flags))]
    GatherPaced,
    /// Give a shorter time.
    #[error("gathering for {0:?}: expected at most {LONGEST_GATHER:?}, as no thread looks at its clock meanwhile")]
    GatherLong(Duration),
    /// Correct the rate.
    #[error("a rate of {0} requests per second: expected a number above 0 and up to 10 million")]
    Rate(f64),
    /// Source addresses are for TCP.
    #[error("{}", self.told(Naming::Flags))]
    SourceWithUnix(String),
    /// Correct the method, header or target.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Correct what HTTP/2 does not allow.
    #[error("{}", self.told(Naming::Flags))]
    Protocol(ProtocolProblem),
    /// Correct the certificate files or the name.
    #[error("TLS settings: {0}")]
    Tls(#[from] TlsConfigError),
}

impl Problem {
    /// Returns the fields that may be wrong, the likeliest first, by their flags of `oroshi bench`.
    #[must_use]
    pub fn fields(&self) -> &[&'static str] {
        match self {
            Problem::NoUrl | Problem::ScriptUrls(_) => &["url"],
            Problem::Zero { field, .. } => std::slice::from_ref(field),
            Problem::TooFewConnections { .. } => &["threads", "connections"],
            Problem::TooManyOrigins { .. } => &["connections"],
            Problem::OpenPipeline | Problem::Pipeline { .. } => &["pipeline"],
            Problem::GatherPaced | Problem::GatherLong(_) => &["gather"],
            Problem::Rate(_) => &["rate", "stages"],
            Problem::SourceWithUnix(_) => &["source"],
            Problem::Request(_) => &["method", "header"],
            Problem::Protocol(problem) => problem.fields(),
            Problem::Tls(_) => &["cacert", "cert", "key"],
        }
    }

    /// Describes the mistake and its causes; `naming` writes the names of fields.
    #[must_use]
    pub fn told(&self, naming: Naming) -> String {
        let name = |field| naming.of(field);
        match self {
            Problem::Pipeline { pipeline, requests } => {
                let flag = name("pipeline");
                let requests = if *requests == 1 { "only one".to_owned() } else { requests.to_string() };
                format!(
                    "{flag} {pipeline} wants {pipeline} requests in flight on each connection, and each carries \
                     {requests} ({}, {}): give a {flag} of at most that, or leave it out",
                    name("close"),
                    name("requests-per-connection")
                )
            }
            Problem::OpenPipeline => {
                let [rate, stages, pipeline] = ["rate", "stages", "pipeline"].map(name);
                format!("an open loop ({rate}, {stages}) and {pipeline} exclude each other")
            }
            Problem::GatherPaced => format!(
                "{} is for closed loops of requests: a thread that waits would send late what is due",
                name("gather")
            ),
            Problem::SourceWithUnix(origin) => {
                format!("source addresses are for TCP, and {origin} is a unix socket: leave out {}", name("source"))
            }
            Problem::Request(error) => error.told(naming),
            Problem::Protocol(problem) => problem.told(naming),
            Problem::NoUrl
            | Problem::GatherLong(_)
            | Problem::Zero { .. }
            | Problem::TooFewConnections { .. }
            | Problem::TooManyOrigins { .. }
            | Problem::ScriptUrls(_)
            | Problem::Rate(_)
            | Problem::Tls(_) => with_causes(self),
        }
    }

    /// Returns the description, with the fields that may be wrong.
    #[must_use]
    pub fn mistake(&self, naming: Naming) -> Mistake {
        mistake(self.fields(), self.told(naming))
    }
}

/// Returns a mistake in one of several fields, of which the first is the likeliest.
pub(crate) fn mistake(fields: &[&str], text: String) -> Mistake {
    Mistake::new(*fields.first().unwrap_or(&""), text).looking_at(fields.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals::Spacing;
    use crate::plan::{Draft, Load};

    #[test]
    fn texts_name_fields_as_flags_or_as_keys() {
        let problems = [
            Problem::NoUrl,
            Problem::Zero { field: "threads", what: "the number of threads" },
            Problem::Pipeline { pipeline: 4, requests: 1 },
            Problem::OpenPipeline,
            Problem::SourceWithUnix("unix:/x".into()),
            Problem::Request(RequestError::TransferEncoding),
            Problem::Request(RequestError::ContentLength { value: "3".into(), body: 2 }),
        ];
        for problem in &problems {
            let [flags, keys] = [Naming::Flags, Naming::Keys].map(|naming| problem.told(naming));
            assert_eq!(problem.to_string(), flags);
            assert!(!keys.contains("--"), "{keys}");
        }
        assert_eq!(problems[3].told(Naming::Keys), "an open loop (`rate`, `stages`) and `pipeline` exclude each other");
        let mistake = problems[2].mistake(Naming::Keys);
        assert_eq!((mistake.key.as_str(), mistake.looked_at), ("pipeline", vec!["pipeline".to_owned()]));
        assert_eq!(Problem::Rate(0.0).mistake(Naming::Flags).looked_at, ["rate", "stages"]);
    }

    #[test]
    fn only_closed_loops_gather_and_only_for_a_moment() {
        let said = |gather, load| {
            let draft = Draft { urls: vec!["http://h/".parse().unwrap()], gather, load, ..Draft::default() };
            draft.plan().unwrap_err().to_string()
        };
        let moment = Duration::from_micros(500);
        assert!(said(moment, Load::rate(1.0, Spacing::Constant, 0)).contains("--gather is for closed loops"));
        assert!(said(Duration::from_secs(1), Load::Closed).contains("at most 10ms"));
    }
}
