//! The task of a connection: it reads, decodes and writes.

use std::cell::Cell;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use oroshi_core::{Deadlines, HasDeadlines, Incoming, Registration, Scratch, after};
use oroshi_http2::HeadBuffer;
use oroshi_net::{Stream, monotonic_ns};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::config::Ping;
use crate::error::ConnectionError;
use crate::shared::{MOST_UNWRITTEN, Shared, State};

/// How long an idle connection keeps the memory of many streams.
const SPARE_TIME: Duration = Duration::from_secs(1);
/// How often the runtime is asked for the bytes that the kernel already has.
const CHECKS: u8 = 3;

thread_local! {
    /// The buffer of decoded heads, and the waits, of all connections of this thread.
    static HEADS: Cell<Option<Box<HeadBuffer>>> = const { Cell::new(None) };
    static WAITS: Rc<Waits> = Rc::default();
}

/// The waits of connections: for pings, and to free memory.
#[derive(Default)]
struct Waits(Deadlines);

impl HasDeadlines for Waits {
    type Value = oroshi_core::Deadline;

    fn deadlines(&self) -> &Deadlines {
        &self.0
    }
}

/// The task of a connection.
pub(crate) struct Driver {
    shared: Rc<Shared>,
    stream: Stream,
    /// Bytes of an incomplete frame.
    kept: Incoming,
    /// Nothing has been written yet.
    fresh: bool,
    /// TLS holds records that the socket had no room for.
    unflushed: bool,
    /// Times that the kernel's bytes were waited for.
    checks: u8,
    wait: Registration<Waits>,
    /// When a ping was sent that has no answer yet; 0 for none.
    pinged_at: u64,
}

impl Driver {
    pub(crate) fn new(shared: Rc<Shared>, stream: Stream) -> Self {
        let waits = WAITS.with(Rc::clone);
        Deadlines::watch(&waits);
        let wait = Deadlines::register(&waits);
        let kept = Incoming::default();
        Driver { shared, stream, kept, fresh: true, unflushed: false, checks: 0, wait, pinged_at: 0 }
    }

    /// Whether the connection has no handle and no stream.
    fn is_alone(&self) -> bool {
        Rc::strong_count(&self.shared) == 1
    }

    /// Reads all that has come, decodes and writes it. Ready when the connection has ended.
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.shared.state.borrow_mut().begin_turn(cx);
        loop {
            let read = self.read_all(cx);
            self.ping();
            self.tell();
            if self.shared.state.borrow().end.is_some() {
                return Poll::Ready(());
            }
            if self.must_look_first(cx) {
                return Poll::Pending;
            }
            self.write(cx);
            self.tell();
            let mut state = self.shared.state.borrow_mut();
            if state.end.is_some() {
                return Poll::Ready(());
            }
            if self.is_alone() {
                state.close();
            }
            let is_written = state.unwritten() == 0 && !self.unflushed;
            // A peer that takes nothing does not get a farewell either.
            if state.under_way() == 0 && !state.is_open() && (is_written || state.blocked) {
                if !state.blocked && !state.say_goodbye() {
                    continue;
                }
                state.finish(ConnectionError::Closed);
                drop(state);
                self.tell();
                return Poll::Ready(());
            }
            if state.permit_writers() {
                // The tasks that were woken run before this one.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let to_write = state.unwritten() > 0 && !state.blocked;
            let to_read = read && state.unwritten() <= MOST_UNWRITTEN;
            if state.changed || to_write || to_read {
                continue;
            }
            state.end_turn();
            drop(state);
            self.wait(cx);
            return Poll::Pending;
        }
    }

    /// Tells the observer of a change.
    fn tell(&self) {
        let changed = std::mem::take(&mut self.shared.state.borrow_mut().changed);
        if changed {
            self.shared.watch.changed();
        }
    }

    /// Whether the kernel has bytes, perhaps the peer's close, that the runtime has not reported: then they are read
    /// before a request goes out.
    fn must_look_first(&mut self, cx: &mut Context<'_>) -> bool {
        let mut state = self.shared.state.borrow_mut();
        if !state.check || state.unwritten() == 0 {
            return false;
        }
        if self.checks < CHECKS && !self.stream.is_quiet() {
            self.checks += 1;
            // The runtime asks the kernel before it runs this task again.
            let _ = pin!(tokio::task::yield_now()).poll(cx);
            return true;
        }
        self.checks = 0;
        state.check = false;
        false
    }

    // Reading.

    /// Reads until nothing is left. False if the output had no room for answers before that.
    fn read_all(&mut self, cx: &mut Context<'_>) -> bool {
        while self.shared.state.borrow().unwritten() <= MOST_UNWRITTEN {
            match self.read(cx) {
                Poll::Pending => return false,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(cause)) => {
                    self.shared.state.borrow_mut().finish(cause);
                    return false;
                }
            }
        }
        true
    }

    fn read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        let mut scratch = Scratch::take();
        let mut buffer = ReadBuf::new(&mut scratch);
        match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(())) => {}
            // Without close_notify, the end of TLS is an end like any other: the codec knows what is missing.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Poll::Ready(Err(ConnectionError::Closed));
            }
            Poll::Ready(Err(error)) => return Poll::Ready(Err(ConnectionError::Io(error))),
        }
        let data = buffer.filled();
        if data.is_empty() {
            return Poll::Ready(Err(ConnectionError::Closed));
        }
        let (shared, kept) = (Rc::clone(&self.shared), &mut self.kept);
        let mut heads = HEADS.take().unwrap_or_default();
        let mut state = shared.state.borrow_mut();
        let now = monotonic_ns();
        state.heard_at = now;
        state.tick(now);
        state.open_output();
        let decoded = kept.decode(data, |input| decode(&mut state, input, &mut heads, shared.config.interim));
        HEADS.set(Some(heads));
        drop(state);
        shared.watch.received(data.len());
        if let Err(defect) = decoded {
            // The peer learns why, if its socket has room.
            let mut state = shared.state.borrow_mut();
            if let Ok(count) = self.stream.try_write(&state.out[state.written..]) {
                // Requests that went out with it may have been processed.
                state.wrote(count, now);
            }
            drop(state);
            self.discard(cx);
            return Poll::Ready(Err(ConnectionError::Protocol(defect)));
        }
        Poll::Ready(Ok(()))
    }

    /// Reads what has come before the socket closes: with unread bytes in it, the kernel would reset the connection,
    /// and the peer could lose the GOAWAY that says why.
    fn discard(&mut self, cx: &mut Context<'_>) {
        const MOST_READS: usize = 4;
        let mut scratch = Scratch::take();
        for _ in 0..MOST_READS {
            let mut buffer = ReadBuf::new(&mut scratch);
            let read = Pin::new(&mut self.stream).poll_read(cx, &mut buffer);
            if !matches!(read, Poll::Ready(Ok(()))) || buffer.filled().is_empty() {
                return;
            }
        }
    }

    // Writing.

    fn write(&mut self, cx: &mut Context<'_>) {
        let shared = Rc::clone(&self.shared);
        let mut state = shared.state.borrow_mut();
        let before = state.position();
        if let Err(error) = self.write_all(&mut state, cx) {
            // What the peer has sent before, perhaps its GOAWAY, is still read.
            drop(state);
            while let Poll::Ready(Ok(())) = self.read(cx) {}
            state = shared.state.borrow_mut();
            state.finish(ConnectionError::Io(error));
        }
        let count = state.position() - before;
        drop(state);
        if count > 0 {
            shared.watch.sent(usize::try_from(count).unwrap_or(usize::MAX));
        }
    }

    /// Writes as much as the kernel takes.
    fn write_all(&mut self, state: &mut State, cx: &mut Context<'_>) -> io::Result<()> {
        if state.unwritten() == 0 && !self.unflushed {
            return Ok(());
        }
        let was_full = state.unwritten() > MOST_UNWRITTEN;
        state.blocked = false;
        let now = monotonic_ns();
        while state.unwritten() > 0 {
            let bytes = &state.out[state.written..];
            let written = if std::mem::take(&mut self.fresh) {
                // tokio would first wait for epoll to say that a socket just connected is writable.
                match self.stream.write_first(bytes) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                    written => Poll::Ready(written),
                }
            } else {
                Pin::new(&mut self.stream).poll_write(cx, bytes)
            };
            match oroshi_net::stream::nonzero_write(written) {
                Poll::Ready(Ok(count)) => state.wrote(count, now),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => {
                    state.block();
                    break;
                }
            }
        }
        state.changed |= was_full && state.unwritten() <= MOST_UNWRITTEN;
        // TLS may hold records back. For plain sockets this does nothing.
        self.unflushed = self.stream.is_tls() && Pin::new(&mut self.stream).poll_flush(cx)?.is_pending();
        Ok(())
    }

    // Time.

    /// Sends a ping on a silent connection with streams, and ends a connection that has not answered one.
    fn ping(&mut self) {
        let Some(ping) = self.shared.config.ping else { return };
        let mut state = self.shared.state.borrow_mut();
        if state.under_way() == 0 || self.pinged_at < state.heard_at {
            self.pinged_at = 0;
        }
        let now = monotonic_ns();
        if state.under_way() > 0 && self.pinged_at == 0 && silent_at(&state, ping) <= now {
            state.open_output();
            let State { codec, out, .. } = &mut *state;
            codec.ping(out, *b"oroshi\0\0");
            self.pinged_at = now;
        }
        if self.pinged_at > 0 && after(self.pinged_at, ping.timeout) <= now {
            state.finish(ConnectionError::PingTimeout);
        }
    }

    /// Sets when the task has something to do, if nothing happens before.
    fn wait(&mut self, cx: &Context<'_>) {
        let mut state = self.shared.state.borrow_mut();
        let due = match self.shared.config.ping {
            _ if state.is_spacious() => {
                let due = after(state.idle_since, SPARE_TIME);
                if due <= monotonic_ns() {
                    state.release();
                }
                if state.is_spacious() { due } else { u64::MAX }
            }
            Some(ping) if state.under_way() > 0 && self.pinged_at > 0 => after(self.pinged_at, ping.timeout),
            Some(ping) if state.under_way() > 0 => silent_at(&state, ping),
            _ => u64::MAX,
        };
        if due != self.wait.entry().due() {
            self.wait.set(due);
        }
        if due != u64::MAX && self.wait.poll_over(cx) {
            // The sweep was before this turn.
            cx.waker().wake_by_ref();
        }
    }
}

/// Returns when a connection with streams counts as silent.
fn silent_at(state: &State, ping: Ping) -> u64 {
    // A connection that was idle is not silent yet.
    after(state.heard_at.max(state.idle_since), ping.after)
}

/// Handles all whole frames of `input`.
fn decode(
    state: &mut State,
    input: &mut &[u8],
    heads: &mut HeadBuffer,
    interim: bool,
) -> Result<(), oroshi_http2::Defect> {
    loop {
        let State { codec, out, .. } = state;
        match codec.receive(input, heads, out)? {
            Some(event) => state.take(event, interim),
            None => return Ok(()),
        }
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.get_mut().turn(cx)
    }
}

impl Drop for Driver {
    /// The connection has ended, or its runtime has.
    fn drop(&mut self) {
        let mut state = self.shared.state.borrow_mut();
        if state.end.is_none() {
            state.finish(ConnectionError::Dropped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::Slot;

    /// The memory of an idle connection, beside tokio's own for a task and a socket, the table for heads, and the slots
    /// that are kept.
    #[test]
    fn an_idle_connection_is_small() {
        let whole = size_of::<Shared>() + size_of::<Driver>();
        assert!(whole <= 1280, "{whole} bytes: {} + {}", size_of::<Shared>(), size_of::<Driver>());
        assert!(size_of::<Slot>() <= 176, "{} bytes", size_of::<Slot>());
    }
}
