//! One request and its answer, as the handler sees it.

use std::net::SocketAddr;
use std::rc::Rc;

use oroshi_http1::{RequestDecoder, RequestHead};
use oroshi_net::{Peer, Stream};

use crate::body::RequestBody;
use crate::core::Core;
use crate::error::Error;
use crate::reply::Reply;
use crate::room::Place;
use crate::wire::Wire;

/// What answers requests. One value serves all connections of a core, so it keeps what it changes in cells; its
/// futures need not be `Send`.
///
/// A handler may be dropped at any of its waits: when the peer stops reading or resets, or a shutdown's time is over.
/// When it returns `Ok` without having answered, 500 is answered in its place; for `Err` see [`Error`].
///
/// An `async` closure over `&mut Exchange<'_>` is a handler.
pub trait Handler: 'static {
    /// Answers one request.
    fn handle(&self, exchange: &mut Exchange<'_>) -> impl Future<Output = Result<(), Error>>;

    /// Is told of what the server answers itself, as it never became a request: a head that is malformed, over a limit, or too slow.
    fn refused(&self, _: &Refused<'_>) {}
}

/// What never became a request.
#[derive(Clone, Copy, Debug)]
pub struct Refused<'a> {
    /// Why.
    pub error: &'a Error,
    /// What it is answered.
    pub status: u16,
    /// What has come of it, from its first byte on; anything may stand there.
    pub bytes: &'a [u8],
    /// Who sent it, over TCP.
    pub remote: Option<SocketAddr>,
}

impl<F> Handler for F
where
    F: AsyncFn(&mut Exchange<'_>) -> Result<(), Error> + 'static,
{
    fn handle(&self, exchange: &mut Exchange<'_>) -> impl Future<Output = Result<(), Error>> {
        self(exchange)
    }
}

/// One request and its answer.
///
/// The three parts are fields so that they can be borrowed apart: the head stays readable while the body is read, and
/// a body can be read and answered at the same time.
///
/// ```
/// # use oroshi_server::{Error, Exchange};
/// async fn echo(exchange: &mut Exchange<'_>) -> Result<(), Error> {
///     exchange.reply.begin(200, [("Content-Type", &b"application/octet-stream"[..])], None)?;
///     while let Some(piece) = exchange.body.chunk().await? {
///         exchange.reply.write(piece).await?;
///     }
///     exchange.reply.finish()
/// }
/// ```
#[derive(Debug)]
pub struct Exchange<'a> {
    /// The request's head.
    pub head: RequestHead<'a>,
    /// The request's body.
    pub body: RequestBody<'a>,
    /// The answer.
    pub reply: Reply<'a>,
    wire: &'a Wire,
}

impl<'a> Exchange<'a> {
    pub(crate) fn new(
        wire: &'a Wire,
        decoder: &'a mut RequestDecoder,
        head: RequestHead<'a>,
        rest: &'a [u8],
        due: u64,
    ) -> Self {
        let reply = Reply::new(wire, &head);
        let body = RequestBody::new(wire, decoder, &head, rest, due);
        Exchange { head, body, reply, wire }
    }

    /// Leaves HTTP: answers, and takes the connection over, with the bytes that the peer sent ahead behind its request.
    ///
    /// 101 answers a request with [`upgrade`](RequestHead::upgrade); the fields must name the new protocol in
    /// `Upgrade`, and `Connection: upgrade` is added. A status of 200 to 299 answers CONNECT. The request's body, if
    /// it has one, must have been read to its end before.
    ///
    /// The stream may be used within the handler or be moved to a task of its own. This crate's time limits no longer
    /// apply to it; within the handler it counts as a connection, and a shutdown waits for it (see
    /// [`closing`](Self::closing)).
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] or [`Error::Header`] when the above does not hold: nothing was written then, and another
    /// answer can be given. Otherwise the connection broke.
    pub async fn upgrade(&mut self, status: u16, fields: &[(&str, &[u8])]) -> Result<(Stream, Vec<u8>), Error> {
        match status {
            101 if self.head.upgrade.is_none() => {
                return Err(Error::Misuse("101 answers only a request to upgrade"));
            }
            101 if !fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("upgrade")) => {
                return Err(Error::Misuse("101 names the new protocol in Upgrade"));
            }
            101 => {}
            200..300 if self.head.method == "CONNECT" => {}
            _ => return Err(Error::Misuse("a connection is handed off with 101, or with 2xx to CONNECT")),
        }
        if !self.body.take_end()? {
            return Err(Error::Misuse("the body must be read to its end before an upgrade"));
        }
        self.reply.begin_tunnel(status, fields.iter().copied())?;
        self.wire.flush().await?;
        let stream = self.wire.take_stream().ok_or(Error::Misuse("the connection was handed off already"))?;
        self.reply.tunnel_begun();
        Ok((stream, self.body.take_leftover()))
    }

    /// Answers with a body without end, which the caller writes to the stream by itself: events, a feed. The connection is the
    /// caller's from here on, as after [`upgrade`](Self::upgrade), and is said to close behind the answer.
    ///
    /// Returns whether the body is chunked, which then is the caller's to do: it is not for a client of HTTP/1.0, whose body ends
    /// with the connection. The request's body must have been read to its end.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] to a HEAD request, for a status that has no body, or when the above does not hold; [`Error::Header`]. Nothing was
    /// written then, and another answer can be given. Otherwise the connection broke.
    pub async fn detach(&mut self, status: u16, fields: &[(&str, &[u8])]) -> Result<(Stream, Vec<u8>, bool), Error> {
        if !self.body.take_end()? {
            return Err(Error::Misuse("the body must be read to its end before the connection is handed off"));
        }
        let chunked = self.reply.begin_detached(status, fields.iter().copied())?;
        self.wire.flush().await?;
        let stream = self.wire.take_stream().ok_or(Error::Misuse("the connection was handed off already"))?;
        self.reply.tunnel_begun();
        Ok((stream, self.body.take_leftover(), chunked))
    }

    /// Vouches for the connection: it has shown that it is one that the server is for. Means something with
    /// [`vouching`](crate::Settings::vouching), and holds for as long as the connection does.
    pub fn vouch(&self) {
        self.wire.guard().vouch();
    }

    /// The connection's place in the [`Room`](crate::Room) that it counts in, for whoever has the connection after
    /// [`upgrade`](Self::upgrade) or [`detach`](Self::detach): it counts there until the place is dropped. `None` without a room, and the
    /// second time. A connection whose place is not taken counts until the handler ends.
    pub fn take_place(&self) -> Option<Place> {
        self.wire.guard().take_place()
    }

    /// The peer's address; `None` for most clients on a unix socket, or when the connection is gone. A system call.
    pub fn peer_address(&self) -> Option<Peer> {
        self.wire.with_stream(|stream| stream.peer_address().ok().flatten()).flatten()
    }

    /// As [`peer_address`](Self::peer_address), for TCP alone, and asked of the system once for a connection.
    pub fn remote(&self) -> Option<SocketAddr> {
        self.wire.addresses().1
    }

    /// The address at which the connection was accepted, for TCP; asked of the system once for a connection.
    pub fn local(&self) -> Option<SocketAddr> {
        self.wire.addresses().0
    }

    /// Whether the connection is encrypted.
    pub fn is_tls(&self) -> bool {
        self.wire.with_stream(Stream::is_tls).unwrap_or(false)
    }

    /// The value of a `Date` header for this moment, for answers that are written out beforehand.
    pub fn date(&self) -> [u8; 29] {
        self.wire.core().date()
    }

    /// What tells of a shutdown, to a handler that would otherwise not end by itself.
    pub fn closing(&self) -> Closing {
        Closing(Rc::clone(self.wire.core()))
    }
}

/// Tells of a shutdown. Cheap to clone; independent of the exchange it came from.
#[derive(Clone, Debug)]
pub struct Closing(Rc<Core>);

impl Closing {
    /// Whether the shutdown has begun.
    pub fn has_begun(&self) -> bool {
        self.0.closing.get()
    }

    /// Waits until it begins.
    pub async fn begun(&self) {
        self.0.until_closing().await;
    }
}
