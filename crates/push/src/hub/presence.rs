//! Events of clients that come and go in a channel: who watches on this thread, and what the node's presences ask.

use std::collections::HashMap;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::cluster::link::Link;
use crate::hub::Hub;
use crate::mailboxes::Mailboxes;
use crate::message::Message;
use crate::node::Node;
use crate::presence::{Output, PARTS, Snapshot};
use crate::rights::prefix;
use crate::session::channels::Member;
use crate::session::{Reason, Session};
use crate::writer::Writer;

/// The longest time to gather a channel's subscribers on a node without others.
const GATHER: Duration = Duration::from_secs(2);

/// The time between two looks at channels with many events.
const TICK: Duration = Duration::from_secs(1);

/// The sessions of a thread that watch channels, each by its slot, with the last event that it knew at its beginning.
pub(super) type Watchers = HashMap<Arc<str>, HashMap<u32, (Rc<Session>, u64)>>;

/// Keeps a channel's subscribers known while a client is about to watch them.
pub(crate) struct Hold<'h> {
    hub: &'h Hub,
    channel: Arc<str>,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.hub.node.presences.release(&self.channel, &output(&self.hub.node, &self.hub.mailboxes));
    }
}

/// Returns what carries out what follows of a change of the presences.
pub(crate) fn output<'n>(node: &'n Node, mailboxes: &'n Mailboxes<Hub>) -> impl Fn(Output<'_>) + use<'n> {
    move |output| match output {
        Output::Gather { thread, channel, number } => {
            let channel = Arc::clone(channel);
            mailboxes.tell(thread, Box::new(move |hub| hub.report_subscribers(&channel, number)));
        }
        Output::Tell { thread, channel, version, about, frame } => {
            let (channel, frame) = (Arc::clone(channel), Arc::clone(frame));
            mailboxes.tell(thread, Box::new(move |hub| hub.tell_watchers(&channel, version, about, &frame)));
        }
        Output::Part { node: to, feed, channel, part } => {
            if let Some(link) = &node.link {
                link.tell_presence(to, feed, channel, part);
            }
        }
        Output::Watch { channel, is_watched } => {
            if let Some(link) = &node.link {
                link.watch(channel, is_watched);
            }
        }
    }
}

impl Hub {
    /// Returns whether clients may be told who comes and goes in a channel, if they have the right.
    pub(crate) fn has_events(&self, channel: &str) -> bool {
        prefix(channel).is_none() && self.plan().group_rule(channel).is_some_and(|rule| rule.presence_events)
    }

    /// Has the node know the subscribers of a channel, until the result is dropped. It waits for threads and other
    /// nodes for a limited time; what comes later is an event.
    pub(crate) async fn hold_presence(&self, channel: &str) -> Hold<'_> {
        let channel: Arc<str> = channel.into();
        self.node.presences.hold(&channel, self.asks_others(), &output(&self.node, &self.mailboxes));
        let hold = Hold { hub: self, channel };
        let longest = self.plan().cluster.as_ref().map_or(GATHER, |cluster| cluster.receipt_timeout);
        if timeout(longest, self.node.presences.until_ready(&hold.channel)).await.is_err() {
            // The next client need not wait for the same nodes.
            self.node.presences.asked(&hold.channel, &[]);
        }
        hold
    }

    /// Begins to tell a session who comes and goes in a channel, and returns who is there.
    pub(super) fn watch(&self, session: &Rc<Session>, channel: &str) -> Snapshot {
        let channel: Arc<str> = channel.into();
        let out = output(&self.node, &self.mailboxes);
        let snapshot = self.node.presences.watch(&channel, self.thread, self.asks_others(), &out);
        let mut watchers = self.watchers.borrow_mut();
        let of_channel = watchers.entry(channel).or_default();
        of_channel.insert(session.location.slot, (Rc::clone(session), snapshot.version));
        snapshot
    }

    /// Ends [`watch`](Self::watch).
    pub(super) fn unwatch(&self, session: &Session, channel: &str) {
        let mut watchers = self.watchers.borrow_mut();
        if let Some(of_channel) = watchers.get_mut(channel) {
            of_channel.remove(&session.location.slot);
            if of_channel.is_empty() {
                watchers.remove(channel);
            }
        }
        drop(watchers);
        self.node.presences.unwatch(channel, self.thread, &output(&self.node, &self.mailboxes));
    }

    /// Takes note that a session of this thread subscribes to a channel whose rule has events.
    pub(super) fn note_joined(&self, session: &Session, channel: &str) {
        if let Some(member) = session.channels(|channels| channels.member()) {
            self.node.presences.joined(channel, member, &output(&self.node, &self.mailboxes));
        }
    }

    /// Takes note that a session of this thread does not subscribe any more.
    pub(super) fn note_left(&self, session: &Session, channel: &str) {
        if let Some(client) = session.channels(|channels| channels.client) {
            self.node.presences.left(channel, client, &output(&self.node, &self.mailboxes));
        }
    }

    /// Takes note that the user of a session is known: for others, the client without one left.
    pub(super) fn note_user(&self, session: &Session) {
        let names = session.channels(|channels| {
            let single = channels.subscriptions.iter().filter(|one| !one.is_pattern);
            single.map(|one| one.group.name.clone()).filter(|name| self.has_events(name)).collect::<Vec<_>>()
        });
        for name in names.unwrap_or_default() {
            self.note_left(session, &name);
            self.note_joined(session, &name);
        }
    }

    /// Ends leases of other nodes, and tells the counts of large channels, for as long as the hub lives.
    pub(crate) async fn keep_presences(&self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (presences, out) = (&self.node.presences, output(&self.node, &self.mailboxes));
        loop {
            let (next, over) = (pin!(ticks.tick()), pin!(presences.until_over()));
            let is_tick = matches!(select(next, over).await, Either::Left(_));
            let over = presences.over(self.node.now_ms());
            for at in 0..PARTS {
                presences.leave(at, &over, &out);
                if is_tick {
                    presences.tick(at, &out);
                }
                // Other work of the thread goes between.
                yield_now().await;
            }
            presences.forget(&over);
        }
    }

    /// Reports the subscribers of a channel among this thread's sessions.
    fn report_subscribers(&self, channel: &str, number: u64) {
        let mut members: Vec<Member> = Vec::new();
        if let Some(group) = self.groups.find(channel) {
            group.each_subscriber(None, |session| members.extend(session.channels(|channels| channels.member())));
        }
        self.node.presences.gathered(channel, number, members, &output(&self.node, &self.mailboxes));
    }

    /// Sends a frame to this thread's watchers of a channel.
    fn tell_watchers(&self, channel: &str, version: u64, about: Option<u64>, frame: &Arc<Message>) {
        let watchers = self.watchers.borrow();
        let Some(of_channel) = watchers.get(channel) else { return };
        let is_urgent = Writer::is_small(of_channel.len());
        for (session, known) in of_channel.values() {
            let is_own = about.is_some() && session.channels(|channels| channels.client) == about;
            if version <= *known || is_own || !session.is_open() {
                continue;
            }
            let (bytes, messages) = {
                let outbox = session.outbox.borrow();
                (outbox.bytes(), outbox.len())
            };
            // Events must not be dropped: later ones would not fit.
            let most_bytes = self.backlog.limit_for(bytes, frame.len());
            if bytes > most_bytes || messages >= self.plan().limits.session_queue_messages {
                session.cut_off(Reason::Slow);
                continue;
            }
            self.writer.send_last(session, Arc::clone(frame));
            if is_urgent { self.writer.list_urgent(session) } else { self.writer.list_bulk(session) }
        }
        drop(watchers);
        self.relieve();
    }

    fn asks_others(&self) -> bool {
        self.node.link.as_ref().is_some_and(Link::reaches_others)
    }
}
