//! The version of HTTP that a load speaks, and mistakes about it.

use oroshi_net::Scheme;
use oroshi_words::Naming;
use serde::{Deserialize, Serialize};

use super::Draft;

/// The protocol offered and expected in TLS (ALPN).
pub(crate) const ALPN: &[u8] = b"h2";

/// How client and server agree on HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http2 {
    /// By ALPN: all URLs are https.
    Alpn,
    /// Without TLS the client begins with HTTP/2 (RFC 9113, section 3.3); with TLS by ALPN.
    PriorKnowledge,
}

/// The version of HTTP that a load speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// HTTP/1.1.
    #[default]
    #[serde(rename = "http/1.1")]
    Http1,
    /// HTTP/2.
    #[serde(rename = "h2")]
    Http2,
}

impl Protocol {
    /// Returns the name in reports and JSON, as in ALPN.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Http1 => "http/1.1",
            Self::Http2 => "h2",
        }
    }
}

/// A mistake about HTTP/2.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.told(Naming::Flags))]
pub enum ProtocolProblem {
    /// ALPN needs TLS: use an https URL, or prior knowledge.
    Cleartext(String),
    /// Streams are HTTP/2's: ask for it, or leave them out.
    StreamsOfHttp1,
    /// Pipelining is HTTP/1.1's: give streams instead.
    Pipeline,
    /// More streams than a connection has requests.
    FewRequests {
        /// Streams at once on each connection.
        streams: usize,
        /// Requests on each connection.
        requests: u64,
    },
    /// A field that HTTP/2 does not have (RFC 9113, section 8.2.2): leave it out.
    Field(String),
    /// Users of scenarios speak HTTP/1.1.
    Journeys,
    /// More streams than a connection has identifiers, or memory allows.
    TooManyStreams(usize),
}

/// The most streams at once on a connection.
const MOST_STREAMS: usize = 100_000;

/// Fields of an HTTP/1.1 connection, in lower case.
const CONNECTION_FIELDS: [&str; 6] =
    ["connection", "http2-settings", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];

impl ProtocolProblem {
    /// The mistakes of a draft.
    pub(super) fn of(draft: &Draft) -> Vec<Self> {
        let mut found = Vec::new();
        let Some(http2) = draft.http2 else {
            if draft.streams > 1 {
                found.push(Self::StreamsOfHttp1);
            }
            return found;
        };
        let cleartext = draft.urls.iter().find(|url| url.scheme == Scheme::Http);
        if let (Http2::Alpn, Some(url)) = (http2, cleartext) {
            found.push(Self::Cleartext(url.authority.to_string()));
        }
        if draft.pipeline > 1 {
            found.push(Self::Pipeline);
        }
        if let Some(requests) = draft.requests_per_connection
            && requests > 0
            && draft.streams as u64 > requests
        {
            found.push(Self::FewRequests { streams: draft.streams, requests });
        }
        if draft.streams > MOST_STREAMS {
            found.push(Self::TooManyStreams(draft.streams));
        }
        let names = draft.headers.iter().map(|(name, _)| name);
        let unfit = names.filter(|name| CONNECTION_FIELDS.contains(&name.to_ascii_lowercase().as_str()));
        found.extend(unfit.map(|name| Self::Field(name.clone())));
        if draft.journeys.is_some() {
            found.push(Self::Journeys);
        }
        found
    }

    pub(super) fn fields(&self) -> &'static [&'static str] {
        match self {
            Self::Cleartext(_) => &["http2", "url"],
            Self::Journeys => &["http2", "http2-prior-knowledge"],
            Self::StreamsOfHttp1 | Self::FewRequests { .. } | Self::TooManyStreams(_) => &["streams"],
            Self::Pipeline => &["pipeline"],
            Self::Field(_) => &["header"],
        }
    }

    pub(super) fn told(&self, naming: Naming) -> String {
        let name = |field| naming.of(field);
        let (http2, prior) = (name("http2"), name("http2-prior-knowledge"));
        match self {
            Self::Cleartext(server) => format!(
                "{http2} agrees on HTTP/2 within TLS, and the URL of {server} is not https: give an https URL, or \
                 {prior}"
            ),
            Self::StreamsOfHttp1 => format!(
                "{} is about streams of HTTP/2: give {http2} or {prior} as well, or leave it out",
                name("streams")
            ),
            Self::Pipeline => format!(
                "{} is about HTTP/1.1, and this load speaks HTTP/2: give {} instead",
                name("pipeline"),
                name("streams")
            ),
            Self::FewRequests { streams, requests } => format!(
                "{} {streams} wants {streams} requests in progress on each connection, and each carries {} ({}, {}): \
                 give at most that, or leave it out",
                name("streams"),
                if *requests == 1 { "only one".to_owned() } else { requests.to_string() },
                name("close"),
                name("requests-per-connection")
            ),
            Self::Field(field) => format!("HTTP/2 has no field `{field}` (RFC 9113, section 8.2.2): leave it out"),
            Self::Journeys => format!("users of scenarios speak HTTP/1.1: leave out {http2} and {prior}"),
            Self::TooManyStreams(streams) => {
                format!("{streams} streams on each connection: expected at most {MOST_STREAMS}")
            }
        }
    }
}

impl Draft {
    /// The version of HTTP.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        if self.http2.is_some() { Protocol::Http2 } else { Protocol::Http1 }
    }

    /// Requests that may be in progress at once: connections, times the streams or the pipelined requests of each.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.connections * self.pipeline.max(self.streams)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::plan::{Plan, Problem, Problems};

    fn planned(http2: Http2, url: &str, change: impl FnOnce(&mut Draft)) -> Result<Plan, Vec<String>> {
        let mut draft = Draft { http2: Some(http2), urls: vec![url.parse().unwrap()], ..Draft::default() };
        change(&mut draft);
        draft.plan().map_err(|Problems(problems)| problems.iter().map(Problem::to_string).collect())
    }

    fn refused(http2: Http2, url: &str, change: impl FnOnce(&mut Draft)) -> String {
        planned(http2, url, change).unwrap_err().join("; ")
    }

    #[test]
    fn what_http2_has_not_is_refused_with_the_next_step() {
        let prior = Http2::PriorKnowledge;
        let said = refused(Http2::Alpn, "http://h:1/", |_| {});
        assert!(said.contains("h:1 is not https") && said.contains("--http2-prior-knowledge"), "{said}");
        let said = refused(prior, "http://h/", |draft| draft.pipeline = 2);
        assert!(said.contains("--pipeline") && said.contains("--streams"), "{said}");
        let said = refused(prior, "http://h/", |draft| (draft.streams, draft.requests_per_connection) = (4, Some(1)));
        assert!(said.contains("only one"), "{said}");
        for field in ["Connection", "transfer-encoding", "Upgrade"] {
            let headers = vec![(field.to_owned(), "x".to_owned())];
            assert!(refused(prior, "http://h/", |draft| draft.headers = headers).contains(field), "{field}");
        }
        let http1 = Draft { urls: vec!["http://h/".parse().unwrap()], streams: 2, ..Draft::default() };
        assert!(http1.plan().unwrap_err().to_string().contains("--http2"));
        assert!(refused(prior, "http://h/", |draft| draft.streams = 0).contains("is 0"));
    }

    #[test]
    fn requests_are_encoded_for_http2_with_their_host_and_body() {
        let plan = planned(Http2::PriorKnowledge, "http://h:8/a?b", |draft| {
            draft.method = "POST".into();
            draft.body = Arc::from(&b"hello"[..]);
            draft.streams = 3;
        });
        let plan = plan.unwrap();
        let request = plan.origins[0].requests[0].http2.as_ref().unwrap();
        assert_eq!(&request.body[..], b"hello");
        assert_eq!((plan.streams, plan.protocol, plan.lanes()), (3, Protocol::Http2, 30));
    }
}
