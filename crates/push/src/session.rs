//! A session: its queue, its groups, its state. No task and no socket call lives here.
//!
//! [`Session`] and [`group::Group`] refer to each other: a group lists its members, and a session lists its groups so
//! that it can leave them. That circle is the data itself.

pub(crate) mod channels;
pub(crate) mod directory;
pub(crate) mod group;
pub(crate) mod info;
pub(crate) mod outbox;
pub(crate) mod tally;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};

use bytes::Bytes;
use oroshi_net::Stream;
use oroshi_websocket::Kind;

use crate::message::Framing;
use crate::rates::{Arrivals, Rates, Sender, What};
use crate::session::channels::Channels;
use crate::session::directory::Location;
use crate::session::group::Membership;
use crate::session::outbox::Outbox;

/// The hub stops reading a connection while this many of its messages wait for the backend.
const UPSTREAM_MESSAGES: usize = 16;

/// A connected or polling client. It belongs to one thread.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) key: Arc<str>,
    pub(crate) location: Location,
    pub(crate) framing: Framing,
    /// The tick in which it was opened.
    pub(crate) began: u32,
    pub(crate) state: Cell<State>,
    /// Whether the hub calls the close callback when it ends.
    pub(crate) tells_close: Cell<bool>,
    pub(crate) times: Times,
    pub(crate) outbox: RefCell<Outbox>,
    /// `None` before the end of the handshake, for polling sessions, and after the end.
    pub(crate) stream: RefCell<Option<Stream>>,
    /// Wakes its task, or the poll that waits for messages.
    waker: RefCell<Option<Waker>>,
    pub(crate) flags: Cell<Flags>,
    /// The number of the last publish that reached it on this thread.
    pub(crate) stamp: Cell<u32>,
    pub(crate) groups: RefCell<Vec<Membership>>,
    /// Set if it speaks the protocol of channels.
    channels: OnceCell<Box<RefCell<Channels>>>,
    /// State that few sessions need: messages for the backend, polling.
    pub(crate) rare: RefCell<Option<Box<RareState>>>,
}

/// The phases of a session's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It takes messages.
    Open,
    /// It takes no new messages. The hub writes the queue, and an end behind it.
    Ending,
    /// The end is written. The peer may close its side until this tick.
    Lingering(u32),
    /// Its task is about to remove it.
    Over(Reason),
}

/// Why a session ended, for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The client closed, or the connection broke.
    Client,
    /// The client violated the protocol.
    Violation,
    /// The client read too little for too long, or its queue overflowed.
    Slow,
    /// The client did not answer a ping, was silent for too long, or stopped polling.
    Silent,
    /// The backend or an operator closed it.
    Closed,
    /// Another connection took its key.
    Replaced,
    /// The hub drains.
    Drain,
    /// Messages of other nodes may be missing, and its rule is to disconnect then.
    Missed,
    /// Its token has expired.
    Expired,
}

/// The names of [`Reason`]'s variants in metrics, in their order.
pub(crate) const REASONS: [&str; 9] =
    ["client", "violation", "slow", "silent", "closed", "replaced", "drain", "missed", "expired"];

/// The writer's lists that contain a session, and the directions that stand still.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags {
    /// It is in the writer's urgent list.
    pub(crate) urgent: bool,
    /// It is in the writer's bulk list.
    pub(crate) bulk: bool,
    /// The socket is full; the session's task waits for room.
    pub(crate) blocked: bool,
    /// The hub does not read it now: enough of its messages wait for the backend.
    pub(crate) paused: bool,
}

/// Times in ticks of the thread's clock, but for the last; 0 is never.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// The last bytes from the client.
    pub(crate) received: Cell<u32>,
    /// The last bytes that the socket took; over TLS, that became records.
    pub(crate) written: Cell<u32>,
    /// The last ping that nothing has followed.
    pub(crate) pinged: Cell<u32>,
    /// The end of its token, in seconds since 1970.
    pub(crate) expires: Cell<u32>,
}

/// State that few sessions need.
#[derive(Debug, Default)]
pub(crate) struct RareState {
    /// Messages for the backend, oldest first.
    upstream: VecDeque<(Kind, Bytes)>,
    /// Whether a task sends `upstream` to the backend.
    pub(crate) is_forwarding: bool,
    pub(crate) polling: Option<Box<Polling>>,
    /// Why it ends, if that is known before its end.
    pub(crate) reason: Option<Reason>,
    /// What it has sent, for its limits.
    pub(crate) arrivals: Arrivals,
    /// The hash of its client's address, if addresses have limits.
    pub(crate) address: u64,
}

/// The state of a session that polls.
#[derive(Debug)]
pub(crate) struct Polling {
    /// Proves that a poll comes from the client that connected. Backends and logs know the key.
    pub(crate) token: Box<str>,
    /// How many batches of messages were handed out.
    pub(crate) batch: u64,
    /// How many polls came.
    pub(crate) turn: u64,
    /// Whether a poll waits for messages.
    pub(crate) waits: bool,
}

impl Session {
    /// Creates an open session without a connection, at tick `now`.
    pub(crate) fn new(key: Arc<str>, location: Location, framing: Framing, now: u32) -> Self {
        let times = Times { received: Cell::new(now), written: Cell::new(now), ..Times::default() };
        Session {
            key,
            location,
            framing,
            began: now,
            state: Cell::new(State::Open),
            tells_close: Cell::new(true),
            times,
            outbox: RefCell::default(),
            stream: RefCell::new(None),
            waker: RefCell::new(None),
            flags: Cell::default(),
            stamp: Cell::new(0),
            groups: RefCell::default(),
            channels: OnceCell::new(),
            rare: RefCell::new(None),
        }
    }

    /// Returns whether it takes messages.
    pub(crate) fn is_open(&self) -> bool {
        self.state.get() == State::Open
    }

    /// Returns whether a poll waits for messages.
    pub(crate) fn is_polled(&self) -> bool {
        self.rare.borrow().as_ref().is_some_and(|rare| rare.polling.as_ref().is_some_and(|polling| polling.waits))
    }

    /// Returns whether some of its messages are on their way to the backend.
    pub(crate) fn is_forwarding(&self) -> bool {
        self.rare.borrow().as_ref().is_some_and(|rare| rare.is_forwarding)
    }

    /// Changes its rare state, which is created on first use.
    pub(crate) fn rare<T>(&self, change: impl FnOnce(&mut RareState) -> T) -> T {
        change(self.rare.borrow_mut().get_or_insert_default())
    }

    /// Counts something that its client sends. An error has the place of the exceeded limit in `rates::LIMITS`.
    pub(crate) fn count(&self, rates: &Rates, what: What, cost: usize) -> Result<(), (usize, What)> {
        if !rates.limits(what) {
            return Ok(());
        }
        let groups = self.groups.borrow();
        let user = groups.iter().find(|of| of.group.is_user).map(|of| &*of.group.name);
        self.rare(|rare| {
            rates.check(Sender { arrivals: &rare.arrivals, user, address: rare.address }, what, cost as u64)
        })
    }

    /// Makes it a session that speaks the protocol of channels. It stays one.
    pub(crate) fn speak_channels(&self, channels: Channels) {
        let is_first = self.channels.set(Box::new(RefCell::new(channels))).is_ok();
        debug_assert!(is_first, "the session speaks the protocol already");
    }

    /// Returns whether it speaks the protocol of channels.
    pub(crate) fn speaks_channels(&self) -> bool {
        self.channels.get().is_some()
    }

    /// Reads or changes its channels; `None` if it does not speak the protocol. `change` must not publish.
    pub(crate) fn channels<T>(&self, change: impl FnOnce(&mut Channels) -> T) -> Option<T> {
        self.channels.get().map(|channels| change(&mut channels.borrow_mut()))
    }

    /// Returns the names of its groups, and of the channels and patterns that it subscribes to.
    pub(crate) fn group_names(&self) -> Vec<Box<str>> {
        let groups = self.groups.borrow();
        let mut names: Vec<_> = groups.iter().filter(|of| !of.group.is_user).map(|of| of.group.name.clone()).collect();
        drop(groups);
        self.channels(|channels| {
            for one in &channels.subscriptions {
                names.push(if one.is_pattern { format!("{}*", one.group.name).into() } else { one.group.name.clone() });
            }
        });
        names
    }

    /// Returns its user, if it is known.
    pub(crate) fn user(&self) -> Option<Box<str>> {
        self.groups.borrow().iter().find(|of| of.group.is_user).map(|of| of.group.name.clone())
    }

    /// Wakes its task, or the poll that waits for messages.
    pub(crate) fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Sets what [`wake`](Self::wake) wakes.
    pub(crate) fn wake_by(&self, waker: &Waker) {
        let mut held = self.waker.borrow_mut();
        if !held.as_ref().is_some_and(|held| held.will_wake(waker)) {
            *held = Some(waker.clone());
        }
    }

    /// Changes its flags.
    pub(crate) fn update_flags(&self, change: impl FnOnce(&mut Flags)) {
        let mut flags = self.flags.get();
        change(&mut flags);
        self.flags.set(flags);
    }

    /// Ends it at once. Its queue is lost, and counted as such.
    pub(crate) fn cut_off(&self, reason: Reason) {
        if !matches!(self.state.get(), State::Over(_)) {
            self.state.set(State::Over(self.reason_or(reason)));
            self.wake();
        }
    }

    /// Returns the first known reason of its end, else `reason`.
    pub(crate) fn reason_or(&self, reason: Reason) -> Reason {
        match self.state.get() {
            State::Over(reason) => reason,
            _ => self.known_reason().unwrap_or(reason),
        }
    }

    /// Returns why it ends, if that is known before its end.
    pub(crate) fn known_reason(&self) -> Option<Reason> {
        self.rare.borrow().as_ref().and_then(|rare| rare.reason)
    }

    /// Runs `work` unless the session ends first; `Err` has the reason. Only for sessions without a task.
    pub(crate) async fn unless_over<T>(&self, work: impl Future<Output = T>) -> Result<T, Reason> {
        let mut work = pin!(work);
        poll_fn(|context| {
            self.wake_by(context.waker());
            match self.state.get() {
                State::Over(reason) => Poll::Ready(Err(reason)),
                _ => work.as_mut().poll(context).map(Ok),
            }
        })
        .await
    }

    /// Queues a message for the backend. Returns whether the caller must start a task that sends the queue.
    pub(crate) fn push_upstream(&self, kind: Kind, data: Bytes) -> bool {
        let (start, full) = self.rare(|rare| {
            rare.upstream.push_back((kind, data));
            (!std::mem::replace(&mut rare.is_forwarding, true), rare.upstream.len() >= UPSTREAM_MESSAGES)
        });
        if full {
            self.update_flags(|flags| flags.paused = true);
        }
        start
    }

    /// Takes the next message for the backend. The connection is read again, as there is room.
    pub(crate) fn pop_upstream(&self) -> Option<(Kind, Bytes)> {
        let next = self.rare(|rare| {
            let next = rare.upstream.pop_front();
            rare.is_forwarding = next.is_some();
            if next.is_none() {
                // Most sessions send few messages: no room is kept for them.
                rare.upstream = VecDeque::new();
            }
            next
        });
        if self.flags.get().paused {
            self.update_flags(|flags| flags.paused = false);
            self.wake();
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A million idle sessions are mostly this, beside the kernel's sockets and tokio's.
    #[test]
    fn a_session_is_small() {
        assert!(size_of::<Session>() <= 328, "{} bytes", size_of::<Session>());
        assert!(size_of::<RareState>() <= 96, "{} bytes", size_of::<RareState>());
    }
}
