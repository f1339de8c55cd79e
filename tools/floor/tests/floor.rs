//! Tests the program against a server that counts: every request is complete and answered.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A server's counts.
#[derive(Default)]
struct Seen {
    connections: AtomicU64,
    requests: AtomicU64,
}

/// Answers requests on one connection, at most `limit` of them, then closes it.
fn serve(stream: impl Read + Write, seen: &Seen, limit: usize) {
    seen.connections.fetch_add(1, Relaxed);
    let mut stream = BufReader::new(stream);
    for _ in 0..limit {
        let mut close = false;
        loop {
            let mut line = String::new();
            // The client may stop anywhere when its time is over.
            if !matches!(stream.read_line(&mut line), Ok(1..)) {
                return;
            }
            close |= line == "Connection: close\r\n";
            if line == "\r\n" {
                break;
            }
        }
        seen.requests.fetch_add(1, Relaxed);
        if stream.get_mut().write_all(ANSWER).is_err() || close {
            return;
        }
    }
}

/// Starts a server on a free port; returns its address.
fn tcp(limit: usize) -> (String, Arc<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, seen) = (listener.local_addr().unwrap().to_string(), Arc::new(Seen::default()));
    let shared = Arc::clone(&seen);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let seen = Arc::clone(&shared);
            thread::spawn(move || serve(stream.unwrap(), &seen, limit));
        }
    });
    (address, seen)
}

fn floor(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_floor")).args(args).output().unwrap()
}

/// Returns the printed requests per second.
fn rate(output: &Output) -> f64 {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{err}");
    let word = out.split_whitespace().find_map(|word| word.strip_prefix("rps=")).expect(&out);
    word.parse().unwrap()
}

#[test]
fn keeps_its_connections() {
    let (address, seen) = tcp(usize::MAX);
    assert!(rate(&floor(&[&address, "3", "1"])) > 0.0);
    assert_eq!(seen.connections.load(Relaxed), 3);
    assert!(seen.requests.load(Relaxed) > 3);
}

#[test]
fn opens_one_per_request_when_asked() {
    let (address, seen) = tcp(usize::MAX);
    assert!(rate(&floor(&[&address, "3", "1", "close"])) > 0.0);
    let (connections, requests) = (seen.connections.load(Relaxed), seen.requests.load(Relaxed));
    assert!(requests > 3 && connections >= requests, "{connections} connections, {requests} requests");
}

#[test]
fn replaces_a_connection_that_the_server_ends() {
    let (address, seen) = tcp(2);
    assert!(rate(&floor(&[&address, "1", "1"])) > 0.0);
    assert!(seen.connections.load(Relaxed) > 1);
}

#[test]
fn speaks_over_a_unix_socket() {
    let path = std::env::temp_dir().join(format!("floor-test-{}.sock", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        serve(stream, &Seen::default(), usize::MAX);
    });
    let output = floor(&[path.to_str().unwrap(), "1", "1"]);
    std::fs::remove_file(&path).unwrap();
    assert!(rate(&output) > 0.0);
}

#[test]
fn says_that_nobody_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let output = floor(&[&address, "1", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is the server running?"));
}

#[test]
fn wrong_usage_is_told_apart() {
    for args in [&[][..], &["localhost:80"], &["127.0.0.1:1", "many"], &["127.0.0.1:1", "1", "-1"]] {
        let output = floor(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("usage: floor"), "{args:?}");
    }
}
