//! Both clients at their everyday work, against a real server: caps, reuse, the line, streams, other threads.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::support::{Identity, Peer, Running, SHORT, block_on, builder, patient, told};
use oroshi_client::{Addresses, Client, Deadlines, Phase, Timings};
use oroshi_server::Exchange;
use tokio::io::ReadBuf;
use tokio::sync::Semaphore;

async fn echo(exchange: &mut Exchange<'_>) -> Result<(), oroshi_server::Error> {
    exchange.reply.begin(200, [("Content-Type", &b"application/octet-stream"[..])], None)?;
    while let Some(piece) = exchange.body.chunk().await? {
        exchange.reply.write(piece).await?;
    }
    exchange.reply.finish()
}

#[test]
fn a_cap_makes_requests_wait_and_connections_serve_many() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, highest) = (Arc::clone(&now), Arc::clone(&most));
    let server = Running::start(async move |exchange: &mut Exchange<'_>| {
        highest.fetch_max(counted.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        counted.fetch_sub(1, Ordering::SeqCst);
        exchange.reply.send(200, [], exchange.head.target.as_bytes()).await
    });
    block_on(async {
        let client = builder().connections_per_host(5).build_local().unwrap();
        let tasks: Vec<_> = (0..200)
            .map(|number| {
                let request = client.get(server.url(&format!("/{number}")));
                tokio::task::spawn_local(async move { request.send().await?.text().await })
            })
            .collect();
        for (number, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap().unwrap(), format!("/{number}"));
        }
        let counts = client.counts();
        assert_eq!((counts.connects, counts.idle, counts.failures), (5, 5, 0));
    });
    assert!(most.load(Ordering::SeqCst) <= 5);
    assert_eq!(server.stop().accepted, 5);
}

#[test]
fn the_line_has_a_length_and_a_deadline() {
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let server = Running::start(async move |exchange: &mut Exchange<'_>| {
        let _ = held.acquire().await;
        exchange.reply.send(200, [], b"hello").await
    });
    block_on(async {
        let deadlines = Deadlines { queue: SHORT, ..patient() };
        let client = builder().connections(1).waiting(1).deadlines(deadlines).build_local().unwrap();
        let first = tokio::task::spawn_local(client.get(server.url("/")).send());
        tokio::task::yield_now().await;
        let second = tokio::task::spawn_local(client.get(server.url("/")).send());
        tokio::task::yield_now().await;
        let error = client.get(server.url("/")).send().await.unwrap_err();
        assert_eq!((error.phase(), error.name(), error.retry_is_safe()), (Phase::Queue, "queue-full", true));
        let error = second.await.unwrap().unwrap_err();
        assert_eq!((error.phase(), error.name(), error.retry_is_safe()), (Phase::Queue, "queue-timeout", true));
        assert!(error.timings().queue >= SHORT, "{}", told(&error));
        gate.add_permits(10);
        assert!(first.await.unwrap().is_ok());
    });
    server.stop();
}

#[test]
fn idle_and_old_connections_are_closed() {
    let server = Running::start(async |exchange: &mut Exchange<'_>| exchange.reply.send(200, [], b"hello").await);
    block_on(async {
        let client = builder().idle_timeout(SHORT).build_local().unwrap();
        client.get(server.url("/")).send().await.unwrap();
        assert_eq!(client.counts().idle, 1);
        // Nobody asks for anything: it is closed all the same.
        while client.counts().open > 0 {
            tokio::time::sleep(SHORT / 10).await;
        }
        let client = builder().max_age(Duration::ZERO).build_local().unwrap();
        client.get(server.url("/")).send().await.unwrap();
        assert_eq!(client.counts().open, 0);
        let client = builder().keep_alive(false).build_local().unwrap();
        client.get(server.url("/")).send().await.unwrap();
        assert_eq!(client.counts().open, 0);
    });
    assert_eq!(server.stop().accepted, 3);
}

#[test]
fn bodies_stream_both_ways_at_once() {
    let server = Running::start(echo);
    block_on(async {
        let client = builder().build_local().unwrap();
        let (reader, mut writer) = tokio::io::simplex(1024);
        let mut response = client.post(server.url("/")).reader(reader, None).send().await.unwrap();
        // Each piece is sent only after the one before it has come back.
        for number in 0..50 {
            use tokio::io::AsyncWriteExt;
            let sent = format!("piece {number};").repeat(10);
            writer.write_all(sent.as_bytes()).await.unwrap();
            let mut back = Vec::new();
            while back.len() < sent.len() {
                back.extend_from_slice(response.chunks().next().await.unwrap().expect("more"));
            }
            assert_eq!(back, sent.as_bytes());
        }
        tokio::io::AsyncWriteExt::shutdown(&mut writer).await.unwrap();
        assert!(response.chunks().next().await.unwrap().is_none());
        assert_eq!((client.counts().idle, client.counts().in_flight), (1, 0));

        // A response of this client is the body of another request of this client.
        let source = client.post(server.url("/")).body(vec![b'x'; 1 << 20]).send().await.unwrap();
        let copied =
            client.post(server.url("/")).reader(Piped { source, piece: Vec::new() }, None).send().await.unwrap();
        assert!(copied.bytes().await.unwrap() == vec![b'x'; 1 << 20]);
        assert_eq!((client.counts().idle, client.counts().in_flight), (2, 0));
    });
    server.stop();
}

/// A response as a reader.
struct Piped {
    source: oroshi_client::local::Response,
    piece: Vec<u8>,
}

impl tokio::io::AsyncRead for Piped {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let Piped { source, piece } = self.get_mut();
        if piece.is_empty() {
            let mut chunks = source.chunks();
            let next = std::pin::pin!(chunks.next());
            if let Some(next) = std::task::ready!(next.poll(context)).map_err(std::io::Error::other)? {
                piece.extend_from_slice(next);
            }
        }
        let count = piece.len().min(into.remaining());
        into.put_slice(&piece[..count]);
        piece.drain(..count);
        Poll::Ready(Ok(()))
    }
}

#[test]
fn several_addresses_are_tried_and_the_good_one_is_remembered() {
    let server = Running::start(async |exchange: &mut Exchange<'_>| exchange.reply.send(200, [], b"hello").await);
    let oroshi_net::Peer::Tcp(address) = server.address.clone() else { panic!("not TCP") };
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    block_on(async {
        let client = builder()
            .keep_alive(false)
            .resolver(move |_| {
                counter.fetch_add(1, Ordering::SeqCst);
                Ok(Addresses { addresses: vec![[127, 9, 9, 9].into(), [127, 0, 0, 1].into()], ttl: None })
            })
            .build_local()
            .unwrap();
        let url = format!("http://two.example:{}/", address.port());
        let tasks: Vec<_> = (0..20).map(|_| tokio::task::spawn_local(client.get(&url).send())).collect();
        for task in tasks {
            let response = task.await.unwrap().map_err(|error| told(&error)).unwrap();
            let Timings { dns, connect, tls, .. } = response.timings();
            assert!(dns.is_some() && connect.is_some() && tls.is_none());
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1, "one look-up for all");
    });
    server.stop();
}

#[test]
fn an_abstract_socket_is_a_place_like_any_other() {
    let name = format!("unix:@oroshi-client-test-{}", std::process::id());
    let server = Running::start_at(&name, None, async |exchange: &mut Exchange<'_>| {
        exchange.reply.send(200, [], exchange.head.target.as_bytes()).await
    });
    block_on(async {
        let client = builder().build_local().unwrap();
        assert_eq!(client.get(format!("{name}:/a?b")).send().await.unwrap().text().await.unwrap(), "/a?b");
    });
    server.stop();
}

#[derive(serde::Serialize, serde::Deserialize, PartialEq, Debug)]
struct Thing {
    name: String,
    count: u32,
}

#[test]
fn json_text_and_what_is_neither() {
    let server = Running::start(echo);
    block_on(async {
        let client = builder().build_local().unwrap();
        let thing = Thing { name: "a".to_owned(), count: 7 };
        let post = || client.post(server.url("/"));
        assert_eq!(post().json(&thing).send().await.unwrap().json::<Thing>().await.unwrap(), thing);
        let error = post().body("{").send().await.unwrap().json::<Thing>().await.unwrap_err();
        assert_eq!((error.phase(), error.name()), (Phase::Content, "json"));
        let error = post().body(&b"\xff"[..]).send().await.unwrap().text().await.unwrap_err();
        assert_eq!((error.phase(), error.name()), (Phase::Content, "not-utf-8"));
        assert_eq!(post().form([("a", "b c")]).send().await.unwrap().text().await.unwrap(), "a=b+c");
    });
    server.stop();
}

fn is_send<T: Send>(value: T) -> T {
    value
}

#[test]
fn the_client_for_all_threads_works_from_all_threads() {
    let server = Running::start(echo);
    let client = builder().connections(8).build().unwrap();
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let (client, url) = (client.clone(), server.url("/"));
            std::thread::spawn(move || {
                // Any runtime will do; this one has neither I/O nor time.
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(is_send(async move {
                    for number in 0..50 {
                        let body = format!("{thread}/{number}");
                        let response = client.post(&url).body(body.clone()).send().await.unwrap();
                        assert_eq!(response.text().await.unwrap(), body);
                    }
                    let large = vec![b'x'; 3 << 20];
                    let reader = std::io::Cursor::new(large.clone());
                    let mut response = client.post(&url).reader(reader, None).send().await.unwrap();
                    let (mut back, mut chunks) = (0, response.chunks());
                    while let Some(piece) = chunks.next().await.unwrap() {
                        back += piece.len();
                    }
                    assert_eq!(back, large.len());
                    assert!(response.timings().body > Duration::ZERO);
                }));
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    block_on(async {
        let counts = client.counts().await;
        assert!(counts.connects <= 8 && counts.failures == 0, "{counts:?}");
        assert_eq!((counts.requests, counts.in_flight, counts.waiting), (204, 0, 0));
    });
    server.stop();
}

/// A reader at its end, which says when it is asked, and keeps whoever asks until it may go on.
struct Blocks {
    asked: std::sync::mpsc::Sender<()>,
    go: std::sync::mpsc::Receiver<()>,
}

impl tokio::io::AsyncRead for Blocks {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        self.asked.send(()).unwrap();
        self.go.recv().unwrap();
        Poll::Ready(Ok(()))
    }
}

/// A reader with a defect.
struct Panics;

impl tokio::io::AsyncRead for Panics {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        panic!("a defect of the caller's");
    }
}

/// It was told as "the client has ended", which it had not.
#[test]
fn a_panic_of_a_reader_costs_its_own_request_alone() {
    let server = Running::start(echo);
    let client = builder().connections(1).build().unwrap();
    block_on(async {
        let error = client.post(server.url("/")).reader(Panics, None).send().await.unwrap_err();
        assert_eq!((error.name(), error.cause().to_string().contains("panic")), ("ended", true), "{}", told(&error));
        let response = client.post(server.url("/")).body("as before").send().await.unwrap();
        assert_eq!(response.text().await.unwrap(), "as before");
        let counts = client.counts().await;
        assert_eq!(
            (counts.requests, counts.in_flight, counts.open),
            (2, 0, counts.idle),
            "the same thread: {counts:?}"
        );
    });
    server.stop();
}

#[test]
fn a_request_that_waits_for_the_clients_thread_is_under_way() {
    let server = Running::start(echo);
    let client = builder().build().unwrap();
    let ((asked, is_asked), (release, go)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    block_on(async {
        let first = tokio::task::spawn_local(client.post(server.url("/")).reader(Blocks { asked, go }, None).send());
        tokio::task::yield_now().await;
        is_asked.recv().unwrap();
        // The thread is held. The second request waits for it; so does a third, whose time is over before the thread
        // gets to it.
        let second = tokio::task::spawn_local(client.get(server.url("/")).send());
        let third = tokio::task::spawn_local(client.get(server.url("/")).timeout(SHORT / 2).send());
        tokio::task::yield_now().await;
        std::thread::sleep(SHORT);
        release.send(()).unwrap();
        let timings = second.await.unwrap().unwrap().timings();
        assert!(timings.total >= SHORT, "{timings:?}");
        if let Ok(response) = third.await.unwrap() {
            // The answer may be there at the first look: what has come is not late.
            assert!(response.timings().total >= SHORT, "{response:?}");
        }
        assert!(first.await.unwrap().is_ok());
    });
    server.stop();
}

#[test]
fn who_drops_a_request_of_the_client_for_all_threads_leaves_nothing_behind() {
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let server = Running::start(async move |exchange: &mut Exchange<'_>| {
        if exchange.head.target == "/body" {
            exchange.reply.begin(200, [], None)?;
            exchange.reply.write(b"begun").await?;
        }
        if exchange.head.target != "/" {
            let _ = held.acquire().await;
        }
        exchange.reply.send(200, [], b"hello").await
    });
    block_on(async {
        let client = builder().connections(1).build().unwrap();
        for target in ["/head", "/body"] {
            let request = tokio::task::spawn_local(client.get(server.url(target)).send());
            let waiting = tokio::task::spawn_local(client.get(server.url("/")).send());
            if target == "/body" {
                let response = request.await.unwrap().unwrap();
                assert_eq!(client.counts().await.in_flight, 2);
                drop(response);
            } else {
                while client.counts().await.waiting == 0 {}
                request.abort();
            }
            // The one behind it gets its place.
            assert_eq!(waiting.await.unwrap().unwrap().text().await.unwrap(), "hello");
        }
        let counts = client.counts().await;
        assert_eq!((counts.in_flight, counts.waiting, counts.open), (0, 0, counts.idle), "{counts:?}");
        let error = client.get("nowhere").send().await.unwrap_err();
        assert_eq!(error.phase(), Phase::Request);
    });
    gate.add_permits(10);
    server.stop();
}

#[test]
fn a_body_that_has_failed_never_looks_as_if_it_had_ended() {
    let peer = Peer::answering("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello", true);
    let client = builder().build().unwrap();
    block_on(async {
        let mut response = client.get(peer.url("/")).send().await.unwrap();
        let mut chunks = response.chunks();
        while let Ok(piece) = chunks.next().await {
            assert!(piece.is_some());
        }
        assert!(chunks.next().await.is_err(), "asked again, as a loop does that ignores errors");
    });
}

#[test]
fn tls_checks_the_name_or_the_address_of_the_server() {
    let identity = Identity::new();
    let hello = async |exchange: &mut Exchange<'_>| exchange.reply.send(200, [], b"hello").await;
    let server = Running::start_at("127.0.0.1:0", Some(identity.server()), hello);
    let oroshi_net::Peer::Tcp(address) = server.address.clone() else { panic!("not TCP") };
    let resolver = |_: &str| Ok(Addresses { addresses: vec![[127, 0, 0, 1].into()], ttl: None });
    block_on(async {
        let client = builder().tls(identity.trusted()).resolver(resolver).build_local().unwrap();
        for host in ["localhost", "127.0.0.1"] {
            let response = client.get(format!("https://{host}:{}/", address.port())).send().await;
            assert_eq!(response.map_err(|error| told(&error)).unwrap().text().await.unwrap(), "hello", "{host}");
        }
        let url = format!("https://other.example:{}/", address.port());
        let error = client.get(&url).send().await.unwrap_err();
        assert_eq!((error.phase(), error.name(), error.retry_is_safe()), (Phase::Tls, "tls", true), "{}", told(&error));
        // Unless another name is to be asked for and checked.
        let named = oroshi_net::ClientTlsOptions { server_name: Some("localhost".to_owned()), ..identity.trusted() };
        let client = builder().tls(named).resolver(resolver).build_local().unwrap();
        assert_eq!(client.get(&url).send().await.unwrap().text().await.unwrap(), "hello");
    });
    server.stop();
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    assert!(Client::builder().connections(0).build_local().is_err());
    assert!(Client::builder().connections_per_host(0).build().is_err());
    let error = Client::builder().header("Content-Length", "1").build_local().unwrap_err().to_string();
    assert!(error.contains("`Content-Length`"), "{error}");
    assert!(Client::builder().header("A", "b\nc").build_local().is_err());
    let error = Client::builder().header("Host", "a").build_local().unwrap_err().to_string();
    assert!(error.contains("another for each URL"), "a second Host would be refused by any server: {error}");
}

#[test]
fn a_response_says_which_address_answered() {
    let hello = async |exchange: &mut Exchange<'_>| exchange.reply.send(200, [], b"hello").await;
    let server = Running::start(hello);
    let name = format!("unix:@oroshi-client-remote-{}", std::process::id());
    let unix = Running::start_at(&name, None, hello);
    block_on(async {
        let client = builder().build_local().unwrap();
        let address = server.url("").strip_prefix("http://").unwrap().parse().unwrap();
        // The second one finds the connection of the first.
        for url in [server.url("/"), server.url("/").replace("127.0.0.1", "localhost")].iter().cycle().take(4) {
            let response = client.get(url).send().await.unwrap();
            assert_eq!(response.remote_address(), Some(address), "{url}");
            response.bytes().await.unwrap();
        }
        assert_eq!(client.get(unix.url("/")).send().await.unwrap().remote_address(), None);
    });
    server.stop();
    unix.stop();
}
