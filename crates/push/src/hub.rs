//! The hub of one core: its sessions, and what is sent to them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oroshi_core::ticks;
use oroshi_websocket::{CloseCode, Kind};
use slab::Slab;
use tokio::sync::Notify;

use crate::admission::Admission;
use crate::callbacks::Callbacks;
use crate::counts::{Counters, Counts};
use crate::directory::{OfPage, Place};
use crate::group::Groups;
use crate::message::{Framing, Message};
use crate::node::Node;
use crate::outbox::{Bounds, Pushed};
use crate::plan::{Plan, Slow};
use crate::pressure::Pressure;
use crate::session::{Connection, Reason, Serving, Session, State, enqueue_upstream, next_upstream};
use crate::tally::{Delivery, Outcome};

/// So many sessions of a large fan-out are written to before others have their turn: half a millisecond or so.
const SLICE: usize = 128;

/// A group up to this size is written to at once, as a single session is.
const SMALL: usize = 32;

/// One core's part of the hub.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) node: Arc<Node>,
    pub(crate) core: u16,
    pub(crate) callbacks: Callbacks,
    pub(crate) counters: Counters,
    pub(crate) groups: Groups,
    /// Rung when a session that had no room has some.
    pub(crate) room: Notify,
    /// How many publishes wait for that.
    pub(crate) waiting_for_room: Cell<usize>,
    /// Rung when a session has gone.
    pub(crate) gone: Notify,
    pub(crate) draining: Cell<bool>,
    sessions: RefCell<Slab<Rc<Session>>>,
    generation: Cell<u32>,
    /// The last publish.
    stamp: Cell<u32>,
    /// The bytes that wait for sessions.
    queued: Cell<usize>,
    /// For so many sessions something waits.
    waiting: Cell<usize>,
    pub(crate) pressure: Pressure,
    urgent: RefCell<Vec<Rc<Session>>>,
    bulk: RefCell<VecDeque<Rc<Session>>>,
    /// Rung when one of these is no longer empty.
    work: Notify,
    now: Cell<u32>,
    tick: Duration,
    admission: RefCell<Option<Admission>>,
}

/// Why a session was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoSession {
    /// The hub is about to end.
    Draining,
    /// There are as many as there may be.
    Full,
    /// A page's session has the key, and this is no page's.
    OfPage,
}

impl Hub {
    pub(crate) fn new(node: Arc<Node>, core: u16) -> Self {
        let (tick, callbacks) = (crate::sweep::tick(&node.plan.limits), Callbacks::new(&node.plan));
        let per_core = |rate: u32| f64::from(rate) / f64::from(node.cores());
        let admission = node.plan.limits.connects_per_second.map(|rate| Admission::new(per_core(rate)));
        Hub {
            node,
            core,
            callbacks,
            counters: Counters::default(),
            groups: Groups::default(),
            room: Notify::new(),
            waiting_for_room: Cell::new(0),
            gone: Notify::new(),
            draining: Cell::new(false),
            sessions: RefCell::default(),
            generation: Cell::new(0),
            stamp: Cell::new(0),
            queued: Cell::new(0),
            waiting: Cell::new(0),
            pressure: Pressure::default(),
            urgent: RefCell::default(),
            bulk: RefCell::default(),
            work: Notify::new(),
            now: Cell::new(1),
            tick,
            admission: RefCell::new(admission),
        }
    }

    /// What it is to be.
    pub(crate) fn plan(&self) -> &Plan {
        &self.node.plan
    }

    /// Whether one more client may connect in this second.
    pub(crate) fn admit(&self) -> bool {
        self.admission.borrow_mut().as_mut().is_none_or(Admission::admit)
    }

    /// Whether there are as many sessions as there may be. Whoever asks is turned away for it.
    pub(crate) fn is_full(&self) -> bool {
        let is_full = self.node.sessions() >= self.plan().limits.sessions;
        if is_full {
            self.node.turn_away();
        }
        is_full
    }

    /// Opens a session under this key, with its first messages; whoever had the key before is replaced. What is published from here on
    /// reaches it, once it has a stream. `of_page`: a page has asked for it, whose origin was looked at.
    pub(crate) fn open(
        self: &Rc<Self>,
        key: &str,
        framing: Framing,
        of_page: bool,
        hello: impl FnOnce(&Arc<str>) -> Vec<Message>,
        groups: &[String],
    ) -> Result<Rc<Session>, NoSession> {
        if self.draining.get() {
            return Err(NoSession::Draining);
        }
        if self.is_full() {
            return Err(NoSession::Full);
        }
        self.generation.set(self.generation.get().wrapping_add(1));
        let (session, old) = {
            let mut sessions = self.sessions.borrow_mut();
            let entry = sessions.vacant_entry();
            let (slot, generation) = (entry.key() as u32, self.generation.get());
            let place = Place { core: self.core, slot, generation, of_page };
            let session = Rc::new(Session::new(key.into(), place, framing, self.now.get()));
            let old = self.node.directory.insert(&session.key, place).map_err(|OfPage| NoSession::OfPage)?;
            entry.insert(Rc::clone(&session));
            (session, old)
        };
        self.counters.opened(framing);
        // What other cores publish to it from now on comes to this one's turn after these.
        for message in hello(&session.key) {
            self.say(&session, message);
        }
        if let Some(old) = old {
            self.node.tell(old.core, Box::new(move |hub| hub.replace(old)));
        }
        if let Some(link) = &self.node.cluster {
            link.claim(&session.key);
        }
        for group in groups {
            self.join_here(&session, group);
        }
        self.tell_load();
        Ok(session)
    }

    /// Serves the session's connection from here on, in a task of its own.
    pub(crate) fn serve(self: &Rc<Self>, session: &Rc<Session>, connection: Connection) {
        let Connection { stream, ahead, place } = connection;
        *session.stream.borrow_mut() = Some(stream);
        session.flush(self);
        let (hub, session) = (Rc::clone(self), Rc::clone(session));
        tokio::task::spawn_local(async move {
            let _place = place;
            let reason = Serving::new(Rc::clone(&hub), Rc::clone(&session), ahead).await;
            hub.remove(&session, reason);
        });
    }

    /// Ends the life of a session that is over: it is nowhere any more.
    pub(crate) fn remove(self: &Rc<Self>, session: &Rc<Session>, reason: Reason) {
        let place = session.place;
        {
            let mut sessions = self.sessions.borrow_mut();
            if !sessions.get(place.slot as usize).is_some_and(|held| Rc::ptr_eq(held, session)) {
                return;
            }
            sessions.remove(place.slot as usize);
        }
        let reason = session.reason_or(reason);
        session.state.set(State::Over(reason));
        self.node.directory.remove(&session.key, place);
        self.groups.leave_all(session);
        let waiting = session.outbox.borrow().bytes();
        session.outbox.borrow_mut().abandon();
        self.unqueue(waiting, 0);
        self.counters.ended(session.framing, reason);
        if let Some(stream) = session.stream.borrow_mut().take()
            && matches!(reason, Reason::Slow | Reason::Silent)
        {
            // Nobody reads what the kernel still holds.
            let _ = stream.reset_on_close();
        }
        self.tell_load();
        self.gone.notify_waiters();
        self.made_room();
        // Where another connection has its key, the session lives on, as far as the backend is concerned; kuiperbelt told it of the end.
        let lives_on = reason == Reason::Replaced && !self.plan().compat_ekbo;
        if session.tells_close.get() && !lives_on && self.plan().callbacks.close.is_some() {
            let (hub, session) = (Rc::clone(self), Rc::clone(session));
            self.counters.closing.set(self.counters.closing.get() + 1);
            tokio::task::spawn_local(async move {
                // What it said comes before its end.
                while session.rare.borrow().as_ref().is_some_and(|rare| rare.carrying) {
                    hub.gone.notified().await;
                }
                hub.callbacks.close(&session.key).await;
                hub.counters.closing.set(hub.counters.closing.get() - 1);
                hub.gone.notify_waiters();
            });
        }
    }

    /// Ends the session at this place, whose key another has now.
    pub(crate) fn replace(&self, place: Place) {
        if let Some(old) = self.at(place) {
            self.end(&old, Reason::Replaced, REPLACED, "another connection has this session's key");
        }
    }

    /// Ends a session in good form: what waits for it is written, and an end behind it.
    pub(crate) fn end(&self, session: &Rc<Session>, reason: Reason, code: CloseCode, why: &str) {
        self.end_with(session, reason, code, why, None);
    }

    /// As [`end`](Self::end), with a time after which an `EventSource` is to come back.
    pub(crate) fn end_with(
        &self,
        session: &Rc<Session>,
        reason: Reason,
        code: CloseCode,
        why: &str,
        retry_ms: Option<u64>,
    ) {
        if !session.is_open() {
            return;
        }
        if session.framing == Framing::Poll {
            // Whoever polls gets what waits, and then the word that it is over.
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
        // kuiperbelt ends a connection without a word, unless the client closes.
        let mute = self.plan().compat_ekbo && !matches!(reason, Reason::Client | Reason::Violation);
        if !mute {
            self.say(session, Message::end(session.framing, code, why, retry_ms));
        }
        session.rare(|rare| rare.reason = Some(reason));
        session.state.set(State::Ending);
        self.list_urgent(session);
    }

    /// Sends a session something of the hub's own.
    pub(crate) fn say(&self, session: &Rc<Session>, message: Message) {
        let delivery = Rc::new(Delivery::new(Arc::new(message)));
        delivery.matched();
        self.queue(session, &delivery, Slow::Refuse, true);
        self.list_urgent(session);
    }

    /// Puts a last message into a session's queue, whoever else is slow.
    pub(crate) fn send_last(&self, session: &Rc<Session>, message: Arc<Message>) {
        let delivery = Rc::new(Delivery::new(message));
        delivery.matched();
        self.queue(session, &delivery, Slow::Refuse, true);
    }

    /// A session said something.
    pub(crate) fn hear(self: &Rc<Self>, session: &Rc<Session>, kind: Kind, data: Bytes) {
        self.counters.heard(data.len());
        if self.plan().echo {
            let delivery = Rc::new(Delivery::new(Arc::new(Message::data(kind, data))));
            self.retry(session, &delivery, Slow::Disconnect);
            return self.list_urgent(session);
        }
        if self.plan().callbacks.receive.is_none() || !enqueue_upstream(session, kind, data) {
            return;
        }
        let (hub, session) = (Rc::clone(self), Rc::clone(session));
        tokio::task::spawn_local(async move {
            while let Some((kind, data)) = next_upstream(&session) {
                hub.callbacks.receive(&session.key, kind, data).await;
            }
            hub.gone.notify_waiters();
        });
    }

    /// Puts a message into a session's queue, unless this publish has been there. What does not fit for now is added to `full`.
    pub(crate) fn offer(&self, session: &Rc<Session>, delivery: &Rc<Delivery>, slow: Slow, stamp: u32) -> bool {
        if session.stamp.replace(stamp) == stamp {
            return true;
        }
        delivery.matched();
        self.retry(session, delivery, slow)
    }

    /// Puts a message that was counted for this session into its queue. False if it does not fit for now.
    pub(crate) fn retry(&self, session: &Rc<Session>, delivery: &Rc<Delivery>, slow: Slow) -> bool {
        if !session.is_open() {
            delivery.settle(Outcome::Closed);
            return true;
        }
        match self.queue(session, delivery, slow, false) {
            Pushed::Queued => {}
            Pushed::Full => return false,
            Pushed::TooSlow => {
                delivery.settle(Outcome::Closed);
                session.cut_off(Reason::Slow);
            }
        }
        true
    }

    /// `always`: whatever waits already. For first and last words, of which a session has a few.
    fn queue(&self, session: &Rc<Session>, delivery: &Rc<Delivery>, slow: Slow, always: bool) -> Pushed {
        let limits = &self.plan().limits;
        let mut outbox = session.outbox.borrow_mut();
        let before = outbox.bytes();
        let bounds = if always {
            Bounds { bytes: usize::MAX, messages: usize::MAX }
        } else {
            let bytes = self.bound_of(before, delivery.message.frame(session.framing).len());
            Bounds { bytes, messages: limits.session_queue_messages }
        };
        let pushed = outbox.push(delivery, session.framing, slow, bounds);
        self.requeue(before, outbox.bytes());
        if session.listed.get().blocked || session.framing == Framing::Poll || session.stream.borrow().is_none() {
            outbox.tried();
            if session.framing == Framing::Poll {
                session.wake();
            }
        }
        pushed
    }

    /// Has a session written to before those of large fan-outs.
    pub(crate) fn list_urgent(&self, session: &Rc<Session>) {
        if !session.listed.get().urgent {
            session.list(|listed| listed.urgent = true);
            self.urgent.borrow_mut().push(Rc::clone(session));
            self.work.notify_one();
        }
    }

    /// Has a session written to in its turn.
    pub(crate) fn list_bulk(&self, session: &Rc<Session>) {
        let listed = session.listed.get();
        if !listed.bulk && !listed.blocked {
            session.list(|listed| listed.bulk = true);
            self.bulk.borrow_mut().push_back(Rc::clone(session));
            self.work.notify_one();
        }
    }

    /// Whether a fan-out to so many is a small one.
    pub(crate) fn is_small(count: usize) -> bool {
        count <= SMALL
    }

    /// Writes to the sessions that have something waiting, for as long as the hub lives: one write each per turn, with all that has
    /// gathered. Large fan-outs go in slices, and what is for few goes between them.
    pub(crate) async fn write_out(&self) {
        loop {
            self.work.notified().await;
            loop {
                let urgent = std::mem::take(&mut *self.urgent.borrow_mut());
                for session in urgent {
                    session.list(|listed| listed.urgent = false);
                    session.flush(self);
                }
                for _ in 0..SLICE {
                    let Some(session) = self.bulk.borrow_mut().pop_front() else { break };
                    session.list(|listed| listed.bulk = false);
                    session.flush(self);
                }
                self.tell_load();
                if self.bulk.borrow().is_empty() && self.urgent.borrow().is_empty() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
    }

    /// A session's queue went from `before` bytes to `after`, as something was taken from it.
    pub(crate) fn unqueue(&self, before: usize, after: usize) {
        self.requeue(before, after);
        if after < before {
            self.made_room();
        }
    }

    /// A session that could take no more can.
    pub(crate) fn made_room(&self) {
        if self.waiting_for_room.get() > 0 {
            self.room.notify_waiters();
        }
    }

    /// A number for a publish on this core.
    pub(crate) fn next_stamp(&self) -> u32 {
        let next = self.stamp.get().wrapping_add(1).max(1);
        self.stamp.set(next);
        next
    }

    /// The session that is at this place, if it is still the same.
    pub(crate) fn at(&self, place: Place) -> Option<Rc<Session>> {
        let sessions = self.sessions.borrow();
        sessions.get(place.slot as usize).filter(|session| session.place == place).cloned()
    }

    /// Looks at every session.
    pub(crate) fn each(&self, mut look: impl FnMut(&Rc<Session>)) {
        self.sessions.borrow().iter().for_each(|(_, session)| look(session));
    }

    /// How many sessions there are on this core.
    pub(crate) fn len(&self) -> usize {
        self.sessions.borrow().len()
    }

    /// Some of the sessions, from a slot on, and the slot to go on from; `None` at the end.
    pub(crate) fn some(&self, from: usize, count: usize) -> (Vec<Rc<Session>>, Option<usize>) {
        let sessions = self.sessions.borrow();
        let to = from.saturating_add(count);
        let some = (from..to.min(sessions.capacity())).filter_map(|slot| sessions.get(slot).cloned()).collect();
        (some, (to < sessions.capacity()).then_some(to))
    }

    pub(crate) fn join_here(&self, session: &Rc<Session>, group: &str) -> bool {
        self.groups.join(session, group, || self.plan().group_rule(group).map_or(Slow::default(), |rule| rule.slow))
    }

    pub(crate) fn counts_here(&self) -> Counts {
        let counts = self.counters.counts(self.len() as u64, self.queued.get() as u64, self.groups.len() as u64);
        Counts { callbacks: self.callbacks.counts(), ..counts }
    }

    /// The tick, as of the last sweep.
    pub(crate) fn now(&self) -> u32 {
        self.now.get()
    }

    /// The first tick that is certainly so much later.
    pub(crate) fn after(&self, time: Duration) -> u32 {
        self.now.get().saturating_add(self.ticks(time)).saturating_add(1)
    }

    /// A time in ticks, rounded up.
    pub(crate) fn ticks(&self, time: Duration) -> u32 {
        u32::try_from(ticks(time, self.tick)).unwrap_or(u32::MAX)
    }

    /// How long a tick is.
    pub(crate) fn tick(&self) -> Duration {
        self.tick
    }

    pub(crate) fn advance(&self) {
        self.now.set(self.now.get().saturating_add(1));
    }

    /// A session's queue went from `before` bytes to `after`. The other cores are told at once: all of them share what may wait.
    fn requeue(&self, before: usize, after: usize) {
        let queued = (self.queued.get() + after).saturating_sub(before);
        self.queued.set(queued);
        self.node.set_queued_bytes(self.core, queued);
        if (before == 0) != (after == 0) {
            let waiting = self.waiting.get();
            self.waiting.set(if after > 0 { waiting + 1 } else { waiting.saturating_sub(1) });
            self.node.set_waiting(self.core, self.waiting.get());
        }
    }

    fn tell_load(&self) {
        self.node.set_sessions(self.core, self.len());
    }
}

/// For whoever is replaced: a code of the private range, as none of the registered ones means this.
const REPLACED: CloseCode = CloseCode(4000);
