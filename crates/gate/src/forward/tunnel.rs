//! Tunnels: raw bytes in both directions, until both sides have ended.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use oroshi_core::{Registration, Scratch, after};
use oroshi_multiplex as multiplex;
use oroshi_net::{Stream, monotonic_ns};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::upstream::Engine;

/// How a tunnel ended.
#[derive(Debug)]
pub(crate) enum TunnelEnd {
    /// Both sides ended.
    Properly,
    /// The tunnel was idle for too long.
    Idle,
    /// One side broke; the text names the side and the error.
    Broken(String),
}

/// One direction.
#[derive(Debug, Default)]
struct Direction {
    /// Bytes read, but not yet written to the other side.
    held: Vec<u8>,
    taken: usize,
    /// This side has ended, and the other side was shut down.
    ended: bool,
    told: bool,
    bytes: u64,
}

/// Copies bytes both ways until both sides have ended, one has broken, or nothing came for `idle`. `early` was read
/// from the client, `late` from the server. Returns the bytes to the server and to the client.
pub(crate) async fn run(
    client: &mut Stream,
    server: &mut (impl AsyncRead + AsyncWrite + Unpin),
    early: Vec<u8>,
    late: Vec<u8>,
    registration: &Registration<Engine>,
    idle: Duration,
) -> (u64, u64, TunnelEnd) {
    let mut up = Direction { held: early, ..Direction::default() };
    let mut down = Direction { held: late, ..Direction::default() };
    let mut before = None;
    let ended = poll_fn(|context| {
        let there = up.poll(context, client, server);
        let back = down.poll(context, server, client);
        match (there, back) {
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => return Poll::Ready(TunnelEnd::Properly),
            (Poll::Ready(Err(error)), _) => return Poll::Ready(TunnelEnd::Broken(format!("to the server: {error}"))),
            (_, Poll::Ready(Err(error))) => return Poll::Ready(TunnelEnd::Broken(format!("to the client: {error}"))),
            _ => {}
        }
        let now = Some(up.bytes + down.bytes);
        if now != before {
            before = now;
            registration.set(after(monotonic_ns(), idle));
        }
        if registration.poll_over(context) { Poll::Ready(TunnelEnd::Idle) } else { Poll::Pending }
    })
    .await;
    (up.bytes, down.bytes, ended)
}

impl Direction {
    /// Ready when one side has ended and the other side has all bytes and the end.
    fn poll(
        &mut self,
        context: &mut Context<'_>,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<io::Result<()>> {
        loop {
            while self.taken < self.held.len() {
                self.taken += ready!(Pin::new(&mut *to).poll_write(context, &self.held[self.taken..]))?;
                if self.taken == self.held.len() {
                    self.bytes += self.taken as u64;
                    // A silent side holds no buffer.
                    (self.held, self.taken) = (Vec::new(), 0);
                }
            }
            ready!(Pin::new(&mut *to).poll_flush(context))?;
            if self.ended {
                if !self.told {
                    match ready!(Pin::new(&mut *to).poll_shutdown(context)) {
                        // The other side is gone already, so it needs no shutdown.
                        Err(error) if error.kind() != io::ErrorKind::NotConnected => return Poll::Ready(Err(error)),
                        _ => self.told = true,
                    }
                }
                return Poll::Ready(Ok(()));
            }
            let mut scratch = Scratch::take();
            let mut buffer = ReadBuf::new(&mut scratch);
            ready!(Pin::new(&mut *from).poll_read(context, &mut buffer))?;
            let data = buffer.filled();
            if data.is_empty() {
                self.ended = true;
                continue;
            }
            let taken = match Pin::new(&mut *to).poll_write(context, data) {
                Poll::Ready(taken) => taken?,
                Poll::Pending => 0,
            };
            self.bytes += taken as u64;
            self.held.extend_from_slice(&data[taken..]);
        }
    }
}

/// A stream of HTTP/2 as one end of a tunnel.
pub(crate) struct StreamSocket {
    stream: multiplex::Stream,
    /// Bytes received and not yet read.
    held: Vec<u8>,
    taken: usize,
}

impl StreamSocket {
    pub(crate) fn new(stream: multiplex::Stream) -> Self {
        StreamSocket { stream, held: Vec::new(), taken: 0 }
    }
}

impl AsyncRead for StreamSocket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let StreamSocket { stream, held, taken } = self.get_mut();
        if *taken == held.len() {
            held.clear();
            *taken = 0;
            if !ready!(stream.poll_data(context, held)).map_err(io::Error::other)? {
                return Poll::Ready(Ok(()));
            }
        }
        let count = into.remaining().min(held.len() - *taken);
        into.put_slice(&held[*taken..*taken + count]);
        *taken += count;
        if *taken == held.len() {
            // A silent tunnel holds no buffer.
            (*held, *taken) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for StreamSocket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().stream.poll_write(context, bytes, false).map_err(io::Error::other)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().stream.poll_write(context, b"", true).map_ok(|_| ()).map_err(io::Error::other)
    }
}
