//! The reading side of an exchange: the request's body, piece by piece.

use std::fmt;
use std::ops::Range;

use oroshi_core::spares;
use oroshi_http1::{Framing, RequestDecoder, RequestEvent, RequestHead};

use crate::core::Core;
use crate::error::{Error, Wait};
use crate::http2;
use crate::settings::Settings;
use crate::transport::{Transport, Unread};

/// How much [`RequestBody::peer_closed`] reads ahead, in bytes.
const AHEAD_BYTES: usize = 64 * 1024;

/// The body of a request, read on demand. Unread bodies are never held in memory.
pub struct RequestBody<'a> {
    transport: Transport<'a>,
    /// `None` over HTTP/2, whose connection decodes the body.
    decoder: Option<&'a mut RequestDecoder>,
    /// Undecoded bytes that came in one read with the head. Empty over HTTP/2.
    rest: &'a [u8],
    /// Bytes read since then. Empty while `rest` is not. Over HTTP/2: the current piece.
    more: Vec<u8>,
    /// The decoded part of `more`, in bytes.
    taken: usize,
    ended: bool,
    /// Whether a read sends `100 Continue` to a peer that waits for it.
    tells: bool,
    trailers: Vec<(String, Vec<u8>)>,
    /// The tick of the whole request's deadline.
    due: u64,
    pace: Pace,
}

/// The rate of a body in the current window: ticks of waiting, and bytes that came in them.
#[derive(Debug, Default)]
struct Pace {
    waited: u64,
    bytes: u64,
}

impl Pace {
    /// Returns the tick at which a wait that begins now makes the body too slow, if nothing comes.
    fn due(&self, core: &Core) -> u64 {
        let wanted = Self::wanted(core);
        if wanted == 0 {
            return u64::MAX;
        }
        let window = core.ticks.body_window;
        // After a window with enough bytes comes another, which needs as many.
        let next = if u128::from(self.bytes) >= wanted { window } else { 0 };
        core.now().saturating_add(window.saturating_sub(self.waited)).saturating_add(next)
    }

    fn note(&mut self, core: &Core, ticks: u64, bytes: usize) {
        let (window, was_enough) = (core.ticks.body_window, u128::from(self.bytes) >= Self::wanted(core));
        self.waited = self.waited.saturating_add(ticks);
        self.bytes += bytes as u64;
        if self.waited >= window {
            // Bytes after the end of a window that had enough belong to the next window.
            *self = match was_enough {
                true => Pace { waited: (self.waited - window) % window, bytes: bytes as u64 },
                false => Pace::default(),
            };
        }
    }

    /// Returns the bytes that each window needs.
    fn wanted(core: &Core) -> u128 {
        let Settings { body_rate, body_rate_window, .. } = core.settings;
        u128::from(body_rate) * body_rate_window.as_millis() / 1000
    }
}

/// The input behind an exchange on its connection.
pub(crate) enum Leftover {
    /// This many last bytes of the buffer that held the head.
    Rest(usize),
    /// This buffer, from this position on.
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
        transport: Transport<'a>,
        decoder: Option<&'a mut RequestDecoder>,
        head: &RequestHead<'_>,
        rest: &'a [u8],
        due: u64,
    ) -> Self {
        let progress = transport.progress();
        progress.unread.set(match head.framing {
            Framing::None => Unread::Nothing,
            Framing::Length(length) => Unread::Bytes(length),
            _ => Unread::Unknown,
        });
        // A peer that sends its body at once needs no `100 Continue`.
        progress.expecting.set(head.expect_continue && rest.is_empty());
        RequestBody {
            transport,
            decoder,
            rest,
            more: Vec::new(),
            taken: 0,
            // The data behind the head of a tunnel over HTTP/2 is no body.
            ended: matches!(transport, Transport::Http2(_)) && head.framing == Framing::None,
            tells: true,
            trailers: Vec::new(),
            due,
            pace: Pace::default(),
        }
    }

    /// Returns the next piece of the body as received: neither joined nor split. `None` at its end, and from then on.
    ///
    /// The first call sends `100 Continue` to a peer that waits for it, unless an answer has begun. Dropping the call
    /// loses nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Request`] when the body is malformed, over a limit, or cut off; [`Error::Timeout`] when the peer pauses
    /// for too long, is too slow, or takes too long in total; [`Error::Io`] when the connection breaks.
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

    /// Returns the next piece of the body if it came with the head, as received; `None` otherwise, or at the end: see
    /// [`is_ended`](Self::is_ended). Does not wait, and does not send `100 Continue`.
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

    /// Leaves `100 Continue` to the caller ([`Reply::inform`](crate::Reply::inform)), as a gateway needs that asks
    /// another server first. [`chunk`](Self::chunk) then only waits.
    pub fn leave_continue(&mut self) {
        self.tells = false;
    }

    /// Iterates over the fields after a chunked body, once [`chunk`](Self::chunk) has returned `None`.
    pub fn trailers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.trailers.iter().map(|(name, value)| (name.as_str(), value.as_slice()))
    }

    /// Waits until the peer has closed its sending side or is gone. For handlers that work or stream for long, and want
    /// to stop when nobody reads. Dropping the call loses nothing.
    ///
    /// It keeps other input (a body, the next request), up to 64 KiB; beyond that it stops reading, and never resolves.
    /// A client that has closed its sending side may still read, so quick handlers need not call this.
    pub async fn peer_closed(&mut self) {
        let Transport::Http1(wire) = self.transport else {
            // The handler is dropped when the peer resets the stream or is gone.
            return std::future::pending().await;
        };
        self.gather();
        loop {
            if self.more.len() - self.taken >= AHEAD_BYTES {
                return std::future::pending().await;
            }
            match wire.read(&mut self.more, Wait::Body, u64::MAX).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }

    /// Whether the body was read to its end.
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// Waits no longer than this many ticks from now on for the rest of the body.
    pub(crate) fn wait_at_most(&mut self, ticks: u64) {
        self.due = self.due.min(self.transport.core().now().saturating_add(ticks));
    }

    /// Reads and discards the rest: true at the body's end, false if more than `budget` bytes were left.
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

    /// Decodes the end of the body if it has come. Returns whether it has.
    pub(crate) fn take_end(&mut self) -> Result<bool, Error> {
        if !self.ended && matches!(self.transport.progress().unread.get(), Unread::Nothing | Unread::Bytes(0)) {
            self.step()?;
        }
        Ok(self.ended)
    }

    /// Returns the input behind this request.
    pub(crate) fn leftover(&mut self) -> Leftover {
        let more = std::mem::take(&mut self.more);
        if more.is_empty() {
            spares::give(more);
            return Leftover::Rest(self.rest.len());
        }
        Leftover::More(more, self.taken)
    }

    /// Returns the bytes behind this request, for an upgrade.
    pub(crate) fn take_leftover(&mut self) -> Vec<u8> {
        self.gather();
        self.more.drain(..self.taken);
        self.taken = 0;
        std::mem::take(&mut self.more)
    }

    /// Decodes available bytes, up to the next piece.
    fn step(&mut self) -> Result<Step<'a>, Error> {
        let (Transport::Http1(wire), Some(decoder)) = (self.transport, self.decoder.as_deref_mut()) else {
            return Ok(self.step_http2());
        };
        let limits = &wire.core().settings.limits;
        while !self.ended {
            let in_rest = !self.rest.is_empty();
            let mut input = if in_rest { self.rest } else { &self.more[self.taken..] };
            let start = input.as_ptr().addr();
            // Remember the piece by its position, so that `self` is free for another read if there is none.
            let piece = match decoder.decode(limits, &mut input).map_err(Error::Request)? {
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
                    wire.progress.unread.set(Unread::Nothing);
                    wire.progress.expecting.set(false);
                    None
                }
                None => {
                    let left = input.len();
                    leave(&mut self.rest, &mut self.taken, self.more.len(), in_rest, left);
                    return Ok(Step::Starved);
                }
            };
            let left = input.len();
            let (rest, taken) = (self.rest, self.taken);
            leave(&mut self.rest, &mut self.taken, self.more.len(), in_rest, left);
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

    /// Notes how much is still to come, which decides whether the connection is kept.
    fn note(&self, length: u64) {
        let progress = self.transport.progress();
        progress.expecting.set(false);
        if let Unread::Bytes(left) = progress.unread.get() {
            progress.unread.set(Unread::Bytes(left.saturating_sub(length)));
        }
    }

    /// Waits for more bytes.
    async fn fill(&mut self) -> Result<(), Error> {
        self.gather();
        if self.tells {
            let progress = self.transport.progress();
            if progress.expecting.get() && !progress.answered.get() {
                match self.transport {
                    Transport::Http1(wire) => {
                        wire.append(|output| output.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n"));
                    }
                    Transport::Http2(stream) => stream.inform(100, [])?,
                }
            }
            progress.expecting.set(false);
        }
        self.more.drain(..self.taken);
        self.taken = 0;
        let core = self.transport.core();
        let began = core.now();
        let due = began.saturating_add(core.ticks.body).min(self.due).min(self.pace.due(core));
        let count = match self.transport {
            Transport::Http1(wire) => wire.read(&mut self.more, Wait::Body, due).await?,
            Transport::Http2(stream) => stream.receive(due).await?,
        };
        self.pace.note(core, core.now() - began, count);
        if let Some(decoder) = self.decoder.as_deref_mut().filter(|_| count == 0) {
            decoder.eof().map_err(Error::Request)?;
        }
        Ok(())
    }

    /// As [`step`](Self::step), over HTTP/2: gives the window of the last piece back, and takes what has come since.
    fn step_http2(&mut self) -> Step<'a> {
        let Transport::Http2(stream) = self.transport else { return Step::End };
        if self.ended {
            return Step::End;
        }
        stream.consume(&mut self.more);
        if !self.more.is_empty() {
            self.note(self.more.len() as u64);
            self.taken = self.more.len();
            return Step::More(0..self.taken);
        }
        self.taken = 0;
        let Some(trailers) = stream.take_trailers() else { return Step::Starved };
        self.trailers = trailers;
        self.ended = true;
        let progress = &stream.progress;
        progress.unread.set(Unread::Nothing);
        progress.expecting.set(false);
        Step::End
    }

    /// Gives the buffer back at the end of an exchange over HTTP/2.
    pub(crate) fn release(&mut self, stream: &http2::Stream) {
        self.taken = 0;
        if !stream.is_handed_off() {
            stream.consume(&mut self.more);
        }
        spares::give(std::mem::take(&mut self.more));
    }

    /// Moves the rest of the first read to where more can be appended.
    fn gather(&mut self) {
        if !self.rest.is_empty() {
            self.more = spares::take();
            self.more.extend_from_slice(self.rest);
            self.rest = &[];
        }
    }
}

/// Advances behind the decoded bytes: `left` bytes of `rest`, or else of `length` bytes, remain.
fn leave(rest: &mut &[u8], taken: &mut usize, length: usize, in_rest: bool, left: usize) {
    if in_rest {
        *rest = &rest[rest.len() - left..];
    } else {
        *taken = length - left;
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
