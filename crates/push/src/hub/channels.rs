//! Channels: subscriptions of this thread's sessions, and publishes in the order of a channel's history.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::arrivals::Parts;
use crate::delta::Successor;
use crate::history::{Recovery, Stored};
use crate::hub::Hub;
use crate::hub::fan_out::Begun;
use crate::mailboxes::Mailboxes;
use crate::message::{Message, Place};
use crate::node::Node;
use crate::plan::HistoryRule;
use crate::publish::{Publish, StoreError};
use crate::rights::prefix;
use crate::session::Session;
use crate::session::channels::Subscription;
use crate::session::tally::Delivery;
use crate::writer::Writer;

/// How long a client waits for this node to receive what the client got from another one.
const BEHIND: Duration = Duration::from_secs(2);

/// The result of a subscription.
#[derive(Debug, Default)]
pub(super) struct Subscribed {
    /// The position in a channel with history.
    pub(super) place: Option<Place>,
    pub(super) recovered: Option<bool>,
    /// Whether the channel keeps its newest value only.
    is_latest: bool,
    messages: Vec<Arc<Message>>,
}

impl Subscribed {
    /// Returns the answer to the client.
    pub(super) fn to_json(&self, channel: &str) -> Value {
        let mut answer = json!({ "channel": channel });
        if let Some(place) = self.place {
            answer["epoch"] = json!(place.epoch_text());
            answer["offset"] = json!(place.offset);
        }
        if let Some(recovered) = self.recovered {
            answer["recovered"] = json!(recovered);
        }
        if self.is_latest {
            answer["latest"] = json!(true);
        }
        answer
    }
}

impl Hub {
    /// Subscribes a session, with the messages since its last position. `None`: it does so already.
    ///
    /// The caller answers the client, then calls [`catch_up`](Self::catch_up).
    pub(super) fn subscribe_here(
        &self,
        session: &Rc<Session>,
        channel: &str,
        since: Option<Place>,
    ) -> Option<Subscribed> {
        if let Some(prefix) = prefix(channel) {
            let slow = || self.rule_of(channel);
            let group = self.patterns.subscribe(session, prefix, true, None, slow)?;
            self.count_subscriptions(1);
            drop(group);
            // A pattern has no position: the hub cannot know what was missed.
            return Some(Subscribed { recovered: since.map(|_| false), ..Subscribed::default() });
        }
        let subscribe = |last| self.groups.subscribe(session, channel, false, last, || self.rule_of(channel)).is_some();
        let rule = self.plan().group_rule(channel);
        let keeps = rule.and_then(|rule| rule.keeps);
        let subscribed = match keeps.filter(|_| self.node.histories.are_ready()) {
            Some(rule) => {
                let name: Arc<str> = channel.into();
                self.node.histories.recover(&name, rule, since, self.node.now_ms(), |recovery| {
                    subscribe(Some(recovery.place)).then(|| {
                        // This one is the last.
                        session.channels(|channels| channels.subscriptions.last_mut().map(|one| one.is_counted = true));
                        Subscribed { is_latest: rule.latest, ..self.fitting(session, recovery) }
                    })
                })?
            }
            None => subscribe(None).then(|| Subscribed { recovered: since.map(|_| false), ..Subscribed::default() })?,
        };
        self.count_subscriptions(1);
        if rule.is_some_and(|rule| rule.presence_events) {
            self.note_joined(session, channel);
        }
        Some(subscribed)
    }

    /// Sends a new subscriber deltas from now on, if the channel's rule has them. Returns whether it does.
    ///
    /// The caller then calls [`catch_up`](Self::catch_up).
    pub(super) fn send_deltas(&self, session: &Session, channel: &str, subscribed: &Subscribed) -> bool {
        let has_deltas = self.history_rule(channel).is_some_and(|rule| rule.delta);
        let Some(group) = self.groups.find(channel).filter(|_| has_deltas && prefix(channel).is_none()) else {
            return false;
        };
        // It has what it will get now. Of `since` nobody knows whether the client has kept that message.
        let newest = subscribed.messages.last();
        group
            .take_deltas(session, newest.filter(|newest| newest.payload().is_some()).and_then(|newest| newest.place()));
        true
    }

    /// Queues the messages of a recovery.
    pub(super) fn catch_up(&self, session: &Rc<Session>, channel: &str, subscribed: Subscribed) {
        let slow = self.rule_of(channel);
        for message in subscribed.messages {
            let delivery = Rc::new(Delivery::new(message));
            delivery.matched();
            self.writer.enqueue(session, &delivery, slow);
        }
        self.writer.list_urgent(session);
    }

    /// Ends a subscription. Returns false if there is none.
    pub(super) fn unsubscribe_here(&self, session: &Session, channel: &str) -> bool {
        let (name, is_pattern) = prefix(channel).map_or((channel, false), |prefix| (prefix, true));
        let found = session.channels(|channels| {
            let mut all = channels.subscriptions.iter();
            let at = all.position(|one| one.is_pattern == is_pattern && *one.group.name == *name)?;
            Some(channels.subscriptions.swap_remove(at))
        });
        let Some(Some(subscription)) = found else { return false };
        self.end_subscription(session, &subscription);
        true
    }

    /// Ends all subscriptions of a session, which ends.
    pub(super) fn unsubscribe_all(&self, session: &Session) {
        let all = session.channels(|channels| std::mem::take(&mut channels.subscriptions)).unwrap_or_default();
        all.iter().for_each(|subscription| self.end_subscription(session, subscription));
    }

    fn end_subscription(&self, session: &Session, subscription: &Subscription) {
        if subscription.is_pattern {
            self.patterns.unsubscribe(subscription);
        } else {
            self.groups.unsubscribe(subscription);
            let name = &subscription.group.name;
            let rule = self.plan().group_rule(name);
            if let Some(keeps) = rule.and_then(|rule| rule.keeps).filter(|_| subscription.is_counted) {
                self.node.histories.leave(name, keeps, self.node.now_ms());
            }
            // Before its end, which it is not told.
            if subscription.watches {
                self.unwatch(session, name);
            }
            if rule.is_some_and(|rule| rule.presence_events) {
                self.note_left(session, name);
            }
        }
        self.count_subscriptions(-1);
    }

    /// Gives a publish its place in each channel with a history, and hands it to the subscribers on all threads.
    ///
    /// JetStream does that if it has the histories.
    pub(super) fn publish_in_order(&self, publish: &Arc<Publish>) -> Parts {
        let mut asked = Vec::new();
        if self.node.histories.are_of_stream() {
            return asked;
        }
        for (at, name) in publish.to.groups.iter().enumerate() {
            let Some(rule) = self.history_rule(name).filter(|_| !publish.to.groups[..at].contains(name)) else {
                continue;
            };
            let channel: Arc<str> = Arc::from(&**name);
            asked.extend(Self::append(&self.node, &self.mailboxes, &channel, rule, publish, None));
        }
        asked
    }

    /// Hands a message from JetStream to a channel's subscribers on all threads.
    pub(crate) fn deliver_stored(
        node: &Node,
        mailboxes: &Mailboxes<Hub>,
        channel: &Arc<str>,
        rule: HistoryRule,
        publish: &Arc<Publish>,
        stored: Stored,
    ) -> Parts {
        Self::append(node, mailboxes, channel, rule, publish, Some(stored))
    }

    /// Appends a message to a channel's history, and hands it to the subscribers on all threads.
    fn append(
        node: &Node,
        mailboxes: &Mailboxes<Hub>,
        channel: &Arc<str>,
        rule: HistoryRule,
        publish: &Arc<Publish>,
        stored: Option<Stored>,
    ) -> Parts {
        let make = |place, prev: Option<u64>| {
            let publication = publish.message.to_publication(Some(Arc::clone(channel)), Some(place));
            Arc::new(if prev.is_some() { publication.with_prev(prev) } else { publication })
        };
        node.histories.append(channel, rule, node.now_ms(), stored, make, |message, base| {
            let successor = base.and_then(Successor::new).map(Arc::new);
            // While the channel is locked, so that each thread gets its messages in their order.
            let ask = |thread| {
                let (publish, channel, message) = (Arc::clone(publish), Arc::clone(channel), Arc::clone(message));
                let successor = successor.clone();
                mailboxes.ask(thread, move |hub| {
                    let begun = hub.enqueue_in_channel(&publish, &channel, &message, successor.as_deref());
                    async move { hub.finish(&publish, begun).await }
                })
            };
            (0..node.threads()).map(ask).collect()
        })
    }

    /// Stores a publish in JetStream for each channel whose history is there. Returns the sequence numbers.
    pub(super) async fn store(&self, publish: &Publish) -> Result<Vec<u64>, StoreError> {
        let Some(link) = &self.node.link else { return Ok(Vec::new()) };
        let groups = &publish.to.groups;
        let channels = groups.iter().enumerate().filter(|(at, channel)| !groups[..*at].contains(channel));
        let channels: Vec<&str> = channels.map(|(_, channel)| &**channel).filter(|of| self.is_stored(of)).collect();
        if channels.is_empty() {
            return Ok(Vec::new());
        }
        let asked = link.store(&channels, publish)?;
        let stored = join_all(asked).await.into_iter().map(|one| one.unwrap_or(Err(StoreError::Unconfirmed)));
        all_stored(stored.collect())
    }

    /// Returns whether the history of a channel is in JetStream.
    pub(super) fn is_stored(&self, channel: &str) -> bool {
        self.node.histories.are_of_stream() && self.history_rule(channel).is_some()
    }

    /// Prepares for a client that recovers from `since`, or needs the newest value: reads from JetStream what this
    /// node's memory lacks. If that fails, the recovery fails.
    pub(crate) async fn prepare(&self, channel: &str, since: Option<Place>) {
        let histories = &self.node.histories;
        let rule = self.history_rule(channel).filter(|_| prefix(channel).is_none() && histories.are_of_stream());
        let (Some(rule), Some(link)) = (rule, &self.node.link) else { return };
        if let Some(since) = since.filter(|since| since.epoch == histories.stream_epoch())
            && since.offset > histories.received()
        {
            // Another node is ahead of this one.
            let _ = timeout(BEHIND, histories.until_received(since.offset)).await;
        }
        let channel: Arc<str> = channel.into();
        if (since.is_some() || rule.latest)
            && let Some(floor) = histories.needs_fill(&channel, rule, since, self.node.now_ms())
        {
            link.fill(channel, floor).await;
        }
    }

    /// Puts a message into the queues of subscribers to channels without a history.
    pub(super) fn enqueue_in_channels(&self, publish: &Publish) -> Vec<Begun> {
        if self.subscriptions.get() == 0 {
            return Vec::new();
        }
        let groups = &publish.to.groups;
        let channels = groups
            .iter()
            .enumerate()
            .filter(|(at, name)| !self.is_in_order(name, publish) && !groups[..*at].contains(name));
        let message = |name: &str| publish.message.publication(Some(name));
        channels.flat_map(|(_, name)| self.enqueue_in_channel(publish, name, &message(name), None)).collect()
    }

    /// Returns whether subscribers of a channel get a publish from its history.
    fn is_in_order(&self, channel: &str, publish: &Publish) -> bool {
        // A node without JetStream has stored nothing.
        self.history_rule(channel).is_some() && (!self.node.histories.are_of_stream() || !publish.stored.is_empty())
    }

    /// Puts a message into the queues of a channel's subscribers on this thread. Those that take deltas, and have the
    /// message before, get the delta.
    fn enqueue_in_channel(
        &self,
        publish: &Publish,
        channel: &str,
        message: &Arc<Message>,
        successor: Option<&Successor>,
    ) -> Vec<Begun> {
        if self.subscriptions.get() == 0 {
            return Vec::new();
        }
        let stamp = self.next_stamp();
        let place = message.place();
        for key in &publish.except {
            let excepted = self.node.directory.find(key).and_then(|location| self.at(location));
            if let Some(session) = excepted {
                session.stamp.set(stamp);
                self.skip(&session, channel, message);
            }
        }
        let (mut whole, mut delta): (Option<Begun>, Option<Begun>) = (None, None);
        let mut enqueue = |session: &Rc<Session>, slow, is_urgent, as_delta: Option<&Arc<Message>>| {
            let begun = if as_delta.is_some() { &mut delta } else { &mut whole };
            let begun = begun.get_or_insert_with(|| Begun::new(self, as_delta.unwrap_or(message)));
            self.enqueue_one(session, &begun.delivery, slow, stamp, is_urgent, &mut begun.slowest)
        };
        if let Some(group) = self.groups.find(channel) {
            let is_urgent = Writer::is_small(group.subscribers());
            let has_deltas = group.has_deltas();
            group.each_subscriber(place, |session| {
                if !has_deltas || !group.takes_deltas(session) {
                    enqueue(session, group.slow, is_urgent, None);
                    return;
                }
                // One that is left out has the stamp already.
                let is_for_it = session.stamp.get() != stamp;
                let has_base = |successor: &&Successor| is_for_it && group.has_base(session, successor.from());
                let as_delta = successor.filter(has_base).and_then(|successor| successor.delta(message));
                let is_queued = enqueue(session, group.slow, is_urgent, as_delta);
                group.note_held(session, place.filter(|_| is_queued && is_for_it));
            });
        }
        if !self.patterns.is_empty() {
            self.patterns.each(|pattern| {
                if channel.starts_with(&*pattern.name) {
                    let is_urgent = Writer::is_small(pattern.subscribers());
                    pattern.each_subscriber(None, |session| {
                        enqueue(session, pattern.slow, is_urgent, None);
                    });
                }
            });
        }
        self.relieve();
        whole.into_iter().chain(delta).collect()
    }

    /// Tells a subscriber the position of a message that it does not get.
    fn skip(&self, session: &Rc<Session>, channel: &str, message: &Message) {
        let subscribes = session.channels(|channels| {
            channels.subscriptions.iter().any(|one| !one.is_pattern && *one.group.name == *channel)
        });
        if let Some(position) = message.to_position().filter(|_| subscribes == Some(true) && session.is_open()) {
            self.writer.send_control(session, position);
        }
    }

    /// Returns the bounds of a channel's history, if it has one.
    pub(super) fn history_rule(&self, channel: &str) -> Option<HistoryRule> {
        self.plan().group_rule(channel).and_then(|rule| rule.keeps)
    }

    /// Returns a recovery that fits into the session's queue. One that does not is none: the client would be slow at
    /// once.
    fn fitting(&self, session: &Session, recovery: Recovery) -> Subscribed {
        let Recovery { place, recovered, messages } = recovery;
        let limits = &self.plan().limits;
        let bytes: usize = messages.iter().map(|message| message.frame(session.framing).len()).sum();
        let outbox = session.outbox.borrow();
        let fits = outbox.bytes() + bytes <= limits.session_queue_bytes / 2
            && outbox.len() + messages.len() <= limits.session_queue_messages / 2
            && self.node.queued_bytes() + bytes <= limits.total_queue_bytes;
        let is_alone = messages.len() <= 1
            && outbox.bytes() + bytes <= limits.session_queue_bytes / 10 * 9
            && outbox.len() + messages.len() <= limits.session_queue_messages / 10 * 9;
        let place = Some(place);
        if fits || is_alone {
            return Subscribed { place, recovered, messages, ..Subscribed::default() };
        }
        Subscribed { place, recovered: recovered.map(|_| false), ..Subscribed::default() }
    }

    fn count_subscriptions(&self, more: isize) {
        self.subscriptions.set(self.subscriptions.get().saturating_add_signed(more));
    }
}

/// Returns the sequence numbers of a publish to several channels, or what its publisher learns.
///
/// Only if no channel has the message, the publisher may take it for not published.
fn all_stored(stored: Vec<Result<u64, StoreError>>) -> Result<Vec<u64>, StoreError> {
    let certain = stored.iter().filter(|one| one.is_err() && **one != Err(StoreError::Unconfirmed)).count();
    if certain > 0 && certain < stored.len() {
        return Err(StoreError::Unconfirmed);
    }
    stored.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A publisher that was told that nothing is stored would publish again, and some subscribers would get it twice.
    #[test]
    fn a_publish_that_some_channels_have_is_not_called_unpublished() {
        let (unreached, unconfirmed) = (Err(StoreError::Unreached), Err(StoreError::Unconfirmed));
        for (stored, expected) in [
            (vec![Ok(3), Ok(4)], Ok(vec![3, 4])),
            (vec![unreached.clone(), unreached.clone()], Err(StoreError::Unreached)),
            (vec![Ok(3), unreached.clone()], Err(StoreError::Unconfirmed)),
            (vec![unreached.clone(), Ok(3)], Err(StoreError::Unconfirmed)),
            (vec![unreached, unconfirmed.clone()], Err(StoreError::Unconfirmed)),
            (vec![unconfirmed, Ok(3)], Err(StoreError::Unconfirmed)),
        ] {
            assert_eq!(all_stored(stored.clone()), expected, "{stored:?}");
        }
    }
}
