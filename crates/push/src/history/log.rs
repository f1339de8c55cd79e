//! The history of one channel: a state machine without clock and locks.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::message::{Message, Place};
use crate::plan::HistoryRule;

/// The memory of a kept message beside its text, bytes: the log's entry, the message, its frames. Measured with texts
/// of 10 bytes: 550 without subscribers, 810 with a WebSocket and a stream.
const ENTRY_BYTES: usize = 800;

/// The numbered messages of one channel, oldest first.
#[derive(Debug)]
pub(super) struct Log {
    epoch: u64,
    /// The offset of the newest message, or where the log begins before the first.
    top: u64,
    /// Messages up to this offset may be missing, although a later one is here.
    floor: u64,
    /// Whether no message has come since the log began, so that `top` is no message's.
    is_new: bool,
    /// The end of the last hole that it knows.
    hole: u64,
    /// Of a log of JetStream's: it has not kept messages up to this offset either, or not within the rule.
    lost: u64,
    entries: VecDeque<Entry>,
    bytes: usize,
    /// When it is forgotten, milliseconds, if nobody subscribes.
    pub(super) until_ms: u64,
    /// How many sessions subscribe. They would take another epoch for a loss.
    pub(super) subscribers: u32,
}

#[derive(Debug)]
struct Entry {
    message: Arc<Message>,
    offset: u64,
    bytes: usize,
    until_ms: u64,
    /// From when on clients get only its place: its own time is over.
    expires_ms: u64,
}

/// A message that JetStream has kept from before the begin of a log.
#[derive(Debug)]
pub(crate) struct Older {
    pub(crate) message: Message,
    pub(crate) offset: u64,
    pub(crate) age_ms: u64,
}

impl Entry {
    fn new(message: Arc<Message>, offset: u64, rule: HistoryRule, now_ms: u64, age_ms: u64) -> Self {
        // Twice its length: as it came, and framed.
        let bytes = message.len() * 2 + ENTRY_BYTES;
        let until_ms = now_ms.saturating_add(millis(rule).saturating_sub(age_ms));
        let ttl_ms = message.ttl().and_then(|ttl| u64::try_from(ttl.as_millis()).ok());
        let expires_ms = ttl_ms.map_or(u64::MAX, |ttl| now_ms.saturating_add(ttl));
        Entry { message, offset, bytes, until_ms, expires_ms }
    }

    /// Returns what a client gets that missed it.
    fn for_client(&self, now_ms: u64) -> Arc<Message> {
        let position = (self.expires_ms <= now_ms).then(|| self.message.to_position()).flatten();
        position.map_or_else(|| Arc::clone(&self.message), Arc::new)
    }
}

/// The result of a recovery for a client that was away.
#[derive(Debug)]
pub(crate) struct Recovery {
    /// The newest position. What follows is later.
    pub(crate) place: Place,
    /// Whether `messages` is all that the client missed; `None` if it did not say where it was.
    pub(crate) recovered: Option<bool>,
    pub(crate) messages: Vec<Arc<Message>>,
}

impl Log {
    /// Begins the history of a channel: complete after the offset `begin`.
    pub(super) fn new(epoch: u64, begin: u64) -> Self {
        Log {
            epoch,
            top: begin,
            floor: begin,
            is_new: true,
            hole: 0,
            lost: 0,
            entries: VecDeque::new(),
            bytes: 0,
            until_ms: 0,
            subscribers: 0,
        }
    }

    /// Returns the newest position.
    pub(super) fn place(&self) -> Place {
        Place { epoch: self.epoch, offset: self.top }
    }

    /// Returns the offset after which it is complete.
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// Returns whether JetStream may have what this log lacks after `offset`.
    pub(super) fn may_be_filled(&self, offset: u64) -> bool {
        offset < self.floor && offset >= self.lost
    }

    /// Returns what its messages hold, bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Begins another history, because messages may be missing in this one.
    pub(super) fn restart(&mut self, epoch: u64, begin: u64) {
        let Log { until_ms, subscribers, .. } = *self;
        *self = Log { until_ms, subscribers, ..Log::new(epoch, begin) };
    }

    /// Adds the messages before the log's begin, oldest first: all after `floor`, and no others.
    ///
    /// `floor_before`: the begin of the log when they were asked for. If messages were dropped since, nothing is added.
    pub(super) fn fill(&mut self, rule: HistoryRule, floor_before: u64, floor: u64, older: Vec<Older>, now_ms: u64) {
        self.lost = self.lost.max(floor);
        if self.floor != floor_before || floor >= floor_before {
            return;
        }
        let mut last = floor;
        let mut entries = VecDeque::new();
        for Older { message, offset, age_ms } in older {
            if offset <= floor || offset > floor_before {
                continue;
            }
            let message = Arc::new(message.with_prev(Some(last)));
            let entry = Entry::new(message, offset, rule, now_ms, age_ms);
            self.bytes += entry.bytes;
            entries.push_back(entry);
            last = offset;
        }
        // The first message after the begin was told its predecessor before this one was known.
        if let Some(first) = self.entries.front_mut() {
            first.message = Arc::new(first.message.with_prev(Some(last)));
        } else if self.is_new {
            self.top = last;
        }
        entries.append(&mut self.entries);
        self.entries = entries;
        self.floor = floor;
        if rule.latest {
            self.cut(self.entries.len().saturating_sub(1));
        }
        self.bound(rule);
        self.expire(now_ms);
    }

    /// Takes note that messages up to `offset` may have been missed: the next one shows it to clients.
    ///
    /// Nothing changes if it knows that hole. It must learn of a hole before the next message is appended.
    pub(super) fn skip_to(&mut self, offset: u64) {
        if offset <= self.hole {
            return;
        }
        self.hole = offset;
        self.cut(self.entries.len());
        (self.floor, self.top, self.is_new) = (self.floor.max(offset), self.top.max(offset), true);
    }

    /// Returns whether it holds no message.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Remembers the channel until the rule's time after `now_ms`.
    pub(super) fn touch(&mut self, rule: HistoryRule, now_ms: u64) {
        self.until_ms = self.until_ms.max(now_ms.saturating_add(millis(rule)));
    }

    /// Appends the message that `make` returns for its place and its predecessor's offset. Returns it, and its
    /// predecessor if the rule wants deltas and the predecessor is here.
    ///
    /// `offset`: its place in JetStream, and how old it is; `None`: the next number.
    pub(super) fn append(
        &mut self,
        rule: HistoryRule,
        now_ms: u64,
        offset: Option<(u64, u64)>,
        make: impl FnOnce(Place, u64) -> Arc<Message>,
    ) -> (Arc<Message>, Option<Arc<Message>>) {
        self.touch(rule, now_ms);
        self.expire(now_ms);
        let before = self.top;
        let newest = self.entries.back().filter(|newest| rule.delta && newest.offset == before);
        let base = newest.map(|newest| Arc::clone(&newest.message));
        let (offset, age_ms) = offset.unwrap_or((before + 1, 0));
        (self.top, self.is_new) = (offset, false);
        let message = make(self.place(), before);
        if rule.latest {
            self.cut(self.entries.len());
        }
        let entry = Entry::new(Arc::clone(&message), offset, rule, now_ms, age_ms);
        self.bytes += entry.bytes;
        self.entries.push_back(entry);
        self.bound(rule);
        (message, base)
    }

    /// Removes the oldest messages beyond the rule's bounds.
    fn bound(&mut self, rule: HistoryRule) {
        while self.entries.len() > rule.messages || self.bytes > rule.bytes {
            self.cut(1);
            self.lost = self.lost.max(self.floor);
        }
    }

    /// Removes what is too old.
    pub(super) fn expire(&mut self, now_ms: u64) {
        let is_old = |entry: &&Entry| entry.until_ms <= now_ms;
        let old = self.entries.iter().take_while(is_old).count();
        self.cut(old);
        if old > 0 {
            self.lost = self.lost.max(self.floor);
        }
    }

    /// Removes the oldest messages. Returns how many bytes that freed.
    pub(super) fn cut(&mut self, count: usize) -> usize {
        let before = self.bytes;
        for Entry { offset, bytes, .. } in self.entries.drain(..count.min(self.entries.len())) {
            self.floor = offset;
            self.bytes -= bytes;
        }
        if self.entries.is_empty() {
            self.entries = VecDeque::new();
        }
        before - self.bytes
    }

    /// Returns the messages after `since`: all of them, or none and `recovered` false.
    ///
    /// `least`: the log is complete up to this offset, even if its newest message is older.
    pub(super) fn recover(&self, rule: HistoryRule, since: Option<Place>, least: u64, now_ms: u64) -> Recovery {
        let place = Place { offset: self.top.max(least), ..self.place() };
        let live = || self.entries.iter().filter(|entry| entry.until_ms > now_ms);
        let message = |entry: &Entry| entry.for_client(now_ms);
        if rule.latest {
            // An older value is outdated, not missed. The newest one may be too old itself.
            let newest = live().next_back().filter(|entry| entry.expires_ms > now_ms);
            let has_it = since.is_some_and(|since| since.epoch == self.epoch && since.offset == self.top)
                || since == Some(place);
            let recovered = since.map(|_| has_it || newest.is_some());
            return Recovery {
                place,
                recovered,
                messages: newest.filter(|_| !has_it).map(message).into_iter().collect(),
            };
        }
        let Some(since) = since else { return Recovery { place, recovered: None, messages: Vec::new() } };
        let is_known = since.epoch == self.epoch && (self.floor..=place.offset).contains(&since.offset);
        let mut missed = self.entries.iter().filter(|entry| entry.offset > since.offset);
        // Some may be too old, and not removed yet.
        if !is_known || missed.clone().any(|entry| entry.until_ms <= now_ms) {
            return Recovery { place, recovered: Some(false), messages: Vec::new() };
        }
        Recovery { place, recovered: Some(true), messages: missed.by_ref().map(message).collect() }
    }

    /// Returns the newest `limit` messages that are not too old.
    pub(super) fn newest(&self, limit: usize, now_ms: u64) -> Vec<Arc<Message>> {
        let is_live = |entry: &&Entry| entry.until_ms.min(entry.expires_ms) > now_ms;
        let live = self.entries.iter().filter(is_live).collect::<Vec<_>>();
        live.iter().rev().take(limit).rev().map(|entry| Arc::clone(&entry.message)).collect()
    }
}

fn millis(rule: HistoryRule) -> u64 {
    u64::try_from(rule.time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use oroshi_websocket::Kind;
    use proptest::prelude::*;

    use super::*;
    use crate::message::Framing;

    const RULE: HistoryRule =
        HistoryRule { messages: 5, bytes: 5000, time: Duration::from_millis(100), latest: false, delta: false };

    fn append(log: &mut Log, rule: HistoryRule, now_ms: u64, length: usize) -> u64 {
        let mut offset = 0;
        log.append(rule, now_ms, None, |place, _| {
            offset = place.offset;
            Arc::new(
                Message::data(Kind::Text, Bytes::from(vec![b'x'; length]))
                    .to_publication(Some("c".into()), Some(place)),
            )
        });
        offset
    }

    fn offsets(recovery: &Recovery) -> Vec<u64> {
        recovery.messages.iter().map(|message| message.place().unwrap().offset).collect()
    }

    #[test]
    fn a_client_gets_all_that_it_missed_or_is_told() {
        let mut log = Log::new(7, 0);
        let at = |epoch, offset| Some(Place { epoch, offset });
        assert_eq!(log.recover(RULE, None, 0, 0).recovered, None);
        assert_eq!(log.recover(RULE, at(7, 0), 0, 0).recovered, Some(true), "nothing was published, nothing is missed");
        for _ in 0..7 {
            append(&mut log, RULE, 0, 1);
        }
        for (since, recovered, found) in [
            (at(7, 7), true, vec![]),
            (at(7, 4), true, vec![5, 6, 7]),
            (at(7, 2), true, vec![3, 4, 5, 6, 7]),
            (at(7, 1), false, vec![]),
            (at(7, 8), false, vec![]),
            (at(8, 7), false, vec![]),
        ] {
            let recovery = log.recover(RULE, since, 0, 99);
            assert_eq!((recovery.recovered, offsets(&recovery)), (Some(recovered), found), "{since:?}");
            assert_eq!(recovery.place, Place { epoch: 7, offset: 7 });
        }
        assert_eq!(log.recover(RULE, at(7, 6), 0, 100).recovered, Some(false), "too old");
        assert_eq!(log.recover(RULE, at(7, 7), 0, 100).recovered, Some(true), "nothing is missed");
    }

    #[test]
    fn the_latest_value_alone_is_kept() {
        let rule = HistoryRule { latest: true, ..RULE };
        let mut log = Log::new(7, 0);
        for _ in 0..3 {
            append(&mut log, rule, 0, 1);
        }
        assert_eq!(offsets(&log.recover(rule, None, 0, 0)), [3], "a new subscriber gets it at once");
        let old = log.recover(rule, Some(Place { epoch: 1, offset: 9 }), 0, 0);
        assert_eq!((old.recovered, offsets(&old)), (Some(true), vec![3]));
        let current = log.recover(rule, Some(Place { epoch: 7, offset: 3 }), 0, 0);
        assert_eq!((current.recovered, offsets(&current)), (Some(true), vec![]));
        let late = log.recover(rule, Some(Place { epoch: 7, offset: 2 }), 0, 100);
        assert_eq!((late.recovered, offsets(&late)), (Some(false), vec![]), "the value is too old");
    }

    /// What came first is filled in later: all after the position, or nothing.
    #[test]
    fn what_a_stream_has_kept_goes_before_what_came() {
        let rule = HistoryRule { messages: 4, ..RULE };
        let publication = |offset: u64| {
            let message = Message::data(Kind::Text, Bytes::from_static(b"x"));
            message.to_publication(Some("c".into()), Some(Place { epoch: 7, offset }))
        };
        let older = |offsets: &[u64]| -> Vec<Older> {
            offsets.iter().map(|&offset| Older { message: publication(offset), offset, age_ms: 0 }).collect()
        };
        let prevs = |log: &Log| -> Vec<String> {
            let frames =
                log.entries.iter().map(|entry| String::from_utf8_lossy(entry.message.frame(Framing::Poll)).into());
            let prev = |frame: String| frame.split("\"prev\":").nth(1).unwrap().split(',').next().unwrap().to_owned();
            frames.map(prev).collect()
        };
        let mut log = Log::new(7, 100);
        let make = |place: Place, prev| Arc::new(publication(place.offset).with_prev(Some(prev)));
        log.append(rule, 0, Some((105, 0)), make);
        assert_eq!(prevs(&log), ["100"]);
        let since = |offset| Some(Place { epoch: 7, offset });
        assert_eq!(log.recover(rule, since(95), 106, 0).recovered, Some(false));
        assert!(log.may_be_filled(95) && !log.may_be_filled(100));
        // The stream was read after 105 had come, and has nothing up to 80 any more.
        log.fill(rule, 100, 80, older(&[70, 85, 90, 105]), 0);
        assert_eq!(
            (offsets(&log.recover(rule, since(87), 106, 0)), prevs(&log)),
            (vec![90, 105], ["80", "85", "90"].map(String::from).to_vec())
        );
        assert_eq!(log.recover(rule, since(79), 106, 0).recovered, Some(false));
        assert!(!log.may_be_filled(79), "nobody has it");
        assert_eq!(log.recover(rule, since(106), 106, 0).recovered, Some(true), "nothing has come since");
        assert_eq!(log.recover(rule, since(107), 106, 0).recovered, Some(false), "the future");
        for offset in [110, 111] {
            log.append(rule, 0, Some((offset, 0)), make);
        }
        assert_eq!(log.recover(rule, since(84), 111, 0).recovered, Some(false), "more than it keeps");
        assert!(!log.may_be_filled(84), "the rule does not keep it");
        // A hole: the next message shows it.
        log.skip_to(120);
        log.append(rule, 0, Some((125, 0)), make);
        assert_eq!(prevs(&log), ["120"]);
        assert!(log.recover(rule, since(111), 125, 0).recovered == Some(false) && log.may_be_filled(111));
    }

    proptest! {
        /// Whatever is published, expires and is cut: a recovery has every message behind the position, or none.
        #[test]
        fn all_or_told(
            steps in proptest::collection::vec((0u64..40, 0usize..2000, 0u8..8), 1..60),
            since in 0u64..60,
        ) {
            let mut log = Log::new(1, 0);
            let mut now = 0;
            let mut published = 0;
            for (pause, length, action) in steps {
                now += pause;
                match action {
                    0 => { log.cut(1); }
                    1 => log.expire(now),
                    _ => {
                        published += 1;
                        prop_assert_eq!(append(&mut log, RULE, now, length), published);
                    }
                }
                prop_assert!(log.entries.len() <= RULE.messages && log.bytes <= RULE.bytes);
                prop_assert_eq!(log.bytes, log.entries.iter().map(|entry| entry.bytes).sum::<usize>());
                let recovery = log.recover(RULE, Some(Place { epoch: 1, offset: since }), 0, now);
                let found = offsets(&recovery);
                if recovery.recovered == Some(true) {
                    prop_assert_eq!(found, (since + 1..=published).collect::<Vec<_>>());
                    prop_assert!(since <= published);
                } else {
                    prop_assert!(found.is_empty());
                }
            }
        }
    }
}
