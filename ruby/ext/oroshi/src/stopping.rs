//! Stops a worker: what it finishes, what it abandons, and when.

use crate::clock;
use crate::connection::{Connection, Next, Stage};
use crate::engine::Engine;
use crate::slot::State;
use crate::socket;
use crate::stop::{Ended, Stop};

/// How long the rest of an answer may still be sent after a quick stop.
const LAST_SEND_MS: u64 = 1000;
/// How long the rest of a body may still arrive after a gentle stop.
const LAST_BODY_MS: u64 = 3000;

/// How long a client may take after that to see that its kept connection has ended.
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
        // Connections handed over are for the workers that stay. If none does, this one takes the rest.
        if stops_now || !self.is_one_of_the_last() {
            self.poll.remove(self.worker.board.queue().number());
            self.queue_is_ready = false;
        }
        self.worker.slot.set_state(State::Stopping);
        self.show_idle();
    }

    /// Whether everything begun is finished, and kept connections have had their time.
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
        // Nothing was done for these requests: their clients may send them again.
        let is_over = |it: &Connection| match it.stage {
            // It is served in its turn.
            _ if it.has_request() => false,
            Stage::Idle => now || after_ms >= linger_ms,
            Stage::Head => now || after_ms >= linger_ms,
            Stage::Body(_) => now || after_ms >= linger_ms.max(LAST_BODY_MS),
            Stage::Lingering => now,
            Stage::Writing(_) => now && after_ms >= LAST_SEND_MS,
        };
        for token in self.watch.connections.tokens(is_over) {
            let Some(connection) = self.watch.connections.take(token) else { continue };
            match connection.stage {
                // Its request has just arrived.
                Stage::Idle if !now && socket::has_unread(connection.number()) => {
                    self.watch.connections.put(connection);
                }
                // A request may be on its way: its bytes are not reset, and the client sees the end before any answer.
                Stage::Idle if !now => self.linger(connection, LAST_LINGER_MS),
                _ => self.close(connection, Next::Close),
            }
        }
        self.watch.connections.taken() == 0 && !self.drains
    }

    /// Whether no worker will be left after the present stop.
    fn is_one_of_the_last(&self) -> bool {
        self.worker.board.is_ending() || matches!(self.stopping, Some((_, Ended::ManagerGone)))
    }

    /// Whether this worker ends with its manager.
    pub(crate) fn is_watching(&self) -> bool {
        self.worker.settings.lifeline_fd.is_some()
    }

    /// Stops if the manager is gone. A process that the application forked before the workers may hold the lifeline's
    /// other end, so the lifeline stays intact; but an orphan gets another parent.
    pub(crate) fn look_for_manager(&mut self) {
        if self.is_watching() && std::os::unix::process::parent_id() != self.parent {
            self.stop(Ended::ManagerGone);
        }
    }
}
