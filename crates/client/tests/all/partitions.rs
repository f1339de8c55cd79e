//! Partitions of the pool, and what the client tells of its bytes and times to those who count them.

use oroshi_net::monotonic_ns;
use oroshi_server::Exchange;

use crate::support::{Identity, Peer, Running, block_on, builder, keeping, told};

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

#[test]
fn a_partition_has_its_own_connections() {
    let peer = Peer::answering(HELLO, false);
    block_on(async {
        let client = builder().connections_per_host(1).build_local().unwrap();
        let get = async |partition| {
            let response = client.get(peer.url("/")).partition(partition).send().await.unwrap();
            assert_eq!(response.text().await.unwrap(), "hello");
        };
        for partition in [0, 1, 2, 1, 0, 2] {
            get(partition).await;
        }
        client.get(peer.url("/")).send().await.unwrap();
        // The cap per origin is one, and holds for each partition.
        assert_eq!((peer.accepted(), client.counts().idle, client.counts().open), (3, 3, 3));
        client.close_partition(1);
        assert_eq!((client.counts().idle, client.counts().open), (2, 2));
        get(2).await;
        assert_eq!(peer.accepted(), 3);
        get(1).await;
        assert_eq!(peer.accepted(), 4);
        client.close_partition(0);
        client.close_partition(2);
        assert_eq!((client.counts().idle, client.counts().open), (1, 1));
    });
}

#[test]
fn a_redirect_and_a_retry_stay_in_the_partition() {
    let peer = Peer::start(|mut peer, number| {
        while let Some(head) = peer.request() {
            match head.split(' ').nth(1) {
                Some("/away") => peer.send("HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"),
                Some("/break") if number < 2 => return peer.reset(),
                _ => peer.send(HELLO),
            };
        }
    });
    block_on(async {
        let client = builder().build_local().unwrap();
        client.get(peer.url("/")).send().await.unwrap();
        let response = client.get(peer.url("/away")).partition(5).send().await.unwrap();
        assert_eq!((response.redirects(), peer.accepted(), client.counts().idle), (1, 2, 2));
        client.get(peer.url("/break")).partition(5).send().await.unwrap();
        assert_eq!((client.counts().retries, peer.accepted()), (1, 3));
        client.close_partition(5);
        assert_eq!((client.counts().idle, client.counts().open), (1, 1));
    });
}

/// The same through the client with a thread of its own.
#[test]
fn a_client_with_a_thread_has_partitions_too() {
    let peer = Peer::answering(HELLO, false);
    block_on(async {
        let client = builder().build().unwrap();
        for partition in [1, 2, 2] {
            client.get(peer.url("/")).partition(partition).send().await.unwrap();
        }
        client.close_partition(2);
        assert_eq!((peer.accepted(), client.counts().await.idle), (2, 1));
    });
}

#[test]
fn the_client_counts_the_bytes_of_all_connections() {
    let (sender, heads) = std::sync::mpsc::channel();
    let peer = Peer::start(move |mut peer, _| {
        while let Some(head) = peer.request() {
            let length = if head.starts_with("POST") { peer.body(100_000).len() } else { 0 };
            sender.send(head.len() + length).unwrap();
            peer.send(HELLO);
        }
    });
    block_on(async {
        let client = builder().build_local().unwrap();
        let mut written = 0;
        for number in 1..=3 {
            // The first is sent while connecting.
            client.get(peer.url("/")).send().await.unwrap().text().await.unwrap();
            written += heads.recv().unwrap();
            client.post(peer.url("/")).body(vec![b'x'; 100_000]).send().await.unwrap().text().await.unwrap();
            written += heads.recv().unwrap();
            let counts = client.counts();
            assert_eq!(counts.bytes_written, written as u64);
            assert_eq!(counts.bytes_read, 2 * number * HELLO.len() as u64);
        }
        assert_eq!(client.counts().connects, 1);
    });
}

#[test]
fn timings_tell_when_the_first_byte_went_out() {
    let peer = Peer::answering(HELLO, false);
    block_on(async {
        let client = builder().build_local().unwrap();
        let before = monotonic_ns();
        for is_new in [true, false] {
            let response = client.get(peer.url("/")).send().await.unwrap();
            let (timings, now) = (response.timings(), monotonic_ns());
            assert_eq!(timings.connect.is_some(), is_new);
            assert!(before <= timings.called && timings.called < now);
            let sent = timings.sent.unwrap();
            assert!(sent >= timings.queue + timings.connect.unwrap_or_default(), "{timings:?}");
            assert!(sent + timings.first_byte <= timings.total, "{timings:?}");
        }
        let refused = client.get("http://127.0.0.1:1/").send().await.unwrap_err();
        assert_eq!(refused.timings().sent, None);
        assert!(refused.timings().called > before);
    });
}

/// A body that fills the socket's buffers: its first byte goes out long before its last.
#[test]
fn the_first_byte_is_not_the_last() {
    let (go, may_go) = std::sync::mpsc::channel::<()>();
    let may_go = std::sync::Mutex::new(may_go);
    const LENGTH: usize = 64 << 20;
    let peer = Peer::start(move |mut peer, _| {
        peer.request();
        may_go.lock().unwrap().recv().unwrap();
        peer.body(LENGTH);
        peer.send(HELLO);
    });
    block_on(async {
        let client = builder().build_local().unwrap();
        let (target, other) = (peer.url("/"), client.clone());
        let sending = tokio::task::spawn_local(async move {
            other.post(target).body(vec![b'x'; LENGTH]).send().await.map(|response| response.timings())
        });
        while client.counts().bytes_written == 0 {
            tokio::task::yield_now().await;
        }
        let wrote = monotonic_ns();
        go.send(()).unwrap();
        let timings = sending.await.unwrap().unwrap();
        let sent = timings.called + u64::try_from(timings.sent.unwrap().as_nanos()).unwrap();
        assert!(sent <= wrote, "{timings:?}");
        assert!(timings.queue + timings.connect.unwrap() + timings.write > timings.sent.unwrap(), "{timings:?}");
    });
}

#[test]
fn bytes_are_counted_before_tls_and_after() {
    let identity = Identity::new();
    let hello = async |exchange: &mut Exchange<'_>| exchange.reply.send(200, [], b"hello").await;
    let count = |tls: bool| {
        let server = Running::start_at("127.0.0.1:0", tls.then(|| identity.server()), keeping(), hello);
        let url = server.url("/").replace("http:", if tls { "https:" } else { "http:" });
        let (counts, timings) = block_on(async {
            let client = builder().tls(identity.trusted()).build_local().unwrap();
            let mut timings = Vec::new();
            for body in ["", "x"] {
                // A Host of the same length, whatever the port.
                let response = client.post(&url).header("Host", "a").body(body).send().await;
                let response = response.map_err(|error| told(&error)).unwrap();
                timings.push(response.timings());
                assert_eq!(response.text().await.unwrap(), "hello");
            }
            (client.counts(), timings)
        });
        let handshake = timings[0].connect.unwrap() + timings[0].tls.unwrap_or_default();
        assert!(timings[0].sent.unwrap() >= handshake && timings[1].tls.is_none());
        server.stop();
        (counts.bytes_read, counts.bytes_written)
    };
    assert_eq!(count(true), count(false));
}
