//! Pages of the sessions and groups of this node, in the order of their names.
//!
//! A page is bounded; nothing is sorted but the page. Names that come or go meanwhile may be missing.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::hub::Hub;

/// A part of a list.
#[derive(Clone, Debug)]
pub(crate) struct PageRequest {
    /// The name behind which it begins.
    pub(crate) after: Option<Box<str>>,
    /// The beginning of all its names.
    pub(crate) prefix: Box<str>,
    /// The most names.
    pub(crate) limit: usize,
}

/// The sizes of a group, in sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupCounts {
    /// All of its sessions.
    pub(crate) sessions: u64,
    /// Those that subscribe to it as a channel.
    pub(crate) subscribers: u64,
}

impl PageRequest {
    /// Returns whether a name belongs to the list, behind the pages before.
    fn wants(&self, name: &str) -> bool {
        name.starts_with(&*self.prefix) && self.after.as_deref().is_none_or(|after| name > after)
    }

    /// Adds a name to the names of a page, which keeps the first ones.
    fn add(&self, page: &mut BTreeSet<Arc<str>>, name: &Arc<str>) {
        if !self.wants(name) || page.len() > self.limit && page.last().is_some_and(|last| name >= last) {
            return;
        }
        page.insert(Arc::clone(name));
        // One more than the page has, which tells whether there are more.
        if page.len() > self.limit + 1 {
            page.pop_last();
        }
    }
}

impl Hub {
    /// Returns the keys of a page of sessions. One more than the limit: there are more.
    pub(crate) fn session_keys(&self, page: &PageRequest) -> Vec<Arc<str>> {
        let mut keys = BTreeSet::new();
        self.node.directory.each(|key| page.add(&mut keys, key));
        keys.into_iter().collect()
    }

    /// Returns a page of groups with their sizes. One more than the limit: there are more.
    pub(crate) async fn group_page(self: &Rc<Self>, page: PageRequest) -> Vec<(Arc<str>, GroupCounts)> {
        let limit = page.limit;
        // The first names of all threads are among the first of each.
        let parts = self.on_all(move |hub| {
            let mut names = BTreeSet::new();
            hub.groups.each(|group| {
                if page.wants(&group.name) {
                    page.add(&mut names, &Arc::from(&*group.name));
                }
            });
            let counts = names.into_iter().filter_map(|name| {
                let group = hub.groups.find(&name)?;
                Some((name, group.len() as u64, group.subscribers() as u64))
            });
            counts.collect::<Vec<_>>()
        });
        let mut all = BTreeMap::<Arc<str>, GroupCounts>::new();
        for (name, sessions, subscribers) in parts.await.into_iter().flatten() {
            let counts = all.entry(name).or_default();
            counts.sessions += sessions;
            counts.subscribers += subscribers;
        }
        all.into_iter().take(limit + 1).collect()
    }
}

/// A session whose queue is not empty.
#[derive(Clone, Debug)]
pub(crate) struct SlowSession {
    pub(crate) key: Arc<str>,
    pub(crate) transport: &'static str,
    pub(crate) queued_messages: usize,
    pub(crate) queued_bytes: usize,
    /// The time since it was opened, to the tick.
    pub(crate) age: Duration,
}

/// The most slow sessions in a list.
const MOST_SLOW: usize = 20;

/// Sessions that are looked at before others have their turn.
const SLICE: usize = 1024;

impl Hub {
    /// Returns the sessions of this node with the longest queues, longest first.
    pub(crate) async fn slow_sessions(self: &Rc<Self>) -> Vec<SlowSession> {
        let ask = |thread| self.mailboxes.ask(thread, |hub| async move { hub.slow_sessions_here().await });
        let others: Vec<_> = (0..self.node.threads()).filter(|&thread| thread != self.thread).map(ask).collect();
        let mut all = self.slow_sessions_here().await;
        for other in others {
            // A thread that has ended has no sessions.
            all.extend(other.await.unwrap_or_default());
        }
        keep_longest(&mut all);
        all
    }

    async fn slow_sessions_here(&self) -> Vec<SlowSession> {
        let mut longest = Vec::new();
        let mut from = (self.backlog.queued_bytes() > 0).then_some(0);
        while let Some(begin) = from {
            let (some, next) = self.some(begin, SLICE);
            longest.extend(some.iter().filter_map(|session| {
                let outbox = session.outbox.borrow();
                (!outbox.is_empty()).then(|| SlowSession {
                    key: Arc::clone(&session.key),
                    transport: session.framing.name(),
                    queued_messages: outbox.len(),
                    queued_bytes: outbox.bytes(),
                    age: self.clock.tick() * (self.clock.now() - session.began),
                })
            }));
            keep_longest(&mut longest);
            drop(some);
            from = next;
            if from.is_some() {
                tokio::task::yield_now().await;
            }
        }
        longest
    }
}

fn keep_longest(all: &mut Vec<SlowSession>) {
    all.sort_by(|a, b| b.queued_bytes.cmp(&a.queued_bytes).then_with(|| a.key.cmp(&b.key)));
    all.truncate(MOST_SLOW);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_each_other_whatever_the_order_of_the_names() {
        let all: Vec<Arc<str>> = (0..50).map(|number| Arc::from(format!("a{:02}", number * 37 % 50))).collect();
        let mut request = PageRequest { after: None, prefix: "a".into(), limit: 7 };
        let mut seen = Vec::new();
        loop {
            let mut page = BTreeSet::new();
            all.iter().chain(&[Arc::from("b"), Arc::from("")]).for_each(|name| request.add(&mut page, name));
            assert!(page.len() <= 8);
            let has_more = page.len() > 7;
            seen.extend(page.into_iter().take(7));
            if !has_more {
                break;
            }
            request.after = seen.last().map(|name| Box::from(&**name));
        }
        let mut sorted = all.clone();
        sorted.sort();
        assert_eq!(seen, sorted);
    }
}
