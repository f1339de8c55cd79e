//! Sends the 504 of a request that runs too long, from a signal handler, because Ruby may be stuck in a loop, a query
//! or C.
//!
//! The manager condemns a request in the scoreboard and sends SIGURG. The handler, on any thread, may interrupt the
//! serving thread anywhere. So the right to write to the client is one atomic word, which holds the request's serial
//! until a side takes it: the side that swaps it writes. A late handler finds another serial than the condemned one.
//! The descriptor stays open until the serving thread has taken the word, so the handler never writes to a reused
//! number. Each of a worker's threads has such a word.

use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, AtomicUsize};

use crate::scoreboard::MOST_THREADS;
use crate::slot::Slot;

/// No request to answer.
const NOBODY: u64 = 0;
/// The handler is writing its 504.
const TELLING: u64 = u64::MAX - 1;
/// The handler has written it, and shut down the sending side.
const TOLD: u64 = u64::MAX;

/// The right to write to the client of a thread's request.
#[derive(Debug)]
pub(crate) struct AnswerRight {
    /// One of the above, or the serial of the request that the application works on, while no byte of its answer is
    /// sent.
    holder: AtomicU64,
    socket: AtomicI32,
    /// Bytes of ANSWER to send to this request's client.
    answer_bytes: AtomicUsize,
    /// The thread's slot.
    slot: AtomicPtr<Slot>,
}

/// By thread.
static RIGHTS: [AnswerRight; MOST_THREADS] = [const { AnswerRight::new() }; MOST_THREADS];
/// Ruby's own handler, called after ours.
static RUBYS: AtomicPtr<libc::c_void> = AtomicPtr::new(ptr::null_mut());

const ANSWER: &[u8] = b"HTTP/1.1 504 Gateway Timeout\r\nContent-Type: text/plain\r\nContent-Length: 16\r\n\
    Connection: close\r\n\r\nGateway Timeout\n";
const BODY_BYTES: usize = 16;

/// The signal that the manager sends.
pub(crate) const SIGNAL: i32 = libc::SIGURG;

/// Returns the right of a thread, which is below [`MOST_THREADS`].
pub(crate) fn right_of(thread: usize) -> &'static AnswerRight {
    &RIGHTS[thread]
}

impl AnswerRight {
    const fn new() -> Self {
        AnswerRight {
            holder: AtomicU64::new(NOBODY),
            socket: AtomicI32::new(-1),
            answer_bytes: AtomicUsize::new(0),
            slot: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Installs the handler before Ruby's for [`SIGNAL`], for the thread of this slot.
    pub(crate) fn install(&self, slot: &'static Slot) -> std::io::Result<()> {
        self.slot.store(ptr::from_ref(slot).cast_mut(), Release);
        // SAFETY: zeros are a valid sigaction; the handler has the type that SA_SIGINFO asks for, and does only what a
        // signal handler may.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            crate::socket::checked(libc::sigaction(SIGNAL, ptr::null(), &raw mut before) as isize)?;
            let ours = handler as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) as usize;
            if before.sa_sigaction == ours {
                return Ok(());
            }
            RUBYS.store(before.sa_sigaction as *mut libc::c_void, Release);
            let mut action = before;
            action.sa_sigaction = ours;
            action.sa_flags |= libc::SA_SIGINFO | libc::SA_RESTART;
            crate::socket::checked(libc::sigaction(SIGNAL, &raw const action, ptr::null_mut()) as isize)?;
        }
        Ok(())
    }

    /// Arms the handler for the request of this serial on this socket, before the application works on it. `head_only`:
    /// the answer has no body.
    pub(crate) fn arm(&self, serial: u64, socket: i32, head_only: bool) {
        self.socket.store(socket, Relaxed);
        self.answer_bytes.store(ANSWER.len() - if head_only { BODY_BYTES } else { 0 }, Relaxed);
        self.holder.store(serial, Release);
    }

    /// Arms the handler again for the present request, after [`claim`](Self::claim).
    pub(crate) fn arm_again(&self, serial: u64) {
        self.holder.store(serial, Release);
    }

    /// Takes the right to write to the client. False: it received a 504, and the connection must be dropped.
    pub(crate) fn claim(&self) -> bool {
        let holder = self.holder.load(Acquire);
        if holder == NOBODY {
            return true;
        }
        if holder < TELLING && self.holder.compare_exchange(holder, NOBODY, AcqRel, Acquire).is_ok() {
            return true;
        }
        // The handler runs on another thread, for at most some microseconds.
        while self.holder.load(Acquire) == TELLING {
            std::hint::spin_loop();
        }
        self.holder.store(NOBODY, Release);
        false
    }

    /// Returns the body bytes of the last 504.
    pub(crate) fn told_bytes(&self) -> u64 {
        let head_bytes = ANSWER.len() - BODY_BYTES;
        self.answer_bytes.load(Relaxed).saturating_sub(head_bytes) as u64
    }

    /// Sends the 504, if the manager wants the thread's request ended and nothing was sent yet. Returns whether the
    /// manager wants it. For the signal handler.
    fn tell_if_condemned(&self) -> bool {
        // SAFETY: null, or a slot that is never unmapped.
        let Some(slot) = (unsafe { self.slot.load(Acquire).as_ref() }) else { return false };
        let Some(serial) = slot.condemned() else { return false };
        if self.holder.compare_exchange(serial, TELLING, AcqRel, Acquire).is_ok() {
            let (socket, length) = (self.socket.load(Relaxed), self.answer_bytes.load(Relaxed));
            // SAFETY: the serving thread neither writes to nor closes the socket before it has checked the holder. Both
            // calls are allowed in a signal handler, and neither blocks.
            unsafe {
                libc::send(socket, ANSWER.as_ptr().cast(), length, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
                libc::shutdown(socket, libc::SHUT_WR);
            }
            slot.tell();
            self.holder.store(TOLD, Release);
        }
        true
    }
}

extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: errno's address is the thread's own; the interrupted code must find it unchanged.
    let errno = unsafe { *libc::__errno_location() };
    // All are told, not only the first.
    if RIGHTS.iter().filter(|right| right.tell_if_condemned()).count() > 0 {
        let rubys = RUBYS.load(Acquire);
        if rubys as usize != libc::SIG_DFL && rubys as usize != libc::SIG_IGN {
            // SAFETY: the handler that Ruby had installed; one that takes one argument ignores the other two.
            let rubys: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(rubys) };
            rubys(signal, info, context);
        }
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_handler_that_comes_late_does_not_tell_the_next_client() {
        let slot = crate::scoreboard::tests::slot();
        let right = right_of(1);
        right.slot.store(ptr::from_ref(slot).cast_mut(), Release);
        let (server, mut client) = UnixStream::pair().unwrap();
        let serial = slot.begin("GET", "/", true);
        slot.condemn(serial);
        // The handler has seen the first request condemned; by now the main thread has armed the next one.
        right.arm(serial + 1, server.as_raw_fd(), false);
        handler(SIGNAL, ptr::null_mut(), ptr::null_mut());
        assert!(right.claim() && right.claim() && !slot.has_told());
        right.arm(serial, server.as_raw_fd(), false);
        handler(SIGNAL, ptr::null_mut(), ptr::null_mut());
        assert!(slot.has_told() && !right.claim());
        assert!(right.claim(), "one is told once");
        let mut told = Vec::new();
        client.read_to_end(&mut told).unwrap();
        assert_eq!(told, ANSWER);

        // The answer to HEAD has no body. Another thread's client is not told.
        let (other, other_slot) = (right_of(2), crate::scoreboard::tests::slot());
        other.slot.store(ptr::from_ref(other_slot).cast_mut(), Release);
        let (others_server, _others_client) = UnixStream::pair().unwrap();
        other.arm(other_slot.begin("GET", "/", true), others_server.as_raw_fd(), false);
        let (server, mut client) = UnixStream::pair().unwrap();
        right.arm(serial, server.as_raw_fd(), true);
        handler(SIGNAL, ptr::null_mut(), ptr::null_mut());
        assert!(!right.claim());
        let mut told = Vec::new();
        client.read_to_end(&mut told).unwrap();
        assert!(other.claim() && !other_slot.has_told());
        assert!(told.ends_with(b"\r\n\r\n") && ANSWER.starts_with(&told), "{told:?}");
    }
}
