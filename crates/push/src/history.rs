//! The histories of all channels of a node.
//!
//! All threads share them: a channel has one order, whoever publishes. A publish takes its place, and goes to the
//! threads, while a part of the histories is locked. So all threads get a channel's messages in the order of their
//! places, and a client that subscribes gets each message either from the history or live.
//!
//! In a cluster with JetStream, a stream has the one order of all channels: an offset is a sequence number of the
//! stream, and the epoch names the stream. These histories then hold what the node has received of the stream. What is
//! older is filled in from the stream when a client needs it.

mod log;

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::message::{Message, Place};
use crate::plan::HistoryRule;

use log::Log;
pub(crate) use log::{Older, Recovery};

/// The number of parts: enough that threads seldom meet in one.
const PARTS: usize = 64;

/// The memory of a channel beside its messages, bytes: its log, its name twice, its place in the table.
const CHANNEL_BYTES: usize = 256;

/// The histories of a node's channels.
#[derive(Debug)]
pub(crate) struct Histories {
    hasher: RandomState,
    parts: Box<[Mutex<Part>]>,
    bytes: AtomicUsize,
    most_bytes: usize,
    order: Order,
    /// The part that gives way next while memory is short.
    next: AtomicUsize,
}

type Part = HashMap<Arc<str>, Log>;

/// What numbers the messages.
#[derive(Debug)]
enum Order {
    /// This node.
    Node {
        /// The first half of every epoch: no other run of a node has it.
        run: u64,
        epochs: AtomicU64,
    },
    /// A stream of JetStream.
    Stream {
        /// The epoch of all channels; 0 before this node has reached the stream.
        epoch: AtomicU64,
        /// The sequence number up to which this node has handed out messages.
        received: watch::Sender<u64>,
        /// The greatest position of a channel that was forgotten.
        forgotten: AtomicU64,
        /// Messages up to this number may have been missed in any channel. Each log learns of it when it is used.
        hole: AtomicU64,
    },
}

/// Where a message stands in the stream, and since when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored {
    pub(crate) sequence: u64,
    pub(crate) age_ms: u64,
}

/// The state of the histories, for `/status` and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HistoryCounts {
    pub(crate) channels: usize,
    pub(crate) bytes: usize,
}

impl Histories {
    /// Creates empty histories that hold at most `most_bytes`. `is_of_stream`: JetStream numbers the messages.
    pub(crate) fn new(most_bytes: usize, is_of_stream: bool) -> Self {
        let order = if is_of_stream {
            let (epoch, forgotten, hole) = Default::default();
            Order::Stream { epoch, received: watch::Sender::new(0), forgotten, hole }
        } else {
            Order::Node { run: crate::secrets::number() << 32, epochs: AtomicU64::new(0) }
        };
        Histories {
            hasher: RandomState::new(),
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
            bytes: AtomicUsize::new(0),
            most_bytes,
            order,
            next: AtomicUsize::new(0),
        }
    }

    /// Returns whether JetStream numbers the messages.
    pub(crate) fn are_of_stream(&self) -> bool {
        matches!(self.order, Order::Stream { .. })
    }

    /// Returns whether channels have positions yet: a stream must be reached first.
    pub(crate) fn are_ready(&self) -> bool {
        match &self.order {
            Order::Node { .. } => true,
            Order::Stream { epoch, .. } => epoch.load(Ordering::Acquire) != 0,
        }
    }

    /// Appends a message, and calls `then` with it before any other publish to the channel. `then` also gets the
    /// message before it, if the rule wants deltas and it is in the history.
    ///
    /// `make` gets its place, and the offset of the channel's message before it if offsets do not count by one.
    pub(crate) fn append<T>(
        &self,
        channel: &Arc<str>,
        rule: HistoryRule,
        now_ms: u64,
        stored: Option<Stored>,
        make: impl FnOnce(Place, Option<u64>) -> Arc<Message>,
        then: impl FnOnce(&Arc<Message>, Option<Arc<Message>>) -> T,
    ) -> T {
        let result = {
            let mut part = self.part(channel);
            let log = self.log(&mut part, channel);
            let before = log.bytes();
            let offset = stored.map(|Stored { sequence, age_ms }| (sequence, age_ms));
            let (message, base) = log.append(rule, now_ms, offset, |place, prev| make(place, offset.map(|_| prev)));
            self.resized(before, log.bytes());
            then(&message, base)
        };
        self.give_way();
        result
    }

    /// Returns what a subscriber gets, and calls `then` before any later publish to the channel.
    ///
    /// If `then` returns something, there is one more subscriber, until [`leave`](Self::leave).
    pub(crate) fn recover<T>(
        &self,
        channel: &Arc<str>,
        rule: HistoryRule,
        since: Option<Place>,
        now_ms: u64,
        then: impl FnOnce(Recovery) -> Option<T>,
    ) -> Option<T> {
        let result = {
            let mut part = self.part(channel);
            let log = self.log(&mut part, channel);
            log.touch(rule, now_ms);
            let result = then(log.recover(rule, since, self.received(), now_ms));
            log.subscribers += u32::from(result.is_some());
            result
        };
        self.give_way();
        result
    }

    /// Counts one subscriber less.
    pub(crate) fn leave(&self, channel: &str, rule: HistoryRule, now_ms: u64) {
        if let Some(log) = self.part(channel).get_mut(channel) {
            log.subscribers = log.subscribers.saturating_sub(1);
            log.touch(rule, now_ms);
        }
    }

    /// Returns a channel's newest messages, and its position; `None` if nothing is known of the channel.
    pub(crate) fn newest(&self, channel: &str, limit: usize, now_ms: u64) -> Option<(Place, Vec<Arc<Message>>)> {
        let mut part = self.part(channel);
        let log = self.known(&mut part, channel)?;
        let place = Place { offset: log.place().offset.max(self.received()), ..log.place() };
        Some((place, log.newest(limit, now_ms)))
    }

    /// Ends all histories, because messages may be missing in them: what is published next has another epoch.
    ///
    /// Nothing is missing in those of a stream.
    pub(crate) fn end_all(&self) {
        if !self.are_of_stream() {
            self.restart_all();
        }
    }

    /// As [`end_all`](Self::end_all), for one channel.
    pub(crate) fn end(&self, channel: &str) {
        if !self.are_of_stream() {
            self.end_where(&mut self.part(channel), |name| name == channel);
        }
    }

    fn restart_all(&self) {
        for at in 0..PARTS {
            self.end_where(&mut self.lock(at), |_| true);
        }
    }

    /// Begins to receive a stream that ends at `last`. Returns the sequence number after which this node needs it, and
    /// whether sessions may have missed messages: the stream is another one than before, or has been reached for the
    /// first time while there were sessions (`has_sessions`).
    pub(crate) fn follow(&self, new_epoch: u64, last: u64, has_sessions: bool) -> (u64, bool) {
        let Order::Stream { epoch, received, forgotten, hole } = &self.order else { return (last, false) };
        let before = epoch.load(Ordering::Acquire);
        if before == new_epoch {
            return (*received.borrow(), false);
        }
        received.send_replace(last);
        forgotten.store(0, Ordering::Relaxed);
        hole.store(0, Ordering::Relaxed);
        epoch.store(new_epoch, Ordering::Release);
        self.restart_all();
        (last, before != 0 || has_sessions)
    }

    /// Returns the epoch of the stream; 0 if there is none yet.
    pub(crate) fn stream_epoch(&self) -> u64 {
        match &self.order {
            Order::Node { .. } => 0,
            Order::Stream { epoch, .. } => epoch.load(Ordering::Acquire),
        }
    }

    /// Returns the sequence number up to which this node has handed out the stream; 0 without a stream.
    pub(crate) fn received(&self) -> u64 {
        match &self.order {
            Order::Node { .. } => 0,
            Order::Stream { received, .. } => *received.borrow(),
        }
    }

    /// Waits until this node has handed out the stream up to `sequence`.
    pub(crate) async fn until_received(&self, sequence: u64) {
        if let Order::Stream { received, .. } = &self.order {
            // The sender lives as long as these histories.
            let _ = received.subscribe().wait_for(|&received| received >= sequence).await;
        }
    }

    /// Takes note that the stream was handed out up to `sequence`.
    pub(crate) fn set_received(&self, sequence: u64) {
        if let Order::Stream { received, .. } = &self.order {
            received.send_replace(sequence);
        }
    }

    /// Takes note that messages up to `sequence` may have been missed in any channel, in the same time for any number
    /// of channels.
    pub(crate) fn skip_to(&self, sequence: u64) {
        if let Order::Stream { hole, .. } = &self.order {
            hole.fetch_max(sequence, Ordering::Relaxed);
        }
        self.note_forgotten(sequence);
        self.set_received(sequence);
    }

    /// Returns the offset before which a channel's messages must be filled in from the stream, for a client that is at
    /// `since`, or needs all; `None` if they need not.
    pub(crate) fn needs_fill(
        &self,
        channel: &Arc<str>,
        rule: HistoryRule,
        since: Option<Place>,
        now_ms: u64,
    ) -> Option<u64> {
        if !self.are_of_stream() || !self.are_ready() {
            return None;
        }
        let mut part = self.part(channel);
        let log = self.log(&mut part, channel);
        log.touch(rule, now_ms);
        let is_other = since.is_some_and(|since| since.epoch != log.place().epoch);
        // The newest value serves whatever the client has.
        let from = if rule.latest { log.floor().saturating_sub(1) } else { since.map_or(0, |since| since.offset) };
        let needs = if rule.latest { log.is_empty() } else { !is_other };
        (needs && log.may_be_filled(from)).then(|| log.floor())
    }

    /// Adds messages from before a log's begin, as [`Log::fill`] does.
    pub(crate) fn fill(&self, channel: &str, rule: HistoryRule, floors: [u64; 2], older: Vec<Older>, now_ms: u64) {
        if let Some(log) = self.known(&mut self.part(channel), channel) {
            let before = log.bytes();
            log.fill(rule, floors[0], floors[1], older, now_ms);
            self.resized(before, log.bytes());
        }
        self.give_way();
    }

    fn note_forgotten(&self, sequence: u64) {
        if let Order::Stream { forgotten, .. } = &self.order {
            forgotten.fetch_max(sequence, Ordering::Relaxed);
        }
    }

    fn end_where(&self, part: &mut Part, ends: impl Fn(&str) -> bool) {
        for (_, log) in part.iter_mut().filter(|(name, _)| ends(name)) {
            let before = log.bytes();
            let (epoch, begin) = self.begin();
            log.restart(epoch, begin);
            self.resized(before, log.bytes());
        }
        self.forget(part, |name, log| ends(name) && log.subscribers == 0);
    }

    /// Returns the epoch of a new log, and the offset after which it is complete. The channel's part is locked.
    fn begin(&self) -> (u64, u64) {
        match &self.order {
            // The run has the upper half alone, so a number never reaches it.
            Order::Node { run, epochs } => (run | (epochs.fetch_add(1, Ordering::Relaxed) & u64::from(u32::MAX)), 0),
            // The node may have handed out a message of this channel that `received` does not count yet. The channel
            // was forgotten since then, as there is no log.
            Order::Stream { epoch, received, forgotten, .. } => {
                (epoch.load(Ordering::Acquire), (*received.borrow()).max(forgotten.load(Ordering::Relaxed)))
            }
        }
    }

    /// Forgets the channels of a part that nobody has used for their time. The parts take turns: one per call.
    pub(crate) fn sweep(&self, turn: u32, now_ms: u64) {
        let mut part = self.lock(turn as usize % PARTS);
        for log in part.values_mut() {
            let before = log.bytes();
            log.skip_to(self.hole());
            log.expire(now_ms);
            self.resized(before, log.bytes());
        }
        self.forget(&mut part, |_, log| log.until_ms <= now_ms && log.subscribers == 0);
        if part.capacity() > 64 && part.len() < part.capacity() / 4 {
            part.shrink_to_fit();
        }
    }

    /// Returns how many channels are known, and what they hold.
    pub(crate) fn counts(&self) -> HistoryCounts {
        let channels = (0..PARTS).map(|at| self.lock(at).len()).sum();
        HistoryCounts { channels, bytes: self.bytes.load(Ordering::Relaxed) }
    }

    /// Returns the log of a channel, or a new one.
    fn log<'p>(&self, part: &'p mut Part, channel: &Arc<str>) -> &'p mut Log {
        let log = part.entry(Arc::clone(channel)).or_insert_with(|| {
            self.resized(0, CHANNEL_BYTES + channel.len());
            let (epoch, begin) = self.begin();
            Log::new(epoch, begin)
        });
        self.catch_up(log);
        log
    }

    /// Returns the log of a channel, if there is one.
    fn known<'p>(&self, part: &'p mut Part, channel: &str) -> Option<&'p mut Log> {
        let log = part.get_mut(channel)?;
        self.catch_up(log);
        Some(log)
    }

    /// Tells a log of the last hole.
    fn catch_up(&self, log: &mut Log) {
        let before = log.bytes();
        log.skip_to(self.hole());
        self.resized(before, log.bytes());
    }

    /// Returns the number up to which messages may have been missed in any channel; 0 without a stream.
    fn hole(&self) -> u64 {
        match &self.order {
            Order::Node { .. } => 0,
            Order::Stream { hole, .. } => hole.load(Ordering::Relaxed),
        }
    }

    /// Frees memory while all histories hold more than they may: whole parts in turn lose their oldest messages, then
    /// their channels.
    fn give_way(&self) {
        for _ in 0..PARTS * 2 {
            if self.bytes.load(Ordering::Relaxed) <= self.most_bytes {
                return;
            }
            let mut part = self.lock(self.next.fetch_add(1, Ordering::Relaxed) % PARTS);
            let excess = self.bytes.load(Ordering::Relaxed).saturating_sub(self.most_bytes - self.most_bytes / 16);
            let mut freed = 0;
            for log in part.values_mut() {
                let before = log.bytes();
                // The older half of each, so that no channel pays for all.
                let mut left = before / 2;
                while left > 0 && !log.is_empty() && freed < excess {
                    let cut = log.cut(1);
                    left = left.saturating_sub(cut);
                    freed += cut;
                }
                self.resized(before, log.bytes());
            }
            if freed < excess {
                let mut rest = excess - freed;
                self.forget(&mut part, |name, log| {
                    let goes = rest > 0 && log.is_empty() && log.subscribers == 0;
                    rest = rest.saturating_sub(if goes { CHANNEL_BYTES + name.len() } else { 0 });
                    goes
                });
            }
        }
    }

    fn forget(&self, part: &mut Part, mut goes: impl FnMut(&str, &Log) -> bool) {
        part.retain(|name, log| {
            let goes = goes(name, log);
            if goes {
                self.note_forgotten(log.place().offset);
                self.resized(log.bytes() + CHANNEL_BYTES + name.len(), 0);
            }
            !goes
        });
    }

    fn resized(&self, before: usize, after: usize) {
        // Sums of several threads: each adds its own difference.
        self.bytes.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    fn part(&self, channel: &str) -> MutexGuard<'_, Part> {
        self.lock(self.hasher.hash_one(channel) as usize % PARTS)
    }

    fn lock(&self, at: usize) -> MutexGuard<'_, Part> {
        // A panic cannot leave a log half changed in a way that matters: its epoch would end with the process.
        self.parts[at].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use oroshi_websocket::Kind;

    use super::*;

    const RULE: HistoryRule =
        HistoryRule { messages: 100, bytes: 1 << 20, time: Duration::from_millis(1000), latest: false, delta: false };

    fn publish(histories: &Histories, channel: &str, text: &'static str, now_ms: u64) -> Place {
        let channel: Arc<str> = channel.into();
        let make = |place, _| {
            Arc::new(
                Message::data(Kind::Text, Bytes::from(text)).to_publication(Some(Arc::clone(&channel)), Some(place)),
            )
        };
        histories.append(&channel, RULE, now_ms, None, make, |message, _| message.place().unwrap())
    }

    /// Subscribes, looks and leaves.
    fn recovered(histories: &Histories, channel: &str, since: Place, now_ms: u64) -> (Option<bool>, usize) {
        let found = |got: Recovery| Some((got.recovered, got.messages.len()));
        let recovered = histories.recover(&channel.into(), RULE, Some(since), now_ms, found).unwrap();
        histories.leave(channel, RULE, now_ms);
        recovered
    }

    #[test]
    fn a_channel_with_subscribers_is_not_forgotten_and_knows_when_it_ends() {
        let histories = Histories::new(1 << 20, false);
        let first = publish(&histories, "a", "x", 0);
        histories.recover(&"a".into(), RULE, None, 0, |_| Some(())).unwrap();
        (0..64).for_each(|turn| histories.sweep(turn, 1_000_000));
        assert_eq!(publish(&histories, "a", "x", 1_000_000), Place { offset: 2, ..first }, "no subscriber is alarmed");
        histories.end("a");
        let next = publish(&histories, "a", "x", 1_000_000);
        assert!(next.epoch != first.epoch && next.offset == 1, "each subscriber is");
        histories.leave("a", RULE, 1_000_000);
        (0..64).for_each(|turn| histories.sweep(turn, 1_001_000));
        assert_eq!(histories.counts(), HistoryCounts::default());
    }

    #[test]
    fn channels_are_forgotten_and_come_back_as_others() {
        let histories = Histories::new(1 << 20, false);
        let first = publish(&histories, "a", "x", 0);
        let other = publish(&histories, "b", "x", 0);
        assert!(first.epoch != other.epoch && first.offset == 1);
        assert_eq!(recovered(&histories, "a", Place { offset: 0, ..first }, 10), (Some(true), 1));
        (0..64).for_each(|turn| histories.sweep(turn, 1005));
        assert_eq!(histories.counts().channels, 1, "a was used at 10, b was not");
        assert_eq!(recovered(&histories, "b", other, 1005), (Some(false), 0));
        assert_eq!(recovered(&histories, "a", first, 1005), (Some(true), 0), "nothing was missed");
        histories.end("a");
        assert_eq!(recovered(&histories, "a", first, 1005), (Some(false), 0));
        (0..64).for_each(|turn| histories.sweep(turn, 9000));
        assert_eq!(histories.counts(), HistoryCounts::default());
    }

    #[test]
    fn a_million_channels_that_come_and_go_hold_no_more_than_they_may() {
        let most = 4 << 20;
        let histories = Histories::new(most, false);
        for number in 0..1_000_000 {
            publish(&histories, &format!("channel:{number}"), "a message", 0);
            if number % 10_000 == 0 {
                assert!(histories.counts().bytes <= most, "{:?}", histories.counts());
            }
        }
        let HistoryCounts { channels, bytes } = histories.counts();
        assert!(bytes <= most && channels <= most / CHANNEL_BYTES && channels > 1000, "{channels} {bytes}");
        let newest = publish(&histories, "channel:999999", "another", 0);
        assert_eq!(recovered(&histories, "channel:999999", newest, 0).0, Some(true));
        histories.end_all();
        assert_eq!(histories.counts(), HistoryCounts::default());
    }
}
