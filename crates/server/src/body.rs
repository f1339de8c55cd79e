//! The reading side of an exchange: the request's body, piece by piece.

use std::fmt;
use std::ops::Range;

use oroshi_core::spares;
use oroshi_http1::{Framing, RequestDecoder, RequestEvent, RequestHead};

use crate::core::Core;
use crate::error::{Error, Wait};
use crate::settings::Settings;
use crate::wire::{Unread, Wire};

/// How much [`RequestBody::peer_closed`] takes in ahead of what is wanted, in bytes.
const AHEAD_BYTES: usize = 64 * 1024;

/// The body of a request, read as it is wanted. A body that nobody reads is never held in memory.
pub struct RequestBody<'a> {
    wire: &'a Wire,
    decoder: &'a mut RequestDecoder,
    /// What came in one read with the head and is not decoded yet.
    rest: &'a [u8],
    /// What was read since. Empty as long as `rest` is not.
    more: Vec<u8>,
    /// How much of `more` is decoded.
    taken: usize,
    ended: bool,
    /// Whether a peer that waits for `100 Continue` is told to go on when the body is wanted.
    tells: bool,
    trailers: Vec<(String, Vec<u8>)>,
    /// The tick at which the whole request must have come.
    due: u64,
    pace: Pace,
}

/// How fast a body comes: ticks in which it was waited for, and bytes that came in them, in the window of time that is not over yet.
#[derive(Debug, Default)]
struct Pace {
    waited: u64,
    bytes: u64,
}

impl Pace {
    /// The tick at which a wait that begins now makes the body too slow, if nothing comes.
    fn due(&self, core: &Core) -> u64 {
        let wanted = Self::wanted(core);
        if wanted == 0 {
            return u64::MAX;
        }
        let window = core.ticks.body_window;
        // A window that has brought what it must is followed by another one, which must bring as much.
        let next = if u128::from(self.bytes) >= wanted { window } else { 0 };
        core.now().saturating_add(window.saturating_sub(self.waited)).saturating_add(next)
    }

    fn note(&mut self, core: &Core, ticks: u64, bytes: usize) {
        let (window, was_enough) = (core.ticks.body_window, u128::from(self.bytes) >= Self::wanted(core));
        self.waited = self.waited.saturating_add(ticks);
        self.bytes += bytes as u64;
        if self.waited >= window {
            // What came after the end of a window that had enough already belongs to the next one.
            *self = match was_enough {
                true => Pace { waited: (self.waited - window) % window, bytes: bytes as u64 },
                false => Pace::default(),
            };
        }
    }

    /// How many bytes each window must bring.
    fn wanted(core: &Core) -> u128 {
        let Settings { body_rate, body_rate_window, .. } = core.settings;
        u128::from(body_rate) * body_rate_window.as_millis() / 1000
    }
}

/// What follows an exchange on its connection.
pub(crate) enum Leftover {
    /// The last bytes, this many, of the buffer in which the head was.
    Rest(usize),
    /// This buffer, from this place on.
    More(Vec<u8>, usize),
}

impl Leftover {
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Leftover::Rest(length) => *length == 0,
            Leftover::More(buffer, place) => *place == buffer.len(),
        }
    }
}

enum Step<'a> {
    /// A piece of `rest`.
    Rest(&'a [u8]),
    /// A piece of `more`.
    More(Range<usize>),
    End,
    Starved,
}

impl<'a> RequestBody<'a> {
    pub(crate) fn new(
        wire: &'a Wire,
        decoder: &'a mut RequestDecoder,
        head: &RequestHead<'_>,
        rest: &'a [u8],
        due: u64,
    ) -> Self {
        wire.unread.set(match head.framing {
            Framing::None => Unread::Nothing,
            Framing::Length(length) => Unread::Bytes(length),
            _ => Unread::Unknown,
        });
        // Whoever sends its body at once does not wait for leave to.
        wire.expecting.set(head.expect_continue && rest.is_empty());
        RequestBody {
            wire,
            decoder,
            rest,
            more: Vec::new(),
            taken: 0,
            ended: false,
            tells: true,
            trailers: Vec::new(),
            due,
            pace: Pace::default(),
        }
    }

    /// The next piece of the body, as it came: neither joined nor split. `None` at its end, and from then on.
    ///
    /// The first call tells a peer that waits for `100 Continue` to go on, unless an answer has begun. Dropping the
    /// call loses nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Request`] when the body is malformed, over a limit, or cut off; [`Error::Timeout`] when the peer pauses
    /// for too long, is too slow, or has taken too long in all; [`Error::Io`] when the connection breaks.
    pub async fn chunk(&mut self) -> Result<Option<&[u8]>, Error> {
        loop {
            match self.step()? {
                Step::Rest(piece) => return Ok(Some(piece)),
                Step::More(range) => return Ok(Some(&self.more[range])),
                Step::End => return Ok(None),
                Step::Starved => self.fill().await?,
            }
        }
    }

    /// The next piece of the body if it has come with the head, as it came; `None` when none has, or at the end: see
    /// [`is_ended`](Self::is_ended). Nothing is waited for, and the peer is not told to go on.
    ///
    /// # Errors
    ///
    /// [`Error::Request`] when the body is malformed or over a limit.
    pub fn at_hand(&mut self) -> Result<Option<&[u8]>, Error> {
        match self.step()? {
            Step::Rest(piece) => Ok(Some(piece)),
            Step::More(range) => Ok(Some(&self.more[range])),
            Step::End | Step::Starved => Ok(None),
        }
    }

    /// Leaves it to the caller to tell a peer that waits for `100 Continue` to go on ([`Reply::inform`](crate::Reply::inform)), as
    /// a gateway does that asks another server first. [`chunk`](Self::chunk) then just waits.
    pub fn leave_continue(&mut self) {
        self.tells = false;
    }

    /// The fields after a chunked body, once [`chunk`](Self::chunk) has returned `None`.
    pub fn trailers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.trailers.iter().map(|(name, value)| (name.as_str(), value.as_slice()))
    }

    /// Waits until the peer has closed its sending side or is gone, for handlers that work or stream for long and want
    /// to stop when nobody listens any more. Dropping the call loses nothing.
    ///
    /// What else comes meanwhile (a body, the next request) is kept, up to 64 KiB; with more than that unread it no
    /// longer looks, and never resolves. A client that has closed its sending side may still read: whoever answers
    /// quickly need not ask.
    pub async fn peer_closed(&mut self) {
        self.gather();
        loop {
            if self.more.len() - self.taken >= AHEAD_BYTES {
                return std::future::pending().await;
            }
            match self.wire.read(&mut self.more, Wait::Body, u64::MAX).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }

    /// Whether the body was read to its end.
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// Reads what is left and throws it away: true once the body has ended, false when more than `budget` bytes
    /// were left.
    pub(crate) async fn drain(&mut self, mut budget: u64) -> Result<bool, Error> {
        loop {
            match self.chunk().await? {
                None => return Ok(true),
                Some(piece) => match budget.checked_sub(piece.len() as u64) {
                    Some(left) => budget = left,
                    None => return Ok(false),
                },
            }
        }
    }

    /// Takes the end of the body if it has come. True if it has.
    pub(crate) fn take_end(&mut self) -> Result<bool, Error> {
        if !self.ended && matches!(self.wire.unread.get(), Unread::Nothing | Unread::Bytes(0)) {
            self.step()?;
        }
        Ok(self.ended)
    }

    /// What came after this request.
    pub(crate) fn leftover(&mut self) -> Leftover {
        let more = std::mem::take(&mut self.more);
        if more.is_empty() {
            spares::give(more);
            return Leftover::Rest(self.rest.len());
        }
        Leftover::More(more, self.taken)
    }

    /// What came after this request, on its own. For an upgrade.
    pub(crate) fn take_leftover(&mut self) -> Vec<u8> {
        self.gather();
        self.more.drain(..self.taken);
        self.taken = 0;
        std::mem::take(&mut self.more)
    }

    /// Decodes what is at hand, up to the next piece.
    fn step(&mut self) -> Result<Step<'a>, Error> {
        let limits = &self.wire.core().settings.limits;
        while !self.ended {
            let in_rest = !self.rest.is_empty();
            let mut input = if in_rest { self.rest } else { &self.more[self.taken..] };
            let start = input.as_ptr().addr();
            // The piece is noted by its place, so that `self` is free again to be read into when there is none.
            let piece = match self.decoder.decode(limits, &mut input).map_err(Error::Request)? {
                Some(RequestEvent::Data(piece)) => {
                    let start = piece.as_ptr().addr() - start;
                    Some(start..start + piece.len())
                }
                Some(RequestEvent::Trailers(fields)) => {
                    let owned = fields.iter().map(|field| (field.name.to_owned(), field.value.to_owned()));
                    self.trailers = owned.collect();
                    None
                }
                Some(RequestEvent::End | RequestEvent::Head(_)) => {
                    self.ended = true;
                    self.wire.unread.set(Unread::Nothing);
                    self.wire.expecting.set(false);
                    None
                }
                None => {
                    let left = input.len();
                    self.leave(in_rest, left);
                    return Ok(Step::Starved);
                }
            };
            let left = input.len();
            let (rest, taken) = (self.rest, self.taken);
            self.leave(in_rest, left);
            if let Some(piece) = piece {
                self.note(piece.len() as u64);
                let step = match in_rest {
                    true => Step::Rest(&rest[piece]),
                    false => Step::More(taken + piece.start..taken + piece.end),
                };
                return Ok(step);
            }
        }
        Ok(Step::End)
    }

    /// Goes on behind what was decoded: `left` bytes remain.
    fn leave(&mut self, in_rest: bool, left: usize) {
        if in_rest {
            self.rest = &self.rest[self.rest.len() - left..];
        } else {
            self.taken = self.more.len() - left;
        }
    }

    /// Keeps account of what is still to come, for whoever decides whether the connection goes on.
    fn note(&self, length: u64) {
        self.wire.expecting.set(false);
        if let Unread::Bytes(left) = self.wire.unread.get() {
            self.wire.unread.set(Unread::Bytes(left.saturating_sub(length)));
        }
    }

    /// Waits for more bytes.
    async fn fill(&mut self) -> Result<(), Error> {
        self.gather();
        if self.tells {
            if self.wire.expecting.get() && !self.wire.answered.get() {
                self.wire.append(|output| output.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n"));
            }
            self.wire.expecting.set(false);
        }
        self.more.drain(..self.taken);
        self.taken = 0;
        let core = self.wire.core();
        let began = core.now();
        let due = began.saturating_add(core.ticks.body).min(self.due).min(self.pace.due(core));
        let count = self.wire.read(&mut self.more, Wait::Body, due).await?;
        self.pace.note(core, core.now() - began, count);
        if count == 0 {
            self.decoder.eof().map_err(Error::Request)?;
        }
        Ok(())
    }

    /// Moves what is left of the first read to where more can be added.
    fn gather(&mut self) {
        if !self.rest.is_empty() {
            self.more = spares::take();
            self.more.extend_from_slice(self.rest);
            self.rest = &[];
        }
    }
}

impl fmt::Debug for RequestBody<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RequestBody")
            .field("at_hand", &(self.rest.len() + self.more.len() - self.taken))
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}
