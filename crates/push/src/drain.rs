//! The end of a hub, in good form.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oroshi_websocket::{CloseCode, Kind};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::hub::Hub;
use crate::message::{Framing, Message};
use crate::session::{Reason, Session, State};

/// The next session is ended after this time at the latest, however few there are: they need no more spreading.
const LONGEST_GAP: Duration = Duration::from_millis(50);

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
        // Where no poll is under way there is no connection to be told anything on: only a poll that comes by itself.
        let (away, connected): (Vec<_>, Vec<_>) =
            sessions.into_iter().partition(|session| session.framing == Framing::Poll && !session.is_polled());
        let last_polls = began + self.plan().drain.polls.min(limit / 4);
        let hub = Rc::clone(self);
        let polls = tokio::task::spawn_local(async move { hub.send_off_who_polls(away, last_polls).await });
        self.send_off_in_turn(connected, began, limit / 2).await;
        let _ = polls.await;
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

    /// Ends sessions one after the other, spread evenly over this time.
    async fn send_off_in_turn(self: &Rc<Self>, sessions: Vec<Rc<Session>>, began: Instant, time: Duration) {
        let count = u32::try_from(sessions.len()).unwrap_or(u32::MAX);
        for (place, session) in (0..count).zip(sessions) {
            sleep_until(began + due(place, count, time)).await;
            // What has just come for a poll under way is its answer.
            let is_answered = session.is_polled() && !session.outbox.borrow().is_empty();
            if session.is_open() && !is_answered {
                self.send_off(&session);
            }
        }
    }

    /// Ends sessions that nobody polls for now: those for which something waits once it is asked for, or at this time.
    async fn send_off_who_polls(self: &Rc<Self>, sessions: Vec<Rc<Session>>, until: Instant) {
        let (nothing, something): (Vec<_>, Vec<_>) =
            sessions.into_iter().partition(|session| session.outbox.borrow().is_empty());
        nothing.iter().for_each(|session| self.send_off(session));
        // A poll that comes takes what waits, and ends its session.
        let is_over = |session: &Rc<Session>| matches!(session.state.get(), State::Over(_));
        while !something.iter().all(is_over) {
            if timeout_at(until, self.gone.notified()).await.is_err() {
                something.iter().filter(|session| !is_over(session)).for_each(|session| self.send_off(session));
            }
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

/// When the session at a place among so many is ended, from the beginning on.
fn due(place: u32, count: u32, time: Duration) -> Duration {
    (time / count.max(1)).min(LONGEST_GAP).saturating_mul(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_end_evenly_over_the_time_and_few_of_them_sooner() {
        let time = Duration::from_secs(10);
        assert_eq!(due(0, 1, time), Duration::ZERO);
        assert_eq!(due(2, 3, time), Duration::from_millis(100));
        assert_eq!(due(199, 200, time), Duration::from_millis(9950));
        assert_eq!(due(500, 1000, time), Duration::from_secs(5));
        assert_eq!(due(999_999, 1_000_000, time), time - Duration::from_micros(10));
        assert_eq!(due(u32::MAX - 1, u32::MAX, time), due(1, u32::MAX, time) * (u32::MAX - 1));
    }
}
