//! How connections and streams end, and which requests may be sent again.

use std::future::poll_fn;
use std::time::Duration;

use oroshi_multiplex::{Config, ConnectionError, Error, ErrorCode, Ping};
use oroshi_testkit::http2::frame;
use oroshi_testkit::http2::server::{Asked, Server};

use crate::support::{body, get, once, place, request, status, whole, with};

#[test]
fn a_goaway_lets_some_finish_and_refuses_the_others() {
    let peer = |mut server: Server| {
        let (first, second) = (server.request().unwrap(), server.request().unwrap());
        server.goaway(Some(first.id), ErrorCode::NO_ERROR);
        server.answer(first.id, 200, b"done");
        assert!(server.request().is_none(), "no request after the GOAWAY");
        second.id - first.id
    };
    with(Config::default(), peer, |connection, seen| async move {
        let mut first = get(&connection, &seen, "/1").await;
        let mut second = get(&connection, &seen, "/2").await;
        let refused = status(&mut second).await.unwrap_err();
        assert!(matches!(refused, Error::Reset(ErrorCode::REFUSED_STREAM)) && refused.is_unprocessed());
        assert_eq!((connection.is_open(), connection.room()), (false, 0));
        assert!(connection.reserve().is_none());
        assert_eq!(whole(&mut first).await.unwrap(), (200, b"done".to_vec()));
        // Nothing is under way, so the connection ends by itself.
        seen.until(|| connection.is_ended()).await;
        assert!(matches!(*connection.end().unwrap(), ConnectionError::Closed));
    });
}

#[test]
fn a_goaway_with_an_error_tells_why() {
    let peer = |mut server: Server| {
        let asked = server.request().unwrap();
        let mut payload = asked.id.to_be_bytes().to_vec();
        payload.extend_from_slice(&ErrorCode::ENHANCE_YOUR_CALM.0.to_be_bytes());
        payload.extend_from_slice(b"slow down");
        server.raw(&frame(7, 0, 0, &payload));
    };
    with(Config::default(), peer, |connection, seen| async move {
        let mut stream = get(&connection, &seen, "/").await;
        let error = status(&mut stream).await.unwrap_err();
        assert!(!error.is_unprocessed(), "the peer may have processed it");
        let Error::Connection { cause, written: true } = error else { panic!("{error:?}") };
        let ConnectionError::Goaway { code, text } = &*cause else { panic!("{cause:?}") };
        assert_eq!((*code, &**text), (ErrorCode::ENHANCE_YOUR_CALM, "slow down"));
    });
}

#[test]
fn a_refused_stream_may_be_sent_again_and_the_connection_goes_on() {
    let peer = |mut server: Server| {
        let refused = server.request().unwrap();
        server.reset(refused.id, ErrorCode::REFUSED_STREAM);
        let failed = server.request().unwrap();
        server.reset(failed.id, ErrorCode::INTERNAL_ERROR);
        let good = server.request().unwrap();
        server.answer(good.id, 200, b"");
        server.rest();
    };
    with(Config::default(), peer, |connection, seen| async move {
        let error = status(&mut get(&connection, &seen, "/").await).await.unwrap_err();
        assert!(error.is_unprocessed());
        let error = status(&mut get(&connection, &seen, "/").await).await.unwrap_err();
        assert!(matches!(error, Error::Reset(ErrorCode::INTERNAL_ERROR)) && !error.is_unprocessed());
        assert_eq!(status(&mut get(&connection, &seen, "/").await).await.unwrap(), 200);
    });
}

#[test]
fn what_came_before_the_end_of_the_connection_is_read() {
    let peer = |mut server: Server| {
        let (whole, cut) = (server.request().unwrap(), server.request().unwrap());
        server.answer(whole.id, 200, b"whole");
        server.head(cut.id, 200, &[("content-length", b"10")], false);
        server.data(cut.id, b"half", false);
    };
    with(Config::default(), peer, |connection, seen| async move {
        let mut first = get(&connection, &seen, "/whole").await;
        let mut cut = get(&connection, &seen, "/cut").await;
        seen.until(|| connection.is_ended()).await;
        assert_eq!(whole(&mut first).await.unwrap(), (200, b"whole".to_vec()));
        assert_eq!(status(&mut cut).await.unwrap(), 200);
        let mut got = Vec::new();
        assert!(poll_fn(|cx| cut.poll_data(cx, &mut got)).await.unwrap());
        assert_eq!(got, b"half");
        let error = body(&mut cut).await.unwrap_err();
        assert!(matches!(&error, Error::Connection { cause, .. } if matches!(**cause, ConnectionError::Closed)));
    });
}

#[test]
fn a_request_that_was_not_written_may_be_sent_again() {
    let (close, may_close) = std::sync::mpsc::channel();
    let peer = move |mut server: Server| {
        let asked = server.request().unwrap();
        server.answer(asked.id, 200, b"");
        may_close.recv().unwrap();
    };
    with(Config::default(), peer, |connection, seen| async move {
        assert_eq!(status(&mut get(&connection, &seen, "/").await).await.unwrap(), 200);
        let place = place(&connection, &seen).await;
        close.send(()).unwrap();
        seen.until(|| connection.is_ended()).await;
        let error = place.begin(&request("POST", "/"), [], true).unwrap_err();
        assert!(error.is_unprocessed(), "{error:?}");
    });
}

#[test]
fn a_close_that_the_kernel_knows_of_is_seen_before_a_request_is_written() {
    let (closed, is_closed) = std::sync::mpsc::channel();
    let peer = move |mut server: Server| {
        let asked = server.request().unwrap();
        server.answer(asked.id, 200, b"");
        // The acknowledgement of the settings is read: the close is no reset.
        server.find(|asked| matches!(asked, Asked::Opened));
        server.socket().shutdown(std::net::Shutdown::Both).unwrap();
        drop(server);
        closed.send(()).unwrap();
    };
    with(Config::default(), peer, |connection, seen| async move {
        assert_eq!(status(&mut get(&connection, &seen, "/").await).await.unwrap(), 200);
        // Blocks the thread, so that the runtime cannot know of the close.
        is_closed.recv().unwrap();
        if let Some(place) = connection.reserve() {
            connection.check();
            let mut stream = place.begin(&request("POST", "/"), [], true).unwrap();
            let error = status(&mut stream).await.unwrap_err();
            assert!(error.is_unprocessed(), "{error:?}");
        }
        seen.until(|| connection.is_ended()).await;
    });
}

#[test]
fn a_peer_that_breaks_the_protocol_is_told_so() {
    let peer = |mut server: Server| {
        server.request().unwrap();
        // PUSH_PROMISE, which this side has forbidden.
        server.raw(&frame(5, 4, 1, &[0, 0, 0, 2]));
        let rest = server.rest();
        assert!(rest.contains(&Asked::GoAway(ErrorCode::PROTOCOL_ERROR)), "{rest:?}");
    };
    with(Config::default(), peer, |connection, seen| async move {
        let error = status(&mut get(&connection, &seen, "/").await).await.unwrap_err();
        assert!(matches!(&error, Error::Connection { cause, .. } if matches!(**cause, ConnectionError::Protocol(_))));
    });
}

#[test]
fn a_response_that_cannot_be_used_ends_its_stream_alone() {
    let peer = |mut server: Server| {
        let bad = server.request().unwrap();
        server.head(bad.id, 200, &[("content-length", b"3")], false);
        server.data(bad.id, b"more than three", false);
        assert_eq!(server.next(bad.id), Some(Asked::Reset(bad.id, ErrorCode::PROTOCOL_ERROR)));
        let good = server.request().unwrap();
        server.answer(good.id, 200, b"good");
        server.rest();
    };
    with(Config::default(), peer, |connection, seen| async move {
        let mut bad = get(&connection, &seen, "/").await;
        assert_eq!(status(&mut bad).await.unwrap(), 200);
        let error = body(&mut bad).await.unwrap_err();
        assert!(matches!(error, Error::Response(_)) && !error.is_unprocessed(), "{error:?}");
        assert_eq!(whole(&mut get(&connection, &seen, "/").await).await.unwrap(), (200, b"good".to_vec()));
    });
}

/// CVE-2019-9512 and 9515, turned against a client: the codec's budget ends the connection.
#[test]
fn floods_of_pings_and_settings_end_the_connection() {
    for (kind, payload) in [(6, &[0; 8][..]), (4, &[])] {
        let peer = move |mut server: Server| {
            server.request().unwrap();
            let frame = frame(kind, 0, 0, payload);
            for _ in 0..3_000 {
                if !server.raw(&frame) {
                    break;
                }
            }
        };
        with(Config::default(), peer, |connection, seen| async move {
            let error = status(&mut get(&connection, &seen, "/").await).await.unwrap_err();
            assert!(matches!(error, Error::Connection { .. }), "{error:?}");
            assert!(connection.is_ended());
        });
    }
}

#[test]
fn closing_lets_streams_finish_and_says_goodbye() {
    let peer = |mut server: Server| {
        let asked = server.request().unwrap();
        server.answer(asked.id, 200, b"last");
        let rest = server.rest();
        assert!(rest.contains(&Asked::GoAway(ErrorCode::NO_ERROR)), "{rest:?}");
    };
    with(Config::default(), peer, |connection, seen| async move {
        let mut last = get(&connection, &seen, "/").await;
        connection.close();
        assert_eq!((connection.is_open(), connection.room()), (false, 0));
        assert_eq!(whole(&mut last).await.unwrap(), (200, b"last".to_vec()));
        seen.until(|| connection.is_ended()).await;
    });
}

#[test]
fn a_connection_ends_with_its_last_handle() {
    let peer = |mut server: Server| {
        let asked = server.request().unwrap();
        server.answer(asked.id, 200, b"last");
        assert!(server.rest().contains(&Asked::GoAway(ErrorCode::NO_ERROR)));
    };
    with(Config::default(), peer, |connection, seen| async move {
        let mut last = get(&connection, &seen, "/").await;
        drop(connection);
        // The stream is a handle too.
        assert_eq!(whole(&mut last).await.unwrap(), (200, b"last".to_vec()));
    });
}

#[test]
fn a_runtime_that_ends_ends_its_connections() {
    let peer = |mut server: Server| drop(server.rest());
    let (stream, ()) =
        with(Config::default(), peer, |connection, seen| async move { get(&connection, &seen, "/").await });
    assert!(stream.connection().is_ended());
    assert!(matches!(*stream.connection().end().unwrap(), ConnectionError::Dropped));
}

#[test]
fn a_ping_without_an_answer_ends_the_connection() {
    let ping = Ping { after: Duration::from_millis(5), timeout: Duration::from_millis(20) };
    let peer = |mut server: Server| {
        server.request().unwrap();
        // Reads no more: it answers no ping.
        let mut socket = server.socket().try_clone().unwrap();
        let _ = std::io::copy(&mut socket, &mut std::io::sink());
    };
    with(Config { ping: Some(ping), ..Config::default() }, peer, |connection, seen| async move {
        let error = status(&mut get(&connection, &seen, "/").await).await.unwrap_err();
        assert!(matches!(&error, Error::Connection { cause, .. } if matches!(**cause, ConnectionError::PingTimeout)));
    });
}

#[test]
fn a_ping_with_an_answer_keeps_the_connection() {
    let ping = Ping { after: Duration::from_millis(5), timeout: oroshi_testkit::HANG };
    let peer = |mut server: Server| {
        let asked = server.request().unwrap();
        // The codec answers while this waits for a byte of the body, which the test sends after some pings.
        server.body(asked.id);
        server.answer(asked.id, 200, b"");
        server.rest();
    };
    with(Config { ping: Some(ping), ..Config::default() }, peer, |connection, seen| async move {
        let mut stream = place(&connection, &seen).await.begin(&request("PUT", "/"), [], false).unwrap();
        let (before, _) = seen.bytes();
        assert!(once(|cx| stream.poll_head(cx, |_| ())).await.is_pending());
        // Settings, their acknowledgement, and the answers to some pings.
        while seen.bytes().0 < before + 200 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(poll_fn(|cx| stream.poll_write(cx, b"x", true)).await.unwrap(), 1);
        assert_eq!(status(&mut stream).await.unwrap(), 200);
    });
}
