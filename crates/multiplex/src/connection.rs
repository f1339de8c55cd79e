//! The connection as its users see it.

use std::cell::RefCell;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use oroshi_http2::{PeerSettings, Request};
use oroshi_net as net;
use oroshi_net::Peer;

use crate::config::Config;
use crate::driver::Driver;
use crate::error::{ConnectionError, Error};
use crate::shared::{Shared, State};
use crate::stream::Stream;

/// An observer of a connection: usually its pool.
///
/// The connection's task calls it, at most once per turn for each function, and holds no borrow meanwhile: the observer
/// may call any function of the connection.
pub trait Watch: 'static {
    /// The connection may have room for streams that it had not, is idle now, or takes no more streams.
    fn changed(&self) {}

    /// Bytes have been received.
    fn received(&self, bytes: usize) {
        let _ = bytes;
    }

    /// The kernel or TLS took bytes.
    fn sent(&self, bytes: usize) {
        let _ = bytes;
    }
}

impl Watch for () {}

/// A connection. Cheap to clone; clones share everything.
///
/// It ends when it is closed, or when its last clone, [`Place`] and [`Stream`] are dropped.
#[derive(Clone)]
pub struct Connection {
    pub(crate) shared: Rc<Shared>,
}

/// Room for one stream. Dropping it gives the room to another.
pub struct Place {
    connection: Connection,
    /// Whether its stream has begun.
    is_used: bool,
}

impl Connection {
    /// Starts a connection on a socket: sends the preface and the settings, and spawns the task that reads and writes.
    ///
    /// # Panics
    /// Outside a runtime whose tasks stay on their thread.
    pub fn start(stream: net::Stream, config: &Config, watch: impl Watch) -> Self {
        let remote = match stream.peer_address() {
            Ok(Some(Peer::Tcp(address))) => Some(address),
            _ => None,
        };
        let state = RefCell::new(State::new(config));
        let shared = Rc::new(Shared { state, config: config.clone(), watch: Box::new(watch), remote });
        tokio::task::spawn_local(Driver::new(Rc::clone(&shared), stream));
        Connection { shared }
    }

    /// Returns how many streams may begin now: the limit of the peer and of the settings, less those under way and
    /// those reserved. 1 before the peer's settings have come; 0 once the connection takes no more streams, and while
    /// too much output waits for the socket.
    #[must_use]
    pub fn room(&self) -> usize {
        self.shared.state.borrow().room(self.shared.config.streams)
    }

    /// Returns the most streams at once, or `None` before the peer's settings have come.
    #[must_use]
    pub fn limit(&self) -> Option<usize> {
        let state = self.shared.state.borrow();
        state.codec.is_ready().then(|| state.limit(self.shared.config.streams))
    }

    /// Returns the number of streams under way and places reserved.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.shared.state.borrow().under_way()
    }

    /// Whether new streams may begin, now or once others have ended. False after a GOAWAY of either side, and when the
    /// connection has ended.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.shared.state.borrow().is_open()
    }

    /// Whether the connection has ended: its socket is closed.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.shared.state.borrow().end.is_some()
    }

    /// Returns why the connection has ended.
    #[must_use]
    pub fn end(&self) -> Option<Arc<ConnectionError>> {
        self.shared.state.borrow().end.clone()
    }

    /// Reserves room for one stream; `None` without [`room`](Self::room).
    #[must_use]
    pub fn reserve(&self) -> Option<Place> {
        let mut state = self.shared.state.borrow_mut();
        if state.room(self.shared.config.streams) == 0 {
            return None;
        }
        state.reserved += 1;
        Some(Place { connection: self.clone(), is_used: false })
    }

    /// Ends the connection in good order: it gives no more places. Streams under way go on, and places that were given
    /// still begin one.
    pub fn close(&self) {
        self.shared.state.borrow_mut().close();
    }

    /// Makes the next write ask the kernel first whether the peer has closed the connection: for a request that cannot
    /// be sent again, on a connection that was idle. Without it a request can go out just after the peer's close.
    pub fn check(&self) {
        self.shared.state.borrow_mut().check = true;
    }

    /// Returns since when the connection has no stream and no reserved place, nanoseconds of
    /// [`oroshi_net::monotonic_ns`].
    #[must_use]
    pub fn idle_since(&self) -> Option<u64> {
        let state = self.shared.state.borrow();
        (state.under_way() == 0).then_some(state.idle_since)
    }

    /// Returns when bytes last came, or else when the connection began, nanoseconds of [`oroshi_net::monotonic_ns`].
    #[must_use]
    pub fn heard_at(&self) -> u64 {
        self.shared.state.borrow().heard_at
    }

    /// Returns the remote address; `None` for a unix socket.
    #[must_use]
    pub fn remote_address(&self) -> Option<SocketAddr> {
        self.shared.remote
    }

    /// Returns the settings that the peer has announced.
    #[must_use]
    pub fn peer(&self) -> PeerSettings {
        *self.shared.state.borrow().codec.peer()
    }
}

impl Place {
    /// Returns the connection.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Begins a request. `end`: it has neither body nor trailers. `fields` must not call the connection.
    ///
    /// Names are written in lower case. The codec leaves out Host, and the fields of an HTTP/1.1 connection.
    ///
    /// # Errors
    /// [`Error::Send`]: a part of the head is invalid, or the peer takes no more streams since the place was reserved.
    /// [`Error::Connection`]: the connection has ended. Nothing was sent.
    pub fn begin<'f>(
        mut self,
        request: &Request<'_>,
        fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
        end: bool,
    ) -> Result<Stream, Error> {
        let mut state = self.connection.shared.state.borrow_mut();
        if let Some(cause) = &state.end {
            return Err(Error::Connection { cause: Arc::clone(cause), written: false });
        }
        state.open_output();
        let (begun_at, number) = (state.end_position(), state.slots.next());
        let State { codec, out, .. } = &mut *state;
        let id = codec.send_request(out, request, fields, end, number)?;
        let slot = state.slots.take(id);
        slot.begun_at = begun_at;
        slot.done = end;
        if end {
            state.mark(number, id);
        }
        state.wake_task();
        drop(state);
        self.is_used = true;
        Ok(Stream::new(self.connection.clone(), number, id))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.connection.shared.state.borrow_mut();
        state.reserved -= 1;
        if !self.is_used {
            state.note_ended();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // This handle and the task's: nobody is left.
        if Rc::strong_count(&self.shared) == 2 {
            self.shared.state.borrow_mut().wake_task();
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("remote", &self.shared.remote)
            .field("under_way", &self.under_way())
            .field("is_open", &self.is_open())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("connection", &self.connection).finish_non_exhaustive()
    }
}
