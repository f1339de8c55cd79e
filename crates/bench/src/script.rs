//! The interface between the load and a script, in whatever language it is written.
//!
//! Each core has its own part of the script, created and called on the core's thread. It calls `delay` and `request`
//! for each batch of requests, and `response` for each response, if the script has them.

use std::fmt;
use std::time::Duration;

use oroshi_net::Peer;

/// A script that all cores of a run share.
pub trait Script: fmt::Debug + Send + Sync {
    /// Returns the name in messages and records: the file's, `counter.lua`.
    fn name(&self) -> String;

    /// Creates the part of core `core`, on that core's thread and before its first connection.
    ///
    /// May block: cores create their parts one after the other. `peers`: the addresses that accepted a connection, at
    /// least one.
    ///
    /// # Errors
    /// When the script is wrong, or [`interrupt`](Self::interrupt) was called.
    fn enter(&self, core: usize, peers: &[Peer]) -> Result<Box<dyn CoreScript>, ScriptError>;

    /// Ends current and later calls into the script, on any thread, with an error: the run is given up.
    fn interrupt(&self);

    /// Returns the error of a call that cannot be ended, because it is stuck outside the script, as in a system call.
    ///
    /// It should have ended by its limit, the end of the run or [`interrupt`](Self::interrupt). Its thread is lost.
    fn stuck(&self) -> Option<ScriptError>;

    /// Lets each [`leave`](CoreScript::leave) return: nobody will read the parts' values any more.
    fn release(&self);
}

/// One core's part of a script. Every error ends the run.
pub trait CoreScript: fmt::Debug {
    /// Returns which calls the script has, as decided when the part was created.
    fn features(&self) -> ScriptFeatures;

    /// Begins the load. A call that lasts beyond `end` (nanoseconds of the monotonic clock; `None`: no fixed end) is
    /// interrupted soon after.
    fn begin(&mut self, end: Option<u64>);

    /// Returns the pause before the next batch of requests. Called only if `features().delays`.
    ///
    /// # Errors
    /// When the script fails.
    fn delay(&mut self) -> Result<Duration, ScriptError>;

    /// Appends the bytes of the next batch: one request or several, one after the other. Called only if
    /// `features().request` is `None`.
    ///
    /// # Errors
    /// When the script fails.
    fn request(&mut self, bytes: &mut Vec<u8>) -> Result<(), ScriptError>;

    /// Takes a whole response. Called only if `features().responses` is set.
    ///
    /// # Errors
    /// When the script fails.
    fn response(&mut self, answer: &ResponseView) -> Result<(), ScriptError>;

    /// Whether the script wants its core's part of the run to end now.
    fn stopped(&self) -> bool;

    /// Returns the position of a function for a message: `counter.lua:12`, or the file alone.
    fn place(&self, function: &str) -> String;

    /// Ends the core's part. Its values can still be read. Blocks until [`Script::release`].
    fn leave(&mut self);
}

/// Which calls a part of a script has, and what it fixes in advance.
#[derive(Clone, Debug, Default)]
pub struct ScriptFeatures {
    /// The address of this core's connections, instead of all addresses in turn.
    pub peer: Option<Peer>,
    /// The request, if it is always the same: then no function is called per request.
    pub request: Option<Vec<u8>>,
    /// Whether to call [`CoreScript::delay`].
    pub delays: bool,
    /// Whether to call [`CoreScript::response`], and with what.
    pub responses: Option<ResponseParts>,
}

/// Parts of a response that a script reads. Other parts are not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseParts {
    /// Header fields and trailers.
    pub headers: bool,
    /// The body.
    pub body: bool,
}

/// A response, as a script reads it.
#[derive(Clone, Debug, Default)]
pub struct ResponseView {
    /// Status.
    pub status: u16,
    /// The body, with its chunks put together; empty unless wanted.
    pub body: Vec<u8>,
    /// Names and values, one after the other, and the end of each.
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl ResponseView {
    /// Returns header fields, then trailers, in the order received; none unless wanted.
    pub fn headers(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let pieces = starts.zip(&self.ends).map(|(start, &end)| &self.text[start..end]);
        let values = pieces.clone().skip(1).step_by(2);
        pieces.step_by(2).zip(values)
    }

    /// Adds a header field.
    pub fn add_header(&mut self, name: &[u8], value: &[u8]) {
        for piece in [name, value] {
            self.text.extend_from_slice(piece);
            self.ends.push(self.text.len());
        }
    }

    /// Begins a new response in the same memory.
    pub fn begin(&mut self, status: u16) {
        self.status = status;
        self.body.clear();
        self.text.clear();
        self.ends.clear();
    }
}

/// A mistake in a script, or a failure while it ran.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{place}: {what}")]
pub struct ScriptError {
    /// The file, with the line if known: `counter.lua:12`.
    pub place: String,
    /// What happened, and what to do if that is not plain. Further lines are the calls that led there.
    pub what: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_as_they_were_put_in() {
        let mut response = ResponseView::default();
        response.begin(200);
        assert_eq!(response.headers().count(), 0);
        response.add_header(b"A", b"1");
        response.add_header(b"B", b"");
        assert_eq!(response.headers().collect::<Vec<_>>(), [(&b"A"[..], &b"1"[..]), (b"B", b"")]);
        response.begin(404);
        response.add_header(b"", b"x");
        assert_eq!(response.headers().collect::<Vec<_>>(), [(&b""[..], &b"x"[..])]);
    }
}
