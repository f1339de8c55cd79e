//! The history of one channel: a state machine without clock and locks.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::message::{Message, Place};
use crate::plan::HistoryRule;

/// The memory of a kept message beside its text, bytes: the log's entry, the message, its frame.
const ENTRY_BYTES: usize = 320;

/// The numbered messages of one channel, oldest first.
#[derive(Debug)]
pub(super) struct Log {
    epoch: u64,
    /// The offset of the newest message; 0 before the first.
    top: u64,
    /// Messages up to this offset may be gone, although a later one is still here.
    floor: u64,
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

impl Entry {
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
    /// Begins the history of a channel.
    pub(super) fn new(epoch: u64) -> Self {
        Log { epoch, top: 0, floor: 0, entries: VecDeque::new(), bytes: 0, until_ms: 0, subscribers: 0 }
    }

    /// Returns the newest position.
    pub(super) fn place(&self) -> Place {
        Place { epoch: self.epoch, offset: self.top }
    }

    /// Returns what its messages hold, bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Begins another history, because messages may be missing in this one.
    pub(super) fn restart(&mut self, epoch: u64) {
        let Log { until_ms, subscribers, .. } = *self;
        *self = Log { until_ms, subscribers, ..Log::new(epoch) };
    }

    /// Returns whether it holds no message.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Remembers the channel until the rule's time after `now_ms`.
    pub(super) fn touch(&mut self, rule: HistoryRule, now_ms: u64) {
        self.until_ms = self.until_ms.max(now_ms.saturating_add(millis(rule)));
    }

    /// Appends the message that `make` returns for its place.
    pub(super) fn append(
        &mut self,
        rule: HistoryRule,
        now_ms: u64,
        make: impl FnOnce(Place) -> Arc<Message>,
    ) -> Arc<Message> {
        self.touch(rule, now_ms);
        self.expire(now_ms);
        self.top += 1;
        let message = make(self.place());
        if rule.latest {
            self.cut(self.entries.len());
        }
        // Twice its length: as it came, and framed.
        let bytes = message.len() * 2 + ENTRY_BYTES;
        self.bytes += bytes;
        let until_ms = now_ms.saturating_add(millis(rule));
        let ttl_ms = message.ttl().and_then(|ttl| u64::try_from(ttl.as_millis()).ok());
        let expires_ms = ttl_ms.map_or(u64::MAX, |ttl| now_ms.saturating_add(ttl));
        self.entries.push_back(Entry { message: Arc::clone(&message), offset: self.top, bytes, until_ms, expires_ms });
        while self.entries.len() > rule.messages || self.bytes > rule.bytes {
            self.cut(1);
        }
        message
    }

    /// Removes what is too old.
    pub(super) fn expire(&mut self, now_ms: u64) {
        let is_old = |entry: &&Entry| entry.until_ms <= now_ms;
        let old = self.entries.iter().take_while(is_old).count();
        self.cut(old);
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
    pub(super) fn recover(&self, rule: HistoryRule, since: Option<Place>, now_ms: u64) -> Recovery {
        let place = self.place();
        let live = || self.entries.iter().filter(|entry| entry.until_ms > now_ms);
        let message = |entry: &Entry| entry.for_client(now_ms);
        if rule.latest {
            // An older value is outdated, not missed. The newest one may be too old itself.
            let newest = live().next_back().filter(|entry| entry.expires_ms > now_ms);
            let has_it = since == Some(place);
            let recovered = since.map(|_| has_it || newest.is_some());
            return Recovery {
                place,
                recovered,
                messages: newest.filter(|_| !has_it).map(message).into_iter().collect(),
            };
        }
        let Some(since) = since else { return Recovery { place, recovered: None, messages: Vec::new() } };
        let missed =
            self.top.checked_sub(since.offset).filter(|_| since.epoch == self.epoch && since.offset >= self.floor);
        let messages: Vec<_> = live().filter(|entry| entry.offset > since.offset).map(message).collect();
        match missed {
            // Some of them may have been too old.
            Some(missed) if missed == messages.len() as u64 => Recovery { place, recovered: Some(true), messages },
            _ => Recovery { place, recovered: Some(false), messages: Vec::new() },
        }
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

    const RULE: HistoryRule = HistoryRule { messages: 5, bytes: 5000, time: Duration::from_millis(100), latest: false };

    fn append(log: &mut Log, rule: HistoryRule, now_ms: u64, length: usize) -> u64 {
        let mut offset = 0;
        log.append(rule, now_ms, |place| {
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
        let mut log = Log::new(7);
        let at = |epoch, offset| Some(Place { epoch, offset });
        assert_eq!(log.recover(RULE, None, 0).recovered, None);
        assert_eq!(log.recover(RULE, at(7, 0), 0).recovered, Some(true), "nothing was published, nothing is missed");
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
            let recovery = log.recover(RULE, since, 99);
            assert_eq!((recovery.recovered, offsets(&recovery)), (Some(recovered), found), "{since:?}");
            assert_eq!(recovery.place, Place { epoch: 7, offset: 7 });
        }
        assert_eq!(log.recover(RULE, at(7, 6), 100).recovered, Some(false), "too old");
        assert_eq!(log.recover(RULE, at(7, 7), 100).recovered, Some(true), "nothing is missed");
    }

    #[test]
    fn the_latest_value_alone_is_kept() {
        let rule = HistoryRule { latest: true, ..RULE };
        let mut log = Log::new(7);
        for _ in 0..3 {
            append(&mut log, rule, 0, 1);
        }
        assert_eq!(offsets(&log.recover(rule, None, 0)), [3], "a new subscriber gets it at once");
        let old = log.recover(rule, Some(Place { epoch: 1, offset: 9 }), 0);
        assert_eq!((old.recovered, offsets(&old)), (Some(true), vec![3]));
        let current = log.recover(rule, Some(Place { epoch: 7, offset: 3 }), 0);
        assert_eq!((current.recovered, offsets(&current)), (Some(true), vec![]));
        let late = log.recover(rule, Some(Place { epoch: 7, offset: 2 }), 100);
        assert_eq!((late.recovered, offsets(&late)), (Some(false), vec![]), "the value is too old");
    }

    proptest! {
        /// Whatever is published, expires and is cut: a recovery has every message behind the position, or none.
        #[test]
        fn all_or_told(
            steps in proptest::collection::vec((0u64..40, 0usize..2000, 0u8..8), 1..60),
            since in 0u64..60,
        ) {
            let mut log = Log::new(1);
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
                let recovery = log.recover(RULE, Some(Place { epoch: 1, offset: since }), now);
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
