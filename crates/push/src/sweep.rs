//! What time does to sessions: pings, limits, ends that take too long. One look at all of them now and then, so that none needs a timer.

use std::rc::Rc;
use std::time::Duration;

use oroshi_core::sweep_pause;
use oroshi_websocket::CloseCode;

use crate::admission::Crowd;
use crate::hub::Hub;
use crate::message::{Framing, Message};
use crate::plan::Limits;
use crate::session::{Reason, Session, State};

/// So many sessions are looked at before others have their turn.
const SLICE: usize = 8192;

/// How long a tick is: an eighth of the shortest limit.
pub(crate) fn tick(limits: &Limits) -> Duration {
    let all = [
        limits.idle,
        limits.ping,
        Some(limits.pong),
        Some(limits.write),
        Some(limits.poll_absence),
        Some(limits.close),
    ];
    let shortest = all.into_iter().flatten().min().unwrap_or(Duration::MAX);
    sweep_pause(shortest, (Duration::from_millis(10), Duration::from_secs(1)))
}

impl Hub {
    /// Looks at the sessions, for as long as the hub lives.
    pub(crate) async fn sweep(self: &Rc<Self>) {
        let mut ticks = tokio::time::interval(self.tick());
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut crowd = Crowd::default();
        loop {
            ticks.tick().await;
            self.advance();
            if self.core == 0 {
                crowd.look_at(&self.node);
            }
            let mut from = Some(0);
            while let Some(slot) = from {
                let (sessions, next) = self.some(slot, SLICE);
                sessions.iter().for_each(|session| self.look_at(session));
                from = next;
                if from.is_some() {
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    fn look_at(self: &Rc<Self>, session: &Rc<Session>) {
        let (now, limits, times) = (self.now(), &self.plan().limits, &session.times);
        let past = |since: u32, limit: Duration| now.saturating_sub(since) > self.ticks(limit);
        match session.state.get() {
            State::Open | State::Ending => {}
            State::Lingering(until) => {
                if now >= until {
                    session.cut_off(Reason::Client);
                }
                return;
            }
            State::Over(_) => return self.bury(session),
        }
        if session.framing == Framing::Poll {
            let waits =
                session.rare.borrow().as_ref().is_some_and(|rare| rare.poll.as_ref().is_some_and(|poll| poll.waits));
            if !waits && past(times.heard.get(), limits.poll_absence) {
                session.cut_off(Reason::Silent);
                self.bury(session);
            }
            return;
        }
        if session.listed.get().deaf {
            // It may have answered a ping long ago; nobody has read it.
            times.heard.set(now);
        }
        if session.listed.get().blocked && past(times.took.get(), limits.write) {
            return session.cut_off(Reason::Slow);
        }
        let lively = times.heard.get().max(times.took.get());
        if session.is_open() && limits.idle.is_some_and(|idle| past(lively, idle)) {
            return self.end(session, Reason::Silent, CloseCode::GOING_AWAY, "silent for too long");
        }
        match (session.framing, limits.ping) {
            _ if !session.is_open() || session.stream.borrow().is_none() => {}
            (Framing::WebSocket, Some(ping)) => {
                let pinged = times.pinged.get();
                if pinged == 0 && past(times.heard.get(), ping) {
                    times.pinged.set(now);
                    self.say(session, Message::ping());
                } else if pinged > 0 && past(pinged, limits.pong) {
                    session.cut_off(Reason::Silent);
                }
            }
            (Framing::Events { chunked }, Some(ping)) if past(times.took.get(), ping) => {
                self.say(session, Message::comment(chunked));
            }
            _ => {}
        }
    }

    /// A session that polls has no task to end it.
    fn bury(self: &Rc<Self>, session: &Rc<Session>) {
        if let State::Over(reason) = session.state.get()
            && session.framing == Framing::Poll
        {
            self.remove(session, reason);
        }
    }
}
