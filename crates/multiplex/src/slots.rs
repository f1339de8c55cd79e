//! The state of streams, in slots that later streams use again.

use std::sync::Arc;
use std::task::{Context, Waker};

use oroshi_core::spares;
use oroshi_http2::ResponseHead;

use crate::error::{ConnectionError, Error};
use crate::stream::Sent;

/// Bytes of heads that a free slot keeps room for.
const KEPT_BYTES: usize = 512;
/// Slots that an idle connection keeps.
const KEPT_SLOTS: usize = 4;

/// The state of one stream.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// The identifier on the wire; 0 in a free slot.
    pub(crate) id: u32,
    /// Heads that nobody has taken yet, from `heads_taken` on.
    heads: Vec<StoredHead>,
    heads_taken: usize,
    /// The field lines of all heads.
    pub(crate) lines: Vec<u8>,
    /// Bytes of the body that nobody has taken yet.
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Option<Box<[u8]>>,
    pub(crate) failed: Option<Error>,
    waker: Option<Waker>,
    /// The task was woken and has not polled since.
    is_woken: bool,
    /// The response has ended.
    pub(crate) ended: bool,
    /// A frame of the response has come.
    pub(crate) answered: bool,
    /// The request has ended.
    pub(crate) done: bool,
    /// The stream waits for a window.
    pub(crate) waits_for_window: bool,
    /// The stream is in the queue of writers.
    pub(crate) is_queued: bool,
    /// The stream may write one piece.
    pub(crate) has_permit: bool,
    /// The task knows that the socket takes nothing, and waits until it does.
    pub(crate) waits_for_socket: bool,
    /// The position of the request's first byte in all output.
    pub(crate) begun_at: u64,
    pub(crate) sent: Sent,
}

/// A head that nobody has taken yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredHead {
    pub(crate) status: u16,
    pub(crate) content_length: Option<u64>,
    /// Where its lines are.
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Slot {
    /// Keeps a head.
    pub(crate) fn put_head(&mut self, head: &ResponseHead<'_>) {
        let start = self.lines.len();
        self.lines.extend_from_slice(head.headers.as_bytes());
        let (status, content_length) = (head.status, head.content_length);
        self.heads.push(StoredHead { status, content_length, start, end: self.lines.len() });
    }

    /// Takes the next head, and the lines of all heads.
    pub(crate) fn take_head(&mut self) -> Option<(StoredHead, Vec<u8>)> {
        let head = *self.heads.get(self.heads_taken)?;
        self.heads_taken += 1;
        Some((head, std::mem::take(&mut self.lines)))
    }

    /// Puts the lines back, for the next head or the next stream.
    pub(crate) fn put_lines(&mut self, mut lines: Vec<u8>) {
        if self.heads_taken == self.heads.len() {
            self.heads.clear();
            self.heads_taken = 0;
            lines.clear();
            if lines.capacity() > KEPT_BYTES {
                return;
            }
        }
        self.lines = lines;
    }

    /// Keeps bytes of the body.
    #[inline]
    pub(crate) fn put_data(&mut self, data: &[u8]) {
        if self.body.capacity() == 0 && !data.is_empty() {
            self.body = spares::take();
        }
        self.body.extend_from_slice(data);
    }

    /// Remembers the task of the stream.
    #[inline]
    pub(crate) fn enrol(&mut self, cx: &Context<'_>) {
        self.is_woken = false;
        if !self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            self.waker = Some(cx.waker().clone());
        }
    }

    /// Wakes the task of the stream, once until its next poll.
    #[inline]
    pub(crate) fn wake(&mut self) {
        if !self.is_woken
            && let Some(waker) = &self.waker
        {
            self.is_woken = true;
            waker.wake_by_ref();
        }
    }

    /// Ends the stream with an error, if it has not ended.
    pub(crate) fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
        self.wake();
    }

    /// Empties the slot.
    fn clear(&mut self) {
        spares::give(std::mem::take(&mut self.body));
        let (mut lines, mut heads) = (std::mem::take(&mut self.lines), std::mem::take(&mut self.heads));
        lines.clear();
        heads.clear();
        if lines.capacity() > KEPT_BYTES {
            lines = Vec::new();
        }
        *self = Slot { lines, heads, ..Slot::default() };
    }
}

/// The streams of a connection.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Slots {
    /// Returns the number of slots in use.
    pub(crate) fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the slot that the next stream will have.
    #[inline]
    pub(crate) fn next(&self) -> u32 {
        self.free.last().copied().unwrap_or(self.slots.len() as u32)
    }

    /// Gives that slot to a stream.
    #[inline]
    pub(crate) fn take(&mut self, id: u32) -> &mut Slot {
        let number = match self.free.pop() {
            Some(number) => number as usize,
            None => {
                self.slots.push(Slot::default());
                self.slots.len() - 1
            }
        };
        let slot = &mut self.slots[number];
        slot.id = id;
        slot
    }

    /// Frees a slot.
    pub(crate) fn free(&mut self, number: u32) {
        if let Some(slot) = self.slots.get_mut(number as usize) {
            slot.clear();
            self.free.push(number);
        }
    }

    /// Returns the slot of a stream, if it is still the stream's.
    #[inline]
    pub(crate) fn find(&mut self, number: u32, id: u32) -> Option<&mut Slot> {
        self.slots.get_mut(number as usize).filter(|slot| slot.id == id)
    }

    /// Returns a slot in use.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> &Slot {
        &self.slots[number as usize]
    }

    /// Returns a slot in use.
    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> &mut Slot {
        &mut self.slots[number as usize]
    }

    /// Returns all slots in use.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.slots.iter_mut().filter(|slot| slot.id != 0)
    }

    /// Ends all streams because the connection has ended. `position`: bytes of all output that were written.
    pub(crate) fn fail_all(&mut self, cause: &Arc<ConnectionError>, position: u64) {
        for slot in self.iter_mut() {
            let written = slot.begun_at < position;
            slot.fail(Error::Connection { cause: Arc::clone(cause), written });
        }
    }

    /// Whether no stream uses the slots, and they have much memory.
    pub(crate) fn are_spare(&self) -> bool {
        self.used() == 0 && self.slots.len() > KEPT_SLOTS
    }

    /// Frees the memory of slots that no stream uses.
    pub(crate) fn release(&mut self) {
        if self.used() == 0 {
            *self = Slots::default();
        }
    }
}
