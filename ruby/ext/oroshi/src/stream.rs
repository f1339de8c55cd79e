//! A body in pieces: the block given to `each`.
//!
//! A piece leaves at once, the first together with the head. Bytes that the client does not read collect in memory and
//! in temporary files (`output`). Only when both are full does the worker wait for the client.

use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use oroshi_http1::encode::{self, CHUNK_END, ChunkHead};
use rb_sys::VALUE;

use crate::client_wait::wait_raising;
use crate::connection::Connection;
use crate::head::Framing;
use crate::output::OutputLimit;
use crate::overdue::AnswerRight;
use crate::present::of_number;
use crate::rb;
use crate::worker::Worker;

/// An answer whose body comes in pieces.
#[derive(Debug)]
pub(crate) struct Stream {
    framing: Framing,
    pub(crate) status: u16,
    /// The head, until the first piece goes out with it.
    head: Vec<u8>,
    /// Body bytes so far.
    pub(crate) body_bytes: u64,
    /// Whether anything was sent.
    pub(crate) begun: bool,
    pub(crate) fault: Option<Fault>,
    /// To write to the client.
    right: &'static AnswerRight,
}

/// Why a body could not be sent to its end.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The client has gone, or does not read.
    Client,
    /// Bytes that the client does not read cannot be kept.
    Store(String),
    /// The client received a 504.
    Told,
    /// The body is longer than its Content-Length.
    TooLong,
}

/// With more bytes waiting than this, and no room, adding more waits for the reader.
const WAITING_BYTES: u64 = 1024 * 1024;

/// Pieces from this size on are sent without a copy.
const COPIED_BYTES: usize = 16 * 1024;

impl Stream {
    pub(crate) fn new(framing: Framing, status: u16, head: Vec<u8>, right: &'static AnswerRight) -> Self {
        Stream { framing, status, head, body_bytes: 0, begun: false, fault: None, right }
    }

    /// Sends a piece. True: the reader must be waited for.
    pub(crate) fn write(&mut self, connection: &mut Connection, piece: &[u8]) -> Result<bool, ()> {
        if piece.is_empty() {
            return Ok(false);
        }
        let mut piece = piece;
        if let Framing::Length(length) = self.framing {
            let left = length - self.body_bytes;
            if piece.len() as u64 > left {
                // The announced length is sent; a client would take the rest for the next answer.
                self.fault = Some(Fault::TooLong);
                piece = &piece[..left as usize];
            }
        }
        self.body_bytes += piece.len() as u64;
        let chunk = ChunkHead::new(piece.len());
        let (before, after) = match self.framing {
            Framing::Chunked => (chunk.as_bytes(), CHUNK_END),
            _ => (&b""[..], &b""[..]),
        };
        if piece.len() < COPIED_BYTES {
            for part in [before, piece, after] {
                self.head.extend_from_slice(part);
            }
            self.send(connection, [])?;
        } else {
            self.send(connection, [before, piece, after])?;
        }
        if self.fault.is_some() { Err(()) } else { Ok(self.is_full(connection)) }
    }

    /// Whether nothing should be added before the reader has read. After the last piece nothing will be.
    fn is_full(&self, connection: &Connection) -> bool {
        let over = matches!(self.framing, Framing::Length(length) if length == self.body_bytes);
        !over && connection.output.is_full() && connection.output.waiting() > WAITING_BYTES
    }

    /// Sends waiting bytes. True: still too many.
    fn go_on(&mut self, connection: &mut Connection) -> Result<bool, ()> {
        match connection.output.flush(connection.number()) {
            Ok(_) => Ok(self.is_full(connection)),
            Err(_) => {
                self.fault = Some(Fault::Client);
                Err(())
            }
        }
    }

    /// Ends the body: sends the rest. The error is in `fault`, except for a body shorter than its length.
    pub(crate) fn finish(&mut self, connection: &mut Connection) -> Result<bool, ()> {
        if self.framing == Framing::Chunked {
            self.head.extend_from_slice(encode::LAST_CHUNK);
        }
        self.send(connection, [])?;
        Ok(!matches!(self.framing, Framing::Length(length) if length != self.body_bytes))
    }

    /// Returns the buffer, for reuse.
    pub(crate) fn into_buffer(self) -> Vec<u8> {
        self.head
    }

    fn send<const N: usize>(&mut self, connection: &mut Connection, pieces: [&[u8]; N]) -> Result<(), ()> {
        if !self.begun {
            if !self.right.claim() {
                self.fault = Some(Fault::Told);
                return Err(());
            }
            self.begun = true;
        }
        let all = std::iter::once(&self.head[..]).chain(pieces);
        let sent = connection.output.send(connection.number(), all, OutputLimit::Beyond);
        self.head.clear();
        sent.map_err(|error| {
            let is_ours = error.kind() == std::io::ErrorKind::Other && error.raw_os_error().is_none();
            self.fault = Some(if is_ours { Fault::Store(error.to_string()) } else { Fault::Client });
        })
    }
}

/// Sends a piece, as the block of `each`. Raises to end the iteration once sending is pointless.
pub(crate) unsafe extern "C" fn piece(
    piece: VALUE,
    number: VALUE,
    _count: c_int,
    _arguments: *const VALUE,
    _block: VALUE,
) -> VALUE {
    // From here on exceptions leave this frame: it has nothing that needs dropping.
    let number = rb::fixnum(number).unwrap_or(-1) as u64;
    let Some(worker) = of_number(number) else { raise(c"the answer is over: no more of its body can be sent") };
    // SAFETY: a live value; `to_s` may raise.
    let text = if rb::is_string(piece) { piece } else { unsafe { rb_sys::rb_obj_as_string(piece) } };
    // SAFETY: a String on the stack; no Ruby code runs while it is sent.
    let mut progress = send(worker, number, Some(unsafe { rb::bytes(text) }));
    std::hint::black_box(&text);
    loop {
        match progress {
            Progress::Done => return rb::NIL,
            Progress::Over => raise(c"the answer is over: no more of its body can be sent"),
            Progress::Broken => raise(c"the body cannot be sent any further"),
            Progress::Full(..) if make_room(worker, number) => progress = send(worker, number, None),
            Progress::Full(socket, left_ms) => {
                if left_ms == 0 || !wait_raising(worker.slot, socket, libc::POLLOUT, left_ms) {
                    give_up(worker, number);
                    raise(c"the client does not read");
                }
                progress = send(worker, number, None);
            }
        }
    }
}

/// The result of sending.
enum Progress {
    Done,
    /// Much waits for this socket, and may wait for this many milliseconds more.
    Full(c_int, u64),
    Over,
    Broken,
}

/// Sends a piece, or waiting bytes. A panic must not cross Ruby's frames.
fn send(worker: &Worker, number: u64, piece: Option<&[u8]>) -> Progress {
    catch_unwind(AssertUnwindSafe(|| try_send(worker, number, piece))).unwrap_or(Progress::Broken)
}

fn try_send(worker: &Worker, number: u64, piece: Option<&[u8]>) -> Progress {
    let Ok(mut present) = worker.present.try_borrow_mut() else { return Progress::Over };
    let present = &mut *present;
    let (Some(connection), Some(stream)) = (&mut present.connection, &mut present.stream) else {
        return Progress::Over;
    };
    if present.number != number {
        return Progress::Over;
    }
    let full = match piece {
        // Its deadline has passed, though nothing waited for it.
        Some(_) if connection.output.is_stuck() => {
            stream.fault = Some(Fault::Client);
            Err(())
        }
        Some(piece) => stream.write(connection, piece),
        None => stream.go_on(connection),
    };
    match full {
        Ok(false) => Progress::Done,
        Ok(true) => Progress::Full(connection.number(), connection.output.deadline.left_ms()),
        Err(()) => Progress::Broken,
    }
}

/// Cuts off a client that is further behind than this one, so that the worker need not wait.
fn make_room(worker: &Worker, number: u64) -> bool {
    let Ok(present) = worker.present.try_borrow() else { return false };
    let (Some(connection), Some(watch)) = (&present.connection, worker.watch.get()) else { return false };
    present.number == number
        && catch_unwind(AssertUnwindSafe(|| watch.cut_off_one_behind(connection.output.deadline))).unwrap_or(false)
}

/// Notes that the client does not read.
fn give_up(worker: &Worker, number: u64) {
    if let Ok(mut present) = worker.present.try_borrow_mut()
        && present.number == number
        && let Some(stream) = &mut present.stream
    {
        stream.fault = Some(Fault::Client);
    }
}

fn raise(message: &'static std::ffi::CStr) -> ! {
    let text: *const c_char = message.as_ptr();
    // SAFETY: a class that is always there, and a C string. Callers have nothing that needs dropping.
    unsafe { rb_sys::rb_exc_raise(rb_sys::rb_exc_new_cstr(rb_sys::rb_eIOError, text)) }
}
