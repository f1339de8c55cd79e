//! Helpers that the tests of several crates share. Only dev-dependencies name this crate.
//!
//! It knows how to start and end programs that others wrote, how to speak HTTP and WebSocket byte by byte, and how to
//! wait for an event. It depends on the lowest crates alone (`http1`, `http2`, `net`, `websocket`), so that every
//! crate's tests can use it. Helpers that need more than these stay with the tests of their crate.
//!
//! In reading order:
//! - [`skipped`] notes a test that was left out; [`need`] and [`find`] look for programs;
//! - [`wait`]: waiting for an event; [`HANG`] is the only limit on time;
//! - [`isolated`]: a test in a process of its own; [`process`]: a command, and the lines that it prints; [`pty`]: a
//!   command on a terminal;
//! - [`ports`]: addresses that no other test gets; [`tls`]: certificates;
//! - [`daemon`]: a server with a unix socket, killed, frozen and restarted; [`nginx`], [`stores`], [`nats`]: servers
//!   that are daemons;
//! - [`chromium`]: a browser; [`http`] and [`websocket`]: clients; [`http2`]: a client and a server; [`head`]: a parsed
//!   request head;
//! - [`conformance`]: the conformance table of `http1`; [`corpus`]: the committed corpora of the fuzz targets.
#![allow(clippy::missing_panics_doc, clippy::new_without_default, reason = "a helper fails the test that calls it")]

pub mod chromium;
pub mod conformance;
pub mod corpus;
pub mod daemon;
pub mod head;
pub mod http;
pub mod http2;
pub mod isolated;
pub mod nats;
pub mod nginx;
pub mod ports;
pub mod process;
pub mod pty;
pub mod stores;
pub mod tls;
pub mod wait;
pub mod websocket;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

pub use daemon::Daemon;
pub use isolated::{in_a_process, must_pass};
pub use ports::Port;
pub use process::Process;
pub use tls::Identity;
pub use wait::{bounded, wait_for, wait_until};

/// How long a test waits for an event before it fails. No test depends on the value: it only ends a test that hangs.
pub const HANG: Duration = Duration::from_secs(60);

/// Notes that a test was left out, and why: on standard error, and as a line of the file that `OROSHI_SKIPPED` names.
#[allow(clippy::print_stderr, reason = "for a person who runs this test alone")]
pub fn skipped(test: &str, why: &str) {
    let line = format!("skipped: {test}: {why}\n");
    eprint!("{line}");
    if let Some(path) = std::env::var_os("OROSHI_SKIPPED") {
        let mut file = std::fs::OpenOptions::new().append(true).open(path).expect("OROSHI_SKIPPED names a file");
        // One write, as many processes append at the same time.
        file.write_all(line.as_bytes()).expect("a line in OROSHI_SKIPPED");
    }
}

/// Returns where a program is. It also looks where only the superuser's `PATH` leads.
#[must_use]
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into(), "/usr/local/sbin".into()]);
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Returns where a program is, or notes that `test` was left out because the program is missing.
pub fn need(test: &str, program: &str) -> Option<PathBuf> {
    let found = find(program);
    if found.is_none() {
        skipped(test, &format!("{program} is not installed"));
    }
    found
}

/// Returns the name by which the test harness knows a test of the calling module: `"name"` at the root of a test
/// binary, `"module::name"` in a module.
#[macro_export]
macro_rules! test_name {
    ($name:literal) => {
        $crate::isolated::without_crate(concat!(module_path!(), "::", $name))
    };
}
