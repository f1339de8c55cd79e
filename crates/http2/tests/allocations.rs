//! Memory: nothing is allocated per request in the steady state, and what a hostile peer makes a connection hold has
//! bounds in bytes.

use std::hint::black_box;
use std::sync::Arc;

use oroshi_http2::hpack::Compression;
use oroshi_http2::{Config, Connection, EncodedRequest, Event, Grants, HeadBuffer, Request};

const GET: Request<'static> = Request { method: "GET", scheme: "http", authority: "a", path: "/", protocol: None };
const ASKED: [(&str, &[u8]); 2] = [("User-Agent", b"oroshi"), ("Accept", b"*/*")];
const FIELDS: [(&str, &[u8]); 3] = [("Content-Type", b"text/plain"), ("Content-Length", b"12"), ("Server", b"oroshi")];

/// Two connections that exchange `rounds` times 32 requests.
struct Pair {
    client: Connection,
    server: Connection,
    to_server: Vec<u8>,
    to_client: Vec<u8>,
    client_heads: HeadBuffer,
    server_heads: HeadBuffer,
}

impl Pair {
    fn new(compression: Compression) -> Self {
        let config = Arc::new(Config { compression, grants: Grants::Automatic, ..Config::default() });
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        Pair {
            client: Connection::client(config.clone(), &mut to_server),
            server: Connection::server(config, &mut to_client),
            to_server,
            to_client,
            client_heads: HeadBuffer::default(),
            server_heads: HeadBuffer::default(),
        }
    }

    fn round(&mut self, encoded: Option<&EncodedRequest>) -> usize {
        for tag in 0..32 {
            let sent = match encoded {
                Some(request) => self.client.send_encoded_request(&mut self.to_server, request, true, tag),
                None => self.client.send_request(&mut self.to_server, &GET, ASKED, true, tag),
            };
            sent.expect("may open");
        }
        let mut input = &self.to_server[..];
        while let Some(event) =
            self.server.receive(&mut input, &mut self.server_heads, &mut self.to_client).expect("sound")
        {
            if let Event::Request { stream, .. } = event {
                self.server.send_response(&mut self.to_client, stream.id, 200, FIELDS, false).expect("open");
                self.server.send_data(&mut self.to_client, stream.id, b"hello world\n", true).expect("open");
            }
        }
        self.to_server.clear();
        let (mut input, mut ends) = (&self.to_client[..], 0);
        while let Some(event) =
            self.client.receive(&mut input, &mut self.client_heads, &mut self.to_server).expect("sound")
        {
            ends += usize::from(matches!(black_box(event), Event::Data { end: true, .. }));
        }
        self.to_client.clear();
        ends
    }
}

#[test]
fn requests_and_responses_allocate_nothing_in_the_steady_state() {
    let encoded = EncodedRequest::new(&GET, ASKED).expect("valid");
    for compression in [Compression::Static, Compression::Dynamic] {
        for encoded in [None, Some(&encoded)] {
            let mut pair = Pair::new(compression);
            (0..4).for_each(|_| assert_eq!(pair.round(encoded), 32));
            let counted = allocation_counter::measure(|| (0..100).for_each(|_| assert_eq!(pair.round(encoded), 32)));
            assert_eq!(counted.count_total, 0, "{compression:?}, encoded: {}", encoded.is_some());
        }
    }
}

/// Returns the bytes that stay allocated after `bytes` arrived at a new server, and the most at any time.
fn held(bytes: &[u8]) -> (i64, u64) {
    let config = Arc::new(Config::default());
    let mut held = 0;
    let all = allocation_counter::measure(|| {
        let (mut connection, mut heads, mut out) = (None, HeadBuffer::default(), Vec::with_capacity(100_000));
        let counted = allocation_counter::measure(|| {
            let connection = connection.insert(Connection::server(config.clone(), &mut out));
            let mut input = bytes;
            while let Ok(Some(event)) = connection.receive(&mut input, &mut heads, &mut out) {
                black_box(event);
            }
            connection.release();
        });
        held = counted.bytes_current;
    });
    (held, all.bytes_max - 100_000)
}

const START: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    [&[a, b, c, kind, flags, 0, 0, 0, stream], payload].concat()
}

#[test]
fn an_idle_connection_holds_little() {
    assert!(size_of::<Connection>() <= 1_024, "{} bytes", size_of::<Connection>());
    let (held, _) = held(START);
    assert_eq!(held, 0);
}

/// A block of 64 KiB without its end is kept once; Vec's growth can double it.
#[test]
fn an_endless_block_holds_its_bound() {
    let piece = [b'x'; 16_384];
    let flood = [START.to_vec(), frame(1, 0, 1, &piece), frame(9, 0, 1, &piece).repeat(3)].concat();
    let (held, most) = held(&flood);
    assert!((65_536..=131_072 + 200).contains(&held), "{held} bytes");
    assert!(most < 200_000, "{most} bytes");
}

/// 16,000 references to an entry of 4,000 bytes are 64 MB of fields. The buffer of heads, which the thread has once,
/// and the table hold what the limit allows: 64 KiB in a vector that has doubled, and 4 KiB.
#[test]
fn an_hpack_bomb_holds_its_bound() {
    let entry = [&b"\x82\x86\x84\x41\x01a\x40\x01x\x7f\xa1\x1e"[..], &[b'y'; 4_000]].concat();
    let bomb = [&b"\x82\x86\x84\xbf"[..], &[0xbe; 16_000]].concat();
    let (held, most) = held(&[START.to_vec(), frame(1, 5, 1, &entry), frame(1, 5, 3, &bomb)].concat());
    assert!(held < 160_000, "{held} bytes");
    assert!(most < 250_000, "{most} bytes");
}

/// 128 streams, as many as the server allows, whose responses cannot be sent: 40 bytes each, in a table of which at
/// most a quarter is used.
#[test]
fn streams_hold_their_bound() {
    let mut bytes = START.to_vec();
    for id in 0..128u8 {
        let [.., high, low] = (u32::from(id) * 2 + 1).to_be_bytes();
        bytes.extend_from_slice(&[0, 0, 6, 1, 5, 0, 0, high, low]);
        bytes.extend_from_slice(b"\x82\x86\x84\x01\x01a");
    }
    let (held, _) = held(&bytes);
    assert!((128 * 40..=128 * 160 + 1_000).contains(&held), "{held} bytes");
}

/// Checks the counter itself: otherwise the tests above could not fail.
#[test]
fn an_allocation_is_seen() {
    let counted = allocation_counter::measure(|| drop(black_box(vec![1u8; 100])));
    assert_eq!(counted.count_total, 1);
}
