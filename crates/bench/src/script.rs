//! What a program may decide while requests flow: the seam between the load and a script. No language is known here.
//!
//! Each core has a part of the script to itself, brought up on the core's own thread and called there. `request` of it is
//! called for each batch of requests, `delay` before it, `response` for each answer: those of them that the script has.

use std::fmt;
use std::time::Duration;

use oroshi_net::Peer;

/// A script, as all cores of a run share it.
pub trait Script: fmt::Debug + Send + Sync {
    /// What messages and records call it: its file's name, `counter.lua`.
    fn name(&self) -> String;

    /// Brings up the part of core `core`, on that core's thread and before its first connection. It may block: the parts come up
    /// one after the other. `peers` is where connections would go: addresses that answered, at least one.
    ///
    /// # Errors
    /// What is wrong with the script, or that [`interrupt`](Self::interrupt) was called.
    fn enter(&self, core: usize, peers: &[Peer]) -> Result<Box<dyn CoreScript>, ScriptError>;

    /// Ends whatever call into the script is under way, on any thread, and all later ones: each returns an error. For a run
    /// that is given up.
    fn interrupt(&self);

    /// A call that should have ended, by its limit, by the end of the run or by [`interrupt`](Self::interrupt), and cannot be ended, as
    /// it is stuck outside the script (in a system call, say). Its thread is lost.
    fn stuck(&self) -> Option<ScriptError>;

    /// Nobody will ask for the cores' values any more: each [`leave`](CoreScript::leave) returns.
    fn release(&self);
}

/// One core's part of a script. Whatever returns an error ends the run.
pub trait CoreScript: fmt::Debug {
    /// What it takes part in; decided when it came up.
    fn terms(&self) -> Terms;

    /// The load begins. A call that is still under way at `end` (nanoseconds of the monotonic clock; `None`: there is no fixed end)
    /// is interrupted soon after.
    fn begin(&mut self, end: Option<u64>);

    /// How long to wait before the next batch of requests. Called only if `terms().delays`.
    ///
    /// # Errors
    /// What went wrong in the script.
    fn delay(&mut self) -> Result<Duration, ScriptError>;

    /// Appends the bytes of the next batch: one request or several, one after the other. Called only if `terms().request` is
    /// `None`.
    ///
    /// # Errors
    /// What went wrong in the script.
    fn request(&mut self, bytes: &mut Vec<u8>) -> Result<(), ScriptError>;

    /// An answer is whole. Called only if `terms().responses` is something.
    ///
    /// # Errors
    /// What went wrong in the script.
    fn response(&mut self, answer: &Heard) -> Result<(), ScriptError>;

    /// Whether the script wants its core's part of the run to end now.
    fn stopped(&self) -> bool;

    /// Where a function of the script stands, for a message: `counter.lua:12`, or the file alone.
    fn place(&self, function: &str) -> String;

    /// The core's part is over; its values may still be asked for. Blocks until [`Script::release`].
    fn leave(&mut self);
}

/// What a core's part of a script takes part in.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// Where this core's connections go, instead of all the addresses in turn.
    pub peer: Option<Peer>,
    /// The one request that is always sent, if it is always the same: then nothing is called per request.
    pub request: Option<Vec<u8>>,
    /// Whether [`CoreScript::delay`] is to be called.
    pub delays: bool,
    /// Whether [`CoreScript::response`] is to be called, and with what.
    pub responses: Option<Wanted>,
}

/// Parts of an answer that a script looks at; what it does not is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Header fields and trailers.
    pub headers: bool,
    /// The body.
    pub body: bool,
}

/// An answer as a script is told of it.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    /// Status.
    pub status: u16,
    /// The body, chunks put together; empty unless wanted.
    pub body: Vec<u8>,
    /// Names and values, one after the other, and the end of each.
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl Heard {
    /// Header fields, then trailers, as received and in that order; none unless wanted.
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

    /// Makes it a new answer, with the room that it has.
    pub fn begin(&mut self, status: u16) {
        self.status = status;
        self.body.clear();
        self.text.clear();
        self.ends.clear();
    }
}

/// What is wrong with a script, or went wrong in it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{place}: {what}")]
pub struct ScriptError {
    /// The file, with the line where that is known: `counter.lua:12`.
    pub place: String,
    /// What happened, and what to do where it is not plain. Further lines are the calls that led there.
    pub what: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_as_they_were_put_in() {
        let mut heard = Heard::default();
        heard.begin(200);
        assert_eq!(heard.headers().count(), 0);
        heard.add_header(b"A", b"1");
        heard.add_header(b"B", b"");
        assert_eq!(heard.headers().collect::<Vec<_>>(), [(&b"A"[..], &b"1"[..]), (b"B", b"")]);
        heard.begin(404);
        heard.add_header(b"", b"x");
        assert_eq!(heard.headers().collect::<Vec<_>>(), [(&b""[..], &b"x"[..])]);
    }
}
