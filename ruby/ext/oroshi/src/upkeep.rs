//! What the loop does now and then: deadlines, memory, figures.

use crate::budget;
use crate::clock;
use crate::connection::{Connection, Next, Stage};
use crate::engine::{Engine, SCRATCH_BYTES};
use crate::slot::GC_FIGURES;
use crate::socket;

impl Engine<'_> {
    /// Handles connections whose deadline has passed.
    pub(crate) fn sweep(&mut self) {
        self.swept_ms = self.now_ms;
        budget::trim();
        self.tell_of_pressure();
        self.look_for_manager();
        self.resume();
        self.publish();
        let now_ms = self.now_ms;
        self.watch.has_looked(now_ms);
        for token in self.watch.connections.tokens(|connection| connection.due_ms <= now_ms) {
            let Some(connection) = self.watch.connections.take(token) else { continue };
            match connection.stage {
                _ if connection.has_request() => self.watch.connections.put(connection),
                Stage::Idle | Stage::Lingering if !socket::has_unread(connection.number()) => {
                    self.close(connection, Next::Close);
                }
                Stage::Lingering => self.close(connection, Next::Close),
                Stage::Idle | Stage::Head | Stage::Body(_) | Stage::Writing(_) => {
                    self.guarded(Some(token), |engine| engine.give_last_chance(connection));
                }
            }
        }
    }

    /// Ends a connection at its deadline, unless bytes moved while the application had this thread, when nobody looked:
    /// these still count.
    pub(crate) fn give_last_chance(&mut self, mut connection: Box<Connection>) {
        if let Stage::Writing(next) = connection.stage {
            return match connection.output.flush(connection.number()) {
                Ok(true) => self.settle(connection, next),
                Ok(false) if !connection.output.deadline.is_over() => self.send_off(connection, next),
                _ => self.close(connection, Next::Abort),
            };
        }
        let mut piece = vec![0; SCRATCH_BYTES];
        if let Ok(count @ 1..) = socket::receive(connection.number(), &mut piece) {
            let mut bytes = std::mem::take(&mut connection.input);
            bytes.extend_from_slice(&piece[..count]);
            let Some(more) = self.take_requests(connection, &bytes) else { return };
            connection = more;
        }
        if connection.due_ms <= clock::coarse_ms() { self.refuse(connection, 408) } else { self.park(connection) }
    }

    /// Releases the memory that large answers needed.
    pub(crate) fn shrink(&mut self) {
        budget::trim();
        if self.out.capacity() > 4 * SCRATCH_BYTES {
            self.out = Vec::with_capacity(SCRATCH_BYTES);
        }
    }

    /// Publishes the garbage collector's figures.
    pub(crate) fn publish(&mut self) {
        self.published = self.requests;
        // A key that this Ruby does not know reads as 0.
        let figures = GC_FIGURES.map(|(key, _)| self.ruby.gc_stat(key).unwrap_or_default() as u64);
        self.worker.slot.publish_gc(figures);
    }
}
