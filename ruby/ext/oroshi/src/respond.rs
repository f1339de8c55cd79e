//! Sends the application's answer.
//!
//! An Array of Strings, the final form of nearly every body, leaves in one send together with its head. Other bodies
//! take protected calls: files by `to_path`, bodies by `each`, sockets given away.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;

use magnus::{Error, Value, value::ReprValue as _};
use rb_sys::VALUE;

use crate::client_wait::wait_raising;
use crate::connection::{Connection, Next};
use crate::engine::Engine;
use crate::exchange::{AnswerFacts, triple};
use crate::forked;
use crate::head::{self, AppHeaders, Coding, End, Framing, HeaderError};
use crate::hijack;
use crate::output::{FileRest, OutputLimit};
use crate::rb;
use crate::stream::{Fault, Stream};

/// Up to this many bytes, head and body are copied together and sent in one piece.
const COPIED_BYTES: usize = 32 * 1024;

/// Limit for sending a head before the socket is given away.
const HEAD_MS: u64 = 1000;

/// An answer whose head has begun.
#[derive(Debug)]
struct Answer {
    status: u16,
    body: VALUE,
    from_app: AppHeaders,
    facts: AnswerFacts,
}

impl Engine<'_> {
    /// Sends the application's answer.
    pub(crate) fn respond(&mut self, connection: Box<Connection>, response: VALUE, facts: AnswerFacts) {
        match self.begin_answer(response, facts) {
            Ok(answer) => self.send_answer(connection, &answer),
            Err(error) => {
                self.close_body_of(response);
                self.failed(connection, error, facts);
            }
        }
        // The answer keeps its parts alive.
        std::hint::black_box(&response);
    }

    /// Writes the status line and the application's fields into `out`.
    fn begin_answer(&mut self, response: VALUE, facts: AnswerFacts) -> Result<Answer, Error> {
        let [status, headers, body] = triple(response).ok_or_else(|| {
            self.misuse(format!("the application answered {}; [status, headers, body] was expected", inspect(response)))
        })?;
        let status = self.status(status)?;
        let mut begun = Err(HeaderError::Odd);
        let mut plain = headers;
        if rb::is_hash(headers) {
            self.out.clear();
            begun = head::begin(&mut self.out, status, headers);
        }
        if let Err(HeaderError::Odd) = begun {
            plain = rb::call(self.worker.known.oroshi, self.worker.known.plain_headers, &[headers])?;
            self.out.clear();
            begun = head::begin(&mut self.out, status, plain);
        }
        let from_app = begun.map_err(|refused| match refused {
            HeaderError::Bad(why) => self.misuse(why),
            HeaderError::Odd => self.misuse(format!("the headers are {}; a Hash was expected", inspect(headers))),
        })?;
        std::hint::black_box(&plain);
        if status < 200 && !(status == 101 && facts.http11) {
            return Err(self.misuse(format!("the status is {status}, which ends no request; 200 to 999 does")));
        }
        if status == 101
            && from_app.hijack == rb::NIL
            && (facts.head_only || !rb::responds(body, self.worker.known.call)?)
        {
            let message = "the status is 101, but nobody takes the connection over; rack.hijack in the headers or a \
                           body with call was expected";
            return Err(self.misuse(message.to_owned()));
        }
        Ok(Answer { status, body, from_app, facts })
    }

    /// Returns the status code: an Integer, or what converts to one.
    fn status(&self, given: VALUE) -> Result<u16, Error> {
        let number = match rb::fixnum(given) {
            Some(number) => number,
            None => rb::value(given).funcall::<_, _, i64>("to_i", ())?,
        };
        u16::try_from(number).ok().filter(|status| (100..1000).contains(status)).ok_or_else(|| {
            self.misuse(format!("the status is {}; an Integer from 200 to 999 was expected", inspect(given)))
        })
    }

    fn send_answer(&mut self, connection: Box<Connection>, answer: &Answer) {
        if answer.from_app.hijack != rb::NIL {
            return self.give_away(connection, answer, Some(answer.from_app.hijack));
        }
        if answer.status == 101 {
            return self.give_away(connection, answer, None);
        }
        if answer.facts.head_only || head::is_bodiless(answer.status) {
            return self.send_head_only(connection, answer);
        }
        if rb::is_plain_array(answer.body) {
            self.send_array(connection, answer, answer.body);
        } else if let Err((connection, error)) = self.send_slowly(connection, answer) {
            self.close_body(answer.body);
            self.failed(connection, error, answer.facts);
        }
    }

    // The usual case.

    /// Sends an Array. Elements that are no Strings are sent as their `to_s`, as other servers do.
    fn send_array(&mut self, connection: Box<Connection>, answer: &Answer, strings: VALUE) {
        // SAFETY: as below.
        if unsafe { rb::elements(strings) }.iter().all(|&element| rb::is_string(element)) {
            return self.send_strings(connection, answer, strings);
        }
        match rb::call(self.worker.known.oroshi, self.worker.known.plain_body, &[strings]) {
            Ok(strings) => {
                self.send_strings(connection, answer, strings);
                std::hint::black_box(&strings);
            }
            Err(error) => self.failed(connection, error, answer.facts),
        }
    }

    /// Sends an Array of Strings.
    fn send_strings(&mut self, connection: Box<Connection>, answer: &Answer, strings: VALUE) {
        // SAFETY: the answer's body, or an Array on the stack; no Ruby code runs while it is in use.
        let elements = unsafe { rb::elements(strings) };
        let mut total = 0;
        for &element in elements {
            // SAFETY: a String of the Array.
            total += unsafe { rb::bytes(element) }.len();
        }
        if total > COPIED_BYTES {
            self.make_room_for_answer(total);
        }
        let framing = answer.from_app.coding.map_or(Framing::Length(total as u64), Framing::Own);
        let (mut connection, next) = self.finish_head(connection, answer, framing);
        if !self.worker.right.claim() {
            return self.told(connection);
        }
        self.worker.log.borrow_mut().end(answer.status, total as u64);
        // SAFETY: as above: nothing since has run Ruby code that could change the Array or its Strings.
        let bytes = elements.iter().map(|&element| unsafe { rb::bytes(element) });
        let sent = if self.out.len() + total <= COPIED_BYTES {
            bytes.for_each(|piece| self.out.extend_from_slice(piece));
            connection.output.send_one(connection.number(), &self.out)
        } else {
            connection.output.send(
                connection.number(),
                std::iter::once(&self.out[..]).chain(bytes),
                OutputLimit::Bounded,
            )
        };
        if let Some(length) = answer.from_app.length.filter(|&length| length != total as u64) {
            self.complain(&format!("Content-Length is {length}, but the body has {total} bytes; the latter was sent"));
        }
        let next = self.after(sent, next);
        self.send_off(connection, next);
    }

    /// Ends the head, and returns the connection's next state.
    fn finish_head(
        &mut self,
        connection: Box<Connection>,
        answer: &Answer,
        framing: Framing,
    ) -> (Box<Connection>, Next) {
        // An HTTP/1.0 client cannot find the end of chunks.
        let lost = framing == Framing::Own(Coding::Chunked) && !answer.facts.http11;
        let keep = answer.facts.keep && !answer.from_app.close && !framing.needs_close() && !lost;
        let next = self.next(&connection, keep);
        let end = if next == Next::Keep { End::Keep { http11: answer.facts.http11 } } else { End::Close };
        head::finish(&mut self.out, &answer.from_app, &mut self.date, framing, end);
        (connection, next)
    }

    fn send_head_only(&mut self, connection: Box<Connection>, answer: &Answer) {
        let bodiless = head::is_bodiless(answer.status);
        let framing = match (answer.from_app.coding, answer.from_app.length) {
            _ if bodiless => Framing::None,
            (Some(Coding::Chunked), _) => Framing::Own(Coding::Chunked),
            // Without a body, even a coding that ends with the connection need not close it.
            (Some(Coding::Other), _) => Framing::None,
            (None, Some(length)) => Framing::Length(length),
            (None, None) => array_length(answer.body).map_or(Framing::None, Framing::Length),
        };
        let (mut connection, next) = self.finish_head(connection, answer, framing);
        if !self.worker.right.claim() {
            self.close_body(answer.body);
            return self.told(connection);
        }
        self.worker.log.borrow_mut().end(answer.status, 0);
        let sent = connection.output.send_one(connection.number(), &self.out);
        self.close_body(answer.body);
        let next = self.after(sent, next);
        self.send_off(connection, next);
    }

    // The other cases.

    /// Sends other bodies. An error means that nothing was sent, and the body is not closed yet.
    fn send_slowly(&mut self, connection: Box<Connection>, answer: &Answer) -> Result<(), (Box<Connection>, Error)> {
        let known = self.worker.known;
        let body = answer.body;
        let found = (|| -> Result<Found, Error> {
            if answer.from_app.coding.is_none() {
                if rb::responds(body, known.to_path)?
                    && let Some(file) = open_regular(rb::call(body, known.to_path, &[])?)?
                    && answer.from_app.length.is_none_or(|length| length == file.1)
                {
                    return Ok(Found::File(file.0, file.1));
                }
                if rb::responds(body, known.to_ary)? {
                    let strings = rb::call(body, known.to_ary, &[])?;
                    if rb::is_array(strings) {
                        return Ok(Found::Array(strings));
                    }
                }
            }
            Ok(match () {
                () if rb::responds(body, known.each)? => Found::Each,
                () if rb::responds(body, known.call)? => Found::Call,
                () => return Err(self.misuse(format!("the body is {}; one with each was expected", inspect(body)))),
            })
        })();
        match found {
            Err(error) => return Err((connection, error)),
            Ok(Found::File(file, length)) => {
                self.send_file(connection, answer, file, length);
                self.close_body(body);
            }
            Ok(Found::Array(strings)) => {
                self.send_array(connection, answer, strings);
                std::hint::black_box(&strings);
                // In Rack 3, `to_ary` closes its receiver.
                if self.worker.settings.rack2 {
                    self.close_body(body);
                }
            }
            Ok(Found::Each) => self.send_each(connection, answer),
            Ok(Found::Call) => self.give_away(connection, answer, None),
        }
        Ok(())
    }

    fn send_file(&mut self, connection: Box<Connection>, answer: &Answer, mut file: File, length: u64) {
        let (mut connection, next) = self.finish_head(connection, answer, Framing::Length(length));
        if !self.worker.right.claim() {
            return self.told(connection);
        }
        self.worker.log.borrow_mut().end(answer.status, length);
        let head_bytes = self.out.len();
        // A small file is read into the head's packet; if that fails, sendfile will report why.
        let small = head_bytes as u64 + length <= COPIED_BYTES as u64 && {
            self.out.resize(head_bytes + length as usize, 0);
            file.read_exact(&mut self.out[head_bytes..]).is_ok()
        };
        let sent = if small {
            connection.output.send_one(connection.number(), &self.out)
        } else {
            self.out.truncate(head_bytes);
            let rest = FileRest::of_body(file.into(), length);
            connection.output.send_file(connection.number(), &self.out, rest)
        };
        let next = self.after(sent, next);
        self.send_off(connection, next);
    }

    fn send_each(&mut self, connection: Box<Connection>, answer: &Answer) {
        let framing = match (answer.from_app.coding, answer.from_app.length) {
            (Some(coding), _) => Framing::Own(coding),
            (None, Some(length)) => Framing::Length(length),
            (None, None) if answer.facts.http11 && self.worker.settings.chunked => Framing::Chunked,
            (None, None) => Framing::Close,
        };
        let (connection, next) = self.finish_head(connection, answer, framing);
        let (token, body) = (connection.token, answer.body);
        let number = {
            let mut present = self.worker.present.borrow_mut();
            present.connection = Some(connection);
            let head = std::mem::take(&mut self.out);
            present.stream = Some(Stream::new(framing, answer.status, head, self.worker.right));
            present.number
        };
        let each = self.worker.known.each;
        let lent = self.watch.lend();
        let walked = rb::protect(|| {
            // SAFETY: the block's function has the required type; the number is far below 2^62.
            unsafe {
                let number = rb_sys::macros::ULONG2NUM(number);
                rb_sys::rb_block_call(body, each, 0, std::ptr::null(), Some(crate::stream::piece), number)
            }
        });
        drop(lent);
        let (connection, stream) = {
            let mut present = self.worker.present.borrow_mut();
            (present.connection.take(), present.stream.take())
        };
        if forked::is_child() {
            return self.leave_to_parent(walked.err());
        }
        let (Some(mut connection), Some(mut stream)) = (connection, stream) else { return self.release(token) };
        let next = match (walked, &stream.fault) {
            (_, Some(Fault::Client)) => Next::Abort,
            (_, Some(Fault::Store(why))) => {
                let why = why.clone();
                self.complain_now_and_then(&why);
                Next::Abort
            }
            (_, Some(Fault::Told)) => {
                self.out = stream.into_buffer();
                self.close_body(body);
                return self.told(connection);
            }
            (_, Some(Fault::TooLong)) => {
                self.complain("the body is longer than its Content-Length; the rest was not sent");
                Next::Close
            }
            (Ok(_), None) => match stream.finish(&mut connection) {
                Ok(true) => next,
                Ok(false) => {
                    self.complain("the body is shorter than its Content-Length; the connection was cut off");
                    Next::Abort
                }
                Err(()) => Next::Abort,
            },
            (Err(error), None) if !stream.begun => {
                self.out = stream.into_buffer();
                self.close_body(body);
                return self.failed(connection, error, answer.facts);
            }
            (Err(error), None) => {
                self.report(error);
                Next::Abort
            }
        };
        self.worker.log.borrow_mut().end(answer.status, stream.body_bytes);
        self.out = stream.into_buffer();
        self.close_body(body);
        self.send_off(connection, next);
    }

    /// Sends the head, and gives the socket to `taker`, or as a stream to the body itself.
    fn give_away(&mut self, mut connection: Box<Connection>, answer: &Answer, taker: Option<VALUE>) {
        let known = self.worker.known;
        let length = answer.from_app.length;
        let framing = match (answer.from_app.coding, length) {
            _ if answer.status == 101 || head::is_bodiless(answer.status) => Framing::None,
            (Some(coding), _) => Framing::Own(coding),
            (None, Some(length)) => Framing::Length(length),
            (None, None) if taker.is_none() && answer.facts.http11 => Framing::Chunked,
            (None, None) => Framing::Close,
        };
        let end = if answer.status == 101 { End::Switch } else { End::Close };
        head::finish(&mut self.out, &answer.from_app, &mut self.date, framing, end);
        let token = connection.token;
        let sent = self.worker.right.claim() && {
            let number = connection.number();
            connection.output.send_one(number, &self.out).is_ok() && self.wait_until_sent(&mut connection)
        };
        self.worker.log.borrow_mut().end(answer.status, 0);
        if !sent {
            self.close_body(answer.body);
            return self.close(connection, Next::Abort);
        }
        let poll = self.poll.number();
        let lent = self.watch.lend();
        let given = hijack::as_io(self.ruby, *connection, poll).and_then(|io| match taker {
            Some(taker) => {
                let called = rb::value(taker).funcall::<_, _, Value>("call", (io,));
                if called.is_err() {
                    // The socket has no owner then.
                    io.funcall::<_, _, Value>("close", ())?;
                }
                called
            }
            None => {
                let chunked = framing == Framing::Chunked;
                let stream: Value = rb::value(known.stream).funcall("new", (io, chunked, answer.facts.head_only))?;
                let called = rb::value(answer.body).funcall::<_, _, Value>("call", (stream,));
                if called.is_err() {
                    stream.funcall::<_, _, Value>("abort", ())?;
                }
                called
            }
        });
        drop(lent);
        if forked::is_child() {
            return self.leave_to_parent(given.err());
        }
        if let Err(error) = given {
            self.report(error);
        }
        self.release(token);
        self.close_body(answer.body);
    }

    /// Waits until everything is sent. A head alone never needs it.
    fn wait_until_sent(&mut self, connection: &mut Connection) -> bool {
        // There is room, unless the client does not read earlier answers.
        let timeout_ms = self.worker.settings.timeout_ms.min(HEAD_MS);
        loop {
            match connection.output.flush(connection.number()) {
                Ok(true) => return true,
                Err(_) => return false,
                Ok(false) => {}
            }
            let socket = connection.number();
            let slot = self.worker.slot;
            let room =
                rb::protect(
                    || {
                        if wait_raising(slot, socket, libc::POLLOUT, timeout_ms) { rb::TRUE } else { rb::FALSE }
                    },
                );
            match room {
                Ok(rb::TRUE) => {}
                Ok(_) => return false,
                Err(error) => {
                    self.report(error);
                    return false;
                }
            }
        }
    }

    /// Ends the exchange of a client that received a 504 during the application's call.
    pub(crate) fn told(&mut self, connection: Box<Connection>) {
        self.worker.log.borrow_mut().end(504, self.worker.right.told_bytes());
        self.close(connection, Next::Close);
    }

    fn misuse(&self, what: String) -> Error {
        Error::new(self.ruby.exception_type_error(), what)
    }
}

/// The form of a body.
enum Found {
    File(File, u64),
    Array(VALUE),
    Each,
    Call,
}

/// Returns the total length of an Array of Strings. `None` if it is empty (as for many answers to HEAD) or something
/// else.
fn array_length(body: VALUE) -> Option<u64> {
    if !rb::is_plain_array(body) {
        return None;
    }
    // SAFETY: the answer's body; no Ruby code runs while it is looked at.
    let elements = unsafe { rb::elements(body) };
    if elements.is_empty() || !elements.iter().all(|&element| rb::is_string(element)) {
        return None;
    }
    // SAFETY: as above.
    Some(elements.iter().map(|&element| unsafe { rb::bytes(element) }.len() as u64).sum())
}

/// Opens the file that a body's `to_path` names, if it is regular and has a length; otherwise `each` serves it. A pipe
/// would wait for its writer, and files in /proc have no length.
fn open_regular(path: VALUE) -> Result<Option<(File, u64)>, Error> {
    if path == rb::NIL {
        return Ok(None);
    }
    let path: magnus::RString = rb::value(path).funcall("to_s", ())?;
    // SAFETY: copied at once.
    let path = unsafe { path.as_slice() }.to_vec();
    let path = std::ffi::OsStr::from_bytes(&path);
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).and_then(|file| {
        let about = file.metadata()?;
        Ok((about.is_file() && about.len() > 0).then_some((file, about.len())))
    });
    Ok(opened.unwrap_or(None))
}

/// Describes a value for a log, shortened.
fn inspect(raw: VALUE) -> String {
    const MOST: usize = 60;
    let value = rb::value(raw);
    let text = value.inspect();
    match text.char_indices().nth(MOST) {
        // SAFETY: the name is copied at once.
        Some((end, _)) => format!("{}... (a {})", &text[..end], unsafe { value.classname() }),
        None => text,
    }
}
