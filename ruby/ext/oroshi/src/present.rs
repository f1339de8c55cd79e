//! The exchange that the application works on at the moment, as the Ruby objects that it was given reach it: the input
//! that is read on demand, the socket that is given away, the body that is written piece by piece.
//!
//! There is one, for one thread serves. Each request has a number, and whoever comes with an old one (or with the hijack
//! object of an old one) is refused: never does a late call reach another request's socket.

use std::io;

use magnus::{Error, Ruby};
use oroshi_http1::Limits;
use rb_sys::VALUE;

use crate::connection::Connection;
use crate::request::{BodyError, Spool, gather};
use crate::socket;
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
    pub(crate) lazy: Lazy,
    pub(crate) stream: Option<Stream>,
}

/// The state of a body that is read when the application asks for it.
#[derive(Debug, Default)]
pub(crate) enum Lazy {
    /// There is none.
    #[default]
    None,
    /// The client waits for a 100 (RFC 9110 section 10.1.1).
    Untouched,
    /// It is being read.
    Reading(Spool),
    /// It was read to its end.
    Read,
    /// It could not be read: the status that says so.
    Failed(u16),
}

impl Lazy {
    /// Whether bytes of the body may still come.
    pub(crate) fn is_unread(&self) -> bool {
        !matches!(self, Lazy::None | Lazy::Read)
    }
}

/// What reading on has come to.
pub(crate) enum Reading {
    /// Everything is here.
    Done(Spool),
    /// More must be waited for, on this socket.
    More(i32),
    /// It cannot be read.
    Failed(String),
}

impl Present {
    /// Reads on in the body, telling the client to send it first.
    pub(crate) fn read_on(&mut self, limits: &Limits, memory_bytes: usize) -> Reading {
        let Some(connection) = &mut self.connection else {
            return Reading::Failed("the connection was given away".to_owned());
        };
        if let Lazy::Untouched = self.lazy {
            if let Err(error) = connection.output.send(connection.number(), [&b"HTTP/1.1 100 Continue\r\n\r\n"[..]]) {
                return self.fail(400, format!("the client has gone: {error}"));
            }
            self.lazy = Lazy::Reading(Spool::new(memory_bytes));
        }
        let Lazy::Reading(spool) = &mut self.lazy else {
            return Reading::Failed("the body was read, or could not be".to_owned());
        };
        let mut buffer = [0; 16 * 1024];
        loop {
            let received = match socket::receive(connection.number(), &mut buffer) {
                Ok(0) => return self.fail(400, "the client closed the connection within the body".to_owned()),
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Reading::More(connection.number()),
                Err(error) => return self.fail(400, format!("the connection broke within the body: {error}")),
            };
            connection.input.extend_from_slice(&buffer[..received]);
            let input = std::mem::take(&mut connection.input);
            let mut rest = &input[..];
            match gather(&mut connection.decoder, limits, &mut rest, spool) {
                Ok(complete) => {
                    connection.input = rest.to_vec();
                    if complete {
                        let Lazy::Reading(spool) = std::mem::replace(&mut self.lazy, Lazy::Read) else {
                            return Reading::Failed("the body was read".to_owned());
                        };
                        return Reading::Done(spool);
                    }
                }
                Err(BodyError::Bad(error)) => return self.fail(error.status(), format!("the body is broken: {error}")),
                Err(BodyError::Spool(error)) => return self.fail(500, format!("the body cannot be stored: {error}")),
            }
        }
    }

    /// The client took too long.
    pub(crate) fn time_out(&mut self) {
        self.lazy = Lazy::Failed(408);
    }

    fn fail(&mut self, status: u16, why: String) -> Reading {
        self.lazy = Lazy::Failed(status);
        Reading::Failed(why)
    }
}

/// The error for calls that come too late.
pub(crate) fn too_late(ruby: &Ruby, what: &str) -> Error {
    Error::new(ruby.exception_io_error(), format!("{what}: its request is over"))
}
