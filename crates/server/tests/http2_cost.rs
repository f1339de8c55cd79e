//! What requests on an HTTP/2 connection cost a server, and what attacks cost it: CPU time and memory of its thread.
//! A binary of its own, as `allocation_counter` brings an allocator for all of it.
#![allow(clippy::print_stderr)] // the figures, for `cargo test -p oroshi-server --test http2_cost -- --nocapture`

use std::net::SocketAddr;

use oroshi_http2::{Config, ErrorCode, Grants};
use oroshi_net::clock::thread_cpu_ns;
use oroshi_net::{BoundListener, ListenOptions, Peer};
use oroshi_server::{Error, Exchange, Server, Settings};
use oroshi_testkit::HANG;
use oroshi_testkit::http2::{Client, frame};

/// What clients cost the thread of a server, from its beginning to its end.
struct Cost {
    /// Allocations.
    allocations: u64,
    /// The most bytes of the heap at once.
    heap: u64,
    cpu_ns: u64,
}

/// An attack on a server.
struct Attack {
    name: &'static str,
    /// The client's window for each answer, in bytes.
    window: u32,
    rounds: u32,
    round: fn(&mut Client, u32),
    /// Whether the server ends the connection.
    is_ended: bool,
    /// The most CPU time, in ordinary requests to the same server, so that it holds for each machine and build. Each
    /// write may wake the server: a round of two writes is allowed two requests.
    requests: u64,
    /// The most KiB of heap.
    heap_kib: u64,
}

const WINDOW_UPDATE: u8 = 8;
/// The answer to `/large`.
static LARGE: [u8; 1 << 20] = [b'x'; 1 << 20];

const ATTACKS: [Attack; 5] = [
    Attack {
        name: "CVE-2023-44487, rapid reset",
        window: 65_535,
        rounds: 1_000,
        round: |client, _| {
            let id = client.get("/wait");
            client.reset(id);
        },
        is_ended: true,
        requests: 2_000,
        heap_kib: 512,
    },
    Attack {
        name: "CVE-2025-8671, MadeYouReset",
        window: 65_535,
        rounds: 1_000,
        round: |client, _| {
            let id = client.get("/wait");
            client.raw(&frame(WINDOW_UPDATE, 0, id, &[0; 4]));
        },
        is_ended: true,
        requests: 2_000,
        heap_kib: 512,
    },
    Attack {
        name: "CVE-2019-9511, a large answer byte by byte",
        window: 0,
        rounds: 20_000,
        round: |client, number| {
            if number == 0 {
                client.get("/large");
            }
            client.raw(&frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]));
        },
        is_ended: true,
        // It ends after 10,000 grants. One that is read alone costs two system calls, of which 32 requests share a few.
        requests: 20_000,
        heap_kib: 512,
    },
    Attack {
        name: "CVE-2019-9517, large answers that nobody reads",
        window: (1 << 31) - 1,
        rounds: 128,
        round: |client, _| _ = client.get("/large"),
        is_ended: false,
        requests: 3_000,
        // 128 streams of 32 KiB, and the output.
        heap_kib: 128 * 32 + 1024,
    },
    Attack {
        name: "large answers that are read up to the middle",
        window: PART as u32,
        rounds: 128 * 3,
        round: |client, number| {
            let id = 2 * (number % 128) + 1;
            match number / 128 {
                0 => _ = client.get("/large"),
                turn => {
                    assert_eq!(client.bytes(id, PART).len(), PART);
                    if turn == 1 {
                        client.grant(id, PART);
                    }
                }
            }
        },
        is_ended: false,
        requests: 10_000,
        heap_kib: 128 * 32 + 1024,
    },
];

/// So many bytes of what waits in a stream that its handler writes more.
const PART: usize = 17 * 1024;

#[test]
fn a_request_on_a_kept_connection_allocates_nothing() {
    let allocations = |rounds| cost(|address| requests(address, rounds)).allocations;
    let (few, many) = (allocations(20), allocations(120));
    // A few for the time that passes, and for buffers that grow.
    assert!(many < few + 320, "{few} for 640 requests, {many} for 3,840");
}

#[test]
fn an_attack_costs_a_server_no_more_than_its_bound() {
    const ROUNDS: usize = 60;
    let least = |cost: &dyn Fn() -> Cost| (0..3).map(|_| cost().cpu_ns).min().unwrap_or_default();
    let none = least(&|| cost(|_| ()));
    let ordinary = (least(&|| cost(|address| requests(address, ROUNDS))) - none).max(1) / (ROUNDS as u64 * 32);
    let mut beyond = Vec::new();
    for attack in &ATTACKS {
        let runs: Vec<Cost> = (0..3).map(|_| cost(|address| launch(attack, address))).collect();
        let worth = (runs.iter().map(|run| run.cpu_ns).min().unwrap_or_default() - none) / ordinary;
        let kib = runs.iter().map(|run| run.heap).max().unwrap_or_default() / 1024;
        eprintln!("{:<50} {worth:>6} requests, {kib:>6} KiB", attack.name);
        if worth > attack.requests || kib > attack.heap_kib {
            beyond.push(format!("{}: as much CPU time as {worth} requests, {kib} KiB of heap", attack.name));
        }
    }
    assert!(beyond.is_empty(), "{beyond:#?}");
}

/// Sends rounds of 32 requests at once.
fn requests(address: SocketAddr, rounds: usize) {
    let mut client = Client::connect(address);
    for _ in 0..rounds {
        let fields: [(&str, &[u8]); 2] = [("accept", b"text/html"), ("cookie", b"session=0123456789abcdef")];
        let ids: Vec<u32> = (0..32)
            .map(|number| {
                let id = client.request("POST", "/a/path?with=query", &fields, number % 2 == 0);
                if number % 2 == 1 {
                    client.data(id, b"a body", true);
                }
                id
            })
            .collect();
        ids.into_iter().for_each(|id| assert_eq!(client.answer(id).text(), "Hello, world"));
    }
}

fn launch(attack: &Attack, address: SocketAddr) {
    let (stream_window, connection_window) = (attack.window, 1 << 30);
    let config = Config { stream_window, connection_window, grants: Grants::Manual, ..Config::default() };
    let mut client = Client::with(address, config);
    (0..attack.rounds).for_each(|number| (attack.round)(&mut client, number));
    if attack.is_ended {
        assert_eq!(client.closed(), Some(ErrorCode::ENHANCE_YOUR_CALM), "{}", attack.name);
    } else {
        // While these are answered one after another, the server has turns enough to hold all that it would.
        let mut other = Client::connect(address);
        for _ in 0..100 {
            let id = other.get("/");
            assert_eq!(other.answer(id).text(), "Hello, world");
        }
    }
}

/// Returns what clients cost the thread of a server. The server has the thread to itself.
fn cost(clients: impl FnOnce(SocketAddr)) -> Cost {
    let bound = BoundListener::bind("127.0.0.1:0", &ListenOptions::default()).unwrap();
    let Peer::Tcp(address) = *bound.address() else { panic!("a unix socket") };
    let (end, mut ended) = tokio::sync::mpsc::channel::<()>(1);
    let server = std::thread::spawn(move || {
        let counted = allocation_counter::measure(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default());
            runtime.unwrap().block_on(async move {
                let listener = bound.into_listener().unwrap().into();
                let ended = async move {
                    let _ = ended.recv().await;
                };
                Server::new(handler, settings()).serve([listener], ended).await;
            });
        });
        Cost { allocations: counted.count_total, heap: counted.bytes_max, cpu_ns: thread_cpu_ns() }
    });
    clients(address);
    end.blocking_send(()).unwrap();
    server.join().unwrap()
}

fn settings() -> Settings {
    Settings { head_timeout: HANG * 2, write_timeout: HANG * 2, ..Settings::default() }
}

async fn handler(exchange: &mut Exchange<'_>) -> Result<(), Error> {
    while exchange.body.chunk().await?.is_some() {}
    let head = [("Content-Type", &b"text/plain"[..])];
    match exchange.head.target {
        "/wait" => std::future::pending().await,
        "/large" => exchange.reply.send(200, head, &LARGE).await,
        _ => exchange.reply.send(200, head, b"Hello, world").await,
    }
}
