//! Moves connections on after their answer, or when they must wait: into the epoll set, to their end, or away.

use crate::connection::{Connection, Next, Stage};
use crate::engine::Engine;
use crate::poll::Interest;
use crate::socket;

/// How long a peer may take to read an answer that it did not wait for.
pub(crate) const LINGER_MS: u64 = 2000;

impl Engine<'_> {
    /// Sends the rest of an answer, then moves the connection to its next state.
    pub(crate) fn send_off(&mut self, mut connection: Box<Connection>, next: Next) {
        if next == Next::Abort {
            return self.close(connection, next);
        }
        if connection.output.is_empty() {
            return self.settle(connection, next);
        }
        connection.stage = Stage::Writing(next);
        connection.due_ms = connection.output.deadline.over_ms();
        self.turn(connection, Interest::Write);
    }

    /// Moves a connection on after its answer.
    pub(crate) fn settle(&mut self, mut connection: Box<Connection>, next: Next) {
        // A unix socket's peer can read all sent bytes even after a close, so a client that closes by itself need not
        // be waited for.
        let asks = next == Next::Close && (connection.peer.is_some() || !connection.is_last);
        let next = if asks && socket::has_unread(connection.number()) { Next::Linger } else { next };
        match next {
            Next::Keep => {
                connection.stage = Stage::Idle;
                connection.due_ms = self.now_ms + self.worker.settings.keep_alive_ms;
                let ready = (!connection.input.is_empty()).then(|| self.token_of(&mut connection));
                self.waiting.extend(ready);
                self.turn(connection, Interest::Read);
            }
            Next::Linger => self.linger(connection, LINGER_MS),
            Next::Close | Next::Abort => self.close(connection, next),
        }
    }

    /// Shuts down the sending side, and waits this long for the peer's end.
    pub(crate) fn linger(&mut self, mut connection: Box<Connection>, most_ms: u64) {
        socket::shut_sending(connection.number());
        connection.stage = Stage::Lingering;
        connection.input = Vec::new();
        connection.due_ms = self.now_ms + most_ms;
        self.turn(connection, Interest::Read);
    }

    /// Waits for bytes on a connection.
    pub(crate) fn park(&mut self, connection: Box<Connection>) {
        self.turn(connection, Interest::Read);
    }

    fn turn(&mut self, mut connection: Box<Connection>, to: Interest) {
        let token = self.token_of(&mut connection);
        let is_new = connection.interest == Interest::None;
        if connection.interest != to {
            if self.poll.turn(connection.number(), token, connection.interest, to).is_err() {
                // The epoll set is full: this connection cannot be served.
                return self.close(connection, Next::Abort);
            }
            connection.interest = to;
        }
        let listener = connection.listener;
        let has_more = connection.count_input();
        self.watch.connections.put(connection);
        if is_new {
            self.let_others_accept(listener);
        }
        if has_more {
            self.bound_heads();
        }
    }

    fn token_of(&mut self, connection: &mut Connection) -> u64 {
        match connection.token {
            Some(token) => token,
            None => {
                let token = self.watch.connections.reserve();
                self.worker.slot.keep(self.watch.connections.taken());
                (connection.token, self.fresh_token) = (Some(token), Some(token));
                token
            }
        }
    }

    pub(crate) fn close(&mut self, connection: Box<Connection>, next: Next) {
        self.watch.close(connection, next);
    }

    /// Releases the entry of a closed connection, if it had one.
    pub(crate) fn release(&mut self, token: Option<u64>) {
        self.watch.release(token);
    }
}
