//! One request and its answer, as the handler sees it.

use std::net::SocketAddr;
use std::rc::Rc;

use oroshi_http1::{RequestDecoder, RequestHead};
use oroshi_net::tls::{ClientAuthorities, TlsFacts};
use oroshi_net::{Peer, Stream};

use crate::body::RequestBody;
use crate::capacity::Permit;
use crate::core::Core;
use crate::error::Error;
use crate::http2;
use crate::reply::Reply;
use crate::transport::Transport;

/// A handler of requests. One value serves all connections of a core, so it keeps mutable state in cells; its futures
/// need not be `Send`.
///
/// A handler may be dropped at any await: when the peer stops reading or resets, or a shutdown times out. If it returns
/// `Ok` without an answer, the connection answers 500; for `Err` see [`Error`].
///
/// An `async` closure over `&mut Exchange<'_>` is a handler.
pub trait Handler: 'static {
    /// Answers one request.
    fn handle(&self, exchange: &mut Exchange<'_>) -> impl Future<Output = Result<(), Error>>;

    /// Observes requests that the server refuses itself: their head is malformed, over a limit, or too slow.
    fn refused(&self, _: &RefusedRequest<'_>) {}
}

/// A refused request, which never became an exchange.
#[derive(Clone, Copy, Debug)]
pub struct RefusedRequest<'a> {
    /// The reason.
    pub error: &'a Error,
    /// The status of the answer.
    pub status: u16,
    /// The received bytes, from the request's first on; they may be anything.
    pub bytes: &'a [u8],
    /// The client's address, as [`Exchange::remote`].
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
    transport: Transport<'a>,
}

impl<'a> Exchange<'a> {
    pub(crate) fn new(
        transport: Transport<'a>,
        decoder: Option<&'a mut RequestDecoder>,
        head: RequestHead<'a>,
        rest: &'a [u8],
        due: u64,
    ) -> Self {
        let reply = Reply::new(transport, &head);
        let body = RequestBody::new(transport, decoder, &head, rest, due);
        Exchange { head, body, reply, transport }
    }

    /// Leaves HTTP: answers, and takes the connection over, with the bytes that the peer sent behind its request.
    ///
    /// 101 answers a request with [`upgrade`](RequestHead::upgrade); the fields must name the new protocol in
    /// `Upgrade`, and `Connection: upgrade` is added. A status of 200 to 299 answers CONNECT. The request's body, if
    /// any, must have been read to its end.
    ///
    /// Over HTTP/2 a request for WebSocket (RFC 8441) looks as over HTTP/1.1, and 101 goes out as 200. The stream is
    /// then one end of a pair of unix sockets: the connection's thread copies between the other end and the peer.
    ///
    /// The stream may be used within the handler or moved to a task of its own. This crate's time limits no longer
    /// apply to it; within the handler it counts as a connection, and a shutdown waits for it (see
    /// [`closing`](Self::closing)).
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] or [`Error::Header`] if these conditions do not hold: nothing was written then, and another
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
        let pair = self.open_pair()?;
        self.reply.begin_tunnel(status, fields.iter().copied())?;
        let stream = self.hand_off(pair).await?;
        Ok((stream, self.body.take_leftover()))
    }

    /// Answers with a body without end, which the caller writes to the stream: events, a feed. The caller then owns the
    /// connection, as after [`upgrade`](Self::upgrade); the answer announces its close.
    ///
    /// Returns whether the caller must write the body as chunks. It need not for a client of HTTP/1.0, whose body ends
    /// with the connection. The request's body must have been read to its end.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] to a HEAD request, for a status without a body, or if the request's body is unread;
    /// [`Error::Header`]. Nothing was written then, and another answer can be given. Otherwise the connection broke.
    pub async fn detach(&mut self, status: u16, fields: &[(&str, &[u8])]) -> Result<(Stream, Vec<u8>, bool), Error> {
        if !self.body.take_end()? {
            return Err(Error::Misuse("the body must be read to its end before the connection is handed off"));
        }
        let pair = self.open_pair()?;
        let chunked = self.reply.begin_detached(status, fields.iter().copied())?;
        let stream = self.hand_off(pair).await?;
        Ok((stream, self.body.take_leftover(), chunked))
    }

    /// Opens what a stream of HTTP/2 needs to be handed off. `None` over HTTP/1.
    fn open_pair(&self) -> Result<Option<http2::Pair>, Error> {
        match self.transport {
            Transport::Http1(_) => Ok(None),
            Transport::Http2(stream) => http2::Pair::open(stream.wire().core()).map(Some),
        }
    }

    /// Takes the connection, or the stream of it, for the next owner.
    async fn hand_off(&mut self, pair: Option<http2::Pair>) -> Result<Stream, Error> {
        let stream = match (self.transport, pair) {
            (Transport::Http2(stream), Some(pair)) => pair.hand_off(stream),
            _ => {
                let wire = self.transport.wire();
                wire.flush().await?;
                wire.take_stream().ok_or(Error::Misuse("the connection was handed off already"))?
            }
        };
        self.reply.tunnel_begun();
        Ok(stream)
    }

    /// Vouches for the connection, for as long as it lives: it has proven that it belongs to this server's clients. Has
    /// an effect with [`vouching`](crate::Settings::vouching).
    pub fn vouch(&self) {
        self.transport.wire().guard().vouch();
    }

    /// Takes the connection's permit from its [`Capacity`](crate::Capacity), for the next owner after
    /// [`upgrade`](Self::upgrade) or [`detach`](Self::detach): the connection counts there until the permit is dropped.
    /// `None` without a capacity, and the second time. If nobody takes the permit, the connection counts until the
    /// handler ends. Over HTTP/2 it is `None` too: the connection keeps its permit, and a stream that was handed off
    /// has permits of its own.
    pub fn take_permit(&self) -> Option<Permit> {
        match self.transport {
            Transport::Http1(wire) => wire.guard().take_permit(),
            Transport::Http2(_) => None,
        }
    }

    /// Returns the peer's address; `None` for most clients on a unix socket, or when the connection is gone. Costs a
    /// system call.
    pub fn peer_address(&self) -> Option<Peer> {
        self.transport.wire().with_stream(|stream| stream.peer_address().ok().flatten()).flatten()
    }

    /// Returns the client's address, for TCP alone, with one system call per connection. Behind a proxy that sends it
    /// ([`HttpListener::proxied`](crate::HttpListener::proxied)), it is that client's, and not the proxy's.
    pub fn remote(&self) -> Option<SocketAddr> {
        self.transport.wire().addresses().1
    }

    /// Returns the local address of a TCP connection, with one system call per connection; behind a proxy that sends
    /// it,
    /// the address to which the client connected there.
    pub fn local(&self) -> Option<SocketAddr> {
        self.transport.wire().addresses().0
    }

    /// Calls `with` with the client's connection, for socket options; over HTTP/2 it carries other exchanges too.
    /// `None` if it was handed off.
    pub fn with_connection<T>(&self, with: impl FnOnce(&Stream) -> T) -> Option<T> {
        self.transport.wire().with_stream(with)
    }

    /// Whether the connection is encrypted.
    pub fn is_tls(&self) -> bool {
        self.transport.wire().with_stream(Stream::is_tls).unwrap_or(false)
    }

    /// Returns the facts about the client's TLS handshake, computed at most once per connection; `None` without TLS.
    pub fn tls_facts(&self) -> Option<&'a TlsFacts> {
        self.transport.wire().tls_facts()
    }

    /// Whether these authorities accept the certificate of the connection's client now. Costs checks of signatures at
    /// each call.
    pub fn is_client_of(&self, authorities: &ClientAuthorities) -> bool {
        self.transport.wire().with_stream(|stream| stream.is_client_of(authorities)).unwrap_or(false)
    }

    /// Returns the value of a `Date` header for now, for answers that are encoded in advance.
    pub fn date(&self) -> [u8; 29] {
        self.transport.core().date()
    }

    /// Returns an observer of the shutdown, for handlers that would not end otherwise.
    pub fn closing(&self) -> ShutdownObserver {
        ShutdownObserver(Rc::clone(self.transport.core()))
    }
}

/// An observer of a shutdown. Cheap to clone; independent of its exchange.
#[derive(Clone, Debug)]
pub struct ShutdownObserver(Rc<Core>);

impl ShutdownObserver {
    /// Whether the shutdown has begun.
    pub fn has_begun(&self) -> bool {
        self.0.closing.get()
    }

    /// Waits until the shutdown begins.
    pub async fn begun(&self) {
        self.0.until_closing().await;
    }
}
