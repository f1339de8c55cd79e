//! What cannot be done, and servers that cannot be measured: what is said, and the exit code.

use crate::common;
use crate::common::support::peer::{Conn, Peer, Place, Port};
use crate::common::support::{HANG, OK};
use crate::common::{Recorded as _, answering, bench, failed, only_failed, oroshi};
use oroshi_bench::Failure;

#[test]
fn wrong_usage_is_2_and_says_what_was_expected() {
    let file = "/nonexistent/file";
    let cases: &[(&[&str], &[&str])] = &[
        (&[], &["no URL to send requests to"]),
        (&["ftp://host/"], &["`ftp://host/`", "unknown scheme `ftp`", "expected http, https, unix"]),
        (&["localhost:8080"], &["`localhost:8080`", "did you mean http://localhost:8080"]),
        (&["http://:80/"], &["names no host"]),
        (&["http://h:70000/"], &["`70000`", "1 to 65535"]),
        (&["-c", "0", "http://h/"], &["the number of connections is 0", "at least 1"]),
        (&["-c", "2", "-t", "3", "http://h/"], &["2 connections on 3 threads"]),
        (&["-c", "many", "http://h/"], &["--connections", "`many`"]),
        (&["-d", "soon", "http://h/"], &["--duration", "`soon`", "expected"]),
        (&["-n", "1.5", "http://h/"], &["--requests", "`1.5`"]),
        (&["-R", "0", "http://h/"], &["rate of 0"]),
        (&["-R", "60%", "http://h/"], &["--rate", "`60%` is a share", "requests per second"]),
        (&["--requests-per-connection", "all", "http://h/"], &["--requests-per-connection", "`all`"]),
        (&["-R", "10", "--pipeline", "4", "http://h/"], &["exclude each other"]),
        (&["-R", "10", "--stages", "1s:10", "http://h/"], &["--rate", "--stages"]),
        (&["--close", "--requests-per-connection", "3", "http://h/"], &["--close", "--requests-per-connection"]),
        (&["--source", "127.0.0.2", "unix:/x"], &["unix:/x", "--source"]),
        (&["-H", "no colon", "http://h/"], &["--header", "no colon"]),
        (&["-H", "A: b\r\nC: d", "http://h/"], &["header"]),
        (&["-m", "GE T", "http://h/"], &["GE T"]),
        (&["-m", "CONNECT", "http://h/"], &["CONNECT"]),
        (&["--body-file", file, "http://h/"], &[file]),
        (&["--urls", file], &[file]),
        (&["--cert", "c.pem", "https://h/"], &["--key"]),
        (&["--cacert", file, "https://h/"], &[file]),
        (&["--check", "size=3", "http://h/"], &["--check", "`size=3`", "length=BYTES"]),
        (&["--fail-if", "p99", "http://h/"], &["--fail-if", "`p99`", "p99>10ms"]),
        (&["--fail-if", "p99>10", "http://h/"], &["`10` has no unit", "10ms"]),
        (&["--fail-if", "eror>0", "http://h/"], &["eror", "errors"]),
        (&["--watch", "me", "http://h/"], &["--watch", "`me`"]),
        (&["--wrk-backfill", "http://h/"], &["--format wrk"]),
        (&["--format", "xml", "http://h/"], &["xml", "json"]),
        (&["-s", "post.lua", "http://h/"], &["--script: post.lua cannot be read"]),
        (&["--self-test", "http://h/"], &["--self-test"]),
        (&["--self-test", "--streams", "4"], &["--streams: ", "--http2-prior-knowledge"]),
        (&["--self-test", "--http2", "--streams", "0"], &["--streams: `0`"]),
        (&["--self-test", "--http2", "--pipeline", "4"], &["--self-test"]),
    ];
    for (args, words) in cases {
        let ran = bench(args);
        ran.said(2, words);
        assert_eq!(ran.out, "", "{args:?}");
    }
    oroshi(&["bensch"]).said(2, &["bensch", "bench"]);
    oroshi(&["target", "--delay", "soon"]).said(2, &["--delay", "`soon`"]);
    oroshi(&["target"]).said(2, &["nowhere to listen", "--listen"]);
}

#[test]
fn everything_that_is_wrong_is_said_at_once() {
    let ran = bench(&["-c", "x", "-d", "y", "--fail-if", "z", "ftp://h/", "--check", "w"]);
    ran.said(2, &["`x`", "`y`", "`z`", "`ftp://h/`", "`w`"]);
}

#[test]
fn a_run_that_cannot_begin_is_1_and_says_the_next_step() {
    let port = Port::reserve();
    let folder = tempfile::tempdir().unwrap();
    let missing = format!("unix:{}", folder.path().join("app.sock").display());
    let peer = answering();
    let https = peer.url.replace("http:", "https:");
    let report = folder.path().join("no-folder").join("report");
    for (args, words) in [
        (&["http://nobody.invalid/"][..], &["dns: ", "nobody.invalid", "next: "][..]),
        (&[&port.url()], &["connect-refused: ", "nobody listens", "next: start the server"]),
        (&[&missing], &["connect-not-found: ", "app.sock", "next: start the server"]),
        (&["unix:/etc/passwd"], &["connect-not-a-socket: ", "regular file", "next: "]),
        (&["-P", "/etc/passwd", "http://h/"], &["connect-not-a-socket: "]),
        (&["--timeout", "1s", &https], &["next: "]),
        (&["--watch", "4194304", &peer.url], &["4194304", "--watch none"]),
        (&["-o", report.to_str().unwrap(), &peer.url], &[report.to_str().unwrap()]),
        (&["--hdr", report.to_str().unwrap(), &peer.url], &[report.to_str().unwrap()]),
    ] {
        let ran = bench(args);
        ran.said(1, words);
        assert_eq!(ran.out, "", "{args:?}");
    }
    assert_eq!(peer.seen().requests, 0, "what cannot be told is not measured");
}

/// Nothing was answered: that is no result, and the report says why.
#[test]
fn servers_that_answer_nothing_are_1_with_a_report() {
    type Serve = fn(Conn);
    let peers: [(&str, Serve, &[Failure]); 4] = [
        ("not one", drop, &[Failure::ReadEof, Failure::ReadReset, Failure::Write]),
        (
            "garbage",
            |mut conn| {
                conn.request();
                conn.send("220 mail.example ESMTP\r\n");
                conn.stall();
            },
            &[Failure::Parse],
        ),
        (
            "cut short",
            |mut conn| {
                conn.request();
                conn.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
                conn.close_gently();
            },
            &[Failure::ReadEof],
        ),
        ("silent", Conn::stall, &[Failure::Timeout]),
    ];
    for (what, serve, names) in peers {
        let peer = Peer::start(Place::Tcp, serve);
        let flags = ["-n", "8", "-c", "2", "--timeout", "200ms", &peer.url];
        let ran = bench(&[&["--format", "json"], &flags[..]].concat());
        ran.said(1, &["not one request was answered"]);
        let record = ran.record();
        assert_eq!((record.requests.completed, record.requests.failed), (0, 8), "{what}");
        assert_eq!(record.errors, names.iter().map(|&name| failed(&record, name)).sum::<u64>(), "{what}");
        let text = bench(&flags);
        text.said(1, &["not one request was answered"]);
        assert!(names.iter().any(|name| text.out.contains(name.name())), "{what}: {text:?}");
    }
}

#[test]
fn a_run_by_time_against_a_silent_server_ends_and_says_so() {
    let peer = Peer::start(Place::Tcp, Conn::stall);
    let ran = bench(&["--format", "json", "--timeout", "200ms", "-d", "1s", "-c", "2", &peer.url]);
    ran.said(1, &["not one request was answered", "timeout"]);
    let record = ran.record();
    let r = record.requests;
    // Each connection's requests follow each other every 200 ms, and the last may be under way at the end.
    assert!((2..=10).contains(&r.failed) && r.cut_off <= 2, "{r:?}");
    only_failed(&record, Failure::Timeout, r.failed);
    assert!(record.elapsed_s >= 1.0 && record.elapsed_s < HANG.as_secs_f64() / 2.0);
    let p50 = record.latency.service.summary.p50.unwrap();
    assert!(p50.at_least && p50.value_ns >= 200_000_000, "{p50:?}");
}

/// A part that failed is a result: it is counted, and the run is a success unless --fail-if says otherwise.
#[test]
fn failures_among_answers_are_0() {
    let peer = Peer::start(Place::Tcp, |mut conn| {
        while let Some(request) = conn.request() {
            if request.number % 4 == 3 {
                return conn.reset();
            }
            conn.send(OK);
        }
    });
    let record = common::measured(&["-n", "40", "-c", "2", &peer.url]);
    only_failed(&record, Failure::ReadReset, 10);
    bench(&["-n", "40", "-c", "2", "--fail-if", "read-reset>=1", &peer.url]).said(3, &["FAILED", "read-reset>=1"]);
}
