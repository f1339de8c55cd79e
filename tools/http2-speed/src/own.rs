//! The codec of crates/http2.

use std::hint::black_box;
use std::sync::Arc;

use oroshi_http2::hpack::Compression;
use oroshi_http2::{Config, Connection, EncodedRequest, EncodedResponse, Event, Grants, HeadBuffer, Heads, Request};

use crate::{BODY, Peer, REQUEST, RESPONSE, STREAMS, Side};

const GET: Request<'static> =
    Request { method: "GET", scheme: "http", authority: "127.0.0.1:8080", path: "/", protocol: None };

pub(crate) struct Client {
    connection: Connection,
    heads: HeadBuffer,
    out: Vec<u8>,
    encoded: Option<EncodedRequest>,
}

impl Client {
    pub(crate) fn new(peer: &Peer, load: bool) -> Self {
        let heads = if load { Heads::Framing } else { Heads::All };
        let config =
            Config { grants: Grants::Automatic, compression: Compression::Dynamic, heads, ..Config::default() };
        let (mut out, mut heads) = (Vec::new(), HeadBuffer::default());
        let mut connection = Connection::client(Arc::new(config), &mut out);
        hello(&mut connection, peer, &mut heads, &mut out);
        let encoded = load.then(|| EncodedRequest::new(&GET, fields(&REQUEST)).expect("valid"));
        Client { connection, heads, out, encoded }
    }
}

impl Side for Client {
    fn round(&mut self, peer: &mut Peer) -> u32 {
        self.out.clear();
        for tag in 0..STREAMS {
            match &self.encoded {
                Some(request) => self.connection.send_encoded_request(&mut self.out, request, true, tag),
                None => self.connection.send_request(&mut self.out, &GET, fields(&REQUEST), true, tag),
            }
            .expect("may open");
        }
        black_box(&self.out);
        let (mut input, mut complete) = (peer.next(), 0);
        while let Some(event) = self.connection.receive(&mut input, &mut self.heads, &mut self.out).expect("sound") {
            match event {
                Event::Response { head, .. } => assert_eq!(black_box(head).status, 200),
                Event::Data { data, end: true, .. } => {
                    assert_eq!(data.len(), BODY.len());
                    complete += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        complete
    }
}

pub(crate) struct Server {
    connection: Connection,
    heads: HeadBuffer,
    out: Vec<u8>,
    encoded: Option<EncodedResponse>,
}

impl Server {
    pub(crate) fn new(peer: &Peer, encoded: bool) -> Self {
        let config = Config { grants: Grants::Automatic, compression: Compression::Dynamic, ..Config::default() };
        let (mut out, mut heads) = (Vec::new(), HeadBuffer::default());
        let mut connection = Connection::server(Arc::new(config), &mut out);
        hello(&mut connection, peer, &mut heads, &mut out);
        let encoded = encoded.then(|| EncodedResponse::new(200, fields(&RESPONSE)).expect("valid"));
        Server { connection, heads, out, encoded }
    }
}

impl Side for Server {
    fn round(&mut self, peer: &mut Peer) -> u32 {
        self.out.clear();
        let (mut input, mut complete) = (peer.next(), 0);
        // The peer never grants window for the bodies: it is large, and this refills it.
        let mut grant: &[u8] = b"\0\0\x04\x08\0\0\0\0\0\0\0\x01\x80";
        while let Some(event) = self.connection.receive(&mut grant, &mut self.heads, &mut self.out).expect("sound") {
            panic!("{event:?}");
        }
        while let Some(event) = self.connection.receive(&mut input, &mut self.heads, &mut self.out).expect("sound") {
            let Event::Request { stream, head, .. } = event else { panic!("{event:?}") };
            assert_eq!(black_box(head).target, "/");
            match &self.encoded {
                Some(response) => self.connection.send_encoded_response(&mut self.out, stream.id, response, false),
                None => self.connection.send_response(&mut self.out, stream.id, 200, fields(&RESPONSE), false),
            }
            .expect("open");
            let sent = self.connection.send_data(&mut self.out, stream.id, BODY, true);
            assert_eq!(sent, Ok(BODY.len()));
            complete += 1;
        }
        black_box(&self.out);
        complete
    }
}

fn hello(connection: &mut Connection, peer: &Peer, heads: &mut HeadBuffer, out: &mut Vec<u8>) {
    let mut input = &peer.hello[..];
    while connection.receive(&mut input, heads, out).expect("a sound handshake").is_some() {}
}

fn fields<'f>(fields: &'f [(&'f str, &'f str)]) -> impl Iterator<Item = (&'f str, &'f [u8])> {
    fields.iter().map(|(name, value)| (*name, value.as_bytes()))
}
