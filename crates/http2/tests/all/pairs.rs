//! A client and a server of this crate, joined by two pipes that deliver in pieces of any length.

use std::collections::BTreeMap;
use std::sync::Arc;

use oroshi_http2::hpack::Compression;
use oroshi_http2::{
    Config, Connection, Defect, EncodeError, EncodedResponse, Event, Grants, HeadBuffer, Heads, Request, Role,
    SendError,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::notation::bytes;
use crate::trace::{Cut, Step, run};

/// A request with its body, which the server sends back with a trailer.
#[derive(Clone, Debug)]
struct Exchange {
    path: String,
    fields: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    with_length: bool,
    trailers: bool,
}

fn exchange() -> impl Strategy<Value = Exchange> {
    let value = vec(b'!'..=b'~', 0..60);
    let fields = vec(("x-[a-z]{1,8}", value), 0..6);
    ("/[a-z]{0,20}", fields, 0usize..40_000, any::<u8>(), any::<bool>(), any::<bool>()).prop_map(
        |(path, fields, length, byte, with_length, trailers)| {
            let body = (0..length).map(|n| byte.wrapping_add(n as u8)).collect();
            Exchange { path, fields, body, with_length: with_length && !trailers, trailers }
        },
    )
}

/// One side with what it still has to write and to send.
struct Side {
    connection: Connection,
    heads: HeadBuffer,
    out: Vec<u8>,
    kept: Vec<u8>,
    /// Per stream: the body, how much is sent, and whether trailers follow.
    bodies: BTreeMap<u32, (Vec<u8>, usize, bool)>,
    received: BTreeMap<u32, Vec<u8>>,
    ended: usize,
}

impl Side {
    fn new(connection: Connection, out: Vec<u8>) -> Self {
        let (bodies, received) = (BTreeMap::new(), BTreeMap::new());
        Side { connection, heads: HeadBuffer::default(), out, kept: Vec::new(), bodies, received, ended: 0 }
    }

    /// Sends what the windows allow.
    fn send(&mut self) {
        let Side { connection, out, bodies, .. } = self;
        bodies.retain(|&id, (body, sent, trailers)| {
            let window = connection.window(id).expect("open");
            *sent += connection.send_data(out, id, &body[*sent..], !*trailers).expect("open");
            assert!(*sent == body.len() || connection.window(id) == Some(0), "window {window} was not used up");
            if *sent == body.len() && *trailers {
                connection.send_trailers(out, id, [("x-sum", &b"1"[..])]).expect("open");
            }
            *sent < body.len()
        });
    }

    /// Takes bytes from the other side, and answers whole requests.
    fn receive(&mut self, bytes: &[u8], exchanges: &[Exchange], order: &[usize]) {
        self.kept.extend_from_slice(bytes);
        let mut input = &self.kept[..];
        while let Some(event) =
            self.connection.receive(&mut input, &mut self.heads, &mut self.out).expect("the other side keeps the rules")
        {
            let mut ended = None;
            match event {
                Event::Request { stream, head, end } => {
                    let exchange = &exchanges[order[(stream.id / 2) as usize]];
                    assert_eq!((head.target, head.method), (&exchange.path[..], "POST"));
                    let fields = head.headers.iter().filter(|field| field.name.starts_with("x-"));
                    let fields: Vec<_> = fields.map(|field| (field.name.to_owned(), field.value.to_vec())).collect();
                    assert_eq!(fields, exchange.fields);
                    ended = end.then_some(stream);
                    self.received.insert(stream.id, Vec::new());
                }
                Event::Response { stream, head, end } => {
                    assert_eq!((head.status, stream.tag), (200, order[(stream.id / 2) as usize] as u32));
                    ended = end.then_some(stream);
                    self.received.insert(stream.id, Vec::new());
                }
                Event::Data { stream, data, end } => {
                    self.received.get_mut(&stream.id).expect("a head").extend_from_slice(data);
                    ended = end.then_some(stream);
                    self.connection.grant(&mut self.out, stream.id, data.len());
                }
                Event::Trailers { stream, headers } => {
                    assert_eq!(headers.get("x-sum"), Some(&b"1"[..]));
                    ended = Some(stream);
                }
                Event::Settings | Event::WindowOpen { .. } => {}
                other => panic!("{other:?}"),
            }
            let Some(stream) = ended else { continue };
            let exchange = &exchanges[order[(stream.id / 2) as usize]];
            assert!(self.received[&stream.id] == exchange.body);
            self.ended += 1;
            if self.connection.can_open() == Err(SendError::OutOfOrder) {
                // The server answers.
                self.connection.send_response(&mut self.out, stream.id, 200, [], false).expect("open");
                self.bodies.insert(stream.id, (exchange.body.clone(), 0, exchange.trailers));
            }
        }
        let used = self.kept.len() - input.len();
        self.kept.drain(..used);
    }
}

/// Encoded heads stand beside others on one connection, whatever its compression and the peer's table.
#[test]
fn encoded_responses_are_read_as_others_are() {
    let response = EncodedResponse::new(103, [("Link", &b"</a>"[..]), ("Connection", b"close")]).unwrap();
    let last = EncodedResponse::new(200, [("x-a", &b"1"[..]), ("Server", b"oroshi")]).unwrap();
    assert_eq!(EncodedResponse::new(101, []), Err(EncodeError::Status));
    assert_eq!(EncodedResponse::new(200, [("x", &b"a\nb"[..])]), Err(EncodeError::Value));
    let config = |compression| Arc::new(Config { compression, ..Config::default() });
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    let client = Connection::client(config(Compression::Static), &mut to_server);
    let server = Connection::server(config(Compression::Dynamic), &mut to_client);
    let (mut client, mut server) = (Side::new(client, to_server), Side::new(server, to_client));
    let request = Request { method: "GET", scheme: "http", authority: "a", path: "/", protocol: None };
    for id in [1, 3, 5] {
        client.connection.send_request(&mut client.out, &request, [], true, 0).unwrap();
        let (mut input, bytes) = (&client.out[..], &mut server.out);
        while server.connection.receive(&mut input, &mut server.heads, bytes).unwrap().is_some() {}
        client.out.clear();
        let connection = &mut server.connection;
        assert_eq!(connection.send_encoded_response(bytes, id, &response, true), Err(SendError::OutOfOrder));
        connection.send_encoded_response(bytes, id, &response, false).unwrap();
        if id == 3 {
            connection.send_response(bytes, id, 200, [("x-a", &b"1"[..]), ("Server", b"oroshi")], true).unwrap();
        } else {
            connection.send_encoded_response(bytes, id, &last, true).unwrap();
        }
        assert_eq!(connection.send_encoded_response(bytes, id, &last, true), Err(SendError::Closed));
        let (mut input, mut seen) = (&bytes[..], Vec::new());
        while let Some(event) = client.connection.receive(&mut input, &mut client.heads, &mut client.out).unwrap() {
            match event {
                Event::Informational { head, .. } => seen.push((head.status, head.headers.as_bytes().to_vec())),
                Event::Response { head, end: true, .. } => seen.push((head.status, head.headers.as_bytes().to_vec())),
                Event::Settings => {}
                other => panic!("{other:?}"),
            }
        }
        let expected = [(103, b"link: </a>\r\n".to_vec()), (200, b"x-a: 1\r\nserver: oroshi\r\n".to_vec())];
        assert_eq!(seen, expected);
        server.out.clear();
    }
}

/// With `Heads::Framing` the events are the same, without the fields that frame nothing, and the tables stay equal.
#[test]
fn a_load_skips_fields_and_sees_the_same_events() {
    let rows = [
        ("\\x88\\x0f\\x27\\x01x\\x0f\\x0d\\x015", "response 1 200 length=5"),
        ("\\x88\\x76\\x01x\\xbe\\x7e\\x01y\\0\\x01a\\x82\\x1f\\xff", "response 1 200"),
        ("\\x88\\x0f\\x2a\\x07chunked", "reset 1 PROTOCOL_ERROR connection-field"),
        ("\\x88\\0\\x01X\\x01a", "reset 1 PROTOCOL_ERROR upper-case-name"),
        ("\\x0f\\x27\\x01x\\x88", "reset 1 PROTOCOL_ERROR pseudo-after-field"),
        ("\\x0f\\x27\\x01x", "reset 1 PROTOCOL_ERROR wrong-pseudos"),
    ];
    for (block, event) in rows {
        let script = [
            Step::Do(["request", "GET", "/", "end"].map(str::to_owned).to_vec()),
            Step::In(bytes(&format!("HEADERS 1 | raw {block}"))),
        ];
        let config = Config { heads: Heads::Framing, ..Config::default() };
        let trace = run(Role::Client, &config, true, &script, Cut::Whole);
        assert_eq!((&trace.events[1][..], trace.error), (event, None), "{block}");
        assert!(trace.fields.iter().all(|line| line.starts_with("content-length")), "{:?}", trace.fields);
    }
    let cut = bytes("HEADERS 1 | raw \\x88\\x0f\\x27\\x05x");
    let script = [Step::Do(["request", "GET", "/", "end"].map(str::to_owned).to_vec()), Step::In(cut)];
    let config = Config { heads: Heads::Framing, ..Config::default() };
    assert_eq!(run(Role::Client, &config, true, &script, Cut::Whole).error, Some(Defect::TruncatedBlock));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Every body arrives whole, on both ways, within the windows of both sides: a side that exceeded one would end the
    /// connection. In the end no stream is open.
    #[test]
    fn all_bodies_arrive_both_ways(
        exchanges in vec(exchange(), 1..20),
        cuts in vec(1usize..30_000, 1..50),
        windows in (100u32..70_000, 100u32..70_000),
        streams in 1u32..8,
        dynamic: bool,
    ) {
        let compression = if dynamic { Compression::Dynamic } else { Compression::Static };
        let config = |stream_window| {
            let grants = Grants::Manual;
            let connection_window = 65_535;
            Arc::new(Config { stream_window, connection_window, streams, compression, grants, ..Config::default() })
        };
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let client = Connection::client(config(windows.0), &mut first);
        let server = Connection::server(config(windows.1), &mut second);
        let (mut client, mut server) = (Side::new(client, first), Side::new(server, second));
        let (mut order, mut next) = (Vec::new(), 0);
        for cut in cuts.iter().cycle() {
            // A client that knows the limit of streams opens what it may.
            while client.connection.is_ready() && next < exchanges.len() && client.connection.can_open().is_ok() {
                let exchange = &exchanges[next];
                let length = exchange.body.len().to_string();
                let fields = exchange.fields.iter().map(|(name, value)| (&name[..], &value[..]));
                let length = exchange.with_length.then_some(("Content-Length", length.as_bytes()));
                let request =
                    Request { method: "POST", scheme: "http", authority: "a", path: &exchange.path, protocol: None };
                let id = client.connection
                    .send_request(&mut client.out, &request, fields.chain(length), false, next as u32)
                    .expect("may open");
                client.bodies.insert(id, (exchange.body.clone(), 0, exchange.trailers));
                order.push(next);
                next += 1;
            }
            client.send();
            server.send();
            let to_server: Vec<u8> = client.out.drain(..client.out.len().min(*cut)).collect();
            server.receive(&to_server, &exchanges, &order);
            let to_client: Vec<u8> = server.out.drain(..server.out.len().min(*cut)).collect();
            client.receive(&to_client, &exchanges, &order);
            if client.ended == exchanges.len() {
                break;
            }
        }
        prop_assert_eq!(server.ended, exchanges.len());
        prop_assert_eq!((client.connection.streams(), server.connection.streams()), (0, 0));
    }
}
