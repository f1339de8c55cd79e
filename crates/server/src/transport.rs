//! The way from an exchange to its peer: an HTTP/1 connection, or a stream of an HTTP/2 connection.

use std::cell::Cell;
use std::rc::Rc;

use crate::core::Core;
use crate::http2;
use crate::wire::Wire;

/// The way to the peer. An enum, because a call through a table would cost HTTP/1 more than this branch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transport<'a> {
    Http1(&'a Wire),
    Http2(&'a Rc<http2::Stream>),
}

impl<'a> Transport<'a> {
    /// Returns the connection.
    pub(crate) fn wire(self) -> &'a Wire {
        match self {
            Transport::Http1(wire) => wire,
            Transport::Http2(stream) => stream.wire(),
        }
    }

    pub(crate) fn core(self) -> &'a Rc<Core> {
        self.wire().core()
    }

    /// Returns the state of the exchange.
    pub(crate) fn progress(self) -> &'a Progress {
        match self {
            Transport::Http1(wire) => &wire.progress,
            Transport::Http2(stream) => &stream.progress,
        }
    }
}

/// The state of an exchange that its body and its answer share.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Whether the connection ends after this exchange.
    pub(crate) close: Cell<bool>,
    /// Whether the final answer's head is in the output or was sent.
    pub(crate) answered: Cell<bool>,
    /// Whether the peer waits for `100 Continue` before it sends its body.
    pub(crate) expecting: Cell<bool>,
    pub(crate) unread: Cell<Unread>,
}

/// The unread part of the request's body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Unread {
    #[default]
    Nothing,
    Bytes(u64),
    Unknown,
}
