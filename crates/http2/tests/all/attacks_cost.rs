//! What an attack costs: CPU time until the connection ends, or for a megabyte if it does not, and bytes of output.
//!
//! The unit of CPU time is an ordinary request, which the same thread decodes and answers beside it. So the bounds hold
//! for each machine and build.
#![allow(clippy::print_stderr)] // the figures, for `cargo test -p oroshi-http2 --test all attacks_cost -- --nocapture`

use std::sync::Arc;

use oroshi_http2::{Config, Connection, Event, Grants, HeadBuffer, Role};
use oroshi_net::clock::thread_cpu_ns;

use crate::notation::bytes;
use crate::trace::{connection, handshake};

/// Bytes of an attack that does not end its connection.
const MOST_BYTES: usize = 1 << 20;
/// Bytes of an ordinary request.
const ORDINARY_BYTES: usize = 59;
/// Ordinary requests that have as many bytes. Attacks that do not end their connection are worth a multiple of them.
const ORDINARY_PER_MEGABYTE: u64 = (MOST_BYTES / ORDINARY_BYTES) as u64;
/// Times that everything is measured; the least counts.
const ROUNDS: usize = 5;

struct Attack {
    name: &'static str,
    /// Lines once at the start.
    start: Vec<String>,
    /// Lines of a round; the argument is the next free stream.
    round: fn(u32) -> String,
    /// The most ordinary requests that its CPU time is worth.
    requests: u64,
    /// The most bytes of output.
    out: usize,
}

const GET: &str = ":method: GET | :scheme: http | :path: / | :authority: a";
const POST: &str = ":method: POST | :scheme: http | :path: / | :authority: a";

fn attacks() -> Vec<Attack> {
    let open = |count: u32| (0..count).map(|n| format!("HEADERS {} | {POST}", 2 * n + 1)).collect::<Vec<_>>();
    let entry = format!("\\x82\\x86\\x84\\x41\\x01a\\x40\\x01x\\x7f\\xa1\\x1e\\{{{}:y}}", 127 + 0x21 + 0x1e * 128);
    let crumb = "\\x82\\x86\\x84\\x41\\x01a\\x60\\x01c".to_owned();
    let attack = |name, start, round, requests, out| Attack { name, start, round, requests, out };
    vec![
        attack(
            "CVE-2023-44487, rapid reset",
            vec![],
            |id| format!("HEADERS {id} END | {GET}\nRST_STREAM {id} | CANCEL"),
            400,
            100,
        ),
        attack(
            "CVE-2025-8671, MadeYouReset",
            vec![],
            |id| format!("HEADERS {id} END | {GET}\nWINDOW_UPDATE {id} | 0"),
            400,
            201 * 13 + 100,
        ),
        attack(
            "CVE-2024-27316, empty CONTINUATION",
            vec![format!("HEADERS 1 MORE | {GET}")],
            |_| "CONTINUATION 1 MORE".to_owned(),
            50,
            100,
        ),
        attack(
            "CVE-2024-27316, large CONTINUATION",
            vec![format!("HEADERS 1 MORE | {GET}")],
            |_| "CONTINUATION 1 MORE | raw \\{16384:x}".to_owned(),
            400,
            100,
        ),
        attack(
            "CVE-2016-6581, references to an entry of 4,000 bytes",
            vec![format!("HEADERS 1 END | raw {entry}")],
            |id| format!("HEADERS {} END | raw \\x82\\x86\\x84\\xbf\\{{16000:\\xbe}}", id + 2),
            4 * ORDINARY_PER_MEGABYTE,
            10_000,
        ),
        attack(
            "CVE-2026-49975, cookie crumbs",
            vec![format!("HEADERS 1 END | raw {crumb}")],
            |id| format!("HEADERS {} END | raw \\x82\\x86\\x84\\xbf\\{{16000:\\xbe}}", id + 2),
            4 * ORDINARY_PER_MEGABYTE,
            10_000,
        ),
        attack("CVE-2019-9512, PING", vec![], |_| "PING 0 | 12345678".to_owned(), 1_000, 18_000),
        attack("CVE-2019-9515, SETTINGS", vec![], |_| "SETTINGS 0".to_owned(), 1_000, 10_000),
        attack(
            "CVE-2019-9515, windows of 128 streams that change",
            open(128),
            |id| format!("SETTINGS 0 | 4={}", 1000 + id % 7),
            3_000,
            10_000,
        ),
        attack("WINDOW_UPDATE, connection", open(1), |_| "WINDOW_UPDATE 0 | 1".to_owned(), 3_000, 100),
        attack("WINDOW_UPDATE, stream", open(1), |_| "WINDOW_UPDATE 1 | 1".to_owned(), 3_000, 100),
        attack("CVE-2019-9518, empty DATA", open(1), |_| "DATA 1".to_owned(), 3_000, 100),
        attack("tiny DATA", open(1), |_| "DATA 1 | x".to_owned(), 3_000, 10_000),
        attack("padding of 255", open(1), |_| "DATA 1 pad=255 | x".to_owned(), 3_000, 10_000),
        attack("CVE-2019-9513, PRIORITY", vec![], |_| "PRIORITY 1 | raw \\0\\0\\0\\0x".to_owned(), 3_000, 100),
        attack("frames of unknown types", vec![], |_| "TYPE99 1 | raw x".to_owned(), 3_000, 100),
        attack(
            "streams left half closed, refused above the limit",
            open(128),
            |id| format!("HEADERS {} | {POST}", id + 256),
            400,
            201 * 13 + 100,
        ),
    ]
}

/// A server, and what it has to read.
struct Server {
    connection: Connection,
    heads: HeadBuffer,
    out: Vec<u8>,
}

impl Server {
    fn new() -> Self {
        let config = Config { grants: Grants::Automatic, ..Config::default() };
        let (connection, out) = connection(Role::Server, &Arc::new(config));
        let mut server = Server { connection, heads: HeadBuffer::default(), out };
        assert!(server.receive(&handshake(Role::Server), false), "a sound handshake");
        server.out.clear();
        server
    }

    /// Receives bytes, and answers requests if `answers`. False if the connection has ended.
    fn receive(&mut self, mut input: &[u8], answers: bool) -> bool {
        loop {
            match self.connection.receive(&mut input, &mut self.heads, &mut self.out) {
                Ok(Some(Event::Request { stream, .. })) if answers => {
                    let id = stream.id;
                    self.connection.send_response(&mut self.out, id, 200, [], true).expect("open");
                }
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }
}

/// Returns the CPU time of an ordinary request in nanoseconds.
fn ordinary_ns() -> u64 {
    const COUNT: u32 = 2_000;
    let input: Vec<u8> = (0..COUNT).flat_map(|n| bytes(&format!("HEADERS {} END | {GET}", 2 * n + 1))).collect();
    assert_eq!(input.len(), ORDINARY_BYTES * COUNT as usize);
    let once = || {
        let mut server = Server::new();
        server.out.reserve(100_000);
        let before = thread_cpu_ns();
        assert!(server.receive(&input, true));
        (thread_cpu_ns() - before) / u64::from(COUNT)
    };
    (0..ROUNDS).map(|_| once()).min().unwrap_or_default().max(1)
}

#[test]
fn an_attack_costs_no_more_than_its_bound_in_cpu_time_and_bytes() {
    let mut beyond = Vec::new();
    for attack in attacks() {
        let start: Vec<u8> = attack.start.iter().flat_map(|line| bytes(line)).collect();
        let mut input = Vec::new();
        let mut id = 1;
        while input.len() < MOST_BYTES {
            (attack.round)(id).lines().for_each(|line| input.extend(bytes(line)));
            id += 2;
        }
        let once = || {
            let mut server = Server::new();
            assert!(server.receive(&start, false), "{}: the start", attack.name);
            server.out.clear();
            let before = thread_cpu_ns();
            server.receive(&input, false);
            (thread_cpu_ns() - before, server.out.len())
        };
        let runs: Vec<(u64, usize)> = (0..ROUNDS).map(|_| once()).collect();
        let cpu = runs.iter().map(|run| run.0).min().unwrap_or_default();
        let out = runs[0].1;
        let worth = cpu / ordinary_ns();
        eprintln!("{:<55} {worth:>6} requests, {out:>6} bytes", attack.name);
        if worth > attack.requests || out > attack.out {
            beyond.push(format!("{}: as much CPU time as {worth} requests, {out} bytes of output", attack.name));
        }
    }
    assert!(beyond.is_empty(), "{beyond:#?}");
}

/// CVE-2026-47774: 128 streams whose windows the peer holds at zero cost nothing but a look a second.
#[test]
fn windows_held_at_zero_cost_a_look_a_second() {
    let ordinary = ordinary_ns();
    let mut server = Server::new();
    assert!(server.receive(&bytes("SETTINGS 0 | 4=0"), false));
    for n in 0..128 {
        let id = 2 * n + 1;
        assert!(server.receive(&bytes(&format!("HEADERS {id} END | {GET}")), false));
        server.connection.send_response(&mut server.out, id, 200, [], false).expect("open");
        assert_eq!(server.connection.send_data(&mut server.out, id, &[0; 1000], true), Ok(0));
    }
    server.out.clear();
    let look = |server: &mut Server| {
        let before = thread_cpu_ns();
        server.connection.tick();
        assert!(server.connection.stalled(1000).is_none());
        thread_cpu_ns() - before
    };
    let least = (0..20).map(|_| look(&mut server)).min().unwrap_or_default();
    assert!(least / ordinary <= 50, "as much CPU time a second as {} requests", least / ordinary);
    assert!(server.out.is_empty());
}
