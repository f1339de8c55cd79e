//! A message, and its bytes on each transport: framed once, shared by all sessions that get it.

use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use oroshi_http1::encode::{CHUNK_END, ChunkHead};
use oroshi_websocket::deflate::Window;
use oroshi_websocket::{CloseCode, Kind, encode};
use serde_json::json;

use crate::compression::{self, Compression};

/// How a session's transport frames messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// One WebSocket frame each (RFC 6455); compressed, if that was agreed on.
    WebSocket { compression: Option<Compression> },
    /// One event each (HTML, "Server-sent events"). `chunked`: in the chunked coding, which HTTP/1.0 lacks.
    Events { chunked: bool },
    /// One line each, as in the first version of kuiperbelt.
    Lines { chunked: bool },
    /// One element each of the JSON array that answers a poll.
    Poll,
}

impl Framing {
    /// Returns the transport's name in the API, in metrics and in `?transport=`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Framing::WebSocket { .. } => "websocket",
            Framing::Events { .. } => "sse",
            Framing::Lines { .. } => "stream",
            Framing::Poll => "poll",
        }
    }

    /// Returns whether it is WebSocket.
    pub(crate) fn is_websocket(self) -> bool {
        matches!(self, Framing::WebSocket { .. })
    }

    /// Returns the agreement on compression, if there is one.
    pub(crate) fn compression(self) -> Option<Compression> {
        match self {
            Framing::WebSocket { compression } => compression,
            _ => None,
        }
    }

    fn index(self) -> usize {
        match self {
            Framing::WebSocket { compression: None } => 0,
            Framing::Events { chunked: false } => 1,
            Framing::Events { chunked: true } => 2,
            Framing::Lines { chunked: false } => 3,
            Framing::Lines { chunked: true } => 4,
            Framing::Poll => 5,
            Framing::WebSocket { compression: Some(Compression { window: Window::Full, .. }) } => 6,
            Framing::WebSocket { compression: Some(Compression { window: Window::Small, .. }) } => 7,
        }
    }

    /// The number of variants.
    const COUNT: usize = 8;
}

/// The names of the transports, as [`Framing::name`] returns them.
pub(crate) const TRANSPORTS: [&str; 4] = ["websocket", "sse", "stream", "poll"];

/// A message to sessions.
#[derive(Debug)]
pub(crate) struct Message {
    body: Body,
    key: Option<Box<str>>,
    /// The client that published it, as JSON; `None` for the backend.
    sender: Option<Box<str>>,
    /// How long it may wait, and until when.
    ttl: Option<(Duration, Instant)>,
    frames: [OnceLock<Box<[u8]>>; Framing::COUNT],
    /// Itself as a publication, for all threads.
    publication: OnceLock<Arc<Message>>,
}

/// A message's place in its channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Names one uninterrupted history of the channel.
    pub(crate) epoch: u64,
    /// Counts the messages in it, from 1.
    pub(crate) offset: u64,
}

impl Place {
    /// Returns the epoch as clients see it: JavaScript has no integers of 64 bits.
    pub(crate) fn epoch_text(self) -> String {
        format!("{:016x}", self.epoch)
    }

    /// Reads a place from its two parts. `None` if they are not as this hub writes them.
    pub(crate) fn read(epoch: &str, offset: u64) -> Option<Place> {
        let is_epoch = epoch.len() == 16 && epoch.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_epoch.then(|| u64::from_str_radix(epoch, 16).ok()).flatten().map(|epoch| Place { epoch, offset })
    }
}

impl FromStr for Place {
    type Err = ();

    /// Reads `EPOCH:OFFSET`.
    fn from_str(text: &str) -> Result<Place, ()> {
        let (epoch, offset) = text.split_once(':').ok_or(())?;
        let is_number = !offset.is_empty() && offset.bytes().all(|byte| byte.is_ascii_digit());
        let offset = if is_number { offset.parse().map_err(|_| ())? } else { return Err(()) };
        Place::read(epoch, offset).ok_or(())
    }
}

#[derive(Debug)]
enum Body {
    /// A publisher's message.
    Data { kind: Kind, data: Bytes },
    /// A publisher's message for clients that speak the protocol of channels.
    ///
    /// `prev`: the offset of the channel's message before it, if offsets do not count by one.
    Publication { kind: Kind, data: Bytes, channel: Option<Arc<str>>, place: Option<Place>, prev: Option<u64> },
    /// A publication as the difference from the one at the offset `base`; `steps` is JSON.
    Delta { channel: Arc<str>, place: Place, prev: Option<u64>, base: u64, steps: Box<str> },
    /// A frame of the hub's own in the protocol of channels: one JSON object.
    Frame(Box<str>),
    /// The number of messages that are missing here; `None` if it is unknown, and may be 0.
    Gap(Option<u64>),
    /// The hub's first message: the session's key.
    Session { key: Arc<str>, retry_ms: Option<u64> },
    /// Bytes that are no message: pings, pongs, ends. The same in every framing.
    Raw(Box<[u8]>),
}

impl Message {
    fn new(body: Body) -> Self {
        Message { body, key: None, sender: None, ttl: None, frames: Default::default(), publication: OnceLock::new() }
    }

    /// Creates a publisher's message. The caller has checked that a text is UTF-8.
    pub(crate) fn data(kind: Kind, data: Bytes) -> Self {
        Self::new(Body::Data { kind, data })
    }

    /// Creates a frame of the hub's own in the protocol of channels.
    pub(crate) fn channel_frame(frame: &serde_json::Value) -> Self {
        Self::new(Body::Frame(frame.to_string().into()))
    }

    /// Returns a publisher's message as clients get it that speak the protocol of channels.
    ///
    /// `channel`: unless it is for single sessions or all.
    pub(crate) fn to_publication(&self, channel: Option<Arc<str>>, place: Option<Place>) -> Self {
        let (kind, data) = self.payload().map_or((Kind::Text, Bytes::new()), |(kind, data)| (kind, data.clone()));
        let publication = Self::new(Body::Publication { kind, data, channel, place, prev: None });
        Message { ttl: self.ttl, ..publication.with_key(self.key.clone()).with_sender(self.sender.clone()) }
    }

    /// Returns a publisher's message as [`to_publication`](Self::to_publication) does, without a place.
    ///
    /// All threads share it, so that it is framed and compressed once. A message to several channels shares the form
    /// for one of them.
    pub(crate) fn publication(&self, channel: Option<&str>) -> Arc<Self> {
        let make = || Arc::new(self.to_publication(channel.map(Arc::from), None));
        let shared = self.publication.get_or_init(make);
        match &shared.body {
            Body::Publication { channel: of, .. } if of.as_deref() == channel => Arc::clone(shared),
            _ => make(),
        }
    }

    /// Returns the publication with the offset of the channel's message before it.
    pub(crate) fn with_prev(&self, prev: Option<u64>) -> Self {
        let Body::Publication { channel, place, .. } = &self.body else { return self.to_publication(None, None) };
        let mut publication = self.to_publication(channel.clone(), *place);
        if let Body::Publication { prev: mine, .. } = &mut publication.body {
            *mine = prev;
        }
        publication
    }

    /// Returns a publication as a [delta](crate::delta); `None` if it is none of a channel with a history.
    pub(crate) fn to_delta(&self, base: u64, steps: String) -> Option<Self> {
        let Body::Publication { channel: Some(channel), place: Some(place), prev, .. } = &self.body else {
            return None;
        };
        let (channel, place, prev, steps) = (Arc::clone(channel), *place, *prev, steps.into());
        let delta = Self::new(Body::Delta { channel, place, prev, base, steps });
        Some(Message { ttl: self.ttl, ..delta.with_key(self.key.clone()).with_sender(self.sender.clone()) })
    }

    /// Returns the frame that tells a client only the place of a publication: it has expired, or is not for the client.
    pub(crate) fn to_position(&self) -> Option<Self> {
        let Body::Publication { channel: Some(channel), place: Some(place), prev, .. } = &self.body else {
            return None;
        };
        let (epoch, offset) = (place.epoch_text(), place.offset);
        let mut frame = serde_json::json!({ "channel": &**channel, "epoch": epoch, "offset": offset });
        if let Some(prev) = prev {
            frame["prev"] = json!(prev);
        }
        Some(Self::channel_frame(&frame))
    }

    /// Sets how long it may wait for its sessions, from now on.
    pub(crate) fn with_ttl(mut self, ttl: Option<Duration>) -> Self {
        self.ttl = ttl.map(|ttl| (ttl, Instant::now() + ttl));
        self
    }

    /// Returns how long it may wait from its publish on.
    pub(crate) fn ttl(&self) -> Option<Duration> {
        self.ttl.map(|(ttl, _)| ttl)
    }

    /// Returns whether it has waited for too long.
    pub(crate) fn is_expired(&self, now: Instant) -> bool {
        self.ttl.is_some_and(|(_, until)| until <= now)
    }

    /// Sets the client that published it, as JSON.
    pub(crate) fn with_sender(mut self, sender: Option<Box<str>>) -> Self {
        self.sender = sender;
        self
    }

    /// Returns the client that published it, as JSON.
    pub(crate) fn sender(&self) -> Option<&str> {
        self.sender.as_deref()
    }

    /// Returns its place in its channel.
    pub(crate) fn place(&self) -> Option<Place> {
        match self.body {
            Body::Publication { place, .. } => place,
            Body::Delta { place, .. } => Some(place),
            _ => None,
        }
    }

    /// Sets the key under which a newer message replaces it ([`SlowPolicy::KeepLatest`](crate::SlowPolicy)).
    pub(crate) fn with_key(mut self, key: Option<Box<str>>) -> Self {
        self.key = key;
        self
    }

    /// Reports `lost` messages that belong here; `None` if their number is unknown.
    pub(crate) fn gap(lost: Option<u64>) -> Self {
        Self::new(Body::Gap(lost))
    }

    /// Tells a session its key, and an `EventSource` when to reconnect.
    pub(crate) fn session(key: &Arc<str>, retry_ms: Option<u64>) -> Self {
        Self::new(Body::Session { key: Arc::clone(key), retry_ms })
    }

    /// Creates a WebSocket ping.
    pub(crate) fn ping() -> Self {
        Self::raw(|out| encode::ping(out, b"", None))
    }

    /// Creates the answer to a WebSocket ping.
    pub(crate) fn pong(payload: &[u8]) -> Self {
        Self::raw(|out| encode::pong(out, payload, None))
    }

    /// Creates the end of a session's connection: a close frame, or the end of the body.
    pub(crate) fn end(framing: Framing, code: CloseCode, reason: &str, retry_ms: Option<u64>) -> Self {
        Self::raw(|out| match framing {
            Framing::WebSocket { .. } => encode::close(out, code, reason),
            Framing::Events { chunked } => {
                if let Some(ms) = retry_ms {
                    wrap(out, format!("retry: {ms}\n\n").as_bytes(), chunked);
                }
                end_of_body(out, chunked);
            }
            Framing::Lines { chunked } => end_of_body(out, chunked),
            Framing::Poll => {}
        })
    }

    /// Creates a comment of server-sent events, which shows proxies that the connection is alive.
    pub(crate) fn comment(chunked: bool) -> Self {
        Self::raw(|out| wrap(out, b":\n\n", chunked))
    }

    fn raw(write: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut bytes = Vec::new();
        write(&mut bytes);
        Self::new(Body::Raw(bytes.into()))
    }

    /// Returns whether it is a publisher's message. Only these may be dropped, and are counted.
    pub(crate) fn is_data(&self) -> bool {
        matches!(self.body, Body::Data { .. } | Body::Publication { .. } | Body::Delta { .. })
    }

    /// Returns whether it is a gap of unknown size.
    pub(crate) fn is_unknown_gap(&self) -> bool {
        matches!(self.body, Body::Gap(None))
    }

    /// Returns the key under which a newer message replaces it.
    pub(crate) fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// Returns the length of the payload, bytes.
    pub(crate) fn len(&self) -> usize {
        match &self.body {
            Body::Data { data, .. } | Body::Publication { data, .. } => data.len(),
            Body::Delta { steps, .. } => steps.len(),
            _ => 0,
        }
    }

    /// Returns the payload of a publisher's message.
    pub(crate) fn payload(&self) -> Option<(Kind, &Bytes)> {
        match &self.body {
            Body::Data { kind, data } | Body::Publication { kind, data, .. } => Some((*kind, data)),
            _ => None,
        }
    }

    /// Returns its bytes on a transport, which are framed on first use.
    pub(crate) fn frame(&self, framing: Framing) -> &[u8] {
        if let Body::Raw(bytes) = &self.body {
            return bytes;
        }
        self.frames[framing.index()].get_or_init(|| {
            let mut out = Vec::with_capacity(self.len() + 64);
            self.write(framing, &mut out);
            out.into()
        })
    }

    fn write(&self, framing: Framing, out: &mut Vec<u8>) {
        match framing {
            Framing::WebSocket { compression } => match &self.body {
                Body::Data { kind, data } => compression::write(out, *kind, data, compression),
                _ => compression::write(out, Kind::Text, self.as_json().as_bytes(), compression),
            },
            Framing::Events { chunked } => wrap(out, self.as_event().as_bytes(), chunked),
            Framing::Lines { chunked } => {
                let mut line = match &self.body {
                    Body::Data { kind: Kind::Text, data } => data.to_vec(),
                    Body::Data { kind: Kind::Binary, data } => BASE64.encode(data).into(),
                    _ => self.as_json().into(),
                };
                line.push(b'\n');
                wrap(out, &line, chunked);
            }
            Framing::Poll => out.extend_from_slice(self.as_json().as_bytes()),
        }
    }

    /// Formats it as an event. All but a publisher's text has an event name.
    fn as_event(&self) -> String {
        let (name, text) = match &self.body {
            Body::Data { kind: Kind::Text, data } => (None, String::from_utf8_lossy(data).into_owned()),
            Body::Data { kind: Kind::Binary, data } => (Some("binary"), BASE64.encode(data)),
            Body::Gap(_) => (Some("gap"), self.as_json()),
            Body::Publication { .. } | Body::Delta { .. } | Body::Frame(_) => (None, self.as_json()),
            _ => (Some("session"), self.as_json()),
        };
        let mut event = String::with_capacity(text.len() + 32);
        if let Body::Session { retry_ms: Some(ms), .. } = self.body {
            event.push_str(&format!("retry: {ms}\n"));
        }
        if let Some(name) = name {
            event.push_str(&format!("event: {name}\n"));
        }
        if let Some(place) = self.place() {
            event.push_str(&format!("id: {:016x}:{}\n", place.epoch, place.offset));
        }
        // CR, LF and CRLF end a line of an event; the client sees LF for all.
        for line in text.replace("\r\n", "\n").replace('\r', "\n").split('\n') {
            event.push_str("data: ");
            event.push_str(line);
            event.push('\n');
        }
        event.push('\n');
        event
    }

    fn as_json(&self) -> String {
        let value = match &self.body {
            Body::Frame(frame) => return (**frame).to_owned(),
            Body::Publication { kind, data, channel, place, prev } => {
                let mut out = envelope(data.len(), channel.as_deref(), (*place, *prev), self.sender());
                match kind {
                    Kind::Text => out.push_str(&format!("\"text\":{}}}", json!(String::from_utf8_lossy(data)))),
                    Kind::Binary => out.push_str(&format!("\"base64\":\"{}\"}}", BASE64.encode(data))),
                }
                return out;
            }
            Body::Delta { channel, place, prev, base, steps } => {
                let mut out = envelope(steps.len(), Some(channel), (Some(*place), *prev), self.sender());
                out.push_str(&format!("\"base\":{base},\"delta\":{steps}}}"));
                return out;
            }
            Body::Data { kind: Kind::Text, data } => json!({ "text": String::from_utf8_lossy(data) }),
            Body::Data { kind: Kind::Binary, data } => json!({ "base64": BASE64.encode(data) }),
            Body::Gap(lost) => json!({ "gap": lost }),
            // `UUID` is the name in the first version of kuiperbelt.
            Body::Session { key, .. } => json!({ "UUID": &**key, "session": &**key }),
            Body::Raw(_) => json!(null),
        };
        value.to_string()
    }
}

/// Formats a publication up to its payload. The members have a fixed order, so that people can read them.
fn envelope(
    length: usize,
    channel: Option<&str>,
    (place, prev): (Option<Place>, Option<u64>),
    from: Option<&str>,
) -> String {
    let mut out = String::with_capacity(length + 128);
    out.push('{');
    if let Some(channel) = channel {
        out.push_str(&format!("\"channel\":{},", json!(channel)));
    }
    if let Some(Place { epoch, offset }) = place {
        out.push_str(&format!("\"epoch\":\"{epoch:016x}\",\"offset\":{offset},"));
    }
    if let Some(prev) = prev {
        out.push_str(&format!("\"prev\":{prev},"));
    }
    if let Some(from) = from {
        out.push_str(&format!("\"from\":{from},"));
    }
    out
}

/// Appends a piece of a body, as a chunk if the body is chunked.
fn wrap(out: &mut Vec<u8>, piece: &[u8], chunked: bool) {
    if chunked {
        out.extend_from_slice(ChunkHead::new(piece.len()).as_bytes());
    }
    out.extend_from_slice(piece);
    if chunked {
        out.extend_from_slice(CHUNK_END);
    }
}

fn end_of_body(out: &mut Vec<u8>, chunked: bool) {
    if chunked {
        out.extend_from_slice(b"0\r\n\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEBSOCKET: Framing = Framing::WebSocket { compression: None };

    fn frame(message: &Message, framing: Framing) -> String {
        String::from_utf8_lossy(message.frame(framing)).into_owned()
    }

    #[test]
    fn a_text_on_every_transport() {
        let message = Message::data(Kind::Text, Bytes::from_static("a\r\nb\nc".as_bytes()));
        assert_eq!(message.frame(WEBSOCKET), b"\x81\x06a\r\nb\nc");
        assert_eq!(frame(&message, Framing::Events { chunked: false }), "data: a\ndata: b\ndata: c\n\n");
        assert_eq!(frame(&message, Framing::Events { chunked: true }), "19\r\ndata: a\ndata: b\ndata: c\n\n\r\n");
        assert_eq!(frame(&message, Framing::Lines { chunked: true }), "7\r\na\r\nb\nc\n\r\n");
        assert_eq!(frame(&message, Framing::Poll), r#"{"text":"a\r\nb\nc"}"#);
    }

    #[test]
    fn bytes_that_are_no_text() {
        let message = Message::data(Kind::Binary, Bytes::from_static(b"\xff\x00"));
        assert_eq!(message.frame(WEBSOCKET), b"\x82\x02\xff\x00");
        assert_eq!(frame(&message, Framing::Events { chunked: false }), "event: binary\ndata: /wA=\n\n");
        assert_eq!(frame(&message, Framing::Lines { chunked: false }), "/wA=\n");
        assert_eq!(frame(&message, Framing::Poll), r#"{"base64":"/wA="}"#);
    }

    #[test]
    fn a_publication_on_every_transport() {
        let place = Place { epoch: 0xab, offset: 7 };
        let message = Message::data(Kind::Text, Bytes::from_static(b"a\nb"));
        let message = message.with_sender(Some("{\"client\":\"x\"}".into()));
        let publication = message.to_publication(Some("c\"".into()), Some(place));
        let json = r#"{"channel":"c\"","epoch":"00000000000000ab","offset":7,"from":{"client":"x"},"text":"a\nb"}"#;
        assert_eq!(&publication.frame(WEBSOCKET)[2..], json.as_bytes());
        let event = format!("id: 00000000000000ab:7\ndata: {json}\n\n");
        assert_eq!(frame(&publication, Framing::Events { chunked: false }), event);
        assert_eq!(frame(&publication, Framing::Lines { chunked: false }), format!("{json}\n"));
        assert_eq!(frame(&publication, Framing::Poll), json);
        assert!(publication.is_data() && publication.place() == Some(place) && publication.len() == 3);
        let direct = Message::data(Kind::Binary, Bytes::from_static(b"\xff")).to_publication(None, None);
        assert_eq!(frame(&direct, Framing::Poll), r#"{"base64":"/w=="}"#);
    }

    #[test]
    fn places_are_read_as_they_are_written() {
        assert_eq!("00000000000000ab:7".parse(), Ok(Place { epoch: 0xab, offset: 7 }));
        for wrong in [
            "",
            ":",
            "ab:7",
            "00000000000000AB:7",
            "00000000000000ab:",
            "00000000000000ab:+7",
            "00000000000000ab:-1",
            "+0000000000000ab:7",
            "00000000000000ab:99999999999999999999",
        ] {
            assert_eq!(wrong.parse::<Place>(), Err(()), "{wrong}");
        }
    }

    #[test]
    fn what_the_hub_says_itself() {
        let unknown = Message::gap(None);
        assert_eq!(frame(&unknown, Framing::Poll), r#"{"gap":null}"#);
        assert!(unknown.is_unknown_gap() && !unknown.is_data());
        let gap = Message::gap(Some(3));
        assert_eq!(&gap.frame(WEBSOCKET)[2..], br#"{"gap":3}"#);
        assert_eq!(frame(&gap, Framing::Events { chunked: false }), "event: gap\ndata: {\"gap\":3}\n\n");
        let session = Message::session(&"k".into(), Some(1500));
        let said = "retry: 1500\nevent: session\ndata: {\"UUID\":\"k\",\"session\":\"k\"}\n\n";
        assert_eq!(frame(&session, Framing::Events { chunked: false }), said);
        assert_eq!(frame(&session, Framing::Lines { chunked: false }), "{\"UUID\":\"k\",\"session\":\"k\"}\n");
        let end = Message::end(Framing::Lines { chunked: true }, CloseCode::RESTART, "", None);
        assert_eq!(end.frame(Framing::Lines { chunked: true }), b"0\r\n\r\n");
        let end = Message::end(WEBSOCKET, CloseCode::RESTART, "bye", None);
        assert_eq!(end.frame(WEBSOCKET), b"\x88\x05\x03\xf4bye");
    }
}
