//! `rack.early_hints`: sends `103 Early Hints` (RFC 8297) before the answer.
//!
//! The object in the environment is new for each request and has no state; it works only until the answer begins.

use magnus::{Error, Ruby, Value, value::ReprValue as _};

use crate::head;
use crate::present::{find, too_late};
use crate::rb;

/// `Oroshi::Native::EarlyHints#call(headers)`. A client that has gone is no error here: the answer will notice.
pub(crate) fn call(ruby: &Ruby, hints: Value, headers: Value) -> Result<(), Error> {
    let late = || too_late(ruby, "rack.early_hints cannot be called any more");
    let worker = find(|present| present.hints == rb::raw(hints)).ok_or_else(late)?;
    let known = worker.known;
    let plain = rb::call(known.oroshi, known.plain_headers, &[rb::raw(headers)])?;
    let mut bytes = Vec::new();
    head::begin(&mut bytes, 103, plain).map_err(|refused| {
        let why = match refused {
            head::HeaderError::Bad(why) => why,
            head::HeaderError::Odd => format!("the headers are {}; a Hash was expected", headers.inspect()),
        };
        Error::new(ruby.exception_arg_error(), format!("rack.early_hints: {why}"))
    })?;
    std::hint::black_box(&plain);
    bytes.extend_from_slice(b"\r\n");
    let mut present = worker.present.try_borrow_mut().map_err(|_| late())?;
    if present.hints != rb::raw(hints) || present.stream.is_some() {
        return Err(late());
    }
    let connection = present.connection.as_mut().ok_or_else(late)?;
    // While this writes, nobody else may: the signal handler's 504 would stand within the hints.
    if !worker.right.claim() {
        return Err(Error::new(ruby.exception_io_error(), "rack.early_hints: the client was given a 504 already"));
    }
    let sent = connection.output.send_one(connection.number(), &bytes);
    // A rest waits in front of the answer, so that a 504 cannot be written any more.
    if sent.is_ok() && connection.output.is_empty() {
        worker.right.arm_again(worker.slot.serial());
    }
    Ok(())
}
