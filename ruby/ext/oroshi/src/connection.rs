//! A connection, and the seats in which connections wait for epoll.

use std::cell::UnsafeCell;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use oroshi_http1::RequestDecoder;

use crate::budget::{Descriptor, HEADS, Held};
use crate::output::Output;
use crate::patience::Patience;
use crate::poll::Interest;
use crate::request::Incoming;

/// What a connection waits for.
#[derive(Debug, Default)]
pub(crate) enum Stage {
    /// A request, of which no byte has come.
    #[default]
    Idle,
    /// The rest of a request's head.
    Head,
    /// The rest of a request's body.
    Body(Box<Incoming>),
    /// Room for the rest of an answer.
    Writing(Next),
    /// The peer's end: what it still sends is swallowed, so that it can read the answer.
    Lingering,
}

/// What becomes of a connection once an answer is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It waits for another request.
    Keep,
    /// It is closed; but as below if bytes are there that nobody has read.
    Close,
    /// It is closed once the peer has had time to read: there may be bytes of its request that nobody has read, and
    /// closing over those would reset the connection.
    Linger,
    /// It is cut off, visibly: the answer is incomplete.
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
    /// Bytes that were received and not used yet.
    pub(crate) input: Vec<u8>,
    pub(crate) output: Output,
    pub(crate) stage: Stage,
    /// When its patience ends, in milliseconds of the coarse clock.
    pub(crate) due_ms: u64,
    /// Of a body that is on its way.
    pub(crate) patience: Patience,
    pub(crate) interest: Interest,
    /// Whether the request at work is its last, as its client says.
    pub(crate) is_last: bool,
    /// Whether its socket is open in other processes: closing it here does not end it.
    pub(crate) must_shut: bool,
    /// Where it sits, once it has waited for anything.
    pub(crate) seat: Option<u64>,
    /// Whether there was a request on it.
    pub(crate) has_asked: bool,
    /// Whether its client was told to send its body.
    pub(crate) was_asked: bool,
    /// Whether all of its request's body has come, though its stage is [`Stage::Body`]: the watcher has read it.
    pub(crate) is_whole: bool,
    /// What `input` takes.
    held: Held,
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
            patience: Patience::default(),
            interest: Interest::None,
            is_last: false,
            must_shut: false,
            seat: None,
            has_asked: false,
            was_asked: false,
            is_whole: false,
            held: Held::none(&HEADS),
            _counted: Descriptor::new(),
        }
    }

    /// Counts what `input` takes while it waits. True: it takes more than before.
    pub(crate) fn count_input(&mut self) -> bool {
        self.held.set(self.input.capacity())
    }

    /// Whether a request is here already, and waits for the main thread.
    pub(crate) fn has_request(&self) -> bool {
        self.is_whole || matches!(self.stage, Stage::Idle) && !self.input.is_empty()
    }

    /// The socket's number.
    pub(crate) fn number(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Gives the socket away; it is no longer this connection's to close.
    pub(crate) fn into_socket(self) -> OwnedFd {
        self.socket
    }
}

/// Connections by token. A token is good for one connection only: an event that comes late finds nobody.
///
/// The main thread has them, and the watcher while they are lent to it (`watcher`): one at a time.
#[derive(Debug, Default)]
pub(crate) struct Seats(UnsafeCell<Table>);

// SAFETY: whoever uses them has them alone, by the exchange of a word in `watcher`, which also orders memory.
unsafe impl Sync for Seats {}

#[derive(Debug, Default)]
struct Table {
    all: Vec<Seat>,
    free: Vec<u32>,
    taken: usize,
}

#[derive(Debug, Default)]
struct Seat {
    generation: u32,
    connection: Option<Box<Connection>>,
}

impl Seats {
    /// How many seats belong to somebody.
    pub(crate) fn taken(&self) -> usize {
        self.table().taken
    }

    /// Takes a seat, to which a connection can be put. The token's lower half is below 2^31.
    pub(crate) fn reserve(&self) -> u64 {
        let table = self.table();
        table.taken += 1;
        let index = table.free.pop().unwrap_or_else(|| {
            table.all.push(Seat::default());
            table.all.len() as u32 - 1
        });
        u64::from(table.all[index as usize].generation) << 32 | u64::from(index)
    }

    /// Seats a connection in the place that it has reserved.
    pub(crate) fn put(&self, connection: Box<Connection>) {
        if let Some(token) = connection.seat
            && let Some(seat) = self.seat(token)
        {
            seat.connection = Some(connection);
        }
    }

    /// Takes a connection out; the place stays its own.
    pub(crate) fn take(&self, token: u64) -> Option<Box<Connection>> {
        self.seat(token)?.connection.take()
    }

    /// Gives a place back.
    pub(crate) fn release(&self, token: u64) {
        if let Some(seat) = self.seat(token) {
            seat.generation = seat.generation.wrapping_add(1) & 0x7fff_ffff;
            seat.connection = None;
            let table = self.table();
            table.free.push(token as u32);
            table.taken -= 1;
        }
    }

    /// The tokens of seated connections for which `wanted` is true.
    pub(crate) fn tokens(&self, wanted: impl Fn(&Connection) -> bool) -> Vec<u64> {
        let connections = self.table().all.iter().filter_map(|seat| seat.connection.as_ref());
        connections.filter(|connection| wanted(connection)).filter_map(|connection| connection.seat).collect()
    }

    /// What `rank` gives for seated connections, where it gives anything, and their tokens.
    pub(crate) fn ranked<R>(&self, rank: impl Fn(&Connection) -> Option<R>) -> Vec<(R, u64)> {
        let connections = self.table().all.iter().filter_map(|seat| seat.connection.as_ref());
        connections.filter_map(|connection| Some((rank(connection)?, connection.seat?))).collect()
    }

    /// The token of the one for which `rank` gives the least.
    pub(crate) fn least<R: Ord>(&self, rank: impl Fn(&Connection) -> Option<R>) -> Option<u64> {
        self.ranked(rank).into_iter().min().map(|(_, token)| token)
    }

    #[expect(clippy::mut_from_ref, reason = "see above: one thread has the seats, and no two of these meet")]
    fn table(&self) -> &mut Table {
        // SAFETY: the caller has the seats alone, and no method keeps what this gives beyond its end.
        unsafe { &mut *self.0.get() }
    }

    fn seat(&self, token: u64) -> Option<&mut Seat> {
        self.table().all.get_mut(token as u32 as usize).filter(|seat| seat.generation == (token >> 32) as u32)
    }
}
