//! The result of an item: one line of JSON. The page `docs/fetch.md` describes all of its fields.

use std::time::Duration;

use oroshi_client::{Phase, Timings};
use oroshi_words::with_causes;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// A record. Unknown and inapplicable values are null.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Record {
    /// The number of its line, from 1.
    pub n: u64,
    /// The line's identifier, if it has one.
    pub id: Option<Value>,
    /// Whether the answer is complete, with a status below 400.
    pub ok: bool,
    /// The method. Empty, and null in JSON, if the line cannot be read.
    #[serde(serialize_with = "text_or_null")]
    pub method: String,
    /// The URL as in the list; empty if the line cannot be read.
    #[serde(serialize_with = "text_or_null")]
    pub url: String,
    /// The URL that answered, if another one.
    pub final_url: Option<String>,
    /// The number of redirects followed.
    pub redirects: u32,
    /// The answer's status.
    pub status: Option<u16>,
    /// The response's version: `1.0`, `1.1` or `2.0`.
    pub http: Option<&'static str>,
    /// The server's address.
    pub remote: Option<String>,
    /// The answer's header fields, if requested.
    pub headers: Option<Vec<(String, String)>>,
    /// The decoded body's length.
    pub body_bytes: u64,
    /// The content coding that the body was decoded from.
    pub coding: Option<&'static str>,
    /// The body's file within the folder of bodies.
    pub body_file: Option<String>,
    /// The number of attempts.
    pub attempts: u32,
    /// The start of the last attempt; null, as the timings are, without any attempt.
    pub started_unix_s: Option<f64>,
    /// The timings of the last attempt.
    pub timings: Option<Times>,
    /// Why there is no complete answer.
    pub error: Option<Failure>,
    /// Time from the beginning of the burst to the end of the request.
    #[serde(skip)]
    pub since_burst: Option<Duration>,
}

/// Why there is no complete answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The phase of the request: `connect`, `first-byte`.
    pub phase: &'static str,
    /// A stable name: `connect-refused`, `first-byte-timeout`.
    pub kind: &'static str,
    /// The message for people.
    pub message: String,
    /// Whether the same request can be sent again without harm.
    pub retry_safe: bool,
}

/// The timings of the last attempt; the total includes its redirects.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times(pub Timings);

impl Serialize for Times {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Timings { queue, dns, connect, tls, write, first_byte, body, total, .. } = self.0;
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        serializer.collect_map([
            ("queue_ns", Some(ns(queue))),
            ("dns_ns", dns.map(ns)),
            ("connect_ns", connect.map(ns)),
            ("tls_ns", tls.map(ns)),
            ("write_ns", Some(ns(write))),
            ("first_byte_ns", Some(ns(first_byte))),
            ("body_ns", Some(ns(body))),
            ("total_ns", Some(ns(total))),
        ])
    }
}

impl Failure {
    /// Returns the failure of an invalid line.
    pub(crate) fn of_line(message: String) -> Self {
        Failure { phase: Phase::Request.name(), kind: "line", message, retry_safe: true }
    }

    /// Returns a request's failure; an idempotent request can always be sent again.
    pub(crate) fn of(error: &oroshi_client::Error, idempotent: bool) -> Self {
        Failure {
            phase: error.phase().name(),
            kind: error.name(),
            message: with_causes(error.cause()),
            retry_safe: idempotent || error.retry_is_safe(),
        }
    }
}

impl Record {
    /// Returns the name that counts the failure; `None` for a success. A status gives its number.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        match (&self.error, self.status) {
            (Some(error), _) => Some(format!("{} ({})", error.kind, error.phase)),
            (None, Some(status)) if !self.ok => Some(format!("status {status}")),
            _ => None,
        }
    }
}

fn text_or_null<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    (!text.is_empty()).then_some(text).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_all_its_fields_always_and_times_in_nanoseconds() {
        let timings = Timings { connect: Some(Duration::from_micros(3)), ..Timings::default() };
        let record = Record { n: 7, timings: Some(Times(timings)), ..Record::default() };
        let line = serde_json::to_string(&record).unwrap();
        assert!(
            line.starts_with(r#"{"n":7,"id":null,"ok":false,"method":null,"url":null,"final_url":null,"#),
            "{line}"
        );
        assert!(line.contains(r#""dns_ns":null,"connect_ns":3000,"tls_ns":null,"#), "{line}");
        assert!(line.ends_with(r#""error":null}"#) && !line.contains('\n'), "{line}");
    }

    #[test]
    fn a_failure_has_a_name() {
        let status = |status, ok| Record { status: Some(status), ok, ..Record::default() }.failure();
        assert_eq!((status(200, true), status(404, false)), (None, Some("status 404".to_owned())));
        let failure = Failure { kind: "read-eof", phase: "between-bytes", message: String::new(), retry_safe: true };
        let cut = Record { status: Some(200), error: Some(failure), ..Record::default() };
        assert_eq!(cut.failure().unwrap(), "read-eof (between-bytes)");
    }
}
