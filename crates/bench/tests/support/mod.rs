//! What the tests of this folder share: runs whose ledger is checked ([`load`]), and the peers that they meet
//! ([`peer`]).
#![allow(dead_code, unreachable_pub, unused_imports, reason = "a module of each test file, which uses its part")]

pub mod http2;
pub mod hub;
pub mod load;
pub mod nginx;
pub mod peer;

pub use oroshi_testkit::{HANG, in_a_process, must_pass, skipped, tls, wait_until};

/// The standard answer.
pub const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
/// The same, as the connection's last.
pub const OK_CLOSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
