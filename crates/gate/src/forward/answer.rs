//! The answer on its way from the server behind to the client: read into the core's scratch buffer, passed on from there.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use oroshi_http1::{DecodeError, Expect, Framing, ResponseDecoder, ResponseEvent, ResponseHead};
use oroshi_net::monotonic_ns;
use oroshi_server::{Error, Reply};
use tokio::io::{AsyncRead, ReadBuf};

use super::edits::Edits;
use super::failure::{Failure, Trouble};
use super::link::{Phase, Waiting};
use super::response_head::{self, fields};
use super::rules::Rules;
use crate::upstream::{Connection, Engine, Spare};

/// What an answer needs to know.
#[derive(Clone, Copy)]
pub(crate) struct Course<'c> {
    pub(crate) engine: &'c std::rc::Rc<Engine>,
    pub(crate) rules: &'c Rules,
    pub(crate) edits: &'c Edits,
    pub(crate) waiting: &'c Waiting<'c>,
}

/// Why an exchange does not go on.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Something is wrong behind the gateway.
    Trouble(Trouble),
    /// Something is wrong with the client, or with the gateway itself.
    Client(Error),
}

impl From<Trouble> for Stop {
    fn from(trouble: Trouble) -> Self {
        Stop::Trouble(trouble)
    }
}

/// How an answer ends.
#[derive(Debug)]
pub(crate) enum Ending {
    /// It is passed on to its end.
    Whole,
    /// The server behind has switched to another protocol.
    Switch(Box<Switch>),
}

/// The head of a 101, and what came behind it.
#[derive(Debug)]
pub(crate) struct Switch {
    pub(crate) fields: Vec<(String, Vec<u8>)>,
    pub(crate) rest: Vec<u8>,
}

/// An answer that is passed on.
pub(crate) struct Answer {
    decoder: ResponseDecoder,
    /// A head or trailers that are not complete.
    kept: Option<Spare>,
    /// The status of the final answer, once its head was passed on.
    pub(crate) status: u16,
    /// When its head had come.
    pub(crate) head_at: u64,
    /// Whether the head and all of the body that has come so far were one read.
    pub(crate) came_at_once: bool,
    /// Bytes of its body so far.
    pub(crate) bytes: u64,
    /// Whether the connection can be used for another request.
    pub(crate) keep_alive: bool,
    /// For how long the server says that it keeps it.
    pub(crate) keep: Option<Duration>,
    is_head: bool,
    /// The client does not keep up.
    stalled: bool,
}

impl Answer {
    pub(crate) fn new(expect: Expect) -> Self {
        let mut decoder = ResponseDecoder::default();
        decoder.expect(expect);
        Answer {
            decoder,
            kept: None,
            status: 0,
            head_at: 0,
            came_at_once: true,
            bytes: 0,
            keep_alive: false,
            keep: None,
            is_head: expect == Expect::Head,
            stalled: false,
        }
    }

    /// Whether anything of the answer has come.
    pub(crate) fn has_begun(&self) -> bool {
        self.decoder.has_begun() || self.kept.is_some()
    }

    /// Passes on what has come. Ready with the answer's end.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        course: &Course<'_>,
        connection: &Connection,
        reply: &mut Reply<'_>,
    ) -> Poll<Result<Ending, Stop>> {
        loop {
            if self.status != 0 {
                ready!(self.poll_room(context, course, reply))?;
            }
            let mut scratch = course.engine.scratch.borrow_mut();
            let mut buffer = ReadBuf::new(&mut scratch);
            let read = Pin::new(&mut *connection.stream.borrow_mut()).poll_read(context, &mut buffer);
            match read {
                Poll::Pending => {
                    return match course.waiting.poll_over(context) {
                        Some(trouble) => Poll::Ready(Err(Stop::Trouble(trouble))),
                        None => Poll::Pending,
                    };
                }
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(Trouble::sent(self.broken(), error.to_string()).into()));
                }
                Poll::Ready(Ok(())) => {}
            }
            let data = buffer.filled();
            let step = if data.is_empty() { self.end(reply) } else { self.pass_on(context, course, data, reply) };
            if let Some(ending) = step? {
                return Poll::Ready(Ok(ending));
            }
            if self.status != 0 {
                self.came_at_once = false;
                if course.waiting.phase() != Phase::Send {
                    course.waiting.enter(Phase::Body, monotonic_ns());
                }
            }
        }
    }

    /// Ready when the client keeps up. Its slowness is not counted against the server behind.
    fn poll_room(
        &mut self,
        context: &mut Context<'_>,
        course: &Course<'_>,
        reply: &mut Reply<'_>,
    ) -> Poll<Result<(), Stop>> {
        match reply.poll_room(context) {
            Poll::Pending => {
                if !self.stalled {
                    self.stalled = true;
                    course.waiting.enter(Phase::Client, 0);
                }
                match course.waiting.poll_over(context) {
                    Some(trouble) => Poll::Ready(Err(trouble.into())),
                    None => Poll::Pending,
                }
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(Stop::Client(error))),
            Poll::Ready(Ok(())) => {
                if std::mem::take(&mut self.stalled) {
                    course.waiting.enter(Phase::Body, monotonic_ns());
                }
                Poll::Ready(Ok(()))
            }
        }
    }

    /// Decodes what has come and passes it on, up to the answer's end.
    fn pass_on(
        &mut self,
        context: &mut Context<'_>,
        course: &Course<'_>,
        data: &[u8],
        reply: &mut Reply<'_>,
    ) -> Result<Option<Ending>, Stop> {
        let mut kept = self.kept.take();
        let mut input = match &mut kept {
            None => data,
            Some(kept) => {
                kept.extend_from_slice(data);
                &kept[..]
            }
        };
        let limits = &course.rules.settings.limits;
        while let Some(event) = self.decoder.decode(limits, &mut input).map_err(|error| self.malformed(error))? {
            match event {
                ResponseEvent::Data(piece) => {
                    self.bytes += piece.len() as u64;
                    reply.push(context, piece).map_err(Stop::Client)?;
                }
                ResponseEvent::Head(head) if head.framing == Framing::Tunnel => {
                    let named = fields(head.headers, true).into_iter();
                    let fields = named.map(|(name, value)| (name.to_owned(), value.to_vec())).collect();
                    return Ok(Some(Ending::Switch(Box::new(Switch { fields, rest: input.to_vec() }))));
                }
                ResponseEvent::Head(head) => self.pass_head_on(&head, course, reply)?,
                ResponseEvent::Informational(head) => {
                    // What cannot be passed on need not be: a final answer follows.
                    let _ = reply.inform(head.status, fields(head.headers, false));
                }
                ResponseEvent::Trailers(trailers) => {
                    let kept = trailers.iter().filter(|field| !course.rules.settings.response.drops(field.name));
                    reply.finish_with(kept.map(|field| (field.name, field.value))).map_err(Stop::Client)?;
                }
                ResponseEvent::End => {
                    // What follows answers nothing that was asked.
                    self.keep_alive &= input.is_empty();
                    self.finish(reply)?;
                    return Ok(Some(Ending::Whole));
                }
            }
        }
        let left = input.len();
        if left > 0 {
            self.kept = Some(match kept {
                Some(mut kept) => {
                    let decoded = kept.len() - left;
                    kept.drain(..decoded);
                    kept
                }
                None => {
                    let mut kept = course.engine.spare();
                    kept.extend_from_slice(&data[data.len() - left..]);
                    kept
                }
            });
        }
        Ok(None)
    }

    fn pass_head_on(
        &mut self,
        head: &ResponseHead<'_>,
        course: &Course<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        self.head_at = monotonic_ns();
        self.keep_alive = head.keep_alive;
        let length = match head.framing {
            Framing::Length(length) => Some(length),
            // The length that an answer to GET would have; checked when the head was read.
            Framing::None if self.is_head => head.headers.get("content-length").and_then(decimal),
            Framing::None => Some(0),
            _ => None,
        };
        let mut seen = response_head::Seen::default();
        let relayed = reply.relay(head.status, head.reason, length, |out| {
            seen = response_head::write(out, head, course.rules, course.edits);
            seen.date
        });
        relayed.map_err(Stop::Client)?;
        self.keep = seen.keep;
        self.status = head.status;
        Ok(())
    }

    fn finish(&self, reply: &mut Reply<'_>) -> Result<(), Stop> {
        if reply.is_complete() { Ok(()) } else { reply.finish().map_err(Stop::Client) }
    }

    /// The server behind has closed the connection.
    fn end(&mut self, reply: &mut Reply<'_>) -> Result<Option<Ending>, Stop> {
        let failure = self.broken();
        match self.decoder.eof() {
            Ok(Some(ResponseEvent::End)) => {
                self.keep_alive = false;
                self.finish(reply)?;
                Ok(Some(Ending::Whole))
            }
            _ => Err(Trouble::sent(failure, "the connection was closed").into()),
        }
    }

    /// What it is when the connection is gone before the answer was whole.
    fn broken(&self) -> Failure {
        if self.has_begun() { Failure::Cut } else { Failure::Closed }
    }

    #[cold]
    fn malformed(&self, error: DecodeError) -> Stop {
        Trouble::sent(Failure::Malformed, format!("{}: {error}", error.name())).into()
    }
}

fn decimal(digits: &[u8]) -> Option<u64> {
    str::from_utf8(digits).ok()?.parse().ok()
}
