//! The histories of channels in JetStream: one stream for all channels of a cluster.
//!
//! A publish to a channel with a history is stored in the stream, and each node receives the stream in its order. So
//! all nodes have the same order and the same positions, and a node that was away receives what it missed. A node keeps
//! what it has received in memory (`history`). What is older is filled in from the stream, a channel at a time.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64_URL;
use futures_util::StreamExt as _;
use oroshi_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use oroshi_nats::jetstream::stream::{Config, DiscardPolicy, Info, RetentionPolicy, StorageType};
use oroshi_nats::jetstream::{Context, Message as StoredMessage};
use oroshi_words::with_causes;
use ring::digest;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::cluster::link::{Stored, count};
use crate::cluster::nats::Worker;
use crate::cluster::wire::{self, Body, Request};
use crate::history::{self, Older};
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

/// How long the next message that a history is filled with may take.
const NEXT: Duration = Duration::from_secs(5);

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
        if epoch(&info) == histories.stream_epoch() && info.state.last_sequence < histories.received() {
            // A server that fell has lost its newest messages, and will give their numbers to others.
            let config = Config { description: Some(crate::secrets::key()), ..info.config };
            context.update_stream(config).await.map_err(|error| with_causes(&error))?;
            info = stream.get_info().await.map_err(|error| with_causes(&error))?;
        }
        let keeps_less = |is: i64, wanted: i64| is > 0 && is < wanted;
        if keeps_less(info.config.max_messages_per_subject, wanted.max_messages_per_subject)
            || (info.config.max_age < wanted.max_age && !info.config.max_age.is_zero())
        {
            let name = &info.config.name;
            self.shared.trouble(format!("the stream {name} keeps less than the plan: edit it, or delete it"));
        }
        let last = info.state.last_sequence;
        let (after, is_other) = histories.follow(epoch(&info), last);
        let mut missed = is_other;
        if info.state.first_sequence > after.saturating_add(1) && after < last {
            histories.skip_to(info.state.first_sequence - 1);
            missed = true;
        }
        if missed {
            self.report_skipped();
        }
        let start_sequence = histories.received() + 1;
        let config = pull::OrderedConfig {
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence },
            ..pull::OrderedConfig::default()
        };
        let consumer = stream.create_consumer(config).await.map_err(|error| with_causes(&error))?;
        let mut messages = consumer.messages().await.map_err(|error| with_causes(&error))?;
        self.shared.following.store(true, Ordering::Release);
        while let Some(message) = messages.next().await {
            self.hand_out(&message.map_err(|error| with_causes(&error))?)?;
        }
        Err("the stream has ended".to_owned())
    }

    /// Hands a message of the stream to the threads.
    fn hand_out(&self, message: &StoredMessage) -> Result<(), String> {
        let histories = &self.node.histories;
        let info = message.info().map_err(|error| error.to_string())?;
        let (sequence, age) = (info.stream_sequence, age(info.published.into()));
        let received = histories.received();
        if sequence <= received {
            return Ok(());
        }
        if sequence > received + 1 {
            // The stream was full of newer messages before this node got these.
            histories.skip_to(sequence - 1);
            self.report_skipped();
        }
        let stored = history::Stored { sequence, age_ms: millis(age) };
        match self.decode(&message.payload, age) {
            Some((channel, rule, publish)) => {
                let publish = Arc::new(publish);
                let parts = Hub::deliver_stored(&self.node, &self.mailboxes, &channel, rule, &publish, stored);
                self.node.arrivals.come(sequence, parts);
            }
            None => count(&self.shared.counters.refused, 1),
        }
        histories.set_received(sequence);
        Ok(())
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

    /// Tells subscribers that they may have missed messages of the stream. The next message of a channel shows it, too.
    fn report_skipped(&self) {
        self.report(Missed { stream: true, ..Missed::default() });
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
                        Err(_) => Err(StoreError::Unconfirmed),
                    });
                });
            }
            Err(_) => {
                let _ = stored.send(Err(StoreError::Unreached));
            }
        }
    }

    /// Fills the history of a channel, which begins at `floor`, in a task.
    pub(super) fn fill(self: &Rc<Self>, context: &Context, channel: Arc<str>, floor: u64, done: oneshot::Sender<()>) {
        let mut filling = self.filling.borrow_mut();
        let waiting = filling.entry(Arc::clone(&channel)).or_default();
        waiting.push(done);
        if waiting.len() > 1 {
            return;
        }
        let (worker, context) = (Rc::clone(self), context.clone());
        tokio::task::spawn_local(async move {
            let _room = worker.fills.acquire().await;
            if let Err(why) = worker.fill_now(&context, &channel, floor).await {
                worker.shared.trouble(format!("a history could not be read from JetStream: {why}"));
            }
            worker.filling.borrow_mut().remove(&channel);
        });
    }

    async fn fill_now(&self, context: &Context, channel: &str, floor: u64) -> Result<(), String> {
        let Some(rule) = self.node.plan.group_rule(channel).and_then(|rule| rule.keeps) else { return Ok(()) };
        let stream = context.get_stream(self.stream_name()).await.map_err(|error| with_causes(&error))?;
        let consumer = pull::Config {
            deliver_policy: DeliverPolicy::All,
            ack_policy: AckPolicy::None,
            filter_subject: self.subject(channel),
            inactive_threshold: UNUSED,
            memory_storage: true,
            num_replicas: 1,
            ..pull::Config::default()
        };
        let consumer = stream.create_consumer(consumer).await.map_err(|error| with_causes(&error))?;
        let count = consumer.cached_info().num_pending;
        let mut all = Vec::new();
        let mut behind = 0;
        if count > 0 {
            let messages = consumer.fetch().max_messages(count as usize).expires(NEXT).messages().await;
            let mut messages = messages.map_err(|error| with_causes(&error))?;
            while let Ok(Some(message)) = timeout(NEXT, messages.next()).await {
                let message = message.map_err(|error| error.to_string())?;
                let info = message.info().map_err(|error| error.to_string())?;
                let (sequence, age) = (info.stream_sequence, age(info.published.into()));
                behind = info.pending;
                all.push((sequence, age, message.payload.clone()));
                if all.len() as u64 == count {
                    break;
                }
            }
        }
        let name = consumer.cached_info().name.clone();
        // After the messages: what the stream has lost since then is before its first one.
        let info = stream.get_info().await.map_err(|error| with_causes(&error))?;
        tokio::task::spawn_local(async move {
            // NATS removes it by itself, later.
            let _ = stream.delete_consumer(&name).await;
        });
        if all.len() as u64 != count {
            return Err("messages were removed meanwhile".to_owned());
        }
        if epoch(&info) != self.node.histories.stream_epoch() {
            return Err("the stream is another one".to_owned());
        }
        let most = u64::try_from(info.config.max_messages_per_subject).ok().filter(|&most| most > 0);
        let sequences: Vec<u64> = all.iter().map(|(sequence, ..)| *sequence).collect();
        let first = info.state.first_sequence;
        let complete = complete_after(&sequences, behind, most, first).ok_or("messages were removed meanwhile")?;
        let older = all.into_iter().filter_map(|(offset, age, payload)| {
            let (channel, _, publish) = self.decode(&payload, age)?;
            let place = crate::message::Place { epoch: epoch(&info), offset };
            let message = publish.message.to_publication(Some(channel), Some(place));
            Some(Older { message, offset, age_ms: millis(age) })
        });
        self.node.histories.fill(channel, rule, [floor, complete], older.collect(), self.node.now_ms());
        Ok(())
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

/// Returns the epoch of a stream. Another stream has another one, and so has one that keeps another number of messages
/// of a channel: with it, nobody can tell what was removed before.
fn epoch(info: &Info) -> u64 {
    let Info { config, created, .. } = info;
    let text = format!(
        "{}\n{}\n{}",
        SystemTime::from(*created).duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos(),
        config.max_messages_per_subject,
        config.description.as_deref().unwrap_or_default()
    );
    let hash = digest::digest(&digest::SHA256, text.as_bytes());
    hash.as_ref().first_chunk().map_or(1, |bytes| u64::from_le_bytes(*bytes).max(1))
}

/// Returns the sequence number after which the messages with these numbers are all of their channel.
///
/// `behind`: how many newer ones the stream had when it gave the last of them. `most`: how many of a channel it keeps;
/// beyond that, it removes the oldest. `first`: its first message afterwards, of any channel; it removes older ones by
/// age and size.
///
/// If it had removed a message of the channel because there were too many, it would hold `most` newer ones.
fn complete_after(sequences: &[u64], behind: u64, most: Option<u64>, first: u64) -> Option<u64> {
    let all = sequences.len() as u64 + behind;
    let by_age = first.saturating_sub(1);
    match most {
        Some(most) if all >= most => sequences.get(usize::try_from(all - most).ok()?).map(|&one| one.max(by_age)),
        _ => Some(by_age),
    }
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
    fn what_is_complete_is_known_and_nothing_else() {
        for (sequences, behind, most, first, complete) in [
            (&[][..], 0, Some(3), 1, Some(0)),
            (&[], 0, Some(3), 8, Some(7)),
            // Fewer than there may be: none was removed for its number.
            (&[4, 9], 0, Some(3), 2, Some(1)),
            // As many as there may be: there may have been one before.
            (&[4, 9, 11], 0, Some(3), 2, Some(4)),
            (&[4, 9, 11], 0, Some(3), 6, Some(5)),
            (&[4, 9, 11], 0, None, 2, Some(1)),
            // Newer ones may have pushed some out while these were read.
            (&[4, 9], 2, Some(3), 2, Some(9)),
            (&[4, 9], 3, Some(3), 2, None),
        ] {
            assert_eq!(complete_after(sequences, behind, most, first), complete, "{sequences:?} {behind} {first}");
        }
    }
}
