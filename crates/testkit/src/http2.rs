//! HTTP/2 on a blocking socket: a client that notes all events of its streams, and in [`server`] its mirror.

pub mod server;

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

pub use oroshi_http2::{Config, ErrorCode, Grants, Request};
use oroshi_http2::{Connection, Event, FRAME_HEAD_BYTES, HeadBuffer};

use crate::HANG;
use crate::http::Answer;

/// Something that the server has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// An interim or final head, as HTTP/1.1 would have it. The last part says whether the stream has ended.
    Head(u32, u16, String, bool),
    /// A piece of a body, and whether the stream has ended.
    Data(u32, Vec<u8>, bool),
    /// The field lines behind a body.
    Trailers(u32, String),
    /// A reset of the server's, or one that its mistake has caused.
    Reset(u32, ErrorCode),
    /// A GOAWAY with its last stream.
    GoAway(u32, ErrorCode),
    /// The answer to a ping.
    Pong,
    /// Settings, or a window that has opened.
    Opened,
}

impl Seen {
    fn stream(&self) -> Option<u32> {
        match self {
            Seen::Head(id, ..) | Seen::Data(id, ..) | Seen::Trailers(id, _) | Seen::Reset(id, _) => Some(*id),
            Seen::GoAway(..) | Seen::Pong | Seen::Opened => None,
        }
    }
}

/// One side of a connection, whose events are `E`. Each wait ends after [`HANG`].
#[derive(Debug)]
pub struct Side<S, E> {
    socket: S,
    /// The codec. Its output is sent by [`flush`](Self::flush), which most methods call.
    pub codec: Connection,
    /// The output.
    pub out: Vec<u8>,
    heads: HeadBuffer,
    received: Vec<u8>,
    seen: VecDeque<E>,
}

/// An event as a side notes it.
pub trait Note {
    /// Returns the note of an event.
    fn of(event: Event<'_>) -> Self;
}

/// A client's connection.
pub type Client<S = TcpStream> = Side<S, Seen>;

impl Note for Seen {
    fn of(event: Event<'_>) -> Seen {
        seen(event)
    }
}

impl Client {
    /// Connects over TCP. The client grants what it has read at once.
    #[must_use]
    pub fn connect(address: std::net::SocketAddr) -> Client {
        Client::with(address, Config { grants: Grants::Automatic, ..Config::default() })
    }

    /// As [`connect`](Self::connect), with a configuration.
    #[must_use]
    pub fn with(address: std::net::SocketAddr, config: Config) -> Client {
        Client::new(bounded(TcpStream::connect(address).unwrap()), config)
    }
}

impl<S: Read + Write> Client<S> {
    /// Begins HTTP/2 on a connected socket.
    pub fn new(socket: S, config: Config) -> Client<S> {
        let mut out = Vec::new();
        let codec = Connection::client(Arc::new(config), &mut out);
        Side::begin(socket, codec, out)
    }

    /// Sends the head of a request, and returns its stream.
    pub fn request(&mut self, method: &str, target: &str, fields: &[(&str, &[u8])], end: bool) -> u32 {
        let request = Request { method, scheme: "http", authority: "a.test", path: target, protocol: None };
        self.send(&request, fields, end)
    }

    /// As [`request`](Self::request), with all pseudo-headers.
    pub fn send(&mut self, request: &Request<'_>, fields: &[(&str, &[u8])], end: bool) -> u32 {
        let id = self.codec.send_request(&mut self.out, request, fields.iter().copied(), end, 0).unwrap();
        self.flush();
        id
    }

    /// Sends a GET without fields.
    pub fn get(&mut self, target: &str) -> u32 {
        self.request("GET", target, &[], true)
    }

    /// Asks for a WebSocket (RFC 8441), once the server has allowed it. Returns the stream and the answer's head.
    pub fn websocket(&mut self, target: &str) -> (u32, String) {
        self.websocket_with(target, &[])
    }

    /// As [`websocket`](Self::websocket), with more fields in the request.
    pub fn websocket_with(&mut self, target: &str, fields: &[(&str, &[u8])]) -> (u32, String) {
        while !self.codec.peer().extended_connect {
            assert!(self.read(), "the server does not allow it");
        }
        let protocol = Some("websocket");
        let request = Request { method: "CONNECT", scheme: "http", authority: "a.test", path: target, protocol };
        let fields: Vec<(&str, &[u8])> =
            [("sec-websocket-version", &b"13"[..])].into_iter().chain(fields.iter().copied()).collect();
        let id = self.send(&request, &fields, false);
        match self.next(id) {
            Seen::Head(_, 200, head, false) => (id, head),
            other => panic!("the WebSocket was refused: {other:?}"),
        }
    }

    /// Waits for this many bytes of a body, or for its end.
    pub fn bytes(&mut self, id: u32, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < length {
            match self.next(id) {
                Seen::Data(_, data, end) => {
                    bytes.extend_from_slice(&data);
                    if end {
                        break;
                    }
                }
                Seen::Head(..) => {}
                other => panic!("the body was cut off: {other:?}"),
            }
        }
        bytes
    }

    /// Sends bytes of a body, as the server opens its windows.
    pub fn data(&mut self, id: u32, mut bytes: &[u8], end: bool) {
        loop {
            let sent = self.codec.send_data(&mut self.out, id, bytes, end).unwrap();
            self.flush();
            bytes = &bytes[sent..];
            if bytes.is_empty() {
                return;
            }
            assert!(self.read(), "the connection ended before the server took the body");
        }
    }

    /// Sends the fields behind a body, and ends the stream.
    pub fn trailers(&mut self, id: u32, fields: &[(&str, &[u8])]) {
        self.codec.send_trailers(&mut self.out, id, fields.iter().copied()).unwrap();
        self.flush();
    }

    /// Resets a stream.
    pub fn reset(&mut self, id: u32) {
        self.codec.reset(&mut self.out, id, ErrorCode::CANCEL);
        self.flush();
    }

    /// Returns the next event of this stream. Panics at the end of the connection.
    pub fn next(&mut self, id: u32) -> Seen {
        self.find(|seen| seen.stream() == Some(id)).unwrap_or_else(|| panic!("no event of stream {id}"))
    }

    /// Waits for the whole answer to a request, without interim ones. Returns its trailers too.
    pub fn whole_answer(&mut self, id: u32) -> (Answer, String) {
        let (mut bytes, mut trailers) = (Vec::new(), String::new());
        loop {
            let ended = match self.next(id) {
                Seen::Head(_, 100..200, ..) => false,
                Seen::Head(_, _, head, end) => {
                    bytes.extend_from_slice(head.as_bytes());
                    end
                }
                Seen::Data(_, data, end) => {
                    bytes.extend_from_slice(&data);
                    end
                }
                Seen::Trailers(_, lines) => {
                    trailers = lines;
                    true
                }
                other => panic!("the answer was cut off: {other:?}"),
            };
            if ended {
                let end = crate::http::end_of_head(&bytes).expect("a head");
                return (Answer::new(&bytes, end), trailers);
            }
        }
    }

    /// Waits for the whole answer to a request.
    pub fn answer(&mut self, id: u32) -> Answer {
        self.whole_answer(id).0
    }

    /// Waits until the server closes the connection. Returns the last GOAWAY's code.
    pub fn closed(&mut self) -> Option<ErrorCode> {
        while self.read() {}
        self.seen.iter().rev().find_map(|seen| if let Seen::GoAway(_, code) = seen { Some(*code) } else { None })
    }
}

impl<S: Read + Write, E: Note> Side<S, E> {
    fn begin(socket: S, codec: Connection, out: Vec<u8>) -> Self {
        let heads = HeadBuffer::default();
        let mut side = Side { socket, codec, out, heads, received: Vec::new(), seen: VecDeque::new() };
        side.flush();
        side
    }

    /// Lets the peer send more bytes, with [`Grants::Manual`].
    pub fn grant(&mut self, id: u32, bytes: usize) {
        self.codec.grant(&mut self.out, id, bytes);
        self.flush();
    }

    /// Sends bytes that the codec does not know of. Returns false if the peer takes no more.
    pub fn raw(&mut self, bytes: &[u8]) -> bool {
        self.socket.write_all(bytes).is_ok()
    }

    /// Sends the output. A connection that the peer has closed shows at the next read.
    pub fn flush(&mut self) {
        let _ = self.socket.write_all(&self.out);
        self.out.clear();
    }

    /// Waits for an event, and removes it. `None` at the end of the connection.
    pub fn find(&mut self, is_wanted: impl Fn(&E) -> bool) -> Option<E> {
        loop {
            if let Some(place) = self.seen.iter().position(&is_wanted) {
                return self.seen.remove(place);
            }
            if !self.read() {
                return None;
            }
        }
    }

    /// Returns the socket.
    pub fn socket(&self) -> &S {
        &self.socket
    }

    /// Reads once. Returns false at the end of the connection.
    pub fn read(&mut self) -> bool {
        let mut buffer = [0; 16 * 1024];
        let count = match crate::http::read(&mut self.socket, &mut buffer) {
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => 0,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => 0,
            Err(error) => panic!("nothing came: {error}"),
        };
        self.received.extend_from_slice(&buffer[..count]);
        let mut input = &self.received[..];
        while let Some(event) =
            self.codec.receive(&mut input, &mut self.heads, &mut self.out).expect("the peer keeps the protocol")
        {
            self.seen.push_back(E::of(event));
        }
        let used = self.received.len() - input.len();
        self.received.drain(..used);
        self.flush();
        count > 0
    }
}

/// Bounds the waits on a socket.
fn bounded(socket: TcpStream) -> TcpStream {
    socket.set_read_timeout(Some(HANG)).unwrap();
    socket.set_write_timeout(Some(HANG)).unwrap();
    socket.set_nodelay(true).unwrap();
    socket
}

fn seen(event: Event<'_>) -> Seen {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let head = |status: u16, lines: &[u8]| format!("HTTP/2 {status} \r\n{}\r\n", text(lines));
    match event {
        Event::Response { stream, head: got, end } => {
            Seen::Head(stream.id, got.status, head(got.status, got.headers.as_bytes()), end)
        }
        Event::Informational { stream, head: got } => {
            Seen::Head(stream.id, got.status, head(got.status, got.headers.as_bytes()), false)
        }
        Event::Data { stream, data, end } => Seen::Data(stream.id, data.to_vec(), end),
        Event::Trailers { stream, headers } => Seen::Trailers(stream.id, text(headers.as_bytes())),
        Event::Reset { stream, code, .. } => Seen::Reset(stream.id, code),
        Event::GoAway { last_stream, code, .. } => Seen::GoAway(last_stream, code),
        Event::Pong { .. } => Seen::Pong,
        Event::WindowOpen { .. } | Event::Settings => Seen::Opened,
        Event::Request { .. } | Event::Refused { .. } => panic!("a server sends no request: {event:?}"),
    }
}

/// Makes a frame (RFC 9113 section 4.1).
#[must_use]
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(FRAME_HEAD_BYTES + payload.len());
    frame.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}
