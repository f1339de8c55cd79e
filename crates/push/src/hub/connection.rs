//! A session's connection, and the task that reads it.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use oroshi_core::{Incoming, Scratch};
use oroshi_net::Stream;
use oroshi_websocket::{CloseCode, Decoder, Event, Kind, Limits, Role};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::hub::Hub;
use crate::message::Message;
use crate::plan::SlowPolicy;
use crate::rates::{LIMITS, What};
use crate::session::tally::Delivery;
use crate::session::{Reason, Session, State};

/// The most that the hub keeps of what a client sends before its session is agreed to, bytes.
const AHEAD: usize = 64 * 1024;

/// The connection of a session whose request has been answered.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    /// The bytes that the client sent behind its request.
    pub(crate) ahead: Vec<u8>,
    /// Its permit to count among the clients' connections, if those are limited.
    pub(crate) permit: Option<oroshi_server::Permit>,
}

impl Connection {
    /// Is ready once the client has left. `keeps`: bytes from it are kept, up to [`AHEAD`]; else they are dropped.
    ///
    /// Once `AHEAD` bytes are kept, the connection is not read, so this never becomes ready.
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

impl Hub {
    /// Serves the session's connection from here on, in a task of its own.
    pub(super) fn serve(self: &Rc<Self>, session: &Rc<Session>, connection: Connection) {
        let Connection { stream, ahead, permit } = connection;
        *session.stream.borrow_mut() = Some(stream);
        self.writer.flush(session);
        let (hub, session) = (Rc::clone(self), Rc::clone(session));
        tokio::task::spawn_local(async move {
            let _place = permit;
            let reason = Serving::new(Rc::clone(&hub), Rc::clone(&session), ahead).await;
            hub.remove(&session, reason);
        });
    }

    /// Passes a session's message to the receive callback, or back to the session if the plan says `echo`.
    fn receive(self: &Rc<Self>, session: &Rc<Session>, kind: Kind, data: Bytes) {
        self.counters.received(data.len());
        if session.speaks_channels() {
            if self.push_upstream(session, kind, data) {
                let (hub, session) = (Rc::clone(self), Rc::clone(session));
                tokio::task::spawn_local(async move { hub.command_all(&session).await });
            }
            return;
        }
        let rates = &self.node.rates;
        let counted = session.count(rates, What::Messages, 1);
        if let Err((scope, what)) = counted.and_then(|()| session.count(rates, What::Bytes, data.len())) {
            self.counters.limited(scope, what);
            let why = format!("more than limits.{} per second", LIMITS[scope][what as usize]);
            return self.end(session, Reason::Violation, CloseCode::POLICY, &why);
        }
        if self.plan().echo {
            let delivery = Rc::new(Delivery::new(Arc::new(Message::data(kind, data))));
            self.writer.enqueue(session, &delivery, SlowPolicy::Disconnect);
            return self.writer.list_urgent(session);
        }
        if self.plan().callbacks.receive.is_none() || !self.push_upstream(session, kind, data) {
            return;
        }
        let (hub, session) = (Rc::clone(self), Rc::clone(session));
        tokio::task::spawn_local(async move {
            while let Some((kind, data)) = session.pop_upstream() {
                hub.callbacks.receive(&session.key, kind, data).await;
            }
            hub.ended.notify_waiters();
        });
    }

    /// Queues a message for the backend. Returns whether the caller must start a task that sends the queue.
    fn push_upstream(&self, session: &Session, kind: Kind, data: Bytes) -> bool {
        let start = session.push_upstream(kind, data);
        if session.flags.get().paused {
            // The sweep keeps its client from counting as silent.
            self.checks.soon(session.location.slot);
        }
        start
    }
}

/// A future that serves a session's connection to its end.
struct Serving {
    hub: Rc<Hub>,
    session: Rc<Session>,
    decoder: Decoder,
    /// The bytes of an incomplete frame.
    kept: Incoming,
    /// Whether the write side is shut down.
    shut: bool,
}

impl Serving {
    /// `ahead`: the bytes that the client sent behind its request.
    fn new(hub: Rc<Hub>, session: Rc<Session>, ahead: Vec<u8>) -> Self {
        let decoder = match session.framing.compression() {
            Some(_) => Decoder::with_deflate(Role::Server),
            None => Decoder::new(Role::Server),
        };
        Serving { hub, session, decoder, kept: Incoming::from_bytes(ahead), shut: false }
    }
}

impl Future for Serving {
    type Output = Reason;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reason> {
        let serving = self.get_mut();
        let session = Rc::clone(&serving.session);
        session.wake_by(context.waker());
        if session.flags.get().blocked {
            serving.hub.writer.poll_flush(&session, context);
        }
        if !serving.kept.is_empty() {
            serving.decode_kept();
        }
        // Bounded, so that a client that sends without pause leaves the others their turn.
        for turn in 0.. {
            if let State::Over(reason) = session.state.get() {
                return Poll::Ready(reason);
            }
            serving.shut_down(context);
            if session.flags.get().paused || serving.poll_read(context).is_pending() {
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
        session.times.received.set(self.hub.clock.now());
        session.times.pinged.set(0);
        if session.framing.is_websocket() {
            self.decode(into.filled_mut());
        }
        Poll::Ready(())
    }

    /// Decodes the bytes that came before the session was served, or while it was paused.
    fn decode_kept(&mut self) {
        if !self.session.framing.is_websocket() {
            self.kept.clear();
        } else if !self.session.flags.get().paused {
            self.decode(&mut []);
        }
    }

    /// Decodes what came, and keeps an incomplete frame.
    fn decode(&mut self, came: &mut [u8]) {
        let mut kept = std::mem::take(&mut self.kept);
        kept.decode_mut(came, |input| self.decode_events(input));
        self.kept = kept;
    }

    fn decode_events(&mut self, input: &mut &mut [u8]) {
        let (hub, session) = (&self.hub, &self.session);
        let limits = Limits { message_bytes: hub.plan().limits.message_bytes };
        loop {
            match self.decoder.decode(&limits, input) {
                Ok(None) => return,
                // Once the hub has sent its close frame, only the client's answer to it counts.
                Ok(Some(Event::Close { code, .. })) => {
                    let reason = session.known_reason().unwrap_or(Reason::Client);
                    match session.state.get() {
                        State::Lingering(_) => session.cut_off(reason),
                        _ => hub.end(session, reason, code.unwrap_or(CloseCode::NORMAL), ""),
                    }
                    return;
                }
                Ok(Some(_)) if !session.is_open() => {}
                // A client that does not read gets no pongs: one may answer several pings (RFC 6455, section 5.5.3).
                Ok(Some(Event::Ping(_))) if session.flags.get().blocked => {}
                Ok(Some(Event::Ping(payload))) => hub.writer.send_control(session, Message::pong(payload)),
                Ok(Some(Event::Pong(_))) => {}
                Ok(Some(Event::Message { kind: Kind::Binary, .. })) if session.speaks_channels() => {
                    let why = "commands are text";
                    hub.end(session, Reason::Violation, CloseCode(1003), why);
                }
                Ok(Some(Event::Message { kind, data })) => {
                    let data = Bytes::copy_from_slice(&data);
                    hub.receive(session, kind, data);
                }
                Err(violation) => {
                    *input = &mut [];
                    hub.end(session, Reason::Violation, violation.code(), &violation.to_string());
                    return;
                }
            }
        }
    }

    /// Shuts down the write side once the end is written.
    fn shut_down(&mut self, context: &mut Context<'_>) {
        if self.shut || !matches!(self.session.state.get(), State::Lingering(_)) {
            return;
        }
        // With WebSocket the server closes first: its close frame and FIN go together (RFC 6455, section 7.1.1). Over
        // TLS the hub first sends close_notify.
        if let Some(stream) = &mut *self.session.stream.borrow_mut() {
            self.shut = Pin::new(stream).poll_shutdown(context).is_ready();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A million idle sessions are mostly this and [`Session`], beside the kernel's sockets and tokio's.
    #[test]
    fn the_task_of_a_session_is_small() {
        assert!(size_of::<Serving>() <= 104, "{} bytes", size_of::<Serving>());
    }
}
