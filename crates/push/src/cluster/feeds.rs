//! The feeds on which other nodes tell this one who subscribes to the channels that it watches.
//!
//! No I/O and no clock: times are arguments, in milliseconds of this node's own clock.
//!
//! NATS may lose messages. Therefore both ends number what they send on a feed, and say each second what they have got.
//! Where a number is missing, this node opens another feed at that node, which then tells everything anew. It does the
//! same where a feed is silent: the other node may have lost it.

use std::collections::HashMap;

use crate::cluster::peers::HEARTBEAT_MS;
use crate::cluster::wire::Presence;

/// After this silence another feed is opened, milliseconds. Nodes speak on a feed with each heartbeat.
const SILENCE_MS: u64 = HEARTBEAT_MS * 3 / 2;

/// The feeds of this node, by the node that tells.
#[derive(Debug, Default)]
pub(super) struct Feeds {
    last: u64,
    feeds: HashMap<u64, Feed>,
}

#[derive(Debug)]
struct Feed {
    number: u64,
    /// Whether something was lost, or not all channels are asked for yet.
    is_broken: bool,
    /// How many messages with channels were sent.
    sent: u64,
    /// The same when the node last said what it had got.
    sent_before: u64,
    /// The number of the last message with parts.
    received: u64,
    /// When it was opened, or the last message came.
    heard_ms: u64,
}

/// What a message on a feed means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Its parts hold.
    Valid,
    /// It shows a loss, or comes after one: the node is there, but its parts do not hold.
    Broken,
    /// The feed is not open any more.
    Closed,
}

impl Feeds {
    /// Opens a feed at a node in place of an earlier one. It counts as broken until [`opened`](Self::opened).
    pub(super) fn open(&mut self, node: u64, now: u64) {
        self.last += 1;
        let feed = Feed { number: self.last, is_broken: true, sent: 0, sent_before: 0, received: 0, heard_ms: now };
        self.feeds.insert(node, feed);
    }

    /// Takes note that all channels were asked for on a new feed.
    pub(super) fn opened(&mut self, node: u64) {
        if let Some(feed) = self.feeds.get_mut(&node) {
            feed.is_broken = false;
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
        let is_good = |feed: &Feed| !feed.is_broken && now.saturating_sub(feed.heard_ms) <= SILENCE_MS;
        !self.feeds.get(&node).is_some_and(is_good)
    }

    /// Checks a message of a node.
    pub(super) fn heard(&mut self, node: u64, presence: &Presence, now: u64) -> Heard {
        let Some(feed) = self.feeds.get_mut(&node).filter(|feed| feed.number == presence.feed) else {
            return Heard::Closed;
        };
        feed.heard_ms = now;
        let is_next = if presence.parts.is_empty() {
            // What was sent since the last such message may still be on its way.
            let has_all = presence.last_watch + 1 >= feed.sent_before;
            feed.sent_before = feed.sent;
            has_all && presence.number == feed.received
        } else {
            presence.number == feed.received + 1
        };
        feed.received = presence.number;
        feed.is_broken |= !is_next;
        if feed.is_broken { Heard::Broken } else { Heard::Valid }
    }

    /// Returns whether there is a feed at a node.
    pub(super) fn has(&self, node: u64) -> bool {
        self.feeds.contains_key(&node)
    }

    /// Has another feed opened at a node.
    pub(super) fn break_at(&mut self, node: u64) {
        if let Some(feed) = self.feeds.get_mut(&node) {
            feed.is_broken = true;
        }
    }

    /// Has another feed opened at each node.
    pub(super) fn break_all(&mut self) {
        self.feeds.values_mut().for_each(|feed| feed.is_broken = true);
    }

    /// Closes the feed at a node.
    pub(super) fn close(&mut self, node: u64) {
        self.feeds.remove(&node);
    }

    /// Closes all feeds, and returns their nodes.
    pub(super) fn close_all(&mut self) -> Vec<u64> {
        self.feeds.drain().map(|(node, _)| node).collect()
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

    /// A feed at node 2, with one message sent.
    fn opened() -> Feeds {
        let mut feeds = Feeds::default();
        assert!(feeds.needs_another(2, 0), "it has none");
        feeds.open(2, 0);
        assert!(feeds.needs_another(2, 0), "not all channels are asked for");
        assert_eq!(feeds.next(2), Some((1, 0)));
        feeds.opened(2);
        assert!(!feeds.needs_another(2, 0));
        feeds
    }

    #[test]
    fn what_was_lost_on_a_feed_breaks_it() {
        let mut feeds = opened();
        assert_eq!(feeds.heard(2, &message(1, 1, 0, true), 10), Heard::Valid);
        assert_eq!(feeds.heard(2, &message(1, 1, 0, false), 20), Heard::Valid);
        assert_eq!(feeds.heard(2, &message(1, 3, 0, true), 30), Heard::Broken, "the second one is missing");
        assert_eq!(feeds.heard(2, &message(1, 4, 0, true), 40), Heard::Broken, "and nothing holds from there on");
        assert!(feeds.needs_another(2, 40));
        feeds.open(2, 50);
        feeds.next(2);
        feeds.opened(2);
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
        assert!(!feeds.needs_another(2, SILENCE_MS));
        assert!(feeds.needs_another(2, SILENCE_MS + 1));
        feeds.heard(2, &message(1, 0, 0, false), SILENCE_MS + 1);
        assert!(!feeds.needs_another(2, SILENCE_MS + 1), "it speaks again");
        feeds.break_all();
        assert!(feeds.needs_another(2, SILENCE_MS + 1));
        assert_eq!((feeds.close_all(), feeds.next(2)), (vec![2], None));
    }
}
