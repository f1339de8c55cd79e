//! One channel that somebody watches: its subscribers by node, and what watchers and other nodes are told of them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tokio::sync::watch;

use super::{MOST, Output, Part, Snapshot};
use crate::message::Message;
use crate::session::channels::Member;

/// A channel with this many subscribers or fewer is not large any more.
const LOW: usize = MOST / 10 * 9;

/// The most events of single clients between two ticks, for watchers and for each other node.
const RATE: u32 = 100;

/// After so many ticks with few events, watchers are told of single clients again.
const QUIET: u8 = 3;

/// Each channel waits for 0 to 3 further ticks. So not all lists go out in one turn after a node died.
const SPREAD: u64 = 4;

/// The things that a change needs beside its channel.
pub(super) struct Context<'a> {
    /// The number of the last event of any channel.
    pub(super) version: &'a AtomicU64,
    pub(super) out: &'a dyn Fn(Output<'_>),
    /// The largest part that other nodes can be told, bytes.
    pub(super) most_part_bytes: usize,
}

impl Context<'_> {
    fn next_version(&self) -> u64 {
        self.version.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// The users of subscribers, by client.
type Members = HashMap<u64, Option<Arc<str>>>;

/// A watched channel.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) name: Arc<str>,
    /// Whether the next tick must look at it.
    pub(super) is_busy: bool,
    /// No other watched channel had this number.
    number: u64,
    here: Members,
    /// How many threads have not reported their subscribers.
    ungathered: u16,
    others: HashMap<u64, Known>,
    /// The nodes whose first answer has not come; `None`: they are about to be asked.
    awaited: Option<HashSet<u64>>,
    /// How many watchers this node has, or is about to have.
    holds: usize,
    /// The watchers of each thread.
    watchers: Box<[usize]>,
    /// The nodes that are told of the subscribers here, with their feeds.
    feeds: HashMap<u64, u64>,
    /// `None`: these are told of single clients.
    counts_here: Option<Counts>,
    /// Events of subscribers here since the last tick.
    recent_here: u32,
    /// `None`: watchers are told of single clients.
    counts: Option<Counts>,
    /// Events since the last tick.
    recent: u32,
    ready: watch::Sender<bool>,
}

/// The subscribers of another node, as far as this one knows them.
#[derive(Debug)]
enum Known {
    List(Members),
    Count(u64),
}

/// Watchers, or other nodes, are told the number of clients only.
#[derive(Debug)]
struct Counts {
    /// The most subscribers with which it ends.
    low: usize,
    /// How many ticks there were few events.
    quiet: u8,
    told: Option<u64>,
}

impl Counts {
    const NEW: Counts = Counts { low: MOST, quiet: 0, told: None };
}

impl Watched {
    /// Creates a channel, whose subscribers are to be gathered from all threads.
    pub(super) fn new(name: Arc<str>, threads: u16, context: &Context<'_>) -> Self {
        let number = context.next_version();
        for thread in 0..threads {
            (context.out)(Output::Gather { thread, channel: &name, number });
        }
        Watched {
            name,
            is_busy: false,
            number,
            here: Members::new(),
            ungathered: threads,
            others: HashMap::new(),
            awaited: Some(HashSet::new()),
            holds: 0,
            watchers: vec![0; threads.into()].into(),
            feeds: HashMap::new(),
            counts_here: None,
            recent_here: 0,
            counts: None,
            recent: 0,
            ready: watch::Sender::new(false),
        }
    }

    pub(super) fn is_used(&self) -> bool {
        self.holds > 0 || !self.feeds.is_empty()
    }

    pub(super) fn is_held(&self) -> bool {
        self.holds > 0
    }

    pub(super) fn watchers(&self) -> usize {
        self.watchers.iter().sum()
    }

    pub(super) fn ready(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    pub(super) fn hold(&mut self, asks: bool, context: &Context<'_>) {
        self.holds += 1;
        if self.holds == 1 {
            self.awaited = (!asks).then(HashSet::new);
            (context.out)(Output::Watch { channel: &self.name, is_watched: true });
            self.check_ready();
        }
    }

    pub(super) fn release(&mut self, context: &Context<'_>) {
        self.holds = self.holds.saturating_sub(1);
        if self.holds == 0 {
            self.others.clear();
            (context.out)(Output::Watch { channel: &self.name, is_watched: false });
        }
    }

    /// Adds a watcher, and returns what it must know.
    pub(super) fn watch(&mut self, thread: u16, context: &Context<'_>) -> Snapshot {
        self.watchers[usize::from(thread)] += 1;
        self.count_if_many();
        let list = self.counts.is_none().then(|| self.list());
        Snapshot { version: context.version.load(Ordering::Relaxed), clients: self.clients(), list }
    }

    pub(super) fn unwatch(&mut self, thread: u16) {
        let watchers = &mut self.watchers[usize::from(thread)];
        *watchers = watchers.saturating_sub(1);
        if !self.is_watched() {
            (self.counts, self.recent) = (None, 0);
        }
    }

    /// A session of this node subscribes.
    pub(super) fn joined(&mut self, member: Member, context: &Context<'_>) {
        if self.here.insert(member.client, member.user.clone()).is_none() {
            self.tell_nodes(Part::Joined(member.clone()), context);
            self.tell("joined", &member, context);
        }
    }

    /// A session of this node does not subscribe any more.
    pub(super) fn left(&mut self, client: u64, context: &Context<'_>) {
        if let Some(user) = self.here.remove(&client) {
            self.tell_nodes(Part::Left(client), context);
            self.tell("left", &Member { client, user }, context);
        }
    }

    /// A thread reports its subscribers. Those that came after the question are known already.
    pub(super) fn gathered(&mut self, number: u64, members: Vec<Member>, context: &Context<'_>) {
        if number != self.number {
            return;
        }
        // Before the count of threads: nodes get a list once all have reported.
        members.into_iter().for_each(|member| self.joined(member, context));
        self.ungathered = self.ungathered.saturating_sub(1);
        if self.ungathered == 0 {
            let feeds: Vec<_> = self.feeds.iter().map(|(&node, &feed)| (node, feed)).collect();
            feeds.into_iter().for_each(|(node, feed)| self.tell_all_here(node, feed, context));
            self.check_ready();
        }
    }

    pub(super) fn feed(&mut self, node: u64, feed: u64, context: &Context<'_>) {
        self.feeds.insert(node, feed);
        if self.ungathered == 0 {
            self.tell_all_here(node, feed, context);
        }
    }

    pub(super) fn unfeed(&mut self, node: u64) {
        self.feeds.remove(&node);
        if self.feeds.is_empty() {
            (self.counts_here, self.recent_here) = (None, 0);
        }
    }

    /// These nodes were asked.
    pub(super) fn asked(&mut self, nodes: &[u64]) {
        let unknown = nodes.iter().filter(|node| !self.others.contains_key(node));
        self.awaited = Some(unknown.copied().collect());
        self.check_ready();
    }

    /// Another node tells of its subscribers.
    pub(super) fn told(&mut self, node: u64, part: Part, context: &Context<'_>) {
        if !self.is_held() {
            return;
        }
        match part {
            Part::List(members) => {
                let new: Members = members.into_iter().map(|Member { client, user }| (client, user)).collect();
                let old = match self.others.remove(&node) {
                    Some(Known::List(old)) => old,
                    // After a count, watchers know a number only.
                    Some(Known::Count(_)) | None => Members::new(),
                };
                let left: Vec<_> = members_beyond(&old, &new).collect();
                let joined: Vec<_> = members_beyond(&new, &old).collect();
                // Before the events, as the size of the channel decides what watchers are told.
                self.others.insert(node, Known::List(new));
                left.iter().for_each(|member| self.tell("left", member, context));
                joined.iter().for_each(|member| self.tell("joined", member, context));
                self.answered(node);
            }
            Part::Count(count) => {
                self.others.insert(node, Known::Count(count));
                self.is_busy = true;
                self.count_if_many();
                self.answered(node);
            }
            Part::Joined(member) => match self.others.get_mut(&node) {
                Some(Known::List(members)) => {
                    let is_new = members.insert(member.client, member.user.clone()).is_none();
                    if is_new {
                        self.tell("joined", &member, context);
                    }
                }
                Some(Known::Count(count)) => *count = count.saturating_add(1),
                // It was asked anew, and its list is on its way.
                None => {}
            },
            Part::Left(client) => match self.others.get_mut(&node) {
                Some(Known::List(members)) => {
                    if let Some(user) = members.remove(&client) {
                        self.tell("left", &Member { client, user }, context);
                    }
                }
                Some(Known::Count(count)) => *count = count.saturating_sub(1),
                None => {}
            },
        }
    }

    /// Another node is gone.
    pub(super) fn gone(&mut self, node: u64, context: &Context<'_>) {
        match self.others.remove(&node) {
            Some(Known::List(members)) => {
                for (client, user) in members {
                    self.tell("left", &Member { client, user }, context);
                }
            }
            Some(Known::Count(_)) => self.is_busy = true,
            None => {}
        }
        self.answered(node);
    }

    /// Tells what is told at most once per second.
    pub(super) fn tick(&mut self, context: &Context<'_>) {
        let recent = std::mem::take(&mut self.recent);
        let (clients, has_counts) = (self.clients(), self.has_counts());
        self.is_busy = false;
        if let Some(counts) = &mut self.counts {
            self.is_busy = true;
            let is_quiet = recent <= RATE / 2 && !has_counts && clients <= counts.low as u64;
            counts.quiet = if is_quiet { counts.quiet.saturating_add(1) } else { 0 };
            if counts.quiet >= QUIET + (self.number % SPREAD) as u8 {
                self.counts = None;
                let list: Value = self.list().iter().map(Member::to_json).collect();
                self.tell_frame(&json!({ "channel": &*self.name, "clients": clients, "list": list }), None, context);
            } else if counts.told.replace(clients) != Some(clients) {
                self.tell_frame(&json!({ "channel": &*self.name, "clients": clients }), None, context);
            }
        }
        self.tick_for_nodes(context);
    }

    fn tick_for_nodes(&mut self, context: &Context<'_>) {
        let (here, recent) = (self.here.len(), std::mem::take(&mut self.recent_here));
        let Some(counts) = &mut self.counts_here else { return };
        self.is_busy = true;
        // One quiet tick is enough, as watchers there wait for more.
        let is_few = recent <= RATE / 2 && here <= counts.low;
        let has_changed = counts.told.replace(here as u64) != Some(here as u64);
        let is_list = is_few && self.list_here(context).is_some();
        if is_list {
            self.counts_here = None;
            let feeds: Vec<_> = self.feeds.iter().map(|(&node, &feed)| (node, feed)).collect();
            feeds.into_iter().for_each(|(node, feed)| self.tell_all_here(node, feed, context));
        } else if has_changed {
            self.tell_nodes_part(&Part::Count(here as u64), context);
        }
    }

    /// Tells watchers of a client.
    fn tell(&mut self, what: &str, member: &Member, context: &Context<'_>) {
        if !self.is_watched() {
            return;
        }
        self.recent = self.recent.saturating_add(1);
        self.is_busy = true;
        self.count_if_many();
        if self.counts.is_none() {
            let frame = json!({ "channel": &*self.name, what: member.to_json() });
            self.tell_frame(&frame, Some(member.client), context);
        }
    }

    fn tell_frame(&self, frame: &Value, about: Option<u64>, context: &Context<'_>) {
        let (version, frame) = (context.next_version(), Arc::new(Message::channel_frame(frame)));
        for (thread, _) in self.watchers.iter().enumerate().filter(|(_, watchers)| **watchers > 0) {
            let (thread, channel) = (thread as u16, &self.name);
            (context.out)(Output::Tell { thread, channel, version, about, frame: &frame });
        }
    }

    /// Tells the nodes of a client, or begins to tell them the number only.
    fn tell_nodes(&mut self, part: Part, context: &Context<'_>) {
        if self.ungathered > 0 || self.feeds.is_empty() {
            return;
        }
        self.recent_here = self.recent_here.saturating_add(1);
        self.is_busy = true;
        if self.here.len() > MOST {
            self.counts_here.get_or_insert(Counts::NEW).low = LOW;
        } else if self.recent_here > RATE {
            self.counts_here.get_or_insert(Counts::NEW);
        }
        // If there are counts, the tick tells them.
        if self.counts_here.is_none() {
            self.tell_nodes_part(&part, context);
        }
    }

    fn tell_nodes_part(&self, part: &Part, context: &Context<'_>) {
        for (&node, &feed) in &self.feeds {
            (context.out)(Output::Part { node, feed, channel: &self.name, part: part.clone() });
        }
    }

    /// Tells a node all subscribers here, or their number.
    fn tell_all_here(&mut self, node: u64, feed: u64, context: &Context<'_>) {
        let list = if self.counts_here.is_none() { self.list_here(context) } else { None };
        let part = list.unwrap_or_else(|| {
            let count = self.here.len();
            let counts = self.counts_here.get_or_insert(Counts::NEW);
            if count > MOST {
                counts.low = LOW;
            }
            self.is_busy = true;
            Part::Count(count as u64)
        });
        (context.out)(Output::Part { node, feed, channel: &self.name, part });
    }

    /// Returns the list of the subscribers here; `None` if it is too long for other nodes.
    fn list_here(&self, context: &Context<'_>) -> Option<Part> {
        if self.here.len() > MOST {
            return None;
        }
        let list = Part::List(members(&self.here).collect());
        (list.most_bytes(&self.name) <= context.most_part_bytes).then_some(list)
    }

    /// From here on watchers are told the number only, if there are too many clients or events. The tick tells it.
    fn count_if_many(&mut self) {
        let is_large = self.clients() > MOST as u64;
        if !self.is_watched() || !(is_large || self.has_counts() || self.recent > RATE) {
            return;
        }
        let counts = self.counts.get_or_insert(Counts::NEW);
        if is_large {
            counts.low = LOW;
        }
        self.is_busy = true;
    }

    fn answered(&mut self, node: u64) {
        if let Some(awaited) = &mut self.awaited
            && awaited.remove(&node)
        {
            self.check_ready();
        }
    }

    fn check_ready(&self) {
        let is_ready = self.ungathered == 0 && self.awaited.as_ref().is_some_and(HashSet::is_empty);
        self.ready.send_if_modified(|ready| std::mem::replace(ready, is_ready) != is_ready);
    }

    fn is_watched(&self) -> bool {
        self.watchers.iter().any(|&watchers| watchers > 0)
    }

    fn has_counts(&self) -> bool {
        self.others.values().any(|known| matches!(known, Known::Count(_)))
    }

    /// Returns how many clients subscribe.
    fn clients(&self) -> u64 {
        let others = self.others.values().map(|known| match known {
            Known::List(members) => members.len() as u64,
            Known::Count(count) => *count,
        });
        others.fold(self.here.len() as u64, u64::saturating_add)
    }

    fn list(&self) -> Vec<Member> {
        let others = self.others.values().filter_map(|known| match known {
            Known::List(members) => Some(members),
            Known::Count(_) => None,
        });
        others.chain([&self.here]).flat_map(members).collect()
    }
}

/// Returns the members of `some` that `others` lacks, or has with another user.
fn members_beyond<'m>(some: &'m Members, others: &'m Members) -> impl Iterator<Item = Member> + 'm {
    members(some).filter(|Member { client, user }| others.get(client) != Some(user))
}

fn members(members: &Members) -> impl Iterator<Item = Member> + '_ {
    members.iter().map(|(&client, user)| Member { client, user: user.clone() })
}
