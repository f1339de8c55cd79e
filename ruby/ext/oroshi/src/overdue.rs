//! Sends the 504 of a request that runs too long, from a signal handler, because Ruby may be stuck in a loop, a query
//! or C.
//!
//! The manager condemns a request in the scoreboard and sends SIGURG. The handler, on any thread, may interrupt the
//! main thread anywhere. So the right to write to the client is one atomic word, which holds the request's serial until
//! a side takes it: the side that swaps it writes. A late handler finds another serial than the condemned one. The
//! descriptor stays open until the main thread has taken the word, so the handler never writes to a reused number.

use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, AtomicUsize};

use crate::scoreboard::Slot;

/// No request to answer.
const NOBODY: u64 = 0;
/// The handler is writing its 504.
const TELLING: u64 = u64::MAX - 1;
/// The handler has written it, and shut down the sending side.
const TOLD: u64 = u64::MAX;

/// One of the above, or the serial of the request that the application works on, while no byte of its answer is sent.
static RIGHT: AtomicU64 = AtomicU64::new(NOBODY);
static SOCKET: AtomicI32 = AtomicI32::new(-1);
/// Bytes of ANSWER to send to this request's client.
static ANSWER_BYTES: AtomicUsize = AtomicUsize::new(0);
static SLOT: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());
/// Ruby's own handler, called after ours.
static RUBYS: AtomicPtr<libc::c_void> = AtomicPtr::new(ptr::null_mut());

const ANSWER: &[u8] = b"HTTP/1.1 504 Gateway Timeout\r\nContent-Type: text/plain\r\nContent-Length: 16\r\n\
    Connection: close\r\n\r\nGateway Timeout\n";
const BODY_BYTES: usize = 16;

/// The signal that the manager sends.
pub(crate) const SIGNAL: i32 = libc::SIGURG;

/// Installs the handler before Ruby's for [`SIGNAL`].
pub(crate) fn install(slot: &'static Slot) -> std::io::Result<()> {
    SLOT.store(ptr::from_ref(slot).cast_mut(), Release);
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

/// Arms the handler for the request of this serial on this socket, before the application works on it. `head_only`: the
/// answer has no body.
pub(crate) fn arm(serial: u64, socket: i32, head_only: bool) {
    SOCKET.store(socket, Relaxed);
    ANSWER_BYTES.store(ANSWER.len() - if head_only { BODY_BYTES } else { 0 }, Relaxed);
    RIGHT.store(serial, Release);
}

/// Arms the handler again for the present request, after [`claim`].
pub(crate) fn arm_again(serial: u64) {
    RIGHT.store(serial, Release);
}

/// Takes the right to write to the client. False: it received a 504, and the connection must be dropped.
pub(crate) fn claim() -> bool {
    let right = RIGHT.load(Acquire);
    if right == NOBODY {
        return true;
    }
    if right < TELLING && RIGHT.compare_exchange(right, NOBODY, AcqRel, Acquire).is_ok() {
        return true;
    }
    // The handler runs on another thread, for at most some microseconds.
    while RIGHT.load(Acquire) == TELLING {
        std::hint::spin_loop();
    }
    RIGHT.store(NOBODY, Release);
    false
}

/// Returns the body bytes of the last 504.
pub(crate) fn told_bytes() -> u64 {
    let head_bytes = ANSWER.len() - BODY_BYTES;
    ANSWER_BYTES.load(Relaxed).saturating_sub(head_bytes) as u64
}

extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: errno's address is the thread's own; the interrupted code must find it unchanged.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: null, or a slot that is never unmapped.
    let slot = unsafe { SLOT.load(Acquire).as_ref() };
    if let Some((slot, serial)) = slot.and_then(|slot| Some((slot, slot.condemned()?))) {
        if RIGHT.compare_exchange(serial, TELLING, AcqRel, Acquire).is_ok() {
            let (socket, length) = (SOCKET.load(Relaxed), ANSWER_BYTES.load(Relaxed));
            // SAFETY: the main thread neither writes to nor closes the socket before it has checked RIGHT. Both calls
            // are allowed in a signal handler, and neither blocks.
            unsafe {
                libc::send(socket, ANSWER.as_ptr().cast(), length, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
                libc::shutdown(socket, libc::SHUT_WR);
            }
            slot.tell();
            RIGHT.store(TOLD, Release);
        }
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
        SLOT.store(ptr::from_ref(slot).cast_mut(), Release);
        let (server, mut client) = UnixStream::pair().unwrap();
        let serial = slot.begin("GET", "/", true);
        slot.condemn(serial);
        // The handler has seen the first request condemned; by now the main thread has armed the next one.
        arm(serial + 1, server.as_raw_fd(), false);
        handler(SIGNAL, ptr::null_mut(), ptr::null_mut());
        assert!(claim() && claim() && !slot.has_told());
        arm(serial, server.as_raw_fd(), false);
        handler(SIGNAL, ptr::null_mut(), ptr::null_mut());
        assert!(slot.has_told() && !claim());
        assert!(claim(), "one is told once");
        let mut told = Vec::new();
        client.read_to_end(&mut told).unwrap();
        assert_eq!(told, ANSWER);

        // In the same test, because a process has one such word. The answer to HEAD has no body.
        let (server, mut client) = UnixStream::pair().unwrap();
        arm(serial, server.as_raw_fd(), true);
        handler(SIGNAL, ptr::null_mut(), ptr::null_mut());
        assert!(!claim());
        let mut told = Vec::new();
        client.read_to_end(&mut told).unwrap();
        assert!(told.ends_with(b"\r\n\r\n") && ANSWER.starts_with(&told), "{told:?}");
    }
}
