//! What the tests of this folder share: runs whose ledger is checked ([`load`]), and the peers that they meet
//! ([`peer`]).
#![allow(dead_code, unreachable_pub, reason = "a module of each test file, which uses its part")]

pub mod hub;
pub mod load;
pub mod nginx;
pub mod peer;
pub mod tls;

use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

/// A test that hangs fails by this. No other test depends on it.
pub const HANG: Duration = Duration::from_secs(60);

/// The standard answer.
pub const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
/// The same, as the connection's last.
pub const OK_CLOSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";

/// Waits for something that is sure to happen, and that nobody will tell.
#[track_caller]
pub fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !happened() {
        assert!(begun.elapsed() < HANG, "still not so: {what}");
        std::thread::yield_now();
    }
}

/// Tells whoever runs the tests that this one was left out, and why.
#[allow(clippy::print_stderr, reason = "for whoever runs this test alone")]
pub fn skipped(name: &str, why: &str) {
    let line = format!("skipped: {name}: {why}\n");
    eprint!("{line}");
    if let Some(path) = std::env::var_os("OROSHI_SKIPPED") {
        let mut file = std::fs::OpenOptions::new().append(true).open(path).expect("OROSHI_SKIPPED names a file");
        file.write_all(line.as_bytes()).expect("a line in OROSHI_SKIPPED");
    }
}

/// One ignored test of this binary, as a process of its own, started by `wrapper` (a command that runs the command that
/// follows it; empty: directly).
pub fn in_a_process(wrapper: &[&str], test: &str) -> Command {
    let this = std::env::current_exe().unwrap();
    let mut words = wrapper.iter().map(std::ffi::OsString::from).chain([this.into()]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words).args(["--ignored", "--exact", "--nocapture", "--test-threads=1", test]);
    command
}

/// Runs such a command to its end, which must be a success of exactly one test.
#[track_caller]
pub fn must_pass(mut command: Command) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{}\n{text}\n{errors}", output.status);
}
