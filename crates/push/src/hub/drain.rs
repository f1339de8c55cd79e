//! The graceful end of a hub.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oroshi_websocket::{CloseCode, Kind};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::hub::Hub;
use crate::message::{Framing, Message};
use crate::session::{Reason, Session, State};

/// The longest pause between the ends of two sessions. Few sessions need no more spreading.
const LONGEST_GAP: Duration = Duration::from_millis(50);

/// The time kept for receipts of publishes that waited for sessions that are cut off; at most a tenth of the whole.
const LAST_RECEIPTS: Duration = Duration::from_millis(500);

impl Hub {
    /// Stops opening sessions, and ends those of this thread, spread over the first half of the drain timeout.
    ///
    /// Each session ends after its queue is written, and learns a random time after which to reconnect. Returns once
    /// all are gone and their close callbacks are done, or the time is nearly over.
    pub(crate) async fn drain(self: &Rc<Self>) {
        self.draining.set(true);
        let (began, limit) = (Instant::now(), self.plan().drain.timeout);
        let until = began + limit - LAST_RECEIPTS.min(limit / 10);
        let (sessions, _) = self.some(0, usize::MAX);
        // A polling session without a waiting poll has no connection: the hub can only answer its next poll.
        let (away, connected): (Vec<_>, Vec<_>) =
            sessions.into_iter().partition(|session| session.framing == Framing::Poll && !session.is_polled());
        let last_polls = began + self.plan().drain.polls.min(limit / 4);
        let hub = Rc::clone(self);
        let polls = tokio::task::spawn_local(async move { hub.end_polling(away, last_polls).await });
        self.end_in_turn(connected, began, limit / 2).await;
        let _ = polls.await;
        while self.len() > 0 || self.counters.closing.get() > 0 {
            if timeout_at(until, self.ended.notified()).await.is_err() {
                break;
            }
        }
        self.each(|session| session.cut_off(Reason::Drain));
        // Their tasks end in this thread's next turn, and count what was not written.
        while self.len() > 0 && Instant::now() < began + limit {
            tokio::task::yield_now().await;
        }
    }

    /// Ends sessions one by one, spread evenly over `time`.
    async fn end_in_turn(self: &Rc<Self>, sessions: Vec<Rc<Session>>, began: Instant, time: Duration) {
        let count = u32::try_from(sessions.len()).unwrap_or(u32::MAX);
        for (index, session) in (0..count).zip(sessions) {
            sleep_until(began + due(index, count, time)).await;
            // A message that has just come answers the waiting poll.
            let is_answered = session.is_polled() && !session.outbox.borrow().is_empty();
            if session.is_open() && !is_answered {
                self.end_one(&session);
            }
        }
    }

    /// Ends polling sessions without a waiting poll. Those with messages keep them for a poll until `until`.
    async fn end_polling(self: &Rc<Self>, sessions: Vec<Rc<Session>>, until: Instant) {
        let (nothing, something): (Vec<_>, Vec<_>) =
            sessions.into_iter().partition(|session| session.outbox.borrow().is_empty());
        nothing.iter().for_each(|session| self.end_one(session));
        // A poll that comes takes what waits, and ends its session.
        let is_over = |session: &Rc<Session>| matches!(session.state.get(), State::Over(_));
        while !something.iter().all(is_over) {
            if timeout_at(until, self.ended.notified()).await.is_err() {
                something.iter().filter(|session| !is_over(session)).for_each(|session| self.end_one(session));
            }
        }
    }

    /// Returns a random time after which an ended session should reconnect, milliseconds.
    pub(super) fn reconnect_delay_ms(&self) -> u64 {
        let longest = u64::try_from(self.plan().drain.retry_after.as_millis()).unwrap_or(u64::MAX);
        fastrand::u64(0..=longest)
    }

    fn end_one(self: &Rc<Self>, session: &Rc<Session>) {
        let retry_ms = self.reconnect_delay_ms();
        if self.plan().compat_ekbo {
            self.writer.send_last(session, Arc::new(Message::data(Kind::Text, Bytes::new())));
        }
        let why = format!("the hub restarts; connect again in {retry_ms} ms");
        self.end_with(session, Reason::Drain, CloseCode::RESTART, &why, Some(retry_ms));
        if session.framing == Framing::Poll {
            self.remove(session, Reason::Drain);
        }
    }
}

/// Returns when session `index` of `count` ends, from the beginning on.
fn due(index: u32, count: u32, time: Duration) -> Duration {
    (time / count.max(1)).min(LONGEST_GAP).saturating_mul(index)
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
