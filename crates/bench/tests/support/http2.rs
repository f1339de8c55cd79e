//! Servers of HTTP/2 that do to each request what their test says.

use std::sync::Arc;

use oroshi_http2::{Config, Connection, ErrorCode, Event, Grants, HeadBuffer};

use super::peer::{Conn, Peer, Place, Request};

/// A connection of HTTP/2, as a peer sees it.
pub struct Http2Conn {
    pub conn: Conn,
    pub codec: Connection,
    pub out: Vec<u8>,
    kept: Vec<u8>,
    heads: HeadBuffer,
}

/// The frames that came on a connection.
#[derive(Clone, Debug)]
pub enum Heard {
    /// A request with its stream; `end`: it has no body. The counts of the request are those of its peer.
    Request { id: u32, request: Request, end: bool },
    /// So many bytes of a body.
    Data { id: u32, length: usize, end: bool },
    /// The other side has reset a stream.
    Reset { id: u32, code: ErrorCode },
}

impl Http2Conn {
    pub fn new(conn: Conn, config: Config) -> Self {
        let (mut out, heads) = (Vec::new(), HeadBuffer::default());
        let codec = Connection::server(Arc::new(config), &mut out);
        Self { conn, codec, out, kept: Vec::new(), heads }
    }

    /// Sends what is to be sent, and waits for the next events. `None` when the other side is gone, or breaks the
    /// protocol, which no load does.
    pub fn hear(&mut self) -> Option<Vec<Heard>> {
        loop {
            if !self.flush() {
                return None;
            }
            let bytes = self.conn.bytes()?;
            self.kept.extend_from_slice(&bytes);
            let (mut heard, mut input) = (Vec::new(), &self.kept[..]);
            while let Some(event) =
                self.codec.receive(&mut input, &mut self.heads, &mut self.out).expect("the load keeps to the protocol")
            {
                match event {
                    Event::Request { stream, head, end } => {
                        let mut request = self.conn.counted(head.method, head.target);
                        request.head = String::from_utf8_lossy(head.headers.as_bytes()).into_owned();
                        heard.push(Heard::Request { id: stream.id, request, end });
                    }
                    Event::Data { stream, data, end } => {
                        heard.push(Heard::Data { id: stream.id, length: data.len(), end });
                    }
                    Event::Reset { stream, code, .. } => heard.push(Heard::Reset { id: stream.id, code }),
                    Event::Refused { defect, .. } => panic!("the load sends what is refused: {defect}"),
                    _ => {}
                }
            }
            let left = input.len();
            self.kept.drain(..self.kept.len() - left);
            if !heard.is_empty() {
                return Some(heard);
            }
        }
    }

    pub fn flush(&mut self) -> bool {
        let sent = self.out.is_empty() || self.conn.send(&self.out);
        self.out.clear();
        sent
    }

    /// Answers with 200 and this body.
    pub fn answer(&mut self, id: u32, body: &[u8]) {
        let length = body.len().to_string();
        let fields = [("content-length", length.as_bytes()), ("server", &b"tester"[..])];
        // A stream that the other side has reset wants no answer.
        if self.codec.send_response(&mut self.out, id, 200, fields, body.is_empty()).is_ok() && !body.is_empty() {
            let _ = self.codec.send_data(&mut self.out, id, body, true);
        }
    }
}

/// A server that does `act` for each thing that it hears, until that returns false.
pub fn serving(
    place: Place,
    config: Config,
    act: impl Fn(&mut Http2Conn, Heard) -> bool + Send + Sync + 'static,
) -> Peer {
    Peer::start(place, move |conn| serve(conn, config.clone(), &act))
}

/// Serves one connection.
pub fn serve(conn: Conn, config: Config, act: &(impl Fn(&mut Http2Conn, Heard) -> bool + ?Sized)) {
    let mut conn = Http2Conn::new(conn, config);
    while let Some(all) = conn.hear() {
        for heard in all {
            if !act(&mut conn, heard) {
                conn.flush();
                return conn.conn.close_gently();
            }
        }
    }
}

/// A server that answers every request with `hello`, once it has all of its body.
pub fn hello() -> Peer {
    serving(Place::Tcp, automatic(), |conn, heard| {
        if let Heard::Request { id, end: true, .. } | Heard::Data { id, end: true, .. } = heard {
            conn.answer(id, b"hello");
        }
        true
    })
}

/// Settings of a server that grants windows by itself.
pub fn automatic() -> Config {
    Config { grants: Grants::Automatic, ..Config::default() }
}
