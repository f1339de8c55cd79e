//! The epoll set of a worker: listeners, connections, the lifeline. Level-triggered.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::socket::checked;

/// The event that a connection waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Interest {
    /// None: the connection is not in the set.
    #[default]
    None,
    /// Bytes, or the peer's end.
    Read,
    /// Room for bytes.
    Write,
}

/// A ready event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    /// The token given to [`Poll::add`].
    pub(crate) token: u64,
}

/// An epoll set.
#[derive(Debug)]
pub(crate) struct Poll {
    set: OwnedFd,
    events: Vec<libc::epoll_event>,
}

/// Events per call: enough to spread its cost, few enough that new connections get their turn.
const BATCH: usize = 64;

impl Poll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: a plain number.
        let set = checked(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } as isize)?;
        // SAFETY: a descriptor that was just made.
        let set = unsafe { OwnedFd::from_raw_fd(set as RawFd) };
        Ok(Poll { set, events: Vec::with_capacity(BATCH) })
    }

    /// Adds a listener shared with other processes: the kernel wakes one of them, not all.
    pub(crate) fn add_listener(&self, descriptor: RawFd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, descriptor, libc::EPOLLIN | libc::EPOLLEXCLUSIVE, token)
    }

    /// Adds a descriptor to read from.
    pub(crate) fn add(&self, descriptor: RawFd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, descriptor, libc::EPOLLIN | libc::EPOLLRDHUP, token)
    }

    /// Removes a descriptor, before it is closed: a copy in a forked process would keep it in.
    pub(crate) fn remove(&self, descriptor: RawFd) {
        remove_from(self.number(), descriptor);
    }

    /// Changes the event that a connection waits for.
    pub(crate) fn turn(&self, descriptor: RawFd, token: u64, from: Interest, to: Interest) -> io::Result<()> {
        let events = match to {
            Interest::Read => libc::EPOLLIN | libc::EPOLLRDHUP,
            Interest::Write => libc::EPOLLOUT,
            Interest::None => {
                self.remove(descriptor);
                return Ok(());
            }
        };
        match from {
            Interest::None => self.control(libc::EPOLL_CTL_ADD, descriptor, events, token),
            same if same == to => Ok(()),
            _ => self.control(libc::EPOLL_CTL_MOD, descriptor, events, token),
        }
    }

    /// Takes the ready events without waiting. Returns their number.
    pub(crate) fn look(&mut self) -> io::Result<usize> {
        self.wait(0)
    }

    /// Waits for an event, a signal, or `timeout_ms` (-1: no limit). Call it without the GVL.
    pub(crate) fn wait(&mut self, timeout_ms: i32) -> io::Result<usize> {
        self.events.clear();
        // SAFETY: the set's descriptor, and room for BATCH events.
        let ready = checked(unsafe {
            libc::epoll_wait(self.set.as_raw_fd(), self.events.as_mut_ptr(), BATCH as i32, timeout_ms)
        } as isize);
        let ready = match ready {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            other => other?,
        };
        // SAFETY: the kernel has filled so many.
        unsafe { self.events.set_len(ready) };
        Ok(ready)
    }

    /// Returns tokens of ready events without taking them: the next look finds them again.
    pub(crate) fn peek(&self) -> impl Iterator<Item = u64> {
        peek_at::<8>(self.number())
    }

    /// Returns an event of the last look or wait.
    pub(crate) fn event(&self, index: usize) -> Event {
        Event { token: self.events[index].u64 }
    }

    /// Returns the set's number, for [`remove_from`].
    pub(crate) fn number(&self) -> RawFd {
        self.set.as_raw_fd()
    }

    fn control(&self, operation: i32, descriptor: RawFd, events: i32, token: u64) -> io::Result<()> {
        control(self.number(), operation, descriptor, events, token)
    }
}

/// Returns the tokens of at most `SOME` ready events in a set given by its number, like [`Poll::peek`].
pub(crate) fn peek_at<const SOME: usize>(set: RawFd) -> impl Iterator<Item = u64> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; SOME];
    // SAFETY: the set's descriptor, and room for SOME events.
    let ready = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), SOME as i32, 0) };
    events.into_iter().take(usize::try_from(ready).unwrap_or(0)).map(|event| event.u64)
}

/// Removes a descriptor from a set given by its number.
pub(crate) fn remove_from(set: RawFd, descriptor: RawFd) {
    // It fails only if it was not in.
    let _ = control(set, libc::EPOLL_CTL_DEL, descriptor, 0, 0);
}

fn control(set: RawFd, operation: i32, descriptor: RawFd, events: i32, token: u64) -> io::Result<()> {
    let mut event = libc::epoll_event { events: events as u32, u64: token };
    // SAFETY: descriptors and a local.
    let result = unsafe { libc::epoll_ctl(set, operation, descriptor, &raw mut event) };
    checked(result as isize).map(|_| ())
}
