//! Responses that are no HTTP: the broken rule, the protocol that the sender seems to speak, and the first bytes.

use oroshi_http1::{DecodeError, Limits};
use oroshi_http2::Defect;
use serde::{Deserialize, Serialize};

/// Bytes kept of the first response that broke each rule.
const SHOWN: usize = 64;

/// Failures called `parse` that broke the same rule of HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParseRecord {
    /// Stable name of the rule: `length-and-transfer-encoding`, `head-too-large`, `bare-lf`.
    pub rule: String,
    /// The rule in words, and the protocol that the sender seems to speak.
    pub what: String,
    /// Number of failures.
    pub count: u64,
    /// First bytes of the first one: at most 64, with escapes as in a C string, cut off at a cookie.
    pub first_bytes: String,
}

/// Counts of unreadable responses by broken rule. There are some fifty rules.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Unreadable(Vec<Kind>);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Kind {
    /// The rule's name.
    rule: String,
    count: u64,
    what: String,
    first_bytes: String,
}

impl Unreadable {
    /// Counts `count` requests that failed because `bytes` broke a rule. `bytes` begin with the offending message or
    /// part.
    #[cold]
    pub(crate) fn add(&mut self, error: DecodeError, limits: &Limits, bytes: &[u8], count: u64) {
        self.add_rule(error.name(), || explained(error, limits, bytes), bytes, count);
    }

    /// Counts `count` requests that failed because `bytes` broke a rule of HTTP/2. No bytes: a part of a frame broke
    /// it, which is not text.
    #[cold]
    pub(crate) fn add_http2(&mut self, defect: Defect, bytes: &[u8], count: u64) {
        let what = || match speaks_no_http2(bytes) {
            Some(what) => format!("{defect}: {what}"),
            None => defect.to_string(),
        };
        self.add_rule(defect.name(), what, bytes, count);
    }

    fn add_rule(&mut self, rule: &str, what: impl FnOnce() -> String, bytes: &[u8], count: u64) {
        match self.0.iter_mut().find(|kind| kind.rule == rule) {
            Some(kind) => kind.count += count,
            None => {
                self.0.push(Kind { rule: rule.to_owned(), count, what: what(), first_bytes: shown(bytes) });
            }
        }
    }

    /// Adds the values of another core.
    pub(crate) fn merge(&mut self, other: &Self) {
        for theirs in &other.0 {
            match self.0.iter_mut().find(|kind| kind.rule == theirs.rule) {
                Some(kind) => kind.count += theirs.count,
                None => self.0.push(theirs.clone()),
            }
        }
    }

    /// Returns the counts for a report, the most frequent first.
    pub(crate) fn records(&self) -> Vec<ParseRecord> {
        let record = |kind: &Kind| ParseRecord {
            rule: kind.rule.clone(),
            what: kind.what.clone(),
            count: kind.count,
            first_bytes: kind.first_bytes.clone(),
        };
        let mut records: Vec<_> = self.0.iter().map(record).collect();
        records.sort_by(|one, other| other.count.cmp(&one.count).then_with(|| one.rule.cmp(&other.rule)));
        records
    }
}

/// Returns the rule in words, with its limit if it has one, and the protocol that the sender seems to speak.
pub(crate) fn explained(error: DecodeError, limits: &Limits, bytes: &[u8]) -> String {
    let rule = match error {
        DecodeError::HeadTooLarge => format!("the head is larger than {} bytes", limits.head_bytes),
        DecodeError::TooManyHeaders => format!("the head has more than {} fields", limits.headers),
        DecodeError::TooManyTrailers => format!("there are more than {} trailer fields", limits.trailers),
        DecodeError::TrailersTooLarge => format!("the trailers are larger than {} bytes", limits.trailer_bytes),
        DecodeError::TooManyInformational => {
            format!("more than {} interim responses came before an answer", limits.informational)
        }
        other => other.to_string(),
    };
    match speaks(bytes) {
        Some(what) => format!("{rule}: {what}"),
        None => rule,
    }
}

/// Recognises the first bytes of servers that do not speak HTTP/2.
fn speaks_no_http2(bytes: &[u8]) -> Option<&'static str> {
    if bytes.starts_with(b"HTTP/1.") {
        return Some("this is HTTP/1.1, so leave out --http2-prior-knowledge");
    }
    speaks(bytes).filter(|_| bytes.first_chunk::<4>().is_none_or(|first| !matches!(first[3], 4 | 7)))
}

/// Recognises the first bytes of servers of other protocols.
fn speaks(bytes: &[u8]) -> Option<&'static str> {
    let begins = |with: &[u8]| bytes.starts_with(with);
    match bytes {
        [0x15 | 0x16, 0x03, ..] => Some("this is TLS, so use https://"),
        // A frame's length, type 4 (SETTINGS) or 7 (GOAWAY), flags, and stream 0 (RFC 9113, section 4.1).
        [_, _, _, 4 | 7, _, 0, 0, 0, 0, ..] => {
            Some("this is an HTTP/2 frame: give --http2-prior-knowledge, or https:// and --http2")
        }
        [_, _, _, 0, 10, ..] => Some("this looks like a MySQL server's greeting"),
        _ if begins(b"PRI * HTTP/2") || begins(b"HTTP/2") => {
            Some("this is HTTP/2: give --http2-prior-knowledge, or https:// and --http2")
        }
        _ if begins(b"HTTP/3") || begins(b"HTTP/0") => Some("only HTTP/1.0 and 1.1 are spoken here"),
        _ if begins(b"SSH-") => Some("this is an SSH server's greeting"),
        _ if begins(b"220 ") || begins(b"220-") => Some("this looks like a mail or FTP server's greeting"),
        _ if begins(b"-ERR") || begins(b"+OK") => Some("this looks like a Redis or POP3 server"),
        _ if begins(b"ERROR\r\n") => Some("this looks like a memcached server"),
        _ if begins(b"<") => Some("this is a document without a head, as in HTTP/0.9"),
        _ => None,
    }
}

/// Returns the first bytes, escaped and without the value of a cookie, which may be a secret.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let mut end = bytes.len().min(SHOWN);
    let cookie = b"set-cookie";
    if let Some(at) = bytes[..end].windows(cookie.len()).position(|window| window.eq_ignore_ascii_case(cookie)) {
        let behind = at + cookie.len();
        // Keep the colon that follows: its absence may be what is wrong.
        end = behind + usize::from(bytes.get(behind) == Some(&b':'));
    }
    let more = if end < bytes.len() { "..." } else { "" };
    // Quotation marks need no escape here.
    let text = bytes[..end].escape_ascii().to_string().replace("\\\"", "\"").replace("\\'", "'");
    format!("{text}{more}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_each_kind_is_kept_and_all_are_counted() {
        let limits = Limits::default();
        let (mut one, mut other) = (Unreadable::default(), Unreadable::default());
        one.add(DecodeError::BadStatusLine, &limits, b"SSH-2.0-OpenSSH\r\n", 1);
        one.add(DecodeError::BadStatusLine, &limits, b"other", 2);
        other.add(DecodeError::BareLf, &limits, b"HTTP/1.1 200 OK\n\n", 7);
        other.add(DecodeError::BadStatusLine, &limits, b"x", 1);
        one.merge(&other);
        let told: Vec<_> = one.records().into_iter().map(|r| (r.rule, r.count, r.what, r.first_bytes)).collect();
        let expected = [
            ("bare-lf", 7, "line feed without carriage return", r"HTTP/1.1 200 OK\n\n"),
            ("bad-status-line", 4, "malformed status line: this is an SSH server's greeting", r"SSH-2.0-OpenSSH\r\n"),
        ];
        assert_eq!(
            told,
            expected.map(|(rule, n, what, bytes)| (rule.to_owned(), n, what.to_owned(), bytes.to_owned()))
        );
    }

    #[test]
    fn limits_are_told_with_their_number() {
        let limits = Limits::default();
        let told = |error| explained(error, &limits, b"HTTP/1.1 200 OK\r\n");
        assert_eq!(told(DecodeError::HeadTooLarge), "the head is larger than 65536 bytes");
        assert_eq!(told(DecodeError::TooManyHeaders), "the head has more than 100 fields");
    }

    #[test]
    fn other_protocols_are_recognised() {
        for (bytes, word) in [
            (&b"\x15\x03\x01\x00\x02\x02\x46"[..], "https://"),
            (b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03", "HTTP/2 frame"),
            (b"PRI * HTTP/2.0\r\n", "HTTP/2"),
            (b"220 mail ESMTP\r\n", "mail"),
            (b"-ERR unknown command\r\n", "Redis"),
            (b"<!doctype html>", "HTTP/0.9"),
        ] {
            assert!(speaks(bytes).is_some_and(|what| what.contains(word)), "{word}");
        }
        assert_eq!((speaks(b""), speaks(b"HTTP/1.1 2x")), (None, None));
    }

    #[test]
    fn what_is_shown_is_bounded_escaped_and_without_cookies() {
        let bytes = [b"\x1b[31m\"it's\"".as_slice(), &[b'x'; 100]].concat();
        let text = shown(&bytes);
        assert!(text.starts_with("\\x1b[31m\"it's\"xxx") && text.ends_with("x..."), "{text}");
        assert!(text.len() < 5 * SHOWN, "{text}");
        assert_eq!(shown(b"HTTP/1.1 200 OK\r\nSet-Cookie: sid=secret"), r"HTTP/1.1 200 OK\r\nSet-Cookie:...");
        for odd in [
            "Set-Cookie\t: sid=secret",
            "set-cookie\r\n : sid=secret",
            "Set-Cookie2: sid=secret",
            "sEt-CoOkIe : secret=1",
        ] {
            assert!(!shown(odd.as_bytes()).contains("secret"), "{odd}");
        }
        assert_eq!(shown(b""), "");
    }
}
