//! Gives sockets away: `rack.hijack` of the environment (full), `rack.hijack` of the answer (partial), and the stream
//! of a body that responds to `call` (Rack 3).
//!
//! The object in the environment is new for each request and has no state; it works only during that request.

use std::os::fd::IntoRawFd as _;

use magnus::{Error, Module as _, RClass, Ruby, Value, value::ReprValue as _};

use crate::connection::Connection;
use crate::poll::{Interest, remove_from};
use crate::present::{find, too_late};
use crate::rb;

/// `Oroshi::Native::Hijack#call`: gives the socket to the application; the server leaves the connection.
pub(crate) fn call(ruby: &Ruby, hijack: Value) -> Result<Value, Error> {
    let late = || too_late(ruby, "rack.hijack cannot be called any more");
    let worker = find(|present| present.hijack == rb::raw(hijack)).ok_or_else(late)?;
    let (connection, env, poll) = {
        let mut present = worker.present.try_borrow_mut().map_err(|_| late())?;
        if present.hijack != rb::raw(hijack) || present.connection.is_none() {
            return Err(late());
        }
        if !worker.right.claim() {
            return Err(Error::new(ruby.exception_io_error(), "rack.hijack: the client was given a 504 already"));
        }
        let connection = present.connection.take().ok_or_else(late)?;
        present.hijacked = true;
        (connection, present.env, present.poll)
    };
    let io = as_io(ruby, *connection, poll)?;
    if env != 0 {
        // SAFETY: the environment's Hash, which the calling application holds.
        rb::protect(|| unsafe { rb_sys::rb_hash_aset(env, rb::interned("rack.hijack_io"), rb::raw(io)) })?;
    }
    Ok(io)
}

/// Returns a connection's socket as a Ruby socket, removed from the epoll set `poll`. It first yields the bytes that
/// were read already.
pub(crate) fn as_io(ruby: &Ruby, mut connection: Connection, poll: i32) -> Result<Value, Error> {
    if connection.interest != Interest::None {
        remove_from(poll, connection.number());
    }
    let name = if connection.peer.is_some() { "TCPSocket" } else { "UNIXSocket" };
    let input = std::mem::take(&mut connection.input);
    let class: RClass = ruby.class_object().const_get(name)?;
    let io: Value = class.funcall("for_fd", (connection.into_socket().into_raw_fd(),))?;
    if !input.is_empty() {
        io.funcall::<_, _, Value>("ungetbyte", (ruby.str_from_slice(&input),))?;
    }
    Ok(io)
}
