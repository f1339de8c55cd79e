//! A connection, and the table of connections that wait for epoll.

use std::cell::UnsafeCell;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use oroshi_http1::RequestDecoder;

use crate::budget::{Descriptor, HEADS, Reservation};
use crate::output::Output;
use crate::poll::Interest;
use crate::progress_deadline::ProgressDeadline;
use crate::request::Incoming;

/// The event that a connection waits for.
#[derive(Debug, Default)]
pub(crate) enum Stage {
    /// A request, of which no byte has arrived.
    #[default]
    Idle,
    /// The rest of a request's head.
    Head,
    /// The rest of a request's body.
    Body(Box<Incoming>),
    /// Room for the rest of an answer.
    Writing(Next),
    /// The peer's end. Its bytes are discarded, so that it can read the answer.
    Lingering,
}

/// The next state of a connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Wait for another request.
    Keep,
    /// Close it; but linger if unread bytes have arrived.
    Close,
    /// Close it once the peer has had time to read: closing over unread bytes of its request would reset the
    /// connection.
    Linger,
    /// Cut it off visibly: the answer is incomplete.
    Abort,
}

/// A client's connection.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    /// The number of its listener.
    pub(crate) listener: usize,
    pub(crate) peer: Option<IpAddr>,
    pub(crate) decoder: RequestDecoder,
    /// Bytes received but not used yet.
    pub(crate) input: Vec<u8>,
    pub(crate) output: Output,
    pub(crate) stage: Stage,
    /// Its deadline, in milliseconds of the coarse clock.
    pub(crate) due_ms: u64,
    /// The deadline of a body under way.
    pub(crate) deadline: ProgressDeadline,
    pub(crate) interest: Interest,
    /// Whether the current request is its last, as its client says.
    pub(crate) is_last: bool,
    /// Whether its socket is open in other processes, so that closing it here does not end it.
    pub(crate) must_shut: bool,
    /// Its place in the table, once it has waited.
    pub(crate) token: Option<u64>,
    /// Whether it had a request.
    pub(crate) has_asked: bool,
    /// When its request arrived, in milliseconds of the coarse clock; 0: just now, or unknown.
    pub(crate) arrived_ms: u64,
    /// Whether its client was told to send its body.
    pub(crate) was_asked: bool,
    /// Whether the watcher has read the whole body, though its stage is still [`Stage::Body`].
    pub(crate) is_whole: bool,
    /// The memory of `input`.
    held: Reservation,
    _counted: Descriptor,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd, listener: usize, peer: Option<IpAddr>) -> Self {
        Connection {
            socket,
            listener,
            peer,
            decoder: RequestDecoder::default(),
            input: Vec::new(),
            output: Output::default(),
            stage: Stage::Idle,
            due_ms: 0,
            deadline: ProgressDeadline::default(),
            interest: Interest::None,
            is_last: false,
            must_shut: false,
            token: None,
            has_asked: false,
            arrived_ms: 0,
            was_asked: false,
            is_whole: false,
            held: Reservation::none(&HEADS),
            _counted: Descriptor::new(),
        }
    }

    /// Reserves the memory of `input` while it waits. True: more than before.
    pub(crate) fn count_input(&mut self) -> bool {
        self.held.set(self.input.capacity())
    }

    /// Whether a request has arrived that waits for the main thread.
    pub(crate) fn has_request(&self) -> bool {
        self.is_whole || matches!(self.stage, Stage::Idle) && !self.input.is_empty()
    }

    /// Returns the socket's number.
    pub(crate) fn number(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Gives the socket away; dropping the connection no longer closes it.
    pub(crate) fn into_socket(self) -> OwnedFd {
        self.socket
    }
}

/// Connections by token. A token belongs to one connection only, so a late event finds none.
///
/// The main thread owns the table, and lends it to the watcher (`watcher`): one thread at a time.
#[derive(Debug, Default)]
pub(crate) struct Connections(UnsafeCell<Table>);

// SAFETY: one thread at a time uses it, by the exchange of a word in `watcher`, which also orders memory.
unsafe impl Sync for Connections {}

#[derive(Debug, Default)]
struct Table {
    all: Vec<Entry>,
    free: Vec<u32>,
    taken: usize,
    /// Reservations so far.
    reservations: u64,
}

#[derive(Debug, Default)]
struct Entry {
    generation: u32,
    /// How many entries were reserved before: less for an older connection.
    order: u64,
    connection: Option<Box<Connection>>,
}

impl Connections {
    /// Returns the number of reserved entries.
    pub(crate) fn taken(&self) -> usize {
        self.table().taken
    }

    /// Reserves an entry for a connection. The token's lower half is below 2^31.
    pub(crate) fn reserve(&self) -> u64 {
        let table = self.table();
        table.taken += 1;
        let index = table.free.pop().unwrap_or_else(|| {
            table.all.push(Entry::default());
            table.all.len() as u32 - 1
        });
        table.reservations += 1;
        table.all[index as usize].order = table.reservations;
        u64::from(table.all[index as usize].generation) << 32 | u64::from(index)
    }

    /// Puts a connection into its entry.
    pub(crate) fn put(&self, connection: Box<Connection>) {
        if let Some(token) = connection.token
            && let Some(entry) = self.entry(token)
        {
            entry.connection = Some(connection);
        }
    }

    /// Takes a connection out; its entry stays reserved.
    pub(crate) fn take(&self, token: u64) -> Option<Box<Connection>> {
        self.entry(token)?.connection.take()
    }

    /// Releases an entry.
    pub(crate) fn release(&self, token: u64) {
        if let Some(entry) = self.entry(token) {
            entry.generation = entry.generation.wrapping_add(1) & 0x7fff_ffff;
            entry.connection = None;
            let table = self.table();
            table.free.push(token as u32);
            table.taken -= 1;
        }
    }

    /// Returns the tokens of connections for which `wanted` is true.
    pub(crate) fn tokens(&self, wanted: impl Fn(&Connection) -> bool) -> Vec<u64> {
        let connections = self.table().all.iter().filter_map(|entry| entry.connection.as_ref());
        connections.filter(|connection| wanted(connection)).filter_map(|connection| connection.token).collect()
    }

    /// Returns the connections that have a `rank`, with their tokens. Of equals the older one is less: deadlines are in
    /// milliseconds, in which a crowd may come and a client after it.
    pub(crate) fn ranked<R>(&self, rank: impl Fn(&Connection) -> Option<R>) -> Vec<((R, u64), u64)> {
        let ranked = |entry: &Entry| {
            let connection = entry.connection.as_ref()?;
            Some(((rank(connection)?, entry.order), connection.token?))
        };
        self.table().all.iter().filter_map(ranked).collect()
    }

    /// Returns the token of the connection with the least `rank`.
    pub(crate) fn least<R: Ord>(&self, rank: impl Fn(&Connection) -> Option<R>) -> Option<u64> {
        self.ranked(rank).into_iter().min().map(|(_, token)| token)
    }

    #[expect(clippy::mut_from_ref, reason = "see above: one thread has the connections, and no two of these meet")]
    fn table(&self) -> &mut Table {
        // SAFETY: the caller has the table alone, and no method keeps the reference.
        unsafe { &mut *self.0.get() }
    }

    fn entry(&self, token: u64) -> Option<&mut Entry> {
        self.table().all.get_mut(token as u32 as usize).filter(|entry| entry.generation == (token >> 32) as u32)
    }
}
