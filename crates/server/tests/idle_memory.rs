//! The heap of idle connections. A binary of its own, as `allocation_counter` brings an allocator for all of it.
#![allow(clippy::print_stderr)] // the figures, for `cargo test -p oroshi-server --test idle_memory -- --nocapture`

mod support;

use oroshi_net::{BoundListener, ClientTls, Connector, ConnectorOptions, ListenOptions, Peer, ServerTls, Stream};
use oroshi_server::{HttpListener, Server};
use oroshi_testkit::Identity;
use support::{describe, patient};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The connections of two runs. A table that doubles has room for 512 in both.
const FEW: usize = 300;
const MANY: usize = 500;

#[test]
fn an_idle_connection_holds_little() {
    let identity = Identity::new();
    let client = ClientTls::new(&identity.trusted(), "localhost").unwrap();
    let plain = each(None, None);
    let tls = each(Some(identity.server()), Some(client));
    eprintln!("{plain} bytes of heap for an idle connection, {tls} with TLS");
    // 256 bytes for tokio's task, and as many for its state of the socket.
    assert!((512..=896).contains(&plain), "{plain} bytes");
    // Keys and state of rustls, and no buffer.
    assert!((plain..=4096).contains(&tls), "{tls} bytes with TLS");
}

/// Returns the bytes of heap for each connection that has had one request answered.
fn each(tls: Option<ServerTls>, client: Option<ClientTls>) -> usize {
    let [few, many] = [FEW, MANY].map(|count| most_heap(tls.clone(), client.clone(), count));
    usize::try_from(many - few).unwrap() / (MANY - FEW)
}

/// Returns the most heap that the thread of a server has with so many idle connections.
fn most_heap(tls: Option<ServerTls>, client: Option<ClientTls>, count: usize) -> u64 {
    let bound = BoundListener::bind("127.0.0.1:0", &ListenOptions::default()).unwrap();
    let address = bound.address().clone();
    let (end, mut ended) = tokio::sync::mpsc::channel::<()>(1);
    let server = std::thread::spawn(move || {
        let counted = allocation_counter::measure(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default());
            runtime.unwrap().block_on(async move {
                let listener = HttpListener { listener: bound.into_listener().unwrap(), tls, proxied: None };
                let ended = async move {
                    let _ = ended.recv().await;
                };
                Server::new(describe, patient()).serve([listener], ended).await;
            });
        });
        counted.bytes_max
    });
    let connector = Connector::new(ConnectorOptions { tls: client, ..ConnectorOptions::default() });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut idle = Vec::new();
        for _ in 0..count {
            idle.push(answered(&connector, &address).await);
        }
    });
    end.blocking_send(()).unwrap();
    server.join().unwrap()
}

/// Opens a connection on which one request is answered.
async fn answered(connector: &Connector, address: &Peer) -> Stream {
    let mut stream = connector.connect(address, None).await.unwrap().stream;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    stream.flush().await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"GET / 0") {
        assert!(stream.read_buf(&mut answer).await.unwrap() > 0);
    }
    stream
}
