//! The histories of channels in JetStream: one stream for all channels of a cluster.
//!
//! A publish to a channel with a history is stored in the stream, and each node receives the stream in its order. So
//! all nodes have the same order and the same positions, and a node that was away receives what it missed. A node keeps
//! what it has received in memory (`history`). What is older is filled in from the stream, a channel at a time, by
//! `fill`.
//!
//! The epoch of all positions names the stream. A node that has handed out messages that the stream lost begins another
//! epoch: it changes the stream's description, and stores a marker. The marker brings the change to all nodes in the
//! order of the stream.

mod fill;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64_URL;
use futures_util::StreamExt as _;
use oroshi_nats::jetstream;
use oroshi_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use oroshi_nats::jetstream::context::PublishErrorKind;
use oroshi_nats::jetstream::stream::{
    Config, DiscardPolicy, Info, LastRawMessageErrorKind, RetentionPolicy, StorageType, Stream,
};
use oroshi_nats::jetstream::{Context, Message as StoredMessage};
use oroshi_words::with_causes;
use ring::digest;
use tokio::time::{sleep, timeout};

use crate::cluster::link::{Stored, count};
use crate::cluster::nats::Worker;
use crate::cluster::wire::{self, Body, Request};
use crate::history;
use crate::hub::Hub;
use crate::hub::missed::Missed;
use crate::plan::{HistoryRule, StreamSettings};
use crate::publish::{Publish, StoreError};

/// The pause after JetStream has failed.
const PAUSE: Duration = Duration::from_millis(500);

/// The least number of messages of a channel in the stream. A node that is behind by fewer loses none.
const LEAST_MESSAGES: i64 = 256;

/// How long a consumer that fills a history may be left alone before NATS removes it.
const UNUSED: Duration = Duration::from_secs(30);

/// The shortest time between two reports of messages that the stream has lost: each costs a look at every session.
const REPORTS: Duration = Duration::from_secs(1);

/// The number of copies from which on a confirmed message is taken to outlive the server that leads the stream.
const MANY_REPLICAS: usize = 3;

/// The last token of the subject of markers. It is no base64, so no channel has it.
const MARKER: &str = "$epoch";

/// State of the stream that outlives a connection to NATS.
#[derive(Debug, Default)]
pub(super) struct Followed {
    /// The last message that this node has handed out.
    last: RefCell<Option<Last>>,
    /// Whether the stream lost messages since the last report.
    has_hole: Cell<bool>,
    reported: Cell<Option<Instant>>,
}

/// The last message that a node has handed out.
#[derive(Clone, Debug)]
struct Last {
    sequence: u64,
    /// When NATS got it, nanoseconds since 1970; 0 if that is not known.
    published: u64,
    /// The id of the server from which it came.
    server: Rc<str>,
}

/// The stream, as a connection to it began.
struct Source {
    /// The id of the server of the connection.
    server: Rc<str>,
    /// The subject of markers.
    marker: String,
    created: u128,
    most: i64,
}

impl Worker {
    /// Receives the stream for as long as the connection lives.
    pub(super) async fn follow(self: &Rc<Self>, context: &Context) {
        let Some(settings) = self.history else { return std::future::pending().await };
        loop {
            if let Err(why) = self.receive_stream(context, settings).await {
                self.shared.following.store(false, Ordering::Release);
                self.shared.trouble(format!("the histories in JetStream are not reached: {why}"));
            }
            sleep(PAUSE).await;
        }
    }

    /// Receives the stream until that fails.
    async fn receive_stream(self: &Rc<Self>, context: &Context, settings: StreamSettings) -> Result<(), String> {
        let histories = &self.node.histories;
        let wanted = self.stream_config(settings);
        let stream = context.get_or_create_stream(wanted.clone()).await.map_err(|error| with_causes(&error))?;
        let mut info = stream.get_info().await.map_err(|error| with_causes(&error))?;
        let server = context.client().server_info();
        let is_leader = info.cluster.as_ref().and_then(|cluster| cluster.leader.as_ref());
        let is_leader = is_leader.is_none_or(|leader| *leader == server.server_name);
        let source = Source {
            server: server.server_id.into(),
            marker: format!("oroshi.push.{}.history.{MARKER}", self.name),
            created: nanos(info.created.into()),
            most: info.config.max_messages_per_subject,
        };
        if epoch(&info) == histories.stream_epoch() && !self.is_whole(&stream, &info, &source, is_leader).await? {
            let config = Config { description: Some(crate::secrets::key()), ..info.config };
            context.update_stream(config).await.map_err(|error| with_causes(&error))?;
            info = stream.get_info().await.map_err(|error| with_causes(&error))?;
        }
        if mark(context, &stream, &source, &info).await? {
            // Another node may have begun one at the same time. The last description holds, and its marker comes last.
            let now = stream.get_info().await.map_err(|error| with_causes(&error))?;
            if epoch(&now) != epoch(&info) {
                return Err("another node has begun another epoch".to_owned());
            }
        }
        if let Some(differs) = differences(&info.config, &wanted) {
            self.shared.trouble(format!(
                "the stream {} has other settings than the plan: {differs}. Edit it (nats stream edit), or delete it",
                info.config.name
            ));
        }
        let last = info.state.last_sequence;
        let has_sessions = self.node.sessions() > 0;
        if epoch(&info) != histories.stream_epoch() {
            self.node.arrivals.clear();
            self.hand_on(last, nanos(info.state.last_timestamp.into()), &source.server);
        }
        let (after, is_other) = histories.follow(epoch(&info), last, has_sessions);
        let mut has_hole = is_other;
        if info.state.first_sequence > after.saturating_add(1) && after < last {
            histories.skip_to(info.state.first_sequence - 1);
            has_hole = true;
        }
        self.followed.has_hole.set(has_hole || self.followed.has_hole.get());
        self.report_hole();
        // Not an ordered consumer, which would begin again by itself behind messages that were lost.
        let config = pull::Config {
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: histories.received() + 1 },
            ack_policy: AckPolicy::None,
            inactive_threshold: UNUSED,
            memory_storage: true,
            num_replicas: 1,
            ..pull::Config::default()
        };
        let consumer = stream.create_consumer(config).await.map_err(|error| with_causes(&error))?;
        let mut messages = consumer.messages().await.map_err(|error| with_causes(&error))?;
        self.shared.following.store(true, Ordering::Release);
        let mut number = 0;
        loop {
            let next = if self.followed.has_hole.get() {
                let Ok(next) = timeout(REPORTS, messages.next()).await else {
                    self.report_hole();
                    continue;
                };
                next
            } else {
                messages.next().await
            };
            let message = next.ok_or("the stream has ended")?.map_err(|error| with_causes(&error))?;
            number += 1;
            self.hand_out(&source, &message, number)?;
            self.report_hole();
        }
    }

    /// Returns whether the stream still has what this node handed out of it.
    ///
    /// A server that fell, or came from a backup, may have lost its newest messages, and given their numbers to others.
    async fn is_whole(&self, stream: &Stream, info: &Info, source: &Source, is_leader: bool) -> Result<bool, String> {
        let received = self.node.histories.received();
        if info.state.last_sequence < received {
            return Ok(false);
        }
        let last = self.followed.last.borrow().clone();
        let Some(last) = last.filter(|last| last.sequence == received && received > 0 && last.published > 0) else {
            return Ok(true);
        };
        match stream.get_raw_message(received).await {
            Ok(message) => return Ok(nanos(message.time.into()) == u128::from(last.published)),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => {}
            Err(error) => return Err(with_causes(&error)),
        }
        // It may have been removed by the stream's bounds.
        let newest = nanos(info.state.last_timestamp.into());
        if info.state.last_sequence == received && newest > 0 {
            return Ok(newest == u128::from(last.published));
        }
        // A server that runs on has lost nothing, and neither has one of several with the same messages.
        Ok(info.config.num_replicas >= MANY_REPLICAS || (is_leader && last.server == source.server))
    }

    /// Hands a message of the stream to the threads. `number`: its number among those of the consumer.
    fn hand_out(&self, source: &Source, message: &StoredMessage, number: u64) -> Result<(), String> {
        let histories = &self.node.histories;
        let info = message.info().map_err(|error| error.to_string())?;
        if info.consumer_sequence != number {
            return Err("a message was lost on its way from NATS: asking for it again".to_owned());
        }
        let sequence = info.stream_sequence;
        let (published, age) = (nanos(info.published.into()), age(info.published.into()));
        let received = histories.received();
        if sequence <= received {
            return Ok(());
        }
        if sequence > received + 1 {
            // The stream was full of newer messages before this node got these.
            histories.skip_to(sequence - 1);
            self.followed.has_hole.set(true);
        }
        if message.subject.as_str() == source.marker {
            let description = std::str::from_utf8(&message.payload).unwrap_or_default();
            if histories.follow(epoch_of(source.created, source.most, description), sequence, true).1 {
                self.followed.has_hole.set(true);
                self.node.arrivals.clear();
            }
        } else {
            let stored = history::Stored { sequence, age_ms: millis(age) };
            match self.decode(&message.payload, age) {
                Some((channel, rule, publish)) => {
                    let publish = Arc::new(publish);
                    let parts = Hub::deliver_stored(&self.node, &self.mailboxes, &channel, rule, &publish, stored);
                    self.node.arrivals.come(sequence, parts);
                }
                None => count(&self.shared.counters.refused, 1),
            }
        }
        self.hand_on(sequence, published, &source.server);
        histories.set_received(sequence);
        Ok(())
    }

    /// Remembers the last message that was handed out.
    fn hand_on(&self, sequence: u64, published: u128, server: &Rc<str>) {
        let published = u64::try_from(published).unwrap_or(0);
        self.followed.last.replace(Some(Last { sequence, published, server: Rc::clone(server) }));
    }

    /// Reads a stored message of this age; `None` if it is none of a channel with a history.
    fn decode(&self, payload: &[u8], age: Duration) -> Option<(Arc<str>, HistoryRule, Publish)> {
        let (_, body) = wire::decode(payload, self.node.plan.limits.publish_bytes).ok()?;
        let Body::Request { request: Request::Publish(mut publish), .. } = body else { return None };
        let [channel] = &*publish.to.groups else { return None };
        let channel: Arc<str> = Arc::from(&**channel);
        let rule = self.node.plan.group_rule(&channel)?.keeps?;
        if let Some(ttl) = publish.message.ttl() {
            let message = Arc::try_unwrap(publish.message).ok()?;
            publish.message = Arc::new(message.with_ttl(Some(ttl.saturating_sub(age))));
        }
        Some((channel, rule, publish))
    }

    /// Tells subscribers that they may have missed messages of the stream, unless that was done a moment ago: then the
    /// next call does. The next message of a channel shows it, too.
    fn report_hole(&self) {
        let Followed { has_hole, reported, .. } = &self.followed;
        if has_hole.get() && reported.get().is_none_or(|reported| reported.elapsed() >= REPORTS) {
            has_hole.set(false);
            reported.set(Some(Instant::now()));
            self.report(Missed { stream: true, ..Missed::default() });
        }
    }

    /// Stores a message. `stored` gets its sequence number once JetStream has confirmed it.
    pub(super) async fn store(&self, context: &Context, channel: &str, frame: Vec<u8>, stored: Stored) {
        if !self.shared.is_connected() {
            let _ = stored.send(Err(StoreError::Unreached));
            return;
        }
        match context.publish(self.subject(channel), frame.into()).await {
            Ok(confirmed) => {
                tokio::task::spawn_local(async move {
                    // The publisher may have gone.
                    let _ = stored.send(match confirmed.await {
                        Ok(ack) => Ok(ack.sequence),
                        // NATS says that it has not stored it.
                        Err(error) if is_refusal(&error) => Err(StoreError::Unreached),
                        Err(_) => Err(StoreError::Unconfirmed),
                    });
                });
            }
            // It was not handed to NATS.
            Err(_) => {
                let _ = stored.send(Err(StoreError::Unreached));
            }
        }
    }

    fn stream_name(&self) -> String {
        format!("oroshi-push-{}", self.name)
    }

    /// Returns the subject of a channel. Its name may have characters that a subject cannot have.
    fn subject(&self, channel: &str) -> String {
        format!("oroshi.push.{}.history.{}", self.name, BASE64_URL.encode(channel))
    }

    /// Returns the configuration of a new stream: the widest bounds of all rules.
    fn stream_config(&self, settings: StreamSettings) -> Config {
        let plan = &self.node.plan;
        let rules = || plan.groups.iter().filter_map(|rule| rule.keeps);
        let messages = rules().map(|rule| rule.messages).max().unwrap_or(0);
        // One more than a rule keeps shows that the rest was not removed.
        let messages = i64::try_from(messages).unwrap_or(i64::MAX).saturating_add(1).max(LEAST_MESSAGES);
        Config {
            name: self.stream_name(),
            subjects: vec![format!("oroshi.push.{}.history.*", self.name)],
            max_messages_per_subject: messages,
            max_bytes: i64::try_from(plan.limits.history_bytes).unwrap_or(i64::MAX),
            max_age: rules().map(|rule| rule.time).max().unwrap_or_default(),
            storage: if settings.in_memory { StorageType::Memory } else { StorageType::File },
            num_replicas: settings.replicas,
            retention: RetentionPolicy::Limits,
            discard: DiscardPolicy::Old,
            deny_delete: true,
            deny_purge: true,
            ..Config::default()
        }
    }
}

/// Stores a marker of a stream's epoch, unless the last marker is of this epoch. A first epoch needs none. Returns
/// whether it stored one.
async fn mark(context: &Context, stream: &Stream, source: &Source, info: &Info) -> Result<bool, String> {
    let Some(description) = info.config.description.clone().filter(|text| !text.is_empty()) else { return Ok(false) };
    match stream.get_last_raw_message_by_subject(&source.marker).await {
        Ok(message) if message.payload == description.as_bytes() => return Ok(false),
        Ok(_) => {}
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => {}
        Err(error) => return Err(with_causes(&error)),
    }
    let stored =
        context.publish(source.marker.clone(), description.into()).await.map_err(|error| with_causes(&error))?;
    stored.await.map(|_| true).map_err(|error| with_causes(&error))
}

/// Returns what differs in the settings of a stream, for a person.
fn differences(is: &Config, wanted: &Config) -> Option<String> {
    let mut all = Vec::new();
    let mut less = |name: &str, is: i64, wanted: i64| {
        if is > 0 && is < wanted {
            all.push(format!("{name} is {is}, expected {wanted} or more"));
        }
    };
    less("max_msgs_per_subject", is.max_messages_per_subject, wanted.max_messages_per_subject);
    less("max_bytes", is.max_bytes, wanted.max_bytes);
    if is.max_age < wanted.max_age && !is.max_age.is_zero() {
        all.push(format!("max_age is {:?}, expected {:?} or more", is.max_age, wanted.max_age));
    }
    if is.storage != wanted.storage {
        all.push(format!("storage is {:?}, expected {:?}", is.storage, wanted.storage));
    }
    if is.num_replicas != wanted.num_replicas {
        all.push(format!("num_replicas is {}, expected {}", is.num_replicas, wanted.num_replicas));
    }
    (!all.is_empty()).then(|| all.join("; "))
}

/// Returns whether NATS has answered that it has not stored a message.
fn is_refusal(error: &jetstream::context::PublishError) -> bool {
    let source = std::error::Error::source(error);
    error.kind() == PublishErrorKind::StreamNotFound
        || source.is_some_and(|source| source.downcast_ref::<jetstream::Error>().is_some())
}

/// Returns the epoch of a stream. Another stream has another one, and so has one that keeps another number of messages
/// of a channel: with it, nobody can tell what was removed before.
fn epoch(info: &Info) -> u64 {
    let Info { config, created, .. } = info;
    let description = config.description.as_deref().unwrap_or_default();
    epoch_of(nanos((*created).into()), config.max_messages_per_subject, description)
}

fn epoch_of(created: u128, most: i64, description: &str) -> u64 {
    let hash = digest::digest(&digest::SHA256, format!("{created}\n{most}\n{description}").as_bytes());
    hash.as_ref().first_chunk().map_or(1, |bytes| u64::from_le_bytes(*bytes).max(1))
}

/// Returns a time of NATS as nanoseconds since 1970; 0 if it is none.
fn nanos(time: SystemTime) -> u128 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos()
}

/// Returns the age of a message by the clocks of this machine and of NATS.
fn age(published: SystemTime) -> Duration {
    SystemTime::now().duration_since(published).unwrap_or_default()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_of_a_stream_that_differs_is_named() {
        let wanted = Config {
            max_messages_per_subject: 256,
            max_bytes: 1000,
            max_age: Duration::from_secs(10),
            num_replicas: 1,
            ..Config::default()
        };
        let of = |change: fn(&mut Config)| {
            let mut is = wanted.clone();
            change(&mut is);
            differences(&is, &wanted)
        };
        assert_eq!(of(|_| {}), None);
        // More, or without a bound, is no loss.
        assert_eq!(of(|is| (is.max_bytes, is.max_messages_per_subject, is.max_age) = (-1, 300, Duration::ZERO)), None);
        for (change, expected) in [
            ((|is| is.max_bytes = 999) as fn(&mut Config), "max_bytes is 999, expected 1000 or more"),
            (|is| is.max_messages_per_subject = 4, "max_msgs_per_subject is 4, expected 256 or more"),
            (|is| is.max_age = Duration::from_secs(9), "max_age is 9s, expected 10s or more"),
            (|is| is.storage = StorageType::Memory, "storage is Memory, expected File"),
            (|is| is.num_replicas = 3, "num_replicas is 3, expected 1"),
        ] {
            assert_eq!(of(change).as_deref(), Some(expected));
        }
    }
}
