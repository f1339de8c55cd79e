//! Publishing: from a message and whom it is for to a receipt of what became of it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::time::{Instant, timeout_at};

use crate::directory::Place;
use crate::hub::Hub;
use crate::message::Message;
use crate::plan::Slow;
use crate::session::Session;
use crate::tally::{Delivery, Outcome, Tally, Wait};

/// What is to be published.
#[derive(Clone, Debug)]
pub(crate) struct Publish {
    pub(crate) message: Arc<Message>,
    pub(crate) to: Targets,
    /// Keys of sessions that do not get it.
    pub(crate) except: Vec<Box<str>>,
    pub(crate) wait: Wait,
    /// How long sessions with full queues, and those that are waited for, have.
    pub(crate) deadline: Duration,
}

/// Whom a message is for. Whoever is meant twice gets it once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Targets {
    pub(crate) all: bool,
    pub(crate) groups: Vec<Box<str>>,
    /// By key.
    pub(crate) sessions: Vec<Box<str>>,
}

/// What became of a publish, in sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Receipt {
    /// Names it in the logs of every node.
    pub(crate) id: String,
    /// It was meant for so many.
    pub(crate) matched: u64,
    /// Their kernel has taken it; those that poll have said that they got it.
    pub(crate) written: u64,
    /// It still waits in the queue of so many.
    pub(crate) queued: u64,
    /// It was dropped for so many: a newer message took its place, or their queue was full.
    pub(crate) dropped: u64,
    /// So many ended first.
    pub(crate) closed: u64,
    /// Keys that no session has, on the nodes that answered.
    pub(crate) unknown: Vec<Box<str>>,
    /// Keys of sessions whose queue was full until the deadline. They are among the dropped.
    pub(crate) refused: Vec<Box<str>>,
    pub(crate) nodes: Nodes,
}

/// The nodes that a publish was for. One to sessions that are all here is for no other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nodes {
    /// This one, and the others that it knows of.
    pub(crate) known: u32,
    /// This one, and the others whose receipts are in this one.
    pub(crate) answered: u32,
    /// Whether this one reached the others, known or not; `None` without a cluster.
    pub(crate) connected: Option<bool>,
}

/// More waits for sessions than may. Try again in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{queued} bytes wait for sessions, of at most {most}: publish again in a second")]
pub(crate) struct Overloaded {
    pub(crate) queued: usize,
    pub(crate) most: usize,
}

/// What became of it on one core.
#[derive(Debug)]
struct Part {
    tally: Tally,
    refused: Vec<Box<str>>,
}

/// The sessions of a publish that are no more than others ready for the next.
#[derive(Debug, Default)]
struct Queued {
    /// They have no room for now.
    full: Vec<Rc<Session>>,
    /// They have taken it, and much waits for them.
    behind: Vec<Rc<Session>>,
}

impl Hub {
    /// Publishes on all cores of this node, and on the others.
    pub(crate) async fn publish(self: &Rc<Self>, publish: Publish) -> Result<Receipt, Overloaded> {
        let most = self.plan().limits.total_queue_bytes;
        if self.node.queued_bytes() > most {
            self.relieve_all().await;
        }
        let queued = self.node.queued_bytes();
        // Others have published meanwhile, and faster than room could be made.
        if queued > most {
            self.counters.overloaded();
            return Err(Overloaded { queued, most });
        }
        self.counters.published(publish.message.len());
        let number = self.node.next_publish();
        let publish = Arc::new(publish);
        let mut receipt = match &self.node.cluster {
            Some(link) => link.publish(self, &publish).await,
            None => {
                let nodes = Nodes { known: 1, answered: 1, connected: None };
                Receipt { nodes, ..self.publish_here(&publish).await }
            }
        };
        receipt.id = format!("{}-{number}", self.node.name);
        Ok(receipt)
    }

    /// Publishes on all cores of this node.
    pub(crate) async fn publish_here(self: &Rc<Self>, publish: &Arc<Publish>) -> Receipt {
        let to = &publish.to;
        let mut receipt = Receipt::default();
        let mut sessions = Vec::with_capacity(to.sessions.len());
        for key in &to.sessions {
            match self.node.directory.find(key) {
                Some(place) => sessions.push(place),
                None => receipt.unknown.push(key.clone()),
            }
        }
        let wide = to.all || !to.groups.is_empty();
        let is_for = |core: u16| wide || sessions.iter().any(|place| place.core == core);
        // The others begin before this core does its own part.
        let mut asked = Vec::new();
        for core in (0..self.node.cores()).filter(|&core| core != self.core && is_for(core)) {
            let (publish, sessions) = (Arc::clone(publish), sessions.clone());
            asked.push(self.node.ask(core, move |hub| async move { hub.deliver(&publish, &sessions).await }));
        }
        let mut parts = Vec::with_capacity(1);
        if is_for(self.core) {
            parts.push(self.deliver(publish, &sessions).await);
        }
        for part in asked {
            // A core that has ended has no sessions.
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

    /// Publishes on this core. `sessions` may have those of other cores among them.
    async fn deliver(self: &Rc<Self>, publish: &Publish, sessions: &[Place]) -> Part {
        let delivery = Rc::new(Delivery::counted(Arc::clone(&publish.message), &self.counters.deliveries));
        let until = Instant::now() + publish.deadline;
        let Queued { full, behind } = self.queue_all(publish, sessions, &delivery);
        let refused = if full.is_empty() { Vec::new() } else { self.insist(full, &delivery, until).await };
        self.hold_back(behind, publish.message.len(), until).await;
        if publish.wait != Wait::Queued {
            // Trying takes no time to speak of; only readers do.
            let _ = timeout_at(until, delivery.wait(publish.wait)).await;
        }
        let tally = delivery.tally();
        Part { tally, refused }
    }

    /// Puts a message into every queue that it is for.
    fn queue_all(&self, publish: &Publish, sessions: &[Place], delivery: &Rc<Delivery>) -> Queued {
        let (to, stamp) = (&publish.to, self.next_stamp());
        let (mut queued, few) = (Queued::default(), Self::is_small(sessions.len()));
        for key in &publish.except {
            if let Some(session) = self.node.directory.find(key).and_then(|place| self.at(place)) {
                session.stamp.set(stamp);
            }
        }
        for (at, &place) in sessions.iter().enumerate() {
            let Some(session) = self.at(place) else {
                // It was there when its key was looked up. That is one end of a message too, and counts once.
                if place.core == self.core && !sessions[..at].contains(&place) {
                    delivery.matched();
                    delivery.settle(Outcome::Closed);
                }
                continue;
            };
            self.queue_one(&session, delivery, Slow::Refuse, stamp, few, &mut queued);
        }
        let mut one_of_many =
            |session: &Rc<Session>, slow, small| self.queue_one(session, delivery, slow, stamp, small, &mut queued);
        for group in to.groups.iter().filter_map(|group| self.groups.find(group)) {
            let small = Self::is_small(group.len());
            group.each(|session| one_of_many(session, group.slow, small));
        }
        if to.all {
            let slow = self.rule_of_all();
            let small = Self::is_small(self.len());
            self.each(|session| one_of_many(session, slow, small));
        }
        self.relieve();
        queued
    }

    /// The rule for what is published to everybody.
    pub(crate) fn rule_of_all(&self) -> Slow {
        self.plan().group_rule("").map_or(Slow::default(), |rule| rule.slow)
    }

    fn queue_one(
        &self,
        session: &Rc<Session>,
        delivery: &Rc<Delivery>,
        slow: Slow,
        stamp: u32,
        is_urgent: bool,
        queued: &mut Queued,
    ) {
        if !self.offer(session, delivery, slow, stamp) {
            return queued.full.push(Rc::clone(session));
        }
        if self.is_behind(session) {
            queued.behind.push(Rc::clone(session));
        }
        if is_urgent { self.list_urgent(session) } else { self.list_bulk(session) }
    }

    /// Offers a message again whenever there is room, until it is queued everywhere or the time is over. Returns the keys of those
    /// who never had any.
    async fn insist(&self, mut full: Vec<Rc<Session>>, delivery: &Rc<Delivery>, until: Instant) -> Vec<Box<str>> {
        let _waiting = WaitingForRoom::new(self);
        loop {
            let room = self.room.notified();
            full.retain(|session| {
                let queued = self.retry(session, delivery, Slow::Refuse);
                if queued {
                    self.list_urgent(session);
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

/// Counts a publish among those that are told of room, for as long as this lives.
pub(crate) struct WaitingForRoom<'h>(&'h Hub);

impl<'h> WaitingForRoom<'h> {
    pub(crate) fn new(hub: &'h Hub) -> Self {
        hub.waiting_for_room.set(hub.waiting_for_room.get() + 1);
        WaitingForRoom(hub)
    }
}

impl Drop for WaitingForRoom<'_> {
    fn drop(&mut self) {
        self.0.waiting_for_room.set(self.0.waiting_for_room.get().saturating_sub(1));
    }
}
