//! One type for every connection: TCP, unix, or TLS over either.

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use rustix::net::{getpeername, getsockname, sockopt};
use rustls::pki_types::UnixTime;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::address::Peer;
use crate::tls::{ClientAuthorities, ServerSession, TlsFacts};
pub use crate::unix::UnixStream;

/// A connected stream socket. Without TLS it adds one branch to tokio's own stream.
///
/// tokio registers a socket edge-triggered and remembers its readiness. A read or write thus tries the system call
/// first, and waits only after the kernel returned WouldBlock. After a short read, tokio takes the socket for
/// drained: the next read waits for the next event, without a system call. A [`UnixStream`] does so for reading only.
///
/// With TLS, one read of the socket can hold several records, so the caller reads until `Poll::Pending`; written
/// bytes may stay in a buffer, so the caller flushes.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Tcp(TcpStream),
    /// A unix stream socket.
    Unix(UnixStream),
    /// TLS over TCP or unix, or over the TLS of a proxy.
    Tls(TlsStream),
}

impl Stream {
    /// Writes as much as fits at once; `WouldBlock` if the socket was not writable at the last attempt. With TLS,
    /// flush afterwards: bytes may stay in a buffer.
    #[inline]
    pub fn try_write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.try_write(buf),
            Stream::Unix(stream) => stream.try_write(buf),
            Stream::Tls(stream) => stream.try_write(buf),
        }
    }

    /// Like [`try_write`](Self::try_write), from several buffers.
    #[inline]
    pub fn try_write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.try_write_vectored(bufs),
            Stream::Unix(stream) => stream.try_write_vectored(bufs),
            Stream::Tls(stream) => stream.try_write_vectored(bufs),
        }
    }

    /// Writes to the socket without checking tokio's readiness; for TLS, the same as [`Stream::try_write`].
    ///
    /// tokio learns only at the next epoll round that a newly registered socket is writable. This saves that round
    /// for the first bytes on an established connection. After `WouldBlock`, wait for writability as usual.
    #[inline]
    pub fn write_first(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tls(stream) => stream.try_write(buf),
            plain => Ok(rustix::net::send(plain.as_fd(), buf, rustix::net::SendFlags::NOSIGNAL)?),
        }
    }

    /// Whether this is TLS: then flush after writes, and read until `Pending`.
    #[inline]
    pub fn is_tls(&self) -> bool {
        matches!(self, Stream::Tls(_))
    }

    /// Whether the peer has neither sent unread bytes nor closed, asked of the kernel (recv(2), MSG_PEEK).
    ///
    /// tokio only knows the last result of epoll, which is old on a busy thread. With TLS this concerns the socket
    /// below, where a TLS control message may be waiting.
    pub fn is_quiet(&self) -> bool {
        let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        matches!(rustix::net::recv(self, &mut [0; 1], flags), Err(rustix::io::Errno::AGAIN))
    }

    /// Like [`is_quiet`](Self::is_quiet), but asks the kernel only if epoll has reported an event since the last
    /// read.
    ///
    /// It misses events since the runtime's last poll. It discards what it reads: after `false` the connection is
    /// unusable.
    pub fn seems_quiet(&mut self) -> bool {
        let mut byte = [0; 1];
        let read = match self {
            Stream::Tcp(stream) => stream.try_read(&mut byte),
            Stream::Unix(stream) => stream.try_read(&mut byte),
            Stream::Tls(stream) => {
                // The poll that waits for the next message registers its own waker.
                let mut context = Context::from_waker(Waker::noop());
                return stream.poll_read(&mut context, &mut ReadBuf::new(&mut byte)).is_pending();
            }
        };
        matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Waits for the peer's next action, without consuming anything: bytes, the end of its stream, or its
    /// disappearance.
    ///
    /// A closed TCP peer looks like one that only shut down its sending side. It counts as gone only after it
    /// answered with a reset. On a unix socket the kernel distinguishes the two. With TLS this concerns the socket
    /// below.
    ///
    /// # Errors
    /// When the runtime no longer manages the socket.
    pub fn poll_peer(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<PeerState>> {
        let peeked = match self {
            Stream::Tcp(stream) => {
                let mut byte = [0; 1];
                stream.poll_peek(cx, &mut ReadBuf::new(&mut byte))
            }
            Stream::Unix(stream) => stream.poll_peek(cx),
            Stream::Tls(stream) => return stream.socket_mut().poll_peer(cx),
        };
        match std::task::ready!(peeked) {
            Ok(0) if self.is_hung_up() => Poll::Ready(Ok(PeerState::Gone)),
            Ok(0) => Poll::Ready(Ok(PeerState::End)),
            Ok(_) => Poll::Ready(Ok(PeerState::More)),
            Err(_) => Poll::Ready(Ok(PeerState::Gone)),
        }
    }

    /// Whether the peer neither sends nor reads any more, as far as the kernel knows.
    fn is_hung_up(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut socket = [PollFd::new(self, PollFlags::empty())];
        let asked = poll(&mut socket, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        asked.is_ok() && socket[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// The protocol negotiated by ALPN, for example `h2`; None without TLS or agreement.
    pub fn alpn(&self) -> Option<&[u8]> {
        match self {
            Stream::Tls(stream) => stream.session().alpn_protocol(),
            _ => None,
        }
    }

    /// Facts about the handshake of a client; None without TLS, or at the client's end. Computed at each call.
    pub fn tls_facts(&self) -> Option<TlsFacts> {
        match self {
            Stream::Tls(TlsStream(End::Server(stream))) => Some(TlsFacts::of(stream.common(), stream.server_name())),
            _ => None,
        }
    }

    /// Whether this is a server's end of TLS, and its client's certificate is accepted by these authorities now. Its
    /// key was proven in this handshake, or in the one that it resumes. Computed at each call, which costs some checks
    /// of signatures.
    pub fn is_client_of(&self, authorities: &ClientAuthorities) -> bool {
        let Stream::Tls(TlsStream(End::Server(stream))) = self else { return false };
        authorities.accept(stream.common().peer_certificates().unwrap_or_default(), UnixTime::now())
    }

    /// Whether this is TLS, and its handshake resumed an earlier session.
    pub fn is_resumed(&self) -> bool {
        matches!(self, Stream::Tls(stream) if stream.is_resumed())
    }

    /// The process at the other end of a unix socket when it connected or began to listen (SO_PEERCRED, unix(7)).
    /// None for TCP, or if the process is not in this PID namespace.
    pub fn peer_pid(&self) -> Option<u32> {
        match self {
            Stream::Tcp(_) => None,
            Stream::Unix(stream) => crate::sys::peer_pid(stream),
            Stream::Tls(stream) => stream.socket().peer_pid(),
        }
    }

    /// The address at this end; None for a unix socket without a name.
    pub fn local_address(&self) -> io::Result<Option<Peer>> {
        Ok(Peer::from_kernel(getsockname(self)?))
    }

    /// The address at the other end; None for a unix socket without a name (most clients).
    pub fn peer_address(&self) -> io::Result<Option<Peer>> {
        Ok(getpeername(self)?.and_then(Peer::from_kernel))
    }

    /// Makes closing the socket send a reset instead of entering TIME_WAIT (SO_LINGER with zero). Unsent data is
    /// lost, and the peer gets an error.
    pub fn reset_on_close(&self) -> io::Result<()> {
        Ok(sockopt::set_socket_linger(self, Some(std::time::Duration::ZERO))?)
    }
}

/// The result of [`Stream::poll_peer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// Bytes are available.
    More,
    /// The peer ended its stream. It may still read.
    End,
    /// The peer neither sends nor reads any more.
    Gone,
}

/// Turns a write of zero bytes into an error: such a stream will never take them. Not for an empty buffer.
#[inline]
pub fn nonzero_write(result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
    match result {
        Poll::Ready(Ok(0)) => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
        result => result,
    }
}

impl AsFd for Stream {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
            Stream::Tls(stream) => stream.socket().as_fd(),
        }
    }
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        Stream::Tcp(stream)
    }
}

impl AsyncRead for Stream {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Unix(stream) => stream.poll_read(cx, buf),
            Stream::Tls(stream) => stream.poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Unix(stream) => stream.poll_write(cx, buf),
            Stream::Tls(stream) => stream.poll_write(cx, buf),
        }
    }

    #[inline]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Stream::Unix(stream) => stream.poll_write_vectored(cx, bufs),
            Stream::Tls(stream) => stream.poll_write_vectored(cx, bufs),
        }
    }

    #[inline]
    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Tcp(stream) => stream.is_write_vectored(),
            Stream::Unix(_) | Stream::Tls(_) => true,
        }
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(_) | Stream::Unix(_) => Poll::Ready(Ok(())),
            Stream::Tls(stream) => stream.poll_flush(cx),
        }
    }

    #[inline]
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Unix(stream) => Poll::Ready(stream.shutdown()),
            Stream::Tls(stream) => stream.poll_shutdown(cx),
        }
    }
}

/// A TLS session over a stream, at either end. Boxed, because it is a hundred times the size of a stream.
pub struct TlsStream(pub(crate) End);

/// Which end of TLS a stream is.
pub(crate) enum End {
    Client(Box<tokio_rustls::client::TlsStream<Stream>>),
    Server(Box<ServerSession>),
}

impl TlsStream {
    /// The negotiated protocol version, for example `TLSv1_3`; None before the end of the handshake.
    pub fn version(&self) -> Option<String> {
        self.session().protocol_version().map(|version| format!("{version:?}"))
    }

    /// The negotiated cipher suite, for example `TLS13_AES_256_GCM_SHA384`; None before the end of the handshake.
    pub fn cipher_suite(&self) -> Option<String> {
        self.session().negotiated_cipher_suite().map(|suite| format!("{:?}", suite.suite()))
    }

    /// Whether the handshake resumed an earlier session instead of checking certificates.
    pub fn is_resumed(&self) -> bool {
        self.session().handshake_kind() == Some(rustls::HandshakeKind::Resumed)
    }

    /// The stream below TLS.
    fn socket(&self) -> &Stream {
        match &self.0 {
            End::Client(stream) => stream.get_ref().0,
            End::Server(stream) => stream.socket(),
        }
    }

    fn socket_mut(&mut self) -> &mut Stream {
        match &mut self.0 {
            End::Client(stream) => stream.get_mut().0,
            End::Server(stream) => stream.socket_mut(),
        }
    }

    fn session(&self) -> &rustls::CommonState {
        match &self.0 {
            End::Client(stream) => stream.get_ref().1,
            End::Server(stream) => stream.common(),
        }
    }

    /// Makes one attempt without registering a waker: the following poll registers its own.
    fn try_write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.try_write_vectored(&[IoSlice::new(buf)])
    }

    fn try_write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.poll_write_vectored(&mut Context::from_waker(Waker::noop()), bufs) {
            Poll::Ready(result) => result,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            End::Client(stream) => Pin::new(stream).poll_read(cx, buf),
            End::Server(stream) => stream.poll_read(cx, buf),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            End::Client(stream) => Pin::new(stream).poll_write(cx, buf),
            End::Server(stream) => stream.poll_write(cx, &[IoSlice::new(buf)]),
        }
    }

    fn poll_write_vectored(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            End::Client(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            End::Server(stream) => stream.poll_write(cx, bufs),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            End::Client(stream) => Pin::new(stream).poll_flush(cx),
            End::Server(stream) => stream.poll_flush(cx),
        }
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            End::Client(stream) => Pin::new(stream).poll_shutdown(cx),
            End::Server(stream) => stream.poll_shutdown(cx),
        }
    }
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream").field("socket", self.socket()).field("version", &self.version()).finish()
    }
}
