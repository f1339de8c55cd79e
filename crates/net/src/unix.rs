//! A unix stream socket without needless wake-ups.
//!
//! Whenever the peer of a unix stream socket reads, the kernel reports writability, even if the socket was writable
//! all the time (`unix_write_space`; TCP reports it only after a refused write). tokio's own sockets wait in epoll
//! for both directions, so each sent message causes one more event, and one more turn of an otherwise idle runtime.
//! Therefore this socket waits for reading only, and for writing only after a short write.

use std::io::{self, IoSlice};
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, ReadBuf};
use tokio::task::coop::poll_proceed;

/// A connected unix stream socket (unix(7)), non-blocking, in a runtime.
#[derive(Debug)]
pub struct UnixStream {
    socket: AsyncFd<OwnedFd>,
    /// After a refused write: another descriptor of the same socket, which waits for writing. epoll distinguishes
    /// descriptors, so this does not disturb the wait for reading.
    blocked: Option<Box<Blocked>>,
}

#[derive(Debug)]
struct Blocked {
    socket: AsyncFd<OwnedFd>,
    /// Whether the last write was complete.
    is_over: bool,
}

impl UnixStream {
    /// Registers a socket in the current runtime. It must be non-blocking.
    ///
    /// # Errors
    /// When epoll cannot add it.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(UnixStream { socket: register(socket, Interest::READABLE)?, blocked: None })
    }

    /// Makes two connected sockets, and registers both in the current runtime.
    ///
    /// # Errors
    /// When the process has no more descriptors, or epoll cannot add them.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn pair() -> io::Result<[Self; 2]> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok([UnixStream::new(one)?, UnixStream::new(other)?])
    }

    /// Reads the available bytes; `WouldBlock` without any.
    pub(crate) fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.socket.try_io(Interest::READABLE, |socket| Ok(recv(socket, buf, RecvFlags::empty())?.0))
    }

    /// As `AsyncRead`.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(cx))?;
            let wanted = buf.remaining();
            // SAFETY: nothing in it becomes uninitialised: only the kernel writes to it.
            let room = unsafe { buf.unfilled_mut() };
            match recv(ready.get_inner(), room, RecvFlags::empty()) {
                Ok(((read, _), _)) => {
                    let count = read.len();
                    // A short read has emptied the socket: the next event reports more.
                    if 0 < count && count < wanted {
                        ready.clear_ready();
                    }
                    drop(ready);
                    // SAFETY: the kernel has written this many bytes at its start.
                    unsafe { buf.assume_init(count) };
                    buf.advance(count);
                    self.end_of_block();
                    return Poll::Ready(Ok(()));
                }
                Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Poll::Ready(Err(errno.into())),
            }
        }
    }

    /// Waits for bytes or the end without consuming them; returns 1 or 0.
    pub(crate) fn poll_peek(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(cx))?;
            match recv(ready.get_inner(), &mut [0; 1], RecvFlags::PEEK) {
                Ok((_, count)) => return Poll::Ready(Ok(count)),
                Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Poll::Ready(Err(errno.into())),
            }
        }
    }

    /// Writes as much as fits at once; `WouldBlock` when nothing does, or nothing did and epoll has not reported room
    /// since.
    #[inline]
    pub(crate) fn try_write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write(buf.len(), |socket| Ok(send(socket, buf, SendFlags::NOSIGNAL)?))
    }

    /// Like [`try_write`](Self::try_write), from several buffers.
    #[inline]
    pub(crate) fn try_write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let wanted = bufs.iter().map(|buf| buf.len()).sum();
        self.write(wanted, |socket| Ok(rustix::io::writev(socket, bufs)?))
    }

    /// As `AsyncWrite`.
    #[inline]
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll(cx, |stream| stream.try_write(buf))
    }

    /// As `AsyncWrite`.
    #[inline]
    pub(crate) fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll(cx, |stream| stream.try_write_vectored(bufs))
    }

    /// Ends the writing side; the peer reads the end.
    pub(crate) fn shutdown(&self) -> io::Result<()> {
        match rustix::net::shutdown(self, rustix::net::Shutdown::Write) {
            // The peer has already gone.
            Ok(()) | Err(rustix::io::Errno::NOTCONN) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    #[inline]
    fn write(&mut self, wanted: usize, write: impl Fn(BorrowedFd<'_>) -> io::Result<usize>) -> io::Result<usize> {
        let written = match &mut self.blocked {
            None => again(|| write(self.socket.as_fd())),
            Some(blocked) => blocked.socket.try_io(Interest::WRITABLE, |socket| again(|| write(socket.as_fd()))),
        };
        match written {
            Ok(count) => {
                if let Some(blocked) = &mut self.blocked {
                    blocked.is_over = count == wanted;
                }
                Ok(count)
            }
            Err(error) => {
                if error.kind() == io::ErrorKind::WouldBlock {
                    self.block()?;
                }
                Err(error)
            }
        }
    }

    /// Uses the task's cooperative budget, as reading does, so that a writer does not monopolise its thread.
    #[inline]
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut write: impl FnMut(&mut Self) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let turn = ready!(poll_proceed(cx));
        loop {
            match write(self) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => {
                    turn.made_progress();
                    return Poll::Ready(written);
                }
            }
            if let Some(blocked) = &self.blocked {
                // Ready: epoll has reported room since.
                let _ = ready!(blocked.socket.poll_write_ready(cx))?;
            }
        }
    }

    /// Begins waiting for room.
    #[cold]
    fn block(&mut self) -> io::Result<()> {
        match &mut self.blocked {
            Some(blocked) => blocked.is_over = false,
            None => {
                let socket = rustix::io::fcntl_dupfd_cloexec(&self.socket, 0)?;
                let socket = register(socket, Interest::WRITABLE)?;
                self.blocked = Some(Box::new(Blocked { socket, is_over: false }));
            }
        }
        Ok(())
    }

    /// Ends the wait after a read, if the last write was complete: the next write starts a new message and may well
    /// fit.
    #[inline]
    fn end_of_block(&mut self) {
        if self.blocked.as_ref().is_some_and(|blocked| blocked.is_over) {
            drop(mem::take(&mut self.blocked));
        }
    }
}

impl AsFd for UnixStream {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Registers a descriptor in the current runtime's epoll.
#[allow(unsafe_code)]
pub(crate) fn register(socket: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd is open until it is dropped, always has the same number, and is only borrowed here.
    Ok(unsafe { AsyncFd::register_with_interest(socket, interest) }?)
}

fn again(mut work: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match work() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    async fn read(stream: &mut UnixStream, room: usize) -> Vec<u8> {
        let mut bytes = vec![0; room];
        let mut buf = ReadBuf::new(&mut bytes);
        poll_fn(|cx| stream.poll_read(cx, &mut buf)).await.unwrap();
        buf.filled().to_vec()
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(tokio::task::LocalSet::new().run_until(test));
    }

    #[test]
    fn a_write_that_blocks_goes_on_when_there_is_room() {
        const MORE: usize = 4 << 20;
        run(async {
            let [mut writer, mut reader] = UnixStream::pair().unwrap();
            let bytes: Vec<u8> = (0..MORE).map(|n| (n % 251) as u8).collect();
            let writing = async {
                let mut done = 0;
                while done < MORE {
                    let slices = [IoSlice::new(&bytes[done..]), IoSlice::new(b"")];
                    done += poll_fn(|cx| writer.poll_write_vectored(cx, &slices)).await.unwrap();
                }
                assert!(writer.blocked.is_some(), "so much fits nowhere at once");
                // Data arrives at the first descriptor and ends the wait for room.
                assert_eq!(read(&mut writer, 8).await, b"thanks");
                assert!(writer.blocked.is_none());
                assert_eq!(writer.try_write(b"bye").unwrap(), 3);
                writer.shutdown().unwrap();
            };
            let sent = bytes.clone();
            let reading = tokio::task::spawn_local(async move {
                let mut got = Vec::new();
                while got.len() < MORE {
                    got.extend(read(&mut reader, 10_000).await);
                }
                assert!(got == sent);
                assert_eq!(poll_fn(|cx| reader.poll_write(cx, b"thanks")).await.unwrap(), 6);
                assert_eq!(read(&mut reader, 8).await, b"bye");
                assert_eq!(read(&mut reader, 8).await, b"");
            });
            writing.await;
            reading.await.unwrap();
        });
    }

    #[test]
    fn what_is_tried_says_that_it_would_block_until_room_was_told() {
        run(async {
            let [mut writer, mut reader] = UnixStream::pair().unwrap();
            assert_eq!(writer.try_read(&mut [0; 1]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            let piece = [7; 1 << 16];
            let blocked = loop {
                if let Err(error) = writer.try_write(&piece) {
                    break error;
                }
            };
            assert_eq!(blocked.kind(), io::ErrorKind::WouldBlock);
            while !read(&mut reader, 1 << 16).await.is_empty() {
                // There is room now, but epoll has not reported it yet.
                assert_eq!(writer.try_write(b"x").unwrap_err().kind(), io::ErrorKind::WouldBlock);
                if recv(&reader, &mut [0; 1], RecvFlags::PEEK).is_err() {
                    break;
                }
            }
            assert_eq!(poll_fn(|cx| writer.poll_write(cx, b"x")).await.unwrap(), 1);
        });
    }

    #[test]
    fn a_peer_that_goes_is_an_error_also_to_who_waits_for_room() {
        run(async {
            let [mut writer, reader] = UnixStream::pair().unwrap();
            let piece = [7; 1 << 16];
            while writer.try_write(&piece).is_ok() {}
            let mut reader = Some(reader);
            let ended = poll_fn(|cx| {
                let polled = writer.poll_write(cx, &piece);
                drop(reader.take());
                polled
            });
            assert_eq!(ended.await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        });
    }
}
