//! Bodies in both directions: windows, turns, bounds.

use std::future::poll_fn;
use std::sync::Arc;

use oroshi_http2 as codec;
use oroshi_multiplex::{Config, Error, ErrorCode, OUTPUT_BYTES};
use oroshi_testkit::http2::server::{Asked, Server};

use crate::support::{body, get, once, place, request, status, whole, with, with_server, write};

/// A window that the test can fill.
fn narrow(stream_window: u32) -> Config {
    let config = Config::default();
    let codec = codec::Config { stream_window, ..(*config.codec).clone() };
    Config { codec: Arc::new(codec), ..config }
}

fn manual() -> codec::Config {
    codec::Config { connection_window: 65_535, ..codec::Config::default() }
}

#[test]
fn large_bodies_go_both_ways() {
    let upload: Vec<u8> = (0..3_000_000u32).map(|number| number as u8).collect();
    let expected = upload.clone();
    let peer = move |mut server: Server| {
        let asked = server.request().unwrap();
        let body = server.body(asked.id);
        assert!(body == expected, "{} bytes", body.len());
        server.answer(asked.id, 200, &body);
        server.rest();
    };
    with(Config::default(), peer, |connection, seen| async move {
        let mut stream = place(&connection, &seen).await.begin(&request("PUT", "/"), [], false).unwrap();
        write(&mut stream, &upload, true).await.unwrap();
        let (status, body) = whole(&mut stream).await.unwrap();
        assert!(status == 200 && body == upload);
    });
}

#[test]
fn a_body_that_nobody_reads_holds_up_no_other_and_stays_within_its_window() {
    let peer = |mut server: Server| {
        let unread = server.request().unwrap();
        server.head(unread.id, 200, &[], false);
        // As much as the window allows.
        let mut sent = 0;
        loop {
            let count = server.codec.send_data(&mut server.out, unread.id, &[1; 10_000], false).unwrap();
            server.flush();
            sent += count;
            if count < 10_000 {
                break;
            }
        }
        assert_eq!(sent, 100_000);
        for _ in 0..50 {
            let asked = server.request().unwrap();
            server.answer(asked.id, 200, &[2; 50_000]);
        }
        // Reading opens the window.
        assert!(server.data(unread.id, &[3; 20_000], true));
        server.rest();
    };
    with(narrow(100_000), peer, |connection, seen| async move {
        let mut unread = get(&connection, &seen, "/unread").await;
        assert_eq!(status(&mut unread).await.unwrap(), 200);
        for _ in 0..50 {
            let mut other = get(&connection, &seen, "/other").await;
            assert_eq!(whole(&mut other).await.unwrap().1.len(), 50_000);
        }
        let all = body(&mut unread).await.unwrap();
        assert_eq!((all.len(), all[99_999], all[100_000]), (120_000, 1, 3));
    });
}

#[test]
fn a_window_that_stays_shut_holds_up_one_request_alone() {
    let peer = |mut server: Server| {
        let stalled = server.request().unwrap();
        let other = server.request().unwrap();
        // The window of the stream is used up, that of the connection is given back.
        let mut got = 0;
        while got < 65_535 {
            let Some(Asked::Data(_, data, false)) = server.next(stalled.id) else { panic!("the body ended") };
            got += data.len();
            server.grant(0, data.len());
        }
        server.answer(other.id, 200, b"other");
        let upload = server.request().unwrap();
        let mut length = 0;
        loop {
            let Some(Asked::Data(_, data, end)) = server.next(upload.id) else { panic!("the body was cut off") };
            length += data.len();
            server.grant(upload.id, data.len());
            if end {
                break;
            }
        }
        server.answer(upload.id, 200, length.to_string().as_bytes());
        assert_eq!(server.next(stalled.id), Some(Asked::Reset(stalled.id, ErrorCode::CANCEL)));
        server.rest();
    };
    with_server(
        Config::default(),
        |socket| Server::with(socket, manual()),
        peer,
        |connection, seen| async move {
            let mut stalled = place(&connection, &seen).await.begin(&request("PUT", "/"), [], false).unwrap();
            let mut other = get(&connection, &seen, "/other").await;
            let (mut sent, rest) = (0, [1; 100_000]);
            while sent < 65_535 {
                sent += poll_fn(|cx| stalled.poll_write(cx, &rest[sent..], true)).await.unwrap();
            }
            assert_eq!(sent, 65_535);
            assert!(once(|cx| stalled.poll_write(cx, &rest[sent..], true)).await.is_pending());
            assert!(stalled.is_blocked());
            assert_eq!(whole(&mut other).await.unwrap(), (200, b"other".to_vec()));
            let mut upload = place(&connection, &seen).await.begin(&request("PUT", "/"), [], false).unwrap();
            write(&mut upload, &[2; 200_000], true).await.unwrap();
            assert_eq!(whole(&mut upload).await.unwrap(), (200, b"200000".to_vec()));
            drop(stalled);
        },
    );
}

#[test]
fn uploads_take_turns_and_the_output_is_bounded() {
    const EACH: usize = 1_000_000;
    let peer = |mut server: Server| {
        let ids: Vec<u32> = (0..5).map(|_| server.request().unwrap().id).collect();
        let mut left = vec![EACH; ids.len()];
        while let Some(Asked::Data(id, data, end)) = server.find(|asked| matches!(asked, Asked::Data(..))) {
            let place = ids.iter().position(|&known| known == id).unwrap();
            left[place] -= data.len();
            if end {
                // None is far behind the first that is done.
                let most = left.iter().max().unwrap();
                assert!(*most <= EACH / 2, "{left:?}");
                break;
            }
        }
        for id in ids {
            server.reset(id, ErrorCode::CANCEL);
        }
        server.rest();
    };
    let wide = |socket| {
        Server::with(
            socket,
            codec::Config {
                stream_window: 1 << 24,
                connection_window: 1 << 26,
                grants: codec::Grants::Automatic,
                ..codec::Config::default()
            },
        )
    };
    with_server(Config::default(), wide, peer, |connection, seen| async move {
        let mut streams = Vec::new();
        for _ in 0..5 {
            streams.push(place(&connection, &seen).await.begin(&request("PUT", "/"), [], false).unwrap());
        }
        let mut tasks = Vec::new();
        for mut stream in streams {
            tasks.push(tokio::task::spawn_local(async move {
                let mut most = 0;
                let bytes = vec![0; EACH];
                let mut sent = 0;
                while sent < EACH {
                    let polled = once(|cx| stream.poll_write(cx, &bytes[sent..], true)).await;
                    match polled {
                        std::task::Poll::Ready(Ok(count)) => {
                            sent += count;
                            most = most.max(count);
                        }
                        std::task::Poll::Ready(Err(_)) => break,
                        std::task::Poll::Pending => {
                            match poll_fn(|cx| stream.poll_write(cx, &bytes[sent..], true)).await {
                                Ok(count) => sent += count,
                                Err(_) => break,
                            }
                        }
                    }
                }
                assert!(most <= OUTPUT_BYTES / 4, "{most} bytes in one turn");
                // The peer resets it, or has it whole.
                let _ = status(&mut stream).await;
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn a_response_that_came_whole_can_be_read_after_the_peer_wants_no_more_of_the_request() {
    let peer = |mut server: Server| {
        let asked = server.request().unwrap();
        server.answer(asked.id, 413, b"too much");
        server.reset(asked.id, ErrorCode::NO_ERROR);
        server.rest();
    };
    with(Config::default(), peer, |connection, seen| async move {
        let mut stream = place(&connection, &seen).await.begin(&request("PUT", "/"), [], false).unwrap();
        let error = loop {
            match poll_fn(|cx| stream.poll_write(cx, &[0; 1000], false)).await {
                Ok(_) => tokio::task::yield_now().await,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::Reset(ErrorCode::NO_ERROR)), "{error:?}");
        assert!(!error.is_unprocessed());
        assert_eq!(whole(&mut stream).await.unwrap(), (413, b"too much".to_vec()));
    });
}
