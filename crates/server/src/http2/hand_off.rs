//! A stream as a socket: for handlers that leave HTTP, and for feeds that outlive their handler.
//!
//! The next owner gets one end of a pair of unix sockets, because owners wait for and write to descriptors. A task
//! copies between the other end and the stream, which keeps its windows and its turns.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use oroshi_core::{Scratch, spares};
use oroshi_net::stream::{UnixStream, nonzero_write};
use oroshi_net::{PeerState, Stream as Socket};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Stream;
use crate::capacity::Permit;
use crate::core::Core;
use crate::error::Error;

/// The sockets for a stream that is to be handed off.
#[derive(Debug)]
pub(crate) struct Pair {
    theirs: UnixStream,
    ours: UnixStream,
    /// The permits of two connections, whose descriptors these are.
    permits: [Option<Permit>; 2],
}

impl Pair {
    /// Opens a pair. Fails with [`Error::Full`] if the capacity for connections or the descriptors are used up.
    pub(crate) fn open(core: &Core) -> Result<Self, Error> {
        let mut permits = [None, None];
        if let Some(capacity) = &core.settings.capacity {
            for permit in &mut permits {
                *permit =
                    Some(capacity.try_acquire().ok_or_else(|| Error::Full(io::Error::other("no more connections")))?);
            }
        }
        let [theirs, ours] = UnixStream::pair().map_err(Error::Full)?;
        Ok(Pair { theirs, ours, permits })
    }

    /// Begins to copy, and returns the next owner's socket.
    pub(crate) fn hand_off(self, stream: &Rc<Stream>) -> Socket {
        let Pair { theirs, ours, permits } = self;
        let copy = Copy::new(Rc::clone(stream), Socket::Unix(ours));
        let task = tokio::task::spawn_local(async move {
            let _permits = permits;
            copy.run().await;
        });
        stream.set_handed_off(task.abort_handle());
        Socket::Unix(theirs)
    }
}

/// Copies between a stream and a socket until both sides have ended, or one is gone.
struct Copy {
    stream: Rc<Stream>,
    socket: Socket,
    /// Bytes of the peer for the socket.
    held: Vec<u8>,
    written: usize,
    /// Whether the peer has ended, and the socket's owner knows; or the peer sends nothing.
    up_over: bool,
    /// Whether the owner has ended, and the peer knows.
    down_over: bool,
}

impl Copy {
    fn new(stream: Rc<Stream>, socket: Socket) -> Self {
        // The request of a feed has ended, but its owner takes an end for a client that has left.
        let up_over = !stream.is_tunnel();
        Copy { stream, socket, held: Vec::new(), written: 0, up_over, down_over: false }
    }

    async fn run(mut self) {
        poll_fn(|context| self.poll(context)).await;
        self.stream.end_hand_off(self.down_over);
        self.stream.consume(&mut self.held);
        spares::give(std::mem::take(&mut self.held));
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.up_over {
            match self.poll_up(context) {
                Poll::Ready(Ok(())) => self.up_over = true,
                // The owner reads no more. What it has written still goes to the peer.
                Poll::Ready(Err(_)) => self.up_over = true,
                Poll::Pending => {}
            }
        }
        if !self.down_over {
            match self.poll_down(context) {
                Poll::Ready(Ok(())) => self.down_over = true,
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
        if self.up_over {
            return Poll::Ready(());
        }
        // The owner has ended its side; it may still read what the peer sends.
        match self.socket.poll_peer(context) {
            Poll::Ready(Ok(PeerState::End | PeerState::More)) | Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(PeerState::Gone) | Err(_)) => Poll::Ready(()),
        }
    }

    /// Copies from the peer to the owner. Ready at the peer's end.
    fn poll_up(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            while self.written < self.held.len() {
                let write = Pin::new(&mut self.socket).poll_write(context, &self.held[self.written..]);
                self.written += ready!(nonzero_write(write))?;
            }
            self.written = 0;
            self.stream.consume(&mut self.held);
            if !self.held.is_empty() {
                continue;
            }
            if ready!(self.stream.poll_receive(context)) == 0 {
                return Pin::new(&mut self.socket).poll_shutdown(context);
            }
        }
    }

    /// Copies from the owner to the peer. Ready at the owner's end.
    fn poll_down(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            ready!(self.stream.poll_room(context))?;
            let mut scratch = Scratch::take();
            let most = scratch.len().min(COPIED_BYTES);
            let mut read = ReadBuf::new(&mut scratch[..most]);
            ready!(Pin::new(&mut self.socket).poll_read(context, &mut read)).map_err(Error::Io)?;
            if read.filled().is_empty() {
                return Poll::Ready(self.stream.finish([]));
            }
            self.stream.push(read.filled())?;
        }
    }
}

/// The most bytes of one copy.
const COPIED_BYTES: usize = 16 * 1024;
