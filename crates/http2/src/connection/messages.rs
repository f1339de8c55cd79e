//! Received header blocks: heads, interim responses and trailers.

use oroshi_http1::DecodeError;

use super::{Connection, Role, Step, reference};
use crate::config::Heads;
use crate::event::{Event, StreamRef};
use crate::frame::{self, FrameHead, flag};
use crate::head::{HeadBuffer, Section};
use crate::stream::{self, Closed, Stream};
use crate::{Defect, ErrorCode};

/// A header block whose last CONTINUATION has not come.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) stream: u32,
    end: bool,
    self_dependent: bool,
    frames: usize,
    bytes: Vec<u8>,
}

/// The purpose of a header block.
enum Target {
    /// A new request.
    New,
    /// The stream's first head, or an interim response.
    Head,
    Trailers,
    /// Nothing: only HPACK's state counts.
    Ignored,
}

impl Connection {
    pub(super) fn headers_frame(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        heads: &mut HeadBuffer,
        out: &mut Vec<u8>,
    ) -> Result<Option<Step<'static>>, Defect> {
        if head.stream == 0 {
            return Err(Defect::BadStreamId);
        }
        let mut bytes = frame::without_padding(head, payload)?;
        let mut self_dependent = false;
        if head.has(flag::PRIORITY) {
            let (priority, rest) = bytes.split_first_chunk::<5>().ok_or(Defect::BadFrameSize)?;
            self_dependent = frame::number(priority) == Some(head.stream);
            bytes = rest;
        }
        let end = head.has(flag::END_STREAM);
        if head.has(flag::END_HEADERS) {
            return self.header_block(head.stream, end, self_dependent, bytes, heads, out);
        }
        if bytes.len() > self.config.limits.block_bytes {
            return Err(Defect::BlockTooLarge);
        }
        let bytes = bytes.to_vec();
        self.block = Some(Box::new(Block { stream: head.stream, end, self_dependent, frames: 0, bytes }));
        Ok(None)
    }

    pub(super) fn continuation_frame(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        heads: &mut HeadBuffer,
        out: &mut Vec<u8>,
    ) -> Result<Option<Step<'static>>, Defect> {
        let Some(mut block) = self.block.take() else { return Err(Defect::UnexpectedContinuation) };
        block.frames += 1;
        if block.frames > self.config.limits.continuations {
            return Err(Defect::TooManyContinuations);
        }
        if block.bytes.len() + payload.len() > self.config.limits.block_bytes {
            return Err(Defect::BlockTooLarge);
        }
        block.bytes.extend_from_slice(payload);
        if head.has(flag::END_HEADERS) {
            return self.header_block(block.stream, block.end, block.self_dependent, &block.bytes, heads, out);
        }
        self.block = Some(block);
        Ok(None)
    }

    /// Handles a whole header block.
    fn header_block(
        &mut self,
        id: u32,
        end: bool,
        self_dependent: bool,
        block: &[u8],
        heads: &mut HeadBuffer,
        out: &mut Vec<u8>,
    ) -> Result<Option<Step<'static>>, Defect> {
        let (target, mut defect) = self.block_target(id)?;
        if self_dependent {
            defect = Some(Defect::SelfDependency);
        }
        let section = match (&target, self.role) {
            (Target::Ignored, _) => Section::Ignored,
            (Target::Trailers, _) => Section::Trailers,
            (_, Role::Client) => Section::Response { keep: self.heads == Heads::All },
            (_, Role::Server) => Section::Request { extended_connect: self.config.extended_connect },
        };
        // Every block is decoded, wanted or not: the next one depends on its state (RFC 9113 section 4.3).
        let message = heads.decode(&mut self.decoder, block, section, &self.config.limits)?;
        let defect = defect.or(message.err());
        match target {
            Target::Ignored => match defect {
                Some(defect) => {
                    let reset = self.stream_error(id, defect, out)?;
                    Ok(Some(reset.unwrap_or(Step::Event(Event::Refused { id, defect }))))
                }
                None => Ok(None),
            },
            Target::New => self.request(id, end, defect, heads, out),
            Target::Head => self.response(id, end, defect, heads, out),
            Target::Trailers => self.trailers(id, end, defect, out),
        }
    }

    /// Returns the purpose of a header block. Opens no stream, but counts the identifier.
    fn block_target(&mut self, id: u32) -> Result<(Target, Option<Defect>), Defect> {
        if let Some(stream) = self.streams.get(id) {
            return Ok(if stream.is(stream::REMOTE_CLOSED) {
                (Target::Ignored, Some(Defect::StreamClosed))
            } else if stream.is(stream::HEAD_RECEIVED) {
                (Target::Trailers, None)
            } else {
                (Target::Head, None)
            });
        }
        if id.is_multiple_of(2) {
            return Err(Defect::BadStreamId);
        }
        if !self.is_unopened(id) {
            return match self.recent.find(id) {
                Some(Closed::Ended | Closed::ByPeer) => Err(Defect::StreamClosed),
                Some(Closed::ByUs) => self.count_idle_frame().map(|()| (Target::Ignored, None)),
                // A stream of ours that closed long ago. Its response may have been on its way when we reset it.
                None if self.role == Role::Client => self.count_idle_frame().map(|()| (Target::Ignored, None)),
                // Too old to know, or skipped.
                None => Err(Defect::StreamIdReused),
            };
        }
        if self.role == Role::Client {
            return Err(Defect::IdleStream);
        }
        self.last_peer_id = id;
        if self.goaway_sent.is_some_and(|last| id > last) {
            self.recent.push(id, Closed::ByUs);
            return self.count_idle_frame().map(|()| (Target::Ignored, None));
        }
        if self.streams.len() >= self.config.streams as usize {
            return Ok((Target::Ignored, Some(Defect::TooManyStreams)));
        }
        Ok((Target::New, None))
    }

    fn request(
        &mut self,
        id: u32,
        end: bool,
        defect: Option<Defect>,
        heads: &HeadBuffer,
        out: &mut Vec<u8>,
    ) -> Result<Option<Step<'static>>, Defect> {
        let defect = defect.or_else(|| self.body_defect(heads.content_length(), end));
        if let Some(defect) = defect {
            self.message_error(id, defect, out)?;
            return Ok(Some(Step::Event(Event::Refused { id, defect })));
        }
        self.answered_frames.earn(1);
        self.idle_frames.earn(4);
        let mut flags = stream::HEAD_RECEIVED | if end { stream::REMOTE_CLOSED } else { 0 };
        match heads.method() {
            "HEAD" => flags |= stream::HEAD_METHOD,
            "CONNECT" => flags |= stream::CONNECT,
            _ => {}
        }
        let mut stream = self.new_stream(id, 0, flags);
        self.expect_body(&mut stream, heads.content_length());
        self.streams.insert(stream);
        Ok(Some(Step::Request { stream: StreamRef { id, tag: 0 }, end }))
    }

    /// Handles an interim or final head of a response.
    fn response(
        &mut self,
        id: u32,
        end: bool,
        defect: Option<Defect>,
        heads: &HeadBuffer,
        out: &mut Vec<u8>,
    ) -> Result<Option<Step<'static>>, Defect> {
        let Some(mut stream) = self.streams.get(id).copied() else { return Ok(None) };
        if let Some(defect) = defect {
            return self.stream_error(id, defect, out);
        }
        let status = heads.status();
        if status < 200 {
            stream.informational = stream.informational.saturating_add(1);
            if end {
                return self.stream_error(id, Defect::InterimEnd, out);
            }
            if stream.informational > self.config.limits.informational {
                return self.stream_error(id, DecodeError::TooManyInformational.into(), out);
            }
            self.update(stream);
            return Ok(Some(Step::Informational { stream: reference(&stream) }));
        }
        let has_no_body = stream.is(stream::HEAD_METHOD) || matches!(status, 204 | 304);
        let is_tunnel = stream.is(stream::CONNECT) && status < 300;
        let length = match heads.content_length() {
            _ if has_no_body => Some(0),
            _ if is_tunnel => None,
            length => length,
        };
        if let Some(defect) = self.body_defect(length, end) {
            return self.stream_error(id, defect, out);
        }
        stream.flags |= stream::HEAD_RECEIVED | if end { stream::REMOTE_CLOSED } else { 0 };
        self.expect_body(&mut stream, length);
        self.update(stream);
        if end {
            self.close_if_ended(id);
        }
        Ok(Some(Step::Response { stream: reference(&stream), end }))
    }

    fn trailers(
        &mut self,
        id: u32,
        end: bool,
        defect: Option<Defect>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Step<'static>>, Defect> {
        let Some(stream) = self.streams.get_mut(id) else { return Ok(None) };
        let short = stream.is(stream::EXACT_LENGTH) && stream.body_left > 0;
        let own = if end { short.then_some(Defect::LengthMismatch) } else { Some(Defect::TrailersWithoutEnd) };
        if let Some(defect) = defect.or(own) {
            return self.message_error(id, defect, out);
        }
        stream.flags |= stream::REMOTE_CLOSED;
        let stream = reference(stream);
        self.close_if_ended(id);
        Ok(Some(Step::Trailers { stream }))
    }

    /// Makes a stream with full windows.
    pub(super) fn new_stream(&self, id: u32, tag: u32, flags: u16) -> Stream {
        Stream {
            id,
            tag,
            send_window: self.peer.stream_window as i32,
            receive_window: self.receive_initial,
            flags,
            ..Stream::default()
        }
    }

    fn update(&mut self, stream: Stream) {
        if let Some(place) = self.streams.get_mut(stream.id) {
            *place = stream;
        }
    }

    /// Checks an announced length against the end of the stream and the limit.
    fn body_defect(&self, length: Option<u64>, end: bool) -> Option<Defect> {
        match length {
            Some(length) if end && length > 0 => Some(Defect::LengthMismatch),
            Some(length) if length > self.config.limits.body_bytes => Some(DecodeError::BodyTooLarge.into()),
            _ => None,
        }
    }

    fn expect_body(&self, stream: &mut Stream, length: Option<u64>) {
        stream.body_left = length.unwrap_or(self.config.limits.body_bytes);
        if length.is_some() {
            stream.flags |= stream::EXACT_LENGTH;
        }
    }

    /// Writes a response without a body for a stream that no caller knows.
    pub(super) fn write_error_response(&mut self, out: &mut Vec<u8>, id: u32, status: u16) {
        let start = out.len();
        frame::head(out, 0, frame::kind::HEADERS, 0, id);
        self.encoder.begin(out);
        self.encoder.status(out, status);
        self.encoder.field(out, b"content-length", b"0");
        frame::finish_block(out, start, self.frame_bytes(), flag::END_STREAM, id);
    }

    /// Ends a connection in good order: the peer may open no stream after `last_stream`, by default the last one so
    /// far.
    ///
    /// A server that drains calls it first with `Some(2^31-1)`, and with `None` when that has had time to arrive: no
    /// request is lost then. Streams up to the last one go on.
    pub fn goaway(&mut self, out: &mut Vec<u8>, last_stream: Option<u32>, code: ErrorCode) {
        let last = last_stream.unwrap_or(self.last_peer_id).min(frame::MAX_WINDOW);
        let last = self.goaway_sent.map_or(last, |before| before.min(last));
        self.goaway_sent = Some(last);
        frame::write_goaway(out, last, code, b"");
    }
}
