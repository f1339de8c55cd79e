//! The connection as its users see it.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use oroshi_http2::{PeerSettings, Request};
use oroshi_net as net;

use crate::config::Config;
use crate::error::{ConnectionError, Error};
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
    shared: Rc<Shared>,
}

struct Shared;

/// Room for one stream. Dropping it gives the room to another.
pub struct Place {
    connection: Connection,
}

impl Connection {
    /// Starts a connection on a socket: sends the preface and the settings, and spawns the task that reads and writes.
    ///
    /// # Panics
    /// Outside a runtime whose tasks stay on their thread.
    pub fn start(stream: net::Stream, config: &Config, watch: impl Watch) -> Self {
        let _ = (stream, config, watch);
        unimplemented!()
    }

    /// Returns how many streams may begin now: the limit of the peer and of the settings, less those under way and those
    /// reserved. 1 before the peer's settings have come; 0 once the connection takes no more streams, and while too much
    /// output waits for the socket.
    #[must_use]
    pub fn room(&self) -> usize {
        unimplemented!()
    }

    /// Returns the most streams at once, or `None` before the peer's settings have come.
    #[must_use]
    pub fn limit(&self) -> Option<usize> {
        unimplemented!()
    }

    /// Returns the number of streams under way and places reserved.
    #[must_use]
    pub fn under_way(&self) -> usize {
        unimplemented!()
    }

    /// Whether new streams may begin, now or once others have ended. False after a GOAWAY of either side, and when the
    /// connection has ended.
    #[must_use]
    pub fn is_open(&self) -> bool {
        unimplemented!()
    }

    /// Whether the connection has ended: its socket is closed.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        unimplemented!()
    }

    /// Returns why the connection has ended.
    #[must_use]
    pub fn end(&self) -> Option<Arc<ConnectionError>> {
        unimplemented!()
    }

    /// Reserves room for one stream; `None` without [`room`](Self::room).
    #[must_use]
    pub fn reserve(&self) -> Option<Place> {
        unimplemented!()
    }

    /// Ends the connection in good order: no stream begins from now on, and those under way go on.
    pub fn close(&self) {
        unimplemented!()
    }

    /// Makes the next write ask the kernel first whether the peer has closed the connection: for a request that cannot
    /// be sent again, on a connection that was idle. Without it a request can go out just after the peer's close.
    pub fn check(&self) {
        unimplemented!()
    }

    /// Returns since when the connection has no stream and no reserved place, nanoseconds of
    /// [`oroshi_net::monotonic_ns`].
    #[must_use]
    pub fn idle_since(&self) -> Option<u64> {
        unimplemented!()
    }

    /// Returns when bytes last came, or else when the connection began, nanoseconds of [`oroshi_net::monotonic_ns`].
    #[must_use]
    pub fn heard_at(&self) -> u64 {
        unimplemented!()
    }

    /// Returns the remote address; `None` for a unix socket.
    #[must_use]
    pub fn remote_address(&self) -> Option<SocketAddr> {
        unimplemented!()
    }

    /// Returns the settings that the peer has announced.
    #[must_use]
    pub fn peer(&self) -> PeerSettings {
        unimplemented!()
    }
}

impl Place {
    /// Returns the connection.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Begins a request. `end`: it has neither body nor trailers.
    ///
    /// Names are written in lower case. The codec leaves out Host, and the fields of an HTTP/1.1 connection.
    ///
    /// # Errors
    /// [`Error::Send`]: a part of the head is invalid, or the connection takes no more streams since the place was
    /// reserved. Nothing was sent.
    pub fn begin<'f>(
        self,
        request: &Request<'_>,
        fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
        end: bool,
    ) -> Result<Stream, Error> {
        let _ = (request, fields.into_iter().count(), end);
        unimplemented!()
    }
}
