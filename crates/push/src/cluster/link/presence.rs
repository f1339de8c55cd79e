//! This node tells others about the subscribers of channels: on a feed for each node that watches.
//!
//! Parts wait at their feed until the NATS thread takes them, many in a message. So a node that asks for very many
//! channels gets few messages, and the parts take no more of the waiting room than they have bytes.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedSemaphorePermit;

use super::{Command, Link};
use crate::cluster::wire::{Body, HEAD_BYTES, Head, Presence, Watch};
use crate::presence::Part;

/// A message with at least so many bytes gets no further parts.
const FRAME_BYTES: usize = 32 * 1024;

/// The feeds by node.
#[derive(Debug, Default)]
pub(super) struct Feeds(Mutex<HashMap<u64, Feed>>);

/// The messages to one node that watches.
#[derive(Debug)]
struct Feed {
    number: u64,
    /// The number of the last message with parts, sent or not: the node notices one that it does not get.
    last: u64,
    /// The number of the last [`Watch`].
    last_watch: u64,
    opened_ms: u64,
    /// The parts that the NATS thread has not taken yet, and the most bytes that they take.
    waiting: Vec<(Box<str>, Part)>,
    waiting_bytes: usize,
    room: Option<OwnedSemaphorePermit>,
    /// Whether the NATS thread knows that there is something.
    is_listed: bool,
    /// Whether the node must be told how much it was told so far.
    tells_numbers: bool,
}

impl Feed {
    fn new(number: u64, opened_ms: u64) -> Self {
        Feed {
            number,
            last: 0,
            last_watch: 0,
            opened_ms,
            waiting: Vec::new(),
            waiting_bytes: 0,
            room: None,
            is_listed: false,
            tells_numbers: false,
        }
    }

    fn message(&self, parts: Vec<(Box<str>, Part)>) -> Presence {
        Presence { feed: self.number, number: self.last, last_watch: self.last_watch, parts }
    }
}

/// The state of a feed after a [`Watch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cluster) enum Watched {
    /// It opened the feed. Any earlier one has ended.
    Opened,
    /// It is the next one.
    Next,
    /// It closed the feed.
    Closed,
    /// Another one before it was lost, or it is from before.
    OutOfOrder,
}

impl Link {
    /// Returns whether this node reaches others.
    pub(crate) fn reaches_others(&self) -> bool {
        self.shared.reaches_others()
    }

    /// Asks the other nodes for a channel, or no longer.
    pub(crate) fn watch(&self, channel: &Arc<str>, is_watched: bool) {
        // If the NATS thread has ended, there is no link.
        let _ = self.commands.send(Command::Watch { channel: Arc::clone(channel), is_watched });
    }

    /// Tells a node about a channel, unless its feed has another number by now.
    pub(crate) fn tell_presence(&self, node: u64, number: u64, channel: &Arc<str>, part: Part) {
        let mut feeds = self.feeds();
        let Some(feed) = feeds.get_mut(&node).filter(|feed| feed.number == number) else { return };
        let bytes = feed.waiting_bytes + part.most_bytes(channel);
        let missing =
            (bytes / 1024 + 1).saturating_sub(feed.room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits));
        if missing > 0 {
            let Ok(more) = Arc::clone(&self.room).try_acquire_many_owned(missing.try_into().unwrap_or(u32::MAX)) else {
                // Without room it is lost, which the number shows.
                feed.last += 1;
                return;
            };
            match &mut feed.room {
                Some(room) => room.merge(more),
                None => feed.room = Some(more),
            }
        }
        feed.waiting_bytes = bytes;
        feed.waiting.push((Box::from(&**channel), part));
        if !std::mem::replace(&mut feed.is_listed, true) {
            let _ = self.commands.send(Command::Tell { to: node });
        }
    }

    /// Tells each node that watches how much it was told so far.
    pub(in crate::cluster) fn tell_numbers(&self) {
        for (&to, feed) in &mut *self.feeds() {
            (feed.is_listed, feed.tells_numbers) = (true, true);
            let _ = self.commands.send(Command::Tell { to });
        }
    }

    /// Takes the messages that wait for a node, in their order. They must be sent in this order, too. They take up room
    /// until the permit is dropped.
    pub(in crate::cluster) fn take_presence(&self, node: u64) -> (Vec<Vec<u8>>, Option<OwnedSemaphorePermit>) {
        let (messages, room) = {
            let mut feeds = self.feeds();
            let Some(feed) = feeds.get_mut(&node) else { return (Vec::new(), None) };
            let parts = std::mem::take(&mut feed.waiting);
            (feed.waiting_bytes, feed.is_listed) = (0, false);
            let tells_numbers = std::mem::take(&mut feed.tells_numbers);
            let most = self.shared.max_payload.load(Ordering::Relaxed).saturating_sub(HEAD_BYTES);
            let mut messages = Vec::new();
            let (mut some, mut bytes) = (Vec::new(), 0);
            for (channel, part) in parts {
                let more = part.most_bytes(&channel);
                if !some.is_empty() && (bytes >= FRAME_BYTES || bytes + more > most) {
                    feed.last += 1;
                    messages.push(feed.message(std::mem::take(&mut some)));
                    bytes = 0;
                }
                bytes += more;
                some.push((channel, part));
            }
            if !some.is_empty() {
                feed.last += 1;
                messages.push(feed.message(some));
            }
            if tells_numbers {
                messages.push(feed.message(Vec::new()));
            }
            (messages, feed.room.take())
        };
        let head = Head { sender: self.shared.me, sent_ms: self.shared.now_ms(), ..Head::default() };
        (messages.into_iter().map(|message| Body::Presence(message).encode(head)).collect(), room)
    }

    /// Drops what waits for the nodes, after the link was lost. The numbers show it.
    pub(in crate::cluster) fn drop_presence(&self) {
        for feed in self.feeds().values_mut() {
            if !feed.waiting.is_empty() {
                feed.last += 1;
            }
            feed.waiting = Vec::new();
            (feed.room, feed.waiting_bytes, feed.is_listed, feed.tells_numbers) = (None, 0, false, false);
        }
    }

    /// Takes note of what a node wants to be told.
    pub(in crate::cluster) fn note_watch(&self, node: u64, watch: &Watch, now_ms: u64) -> Watched {
        let mut feeds = self.feeds();
        if watch.feed == 0 {
            feeds.remove(&node);
            return Watched::Closed;
        }
        match feeds.get_mut(&node).filter(|feed| feed.number == watch.feed) {
            Some(feed) if watch.number == feed.last_watch + 1 => {
                feed.last_watch = watch.number;
                Watched::Next
            }
            None if watch.number == 0 => {
                feeds.insert(node, Feed::new(watch.feed, now_ms));
                Watched::Opened
            }
            _ => Watched::OutOfOrder,
        }
    }

    /// Closes the feeds of nodes that are not present. Those in `opened_after` may not have been heard yet.
    pub(in crate::cluster) fn close_feeds(&self, is_present: impl Fn(u64) -> bool, opened_after: u64) -> Vec<u64> {
        let mut closed = Vec::new();
        self.feeds().retain(|&node, feed| {
            let stays = is_present(node) || feed.opened_ms > opened_after;
            if !stays {
                closed.push(node);
            }
            stays
        });
        closed
    }

    fn feeds(&self) -> MutexGuard<'_, HashMap<u64, Feed>> {
        self.feeds.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
