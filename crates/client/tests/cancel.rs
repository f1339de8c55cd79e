//! Dropping a request at every point at which it waits: nothing of it is left, and the next one works.
//! A binary of its own, as `allocation_counter` brings an allocator for all of it.

mod support;

use std::future::poll_fn;
use std::io::Write;
use std::pin::pin;
use std::task::Poll;

use oroshi_client::{Addresses, Client, Error, local};
use oroshi_server::Exchange;
use support::{Full, Http2Peer, Identity, Peer, Running, block_on, builder, http2, keeping, told};

/// The future's output, or `None` if it is not done after `most` waits: it is then dropped.
async fn within<F: Future>(most: usize, future: F) -> Option<F::Output> {
    let (mut future, mut waits) = (pin!(future), 0);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if waits == most => Poll::Ready(None),
        Poll::Pending => {
            waits += 1;
            Poll::Pending
        }
    })
    .await
}

/// Drops the request at its first wait, at its second, and so on until it is done before. Returns at how many it was
/// dropped.
async fn at_every_wait<F>(client: &local::Client, request: impl Fn() -> F) -> usize
where
    F: Future<Output = Result<Vec<u8>, Error>>,
{
    for most in 0.. {
        let done = within(most, request()).await;
        let counts = client.counts();
        assert_eq!((counts.in_flight, counts.waiting, counts.open), (0, 0, counts.idle), "at wait {most}: {counts:?}");
        if let Some(result) = done {
            result.map_err(|error| told(&error)).unwrap();
            return most;
        }
        // And the next one works.
        request().await.map_err(|error| told(&error)).unwrap();
    }
    unreachable!("no request waits for ever");
}

async fn whole(request: oroshi_client::RequestBuilder<local::Client>) -> Result<Vec<u8>, Error> {
    request.send().await?.bytes().await
}

#[test]
fn connecting_waiting_and_reading() {
    let peer = in_pieces();
    block_on(async {
        let client = builder().build_local().unwrap();
        let waits = at_every_wait(&client, || whole(client.get(peer.url("/")))).await;
        assert!(waits >= 1, "{waits}");
        // Each time on a connection of its own.
        let client = builder().keep_alive(false).build_local().unwrap();
        at_every_wait(&client, || whole(client.get(peer.url("/")))).await;
    });
}

#[test]
fn a_connect_that_takes_for_ever() {
    for full in [Full::tcp(), Full::unix()] {
        block_on(async {
            let client = builder().connections(1).build_local().unwrap();
            let mut connecting = Box::pin(whole(client.get(&full.url)));
            // A unix socket is asked again and again.
            for _ in 0..3 {
                assert!(within(0, connecting.as_mut()).await.is_none());
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
            let peer = in_pieces();
            let mut next = pin!(whole(client.get(peer.url("/"))));
            assert!(within(0, next.as_mut()).await.is_none());
            let counts = client.counts();
            assert_eq!((counts.open, counts.connects, counts.waiting), (1, 0, 1), "{counts:?}");
            drop(connecting);
            // The right to connect goes to the next.
            assert_eq!(next.await.map_err(|error| told(&error)).unwrap(), b"hello");
            let counts = client.counts();
            assert_eq!((counts.open, counts.in_flight, counts.waiting), (1, 0, 0), "{counts:?}");
        });
        // And from another thread.
        block_on(async {
            let client = builder().build().unwrap();
            let connecting = tokio::task::spawn_local(client.get(&full.url).send());
            while client.counts().await.open == 0 {}
            connecting.abort();
            while client.counts().await.open > 0 {}
            assert_eq!(client.counts().await.in_flight, 0);
        });
    }
}

#[test]
fn names_several_addresses_and_tls() {
    let identity = Identity::new();
    let hello = async |exchange: &mut Exchange<'_>| exchange.reply.send(200, [], b"hello").await;
    let server = Running::start_at("127.0.0.1:0", Some(identity.server()), keeping(), hello);
    let oroshi_net::Peer::Tcp(address) = server.address.clone() else { panic!("not TCP") };
    block_on(async {
        let client = builder()
            .tls(identity.trusted())
            .keep_alive(false)
            .dns_ttl(std::time::Duration::ZERO)
            // The first refuses: nobody listens there.
            .resolver(|_| Ok(Addresses { addresses: vec![[127, 9, 9, 9].into(), [127, 0, 0, 1].into()], ttl: None }))
            .build_local()
            .unwrap();
        let waits =
            at_every_wait(&client, || whole(client.get(format!("https://localhost:{}/", address.port())))).await;
        assert!(waits >= 1, "{waits}");
    });
    server.stop();
}

#[test]
fn waiting_in_line() {
    let hello = async |exchange: &mut Exchange<'_>| exchange.reply.send(200, [], b"hello").await;
    let server = Running::start(keeping(), hello);
    block_on(async {
        let client = builder().connections(1).build_local().unwrap();
        for most in 0..6 {
            // One that is under way has the only connection; one waits behind it and gives up; one behind that gets it.
            let url = server.url("/");
            let first = tokio::task::spawn_local(whole(client.get(&url)));
            tokio::task::yield_now().await;
            assert_eq!(client.counts().in_flight, 1);
            let third = {
                let mut second = pin!(whole(client.get(&url)));
                assert!(within(0, second.as_mut()).await.is_none());
                let third = tokio::task::spawn_local(whole(client.get(&url)));
                tokio::task::yield_now().await;
                assert!(within(most, second).await.is_none_or(|result| result.is_ok()));
                third
            };
            assert!(first.await.unwrap().is_ok() && third.await.unwrap().is_ok());
            let counts = client.counts();
            assert_eq!((counts.in_flight, counts.waiting, counts.open), (0, 0, counts.idle), "{counts:?}");
        }
        // The one with the connection is dropped: the one behind it gets its place.
        let url = server.url("/");
        let mut second = pin!(whole(client.get(&url)));
        {
            let mut first = pin!(whole(client.get(&url)));
            assert!(within(0, first.as_mut()).await.is_none());
            assert!(within(0, second.as_mut()).await.is_none());
            assert_eq!(client.counts().waiting, 1);
        }
        assert_eq!(second.await.unwrap(), b"hello");
    });
    server.stop();
}

#[test]
fn sending_a_body_following_a_redirect_and_unpacking() {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&vec![b'z'; 200_000]).unwrap();
    let packed: &'static [u8] = packed.finish().unwrap().leak();
    let server = Running::start(keeping(), async move |exchange: &mut Exchange<'_>| {
        let mut length = 0;
        while let Some(piece) = exchange.body.chunk().await? {
            length += piece.len();
        }
        if exchange.head.target == "/" {
            assert_eq!(length, 300_000);
            return exchange.reply.send(303, [("Location", &b"/packed"[..])], b"over there").await;
        }
        exchange.reply.begin(200, [("Content-Encoding", &b"gzip"[..])], None)?;
        for piece in packed.chunks(50) {
            exchange.reply.write(piece).await?;
            tokio::task::yield_now().await;
        }
        exchange.reply.finish()
    });
    block_on(async {
        let client = builder().build_local().unwrap();
        let send = || async {
            let reader = std::io::Cursor::new(vec![b'x'; 300_000]);
            let body = whole(client.post(server.url("/")).reader(reader, None)).await?;
            assert_eq!(body.len(), 200_000);
            Ok(body)
        };
        at_every_wait(&client, send).await;
    });
    server.stop();
}

#[test]
fn a_piece_that_is_not_waited_for_is_not_lost() {
    let (go, may_go) = std::sync::mpsc::channel();
    let may_go = std::sync::Mutex::new(may_go);
    let peer = Peer::start(move |mut peer, _| {
        peer.request();
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 26\r\n\r\n");
        for byte in b'a'..=b'z' {
            may_go.lock().unwrap().recv().unwrap();
            peer.send([byte]);
        }
    });
    block_on(async {
        let client = builder().build_local().unwrap();
        let mut response = client.get(peer.url("/")).send().await.unwrap();
        let mut text = Vec::new();
        while text.len() < 26 {
            // Nothing has been sent: this one is dropped while it waits. So are those that come too early.
            assert!(within(0, response.chunks().next()).await.is_none());
            go.send(()).unwrap();
            let before = text.len();
            while text.len() == before {
                match within(0, response.chunks().next()).await {
                    None => tokio::task::yield_now().await,
                    Some(piece) => text.extend_from_slice(piece.map_err(|error| told(&error)).unwrap().expect("more")),
                }
            }
        }
        assert_eq!(text, (b'a'..=b'z').collect::<Vec<_>>());
        assert!(response.chunks().next().await.unwrap().is_none());
    });
}

/// A server whose answer comes in seven pieces, so that there are waits to be dropped at.
fn in_pieces() -> Peer {
    Peer::start(|mut peer, _| {
        while peer.request().is_some() {
            for piece in
                ["HTTP/1.1 2", "00 OK\r\nTransfer-Encoding: chu", "nked\r\n\r\n5\r", "\nhel", "lo\r\n0", "\r\n\r\n"]
            {
                peer.send(piece);
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    })
}

#[test]
fn what_is_dropped_leaves_no_memory_behind() {
    let peer = in_pieces();
    let all = || {
        block_on(async {
            let client = builder().build_local().unwrap();
            at_every_wait(&client, || whole(client.get(peer.url("/")))).await;
            let reader = || std::io::Cursor::new(vec![b'x'; 100_000]);
            // The peer reads no body: these are dropped while they are being sent.
            for most in 0..4 {
                let request = client.post(peer.url("/")).reader(reader(), Some(100_000));
                drop(within(most, whole(request)).await);
            }
        });
    };
    all();
    // Over many runs: the thread's spare buffers are a few more after one run, and a few fewer after another.
    let left: Vec<i64> = (0..10).map(|_| allocation_counter::measure(all).bytes_current).collect();
    assert!(left.iter().sum::<i64>() < 10 * 4096, "{left:?}");
}

#[test]
fn the_client_for_all_threads_forgets_what_is_dropped() {
    let peer = in_pieces();
    let client: Client = builder().connections(2).build().unwrap();
    block_on(async {
        for most in 0..6 {
            let request = async { client.get(peer.url("/")).send().await?.text().await };
            if let Some(result) = within(most, request).await {
                assert_eq!(result.map_err(|error| told(&error)).unwrap(), "hello");
            }
            // The thread gets to it in its own time.
            loop {
                let counts = client.counts().await;
                if (counts.in_flight, counts.waiting, counts.open) == (0, 0, counts.idle) {
                    break;
                }
            }
            let next = client.get(peer.url("/")).send().await.unwrap();
            assert_eq!(next.text().await.unwrap(), "hello");
        }
    });
}

/// A server of HTTP/2 whose answer comes in pieces.
fn http2_in_pieces() -> Http2Peer {
    Http2Peer::start(|mut server, _| {
        while let Some(asked) = server.request() {
            std::thread::sleep(std::time::Duration::from_millis(1));
            // A client that has reset the stream, perhaps on its way to this peer, wants no more.
            let _ = server.codec.send_response(&mut server.out, asked.id, 103, [], false);
            server.flush();
            std::thread::sleep(std::time::Duration::from_millis(1));
            let head = server.codec.send_response(&mut server.out, asked.id, 200, [], false);
            server.flush();
            if head.is_ok() {
                std::thread::sleep(std::time::Duration::from_millis(1));
                let _ = server.data(asked.id, b"hel", false);
                std::thread::sleep(std::time::Duration::from_millis(1));
                let _ = server.data(asked.id, b"lo", true);
            }
        }
    })
}

#[test]
fn streams_of_http2_are_dropped_at_every_wait() {
    let peer = http2_in_pieces();
    block_on(async {
        let client = http2().build_local().unwrap();
        for most in 0.. {
            let request = || whole(client.get(peer.url("/")));
            let done = within(most, request()).await;
            assert_eq!((client.counts().in_flight, client.counts().waiting), (0, 0), "at wait {most}");
            assert_eq!(request().await.map_err(|error| told(&error)).unwrap(), b"hello");
            if done.is_some() {
                break;
            }
        }
        // One connection, unless the first was dropped while it was made.
        assert!(peer.accepted() <= 2, "{}", peer.accepted());
        while client.counts().idle == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(client.counts().open, 1);
    });
}

#[test]
fn what_is_dropped_over_http2_leaves_no_memory_behind() {
    let peer = http2_in_pieces();
    let all = || {
        block_on(async {
            let client = http2().build_local().unwrap();
            for most in 0..12 {
                drop(within(most, whole(client.get(peer.url("/")))).await);
                let reader = std::io::Cursor::new(vec![b'x'; 100_000]);
                drop(within(most, whole(client.post(peer.url("/")).reader(reader, Some(100_000)))).await);
            }
            assert_eq!(whole(client.get(peer.url("/"))).await.map_err(|error| told(&error)).unwrap(), b"hello");
        });
    };
    // The spare buffers of the thread grow for a few rounds, in sizes that depend on how bytes arrive. A leak grows for
    // ever.
    let mut grown = Vec::new();
    for _ in 0..20 {
        let counted = allocation_counter::measure(all);
        if counted.bytes_current <= 0 && counted.count_current <= 0 {
            return;
        }
        grown.push((counted.count_current, counted.bytes_current));
    }
    panic!("each of 20 rounds left allocations behind (count, bytes): {grown:?}");
}
