//! What requests and connections cost in memory, counted at the allocator. A binary of its own, as `allocation_counter`
//! brings an allocator for all of it.

use std::future::poll_fn;
use std::net::TcpListener;
use std::time::Duration;

use oroshi_multiplex::{Config, Connection, Request};
use oroshi_testkit::http2::server::Server;
use oroshi_testkit::wait_for;
use tokio::runtime::LocalRuntime;

fn runtime() -> LocalRuntime {
    tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default()).unwrap()
}

/// Sends so many requests at once, again and again, and reads the responses.
async fn requests(connection: &Connection, at_once: usize, rounds: usize) {
    let get = Request { method: "GET", scheme: "http", authority: "a.test", path: "/a/path", protocol: None };
    let mut streams = Vec::with_capacity(at_once);
    let mut body = Vec::with_capacity(1024);
    for _ in 0..rounds {
        for _ in 0..at_once {
            let place = connection.reserve().expect("room");
            streams.push(place.begin(&get, [("accept", &b"*/*"[..])], true).unwrap());
        }
        for mut stream in streams.drain(..) {
            let status = poll_fn(|cx| stream.poll_head(cx, |head| head.status)).await.unwrap();
            while poll_fn(|cx| stream.poll_data(cx, &mut body)).await.unwrap() {}
            assert_eq!((status, &*body), (200, &b"hello"[..]));
            body.clear();
        }
    }
}

async fn connected() -> Connection {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut server = Server::on(listener.accept().unwrap().0);
        while let Some(asked) = server.request() {
            server.answer(asked.id, 200, b"hello");
        }
    });
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let connection = Connection::start(stream.into(), &Config::default(), ());
    requests(&connection, 1, 1).await;
    connection
}

#[test]
fn a_request_allocates_nothing() {
    let runtime = runtime();
    let connection = runtime.block_on(connected());
    // The table of streams and the spare buffers grow first.
    runtime.block_on(requests(&connection, 50, 3));
    let before = allocation_counter::measure(|| runtime.block_on(requests(&connection, 50, 1)));
    let counted = allocation_counter::measure(|| runtime.block_on(requests(&connection, 50, 21)));
    let more = counted.count_total - before.count_total;
    assert!(more < 20, "{more} allocations for 1,000 requests");
}

#[test]
fn an_idle_connection_has_at_most_four_kilobytes() {
    const CONNECTIONS: usize = 20;
    let mut all = Vec::with_capacity(CONNECTIONS);
    let runtime = runtime();
    runtime.block_on(async { all.push(connected().await) });
    let grow = allocation_counter::measure(|| {
        runtime.block_on(async {
            while all.len() < CONNECTIONS {
                let connection = connected().await;
                requests(&connection, 50, 1).await;
                all.push(connection);
            }
        });
    });
    // They keep the memory of many streams for a while.
    let mut bytes = grow.bytes_current;
    let each = wait_for(
        || "the connections to free their memory".to_owned(),
        || {
            let freed = allocation_counter::measure(|| {
                runtime.block_on(async { tokio::time::sleep(Duration::from_millis(5)).await });
            });
            bytes += freed.bytes_current;
            let each = bytes / (CONNECTIONS as i64 - 1);
            (each < 4096).then_some(each)
        },
    );
    assert!(each > 0, "{each} bytes for each idle connection");
}
