//! An HTTP/2 server on a blocking socket, which does as a test tells it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use oroshi_http2::{Config, Connection, ErrorCode, Event, Grants};

use super::{Note, Side, bounded};

/// Something that the client has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A request.
    Request(Requested),
    /// A piece of a body, and whether the request has ended.
    Data(u32, Vec<u8>, bool),
    /// The field lines behind a body.
    Trailers(u32, String),
    /// A reset of the client's, or one that its mistake has caused.
    Reset(u32, ErrorCode),
    /// A GOAWAY.
    GoAway(ErrorCode),
    /// The answer to a ping.
    Pong,
    /// Settings, or a window that has opened.
    Opened,
}

/// The head of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requested {
    /// Its stream.
    pub id: u32,
    /// Its method.
    pub method: String,
    /// Its scheme.
    pub scheme: String,
    /// Its target: `/path?query`.
    pub target: String,
    /// Its field lines, Host among them.
    pub lines: String,
    /// Whether it has neither body nor trailers.
    pub end: bool,
}

impl Asked {
    fn stream(&self) -> Option<u32> {
        match self {
            Asked::Request(request) => Some(request.id),
            Asked::Data(id, ..) | Asked::Trailers(id, _) | Asked::Reset(id, _) => Some(*id),
            Asked::GoAway(_) | Asked::Pong | Asked::Opened => None,
        }
    }
}

/// A server's connection.
pub type Server<S = TcpStream> = Side<S, Asked>;

impl Note for Asked {
    fn of(event: Event<'_>) -> Asked {
        asked(event)
    }
}

impl Server {
    /// Begins HTTP/2 on a socket that was accepted. It grants what it has read at once.
    #[must_use]
    pub fn on(socket: TcpStream) -> Server {
        Server::with(socket, Config { grants: Grants::Automatic, ..Config::default() })
    }

    /// As [`on`](Self::on), with a configuration.
    #[must_use]
    pub fn with(socket: TcpStream, config: Config) -> Server {
        Server::new(bounded(socket), config)
    }
}

impl<S: Read + Write> Server<S> {
    /// Begins HTTP/2 on a connected socket: sends the settings.
    pub fn new(socket: S, config: Config) -> Server<S> {
        let mut out = Vec::new();
        let codec = Connection::server(Arc::new(config), &mut out);
        Side::begin(socket, codec, out)
    }

    /// Returns the next request; `None` when the client has closed.
    pub fn request(&mut self) -> Option<Requested> {
        match self.find(|asked| matches!(asked, Asked::Request(_)))? {
            Asked::Request(request) => Some(request),
            _ => None,
        }
    }

    /// Sends a head. A `status` below 200 is an interim one. `end`: the response has no body.
    pub fn head(&mut self, id: u32, status: u16, fields: &[(&str, &[u8])], end: bool) {
        self.codec.send_response(&mut self.out, id, status, fields.iter().copied(), end).unwrap();
        self.flush();
    }

    /// Sends a whole response.
    pub fn answer(&mut self, id: u32, status: u16, body: &[u8]) {
        let length = body.len().to_string();
        let fields = [("content-length", length.as_bytes())];
        self.codec.send_response(&mut self.out, id, status, fields, body.is_empty()).unwrap();
        if body.is_empty() {
            self.flush();
        } else {
            self.data(id, body, true);
        }
    }

    /// Sends bytes of a body, as the client opens its windows. False if the stream or the connection ended before.
    pub fn data(&mut self, id: u32, mut bytes: &[u8], end: bool) -> bool {
        loop {
            let Ok(sent) = self.codec.send_data(&mut self.out, id, bytes, end) else { return false };
            self.flush();
            bytes = &bytes[sent..];
            if bytes.is_empty() {
                return true;
            }
            if !self.read() {
                return false;
            }
        }
    }

    /// Sends the fields behind a body, and ends the stream.
    pub fn trailers(&mut self, id: u32, fields: &[(&str, &[u8])]) {
        self.codec.send_trailers(&mut self.out, id, fields.iter().copied()).unwrap();
        self.flush();
    }

    /// Resets a stream.
    pub fn reset(&mut self, id: u32, code: ErrorCode) {
        self.codec.reset(&mut self.out, id, code);
        self.flush();
    }

    /// Sends a GOAWAY: no stream after `last`, or after the last one so far, is processed.
    pub fn goaway(&mut self, last: Option<u32>, code: ErrorCode) {
        self.codec.goaway(&mut self.out, last, code);
        self.flush();
    }

    /// Returns the next event of this stream; `None` at the end of the connection.
    pub fn next(&mut self, id: u32) -> Option<Asked> {
        self.find(|asked| asked.stream() == Some(id))
    }

    /// Waits for the rest of a request's body.
    pub fn body(&mut self, id: u32) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            match self.next(id) {
                Some(Asked::Data(_, data, end)) => {
                    body.extend_from_slice(&data);
                    if end {
                        return body;
                    }
                }
                Some(Asked::Trailers(..)) => return body,
                other => panic!("the body was cut off: {other:?}"),
            }
        }
    }

    /// Waits until the client closes the connection. Returns all events that nobody has taken.
    pub fn rest(&mut self) -> Vec<Asked> {
        while self.read() {}
        self.seen.drain(..).collect()
    }
}

fn asked(event: Event<'_>) -> Asked {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    match event {
        Event::Request { stream, head, end } => Asked::Request(Requested {
            id: stream.id,
            method: head.method.to_owned(),
            scheme: head.scheme.to_owned(),
            target: head.target.to_owned(),
            lines: text(head.headers.as_bytes()),
            end,
        }),
        Event::Data { stream, data, end } => Asked::Data(stream.id, data.to_vec(), end),
        Event::Trailers { stream, headers } => Asked::Trailers(stream.id, text(headers.as_bytes())),
        Event::Reset { stream, code, .. } => Asked::Reset(stream.id, code),
        Event::GoAway { code, .. } => Asked::GoAway(code),
        Event::Pong { .. } => Asked::Pong,
        Event::WindowOpen { .. } | Event::Settings => Asked::Opened,
        Event::Refused { id, defect } => panic!("stream {id} was refused: {defect}"),
        Event::Response { .. } | Event::Informational { .. } => panic!("a client sends no response: {event:?}"),
    }
}
