//! Measures what a request costs in the HTTP/2 codec alone, without sockets: `http2-speed SIDE CODEC HEADS ROUNDS`.
//!
//! - SIDE: `client` encodes a GET and decodes head and 12 bytes of DATA; `server` does the reverse.
//! - CODEC: `own` (crates/http2), `own-encoded` (heads are encoded once, and a client skips the fields of responses),
//!   `h2`.
//! - HEADS: how the peer encodes its heads: `literal` (as nginx: static table, Huffman) or `indexed` (as nghttpd: the
//!   dynamic table has all fields).
//! - ROUNDS: of 32 requests each. The output is nanoseconds per request. Without ROUNDS, all cases run.
//!
//! The peer's bytes are a template whose stream identifiers are patched, the same for both codecs.

mod own;
mod theirs;

use std::time::Instant;

/// Requests under way at once.
pub(crate) const STREAMS: u32 = 32;

/// The body of each response.
pub(crate) const BODY: &[u8] = b"hello world\n";

/// The fields of each response, as nginx sends them.
pub(crate) const RESPONSE: [(&str, &str); 6] = [
    ("server", "nginx/1.22.1"),
    ("date", "Mon, 23 Nov 2026 20:15:39 GMT"),
    ("content-type", "application/octet-stream"),
    ("content-length", "12"),
    ("last-modified", "Mon, 23 Nov 2026 20:00:00 GMT"),
    ("etag", "\"673ea9f0-c\""),
];

/// The fields of each request.
pub(crate) const REQUEST: [(&str, &str); 2] = [("user-agent", "oroshi/0.1"), ("accept", "*/*")];

/// One side of a connection: it takes the peer's bytes of a round and makes its own.
pub(crate) trait Side {
    /// Runs a round: 32 requests. Returns the number that completed.
    fn round(&mut self, peer: &mut Peer) -> u32;
}

/// The bytes of the other side.
pub(crate) struct Peer {
    /// The bytes before the first round.
    pub(crate) hello: Vec<u8>,
    /// The bytes of the first round, which can fill the dynamic table, and of every other.
    first: Vec<u8>,
    other: Vec<u8>,
    rounds: u32,
    is_client: bool,
}

impl Peer {
    fn new(is_client: bool, indexed: bool) -> Self {
        let mut hello = if is_client { oroshi_http2::PREFACE.to_vec() } else { Vec::new() };
        // SETTINGS, the acknowledgement of the other's, and a large window for DATA.
        hello.extend_from_slice(b"\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0\0\0\x04\x08\0\0\0\0\0\x40\0\0\0");
        let (mut first, mut other) = (Vec::new(), Vec::new());
        for n in 0..STREAMS {
            let block = |dynamic: u8| if is_client { request_block(dynamic) } else { response_block(dynamic) };
            // Only the first head of the connection fills the table.
            let dynamic = [0, if n == 0 { 1 } else { 2 }][usize::from(indexed)];
            message(&mut first, is_client, &block(dynamic));
            message(&mut other, is_client, &block(if indexed { 2 } else { 0 }));
        }
        Peer { hello, first, other, rounds: 0, is_client }
    }

    /// The bytes of the next round, with their stream identifiers.
    pub(crate) fn next(&mut self) -> &[u8] {
        let bytes = if self.rounds == 0 { &mut self.first } else { &mut self.other };
        let (mut at, mut id) = (0, self.rounds * STREAMS * 2 + 1);
        while at < bytes.len() {
            let length = usize::from(bytes[at + 1]) << 8 | usize::from(bytes[at + 2]);
            bytes[at + 5..at + 9].copy_from_slice(&id.to_be_bytes());
            if bytes[at + 4] & 1 == 1 {
                id += 2;
            }
            at += 9 + length;
        }
        self.rounds += 1;
        debug_assert!(self.is_client || id > 1);
        bytes
    }
}

/// A HEADERS frame, and for a response its DATA.
fn message(out: &mut Vec<u8>, is_request: bool, block: &[u8]) {
    let flags = if is_request { 5 } else { 4 };
    out.extend_from_slice(&[0, 0, block.len() as u8, 1, flags, 0, 0, 0, 0]);
    out.extend_from_slice(block);
    if !is_request {
        out.extend_from_slice(&[0, 0, BODY.len() as u8, 0, 1, 0, 0, 0, 0]);
        out.extend_from_slice(BODY);
    }
}

/// `dynamic`: 0 without the dynamic table, 1 fills it, 2 uses it.
fn response_block(dynamic: u8) -> Vec<u8> {
    let mut block = vec![0x88];
    // The static indexes of the names of RESPONSE.
    fields(&mut block, dynamic, &[54, 33, 31, 28, 44, 34], &RESPONSE.map(|field| field.1));
    block
}

fn request_block(dynamic: u8) -> Vec<u8> {
    let mut block = vec![0x82, 0x86, 0x84];
    fields(&mut block, dynamic, &[1, 58, 19], &["127.0.0.1:8080", REQUEST[0].1, REQUEST[1].1]);
    block
}

fn fields(block: &mut Vec<u8>, dynamic: u8, names: &[u8], values: &[&str]) {
    for (place, (name, value)) in names.iter().zip(values).enumerate() {
        match dynamic {
            2 => {
                block.push(0x80 | (62 + names.len() - 1 - place) as u8);
                continue;
            }
            1 => block.push(0x40 | name),
            _ if *name < 15 => block.push(*name),
            _ => block.extend_from_slice(&[0x0f, name - 15]),
        }
        // The encoder of crates/http2 has the Huffman code: `x: value` as a literal, without its name.
        let mut encoder = oroshi_http2::hpack::Encoder::new(oroshi_http2::hpack::Compression::Dynamic);
        let mut field = Vec::new();
        encoder.field(&mut field, b"x", value.as_bytes());
        let name_bytes = 2 + usize::from(field[1] & 0x7f);
        block.extend_from_slice(&field[name_bytes..]);
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if let [side, codec, heads, rounds] = words[..] {
        println!("{:.1}", run(side, codec, heads, rounds.parse().expect("a number of rounds")));
        return;
    }
    println!("{:32} {:>10} {:>10}", "ns per request", "fastest", "median");
    for side in ["client", "server"] {
        for heads in ["literal", "indexed"] {
            for codec in ["own-encoded", "own", "h2"] {
                let mut all: Vec<f64> = (0..11).map(|_| run(side, codec, heads, 5_000)).collect();
                all.sort_by(f64::total_cmp);
                println!("{:32} {:>10.1} {:>10.1}", format!("{side} {heads} {codec}"), all[0], all[all.len() / 2]);
            }
        }
    }
}

/// Returns the nanoseconds per request.
fn run(side: &str, codec: &str, heads: &str, rounds: u32) -> f64 {
    let is_client = side == "client";
    let mut peer = Peer::new(!is_client, heads == "indexed");
    let mut side: Box<dyn Side> = match (is_client, codec) {
        (true, "own" | "own-encoded") => Box::new(own::Client::new(&peer, codec == "own-encoded")),
        (false, "own" | "own-encoded") => Box::new(own::Server::new(&peer, codec == "own-encoded")),
        (true, "h2") => Box::new(theirs::Client::new(&peer)),
        (false, "h2") => Box::new(theirs::Server::new(&peer)),
        _ => panic!("unknown codec {codec}"),
    };
    for _ in 0..20 {
        assert_eq!(side.round(&mut peer), STREAMS);
    }
    let start = Instant::now();
    for _ in 0..rounds {
        assert_eq!(side.round(&mut peer), STREAMS);
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(rounds * STREAMS)
}
