//! The time limits of sessions: pings, silence, ends that take too long.
//!
//! One sweep per tick checks the sessions that may be due, so that none needs a timer.

use std::rc::Rc;
use std::time::Duration;

use oroshi_websocket::CloseCode;

use crate::clock::Clock;
use crate::hub::admission::CapacityLog;
use crate::hub::{Hub, TOKEN};
use crate::identity::unix_time;
use crate::message::{Framing, Message};
use crate::plan::Plan;
use crate::session::{Reason, Session, State};

/// The reason of the close frame with [`TOKEN`] for a token that has ended.
const TOKEN_EXPIRED: &str = "the token has expired";

/// Slots that are looked at before other tasks have their turn.
const SLICE: usize = 8192;

/// A session with a token is checked this often at least, in seconds.
const RECHECK_S: u32 = 10;

impl Hub {
    /// Checks sessions once per tick, for as long as the hub lives.
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
            let check = Check::new(self.plan(), &self.clock, unix_time());
            let mut from = 0;
            loop {
                let (slots, has_more) = self.checks.due(from..from + SLICE, check.now);
                slots.into_iter().for_each(|slot| self.check(slot, &check));
                from += SLICE;
                if !has_more {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
    }

    /// Checks the session in a slot, and notes when to do so again.
    fn check(self: &Rc<Self>, slot: u32, check: &Check) {
        let Some(session) = self.sessions.borrow().get(slot as usize).cloned() else {
            return self.checks.set(slot, u32::MAX);
        };
        if session.flags.get().paused {
            // The hub has not read it. The answer to a ping may have come long ago.
            session.times.received.set(check.now);
        }
        match check.step(&session) {
            Step::Wait => {}
            Step::CutOff(reason) => {
                session.cut_off(reason);
                self.remove_polling(&session);
            }
            Step::End(reason, code, why) => self.end(&session, reason, code, why),
            Step::Ping => {
                session.times.pinged.set(check.now);
                self.writer.send_control(&session, Message::ping());
            }
            Step::Comment { chunked } => self.writer.send_control(&session, Message::comment(chunked)),
        }
        self.checks.set(slot, check.next(&session));
    }

    /// Ends a session at the end of its token, in seconds since 1970.
    pub(crate) fn expire_at(&self, session: &Session, seconds: u64) {
        session.times.expires.set(u32::try_from(seconds).unwrap_or(u32::MAX).max(1));
        self.checks.soon(session.location.slot);
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

/// What the sweep does with a session whose time limit has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Nothing: no limit has ended.
    Wait,
    CutOff(Reason),
    End(Reason, CloseCode, &'static str),
    Ping,
    Comment {
        chunked: bool,
    },
}

/// The time limits of sessions, in ticks, at one tick. `u32::MAX` is none.
#[derive(Debug)]
struct Check {
    now: u32,
    /// In seconds since 1970.
    time: u64,
    idle: u32,
    ping: u32,
    pong: u32,
    write: u32,
    poll_absence: u32,
    second: u32,
}

impl Check {
    fn new(plan: &Plan, clock: &Clock, time: u64) -> Self {
        let limits = &plan.limits;
        let ticks = |limit: Option<Duration>| limit.map_or(u32::MAX, |limit| clock.ticks(limit));
        Check {
            now: clock.now(),
            time,
            idle: ticks(limits.idle),
            ping: ticks(limits.ping),
            pong: clock.ticks(limits.pong),
            write: clock.ticks(limits.write),
            poll_absence: clock.ticks(limits.poll_absence),
            second: clock.ticks(Duration::from_secs(1)),
        }
    }

    /// Returns what is to be done with a session now.
    fn step(&self, session: &Session) -> Step {
        let times = &session.times;
        let past = |since: u32, limit: u32| self.now.saturating_sub(since) > limit;
        match session.state.get() {
            State::Open | State::Ending => {}
            State::Lingering(until) if self.now >= until => return Step::CutOff(Reason::Client),
            State::Lingering(_) => return Step::Wait,
            State::Over(reason) => return Step::CutOff(reason),
        }
        let expires = times.expires.get();
        if expires > 0 && self.time >= expires.into() && session.is_open() {
            return Step::End(Reason::Expired, TOKEN, TOKEN_EXPIRED);
        }
        if session.framing == Framing::Poll {
            let is_absent = !session.is_polled() && past(times.received.get(), self.poll_absence);
            return if is_absent { Step::CutOff(Reason::Silent) } else { Step::Wait };
        }
        if session.flags.get().blocked && past(times.written.get(), self.write) {
            return Step::CutOff(Reason::Slow);
        }
        if session.is_open() && past(times.received.get().max(times.written.get()), self.idle) {
            return Step::End(Reason::Silent, CloseCode::GOING_AWAY, "silent for too long");
        }
        if self.ping == u32::MAX || !session.is_open() || session.stream.borrow().is_none() {
            return Step::Wait;
        }
        let pinged = times.pinged.get();
        match session.framing {
            Framing::WebSocket { .. } if pinged == 0 && past(times.received.get(), self.ping) => Step::Ping,
            Framing::WebSocket { .. } if pinged > 0 && past(pinged, self.pong) => Step::CutOff(Reason::Silent),
            Framing::Events { chunked } if past(times.written.get(), self.ping) => Step::Comment { chunked },
            _ => Step::Wait,
        }
    }

    /// Returns the first tick at which a limit of a session may have ended, if the session does not change before; 0 if
    /// it has to be checked at each tick.
    fn next(&self, session: &Session) -> u32 {
        let (flags, times) = (session.flags.get(), &session.times);
        if !session.is_open() || flags.blocked || flags.paused || times.pinged.get() > 0 {
            return 0;
        }
        let after = |since: u32, limit: u32| since.saturating_add(limit).saturating_add(1);
        // A ping is due some time after the client's last bytes; with events, after the hub's last bytes.
        let (received, written) = (times.received.get(), times.written.get());
        let ping = match session.framing {
            Framing::Poll => return 0,
            Framing::WebSocket { .. } => after(received, self.ping),
            Framing::Events { .. } => after(written, self.ping),
            Framing::Lines { .. } => u32::MAX,
        };
        let expires = match u64::from(times.expires.get()) {
            0 => u32::MAX,
            // Ticks may be late, and the system's clock may be set: a token is looked at more and more often.
            expires => {
                let seconds = u32::try_from(expires.saturating_sub(self.time) / 2).unwrap_or(u32::MAX).min(RECHECK_S);
                self.now.saturating_add(seconds.saturating_mul(self.second)).saturating_add(1)
            }
        };
        ping.min(after(received.max(written), self.idle)).min(expires)
    }
}

#[cfg(test)]
mod tests {
    use oroshi_net::Stream;
    use oroshi_net::stream::UnixStream;

    use super::*;
    use crate::session::Flags;
    use crate::session::directory::Location;

    /// Ticks of a second: at tick 10 it is second 1000.
    fn at(now: u32, idle: u32, ping: u32) -> Check {
        let time = u64::from(now) + 990;
        Check { now, time, idle, ping, pong: 4, write: 5, poll_absence: 6, second: 1 }
    }

    fn session(framing: Framing, began: u32) -> Session {
        let location = Location { thread: 0, slot: 0, generation: 0, of_page: false };
        let session = Session::new("key".into(), location, framing, began);
        let [socket, _] = UnixStream::pair().unwrap();
        session.stream.replace(Some(Stream::Unix(socket)));
        session
    }

    /// Calls `visit` with idle and with busy sessions at tick 10, and with limits on silence and pings.
    fn sessions(mut visit: impl FnMut(&Session, u32, u32)) {
        let framings = [
            Framing::WebSocket { compression: None },
            Framing::Events { chunked: false },
            Framing::Lines { chunked: false },
            Framing::Poll,
        ];
        let states = [State::Open, State::Ending, State::Lingering(13), State::Over(Reason::Client)];
        let times = [1, 6, 10];
        for framing in framings {
            let session = session(framing, 1);
            for mut choice in 0..states.len() * 2 * 2 * 3 * 3 * 2 * 4 * 3 * 3 {
                let mut choose = |among: usize| {
                    let chosen = choice % among;
                    choice /= among;
                    chosen
                };
                session.state.set(states[choose(4)]);
                session.flags.set(Flags { blocked: choose(2) == 1, paused: choose(2) == 1, ..Flags::default() });
                session.times.received.set(times[choose(3)]);
                session.times.written.set(times[choose(3)]);
                session.times.pinged.set([0, 8][choose(2)]);
                session.times.expires.set([0, 999, 1003, 1500][choose(4)]);
                visit(&session, [u32::MAX, 7, 30][choose(3)], [u32::MAX, 3, 20][choose(3)]);
            }
        }
    }

    #[tokio::test]
    async fn no_limit_ends_before_the_next_check() {
        let mut idle_ones = 0;
        sessions(|session, idle, ping| {
            let next = at(10, idle, ping).next(session);
            idle_ones += u32::from(next > 11);
            for now in 11..next.min(100) {
                let step = at(now, idle, ping).step(session);
                assert_eq!(step, Step::Wait, "at {now}, before {next}, idle {idle}, ping {ping}: {session:?}");
            }
        });
        assert!(idle_ones > 500, "{idle_ones}");
    }

    #[tokio::test]
    async fn an_idle_session_is_checked_when_a_limit_ends() {
        let socket = session(Framing::WebSocket { compression: None }, 5);
        assert_eq!((at(10, 40, 20).next(&socket), at(25, 40, 20).step(&socket)), (26, Step::Wait));
        assert_eq!(at(26, 40, 20).step(&socket), Step::Ping);
        socket.times.pinged.set(26);
        assert_eq!((at(26, 40, 20).next(&socket), at(30, 40, 20).step(&socket)), (0, Step::Wait));
        assert_eq!(at(31, 40, 20).step(&socket), Step::CutOff(Reason::Silent));
        let events = session(Framing::Events { chunked: true }, 5);
        assert_eq!((at(10, 12, u32::MAX).next(&events), at(17, 12, u32::MAX).step(&events)), (18, Step::Wait));
        assert!(matches!(at(18, 12, u32::MAX).step(&events), Step::End(Reason::Silent, ..)));
        assert_eq!(at(10, u32::MAX, u32::MAX).next(&events), u32::MAX);
        events.times.expires.set(1100);
        assert_eq!(at(10, u32::MAX, u32::MAX).next(&events), 21);
        assert_eq!(at(109, u32::MAX, u32::MAX).next(&events), 110);
        assert!(matches!(at(110, u32::MAX, u32::MAX).step(&events), Step::End(Reason::Expired, ..)));
    }
}
