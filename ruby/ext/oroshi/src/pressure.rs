//! Chooses which clients to close when descriptors, temporary files or memory for heads run out: those furthest behind
//! first, so that waiting clients make room for others.

use std::sync::atomic::Ordering::Relaxed;

use crate::budget::{self, FILES, HEADS, has_room_for_connection};
use crate::connection::{Connection, Next, Stage};
use crate::engine::{Engine, SCRATCH_BYTES};
use crate::progress_deadline::ProgressDeadline;
use crate::request::Spool;
use crate::socket;
use crate::watcher::Watch;

/// The answer to a client whose connection is closed before its request was whole.
const BUSY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// How long a connection without a request is new: its request may be on the way.
const FRESH_MS: u64 = 1000;

/// Sends a client the answer that it is not served, as far as it goes out at once.
pub(crate) fn tell_busy(connection: &Connection) {
    let mut scratch = [0; 4096];
    // Closing over unread bytes would discard the answer.
    for _ in 0..16 {
        if !matches!(socket::receive(connection.number(), &mut scratch), Ok(1..)) {
            break;
        }
    }
    let _ = socket::send(connection.number(), BUSY, false);
    socket::shut_sending(connection.number());
}

impl Engine<'_> {
    /// Makes room for one more connection, if necessary by closing others. False: there is none.
    pub(crate) fn make_room_for_connection(&mut self) -> bool {
        if has_room_for_connection() {
            return true;
        }
        // Connections that have been without any request for a while go first, then those between two requests, whose
        // clients may connect again, then new ones, then the others.
        let fresh_ms = self.now_ms.saturating_add(self.worker.settings.timeout_ms).saturating_sub(FRESH_MS);
        self.close_those_behind(|it| match it.stage {
            _ if it.has_request() => None,
            Stage::Idle | Stage::Head if it.has_asked => Some((1, it.due_ms)),
            Stage::Idle | Stage::Head if it.due_ms > fresh_ms => Some((2, it.due_ms)),
            Stage::Idle | Stage::Head | Stage::Lingering => Some((0, it.due_ms)),
            Stage::Body(_) | Stage::Writing(_) => Some((3, it.due_ms)),
        });
        has_room_for_connection()
    }

    /// Closes connections with half a head, or with requests that must wait, if all together exceed their memory.
    pub(crate) fn bound_heads(&mut self) {
        if HEADS.is_over() {
            self.close_those_behind(|it| match it.stage {
                Stage::Head => Some(it.due_ms),
                // Its client sends requests without reading the first answer.
                Stage::Writing(_) if !it.input.is_empty() => Some(it.due_ms),
                _ => None,
            });
        }
    }

    /// Closes some connections: those with the least `rank`.
    fn close_those_behind<R: Ord>(&mut self, rank: impl Fn(&Connection) -> Option<R>) {
        let mut ranked = self.watch.connections.ranked(rank);
        if ranked.is_empty() {
            return;
        }
        // Several at once, because finding them means scanning all.
        let count = ranked.len() / 64 + 1;
        ranked.select_nth_unstable(count - 1);
        for (_, token) in ranked.drain(..count) {
            let Some(connection) = self.watch.connections.take(token) else { continue };
            let next = match connection.stage {
                // A request has just arrived: another connection has to go.
                Stage::Idle if socket::has_unread(connection.number()) => {
                    self.watch.connections.put(connection);
                    continue;
                }
                Stage::Head | Stage::Body(_) => {
                    tell_busy(&connection);
                    Next::Close
                }
                Stage::Writing(_) => Next::Abort,
                Stage::Idle | Stage::Lingering => Next::Close,
            };
            self.watch.cut_off.fetch_add(1, Relaxed);
            self.close(connection, next);
        }
    }

    /// Makes room for more bytes of a body, if necessary by refusing others that are further behind.
    pub(crate) fn make_room_for_body(&mut self, deadline: ProgressDeadline, spool: &Spool, bytes: usize) -> bool {
        while !spool.has_room(bytes) {
            let behind = |it: &Connection| match &it.stage {
                Stage::Body(incoming) if incoming.spool.is_filed() && !it.is_whole => Some(it.deadline),
                _ => None,
            };
            let behind = |it: &Connection| behind(it).filter(|one| *one < deadline && one.is_behind());
            let Some(token) = self.watch.connections.least(behind) else { return false };
            let Some(other) = self.watch.connections.take(token) else { return false };
            self.watch.cut_off.fetch_add(1, Relaxed);
            self.refuse(other, 503);
        }
        true
    }

    /// Cuts off clients that are behind with their answers, until this many bytes of another answer have room. Runs no
    /// Ruby code.
    pub(crate) fn make_room_for_answer(&self, bytes: usize) {
        while !FILES.has_room(bytes) && self.watch.cut_off_one() {}
    }

    /// Releases the memory that large answers needed.
    pub(crate) fn shrink(&mut self) {
        budget::trim();
        if self.out.capacity() > 4 * SCRATCH_BYTES {
            self.out = Vec::with_capacity(SCRATCH_BYTES);
        }
    }

    /// Logs one line for all connections closed since the last one.
    pub(crate) fn tell_of_pressure(&self) {
        let count = self.watch.cut_off.swap(0, Relaxed);
        if count > 0 {
            let be = if count == 1 { "connection was" } else { "connections were" };
            self.complain(&format!(
                "{count} {be} closed to make room for others: clients take all the descriptors, files or memory that \
                 they may"
            ));
        }
    }
}

impl Watch {
    /// Cuts off the answer of a client further behind than `than`, during the application's call.
    pub(crate) fn cut_off_one_behind(&self, than: ProgressDeadline) -> bool {
        self.within_call(|| self.cut_off_slowest(|deadline| deadline < than)).unwrap_or(false)
    }

    /// Cuts off the answer of any client that is behind, within the server.
    fn cut_off_one(&self) -> bool {
        self.cut_off_slowest(|_| true)
    }

    fn cut_off_slowest(&self, wanted: impl Fn(ProgressDeadline) -> bool) -> bool {
        let behind = |it: &Connection| {
            let deadline = it.output.deadline;
            let is_wanted = matches!(it.stage, Stage::Writing(_)) && it.output.has_spilled();
            (is_wanted && deadline.is_behind() && wanted(deadline)).then_some(deadline)
        };
        let Some(token) = self.connections.least(behind) else { return false };
        let Some(connection) = self.connections.take(token) else { return false };
        self.close(connection, Next::Abort);
        self.cut_off.fetch_add(1, Relaxed);
        true
    }
}
