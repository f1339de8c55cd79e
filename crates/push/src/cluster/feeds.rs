//! The feeds on which other nodes tell this one who subscribes to the channels that it watches.
//!
//! No I/O and no clock: times are arguments, in milliseconds of this node's own clock.
//!
//! NATS may lose messages. Therefore both ends number what they send on a feed, and say each second what they have got.
//! Where a number is missing, this node opens another feed at that node, which then tells everything anew. It does the
//! same where a feed is silent: the other node may have lost it.
//!
//! A feed is opened with several messages, and the node may answer the first of them before the last one is sent.
//! Its answers hold from the beginning.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::cluster::peers::HEARTBEAT_MS;
use crate::cluster::wire::{HEAD_BYTES, Presence, Watch};

/// After this silence another feed is opened, milliseconds. Nodes speak on a feed with each heartbeat.
const FEED_SILENCE_MS: u64 = HEARTBEAT_MS * 3 / 2;

/// The longest time between two feeds at a node on which nothing succeeds, milliseconds.
const LONGEST_PAUSE_MS: u64 = 16 * HEARTBEAT_MS;

/// The most channels in a message.
const CHANNELS: usize = 500;

/// The most bytes of channels in a message, unless NATS takes less.
const CHANNELS_BYTES: usize = 64 * 1024;

/// The feeds of this node, by the node that tells.
#[derive(Debug, Default)]
pub(super) struct Feeds {
    last: u64,
    feeds: HashMap<u64, Feed>,
    /// Nodes that said nothing on a feed: they are of a version without these messages, or are cut off.
    mute: HashSet<u64>,
}

#[derive(Debug)]
struct Feed {
    number: u64,
    /// Whether all channels were asked for.
    is_open: bool,
    /// Whether something was lost.
    is_broken: bool,
    /// Whether the node has said something on it.
    was_heard: bool,
    /// Whether the node has said, once all channels were asked for, that nothing was lost.
    was_good: bool,
    /// How many messages with channels were sent.
    sent: u64,
    /// The same when the node last said what it had got.
    sent_before: u64,
    /// The number of the last message with parts.
    received: u64,
    opened_ms: u64,
    /// When it was opened, or the last message came.
    heard_ms: u64,
    /// Another feed is opened so long after this one at the earliest.
    pause_ms: u64,
}

impl Feed {
    fn is_mute(&self, now: u64) -> bool {
        !self.was_heard && now.saturating_sub(self.opened_ms) > FEED_SILENCE_MS
    }
}

/// The state of a feed after a message on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Its parts hold.
    Valid,
    /// It shows a loss, or comes after one: the node is there, but its parts do not hold.
    Broken,
    /// The feed is not open any more.
    Closed,
}

/// The channels that a node is still to be asked for on a new feed.
#[derive(Debug)]
pub(super) struct Opening {
    node: u64,
    feed: u64,
    rest: VecDeque<Arc<str>>,
}

impl Opening {
    /// Returns the next message; `None` once all are sent, or another feed was opened. Channels that are not held any
    /// more are left out: a message that ends their watch may be before this one.
    ///
    /// `most_bytes`: the largest message that NATS takes. The message must be sent without an `await` in between.
    pub(super) fn next(
        &mut self,
        feeds: &mut Feeds,
        most_bytes: usize,
        is_held: impl Fn(&str) -> bool,
    ) -> Option<Watch> {
        if self.rest.is_empty() {
            feeds.opened(self.node, self.feed);
            return None;
        }
        let feed = feeds.feeds.get_mut(&self.node).filter(|feed| feed.number == self.feed)?;
        let most_bytes = most_bytes.saturating_sub(HEAD_BYTES).min(CHANNELS_BYTES);
        let (mut watched, mut bytes) = (Vec::new(), 0);
        while let Some(channel) = self.rest.front() {
            let more = name_bytes(channel);
            if watched.len() == CHANNELS || (!watched.is_empty() && bytes + more > most_bytes) {
                break;
            }
            if is_held(channel) {
                watched.push(Box::from(&**channel));
                bytes += more;
            }
            self.rest.pop_front();
        }
        feed.sent += 1;
        Some(Watch { feed: self.feed, number: feed.sent - 1, unwatched: Vec::new(), watched })
    }
}

/// Returns the most bytes that a channel takes in a message.
fn name_bytes(channel: &str) -> usize {
    channel.len() + 10
}

impl Feeds {
    /// Opens a feed at a node in place of an earlier one, on which it is to be asked for these channels.
    pub(super) fn open(&mut self, node: u64, held: Vec<Arc<str>>, now: u64) -> Opening {
        self.last += 1;
        let before = self.feeds.get(&node);
        if before.is_some_and(|feed| feed.is_mute(now)) {
            self.mute.insert(node);
        }
        // The first attempt that fails is repeated at the next heartbeat.
        let pause_ms = match before {
            Some(feed) if !feed.was_good => (feed.pause_ms * 2).clamp(HEARTBEAT_MS, LONGEST_PAUSE_MS),
            _ => 0,
        };
        let feed = Feed {
            number: self.last,
            is_open: false,
            is_broken: false,
            was_heard: false,
            was_good: false,
            sent: 0,
            sent_before: 0,
            received: 0,
            opened_ms: now,
            heard_ms: now,
            pause_ms,
        };
        self.feeds.insert(node, feed);
        Opening { node, feed: self.last, rest: held.into() }
    }

    /// Takes note that all channels were asked for on a feed.
    fn opened(&mut self, node: u64, number: u64) {
        if let Some(feed) = self.feeds.get_mut(&node).filter(|feed| feed.number == number) {
            feed.is_open = true;
        }
    }

    /// Returns the numbers of the feed and of the next message to a node; `None` if there is no feed.
    pub(super) fn next(&mut self, node: u64) -> Option<(u64, u64)> {
        let feed = self.feeds.get_mut(&node)?;
        feed.sent += 1;
        Some((feed.number, feed.sent - 1))
    }

    /// Returns whether a node should get another feed.
    pub(super) fn needs_another(&self, node: u64, now: u64) -> bool {
        let Some(feed) = self.feeds.get(&node) else { return true };
        let age = now.saturating_sub(feed.opened_ms);
        if !feed.is_open {
            // It is being opened, or was given up meanwhile.
            return age > FEED_SILENCE_MS.max(feed.pause_ms);
        }
        let is_bad = feed.is_broken || now.saturating_sub(feed.heard_ms) > FEED_SILENCE_MS;
        is_bad && age >= feed.pause_ms
    }

    /// Checks a message of a node.
    pub(super) fn heard(&mut self, node: u64, presence: &Presence, now: u64) -> Heard {
        let Some(feed) = self.feeds.get_mut(&node).filter(|feed| feed.number == presence.feed) else {
            return Heard::Closed;
        };
        self.mute.remove(&node);
        (feed.heard_ms, feed.was_heard) = (now, true);
        let is_next = if presence.parts.is_empty() {
            // The node may not have got yet what this one sent since the last such message.
            let has_all = presence.last_watch + 1 >= feed.sent_before;
            feed.sent_before = feed.sent;
            has_all && presence.number == feed.received
        } else {
            presence.number == feed.received + 1
        };
        feed.received = presence.number;
        feed.is_broken |= !is_next;
        feed.was_good |= feed.is_open && !feed.is_broken && presence.parts.is_empty();
        if feed.is_broken { Heard::Broken } else { Heard::Valid }
    }

    /// Returns whether there is a feed at a node.
    pub(super) fn has(&self, node: u64) -> bool {
        self.feeds.contains_key(&node)
    }

    /// Returns whether a node can be expected to answer: it has not been silent on a feed.
    pub(super) fn answers(&self, node: u64, now: u64) -> bool {
        !self.mute.contains(&node) && !self.feeds.get(&node).is_some_and(|feed| feed.is_mute(now))
    }

    /// Has another feed opened at a node.
    pub(super) fn break_at(&mut self, node: u64) {
        self.feeds.get_mut(&node).into_iter().for_each(Feed::end);
    }

    /// Has another feed opened at each node.
    pub(super) fn break_all(&mut self) {
        self.feeds.values_mut().for_each(Feed::end);
    }

    /// Closes the feed at a node, which is gone.
    pub(super) fn close(&mut self, node: u64) {
        self.feeds.remove(&node);
        self.mute.remove(&node);
    }

    /// Closes all feeds, and returns their nodes.
    pub(super) fn close_all(&mut self, now: u64) -> Vec<u64> {
        let closed = self.feeds.drain();
        let note = |(node, feed): (u64, Feed)| {
            if feed.is_mute(now) {
                self.mute.insert(node);
            }
            node
        };
        closed.map(note).collect()
    }
}

impl Feed {
    /// Has it replaced at once, also if it is being opened.
    fn end(&mut self) {
        (self.is_open, self.is_broken, self.pause_ms) = (true, true, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::Part;

    fn message(feed: u64, number: u64, last_watch: u64, has_parts: bool) -> Presence {
        let parts = if has_parts { vec![("c".into(), Part::Count(1))] } else { Vec::new() };
        Presence { feed, number, last_watch, parts }
    }

    fn channels(count: usize) -> Vec<Arc<str>> {
        (0..count).map(|at| Arc::from(format!("room:{at}"))).collect()
    }

    /// Opens a feed at node 2, with one message.
    fn open(feeds: &mut Feeds, now: u64) {
        let mut opening = feeds.open(2, channels(1), now);
        assert_eq!(opening.next(feeds, usize::MAX, |_| true).unwrap().number, 0);
        assert!(opening.next(feeds, usize::MAX, |_| true).is_none());
    }

    /// A feed at node 2, with one message sent.
    fn opened() -> Feeds {
        let mut feeds = Feeds::default();
        assert!(feeds.needs_another(2, 0), "it has none");
        open(&mut feeds, 0);
        assert!(!feeds.needs_another(2, 0));
        feeds
    }

    /// Once such answers were thrown away, and nothing showed it: the lists stayed wrong for ever.
    #[test]
    fn answers_hold_that_come_before_all_channels_are_asked_for() {
        let mut feeds = Feeds::default();
        let mut opening = feeds.open(2, channels(CHANNELS + 1), 0);
        let first = opening.next(&mut feeds, usize::MAX, |_| true).unwrap();
        assert_eq!((first.feed, first.number, first.watched.len()), (1, 0, CHANNELS));
        assert_eq!(feeds.heard(2, &message(1, 1, 0, true), 10), Heard::Valid);
        let second = opening.next(&mut feeds, usize::MAX, |_| true).unwrap();
        assert_eq!((second.number, second.watched.len()), (1, 1));
        assert!(opening.next(&mut feeds, usize::MAX, |_| true).is_none());
        assert_eq!(feeds.heard(2, &message(1, 1, 1, false), 20), Heard::Valid);
        assert!(!feeds.needs_another(2, 20));
    }

    /// Two feeds that were opened at once shared their numbers, and a channel that nobody held any more was asked for
    /// behind the message that ended its watch.
    #[test]
    fn an_opening_ends_with_its_feed_and_asks_only_for_channels_that_are_held() {
        let mut feeds = Feeds::default();
        let mut first = feeds.open(2, channels(CHANNELS * 2), 0);
        first.next(&mut feeds, usize::MAX, |_| true).unwrap();
        assert!(!feeds.needs_another(2, FEED_SILENCE_MS), "it is being opened");
        assert!(feeds.needs_another(2, FEED_SILENCE_MS + 1), "it was given up");
        let mut second = feeds.open(2, channels(3), 0);
        assert!(first.next(&mut feeds, usize::MAX, |_| true).is_none(), "another one is open");
        assert_eq!(feeds.next(2), Some((2, 0)), "a channel that is watched meanwhile");
        let message = second.next(&mut feeds, usize::MAX, |channel| channel != "room:1").unwrap();
        assert_eq!((message.feed, message.number), (2, 1));
        assert_eq!(message.watched, ["room:0".into(), "room:2".into()]);
        assert!(first.next(&mut feeds, usize::MAX, |_| true).is_none(), "it does not end the other one");
        assert!(second.next(&mut feeds, usize::MAX, |_| true).is_none());
        assert!(!feeds.needs_another(2, FEED_SILENCE_MS));
    }

    #[test]
    fn a_message_is_no_larger_than_nats_takes() {
        let mut feeds = Feeds::default();
        let long: Vec<Arc<str>> = (0..40).map(|at| Arc::from(format!("{at:0255}"))).collect();
        let mut opening = feeds.open(2, long, 0);
        let (mut count, mut asked) = (0, 0);
        while let Some(watch) = opening.next(&mut feeds, 4096, |_| true) {
            let frame = crate::cluster::wire::Body::Watch(watch.clone()).encode(crate::cluster::wire::Head::default());
            assert!(frame.len() <= 4096, "{} bytes", frame.len());
            count += 1;
            asked += watch.watched.len();
        }
        assert_eq!((count, asked), (3, 40));
    }

    #[test]
    fn a_feed_that_breaks_again_and_again_is_opened_less_and_less_often() {
        let (mut feeds, mut now, mut pauses) = (Feeds::default(), 0, Vec::new());
        for _ in 0..8 {
            open(&mut feeds, now);
            let feed = feeds.last;
            assert_eq!(feeds.heard(2, &message(feed, 2, 0, true), now), Heard::Broken);
            let since = now;
            while !feeds.needs_another(2, now) {
                now += HEARTBEAT_MS;
                feeds.heard(2, &message(feed, 2, 0, false), now);
            }
            pauses.push((now - since) / HEARTBEAT_MS);
        }
        assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 16, 16]);
        open(&mut feeds, now);
        let feed = feeds.last;
        assert_eq!(feeds.heard(2, &message(feed, 0, 0, false), now), Heard::Valid);
        assert_eq!(feeds.heard(2, &message(feed, 2, 0, true), now), Heard::Broken);
        now += LONGEST_PAUSE_MS;
        open(&mut feeds, now);
        let feed = feeds.last;
        assert_eq!(feeds.heard(2, &message(feed, 2, 0, true), now), Heard::Broken);
        assert!(feeds.needs_another(2, now), "the one before was good");
    }

    #[test]
    fn nobody_waits_for_a_node_that_never_spoke() {
        let mut feeds = opened();
        assert!(feeds.answers(2, FEED_SILENCE_MS), "it may be about to answer");
        assert!(!feeds.answers(2, FEED_SILENCE_MS + 1));
        open(&mut feeds, FEED_SILENCE_MS + 1);
        assert!(!feeds.answers(2, FEED_SILENCE_MS + 1), "it was mute on another feed");
        assert_eq!(feeds.close_all(FEED_SILENCE_MS + 1), [2]);
        assert!(!feeds.answers(2, FEED_SILENCE_MS + 1));
        open(&mut feeds, FEED_SILENCE_MS + 2);
        feeds.heard(2, &message(3, 0, 0, false), FEED_SILENCE_MS + 3);
        assert!(feeds.answers(2, 10 * FEED_SILENCE_MS));
    }

    #[test]
    fn what_was_lost_on_a_feed_breaks_it() {
        let mut feeds = opened();
        assert_eq!(feeds.heard(2, &message(1, 1, 0, true), 10), Heard::Valid);
        assert_eq!(feeds.heard(2, &message(1, 1, 0, false), 20), Heard::Valid);
        assert_eq!(feeds.heard(2, &message(1, 3, 0, true), 30), Heard::Broken, "the second one is missing");
        assert_eq!(feeds.heard(2, &message(1, 4, 0, true), 40), Heard::Broken, "and nothing holds from there on");
        assert!(feeds.needs_another(2, 40));
        open(&mut feeds, 50);
        assert_eq!(feeds.heard(2, &message(1, 5, 0, true), 60), Heard::Closed);
        assert_eq!(feeds.heard(2, &message(2, 1, 0, true), 60), Heard::Valid);
        assert_eq!(feeds.heard(2, &message(2, 2, 0, false), 70), Heard::Broken, "the newest one is missing");
        assert_eq!(feeds.heard(3, &message(2, 1, 0, true), 70), Heard::Closed, "another node");
    }

    #[test]
    fn a_channel_that_a_node_was_not_asked_for_breaks_the_feed() {
        let mut feeds = opened();
        assert_eq!(feeds.heard(2, &message(1, 0, 0, false), 10), Heard::Valid);
        assert_eq!(feeds.next(2), Some((1, 1)));
        assert_eq!(feeds.heard(2, &message(1, 0, 0, false), 20), Heard::Valid, "it may be on its way");
        assert_eq!(feeds.heard(2, &message(1, 0, 0, false), 30), Heard::Broken);
        let mut feeds = opened();
        feeds.next(2);
        assert_eq!(feeds.heard(2, &message(1, 0, 1, false), 10), Heard::Valid);
        assert_eq!(feeds.heard(2, &message(1, 0, 1, false), 20), Heard::Valid);
    }

    #[test]
    fn a_silent_feed_and_all_feeds_of_a_lost_link_are_opened_again() {
        let mut feeds = opened();
        assert!(!feeds.needs_another(2, FEED_SILENCE_MS));
        assert!(feeds.needs_another(2, FEED_SILENCE_MS + 1));
        feeds.heard(2, &message(1, 0, 0, false), FEED_SILENCE_MS + 1);
        assert!(!feeds.needs_another(2, FEED_SILENCE_MS + 1), "it speaks again");
        feeds.break_all();
        assert!(feeds.needs_another(2, FEED_SILENCE_MS + 1));
        assert_eq!((feeds.close_all(0), feeds.next(2)), (vec![2], None));
    }
}
