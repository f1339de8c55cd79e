//! Where a connection goes when its answer is out, or when it has to wait: into the epoll set, to its end, or away.

use crate::connection::{Connection, Next, Stage};
use crate::engine::Engine;
use crate::poll::Interest;
use crate::socket;

/// How long a peer may take to read an answer that it did not wait for.
pub(crate) const LINGER_MS: u64 = 2000;

impl Engine<'_> {
    /// An answer is on its way: what of it is not out yet goes first, then the connection goes where it is to go.
    pub(crate) fn send_off(&mut self, mut connection: Box<Connection>, next: Next) {
        if next == Next::Abort {
            return self.close(connection, next);
        }
        if connection.output.is_empty() {
            return self.settle(connection, next);
        }
        connection.stage = Stage::Writing(next);
        connection.due_ms = connection.output.patience.over_ms();
        self.turn(connection, Interest::Write);
    }

    /// An answer is out.
    pub(crate) fn settle(&mut self, mut connection: Box<Connection>, next: Next) {
        // A unix socket's peer reads all that was sent whatever comes behind it; so who closes itself need not be asked there.
        let asks = next == Next::Close && (connection.peer.is_some() || !connection.is_last);
        let next = if asks && socket::has_unread(connection.number()) { Next::Linger } else { next };
        match next {
            Next::Keep => {
                connection.stage = Stage::Idle;
                connection.due_ms = self.now_ms + self.worker.settings.keep_alive_ms;
                let ready = (!connection.input.is_empty()).then(|| self.seat(&mut connection));
                self.waiting.extend(ready);
                self.turn(connection, Interest::Read);
            }
            Next::Linger => self.linger(connection, LINGER_MS),
            Next::Close | Next::Abort => self.close(connection, next),
        }
    }

    /// Ends the sending side, and waits for the peer's end for so long.
    pub(crate) fn linger(&mut self, mut connection: Box<Connection>, most_ms: u64) {
        socket::shut_sending(connection.number());
        connection.stage = Stage::Lingering;
        connection.input = Vec::new();
        connection.due_ms = self.now_ms + most_ms;
        self.turn(connection, Interest::Read);
    }

    /// Has a connection wait for bytes.
    pub(crate) fn park(&mut self, connection: Box<Connection>) {
        self.turn(connection, Interest::Read);
    }

    fn turn(&mut self, mut connection: Box<Connection>, to: Interest) {
        let token = self.seat(&mut connection);
        let is_new = connection.interest == Interest::None;
        if connection.interest != to {
            if self.poll.turn(connection.number(), token, connection.interest, to).is_err() {
                // No room for another watch: this one cannot be served.
                return self.close(connection, Next::Abort);
            }
            connection.interest = to;
        }
        let listener = connection.listener;
        let has_more = connection.count_input();
        self.watch.seats.put(connection);
        if is_new {
            self.let_others_accept(listener);
        }
        if has_more {
            self.bound_heads();
        }
    }

    fn seat(&mut self, connection: &mut Connection) -> u64 {
        match connection.seat {
            Some(token) => token,
            None => {
                let token = self.watch.seats.reserve();
                self.worker.slot.keep(self.watch.seats.taken());
                (connection.seat, self.fresh_seat) = (Some(token), Some(token));
                token
            }
        }
    }

    pub(crate) fn close(&mut self, connection: Box<Connection>, next: Next) {
        self.watch.close(connection, next);
    }

    /// Gives back the place of a connection that has gone, if it had one.
    pub(crate) fn release(&mut self, seat: Option<u64>) {
        self.watch.release(seat);
    }
}
