//! HTTP/2: every request ends in one place, and failures have their names.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::http2::{Heard, automatic, hello, serve, serving};
use crate::support::load::{SHORT, all_answered, all_bounds, failed, failures, refused, requests, run};
use crate::support::peer::{Peer, Place};
use crate::support::{skipped, tls, wait_until};
use oroshi_bench::{Check, Draft, Failure, Http2, Load, Protocol, Record, RunError, Spacing};
use oroshi_http2::{Config, ErrorCode};
use oroshi_testkit::nginx::{Nginx, Setup};
use oroshi_testkit::{Port, need};

/// `n` requests over so many connections, with so many streams each.
fn streams(url: &str, n: u64, connections: usize, streams: usize) -> Draft {
    Draft { http2: Some(Http2::PriorKnowledge), streams, ..requests(url, n, connections) }
}

/// The codes of a record: failure, code, count.
fn codes(record: &Record) -> Vec<(Failure, &str, u64)> {
    let http2 = record.http2.as_ref().unwrap();
    http2.ends.iter().map(|end| (end.failure, end.code.as_str(), end.count)).collect()
}

fn nginx(test: &str, keepalive_requests: u64) -> Option<Nginx> {
    let http = format!(
        "keepalive_requests {keepalive_requests}; client_max_body_size 10m;
        server {{
            listen @TCP@ http2; listen @TLS@ ssl http2; listen unix:@UNIX@ http2;
            ssl_certificate @CERTIFICATE@; ssl_certificate_key @KEY@;
            location / {{ return 200 hello; }}
            location /large {{ root @FOLDER@; }}
        }}"
    );
    let large = vec![b'x'; 1 << 20];
    Setup { workers: 1, http: &http, files: &[("large", &large)], ..Setup::default() }.start(test)
}

#[test]
fn our_count_is_that_of_nginx_over_http2() {
    let Some(mut nginx) = nginx("our_count_is_that_of_nginx_over_http2", 1_000_000) else { return };
    for url in [nginx.http.clone(), nginx.https.clone(), nginx.unix_url("/")] {
        let plan = |n, each| Draft { tls: nginx.identity.trusted(), threads: Some(2), ..streams(&url, n, 4, each) };
        let plans = [
            plan(3000, 16),
            plan(300, 1),
            Draft { requests_per_connection: Some(1), ..plan(200, 1) },
            Draft { requests_per_connection: Some(7), ..plan(300, 3) },
            Draft { load: Load::rate(5000.0, Spacing::Poisson, 7), ..plan(500, 5) },
        ];
        for plan in plans {
            let n = plan.requests.unwrap();
            let before = nginx.requests();
            let record = run(plan);
            all_answered(&record, n);
            assert_eq!(nginx.requests() - before, n, "{url}");
            assert_eq!(record.plan.protocol, Protocol::Http2);
        }
    }
    let large = streams(&format!("{}large", nginx.http), 50, 2, 4);
    let record = run(large);
    all_answered(&record, 50);
    assert_eq!(record.answers.body_bytes, 50 << 20);
}

/// nginx announces the end of a connection after so many requests, and finishes those that it has begun.
#[test]
fn connections_that_nginx_ends_are_replaced_without_loss_over_http2() {
    let Some(mut nginx) = nginx("connections_that_nginx_ends_are_replaced_over_http2", 100) else { return };
    for each in [1, 16] {
        let before = nginx.requests();
        let record = run(streams(&nginx.http, 1000, 2, each));
        all_answered(&record, 1000);
        assert_eq!(nginx.requests() - before, 1000);
        assert!(record.connections.opened >= 10, "{:?}", record.connections);
    }
}

#[test]
fn nghttpd_answers_every_request() {
    let test = "nghttpd_answers_every_request";
    let Some(program) = need(test, "nghttpd") else { return };
    let (folder, port) = (tempfile::tempdir().unwrap(), Port::reserve());
    std::fs::write(folder.path().join("index.html"), "hello").unwrap();
    let mut command = Command::new(program);
    command.args(["--no-tls", "-a", "127.0.0.1", "-d"]).arg(folder.path()).arg(port.address().port().to_string());
    let Ok(mut server) = command.spawn() else { return skipped(test, "nghttpd does not start") };
    wait_until("nghttpd listens", || std::net::TcpStream::connect(port.address()).is_ok());
    let record = run(streams(&port.url(), 2000, 3, 20));
    server.kill().unwrap();
    server.wait().unwrap();
    all_answered(&record, 2000);
    assert_eq!(record.answers.body_bytes, 10_000);
}

#[test]
fn gathered_answers_are_all_counted_and_their_latencies_include_the_wait() {
    let peer = serving(Place::Tcp, automatic(), |conn, heard| {
        if let Heard::Request { id, .. } = heard {
            conn.answer(id, b"hello");
        }
        true
    });
    let record = run(Draft { gather: Duration::from_millis(3), ..streams(&peer.url, 400, 2, 20) });
    all_answered(&record, 400);
    // Requests leave when answers were read, and no answer is read within 3 ms of that.
    let p50 = record.latency.response.summary.p50.unwrap().value_ns;
    assert!(p50 >= 2_900_000, "{p50} ns");
    assert!((record.plan.gather_s - 0.003).abs() < 1e-9);
}

#[test]
fn requests_and_their_bodies_arrive_and_answers_are_checked() {
    let received = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&received);
    let peer = serving(Place::Unix, automatic(), move |conn, heard| {
        match heard {
            Heard::Data { id, length, end } => {
                count.fetch_add(length, Ordering::Relaxed);
                if end {
                    conn.answer(id, b"hello");
                }
            }
            Heard::Request { request, .. } => {
                assert_eq!((request.method.as_str(), request.target.as_str()), ("POST", "/"));
                assert!(request.head.contains("x-a: 1\r\n"), "{}", request.head);
            }
            Heard::Reset { .. } => {}
        }
        true
    });
    let body = vec![b'b'; 300_000];
    let draft = Draft {
        method: "POST".into(),
        body: body.into(),
        headers: vec![("X-A".into(), "1".into())],
        checks: vec![Check::Length(5), Check::Contains("ell".into())],
        ..streams(&peer.url, 40, 2, 4)
    };
    let record = run(draft.clone());
    all_answered(&record, 40);
    assert_eq!(received.load(Ordering::Relaxed), 40 * 300_000);
    assert_eq!(peer.seen().requests, 40);
    assert_eq!(record.answers.server.as_deref(), Some("tester"));
    let record = run(Draft { checks: vec![Check::Length(6)], ..draft });
    assert_eq!(failed(&record, Failure::Check), 40);
}

#[test]
fn streams_are_at_once_up_to_the_server_s_limit() {
    for (allowed, wanted, expected) in [(100, 7, 7), (2, 7, 2)] {
        // Answers only when so many wait.
        let peer = serving(Place::Tcp, Config { streams: allowed, ..automatic() }, {
            let waiting = std::sync::Mutex::new(Vec::new());
            move |conn, heard| {
                if let Heard::Request { id, .. } = heard {
                    let mut waiting = waiting.lock().unwrap();
                    waiting.push(id);
                    if waiting.len() == expected {
                        waiting.drain(..).for_each(|id| conn.answer(id, b"hello"));
                    }
                }
                true
            }
        });
        let record = run(streams(&peer.url, 70, 1, wanted));
        all_answered(&record, 70);
        let warned = record.warnings.iter().any(|warning| warning.contains("allows 2 streams"));
        assert_eq!(warned, expected < wanted, "{:?}", record.warnings);
        assert_eq!(record.http2.unwrap().allowed_streams, Some(allowed));
    }
}

#[test]
fn an_open_loop_spends_every_arrival_on_some_stream() {
    let peer = hello();
    for load in [Load::rate(20_000.0, Spacing::Constant, 0), Load::rate(2000.0, Spacing::Poisson, 3)] {
        let record = run(Draft { load, threads: Some(2), ..streams(&peer.url, 600, 3, 5) });
        all_answered(&record, 600);
        assert_eq!(record.latency.lateness.summary.count, 600);
    }
    assert_eq!(peer.seen().requests, 1200);
}

#[test]
fn idle_connections_are_held_and_speak_http2() {
    let peer = hello();
    let record = run(Draft { hold: 3, ..streams(&peer.url, 20, 1, 2) });
    all_answered(&record, 20);
    assert_eq!(record.connections.held_at_end, 3);
}

/// The streams that a GOAWAY without an error excludes were not processed (RFC 9113, section 6.8).
#[test]
fn requests_that_a_graceful_goaway_excludes_are_sent_again() {
    // Answers ten, and lets the fifth be the last.
    let peer = serving(Place::Tcp, automatic(), |conn, heard| {
        let Heard::Request { id, .. } = heard else { return true };
        if id <= 19 {
            conn.answer(id, b"hello");
        }
        if id == 19 {
            conn.codec.goaway(&mut conn.out, Some(19), ErrorCode::NO_ERROR);
        }
        true
    });
    let record = run(streams(&peer.url, 100, 1, 4));
    all_answered(&record, 100);
    assert_eq!(record.connections.opened, 10);
    assert!(record.connections.closed_by_server >= 9, "{:?}", record.connections);
}

#[test]
fn a_goaway_with_an_error_fails_what_is_under_way() {
    let peer = serving(Place::Tcp, automatic(), |conn, heard| {
        let Heard::Request { id, .. } = heard else { return true };
        if id < 7 {
            conn.answer(id, b"hello");
            return true;
        }
        conn.codec.goaway(&mut conn.out, Some(5), ErrorCode::ENHANCE_YOUR_CALM);
        false
    });
    let record = run(streams(&peer.url, 12, 1, 1));
    // Three of four on each connection.
    assert_eq!((record.requests.completed, record.failures.clone()), (9, failures([(Failure::Goaway, 3)])));
    assert_eq!(codes(&record), [(Failure::Goaway, "ENHANCE_YOUR_CALM", 3)]);
    // A server that never answers: nothing is sent again for ever.
    let peer = serving(Place::Tcp, automatic(), |conn, heard| {
        if let Heard::Request { .. } = heard {
            conn.codec.goaway(&mut conn.out, Some(0), ErrorCode::NO_ERROR);
            return false;
        }
        true
    });
    let record = run(streams(&peer.url, 10, 1, 2));
    assert_eq!(record.failures, failures([(Failure::Goaway, 10)]));
}

#[test]
fn streams_that_the_server_resets_fail_by_code_and_leave_the_others() {
    let peer = serving(Place::Tcp, automatic(), |conn, heard| {
        if let Heard::Request { id, .. } = heard {
            match id % 8 {
                1 => conn.codec.reset(&mut conn.out, id, ErrorCode::REFUSED_STREAM),
                3 => conn.codec.reset(&mut conn.out, id, ErrorCode::INTERNAL_ERROR),
                _ => conn.answer(id, b"hello"),
            }
        }
        true
    });
    let record = run(streams(&peer.url, 80, 1, 8));
    assert_eq!(record.requests.completed, 40);
    assert_eq!(record.failures, failures([(Failure::StreamReset, 40)]));
    let mut codes = codes(&record);
    codes.sort();
    assert_eq!(codes, [(Failure::StreamReset, "INTERNAL_ERROR", 20), (Failure::StreamReset, "REFUSED_STREAM", 20)]);
    assert_eq!(record.connections.opened, 1);
}

#[test]
fn a_body_for_which_no_window_opens_is_a_stall() {
    let small = Config { stream_window: 1000, ..Config::default() };
    let peer = serving(Place::Tcp, small, |_, _| true);
    let draft = Draft {
        method: "POST".into(),
        body: vec![b'x'; 100_000].into(),
        timeout: SHORT,
        ..streams(&peer.url, 3, 1, 1)
    };
    let record = run(draft);
    assert_eq!(record.failures, failures([(Failure::FlowControlStall, 3)]));
    all_bounds(&record.latency.response, SHORT);
}

#[test]
fn a_stream_that_is_too_slow_times_out_and_the_others_go_on() {
    let peer = serving(Place::Tcp, automatic(), |conn, heard| {
        match heard {
            // The others are answered when the load has given up the first: so bytes came meanwhile.
            Heard::Request { id: 1, .. } => conn.codec.ping(&mut conn.out, [0; 8]),
            Heard::Request { id, .. } => conn.answer(id, b"hello"),
            Heard::Reset { id, code } => assert_eq!((id, code), (1, ErrorCode::CANCEL)),
            Heard::Data { .. } => {}
        }
        true
    });
    // The open loop keeps the connection busy while the first request waits.
    let load = Load::rate(200.0, Spacing::Constant, 0);
    let record = run(Draft { timeout: SHORT, load, ..streams(&peer.url, 200, 1, 4) });
    assert_eq!((record.requests.completed, record.failures.clone()), (199, failures([(Failure::Timeout, 1)])));
    assert_eq!(record.connections.opened, 1);
}

#[test]
fn a_connection_on_which_nothing_comes_is_replaced() {
    let peer = serving(Place::Tcp, automatic(), |conn, heard| {
        if let Heard::Request { id, request, .. } = heard
            && request.number >= 4
        {
            conn.answer(id, b"hello");
        }
        true
    });
    let record = run(Draft { timeout: SHORT, ..streams(&peer.url, 20, 1, 4) });
    assert_eq!((record.requests.completed, record.failures.clone()), (16, failures([(Failure::Timeout, 4)])));
    assert_eq!(record.connections.opened, 2);
}

#[test]
fn a_server_that_closes_or_resets_fails_what_is_under_way() {
    for (reset, failure) in [(false, Failure::ReadEof), (true, Failure::ReadReset)] {
        let peer = Peer::start(Place::Tcp, move |conn| {
            let mut conn = crate::support::http2::Http2Conn::new(conn, automatic());
            while let Some(all) = conn.hear() {
                for heard in all {
                    let Heard::Request { id, request, .. } = heard else { continue };
                    if request.on_connection < 3 {
                        conn.answer(id, b"hello");
                    } else if reset {
                        return conn.conn.reset();
                    } else {
                        return conn.conn.close_gently();
                    }
                }
            }
        });
        let record = run(streams(&peer.url, 8, 1, 1));
        assert_eq!((record.requests.completed, record.failures.clone()), (6, failures([(failure, 2)])), "{reset}");
    }
}

#[test]
fn what_is_no_http2_is_named() {
    // A server of HTTP/1.1.
    let peer = Peer::start(Place::Tcp, |mut conn| {
        if conn.bytes().is_some() {
            conn.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
        conn.close_gently();
    });
    let record = run(streams(&peer.url, 3, 1, 1));
    assert_eq!(record.failures, failures([(Failure::Parse, 3)]));
    let parse = &record.parse[0];
    assert_eq!((parse.rule.as_str(), parse.count), ("settings-expected", 3));
    assert!(parse.what.contains("--http2-prior-knowledge") && parse.first_bytes.starts_with("HTTP/1.1"), "{parse:?}");
    // A response that no client may accept ends its stream alone: a name in capitals.
    let peer = serving(Place::Tcp, automatic(), |conn, heard| {
        if let Heard::Request { id, request, .. } = heard {
            match request.number {
                // :status 200, then a literal field `A: b`.
                1 => conn.out.extend([0, 0, 6, 1, 5, 0, 0, 0, id as u8, 0x88, 0, 1, b'A', 1, b'b']),
                _ => conn.answer(id, b"hello"),
            }
        }
        true
    });
    let record = run(streams(&peer.url, 6, 1, 1));
    assert_eq!((record.requests.completed, record.failures.clone()), (5, failures([(Failure::Parse, 1)])));
    assert_eq!((record.parse[0].rule.as_str(), record.connections.opened), ("upper-case-name", 1));
    // A frame that is too long ends the connection.
    let peer = serving(Place::Tcp, automatic(), |conn, heard| {
        if let Heard::Request { .. } = heard {
            conn.out.extend([0xff, 0, 0, 0, 0, 0, 0, 0, 1]);
        }
        true
    });
    let record = run(streams(&peer.url, 4, 1, 2));
    assert_eq!(record.failures, failures([(Failure::Parse, 4)]));
    assert_eq!(record.parse[0].rule, "frame-too-large");
}

#[test]
fn over_tls_the_server_must_choose_http2() {
    let identity = tls::Identity::new();
    // Without ALPN a server chooses nothing.
    let peer = Peer::start_tls(Place::Tcp, &identity, super::support::peer::Conn::stall);
    let draft = |url: &str| Draft { http2: Some(Http2::Alpn), tls: identity.trusted(), ..requests(url, 1, 1) };
    let error = refused(draft(&peer.url));
    assert!(matches!(&error, RunError::NoHttp2 { chose, .. } if chose == "no protocol"), "{error}");
    assert!(error.to_string().contains("--http2"), "{error}");
}

#[test]
fn the_end_of_a_run_cuts_off_what_is_under_way() {
    let peer = Peer::start(Place::Tcp, |conn| {
        serve(conn, automatic(), &|conn: &mut crate::support::http2::Http2Conn, heard| {
            if let Heard::Request { id, .. } = heard
                && id % 8 == 1
            {
                conn.answer(id, b"hello");
            }
            true
        });
    });
    let draft = Draft {
        requests: None,
        duration: Some(Duration::from_millis(300)),
        timeout: Duration::from_secs(1),
        ..streams(&peer.url, 1, 2, 4)
    };
    let record = run(draft);
    let r = record.requests;
    assert_eq!(r.started, r.completed + r.failed + r.cut_off, "{r:?}");
    assert!(r.completed >= 2 && r.cut_off + r.failed >= 1, "{r:?} {:?}", record.failures);
}
