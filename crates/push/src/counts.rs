//! The counters of one thread, and their sum over all.

use std::cell::Cell;
use std::iter::Sum;
use std::rc::Rc;

use crate::callbacks::CallbackCounts;
use crate::compression::CompressionCounts;
use crate::message::{Framing, TRANSPORTS};
use crate::rates::What;
use crate::session::tally::Totals;
use crate::session::{REASONS, Reason};

/// The counters of one thread.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    opened: [Cell<u64>; TRANSPORTS.len()],
    ended: [Cell<u64>; REASONS.len()],
    current: [Cell<u64>; TRANSPORTS.len()],
    published: Cell<u64>,
    published_bytes: Cell<u64>,
    overloaded: Cell<u64>,
    /// The outcomes of published messages, in sessions.
    pub(crate) deliveries: Rc<Totals>,
    received: Cell<u64>,
    received_bytes: Cell<u64>,
    /// What exceeded a limit of clients, as in `rates::LIMITS`.
    limited: [[Cell<u64>; 4]; 3],
    /// Requests to connect that failed; not those that the backend refused.
    connect_errors: Cell<u64>,
    connect_refused: Cell<u64>,
    /// Connect callbacks under way.
    pub(crate) connecting: Cell<u64>,
    /// Close callbacks under way.
    pub(crate) closing: Cell<u64>,
    /// First messages from the connect callback, and last messages of `/close`.
    direct_messages: Cell<u64>,
}

/// The sum of all counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Sessions now.
    pub(crate) sessions: u64,
    /// Sessions now, as in [`TRANSPORTS`].
    pub(crate) by_transport: [u64; TRANSPORTS.len()],
    /// Sessions ever opened, as in [`TRANSPORTS`].
    pub(crate) opened: [u64; TRANSPORTS.len()],
    /// Sessions that ended, as in [`REASONS`].
    pub(crate) ended: [u64; REASONS.len()],
    pub(crate) groups: u64,
    pub(crate) queued_bytes: u64,
    pub(crate) published: u64,
    pub(crate) published_bytes: u64,
    pub(crate) overloaded: u64,
    pub(crate) matched: u64,
    pub(crate) written: u64,
    pub(crate) dropped: u64,
    pub(crate) closed: u64,
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    /// What exceeded a limit of clients, as in `rates::LIMITS`.
    pub(crate) limited: [[u64; 4]; 3],
    pub(crate) connect_errors: u64,
    pub(crate) connect_refused: u64,
    pub(crate) connecting: u64,
    pub(crate) closing: u64,
    /// First and last messages of single sessions, which kuiperbelt counts among the messages.
    pub(crate) direct_messages: u64,
    pub(crate) compression: CompressionCounts,
    pub(crate) callbacks: CallbackCounts,
}

impl Counters {
    pub(crate) fn opened(&self, framing: Framing) {
        let at = transport(framing);
        add(&self.opened[at], 1);
        add(&self.current[at], 1);
    }

    pub(crate) fn ended(&self, framing: Framing, reason: Reason) {
        let current = &self.current[transport(framing)];
        current.set(current.get().saturating_sub(1));
        add(&self.ended[reason as usize], 1);
    }

    pub(crate) fn published(&self, bytes: usize) {
        add(&self.published, 1);
        add(&self.published_bytes, bytes as u64);
    }

    pub(crate) fn direct_message(&self) {
        add(&self.direct_messages, 1);
    }

    pub(crate) fn connect_error(&self) {
        add(&self.connect_errors, 1);
    }

    pub(crate) fn connect_refused(&self) {
        add(&self.connect_refused, 1);
    }

    pub(crate) fn overloaded(&self) {
        add(&self.overloaded, 1);
    }

    pub(crate) fn received(&self, bytes: usize) {
        add(&self.received, 1);
        add(&self.received_bytes, bytes as u64);
    }

    /// Counts something that exceeded a limit.
    pub(crate) fn limited(&self, scope: usize, what: What) {
        add(&self.limited[scope][what as usize], 1);
    }

    pub(crate) fn counts(&self, sessions: u64, queued_bytes: u64, groups: u64) -> Counts {
        let Totals { matched, written, dropped, closed } = &*self.deliveries;
        Counts {
            sessions,
            by_transport: self.current.each_ref().map(Cell::get),
            opened: self.opened.each_ref().map(Cell::get),
            ended: self.ended.each_ref().map(Cell::get),
            groups,
            queued_bytes,
            published: self.published.get(),
            published_bytes: self.published_bytes.get(),
            overloaded: self.overloaded.get(),
            matched: matched.get(),
            written: written.get(),
            dropped: dropped.get(),
            closed: closed.get(),
            received: self.received.get(),
            received_bytes: self.received_bytes.get(),
            limited: self.limited.each_ref().map(|scope| scope.each_ref().map(Cell::get)),
            connect_errors: self.connect_errors.get(),
            connect_refused: self.connect_refused.get(),
            connecting: self.connecting.get(),
            closing: self.closing.get(),
            direct_messages: self.direct_messages.get(),
            compression: CompressionCounts::default(),
            callbacks: CallbackCounts::default(),
        }
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Counts>>(all: I) -> Counts {
        all.fold(Counts::default(), |mut sum, one| {
            let arrays = sum.by_transport.iter_mut().chain(&mut sum.opened).chain(&mut sum.ended);
            let theirs = one.by_transport.iter().chain(&one.opened).chain(&one.ended);
            arrays.zip(theirs).for_each(|(sum, one)| *sum += one);
            sum.sessions += one.sessions;
            // A group may have members on several threads, so the largest count of a thread is a lower bound.
            sum.groups = sum.groups.max(one.groups);
            sum.queued_bytes += one.queued_bytes;
            sum.published += one.published;
            sum.published_bytes += one.published_bytes;
            sum.overloaded += one.overloaded;
            sum.matched += one.matched;
            sum.written += one.written;
            sum.dropped += one.dropped;
            sum.closed += one.closed;
            sum.received += one.received;
            sum.received_bytes += one.received_bytes;
            let limited = sum.limited.iter_mut().flatten().zip(one.limited.iter().flatten());
            limited.for_each(|(sum, one)| *sum += one);
            sum.connect_errors += one.connect_errors;
            sum.connect_refused += one.connect_refused;
            sum.connecting += one.connecting;
            sum.closing += one.closing;
            sum.direct_messages += one.direct_messages;
            sum.compression.messages += one.compression.messages;
            sum.compression.before += one.compression.before;
            sum.compression.after += one.compression.after;
            sum.callbacks += one.callbacks;
            sum
        })
    }
}

fn transport(framing: Framing) -> usize {
    TRANSPORTS.iter().position(|&name| name == framing.name()).unwrap_or(0)
}

fn add(counter: &Cell<u64>, count: u64) {
    counter.set(counter.get() + count);
}
