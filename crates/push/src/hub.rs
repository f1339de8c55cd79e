//! The hub of one thread: its sessions, from their opening to their end.
//!
//! `http` and `cluster` see the hub through [`Hub`] alone. Its methods are split by topic: `opening` and `connection`
//! serve a session, `fan_out` publishes, `control` finds and changes single sessions wherever they live, `polling`
//! answers polls, `pressure` slows publishers and frees memory, `missed` reports lost messages of other nodes,
//! `presence` tells clients who comes and goes, `sweep` checks time limits, `drain` ends the hub.

mod admission;
mod channels;
pub(crate) mod commands;
pub(crate) mod connection;
mod control;
mod drain;
mod fan_out;
pub(crate) mod lists;
pub(crate) mod missed;
pub(crate) mod opening;
mod polling;
pub(crate) mod presence;
mod pressure;
mod sweep;

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

use oroshi_websocket::CloseCode;
use slab::Slab;
use tokio::io::AsyncWrite;
use tokio::sync::Notify;

use crate::backlog::Backlog;
use crate::callbacks::Callbacks;
use crate::checks::Checks;
use crate::clock::Clock;
use crate::compression;
use crate::counts::{Counters, Counts};
use crate::hub::admission::Admission;
use crate::mailboxes::Mailboxes;
use crate::message::{Framing, Message};
use crate::node::Node;
use crate::plan::{Plan, SlowPolicy};
use crate::session::directory::Location;
use crate::session::group::Groups;
use crate::session::{Reason, Session, State};
use crate::writer::Writer;

/// The close code for a session whose key another connection took. It is private, as no registered code means this.
const REPLACED: CloseCode = CloseCode(4000);

/// The close code for a client that needs another token. The reason says why.
pub(crate) const TOKEN: CloseCode = CloseCode(4002);

/// One thread's part of the hub.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) node: Arc<Node>,
    pub(crate) mailboxes: Arc<Mailboxes<Hub>>,
    pub(crate) thread: u16,
    pub(crate) callbacks: Callbacks,
    pub(crate) counters: Counters,
    pub(crate) clock: Rc<Clock>,
    checks: Rc<Checks>,
    /// Notified when a session has ended.
    pub(crate) ended: Notify,
    pub(crate) draining: Cell<bool>,
    pub(crate) writer: Writer,
    backlog: Rc<Backlog>,
    groups: Groups,
    /// The sessions of each user.
    users: Groups,
    /// The subscriptions to all channels with a prefix, by prefix.
    patterns: Groups,
    /// How many subscriptions the sessions of this thread have.
    subscriptions: Cell<usize>,
    /// The sessions that hear who comes and goes in a channel.
    watchers: RefCell<presence::Watchers>,
    sessions: RefCell<Slab<Rc<Session>>>,
    generation: Cell<u32>,
    /// The number of the last publish on this thread.
    stamp: Cell<u32>,
    admission: RefCell<Option<Admission>>,
}

/// Why a session was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenError {
    /// The hub drains.
    Draining,
    /// There are as many sessions as there may be.
    Full,
    /// A page's session has the key, and the client is no page.
    HeldByPage,
}

impl Hub {
    /// Creates the hub of a thread, without sessions.
    pub(crate) fn new(node: Arc<Node>, mailboxes: Arc<Mailboxes<Hub>>, thread: u16) -> Self {
        let (clock, checks) = (Rc::new(Clock::new(&node.plan.limits)), Rc::<Checks>::default());
        let callbacks = Callbacks::new(&node.plan);
        let per_thread = |rate: u32| f64::from(rate) / f64::from(node.threads());
        let admission = node.plan.limits.connects_per_second.map(|rate| Admission::new(per_thread(rate)));
        let backlog = Rc::new(Backlog::new(Arc::clone(&node), thread));
        Hub {
            writer: Writer::new(Arc::clone(&node), Rc::clone(&clock), Rc::clone(&checks), Rc::clone(&backlog)),
            node,
            mailboxes,
            thread,
            callbacks,
            counters: Counters::default(),
            clock,
            checks,
            ended: Notify::new(),
            draining: Cell::new(false),
            backlog,
            groups: Groups::default(),
            users: Groups::of_users(),
            patterns: Groups::default(),
            subscriptions: Cell::new(0),
            watchers: RefCell::default(),
            sessions: RefCell::default(),
            generation: Cell::new(0),
            stamp: Cell::new(0),
            admission: RefCell::new(admission),
        }
    }

    /// Returns the plan that the hub runs.
    pub(crate) fn plan(&self) -> &Plan {
        &self.node.plan
    }

    /// Returns whether one more client may connect in this second, and counts it if so.
    pub(crate) fn admit(&self) -> bool {
        self.admission.borrow_mut().as_mut().is_none_or(Admission::admit)
    }

    /// Returns whether there are as many sessions as there may be. If so, it counts a rejected client.
    pub(crate) fn is_full(&self) -> bool {
        let is_full = self.node.sessions() >= self.plan().limits.sessions;
        if is_full {
            self.node.count_rejected();
        }
        is_full
    }

    /// Removes a session that is over from the directory, its groups and the counters, and calls the close callback.
    pub(crate) fn remove(self: &Rc<Self>, session: &Rc<Session>, reason: Reason) {
        let location = session.location;
        {
            let mut sessions = self.sessions.borrow_mut();
            if !sessions.get(location.slot as usize).is_some_and(|held| Rc::ptr_eq(held, session)) {
                return;
            }
            sessions.remove(location.slot as usize);
        }
        let reason = session.reason_or(reason);
        session.state.set(State::Over(reason));
        self.node.directory.remove(&session.key, location);
        self.groups.leave_all(session);
        self.users.leave_all(session);
        self.unsubscribe_all(session);
        let waiting = session.outbox.borrow().bytes();
        session.outbox.borrow_mut().abandon();
        self.backlog.shrunk(waiting, 0);
        self.counters.ended(session.framing, reason);
        if let Some(mut stream) = session.stream.borrow_mut().take() {
            if matches!(reason, Reason::Slow | Reason::Silent) {
                // Nobody reads what the kernel still holds.
                let _ = stream.reset_on_close();
            } else if stream.is_tls() {
                // The client has closed first: its close of TLS is answered (RFC 8446, section 6.1), if there is room.
                let _ = Pin::new(&mut stream).poll_shutdown(&mut Context::from_waker(Waker::noop()));
            }
        }
        self.node.leave();
        self.ended.notify_waiters();
        self.backlog.made_room();
        // For the backend, a session lives on under its key in another connection. kuiperbelt reported the end.
        let lives_on = reason == Reason::Replaced && !self.plan().compat_ekbo;
        if session.tells_close.get() && !lives_on && self.plan().callbacks.close.is_some() {
            let (hub, session) = (Rc::clone(self), Rc::clone(session));
            self.counters.closing.set(self.counters.closing.get() + 1);
            tokio::task::spawn_local(async move {
                // The backend gets its messages before its end.
                while session.is_forwarding() {
                    hub.ended.notified().await;
                }
                hub.callbacks.close(&session.key).await;
                hub.counters.closing.set(hub.counters.closing.get() - 1);
                hub.ended.notify_waiters();
            });
        }
    }

    /// Ends the session at this location, because another has its key now.
    pub(crate) fn replace(&self, location: Location) {
        if let Some(old) = self.at(location) {
            self.end(&old, Reason::Replaced, REPLACED, "another connection has this session's key");
        }
    }

    /// Ends a session gracefully: the writer writes its queue, then an end.
    pub(crate) fn end(&self, session: &Rc<Session>, reason: Reason, code: CloseCode, why: &str) {
        self.end_with(session, reason, code, why, None);
    }

    /// As [`end`](Self::end), with the time after which an `EventSource` reconnects.
    fn end_with(&self, session: &Rc<Session>, reason: Reason, code: CloseCode, why: &str, retry_ms: Option<u64>) {
        if !session.is_open() {
            return;
        }
        if session.framing == Framing::Poll {
            // The client polls the rest of its queue, and then learns of the end.
            session.rare(|rare| rare.reason = Some(reason));
            session.state.set(State::Ending);
            if session.outbox.borrow().is_empty() {
                session.cut_off(reason);
            }
            return session.wake();
        }
        if session.stream.borrow().is_none() {
            return session.cut_off(reason);
        }
        // kuiperbelt ends a connection without a close frame, unless the client closes.
        let is_mute = self.plan().compat_ekbo && !matches!(reason, Reason::Client | Reason::Violation);
        if !is_mute {
            self.writer.send_control(session, Message::end(session.framing, code, why, retry_ms));
        }
        session.rare(|rare| rare.reason = Some(reason));
        session.state.set(State::Ending);
        self.checks.soon(session.location.slot);
        self.writer.list_urgent(session);
    }

    /// Returns a new number for a publish on this thread.
    fn next_stamp(&self) -> u32 {
        let next = self.stamp.get().wrapping_add(1).max(1);
        self.stamp.set(next);
        next
    }

    /// Returns the session at this location, if it is still the same.
    pub(crate) fn at(&self, location: Location) -> Option<Rc<Session>> {
        let sessions = self.sessions.borrow();
        sessions.get(location.slot as usize).filter(|session| session.location == location).cloned()
    }

    /// Calls `visit` with every session of this thread.
    fn each(&self, mut visit: impl FnMut(&Rc<Session>)) {
        self.sessions.borrow().iter().for_each(|(_, session)| visit(session));
    }

    /// Returns how many sessions this thread has.
    fn len(&self) -> usize {
        self.sessions.borrow().len()
    }

    /// Returns the sessions of `count` slots from slot `from` on, and the next slot; `None` at the end.
    fn some(&self, from: usize, count: usize) -> (Vec<Rc<Session>>, Option<usize>) {
        let sessions = self.sessions.borrow();
        let to = from.saturating_add(count);
        let some = (from..to.min(sessions.capacity())).filter_map(|slot| sessions.get(slot)).cloned().collect();
        (some, (to < sessions.capacity()).then_some(to))
    }

    /// Adds a session of this thread to a group. Returns false if it is a member already.
    fn join_here(&self, session: &Rc<Session>, group: &str) -> bool {
        if session.speaks_channels() {
            return self.subscribe_for_backend(session, group);
        }
        self.groups.join(session, group, || self.rule_of(group))
    }

    /// Sets the user of a session that has none yet. Messages to users are treated as those to single sessions.
    fn set_user(&self, session: &Rc<Session>, user: &str) {
        self.users.join(session, user, || SlowPolicy::Refuse);
    }

    /// Returns the rule for slow sessions of a group.
    fn rule_of(&self, group: &str) -> SlowPolicy {
        self.plan().group_rule(group).map_or(SlowPolicy::default(), |rule| rule.slow)
    }

    /// Returns the rule for messages to all sessions.
    fn rule_of_all(&self) -> SlowPolicy {
        self.rule_of("")
    }

    /// Returns what this thread has counted.
    fn counts_here(&self) -> Counts {
        let (sessions, groups) = (self.len() as u64, self.groups.len() as u64);
        let counts = self.counters.counts(sessions, self.backlog.queued_bytes() as u64, groups);
        Counts { callbacks: self.callbacks.counts(), compression: compression::counts(), ..counts }
    }
}
