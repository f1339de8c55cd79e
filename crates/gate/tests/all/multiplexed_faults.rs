//! Servers of HTTP/2 that refuse, reset, stall and go away, and clients that leave.

use std::time::Duration;

use oroshi_gate::forward::Failure;
use oroshi_gate::upstream::{Counts, Ejection};
use oroshi_testkit::http2::frame;

use crate::support::{Asked, Config, ErrorCode, GET, HANG, OK, SHORT, Seen, Setup, Upstream, nobody};

const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";

#[test]
fn a_refused_request_is_sent_again_whatever_its_method() {
    let upstream = Upstream::http2(|_, behind| {
        let mut count = 0;
        while let Some(request) = behind.request() {
            count += 1;
            // The first attempt of the first two requests, and all of the third.
            if [1, 3, 5, 6, 7, 8].contains(&count) {
                behind.reset(request.id, ErrorCode::REFUSED_STREAM);
            } else {
                behind.answer(request.id, 200, b"ok");
            }
        }
    });
    let mut setup = Setup::to(&upstream.target);
    setup.pool.ejection = Ejection { failures: 1, ..Ejection::default() };
    let gate = setup.start();
    let mut client = gate.connect();
    assert_eq!(client.send(GET).answer().text(), "ok");
    assert_eq!(client.send(POST).answer().text(), "ok");
    assert_eq!(client.send(POST).answer().status, 503);
    assert_eq!(client.send(POST).answer().text(), "ok");
    drop(client);
    let records = gate.records(4);
    assert_eq!(records.iter().map(|record| record.retries).collect::<Vec<_>>(), [1, 1, 3, 0]);
    assert_eq!(records[2].failure, Some(Failure::Refused));
    let counts = gate.counts();
    // Refusing says nothing about the target's health.
    assert_eq!((counts.failure(Failure::Refused), counts.ejections, counts.connects), (6, 0, 1));
    gate.stop();
    upstream.end();
}

#[test]
fn after_a_goaway_requests_go_to_another_connection_and_those_under_way_end() {
    let upstream = Upstream::http2(|number, behind| {
        if number > 0 {
            while let Some(request) = behind.request() {
                behind.answer(request.id, 200, b"new");
            }
            return;
        }
        let first = behind.request().unwrap();
        let second = behind.request().unwrap();
        // The second is not processed, whatever its method.
        behind.goaway(Some(first.id), ErrorCode::NO_ERROR);
        assert_eq!((&*first.target, &*second.method), ("/first", "POST"));
        behind.head(first.id, 200, &[], false);
        behind.data(first.id, b"old", true);
        behind.rest();
    });
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect_http2();
    let first = client.get("/first");
    gate.until("begun", |counts| counts.open == 1 && counts.requests == 1);
    let second = client.request("POST", "/second", &[], false);
    client.data(second, b"body", true);
    assert_eq!(client.answer(second).text(), "new");
    assert_eq!(client.answer(first).text(), "old");
    let third = client.get("/third");
    assert_eq!(client.answer(third).text(), "new");
    let counts = gate.until("the old one is closed", |counts| counts.open == 1 && counts.answers == 3);
    assert_eq!((counts.connects, counts.retries, counts.failure(Failure::Refused)), (2, 1, 1));
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn what_a_reset_means_depends_on_what_has_come() {
    let upstream = Upstream::http2(|_, behind| {
        let mut count = 0;
        while let Some(request) = behind.request() {
            count += 1;
            match &*request.target {
                "/before" => behind.reset(request.id, ErrorCode::INTERNAL_ERROR),
                "/after" => {
                    behind.head(request.id, 200, &[("content-length", b"9")], false);
                    behind.data(request.id, b"half", false);
                    behind.reset(request.id, ErrorCode::INTERNAL_ERROR);
                }
                // The whole answer, and no interest in the rest of the request.
                _ => {
                    behind.answer(request.id, 413, b"too much");
                    behind.reset(request.id, ErrorCode::NO_ERROR);
                }
            }
        }
        // No request came twice.
        assert_eq!(count, 5);
    });
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect_http2();
    // A server that resets a stream is there, and has made a mistake: asking it again would only add to its work. A
    // kept connection that the server has closed is another matter.
    for method in ["GET", "GET", "POST"] {
        let id = client.request(method, "/before", &[], true);
        assert_eq!(client.answer(id).status, 502);
    }
    let id = client.get("/after");
    assert!(matches!(client.next(id), Seen::Head(_, 200, ..)));
    assert_eq!(client.find(|seen| matches!(seen, Seen::Reset(..))), Some(Seen::Reset(id, ErrorCode::INTERNAL_ERROR)));
    let id = client.request("POST", "/early", &[], false);
    client.data(id, &[b'x'; 60_000], false);
    client.data(id, &[b'x'; 60_000], false);
    let answer = client.answer(id);
    assert_eq!((answer.status, answer.text()), (413, "too much"));
    let records = gate.records(5);
    let seen: Vec<_> = records.iter().map(|record| (record.failure, record.reused, record.retries)).collect();
    let reset = Some(Failure::Closed);
    let cut = Some(Failure::Cut);
    assert_eq!(seen, [(reset, false, 0), (reset, false, 0), (reset, false, 0), (cut, false, 0), (None, true, 0)]);
    let counts = gate.counts();
    assert_eq!((counts.connects, counts.retries, counts.failure(Failure::Closed)), (1, 0, 3));
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn a_reset_before_the_response_goes_to_another_server_if_the_method_may_be_repeated() {
    let resets = Upstream::http2(|_, behind| {
        while let Some(request) = behind.request() {
            behind.reset(request.id, ErrorCode::INTERNAL_ERROR);
        }
    });
    let answers = Upstream::http2(|_, behind| {
        while let Some(request) = behind.request() {
            behind.answer(request.id, 200, b"ok");
        }
    });
    let mut setup = Setup::to(&resets.target);
    setup.targets.push((answers.target.clone(), 1));
    // Two resets in a row leave the server out: they count for its health, on a kept connection too.
    setup.pool.ejection = Ejection { failures: 2, back_off: HANG * 2, longest: HANG * 2, ..Ejection::default() };
    let gate = setup.start();
    let mut client = gate.connect_http2();
    // The servers take turns; the first is first.
    for (method, status) in [("GET", 200), ("GET", 200), ("POST", 502), ("POST", 200), ("POST", 200)] {
        let id = client.request(method, "/", &[], true);
        assert_eq!(client.answer(id).status, status, "{method}");
    }
    let retries: Vec<u32> = gate.records(5).iter().map(|record| record.retries).collect();
    assert_eq!(retries, [1, 0, 0, 0, 0]);
    let counts = gate.registry.counts();
    let sum = |of: fn(&Counts) -> u64| counts.iter().map(|target| of(&target.counts)).sum::<u64>();
    assert_eq!((sum(|counts| counts.failure(Failure::Closed)), sum(|counts| counts.ejections)), (2, 1));
    drop(client);
    gate.stop();
    resets.end();
    answers.end();
}

#[test]
fn a_client_of_grpc_gets_the_reset_of_its_server() {
    let upstream = Upstream::http2(|_, behind| {
        while let Some(request) = behind.request() {
            behind.reset(request.id, ErrorCode::CANCEL);
        }
    });
    let mut setup = Setup::to(&upstream.target);
    setup.rules.retry = false;
    let gate = setup.start();
    let mut client = gate.connect_http2();
    let id = client.request("POST", "/echo.Echo/Say", &[("content-type", b"application/grpc+proto")], false);
    client.data(id, b"\0\0\0\0\0", true);
    assert_eq!(client.next(id), Seen::Reset(id, ErrorCode::CANCEL));
    // Other clients get an answer.
    let id = client.get("/");
    assert_eq!(client.answer(id).status, 502);
    let records = gate.records(2);
    assert_eq!((records[0].status, records[0].failure), (0, Some(Failure::Closed)));
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn a_client_that_leaves_cancels_its_stream_alone() {
    let upstream = Upstream::http2(|_, behind| {
        let mut cancelled = 0;
        while let Some(request) = behind.request() {
            if request.target == "/" {
                behind.answer(request.id, 200, b"ok");
                continue;
            }
            behind.head(request.id, 200, &[], false);
            assert_eq!(behind.next(request.id), Some(Asked::Reset(request.id, ErrorCode::CANCEL)));
            cancelled += 1;
        }
        assert_eq!(cancelled, 2);
    });
    let mut setup = Setup::to(&upstream.target);
    setup.rules.timeouts.half_close = Duration::ZERO;
    let gate = setup.start();
    let mut client = gate.connect_http2();
    let id = client.get("/held");
    assert!(matches!(client.next(id), Seen::Head(_, 200, ..)));
    client.reset(id);
    let mut old = gate.connect();
    old.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n").until_head();
    drop(old);
    gate.records(2);
    let id = client.get("/");
    assert_eq!(client.answer(id).text(), "ok");
    drop(client);
    assert_eq!(gate.counts().failure(Failure::ClientGone), 2);
    assert_eq!(gate.counts().connects, 1);
    gate.stop();
    upstream.end();
}

#[test]
fn each_phase_has_its_deadline() {
    let config = Config { stream_window: 10, ..Config::default() };
    let upstream = Upstream::http2_with(config, |_, behind| {
        while let Some(request) = behind.request() {
            if request.target == "/body" {
                behind.head(request.id, 200, &[], false);
            }
            let reset = behind.find(|asked| matches!(asked, Asked::Reset(..)));
            assert_eq!(reset, Some(Asked::Reset(request.id, ErrorCode::CANCEL)));
        }
    });
    let get = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
    // More than the window that a server has before its settings come.
    let body = "x".repeat(100_000);
    let cases: [(String, Failure, u16); 3] = [
        (get("/head"), Failure::HeadTimeout, 504),
        (get("/body"), Failure::BodyTimeout, 200),
        (format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n{body}"), Failure::SendTimeout, 504),
    ];
    for (request, failure, status) in cases {
        let mut setup = Setup::to(&upstream.target);
        match failure {
            Failure::HeadTimeout => setup.rules.timeouts.head = SHORT,
            _ => setup.rules.timeouts.between = SHORT,
        }
        let gate = setup.start();
        let mut client = gate.connect();
        client.send(request);
        match status {
            200 => assert!(client.until_head().starts_with("HTTP/1.1 200 ")),
            status => assert_eq!(client.answer().status, status),
        }
        assert_eq!(gate.records(1)[0].failure, Some(failure));
        drop(client);
        gate.stop();
    }
    upstream.end();
}

#[test]
fn a_server_that_does_not_speak_http_2_is_malformed() {
    let mut upstream = Upstream::start(|_, behind| {
        behind.send("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        behind.rest();
    });
    upstream.target.protocol = oroshi_gate::upstream::Protocol::H2c;
    let gate = Setup::to(&upstream.target).start();
    assert_eq!(gate.ask(GET).status, 502);
    let record = &gate.records(1)[0];
    assert_eq!(record.failure, Some(Failure::Malformed), "{}", record.detail);
    gate.until("closed", |counts| counts.open == 0);
    gate.stop();
    upstream.end();
}

#[test]
fn a_connection_that_ends_ends_its_requests_and_the_next_makes_a_new_one() {
    let upstream = Upstream::http2(|number, behind| {
        while let Some(request) = behind.request() {
            if number == 0 && request.target == "/end" {
                return;
            }
            behind.answer(request.id, 200, b"ok");
        }
    });
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect();
    assert_eq!(client.send(GET).answer().text(), "ok");
    // GET is safe to repeat, POST is not.
    assert_eq!(client.send("GET /end HTTP/1.1\r\nHost: a\r\n\r\n").answer().text(), "ok");
    assert_eq!(gate.records(2)[1].retries, 1);
    gate.until("one connection", |counts| counts.open == 1);
    assert_eq!(gate.counts().connects, 2);
    drop(client);
    gate.stop();
    upstream.end();
    let upstream = Upstream::http2(|number, behind| {
        let request = behind.request().unwrap();
        behind.answer(request.id, 200, b"ok");
        if number == 0 {
            behind.request().unwrap();
        }
    });
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect();
    assert_eq!(client.send(GET).answer().text(), "ok");
    assert_eq!(client.send(POST).answer().status, 502);
    assert_eq!(gate.records(2)[1].failure, Some(Failure::Closed));
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn nobody_there_fails_all_who_wait() {
    let (_hold, mut target) = nobody();
    target.protocol = oroshi_gate::upstream::Protocol::H2c;
    let gate = Setup::to(&target).start();
    let mut client = gate.connect_http2();
    let ids: Vec<u32> = (0..20).map(|_| client.get("/")).collect();
    assert!(ids.into_iter().all(|id| client.answer(id).status == 502));
    assert_eq!(gate.counts().failure(Failure::Connect), 20);
    drop(client);
    gate.stop();
}

#[test]
fn idle_connections_expire_and_those_with_many_requests_are_replaced() {
    let upstream = Upstream::http2(|_, behind| {
        while let Some(request) = behind.request() {
            behind.answer(request.id, 200, b"ok");
        }
    });
    let mut setup = Setup::to(&upstream.target);
    setup.pool.max_requests = 3;
    let gate = setup.start();
    let mut client = gate.connect();
    for _ in 0..7 {
        assert_eq!(client.send(GET).answer().text(), "ok");
    }
    gate.until("two are closed", |counts| counts.connects == 3 && counts.open == 1);
    drop(client);
    gate.stop();
    upstream.end();
    let upstream = Upstream::answering(OK);
    drop(upstream);
    let upstream = Upstream::http2(|_, behind| {
        while let Some(request) = behind.request() {
            behind.answer(request.id, 200, b"ok");
        }
    });
    let mut setup = Setup::to(&upstream.target);
    setup.pool.idle_timeout = SHORT;
    let gate = setup.start();
    assert_eq!(gate.ask(GET).text(), "ok");
    let counts = gate.until("expired", |counts| counts.answers == 1 && counts.open == 0);
    assert_eq!((counts.stale, counts.idle), (0, 0));
    gate.stop();
    upstream.end();
}

#[test]
fn answers_beyond_a_limit_or_against_the_rules_are_refused() {
    let upstream = Upstream::http2(|_, behind| {
        while let Some(request) = behind.request() {
            match &*request.target {
                "/many" => {
                    let fields: Vec<(&str, &[u8])> = (0..51).map(|_| ("x", &b"1"[..])).collect();
                    behind.head(request.id, 200, &fields, true);
                }
                // An upper-case name: a literal field without a name from a table.
                "/case" => {
                    let block = b"\x88\0\x01X\x011";
                    assert!(behind.raw(&frame(1, 5, request.id, block)));
                    behind.codec.reset(&mut Vec::new(), request.id, ErrorCode::CANCEL);
                }
                _ => {
                    behind.head(request.id, 200, &[("content-length", b"3")], false);
                    behind.data(request.id, b"too long", true);
                }
            }
        }
    });
    let mut setup = Setup::to(&upstream.target);
    setup.rules.limits.headers = 50;
    let gate = setup.start();
    for target in ["/many", "/case"] {
        assert_eq!(gate.ask(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")).status, 502);
    }
    let mut client = gate.connect();
    client.send("GET /long HTTP/1.1\r\nHost: a\r\n\r\n");
    let got = client.end();
    assert!(!got.ends_with(b"too long"), "{}", got.escape_ascii());
    drop(client);
    let failures: Vec<_> = gate.records(3).iter().map(|record| record.failure).collect();
    assert_eq!(failures, [Some(Failure::Malformed); 3]);
    gate.stop();
    upstream.end();
}

#[test]
fn a_server_that_says_nothing_is_waited_for_until_the_deadline() {
    let mut upstream = Upstream::start(|_, behind| drop(behind.rest()));
    upstream.target.protocol = oroshi_gate::upstream::Protocol::H2c;
    let mut setup = Setup::to(&upstream.target);
    (setup.pool.connections, setup.rules.timeouts.queue) = (1, SHORT);
    setup.rules.timeouts.head = SHORT;
    let gate = setup.start();
    for _ in 0..3 {
        assert!([503, 504].contains(&gate.ask(GET).status));
    }
    gate.stop();
    upstream.end();
}
