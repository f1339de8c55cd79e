//! The time limits of sessions: pings, silence, ends that take too long.
//!
//! One sweep per tick checks all sessions, so that none needs a timer.

use std::rc::Rc;
use std::time::Duration;

use oroshi_websocket::CloseCode;

use crate::hub::admission::CapacityLog;
use crate::hub::{Hub, TOKEN};
use crate::identity::unix_time;
use crate::message::{Framing, Message};
use crate::session::{Reason, Session, State};

/// The reason of the close frame with [`TOKEN`] for a token that has ended.
const TOKEN_EXPIRED: &str = "the token has expired";

/// Sessions that are checked before other tasks have their turn.
const SLICE: usize = 8192;

impl Hub {
    /// Checks all sessions once per tick, for as long as the hub lives.
    pub(crate) async fn sweep(self: &Rc<Self>) {
        let mut ticks = tokio::time::interval(self.clock.tick());
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut capacity = CapacityLog::default();
        loop {
            ticks.tick().await;
            self.clock.advance();
            if self.thread == 0 {
                capacity.check(&self.node);
                self.node.histories.sweep(self.clock.now(), self.node.now_ms());
            }
            let time = unix_time();
            let rest = Rest::new(self, time);
            let mut from = Some(0);
            while let Some(slot) = from {
                let (sessions, next) = self.some(slot, SLICE, |session| !rest.includes(session));
                sessions.iter().for_each(|session| self.check(session, time));
                from = next;
                if from.is_some() {
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    /// Checks a session at `time`, in seconds since 1970. Those that [`Rest`] includes need no check.
    fn check(self: &Rc<Self>, session: &Rc<Session>, time: u64) {
        let (now, limits, times) = (self.clock.now(), &self.plan().limits, &session.times);
        let past = |since: u32, limit: Duration| now.saturating_sub(since) > self.clock.ticks(limit);
        match session.state.get() {
            State::Open | State::Ending => {}
            State::Lingering(until) => {
                if now >= until {
                    session.cut_off(Reason::Client);
                }
                return;
            }
            State::Over(_) => return self.remove_polling(session),
        }
        let expires = times.expires.get();
        if expires > 0 && time >= expires.into() && session.is_open() {
            return self.end(session, Reason::Expired, TOKEN, TOKEN_EXPIRED);
        }
        if session.framing == Framing::Poll {
            if !session.is_polled() && past(times.received.get(), limits.poll_absence) {
                session.cut_off(Reason::Silent);
                self.remove_polling(session);
            }
            return;
        }
        if session.flags.get().paused {
            // The hub has not read it. The answer to a ping may have come long ago.
            times.received.set(now);
        }
        if session.flags.get().blocked && past(times.written.get(), limits.write) {
            return session.cut_off(Reason::Slow);
        }
        let last = times.received.get().max(times.written.get());
        if session.is_open() && limits.idle.is_some_and(|idle| past(last, idle)) {
            return self.end(session, Reason::Silent, CloseCode::GOING_AWAY, "silent for too long");
        }
        match (session.framing, limits.ping) {
            _ if !session.is_open() || session.stream.borrow().is_none() => {}
            (Framing::WebSocket { .. }, Some(ping)) => {
                let pinged = times.pinged.get();
                if pinged == 0 && past(times.received.get(), ping) {
                    times.pinged.set(now);
                    self.writer.send_control(session, Message::ping());
                } else if pinged > 0 && past(pinged, limits.pong) {
                    session.cut_off(Reason::Silent);
                }
            }
            (Framing::Events { chunked }, Some(ping)) if past(times.written.get(), ping) => {
                self.writer.send_control(session, Message::comment(chunked));
            }
            _ => {}
        }
    }

    /// Removes a polling session that is over; it has no task that does so.
    fn remove_polling(self: &Rc<Self>, session: &Rc<Session>) {
        if let State::Over(reason) = session.state.get()
            && session.framing == Framing::Poll
        {
            self.remove(session, reason);
        }
    }
}

/// Decides which sessions need no check. Most sessions are idle: the sweep reads a part of each, and changes nothing.
struct Rest {
    now: u32,
    time: u64,
    /// Limits in ticks; `u32::MAX` is none.
    idle: u32,
    ping: u32,
}

impl Rest {
    /// `time`: in seconds since 1970.
    fn new(hub: &Hub, time: u64) -> Self {
        let limits = &hub.plan().limits;
        let ticks = |limit: Option<Duration>| limit.map_or(u32::MAX, |limit| hub.clock.ticks(limit));
        Rest { now: hub.clock.now(), time, idle: ticks(limits.idle), ping: ticks(limits.ping) }
    }

    fn includes(&self, session: &Session) -> bool {
        let (flags, times) = (session.flags.get(), &session.times);
        let (received, written, expires) = (times.received.get(), times.written.get(), times.expires.get());
        // A ping is due some time after the client's last bytes; with events, after the hub's last bytes.
        let last = match session.framing {
            Framing::Poll => return false,
            Framing::Events { .. } => written,
            Framing::Lines { .. } => self.now,
            Framing::WebSocket { .. } => received,
        };
        session.is_open()
            && !flags.blocked
            && !flags.paused
            && times.pinged.get() == 0
            && (expires == 0 || self.time < expires.into())
            && self.now.saturating_sub(received.max(written)) <= self.idle
            && self.now.saturating_sub(last) <= self.ping
    }
}
