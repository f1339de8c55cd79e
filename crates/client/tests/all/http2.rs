//! HTTP/2 against peers that do as they are told: the pool, retries, deadlines, bodies.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use oroshi_client::{Deadlines, Phase, local};
use oroshi_testkit::http2::ErrorCode;
use oroshi_testkit::http2::server::{Asked, Server};

use crate::support::{HANG, Http2Peer, SHORT, block_on, echoes, http2, patient, told};

async fn text(client: &local::Client, url: String) -> String {
    let response = client.get(url).send().await.map_err(|error| told(&error)).unwrap();
    response.text().await.unwrap()
}

#[test]
fn requests_share_one_connection() {
    let peer = Http2Peer::start(echoes);
    block_on(async {
        let client = http2().build_local().unwrap();
        let requests: Vec<_> = (0..300)
            .map(|number| {
                let (client, url) = (client.clone(), peer.url(&format!("/{number}")));
                tokio::task::spawn_local(async move { text(&client, url).await })
            })
            .collect();
        for (number, request) in requests.into_iter().enumerate() {
            assert_eq!(request.await.unwrap(), format!("/{number}"));
        }
        let counts = client.counts();
        // 128 streams each, so three connections at most; the first alone if it is fast.
        assert!((1..=3).contains(&peer.accepted()), "{}", peer.accepted());
        assert_eq!((counts.connects as usize, counts.open), (peer.accepted(), peer.accepted()));
        assert_eq!((counts.requests, counts.in_flight, counts.waiting, counts.failures), (300, 0, 0, 0));
        assert!(counts.bytes_read > 300 && counts.bytes_written > 300);
        let response = client.get(peer.url("/")).send().await.unwrap();
        assert_eq!((response.version().number(), response.status()), ("2.0", 200));
        assert_eq!(response.remote_address(), Some(peer.address));
        assert!(response.timings().connect.is_none() && response.timings().sent.is_some());
    });
}

#[test]
fn the_heads_of_requests_are_those_of_http1_without_its_framing() {
    let (heads, seen) = mpsc::channel();
    let peer = Http2Peer::start(move |mut server, _| {
        while let Some(asked) = server.request() {
            if !asked.end {
                assert_eq!(server.body(asked.id), b"body");
            }
            server.answer(asked.id, 200, b"");
            heads.send(asked).unwrap();
        }
    });
    block_on(async {
        let client = http2().decode(false).build_local().unwrap();
        client.post(peer.url("/a?b=c")).header("X-Mixed", "1").body("body").send().await.unwrap();
        let asked = seen.recv().unwrap();
        assert_eq!((&*asked.method, &*asked.scheme, &*asked.target), ("POST", "http", "/a?b=c"));
        let expected = format!(
            "host: {}\r\naccept: */*\r\nuser-agent: oroshi/{}\r\nx-mixed: 1\r\ncontent-length: 4\r\n",
            peer.address,
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(asked.lines, expected);
        client.get(peer.url("/")).header("Host", "other.test").send().await.unwrap();
        assert!(seen.recv().unwrap().lines.starts_with("host: other.test\r\n"));
        // A body of unknown length has no framing of HTTP/1.
        client.put(peer.url("/")).reader(&b"body"[..], None).send().await.unwrap();
        let lines = seen.recv().unwrap().lines;
        assert!(!lines.contains("transfer-encoding") && !lines.contains("content-length"), "{lines}");
        client.put(peer.url("/")).reader(&b"body"[..], Some(4)).send().await.unwrap();
        assert!(seen.recv().unwrap().lines.contains("content-length: 4\r\n"));
        let error = client.get(peer.url("/")).header("Connection", "close").send().await.unwrap_err();
        assert_eq!((error.phase(), error.name()), (Phase::Request, "request"));
    });
}

#[test]
fn a_limit_of_one_stream_means_one_request_at_a_time_per_connection() {
    let peer = Http2Peer::limited(1, echoes);
    block_on(async {
        let client = http2().connections(2).build_local().unwrap();
        let requests: Vec<_> = (0..20)
            .map(|number| {
                let (client, url) = (client.clone(), peer.url(&format!("/{number}")));
                tokio::task::spawn_local(async move { text(&client, url).await })
            })
            .collect();
        for (number, request) in requests.into_iter().enumerate() {
            assert_eq!(request.await.unwrap(), format!("/{number}"));
        }
        assert!(peer.accepted() <= 2, "the cap holds: {}", peer.accepted());
        assert_eq!((client.counts().retries, client.counts().failures), (0, 0));
    });
}

#[test]
fn requests_wait_at_the_cap_and_their_deadline_has_its_phase() {
    let (done, is_done) = mpsc::channel::<()>();
    let is_done = Mutex::new(is_done);
    let peer = Http2Peer::limited(1, move |mut server, _| {
        let asked = server.request().unwrap();
        is_done.lock().unwrap().recv().unwrap();
        server.answer(asked.id, 200, b"");
        server.rest();
    });
    block_on(async {
        let client = http2().connections(1).waiting(1).build_local().unwrap();
        let first = tokio::task::spawn_local(client.get(peer.url("/")).send());
        while client.counts().connects == 0 {
            tokio::task::yield_now().await;
        }
        let limits = Deadlines { queue: SHORT, ..patient() };
        let second = tokio::task::spawn_local(client.get(peer.url("/")).deadlines(limits).send());
        while client.counts().waiting == 0 {
            tokio::task::yield_now().await;
        }
        let full = client.get(peer.url("/")).send().await.unwrap_err();
        assert_eq!((full.phase(), full.name()), (Phase::Queue, "queue-full"));
        let late = second.await.unwrap().unwrap_err();
        assert_eq!((late.phase(), late.name(), late.retry_is_safe()), (Phase::Queue, "queue-timeout", true));
        assert_eq!(client.counts().waiting, 0);
        done.send(()).unwrap();
        assert_eq!(first.await.unwrap().unwrap().status(), 200);
    });
}

#[test]
fn what_a_goaway_excludes_is_sent_again_on_another_connection_even_a_post() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let peer = Http2Peer::start(move |mut server: Server, number| {
        if number == 0 {
            let (first, second) = (server.request().unwrap(), server.request().unwrap());
            noted.lock().unwrap().push(second.target);
            server.goaway(Some(first.id), ErrorCode::NO_ERROR);
            server.answer(first.id, 200, first.target.as_bytes());
            assert!(!server.rest().iter().any(|asked| matches!(asked, Asked::Request(_))), "none after the GOAWAY");
        } else {
            while let Some(asked) = server.request() {
                assert_eq!(server.body(asked.id), b"x");
                server.answer(asked.id, 200, asked.target.as_bytes());
            }
        }
    });
    block_on(async {
        let client = http2().build_local().unwrap();
        let one = client.post(peer.url("/1")).body("x").send();
        let two = client.post(peer.url("/2")).body("x").send();
        let (one, two) = (tokio::task::spawn_local(one), tokio::task::spawn_local(two));
        let (one, two) = (one.await.unwrap(), two.await.unwrap());
        assert_eq!(one.unwrap().text().await.unwrap(), "/1");
        assert_eq!(two.map_err(|error| told(&error)).unwrap().text().await.unwrap(), "/2");
        assert_eq!((client.counts().retries, peer.accepted()), (1, 2));
        assert_eq!(*seen.lock().unwrap(), ["/2"]);
    });
}

#[test]
fn a_refused_request_is_sent_three_times_at_most_and_one_that_failed_once() {
    let count = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&count);
    let peer = Http2Peer::start(move |mut server, _| {
        while let Some(asked) = server.request() {
            let code = match &*asked.target {
                "/refused" => ErrorCode::REFUSED_STREAM,
                _ => ErrorCode::INTERNAL_ERROR,
            };
            noted.lock().unwrap().push(asked.target);
            server.reset(asked.id, code);
        }
    });
    block_on(async {
        let client = http2().build_local().unwrap();
        let refused = client.post(peer.url("/refused")).send().await.unwrap_err();
        assert_eq!((refused.name(), refused.retry_is_safe()), ("refused-stream", true));
        for (idempotent, safe) in [(false, false), (true, true)] {
            let failed = client.post(peer.url("/failed")).idempotent(idempotent).send().await.unwrap_err();
            assert_eq!((failed.phase(), failed.name()), (Phase::FirstByte, "stream-reset"), "{}", told(&failed));
            assert_eq!(failed.retry_is_safe(), safe);
        }
        assert_eq!(*count.lock().unwrap(), ["/refused", "/refused", "/refused", "/failed", "/failed"]);
        assert_eq!((client.counts().retries, peer.accepted()), (2, 1));
    });
}

#[test]
fn a_connection_that_breaks_is_retried_as_with_http1() {
    let peer = Http2Peer::start(|mut server, number| {
        let asked = server.request().unwrap();
        if number == 0 {
            return; // closes
        }
        server.answer(asked.id, 200, asked.method.as_bytes());
        server.rest();
    });
    block_on(async {
        let client = http2().build_local().unwrap();
        assert_eq!(text(&client, peer.url("/")).await, "GET");
        assert_eq!((client.counts().retries, peer.accepted()), (1, 2));
    });
    let peer = Http2Peer::start(|mut server, _| drop(server.request()));
    block_on(async {
        let client = http2().build_local().unwrap();
        let error = client.post(peer.url("/")).send().await.unwrap_err();
        assert!(["read-eof", "read-reset"].contains(&error.name()), "{}", told(&error));
        assert_eq!((error.retry_is_safe(), error.phase(), peer.accepted()), (false, Phase::FirstByte, 1));
    });
}

#[test]
fn a_close_while_idle_is_seen_before_a_post() {
    let ((close, may_close), (closed, is_closed)) = (mpsc::channel::<()>(), mpsc::channel());
    let may_close = Mutex::new(may_close);
    let peer = Http2Peer::start(move |mut server, number| {
        let asked = server.request().unwrap();
        server.answer(asked.id, 200, b"hello");
        if number == 0 {
            server.find(|asked| matches!(asked, Asked::Opened));
            may_close.lock().unwrap().recv().unwrap();
            server.socket().shutdown(std::net::Shutdown::Both).unwrap();
            closed.send(()).unwrap();
        } else {
            server.rest();
        }
    });
    block_on(async {
        let client = http2().build_local().unwrap();
        assert_eq!(text(&client, peer.url("/")).await, "hello");
        close.send(()).unwrap();
        is_closed.recv().unwrap();
        let response = client.post(peer.url("/")).send().await.map_err(|error| told(&error)).unwrap();
        assert_eq!(response.text().await.unwrap(), "hello");
        assert_eq!(peer.accepted(), 2);
    });
}

#[test]
fn each_phase_has_its_deadline_and_a_silent_connection_is_not_used_again() {
    let peer = Http2Peer::start(|mut server, number| {
        while let Some(asked) = server.request() {
            match &*asked.target {
                "/silent" => {}
                "/slow" => {
                    server.head(asked.id, 200, &[], false);
                    server.data(asked.id, b"some", false);
                }
                _ => server.answer(asked.id, 200, number.to_string().as_bytes()),
            }
        }
    });
    block_on(async {
        let client = http2().build_local().unwrap();
        assert_eq!(text(&client, peer.url("/")).await, "0");
        let limits = Deadlines { first_byte: SHORT, ..patient() };
        let late = client.get(peer.url("/silent")).deadlines(limits).send().await.unwrap_err();
        assert_eq!((late.phase(), late.name()), (Phase::FirstByte, "first-byte-timeout"));
        assert!(late.timings().sent.is_some() && late.retry_is_safe());
        assert_eq!(text(&client, peer.url("/")).await, "1");
        let limits = Deadlines { between_bytes: SHORT, ..patient() };
        let slow = client.get(peer.url("/slow")).deadlines(limits).send().await.unwrap();
        let late = slow.text().await.unwrap_err();
        assert_eq!((late.phase(), late.name()), (Phase::BetweenBytes, "between-bytes-timeout"));
        assert_eq!(text(&client, peer.url("/")).await, "2");
        // A connection that has answered others meanwhile goes on.
        let limits = Deadlines { first_byte: SHORT, ..patient() };
        let silent = tokio::task::spawn_local(client.get(peer.url("/silent")).deadlines(limits).send());
        while !silent.is_finished() {
            assert_eq!(text(&client, peer.url("/")).await, "2");
        }
        let late = silent.await.unwrap().unwrap_err();
        assert_eq!(late.phase(), Phase::FirstByte);
        assert_eq!(text(&client, peer.url("/")).await, "2");
        let late = client.get(peer.url("/silent")).timeout(SHORT).send().await.unwrap_err();
        assert_eq!((late.phase(), late.name()), (Phase::Total, "total-timeout"));
        assert_eq!(client.counts().in_flight, 0);
    });
}

#[test]
fn a_shut_window_is_the_write_phase() {
    use oroshi_testkit::http2::{Config, Grants};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        // Grants nothing.
        let config = Config { grants: Grants::Manual, ..Config::default() };
        Server::with(listener.accept().unwrap().0, config).rest();
    });
    block_on(async {
        let client = http2().build_local().unwrap();
        let limits = Deadlines { write: SHORT, ..patient() };
        let late = client.put(&*url).body(vec![0; 200_000]).deadlines(limits).send().await.unwrap_err();
        assert_eq!((late.phase(), late.name()), (Phase::Write, "write-timeout"), "{}", told(&late));
    });
}

#[test]
fn a_large_upload_and_a_response_that_comes_before_its_end() {
    let peer = Http2Peer::start(|mut server, _| {
        while let Some(asked) = server.request() {
            match &*asked.target {
                "/early" => {
                    server.answer(asked.id, 413, b"enough");
                    server.reset(asked.id, ErrorCode::NO_ERROR);
                }
                "/next" => server.answer(asked.id, 200, b"next"),
                _ => {
                    let length = server.body(asked.id).len().to_string();
                    server.answer(asked.id, 200, length.as_bytes());
                }
            }
        }
    });
    block_on(async {
        let client = http2().build_local().unwrap();
        let whole = client.put(peer.url("/")).body(vec![1; 3_000_000]).send().await.unwrap();
        assert_eq!(whole.text().await.unwrap(), "3000000");
        let reader = std::io::Cursor::new(vec![1; 1_000_000]);
        let whole = client.put(peer.url("/")).reader(reader, None).send().await.unwrap();
        assert_eq!(whole.text().await.unwrap(), "1000000");
        let early = client.put(peer.url("/early")).body(vec![1; 3_000_000]).send().await;
        let early = early.map_err(|error| told(&error)).unwrap();
        assert_eq!((early.status(), &*early.text().await.unwrap()), (413, "enough"));
        assert_eq!(text(&client, peer.url("/next")).await, "next");
        assert_eq!(peer.accepted(), 1);
    });
}

#[test]
fn heads_without_bodies_interim_ones_trailers_and_codings() {
    let peer = Http2Peer::start(|mut server, _| {
        while let Some(asked) = server.request() {
            let id = asked.id;
            match &*asked.target {
                "/head" => server.head(id, 200, &[("content-length", b"10"), ("content-encoding", b"gzip")], true),
                "/204" => server.head(id, 204, &[], true),
                "/late-end" => {
                    server.head(id, 204, &[], false);
                    server.data(id, b"", true);
                }
                "/interim" => {
                    server.head(id, 100, &[], false);
                    server.head(id, 103, &[("link", b"</a>")], false);
                    server.answer(id, 200, b"final");
                }
                _ => {
                    server.head(id, 200, &[("x-a", b"1")], false);
                    server.data(id, b"body", false);
                    server.trailers(id, &[("x-end", b"2")]);
                }
            }
        }
    });
    block_on(async {
        let client = http2().build_local().unwrap();
        let head = client.head(peer.url("/head")).send().await.unwrap();
        assert_eq!((head.status(), head.headers().get_str("Content-Length")), (200, Some("10")));
        assert_eq!((head.coding(), &*head.text().await.unwrap()), (None, ""));
        for target in ["/204", "/late-end"] {
            let none = client.get(peer.url(target)).send().await.unwrap();
            assert_eq!((none.status(), none.content_length(), &*none.text().await.unwrap()), (204, Some(0), ""));
        }
        assert_eq!(text(&client, peer.url("/interim")).await, "final");
        let mut trailers = client.get(peer.url("/trailers")).send().await.unwrap();
        assert_eq!((trailers.headers().get("X-A"), trailers.content_length()), (Some(&b"1"[..]), None));
        let mut body = Vec::new();
        let mut chunks = trailers.chunks();
        while let Some(piece) = chunks.next().await.unwrap() {
            body.extend_from_slice(piece);
        }
        assert_eq!(body, b"body");
        assert_eq!(trailers.trailers().and_then(|fields| fields.get_str("X-End")), Some("2"));
    });
}

#[test]
fn a_body_that_is_not_read_holds_up_no_other_and_dropping_it_resets_its_stream() {
    let peer = Http2Peer::start(|mut server, _| {
        let unread = server.request().unwrap();
        server.head(unread.id, 200, &[], false);
        // All that the window takes.
        while server.codec.send_data(&mut server.out, unread.id, &[0; 10_000], false).unwrap() == 10_000 {
            server.flush();
        }
        server.flush();
        for _ in 0..5 {
            let asked = server.request().unwrap();
            server.answer(asked.id, 200, &[1; 200_000]);
        }
        assert_eq!(server.next(unread.id), Some(Asked::Reset(unread.id, ErrorCode::CANCEL)));
        echoes(server, 0);
    });
    block_on(async {
        let client = http2().build_local().unwrap();
        let unread = client.get(peer.url("/unread")).send().await.unwrap();
        for _ in 0..5 {
            let other = client.get(peer.url("/other")).send().await.unwrap();
            assert_eq!(other.bytes().await.unwrap().len(), 200_000);
        }
        drop(unread);
        assert_eq!(text(&client, peer.url("/next")).await, "/next");
        assert_eq!((peer.accepted(), client.counts().in_flight), (1, 0));
    });
}

#[test]
fn idle_connections_are_counted_swept_and_closed_like_others() {
    let (ended, has_ended) = mpsc::channel();
    let peer = Http2Peer::start(move |server, number| {
        echoes(server, number);
        ended.send(number).unwrap();
    });
    block_on(async {
        let client = http2().build_local().unwrap();
        let idle = async |client: &local::Client, count| {
            while client.counts().idle != count {
                tokio::task::yield_now().await;
            }
        };
        assert_eq!(text(&client, peer.url("/")).await, "/");
        idle(&client, 1).await;
        client.close_idle();
        assert_eq!((client.counts().open, client.counts().idle), (0, 0));
        let gone = tokio::task::spawn_blocking(move || (has_ended.recv_timeout(HANG).unwrap(), has_ended));
        let (number, has_ended) = gone.await.unwrap();
        assert_eq!(number, 0);
        // A partition has connections of its own.
        for partition in [1, 2] {
            client.get(peer.url("/")).partition(partition).send().await.unwrap();
        }
        idle(&client, 2).await;
        client.close_partition(1);
        assert_eq!(client.counts().open, 1);
        drop(client);
        // The sweep.
        let client = http2().idle_timeout(SHORT).build_local().unwrap();
        assert_eq!(text(&client, peer.url("/")).await, "/");
        idle(&client, 1).await;
        while client.counts().open > 0 {
            tokio::time::sleep(SHORT).await;
        }
        // The age.
        let client = http2().max_age(std::time::Duration::ZERO).build_local().unwrap();
        let before = peer.accepted();
        assert_eq!(text(&client, peer.url("/")).await, "/");
        assert_eq!(text(&client, peer.url("/")).await, "/");
        assert_eq!(peer.accepted(), before + 2);
        drop(has_ended);
    });
}

#[test]
fn a_connection_for_each_request_if_asked_for() {
    let peer = Http2Peer::start(echoes);
    block_on(async {
        let client = http2().keep_alive(false).build_local().unwrap();
        for target in ["/1", "/2", "/3"] {
            assert_eq!(text(&client, peer.url(target)).await, target);
        }
        assert_eq!(peer.accepted(), 3);
        while client.counts().open > 0 {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn an_origin_without_a_connection_gets_one_from_a_busy_origin() {
    let busy = Http2Peer::start(echoes);
    let other = Http2Peer::start(echoes);
    block_on(async {
        let client = http2().connections(1).build_local().unwrap();
        let stop = std::rc::Rc::new(std::cell::Cell::new(false));
        let load: Vec<_> = (0..4)
            .map(|_| {
                let (client, url, stop) = (client.clone(), busy.url("/busy"), std::rc::Rc::clone(&stop));
                tokio::task::spawn_local(async move {
                    while !stop.get() {
                        assert_eq!(text(&client, url.clone()).await, "/busy");
                    }
                })
            })
            .collect();
        while client.counts().connects == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(text(&client, other.url("/other")).await, "/other");
        stop.set(true);
        for task in load {
            task.await.unwrap();
        }
        assert_eq!(client.counts().failures, 0);
    });
}
