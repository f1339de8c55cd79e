//! Filling a channel's history from the stream: what a node's memory lacks because it is older.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use oroshi_nats::jetstream::Context;
use oroshi_nats::jetstream::consumer::{AckPolicy, Consumer, DeliverPolicy, pull};
use oroshi_words::with_causes;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{UNUSED, age, epoch, millis};
use crate::cluster::nats::Worker;
use crate::history::Older;
use crate::message::Place;
use crate::plan::HistoryRule;

/// How long the next message that a history is filled with may take.
const NEXT: Duration = Duration::from_secs(5);

/// What a fill asks NATS for at a time, bytes, if all messages are as long as they may be.
const BATCH_BYTES: u64 = 8 << 20;

/// The most messages that a fill asks NATS for at a time.
const BATCH_MESSAGES: u64 = 256;

/// The messages of a channel in the stream.
#[derive(Default)]
struct Read {
    /// The numbers of all.
    sequences: Vec<u64>,
    /// How many newer ones the stream had when it gave the last of them.
    behind: u64,
    /// The newest, as many as the rule keeps: number, age, frame.
    newest: VecDeque<(u64, Duration, Bytes)>,
    bytes: usize,
    /// The number of the last message that was not kept.
    dropped: u64,
}

impl Read {
    /// Adds a message, and drops the oldest beyond the rule.
    fn add(&mut self, rule: HistoryRule, sequence: u64, age: Duration, frame: Bytes) {
        self.sequences.push(sequence);
        self.bytes += frame.len();
        self.newest.push_back((sequence, age, frame));
        // The history counts a message twice, and is exact.
        while self.newest.len() > rule.messages.max(1) || (self.bytes > rule.bytes && self.newest.len() > 1) {
            let Some((sequence, _, frame)) = self.newest.pop_front() else { return };
            self.bytes -= frame.len();
            self.dropped = sequence;
        }
    }
}

impl Worker {
    /// Fills the history of a channel, which begins at `floor`, in a task. Who asks for the same waits for it, too.
    pub(in crate::cluster) fn fill(
        self: &Rc<Self>,
        context: &Context,
        channel: Arc<str>,
        floor: u64,
        done: oneshot::Sender<()>,
    ) {
        let key = (channel, floor);
        let mut filling = self.filling.borrow_mut();
        let waiting = filling.entry(key.clone()).or_default();
        waiting.push(done);
        if waiting.len() > 1 {
            return;
        }
        let (worker, context) = (Rc::clone(self), context.clone());
        tokio::task::spawn_local(async move {
            let _room = worker.fills.acquire().await;
            if let Err(why) = worker.fill_now(&context, &key.0, floor).await {
                worker.shared.trouble(format!("a history could not be read from JetStream: {why}"));
            }
            worker.filling.borrow_mut().remove(&key);
        });
    }

    async fn fill_now(&self, context: &Context, channel: &str, floor: u64) -> Result<(), String> {
        let Some(rule) = self.node.plan.group_rule(channel).and_then(|rule| rule.keeps) else { return Ok(()) };
        let stream = context.get_stream(self.stream_name()).await.map_err(|error| with_causes(&error))?;
        let consumer = pull::Config {
            deliver_policy: if rule.latest { DeliverPolicy::LastPerSubject } else { DeliverPolicy::All },
            ack_policy: AckPolicy::None,
            filter_subject: self.subject(channel),
            inactive_threshold: UNUSED,
            memory_storage: true,
            num_replicas: 1,
            ..pull::Config::default()
        };
        let consumer = stream.create_consumer(consumer).await.map_err(|error| with_causes(&error))?;
        let read = self.read(&consumer, rule).await;
        let name = consumer.cached_info().name.clone();
        // After the messages: what the stream has lost since then is before its first one.
        let info = stream.get_info().await.map_err(|error| with_causes(&error));
        tokio::task::spawn_local(async move {
            // NATS removes it by itself, later.
            let _ = stream.delete_consumer(&name).await;
        });
        let (Read { sequences, behind, newest, dropped, .. }, info) = (read?, info?);
        if epoch(&info) != self.node.histories.stream_epoch() {
            return Err("the stream is another one".to_owned());
        }
        let first = info.state.first_sequence;
        let complete = if rule.latest {
            // Nothing is between it and the value before it, which is outdated.
            newest.back().map_or(first, |(sequence, ..)| *sequence).saturating_sub(1)
        } else {
            let most = u64::try_from(info.config.max_messages_per_subject).ok().filter(|&most| most > 0);
            complete_after(&sequences, behind, most, first).ok_or("messages were removed meanwhile")?.max(dropped)
        };
        let older = newest.into_iter().filter_map(|(offset, age, frame)| {
            let (channel, _, publish) = self.decode(&frame, age)?;
            let place = Place { epoch: epoch(&info), offset };
            let message = publish.message.to_publication(Some(channel), Some(place));
            Some(Older { message, offset, age_ms: millis(age) })
        });
        self.node.histories.fill(channel, rule, [floor, complete], older.collect(), self.node.now_ms());
        Ok(())
    }

    /// Reads all that a consumer has, and keeps what the rule keeps.
    async fn read(&self, consumer: &Consumer<pull::Config>, rule: HistoryRule) -> Result<Read, String> {
        let count = consumer.cached_info().num_pending;
        let longest = self.node.plan.limits.publish_bytes.max(1024);
        let most = (BATCH_BYTES / longest).clamp(1, BATCH_MESSAGES);
        let mut read = Read::default();
        loop {
            let before = read.sequences.len() as u64;
            let rest = count - before;
            if rest == 0 {
                return Ok(read);
            }
            let batch = rest.min(most);
            let messages = consumer.fetch().max_messages(batch as usize).expires(NEXT).messages().await;
            let mut messages = messages.map_err(|error| with_causes(&error))?;
            while (read.sequences.len() as u64) < before + batch
                && let Ok(Some(message)) = timeout(NEXT, messages.next()).await
            {
                let message = message.map_err(|error| error.to_string())?;
                let info = message.info().map_err(|error| error.to_string())?;
                read.behind = info.pending;
                let (sequence, age) = (info.stream_sequence, age(info.published.into()));
                read.add(rule, sequence, age, message.payload.clone());
            }
            if read.sequences.len() as u64 == before {
                return Err("messages were removed meanwhile".to_owned());
            }
        }
    }
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

    /// However long the history of a channel is: a fill holds what the rule keeps, and knows what it left out.
    #[test]
    fn a_fill_holds_no_more_than_the_rule() {
        let rule = HistoryRule { messages: 3, bytes: 100, ..HistoryRule::default() };
        let mut read = Read::default();
        let mut add = |sequence, length| {
            read.add(rule, sequence, Duration::ZERO, vec![0; length].into());
            let newest: Vec<u64> = read.newest.iter().map(|(sequence, ..)| *sequence).collect();
            (newest, read.dropped)
        };
        assert_eq!(add(1, 10), (vec![1], 0));
        assert_eq!(add(4, 10), (vec![1, 4], 0));
        assert_eq!(add(5, 10), (vec![1, 4, 5], 0));
        assert_eq!(add(9, 10), (vec![4, 5, 9], 1), "no more messages");
        assert_eq!(add(10, 85), (vec![9, 10], 5), "no more bytes");
        assert_eq!(add(11, 200), (vec![11], 10), "the newest one in any case");
        assert_eq!((read.sequences.len(), read.bytes), (6, 200));
    }
}
