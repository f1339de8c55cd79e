//! The scripts of `examples/lua/` with wrk and with `oroshi bench`: both send the same bytes, in the same order per
//! connection.
//!
//! One thing differs, and it is meant to: wrk calls `request()` of its first thread once before the run, to see whether
//! it returns several requests, and throws away what it returned. Here that is the first request that is sent
//! (docs/bench-lua.md).

use std::process::Command;

use crate::common::OROSHI;
use crate::common::recorder::{Recorder, Sent};
use crate::common::support::nginx::find;
use crate::common::support::{OK, skipped};

/// Noted of each connection.
const REQUESTS: usize = 24;

const TOKEN: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nx-tOKEN: t-1\r\n\r\nhello";

/// Runs an example with both, on one thread and on two, each with a connection, and compares. `thrown` is how many
/// requests of the first thread wrk does not send, where that can be seen.
fn same(test: &str, script: &str, path: &str, args: &[&str], thrown: usize) -> Vec<Vec<Sent>> {
    let Some(wrk) = find("wrk") else {
        skipped(test, "wrk is not installed");
        return Vec::new();
    };
    let script = format!("{}/../../examples/lua/{script}", env!("CARGO_MANIFEST_DIR"));
    let answer = |sent: &Sent| if sent.line.starts_with("POST /login ") { TOKEN.into() } else { OK.into() };
    let mut last = Vec::new();
    for n in [1, 2] {
        let recorder = Recorder::start(REQUESTS, answer);
        let url = format!("{}{path}", recorder.url);
        let (threads, connections) = (format!("-t{n}"), format!("-c{n}"));
        let flags = [&threads, &connections, "-d60s", "--timeout", "5s", "-s", &script, &url];
        let flags = || flags.iter().chain(if args.is_empty() { &[] } else { &["--"][..] }).chain(args);
        let mut command = Command::new(&wrk);
        command.args(flags());
        let theirs = recorder.record(n, command);
        let mut command = Command::new(OROSHI);
        command.arg("bench").args(flags());
        let mut ours = recorder.record(n, command);

        // Which of the connections is the first thread's, if the script tells them apart.
        let first = ours.iter().position(|sequence| !theirs.contains(sequence)).unwrap_or(0);
        ours[first].rotate_left(thrown);
        ours[first].truncate(REQUESTS - thrown);
        let mut theirs = theirs;
        let theirs_first = theirs.iter().position(|sequence| sequence.starts_with(&ours[first]));
        let theirs_first = theirs_first.unwrap_or_else(|| panic!("{script} -t{n}:\nwrk {theirs:#?}\noroshi {ours:#?}"));
        theirs[theirs_first].truncate(REQUESTS - thrown);
        theirs.sort();
        ours.sort();
        assert_eq!(theirs, ours, "{script} -t{n}");
        last = ours;
    }
    last
}

#[test]
fn post_json() {
    let sent = same("post_json", "post-json.lua", "/orders", &[], 0);
    for request in sent.iter().flatten() {
        assert_eq!(request.line, "POST /orders HTTP/1.1");
        assert_eq!(request.headers[1], "Content-Type: application/json");
        assert!(request.body.starts_with(b"{\"customer\": 7"), "{request:?}");
    }
}

#[test]
fn counter() {
    let sent = same("counter", "counter.lua", "/items", &[], 1);
    // What wrk threw away was /items/1.
    for (sequence, from) in sent.iter().zip([1001, 2]) {
        for (i, request) in sequence.iter().enumerate() {
            assert_eq!(request.line, format!("GET /items/{} HTTP/1.1", from + 1000 * i));
        }
    }
}

#[test]
fn token() {
    let sent = same("token", "token.lua", "/account?x=1", &["/login"], 0);
    for sequence in &sent {
        assert_eq!((&*sequence[0].line, &*sequence[0].body), ("POST /login HTTP/1.1", &b"user=demo"[..]));
        for request in &sequence[1..] {
            assert_eq!(request.line, "GET /account?x=1 HTTP/1.1");
            assert_eq!(request.headers[0], "Authorization: Bearer t-1");
        }
    }
}

#[test]
fn urls() {
    let paths = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(paths.path(), "# three\n/a\n\n  /b?x=1  \n/c\n").unwrap();
    let sent = same("urls", "urls.lua", "/", &[paths.path().to_str().unwrap()], 1);
    for sequence in &sent {
        assert!(sequence.windows(4).all(|four| four[0] == four[3] && four[0] != four[1]), "{sequence:?}");
    }
}

#[test]
fn threads() {
    let sent = same("threads", "threads.lua", "/", &[], 1);
    let mut own: Vec<&str> = Vec::new();
    for sequence in &sent {
        let others: Vec<&str> = sequence.iter().map(|r| &*r.line).filter(|line| *line != "GET / HTTP/1.1").collect();
        assert!(others.len() >= REQUESTS / 2 - 1 && others.iter().all(|line| *line == others[0]), "{sequence:?}");
        own.push(others[0]);
    }
    own.sort_unstable();
    assert!(sent.is_empty() || own == ["GET /thread-1 HTTP/1.1", "GET /thread-2 HTTP/1.1"], "{own:?}");
}

#[test]
fn delay() {
    same("delay", "delay.lua", "/", &["1"], 0);
}

#[test]
fn pipeline() {
    let sent = same("pipeline", "pipeline.lua", "/", &["6"], 0);
    for (i, request) in sent.iter().flatten().enumerate() {
        assert_eq!(request.line, format!("GET /?request={} HTTP/1.1", i % 6 + 1));
    }
}
