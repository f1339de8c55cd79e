//! Requests about single sessions and groups, wherever they live: on this node, or on another.

use std::rc::Rc;
use std::sync::Arc;

use oroshi_websocket::CloseCode;

use crate::counts::Counts;
use crate::hub::Hub;
use crate::message::Message;
use crate::session::channels::Member;
use crate::session::info::{Closed, SessionInfo};
use crate::session::{Reason, Session};

/// The most members of a channel in an answer to `presence`.
pub(crate) const MEMBERS: usize = 1000;

impl Hub {
    /// Returns the keys that no session has.
    pub(crate) async fn unknown(self: &Rc<Self>, keys: &[Box<str>]) -> Vec<Box<str>> {
        let mut unknown: Vec<_> = keys.iter().filter(|key| self.node.directory.find(key).is_none()).cloned().collect();
        if let Some(link) = &self.node.link {
            for key in std::mem::take(&mut unknown) {
                if link.find(&key).await.is_none() {
                    unknown.push(key);
                }
            }
        }
        unknown
    }

    /// Describes a session; `None` if no session has this key.
    pub(crate) async fn find(self: &Rc<Self>, key: &str) -> Option<SessionInfo> {
        match (self.find_here(key).await, &self.node.link) {
            (None, Some(link)) => link.find(key).await,
            (found, _) => found,
        }
    }

    /// Closes a session, with an optional last message. It gets no close callback, as the backend asked for this.
    pub(crate) async fn close(
        self: &Rc<Self>,
        key: &str,
        last: Option<Arc<Message>>,
        code: CloseCode,
        reason: &str,
    ) -> Closed {
        match (self.close_here(key, last.clone(), code, reason).await, &self.node.link) {
            (Closed::Unknown, Some(link)) => link.close(key, last, code, reason).await,
            (closed, _) => closed,
        }
    }

    /// Adds a session to a group. Returns false if no session has this key.
    pub(crate) async fn join(self: &Rc<Self>, key: &str, group: &str) -> bool {
        match (self.join_group_here(key, group).await, &self.node.link) {
            (false, Some(link)) => link.join(key, group).await,
            (joined, _) => joined,
        }
    }

    /// Removes a session from a group, if it is a member. Returns false if no session has this key.
    pub(crate) async fn leave(self: &Rc<Self>, key: &str, group: &str) -> bool {
        match (self.leave_group_here(key, group).await, &self.node.link) {
            (false, Some(link)) => link.leave(key, group).await,
            (left, _) => left,
        }
    }

    /// Returns how many sessions are in a group.
    pub(crate) async fn group_size(self: &Rc<Self>, group: &str) -> u64 {
        let here = self.group_size_here(group).await;
        match &self.node.link {
            Some(link) => here.saturating_add(link.group_size(group).await),
            None => here,
        }
    }

    /// Returns how many sessions a user has.
    pub(crate) async fn user_size(self: &Rc<Self>, user: &str) -> u64 {
        let here = self.user_size_here(user).await;
        match &self.node.link {
            Some(link) => here.saturating_add(link.user_size(user).await),
            None => here,
        }
    }

    /// Closes all sessions of a user, and returns how many. They get no close callback, as the backend asked for this.
    pub(crate) async fn close_user(self: &Rc<Self>, user: &str, code: CloseCode, reason: &str) -> u64 {
        let here = self.close_user_here(user, code, reason).await;
        match &self.node.link {
            Some(link) => here.saturating_add(link.close_user(user, code, reason).await),
            None => here,
        }
    }

    /// Returns how many sessions subscribe to a channel, and some of them, on all nodes that answer.
    pub(crate) async fn members(self: &Rc<Self>, channel: &str) -> (u64, Vec<Member>) {
        let (mut count, mut members) = self.members_here(channel).await;
        if let Some(link) = &self.node.link {
            link.add_members(channel, &mut count, &mut members).await;
            members.truncate(MEMBERS);
        }
        (count, members)
    }

    /// [`find`](Self::find) on this node.
    pub(crate) async fn find_here(self: &Rc<Self>, key: &str) -> Option<SessionInfo> {
        self.with(key, |hub, session| {
            let outbox = session.outbox.borrow();
            SessionInfo {
                transport: session.framing.name(),
                groups: session.group_names(),
                user: session.user(),
                queued_messages: outbox.len(),
                queued_bytes: outbox.bytes(),
                age: hub.clock.tick() * (hub.clock.now() - session.began),
            }
        })
        .await
    }

    /// [`close`](Self::close) on this node.
    pub(crate) async fn close_here(
        self: &Rc<Self>,
        key: &str,
        last: Option<Arc<Message>>,
        code: CloseCode,
        reason: &str,
    ) -> Closed {
        let reason = reason.to_owned();
        let closed = self.with(key, move |hub, session| {
            if !session.is_open() {
                return Closed::Already;
            }
            session.tells_close.set(false);
            if let Some(last) = last {
                hub.counters.direct_message();
                hub.writer.send_last(session, last);
            }
            hub.end(session, Reason::Closed, code, &reason);
            Closed::Done
        });
        closed.await.unwrap_or(Closed::Unknown)
    }

    /// [`join`](Self::join) on this node.
    pub(crate) async fn join_group_here(self: &Rc<Self>, key: &str, group: &str) -> bool {
        let group = group.to_owned();
        let joined = self.with(key, move |hub, session| {
            hub.join_here(session, &group);
        });
        joined.await.is_some()
    }

    /// [`leave`](Self::leave) on this node.
    pub(crate) async fn leave_group_here(self: &Rc<Self>, key: &str, group: &str) -> bool {
        let group = group.to_owned();
        let left = self.with(key, move |hub, session| {
            hub.groups.leave(session, &group);
            hub.unsubscribe_for_backend(session, &group);
        });
        left.await.is_some()
    }

    /// [`group_size`](Self::group_size) on this node.
    pub(crate) async fn group_size_here(self: &Rc<Self>, group: &str) -> u64 {
        let group: Arc<str> = group.into();
        let sizes = self.on_all(move |hub| hub.groups.find(&group).map_or(0, |group| group.len() as u64));
        sizes.await.into_iter().sum()
    }

    /// [`user_size`](Self::user_size) on this node.
    pub(crate) async fn user_size_here(self: &Rc<Self>, user: &str) -> u64 {
        let user: Arc<str> = user.into();
        let sizes = self.on_all(move |hub| hub.users.find(&user).map_or(0, |user| user.len() as u64));
        sizes.await.into_iter().sum()
    }

    /// [`close_user`](Self::close_user) on this node.
    pub(crate) async fn close_user_here(self: &Rc<Self>, user: &str, code: CloseCode, reason: &str) -> u64 {
        let (user, reason): (Arc<str>, Arc<str>) = (user.into(), reason.into());
        let closed = self.on_all(move |hub| {
            let mut sessions = Vec::new();
            if let Some(user) = hub.users.find(&user) {
                user.each(|session| sessions.push(Rc::clone(session)));
            }
            sessions.retain(|session| session.is_open());
            for session in &sessions {
                session.tells_close.set(false);
                hub.end(session, Reason::Closed, code, &reason);
            }
            sessions.len() as u64
        });
        closed.await.into_iter().sum()
    }

    /// Returns how many sessions subscribe to a channel on this node, and some of them.
    pub(crate) async fn members_here(self: &Rc<Self>, channel: &str) -> (u64, Vec<Member>) {
        let channel: Arc<str> = channel.into();
        let parts = self.on_all(move |hub| {
            let mut some = Vec::new();
            let Some(group) = hub.groups.find(&channel) else { return (0, some) };
            group.each_subscriber(None, |session| {
                if some.len() < MEMBERS {
                    some.extend(session.channels(|channels| channels.member()));
                }
            });
            (group.subscribers() as u64, some)
        });
        let mut members = (0, Vec::new());
        for (count, some) in parts.await {
            members.0 += count;
            members.1.extend(some);
        }
        members.1.truncate(MEMBERS);
        members
    }

    /// Returns what all threads of this node have counted.
    pub(crate) async fn counts(self: &Rc<Self>) -> Counts {
        self.on_all(Hub::counts_here).await.into_iter().sum()
    }

    /// Runs `work` with a session on its own thread; `None` if no session has this key.
    async fn with<T: Send + 'static>(
        self: &Rc<Self>,
        key: &str,
        work: impl FnOnce(&Hub, &Rc<Session>) -> T + Send + 'static,
    ) -> Option<T> {
        let location = self.node.directory.find(key)?;
        if location.thread == self.thread {
            return self.at(location).map(|session| work(self, &session));
        }
        let asked = self
            .mailboxes
            .ask(location.thread, move |hub| async move { hub.at(location).map(|session| work(&hub, &session)) });
        asked.await.ok().flatten()
    }

    /// Runs `look` on every thread of this node.
    pub(super) async fn on_all<T: Send + 'static>(
        self: &Rc<Self>,
        look: impl Fn(&Hub) -> T + Clone + Send + 'static,
    ) -> Vec<T> {
        let mut asked = Vec::new();
        for thread in (0..self.node.threads()).filter(|&thread| thread != self.thread) {
            let look = look.clone();
            asked.push(self.mailboxes.ask(thread, move |hub| async move { look(&hub) }));
        }
        let mut all = vec![look(self)];
        for one in asked {
            all.extend(one.await.ok());
        }
        all
    }
}
