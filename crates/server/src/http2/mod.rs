//! HTTP/2: a connection whose streams are exchanges.
//!
//! One task per connection polls the socket, decodes, and polls the handlers of woken streams. All that they write
//! goes into the one output of the connection, which leaves in one write per turn of the task.
//!
//! 1. `stream`: one exchange. `head`: its request's head. `hand_off`: the stream as a socket, for tunnels.
//! 2. `connection`: the task. `slots`: its streams and handlers. `ready`: their wakers.

mod connection;
mod hand_off;
mod head;
mod ready;
mod slots;
mod stream;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use oroshi_core::{Deadline, HasDeadlines};
use oroshi_http2 as codec;
use oroshi_http2::PREFACE;

pub(crate) use connection::{serve, take_turn};
pub(crate) use hand_off::Pair;
pub(crate) use head::OwnedHead;
pub(crate) use slots::{BeginStream, StreamTurns};
pub(crate) use stream::Stream;

use crate::settings::Settings;
use crate::wire::{OUTPUT_BYTES, Wire};

/// The settings and limits of a server. The dynamic table for heads keeps its default size: clients that
/// ignore the setting would break.
pub(crate) fn config(settings: &Settings) -> Arc<codec::Config> {
    Arc::new(codec::Config {
        limits: (&settings.limits).into(),
        extended_connect: settings.extended_connect,
        ..codec::Config::default()
    })
}

/// Whether a new connection may be HTTP/2: by ALPN, or without TLS because its first bytes are the preface, as far as
/// they have come.
pub(crate) fn may_begin(wire: &Wire, input: &[u8]) -> bool {
    let length = input.len().min(PREFACE.len());
    wire.core().settings.http2
        && wire
            .with_stream(|stream| match stream.is_tls() {
                true => stream.alpn() == Some(b"h2"),
                false => input[..length] == PREFACE[..length],
            })
            .unwrap_or(false)
}

/// The state that a connection's task and its streams share.
pub(crate) struct Shared {
    pub(super) wire: Rc<Wire>,
    codec: RefCell<codec::Connection>,
    ready: Arc<ready::Ready>,
    /// The slots of streams with waiting bytes, in the order of their turns.
    listed: RefCell<VecDeque<usize>>,
    /// No deadline of a stream is earlier than this tick.
    earliest: Cell<u64>,
    /// Whether a handler has asked to close the connection.
    closes: Cell<bool>,
    /// Bytes of the heads of all streams under way.
    heads: Rc<Cell<usize>>,
}

impl Shared {
    fn new(wire: Rc<Wire>) -> Self {
        let config = Arc::clone(&wire.core().http2);
        let codec = wire.append(|out| codec::Connection::server(config, out));
        Shared {
            wire,
            codec: RefCell::new(codec),
            ready: Arc::default(),
            listed: RefCell::default(),
            earliest: Cell::new(u64::MAX),
            closes: Cell::new(false),
            heads: Rc::default(),
        }
    }

    /// Calls `command` with the codec and the output.
    fn send<T>(&self, command: impl FnOnce(&mut codec::Connection, &mut Vec<u8>) -> T) -> T {
        // The task writes the output; a handler's own task may have called.
        self.ready.wake_task();
        self.wire.append(|out| command(&mut self.codec.borrow_mut(), out))
    }

    /// Returns how many bytes a stream may send without waiting for its turn.
    fn room(&self) -> usize {
        if self.listed.borrow().is_empty() { OUTPUT_BYTES.saturating_sub(self.wire.output_bytes()) } else { 0 }
    }

    /// Lets a stream send what waits in it, in its turn.
    fn list(&self, stream: &Stream) {
        if !stream.is_listed.replace(true) {
            self.listed.borrow_mut().push_back(stream.slot());
            self.ready.wake_task();
        }
    }

    fn set_deadline(&self, deadline: &Deadline, due: u64) {
        deadline.set(due);
        if due < self.earliest.get() {
            self.earliest.set(due);
            let core = self.wire.core();
            let own = &self.wire.connection().read;
            core.deadlines().set(own, due.min(own.due()));
        }
    }
}
