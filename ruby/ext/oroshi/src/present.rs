//! The exchange that the application currently works on, for its Ruby objects: the socket to give away, the body in
//! pieces.
//!
//! Each serving thread has one. Each request of the process has a number of its own. A caller with an old number, or an
//! old hijack object, is refused, so a late call never reaches another request's socket. Callers may be on any thread.

use magnus::{Error, Ruby};
use rb_sys::VALUE;

use crate::connection::Connection;
use crate::scoreboard::MOST_THREADS;
use crate::stream::Stream;
use crate::worker::{Worker, active};

/// The current exchange.
#[derive(Debug, Default)]
pub(crate) struct CurrentExchange {
    /// Counts requests, in steps of [`MOST_THREADS`] from the thread's number on; late callers have an old number.
    pub(crate) number: u64,
    /// The connection, while the application works and it has not been given away.
    pub(crate) connection: Option<Box<Connection>>,
    /// The object in `rack.hijack`. The exchange's stack keeps it alive while the application works.
    pub(crate) hijack: VALUE,
    pub(crate) hijacked: bool,
    /// The object in `rack.early_hints`, likewise; 0 without one.
    pub(crate) hints: VALUE,
    /// The object in `oroshi.io_bound`, likewise.
    pub(crate) io_bound: VALUE,
    /// The environment, for `rack.hijack_io`; 0 before it exists.
    pub(crate) env: VALUE,
    /// The number of the epoll set.
    pub(crate) poll: i32,
    pub(crate) stream: Option<Stream>,
}

impl CurrentExchange {
    /// The exchange of a thread that has had none.
    pub(crate) fn of_thread(thread: usize) -> Self {
        CurrentExchange { number: thread as u64, ..CurrentExchange::default() }
    }

    /// Begins the exchange of a request.
    pub(crate) fn begin(&mut self, connection: Box<Connection>) {
        self.number += MOST_THREADS as u64;
        self.connection = Some(connection);
        self.hijacked = false;
    }

    /// Forgets the request's objects, which its stack no longer keeps alive.
    pub(crate) fn forget_objects(&mut self) {
        (self.env, self.hijack, self.hints, self.io_bound) = (0, 0, 0, 0);
    }
}

/// Returns the serving thread whose request has this number, or had it.
pub(crate) fn of_number(number: u64) -> Option<&'static Worker> {
    active((number % MOST_THREADS as u64) as usize)
}

/// Returns the serving thread whose current exchange is `wanted`.
pub(crate) fn find(wanted: impl Fn(&CurrentExchange) -> bool) -> Option<&'static Worker> {
    let is_wanted = |worker: &&Worker| worker.present.try_borrow().is_ok_and(|present| wanted(&present));
    (0..MOST_THREADS).filter_map(active).find(is_wanted)
}

/// Returns the error for calls that come too late.
pub(crate) fn too_late(ruby: &Ruby, what: &str) -> Error {
    Error::new(ruby.exception_io_error(), format!("{what}: its request is over"))
}
