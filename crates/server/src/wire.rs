//! A connection's two directions: reads through the core's scratch buffer, and buffered output.
//!
//! A handler's output collects in `output`. It leaves in one write when the handler waits for anything, ends without a
//! further request at hand, or has written much. A message is therefore one write, and so are the answers to requests
//! that came in one read. A `RefCell` here is borrowed within one poll only.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use oroshi_core::{Deadline, HasDeadlines, Scratch, spares};
use oroshi_http1::RequestDecoder;
use oroshi_net::stream::nonzero_write;
use oroshi_net::tls::TlsFacts;
use oroshi_net::{Peer, PeerState, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::core::{Connection, ConnectionGuard, Core};
use crate::error::{Error, Wait};
use crate::transport::Progress;

/// The size up to which a piece of a body is copied to the output; larger pieces are written in place.
const COPIED_BYTES: usize = 16 * 1024;

/// The size of the output at which writers wait until it is sent.
pub(crate) const OUTPUT_BYTES: usize = 64 * 1024;

/// The local and the remote address of a TCP connection.
pub(crate) type Addresses = (Option<SocketAddr>, Option<SocketAddr>);

/// A connection's stream, and the state of its exchange in both directions.
pub(crate) struct Wire {
    guard: ConnectionGuard,
    stream: RefCell<Option<Stream>>,
    output: RefCell<Output>,
    /// The waker of a flush that does not wait as the connection's task.
    flusher: Cell<Option<Waker>>,
    /// Whether the deadline of the wait for a request is that of a shutdown.
    is_closing: Cell<bool>,
    addresses: OnceCell<Box<Addresses>>,
    tls: OnceCell<Box<TlsFacts>>,
    pub(crate) progress: Progress,
    /// The decoder of requests; a turn takes it out.
    pub(crate) decoder: Cell<RequestDecoder>,
}

#[derive(Debug, Default)]
struct Output {
    bytes: Vec<u8>,
    sent: usize,
    /// Whether TLS holds unsent records.
    unflushed: bool,
}

impl Output {
    fn waiting(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Notes sent bytes: first these, then those of a body behind them. Returns how many were the body's.
    fn advance(&mut self, count: usize) -> usize {
        let mine = count.min(self.bytes.len() - self.sent);
        self.sent += mine;
        if self.sent >= OUTPUT_BYTES {
            // If the peer reads as fast as the handler writes, the rest may never become empty.
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        count - mine
    }
}

impl Wire {
    /// `origin` has the addresses of the client behind a proxy, in place of the socket's.
    pub(crate) fn new(guard: ConnectionGuard, stream: Stream, origin: Option<Addresses>) -> Self {
        Wire {
            guard,
            stream: RefCell::new(Some(stream)),
            output: RefCell::default(),
            flusher: Cell::default(),
            is_closing: Cell::default(),
            addresses: origin.map(|origin| OnceCell::from(Box::new(origin))).unwrap_or_default(),
            tls: OnceCell::new(),
            progress: Progress::default(),
            decoder: Cell::default(),
        }
    }

    pub(crate) fn core(&self) -> &Rc<Core> {
        self.guard.core()
    }

    /// Returns the core's state of the connection.
    pub(crate) fn connection(&self) -> &Connection {
        self.guard.connection()
    }

    /// Sets the tick of a deadline.
    fn set(&self, deadline: &Deadline, due: u64) {
        self.core().deadlines().set(deadline, due);
    }

    pub(crate) fn guard(&self) -> &ConnectionGuard {
        &self.guard
    }

    /// Calls `look` with the stream, if the connection still has it.
    pub(crate) fn with_stream<T>(&self, look: impl FnOnce(&Stream) -> T) -> Option<T> {
        self.stream.borrow().as_ref().map(look)
    }

    /// Returns the local and the remote address, for TCP, with one query per connection; behind a proxy that sends
    /// them,
    /// its client's.
    pub(crate) fn addresses(&self) -> Addresses {
        let tcp = |peer| match peer {
            Ok(Some(Peer::Tcp(address))) => Some(address),
            _ => None,
        };
        let ask =
            || self.with_stream(|stream| (tcp(stream.local_address()), tcp(stream.peer_address()))).unwrap_or_default();
        // Boxed, because most servers never ask.
        **self.addresses.get_or_init(|| Box::new(ask()))
    }

    /// Returns the facts about the client's handshake, computed once per connection. `None` without TLS.
    pub(crate) fn tls_facts(&self) -> Option<&TlsFacts> {
        if let Some(facts) = self.tls.get() {
            return Some(facts);
        }
        let facts = self.with_stream(Stream::tls_facts).flatten()?;
        // Boxed, because most servers never ask.
        Some(self.tls.get_or_init(|| Box::new(facts)))
    }

    /// Takes the stream. All output must have been sent.
    pub(crate) fn take_stream(&self) -> Option<Stream> {
        self.stream.borrow_mut().take()
    }

    /// Appends received bytes, at most 64 KiB, to `into`. Zero means that the peer has closed its side. Waits until
    /// tick `due`. During the wait, an empty `into` holds no memory.
    pub(crate) async fn read(&self, into: &mut Vec<u8>, wait: Wait, due: u64) -> Result<usize, Error> {
        let deadline = &self.connection().read;
        let mut waiting = false;
        poll_fn(|context| {
            if let Poll::Ready(result) = self.poll_read(context, into) {
                deadline.clear();
                return Poll::Ready(result);
            }
            if !waiting {
                waiting = true;
                self.set(deadline, due);
            }
            if deadline.poll_over(self.core().now(), context) {
                deadline.clear();
                return Poll::Ready(Err(Error::Timeout(wait)));
            }
            Poll::Pending
        })
        .await
    }

    /// Begins the wait for the first bytes of a request.
    pub(crate) fn wait_for_request(&self) {
        let core = self.core();
        self.is_closing.set(false);
        self.connection().waits(core.now());
        self.set(&self.connection().read, core.now().saturating_add(core.ticks.idle));
    }

    /// Ready with the first bytes of a request: true. False if none come before the peer closes, in time, or in a
    /// shutdown's time for a last request. State is in the wire, as a connection's task must be small.
    pub(crate) fn poll_request(&self, context: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<bool> {
        let core = self.core();
        let deadline = &self.connection().read;
        // Takes received bytes before it checks the time: a busy core must not lose a request that came in time.
        if let Poll::Ready(result) = self.poll_read(context, into) {
            deadline.clear();
            // A reset between two requests counts as a close.
            return Poll::Ready(result.is_ok_and(|count| count > 0));
        }
        if core.closing.get() && !self.is_closing.replace(true) {
            self.set(deadline, deadline.due().min(core.now().saturating_add(core.ticks.last_request)));
        }
        if deadline.poll_over(core.now(), context) {
            deadline.clear();
            return Poll::Ready(false);
        }
        Poll::Pending
    }

    /// Reads into a buffer that the caller has for this poll. Zero means that the peer has closed its side.
    pub(crate) fn poll_fill(&self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<Result<usize, Error>> {
        let mut stream = self.stream.borrow_mut();
        let Some(stream) = &mut *stream else { return Poll::Ready(Err(HANDED_OFF)) };
        let mut read = ReadBuf::new(buffer);
        ready!(Pin::new(stream).poll_read(context, &mut read)).map_err(Error::Io)?;
        Poll::Ready(Ok(read.filled().len()))
    }

    fn poll_read(&self, context: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<Result<usize, Error>> {
        let mut stream = self.stream.borrow_mut();
        let Some(stream) = &mut *stream else { return Poll::Ready(Err(HANDED_OFF)) };
        let mut scratch = Scratch::take();
        let mut read = ReadBuf::new(&mut scratch);
        match Pin::new(stream).poll_read(context, &mut read) {
            Poll::Ready(Ok(())) => {
                if into.capacity() == 0 {
                    *into = spares::take();
                }
                into.extend_from_slice(read.filled());
                Poll::Ready(Ok(read.filled().len()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(Error::Io(error))),
            Poll::Pending => {
                if into.is_empty() {
                    spares::give(std::mem::take(into));
                }
                Poll::Pending
            }
        }
    }

    /// Returns the peer's state without reading. Pending for a connection that was handed off.
    pub(crate) fn poll_peer(&self, context: &mut Context<'_>) -> Poll<PeerState> {
        match &mut *self.stream.borrow_mut() {
            Some(stream) => stream.poll_peer(context).map(|state| state.unwrap_or(PeerState::Gone)),
            None => Poll::Pending,
        }
    }

    /// Appends to the output.
    pub(crate) fn append<T>(&self, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let mut output = self.output.borrow_mut();
        if output.bytes.capacity() == 0 {
            output.bytes = spares::take();
        }
        write(&mut output.bytes)
    }

    /// Appends a piece of a message, and waits if the output is large. Dropping the call with a large piece truncates
    /// that piece.
    pub(crate) async fn write(&self, piece: &[u8]) -> Result<(), Error> {
        self.add(piece).await?;
        self.relieve().await
    }

    /// Appends a small piece at once, or sends a large one.
    pub(crate) async fn add(&self, piece: &[u8]) -> Result<(), Error> {
        if piece.len() > COPIED_BYTES {
            return self.write_through(piece).await;
        }
        self.append(|output| output.extend_from_slice(piece));
        Ok(())
    }

    /// Appends a piece at once: copies the part of a large piece that the socket does not take. The caller must limit
    /// the output, by [`poll_relieve`](Self::poll_relieve).
    pub(crate) fn take_in(&self, context: &mut Context<'_>, piece: &[u8]) -> Result<(), Error> {
        let mut left = piece;
        if piece.len() > COPIED_BYTES {
            let step = self.poll_write(context, |output, stream, context| match output.waiting() {
                [] => nonzero_write(stream.poll_write(context, left)),
                head => nonzero_write(stream.poll_write_vectored(context, &[IoSlice::new(head), IoSlice::new(left)])),
            });
            if let Poll::Ready(taken) = step {
                left = &left[taken?..];
            }
        }
        if !left.is_empty() {
            self.append(|output| output.extend_from_slice(left));
        }
        Ok(())
    }

    /// Ready once the output is small.
    pub(crate) fn poll_relieve(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.output.borrow().waiting().len() > OUTPUT_BYTES {
            let flushed = self.poll_flush(context);
            return self.wait_to_flush(flushed, context);
        }
        Poll::Ready(Ok(()))
    }

    /// Waits until the output is small.
    pub(crate) async fn relieve(&self) -> Result<(), Error> {
        if self.output.borrow().waiting().len() > OUTPUT_BYTES {
            return self.flush().await;
        }
        Ok(())
    }

    /// Sends the output and a large piece behind it, without copying it.
    async fn write_through(&self, piece: &[u8]) -> Result<(), Error> {
        let mut done = 0;
        poll_fn(|context| {
            while done < piece.len() {
                let step = self.poll_write(context, |output, stream, context| {
                    let left = &piece[done..];
                    match output.waiting() {
                        [] => nonzero_write(stream.poll_write(context, left)),
                        head => nonzero_write(
                            stream.poll_write_vectored(context, &[IoSlice::new(head), IoSlice::new(left)]),
                        ),
                    }
                });
                done += ready!(self.wait_to_flush(step, context))?;
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Sends all output.
    pub(crate) async fn flush(&self) -> Result<(), Error> {
        poll_fn(|context| {
            let flushed = self.poll_flush(context);
            self.wait_to_flush(flushed, context)
        })
        .await
    }

    /// Keeps the waker of a `flush` for when the connection's task has polled the socket in its place.
    fn wait_to_flush<T>(&self, polled: Poll<T>, context: &Context<'_>) -> Poll<T> {
        if polled.is_pending() {
            self.flusher.set(Some(context.waker().clone()));
        }
        polled
    }

    /// Runs a handler to its end. Each time it waits for anything, its output is sent. Fails, and drops the handler,
    /// when the output can no longer be sent.
    pub(crate) async fn drive<F: Future>(&self, mut handler: Pin<&mut F>) -> Result<F::Output, Error> {
        poll_fn(|context| {
            if let Poll::Ready(output) = handler.as_mut().poll(context) {
                return Poll::Ready(Ok(output));
            }
            if self.has_output() {
                let before = self.output.borrow().waiting().len();
                let flushed = self.poll_flush(context);
                if flushed.is_ready() || self.output.borrow().waiting().len() < before {
                    // The handler may wait for just this, under a waker of its own, which this poll replaced.
                    if let Some(waker) = self.flusher.take() {
                        waker.wake();
                    }
                }
                if let Poll::Ready(Err(error)) = flushed {
                    return Poll::Ready(Err(error));
                }
            }
            Poll::Pending
        })
        .await
    }

    pub(crate) fn has_output(&self) -> bool {
        let output = self.output.borrow();
        !output.waiting().is_empty() || output.unflushed
    }

    /// Returns the number of bytes that wait to be sent.
    pub(crate) fn output_bytes(&self) -> usize {
        self.output.borrow().waiting().len()
    }

    /// Gives an empty output's buffer back.
    pub(crate) fn release_output(&self) {
        let mut output = self.output.borrow_mut();
        if output.waiting().is_empty() {
            output.sent = 0;
            spares::give(std::mem::take(&mut output.bytes));
        }
    }

    pub(crate) fn poll_flush(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            if !self.has_output() {
                return Poll::Ready(Ok(()));
            }
            let step = self.poll_write(context, |output, stream, context| match output.waiting() {
                [] => {
                    ready!(stream.poll_flush(context))?;
                    output.unflushed = false;
                    Poll::Ready(Ok(0))
                }
                bytes => nonzero_write(stream.poll_write(context, bytes)),
            });
            ready!(step)?;
        }
    }

    /// Tries to write once, within the write limit. Returns how much of a piece behind the output was taken.
    fn poll_write(
        &self,
        context: &mut Context<'_>,
        attempt: impl FnOnce(&mut Output, Pin<&mut Stream>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<Result<usize, Error>> {
        let deadline = &self.connection().write;
        let mut stream = self.stream.borrow_mut();
        let Some(stream) = &mut *stream else { return Poll::Ready(Err(HANDED_OFF)) };
        let mut output = self.output.borrow_mut();
        match attempt(&mut output, Pin::new(&mut *stream), context) {
            Poll::Ready(Ok(count)) => {
                deadline.clear();
                output.unflushed |= stream.is_tls() && count > 0;
                let beyond = output.advance(count);
                if output.waiting().is_empty() {
                    output.sent = 0;
                    spares::give(std::mem::take(&mut output.bytes));
                }
                Poll::Ready(Ok(beyond))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(Error::Io(error))),
            Poll::Pending => self.poll_stuck(context),
        }
    }

    /// Handles a write without progress: waits until the write limit.
    fn poll_stuck<T>(&self, context: &Context<'_>) -> Poll<Result<T, Error>> {
        let (now, deadline) = (self.core().now(), &self.connection().write);
        if !deadline.is_set() {
            self.set(deadline, now.saturating_add(self.core().ticks.write));
        }
        if deadline.poll_over(now, context) {
            return Poll::Ready(Err(Error::Timeout(Wait::Write)));
        }
        Poll::Pending
    }

    /// Sends the output for a peer that will send nothing more. TLS signals the end; otherwise the close does.
    pub(crate) async fn finish(&self) -> Result<(), Error> {
        self.flush().await?;
        if self.with_stream(Stream::is_tls) == Some(true) {
            self.end_sending().await?;
        }
        Ok(())
    }

    async fn end_sending(&self) -> Result<(), Error> {
        poll_fn(|context| {
            let mut stream = self.stream.borrow_mut();
            let Some(stream) = &mut *stream else { return Poll::Ready(Ok(())) };
            match Pin::new(stream).poll_shutdown(context) {
                Poll::Ready(result) => Poll::Ready(result.map_err(Error::Io)),
                Poll::Pending => self.poll_stuck(context),
            }
        })
        .await
    }

    /// Closes so that a peer that still sends can read the answer: ends the sending side, and discards input until the
    /// peer closes too, or a time limit.
    pub(crate) async fn linger(&self) -> Result<(), Error> {
        let due = self.core().now().saturating_add(self.core().ticks.linger);
        // The answer is written, and no request will come.
        self.connection().waits(self.core().now());
        self.flush().await?;
        self.end_sending().await?;
        let mut swallowed = spares::take();
        loop {
            swallowed.clear();
            // The answer is sent, so no later failure matters.
            if !matches!(self.read(&mut swallowed, Wait::Body, due).await, Ok(1..)) {
                return Ok(());
            }
        }
    }

    /// Makes the close visible as an error where a plain close would look like a proper end.
    pub(crate) fn reset_on_close(&self) {
        // If the option cannot be set, the connection is gone already.
        let _ = self.with_stream(Stream::reset_on_close);
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Wire")
            .field("stream", &self.stream)
            .field("progress", &self.progress)
            .finish_non_exhaustive()
    }
}

const HANDED_OFF: Error = Error::Misuse("the connection was handed off by an upgrade");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_that_never_becomes_empty_stays_small() {
        let mut output = Output::default();
        output.bytes.extend_from_slice(&[b'x'; 1000]);
        for number in 0..10_000_u32 {
            let added = [number as u8; 500];
            output.bytes.extend_from_slice(&added);
            assert_eq!(output.advance(500), 0);
            assert_eq!(output.waiting().len(), 1000);
        }
        assert!(output.waiting().starts_with(&[(9_998_u32 % 256) as u8; 500]));
        assert!(output.bytes.capacity() <= 4 * OUTPUT_BYTES, "{}", output.bytes.capacity());
        // The excess is the body's, which was written behind the output.
        assert_eq!(output.advance(1234), 234);
        assert!(output.waiting().is_empty());
    }
}
