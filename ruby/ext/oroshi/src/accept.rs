//! Accepts connections from the listeners.
//!
//! A worker serves each connection before it accepts the next, because other workers may be idle. Only if no worker is
//! idle, it accepts several connections without a request together (`accept_some`). A worker that keeps a connection
//! lets other workers accept first (`let_others_accept`), and leaves new ones to idle workers that keep fewer
//! (`leave_to_a_freer_worker`).
//!
//! While a worker serves one of its kept connections, its others wait. If that takes long and another worker is idle,
//! the worker answers, then closes the connection, so that the client reconnects to an idle worker
//! (`is_better_off_elsewhere`). If one call takes very
//! long, the watcher hands whole requests to other workers (`take_handed_over`). A stopping worker closes its copies of
//! the listeners at once, so that no client waits for it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::FileExt as _;
use std::time::Instant;

use oroshi_http1::{RequestDecoder, RequestEvent};

use crate::budget::has_room_for_connection;
use crate::clock;
use crate::connection::{Connection, Stage};
use crate::engine::{Engine, QUEUE};
use crate::exchange::Body;
use crate::handover::Pending;
use crate::output::{FileRest, Output};
use crate::peers::LEFT_FOR;
use crate::poll::Poll;
use crate::progress_deadline::ProgressDeadline;
use crate::request::{Spool, skip};
use crate::socket::{self, SocketAddress};
use crate::stop::Stop;

/// A socket that connections come from.
#[derive(Debug)]
pub(crate) struct Listener {
    number: RawFd,
    pub(crate) address: SocketAddress,
    /// Whether a connection may be waiting.
    ready: bool,
    /// Descriptors or memory have run out: until the next sweep, epoll would only repeat the event.
    paused: bool,
    /// Since when a waiting connection is left to another worker.
    left_since: Option<Instant>,
    /// Whether this worker still has it open.
    pub(crate) is_open: bool,
}

/// Marks tokens of listeners; the other bits are the listener's number.
pub(crate) const LISTENER: u64 = 1 << 63;
/// An application that takes this long per request is slow: reconnecting costs little beside it.
const SLOW_MS: u64 = 8;
/// A shorter wait cannot be told from the clock's ticks.
const LEAST_WAIT_MS: u64 = 8;
/// How long a refusing listener must have been quiet before it is closed: a connected client has sent its request by
/// then.
const QUIET_MS: u64 = 200;
/// Minimum time that a connection handed over between two requests may stay quiet.
const MIN_QUIET_MS: u64 = 1000;
/// New connections served before the present ones get their turn.
const ACCEPTS: usize = 8;
/// New connections without a request accepted in a row.
const QUIET_ACCEPTS: usize = 64;

/// Prepares inherited listeners and adds them to the epoll set. The error names the listener and the failed step.
pub(crate) fn prepare(numbers: &[RawFd], poll: &Poll) -> Result<Vec<Listener>, (String, io::Error)> {
    let prepare = |(index, &number): (usize, &RawFd)| {
        let address = socket::prepare_listener(number)
            .and_then(|address| poll.add_listener(number, LISTENER | index as u64).map(|()| address))
            .map_err(|error| (format!("cannot listen on descriptor {number}"), error))?;
        Ok(Listener { number, address, ready: false, paused: false, left_since: None, is_open: true })
    };
    numbers.iter().enumerate().map(prepare).collect()
}

impl Engine<'_> {
    /// Handles a listener's epoll event.
    pub(crate) fn listener_is_ready(&mut self, token: u64) {
        if let Some(listener) = self.listeners.get_mut((token & !LISTENER) as usize) {
            listener.ready = (self.stopping.is_none() || self.drains) && !self.rests;
        }
    }

    /// Whether a listener waits for the next sweep.
    pub(crate) fn has_paused_listener(&self) -> bool {
        self.listeners.iter().any(|listener| listener.paused)
    }

    /// Whether a connection may be waiting.
    pub(crate) fn has_ready_listener(&self) -> bool {
        self.queue_is_ready || self.listeners.iter().any(|listener| listener.ready)
    }

    /// Whether a listener is left to other workers for the moment.
    pub(crate) fn has_left_listener(&self) -> bool {
        self.listeners.iter().any(|listener| listener.left_since.is_some())
    }

    /// Handles a wake-up by another worker that leaves a connection to this one.
    pub(crate) fn called_to_the_listeners(&mut self) {
        if let Some(waker) = self.worker.peers.own_waker() {
            waker.clear();
        }
        let stopping = self.stopping.is_some() || self.rests;
        self.queue_is_ready = !stopping;
        for listener in self.listeners.iter_mut().filter(|listener| !listener.paused) {
            listener.ready = !stopping;
        }
    }

    /// Wakes an idle worker if clients may wait at a listener while kept connections have requests.
    pub(crate) fn call_for_help(&self) {
        if let Some(other) = self.worker.peers.freer_than(usize::MAX) {
            self.worker.peers.wake(other);
        }
    }

    /// Leaves a waiting connection to another worker, if one is idle and keeps fewer connections.
    fn leave_to_a_freer_worker(&mut self, index: usize) -> bool {
        let kept = self.watch.connections.taken();
        if kept == 0 && !self.has_siblings {
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

    /// Whether the client had better reconnect, to reach another worker: the application is slow, other kept
    /// connections wait here, and a worker is idle.
    pub(crate) fn is_better_off_elsewhere(&self, connection: &Connection) -> bool {
        if self.worker.slot.worked_ms() < SLOW_MS {
            return false;
        }
        let kept = self.watch.connections.taken() + usize::from(connection.token.is_none());
        kept > 1
            && self.worker.peers.freer_than(kept - 1).is_some()
            && !socket::has_unread(connection.number())
            && self.others_wait(connection.token)
    }

    /// Whether connections other than the one of `own` have work here.
    fn others_wait(&self, own: Option<u64>) -> bool {
        self.poll.peek().any(|token| token & LISTENER == 0 && Some(token) != own)
    }

    /// Takes a listener back that was left to others long enough.
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

    /// Stops accepting until the next sweep.
    fn pause(&mut self, index: usize, error: &io::Error) {
        let listener = &mut self.listeners[index];
        listener.ready = false;
        listener.paused = true;
        self.poll.remove(listener.number);
        self.complain(&format!("no new connection can be taken: {error}; trying again in a second"));
    }

    /// Moves this worker to the end of the listener's queue of waiting workers, because it has one more connection. The
    /// kernel wakes the first that sleeps. Otherwise the same worker would get every connection of a quiet time, and
    /// their later requests would wait for each other.
    pub(crate) fn let_others_accept(&mut self, index: usize) {
        let listener = &mut self.listeners[index];
        if listener.paused || listener.left_since.is_some() || self.stopping.is_some() || self.rests {
            return;
        }
        self.poll.remove(listener.number);
        // On its return epoll reports a waiting client at once, so no wake-up is lost.
        listener.ready = false;
        listener.paused = self.poll.add_listener(listener.number, LISTENER | index as u64).is_err();
    }

    /// Tries paused listeners again.
    pub(crate) fn resume(&mut self) {
        if self.stopping.is_some() || self.rests {
            return;
        }
        for (index, listener) in self.listeners.iter_mut().enumerate().filter(|(_, listener)| listener.paused) {
            listener.paused = self.poll.add_listener(listener.number, LISTENER | index as u64).is_err();
        }
    }

    /// Takes no connections from listeners and other workers until [`rejoin_listeners`](Self::rejoin_listeners).
    pub(crate) fn rest_from_listeners(&mut self) {
        self.poll.remove(self.worker.board.queue().number());
        self.queue_is_ready = false;
        for listener in self.listeners.iter_mut().filter(|listener| listener.is_open) {
            self.poll.remove(listener.number);
            (listener.ready, listener.paused, listener.left_since) = (false, false, None);
        }
    }

    /// Takes connections again.
    pub(crate) fn rejoin_listeners(&mut self) {
        self.queue_is_ready = self.poll.add_listener(self.worker.board.queue().number(), QUEUE).is_ok();
        for (index, listener) in self.listeners.iter_mut().enumerate().filter(|(_, listener)| listener.is_open) {
            listener.paused = self.poll.add_listener(listener.number, LISTENER | index as u64).is_err();
            listener.ready = !listener.paused;
        }
    }

    /// Leaves all listeners. New clients reach other workers, or are refused.
    pub(crate) fn leave_listeners(&mut self) {
        for index in 0..self.listeners.len() {
            if !self.listeners[index].is_open {
                continue;
            }
            self.poll.remove(self.listeners[index].number);
            // The kernel may have woken only this worker for the latest connections.
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

    /// Accepts the clients that had connected before the listeners refused new ones. True: none are left.
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
            // The kernel hides a TCP connection that has sent nothing yet (TCP_DEFER_ACCEPT).
            let quiet_ms = if matches!(listener.address, SocketAddress::Tcp(..)) { QUIET_MS } else { 0 };
            let since_ms = after_ms.min(self.now_ms.saturating_sub(self.accepted_ms));
            if is_empty && since_ms >= quiet_ms {
                self.close_listener(index);
            }
        }
        self.listeners.iter().all(|listener| !listener.is_open)
    }

    /// Takes one connection that another worker has handed over. False: there is none.
    pub(crate) fn take_handed_over(&mut self) -> bool {
        let queue = self.worker.board.queue();
        if socket::is_readable(queue.number()) {
            self.make_room_for_connection();
        }
        let handed = match queue.receive() {
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
        let peer = if matches!(listener.address, SocketAddress::Tcp(..)) {
            socket::peer_of(handed.socket.as_raw_fd())
        } else {
            None
        };
        let mut connection = Box::new(Connection::new(handed.socket, index, peer));
        connection.must_shut = handed.note.must_shut;
        connection.has_asked = handed.note.has_asked;
        connection.arrived_ms = handed.note.arrived_ms;
        let due_ms = handed.note.due_ms;
        connection.due_ms = due_ms.max(self.now_ms + MIN_QUIET_MS);
        let deadline = ProgressDeadline::with_left(handed.note.deadline_left_us);
        match handed.note.pending {
            Pending::Refusal => self.guarded(None, |engine| engine.refuse(connection, 503)),
            Pending::Rest(next) => {
                connection.input = handed.input;
                connection.output = Output::of_files(handed.files, deadline);
                self.guarded(None, |engine| engine.send_off(connection, next));
            }
            Pending::Whole => self.guarded(None, |engine| engine.serve_whole(connection, &handed.input, handed.files)),
            Pending::Request if handed.input.is_empty() => self.guarded(None, |engine| engine.read(connection)),
            Pending::Request => {
                let limits = (due_ms, deadline);
                self.guarded(None, |engine| engine.go_on_with(connection, &handed.input, handed.files, limits));
            }
        }
        true
    }

    /// Accepts new connections and reads their requests: a few at a time, and none while there is other work.
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

    /// Serves a request that another worker has received whole: `input` begins with its head.
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

    /// Continues a request that another worker has received in part: some of its head, or its head and some of its
    /// body. Its deadlines continue too.
    fn go_on_with(
        &mut self,
        mut connection: Box<Connection>,
        input: &[u8],
        body: Vec<FileRest>,
        (due_ms, deadline): (u64, ProgressDeadline),
    ) {
        let is_body = !body.is_empty();
        connection.was_asked = is_body;
        let mut more = self.take_requests(connection, input);
        let mut piece = vec![0; 64 * 1024];
        for mut rest in body {
            if rest.left > self.worker.settings.spool_bytes as u64 {
                // The body stays in its file: any size costs the same.
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
                connection.deadline = deadline;
                connection.due_ms = deadline.over_ms();
            }
            Stage::Head => connection.due_ms = due_ms,
            _ => return self.park(connection),
        }
        if connection.due_ms > self.now_ms {
            return self.park(connection);
        }
        // It might be handed on before the next sweep sees it.
        self.give_last_chance(connection);
    }

    /// Accepts one connection. If no worker is idle, also accepts those behind it until one has a request: a connection
    /// without a request is cheap, and its time begins. False: there is none.
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
        // A request that has just ended may have begun the rest of this thread: another has its place.
        let rests = self.worker.resting.get() && self.stopping.is_none();
        self.leave.is_some() || rests || !(self.worker.stop.get() == Stop::No || self.drains)
    }

    /// Returns when the bytes of a new TCP connection arrived, in milliseconds of the coarse clock, if the kernel must
    /// be asked: this worker has not rested since the last tick. At most once per tick, because the answer costs a
    /// system call. 0: just now, or unknown.
    fn arrival(&mut self, socket: RawFd) -> u64 {
        let now_ms = clock::coarse_ms();
        if now_ms == self.rested_ms || now_ms == self.asked_ms {
            return 0;
        }
        self.asked_ms = now_ms;
        let quiet_ms = socket::quiet_ms(socket).filter(|&quiet_ms| quiet_ms >= LEAST_WAIT_MS);
        quiet_ms.map_or(0, |quiet_ms| now_ms.saturating_sub(quiet_ms))
    }

    /// Accepts one connection and reads its request. False: there is none.
    fn accept_from(&mut self, index: usize) -> bool {
        let number = self.listeners[index].number;
        // Without a client that waits, no other is closed: it would be the latest one, which is about to ask.
        let waits = has_room_for_connection() || socket::is_readable(number);
        if waits && !self.make_room_for_connection() {
            self.pause(
                index,
                &io::Error::other("clients have as many descriptors as they may; allow more (ulimit -n)"),
            );
            return false;
        }
        let listener = &mut self.listeners[index];
        let accepted =
            if waits { socket::accept(number, &listener.address) } else { Err(io::ErrorKind::WouldBlock.into()) };
        match accepted {
            Ok((socket, peer)) => {
                let mut connection = Box::new(Connection::new(socket, index, peer));
                connection.due_ms = self.now_ms + self.worker.settings.timeout_ms;
                self.accepted_ms = self.now_ms;
                if peer.is_some() {
                    connection.arrived_ms = self.arrival(connection.number());
                }
                self.guarded(None, |engine| engine.read(connection));
                true
            }
            Err(error) if is_of_one_connection(&error) => true,
            // No more clients; epoll reports the next.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                listener.ready = false;
                // Nor will there be any: epoll would report a unix socket for ever.
                if listener.address == SocketAddress::Unix && self.worker.board.refuses_new() {
                    self.poll.remove(listener.number);
                }
                false
            }
            // Descriptors or memory ran out, or it is no listener any more: an immediate retry would not help.
            Err(error) => {
                self.pause(index, &error);
                false
            }
        }
    }
}

/// Whether the error belongs to the connection being accepted, which accept(2) passes on. The next one can be accepted.
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
