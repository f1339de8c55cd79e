//! HTTP/2: many requests at once on one connection.
//!
//! `connection` is the hot path: one task per connection serves all its streams, and writes the requests of all of
//! them at once. `place`: where a stream has its request. `events`: what the server's frames mean for the requests.
//! `end`: how requests end that get no response. `request`: a request as HTTP/2 has it. `counts`: what is counted
//! beyond HTTP/1.1. The codec is `oroshi_http2`.

mod connection;
mod counts;
mod end;
mod events;
mod place;
mod request;

use std::cell::RefCell;
use std::sync::Arc;

use oroshi_http2::{Config, Grants, HeadBuffer, Limits};

pub(crate) use connection::Connection;
pub use counts::{Http2Counts, Http2Record, StreamEnds};
pub(crate) use request::Http2Request;

/// Bytes that a server may send before a grant, on a connection and on each stream: so many that no window slows it
/// down, and grants are rare.
const WINDOW: u32 = 1 << 30;

/// The state that all HTTP/2 connections of a core share.
#[derive(Debug)]
pub(crate) struct Http2Shared {
    config: Arc<Config>,
    heads: RefCell<HeadBuffer>,
}

impl Http2Shared {
    pub(crate) fn new() -> Self {
        // A load has asked for what it gets, so there are no budgets against useless frames. A dynamic table would only
        // have to be kept up to date.
        let limits = Limits { resets: u32::MAX, answered_frames: u32::MAX, idle_frames: u32::MAX, ..Limits::default() };
        let config = Config {
            limits,
            table_bytes: 0,
            stream_window: WINDOW,
            connection_window: WINDOW,
            grants: Grants::Automatic,
            ..Config::default()
        };
        Self { config: Arc::new(config), heads: RefCell::default() }
    }
}
