//! The end of a hub, in good form.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oroshi_websocket::{CloseCode, Kind};
use tokio::time::{Instant, sleep, timeout_at};

use crate::hub::Hub;
use crate::message::{Framing, Message};
use crate::session::{Reason, Session, State};

/// How often some more are ended.
const TURN: Duration = Duration::from_millis(20);

/// At least so many at a time: fewer sessions need no spreading.
const AT_ONCE: usize = 64;

/// So much of the time, or a tenth of it if that is less, is left for the receipts of publishes that waited for those who are cut off.
const LAST_RECEIPTS: Duration = Duration::from_millis(500);

impl Hub {
    /// Opens no session any more, and ends those of this core: spread over the first half of the time that there is, each once what waits
    /// for it is written, and with a time of its own to come back. Returns when all are gone and the backend knows it, or the time
    /// is nearly over.
    pub(crate) async fn drain(self: &Rc<Self>) {
        self.draining.set(true);
        let (began, limit) = (Instant::now(), self.plan().drain.timeout);
        let until = began + limit - LAST_RECEIPTS.min(limit / 10);
        let (sessions, _) = self.some(0, usize::MAX);
        let turns = (limit / 2).as_millis().div_ceil(TURN.as_millis()).max(1) as usize;
        let mut some = sessions.chunks(sessions.len().div_ceil(turns).max(AT_ONCE)).peekable();
        let mut asked_for = Vec::new();
        while let Some(sessions) = some.next() {
            for session in sessions {
                if session.framing == Framing::Poll && !session.outbox.borrow().is_empty() {
                    asked_for.push(Rc::clone(session));
                } else {
                    self.send_off(session);
                }
            }
            if some.peek().is_some() {
                sleep(TURN).await;
            }
        }
        drop(sessions);
        // A poll that comes takes what waits, and ends its session.
        let is_over = |session: &Rc<Session>| matches!(session.state.get(), State::Over(_));
        let last_polls = began + self.plan().drain.polls.min(limit / 4);
        while !asked_for.iter().all(is_over) {
            if timeout_at(last_polls, self.gone.notified()).await.is_err() {
                asked_for.iter().for_each(|session| self.send_off(session));
            }
        }
        while self.len() > 0 || self.counters.closing.get() > 0 {
            if timeout_at(until, self.gone.notified()).await.is_err() {
                break;
            }
        }
        self.each(|session| session.cut_off(Reason::Drain));
        // Their tasks end in this core's next turn, and tell what was not written.
        while self.len() > 0 && Instant::now() < began + limit {
            tokio::task::yield_now().await;
        }
    }

    /// When a session that ends is to come back, milliseconds: a time of its own.
    pub(crate) fn time_to_come_back(&self) -> u64 {
        let longest = u64::try_from(self.plan().drain.retry_after.as_millis()).unwrap_or(u64::MAX);
        fastrand::u64(0..=longest)
    }

    fn send_off(self: &Rc<Self>, session: &Rc<Session>) {
        let retry_ms = self.time_to_come_back();
        if self.plan().compat_ekbo {
            self.send_last(session, Arc::new(Message::data(Kind::Text, Bytes::new())));
        }
        let why = format!("the hub restarts; connect again in {retry_ms} ms");
        self.end_with(session, Reason::Drain, CloseCode::RESTART, &why, Some(retry_ms));
        if session.framing == Framing::Poll {
            self.remove(session, Reason::Drain);
        }
    }
}
