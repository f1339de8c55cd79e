//! A session, and the task that reads its connection.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use oroshi_core::{Incoming, Scratch};
use oroshi_net::Stream;
use oroshi_websocket::{CloseCode, Decoder, Event, Kind, Limits, Role};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::directory::Place;
use crate::group::Membership;
use crate::hub::Hub;
use crate::message::{Framing, Message};
use crate::outbox::{Flushed, Outbox};

/// What a client sends before its session is agreed to is kept up to this, bytes.
const AHEAD: usize = 64 * 1024;

/// With this many messages of a session waiting for the backend, its connection is not read on.
const UPSTREAM_MESSAGES: usize = 16;

/// A client that is connected, or polls. It belongs to a core.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) key: Arc<str>,
    pub(crate) place: Place,
    pub(crate) framing: Framing,
    /// The tick in which it began.
    pub(crate) began: u32,
    pub(crate) state: Cell<State>,
    /// Whether the backend is to be told of its end.
    pub(crate) tells_close: Cell<bool>,
    pub(crate) times: Times,
    pub(crate) outbox: RefCell<Outbox>,
    /// None before the handshake's end, for sessions that poll, and once it is over.
    pub(crate) stream: RefCell<Option<Stream>>,
    /// What wakes its task, or whoever polls for it.
    waker: RefCell<Option<Waker>>,
    /// Whether it stands in one of the hub's lists of sessions to flush.
    pub(crate) listed: Cell<Listed>,
    /// The last publish that looked at it.
    pub(crate) stamp: Cell<u32>,
    pub(crate) groups: RefCell<Vec<Membership>>,
    /// What seldom is: messages for the backend, the state of polling.
    pub(crate) rare: RefCell<Option<Box<Rare>>>,
}

/// How far a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It takes messages.
    Open,
    /// It takes no more; what waits is written, with an end behind it.
    Ending,
    /// The end is written; until this tick the peer may close its side.
    Lingering(u32),
    /// It is to go now.
    Over(Reason),
}

/// Why a session ended, for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The client closed, or the connection broke.
    Client,
    /// It broke the protocol.
    Violation,
    /// It took too little for too long, or its queue ran over.
    Slow,
    /// It did not answer a ping, was silent for too long, or stayed away from polling.
    Silent,
    /// The backend or an operator closed it.
    Closed,
    /// Another connection has its key now.
    Replaced,
    /// The hub is going.
    Drain,
    /// What other nodes published for it may not have come, and its rule is to begin afresh.
    Missed,
}

/// The hub's lists that a session can stand in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) urgent: bool,
    pub(crate) bulk: bool,
    /// The socket takes no more for now: its task waits for that.
    pub(crate) blocked: bool,
    /// What it says is not read for now: the backend has enough to do.
    pub(crate) deaf: bool,
}

/// Times in ticks of the hub's sweep; 0 is never.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// It last said something.
    pub(crate) heard: Cell<u32>,
    /// It last took something.
    pub(crate) took: Cell<u32>,
    /// It was pinged, and has said nothing since.
    pub(crate) pinged: Cell<u32>,
}

/// The state that most sessions do without.
#[derive(Debug, Default)]
pub(crate) struct Rare {
    pub(crate) upstream: VecDeque<(Kind, Bytes)>,
    /// Whether a task carries `upstream` to the backend.
    pub(crate) carrying: bool,
    pub(crate) poll: Option<crate::http::poll::Polling>,
    /// Why it ends, once that is known before its end.
    pub(crate) reason: Option<Reason>,
}

impl Session {
    pub(crate) fn new(key: Arc<str>, place: Place, framing: Framing, now: u32) -> Self {
        let times = Times { heard: Cell::new(now), took: Cell::new(now), pinged: Cell::new(0) };
        Session {
            key,
            place,
            framing,
            began: now,
            state: Cell::new(State::Open),
            tells_close: Cell::new(true),
            times,
            outbox: RefCell::default(),
            stream: RefCell::new(None),
            waker: RefCell::new(None),
            listed: Cell::default(),
            stamp: Cell::new(0),
            groups: RefCell::default(),
            rare: RefCell::new(None),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state.get() == State::Open
    }

    /// Whether a client waits for the answer to a poll.
    pub(crate) fn is_polled(&self) -> bool {
        self.rare.borrow().as_ref().is_some_and(|rare| rare.poll.as_ref().is_some_and(|polling| polling.waits))
    }

    /// Changes what seldom is.
    pub(crate) fn rare<T>(&self, change: impl FnOnce(&mut Rare) -> T) -> T {
        change(self.rare.borrow_mut().get_or_insert_default())
    }

    /// Has its task, or whoever polls for it, look at it.
    pub(crate) fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    pub(crate) fn wake_by(&self, waker: &Waker) {
        let mut held = self.waker.borrow_mut();
        if !held.as_ref().is_some_and(|held| held.will_wake(waker)) {
            *held = Some(waker.clone());
        }
    }

    pub(crate) fn list(&self, change: impl FnOnce(&mut Listed)) {
        let mut listed = self.listed.get();
        change(&mut listed);
        self.listed.set(listed);
    }

    /// Ends it at once: what waits is lost, and counted so.
    pub(crate) fn cut_off(&self, reason: Reason) {
        if !matches!(self.state.get(), State::Over(_)) {
            self.state.set(State::Over(self.reason_or(reason)));
            self.wake();
        }
    }

    /// Why it ends: what was known first, else this.
    pub(crate) fn reason_or(&self, reason: Reason) -> Reason {
        match self.state.get() {
            State::Over(reason) => reason,
            _ => self.rare.borrow().as_ref().and_then(|rare| rare.reason).unwrap_or(reason),
        }
    }

    /// Does something, unless the session ends before that. `Err`: why it has. For a session that has no task of its own yet.
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

    /// Writes what waits, as far as the socket takes it now.
    pub(crate) fn flush(&self, hub: &Hub) {
        let mut stream = self.stream.borrow_mut();
        let Some(stream) = &mut *stream else { return self.outbox.borrow_mut().tried() };
        if self.listed.get().blocked {
            // Its task goes on when there is room; it would be asked in vain here.
            return self.outbox.borrow_mut().tried();
        }
        let flushed = self.write_out(hub, |slices| match slices {
            // send(2) is cheaper than writev(2), which goes through the file layer.
            [one] => stream.try_write(one),
            more => stream.try_write_vectored(more),
        });
        if flushed != Some(Flushed::Empty) {
            self.wake();
        }
    }

    /// Goes on writing once the socket has room.
    fn poll_flush(&self, hub: &Hub, context: &mut Context<'_>) {
        let mut stream = self.stream.borrow_mut();
        let Some(stream) = &mut *stream else { return };
        self.write_out(hub, |slices| {
            let stream = Pin::new(&mut *stream);
            let polled = match slices {
                [one] => stream.poll_write(context, one),
                more => stream.poll_write_vectored(context, more),
            };
            match polled {
                Poll::Ready(result) => result,
                Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
            }
        });
    }

    fn write_out(&self, hub: &Hub, mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>) -> Option<Flushed> {
        let mut outbox = self.outbox.borrow_mut();
        let (before, mut taken) = (outbox.bytes(), 0);
        let flushed = outbox.flush(self.framing, |slices| write(slices).inspect(|count| taken += count));
        hub.unqueue(before, outbox.bytes());
        // A part of a message counts, and so does the moment in which it begins to wait.
        let was_blocked = self.listed.get().blocked;
        if taken > 0 || !was_blocked {
            self.times.took.set(hub.now());
        }
        match flushed {
            Ok(flushed) => {
                self.list(|listed| listed.blocked = flushed == Flushed::Blocked);
                if flushed == Flushed::Empty && self.state.get() == State::Ending {
                    let reason = self.rare.borrow().as_ref().and_then(|rare| rare.reason);
                    self.state.set(match reason {
                        // It closed first and has its answer: the server is to close now (RFC 6455 section 7.1.1).
                        Some(Reason::Client) => State::Over(Reason::Client),
                        _ => State::Lingering(hub.after(hub.plan().limits.close)),
                    });
                    drop(outbox);
                    self.wake();
                }
                Some(flushed)
            }
            Err(_) => {
                drop(outbox);
                self.cut_off(Reason::Client);
                None
            }
        }
    }
}

/// What a session's connection consists of when its request has been answered.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    /// What the peer has sent behind its request.
    pub(crate) ahead: Vec<u8>,
    /// Its place among the clients' connections, if they are bounded.
    pub(crate) place: Option<oroshi_server::Place>,
}

impl Connection {
    /// Ready once the client has left. What it says before that is kept, up to a bound (beyond it nobody looks), or thrown away.
    pub(crate) fn poll_left(&mut self, keeps: bool, context: &mut Context<'_>) -> Poll<()> {
        while self.ahead.len() < AHEAD {
            let mut scratch = Scratch::take();
            let mut into = ReadBuf::new(&mut scratch);
            match Pin::new(&mut self.stream).poll_read(context, &mut into) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) if !into.filled().is_empty() => {}
                Poll::Ready(_) => return Poll::Ready(()),
            }
            if keeps {
                self.ahead.extend_from_slice(into.filled());
            }
        }
        Poll::Pending
    }
}

/// Serves a session's connection to its end.
pub(crate) struct Serving {
    hub: Rc<Hub>,
    session: Rc<Session>,
    decoder: Decoder,
    /// What came of a frame that is not complete.
    kept: Incoming,
    /// Whether the peer was told that no more comes.
    shut: bool,
}

impl Serving {
    /// `ahead` is what the peer sent behind its request.
    pub(crate) fn new(hub: Rc<Hub>, session: Rc<Session>, ahead: Vec<u8>) -> Self {
        Serving { hub, session, decoder: Decoder::new(Role::Server), kept: Incoming::from_bytes(ahead), shut: false }
    }
}

impl Future for Serving {
    type Output = Reason;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reason> {
        let serving = self.get_mut();
        let session = Rc::clone(&serving.session);
        session.wake_by(context.waker());
        if session.listed.get().blocked {
            session.poll_flush(&serving.hub, context);
        }
        if !serving.kept.is_empty() {
            serving.take_kept();
        }
        // Bounded, so that a peer that never stops talking leaves the others their turn.
        for turn in 0.. {
            if let State::Over(reason) = session.state.get() {
                return Poll::Ready(reason);
            }
            serving.shut_down();
            if session.listed.get().deaf || serving.poll_read(context).is_pending() {
                break;
            }
            if turn == 8 {
                context.waker().wake_by_ref();
                break;
            }
        }
        if let State::Over(reason) = session.state.get() {
            return Poll::Ready(reason);
        }
        Poll::Pending
    }
}

impl Serving {
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let session = Rc::clone(&self.session);
        let mut scratch = Scratch::take();
        let mut into = ReadBuf::new(&mut scratch);
        let polled = match &mut *session.stream.borrow_mut() {
            Some(stream) => Pin::new(stream).poll_read(context, &mut into),
            None => return Poll::Pending,
        };
        match polled {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(())) if !into.filled().is_empty() => {}
            Poll::Ready(_) => {
                session.cut_off(Reason::Client);
                return Poll::Ready(());
            }
        }
        session.times.heard.set(self.hub.now());
        session.times.pinged.set(0);
        if session.framing == Framing::WebSocket {
            self.decode(into.filled_mut());
        }
        Poll::Ready(())
    }

    /// What came before there was a session.
    fn take_kept(&mut self) {
        if self.session.framing != Framing::WebSocket {
            self.kept.clear();
            return;
        }
        if self.session.listed.get().deaf {
            return;
        }
        self.decode(&mut []);
    }

    /// Decodes what came, and keeps what is incomplete.
    fn decode(&mut self, came: &mut [u8]) {
        let mut kept = std::mem::take(&mut self.kept);
        kept.decode_mut(came, |input| self.decode_events(input));
        self.kept = kept;
    }

    fn decode_events(&mut self, input: &mut &mut [u8]) {
        let limits = Limits { message_bytes: self.hub.plan().limits.message_bytes };
        loop {
            match self.decoder.decode(&limits, input) {
                Ok(None) => return,
                // After the end was sent, only the answer to it counts.
                Ok(Some(Event::Close { code, .. })) => {
                    let reason = self.session.rare.borrow().as_ref().and_then(|rare| rare.reason);
                    match self.session.state.get() {
                        State::Lingering(_) => self.session.cut_off(reason.unwrap_or(Reason::Client)),
                        _ => self.hub.end(
                            &self.session,
                            reason.unwrap_or(Reason::Client),
                            code.unwrap_or(CloseCode::NORMAL),
                            "",
                        ),
                    }
                    return;
                }
                Ok(Some(_)) if !self.session.is_open() => {}
                // Who does not read gets no more of them: one answer for several pings will do (RFC 6455 section 5.5.3).
                Ok(Some(Event::Ping(_))) if self.session.listed.get().blocked => {}
                Ok(Some(Event::Ping(payload))) => self.hub.say(&self.session, Message::pong(payload)),
                Ok(Some(Event::Pong(_))) => {}
                Ok(Some(Event::Message { kind, data })) => {
                    let data = Bytes::copy_from_slice(&data);
                    self.hub.hear(&self.session, kind, data);
                }
                Err(violation) => {
                    *input = &mut [];
                    self.hub.end(&self.session, Reason::Violation, violation.code(), &violation.to_string());
                    return;
                }
            }
        }
    }

    /// Once the end is written, tells the peer's kernel that no more comes.
    fn shut_down(&mut self) {
        if self.shut || !matches!(self.session.state.get(), State::Lingering(_)) {
            return;
        }
        self.shut = true;
        // For WebSocket the client is to close first (RFC 6455 section 7.1.1 has the server do it: its close frame and FIN go together).
        if let Some(stream) = &*self.session.stream.borrow() {
            let _ = rustix::net::shutdown(stream, rustix::net::Shutdown::Write);
        }
    }
}

/// Takes a message for the backend; what carries it is the hub's.
pub(crate) fn enqueue_upstream(session: &Session, kind: Kind, data: Bytes) -> bool {
    let (start, full) = session.rare(|rare| {
        rare.upstream.push_back((kind, data));
        (!std::mem::replace(&mut rare.carrying, true), rare.upstream.len() >= UPSTREAM_MESSAGES)
    });
    if full {
        session.list(|listed| listed.deaf = true);
    }
    start
}

/// The next message for the backend; its connection is read again once there is room.
pub(crate) fn next_upstream(session: &Session) -> Option<(Kind, Bytes)> {
    let next = session.rare(|rare| {
        let next = rare.upstream.pop_front();
        rare.carrying = next.is_some();
        next
    });
    if session.listed.get().deaf {
        session.list(|listed| listed.deaf = false);
        session.wake();
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A million idle sessions are mostly this, beside the kernel's sockets and tokio's.
    #[test]
    fn a_session_is_small() {
        assert!(size_of::<Session>() <= 320, "{} bytes", size_of::<Session>());
        assert!(size_of::<Serving>() <= 104, "{} bytes", size_of::<Serving>());
    }
}
