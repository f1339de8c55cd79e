//! The cost of requests on a kept HTTP/2 connection: allocations, counted.
//! A binary of its own, as `allocation_counter` brings an allocator for all of it.

use std::sync::mpsc;

use oroshi_net::{BoundListener, ListenOptions, Peer};
use oroshi_server::{Exchange, Server, Settings};
use oroshi_testkit::http2::Client;

/// The allocations of a server's thread for so many rounds of 32 requests at once, from its beginning to its end.
fn allocations(rounds: usize) -> u64 {
    let bound = BoundListener::bind("127.0.0.1:0", &ListenOptions::default()).unwrap();
    let Peer::Tcp(address) = *bound.address() else { panic!("a unix socket") };
    let (done, is_done) = mpsc::channel();
    let (end, mut ended) = tokio::sync::mpsc::channel::<()>(1);
    // The counts are those of one thread: the server has it to itself.
    let server = std::thread::spawn(move || {
        let info = allocation_counter::measure(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default());
            runtime.unwrap().block_on(async move {
                let handler = async |exchange: &mut Exchange<'_>| {
                    while exchange.body.chunk().await?.is_some() {}
                    exchange.reply.send(200, [("Content-Type", &b"text/plain"[..])], b"Hello, world").await
                };
                let listener = bound.into_listener().unwrap().into();
                let ended = async move {
                    let _ = ended.recv().await;
                };
                Server::new(handler, Settings::default()).serve([listener], ended).await;
            });
        });
        done.send(info.count_total).unwrap();
    });
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
    drop(client);
    end.blocking_send(()).unwrap();
    server.join().unwrap();
    is_done.recv().unwrap()
}

#[test]
fn a_request_on_a_kept_connection_allocates_nothing() {
    let (few, many) = (allocations(20), allocations(120));
    // A few for the time that passes, and for buffers that grow.
    assert!(many < few + 320, "{few} for 640 requests, {many} for 3,840");
}
