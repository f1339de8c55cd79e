//! Reads and writes of a socket without TLS: tokio says whether it is ready, the system call is made here.
//!
//! tokio would make it through the C library, whose `recv` and `send` prepare for the thread's cancellation, with two locked instructions for each
//! call; rustix asks the kernel at once. All else is as tokio does it: a read or write that went only part of the way takes the socket for drained
//! or full, and the next one waits for the next event without a system call to find out.
#![allow(unsafe_code)]

use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::AsFd;
use std::task::{Context, Poll, ready};

use rustix::io::writev;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use tokio::io::{Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// What tokio knows of a socket.
pub(crate) trait Plain: AsFd {
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Does it if the socket is ready; if it says `WouldBlock`, the socket no longer is.
    fn if_ready<T>(&self, interest: Interest, io: impl FnOnce() -> io::Result<T>) -> io::Result<T>;
}

macro_rules! plain {
    ($stream:ty) => {
        impl Plain for $stream {
            #[inline]
            fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.poll_read_ready(context)
            }

            #[inline]
            fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.poll_write_ready(context)
            }

            #[inline]
            fn if_ready<T>(&self, interest: Interest, io: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
                self.try_io(interest, io)
            }
        }
    };
}

plain!(TcpStream);
plain!(UnixStream);

/// Reads what there is, at most as much as there is room.
#[inline]
pub(crate) fn poll_read(stream: &impl Plain, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
    loop {
        ready!(stream.poll_readable(cx))?;
        let room = buf.remaining();
        let step = partly(stream, Interest::READABLE, room, || {
            // SAFETY: what has been initialised stays so, as recv writes to it or leaves it alone.
            let unfilled = unsafe { buf.unfilled_mut() };
            Ok(recv(stream, unfilled, RecvFlags::empty())?.1)
        });
        match step {
            Ok(count) => {
                // SAFETY: recv has written as many bytes.
                unsafe { buf.assume_init(count) };
                buf.advance(count);
                return Poll::Ready(Ok(()));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
}

/// Reads one byte, if there is one.
pub(crate) fn try_read_byte(stream: &impl Plain, byte: &mut [u8; 1]) -> io::Result<usize> {
    stream.if_ready(Interest::READABLE, || Ok(recv(stream, byte, RecvFlags::empty())?.0))
}

/// Writes as much as fits.
#[inline]
pub(crate) fn poll_write(stream: &impl Plain, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
    poll(stream, cx, || try_write(stream, bytes))
}

/// As [`poll_write`], from several places.
#[inline]
pub(crate) fn poll_write_vectored(
    stream: &impl Plain,
    cx: &mut Context<'_>,
    places: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    poll(stream, cx, || try_write_vectored(stream, places))
}

/// Writes as much as fits, or says `WouldBlock`.
#[inline]
pub(crate) fn try_write(stream: &impl Plain, bytes: &[u8]) -> io::Result<usize> {
    partly(stream, Interest::WRITABLE, bytes.len(), || Ok(send(stream, bytes, SendFlags::NOSIGNAL)?))
}

/// As [`try_write`], from several places.
#[inline]
pub(crate) fn try_write_vectored(stream: &impl Plain, places: &[IoSlice<'_>]) -> io::Result<usize> {
    // More places than one call takes (IOV_MAX) are no sign that the socket is full.
    let places = &places[..places.len().min(1024)];
    let length = places.iter().map(|place| place.len()).sum();
    partly(stream, Interest::WRITABLE, length, || Ok(writev(stream, places)?))
}

#[inline]
fn poll(
    stream: &impl Plain,
    cx: &mut Context<'_>,
    mut write: impl FnMut() -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(stream.poll_writable(cx))?;
        match write() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            result => return Poll::Ready(result),
        }
    }
}

/// Does it if the socket is ready, which it no longer is when less was done than could be.
#[inline]
fn partly(
    stream: &impl Plain,
    interest: Interest,
    whole: usize,
    io: impl FnOnce() -> io::Result<usize>,
) -> io::Result<usize> {
    let mut done = 0;
    let result = stream.if_ready(interest, || {
        done = io()?;
        // Nothing is the end of what comes, and stays ready.
        if 0 < done && done < whole { Err(ErrorKind::WouldBlock.into()) } else { Ok(done) }
    });
    if done > 0 { Ok(done) } else { result }
}
