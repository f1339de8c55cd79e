//! Who subscribes to the channels that somebody watches.
//!
//! A client that watches a channel is told its subscribers, and then each one that comes or goes. Only channels whose
//! rule has `presence-events` can be watched, and only watched ones stand here: other channels cost nothing.
//!
//! **Which nodes tell each other what.** A node asks the others for the channels that its own clients watch, and each
//! of them answers with its subscribers, then with their changes. The alternative is to announce each change to all
//! nodes. It costs messages for channels that nobody watches, and a node that begins to watch needs the same answer.
//!
//! **Why list and events fit together.**
//! - A channel is locked while one of its subscribers comes or goes, and while a client that begins to watch gets the
//!   list. The frames go to the threads under that lock. So each thread gets the events in one order, and each event is
//!   either in the list or after it.
//! - A thread may still have events before it that are in the list already. Each event has a number, and the list has
//!   the number of the last event in it: the thread passes over events up to that number.
//! - The sessions of this node are gathered when the first client watches. From then on each thread reports changes. A
//!   thread reports its subscribers in one turn, so they and the changes before and after that turn agree.
//! - What another node tells is numbered (`cluster`). After a loss, its whole list comes again. The difference to what
//!   is known becomes events, so watchers never hear of a client that leaves and had not come.
//! - A node's subscribers count as long as the node is heard. After [`LEASE_MS`] of silence its lease is over, and they
//!   leave, in one part of the channels after the other. If the node is heard again, its list makes them come back.
//!
//! Nobody waits for that: a list that lacks the answer of a node is followed by events of clients that came.
//!
//! Locks are taken in this order: the leases of the nodes, a channel's part, and last, in `cluster`, the numbers of
//! what is told to other nodes.

mod watched;

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::message::Message;
use crate::session::channels::Member;
use watched::{Context, Watched};

/// The most subscribers of a channel whose watchers are told of single clients.
pub(crate) const MOST: usize = 1000;

/// After this silence a node's subscribers have left, milliseconds.
pub(crate) const LEASE_MS: u64 = 3000;

/// The number of parts: enough that threads seldom meet in one.
pub(crate) const PARTS: usize = 16;

/// The watched channels of a node.
#[derive(Debug)]
pub(crate) struct Presences {
    hasher: RandomState,
    parts: Box<[Mutex<Channels>]>,
    /// The number of the last event.
    version: AtomicU64,
    leases: Mutex<HashMap<u64, Lease>>,
    /// Notified when a lease is over before its time.
    over: Notify,
    /// The largest part that other nodes can be told, bytes.
    most_part_bytes: AtomicUsize,
    threads: u16,
}

/// Another node that is heard.
#[derive(Debug)]
struct Lease {
    /// When it was heard last, milliseconds.
    heard_ms: u64,
    /// Its subscribers leave. Nothing that it tells counts until it has another lease.
    is_over: bool,
}

#[derive(Debug, Default)]
struct Channels {
    all: HashMap<Arc<str>, Watched>,
    /// Those that the next tick looks at.
    busy: HashSet<Arc<str>>,
}

/// News of a node for another one about its subscribers of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// All of them.
    List(Vec<Member>),
    /// How many there are, if they are too many for a list.
    Count(u64),
    Joined(Member),
    /// The client that left.
    Left(u64),
}

impl Part {
    /// Returns the most bytes that it takes in a message.
    pub(crate) fn most_bytes(&self, channel: &str) -> usize {
        let member = |member: &Member| 9 + member.user.as_ref().map_or(0, |user| user.len() + 10);
        let own = match self {
            Part::List(list) => list.iter().map(member).sum(),
            Part::Joined(one) => member(one),
            Part::Count(_) | Part::Left(_) => 0,
        };
        channel.len() + own + 20
    }
}

/// A consequence of a change. The caller carries it out at once, and must not come back to the presences.
#[derive(Debug)]
pub(crate) enum Output<'a> {
    /// A thread must report the subscribers among its sessions, with this number.
    Gather { thread: u16, channel: &'a Arc<str>, number: u64 },
    /// A thread must tell its watchers, except those who know this version already, and except client `about`.
    Tell { thread: u16, channel: &'a Arc<str>, version: u64, about: Option<u64>, frame: &'a Arc<Message> },
    /// Another node must be told on its feed.
    Part { node: u64, feed: u64, channel: &'a Arc<str>, part: Part },
    /// The other nodes must be asked for a channel, or no longer.
    Watch { channel: &'a Arc<str>, is_watched: bool },
}

/// A channel's subscribers, as a client learns them that begins to watch.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// The last event in it.
    pub(crate) version: u64,
    pub(crate) clients: u64,
    /// `None`: too many come and go, or are there, for a list.
    pub(crate) list: Option<Vec<Member>>,
}

impl Snapshot {
    /// Returns it as clients get it.
    pub(crate) fn to_json(&self) -> Value {
        let mut json = json!({ "clients": self.clients });
        if let Some(list) = &self.list {
            json["list"] = list.iter().map(Member::to_json).collect();
        }
        json
    }
}

/// The state of the presences, for `/status` and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PresenceCounts {
    /// Channels that clients of this node or other nodes watch.
    pub(crate) channels: usize,
    /// Subscriptions of this node that watch.
    pub(crate) watchers: usize,
}

impl Presences {
    /// Creates presences without a channel.
    pub(crate) fn new(threads: usize) -> Self {
        Presences {
            hasher: RandomState::new(),
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
            version: AtomicU64::new(0),
            leases: Mutex::default(),
            over: Notify::new(),
            most_part_bytes: AtomicUsize::new(usize::MAX),
            threads: threads as u16,
        }
    }

    /// Takes note that a session of this node subscribes.
    pub(crate) fn joined(&self, channel: &str, member: Member, out: &dyn Fn(Output<'_>)) {
        self.change(channel, out, |watched, context| watched.joined(member, context));
    }

    /// Takes note that a session of this node does not subscribe any more.
    pub(crate) fn left(&self, channel: &str, client: u64, out: &dyn Fn(Output<'_>)) {
        self.change(channel, out, |watched, context| watched.left(client, context));
    }

    /// Keeps a channel until [`release`](Self::release). `asks`: there may be other nodes, which are to be asked.
    pub(crate) fn hold(&self, channel: &Arc<str>, asks: bool, out: &dyn Fn(Output<'_>)) {
        self.create(channel, out, |watched, context| watched.hold(asks, context));
    }

    /// Ends a [`hold`](Self::hold).
    pub(crate) fn release(&self, channel: &str, out: &dyn Fn(Output<'_>)) {
        self.change(channel, out, Watched::release);
    }

    /// Waits until a channel that is held has the answers of all threads and of the nodes that were asked.
    pub(crate) async fn until_ready(&self, channel: &str) {
        let ready = self.part(channel).all.get(channel).map(Watched::ready);
        if let Some(mut ready) = ready {
            // The sender lives as long as the channel is held.
            let _ = ready.wait_for(|&is_ready| is_ready).await;
        }
    }

    /// Adds a watcher of a thread, and returns what it must know. It holds the channel until
    /// [`unwatch`](Self::unwatch).
    pub(crate) fn watch(&self, channel: &Arc<str>, thread: u16, asks: bool, out: &dyn Fn(Output<'_>)) -> Snapshot {
        self.create(channel, out, |watched, context| {
            watched.hold(asks, context);
            watched.watch(thread, context)
        })
    }

    /// Removes a watcher of a thread.
    pub(crate) fn unwatch(&self, channel: &str, thread: u16, out: &dyn Fn(Output<'_>)) {
        self.change(channel, out, |watched, context| {
            watched.unwatch(thread);
            watched.release(context);
        });
    }

    /// Takes the subscribers among the sessions of a thread, which was asked with `number`.
    pub(crate) fn gathered(&self, channel: &str, number: u64, members: Vec<Member>, out: &dyn Fn(Output<'_>)) {
        self.change(channel, out, |watched, context| watched.gathered(number, members, context));
    }

    /// Tells another node on its feed who subscribes to a channel here, from now on.
    pub(crate) fn feed(&self, node: u64, feed: u64, channel: &Arc<str>, out: &dyn Fn(Output<'_>)) {
        self.create(channel, out, |watched, context| watched.feed(node, feed, context));
    }

    /// Tells another node no more of a channel.
    pub(crate) fn unfeed(&self, node: u64, channel: &str) {
        self.change(channel, &|_| {}, |watched, _| watched.unfeed(node));
    }

    /// Tells another node no more of any channel.
    pub(crate) fn unfeed_all(&self, node: u64) {
        (0..PARTS).for_each(|at| self.change_part(at, &|_| {}, |watched, _| watched.unfeed(node)));
    }

    /// Takes note that these nodes were asked for a channel.
    pub(crate) fn asked(&self, channel: &str, nodes: &[u64]) {
        self.change(channel, &|_| {}, |watched, _| watched.asked(nodes));
    }

    /// Returns the channels that this node asks others for.
    pub(crate) fn held(&self) -> Vec<Arc<str>> {
        let mut held = Vec::new();
        for at in 0..PARTS {
            let part = self.lock(at);
            held.extend(part.all.values().filter(|watched| watched.is_held()).map(|watched| Arc::clone(&watched.name)));
        }
        held
    }

    /// Returns whether this node asks others for a channel.
    pub(crate) fn is_held(&self, channel: &str) -> bool {
        self.part(channel).all.get(channel).is_some_and(Watched::is_held)
    }

    /// Limits what other nodes are told of a channel at a time: in place of a longer list they get a number.
    pub(crate) fn limit_parts(&self, most_bytes: usize) {
        self.most_part_bytes.store(most_bytes, Ordering::Relaxed);
    }

    /// Begins the lease of another node, unless it has one.
    pub(crate) fn begin_lease(&self, node: u64, now_ms: u64) {
        let mut leases = self.leases();
        let lease = leases.entry(node).or_insert(Lease { heard_ms: now_ms, is_over: false });
        if lease.is_over {
            // It must tell all channels anew. So what is still known of it becomes right.
            *lease = Lease { heard_ms: now_ms, is_over: false };
        }
    }

    /// Renews the lease of a node, and takes what it tells. Returns false if it has no lease: then nothing is taken.
    pub(crate) fn told(&self, node: u64, parts: Vec<(Box<str>, Part)>, now_ms: u64, out: &dyn Fn(Output<'_>)) -> bool {
        // Locked to the end: what is taken after the end of the lease would stay.
        let mut leases = self.leases();
        let Some(lease) = leases.get_mut(&node).filter(|lease| !lease.is_over) else { return false };
        lease.heard_ms = now_ms;
        for (channel, part) in parts {
            self.change(&channel, out, |watched, context| watched.told(node, part, context));
        }
        true
    }

    /// Ends the lease of a node: its subscribers leave, for which [`until_over`](Self::until_over) is ready.
    pub(crate) fn end_lease(&self, node: u64) {
        // Also without a lease: a client may wait for its first answer.
        self.leases().entry(node).or_insert(Lease { heard_ms: 0, is_over: true }).is_over = true;
        self.over.notify_one();
    }

    /// Forgets the lease of a node of which nothing is known, as this node asks for no channel.
    pub(crate) fn drop_lease(&self, node: u64) {
        self.leases().remove(&node);
    }

    /// Waits until a lease is over before its time.
    pub(crate) async fn until_over(&self) {
        self.over.notified().await;
    }

    /// Ends the leases that were not renewed, and returns the nodes whose subscribers leave. The caller has them leave
    /// in each of [`PARTS`] parts with [`leave`](Self::leave), then calls [`forget`](Self::forget).
    pub(crate) fn over(&self, now_ms: u64) -> Vec<u64> {
        let mut leases = self.leases();
        let silent = leases.iter_mut().filter_map(|(&node, lease)| {
            lease.is_over |= now_ms.saturating_sub(lease.heard_ms) > LEASE_MS;
            lease.is_over.then_some(node)
        });
        silent.collect()
    }

    /// Has the subscribers of nodes leave in one part of the channels, if their leases are still over.
    pub(crate) fn leave(&self, at: usize, nodes: &[u64], out: &dyn Fn(Output<'_>)) {
        let leases = self.leases();
        for &node in nodes.iter().filter(|node| leases.get(node).is_some_and(|lease| lease.is_over)) {
            self.change_part(at, out, |watched, context| watched.gone(node, context));
        }
    }

    /// Forgets nodes whose subscribers have left.
    pub(crate) fn forget(&self, nodes: &[u64]) {
        self.leases().retain(|node, lease| !(lease.is_over && nodes.contains(node)));
    }

    /// Tells the counts of large channels in one part of the channels. To be called once per second.
    pub(crate) fn tick(&self, at: usize, out: &dyn Fn(Output<'_>)) {
        let mut part = self.lock(at);
        for channel in std::mem::take(&mut part.busy) {
            let Some(watched) = part.all.get_mut(&channel) else { continue };
            watched.tick(&self.context(out));
            if watched.is_busy {
                part.busy.insert(channel);
            }
        }
    }

    /// Returns how many channels are watched, and by how many subscriptions of this node.
    pub(crate) fn counts(&self) -> PresenceCounts {
        let mut counts = PresenceCounts::default();
        for at in 0..PARTS {
            let part = self.lock(at);
            counts.channels += part.all.len();
            counts.watchers += part.all.values().map(Watched::watchers).sum::<usize>();
        }
        counts
    }

    /// Changes a channel, if it is watched.
    fn change(&self, channel: &str, out: &dyn Fn(Output<'_>), act: impl FnOnce(&mut Watched, &Context<'_>)) {
        let mut part = self.part(channel);
        let Channels { all, busy } = &mut *part;
        let Some(watched) = all.get_mut(channel) else { return };
        act(watched, &self.context(out));
        if !watched.is_used() {
            all.remove(channel);
            busy.remove(channel);
            if all.capacity() > 64 && all.len() < all.capacity() / 4 {
                all.shrink_to_fit();
            }
        } else if watched.is_busy && !busy.contains(channel) {
            busy.insert(Arc::clone(&watched.name));
        }
    }

    /// Changes all channels of a part.
    fn change_part(&self, at: usize, out: &dyn Fn(Output<'_>), act: impl Fn(&mut Watched, &Context<'_>)) {
        let mut part = self.lock(at);
        let Channels { all, busy } = &mut *part;
        all.retain(|name, watched| {
            act(watched, &self.context(out));
            if watched.is_busy {
                busy.insert(Arc::clone(name));
            }
            watched.is_used()
        });
    }

    /// Changes a channel, which is watched from now on.
    fn create<T>(
        &self,
        channel: &Arc<str>,
        out: &dyn Fn(Output<'_>),
        act: impl FnOnce(&mut Watched, &Context<'_>) -> T,
    ) -> T {
        let mut part = self.part(channel);
        let Channels { all, busy } = &mut *part;
        let context = self.context(out);
        let watched =
            all.entry(Arc::clone(channel)).or_insert_with(|| Watched::new(Arc::clone(channel), self.threads, &context));
        let result = act(watched, &context);
        if watched.is_busy {
            busy.insert(Arc::clone(channel));
        }
        result
    }

    fn part(&self, channel: &str) -> MutexGuard<'_, Channels> {
        self.lock(self.hasher.hash_one(channel) as usize % PARTS)
    }

    fn lock(&self, at: usize) -> MutexGuard<'_, Channels> {
        self.parts[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn context<'c>(&'c self, out: &'c dyn Fn(Output<'_>)) -> Context<'c> {
        Context { version: &self.version, out, most_part_bytes: self.most_part_bytes.load(Ordering::Relaxed) }
    }

    fn leases(&self) -> MutexGuard<'_, HashMap<u64, Lease>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
