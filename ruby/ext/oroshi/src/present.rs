//! The exchange that the application currently works on, for its Ruby objects: the socket to give away, the body in
//! pieces.
//!
//! There is one, because one thread serves. Each request has a number. A caller with an old number, or an old hijack
//! object, is refused, so a late call never reaches another request's socket.

use magnus::{Error, Ruby};
use rb_sys::VALUE;

use crate::connection::Connection;
use crate::stream::Stream;

/// The current exchange.
#[derive(Debug, Default)]
pub(crate) struct CurrentExchange {
    /// Counts requests; late callers have an old number.
    pub(crate) number: u64,
    /// The connection, while the application works and it has not been given away.
    pub(crate) connection: Option<Box<Connection>>,
    /// The object in `rack.hijack`. The exchange's stack keeps it alive while the application works.
    pub(crate) hijack: VALUE,
    pub(crate) hijacked: bool,
    /// The object in `rack.early_hints`, likewise; 0 without one.
    pub(crate) hints: VALUE,
    /// The environment, for `rack.hijack_io`; 0 before it exists.
    pub(crate) env: VALUE,
    /// The number of the epoll set.
    pub(crate) poll: i32,
    pub(crate) stream: Option<Stream>,
}

/// Returns the error for calls that come too late.
pub(crate) fn too_late(ruby: &Ruby, what: &str) -> Error {
    Error::new(ruby.exception_io_error(), format!("{what}: its request is over"))
}
