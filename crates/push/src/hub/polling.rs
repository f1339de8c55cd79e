//! Polls: a polling session's messages, handed out in numbered batches.
//!
//! A session keeps what was handed out until the next poll acknowledges it, so a lost response loses no message.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

use serde_json::json;
use tokio::time::timeout;

use crate::hub::Hub;
use crate::message::Framing;
use crate::secrets::is_same;
use crate::session::directory::Location;
use crate::session::info::PollError;
use crate::session::{Reason, Session, State};

impl Hub {
    /// Returns the messages after batch `after` as JSON, as soon as there are any or the poll has waited long enough.
    pub(crate) async fn poll(self: &Rc<Self>, key: &str, token: String, after: u64) -> Result<String, PollError> {
        match &self.node.link {
            Some(link) if self.node.directory.find(key).is_none() => {
                link.poll(key, &token, after, self.plan().limits.poll_wait).await
            }
            _ => self.poll_of_node(key, token, after).await,
        }
    }

    /// [`poll`](Self::poll) on this node.
    pub(crate) async fn poll_of_node(
        self: &Rc<Self>,
        key: &str,
        token: String,
        after: u64,
    ) -> Result<String, PollError> {
        match self.node.directory.find(key) {
            None => Err(PollError::Unknown),
            Some(location) if location.thread == self.thread => self.poll_here(location, &token, after).await,
            Some(location) => {
                let poll = move |hub: Rc<Hub>| async move { hub.poll_here(location, &token, after).await };
                self.mailboxes.ask(location.thread, poll).await.unwrap_or(Err(PollError::Gone))
            }
        }
    }

    /// [`poll`](Self::poll) on the session's own thread.
    async fn poll_here(self: &Rc<Self>, location: Location, token: &str, after: u64) -> Result<String, PollError> {
        let session = self.at(location).filter(|session| session.framing == Framing::Poll);
        let session = session.ok_or(PollError::Unknown)?;
        let (turn, batch) = session.rare(|rare| {
            let polling = rare
                .polling
                .as_mut()
                .filter(|polling| is_same(polling.token.as_bytes(), token.as_bytes()))
                .ok_or(PollError::Unknown)?;
            polling.turn += 1;
            Ok((polling.turn, polling.batch))
        })?;
        // An older poll, which the client has given up, stops waiting.
        session.wake();
        session.times.received.set(self.clock.now());
        if after.checked_add(1) == Some(batch) {
            let again = self.hand_out(&session, true);
            self.end_with_answer(&session);
            return Ok(again);
        }
        if after != batch {
            return Err(PollError::Batch(batch));
        }
        let acknowledged = self.hand_out(&session, false);
        if session.outbox.borrow().is_empty() {
            // The client has all its messages.
            if session.state.get() == State::Ending {
                session.cut_off(Reason::Client);
            } else if self.draining.get() {
                self.remove(&session, Reason::Drain);
            }
        }
        let waited = if session.outbox.borrow().is_empty() {
            let _waiting = Waiting::new(self, &session);
            let wait = poll_fn(|context| {
                session.wake_by(context.waker());
                let superseded = session.rare(|rare| rare.polling.as_ref().is_some_and(|polling| polling.turn != turn));
                let over = !session.is_open() || superseded || !session.outbox.borrow().is_empty();
                if over { Poll::Ready(superseded) } else { Poll::Pending }
            });
            if timeout(self.plan().limits.poll_wait, wait).await == Ok(true) {
                return Ok(json!({ "messages": [], "next": after }).to_string());
            }
            self.hand_out(&session, false)
        } else {
            acknowledged
        };
        if matches!(session.state.get(), State::Over(_)) {
            return Err(PollError::Gone);
        }
        self.end_with_answer(&session);
        Ok(waited)
    }

    /// Removes a session that just got its messages if the hub drains: its connection ends with this answer.
    fn end_with_answer(self: &Rc<Self>, session: &Rc<Session>) {
        if self.draining.get() && !session.outbox.borrow().is_empty() {
            self.remove(session, Reason::Drain);
        }
    }

    /// Returns the waiting messages as JSON. Unless `again`, this acknowledges the batch before.
    fn hand_out(&self, session: &Session, again: bool) -> String {
        let mut outbox = session.outbox.borrow_mut();
        let before = outbox.bytes();
        if !again {
            outbox.expire(Framing::Poll, Instant::now);
        }
        let messages: Vec<String> = outbox
            .hand_out(again)
            .map(|message| String::from_utf8_lossy(message.frame(Framing::Poll)).into_owned())
            .collect();
        self.backlog.shrunk(before, outbox.bytes());
        let next = session.rare(|rare| {
            let Some(polling) = &mut rare.polling else { return 0 };
            if !again && !messages.is_empty() {
                polling.batch += 1;
            }
            polling.batch
        });
        format!("{{\"messages\":[{}],\"next\":{next}}}", messages.join(","))
    }
}

/// Marks a session as polled, until this is dropped.
struct Waiting<'h> {
    hub: &'h Hub,
    session: Rc<Session>,
}

impl<'h> Waiting<'h> {
    fn new(hub: &'h Hub, session: &Rc<Session>) -> Self {
        Self::set(session, true);
        Waiting { hub, session: Rc::clone(session) }
    }

    fn set(session: &Session, waits: bool) {
        session.rare(|rare| {
            if let Some(polling) = &mut rare.polling {
                polling.waits = waits;
            }
        });
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        Self::set(&self.session, false);
        self.session.times.received.set(self.hub.clock.now());
    }
}
