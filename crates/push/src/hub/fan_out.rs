//! Publishing: from a message and its targets to the receipt.

use std::mem::take;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};

use crate::cluster::link::Link;
use crate::hub::Hub;
use crate::message::Message;
use crate::plan::SlowPolicy;
use crate::publish::{Nodes, Overloaded, Publish, PublishError, Receipt, ReceiptWait};
use crate::session::Session;
use crate::session::directory::Location;
use crate::session::tally::{Delivery, Outcome, Part};
use crate::writer::Writer;

/// A message in one form, in the queues of this thread.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) delivery: Rc<Delivery>,
    pub(super) slowest: Slowest,
}

impl Begun {
    /// Creates the delivery of a message that is in no queue yet.
    pub(super) fn new(hub: &Hub, message: &Arc<Message>) -> Self {
        let delivery = Rc::new(Delivery::counted(Arc::clone(message), &hub.counters.deliveries));
        Begun { delivery, slowest: Slowest::default() }
    }
}

/// The sessions that a publish has to wait for.
#[derive(Debug, Default)]
pub(super) struct Slowest {
    /// Sessions whose queue has no room now.
    full: Vec<Rc<Session>>,
    /// Sessions that took the message, and are far behind.
    behind: Vec<Rc<Session>>,
}

impl Hub {
    /// Publishes on all threads of this node, and on the other nodes.
    pub(crate) async fn publish(self: &Rc<Self>, publish: Publish) -> Result<Receipt, PublishError> {
        let most = self.plan().limits.total_queue_bytes;
        if self.node.queued_bytes() > most {
            self.relieve_all().await;
        }
        let queued = self.node.queued_bytes();
        // Others published meanwhile, faster than sessions could give way.
        if queued > most {
            self.counters.overloaded();
            return Err(Overloaded { queued, most }.into());
        }
        let stored = self.store(&publish).await?;
        let publish = Publish { stored, ..publish };
        self.counters.published(publish.message.len());
        let number = self.node.next_publish();
        let publish = Arc::new(publish);
        let mut receipt = match &self.node.link {
            Some(link) => self.publish_everywhere(link, &publish).await,
            None => {
                let nodes = Nodes { known: 1, answered: 1, connected: None };
                Receipt { nodes, ..self.publish_here(&publish).await }
            }
        };
        receipt.id = format!("{}-{number}", self.node.name);
        Ok(receipt)
    }

    /// Publishes here, and on the other nodes if they may have sessions that it is for.
    async fn publish_everywhere(self: &Rc<Self>, link: &Link, publish: &Arc<Publish>) -> Receipt {
        let to = &publish.to;
        // The state in which the other nodes are asked, or not.
        let is_connected = link.is_connected();
        let elsewhere: Vec<Box<str>> =
            to.sessions.iter().filter(|key| self.node.directory.find(key).is_none()).cloned().collect();
        if !to.all && to.groups.is_empty() && to.users.is_empty() && elsewhere.is_empty() {
            let nodes = Nodes { known: 1, answered: 1, connected: Some(is_connected) };
            return Receipt { nodes, ..self.publish_here(publish).await };
        }
        // The other nodes begin before this one does its own part.
        let asked = link.publish(publish, elsewhere, is_connected);
        asked.add_to(self.publish_here(publish).await).await
    }

    /// Publishes on all threads of this node.
    pub(crate) async fn publish_here(self: &Rc<Self>, publish: &Arc<Publish>) -> Receipt {
        let to = &publish.to;
        let mut receipt = Receipt::default();
        let mut sessions = Vec::with_capacity(to.sessions.len());
        for key in &to.sessions {
            match self.node.directory.find(key) {
                Some(location) => sessions.push(location),
                None => receipt.unknown.push(key.clone()),
            }
        }
        let is_broadcast = to.all || !to.groups.is_empty() || !to.users.is_empty();
        let is_for = |thread: u16| is_broadcast || sessions.iter().any(|location| location.thread == thread);
        // The other threads begin before this one does its own part.
        let mut asked = self.publish_in_order(publish);
        for thread in (0..self.node.threads()).filter(|&thread| thread != self.thread && is_for(thread)) {
            let (publish, sessions) = (Arc::clone(publish), sessions.clone());
            asked.push(self.mailboxes.ask(thread, move |hub| async move { hub.deliver(&publish, &sessions).await }));
        }
        let mut parts = Vec::with_capacity(1);
        if is_for(self.thread) {
            parts.push(self.deliver(publish, &sessions).await);
        }
        let until = Instant::now() + publish.deadline;
        for &sequence in publish.stored.iter().filter(|_| self.node.histories.are_of_stream()) {
            match timeout_at(until, self.node.arrivals.of(sequence)).await {
                Ok(Ok(of_threads)) => asked.extend(of_threads),
                _ => receipt.is_late = true,
            }
        }
        for part in asked {
            // A thread that has ended has no sessions.
            parts.extend(part.await.ok());
        }
        for Part { tally, refused } in parts {
            receipt.matched += u64::from(tally.matched);
            receipt.written += u64::from(tally.written);
            receipt.queued += u64::from(tally.queued());
            receipt.dropped += u64::from(tally.dropped);
            receipt.closed += u64::from(tally.closed);
            receipt.refused.extend(refused);
        }
        receipt
    }

    /// Publishes on this thread. `sessions` may contain sessions of other threads.
    async fn deliver(self: &Rc<Self>, publish: &Publish, sessions: &[Location]) -> Part {
        let begun = self.enqueue_all(publish, sessions);
        self.finish(publish, begun).await
    }

    /// Waits for sessions that are full or behind, and for what the publisher waits for.
    pub(super) async fn finish(&self, publish: &Publish, mut begun: Vec<Begun>) -> Part {
        let until = Instant::now() + publish.deadline;
        let mut part = Part::default();
        // The forms of a message wait side by side: none is late because of another one's sessions.
        let all_full = begun.iter_mut().map(|one| (take(&mut one.slowest.full), &one.delivery));
        let retried = all_full.filter(|(full, _)| !full.is_empty());
        let retried = join_all(retried.map(|(full, delivery)| self.retry_full(full, delivery, until)));
        part.refused.extend(retried.await.into_iter().flatten());
        let behind = begun.iter_mut().flat_map(|one| take(&mut one.slowest.behind)).collect();
        self.hold_back(behind, publish.message.len(), until).await;
        for Begun { delivery, .. } in begun {
            if publish.wait != ReceiptWait::Queued {
                // A first try is soon over; only `ReceiptWait::Written` depends on readers.
                let _ = timeout_at(until, delivery.wait(publish.wait)).await;
            }
            part.tally += delivery.tally();
        }
        part
    }

    /// Puts a message into every queue of this thread that it is for, but those of channels with a history.
    fn enqueue_all(&self, publish: &Publish, sessions: &[Location]) -> Vec<Begun> {
        let (to, stamp) = (&publish.to, self.next_stamp());
        let (mut begun, few) = (Begun::new(self, &publish.message), Writer::is_small(sessions.len()));
        // For sessions that speak the protocol of channels: the same message in an envelope.
        let mut enveloped: Option<Begun> = None;
        for key in &publish.except {
            if let Some(session) = self.node.directory.find(key).and_then(|location| self.at(location)) {
                session.stamp.set(stamp);
            }
        }
        let mut direct = |session: &Rc<Session>, slow, is_urgent| {
            let begun = if session.speaks_channels() {
                enveloped.get_or_insert_with(|| Begun::new(self, &publish.message.publication(None)))
            } else {
                &mut begun
            };
            self.enqueue_one(session, &begun.delivery, slow, stamp, is_urgent, &mut begun.slowest);
        };
        for &location in sessions {
            if let Some(session) = self.at(location) {
                direct(&session, SlowPolicy::Refuse, few);
            }
        }
        for user in to.users.iter().filter_map(|user| self.users.find(user)) {
            let is_urgent = Writer::is_small(user.len());
            user.each(|session| direct(session, user.slow, is_urgent));
        }
        for group in to.groups.iter().filter_map(|group| self.groups.find(group)) {
            let is_urgent = Writer::is_small(group.len());
            group.each(|session| direct(session, group.slow, is_urgent));
        }
        if to.all {
            let slow = self.rule_of_all();
            let is_urgent = Writer::is_small(self.len());
            self.each(|session| direct(session, slow, is_urgent));
        }
        for (at, &location) in sessions.iter().enumerate() {
            // The session ended after the look-up of its key. That ends the message for it, and counts once.
            if location.thread == self.thread && self.at(location).is_none() && !sessions[..at].contains(&location) {
                begun.delivery.matched();
                begun.delivery.settle(Outcome::Closed);
            }
        }
        let mut all = vec![begun];
        all.extend(enveloped);
        all.extend(self.enqueue_in_channels(publish));
        self.relieve();
        all
    }

    /// Puts a message into a session's queue, unless the session has got this publish. Returns false if there is no
    /// room.
    pub(super) fn enqueue_one(
        &self,
        session: &Rc<Session>,
        delivery: &Rc<Delivery>,
        slow: SlowPolicy,
        stamp: u32,
        is_urgent: bool,
        slowest: &mut Slowest,
    ) -> bool {
        if !self.writer.offer(session, delivery, slow, stamp) {
            slowest.full.push(Rc::clone(session));
            return false;
        }
        if self.backlog.is_behind(session) {
            slowest.behind.push(Rc::clone(session));
        }
        if is_urgent {
            self.writer.list_urgent(session);
        } else {
            self.writer.list_bulk(session);
        }
        true
    }

    /// Offers a message again whenever there is room, until it is queued everywhere or the time is over.
    ///
    /// Returns the keys of the sessions that never had room.
    async fn retry_full(&self, mut full: Vec<Rc<Session>>, delivery: &Rc<Delivery>, until: Instant) -> Vec<Box<str>> {
        let waiting = self.backlog.wait_for_room();
        loop {
            let room = waiting.notified();
            full.retain(|session| {
                let queued = self.writer.enqueue(session, delivery, SlowPolicy::Refuse);
                if queued {
                    self.writer.list_urgent(session);
                }
                !queued
            });
            if full.is_empty() || timeout_at(until, room).await.is_err() {
                break;
            }
        }
        full.iter().for_each(|_| delivery.settle(Outcome::Dropped));
        full.iter().map(|session| Box::from(&*session.key)).collect()
    }
}
