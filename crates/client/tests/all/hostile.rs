//! Peers that lie, cut, drip, loop, blow up, reset and say nothing.

use std::io::{Read, Write};
use std::sync::mpsc;

use crate::support::{Full, Peer, SHORT, block_on, builder, patient, told};
use oroshi_client::{Cause, Deadlines, Phase};
use oroshi_http1::DecodeError;

/// What a GET of a peer's answer comes to: its text, or the failure's phase, name, and whether a retry is safe.
fn get(peer: &Peer) -> Result<String, (Phase, &'static str, bool)> {
    block_on(async {
        let client = builder().build_local().unwrap();
        let result = match client.get(peer.url("/?secret=hidden")).send().await {
            Ok(response) => response.text().await,
            Err(error) => Err(error),
        };
        let counts = client.counts();
        assert_eq!((counts.open, counts.in_flight), (counts.idle, 0), "{counts:?}");
        result.map_err(|error| {
            let told = told(&error);
            assert!(!told.contains("hidden") && told.contains("GET http://127.0.0.1"), "{told}");
            (error.phase(), error.name(), error.retry_is_safe())
        })
    })
}

#[test]
fn bodies_that_are_cut_off() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ] {
        let peer = Peer::answering(answer, true);
        assert_eq!(get(&peer), Err((Phase::BetweenBytes, "read-eof", false)), "{answer}");
        assert_eq!(peer.accepted(), 1, "what was answered is not asked again");
    }
}

#[test]
fn a_body_until_the_close_is_whole_with_the_close_and_broken_with_a_reset() {
    assert_eq!(get(&Peer::answering("HTTP/1.1 200 OK\r\n\r\nhello", true)), Ok("hello".to_owned()));
    let peer = Peer::start(|mut peer, _| {
        peer.request();
        peer.send("HTTP/1.1 200 OK\r\n\r\nhello");
        peer.reset();
    });
    assert!(matches!(get(&peer), Err((Phase::BetweenBytes | Phase::FirstByte, "read-reset", _))));
}

#[test]
fn heads_that_are_wrong() {
    for (answer, name) in [
        ("SSH-2.0-OpenSSH_9.6\r\n", "bad-status-line"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "repeated-content-length"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "length-and-transfer-encoding"),
        ("HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello", "bad-content-length"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhello", "bad-transfer-encoding"),
        ("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", "unsolicited-upgrade"),
        ("HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", "bare-lf"),
    ] {
        let peer = Peer::answering(answer, true);
        block_on(async {
            let error = builder().build_local().unwrap().get(peer.url("/")).send().await.unwrap_err();
            let Cause::Response(defect) = error.cause() else { panic!("{}", told(&error)) };
            assert_eq!(
                (defect.name(), error.phase(), error.retry_is_safe()),
                (name, Phase::FirstByte, false),
                "{answer}"
            );
        });
        assert_eq!(peer.accepted(), 1);
    }
}

#[test]
fn heads_and_interim_answers_without_end() {
    let fields = Peer::start(|mut peer, _| {
        peer.request();
        peer.send("HTTP/1.1 200 OK\r\n");
        while peer.send("X-Filler: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n") {}
    });
    let interim = Peer::start(|mut peer, _| {
        peer.request();
        while peer.send("HTTP/1.1 103 Early Hints\r\n\r\n") {}
    });
    let trailers = Peer::start(|mut peer, _| {
        peer.request();
        peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n");
        while peer.send("X-Filler: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n") {}
    });
    assert_eq!(get(&fields), Err((Phase::FirstByte, "parse", false)));
    assert_eq!(get(&interim), Err((Phase::FirstByte, "parse", false)));
    assert!(matches!(get(&trailers), Err((Phase::BetweenBytes | Phase::FirstByte, "parse", _))));
}

#[test]
fn an_answer_byte_by_byte_is_an_answer() {
    let peer = Peer::start(|mut peer, _| {
        while peer.request().is_some() {
            for byte in b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n\
                          Transfer-Encoding: chunked\r\nX-A: b\r\n\r\n5\r\nhello\r\n6;x=y\r\n, you!\r\n0\r\n\
                          X-Sum: 1\r\n\r\n"
            {
                peer.send([*byte]);
            }
        }
    });
    block_on(async {
        let client = builder().build_local().unwrap();
        for _ in 0..3 {
            let mut response = client.get(peer.url("/")).send().await.unwrap();
            assert_eq!(response.headers().get("x-a"), Some(&b"b"[..]));
            let mut text = Vec::new();
            let mut chunks = response.chunks();
            while let Some(piece) = chunks.next().await.unwrap() {
                assert!(!piece.is_empty());
                text.extend_from_slice(piece);
            }
            assert_eq!(text, b"hello, you!");
            assert_eq!(response.trailers().and_then(|trailers| trailers.get("X-Sum")), Some(&b"1"[..]));
        }
        assert_eq!((peer.accepted(), client.counts().connects), (1, 1));
    });
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

fn packed_answer(coding: &str, body: &[u8]) -> Vec<u8> {
    let mut answer =
        format!("HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
    answer.extend_from_slice(body);
    answer
}

#[test]
fn bombs_are_stopped_at_the_limit() {
    let bomb = gzip(&vec![0; 50 << 20]);
    assert!(bomb.len() < 100_000);
    let peer = Peer::answering(packed_answer("gzip", &bomb), false);
    block_on(async {
        let client = builder().collect_bytes(1 << 20).stream_bytes(2 << 20).build_local().unwrap();
        let error = client.get(peer.url("/")).send().await.unwrap().bytes().await.unwrap_err();
        assert!(matches!(error.cause(), Cause::BodyTooLarge { limit: 1_048_576 }), "{}", told(&error));
        let mut response = client.get(peer.url("/")).send().await.unwrap();
        let mut total = 0;
        let error = loop {
            // However often it is asked to go on.
            match response.chunks().next().await {
                Ok(piece) => total += piece.expect("no end").len(),
                Err(error) => break error,
            }
        };
        assert!(matches!(error.cause(), Cause::BodyTooLarge { .. }) && total <= 2 << 20, "{total} {}", told(&error));
        // As it came, it is small.
        assert_eq!(client.get(peer.url("/")).decode(false).send().await.unwrap().bytes().await.unwrap(), bomb);
    });
    let long = Peer::answering(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 1u64 << 40), false);
    block_on(async {
        let client = builder().collect_bytes(1 << 20).build_local().unwrap();
        let error = client.get(long.url("/")).send().await.unwrap().bytes().await.unwrap_err();
        assert!(matches!(error.cause(), Cause::BodyTooLarge { .. }), "announced, and not waited for: {}", told(&error));
    });
}

/// It was noticed only when the body had come, if it ever did.
#[test]
fn a_body_that_is_announced_as_too_large_is_refused_at_once() {
    let long = |method: &'static str, status: &'static str| {
        Peer::start(move |mut peer, _| {
            while let Some(request) = peer.request() {
                assert!(request.starts_with(method));
                peer.send(format!("HTTP/1.1 {status} Whatever\r\nContent-Length: 2000000\r\n\r\n"));
            }
        })
    };
    block_on(async {
        let client = builder().stream_bytes(1_999_999).collect_bytes(1_999_999).build_local().unwrap();
        let peer = long("GET", "200");
        let mut response = client.get(peer.url("/")).send().await.unwrap();
        assert_eq!((response.status(), response.content_length()), (200, Some(2_000_000)), "the head is there");
        for _ in 0..2 {
            let error = response.chunks().next().await.unwrap_err();
            assert!(matches!(error.cause(), Cause::BodyTooLarge { limit: 1_999_999 }), "{}", told(&error));
        }
        assert_eq!((client.counts().open, client.counts().in_flight), (0, 1), "closed, though the response is held");
        let error = client.get(peer.url("/")).send().await.unwrap().bytes().await.unwrap_err();
        assert!(matches!(error.cause(), Cause::BodyTooLarge { .. }), "{}", told(&error));
        // What has no body is not too large, whatever it says of one.
        for (method, status) in [("HEAD", "200"), ("GET", "304"), ("GET", "204")] {
            let peer = long(method, status);
            let mut response = client.request(method, peer.url("/")).send().await.unwrap();
            assert!(response.chunks().next().await.unwrap().is_none(), "{method} {status}");
        }
        // It may unpack to less.
        let packed = gzip(b"");
        let peer = Peer::answering(packed_answer("gzip", &packed), false);
        let small = builder().stream_bytes(5).collect_bytes(5).build_local().unwrap();
        assert!(small.get(peer.url("/")).send().await.unwrap().chunks().next().await.unwrap().is_none());
        assert_eq!(small.get(peer.url("/")).send().await.unwrap().bytes().await.unwrap(), b"");
    });
}

#[test]
fn a_bomb_does_not_keep_a_core_to_itself() {
    let peer = Peer::answering(packed_answer("gzip", &gzip(&vec![0; 50 << 20])), false);
    block_on(async {
        let client = builder().build_local().unwrap();
        let mut response = client.get(peer.url("/")).send().await.unwrap();
        let ticks = std::rc::Rc::new(std::cell::Cell::new(0));
        let ticking = std::rc::Rc::clone(&ticks);
        let other = tokio::task::spawn_local(async move {
            loop {
                ticking.set(ticking.get() + 1);
                tokio::task::yield_now().await;
            }
        });
        let mut chunks = response.chunks();
        while chunks.next().await.unwrap().is_some() {}
        other.abort();
        // All of it came in one read or two; it is given in 1,600 pieces.
        assert!(ticks.get() >= 8, "{} turns for others", ticks.get());
    });
}

#[test]
fn a_bomb_ends_with_the_total_although_all_of_it_has_come() {
    let (mut bomb, size) = (Vec::new(), 50 << 20);
    brotli::BrotliCompress(&mut std::io::repeat(0).take(size), &mut bomb, &Default::default()).unwrap();
    assert!(bomb.len() < 1000);
    let peer = Peer::answering(packed_answer("br", &bomb), false);
    block_on(async {
        let client = builder().build_local().unwrap();
        let total = SHORT * 4;
        let mut response = client.get(peer.url("/")).timeout(total).send().await.unwrap();
        let mut chunks = response.chunks();
        // However fast it is unpacked, the time is over before its end; what came before that may be taken.
        tokio::time::sleep(total).await;
        assert!(chunks.next().await.unwrap().is_some());
        let error = chunks.next().await.unwrap_err();
        assert_eq!((error.phase(), error.is_timeout()), (Phase::Total, true), "{}", told(&error));
        assert!(error.timings().total >= total, "{:?}", error.timings());
        assert_eq!(chunks.next().await.unwrap_err().phase(), Phase::Total, "it does not go on");
        assert_eq!(client.counts().in_flight, 0);
    });
}

#[test]
fn packed_bodies_that_are_broken_say_so() {
    let good = gzip(b"hello hello hello");
    let mut bad = good.clone();
    bad[14] ^= 0xff;
    for (body, coding) in
        [(&good[..good.len() - 3], "gzip"), (&bad, "gzip"), (b"not packed", "br"), (b"not packed", "zstd")]
    {
        let peer = Peer::answering(packed_answer(coding, body), false);
        assert_eq!(get(&peer), Err((Phase::BetweenBytes, "coding", false)), "{coding}");
    }
    assert_eq!(get(&Peer::answering(packed_answer("gzip", &good), false)), Ok("hello hello hello".to_owned()));
    assert_eq!(get(&Peer::answering(packed_answer("gzip", b""), false)), Ok(String::new()));
    assert_eq!(get(&Peer::answering(packed_answer("unheard-of", b"as it is"), false)), Ok("as it is".to_owned()));
}

/// Whose deadline is over, when only one of them is short.
fn overdue(set: impl FnOnce(&mut Deadlines), url: &str) -> (Phase, &'static str, bool) {
    let mut deadlines = patient();
    set(&mut deadlines);
    block_on(async {
        let client = builder().deadlines(deadlines).build_local().unwrap();
        let result = match client.put(url).body(vec![0; 64 << 20]).send().await {
            Ok(response) => response.bytes().await.map(drop),
            Err(error) => Err(error),
        };
        let error = result.unwrap_err();
        assert!(error.is_timeout() && error.timings().total >= SHORT, "{}", told(&error));
        let counts = client.counts();
        assert_eq!((counts.open, counts.in_flight, counts.retries), (0, 0, 0), "{counts:?}");
        (error.phase(), error.name(), error.retry_is_safe())
    })
}

#[test]
fn each_deadline_names_its_phase() {
    // Accepts, and that is all: a large body does not fit into the sockets' buffers.
    let silent = Peer::start(|peer, _| {
        let _held = peer;
        loop {
            std::thread::park();
        }
    });
    let url = silent.url("/");
    assert_eq!(overdue(|limits| limits.write = SHORT, &url), (Phase::Write, "write-timeout", true));
    assert_eq!(overdue(|limits| limits.total = SHORT, &url), (Phase::Total, "total-timeout", true));
    let secure = format!("https://{}/", silent.address);
    assert_eq!(overdue(|limits| limits.tls = SHORT, &secure), (Phase::Tls, "tls-timeout", true));

    for full in [Full::tcp(), Full::unix()] {
        assert_eq!(overdue(|limits| limits.connect = SHORT, &full.url), (Phase::Connect, "connect-timeout", true));
        assert_eq!(overdue(|limits| limits.total = SHORT, &full.url), (Phase::Total, "total-timeout", true));
    }

    let swallows = Peer::start(|mut peer, _| drop(peer.rest()));
    assert_eq!(
        overdue(|limits| limits.first_byte = SHORT, &swallows.url("/")),
        (Phase::FirstByte, "first-byte-timeout", true)
    );
    let drips = Peer::start(|mut peer, _| {
        peer.request();
        peer.send("HTTP/1.1 200 OK\r\nX: ");
        while peer.send("x") {
            std::thread::yield_now();
        }
    });
    let limits = oroshi_http1::Limits { head_bytes: usize::MAX, ..Default::default() };
    block_on(async {
        let client = builder().limits(limits).build_local().unwrap();
        let slow = Deadlines { first_byte: SHORT, ..patient() };
        let error = client.get(drips.url("/")).deadlines(slow).send().await.unwrap_err();
        assert_eq!((error.phase(), error.is_timeout()), (Phase::FirstByte, true), "{}", told(&error));
    });
    let pauses = Peer::start(|mut peer, _| {
        peer.request();
        peer.body(64 << 20);
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
        peer.rest();
    });
    let between = overdue(|limits| limits.between_bytes = SHORT, &pauses.url("/"));
    assert_eq!((between.0, between.1), (Phase::BetweenBytes, "between-bytes-timeout"));
}

#[test]
fn a_body_that_never_pauses_ends_with_the_total() {
    let peer = Peer::start(|mut peer, _| {
        peer.request();
        peer.send("HTTP/1.1 200 OK\r\n\r\n");
        while peer.send([0; 64 * 1024]) {}
    });
    block_on(async {
        let client = builder().build_local().unwrap();
        let mut response = loop {
            // On a busy machine the head may be late.
            match client.get(peer.url("/")).timeout(SHORT).send().await {
                Ok(response) => break response,
                Err(error) => assert_eq!(error.phase(), Phase::Total, "{}", told(&error)),
            }
        };
        let mut chunks = response.chunks();
        let error = loop {
            match chunks.next().await {
                Ok(piece) => assert!(piece.is_some()),
                Err(error) => break error,
            }
        };
        assert_eq!(
            (error.phase(), error.is_timeout(), client.counts().open),
            (Phase::Total, true, 0),
            "{}",
            told(&error)
        );
    });
}

/// The thread waited for whoever had the response, and held the connection for as long.
#[test]
fn the_total_ends_a_body_that_nobody_takes() {
    let peer = Peer::start(|mut peer, _| {
        peer.request();
        peer.send("HTTP/1.1 200 OK\r\n\r\n");
        while peer.send([0; 64 * 1024]) {}
    });
    block_on(async {
        let client = builder().build().unwrap();
        let mut response = loop {
            // On a busy machine the head may be late.
            match client.get(peer.url("/")).timeout(SHORT).send().await {
                Ok(response) => break response,
                Err(error) => assert_eq!(error.phase(), Phase::Total, "{}", told(&error)),
            }
        };
        while client.counts().await.open > 0 {
            tokio::time::sleep(SHORT / 10).await;
        }
        assert_eq!(client.counts().await.in_flight, 0);
        let mut chunks = response.chunks();
        let error = loop {
            match chunks.next().await {
                Ok(piece) => assert!(piece.is_some(), "it has not ended well"),
                Err(error) => break error,
            }
        };
        assert_eq!((error.phase(), error.is_timeout()), (Phase::Total, true), "{}", told(&error));
        assert!(error.timings().total >= SHORT, "{:?}", error.timings());
    });
}

#[test]
fn a_pause_is_over_in_time_however_often_the_request_is_polled_and_while_it_is_still_sending() {
    let peer = Peer::start(|mut peer, _| {
        peer.request();
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
        loop {
            std::thread::park(); // takes nothing, and says nothing more
        }
    });
    block_on(async {
        let deadlines = Deadlines { between_bytes: SHORT, ..patient() };
        let client = builder().deadlines(deadlines).build_local().unwrap();
        let response = client.post(peer.url("/")).body(vec![0; 64 << 20]).send().await.unwrap();
        let mut reading = std::pin::pin!(response.bytes());
        let mut tick = tokio::time::interval(SHORT / 10);
        let error = std::future::poll_fn(|context| {
            while tick.poll_tick(context).is_ready() {}
            reading.as_mut().poll(context)
        })
        .await
        .unwrap_err();
        assert_eq!(error.name(), "between-bytes-timeout", "{}", told(&error));
    });
}

#[test]
fn names_have_their_phase_too() {
    block_on(async {
        let deadlines = Deadlines { dns: SHORT, ..patient() };
        let (answer, wait) = mpsc::channel::<()>();
        let wait = std::sync::Mutex::new(wait);
        let slow = builder().deadlines(deadlines).resolver(move |_| {
            let _ = wait.lock().unwrap().recv();
            Err(std::io::Error::other("too late"))
        });
        let error = slow.build_local().unwrap().get("http://slow.example/").send().await.unwrap_err();
        assert_eq!((error.phase(), error.name(), error.retry_is_safe()), (Phase::Dns, "dns-timeout", true));
        drop(answer);
        let none = builder().resolver(|_| Err(std::io::Error::other("no such host"))).build_local().unwrap();
        let error = none.get("http://none.example/").send().await.unwrap_err();
        assert_eq!((error.phase(), error.name(), error.retry_is_safe()), (Phase::Dns, "dns", true));
        assert!(
            told(&error).ends_with("could not resolve the host name none.example: no such host"),
            "{}",
            told(&error)
        );
    });
}

#[test]
fn names_that_nobody_waits_for_any_more_are_not_looked_up() {
    const THREADS: usize = 32;
    let (asked, questions) = mpsc::channel();
    let (answer, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let client = builder().resolver(move |host| {
        asked.send(host.to_owned()).unwrap();
        let _ = wait.lock().unwrap().recv();
        Err(std::io::Error::other("no such host"))
    });
    block_on(async {
        let client = client.build_local().unwrap();
        let hurried = Deadlines { dns: SHORT, ..patient() };
        let tasks: Vec<_> = (0..3 * THREADS)
            .map(|number| client.get(format!("http://host-{number}.example/")).deadlines(hurried))
            .map(|request| tokio::task::spawn_local(request.send()))
            .collect();
        for task in tasks {
            assert_eq!(task.await.unwrap().unwrap_err().name(), "dns-timeout");
        }
        drop(answer);
        assert_eq!(client.get("http://last.example/").send().await.unwrap_err().name(), "dns");
        let asked: Vec<String> = questions.try_iter().collect();
        assert!(asked.len() <= THREADS + 1 && asked.iter().any(|host| host == "last.example"), "{asked:?}");
    });
}

#[test]
fn a_refused_connect_says_so() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    block_on(async {
        let client = builder().build_local().unwrap();
        let error = client.post(format!("http://{closed}/")).send().await.unwrap_err();
        assert_eq!((error.phase(), error.name(), error.retry_is_safe()), (Phase::Connect, "connect-refused", true));
        assert_eq!(client.counts().open, 0);
        let error = client.get("unix:/no/such/socket").send().await.unwrap_err();
        assert_eq!((error.phase(), error.name()), (Phase::Connect, "connect-not-found"));
    });
}

#[test]
fn an_answer_before_the_whole_request_is_taken() {
    let peer = Peer::start(|mut peer, _| {
        peer.request();
        peer.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nno!");
        // Until the client has had enough of sending to nobody.
        peer.rest();
    });
    block_on(async {
        let client = builder().build_local().unwrap();
        let endless = tokio::io::repeat(b'x');
        let response = client.post(peer.url("/")).reader(endless, None).send().await.unwrap();
        assert_eq!((response.status(), response.text().await.unwrap().as_str()), (413, "no!"));
        assert_eq!((client.counts().open, client.counts().in_flight), (0, 0));
    });
}

#[test]
fn a_reader_that_fails_or_lies_fails_the_request() {
    let peer = Peer::start(|mut peer, _| drop(peer.rest()));
    block_on(async {
        let client = builder().build_local().unwrap();
        for (reader, length) in [(&b"short"[..], 9), (&b"too long"[..], 3)] {
            let error = client.post(peer.url("/")).reader(reader, Some(length)).send().await.unwrap_err();
            assert_eq!((error.phase(), error.name()), (Phase::Write, "request-body"), "{}", told(&error));
        }
        assert_eq!((client.counts().open, client.counts().retries), (0, 0));
    });
}

#[test]
fn unexpected_eof_is_told_apart_from_other_defects() {
    let peer = Peer::answering("HTTP/1.1 200 OK\r\nContent-Le", true);
    block_on(async {
        let error = builder().build_local().unwrap().get(peer.url("/")).send().await.unwrap_err();
        assert!(matches!(error.cause(), Cause::Response(DecodeError::UnexpectedEof)), "{}", told(&error));
        assert!(!error.retry_is_safe(), "something was answered");
    });
}
