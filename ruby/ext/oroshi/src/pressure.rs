//! Who goes when clients have used up what there is for them: descriptors, temporary files, memory for heads. Those that
//! are furthest behind go first, so that a crowd of clients that wait makes room for those that do not.

use std::sync::atomic::Ordering::Relaxed;

use crate::budget::{FILES, HEADS, has_room_for_connection};
use crate::connection::{Connection, Next, Stage};
use crate::engine::Engine;
use crate::patience::Patience;
use crate::request::Spool;
use crate::socket;
use crate::watcher::Watch;

/// What a client is told whose connection is closed before its request was whole.
const BUSY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// Tells a client that it is not served here, with what goes out at once.
pub(crate) fn tell_busy(connection: &Connection) {
    let mut scratch = [0; 4096];
    // To close over bytes that nobody has read would take the answer along.
    for _ in 0..16 {
        if !matches!(socket::receive(connection.number(), &mut scratch), Ok(1..)) {
            break;
        }
    }
    let _ = socket::send(connection.number(), BUSY, false);
    socket::shut_sending(connection.number());
}

impl Engine<'_> {
    /// Whether one connection more can be taken, perhaps because others were closed for it.
    pub(crate) fn make_room_for_connection(&mut self) -> bool {
        if has_room_for_connection() {
            return true;
        }
        // Who has asked for nothing yet goes before those that wait between two requests, and those before the others.
        self.close_those_behind(|it| match it.stage {
            _ if it.has_request() => None,
            Stage::Idle | Stage::Head => Some((u8::from(it.has_asked), it.due_ms)),
            Stage::Lingering => Some((0, it.due_ms)),
            Stage::Body(_) | Stage::Writing(_) => Some((2, it.due_ms)),
        });
        has_room_for_connection()
    }

    /// Closes connections with half of a head, or with requests that nobody can look at yet, if all together take more memory than they
    /// may.
    pub(crate) fn bound_heads(&mut self) {
        if HEADS.is_over() {
            self.close_those_behind(|it| match it.stage {
                Stage::Head => Some(it.due_ms),
                // Its client has sent requests, and does not read the answer to the first.
                Stage::Writing(_) if !it.input.is_empty() => Some(it.due_ms),
                _ => None,
            });
        }
    }

    /// Closes some connections: those with the least `rank`.
    fn close_those_behind<R: Ord>(&mut self, rank: impl Fn(&Connection) -> Option<R>) {
        let mut ranked = self.watch.seats.ranked(rank);
        if ranked.is_empty() {
            return;
        }
        // Some at once: to look for them costs a look at all.
        let count = ranked.len() / 64 + 1;
        ranked.select_nth_unstable(count - 1);
        for (_, token) in ranked.drain(..count) {
            let Some(connection) = self.watch.seats.take(token) else { continue };
            let next = match connection.stage {
                // A request has come in this moment: somebody else has to go.
                Stage::Idle if socket::has_unread(connection.number()) => {
                    self.watch.seats.put(connection);
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

    /// Whether a body can grow by so many bytes, perhaps because others that are further behind were refused for it.
    pub(crate) fn make_room_for_body(&mut self, patience: Patience, spool: &Spool, bytes: usize) -> bool {
        while !spool.has_room(bytes) {
            let behind = |it: &Connection| match &it.stage {
                Stage::Body(incoming) if incoming.spool.is_filed() && !it.is_whole => Some(it.patience),
                _ => None,
            };
            let behind = |it: &Connection| behind(it).filter(|one| *one < patience && one.is_behind());
            let Some(token) = self.watch.seats.least(behind) else { return false };
            let Some(other) = self.watch.seats.take(token) else { return false };
            self.watch.cut_off.fetch_add(1, Relaxed);
            self.refuse(other, 503);
        }
        true
    }

    /// Cuts clients off that are behind with their answers, until there is room for so many bytes of another one. Runs no
    /// Ruby code.
    pub(crate) fn make_room_for_answer(&self, bytes: usize) {
        while !FILES.has_room(bytes) && self.watch.cut_off_one() {}
    }

    /// A line in the log for all that were closed since the last one.
    pub(crate) fn tell_of_pressure(&self) {
        let count = self.watch.cut_off.swap(0, Relaxed);
        if count > 0 {
            let be = if count == 1 { "connection was" } else { "connections were" };
            self.complain(&format!(
                "{count} {be} closed to make room for others: clients take all the descriptors, files or memory that they may"
            ));
        }
    }
}

impl Watch {
    /// Within the application: cuts off the answer of one client that is further behind than `than`.
    pub(crate) fn cut_off_one_behind(&self, than: Patience) -> bool {
        self.within_call(|| self.cut_off_slowest(|patience| patience < than)).unwrap_or(false)
    }

    /// The same within the server, whoever it is.
    fn cut_off_one(&self) -> bool {
        self.cut_off_slowest(|_| true)
    }

    fn cut_off_slowest(&self, wanted: impl Fn(Patience) -> bool) -> bool {
        let behind = |it: &Connection| {
            let patience = it.output.patience;
            let is_wanted = matches!(it.stage, Stage::Writing(_)) && it.output.has_spilled();
            (is_wanted && patience.is_behind() && wanted(patience)).then_some(patience)
        };
        let Some(token) = self.seats.least(behind) else { return false };
        let Some(connection) = self.seats.take(token) else { return false };
        self.close(connection, Next::Abort);
        self.cut_off.fetch_add(1, Relaxed);
        true
    }
}
