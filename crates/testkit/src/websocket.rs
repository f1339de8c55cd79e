//! A WebSocket client over a blocking socket of any kind.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use oroshi_websocket::{CloseCode, Decoder, Event, Kind, Limits, Role, encode};

use crate::HANG;
use crate::http::{Answer, connect, connect_unix, end_of_head, head, read_more};

/// A received message or frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Got {
    /// A text message.
    Text(String),
    /// A binary message.
    Binary(Vec<u8>),
    /// A ping, where the test answers it by itself.
    Ping(Vec<u8>),
    /// A pong.
    Pong(Vec<u8>),
    /// A close frame: its code and its reason.
    Close(Option<u16>, String),
    /// The end of the connection.
    End,
}

/// The header lines that ask for a WebSocket. The key is the one of RFC 6455, section 1.3.
pub const UPGRADE: [&str; 4] = [
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
];

/// [`UPGRADE`] as names and values.
#[must_use]
pub fn upgrade_fields() -> [(&'static str, &'static str); 4] {
    UPGRADE.map(|line| line.split_once(": ").unwrap())
}

/// A client.
#[derive(Debug)]
pub struct WebSocket<S> {
    /// The connection.
    pub stream: S,
    /// The head of the answer that opened it.
    pub head: String,
    decoder: Decoder,
    bytes: Vec<u8>,
    /// Whether [`next`](Self::next) answers pings, rather than to return them.
    pub answers_pings: bool,
}

impl<S: Read + Write> WebSocket<S> {
    /// Opens a WebSocket with this request, which holds the lines of [`UPGRADE`].
    ///
    /// # Errors
    /// The answer that refuses it.
    pub fn handshake(mut stream: S, request: &[u8]) -> Result<WebSocket<S>, Answer> {
        stream.write_all(request).unwrap();
        let mut got = Vec::new();
        let end = loop {
            if let Some(end) = end_of_head(&got) {
                break end;
            }
            assert!(read_more(&mut stream, &mut got), "{:?}", String::from_utf8_lossy(&got));
        };
        let mut answer = Answer::new(&got, end);
        if answer.status != 101 {
            let length = answer.field("Content-Length").map_or(0, |length| length.parse().unwrap());
            while answer.body.len() < length {
                assert!(read_more(&mut stream, &mut answer.body), "{answer:?}");
            }
            return Err(answer);
        }
        assert_eq!(answer.field("Sec-WebSocket-Accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        let decoder = match answer.field("Sec-WebSocket-Extensions") {
            Some(_) => Decoder::with_deflate(Role::Client),
            None => Decoder::new(Role::Client),
        };
        let Answer { head, body: bytes, .. } = answer;
        Ok(WebSocket { stream, head, decoder, bytes, answers_pings: true })
    }

    /// Waits for the next message or frame. Panics if pings alone come for twice [`HANG`]: they would keep a test that
    /// waits in vain for ever.
    #[allow(clippy::should_implement_trait, reason = "it has no end that a loop could wait for")]
    pub fn next(&mut self) -> Got {
        let begun = Instant::now();
        loop {
            match self.decode() {
                Some(Got::Ping(payload)) if self.answers_pings => {
                    assert!(begun.elapsed() < 2 * HANG, "nothing but pings has come for {:?}", begun.elapsed());
                    let mut out = Vec::new();
                    encode::pong(&mut out, &payload, Some([1, 2, 3, 4]));
                    let _ = self.stream.write_all(&out);
                }
                Some(got) => return got,
                None if !read_more(&mut self.stream, &mut self.bytes) => return Got::End,
                None => {}
            }
        }
    }

    fn decode(&mut self) -> Option<Got> {
        let limits = Limits { message_bytes: 64 << 20 };
        let mut input = &mut self.bytes[..];
        let before = input.len();
        let event = self.decoder.decode(&limits, &mut input).unwrap();
        let got = event.map(|event| match event {
            Event::Message { kind: Kind::Text, data } => Got::Text(String::from_utf8(data.into_owned()).unwrap()),
            Event::Message { kind: Kind::Binary, data } => Got::Binary(data.into_owned()),
            Event::Ping(payload) => Got::Ping(payload.to_vec()),
            Event::Pong(payload) => Got::Pong(payload.to_vec()),
            Event::Close { code, reason } => Got::Close(code.map(|code| code.0), reason.to_owned()),
        });
        let left = input.len();
        self.bytes.drain(..before - left);
        got
    }

    /// Waits for the next message. Panics unless it is a text.
    pub fn text(&mut self) -> String {
        match self.next() {
            Got::Text(text) => text,
            other => panic!("{other:?}"),
        }
    }

    /// Sends a message.
    pub fn send(&mut self, kind: Kind, data: &[u8]) {
        let mut out = Vec::new();
        encode::masked_message(&mut out, kind, data, [9, 8, 7, 6]);
        if let Err(error) = self.stream.write_all(&out) {
            // Its last words say why it hung up.
            while read_more(&mut self.stream, &mut self.bytes) {}
            panic!("{error}, after {:?}", String::from_utf8_lossy(&self.bytes));
        }
    }

    /// Waits for this many bytes as they come, and returns them; none of them is decoded.
    pub fn raw(&mut self, count: usize) -> Vec<u8> {
        while self.bytes.len() < count {
            assert!(read_more(&mut self.stream, &mut self.bytes), "the end after {} bytes", self.bytes.len());
        }
        self.bytes.drain(..count).collect()
    }

    /// Sends a close frame.
    pub fn close(&mut self, code: u16) {
        let mut out = Vec::new();
        encode::masked_close(&mut out, CloseCode(code), "", [9, 8, 7, 6]);
        self.stream.write_all(&out).unwrap();
    }
}

impl WebSocket<TcpStream> {
    /// Opens a WebSocket with these fields beside those of [`UPGRADE`].
    ///
    /// # Errors
    /// The answer that refuses it.
    pub fn open(address: SocketAddr, target: &str, fields: &[(&str, &str)]) -> Result<Self, Answer> {
        WebSocket::open_on(connect(address), target, fields)
    }

    /// Opens a WebSocket on an existing connection.
    ///
    /// # Errors
    /// The answer that refuses it.
    pub fn open_on(stream: TcpStream, target: &str, fields: &[(&str, &str)]) -> Result<Self, Answer> {
        let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        let lines: Vec<&str> = UPGRADE.into_iter().chain(fields.iter().map(String::as_str)).collect();
        WebSocket::handshake(stream, &head("GET", target, "hub.test", &lines))
    }
}

impl WebSocket<UnixStream> {
    /// Opens a WebSocket on a unix socket. `lines` are whole header lines; an `Origin` among them replaces the default.
    ///
    /// # Errors
    /// The answer that refuses it.
    pub fn open(socket: &Path, target: &str, lines: &[&str]) -> Result<Self, Answer> {
        let mut all = UPGRADE.to_vec();
        if !lines.iter().any(|line| line.starts_with("Origin: ")) {
            all.push("Origin: http://push.test");
        }
        all.extend(lines);
        WebSocket::handshake(connect_unix(socket), &head("GET", target, "push.test", &all))
    }
}
