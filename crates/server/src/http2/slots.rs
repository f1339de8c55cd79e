//! The streams of a connection with their handlers, in slots that are used again: a request allocates nothing.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use super::ready::MOST_SLOTS;
use super::{OwnedHead, Shared, Stream};
use crate::exchange::RefusedRequest;

/// Begins turns of streams, and keeps the memory of ended ones.
pub(crate) trait BeginStream<F> {
    /// Begins a turn in its memory: returned, its future of some kilobytes would be copied once more.
    fn begin(&self, turn: &mut Turn<F>, stream: Rc<Stream>, head: OwnedHead);
    /// Tells the handler about a request that never became an exchange.
    fn refused(&self, refused: &RefusedRequest<'_>);
    fn spares(&self) -> &RefCell<Vec<Turn<F>>>;
}

/// The memory of a handler at work, which may be empty.
pub(crate) type Turn<F> = Pin<Box<Option<F>>>;

/// The turns of all HTTP/2 connections with the same handler.
pub(crate) struct StreamTurns<M, F> {
    begin: M,
    refused: Box<dyn Fn(&RefusedRequest<'_>)>,
    spares: RefCell<Vec<Turn<F>>>,
}

impl<M: Fn(Rc<Stream>, OwnedHead) -> F, F> StreamTurns<M, F> {
    pub(crate) fn new(begin: M, refused: Box<dyn Fn(&RefusedRequest<'_>)>) -> Self {
        StreamTurns { begin, refused, spares: RefCell::default() }
    }
}

impl<M: Fn(Rc<Stream>, OwnedHead) -> F, F> BeginStream<F> for StreamTurns<M, F> {
    fn begin(&self, turn: &mut Turn<F>, stream: Rc<Stream>, head: OwnedHead) {
        turn.set(Some((self.begin)(stream, head)));
    }

    fn refused(&self, refused: &RefusedRequest<'_>) {
        (self.refused)(refused);
    }

    fn spares(&self) -> &RefCell<Vec<Turn<F>>> {
        &self.spares
    }
}

/// The maximum of kept turns: with fewer concurrent requests on a thread, a request allocates nothing.
const KEPT_TURNS: usize = 256;

/// The slots of a connection.
pub(super) struct Slots<F> {
    turns: Rc<dyn BeginStream<F>>,
    slots: Vec<Slot<F>>,
    free: Vec<usize>,
}

struct Slot<F> {
    stream: Rc<Stream>,
    waker: Waker,
    turn: Option<Turn<F>>,
    is_used: bool,
}

impl<F> Slots<F> {
    pub(super) fn new(turns: Rc<dyn BeginStream<F>>) -> Self {
        Slots { turns, slots: Vec::new(), free: Vec::new() }
    }

    pub(super) fn turns(&self) -> &dyn BeginStream<F> {
        &*self.turns
    }

    /// Returns the number of slots in use.
    pub(super) fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes a slot, unless all are in use. Its stream is unused.
    pub(super) fn take(&mut self, shared: &Rc<Shared>) -> Option<&Rc<Stream>> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.slots.len() < MOST_SLOTS => {
                let place = self.slots.len();
                let (stream, waker) = (Rc::new(Stream::new(shared, place)), shared.ready.waker(place));
                self.slots.push(Slot { stream, waker, turn: None, is_used: false });
                place
            }
            None => return None,
        };
        let slot = &mut self.slots[place];
        slot.is_used = true;
        if Rc::strong_count(&slot.stream) > 1 {
            // Someone still looks at the stream of an ended exchange.
            slot.stream = Rc::new(Stream::new(shared, place));
        }
        Some(&slot.stream)
    }

    /// Begins the turn of a stream.
    pub(super) fn begin(&mut self, place: usize, head: OwnedHead) {
        let Some(slot) = self.slots.get_mut(place) else { return };
        let spare = self.turns.spares().borrow_mut().pop();
        let mut turn = spare.unwrap_or_else(|| Box::pin(None));
        self.turns.begin(&mut turn, Rc::clone(&slot.stream), head);
        slot.turn = Some(turn);
    }

    /// Returns the stream of a slot in use.
    pub(super) fn get(&self, place: usize) -> Option<&Rc<Stream>> {
        self.slots.get(place).filter(|slot| slot.is_used).map(|slot| &slot.stream)
    }

    /// Returns the stream of a slot, in use or not.
    pub(super) fn at(&self, place: usize) -> Option<&Rc<Stream>> {
        self.slots.get(place).map(|slot| &slot.stream)
    }

    /// Returns the stream of this slot and identifier.
    pub(super) fn find(&self, place: u32, id: u32) -> Option<&Rc<Stream>> {
        self.get(place as usize).filter(|stream| stream.id() == id)
    }

    /// Returns the slots in use.
    pub(super) fn places(&self) -> impl Iterator<Item = (usize, &Rc<Stream>)> {
        self.slots.iter().enumerate().filter(|(_, slot)| slot.is_used).map(|(place, slot)| (place, &slot.stream))
    }

    /// Polls the handler of a stream. Returns whether it has ended, now or before.
    pub(super) fn poll(&mut self, place: usize) -> bool
    where
        F: Future<Output = ()>,
    {
        let Some(slot) = self.slots.get_mut(place) else { return true };
        let Some(turn) = slot.turn.as_mut().and_then(|turn| turn.as_mut().as_pin_mut()) else { return true };
        let has_ended = turn.poll(&mut Context::from_waker(&slot.waker)).is_ready();
        if has_ended {
            self.stop(place);
        }
        has_ended
    }

    /// Drops the handler of a stream.
    fn stop(&mut self, place: usize) {
        let Some(mut turn) = self.slots.get_mut(place).and_then(|slot| slot.turn.take()) else { return };
        turn.set(None);
        let mut spares = self.turns.spares().borrow_mut();
        if spares.len() < KEPT_TURNS {
            spares.push(turn);
        }
    }

    /// Frees a slot: drops the handler, and ends the stream.
    pub(super) fn free(&mut self, place: usize) {
        self.stop(place);
        let Some(slot) = self.slots.get_mut(place).filter(|slot| slot.is_used) else { return };
        slot.is_used = false;
        slot.stream.end();
        self.free.push(place);
    }

    /// Frees the memory of unused slots, if none is in use.
    pub(super) fn release(&mut self) {
        if self.used() == 0 {
            (self.slots, self.free) = (Vec::new(), Vec::new());
        }
    }
}
