//! Listeners, and the connections that come from them.
//!
//! One connection is taken at a time and served before the next is taken: there are other workers, who may have nothing to
//! do. When the worker stops, its copies of the listeners are closed at once, so that nobody waits for it.

use std::io;
use std::os::fd::RawFd;

use crate::connection::Connection;
use crate::engine::Engine;
use crate::poll::Poll;
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
}

/// Tokens with this bit are listeners, by number.
pub(crate) const LISTENER: u64 = 1 << 63;
/// So many new connections are served before those that are there already get their turn.
const ACCEPTS: usize = 8;

/// Prepares inherited listeners and adds them to the set. An error says which, and what could not be done.
pub(crate) fn prepare(numbers: &[RawFd], poll: &Poll) -> Result<Vec<Listener>, (String, io::Error)> {
    let prepare = |(index, &number): (usize, &RawFd)| {
        let place = socket::prepare_listener(number)
            .and_then(|place| poll.add_listener(number, LISTENER | index as u64).map(|()| place))
            .map_err(|error| (format!("cannot listen on descriptor {number}"), error))?;
        Ok(Listener { number, place, ready: false, paused: false })
    };
    numbers.iter().enumerate().map(prepare).collect()
}

impl Engine<'_> {
    /// epoll says so.
    pub(crate) fn listener_is_ready(&mut self, token: u64) {
        if let Some(listener) = self.listeners.get_mut((token & !LISTENER) as usize) {
            listener.ready = self.stopping.is_none();
        }
    }

    /// Whether a listener waits for the next sweep.
    pub(crate) fn has_paused_listener(&self) -> bool {
        self.listeners.iter().any(|listener| listener.paused)
    }

    /// Whether there may be a connection to take.
    pub(crate) fn has_ready_listener(&self) -> bool {
        self.listeners.iter().any(|listener| listener.ready)
    }

    /// No connection can be taken for now.
    fn pause(&mut self, index: usize, error: &io::Error) {
        let listener = &mut self.listeners[index];
        listener.ready = false;
        listener.paused = true;
        self.poll.remove(listener.number);
        self.complain(&format!("no new connection can be taken: {error}; trying again in a second"));
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
        for listener in &mut self.listeners {
            listener.ready = false;
            self.poll.remove(listener.number);
            socket::close(listener.number);
        }
    }

    /// Takes new connections and reads what they have to say: a few, and none while there is something else to do.
    pub(crate) fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            let mut any = false;
            for index in 0..self.listeners.len() {
                if !self.listeners[index].ready {
                    continue;
                }
                let listener = &self.listeners[index];
                match socket::accept(listener.number, &listener.place) {
                    Ok((socket, peer)) => {
                        any = true;
                        let mut connection = Box::new(Connection::new(socket, index, peer));
                        connection.due_ms = self.now_ms + self.worker.settings.timeout_ms;
                        self.guarded(|engine| engine.read(connection));
                    }
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    // Nobody is left; epoll says when somebody comes.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.listeners[index].ready = false,
                    Err(error) => self.pause(index, &error),
                }
            }
            if !any || self.leave.is_some() || self.worker.stop.get() != Stop::No {
                return;
            }
        }
    }
}
