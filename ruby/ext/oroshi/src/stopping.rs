//! How a worker ends: what is finished, what is given up, and when.

use crate::clock;
use crate::connection::{Next, Stage};
use crate::engine::{Ended, Engine};
use crate::scoreboard::State;
use crate::worker::Stop;

/// How long after a quick stop the rests of answers may still go out.
const LAST_SEND_MS: u64 = 1000;
/// How long after a gentle stop the rests of requests' bodies may still come in.
const LAST_BODY_MS: u64 = 3000;

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
        self.leave_listeners();
        self.worker.slot.set_state(State::Stopping);
        self.show_idle();
    }

    /// Whether nothing that was begun is unfinished, and kept connections have had their while.
    pub(crate) fn is_drained(&mut self) -> bool {
        let Some((since_ms, _)) = self.stopping else { return false };
        let linger_ms = self.worker.settings.linger_ms;
        let now = self.worker.stop.get() == Stop::Now;
        let after_ms = clock::coarse_ms().saturating_sub(since_ms);
        // Nothing of these requests was done: their clients may send them again.
        let is_over = |stage: &Stage, unread: bool| match stage {
            Stage::Idle => !unread && (now || after_ms >= linger_ms),
            Stage::Head => now || after_ms >= linger_ms,
            Stage::Body(_) => now || after_ms >= linger_ms.max(LAST_BODY_MS),
            Stage::Lingering => now,
            Stage::Writing(_) => now && after_ms >= LAST_SEND_MS,
        };
        for token in self.seats.tokens(|it| is_over(&it.stage, !it.input.is_empty())) {
            if let Some(connection) = self.seats.take(token) {
                self.close(connection, Next::Close);
            }
        }
        self.seats.taken() == 0
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
