//! Answers that are cut short, wrong, or not what was wanted: what each is called, and what is counted.

use crate::support::load::{SHORT, all_answered, failed, failures, requests, run};
use crate::support::peer::{Conn, Peer, Place};
use crate::support::tls::Identity;
use crate::support::{HANG, OK, OK_CLOSE};
use oroshi_bench::{Check, Draft, Failure};

/// A peer that answers each connection's first request with these bytes and then does as told with the connection.
fn first_answer(bytes: &'static [u8], then: impl Fn(Conn) + Send + Sync + 'static) -> Peer {
    Peer::start(Place::Tcp, move |mut conn| {
        if conn.request().is_some() {
            conn.send(bytes);
            then(conn);
        }
    })
}

/// Each of `n` requests fails, all by one name, and takes its connection with it.
#[track_caller]
fn each_fails(peer: &Peer, n: u64, failure: Failure, what: &str) {
    let record = run(requests(&peer.url, n, 1));
    assert_eq!((record.requests.completed, record.requests.failed), (0, n), "{what}: {:?}", record.failures);
    assert_eq!(record.failures, failures([(failure, n)]), "{what}");
    assert_eq!(record.connections.opened, n, "{what}");
}

const CUT_SHORT: &[(&str, &[u8])] = &[
    ("nothing", b""),
    ("a letter", b"H"),
    ("head without its end", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n"),
    ("head without its last byte", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r"),
    ("interim answer alone", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ("no body", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
    ("body without its last byte", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell"),
    ("chunk line", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5"),
    ("chunk", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel"),
    ("no last chunk", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"),
    ("last chunk without its end", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n"),
    ("trailers without their end", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n"),
];

#[test]
fn an_answer_that_ends_too_early_is_an_unexpected_end() {
    for (what, bytes) in CUT_SHORT {
        each_fails(&first_answer(bytes, Conn::close_gently), 3, Failure::ReadEof, what);
    }
}

#[test]
fn an_answer_cut_short_by_a_reset_is_a_reset() {
    for (what, bytes) in CUT_SHORT {
        each_fails(&first_answer(bytes, Conn::reset), 3, Failure::ReadReset, what);
    }
}

#[test]
fn in_tls_too_an_end_or_a_reset_within_an_answer_is_named_so() {
    let identity = Identity::new();
    for (failure, reset) in [(Failure::ReadEof, false), (Failure::ReadReset, true)] {
        let peer = Peer::start_tls(Place::Tcp, &identity, move |mut conn| {
            if conn.request().is_some() {
                conn.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
                if reset { conn.reset() } else { conn.close_gently() }
            }
        });
        let record = run(Draft { tls: identity.trusted(), ..requests(&peer.url, 3, 1) });
        assert_eq!(record.failures, failures([(failure, 3)]));
        assert_eq!(record.requests.failed, 3);
    }
}

/// Without a close_notify nobody can tell a body that ends with the connection from one that was cut off
/// (RFC 9112, section 9.8); with a length, it does not matter.
#[test]
fn in_tls_a_body_until_the_end_needs_a_proper_end() {
    let identity = Identity::new();
    let until_close = "HTTP/1.1 200 OK\r\n\r\nhello".as_bytes();
    for (answer, notify, cut) in [(until_close, true, 0), (until_close, false, 3), (OK_CLOSE, false, 0)] {
        let peer = Peer::start_tls(Place::Tcp, &identity, move |mut conn| {
            if conn.request().is_some() {
                conn.send(answer);
                if notify {
                    conn.notify_close();
                }
                conn.close_gently();
            }
        });
        let record = run(Draft { tls: identity.trusted(), ..requests(&peer.url, 3, 1) });
        assert_eq!((record.requests.completed, record.requests.failed), (3 - cut, cut));
        assert_eq!(failed(&record, Failure::ReadEof), cut);
    }
}

/// Whether the peer's end or the reset that our request then causes is seen first is a matter of chance.
#[test]
fn a_connection_closed_before_its_request_was_read_fails_it_by_one_of_three_names() {
    for place in [Place::Tcp, Place::Unix] {
        let peer = Peer::start(place, drop);
        let record = run(requests(&peer.url, 20, 4));
        assert_eq!((record.requests.completed, record.requests.failed), (0, 20));
        let named = [Failure::ReadEof, Failure::ReadReset, Failure::Write].map(|f| failed(&record, f));
        assert_eq!(named.iter().sum::<u64>(), 20, "{:?}", record.failures);
    }
}

#[test]
fn what_is_no_answer_is_a_parse_failure() {
    let wrong: [(&str, &[u8]); 14] = [
        ("another protocol", b"SSH-2.0-OpenSSH_9.6\r\n"),
        ("binary", b"\x16\x03\x01\x00\xa5\x01\x00\x00"),
        ("a page without a head", b"<html><body>hello</body></html>"),
        ("HTTP/2's first frame", b"\x00\x00\x12\x04\x00\x00\x00\x00\x00"),
        ("another version", b"HTTP/2.0 200 OK\r\n\r\n"),
        ("no status", b"HTTP/1.1 OK\r\n\r\n"),
        ("bare LF", b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello"),
        ("LF amid CRLF", b"HTTP/1.1 200 OK\r\nA: b\nContent-Length: 5\r\n\r\nhello"),
        ("two lengths", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"),
        ("length and chunked", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("negative length", b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello"),
        ("no chunk size", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nhello\r\n"),
        ("chunk longer than it says", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhello\r\n"),
        ("an upgrade nobody asked for", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"),
    ];
    for (what, bytes) in wrong {
        each_fails(&first_answer(bytes, Conn::stall), 3, Failure::Parse, what);
    }
}

#[test]
fn a_head_without_end_is_refused_at_its_limit() {
    let peer = Peer::start(Place::Tcp, |mut conn| {
        if conn.request().is_some() && conn.send("HTTP/1.1 200 OK\r\n") {
            while conn.send("X-Padding: 0123456789abcdef0123456789abcdef0123456789abcdef\r\n") {}
        }
    });
    each_fails(&peer, 2, Failure::Parse, "a head of more than 64 KiB");
}

/// The answer is the request's, and counts; what follows it is nobody's.
#[test]
fn a_second_answer_that_nobody_asked_for_is_a_parse_failure_of_no_request() {
    let peer = Peer::start(Place::Tcp, |mut conn| {
        if conn.request().is_some() {
            conn.send([OK, OK].concat());
            conn.stall();
        }
    });
    let record = run(requests(&peer.url, 5, 1));
    assert_eq!((record.requests.completed, record.requests.failed), (5, 0));
    assert_eq!(record.failures, failures([(Failure::Parse, 5)]));
    assert_eq!((record.errors, record.connections.opened), (5, 5));
}

#[test]
fn a_peer_that_speaks_first_is_a_parse_failure() {
    let peer = Peer::start(Place::Tcp, |mut conn| {
        conn.send("220 mail.example ESMTP\r\n");
        conn.stall();
    });
    let record = run(requests(&peer.url, 5, 1));
    assert_eq!((record.requests.completed, record.requests.failed), (0, 5));
    // Connections that are open before the run begins can fail then, and have no request with them.
    assert_eq!(record.errors, failed(&record, Failure::Parse));
    assert!(record.errors >= 5);
}

/// What is pipelined behind an answer fails with it, each request by itself.
#[test]
fn a_connection_that_breaks_takes_what_is_pipelined_on_it_along() {
    let ends: [(Failure, fn(Conn)); 4] = [
        (Failure::ReadEof, Conn::close_gently),
        (Failure::ReadReset, Conn::reset),
        (Failure::Parse, |mut conn| {
            conn.send("garbage");
            conn.stall();
        }),
        (Failure::Timeout, Conn::stall),
    ];
    for (failure, end) in ends {
        let peer = Peer::start(Place::Tcp, move |mut conn| {
            for _ in 0..8 {
                if conn.request().is_none() {
                    return;
                }
            }
            conn.send([OK, OK, OK].concat());
            end(conn);
        });
        let timeout = if failure == Failure::Timeout { SHORT } else { HANG };
        let record = run(Draft { pipeline: 8, timeout, ..requests(&peer.url, 8, 1) });
        assert_eq!((record.requests.completed, record.requests.failed), (3, 5), "{failure}");
        assert_eq!(record.failures, failures([(failure, 5)]));
    }
}

// Answers that came, and are not what was wanted.

#[test]
fn a_status_of_400_or_more_is_counted_and_the_connection_kept() {
    let peer = Peer::answering(|request| {
        let status = ["200 OK", "399 Odd", "400 Bad Request", "404 Not Found", "500 Oh", "999 What"];
        format!("HTTP/1.1 {}\r\nContent-Length: 2\r\n\r\nab", status[request.number as usize % 6]).into_bytes()
    });
    let record = run(requests(&peer.url, 60, 4));
    assert_eq!((record.requests.completed, record.requests.failed, record.errors), (60, 0, 40));
    assert_eq!(record.failures, failures([(Failure::Status, 40)]));
    assert_eq!(record.statuses, [200, 399, 400, 404, 500, 999].map(|status| (status, 10)).into());
    assert_eq!(record.connections.opened, 4);
}

#[test]
fn each_kind_of_check_is_counted() {
    let peer = Peer::answering(|request| {
        match request.number % 4 {
            0 => "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nhello, world",
            1 => "HTTP/1.1 204 No Content\r\n\r\n",
            2 => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7\r\nhello, \r\n5\r\nworld\r\n0\r\n\r\n",
            _ => "HTTP/1.1 302 Found\r\nContent-Length: 5\r\n\r\nhello",
        }
        .into()
    });
    for (checks, wrong) in [
        (&["status=2xx"][..], 10),
        (&["status=200,302"], 10),
        (&["status=2xx,3xx"], 0),
        (&["length=12"], 20),
        (&["contains=o, w"], 20),
        (&["contains=hello"], 10),
        (&["contains=hello", "status=2xx"], 20),
        (&["contains=goodbye"], 40),
        (&["length=0", "length=1"], 40),
    ] {
        let checks_parsed = checks.iter().map(|check| check.parse::<Check>().unwrap()).collect();
        // One connection: the peer's turns are then the answers' order, in each of the runs.
        let record = run(Draft { checks: checks_parsed, ..requests(&peer.url, 40, 1) });
        assert_eq!((record.requests.completed, record.requests.failed), (40, 0), "{checks:?}");
        assert_eq!(failed(&record, Failure::Check), wrong, "{checks:?}");
        assert_eq!((record.errors, record.connections.opened), (wrong, 1), "{checks:?}");
    }
}

#[test]
fn where_a_check_says_which_statuses_are_right_it_decides() {
    let peer = Peer::answering(|_| "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n".into());
    for (checks, expected) in [
        (&[][..], failures([(Failure::Status, 5)])),
        (&["length=0"], failures([(Failure::Status, 5)])),
        (&["status=200"], failures([(Failure::Check, 5)])),
        (&["status=2xx,503"], failures([])),
    ] {
        let checks = checks.iter().map(|check| check.parse().unwrap()).collect();
        let record = run(Draft { checks, ..requests(&peer.url, 5, 1) });
        assert_eq!(record.failures, expected);
    }
}

#[test]
fn what_stands_behind_an_announced_end_is_sent_again_and_fails_by_nothing() {
    let peer = Peer::start(Place::Tcp, |mut conn| {
        for _ in 0..3 {
            if conn.request().is_none() {
                break;
            }
        }
        conn.send([OK, OK, OK_CLOSE].concat());
        conn.close_gently();
    });
    let record = run(Draft { pipeline: 8, ..requests(&peer.url, 12, 1) });
    all_answered(&record, 12);
    assert_eq!(record.connections.opened, 4);
}
