//! The counters of HTTP/2 beyond those of HTTP/1.1: how servers ended streams and connections, and how many streams
//! they allowed.

use std::collections::BTreeMap;

use oroshi_http2::ErrorCode;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::plan::Plan;
use crate::unreadable::shown;

/// The most codes that are counted apart.
const MOST_CODES: usize = 32;
/// The most bytes of a text that are kept in a part of a run.
const MOST_TEXT: usize = 512;

/// Counts of HTTP/2.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Http2Counts {
    /// Streams that a connection may have open by its server's settings: the fewest of all connections.
    allowed: Option<u32>,
    /// Failed requests by the kind of failure and the code; and the text of the first GOAWAY with it.
    ends: BTreeMap<(Failure, u32), (u64, String)>,
}

/// HTTP/2 in a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Http2Record {
    /// Streams at once that the server allows on a connection; of several settings the lowest. `None`: it set no limit.
    pub allowed_streams: Option<u32>,
    /// How the server ended streams and connections, by code; the most frequent first.
    pub ends: Vec<StreamEnds>,
}

/// Requests that failed because the server ended their stream or connection with one code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamEnds {
    /// `stream-reset` or `goaway`.
    pub failure: Failure,
    /// The code's name in RFC 9113, section 7: `REFUSED_STREAM`; `UNKNOWN(n)` for others.
    pub code: String,
    /// Number of requests.
    pub count: u64,
    /// The text in the first GOAWAY, at most 64 bytes, with escapes as in a C string.
    pub text: String,
}

impl Http2Counts {
    /// Notes how many streams a server allows.
    pub(crate) fn allow(&mut self, streams: u32) {
        if streams != u32::MAX {
            self.allowed = Some(self.allowed.map_or(streams, |before| before.min(streams)));
        }
    }

    /// Counts a request that failed by `code`. `text`: of the GOAWAY.
    #[cold]
    pub(crate) fn end(&mut self, failure: Failure, code: ErrorCode, text: &[u8]) {
        let key = (failure, code.0);
        if self.ends.len() < MOST_CODES || self.ends.contains_key(&key) {
            self.ends.entry(key).or_insert_with(|| (0, shown(text))).0 += 1;
        }
    }

    /// Adds the values of another core.
    pub(crate) fn merge(&mut self, other: &Self) {
        if let Some(allowed) = other.allowed {
            self.allow(allowed);
        }
        for (key, (count, text)) in &other.ends {
            if self.ends.len() < MOST_CODES || self.ends.contains_key(key) {
                self.ends.entry(*key).or_insert_with(|| (0, text.clone())).0 += count;
            }
        }
    }

    /// Whether the counts are those of a run, each at most `most`.
    pub(crate) fn is_plausible(&self, most: u64) -> bool {
        self.ends.len() <= MOST_CODES
            && self.ends.values().all(|(count, text)| *count <= most && text.len() <= MOST_TEXT)
    }

    /// The record of a run of HTTP/2.
    pub(crate) fn record(&self) -> Http2Record {
        let ends = self.ends.iter().map(|(&(failure, code), (count, text))| StreamEnds {
            failure,
            code: match ErrorCode(code).name() {
                "UNKNOWN" => format!("UNKNOWN({code})"),
                name => name.to_owned(),
            },
            count: *count,
            text: text.clone(),
        });
        let mut ends: Vec<_> = ends.collect();
        ends.sort_by_key(|end| std::cmp::Reverse(end.count));
        Http2Record { allowed_streams: self.allowed, ends }
    }

    /// Warns where the server allows fewer streams than the plan wants.
    pub(crate) fn warning(&self, plan: &Plan) -> Option<String> {
        let allowed = self.allowed.filter(|allowed| (*allowed as usize) < plan.streams)?;
        Some(format!(
            "the server allows {allowed} streams at once on a connection, and --streams is {}: the others stayed unused",
            plan.streams
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_counted_apart_and_their_number_is_bounded() {
        let (mut one, mut other) = (Http2Counts::default(), Http2Counts::default());
        one.end(Failure::StreamReset, ErrorCode::REFUSED_STREAM, b"");
        other.end(Failure::StreamReset, ErrorCode::REFUSED_STREAM, b"");
        other.end(Failure::Goaway, ErrorCode(99), b"too many \x1b");
        other.allow(100);
        one.allow(u32::MAX);
        one.merge(&other);
        let record = one.record();
        let ends: Vec<_> = record.ends.iter().map(|end| (end.code.as_str(), end.count, end.text.as_str())).collect();
        assert_eq!(ends, [("REFUSED_STREAM", 2, ""), ("UNKNOWN(99)", 1, "too many \\x1b")]);
        assert_eq!(record.allowed_streams, Some(100));
        for code in 0..1000 {
            one.end(Failure::StreamReset, ErrorCode(code), b"");
        }
        assert_eq!(one.record().ends.len(), MOST_CODES);
        assert!(one.is_plausible(3) && !one.is_plausible(2));
    }
}
