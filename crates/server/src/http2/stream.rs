//! A stream: the state of one exchange that its handler and the connection's task share.
//!
//! Received bytes wait here until the handler takes them; only then the peer may send as many again. Bytes of the
//! answer go into the connection's output at once while there is room and the windows are open. Otherwise they wait
//! here, and the connection's task sends them in turn with other streams.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use oroshi_core::{Deadline, Expire, spares};
use oroshi_http1::{Headers, check, encode};
use oroshi_http2::{EncodedResponse, ErrorCode, SendError};
use tokio::task::AbortHandle;

use super::Shared;
use crate::error::{Error, Wait};
use crate::reply::{is_managed, unsendable};
use crate::transport::Progress;
use crate::wire::Wire;

/// The most bytes that a stream sends before other streams have their turn.
const TURN_BYTES: usize = 16 * 1024;

/// The most bytes of an answer that wait in a stream; a handler's `write` waits beyond them.
const QUEUE_BYTES: usize = 32 * 1024;

/// The waiting bytes at which a handler may write again.
const ROOM_BYTES: usize = 16 * 1024;

/// A stream of a connection, from its request to the end of its answer.
pub(crate) struct Stream {
    shared: Rc<Shared>,
    id: Cell<u32>,
    slot: usize,
    pub(crate) progress: Progress,
    is_tunnel: Cell<bool>,
    received: RefCell<Vec<u8>>,
    /// Whether the peer has ended its side.
    received_end: Cell<bool>,
    trailers: RefCell<Vec<(String, Vec<u8>)>>,
    /// Received bytes whose window was not given back.
    ungranted: Cell<usize>,
    /// The wait of the handler for bytes of the peer.
    reader: Deadline,
    queue: RefCell<Queue>,
    sending: Cell<Sending>,
    /// Whether the connection's task will let the queue send.
    pub(super) is_listed: Cell<bool>,
    /// The wait for the peer to open a window, with the waker of a handler that waits for room.
    writer: Deadline,
    /// The task that copies between this stream and the pair of sockets that the handler got.
    handed_off: RefCell<Option<AbortHandle>>,
}

/// Bytes of the answer that wait.
#[derive(Debug, Default)]
struct Queue {
    bytes: Vec<u8>,
    sent: usize,
    /// Whether the answer ends behind these bytes.
    end: bool,
    /// Checked field lines.
    trailers: Vec<u8>,
}

impl Queue {
    fn waiting(&self) -> usize {
        self.bytes.len() - self.sent
    }

    fn add(&mut self, piece: &[u8]) {
        if self.bytes.capacity() == 0 {
            self.bytes = spares::take();
        }
        // The sent part goes before the buffer grows, and the buffer doubles up to the limit only: a peer that takes
        // some of every answer would else make each stream hold twice as much as waits.
        if self.bytes.len() + piece.len() > self.bytes.capacity() {
            self.bytes.drain(..std::mem::take(&mut self.sent));
        }
        if self.bytes.len() + piece.len() > self.bytes.capacity() {
            let doubled = (2 * self.bytes.capacity()).min(QUEUE_BYTES);
            let wanted = doubled.max(self.bytes.len() + piece.len());
            self.bytes.reserve_exact(wanted - self.bytes.len());
        }
        self.bytes.extend_from_slice(piece);
    }

    fn release(&mut self) {
        self.sent = 0;
        spares::give(std::mem::take(&mut self.bytes));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    Open,
    /// All of the answer is in the connection's output.
    Ended,
    /// The stream was reset.
    Cut,
}

/// A request that begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    pub(super) id: u32,
    /// Whether the request has no body.
    pub(super) end: bool,
    pub(super) is_tunnel: bool,
}

impl Stream {
    pub(super) fn new(shared: &Rc<Shared>, slot: usize) -> Self {
        Stream {
            shared: Rc::clone(shared),
            id: Cell::new(0),
            slot,
            progress: Progress::default(),
            is_tunnel: Cell::new(false),
            received: RefCell::default(),
            received_end: Cell::new(false),
            trailers: RefCell::default(),
            ungranted: Cell::new(0),
            reader: Deadline::default(),
            queue: RefCell::default(),
            sending: Cell::new(Sending::Open),
            is_listed: Cell::new(false),
            writer: Deadline::default(),
            handed_off: RefCell::default(),
        }
    }

    /// Makes an unused stream the next request's.
    pub(super) fn begin(&self, Begun { id, end, is_tunnel }: Begun) {
        self.id.set(id);
        self.is_tunnel.set(is_tunnel);
        self.received_end.set(end);
        self.trailers.take();
        self.sending.set(Sending::Open);
    }

    /// Frees what the stream holds, at its end.
    pub(super) fn end(&self) {
        if let Some(task) = self.handed_off.take() {
            task.abort();
        }
        spares::give(self.received.take());
        let mut queue = self.queue.borrow_mut();
        queue.release();
        (queue.end, queue.trailers) = (false, Vec::new());
        drop(queue);
        self.grant(self.ungranted.get());
        let (id, ended) = (self.id.get(), self.received_end.get());
        if !ended || self.sending.get() == Sending::Open {
            // After a whole answer the rest of the request is not needed (RFC 9113 section 8.1).
            let code = if self.sending.get() == Sending::Ended { ErrorCode::NO_ERROR } else { ErrorCode::CANCEL };
            self.shared.send(|codec, out| codec.reset(out, id, code));
        }
        self.sending.set(Sending::Cut);
        self.reader.reset();
        self.writer.reset();
    }

    pub(crate) fn wire(&self) -> &Wire {
        &self.shared.wire
    }

    pub(super) fn id(&self) -> u32 {
        self.id.get()
    }

    pub(super) fn slot(&self) -> usize {
        self.slot
    }

    /// Whether the request is a CONNECT: a 2xx opens a tunnel.
    pub(crate) fn is_tunnel(&self) -> bool {
        self.is_tunnel.get()
    }

    /// Whether nothing is left to send, and no other task uses the stream.
    pub(super) fn is_over(&self) -> bool {
        self.sending.get() != Sending::Open && self.handed_off.borrow().is_none()
    }

    /// Whether the whole answer is in the connection's output.
    pub(super) fn is_answered(&self) -> bool {
        self.sending.get() == Sending::Ended
    }

    /// Closes the connection after the exchanges in progress.
    pub(super) fn close_connection(&self) {
        self.shared.closes.set(true);
    }

    /// Ends the stream early.
    pub(crate) fn reset(&self, code: ErrorCode) {
        let id = self.id.get();
        self.shared.send(|codec, out| codec.reset(out, id, code));
        self.sending.set(Sending::Cut);
    }
}

/// The request's body.
impl Stream {
    /// Keeps received bytes for the handler.
    pub(super) fn take_in(&self, data: &[u8], end: bool) {
        let mut received = self.received.borrow_mut();
        if received.capacity() == 0 && !data.is_empty() {
            *received = spares::take();
        }
        received.extend_from_slice(data);
        self.ungranted.set(self.ungranted.get() + data.len());
        self.received_end.set(end);
        self.reader.wake();
    }

    pub(super) fn take_in_trailers(&self, fields: Headers<'_>) {
        let owned = fields.iter().map(|field| (field.name.to_owned(), field.value.to_owned()));
        *self.trailers.borrow_mut() = owned.collect();
        self.received_end.set(true);
        self.reader.wake();
    }

    /// Waits for bytes of the body, until tick `due`. Returns how many there are; 0 at the end.
    pub(crate) async fn receive(&self, due: u64) -> Result<usize, Error> {
        let mut waiting = false;
        poll_fn(|context| {
            let count = self.received.borrow().len();
            if count > 0 || self.received_end.get() {
                self.reader.clear();
                return Poll::Ready(Ok(count));
            }
            if !waiting {
                waiting = true;
                self.shared.set_deadline(&self.reader, due);
            }
            if self.reader.poll_over(self.shared.wire.core().now(), context) {
                self.reader.clear();
                return Poll::Ready(Err(Error::Timeout(Wait::Body)));
            }
            Poll::Pending
        })
        .await
    }

    /// Lets the peer send as many bytes as `piece` has, and replaces it with the bytes that have come since.
    pub(crate) fn consume(&self, piece: &mut Vec<u8>) {
        self.grant(piece.len());
        let next = self.received.take();
        spares::give(std::mem::replace(piece, next));
    }

    /// As [`receive`](Self::receive), without a deadline.
    pub(super) fn poll_receive(&self, context: &Context<'_>) -> Poll<usize> {
        let count = self.received.borrow().len();
        if count > 0 || self.received_end.get() {
            return Poll::Ready(count);
        }
        self.reader.enrol(context);
        Poll::Pending
    }

    /// Returns the trailers if the body has ended and was taken.
    pub(crate) fn take_trailers(&self) -> Option<Vec<(String, Vec<u8>)>> {
        (self.received_end.get() && self.received.borrow().is_empty()).then(|| self.trailers.take())
    }

    fn grant(&self, count: usize) {
        if count > 0 {
            self.ungranted.set(self.ungranted.get().saturating_sub(count));
            let id = self.id.get();
            self.shared.send(|codec, out| codec.grant(out, id, count));
        }
    }
}

/// The answer.
impl Stream {
    /// Sends the head of an answer. `length`: the value of Content-Length. `date`: a missing Date is added. `end`: the
    /// head is the whole answer.
    pub(crate) fn head<'f>(
        &self,
        status: u16,
        fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
        length: Option<u64>,
        date: bool,
        end: bool,
    ) -> Result<(), Error> {
        let (today, digits) = (self.shared.wire.core().date(), length.map(Digits::of));
        let (has_date, current) = (Cell::new(false), Cell::new(""));
        let given = fields.into_iter().map(|(name, value)| {
            current.set(name);
            has_date.set(has_date.get() || name.eq_ignore_ascii_case("date"));
            // The codec refuses the empty name.
            (if is_managed(name) { "" } else { name }, value)
        });
        let mut own = 0;
        let own = std::iter::from_fn(|| {
            own += 1;
            if own == 1 && date && !has_date.get() {
                return Some(("date", &today[..]));
            }
            let digits = digits.as_ref().filter(|_| own <= 2)?;
            own = 2;
            Some(("content-length", digits.as_bytes()))
        });
        let id = self.id.get();
        let sent = self.shared.send(|codec, out| codec.send_response(out, id, status, given.chain(own), end));
        self.check(sent, current.get())?;
        if end {
            self.sending.set(Sending::Ended);
        }
        Ok(())
    }

    /// Sends the head of an answer that is encoded. `end`: the head is the whole answer.
    pub(crate) fn encoded_head(&self, head: &EncodedResponse, end: bool) -> Result<(), Error> {
        let id = self.id.get();
        let sent = self.shared.send(|codec, out| codec.send_encoded_response(out, id, head, end));
        self.check(sent, "")?;
        if end {
            self.sending.set(Sending::Ended);
        }
        Ok(())
    }

    /// Sends an interim answer.
    pub(crate) fn inform<'f>(
        &self,
        status: u16,
        fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
    ) -> Result<(), Error> {
        let mut current = "";
        let fields = fields.into_iter().map(|(name, value)| {
            current = name;
            (if is_managed(name) { "" } else { name }, value)
        });
        let id = self.id.get();
        let sent = self.shared.send(|codec, out| codec.send_response(out, id, status, fields, false));
        self.check(sent, current)
    }

    fn check(&self, sent: Result<(), SendError>, field: &str) -> Result<(), Error> {
        match sent {
            Ok(()) => Ok(()),
            Err(SendError::Encode(error)) => Err(unsendable(error, field)),
            Err(_) => Err(self.gone()),
        }
    }

    /// Sends a piece of the body, and waits while the peer does not keep up. `end`: it is the last one.
    pub(crate) async fn write(&self, piece: &[u8], end: bool) -> Result<(), Error> {
        if end && piece.is_empty() && self.sending.get() == Sending::Ended {
            return Ok(());
        }
        let mut left = Some(piece);
        poll_fn(|context| {
            while let Some(piece) = left {
                let taken = self.give(piece, end, QUEUE_BYTES)?;
                if taken == piece.len() {
                    left = None;
                    break;
                }
                left = Some(&piece[taken..]);
                ready!(self.poll_room(context))?;
            }
            // After the end the connection's task needs no handler.
            if end { Poll::Ready(Ok(())) } else { self.poll_room(context) }
        })
        .await
    }

    /// Sends a piece of the body, or keeps it. The caller must limit what is kept, by [`poll_room`](Self::poll_room).
    pub(crate) fn push(&self, piece: &[u8]) -> Result<(), Error> {
        self.give(piece, false, usize::MAX).map(|_| ())
    }

    /// Ready once few bytes wait.
    pub(crate) fn poll_room(&self, context: &Context<'_>) -> Poll<Result<(), Error>> {
        self.poll_waiting(ROOM_BYTES, context)
    }

    /// Ready once no bytes wait.
    pub(crate) fn poll_sent(&self, context: &Context<'_>) -> Poll<Result<(), Error>> {
        self.poll_waiting(0, context)
    }

    fn poll_waiting(&self, most: usize, context: &Context<'_>) -> Poll<Result<(), Error>> {
        if self.queue.borrow().waiting() <= most {
            return Poll::Ready(Ok(()));
        }
        if self.sending.get() == Sending::Cut {
            return Poll::Ready(Err(self.gone()));
        }
        self.writer.enrol(context);
        Poll::Pending
    }

    /// Ends the answer.
    pub(crate) fn finish<'f>(&self, trailers: impl IntoIterator<Item = (&'f str, &'f [u8])>) -> Result<(), Error> {
        let mut lines = Vec::new();
        for (name, value) in trailers {
            if check::is_forbidden_trailer(name) {
                return Err(Error::Header(name.to_owned()));
            }
            encode::header(&mut lines, name, value).map_err(|error| unsendable(error, name))?;
        }
        match self.sending.get() {
            Sending::Ended => return Ok(()),
            Sending::Cut => return Err(self.gone()),
            Sending::Open => {}
        }
        let mut queue = self.queue.borrow_mut();
        (queue.end, queue.trailers) = (true, lines);
        let at_once = queue.waiting() == 0;
        drop(queue);
        if at_once {
            self.pump();
        } else {
            self.shared.list(self);
        }
        Ok(())
    }

    /// Sends or keeps a piece, while less than `most` bytes wait. Returns the number of bytes taken.
    fn give(&self, piece: &[u8], end: bool, most: usize) -> Result<usize, Error> {
        if self.sending.get() != Sending::Open {
            return Err(self.gone());
        }
        let mut queue = self.queue.borrow_mut();
        let (id, mut taken) = (self.id.get(), 0);
        let room = self.shared.room();
        if queue.waiting() == 0 && room > 0 {
            // No other stream waits for its turn.
            let first = &piece[..piece.len().min(room.max(TURN_BYTES))];
            let ends = end && first.len() == piece.len();
            let sent = self.shared.send(|codec, out| codec.send_data(out, id, first, ends));
            taken = sent.map_err(|_| self.gone())?;
            if taken == piece.len() {
                if end {
                    self.sending.set(Sending::Ended);
                }
                return Ok(taken);
            }
        }
        let rest = &piece[taken..];
        let kept = &rest[..rest.len().min(most.saturating_sub(queue.waiting()))];
        queue.add(kept);
        taken += kept.len();
        queue.end |= end && taken == piece.len();
        drop(queue);
        self.shared.list(self);
        Ok(taken)
    }

    /// Sends waiting bytes, as many as one turn allows. Returns whether more can be sent now.
    pub(super) fn pump(&self) -> bool {
        if self.sending.get() != Sending::Open {
            return false;
        }
        let mut queue = self.queue.borrow_mut();
        let (id, waiting) = (self.id.get(), &queue.bytes[queue.sent..]);
        let piece = &waiting[..waiting.len().min(TURN_BYTES)];
        let (length, is_last) = (piece.len(), piece.len() == waiting.len());
        let ends = is_last && queue.end && queue.trailers.is_empty();
        let Ok(sent) = self.shared.send(|codec, out| codec.send_data(out, id, piece, ends)) else {
            self.sending.set(Sending::Cut);
            return false;
        };
        queue.sent += sent;
        if sent > 0 {
            self.writer.clear();
        }
        if sent < length && !self.writer.is_set() {
            let core = self.shared.wire.core();
            self.shared.set_deadline(&self.writer, core.now().saturating_add(core.ticks.write));
        }
        if is_last && sent == length {
            queue.release();
            if queue.end {
                if !ends {
                    let fields = Headers::from_checked_lines(&queue.trailers);
                    let fields = fields.iter().map(|field| (field.name, field.value));
                    let ended = self.shared.send(|codec, out| codec.send_trailers(out, id, fields));
                    if ended.is_err() {
                        // A field that HTTP/2 refuses: the answer ends without trailers.
                        let _ = self.shared.send(|codec, out| codec.send_data(out, id, b"", true));
                    }
                }
                self.sending.set(Sending::Ended);
            }
        }
        if queue.waiting() <= ROOM_BYTES {
            self.writer.wake();
        }
        !is_last && sent == length
    }

    /// Whether bytes wait, or the end of the answer.
    pub(super) fn has_waiting(&self) -> bool {
        let queue = self.queue.borrow();
        queue.waiting() > 0 || queue.end && self.sending.get() == Sending::Open
    }

    /// Wakes the handler if its wait for the body is over. Returns the next deadline, and whether the peer has opened
    /// no window for too long.
    pub(super) fn expire(&self, now: u64) -> (u64, bool) {
        let due = self.reader.expire(now);
        (due.min(self.writer.due()), self.writer.is_over(now))
    }

    /// Whether the stream has another owner than its handler.
    pub(crate) fn is_handed_off(&self) -> bool {
        self.handed_off.borrow().is_some()
    }

    /// Notes the task that copies between the stream and its next owner.
    pub(super) fn set_handed_off(&self, task: AbortHandle) {
        *self.handed_off.borrow_mut() = Some(task);
    }

    /// Notes that this task ends. `whole`: the answer has its end.
    pub(super) fn end_hand_off(&self, whole: bool) {
        self.handed_off.take();
        if !whole {
            self.reset(ErrorCode::CANCEL);
        }
        self.shared.ready.mark(self.slot);
        self.shared.ready.wake_task();
    }

    fn gone(&self) -> Error {
        Error::Io(io::ErrorKind::ConnectionReset.into())
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Stream")
            .field("id", &self.id)
            .field("progress", &self.progress)
            .field("received_end", &self.received_end)
            .field("sending", &self.sending)
            .finish_non_exhaustive()
    }
}

/// A number in decimal digits.
#[derive(Debug)]
struct Digits {
    bytes: [u8; 20],
    start: usize,
}

impl Digits {
    fn of(mut number: u64) -> Self {
        let mut digits = Digits { bytes: [0; 20], start: 20 };
        loop {
            digits.start -= 1;
            digits.bytes[digits.start] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return digits;
            }
        }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_digits() {
        for number in [0, 9, 10, 1234, u64::MAX] {
            assert_eq!(Digits::of(number).as_bytes(), number.to_string().as_bytes());
        }
    }
}
