//! A WebSocket client over a blocking socket of any kind. The tests of `oroshi push` have it from here, too.

use std::io::{ErrorKind, Read, Write};

use oroshi_websocket::{CloseCode, Decoder, Event, Kind, Limits, Role, encode};

/// An HTTP answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    /// The answer in what came, and where its head ends; what is behind that is the body.
    pub fn new(got: &[u8], end: usize) -> Answer {
        let head = String::from_utf8(got[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head, body: got[end + 4..].to_vec() }
    }

    /// The answer on a connection that closes behind it.
    pub fn read(mut stream: impl Read) -> Answer {
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        let end = end_of_head(&got).unwrap_or_else(|| panic!("{:?}", String::from_utf8_lossy(&got)));
        Answer::new(&got, end)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{}: {error}", self.text()))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// Where a head ends, without the empty line.
pub fn end_of_head(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n")
}

/// Reads something more; false at the end of the connection.
pub fn read_more(stream: &mut impl Read, into: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 16 * 1024];
    match stream.read(&mut buffer) {
        Ok(count) => {
            into.extend_from_slice(&buffer[..count]);
            count > 0
        }
        Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
        Err(error) => panic!("nothing came: {error}"),
    }
}

/// What a client gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Got {
    Text(String),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<u16>, String),
    /// The connection ended.
    End,
}

/// A client.
pub struct WebSocket<S> {
    pub stream: S,
    /// The head of the answer that opened it.
    pub head: String,
    decoder: Decoder,
    bytes: Vec<u8>,
    /// Whether pings are answered, and not told of.
    pub answers_pings: bool,
}

impl<S: Read + Write> WebSocket<S> {
    /// Opens one by this request, whose key is that of the standard's example, or gives the answer that refuses it.
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
            let length = answer.header("Content-Length").map_or(0, |length| length.parse().unwrap());
            while answer.body.len() < length {
                assert!(read_more(&mut stream, &mut answer.body), "{answer:?}");
            }
            return Err(answer);
        }
        assert_eq!(answer.header("Sec-WebSocket-Accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        let Answer { head, body: bytes, .. } = answer;
        Ok(WebSocket { stream, head, decoder: Decoder::new(Role::Client), bytes, answers_pings: true })
    }

    /// The next thing to come.
    pub fn next(&mut self) -> Got {
        loop {
            match self.decode() {
                Some(Got::Ping(payload)) if self.answers_pings => {
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

    /// The next message, which is a text.
    pub fn text(&mut self) -> String {
        match self.next() {
            Got::Text(text) => text,
            other => panic!("{other:?}"),
        }
    }

    pub fn send(&mut self, kind: Kind, data: &[u8]) {
        let mut out = Vec::new();
        encode::masked_message(&mut out, kind, data, [9, 8, 7, 6]);
        self.stream.write_all(&out).unwrap();
    }

    pub fn close(&mut self, code: u16) {
        let mut out = Vec::new();
        encode::masked_close(&mut out, CloseCode(code), "", [9, 8, 7, 6]);
        self.stream.write_all(&out).unwrap();
    }
}
