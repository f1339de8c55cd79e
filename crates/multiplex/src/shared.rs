//! The state that a connection's task, handles and streams share.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Waker};

use oroshi_core::spares;
use oroshi_http2 as codec;
use oroshi_http2::{Event, SendError};
use oroshi_net::monotonic_ns;

use crate::config::{Config, OUTPUT_BYTES};
use crate::connection::Watch;
use crate::error::{ConnectionError, Error};
use crate::slots::Slots;

/// Bytes of one body that are added at a time: bodies of several streams take turns.
pub(crate) const PIECE_BYTES: usize = 16 * 1024;
/// Unwritten bytes above which no stream begins and nothing is read: answers to the peer's frames must not pile up.
pub(crate) const MOST_UNWRITTEN: usize = 256 * 1024;
/// Bytes of a GOAWAY's text that are kept.
const GOAWAY_TEXT_BYTES: usize = 128;

/// The state of a connection.
pub(crate) struct Shared {
    pub(crate) state: RefCell<State>,
    pub(crate) config: Config,
    pub(crate) watch: Box<dyn Watch>,
    pub(crate) remote: Option<SocketAddr>,
}

/// The part of it that changes.
pub(crate) struct State {
    pub(crate) codec: codec::Connection,
    /// Bytes to write, of which `written` are.
    pub(crate) out: Vec<u8>,
    pub(crate) written: usize,
    /// The position of the first byte of `out` in all output.
    base: u64,
    pub(crate) slots: Slots,
    /// Streams with a body that wait for their turn.
    writers: VecDeque<u32>,
    /// Streams that were given their turn and have not used it.
    permits: usize,
    /// Positions of the output, at which a request has been sent.
    marks: VecDeque<Mark>,
    /// Places that were given and have not begun a stream.
    pub(crate) reserved: usize,
    task: Option<Waker>,
    /// The task runs or was woken.
    awake: bool,
    pub(crate) end: Option<Arc<ConnectionError>>,
    goaway: Option<ConnectionError>,
    /// No stream may begin.
    pub(crate) closing: bool,
    /// This side's GOAWAY is in the output.
    farewell: bool,
    /// The kernel is asked before the next write.
    pub(crate) check: bool,
    /// The observer is to be told.
    pub(crate) changed: bool,
    /// The socket takes nothing at present.
    pub(crate) blocked: bool,
    pub(crate) heard_at: u64,
    pub(crate) idle_since: u64,
    /// When bytes were last written.
    pub(crate) wrote_at: u64,
    /// When the codec's budgets last got something back.
    ticked: u64,
}

/// The end of a request in the output.
struct Mark {
    /// The position of its last byte.
    at: u64,
    slot: u32,
    id: u32,
}

impl State {
    pub(crate) fn new(config: &Config) -> Self {
        let mut out = spares::take();
        let codec = codec::Connection::client(Arc::clone(&config.codec), &mut out);
        let now = monotonic_ns();
        State {
            codec,
            out,
            written: 0,
            base: 0,
            slots: Slots::default(),
            writers: VecDeque::new(),
            permits: 0,
            marks: VecDeque::new(),
            reserved: 0,
            task: None,
            // The task begins by itself.
            awake: true,
            end: None,
            goaway: None,
            closing: false,
            farewell: false,
            check: false,
            changed: false,
            blocked: false,
            heard_at: now,
            idle_since: now,
            wrote_at: 0,
            ticked: now,
        }
    }

    // The task.

    /// Notes that the task runs.
    pub(crate) fn begin_turn(&mut self, cx: &Context<'_>) {
        self.awake = true;
        if !self.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            self.task = Some(cx.waker().clone());
        }
    }

    /// Notes that the task is about to wait.
    pub(crate) fn end_turn(&mut self) {
        self.awake = false;
        if self.out.is_empty() {
            spares::give(std::mem::take(&mut self.out));
        }
    }

    /// Makes the task run, unless it does.
    #[inline]
    pub(crate) fn wake_task(&mut self) {
        if !self.awake
            && let Some(task) = &self.task
        {
            self.awake = true;
            task.wake_by_ref();
        }
    }

    /// Makes the task tell the observer of a change.
    pub(crate) fn note_change(&mut self) {
        self.changed = true;
        self.wake_task();
    }

    // Streams.

    /// Whether new streams may begin, now or later.
    pub(crate) fn is_open(&self) -> bool {
        self.end.is_none() && !self.closing && self.codec.can_open() != Err(SendError::GoingAway)
    }

    /// Returns the most streams at once.
    pub(crate) fn limit(&self, most: u32) -> usize {
        if self.codec.is_ready() { self.codec.peer().streams.min(most) as usize } else { 1 }
    }

    pub(crate) fn room(&self, most: u32) -> usize {
        if !self.is_open() || self.unwritten() > MOST_UNWRITTEN {
            return 0;
        }
        self.limit(most).saturating_sub(self.under_way())
    }

    pub(crate) fn under_way(&self) -> usize {
        if self.end.is_some() { 0 } else { self.codec.streams() + self.reserved }
    }

    /// Notes that streams have ended.
    pub(crate) fn note_ended(&mut self) {
        if self.under_way() == 0 {
            self.idle_since = monotonic_ns();
        }
        self.note_change();
    }

    /// Lets no more streams begin. The connection ends with its last one.
    pub(crate) fn close(&mut self) {
        if self.end.is_none() && !std::mem::replace(&mut self.closing, true) {
            self.note_change();
        }
    }

    /// Writes the GOAWAY of a connection whose last stream has ended. Returns whether it was written before.
    pub(crate) fn say_goodbye(&mut self) -> bool {
        if !std::mem::replace(&mut self.farewell, true) {
            self.open_output();
            self.codec.goaway(&mut self.out, None, codec::ErrorCode::NO_ERROR);
            return false;
        }
        true
    }

    /// Ends the connection and all its streams.
    pub(crate) fn finish(&mut self, cause: ConnectionError) {
        if self.end.is_some() {
            return;
        }
        let cause = match (self.goaway.take(), cause) {
            // The peer has said why.
            (Some(goaway), ConnectionError::Closed | ConnectionError::Io(_)) => goaway,
            (_, cause) => cause,
        };
        let cause = Arc::new(cause);
        self.slots.fail_all(&cause, self.position());
        self.end = Some(cause);
        self.idle_since = monotonic_ns();
        self.changed = true;
        self.writers = VecDeque::new();
        self.marks = VecDeque::new();
        spares::give(std::mem::take(&mut self.out));
    }

    /// Checks that the request has not ended and the stream has not failed.
    pub(crate) fn check_writing(&self, number: u32) -> Result<(), Error> {
        let slot = self.slots.get(number);
        match &slot.failed {
            Some(error) => Err(error.clone()),
            None if slot.done => Err(SendError::OutOfOrder.into()),
            None => Ok(()),
        }
    }

    /// Ends a request after its last bytes.
    pub(crate) fn end_request(&mut self, number: u32, id: u32) -> Result<(), Error> {
        self.open_output();
        self.codec.send_data(&mut self.out, id, b"", true)?;
        self.end_request_sent(number, id);
        Ok(())
    }

    /// Notes that the end of a request is in the output.
    pub(crate) fn end_request_sent(&mut self, number: u32, id: u32) {
        self.slots.get_mut(number).done = true;
        self.mark(number, id);
        if self.slots.get(number).ended {
            // The response ended before, so the stream ends here.
            self.note_ended();
        }
        self.wake_task();
    }

    /// Resets a stream that has not ended.
    pub(crate) fn reset(&mut self, id: u32, code: codec::ErrorCode) {
        let before = self.codec.streams();
        if self.end.is_some() || before == 0 {
            return;
        }
        self.open_output();
        self.codec.reset(&mut self.out, id, code);
        if self.codec.streams() < before {
            self.note_ended();
        }
    }

    /// Lets the peer send more, because these bytes were taken.
    pub(crate) fn grant(&mut self, id: u32, bytes: usize) {
        if self.end.is_some() || bytes == 0 {
            return;
        }
        self.open_output();
        let before = self.out.len();
        self.codec.grant(&mut self.out, id, bytes);
        if self.out.len() > before {
            self.wake_task();
        }
    }

    // Output.

    /// Returns the bytes that wait to be written.
    #[inline]
    pub(crate) fn unwritten(&self) -> usize {
        self.out.len() - self.written
    }

    /// Returns the number of bytes of all output that were written.
    pub(crate) fn position(&self) -> u64 {
        self.base + self.written as u64
    }

    /// Returns the position of the next byte of output.
    pub(crate) fn end_position(&self) -> u64 {
        self.base + self.out.len() as u64
    }

    /// Makes the output ready for more.
    #[inline]
    pub(crate) fn open_output(&mut self) {
        if self.out.capacity() == 0 {
            self.out = spares::take();
        }
    }

    /// Notes that a request ends with the last byte of the output.
    #[inline]
    pub(crate) fn mark(&mut self, slot: u32, id: u32) {
        self.marks.push_back(Mark { at: self.end_position().saturating_sub(1), slot, id });
    }

    /// Notes that `count` bytes were written at `now`.
    pub(crate) fn wrote(&mut self, count: usize, now: u64) {
        self.written += count;
        self.wrote_at = now;
        let position = self.position();
        while let Some(mark) = self.marks.front()
            && mark.at < position
        {
            if let Some(slot) = self.slots.find(mark.slot, mark.id) {
                slot.sent.last = now;
                if slot.sent.first == 0 {
                    slot.sent.first = now;
                }
                if std::mem::take(&mut slot.waits_for_socket) {
                    slot.wake();
                }
            }
            self.marks.pop_front();
        }
        if self.written == self.out.len() {
            self.base = position;
            self.written = 0;
            spares::give(std::mem::take(&mut self.out));
        } else if self.written >= OUTPUT_BYTES {
            // A socket that takes a little at a time may never empty it.
            self.out.drain(..self.written);
            self.base = position;
            self.written = 0;
        }
    }

    /// Notes that the socket takes nothing at present, and tells the streams that wait for it.
    #[cold]
    pub(crate) fn block(&mut self) {
        self.blocked = true;
        for mark in &self.marks {
            if let Some(slot) = self.slots.find(mark.slot, mark.id)
                && !std::mem::replace(&mut slot.waits_for_socket, true)
            {
                slot.wake();
            }
        }
    }

    // The turns of bodies.

    /// Whether a stream may write a piece of its body now; otherwise it gets its turn later.
    pub(crate) fn may_write(&mut self, number: u32) -> bool {
        let is_free = self.writers.is_empty() && self.permits == 0 && self.unwritten() < OUTPUT_BYTES;
        let slot = self.slots.get_mut(number);
        if std::mem::take(&mut slot.has_permit) {
            self.permits -= 1;
            return true;
        }
        if !is_free && !std::mem::replace(&mut slot.is_queued, true) {
            self.writers.push_back(number);
            self.wake_task();
        }
        is_free
    }

    /// Gives the next bodies their turns, as far as there is room. Returns whether others can have theirs even if those
    /// do not use it.
    pub(crate) fn permit_writers(&mut self) -> bool {
        let room = OUTPUT_BYTES.saturating_sub(self.unwritten()) / PIECE_BYTES;
        for _ in 0..room {
            let Some(number) = self.writers.pop_front() else { break };
            let slot = self.slots.get_mut(number);
            slot.is_queued = false;
            slot.has_permit = true;
            slot.wake();
            self.permits += 1;
        }
        room > 0 && !self.writers.is_empty()
    }

    /// Frees a stream's slot.
    pub(crate) fn free(&mut self, number: u32) {
        let slot = self.slots.get_mut(number);
        if slot.has_permit {
            self.permits -= 1;
        }
        if slot.is_queued {
            self.writers.retain(|&queued| queued != number);
        }
        self.slots.free(number);
        if self.slots.are_spare() {
            // The task frees them after a while.
            self.wake_task();
        }
    }

    // Input.

    /// Takes an event of the codec.
    pub(crate) fn take(&mut self, event: Event<'_>, interim: bool) {
        match event {
            Event::Response { stream, head, end } => {
                if let Some(slot) = self.slots.find(stream.tag, stream.id) {
                    slot.answered = true;
                    slot.put_head(&head);
                    slot.ended = end;
                    slot.wake();
                }
                self.after_end(end);
            }
            Event::Informational { stream, head } => {
                if let Some(slot) = self.slots.find(stream.tag, stream.id) {
                    slot.answered = true;
                    if interim {
                        slot.put_head(&head);
                        slot.wake();
                    }
                }
            }
            Event::Data { stream, data, end } => {
                match self.slots.find(stream.tag, stream.id) {
                    Some(slot) => {
                        slot.put_data(data);
                        slot.ended = end;
                        slot.wake();
                    }
                    // Nobody will take it.
                    None => self.codec.grant(&mut self.out, stream.id, data.len()),
                }
                self.after_end(end);
            }
            Event::Trailers { stream, headers } => {
                if let Some(slot) = self.slots.find(stream.tag, stream.id) {
                    slot.trailers = Some(headers.as_bytes().into());
                    slot.ended = true;
                    slot.wake();
                }
                self.after_end(true);
            }
            Event::Reset { stream, code, defect } => {
                if let Some(slot) = self.slots.find(stream.tag, stream.id) {
                    slot.fail(defect.map_or(Error::Reset(code), Error::Response));
                }
                self.note_ended();
            }
            Event::WindowOpen { stream: Some(stream) } => {
                if let Some(slot) = self.slots.find(stream.tag, stream.id) {
                    slot.waits_for_window = false;
                    slot.wake();
                }
            }
            Event::WindowOpen { stream: None } => self.wake_windows(),
            Event::Settings => {
                self.wake_windows();
                self.note_change();
            }
            Event::GoAway { code, debug, .. } => {
                let is_error = code != codec::ErrorCode::NO_ERROR;
                let text = &debug[..debug.len().min(GOAWAY_TEXT_BYTES)];
                let text = String::from_utf8_lossy(text).into_owned();
                self.goaway = is_error.then_some(ConnectionError::Goaway { code, text });
                self.note_change();
            }
            Event::Pong { .. } | Event::Request { .. } | Event::Refused { .. } => {}
        }
    }

    /// Notes the end of a response. The stream has ended if its request had.
    fn after_end(&mut self, end: bool) {
        if end {
            self.note_ended();
        }
    }

    fn wake_windows(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| slot.waits_for_window) {
            slot.waits_for_window = false;
            slot.wake();
        }
    }

    /// Lets the codec's budgets grow with the time.
    pub(crate) fn tick(&mut self, now: u64) {
        const SECOND: u64 = 1_000_000_000;
        let seconds = now.saturating_sub(self.ticked) / SECOND;
        if seconds > 0 {
            self.ticked = now;
            (0..seconds.min(10)).for_each(|_| self.codec.tick());
        }
    }

    /// Whether the connection is idle, and has memory that it does not need.
    pub(crate) fn is_spacious(&self) -> bool {
        self.under_way() == 0 && self.slots.are_spare()
    }

    /// Frees that memory.
    pub(crate) fn release(&mut self) {
        self.slots.release();
        self.codec.release();
        self.writers = VecDeque::new();
        self.marks = VecDeque::new();
    }
}
