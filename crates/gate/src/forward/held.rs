//! The head of an answer that is held back until somebody has looked at it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use oroshi_http1::encode;
use oroshi_server::{Error, Reply};

use super::edits::Edits;

/// Looks at the heads of answers before they go to the client. Bodies wait meanwhile, where they are, and stream after that. Interim answers
/// (1xx) and the 101 of an upgrade are not looked at.
pub trait Inspect: fmt::Debug {
    /// Looks at a final answer's head. To be bounded in time by whoever looks: of the limits on the server behind only that on the whole
    /// exchange counts meanwhile.
    fn inspect(&self, head: Inspected) -> InspectFuture;
}

/// Somebody looking.
pub type InspectFuture = Pin<Box<dyn Future<Output = Verdict>>>;

/// An answer's head as it would go to the client.
#[derive(Clone, Debug)]
pub struct Inspected {
    /// Its status, 200 to 999.
    pub status: u16,
    /// Its field lines, each with its CRLF, after what the route changes; without those that say how the body is framed.
    pub lines: Rc<[u8]>,
    /// What `Content-Length` says.
    pub length: Option<u64>,
    /// Whether a body may follow.
    pub has_body: bool,
}

/// What becomes of an answer.
#[derive(Debug)]
pub enum Verdict {
    /// It goes on.
    Pass {
        /// With this status: its own, or another one from 200 to 999; not 204 or 304 where a body may follow.
        status: u16,
        /// With these fields changed, in its trailers as well.
        changes: Edits,
    },
    /// The client gets another one in its place. The fields must not say how it is framed; 204 and 304 have no body.
    Replace {
        /// From 200 to 999.
        status: u16,
        /// Names and values.
        fields: Vec<(String, Vec<u8>)>,
        /// All of it.
        body: Vec<u8>,
    },
    /// The client gets a 500; this is for the log.
    Fail(String),
}

/// A head that is held back.
pub(super) struct Held {
    pub(super) looking: InspectFuture,
    pub(super) status: u16,
    pub(super) reason: Box<[u8]>,
    pub(super) lines: Rc<[u8]>,
    pub(super) length: Option<u64>,
}

impl Held {
    /// Lets it go.
    pub(super) fn write(&self, reply: &mut Reply<'_>, status: u16, changes: &Edits) -> Result<(), Error> {
        // The server's own words for its own status.
        let own = status == self.status;
        let reason = if own { &*self.reason } else { encode::standard_reason(status).as_bytes() };
        reply.relay(status, reason, self.length, |out| {
            let mut has_date = false;
            for line in self.lines.split_inclusive(|&byte| byte == b'\n') {
                let name = line.split(|&byte| byte == b':').next().and_then(|name| str::from_utf8(name).ok());
                let Some(name) = name.filter(|name| !changes.drops(name)) else { continue };
                has_date |= name.eq_ignore_ascii_case("date");
                out.extend_from_slice(line);
            }
            out.extend_from_slice(changes.lines());
            let mut added = changes.lines().split_inclusive(|&byte| byte == b'\n');
            has_date || added.any(|line| line.get(..5).is_some_and(|name| name.eq_ignore_ascii_case(b"date:")))
        })
    }
}
