//! Who subscribes to channels: what this node asks others, and what others ask this one.

use std::sync::Arc;

use oroshi_nats::Client;

use super::Worker;
use crate::cluster::feeds::Heard;
use crate::cluster::link::{Command, Watched};
use crate::cluster::peers::SILENCE_MS;
use crate::cluster::wire::{Body, Head, Presence, Watch};
use crate::hub::presence::output;
use crate::presence::Part;

/// The most channels in a message, each with a name of at most 255 bytes.
const CHANNELS: usize = 500;

impl Worker {
    /// Tells other nodes how much they were told, and opens the feeds that this node needs. To be called with each
    /// heartbeat, behind it.
    pub(super) async fn tend_feeds(&self, client: &Client) {
        let Some(link) = self.node.link.as_ref().filter(|_| self.node.plan.has_presence_events()) else { return };
        let now = self.shared.now_ms();
        let is_present = |node| self.peers.borrow().is_present(node);
        for node in link.close_feeds(is_present, now.saturating_sub(SILENCE_MS)) {
            self.node.presences.unfeed_all(node);
        }
        link.tell_numbers();
        let held = self.node.presences.held();
        if held.is_empty() {
            let nodes = self.feeds.borrow_mut().close_all();
            for node in nodes {
                self.node.presences.end_lease(node, &output(&self.node, &self.mailboxes));
                self.send_watch(client, node, Watch::default()).await;
            }
            return;
        }
        let known = self.peers.borrow().known();
        for node in known {
            if self.feeds.borrow().needs_another(node, now) {
                self.open_feed(client, node, &held).await;
            }
        }
    }

    /// Asks the other nodes for a channel, or no longer. Returns false if the client has ended.
    pub(super) async fn watch(&self, client: &Client, channel: Arc<str>, is_watched: bool) -> bool {
        let known = self.peers.borrow().known();
        if is_watched {
            // Before the question, so that no answer is missed.
            self.node.presences.asked(&channel, &known);
        }
        for node in known {
            let next = self.feeds.borrow_mut().next(node);
            let is_sent = match next {
                Some((feed, number)) => {
                    let named = vec![Box::from(&*channel)];
                    let (watched, unwatched) = if is_watched { (named, Vec::new()) } else { (Vec::new(), named) };
                    self.send_watch(client, node, Watch { feed, number, unwatched, watched }).await
                }
                None if is_watched => self.open_feed(client, node, &self.node.presences.held()).await,
                None => true,
            };
            if !is_sent {
                return false;
            }
        }
        true
    }

    /// Opens a feed at a node, with all channels that this one watches. Returns false if the client has ended.
    async fn open_feed(&self, client: &Client, node: u64, held: &[Arc<str>]) -> bool {
        self.feeds.borrow_mut().open(node, self.shared.now_ms());
        self.node.presences.begin_lease(node, self.node.now_ms());
        for some in held.chunks(CHANNELS) {
            let Some((feed, number)) = self.feeds.borrow_mut().next(node) else { return true };
            let watched = some.iter().map(|channel| Box::from(&**channel)).collect();
            if !self.send_watch(client, node, Watch { feed, number, unwatched: Vec::new(), watched }).await {
                return false;
            }
        }
        self.feeds.borrow_mut().opened(node);
        true
    }

    async fn send_watch(&self, client: &Client, node: u64, watch: Watch) -> bool {
        let frame = Body::Watch(watch).encode(Head { number: 0, ..self.head() });
        client.publish(format!("oroshi.push.{}.node.{node:016x}", self.name), frame.into()).await.is_ok()
    }

    /// Handles what another node wants to be told.
    pub(super) fn handle_watch(&self, node: u64, watch: Watch) {
        let (Some(link), presences) = (&self.node.link, &self.node.presences) else { return };
        match link.note_watch(node, &watch, self.shared.now_ms()) {
            Watched::Opened | Watched::Closed => presences.unfeed_all(node),
            Watched::Next => {}
            Watched::OutOfOrder => return,
        }
        let out = output(&self.node, &self.mailboxes);
        for channel in &watch.unwatched {
            presences.unfeed(node, channel);
        }
        for channel in watch.watched {
            let channel: Arc<str> = channel.into();
            if self.node.plan.group_rule(&channel).is_some_and(|rule| rule.presence_events) {
                presences.feed(node, watch.feed, &channel, &out);
            } else {
                // The nodes have different rules. This one does not note who comes and goes.
                link.tell_presence(node, watch.feed, &channel, Part::List(Vec::new()));
            }
        }
    }

    /// Handles what another node tells.
    pub(super) fn handle_presence(&self, node: u64, mut presence: Presence) {
        let heard = self.feeds.borrow_mut().heard(node, &presence, self.shared.now_ms());
        match heard {
            Heard::Valid => {}
            Heard::Broken => presence.parts.clear(),
            // The next feed says all.
            Heard::Closed if self.feeds.borrow().has(node) => return,
            Heard::Closed => {
                let frame = Body::Watch(Watch::default()).encode(Head { number: 0, ..self.head() });
                let _ = self.commands.send(Command::Reply { to: node, frame });
                return;
            }
        }
        let out = output(&self.node, &self.mailboxes);
        if !self.node.presences.told(node, presence.parts, self.node.now_ms(), &out) {
            // It was silent for so long that its subscribers have left: it must tell all of them again.
            self.feeds.borrow_mut().break_at(node);
        }
    }

    /// Takes note that nodes are gone, with their subscribers and what they watch.
    pub(super) fn forget(&self, gone: &[u64]) {
        let Some(link) = self.node.link.as_ref().filter(|_| self.node.plan.has_presence_events()) else { return };
        for &node in gone {
            self.feeds.borrow_mut().close(node);
            self.node.presences.end_lease(node, &output(&self.node, &self.mailboxes));
        }
        for node in link.close_feeds(|node| !gone.contains(&node), u64::MAX) {
            self.node.presences.unfeed_all(node);
        }
    }
}
