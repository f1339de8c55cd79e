//! Listeners, and the connections that come from them.
//!
//! One connection is taken at a time and served before the next is taken: other workers may have nothing to do. Only where
//! no worker is idle, a worker takes connections without a request together (`accept_some`). A worker that keeps a
//! connection lets the others have their turn (`let_others_accept`), and leaves new ones to idle workers that keep fewer
//! (`leave_to_a_freer_worker`).
//!
//! Still, while a worker is busy with one of its kept connections, its others wait. If that takes long and another worker is
//! idle, the worker closes one in good form, after its answer (`is_better_off_elsewhere`). If one call takes very long, its
//! watcher hands whole requests over (`take_handed_over`). When the worker stops, it closes its copies of the listeners at
//! once, so that nobody waits for it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::FileExt as _;
use std::time::Instant;

use oroshi_http1::{RequestDecoder, RequestEvent};

use crate::connection::{Connection, Stage};
use crate::engine::Engine;
use crate::exchange::Body;
use crate::handover::Errand;
use crate::output::{FileRest, Output};
use crate::patience::Patience;
use crate::peers::LEFT_FOR;
use crate::poll::Poll;
use crate::request::{Spool, skip};
use crate::socket::{self, Place};
use crate::worker::Stop;

/// A socket that connections come from.
#[derive(Debug)]
pub(crate) struct Listener {
    number: RawFd,
    pub(crate) place: Place,
    /// Whether there may be a connection to take.
    ready: bool,
    /// Whether descriptors or memory have run out: until the next sweep, epoll would only say so again and again.
    paused: bool,
    /// Since when a connection that may be there is left to another worker.
    left_since: Option<Instant>,
    /// Whether this worker still has it.
    pub(crate) is_open: bool,
}

/// Tokens with this bit are listeners, by number.
pub(crate) const LISTENER: u64 = 1 << 63;
/// An application that takes so long for a request is slow: a new connection costs little beside it.
const SLOW_MS: u64 = 8;
/// How long a listener that refuses must have been quiet before it is closed: a client that is connected has sent its request by then.
const QUIET_MS: u64 = 200;
/// How long a connection that was handed over between two requests may be quiet at least.
const LEAST_MS: u64 = 1000;
/// So many new connections are served before those that are there already get their turn.
const ACCEPTS: usize = 8;
/// So many new connections without a request are taken in a row.
const QUIET_ACCEPTS: usize = 64;

/// Prepares inherited listeners and adds them to the set. An error says which, and what could not be done.
pub(crate) fn prepare(numbers: &[RawFd], poll: &Poll) -> Result<Vec<Listener>, (String, io::Error)> {
    let prepare = |(index, &number): (usize, &RawFd)| {
        let place = socket::prepare_listener(number)
            .and_then(|place| poll.add_listener(number, LISTENER | index as u64).map(|()| place))
            .map_err(|error| (format!("cannot listen on descriptor {number}"), error))?;
        Ok(Listener { number, place, ready: false, paused: false, left_since: None, is_open: true })
    };
    numbers.iter().enumerate().map(prepare).collect()
}

impl Engine<'_> {
    /// epoll says so.
    pub(crate) fn listener_is_ready(&mut self, token: u64) {
        if let Some(listener) = self.listeners.get_mut((token & !LISTENER) as usize) {
            listener.ready = self.stopping.is_none() || self.drains;
        }
    }

    /// Whether a listener waits for the next sweep.
    pub(crate) fn has_paused_listener(&self) -> bool {
        self.listeners.iter().any(|listener| listener.paused)
    }

    /// Whether there may be a connection to take.
    pub(crate) fn has_ready_listener(&self) -> bool {
        self.queue_is_ready || self.listeners.iter().any(|listener| listener.ready)
    }

    /// Whether a listener is left to other workers for the moment.
    pub(crate) fn has_left_listener(&self) -> bool {
        self.listeners.iter().any(|listener| listener.left_since.is_some())
    }

    /// Another worker leaves a connection to this one.
    pub(crate) fn called_to_the_listeners(&mut self) {
        if let Some(bell) = self.worker.peers.own_bell() {
            bell.quiet();
        }
        let stopping = self.stopping.is_some();
        self.queue_is_ready = !stopping;
        for listener in self.listeners.iter_mut().filter(|listener| !listener.paused) {
            listener.ready = !stopping;
        }
    }

    /// Somebody may wait at a listener, and kept connections have requests: wakes an idle worker, so that nobody waits for those.
    pub(crate) fn call_for_help(&self) {
        if let Some(other) = self.worker.peers.freer_than(usize::MAX) {
            self.worker.peers.wake(other);
        }
    }

    /// Leaves a connection that may be there to another worker, if one is idle and keeps fewer than this one.
    fn leave_to_a_freer_worker(&mut self, index: usize) -> bool {
        let kept = self.watch.seats.taken();
        if kept == 0 {
            return false;
        }
        let Some(other) = self.worker.peers.freer_than(kept) else { return false };
        let listener = &mut self.listeners[index];
        self.poll.remove(listener.number);
        listener.ready = false;
        listener.left_since = Some(Instant::now());
        self.worker.peers.wake(other);
        true
    }

    /// Whether the connection that is about to be answered had better be opened anew, at another worker: the application
    /// is slow, others that are kept here wait already, and elsewhere there is nothing to do.
    pub(crate) fn is_better_off_elsewhere(&self, connection: &Connection) -> bool {
        if self.worker.slot.worked_ms() < SLOW_MS {
            return false;
        }
        let kept = self.watch.seats.taken() + usize::from(connection.seat.is_none());
        kept > 1
            && self.worker.peers.freer_than(kept - 1).is_some()
            && !socket::has_unread(connection.number())
            && self.others_wait(connection.seat)
    }

    /// Whether other connections than the one of `own` have something to do here.
    fn others_wait(&self, own: Option<u64>) -> bool {
        self.poll.peek().any(|token| token & LISTENER == 0 && Some(token) != own)
    }

    /// Looks again at what was left to others long enough. Who then waits there still is taken.
    fn come_back(&mut self, index: usize) -> bool {
        let listener = &mut self.listeners[index];
        if listener.left_since.is_none_or(|since| since.elapsed() < LEFT_FOR) {
            return false;
        }
        listener.left_since = None;
        listener.paused = self.poll.add_listener(listener.number, LISTENER | index as u64).is_err();
        listener.ready = !listener.paused;
        listener.ready
    }

    /// No connection can be taken for now.
    fn pause(&mut self, index: usize, error: &io::Error) {
        let listener = &mut self.listeners[index];
        listener.ready = false;
        listener.paused = true;
        self.poll.remove(listener.number);
        self.complain(&format!("no new connection can be taken: {error}; trying again in a second"));
    }

    /// Goes to the end of the queue of workers that wait for this listener, because this one has a connection more to
    /// look after. The kernel wakes the first that sleeps: without this, the same worker would get every connection that
    /// comes while nothing else happens, and whoever comes later on one of them would wait for the others.
    pub(crate) fn let_others_accept(&mut self, index: usize) {
        let listener = &mut self.listeners[index];
        if listener.paused || listener.left_since.is_some() || self.stopping.is_some() {
            return;
        }
        self.poll.remove(listener.number);
        // Coming back, it is told at once if somebody waits there; so no wake is lost.
        listener.ready = false;
        listener.paused = self.poll.add_listener(listener.number, LISTENER | index as u64).is_err();
    }

    /// Tries again where connections could not be taken.
    pub(crate) fn resume(&mut self) {
        if self.stopping.is_some() {
            return;
        }
        for (index, listener) in self.listeners.iter_mut().enumerate().filter(|(_, listener)| listener.paused) {
            listener.paused = self.poll.add_listener(listener.number, LISTENER | index as u64).is_err();
        }
    }

    /// Takes no more connections. Who connects from now on finds another worker, or is refused.
    pub(crate) fn leave_listeners(&mut self) {
        for index in 0..self.listeners.len() {
            if !self.listeners[index].is_open {
                continue;
            }
            self.poll.remove(self.listeners[index].number);
            // Of all workers the kernel may have woken this one alone for who has connected just now.
            for _ in 0..ACCEPTS {
                if self.leave.is_some() || self.worker.stop.get() == Stop::Now || !self.accept_from(index) {
                    break;
                }
            }
            self.close_listener(index);
        }
    }

    fn close_listener(&mut self, index: usize) {
        let listener = &mut self.listeners[index];
        self.poll.remove(listener.number);
        (listener.ready, listener.paused, listener.left_since, listener.is_open) = (false, false, None, false);
        socket::close(listener.number);
    }

    /// Takes those who have connected before nobody could any more. True: there are none left.
    pub(crate) fn drain_listeners(&mut self, after_ms: u64) -> bool {
        for index in 0..self.listeners.len() {
            if !self.listeners[index].is_open {
                continue;
            }
            let mut is_empty = false;
            for _ in 0..ACCEPTS {
                is_empty = self.leave.is_none() && !self.accept_from(index);
                if is_empty || self.leave.is_some() {
                    break;
                }
            }
            let listener = &self.listeners[index];
            // A TCP connection that has said nothing yet is not seen: the kernel keeps it back (TCP_DEFER_ACCEPT).
            let quiet_ms = if matches!(listener.place, Place::Tcp(..)) { QUIET_MS } else { 0 };
            let since_ms = after_ms.min(self.now_ms.saturating_sub(self.accepted_ms));
            if is_empty && since_ms >= quiet_ms {
                self.close_listener(index);
            }
        }
        self.listeners.iter().all(|listener| !listener.is_open)
    }

    /// Takes one connection that another worker has handed over. False: there is none.
    pub(crate) fn take_handed_over(&mut self) -> bool {
        self.make_room_for_connection();
        let handed = match self.worker.board.queue().receive() {
            Ok(Some(handed)) => handed,
            Ok(None) => {
                self.queue_is_ready = false;
                return false;
            }
            Err(error) => {
                self.complain_now_and_then(&error.to_string());
                return true;
            }
        };
        let index = usize::from(handed.note.listener);
        let Some(listener) = self.listeners.get(index) else { return true };
        let peer =
            if matches!(listener.place, Place::Tcp(..)) { socket::peer_of(handed.socket.as_raw_fd()) } else { None };
        let mut connection = Box::new(Connection::new(handed.socket, index, peer));
        connection.must_shut = handed.note.must_shut;
        connection.has_asked = handed.note.has_asked;
        let due_ms = handed.note.due_ms;
        connection.due_ms = due_ms.max(self.now_ms + LEAST_MS);
        let patience = Patience::with_left(handed.note.patience_us);
        match handed.note.errand {
            Errand::Refusal => self.guarded(None, |engine| engine.refuse(connection, 503)),
            Errand::Rest(next) => {
                connection.input = handed.input;
                connection.output = Output::of_files(handed.files, patience);
                self.guarded(None, |engine| engine.send_off(connection, next));
            }
            Errand::Whole => self.guarded(None, |engine| engine.serve_whole(connection, &handed.input, handed.files)),
            Errand::Request if handed.input.is_empty() => self.guarded(None, |engine| engine.read(connection)),
            Errand::Request => {
                let limits = (due_ms, patience);
                self.guarded(None, |engine| engine.go_on_with(connection, &handed.input, handed.files, limits));
            }
        }
        true
    }

    /// Takes new connections and reads what they have to say: a few, and none while there is something else to do.
    pub(crate) fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            let mut any = false;
            for index in 0..self.listeners.len() {
                if self.accepts_no_more() {
                    return;
                }
                let take = self.come_back(index)
                    || self.listeners[index].ready && (self.drains || !self.leave_to_a_freer_worker(index));
                any |= take && self.accept_some(index);
            }
            if self.queue_is_ready && !self.accepts_no_more() {
                any |= self.take_handed_over();
            }
            if !any {
                return;
            }
        }
    }

    /// Serves a request that another worker has received whole: its head stands in `input`, and perhaps more behind it.
    fn serve_whole(&mut self, mut connection: Box<Connection>, input: &[u8], body: Vec<FileRest>) {
        let mut rest = input;
        let head = match RequestDecoder::default().decode(&self.worker.settings.limits, &mut rest) {
            Ok(Some(RequestEvent::Head(head))) => head,
            _ => return self.refuse(connection, 503),
        };
        let mut spool = Spool::new(self.worker.settings.spool_bytes);
        for file in body {
            if let Err(error) = spool.take_over(file) {
                self.complain_now_and_then(&format!("a request's body from another worker cannot be read: {error}"));
                return self.refuse(connection, 503);
            }
        }
        connection.input = rest.to_vec();
        self.exchange(connection, &head, Body::Spooled(&mut spool));
    }

    /// Goes on with what another worker has received of a request: a part of its head, or its head and a part of its body.
    /// The limits on its time go on too: when it is over, and the patience with its body.
    fn go_on_with(
        &mut self,
        mut connection: Box<Connection>,
        input: &[u8],
        body: Vec<FileRest>,
        (due_ms, patience): (u64, Patience),
    ) {
        let is_body = !body.is_empty();
        connection.was_asked = is_body;
        let mut more = self.take_requests(connection, input);
        let mut piece = vec![0; 64 * 1024];
        for mut rest in body {
            if rest.left > self.worker.settings.spool_bytes as u64 {
                // It stays in its file, however large that is: this costs no more than a small one.
                let Some(mut connection) = more.take() else { return };
                let one = &mut *connection;
                let Stage::Body(incoming) = &mut one.stage else { return self.refuse(connection, 503) };
                if !skip(&mut one.decoder, &self.worker.settings.limits, rest.left) {
                    return self.refuse(connection, 503);
                }
                incoming.spool.adopt(rest.file, rest.left);
                more = Some(connection);
                continue;
            }
            let file = File::from(rest.file);
            while rest.left > 0 {
                let Some(connection) = more.take() else { return };
                let most = piece.len().min(usize::try_from(rest.left).unwrap_or(piece.len()));
                match file.read_at(&mut piece[..most], rest.offset) {
                    Ok(count @ 1..) => {
                        (rest.offset, rest.left) = (rest.offset + count as u64, rest.left - count as u64);
                        more = self.take_requests(connection, &piece[..count]);
                    }
                    _ => return self.refuse(connection, 503),
                }
            }
        }
        let Some(mut connection) = more else { return };
        match connection.stage {
            Stage::Body(_) if is_body => {
                connection.patience = patience;
                connection.due_ms = patience.over_ms();
            }
            Stage::Head => connection.due_ms = due_ms,
            _ => return self.park(connection),
        }
        if connection.due_ms > self.now_ms {
            return self.park(connection);
        }
        // It might move on before the next sweep sees it.
        self.give_last_chance(connection);
    }

    /// Takes one connection. Where no worker is idle, also takes those behind it, until one has a request for the
    /// application: a connection without a request costs next to nothing, and its time begins. False: there is none.
    fn accept_some(&mut self, index: usize) -> bool {
        let before = self.requests;
        for taken in 0..QUIET_ACCEPTS {
            if !self.accept_from(index) {
                return taken > 0;
            }
            let has_called = self.requests != before;
            if has_called || self.accepts_no_more() || self.worker.peers.freer_than(usize::MAX).is_some() {
                break;
            }
        }
        true
    }

    fn accepts_no_more(&self) -> bool {
        self.leave.is_some() || !(self.worker.stop.get() == Stop::No || self.drains)
    }

    /// Takes one connection and reads what it has to say. False: there is none.
    fn accept_from(&mut self, index: usize) -> bool {
        if !self.make_room_for_connection() {
            self.pause(
                index,
                &io::Error::other("clients have as many descriptors as they may; allow more (ulimit -n)"),
            );
            return false;
        }
        let listener = &mut self.listeners[index];
        match socket::accept(listener.number, &listener.place) {
            Ok((socket, peer)) => {
                let mut connection = Box::new(Connection::new(socket, index, peer));
                connection.due_ms = self.now_ms + self.worker.settings.timeout_ms;
                self.accepted_ms = self.now_ms;
                self.guarded(None, |engine| engine.read(connection));
                true
            }
            Err(error) if is_of_one_connection(&error) => true,
            // Nobody is left; epoll says when somebody comes.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                listener.ready = false;
                // Or nobody can any more: of a unix socket epoll would say so on and on.
                if listener.place == Place::Unix && self.worker.board.refuses_new() {
                    self.poll.remove(listener.number);
                }
                false
            }
            // Descriptors or memory have run out, or it is no listener any more: trying again at once would not help.
            Err(error) => {
                self.pause(index, &error);
                false
            }
        }
    }
}

/// Whether only the connection that was to be taken has failed, before it was: accept(2) passes its errors on. The next
/// one can be taken.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNABORTED
                | libc::EINTR
                | libc::EPERM
                | libc::EPROTO
                | libc::ENOPROTOOPT
                | libc::ENONET
                | libc::ENETDOWN
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::EHOSTUNREACH
                | libc::ETIMEDOUT
        )
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_one_connection_are_passed_over() {
        let passed_over = |number| is_of_one_connection(&io::Error::from_raw_os_error(number));
        for number in [libc::ECONNABORTED, libc::EPROTO, libc::EPERM, libc::EHOSTUNREACH] {
            assert!(passed_over(number), "{number}");
        }
        for number in [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EAGAIN, libc::EBADF] {
            assert!(!passed_over(number), "{number}");
        }
    }
}
