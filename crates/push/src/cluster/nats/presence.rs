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

impl Worker {
    /// Tells other nodes how much they were told, and opens the feeds that this node needs. To be called with each
    /// heartbeat, behind it.
    pub(super) async fn tend_feeds(&self, client: &Client) {
        let Some(link) = &self.node.link else { return };
        let now = self.shared.now_ms();
        let is_present = |node| self.peers.borrow().is_present(node);
        for node in link.close_feeds(is_present, now.saturating_sub(SILENCE_MS)) {
            self.node.presences.unfeed_all(node);
        }
        // Also if no rule has events here: the nodes that asked would open a feed again and again.
        link.tell_numbers();
        if !self.node.plan.has_presence_events() {
            return;
        }
        if self.node.presences.held().is_empty() {
            // Without an `await` in between: a channel that is held from now on opens feeds anew.
            let nodes = self.feeds.borrow_mut().close_all(now);
            nodes.iter().for_each(|&node| self.node.presences.drop_lease(node));
            for node in nodes {
                if !self.feeds.borrow().has(node) {
                    self.send_watch(client, node, Watch::default()).await;
                }
            }
            return;
        }
        let known = self.peers.borrow().known();
        for node in known {
            let needs_another = self.feeds.borrow().needs_another(node, self.shared.now_ms());
            if needs_another {
                self.open_feed(client, node).await;
            }
        }
    }

    /// Asks the other nodes for a channel, or no longer. Returns false if the client has ended.
    pub(super) async fn watch(&self, client: &Client, channel: Arc<str>, is_watched: bool) -> bool {
        let known = self.peers.borrow().known();
        if is_watched {
            let (feeds, now) = (self.feeds.borrow(), self.shared.now_ms());
            let awaited: Vec<u64> = known.iter().copied().filter(|&node| feeds.answers(node, now)).collect();
            drop(feeds);
            // Before the question, so that no answer is missed.
            self.node.presences.asked(&channel, &awaited);
        }
        for node in known {
            let next = self.feeds.borrow_mut().next(node);
            let is_sent = match next {
                Some((feed, number)) => {
                    let named = vec![Box::from(&*channel)];
                    let (watched, unwatched) = if is_watched { (named, Vec::new()) } else { (Vec::new(), named) };
                    self.send_watch(client, node, Watch { feed, number, unwatched, watched }).await
                }
                None if is_watched => self.open_feed(client, node).await,
                None => true,
            };
            if !is_sent {
                return false;
            }
        }
        true
    }

    /// Opens a feed at a node, with all channels that this one watches. Returns false if the client has ended.
    async fn open_feed(&self, client: &Client, node: u64) -> bool {
        // A channel that is held after this has a command on its way, which finds the feed.
        let held = self.node.presences.held();
        if held.is_empty() {
            // A feed on which nothing is asked would seem mute.
            return true;
        }
        let mut opening = self.feeds.borrow_mut().open(node, held, self.shared.now_ms());
        self.node.presences.begin_lease(node, self.node.now_ms());
        loop {
            let is_held = |channel: &str| self.node.presences.is_held(channel);
            let next = opening.next(&mut self.feeds.borrow_mut(), client.max_payload(), is_held);
            let Some(watch) = next else { return true };
            if !self.send_watch(client, node, watch).await {
                return false;
            }
        }
    }

    /// Sends a message on a feed. Returns false if the client has ended.
    async fn send_watch(&self, client: &Client, node: u64, watch: Watch) -> bool {
        let frame = self.watch_frame(watch);
        let (size, most) = (frame.len(), client.max_payload());
        if size > most {
            // The feed lacks it, which its numbers show.
            let what =
                format!("a node was not asked for a channel in {size} bytes: NATS takes {most} (its max_payload)");
            self.shared.trouble(what);
            return true;
        }
        client.publish(self.subject_of(node), frame.into()).await.is_ok()
    }

    fn watch_frame(&self, watch: Watch) -> Vec<u8> {
        Body::Watch(watch).encode(Head { number: 0, ..self.head() })
    }

    /// Tells a node what waits for it. Returns false if the client has ended.
    pub(super) async fn tell(&self, client: &Client, node: u64) -> bool {
        let Some(link) = &self.node.link else { return true };
        let (frames, _room) = link.take_presence(node);
        for frame in frames {
            // One that is too large is lost, which its number shows.
            if frame.len() <= client.max_payload() && client.publish(self.subject_of(node), frame.into()).await.is_err()
            {
                return false;
            }
        }
        true
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
                let _ = self.commands.send(Command::Reply { to: node, frame: self.watch_frame(Watch::default()) });
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
        for &node in gone {
            self.feeds.borrow_mut().close(node);
            if self.node.plan.has_presence_events() {
                self.node.presences.end_lease(node);
            }
        }
        let Some(link) = &self.node.link else { return };
        for node in link.close_feeds(|node| !gone.contains(&node), u64::MAX) {
            self.node.presences.unfeed_all(node);
        }
    }
}
