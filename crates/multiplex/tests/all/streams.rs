//! Requests and responses on one connection.

use std::future::poll_fn;
use std::io::{Read, Write};

use oroshi_multiplex::{Config, ErrorCode};
use oroshi_testkit::http2::frame;
use oroshi_testkit::http2::server::{Asked, Server};

use crate::support::{body, get, once, place, request, status, whole, with, write};

/// Answers each request with its target, until the client closes. Returns the number of requests.
fn echo(mut server: Server) -> usize {
    let mut count = 0;
    while let Some(asked) = server.request() {
        count += 1;
        server.answer(asked.id, 200, asked.target.as_bytes());
    }
    count
}

#[test]
fn requests_share_a_connection_and_its_writes() {
    let ((), requests) = with(Config::default(), echo, |connection, seen| async move {
        assert_eq!((connection.room(), connection.limit()), (1, None), "the settings have not come");
        let mut first = get(&connection, &seen, "/first").await;
        assert!(connection.reserve().is_none());
        assert_eq!(whole(&mut first).await.unwrap(), (200, b"/first".to_vec()));
        seen.until(|| connection.limit().is_some()).await;
        assert_eq!(connection.limit(), Some(128));
        let mut streams = Vec::new();
        for number in 0..100 {
            streams.push(get(&connection, &seen, &format!("/{number}")).await);
        }
        assert_eq!((connection.under_way(), connection.room()), (100, 28));
        assert!(streams.iter().all(|stream| stream.sent().first == 0), "all leave in one write, which comes later");
        for (number, stream) in streams.iter_mut().enumerate().rev() {
            assert_eq!(whole(stream).await.unwrap(), (200, format!("/{number}").into_bytes()));
            let sent = stream.sent();
            assert!(sent.first > 0 && sent.first == sent.last && stream.is_answered() && stream.has_ended());
        }
        assert_eq!(connection.under_way(), 0);
        assert!(connection.idle_since().is_some());
        let (received, sent) = seen.bytes();
        assert!(received > 1000 && sent > 1000, "{received} {sent}");
    });
    assert_eq!(requests, 101);
}

#[test]
fn the_peers_limit_is_kept_even_if_it_shrinks() {
    // Answers all requests by hand: the codec would not know of the second SETTINGS.
    let peer = |mut server: Server| {
        let first = server.request().unwrap();
        server.answer(first.id, 200, b"");
        let mut socket = server.socket().try_clone().unwrap();
        // SETTINGS with MAX_CONCURRENT_STREAMS = 1.
        socket.write_all(&frame(4, 0, 0, &[0, 3, 0, 0, 0, 1])).unwrap();
        let mut head = [0; 9];
        while socket.read_exact(&mut head).is_ok() {
            let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            socket.read_exact(&mut payload).unwrap();
            let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            // HEADERS: status 200, and the end.
            if head[3] == 1 && socket.write_all(&frame(1, 5, id, &[0x88])).is_err() {
                break;
            }
        }
    };
    with(Config::default(), peer, |connection, seen| async move {
        let mut first = get(&connection, &seen, "/").await;
        assert_eq!(whole(&mut first).await.unwrap().0, 200);
        seen.until(|| connection.limit() == Some(1)).await;
        let second = get(&connection, &seen, "/").await;
        assert!(connection.reserve().is_none() && connection.is_open());
        drop(second);
        // A stream that was dropped has made room.
        let mut third = get(&connection, &seen, "/").await;
        assert_eq!(whole(&mut third).await.unwrap().0, 200);
        let reserved = place(&connection, &seen).await;
        assert!(connection.reserve().is_none());
        drop(reserved);
        assert_eq!(connection.room(), 1);
    });
}

#[test]
fn the_own_limit_is_kept_too() {
    let config = Config { streams: 2, ..Config::default() };
    with(config, echo, |connection, seen| async move {
        assert_eq!(whole(&mut get(&connection, &seen, "/").await).await.unwrap().0, 200);
        seen.until(|| connection.limit().is_some()).await;
        assert_eq!((connection.limit(), connection.room()), (Some(2), 2));
    });
}

#[test]
fn heads_come_in_order_with_interim_ones_if_asked_for() {
    for interim in [true, false] {
        let peer = |mut server: Server| {
            let asked = server.request().unwrap();
            server.head(asked.id, 103, &[("link", b"</a>")], false);
            server.head(asked.id, 103, &[("link", b"</b>")], false);
            server.head(asked.id, 200, &[("x-a", b"1"), ("x-a", b"2")], false);
            server.data(asked.id, b"hello", false);
            server.trailers(asked.id, &[("x-end", b"3")]);
            server.rest();
        };
        with(Config { interim, ..Config::default() }, peer, |connection, seen| async move {
            let mut stream = get(&connection, &seen, "/").await;
            if interim {
                for link in ["</a>", "</b>"] {
                    let head = poll_fn(|cx| {
                        stream.poll_head(cx, |head| (head.status, head.headers.get("link").map(<[u8]>::to_vec)))
                    });
                    assert_eq!(head.await.unwrap(), (103, Some(link.as_bytes().to_vec())));
                }
            }
            let head = poll_fn(|cx| stream.poll_head(cx, |head| (head.status, head.headers.iter().count())));
            assert_eq!(head.await.unwrap(), (200, 2));
            assert_eq!(body(&mut stream).await.unwrap(), b"hello");
            assert_eq!(stream.trailers(|lines| lines.get("x-end").map(<[u8]>::to_vec)), Some(Some(b"3".to_vec())));
        });
    }
}

#[test]
fn responses_without_a_body() {
    let peer = |mut server: Server| {
        let head = server.request().unwrap();
        assert_eq!(head.method, "HEAD");
        server.head(head.id, 200, &[("content-length", b"100")], true);
        let none = server.request().unwrap();
        server.head(none.id, 204, &[], true);
        server.rest();
    };
    with(Config::default(), peer, |connection, seen| async move {
        let mut head = place(&connection, &seen).await.begin(&request("HEAD", "/"), [], true).unwrap();
        let length = poll_fn(|cx| head.poll_head(cx, |head| head.content_length)).await.unwrap();
        assert_eq!((length, head.has_ended(), body(&mut head).await.unwrap()), (Some(100), true, Vec::new()));
        let mut none = get(&connection, &seen, "/").await;
        assert_eq!(whole(&mut none).await.unwrap(), (204, Vec::new()));
    });
}

#[test]
fn trailers_of_a_request_follow_its_body() {
    let peer = |mut server: Server| {
        let asked = server.request().unwrap();
        assert!(!asked.end && asked.lines.contains("te: trailers\r\n"), "{}", asked.lines);
        assert!(!asked.lines.contains("connection"), "{}", asked.lines);
        let mut body = Vec::new();
        loop {
            match server.next(asked.id).unwrap() {
                Asked::Data(_, data, false) => body.extend_from_slice(&data),
                Asked::Trailers(_, lines) => {
                    assert_eq!(lines, "x-sum: 5\r\n");
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        server.answer(asked.id, 200, &body);
        server.rest();
    };
    with(Config::default(), peer, |connection, seen| async move {
        let fields = [("TE", &b"trailers"[..]), ("Connection", b"keep-alive")];
        let mut stream = place(&connection, &seen).await.begin(&request("POST", "/"), fields, false).unwrap();
        write(&mut stream, b"hello", false).await.unwrap();
        stream.finish([("X-Sum", &b"5"[..])]).unwrap();
        assert!(stream.finish([]).is_err(), "the request has ended");
        assert_eq!(whole(&mut stream).await.unwrap(), (200, b"hello".to_vec()));
    });
}

#[test]
fn a_stream_that_is_dropped_is_reset_and_holds_up_no_other() {
    let peer = |mut server: Server| {
        let (dropped, kept) = (server.request().unwrap(), server.request().unwrap());
        assert_eq!(server.next(dropped.id), Some(Asked::Reset(dropped.id, ErrorCode::CANCEL)));
        server.answer(kept.id, 200, b"kept");
        let read = server.request().unwrap();
        server.head(read.id, 200, &[], false);
        server.data(read.id, &[7; 100_000], false);
        assert_eq!(server.next(read.id), Some(Asked::Reset(read.id, ErrorCode::CANCEL)));
        let last = server.request().unwrap();
        server.answer(last.id, 200, &[8; 100_000]);
        server.rest()
    };
    let ((), rest) = with(Config::default(), peer, |connection, seen| async move {
        let dropped = get(&connection, &seen, "/dropped").await;
        // The settings open the second place.
        let mut kept = get(&connection, &seen, "/kept").await;
        drop(dropped);
        assert_eq!(whole(&mut kept).await.unwrap(), (200, b"kept".to_vec()));
        let mut read = get(&connection, &seen, "/read").await;
        assert_eq!(status(&mut read).await.unwrap(), 200);
        assert!(poll_fn(|cx| read.poll_data(cx, &mut Vec::new())).await.unwrap());
        drop(read);
        let mut last = get(&connection, &seen, "/last").await;
        assert_eq!(whole(&mut last).await.unwrap(), (200, vec![8; 100_000]));
        drop(last);
        assert_eq!(connection.under_way(), 0);
    });
    assert!(!rest.iter().any(|asked| matches!(asked, Asked::Reset(..))), "nothing else was reset: {rest:?}");
}

#[test]
fn a_request_that_http1_would_refuse_is_not_sent() {
    let peer = |mut server: Server| assert_eq!(server.request().map(|asked| asked.target), Some("/good".to_owned()));
    with(Config::default(), peer, |connection, seen| async move {
        for (method, path, field) in [
            ("GET", "no-slash", ("x", "a")),
            ("G ET", "/", ("x", "a")),
            ("GET", "/ HTTP/1.1\r\n\r\n", ("x", "a")),
            ("GET", "/", ("x", "a\r\nb: c")),
            ("GET", "/", (":path", "/b")),
        ] {
            let fields = [(field.0, field.1.as_bytes())];
            let begun = place(&connection, &seen).await.begin(&request(method, path), fields, true);
            assert!(begun.unwrap_err().is_unprocessed(), "{method} {path}");
        }
        let mut good = get(&connection, &seen, "/good").await;
        assert!(once(|cx| good.poll_head(cx, |_| ())).await.is_pending());
        // The peer closes.
        assert!(status(&mut good).await.is_err());
    });
}
