//! The descriptor by which workers wake one another. Made before the first fork; all processes share it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::socket::checked;

/// Wakes one worker from the others: an eventfd in its epoll set.
#[derive(Debug)]
pub(crate) struct Waker(OwnedFd);

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: plain numbers.
        let number = checked(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) } as isize)?;
        // SAFETY: a descriptor that was just made.
        Ok(Waker(unsafe { OwnedFd::from_raw_fd(number as RawFd) }))
    }

    pub(crate) fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Makes the descriptor readable.
    pub(crate) fn wake(&self) {
        // SAFETY: eight bytes of a local. It fails only at 2^64 - 1, and is readable then.
        unsafe { libc::write(self.number(), (&raw const ONE).cast(), size_of::<u64>()) };
    }

    /// Makes the descriptor unreadable again.
    pub(crate) fn clear(&self) {
        let mut count = 0_u64;
        // SAFETY: room for eight bytes. It fails only if it was not readable.
        unsafe { libc::read(self.number(), (&raw mut count).cast(), size_of::<u64>()) };
    }
}

static ONE: u64 = 1;
