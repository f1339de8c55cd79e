//! Servers of HTTP/2 behind the gateway: messages in all combinations of versions, and streams of one connection.

use oroshi_gate::forward::Failure;
use oroshi_testkit::http2;

use crate::support::{Asked, Config, ErrorCode, GET, Grants, OK, Requested, Seen, Server2, Setup, Upstream, nobody};

/// Answers each request with its method, its target and its body.
fn echo(_: usize, behind: &mut Server2) {
    while let Some(request) = behind.request() {
        let body = if request.end { Vec::new() } else { behind.body(request.id) };
        let text = format!("{} {} {}", request.method, request.target, String::from_utf8_lossy(&body));
        if request.method == "HEAD" {
            behind.head(request.id, 200, &[("content-length", text.len().to_string().as_bytes())], true);
            continue;
        }
        behind.answer(request.id, 200, text.as_bytes());
    }
}

fn field<'r>(request: &'r Requested, name: &str) -> Option<&'r str> {
    request.lines.lines().find_map(|line| line.split_once(": ").filter(|(found, _)| *found == name)).map(|(_, v)| v)
}

/// Sends frames of gRPC both ways: each message comes back, and `grpc-status` behind the last.
fn grpc(_: usize, behind: &mut Server2) {
    while let Some(request) = behind.request() {
        assert_eq!(
            (field(&request, "te"), field(&request, "content-type")),
            (Some("trailers"), Some("application/grpc"))
        );
        behind.head(request.id, 200, &[("content-type", b"application/grpc")], false);
        loop {
            match behind.next(request.id) {
                Some(Asked::Data(id, data, end)) => {
                    behind.data(id, &data, false);
                    if end {
                        break;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        behind.trailers(request.id, &[("grpc-status", b"0"), ("grpc-message", b"fine")]);
    }
}

const GRPC: [(&str, &[u8]); 2] = [("te", b"trailers"), ("content-type", b"application/grpc")];

#[test]
fn a_request_of_http_1_goes_on_as_one_of_http_2() {
    let upstream = Upstream::http2(|_, behind| {
        while let Some(request) = behind.request() {
            assert_eq!((&*request.method, &*request.scheme, &*request.target), ("POST", "http", "/a?b"));
            assert_eq!((field(&request, "host"), field(&request, "x")), (Some("a.test:1"), Some("Y")));
            assert_eq!(
                (field(&request, "x-forwarded-host"), field(&request, "te")),
                (Some("a.test:1"), Some("trailers"))
            );
            let absent = ["connection", "transfer-encoding", "keep-alive", "upgrade", "hop"];
            assert!(absent.iter().all(|name| field(&request, name).is_none()), "{request:?}");
            assert_eq!(behind.body(request.id), b"in two pieces");
            behind.head(request.id, 103, &[("link", b"</a>")], false);
            behind.head(request.id, 200, &[("x-answer", b"1")], false);
            behind.data(request.id, b"body", false);
            behind.trailers(request.id, &[("checksum", b"7")]);
        }
    });
    let gate = Setup::to(&upstream.target).start();
    let head = "POST /a?b HTTP/1.1\r\nHost: a.test:1\r\nX: Y\r\nConnection: keep-alive, Hop, TE\r\nHop: 1\r\n\
                TE: trailers\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut client = gate.connect();
    for _ in 0..3 {
        client.send(format!("{head}7\r\nin two \r\n6\r\npieces\r\n0\r\n\r\n"));
        assert!(client.until_head().starts_with("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n"));
        let head = client.until_head();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\nx-answer: 1\r\n"), "{head}");
        assert!(head.contains("\r\nTransfer-Encoding: chunked\r\n") && head.contains("\r\nDate: "), "{head}");
        assert_eq!(client.exactly(27), b"4\r\nbody\r\n0\r\nchecksum: 7\r\n\r\n");
    }
    drop(client);
    assert_eq!(upstream.accepted(), 1);
    gate.stop();
    upstream.end();
}

#[test]
fn only_clients_that_ask_for_trailers_get_them_over_http_1() {
    let upstream = Upstream::http2(|_, behind| {
        while let Some(request) = behind.request() {
            behind.head(request.id, 200, &[], false);
            behind.data(request.id, b"body", false);
            behind.trailers(request.id, &[("checksum", b"7")]);
        }
    });
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect();
    client.send(GET).until_head();
    assert_eq!(client.exactly(14), b"4\r\nbody\r\n0\r\n\r\n");
    client.send("GET / HTTP/1.1\r\nHost: a\r\nTE: gzip;q=0, trailers\r\n\r\n").until_head();
    assert_eq!(client.exactly(27), b"4\r\nbody\r\n0\r\nchecksum: 7\r\n\r\n");
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn requests_of_both_versions_share_one_connection() {
    let upstream = Upstream::http2(echo);
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect_http2();
    let ids: Vec<u32> = (0..100).map(|number| client.get(&format!("/{number}"))).collect();
    for (number, id) in ids.into_iter().enumerate() {
        assert_eq!(client.answer(id).text(), format!("GET /{number} "));
    }
    let mut old = gate.connect();
    assert_eq!(old.send("PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc").answer().text(), "PUT /x abc");
    let answer = old.send("HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n").answer_to("HEAD");
    assert_eq!((answer.status, answer.field("content-length")), (200, Some("8")));
    assert_eq!(old.send("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").answer().text(), "OPTIONS * ");
    assert_eq!(old.send("GET http://b/x HTTP/1.1\r\nHost: b\r\n\r\n").answer().text(), "GET /x ");
    drop((client, old));
    let counts = gate.until("idle", |counts| counts.idle == 1);
    assert_eq!((counts.requests, counts.answers, counts.connects, counts.reuses), (104, 104, 1, 103));
    assert_eq!((counts.open, counts.failures.iter().sum::<u64>()), (1, 0));
    gate.stop();
    upstream.end();
}

#[test]
fn statuses_without_a_body_have_none() {
    let upstream = Upstream::http2(|_, behind| {
        while let Some(request) = behind.request() {
            let status = request.target[1..].parse().unwrap();
            behind.head(request.id, status, &[("etag", b"\"1\"")], true);
        }
    });
    let gate = Setup::to(&upstream.target).start();
    let (mut client, mut old) = (gate.connect_http2(), gate.connect());
    for (status, length) in [(204, None), (304, None), (200, Some("0")), (500, Some("0"))] {
        let id = client.get(&format!("/{status}"));
        let answers = [client.answer(id), old.send(format!("GET /{status} HTTP/1.1\r\nHost: a\r\n\r\n")).answer()];
        for answer in answers {
            assert_eq!((answer.status, answer.text(), answer.field("etag")), (status, "", Some("\"1\"")));
            assert_eq!((answer.field("content-length"), answer.field("transfer-encoding")), (length, None));
        }
    }
    drop((client, old));
    gate.stop();
    upstream.end();
}

#[test]
fn messages_of_grpc_go_both_ways_at_once() {
    let upstream = Upstream::http2(grpc);
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect_http2();
    let id = client.request("POST", "/echo.Echo/Chat", &GRPC, false);
    assert!(matches!(client.next(id), Seen::Head(_, 200, _, false)));
    // Each message is answered before the next is sent.
    for number in 0..100_u8 {
        let message = [0, 0, 0, 0, 1, number];
        client.data(id, &message, false);
        assert_eq!(client.bytes(id, 6), message);
    }
    client.data(id, b"\0\0\0\0\0", true);
    assert_eq!(client.bytes(id, 5), b"\0\0\0\0\0");
    assert_eq!(client.next(id), Seen::Trailers(id, "grpc-status: 0\r\ngrpc-message: fine\r\n".to_owned()));
    assert_eq!(gate.records(1)[0].failure, None);
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn every_call_of_thousands_is_answered_once() {
    const CALLS: usize = 2000;
    let upstream = Upstream::http2(|_, behind| {
        while let Some(request) = behind.request() {
            let body = behind.body(request.id);
            behind.head(request.id, 200, &[("content-type", b"application/grpc")], false);
            behind.data(request.id, &body, false);
            behind.trailers(request.id, &[("grpc-status", b"0")]);
        }
    });
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect_http2();
    for round in 0..CALLS / 50 {
        let ids: Vec<u32> = (0..50).map(|_| client.request("POST", "/echo.Echo/Say", &GRPC, false)).collect();
        let message = |place: usize| format!("\0\0\0\0\u{8}{:08}", round * 50 + place).into_bytes();
        ids.iter().enumerate().for_each(|(place, id)| client.data(*id, &message(place), true));
        for (place, id) in ids.into_iter().enumerate() {
            let (answer, trailers) = client.whole_answer(id);
            assert_eq!((answer.text().as_bytes(), &*trailers), (&message(place)[..], "grpc-status: 0\r\n"));
        }
    }
    drop(client);
    let counts = gate.until("all", |counts| counts.answers == CALLS as u64);
    assert_eq!((counts.requests, counts.connects, counts.failures.iter().sum::<u64>()), (CALLS as u64, 1, 0));
    gate.stop();
    upstream.end();
}

#[test]
fn an_answer_of_trailers_alone_ends_with_its_head() {
    let upstream = Upstream::http2(|_, behind| {
        while let Some(request) = behind.request() {
            let fields: [(&str, &[u8]); 2] = [("content-type", b"application/grpc"), ("grpc-status", b"12")];
            behind.head(request.id, 200, &fields, true);
        }
    });
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect_http2();
    let id = client.request("POST", "/echo.Echo/None", &GRPC, false);
    client.data(id, b"\0\0\0\0\0", true);
    match client.next(id) {
        Seen::Head(_, 200, head, true) => assert!(head.contains("grpc-status: 12\r\n"), "{head}"),
        other => panic!("{other:?}"),
    }
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn streams_beyond_the_limit_of_the_server_open_connections_and_then_wait() {
    let config = Config { streams: 2, grants: Grants::Automatic, ..Config::default() };
    // No connection answers before each of the three has as many requests as it allows.
    let all_full = std::sync::Barrier::new(3);
    let upstream = Upstream::http2_with(config, move |_, behind| {
        let (Some(first), Some(second)) = (behind.request(), behind.request()) else { return };
        all_full.wait();
        behind.answer(second.id, 200, b"second");
        behind.answer(first.id, 200, b"first");
        while let Some(request) = behind.request() {
            behind.answer(request.id, 200, b"later");
        }
    });
    let mut setup = Setup::to(&upstream.target);
    setup.pool.connections = 3;
    let gate = setup.start();
    let mut client = gate.connect_http2();
    let ids: Vec<u32> = (0..60).map(|_| client.get("/")).collect();
    assert!(ids.into_iter().all(|id| client.answer(id).status == 200));
    let counts = gate.until("all", |counts| counts.answers == 60);
    assert_eq!((counts.failures.iter().sum::<u64>(), counts.retries), (0, 0));
    assert_eq!((counts.connects, counts.open), (3, 3), "{counts:?}");
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn beyond_the_queue_requests_fail_at_once() {
    let config = Config { streams: 1, grants: Grants::Automatic, ..Config::default() };
    let upstream = Upstream::http2_with(config, |_, behind| {
        let first = behind.request().unwrap();
        assert_eq!(behind.next(first.id), Some(Asked::Reset(first.id, ErrorCode::CANCEL)));
        while let Some(request) = behind.request() {
            behind.answer(request.id, 200, b"ok");
        }
    });
    let mut setup = Setup::to(&upstream.target);
    (setup.pool.connections, setup.pool.queue) = (1, 1);
    let gate = setup.start();
    let mut client = gate.connect_http2();
    let first = client.get("/");
    gate.until("one under way", |counts| counts.requests == 1 && counts.open == 1);
    let second = client.get("/");
    gate.until("one waits", |counts| counts.queued == 1);
    let third = client.get("/");
    assert_eq!(client.answer(third).status, 503);
    client.reset(first);
    assert_eq!(client.answer(second).text(), "ok");
    assert_eq!(gate.counts().failure(Failure::QueueFull), 1);
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn a_body_for_a_target_of_the_other_version_takes_its_form() {
    let (_hold, mut nowhere) = nobody();
    let upstream = Upstream::start(|_, behind| {
        while let Some(request) = behind.request() {
            assert_eq!((&*request.body, &*request.trailers), (&b"chunked"[..], "checksum: 7\r\n"));
            behind.send(OK);
        }
    });
    nowhere.protocol = oroshi_gate::upstream::Protocol::H2c;
    let mut setup = Setup::to(&nowhere);
    setup.targets.push((upstream.target.clone(), 1));
    let gate = setup.start();
    let request = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
                   5\r\nchunk\r\n2\r\ned\r\n0\r\nChecksum: 7\r\n\r\n"
        .replace("Checksum", "checksum");
    let mut client = gate.connect();
    for _ in 0..4 {
        assert_eq!(client.send(&request).answer().text(), "ok");
    }
    drop(client);
    gate.stop();
    upstream.end();
    // And the other way round.
    let (_hold, nowhere) = nobody();
    let upstream = Upstream::http2(|_, behind| {
        while let Some(request) = behind.request() {
            let Some(Asked::Data(_, data, false)) = behind.next(request.id) else { panic!("no data") };
            assert_eq!(data, b"chunked");
            assert_eq!(behind.next(request.id), Some(Asked::Trailers(request.id, "checksum: 7\r\n".to_owned())));
            behind.answer(request.id, 200, b"ok");
        }
    });
    let mut setup = Setup::to(&nowhere);
    setup.targets.push((upstream.target.clone(), 1));
    let gate = setup.start();
    let mut client = gate.connect();
    for _ in 0..4 {
        assert_eq!(client.send(&request).answer().text(), "ok");
    }
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn large_bodies_go_through_whole_and_a_slow_one_holds_nobody() {
    const BYTES: usize = 3 << 20;
    let upstream = Upstream::http2(|_, behind| {
        while let Some(request) = behind.request() {
            if request.method == "GET" {
                let body: Vec<u8> = (0..BYTES).map(|place| (place / 7) as u8).collect();
                behind.head(request.id, 200, &[], false);
                // The client of the first request does not read: its stream's window stays shut.
                if request.target == "/slow" {
                    behind.codec.send_data(&mut behind.out, request.id, &body, false).unwrap();
                    behind.flush();
                } else {
                    behind.data(request.id, &body, true);
                }
                continue;
            }
            let body = behind.body(request.id);
            assert!(body.len() == BYTES && body.iter().enumerate().all(|(place, byte)| *byte == (place / 7) as u8));
            behind.answer(request.id, 200, b"whole");
        }
    });
    let gate = Setup::to(&upstream.target).start();
    let mut slow = http2::Client::with(
        match gate.address {
            oroshi_net::Peer::Tcp(address) => address,
            oroshi_net::Peer::Unix(_) => panic!("a unix socket"),
        },
        Config { stream_window: 100, ..Config::default() },
    );
    let held = slow.get("/slow");
    assert!(matches!(slow.next(held), Seen::Head(_, 200, ..)));
    let mut client = gate.connect();
    let answer = client.send(GET).answer();
    assert!(answer.body.len() == BYTES);
    let body: Vec<u8> = (0..BYTES).map(|place| (place / 7) as u8).collect();
    client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {BYTES}\r\n\r\n")).send(&body);
    assert_eq!(client.answer().text(), "whole");
    drop((client, slow));
    gate.stop();
    upstream.end();
}

#[test]
fn many_fields_and_long_ones_arrive_in_order() {
    let mut config = Config { grants: Grants::Automatic, ..Config::default() };
    (config.limits.headers, config.limits.head_bytes, config.limits.block_bytes) = (2000, 1 << 20, 1 << 20);
    let upstream = Upstream::http2_with(config, |_, behind| {
        while let Some(request) = behind.request() {
            let count = request.lines.lines().filter(|line| *line == "a: b").count();
            assert!(
                request.lines.ends_with("x-last: 1\r\n")
                    && request.lines.contains(&format!("long: {}", "y".repeat(50_000)))
            );
            behind.answer(request.id, 200, count.to_string().as_bytes());
        }
    });
    let mut setup = Setup::to(&upstream.target);
    (setup.server.limits.headers, setup.server.limits.head_bytes) = (2000, 1 << 20);
    setup.rules.forwarding.x_forwarded = false;
    setup.rules.request.set("X-Last", b"1").unwrap();
    let gate = setup.start();
    let lines = "A: b\r\n".repeat(1000);
    let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}Long: {}\r\n\r\n", "y".repeat(50_000));
    assert_eq!(gate.ask(&request).text(), "1000");
    gate.stop();
    upstream.end();
}
