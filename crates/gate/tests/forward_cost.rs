//! What a request costs on kept connections: system calls and allocations, counted.
//! A binary of its own, as `allocation_counter` brings an allocator for all of it.

mod support;

use std::rc::Rc;
use std::sync::mpsc;

use oroshi_gate::forward::{Call, CallTargets, Outcome, Rules, forward};
use oroshi_gate::upstream::{PoolSettings, Pools, Settings, Target};
use oroshi_net::{BoundListener, ListenOptions, Peer};
use oroshi_server::{Exchange, Server};
use support::{Client, Upstream, patient};

/// A request and an answer as they are in life, with what a gateway has to take out and put in.
const REQUEST: &str = "GET /a/path?with=query HTTP/1.1\r\nHost: example.org\r\nConnection: keep-alive\r\n\
                       Accept: text/html\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\nAccept-Encoding: gzip\r\nCookie: session=0123456789abcdef\r\n\
    X-Forwarded-For: 1.2.3.4\r\nTE: trailers\r\n\r\n";
const ANSWER: &str = "HTTP/1.1 200 OK\r\nServer: test\r\nContent-Type: text/plain\r\nContent-Length: 12\r\n\
    Connection: keep-alive\r\nKeep-Alive: timeout=60\r\nETag: \"1\"\r\n\r\nHello, world";

/// What a gateway's thread allocates for so many requests, from its beginning to its end.
fn allocations(requests: usize, target: &Target) -> u64 {
    let bound = BoundListener::bind("127.0.0.1:0", &ListenOptions::default()).unwrap();
    let Peer::Tcp(address) = *bound.address() else { panic!("a unix socket") };
    let (target, (done, is_done)) = (target.clone(), mpsc::channel());
    let (end, mut ended) = tokio::sync::mpsc::channel::<()>(1);
    // The counts are those of one thread: the gateway has it to itself.
    let gate = std::thread::spawn(move || {
        let info = allocation_counter::measure(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default());
            runtime.unwrap().block_on(async move {
                let pools = Pools::new(Settings::default(), Default::default());
                let pool = pools.pool(&target, &Rc::new(PoolSettings::default()));
                let rules = Rules::default();
                let handler = async move |exchange: &mut Exchange<'_>| {
                    forward(exchange, &Call::new(&rules, CallTargets::One(&pool)), &mut Outcome::default()).await
                };
                let listener = bound.into_listener().unwrap().into();
                let ended = async move {
                    let _ = ended.recv().await;
                };
                Server::new(handler, patient()).serve([listener], ended).await;
            });
        });
        done.send(info.count_total).unwrap();
    });
    let mut client = Client::new(std::net::TcpStream::connect(address).unwrap());
    for _ in 0..requests {
        assert_eq!(client.send(REQUEST).answer().text(), "Hello, world");
    }
    drop(client);
    end.blocking_send(()).unwrap();
    gate.join().unwrap();
    is_done.recv().unwrap()
}

#[test]
fn a_request_on_kept_connections_allocates_nothing() {
    let upstream = Upstream::answering(ANSWER);
    let (few, many) = (allocations(100, &upstream.target), allocations(1_100, &upstream.target));
    // A few for the time that passes: timers of the sweeps.
    assert!(many < few + 100, "{few} for 100 requests, {many} for 1,100");
    upstream.end();
}

#[test]
fn a_request_on_a_stream_of_a_kept_connection_allocates_nothing() {
    let upstream = Upstream::http2(|_, behind| {
        while let Some(request) = behind.request() {
            behind.answer(request.id, 200, b"Hello, world");
        }
    });
    let (few, many) = (allocations(100, &upstream.target), allocations(1_100, &upstream.target));
    assert!(many < few + 100, "{few} for 100 requests, {many} for 1,100");
    upstream.end();
}
