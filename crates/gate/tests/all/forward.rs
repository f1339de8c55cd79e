//! Requests through the gateway and answers back: what each side sees of the other.

use crate::support;
use crate::support::{Behind, GET, OK, Setup, Upstream};
use oroshi_gate::forward::{Edits, HostPolicy};
use oroshi_gate::upstream::{Policy, PoolSettings};

/// Answers with what it was asked: the head and the body as they came.
fn mirror(_: usize, behind: &mut Behind) {
    while let Some(received) = behind.request() {
        let said = [received.head.as_bytes(), &received.body, received.trailers.as_bytes()].concat();
        behind.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", said.len()));
        behind.send(said);
    }
}

/// A gateway whose routes do not wait for bodies.
fn streaming(upstream: &Upstream) -> Setup {
    let mut setup = Setup::to(&upstream.target);
    setup.rules.buffer = 0;
    setup
}

#[test]
fn requests_go_on_over_one_kept_connection() {
    let upstream = Upstream::start(mirror);
    let gate = Setup::to(&upstream.target).start();
    let (mut one, mut other) = (gate.connect(), gate.connect());
    for number in 0..10 {
        for client in [&mut one, &mut other] {
            let request = format!("GET /{number}?x HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\n\r\n");
            assert_eq!(
                client.send(request).answer().text(),
                format!(
                    "GET /{number}?x HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\nX-Forwarded-For: 127.0.0.1\r\n\
                     X-Forwarded-Proto: http\r\nX-Forwarded-Host: example.org\r\n\r\n"
                )
            );
        }
    }
    assert_eq!(upstream.accepted(), 1);
    let records = gate.records(20);
    assert!(records.iter().skip(1).all(|record| record.reused && record.status == 200 && record.failure.is_none()));
    let counts = gate.counts();
    assert_eq!((counts.requests, counts.answers, counts.connects, counts.reuses), (20, 20, 1, 19));
    assert_eq!((counts.open, counts.idle, counts.queued), (1, 1, 0));
    assert_eq!(counts.latency.iter().sum::<u64>(), 20);
    drop((one, other));
    gate.stop();
    upstream.end();
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let upstream = Upstream::start(mirror);
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect();
    let requests: String = (0..20).map(|number| format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
    client.send(requests);
    for number in 0..20 {
        assert!(client.answer().text().starts_with(&format!("GET /{number} ")));
    }
    assert_eq!(upstream.accepted(), 1);
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn bodies_keep_their_framing_and_their_bytes() {
    let upstream = Upstream::start(mirror);
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect();
    let large = "0123456789abcdef".repeat(64 * 1024);
    for body in ["", "x", "hello", &large] {
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len())).send(body);
        let answer = client.answer();
        assert!(answer.text().contains(&format!("\r\nContent-Length: {}\r\n", body.len())));
        assert!(answer.text().ends_with(&format!("\r\n\r\n{body}")), "{} bytes", body.len());
        // In chunks, and with trailers.
        client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        for piece in body.as_bytes().chunks(100_000) {
            client.send(format!("{:x};name=value\r\n", piece.len())).send(piece).send("\r\n");
        }
        client.send("0\r\nX-Sum: 1\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n");
        let answer = client.answer();
        assert!(answer.text().contains("\r\nTransfer-Encoding: chunked\r\n"));
        assert!(answer.text().ends_with(&format!("\r\n\r\n{body}X-Sum: 1\r\n")), "{} bytes", body.len());
    }
    assert_eq!(upstream.accepted(), 1);
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn answers_keep_their_framing_their_reason_and_their_trailers() {
    let upstream = Upstream::start(|_, behind| {
        while let Some(received) = behind.request() {
            behind.send(match received.line().split(' ').nth(1).unwrap() {
                "/length" => "HTTP/1.1 404 Nothing here\r\nDate: then\r\nContent-Length: 5\r\nX-A:  1 \r\n\r\nhello",
                "/chunked" => {
                    "HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n\
                     3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nX-Sum: 9\r\nX-More: 1\r\n\r\n"
                }
                "/none" => "HTTP/1.1 204 No Content\r\n\r\n",
                "/same" => "HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\nETag: x\r\n\r\n",
                "/head" => "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n",
                "/old" => "HTTP/1.0 200 OK\r\n\r\nuntil the end",
                other => panic!("{other}"),
            });
            if received.line().contains("/old") {
                return;
            }
        }
    });
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect();
    let mut get = |path: &str| client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")).answer();
    let answer = get("/length");
    assert_eq!(answer.head, "HTTP/1.1 404 Nothing here\r\nDate: then\r\nX-A:  1 \r\nContent-Length: 5\r\n\r\n",);
    assert_eq!(answer.text(), "hello");
    assert_eq!((get("/none").status, get("/same").field("etag")), (204, Some("x")));
    let answer = get("/old");
    assert_eq!((answer.text(), answer.field("transfer-encoding")), ("until the end", Some("chunked")));
    assert!(answer.field("date").is_some(), "one that is missing is added");
    let answer = client.send("HEAD /head HTTP/1.1\r\nHost: a\r\n\r\n").answer_to("HEAD");
    assert_eq!(answer.field("content-length"), Some("99"));
    // The trailers as bytes.
    client.send("GET /chunked HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let rest = String::from_utf8(client.rest()).unwrap();
    assert!(rest.ends_with("\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\nX-Sum: 9\r\nX-More: 1\r\n\r\n"), "{rest}");
    assert!(rest.contains("\r\nTrailer: X-Sum\r\n"));
    gate.stop();
    upstream.end();
}

#[test]
fn old_clients_get_bodies_without_chunks() {
    let upstream =
        Upstream::answering("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-A: 1\r\n\r\n");
    let gate = Setup::to(&upstream.target).start();
    let answer = gate.ask("GET / HTTP/1.0\r\n\r\n");
    assert_eq!((answer.text(), answer.field("transfer-encoding")), ("ok", None));
    // One that asks for it keeps its connection where the length is known.
    gate.stop();
    upstream.end();
    let upstream = Upstream::answering(OK);
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect();
    for _ in 0..2 {
        let answer = client.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").answer();
        assert_eq!((answer.text(), answer.field("connection")), ("ok", Some("keep-alive")));
    }
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn interim_answers_come_before_the_final_one() {
    let upstream = Upstream::start(|_, behind| {
        while behind.request().is_some() {
            behind.send(
                "HTTP/1.1 102 Processing\r\n\r\n\
                 HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nConnection: X\r\nX: 1\r\n\r\n",
            );
            behind.send(format!("HTTP/1.1 100 Continue\r\n\r\n{OK}"));
        }
    });
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect();
    client.send(GET);
    assert_eq!(client.answer().head, "HTTP/1.1 102 Processing\r\n\r\n");
    assert_eq!(client.answer().head, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
    // The 100 that nobody has asked for is left out.
    assert_eq!(client.answer().text(), "ok");
    assert_eq!(gate.ask("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").text(), "ok");
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn whoever_waits_for_leave_to_send_gets_it_from_the_server_behind() {
    let upstream = Upstream::start(|_, behind| {
        let head = behind.head().unwrap();
        assert!(head.contains("\r\nExpect: 100-continue\r\n"), "{head}");
        behind.send("HTTP/1.1 100 Continue\r\n\r\n");
        assert_eq!(behind.exactly(5).unwrap(), b"hello");
        behind.send(OK);
        let head = behind.head().unwrap();
        assert!(head.starts_with("PUT "));
        behind.send("HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n");
        behind.closed();
    });
    let gate = streaming(&upstream).start();
    let mut client = gate.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    assert_eq!(client.answer().status, 100);
    assert_eq!(client.send("hello").answer().text(), "ok");
    // Refused before a byte of the body: whether it comes after all is not to be known, so both connections end.
    client.send("PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    let answer = client.answer();
    assert_eq!((answer.status, answer.field("connection")), (417, Some("close")));
    client.closed();
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn an_answer_may_come_before_the_request_is_whole() {
    let upstream = Upstream::start(|_, behind| {
        behind.head().unwrap();
        behind.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nno!");
        // The rest is not read. The gateway ends the connection.
        behind.rest();
    });
    let gate = streaming(&upstream).start();
    let mut client = gate.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\nsome");
    assert_eq!((client.answer().status, upstream.accepted()), (413, 1));
    client.half_close().closed();
    let record = &gate.records(1)[0];
    assert_eq!((record.status, record.failure), (413, None));
    assert_eq!(gate.until("closed", |counts| counts.open == 0).failures.iter().sum::<u64>(), 0);
    gate.stop();
    upstream.end();
}

#[test]
fn both_directions_flow_at_the_same_time() {
    const PIECES: usize = 200;
    let piece = "x".repeat(10_000);
    let upstream = Upstream::start(|_, behind| {
        behind.head().unwrap();
        behind.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        for _ in 0..PIECES {
            // Each piece goes back before the next one comes.
            assert_eq!(behind.until(b"\r\n").unwrap(), "2710\r\n");
            let piece = behind.exactly(10_002).unwrap();
            behind.send("2710\r\n");
            behind.send(piece);
        }
        assert_eq!(behind.until(b"\r\n\r\n").unwrap(), "0\r\n\r\n");
        behind.send("0\r\n\r\n");
        behind.closed();
    });
    let gate = streaming(&upstream).start();
    let mut client = gate.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    let mut first = true;
    for _ in 0..PIECES {
        client.send("2710\r\n").send(&piece).send("\r\n");
        if std::mem::take(&mut first) {
            let head = client.until_head();
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        }
        assert_eq!(client.exactly(6 + 10_002), format!("2710\r\n{piece}\r\n").as_bytes());
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.exactly(5), b"0\r\n\r\n");
    assert_eq!(gate.until("idle", |counts| counts.idle == 1).bytes, 10_000 * PIECES as u64);
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn routes_change_hosts_paths_and_fields_in_both_directions() {
    let upstream = Upstream::start(mirror);
    let mut setup = Setup::to(&upstream.target);
    setup.rules.host = HostPolicy::Fixed("app.internal".to_owned());
    setup.rules.strip_prefix = "/api".to_owned();
    setup.rules.add_prefix = "/v1".to_owned();
    setup.rules.via = "gate".to_owned();
    setup.rules.forwarding.request_id = true;
    setup.rules.request = {
        let mut edits = Edits::none();
        edits.set("X-Tenant", b"7").unwrap().remove("Cookie").unwrap();
        edits
    };
    setup.rules.response = {
        let mut edits = Edits::none();
        edits.set("Server", b"gate").unwrap();
        edits
    };
    let gate = setup.start();
    let answer = gate.ask("GET /api/x?y HTTP/1.1\r\nHost: a\r\nCookie: secret\r\nX-Tenant: 1\r\n\r\n");
    let id = gate.records(1)[0].request_id.clone().unwrap();
    assert_eq!(
        answer.text(),
        format!(
            "GET /v1/x?y HTTP/1.1\r\nHost: app.internal\r\nX-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\n\
             X-Forwarded-Host: a\r\nX-Request-Id: {id}\r\nVia: 1.1 gate\r\nX-Tenant: 7\r\n\r\n"
        )
    );
    assert_eq!((answer.field("server"), answer.field("via")), (Some("gate"), Some("1.1 gate")));
    gate.stop();
    upstream.end();
}

#[test]
fn traces_of_trusted_clients_go_on_and_others_begin_here() {
    const THEIRS: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
    let upstream = Upstream::start(mirror);
    for (trusted, sent, goes_on) in [(true, THEIRS, true), (true, "00-x", false), (false, THEIRS, false)] {
        let mut setup = Setup::to(&upstream.target);
        setup.rules.forwarding.traceparent = true;
        if trusted {
            setup.rules.forwarding.trusted = vec!["127.0.0.0/8".parse().unwrap()];
        }
        let gate = setup.start();
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\ntraceparent: {sent}\r\ntracestate: a=1\r\n\r\n");
        let answer = gate.ask(&request);
        let text = answer.text();
        let trace = gate.records(1)[0].traceparent.clone().unwrap();
        assert_eq!(trace == THEIRS, goes_on, "{trusted} {sent}: {trace}");
        assert_eq!(text.matches("traceparent: ").count(), 1, "{text}");
        assert!(text.contains(&format!("\r\ntraceparent: {trace}\r\n")), "{text}");
        assert_eq!(text.contains("\r\ntracestate: a=1\r\n"), goes_on, "{text}");
        gate.stop();
    }
    upstream.end();
}

#[test]
fn this_is_no_proxy_for_clients_to_choose() {
    let upstream = Upstream::start(|_, _| panic!("nothing may come here"));
    let gate = Setup::to(&upstream.target).start();
    for request in ["CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", "TRACE / HTTP/1.1\r\nHost: a\r\n\r\n"] {
        let answer = gate.ask(request);
        assert_eq!(answer.status, 405, "{request}");
        assert!(answer.field("allow").is_some() && answer.field("date").is_some());
    }
    gate.stop();
    upstream.end();
}

#[test]
fn requests_beyond_the_connections_wait_in_line() {
    let upstream = Upstream::answering(OK);
    let mut setup = Setup::to(&upstream.target);
    setup.pool.connections = 2;
    let gate = setup.start();
    let mut clients: Vec<_> = (0..50).map(|_| gate.connect()).collect();
    for _ in 0..4 {
        for client in &mut clients {
            client.send(GET);
        }
        for client in &mut clients {
            assert_eq!(client.answer().text(), "ok");
        }
    }
    assert!(upstream.accepted() <= 2);
    let counts = gate.until("idle", |counts| counts.idle == counts.open);
    assert_eq!((counts.requests, counts.answers, counts.queued), (200, 200, 0));
    drop(clients);
    gate.stop();
    upstream.end();
}

#[test]
fn connections_end_after_so_many_requests_and_after_so_long() {
    let upstream = Upstream::answering(OK);
    let mut setup = Setup::to(&upstream.target);
    setup.pool = PoolSettings { max_requests: 3, ..setup.pool };
    let gate = setup.start();
    let mut client = gate.connect();
    for _ in 0..9 {
        client.send(GET).answer();
    }
    assert_eq!(upstream.accepted(), 3);
    drop(client);
    gate.stop();
    upstream.end();

    let upstream = Upstream::start(|_, behind| {
        behind.request().unwrap();
        behind.send(OK);
        // Closed by the gateway, while nobody asks for anything.
        behind.closed();
    });
    let mut setup = Setup::to(&upstream.target);
    setup.pool = PoolSettings { idle_timeout: support::SHORT, ..setup.pool };
    let gate = setup.start();
    gate.ask(GET);
    gate.until("closed", |counts| (counts.open, counts.connects) == (0, 1));
    gate.stop();
    upstream.end();
}

#[test]
fn several_targets_take_turns() {
    let upstreams = [Upstream::answering(OK), Upstream::answering(OK)];
    let mut setup = Setup::to(&upstreams[0].target);
    setup.targets = vec![(upstreams[0].target.clone(), 3), (upstreams[1].target.clone(), 1)];
    let gate = setup.start();
    let mut client = gate.connect();
    for _ in 0..40 {
        client.send(GET).answer();
    }
    let mut counts: Vec<u64> = gate.registry.counts().iter().map(|target| target.counts.requests).collect();
    counts.sort_unstable();
    assert_eq!(counts, [10, 30]);
    drop(client);
    gate.stop();

    // One path always goes to the same target.
    let mut setup = Setup::to(&upstreams[0].target);
    setup.targets = upstreams.iter().map(|upstream| (upstream.target.clone(), 1)).collect();
    setup.policy = Policy::ConsistentHash;
    let gate = setup.start();
    for round in 0..3 {
        for path in 0..8 {
            gate.ask(&format!("GET /{path} HTTP/1.1\r\nHost: a\r\n\r\n"));
            let records = gate.records(round * 8 + path + 1);
            assert_eq!(records[path].target, records[round * 8 + path].target);
        }
    }
    gate.stop();
    for upstream in upstreams {
        upstream.end();
    }
}
