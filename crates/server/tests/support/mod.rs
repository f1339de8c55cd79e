//! A server on a thread of its own, and clients that write raw bytes.
#![allow(dead_code, unreachable_pub, unused_imports)] // a module of each test file, which uses its part

mod running;

use std::time::Duration;

use oroshi_server::{Error, Exchange, Settings};
pub use oroshi_testkit::HANG;
pub use oroshi_testkit::http::{Answer, Client, Socket};
pub use running::Running;

/// Answers with what was asked: method, target, and the body's length.
pub async fn describe(exchange: &mut Exchange<'_>) -> Result<(), Error> {
    let mut length = 0;
    while let Some(piece) = exchange.body.chunk().await? {
        length += piece.len();
    }
    let text = format!("{} {} {length}", exchange.head.method, exchange.head.target);
    exchange.reply.send(200, [("Content-Type", &b"text/plain"[..])], text.as_bytes()).await
}

/// Waits for something that happens on the server's thread.
pub fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Limits that no test reaches by accident.
pub fn patient() -> Settings {
    Settings {
        idle_timeout: HANG * 2,
        head_timeout: HANG * 2,
        body_timeout: HANG * 2,
        write_timeout: HANG * 2,
        linger_timeout: HANG * 2,
        ..Settings::default()
    }
}

/// Short enough to wait for.
pub const SHORT: Duration = Duration::from_millis(50);
