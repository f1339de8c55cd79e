//! The effects that a hostile peer can have, as counts and bytes. `allocations.rs` has the bounds of memory.

use std::sync::Arc;

use oroshi_http2::{Config, Connection, Defect, ErrorCode, Event, HeadBuffer, Request, Role};

use crate::notation::{bytes, frames};
use crate::trace::{connection, handshake};

/// A server under attack.
struct Server {
    connection: Connection,
    heads: HeadBuffer,
    out: Vec<u8>,
    requests: usize,
}

impl Server {
    fn new(config: Config) -> Self {
        let (connection, out) = connection(Role::Server, &Arc::new(config));
        let mut server = Server { connection, heads: HeadBuffer::default(), out, requests: 0 };
        server.receive(&handshake(Role::Server)).expect("a sound handshake");
        server.out.clear();
        server
    }

    /// Receives bytes and answers nothing.
    fn receive(&mut self, mut input: &[u8]) -> Result<(), Defect> {
        while let Some(event) = self.connection.receive(&mut input, &mut self.heads, &mut self.out)? {
            self.requests += usize::from(matches!(event, Event::Request { .. }));
        }
        Ok(())
    }

    fn lines(&mut self, lines: &[String]) -> Result<(), Defect> {
        lines.iter().try_for_each(|line| self.receive(&bytes(line)))
    }

    /// Repeats until the connection ends, and returns how often it was tried and the defect.
    fn until_it_ends(&mut self, mut attack: impl FnMut(u32) -> Vec<String>) -> (u32, Defect) {
        for n in 0..100_000 {
            if let Err(defect) = self.lines(&attack(2 * n + 1)) {
                return (n + 1, defect);
            }
        }
        panic!("100,000 rounds and no end");
    }
}

fn get(id: u32) -> String {
    format!("HEADERS {id} END | :method: GET | :scheme: http | :path: / | :authority: a")
}

fn post(id: u32) -> String {
    format!("HEADERS {id} | :method: POST | :scheme: http | :path: / | :authority: a")
}

/// CVE-2023-44487: at most 201 requests start, and the answer is one GOAWAY.
#[test]
fn rapid_reset() {
    let mut server = Server::new(Config::default());
    let end = server.until_it_ends(|id| vec![get(id), format!("RST_STREAM {id} | CANCEL")]);
    assert_eq!((end, server.requests), ((201, Defect::ResetFlood), 201));
    assert_eq!(frames(&server.out), ["GOAWAY 401 ENHANCE_YOUR_CALM"]);
}

/// A browser that leaves pages resets many streams. It may, as long as it lets as many end.
#[test]
fn resets_beside_useful_work_are_not_an_attack() {
    let mut server = Server::new(Config::default());
    for n in 0..5_000u32 {
        let (good, bad) = (4 * n + 1, 4 * n + 3);
        server.lines(&[get(good), get(bad), format!("RST_STREAM {bad} | CANCEL")]).expect("no attack");
        server.connection.send_response(&mut server.out, good, 200, [], true).expect("open");
    }
    // Time alone refills the budget too: a tenth per tick.
    let mut server = Server::new(Config::default());
    for n in 0..2_000u32 {
        let id = 2 * n + 1;
        server.lines(&[get(id), format!("RST_STREAM {id} | CANCEL")]).expect("no attack");
        if n % 20 == 19 {
            server.connection.tick();
        }
    }
}

/// CVE-2025-8671: the peer makes the server reset. Every way counts, and each costs the server 13 bytes.
#[test]
fn made_you_reset() {
    type Attack = fn(u32) -> Vec<String>;
    let ways: [(&str, Attack); 9] = [
        ("window update by 0", |id| vec![get(id), format!("WINDOW_UPDATE {id} | 0")]),
        ("window overflow", |id| vec![get(id), format!("WINDOW_UPDATE {id} | 2147483647")]),
        ("data after the end", |id| vec![get(id), format!("DATA {id} | x")]),
        ("head after the end", |id| vec![get(id), get(id)]),
        ("priority of a wrong size", |id| vec![get(id), format!("PRIORITY {id} | raw 1234")]),
        ("dependency on itself", |id| vec![get(id), format!("PRIORITY {id} | {id} | raw x")]),
        ("body over its length", |id| vec![format!("{} | content-length: 1", post(id)), format!("DATA {id} END | xx")]),
        ("bad trailers", |id| vec![post(id), format!("HEADERS {id} END | :path: /")]),
        ("malformed head", |id| vec![format!("{} | Bad: 1", get(id))]),
    ];
    for (name, way) in ways {
        let mut server = Server::new(Config::default());
        let (rounds, defect) = server.until_it_ends(way);
        assert_eq!((rounds, defect), (201, Defect::ResetFlood), "{name}");
        assert!(server.out.len() <= 201 * 13 + 100, "{name}: {} bytes", server.out.len());
        assert!(server.connection.streams() == 0, "{name}");
    }
}

/// Streams above the limit are refused without an event for a handler, and add up.
#[test]
fn streams_above_the_limit() {
    let mut server = Server::new(Config { streams: 10, ..Config::default() });
    assert_eq!(server.until_it_ends(|id| vec![get(id)]), (211, Defect::ResetFlood));
    assert_eq!((server.requests, server.connection.streams()), (10, 10));
}

/// CVE-2024-27316: 17 empty CONTINUATION frames, or a block over 64 KiB, end the connection.
#[test]
fn continuation_flood() {
    let mut server = Server::new(Config::default());
    server.lines(&["HEADERS 1 MORE | :method: GET".to_owned()]).unwrap();
    assert_eq!(server.until_it_ends(|_| vec!["CONTINUATION 1 MORE".to_owned()]), (17, Defect::TooManyContinuations));
    let mut server = Server::new(Config::default());
    server.lines(&["HEADERS 1 MORE | :method: GET".to_owned()]).unwrap();
    let long = "CONTINUATION 1 MORE | raw \\{16384:x}".to_owned();
    assert_eq!(server.until_it_ends(|_| vec![long.clone()]), (4, Defect::BlockTooLarge));
}

/// CVE-2019-9512, CVE-2019-9515: each frame is answered with at most 17 bytes, 1,000 times.
#[test]
fn floods_of_frames_that_demand_an_answer() {
    for (line, answer_bytes) in [("PING 0 | 12345678", 17), ("SETTINGS 0", 9), ("SETTINGS 0 | 4=1 | 4=100000", 9)] {
        let mut server = Server::new(Config::default());
        let (rounds, defect) = server.until_it_ends(|_| vec![line.to_owned()]);
        assert_eq!((rounds, defect), (1_000, Defect::PingFlood), "{line}");
        assert!(server.out.len() <= 1_000 * answer_bytes + 100, "{line}: {}", server.out.len());
    }
}

/// The set of 2019, and padding: frames without use end the connection after 10,000, and are not answered.
#[test]
fn floods_of_frames_without_use() {
    let opened = [
        "WINDOW_UPDATE 0 | 1",
        "WINDOW_UPDATE 1 | 1",
        "PRIORITY 1 | raw \\0\\0\\0\\0x",
        "TYPE99 1 | raw x",
        "DATA 1",
        "DATA 1 | x",
        "DATA 1 pad=255 | x",
        "DATA 1 pad=255",
    ];
    for line in opened {
        let mut server = Server::new(Config { grants: oroshi_http2::Grants::Automatic, ..Config::default() });
        server.lines(&[post(1)]).unwrap();
        let (rounds, defect) = server.until_it_ends(|_| vec![line.to_owned()]);
        assert_eq!((rounds, defect), (10_001, Defect::FrameFlood), "{line}");
        // The windows that padding has used are given back in large steps.
        assert!(server.out.len() < 10_000, "{line}: {} bytes", server.out.len());
    }
    // Heads of a stream that the server has reset, and after its GOAWAY.
    let mut server = Server::new(Config::default());
    server.lines(&[post(1)]).unwrap();
    server.connection.reset(&mut server.out, 1, ErrorCode::CANCEL);
    assert_eq!(server.until_it_ends(|_| vec!["HEADERS 1 | x: y".into()]), (10_001, Defect::FrameFlood));
    let mut server = Server::new(Config::default());
    server.connection.goaway(&mut server.out, None, ErrorCode::NO_ERROR);
    assert_eq!(server.until_it_ends(|id| vec![get(id)]), (10_001, Defect::FrameFlood));
    let mut server = Server::new(Config::default());
    server.lines(&[get(1), "RST_STREAM 1 | CANCEL".to_owned()]).unwrap();
    let (rounds, _) = server.until_it_ends(|_| vec!["RST_STREAM 1 | CANCEL".to_owned()]);
    assert_eq!(rounds, 10_001, "resets of a closed stream");
}

/// A stream of small messages, as gRPC has them, is not an attack while the answers flow.
#[test]
fn small_messages_with_answers_are_not_an_attack() {
    let mut server = Server::new(Config { grants: oroshi_http2::Grants::Automatic, ..Config::default() });
    server.lines(&[post(1), "WINDOW_UPDATE 0 | 1000000000".into(), "WINDOW_UPDATE 1 | 1000000000".into()]).unwrap();
    server.connection.send_response(&mut server.out, 1, 200, [], false).unwrap();
    let message = bytes("DATA 1 | 12345");
    for _ in 0..50_000 {
        server.receive(&message).expect("no attack");
        assert_eq!(server.connection.send_data(&mut server.out, 1, b"12345", false), Ok(5));
        server.out.clear();
    }
}

/// CVE-2016-6581: one entry of 4,000 bytes, and 16,000 references to it in one frame. The head is refused with 431
/// once 64 KiB are counted, and the connection goes on.
#[test]
fn hpack_bomb() {
    let mut server = Server::new(Config::default());
    let entry = format!("\\x82\\x86\\x84\\x41\\x01a\\x40\\x01x\\x7f\\xa1\\x1e\\{{{}:y}}", 127 + 0x21 + 0x1e * 128);
    server.lines(&[format!("HEADERS 1 END | raw {entry}")]).unwrap();
    assert_eq!(server.requests, 1);
    let bomb = "HEADERS 3 END | raw \\x82\\x86\\x84\\xbf\\{16000:\\xbe}".to_owned();
    server.lines(&[bomb, "HEADERS 5 END | raw \\x82\\x86\\x84\\xbf".into()]).unwrap();
    assert_eq!(server.requests, 2);
    assert_eq!(frames(&server.out), ["HEADERS 3 END", "RST_STREAM 3 NO_ERROR"]);
}

/// CVE-2026-49975: crumbs of one byte each. They count as fields: 100 of them, and 431.
#[test]
fn cookie_bomb() {
    let mut server = Server::new(Config::default());
    let crumbs = |count: usize| format!("\\x82\\x86\\x84\\x41\\x01a\\x60\\x01c\\{{{count}:\\xbe}}");
    server.lines(&[format!("HEADERS 1 END | raw {}", crumbs(99))]).unwrap();
    assert_eq!(server.requests, 1);
    server.lines(&[format!("HEADERS 3 END | raw {}", crumbs(16_000))]).unwrap();
    assert_eq!((server.requests, frames(&server.out).len()), (1, 2));
}

/// CVE-2026-47774: windows held at zero. The connection holds 40 bytes a stream and no body; it names the streams that
/// make no progress, so that the caller can reset them.
#[test]
fn windows_held_at_zero() {
    let mut server = Server::new(Config::default());
    server.lines(&["SETTINGS 0 | 4=0".to_owned()]).unwrap();
    for n in 0..128 {
        let id = 2 * n + 1;
        server.lines(&[get(id)]).unwrap();
        server.connection.send_response(&mut server.out, id, 200, [], false).unwrap();
        assert_eq!(server.connection.send_data(&mut server.out, id, &[0; 100_000], true), Ok(0));
    }
    assert_eq!(server.connection.stalled(1), None);
    // One stream makes progress, a byte in each tick: it is slow, not stalled.
    for _ in 0..30 {
        server.connection.tick();
        server.lines(&["WINDOW_UPDATE 7 | 1".to_owned()]).unwrap();
        assert_eq!(server.connection.send_data(&mut server.out, 7, &[0; 100_000], true), Ok(1));
    }
    let mut stalled = 0;
    while let Some(stream) = server.connection.stalled(30) {
        server.connection.reset(&mut server.out, stream.id, ErrorCode::ENHANCE_YOUR_CALM);
        stalled += 1;
    }
    assert_eq!((stalled, server.connection.streams()), (127, 1));
}

/// CVE-2019-9511: a body that the peer takes in grants of a byte, one at a time or many at once.
#[test]
fn a_body_byte_by_byte() {
    for at_once in [1, 7, 63] {
        let mut server = Server::new(Config::default());
        server.lines(&["SETTINGS 0 | 4=0".to_owned(), get(1)]).unwrap();
        server.connection.send_response(&mut server.out, 1, 200, [], false).unwrap();
        let grants = bytes("WINDOW_UPDATE 1 | 1").repeat(at_once);
        let rounds = (1..=20_000).find(|_| {
            let ended = server.receive(&grants).is_err();
            ended || server.connection.send_data(&mut server.out, 1, &[0; 100_000], true) != Ok(at_once)
        });
        assert_eq!(rounds, Some(10_000 / at_once + 1), "{at_once} at once");
    }
}

/// A client's connection is bounded as well: a server that floods ends it.
#[test]
fn a_hostile_server() {
    for line in ["PING 0 | 12345678", "SETTINGS 0", "GOAWAY 0 | 2147483647 NO_ERROR"] {
        let (mut connection, mut out) = connection(Role::Client, &Arc::new(Config::default()));
        let (mut heads, flood) = (HeadBuffer::default(), bytes(line).repeat(2_000));
        let bytes = [handshake(Role::Client), flood].concat();
        let mut input = &bytes[..];
        let end = loop {
            match connection.receive(&mut input, &mut heads, &mut out) {
                Ok(Some(_)) => {}
                Ok(None) => panic!("{line}: no end"),
                Err(defect) => break defect,
            }
        };
        assert_eq!(end, Defect::PingFlood, "{line}");
    }
}

/// A client with requests on its connection.
struct Client {
    connection: Connection,
    heads: HeadBuffer,
    out: Vec<u8>,
}

impl Client {
    fn new() -> Self {
        let config = Config { grants: oroshi_http2::Grants::Automatic, ..Config::default() };
        let (connection, out) = connection(Role::Client, &Arc::new(config));
        let mut client = Client { connection, heads: HeadBuffer::default(), out };
        client.receive(&handshake(Role::Client));
        client
    }

    fn get(&mut self) -> u32 {
        let get = Request { method: "GET", scheme: "http", authority: "a", path: "/", protocol: None };
        self.connection.send_request(&mut self.out, &get, [], true, 0).expect("room")
    }

    fn receive(&mut self, mut input: &[u8]) {
        while self.connection.receive(&mut input, &mut self.heads, &mut self.out).expect("no attack").is_some() {}
        self.out.clear();
    }
}

/// A proxy whose client leaves resets all its streams at once. Their responses are on their way.
#[test]
fn responses_to_many_streams_that_were_reset_leave_a_client_s_connection_alone() {
    let mut client = Client::new();
    let ids: Vec<u32> = (0..100).map(|_| client.get()).collect();
    for &id in &ids {
        client.connection.reset(&mut client.out, id, ErrorCode::CANCEL);
    }
    for id in ids {
        client.receive(&bytes(&format!("HEADERS {id} | :status: 200")));
        client.receive(&bytes(&format!("DATA {id} END | hello")));
    }
    let id = client.get();
    client.receive(&bytes(&format!("HEADERS {id} END | :status: 200")));
}

/// gRPC's servers measure the bandwidth with a PING for a DATA frame, and many have small messages.
#[test]
fn a_server_may_ping_with_each_message_and_a_receiver_grant_in_small_pieces() {
    let mut client = Client::new();
    for _ in 0..20_000 {
        let id = client.get();
        client.receive(&bytes(&format!("HEADERS {id} | :status: 200")));
        client.receive(&bytes("PING 0 | 12345678"));
        client.receive(&bytes(&format!("DATA {id} END | hello")));
    }
    let id = client.get();
    client.receive(&bytes(&format!("HEADERS {id} | :status: 200")));
    for _ in 0..20_000 {
        client.receive(&bytes(&format!("DATA {id} | hello")));
        client.receive(&bytes("PING 0 | 12345678"));
    }
    // An upload, for which both windows are granted every 4 KiB.
    let post = Request { method: "POST", scheme: "http", authority: "a", path: "/", protocol: None };
    let id = client.connection.send_request(&mut client.out, &post, [], false, 0).expect("room");
    for _ in 0..10_000 {
        assert_eq!(client.connection.send_data(&mut client.out, id, &[0; 16_384], false), Ok(16_384));
        for _ in 0..4 {
            client.receive(&bytes("WINDOW_UPDATE 0 | 4096"));
            client.receive(&bytes(&format!("WINDOW_UPDATE {id} | 4096")));
        }
    }
}
