//! A connection: the state of its streams, windows and settings.

mod commands;
mod data;
mod frames;
mod messages;

use std::sync::Arc;

use crate::config::{Budget, Config, Heads};
use crate::event::{Event, StreamRef};
use crate::frame::{self, DEFAULT_WINDOW, FRAME_HEAD_BYTES, FrameHead, MAX_FRAME_BYTES, MAX_WINDOW, PREFACE};
use crate::frame::{kind, setting};
use crate::head::HeadBuffer;
use crate::hpack::{Decoder, Encoder};
use crate::stream::{Closed, Recent, Stream, Streams};
use crate::{Defect, ErrorCode, stream};

pub use commands::{EncodedRequest, EncodedResponse, Request, SendError};

/// The table size that both sides begin with (RFC 9113 section 6.5.2).
const DEFAULT_TABLE_BYTES: usize = 4_096;

/// DATA below this many bytes that does not end its stream spends a budget.
const TINY_DATA_BYTES: usize = 5;

/// The role of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Opens streams with odd identifiers.
    Client,
    /// Answers.
    Server,
}

/// The settings that the peer has announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerSettings {
    /// Streams that this side may have open at once. Unlimited, `u32::MAX`, until the peer says otherwise.
    pub streams: u32,
    /// The window of a new stream.
    pub stream_window: u32,
    /// The longest payload of a frame.
    pub frame_bytes: u32,
    /// Bytes of a head that the peer accepts, by its own word; `u32::MAX` without one.
    pub head_bytes: u32,
    /// Whether a server accepts extended CONNECT (RFC 8441).
    pub extended_connect: bool,
}

/// One side of an HTTP/2 connection.
///
/// It does no I/O: [`receive`](Self::receive) takes bytes and returns events; commands append bytes to a buffer of the
/// caller's. An idle connection without a dynamic table has no other memory than itself.
#[derive(Debug)]
pub struct Connection {
    config: Arc<Config>,
    /// Which fields to decode: the config's at first.
    heads: Heads,
    role: Role,
    phase: Phase,
    peer: PeerSettings,
    streams: Streams,
    recent: Recent,
    /// The next identifier that a client opens.
    next_id: u32,
    /// The highest identifier that the peer has opened.
    last_peer_id: u32,
    send_window: i64,
    receive_window: i64,
    /// Granted bytes that no WINDOW_UPDATE has announced yet.
    granted: u32,
    /// The window with which the peer's DATA on a new stream is counted.
    receive_initial: i32,
    /// The connection's window was short for DATA.
    blocked: bool,
    settings_unacknowledged: u8,
    /// The DATA frame whose payload is being received.
    data: Option<data::DataFrame>,
    /// The header block that lacks its end.
    block: Option<Box<messages::Block>>,
    decoder: Decoder,
    encoder: Encoder,
    /// The last stream that our GOAWAY lets the peer open.
    goaway_sent: Option<u32>,
    /// The last stream of ours that the peer will process.
    goaway_received: Option<u32>,
    resets: Budget,
    answered_frames: Budget,
    idle_frames: Budget,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// A server before the client's preface.
    Preface,
    /// Before the peer's first SETTINGS.
    Settings,
    Open,
    Failed(Defect),
}

/// The result of one frame. Heads lie in the buffer that `receive` was given.
enum Step<'i> {
    Request { stream: StreamRef, end: bool },
    Response { stream: StreamRef, end: bool },
    Informational { stream: StreamRef },
    Trailers { stream: StreamRef },
    Event(Event<'i>),
}

impl Connection {
    /// Makes a client's connection, and appends its preface and settings to `out`.
    #[must_use]
    pub fn client(config: Arc<Config>, out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(PREFACE);
        Connection::new(config, Role::Client, Phase::Settings, out)
    }

    /// Makes a server's connection, and appends its settings to `out`.
    #[must_use]
    pub fn server(config: Arc<Config>, out: &mut Vec<u8>) -> Self {
        Connection::new(config, Role::Server, Phase::Preface, out)
    }

    fn new(config: Arc<Config>, role: Role, phase: Phase, out: &mut Vec<u8>) -> Self {
        let stream_window = config.stream_window.min(MAX_WINDOW);
        let connection_window = config.connection_window.clamp(DEFAULT_WINDOW, MAX_WINDOW);
        write_own_settings(&config, role, stream_window, out);
        if connection_window > DEFAULT_WINDOW {
            frame::write_window_update(out, 0, connection_window - DEFAULT_WINDOW);
        }
        Connection {
            role,
            phase,
            peer: PeerSettings {
                streams: u32::MAX,
                stream_window: DEFAULT_WINDOW,
                frame_bytes: MAX_FRAME_BYTES as u32,
                head_bytes: u32::MAX,
                extended_connect: false,
            },
            streams: Streams::default(),
            recent: Recent::default(),
            next_id: 1,
            last_peer_id: 0,
            send_window: i64::from(DEFAULT_WINDOW),
            receive_window: i64::from(connection_window),
            granted: 0,
            // Until the peer has acknowledged a smaller window, it may use the default one.
            receive_initial: stream_window.max(DEFAULT_WINDOW) as i32,
            blocked: false,
            settings_unacknowledged: 1,
            data: None,
            block: None,
            decoder: Decoder::new(DEFAULT_TABLE_BYTES),
            encoder: Encoder::new(config.compression),
            goaway_sent: None,
            goaway_received: None,
            resets: Budget::new(config.limits.resets),
            answered_frames: Budget::new(config.limits.answered_frames),
            idle_frames: Budget::new(config.limits.idle_frames),
            heads: config.heads,
            config,
        }
    }

    /// Returns the next event, or `None` when more bytes are needed.
    ///
    /// Advances `input` past the bytes used. After `None` the caller keeps the rest of `input`, at most a frame,
    /// appends new bytes and calls again: the rest must come back unchanged at the front. Answers of the protocol are
    /// appended to `out`; the caller writes them in each turn of its loop, and stops reading while `out` is not
    /// drained.
    ///
    /// # Errors
    ///
    /// The defect for which the connection is over. The GOAWAY is in `out`: write it and close. Every later call
    /// returns the defect again.
    pub fn receive<'e, 'i: 'e>(
        &mut self,
        input: &mut &'i [u8],
        heads: &'e mut HeadBuffer,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event<'e>>, Defect> {
        let step = match self.step(input, heads, out) {
            Ok(Some(step)) => step,
            Ok(None) => return Ok(None),
            Err(defect) => {
                self.fail(defect, out);
                return Err(defect);
            }
        };
        Ok(Some(match step {
            Step::Request { stream, end } => {
                let mut head = heads.request();
                head.expect_continue &= !end;
                Event::Request { stream, head, end }
            }
            Step::Response { stream, end } => Event::Response { stream, head: heads.response(), end },
            Step::Informational { stream } => Event::Informational { stream, head: heads.response() },
            Step::Trailers { stream } => Event::Trailers { stream, headers: heads.headers() },
            Step::Event(event) => event,
        }))
    }

    /// Tells the connection that some time has passed, about a second: budgets refill by a tenth.
    pub fn tick(&mut self) {
        self.resets.tick();
        self.answered_frames.tick();
        self.idle_frames.tick();
        for stream in self.streams.iter_mut().filter(|stream| stream.is(stream::BLOCKED)) {
            stream.stalled_ticks = stream.stalled_ticks.saturating_add(1);
        }
    }

    /// Returns a stream that could send nothing for `ticks` ticks because the peer opens no window.
    ///
    /// A server that holds a response for such a stream resets it in time, because a peer that keeps its windows at
    /// zero otherwise makes the server hold all of them.
    #[must_use]
    pub fn stalled(&self, ticks: u16) -> Option<StreamRef> {
        let stalled = |stream: &&Stream| stream.is(stream::BLOCKED) && stream.stalled_ticks >= ticks;
        self.streams.iter().find(stalled).map(reference)
    }

    /// The number of open streams.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// The settings that the peer has announced.
    #[must_use]
    pub fn peer(&self) -> &PeerSettings {
        &self.peer
    }

    /// Whether the peer's settings have arrived.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether no frame is incomplete and no stream is open: a close now loses nothing.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.streams.len() == 0 && self.data.is_none() && self.block.is_none()
    }

    /// Whether a header block lacks its end.
    #[must_use]
    pub fn is_within_head(&self) -> bool {
        self.block.is_some()
    }

    /// Bytes of DATA that the connection and the stream allow now; `None` for a stream that is not open.
    #[must_use]
    pub fn window(&self, id: u32) -> Option<usize> {
        let stream = self.streams.get(id)?;
        Some(usize::try_from(self.send_window.min(i64::from(stream.send_window))).unwrap_or(0))
    }

    /// Gives a stream the caller's own number, which later events repeat.
    pub fn set_tag(&mut self, id: u32, tag: u32) {
        if let Some(stream) = self.streams.get_mut(id) {
            stream.tag = tag;
        }
    }

    /// Changes which fields of later heads are decoded, from [`Config::heads`].
    #[inline]
    pub fn decode_heads(&mut self, heads: Heads) {
        self.heads = heads;
    }

    /// Frees memory that an idle connection does not need.
    pub fn release(&mut self) {
        self.streams.release();
    }

    /// Handles frames until one leads to an event.
    fn step<'i>(
        &mut self,
        input: &mut &'i [u8],
        heads: &mut HeadBuffer,
        out: &mut Vec<u8>,
    ) -> Result<Option<Step<'i>>, Defect> {
        if let Phase::Failed(defect) = self.phase {
            return Err(defect);
        }
        loop {
            if let Some(last) = self.goaway_received
                && let Some(event) = self.next_unprocessed(last)
            {
                return Ok(Some(Step::Event(event)));
            }
            if self.data.is_some() {
                match self.data_piece(input, out) {
                    data::Piece::Event(event) => return Ok(Some(Step::Event(event))),
                    data::Piece::Incomplete => return Ok(None),
                    data::Piece::Complete => continue,
                }
            }
            let Some(head) = self.next_head(input)? else { return Ok(None) };
            let step = if head.kind == kind::DATA {
                let Some(first) = input.get(FRAME_HEAD_BYTES..FRAME_HEAD_BYTES + usize::from(self.data_prefix(head)))
                else {
                    return Ok(None);
                };
                *input = &input[FRAME_HEAD_BYTES + first.len()..];
                self.data_frame(head, first.first().copied(), out)?
            } else {
                let Some(payload) = input.get(FRAME_HEAD_BYTES..FRAME_HEAD_BYTES + head.length) else {
                    return Ok(None);
                };
                *input = &input[FRAME_HEAD_BYTES + head.length..];
                self.frame(head, payload, heads, out)?
            };
            if step.is_some() {
                return Ok(step);
            }
        }
    }

    /// Returns the head of the next frame, after checks that need no payload. Takes nothing but the preface.
    #[inline]
    fn next_head(&mut self, input: &mut &[u8]) -> Result<Option<FrameHead>, Defect> {
        match self.phase {
            Phase::Failed(defect) => return Err(defect),
            Phase::Preface => match input.strip_prefix(PREFACE) {
                Some(rest) => {
                    *input = rest;
                    self.phase = Phase::Settings;
                }
                None if PREFACE.starts_with(input) => return Ok(None),
                None => return Err(Defect::BadPreface),
            },
            Phase::Settings | Phase::Open => {}
        }
        let Some(head) = FrameHead::parse(input) else { return Ok(None) };
        if self.phase == Phase::Settings && (head.kind != kind::SETTINGS || head.has(frame::flag::ACK)) {
            return Err(Defect::SettingsExpected);
        }
        if head.length > MAX_FRAME_BYTES {
            return Err(Defect::FrameTooLarge);
        }
        match &self.block {
            Some(block) if head.kind != kind::CONTINUATION || head.stream != block.stream => {
                Err(Defect::ContinuationExpected)
            }
            None if head.kind == kind::CONTINUATION => Err(Defect::UnexpectedContinuation),
            _ => Ok(Some(head)),
        }
    }

    fn fail(&mut self, defect: Defect, out: &mut Vec<u8>) {
        if !matches!(self.phase, Phase::Failed(_)) {
            self.phase = Phase::Failed(defect);
            frame::write_goaway(out, self.last_peer_id, defect.code(), defect.name().as_bytes());
            (self.block, self.data) = (None, None);
        }
    }

    /// Resets a stream because of the peer's mistake. Too many of these end the connection.
    fn stream_error(&mut self, id: u32, defect: Defect, out: &mut Vec<u8>) -> Result<Option<Step<'static>>, Defect> {
        frame::write_reset(out, id, defect.code());
        let removed = self.streams.remove(id);
        self.recent.push(id, Closed::ByUs);
        self.count_reset()?;
        let event =
            |stream: Stream| Event::Reset { stream: reference(&stream), code: defect.code(), defect: Some(defect) };
        Ok(removed.map(|stream| Step::Event(event(stream))))
    }

    fn count_reset(&mut self) -> Result<(), Defect> {
        if self.resets.spend(1) { Ok(()) } else { Err(Defect::ResetFlood) }
    }

    fn count_idle_frame(&mut self) -> Result<(), Defect> {
        if self.idle_frames.spend(1) { Ok(()) } else { Err(Defect::FrameFlood) }
    }

    fn count_answered_frame(&mut self) -> Result<(), Defect> {
        if self.answered_frames.spend(1) { Ok(()) } else { Err(Defect::PingFlood) }
    }

    /// Whether a stream was never opened.
    fn is_unopened(&self, id: u32) -> bool {
        match self.role {
            // A server never opens a stream: push is not supported.
            Role::Server => id.is_multiple_of(2) || id > self.last_peer_id,
            Role::Client => id.is_multiple_of(2) || id >= self.next_id,
        }
    }

    /// Removes a stream that both sides have ended.
    #[inline]
    fn close_if_ended(&mut self, id: u32) {
        const BOTH: u16 = stream::REMOTE_CLOSED | stream::LOCAL_CLOSED;
        if self.streams.get(id).is_some_and(|stream| stream.flags & BOTH == BOTH) {
            self.streams.remove(id);
            self.recent.push(id, Closed::Ended);
            self.resets.earn(1);
        }
    }

    /// Removes one stream that the peer's GOAWAY excludes.
    fn next_unprocessed(&mut self, last: u32) -> Option<Event<'static>> {
        if self.role == Role::Server {
            return None;
        }
        let id = self.streams.iter().map(|stream| stream.id).filter(|&id| id > last).min()?;
        let stream = self.streams.remove(id)?;
        self.recent.push(id, Closed::ByPeer);
        Some(Event::Reset { stream: reference(&stream), code: ErrorCode::REFUSED_STREAM, defect: None })
    }
}

#[inline]
fn reference(stream: &Stream) -> StreamRef {
    StreamRef { id: stream.id, tag: stream.tag }
}

/// Writes the settings that differ from the defaults (RFC 9113 section 6.5.2).
fn write_own_settings(config: &Config, role: Role, stream_window: u32, out: &mut Vec<u8>) {
    let mut settings = [(0u16, 0u32); 6];
    let mut count = 0;
    let mut add = |setting, value| {
        settings[count] = (setting, value);
        count += 1;
    };
    if config.table_bytes as usize != DEFAULT_TABLE_BYTES {
        add(setting::HEADER_TABLE_SIZE, config.table_bytes);
    }
    match role {
        Role::Client => add(setting::ENABLE_PUSH, 0),
        Role::Server => add(setting::MAX_CONCURRENT_STREAMS, config.streams),
    }
    if stream_window != DEFAULT_WINDOW {
        add(setting::INITIAL_WINDOW_SIZE, stream_window);
    }
    add(setting::MAX_HEADER_LIST_SIZE, u32::try_from(config.limits.head_bytes).unwrap_or(u32::MAX));
    if role == Role::Server && config.extended_connect {
        add(setting::ENABLE_CONNECT_PROTOCOL, 1);
    }
    frame::write_settings(out, &settings[..count]);
}
