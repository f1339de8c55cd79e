//! How a worker ends: what is finished, what is given up, and when.

use crate::clock;
use crate::connection::{Connection, Next, Stage};
use crate::engine::{Ended, Engine};
use crate::scoreboard::State;
use crate::socket;
use crate::worker::Stop;

/// How long after a quick stop the rests of answers may still go out.
const LAST_SEND_MS: u64 = 1000;
/// How long after a gentle stop the rests of requests' bodies may still come in.
const LAST_BODY_MS: u64 = 3000;

/// How long after that a client may take to see that its kept connection has ended.
const LAST_LINGER_MS: u64 = 500;

impl Engine<'_> {
    pub(crate) fn stop(&mut self, why: Ended) {
        if self.stopping.is_some() {
            return;
        }
        self.now_ms = clock::coarse_ms();
        self.stopping = Some((self.now_ms, why));
        if why == Ended::ManagerGone {
            self.worker.settings.lifeline_fd.iter().for_each(|&lifeline| self.poll.remove(lifeline));
        }
        let stops_now = self.worker.stop.get() == Stop::Now;
        self.drains = why == Ended::Stopped && !stops_now && self.worker.board.refuses_new();
        if !self.drains {
            self.leave_listeners();
        }
        // What others hand over is theirs who stay. If none does, this worker takes what is left.
        if stops_now || !self.is_one_of_the_last() {
            self.poll.remove(self.worker.board.queue().number());
            self.queue_is_ready = false;
        }
        self.worker.slot.set_state(State::Stopping);
        self.show_idle();
    }

    /// Whether nothing that was begun is unfinished, and kept connections have had their while.
    pub(crate) fn is_drained(&mut self) -> bool {
        let Some((since_ms, _)) = self.stopping else { return false };
        let linger_ms = self.worker.settings.linger_ms;
        let now = self.worker.stop.get() == Stop::Now;
        let after_ms = clock::coarse_ms().saturating_sub(since_ms);
        if self.drains && (now || self.drain_listeners(after_ms)) {
            self.drains = false;
            self.leave_listeners();
        }
        while !now && self.is_one_of_the_last() && self.leave.is_none() && self.take_handed_over() {}
        // Nothing of these requests was done: their clients may send them again.
        let is_over = |it: &Connection| match it.stage {
            // Its turn comes with what is here already.
            _ if it.has_request() => false,
            Stage::Idle => now || after_ms >= linger_ms,
            Stage::Head => now || after_ms >= linger_ms,
            Stage::Body(_) => now || after_ms >= linger_ms.max(LAST_BODY_MS),
            Stage::Lingering => now,
            Stage::Writing(_) => now && after_ms >= LAST_SEND_MS,
        };
        for token in self.watch.seats.tokens(is_over) {
            let Some(connection) = self.watch.seats.take(token) else { continue };
            match connection.stage {
                // Its request has come in this moment.
                Stage::Idle if !now && socket::has_unread(connection.number()) => self.watch.seats.put(connection),
                // One may be on its way: what comes from now on is not reset, and its client sees the end before an answer.
                Stage::Idle if !now => self.linger(connection, LAST_LINGER_MS),
                _ => self.close(connection, Next::Close),
            }
        }
        self.watch.seats.taken() == 0 && !self.drains
    }

    /// Whether no worker is left when those have stopped that stop now.
    fn is_one_of_the_last(&self) -> bool {
        self.worker.board.is_ending() || matches!(self.stopping, Some((_, Ended::ManagerGone)))
    }

    /// Whether this worker ends with its manager.
    pub(crate) fn is_watching(&self) -> bool {
        self.worker.settings.lifeline_fd.is_some()
    }

    /// A process that the application has forked before the workers may hold the lifeline's other end: it does not break
    /// then. But who outlives its parent is given another.
    pub(crate) fn look_for_manager(&mut self) {
        if self.is_watching() && std::os::unix::process::parent_id() != self.parent {
            self.stop(Ended::ManagerGone);
        }
    }
}
