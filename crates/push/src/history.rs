//! The histories of all channels of a node.
//!
//! All threads share them: a channel has one order, whoever publishes. A publish takes its place, and goes to the
//! threads, while a part of the histories is locked. So all threads get a channel's messages in the order of their
//! places, and a client that subscribes gets each message either from the history or live.

mod log;

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::message::{Message, Place};
use crate::plan::HistoryRule;

use log::Log;
pub(crate) use log::Recovery;

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
    /// The first half of every epoch: no other run of a node has it.
    run: u64,
    epochs: AtomicU64,
    /// The part that gives way next while memory is short.
    next: AtomicUsize,
}

type Part = HashMap<Arc<str>, Log>;

/// The state of the histories, for `/status` and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HistoryCounts {
    pub(crate) channels: usize,
    pub(crate) bytes: usize,
}

impl Histories {
    /// Creates empty histories that hold at most `most_bytes`.
    pub(crate) fn new(most_bytes: usize) -> Self {
        Histories {
            hasher: RandomState::new(),
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
            bytes: AtomicUsize::new(0),
            most_bytes,
            run: crate::secrets::number() << 32,
            epochs: AtomicU64::new(0),
            next: AtomicUsize::new(0),
        }
    }

    /// Appends a message, and calls `then` with it before any other publish to the channel.
    pub(crate) fn append<T>(
        &self,
        channel: &Arc<str>,
        rule: HistoryRule,
        now_ms: u64,
        make: impl FnOnce(Place) -> Arc<Message>,
        then: impl FnOnce(&Arc<Message>) -> T,
    ) -> T {
        let result = {
            let mut part = self.part(channel);
            let log = self.log(&mut part, channel);
            let before = log.bytes();
            let message = log.append(rule, now_ms, make);
            self.resized(before, log.bytes());
            then(&message)
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
            let result = then(log.recover(rule, since, now_ms));
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
        let part = self.part(channel);
        part.get(channel).map(|log| (log.place(), log.newest(limit, now_ms)))
    }

    /// Ends all histories, because messages may be missing in them: what is published next has another epoch.
    pub(crate) fn end_all(&self) {
        for at in 0..PARTS {
            self.end_where(&mut self.lock(at), |_| true);
        }
    }

    /// As [`end_all`](Self::end_all), for one channel.
    pub(crate) fn end(&self, channel: &str) {
        self.end_where(&mut self.part(channel), |name| name == channel);
    }

    fn end_where(&self, part: &mut Part, ends: impl Fn(&str) -> bool) {
        for (_, log) in part.iter_mut().filter(|(name, _)| ends(name)) {
            let before = log.bytes();
            log.restart(self.next_epoch());
            self.resized(before, log.bytes());
        }
        self.forget(part, |name, log| ends(name) && log.subscribers == 0);
    }

    fn next_epoch(&self) -> u64 {
        // The run has the upper half alone, so a number never reaches it.
        self.run | (self.epochs.fetch_add(1, Ordering::Relaxed) & u64::from(u32::MAX))
    }

    /// Forgets the channels of a part that nobody has used for their time. The parts take turns: one per call.
    pub(crate) fn sweep(&self, turn: u32, now_ms: u64) {
        let mut part = self.lock(turn as usize % PARTS);
        for log in part.values_mut() {
            let before = log.bytes();
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

    fn log<'p>(&self, part: &'p mut Part, channel: &Arc<str>) -> &'p mut Log {
        part.entry(Arc::clone(channel)).or_insert_with(|| {
            self.resized(0, CHANNEL_BYTES + channel.len());
            Log::new(self.next_epoch())
        })
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
        HistoryRule { messages: 100, bytes: 1 << 20, time: Duration::from_millis(1000), latest: false };

    fn publish(histories: &Histories, channel: &str, text: &'static str, now_ms: u64) -> Place {
        let channel: Arc<str> = channel.into();
        let make = |place| {
            Arc::new(
                Message::data(Kind::Text, Bytes::from(text)).to_publication(Some(Arc::clone(&channel)), Some(place)),
            )
        };
        histories.append(&channel, RULE, now_ms, make, |message| message.place().unwrap())
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
        let histories = Histories::new(1 << 20);
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
        let histories = Histories::new(1 << 20);
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
        let histories = Histories::new(most);
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
