//! The exchange that the application works on at the moment, as the Ruby objects that it was given reach it: the
//! socket that is given away, the body that is written piece by piece.
//!
//! There is one, for one thread serves. Each request has a number, and whoever comes with an old one (or with the hijack
//! object of an old one) is refused: never does a late call reach another request's socket.

use magnus::{Error, Ruby};
use rb_sys::VALUE;

use crate::connection::Connection;
use crate::stream::Stream;

/// The present exchange.
#[derive(Debug, Default)]
pub(crate) struct Present {
    /// Counts requests; late callers have an old one.
    pub(crate) number: u64,
    /// The connection, while the application works and it has not been given away.
    pub(crate) connection: Option<Box<Connection>>,
    /// The object that stands in `rack.hijack`. It is alive while the application works, on the stack of the exchange.
    pub(crate) hijack: VALUE,
    pub(crate) hijacked: bool,
    /// The environment, for `rack.hijack_io`; 0 until it is made.
    pub(crate) env: VALUE,
    /// The number of the epoll set.
    pub(crate) poll: i32,
    pub(crate) stream: Option<Stream>,
}

/// The error for calls that come too late.
pub(crate) fn too_late(ruby: &Ruby, what: &str) -> Error {
    Error::new(ruby.exception_io_error(), format!("{what}: its request is over"))
}
