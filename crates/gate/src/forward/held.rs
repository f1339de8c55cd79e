//! Response heads held back for inspection.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use oroshi_http1::encode;

use super::edits::Edits;

/// Inspects heads of final responses before they go to the client. Bodies wait meanwhile and then stream. Interim
/// responses (1xx) and the 101 of an upgrade are not inspected.
pub trait Inspect: fmt::Debug {
    /// Inspects a final response's head. The inspector must bound its own time: of the upstream's timeouts, only the
    /// total timeout applies meanwhile.
    fn inspect(&self, head: InspectedHead) -> InspectFuture;
}

/// The future of an inspection.
pub type InspectFuture = Pin<Box<dyn Future<Output = Verdict>>>;

/// A response's head as it would go to the client.
#[derive(Clone, Debug)]
pub struct InspectedHead {
    /// Its status, 200 to 999.
    pub status: u16,
    /// The field lines, each with its CRLF, after the route's edits and without framing fields.
    pub lines: Rc<[u8]>,
    /// The value of `Content-Length`.
    pub length: Option<u64>,
    /// Whether a body may follow.
    pub has_body: bool,
}

/// The result of an inspection.
#[derive(Debug)]
pub enum Verdict {
    /// Pass the response on.
    Pass {
        /// The status: its own, or another one from 200 to 999. Not 204 or 304 if a body may follow.
        status: u16,
        /// Edits of the fields, in trailers as well.
        changes: Edits,
    },
    /// Send another response instead. Its fields must not frame the message; 204 and 304 have no body.
    Replace {
        /// From 200 to 999.
        status: u16,
        /// Names and values.
        fields: Vec<(String, Vec<u8>)>,
        /// The whole body.
        body: Vec<u8>,
    },
    /// Send a 500 to the client; the text is for the log.
    Fail(String),
}

/// A held head.
pub(super) struct Held {
    pub(super) verdict: InspectFuture,
    pub(super) status: u16,
    pub(super) reason: Box<[u8]>,
    pub(super) lines: Rc<[u8]>,
    pub(super) length: Option<u64>,
}

impl Held {
    /// Returns the reason phrase of a status: the upstream's fits only the upstream's status.
    pub(super) fn reason(&self, status: u16) -> &[u8] {
        if status == self.status { &self.reason } else { encode::standard_reason(status).as_bytes() }
    }

    /// Returns the field lines with these changes, and whether a `Date` is among them.
    pub(super) fn lines(&self, changes: &Edits) -> (Vec<u8>, bool) {
        let (mut out, mut has_date) = (Vec::with_capacity(self.lines.len() + changes.lines().len()), false);
        for line in self.lines.split_inclusive(|&byte| byte == b'\n') {
            let name = line.split(|&byte| byte == b':').next().and_then(|name| str::from_utf8(name).ok());
            let Some(name) = name.filter(|name| !changes.drops(name)) else { continue };
            has_date |= name.eq_ignore_ascii_case("date");
            out.extend_from_slice(line);
        }
        out.extend_from_slice(changes.lines());
        let mut added = changes.lines().split_inclusive(|&byte| byte == b'\n');
        has_date |= added.any(|line| line.get(..5).is_some_and(|name| name.eq_ignore_ascii_case(b"date:")));
        (out, has_date)
    }
}
