//! Accepts connections; never spins, never gives up.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use thiserror::Error;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpListener;

use super::LocalAddress;
use super::unix_file::UnixFile;
use crate::address::Peer;
use crate::stream::{Stream, UnixStream};
use crate::unix::register;

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// A listening socket in a runtime.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: Peer,
    /// Delay before the next accept; None after a success.
    pause: Cell<Option<Duration>>,
    aborted: Cell<u64>,
    /// Removes the file on drop.
    _file: Option<Arc<UnixFile>>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(AsyncFd<OwnedFd>),
}

impl Listener {
    pub(super) fn new(socket: OwnedFd, address: Peer, file: Option<Arc<UnixFile>>) -> io::Result<Self> {
        let socket = match &address {
            Peer::Tcp(_) => Socket::Tcp(TcpListener::from_std(socket.into())?),
            Peer::Unix(_) => Socket::Unix(register(socket, Interest::READABLE)?),
        };
        Ok(Listener { socket, address, pause: Cell::new(None), aborted: Cell::new(0), _file: file })
    }

    /// Accepts the next connection, non-blocking and close-on-exec. Dropping the future loses nothing.
    ///
    /// Skips connections that the client closed before they were accepted, and counts them ([`Listener::aborted`]).
    ///
    /// # Errors
    /// An error is not final: log it and call again. When descriptors or memory run out, the first call returns an
    /// error. Later calls wait (5 ms, doubling up to 200 ms) and retry until one succeeds, so a loop neither spins
    /// nor floods a log. [`AcceptError::is_fatal`] identifies the one final error.
    pub async fn accept(&self) -> Result<Stream, AcceptError> {
        loop {
            let in_trouble = self.pause.get();
            if let Some(pause) = in_trouble {
                tokio::time::sleep(pause).await;
            }
            let error = match self.next().await {
                Ok(stream) => {
                    self.pause.set(None);
                    return Ok(stream);
                }
                Err(error) => error,
            };
            match Errno::from_io_error(&error) {
                Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    self.pause.set(Some(in_trouble.map_or(FIRST_PAUSE, |pause| LONGEST_PAUSE.min(pause * 2))));
                    if in_trouble.is_none() {
                        return Err(AcceptError::Exhausted(error));
                    }
                }
                Some(Errno::BADF | Errno::INVAL | Errno::NOTSOCK | Errno::OPNOTSUPP) => {
                    return Err(AcceptError::Closed(error));
                }
                // Any other error concerns that connection only (accept(2) passes network errors on).
                _ => self.aborted.set(self.aborted.get() + 1),
            }
        }
    }

    /// Number of connections that failed before they were accepted.
    pub fn aborted(&self) -> u64 {
        self.aborted.get()
    }

    /// Whether a connection waits on this socket, asked of the kernel. Excludes other sockets at the same address.
    pub fn has_waiting(&self) -> bool {
        let mut polled = [PollFd::new(self, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&at_once)).is_ok_and(|ready| ready > 0)
    }

    /// The bound address, with the actual port for port 0.
    pub fn address(&self) -> &Peer {
        &self.address
    }

    /// The bound address as text.
    pub fn local_address(&self) -> LocalAddress<'_> {
        LocalAddress(&self.address)
    }

    async fn next(&self) -> io::Result<Stream> {
        match &self.socket {
            Socket::Tcp(listener) => listener.accept().await.map(|(stream, _)| Stream::Tcp(stream)),
            Socket::Unix(listener) => {
                let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
                let accept = |listener: &OwnedFd| Ok(accept_with(listener, flags)?);
                UnixStream::new(listener.async_io(Interest::READABLE, accept).await?).map(Stream::Unix)
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Tcp(listener) => listener.as_fd(),
            Socket::Unix(listener) => listener.as_fd(),
        }
    }
}

/// The reason why no connection was accepted.
#[derive(Debug, Error)]
pub enum AcceptError {
    /// No file descriptor or memory for another connection; waiting ones stay in the backlog. Raise `ulimit -n`, or
    /// close idle connections.
    #[error("no file descriptor or memory is left to accept a connection: raise the limit (ulimit -n)")]
    Exhausted(#[source] io::Error),
    /// The socket was shut down and no longer listens. Stop accepting.
    #[error("the listening socket is closed")]
    Closed(#[source] io::Error),
}

impl AcceptError {
    /// Whether every further call fails too.
    pub fn is_fatal(&self) -> bool {
        matches!(self, AcceptError::Closed(_))
    }
}
