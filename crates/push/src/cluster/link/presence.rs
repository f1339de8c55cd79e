//! What this node tells others about the subscribers of channels: a feed for each node that watches.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Command, Link};
use crate::cluster::wire::{Body, Head, Presence, Watch};
use crate::presence::Part;

/// The feeds by node.
#[derive(Debug, Default)]
pub(super) struct Feeds(Mutex<HashMap<u64, Feed>>);

/// What one node is told.
#[derive(Debug)]
struct Feed {
    number: u64,
    /// The number of the last message with parts, sent or not: the node notices one that it does not get.
    last: u64,
    /// The number of the last [`Watch`].
    last_watch: u64,
    opened_ms: u64,
}

/// What a [`Watch`] means for its feed.
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
        feed.last += 1;
        let mut frame = self.presence_frame(feed, vec![(Box::from(&**channel), part.clone())]);
        if let Part::List(list) = &part
            && frame.len() > self.shared.max_payload.load(Ordering::Relaxed)
        {
            // The names of the users are too long.
            let count = Part::Count(list.len() as u64);
            frame = self.presence_frame(feed, vec![(Box::from(&**channel), count)]);
        }
        // Without room it is lost, which its number shows.
        if let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned((frame.len() / 1024 + 1) as u32) {
            let _ = self.commands.send(Command::Tell { to: node, frame, _room: room });
        }
    }

    /// Tells each node that watches how much it was told so far.
    pub(in crate::cluster) fn tell_numbers(&self) {
        for (&node, feed) in &*self.feeds() {
            let frame = self.presence_frame(feed, Vec::new());
            let _ = self.commands.send(Command::Reply { to: node, frame });
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
                feeds.insert(node, Feed { number: watch.feed, last: 0, last_watch: 0, opened_ms: now_ms });
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

    fn presence_frame(&self, feed: &Feed, parts: Vec<(Box<str>, Part)>) -> Vec<u8> {
        let head = Head { sender: self.shared.me, sent_ms: self.shared.now_ms(), ..Head::default() };
        let Feed { number, last, last_watch, .. } = *feed;
        Body::Presence(Presence { feed: number, number: last, last_watch, parts }).encode(head)
    }

    fn feeds(&self) -> MutexGuard<'_, HashMap<u64, Feed>> {
        self.feeds.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
