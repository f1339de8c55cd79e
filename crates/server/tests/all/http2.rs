//! Exchanges over HTTP/2: what handlers see, and what clients get.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use oroshi_http2::{Config, ErrorCode, Grants, Request};
use oroshi_server::{Error, ErrorKind, Exchange, Settings};
use oroshi_testkit::http2::{Client, Seen};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Running, describe, patient};

#[test]
fn one_address_speaks_both_versions() {
    let server = Running::start(patient(), async |exchange: &mut Exchange<'_>| {
        let text = format!("{} {}", exchange.head.version.number(), exchange.head.target);
        exchange.reply.send(200, [("Content-Type", &b"text/plain"[..])], text.as_bytes()).await
    });
    let mut new = Client::connect(server.tcp());
    let (one, two) = (new.get("/1"), new.get("/2"));
    let answer = new.answer(two);
    assert_eq!((answer.status, answer.text()), (200, "2.0 /2"));
    assert_eq!(answer.field("content-type"), Some("text/plain"));
    assert_eq!(answer.field("content-length"), Some("6"));
    assert_eq!(answer.field("date").map(str::len), Some(29));
    assert_eq!(new.answer(one).text(), "2.0 /1");
    let mut old = server.connect();
    assert_eq!(old.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").answer().text(), "1.1 /");
    // A request whose first letters are those of the preface.
    let mut patch = server.connect();
    patch.send("P");
    assert_eq!(patch.send("R / HTTP/1.1\r\nHost: a\r\n\r\n").answer().text(), "1.1 /");
    drop((new, old, patch));
    let counts = server.stop();
    assert_eq!((counts.accepted, counts.alive, counts.requests, counts.answers), (3, 0, 4, 4));
    assert_eq!(counts.errors.iter().sum::<u64>(), 0);
}

#[test]
fn a_preface_in_pieces_is_a_preface_and_one_that_ends_is_a_bad_request() {
    let server = Running::start(patient(), describe);
    let mut slow = server.connect();
    slow.send("PRI * HT");
    slow.send("TP/2.0\r\n\r\nSM");
    slow.send("\r\n\r\n");
    slow.send([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    // The server's first frame is SETTINGS.
    assert_eq!(slow.exactly(9)[3], 4);
    let mut other = server.connect();
    other.send("PRI * HTTP/2.0\r\n\r\nno\r\n\r\n");
    assert_eq!(other.answer().status, 505);
    let mut ended = server.connect();
    ended.send("PRI * ").half_close();
    assert_eq!(ended.answer().status, 400);
    drop((slow, other, ended));
    server.stop();
}

#[test]
fn bodies_go_both_ways_and_windows_hold_them() {
    let server = Running::start(patient(), async |exchange: &mut Exchange<'_>| {
        exchange.reply.begin(200, [], None)?;
        while let Some(piece) = exchange.body.chunk().await? {
            exchange.reply.write(piece).await?;
        }
        let trailers: Vec<(String, Vec<u8>)> =
            exchange.body.trailers().map(|(name, value)| (name.to_owned(), value.to_vec())).collect();
        exchange.reply.finish_with(trailers.iter().map(|(name, value)| (name.as_str(), value.as_slice())))
    });
    let mut client = Client::connect(server.tcp());
    // Ten times the windows of both sides.
    let body: Vec<u8> = (0..700_000_u32).map(|number| number as u8).collect();
    let (large, small) = (client.request("POST", "/", &[], false), client.request("POST", "/", &[], false));
    client.data(large, &body, false);
    client.data(small, b"small", true);
    assert_eq!(client.answer(small).text(), "small");
    client.trailers(large, &[("checksum", b"1")]);
    let (answer, trailers) = client.whole_answer(large);
    assert!(answer.body == body, "{} bytes", answer.body.len());
    assert_eq!(trailers, "checksum: 1\r\n");
    drop(client);
    assert_eq!(server.stop().answers, 2);
}

#[test]
fn answers_are_framed_by_method_and_status() {
    let server = Running::start(patient(), async |exchange: &mut Exchange<'_>| match exchange.head.target {
        "/204" => exchange.reply.send(204, [], b"").await,
        "/304" => {
            exchange.reply.begin(304, [("ETag", &b"\"1\""[..])], None)?;
            exchange.reply.finish()
        }
        "/inform" => {
            exchange.reply.inform(103, [("Link", &b"</a>"[..])])?;
            exchange.reply.send(200, [], b"later").await
        }
        "/length" => {
            exchange.reply.begin(200, [], Some(4))?;
            exchange.reply.write(b"four").await?;
            exchange.reply.finish_with([("x", &b"y"[..])])
        }
        "/relay" => {
            exchange.reply.relay(203, b"Fine", None, |out| {
                out.extend_from_slice(b"X-One: 1\r\nKeep-Alive: timeout=5\r\n");
                false
            })?;
            exchange.reply.finish()
        }
        "/managed" => exchange.reply.send(200, [("Connection", &b"close"[..])], b"").await,
        "/raw" => exchange.reply.send_raw(b"HTTP/1.1 200 OK\r\n\r\n").await,
        "/short" => {
            exchange.reply.begin(200, [], Some(4))?;
            exchange.reply.write(b"two").await
        }
        "/cut" => Err(Error::Cut),
        "/connection" => {
            exchange.reply.inform(100, [])?;
            Err(Error::Handler("fails".into()))
        }
        _ => exchange.reply.send(200, [], b"hello").await,
    });
    let mut client = Client::connect(server.tcp());
    let head = client.request("HEAD", "/", &[], true);
    assert!(matches!(client.next(head), Seen::Head(_, 200, lines, true) if lines.contains("content-length: 5\r\n")));
    for (target, status) in [("/204", 204), ("/304", 304)] {
        let id = client.get(target);
        let Seen::Head(_, got, lines, true) = client.next(id) else { panic!("{target} has a body") };
        assert!(got == status && !lines.contains("content-length"), "{lines}");
    }
    let id = client.get("/inform");
    assert!(matches!(client.next(id), Seen::Head(_, 103, lines, false) if lines.contains("link: </a>")));
    assert_eq!(client.answer(id).text(), "later");
    let id = client.get("/length");
    let (answer, trailers) = client.whole_answer(id);
    assert_eq!((answer.text(), answer.field("content-length"), &*trailers), ("four", Some("4"), "x: y\r\n"));
    let id = client.get("/relay");
    let answer = client.answer(id);
    assert_eq!((answer.status, answer.field("x-one"), answer.field("keep-alive")), (203, Some("1"), None));
    assert!(answer.field("date").is_some());
    for target in ["/managed", "/raw", "/connection"] {
        let id = client.get(target);
        assert_eq!(client.answer(id).status, 500, "{target}");
    }
    for target in ["/short", "/cut"] {
        let id = client.get(target);
        let reset = client.find(|seen| matches!(seen, Seen::Reset(reset, _) if *reset == id));
        assert_eq!(reset, Some(Seen::Reset(id, ErrorCode::INTERNAL_ERROR)), "{target}");
    }
    // Failures of exchanges leave the connection to others.
    let id = client.get("/");
    assert_eq!(client.answer(id).text(), "hello");
    drop(client);
    assert_eq!(server.stop().error(ErrorKind::Handler), 5);
}

#[test]
fn a_client_that_waits_for_100_gets_it_with_the_first_read() {
    let server = Running::start(patient(), describe);
    let mut client = Client::connect(server.tcp());
    let id = client.request("POST", "/", &[("expect", b"100-continue")], false);
    assert!(matches!(client.next(id), Seen::Head(_, 100, ..)));
    client.data(id, b"body", true);
    assert_eq!(client.answer(id).text(), "POST / 4");
    drop(client);
    server.stop();
}

#[test]
fn an_answer_before_the_end_of_the_request_ends_the_stream_without_an_error() {
    let server =
        Running::start(patient(), async |exchange: &mut Exchange<'_>| exchange.reply.send(403, [], b"no").await);
    let mut client = Client::connect(server.tcp());
    let id = client.request("POST", "/", &[], false);
    assert_eq!(client.answer(id).status, 403);
    assert_eq!(client.next(id), Seen::Reset(id, ErrorCode::NO_ERROR));
    // A short body may still come: there are clients that take this reset for a failure.
    let id = client.request("POST", "/", &[("content-length", b"4")], false);
    assert_eq!(client.answer(id).status, 403);
    client.data(id, b"body", true);
    let other = client.get("/");
    assert_eq!(client.answer(other).status, 403);
    // One that waits for 100 sends none.
    let id = client.request("POST", "/", &[("content-length", b"4"), ("expect", b"100-continue")], false);
    assert_eq!(client.answer(id).status, 403);
    assert_eq!(client.next(id), Seen::Reset(id, ErrorCode::NO_ERROR));
    let stopping = std::thread::spawn(move || server.stop());
    assert_eq!(client.find(|seen| matches!(seen, Seen::Reset(..))), None);
    drop(client);
    stopping.join().unwrap();
}

#[test]
fn a_slow_stream_does_not_hold_the_others() {
    let server = Running::start(patient(), async |exchange: &mut Exchange<'_>| {
        exchange.reply.begin(200, [], None)?;
        for _ in 0..100 {
            exchange.reply.write(&[b'x'; 10_000]).await?;
        }
        exchange.reply.finish()
    });
    let window = 1 << 20;
    let config = Config { connection_window: 1 << 24, grants: Grants::Manual, ..Config::default() };
    let mut client = Client::with(server.tcp(), Config { stream_window: 100_000, ..config });
    let (slow, fast) = (client.get("/slow"), client.get("/fast"));
    client.grant(fast, window);
    let mut got = 0;
    // Nobody reads `slow`, whose window stays shut.
    while let Seen::Head(..) | Seen::Data(..) = match client.next(fast) {
        Seen::Data(_, data, end) => {
            got += data.len();
            client.grant(fast, data.len());
            if end { Seen::Pong } else { Seen::Data(fast, data, end) }
        }
        other => other,
    } {}
    assert_eq!(got, 1_000_000);
    client.reset(slow);
    let id = client.get("/again");
    assert!(matches!(client.next(id), Seen::Head(_, 200, ..)));
    drop(client);
    server.stop();
}

#[test]
fn a_handlers_own_wakers_write_and_read() {
    let server = Running::start(patient(), async |exchange: &mut Exchange<'_>| {
        exchange.reply.begin(200, [], None)?;
        let (body, reply) = (&mut exchange.body, &mut exchange.reply);
        while let Some(piece) = Box::pin(body.chunk()).await? {
            let piece = piece.to_vec();
            for _ in 0..100 {
                tokio::task::LocalSet::new().run_until(reply.write(&piece)).await?;
            }
        }
        reply.finish()
    });
    let mut client = Client::connect(server.tcp());
    let id = client.request("POST", "/", &[], false);
    client.data(id, &[7; 10_000], true);
    assert_eq!(client.answer(id).body.len(), 1_000_000);
    drop(client);
    server.stop();
}

/// Counts handlers that were dropped before their end.
struct Dropped(Arc<AtomicUsize>, mpsc::Sender<()>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        let _ = self.1.send(());
    }
}

#[test]
fn the_handler_of_a_reset_stream_is_dropped_and_so_are_all_of_a_lost_connection() {
    let (dropped, (told, tell)) = (Arc::new(AtomicUsize::new(0)), mpsc::channel());
    let count = Arc::clone(&dropped);
    let server = Running::start(patient(), async move |exchange: &mut Exchange<'_>| {
        let _guard = Dropped(Arc::clone(&count), told.clone());
        exchange.reply.inform(103, [])?;
        std::future::pending().await
    });
    let mut client = Client::connect(server.tcp());
    let ids: Vec<u32> = (0..3).map(|_| client.get("/")).collect();
    ids.iter().for_each(|&id| drop(client.next(id)));
    client.reset(ids[1]);
    tell.recv().unwrap();
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    drop(client);
    tell.recv().unwrap();
    tell.recv().unwrap();
    let counts = server.stop();
    assert_eq!((counts.requests, counts.answers, counts.error(ErrorKind::Disconnected)), (3, 0, 3));
}

#[test]
fn a_shutdown_finishes_the_requests_in_progress() {
    let (begun, has_begun) = mpsc::channel();
    let server = Running::start(patient(), async move |exchange: &mut Exchange<'_>| {
        let closing = exchange.closing();
        begun.send(()).unwrap();
        closing.begun().await;
        exchange.reply.send(200, [], b"at the end").await
    });
    let mut client = Client::connect(server.tcp());
    let mut idle = Client::connect(server.tcp());
    // Its settings have come, so the server has its connection.
    assert!(idle.find(|seen| *seen == Seen::Opened).is_some());
    let id = client.get("/");
    has_begun.recv().unwrap();
    server.shutdown.request();
    assert_eq!(client.answer(id).text(), "at the end");
    assert_eq!((client.closed(), idle.closed()), (Some(ErrorCode::NO_ERROR), Some(ErrorCode::NO_ERROR)));
    assert_eq!(server.stop().answers, 1);
}

#[test]
fn a_handler_that_closes_lets_the_other_exchanges_end() {
    let server = Running::start(patient(), async |exchange: &mut Exchange<'_>| {
        if exchange.head.target == "/close" {
            exchange.reply.close();
        } else {
            while exchange.body.chunk().await?.is_some() {}
        }
        exchange.reply.send(200, [], b"ok").await
    });
    let mut client = Client::connect(server.tcp());
    let other = client.request("POST", "/", &[], false);
    let closing = client.get("/close");
    assert_eq!(client.answer(closing).text(), "ok");
    assert!(client.find(|seen| matches!(seen, Seen::GoAway(..))).is_some());
    client.data(other, b"", true);
    assert_eq!(client.answer(other).text(), "ok");
    client.closed();
    server.stop();
}

#[test]
fn a_websocket_and_a_feed_are_sockets_for_their_owner() {
    let settings = Settings { extended_connect: true, ..patient() };
    let server = Running::start(settings, async |exchange: &mut Exchange<'_>| {
        if exchange.head.upgrade != Some(b"websocket") {
            let (mut feed, ahead, chunked) = exchange.detach(200, &[("Content-Type", b"text/event-stream")]).await?;
            assert!(ahead.is_empty() && !chunked);
            tokio::task::spawn_local(async move {
                feed.write_all(&[b'f'; 200_000]).await.unwrap();
            });
            return Ok(());
        }
        assert_eq!(exchange.head.method, "GET");
        assert!(exchange.head.headers.get("sec-websocket-key").is_some());
        if exchange.head.target == "/refuse" {
            return exchange.reply.send(403, [], b"").await;
        }
        let fields: [(&str, &[u8]); 3] =
            [("Upgrade", b"websocket"), ("Sec-WebSocket-Accept", b"x"), ("Sec-WebSocket-Protocol", b"p")];
        let (mut socket, _) = exchange.upgrade(101, &fields).await?;
        let mut got = [0; 1000];
        loop {
            let count = socket.read(&mut got).await.map_err(Error::Io)?;
            if count == 0 {
                socket.shutdown().await.map_err(Error::Io)?;
                return Ok(());
            }
            socket.write_all(&got[..count]).await.map_err(Error::Io)?;
        }
    });
    let mut client = Client::connect(server.tcp());
    assert!(client.find(|seen| *seen == Seen::Opened).is_some());
    let connect = |target, protocol| Request {
        method: "CONNECT",
        scheme: "http",
        authority: "a.test",
        path: target,
        protocol: Some(protocol),
    };
    let socket = client.send(&connect("/ws", "websocket"), &[("sec-websocket-version", b"13")], false);
    let Seen::Head(_, 200, head, false) = client.next(socket) else { panic!("the tunnel is not open") };
    assert!(head.contains("sec-websocket-protocol: p") && !head.contains("accept") && !head.contains("upgrade"));
    let feed = client.get("/feed");
    client.data(socket, b"through the tunnel", false);
    assert_eq!(client.next(socket), Seen::Data(socket, b"through the tunnel".to_vec(), false));
    let answer = client.answer(feed);
    assert_eq!((answer.body.len(), answer.field("content-length")), (200_000, None));
    client.data(socket, b"end", true);
    let mut rest = Vec::new();
    while let Seen::Data(_, data, end) = client.next(socket) {
        rest.extend_from_slice(&data);
        if end {
            break;
        }
    }
    assert_eq!(rest, b"end");
    let refused = client.send(&connect("/refuse", "websocket"), &[], false);
    assert_eq!(client.answer(refused).status, 403);
    let unknown = client.send(&connect("/", "connect-udp"), &[], false);
    assert_eq!(client.answer(unknown).status, 501);
    drop(client);
    server.stop();
}
